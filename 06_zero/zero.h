// zero.h: declares the stages of ZeRO. Data parallelism holds the same state on N ranks, and ZeRO
// divides this state over the ranks (Rajbhandari et al. 2020; PyTorch calls ZeRO-3 FSDP).
//
// A unit is a block, an embedding table or the last norm. Rank r of N owns part r of every unit.
// The part is shard_range of the unit's flat elements, across the borders of tensors. Between steps
// a rank keeps only its own part of a divided item. ZeRO-1 divides the optimizer state, ZeRO-2
// also the gradients, and ZeRO-3 also the weights:
//
//     bytes per parameter (fp32)  weights  gradients  m, v   sent per step, in (N-1)/N Psi
//     data parallel, AdamW           4        4        8      2   all-reduce of gradients
//     ZeRO-1                         4        4        8/N    2   reduce-scatter, all-gather
//     ZeRO-2                         4        4/N      8/N    m + 1: a reduction per micro-batch
//     ZeRO-3                         4/N      4/N      8/N    3m: also two gathers per micro-batch
//     ZeRO-3 with prefetch           4/N      4/N      8/N    3m, part of it while a rank computes
//
// ZeRO-2 and ZeRO-3 have units in flight, which are whole gradients, and in ZeRO-3 also gathered
// weights. Memory for units in flight counts as MEM_COMMUNICATION. Embedding and head use one
// table, wte. So ZeRO-2 and ZeRO-3 reduce the gradient of wte once per step, and ZeRO-3 gathers the
// weights of wte once per step.
#ifndef ZERO_H
#define ZERO_H
#include "common/model/optimizer.h"

// Runs one training step of a rank with its micro-batches batch[0..m). `clip` is the largest
// gradient norm; 0 means no clipping.
typedef StepResult ZeroStep(Model *model, Comm *dp, const Batch *batch, size_t m, Optimizer *o,
                            double clip);

// ---- ZeRO-1: 02_zero1.c ----
// zero1_allocate, zero2_allocate and zero3_allocate take the place of model_allocate(). The ranks
// of the group Unit.replicas divide a unit and reduce its gradient. The group is dp, unless the
// description of the unit names another group.
void zero1_allocate(Model *m, Comm *dp);
void zero1_reduce(Model *m); // fills own_g with the own part of the sum of g over ranks
void zero1_gather(Model *m); // fills w with the own_w of all ranks; for stages 1 and 2
ZeroStep zero1_step;

// ---- ZeRO-2: 03_zero2.c ----
void zero2_allocate(Model *m, Comm *dp);
void zero2_begin(Model *m);  // marks own_g as empty; allocates wte's gradients
void zero2_reduce(Model *m); // reduces wte's gradient, which no layer's backward has reduced
ZeroStep zero2_step;
// Returns true for wte, and for the head's own table or copy of wte.
bool zero2_stays_whole(const Unit *u);
// Allocates u's whole gradient [size] and marks it as empty, so the first contribution overwrites
// the gradient.
void zero2_allocate_gradient(Unit *u, Arena *a);
void zero2_reduce_gradient(Unit *u, Comm *dp); // adds the own part of the sum over dp to own_g
void zero2_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s);
void zero2_backward_and_reduce(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);

// ---- ZeRO-3: 04_zero3.c ----
void zero3_allocate(Model *m, Comm *dp);
// Gathers the weights of wte. A step gathers wte by zero3_begin. Before forwards without a backward
// call zero3_gather_wte, and after these forwards zero3_drop_wte.
void zero3_gather_wte(Model *m);
void zero3_drop_wte(Model *m);
void zero3_begin(Model *m);
void zero3_reduce(Model *m);
ZeroStep zero3_step;
void zero3_allocate_parts(Model *m, Comm *dp); // allocates as zero3_allocate, but wraps no layer
void zero3_gather(Layer *l, Arena *in_flight); // gathers the weights of l's units, but not of wte
void zero3_drop(Layer *l, Arena *in_flight);   // frees the gathered weights
void zero3_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s);
void zero3_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s);

// ---- ZeRO-3 with prefetch: 05_prefetch.c and prefetch_model.c ----
// Allocates the parts and wraps each layer that has units. If `reshard` is true, weights are
// dropped after forward and gathered again for backward, as in 04_zero3.c. If `reshard` is false,
// weights stay from forward to backward.
void prefetch_allocate(Model *m, Comm *dp, bool reshard);
void prefetch_finish(Model *m); // waits for the last reduction; call this after the last backward
void prefetch_free(Model *m);   // frees the state of the layers; call this before model_free
ZeroStep prefetch_step;
extern const LayerKind prefetch_layer;
// The state of a layer (Layer.technique). `unit` is the unit that is gathered for the layer: wpe, a
// block's unit, or the last norm (wte stays whole for a step). `previous` and `next` are the
// neighbouring layers of the same chunk, or NULL at the ends of the chunk.
typedef struct Prefetched {
    Unit *unit;
    struct Prefetched *previous, *next;
    struct Prefetch *model;
    Tensor weights;  // [size] from the start of the gather until the drop
    Arena in_flight; // MEM_COMMUNICATION
    Request *gather; // the gather in flight; NULL: none
} Prefetched;
typedef struct Prefetch {
    bool reshard;
    Prefetched *reducing; // the layer whose gradient is being reduced; NULL: none
    Request *reduction;
    Tensor arriving; // [size/N], added to own_g after the wait; {0}: the sum arrives in own_g
    Arena gradient;  // the layer's whole gradient, and `arriving`
    Prefetched layer[];
} Prefetch;
void prefetch_finish_reduction(Prefetch *all);

// ---- 16-bit storage with masters, and a loss scale: 06_mixed_precision.c ----
// A step multiplies every gradient by factor, a power of two. A step with an overflow halves the
// factor. After `patience` steps in a row without an overflow the factor is doubled. With patience
// 0 the factor is fixed.
typedef struct {
    double factor;
    size_t patience, good; // good: steps without an overflow since the factor changed
    size_t skipped;        // steps without an update, because of an overflow
} LossScale;
void loss_scale_next(LossScale *s, bool finite);
// Allocates the model and the optimizer's state, and copies rank 0's weights to all ranks.
void mixed_allocate(Model *m, Comm *dp, Optimizer *o);
// Runs one data-parallel step. The result's norm is infinite or NaN if the step was skipped.
StepResult mixed_step(Model *model, Comm *dp, LossScale *scale, const Batch *batch, size_t m,
                      Optimizer *o, double clip);
#endif
