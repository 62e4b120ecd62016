// data.h: where tokens come from. The sequence with global number n of step s is a function of (seed, s, n): who asks,
// and how the batch is cut, does not matter. So every rank knows the whole order, and the global token count, without
// communication.
#ifndef DATA_H
#define DATA_H
#include "common/model/attention.h"

typedef struct {
    const unsigned char *text;                     // NULL: synthetic tokens
    bool mapped;                                   // text is a file's pages, shared by all ranks of a node
    size_t bytes, train_bytes;                     // the last tenth is held out
    size_t vocab, context;                         // V, T
    uint64_t seed;
    Positions positions;                           // of each sequence, which ones a batch has; n 0: all
    bool ragged;                                   // sequences end early at different lengths: unequal token counts
} Data;
Data data_synthetic(size_t vocab, size_t context, uint64_t seed);      // ragged
// Text of bytes, V = 256; path NULL: this tree's own text. All have rank 0's text: who cannot see the file, or sees
// another one, is sent it over the side channel; so it may be a pipe. False, on all ranks alike: it cannot be read or
// is too short; why says so and names the fix, and *d needs no data_free().
enum { DATA_WHY = 2048 };
bool data_open(Data *d, const char *path, size_t context, uint64_t seed, char why[DATA_WHY]);
void data_free(Data *d);

// Micro-batch of B sequences from global sequence number `first` of a step whose global batch is `global` sequences.
Batch data_batch(const Data *d, Arena *a, uint64_t step, size_t first, size_t B, size_t global);
// The same for many micro-batches: token_weight is found once a step, 1 / data_count(d, step, 0, global).
Batch data_micro_batch(const Data *d, Arena *a, uint64_t step, size_t first, size_t B, double token_weight);
size_t data_count(const Data *d, uint64_t step, size_t first, size_t B);       // counted tokens of these sequences
// Held-out text, in data_eval_windows() windows of `context` bytes. A batch has B of `some` windows, spread evenly over
// them, from number `first` of these on; token_weight 1 / B*T.
size_t data_eval_windows(const Data *d);
Batch data_eval_batch(const Data *d, Arena *a, size_t first, size_t B, size_t some);
// Of the whole held-out text, nats a byte: what knowing only how frequent each byte is would give.
double data_byte_entropy(const Data *d);
#endif
