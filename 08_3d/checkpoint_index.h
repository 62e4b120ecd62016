// checkpoint_index.h declares functions that print and parse the index of a checkpoint, and parse
// the note of each tensor. The note is the text in "__metadata__" that gives the tensor's place in
// the whole tensor. The parsers must not crash on any bytes, because another program may have
// written the file.
#ifndef CHECKPOINT_INDEX_H
#define CHECKPOINT_INDEX_H
#include "08_3d/tensor_file.h"
#include "common/base/util.h"

enum { CHECKPOINT_VERSION = 2, CHECKPOINT_MOST_FILES = 1 << 16 };
enum { CHECKPOINT_FILE_NAME = 48, RUN_ID = 17 }; // bytes, with the terminating 0
// An index begins with CHECKPOINT_INDEX_BEGIN. A rank's file has CHECKPOINT_FILE_BEGIN behind its
// first 8 bytes, which give the length of its header.
#define CHECKPOINT_INDEX_NAME "index.json"
#define CHECKPOINT_INDEX_BEGIN "{\n\t\"format\":\t\"unsplit checkpoint\""
#define CHECKPOINT_FILE_BEGIN "{\"__metadata__\":{\"format\":\"unsplit\""
// Writes the name of a rank's file, such as "rank-0003.safetensors".
void checkpoint_file_name(char name[CHECKPOINT_FILE_NAME], size_t rank);

// A sum over some bytes, and the number of these bytes. A torn page or a flipped bit changes the
// sum. The sum over a file of a checkpoint is FNV-1a (Fowler, Noll, Vo). The sum over the data of a
// training is data_fingerprint().
typedef struct {
    uint64_t sum;
    size_t bytes;
} FileSum;
FileSum file_sum_of(const void *data, size_t bytes);
// Adds bytes to the FNV-1a sum s. The first s is file_sum_of(NULL, 0).
void file_sum_add(FileSum *s, const void *data, size_t bytes);

// A training from its first step to its last step. Several runs of the program may share one
// training.
typedef struct {
    char id[RUN_ID];  // 16 hexadecimal digits
    FileSum data;     // the files that have training tokens
    FileSum held_out; // all other files, such as those of --data-eval; 0 bytes: none, or not known
    size_t best_step; // the saved step with the lowest held-out loss; 0: no such step is known
    double best_loss;
    // The next factor of a dynamic loss scale, and the steps without an overflow since the factor
    // changed. Factor 0: the training has no dynamic loss scale.
    double scale_factor;
    size_t scale_good;
} SavedRun;

typedef struct {
    struct cJSON *json;
    SavedRun run;
    size_t step, optimizer_step, n; // n files
    FileSum *sum;                   // [n]
} CheckpointIndex;
// Returns the text of an index. The last member is the sum over all bytes before this member. The
// caller frees the text.
char *checkpoint_index_print(const struct cJSON *index);
// Parses the text of an index. Returns NULL, or the error as the end of a sentence. Call
// checkpoint_index_free() whatever the function returns.
const char *checkpoint_index_parse(CheckpointIndex *x, const char *text, size_t bytes);
void checkpoint_index_free(CheckpointIndex *x);
// These two functions return the saved value of an option that defines the training ("options"), or
// of another option ("layout"). The result is NULL if the index does not have the option.
const char *checkpoint_index_option(const CheckpointIndex *x, const char *name);
const char *checkpoint_index_layout(const CheckpointIndex *x, const char *name);

// A range of elements. A rectangle of a whole tensor is flattened, and the range is cut from the
// flattened rectangle. t: the tensors that hold the range.
typedef struct {
    size_t rows, cols, blocks; // of the whole tensor; blocks of columns: param_narrow_blocks()
    // With grouped heads the first `ratio` blocks are the queries. Otherwise ratio is 1.
    size_t ratio;
    // elements [first, first + count) of the rectangle
    size_t first, count;
    Range own_rows, own_cols; // the rectangle; own_cols within each block
    const FileTensor *t[3];   // weights, m, v
} CheckpointPiece;
// Parses the note of a tensor with `count` elements. Does not change p->t. Returns NULL, or the
// error.
const char *checkpoint_piece_parse(CheckpointPiece *p, const char *note, size_t count);
#endif
