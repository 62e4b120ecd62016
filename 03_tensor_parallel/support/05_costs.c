// 05_costs.c: embedding and cross entropy, cut by vocabulary entries.
#include "03_tensor_parallel/support/costs.h"
#include "common/model/costs.h"

// Two of [M, C] (x forward, dx backward) and the three elements per token. Gathering the logits would be [M, V] in
// place of 3 M.
void vocabulary_costs(Run *run, const VocabularySizes *z, const TrialResult *r) {
    const size_t n = run->world->size, entries = range_size(shard_range(z->V, n, run->world->rank)), e = sizeof(real);
    const size_t M = z->M, C = z->C;
    const double wide = ring_bytes(ALL_REDUCE_PASSES, n, M * C, e), narrow = ring_bytes(ALL_REDUCE_PASSES, n, M, e);
    cost(run, "E", "bytes", (double)(entries * C * e), (double)r->parameters);
    cost(run, "gradients, of both uses of E", "bytes", (double)(2 * entries * C * e), (double)r->gradients);
    cost(run, "SGD's state", "bytes", 0, (double)r->optimizer);
    cost(run, "kept: x, my logits, a sum a token", "bytes", (double)(M * (C + entries + 1) * e),
         (double)r->activations);
    cost(run, "all-reduces a step", "calls", 2 + 3, r->calls);
    cost(run, "sent a step", "bytes", 2 * wide + 3 * narrow, r->bytes);
    say(run, "for the loss a rank sends %.0f bytes a step; in an all-gather of the logits it would send %.0f",
        3 * narrow, ring_bytes(ONE_PASS, n, M * z->V, e));
}
