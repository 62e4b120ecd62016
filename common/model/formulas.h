// formulas.h: what several lessons predict their costs with. It knows sizes, and which device and link were chosen; it
// never looks at a model, a ledger or the time.
#ifndef FORMULAS_H
#define FORMULAS_H
#include "common/model/layer.h"

// n things cut in `parts` parts, as everything is cut: the first n % parts have one more than the others.
size_t part_size(size_t n, size_t parts, size_t i);

// ---- What each of n ranks sends in a ring for `count` elements of `size` bytes, and how many picoseconds
//      that takes; and how long one message takes. ----
enum { ONE_PASS = 1, ALL_REDUCE_PASSES = 2 };  // a reduce-scatter or an all-gather is one pass, an all-reduce is both
double ring_bytes(size_t passes, size_t n, size_t count, size_t size);
double ring_time(size_t passes, size_t n, size_t count, size_t size);
double send_time(size_t bytes);             // alpha + bytes / beta

// ---- Products of matrices: FLOPs, and the picoseconds of the chosen device, one product after the other. ----
typedef struct { double flops, time; } Work;
Work work_product(size_t m, size_t n, size_t k);   // [m, k] times [k, n]
Work work_times(double times, Work w);
Work work_sum(Work a, Work b);
// Forward of a block and of the head for B sequences; mine are these heads, columns of the MLP and words (all: c's
// heads, 4 C, words).
// Backward is two products of the same size for each of forward's: twice the work.
Work work_scores(const ModelConfig *c, size_t B, size_t heads);                  // q k^T
Work work_block(const ModelConfig *c, size_t B, size_t heads, size_t hidden);
Work work_head(const ModelConfig *c, size_t B, size_t words);
// Forward and backward of the whole model for B sequences.
Work work_model(const ModelConfig *c, size_t B);

// ---- What forward keeps for backward, in numbers a token. ----
// Korthikanti et al. 2022, section 4.1; masks are not stored.
size_t kept_scores(const ModelConfig *c, size_t heads);                          // softmax, and what dropout left of it
size_t kept_block(const ModelConfig *c, size_t heads, size_t hidden);            // all items of a block but its input
size_t kept_head(const ModelConfig *c, size_t words);
size_t kept_model(const ModelConfig *c);           // and the outputs of the embedding and of every block, besides
#endif
