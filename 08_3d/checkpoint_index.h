// checkpoint_index.h: what a checkpoint says of itself: its index, and the note at each tensor. Both are parsed from
// bytes in memory, which anybody may have written: tests/fuzz_checkpoint.c gives them any.
#ifndef CHECKPOINT_INDEX_H
#define CHECKPOINT_INDEX_H
#include "08_3d/tensor_file.h"
#include "common/base/util.h"

enum { CHECKPOINT_VERSION = 1, CHECKPOINT_MOST_FILES = 1 << 16 };

typedef struct { uint64_t sum; size_t bytes; } FileSum;            // of a file: FNV-1a over its bytes, and how many
typedef struct {
    struct cJSON *json;
    size_t step, optimizer_step, n;                // n files
    FileSum *sum;                                  // [n]
} CheckpointIndex;
// NULL, or what is wrong with it, as the end of a sentence. To be freed in both cases.
const char *checkpoint_index_parse(CheckpointIndex *x, const char *text, size_t bytes);
void checkpoint_index_free(CheckpointIndex *x);
const char *checkpoint_index_option(const CheckpointIndex *x, const char *name);           // NULL: it does not say

// A stretch of a rectangle of a whole tensor, and where its values are.
typedef struct {
    size_t rows, cols, blocks, first, count;       // of the whole; elements [first, first + count) of the rectangle
    Range my_rows, my_cols;                        // the rectangle; my_cols within each block
    const FileTensor *t[3];                        // weights, m, v
} CheckpointPiece;
// From the note at a tensor of count elements; t is left as it was. NULL, or what in it is wrong.
const char *checkpoint_piece_parse(CheckpointPiece *p, const char *note, size_t count);
#endif
