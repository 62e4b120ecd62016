// stage_costs.c: see costs.h. E bytes an element.
#include "04_pipeline_naive/experiments/costs.h"

CutSizes stage_sizes(const ModelConfig *c, size_t p, size_t i) { return cut_stage(cut_sizes(c, 1, 0), p, i); }

size_t stage_kept(const ModelConfig *c, size_t p, size_t i) {
    CutSizes z = stage_sizes(c, p, i);
    return kept_stage(&z);
}

size_t stage_tokens(const Training *t, size_t k) {
    return range_size(shard_range(t->sequences, t->micro_batches, k)) * t->model.context;
}

// With each neighbour: two messages on their way out, where there are two, and one that is expected.
size_t stage_message_buffers(const Training *t, size_t p, size_t i) {
    size_t neighbours = (i + 1 < p) + (i > 0), out = t->micro_batches < 2 ? 1 : 2;
    return neighbours * (out + 1) * stage_tokens(t, 0) * t->model.width * sizeof(real);      // the largest one
}

Picoseconds stage_forward_time(const ModelConfig *c, size_t p, size_t i, size_t B) {
    CutSizes z = stage_sizes(c, p, i);
    return (Picoseconds)work_stage(&z, B).time;
}
Picoseconds stage_message_time(const ModelConfig *c, size_t B) {
    CutSizes z = cut_sizes(c, 1, 0);
    return (Picoseconds)send_time(message_elements(&z, B) * sizeof(real));
}

void stage_loop_lines(Run *run, const Training *t, const StageCosts *seen) {
    size_t neighbours = (run->world->rank + 1 < run->world->size) + (run->world->rank > 0);
    size_t tokens = t->sequences * t->model.context;
    cost(run, "own loops: messages sent", "calls", t->micro_batches * neighbours, seen->messages);
    cost(run, "own loops: messages sent", "bytes", neighbours * tokens * t->model.width * sizeof(real),
         seen->message_bytes);
}

void stage_cost_lines(Run *run, const Training *t, const StageCosts *seen) {
    const ModelConfig *c = &t->model;
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, E = sizeof(real), D = sizeof(double);
    size_t next = i + 1 < p, before = i > 0;               // have I a neighbour on this side?
    CutSizes z = stage_sizes(c, p, i);
    size_t message = message_elements(&z, t->sequences);   // of all micro-batches together

    // Per micro-batch one activation [B*T, C] to the next stage, and one gradient of that shape to the stage before.
    cost(run, "messages sent", "calls", m * (next + before), seen->messages);
    cost(run, "messages sent", "bytes", (next + before) * message * E, seen->message_bytes);
    double all = (double)seen->messages;
    ledger_pause();
    comm_all_reduce_doubles(run->world, &all, 1);
    ledger_resume();
    cost(run, "messages of all ranks: 2m(p-1)", "calls", 2 * m * (p - 1), all);

    // The first and the last stage add their gradients of wte: in a ring of two, each sends both halves of it once.
    size_t shares = p > 1 && (!next || !before);
    cost(run, "tied sum of wte", "calls", shares, seen->tied_calls);
    double tied = ring_bytes(ALL_REDUCE_PASSES, 2, elements_wte(&z), E);
    cost(run, "tied sum of wte", "bytes", shares ? tied : 0, seen->tied_bytes);
    double loss = ring_bytes(ALL_REDUCE_PASSES, p, 1, D);
    double squares = ring_bytes(ALL_REDUCE_PASSES, p, config_tensors(c), D);         // one for each tensor of the model
    cost(run, "sums of loss and squares", "calls", 2, seen->scalar_calls);
    cost(run, "sums of loss and squares", "bytes", loss + squares, seen->scalar_bytes);

    size_t mine = elements_stage(&z);
    cost(run, "parameters of my stage", "bytes", mine * E, seen->parameters);
    cost(run, "gradients of my stage", "bytes", elements_gradients(&z) * E, seen->gradients);
    cost(run, "optimizer state of my stage", "bytes", (t->optimizer.kind == ADAMW) * 2 * mine * E, seen->optimizer);
}
