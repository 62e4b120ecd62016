// 02_costs.c: what 02_1f1b predicts, from sizes alone; see costs.h.
#include "05_pipeline_1f1b/support/costs.h"

void pipeline_1f1b_costs(Run *run, const Training *t, const StageCosts *seen, const StageCosts *gpipe) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, E = sizeof(real);
    size_t next = i + 1 < p, before = i > 0, kept = stage_kept(&t->model, p, i) * E;
    size_t flight = p - i < m ? p - i : m, held = 0, all = t->sequences * t->model.context;
    for (size_t k = 0; k < flight; k++) held += stage_tokens(t, k);               // the first ones are the largest
    stage_cost_lines(run, t, seen);                 // messages, sums, state: as with GPipe
    cost(run, "messages sent, GPipe", "bytes", (next + before) * all * t->model.width * E, gpipe->message_bytes);
    cost(run, "in flight, GPipe: m", "micro-batches", m, gpipe->in_flight);
    cost(run, "in flight, 1F1B: min(p-i, m)", "micro-batches", flight, seen->in_flight);
    cost(run, "activations, peak, GPipe", "bytes", kept * all, gpipe->activations);
    cost(run, "activations, peak, 1F1B", "bytes", kept * held, seen->activations);
    cost(run, "message buffers, peak, 1F1B", "bytes", stage_message_buffers(t, p, i), seen->message_buffers);
}
