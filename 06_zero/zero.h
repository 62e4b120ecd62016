// zero.h: data parallelism without N copies of everything (Rajbhandari et al. 2020, ZeRO; PyTorch
// calls stage 3 FSDP).
//
// Rank r of N owns part r of every unit: shard_range of its flat elements, across tensor borders.
// It keeps optimizer state for that part, and, from stage 2, gradients, and, from stage 3, weights:
//
//     bytes per parameter (fp32)  weights  gradients  m, v   sent per step, in (N-1)/N Psi
//     data parallel, AdamW           4        4        8      2   all-reduce of gradients
//     stage 1                        4        4        8/N    2   reduce-scatter, all-gather
//     stage 2                        4        4/N      8/N    m + 1: a reduction per micro-batch
//     stage 3                        4/N      4/N      8/N    3m: weights gathered twice, too
//     stage 3 with prefetch          4/N      4/N      8/N    3m, most of it while a rank computes
//
// A unit in flight (gathered weights, a whole gradient on its way) is MEM_COMMUNICATION. The tied
// embedding is used at both ends of a step, so stage 3 gathers it once and keeps it to the end, and
// stages 2 and 3 reduce it once.
#ifndef ZERO_H
#define ZERO_H
#include "common/model/optimizer.h"

// One step of a rank on its micro-batches batch[0..m). clip: the largest gradient norm; 0: no
// clipping.
typedef StepResult ZeroStep(Model *model, Comm *dp, const Batch *batch, size_t m, Optimizer *o,
                            double clip);

// ---- Stage 1: 02_zero1.c ----
// The allocator of each stage takes model_allocate()'s place. A unit is sharded and reduced over
// its replicas: dp, where it has none of its own.
void zero1_allocate(Model *m, Comm *dp);
void zero1_reduce(Model *m);                       // own_g <- my part of the sum of g
void zero1_gather(Model *m);    // w <- the own_w of all ranks; stage 2 has the same
ZeroStep zero1_step;

// ---- Stage 2: 03_zero2.c ----
void zero2_allocate(Model *m, Comm *dp);
void zero2_begin(Model *m);                        // gradients start at zero; room for those of wte
void zero2_reduce(Model *m);    // those of wte, which no layer's backward has reduced
ZeroStep zero2_step;
// Its parts, for stage 3 and for backwards in other forms.
bool zero2_stays_whole(const Unit *u);  // for a step: wte, or the last stage's copy of it
void zero2_allocate_gradient(Unit *u, Arena *a);   // u's whole gradient [size], at zero
void zero2_reduce_gradient(Unit *u, Comm *dp);     // own_g += my part of the sum of g
void zero2_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s);
void zero2_backward_and_reduce(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);

// ---- Stage 3: 04_zero3.c ----
void zero3_allocate(Model *m, Comm *dp);
void zero3_gather_wte(Model *m);  // all that forwards without a backward need; then zero3_drop_wte
void zero3_drop_wte(Model *m);
void zero3_begin(Model *m);
void zero3_reduce(Model *m);
ZeroStep zero3_step;
// Its parts.
void zero3_allocate_parts(Model *m, Comm *dp);  // zero3_allocate without a layer around each layer
void zero3_gather(Layer *l, Arena *in_flight);     // the weights of l's units, and their end
void zero3_drop(Layer *l, Arena *in_flight);
void zero3_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s);
void zero3_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);

// ---- Stage 3 with prefetch: 05_prefetch.c. All other functions of stage 3 stay as they are. ----
// reshard: weights are dropped after forward and gathered again for backward, as in 04_zero3.c; no:
// kept in between.
void prefetch_allocate(Model *m, Comm *dp, bool reshard);
void prefetch_finish(Model *m);     // after the last backward: waits for the last reduction
void prefetch_free(Model *m);                      // before model_free
ZeroStep prefetch_step;
#endif
