// 05_costs.c: what 05_pipedream_2bw predicts, from sizes alone; see 05_2bw.h.
#include "05_pipeline_1f1b/support/05_2bw.h"

void two_bw_costs(Run *run, const Training *t, const TwoBwSeen *seen) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, n = t->steps * m, E = sizeof(real);
    size_t next = i + 1 < p, before = i > 0, tied = p > 1 && !(next && before), flight = p - i;
    CutSizes z = stage_sizes(&t->model, p, i);
    size_t mine = elements_stage(&z), table = elements_wte(&z), held = 0;
    // The most tokens of so many neighbouring micro-batches: of the last ones of a batch and the first of the next.
    for (size_t k = 0; k < flight; k++) held += stage_tokens(t, k);
    cost(run, "2BW: versions of the weights", "versions", 2, (double)seen->weights / (double)(seen->size * E));
    cost(run, "2BW: weights of both versions", "bytes", 2 * mine * E, seen->weights);
    cost(run, "2BW: gradients, the tied table's twice", "bytes", (elements_gradients(&z) + tied * table) * E,
         seen->gradients);
    cost(run, "2BW: optimizer state", "bytes",
         (t->optimizer.kind == ADAMW ? 2 : t->optimizer.momentum > 0) * mine * E, seen->optimizer);
    cost(run, "2BW: in flight: p-i", "micro-batches", flight, seen->in_flight);
    cost(run, "2BW: activations, peak", "bytes", kept_stage(&z) * held * E, seen->activations);
    cost(run, "2BW: messages sent", "calls", n * (next + before), seen->messages);
    cost(run, "2BW: messages sent", "bytes", t->steps * (next + before) * message_elements(&z, t->sequences) * E,
         seen->message_bytes);
    cost(run, "2BW: sums of the tied table", "calls", tied * t->steps, seen->table_sums);
    cost(run, "2BW: sums of the tied table", "bytes",
         tied ? (double)t->steps * ring_bytes(ALL_REDUCE_PASSES, 2, table, E) : 0, seen->table_bytes);
    cost(run, "2BW: other sums over stages", "calls", 0, seen->other_sums);
}
