// 04_costs.c: attention, cut by heads.
#include "03_tensor_parallel/support/costs.h"
#include "common/model/costs.h"

// All is cut but b_O. Kept: X whole; q|k|v, the probabilities before and after dropout, and mix of my heads.
void attention_costs(Run *run, const AttentionSizes *z, const TrialResult *r) {
    const Comm *tp = run->world;
    const size_t heads = range_size(shard_range(z->H, tp->size, tp->rank)), A = heads * z->D, e = sizeof(real);
    const size_t C = z->H * z->D, M = z->B * z->T;
    const size_t parameters = (C + 1) * 3 * A + A * C + C, kept = M * C + M * 4 * A + 2 * z->B * heads * z->T * z->T;
    cost(run, "W_qkv, b_qkv, W_O, b_O", "bytes", (double)(parameters * e), (double)r->parameters);
    cost(run, "gradients", "bytes", (double)(parameters * e), (double)r->gradients);
    cost(run, "SGD's state", "bytes", 0, (double)r->optimizer);
    cost(run, "kept for backward", "bytes", (double)(kept * e), (double)r->activations);
    cost(run, "all-reduces a step", "calls", 2, r->calls);                                     // Y, and dX
    cost(run, "sent a step", "bytes", 2 * ring_bytes(ALL_REDUCE_PASSES, tp->size, M * C, e), r->bytes);
}
