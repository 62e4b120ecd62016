// interleaved_costs.c: predicts chunks in flight, messages and memory of 03_interleaved, from sizes
// and from the lists (experiments.h).
#include "05_pipeline_1f1b/experiments/experiments.h"

// Most chunks between their forward and their backward, as published: Megatron's order; 1F1B's for
// v = 1.
size_t interleaved_in_flight(size_t p, size_t m, size_t v, size_t i) {
    size_t most = v == 1 ? p - i : 2 * (p - 1 - i) + (v - 1) * p + 1;
    return most < m * v ? most : m * v;
}
// Boundaries between parts over which stage i sends y (forward) and dx (backward).
size_t interleaved_boundaries(size_t p, size_t v, size_t i) {
    return p == 1 ? 0 : (v - (i + 1 == p)) + (v - (i == 0));
}

static CutSizes part_sizes(const ModelConfig *c, size_t p, size_t v, size_t i, size_t chunk) {
    return stage_sizes(c, v * p, chunk * p + i);
}

// Peak bytes of a training, computed from the list. activations: kept for backward. buffers: of the
// lesson's own loop, which holds every message that it has sent so far and one that it receives.
typedef struct {
    size_t activations, buffers;
} Peaks;
static Peaks peaks_of(const Training *t, size_t p, size_t v, size_t i) {
    size_t held = 0, sent = 0, C = t->model.width, E = sizeof(real);
    Peaks peak = { 0 };
    Schedule list = schedule_interleaved(p, t->micro_batches, v, i);
    for (size_t n = 0; n < list.n; n++) {
        PipeOp op = list.ops[n];
        bool forward = op.what == FORWARD;
        size_t part = op.chunk * p + i, tokens = stage_tokens(t, op.micro_batch);
        CutSizes z = part_sizes(&t->model, p, v, i, op.chunk);
        size_t kept = kept_stage(&z) * tokens * E, message = tokens * C * E;
        bool not_first = part > 0, not_last = part + 1 < v * p;
        size_t receives = forward ? not_first : not_last, sends = forward ? not_last : not_first;
        held = forward ? held + kept : held - kept;
        sent += sends * message;
        size_t buffers = sent + receives * message;
        if (held > peak.activations) peak.activations = held;
        if (buffers > peak.buffers) peak.buffers = buffers;
    }
    schedule_free(&list);
    return peak;
}

// Buffers of the executor: two messages on their way out to each side, and one that it expects from
// each neighbour. With two stages both neighbours are the same rank.
static size_t executor_buffers(const Training *t, size_t p, size_t v, size_t i) {
    size_t largest = stage_tokens(t, 0) * t->model.width * sizeof(real);
    size_t sides = p == 1 ? 0 : (v > (i + 1 == p)) + (v > (i == 0));
    size_t each = t->micro_batches * v < 2 ? 1 : 2;
    size_t neighbours = p == 1 ? 0 : v == 1 ? sides : p > 2 ? 2 : 1;
    return (sides * each + neighbours) * largest;
}

void interleaved_costs(Run *run, const Training *t, size_t v, const StageCosts *seen,
                       const StageCosts *loop) {
    const ModelConfig *c = &t->model;
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, E = sizeof(real);
    size_t messages = interleaved_boundaries(p, v, i);
    size_t bytes = t->sequences * c->context * c->width * E;
    size_t elements = 0, gradients = 0, flight = interleaved_in_flight(p, m, v, i);
    for (size_t chunk = 0; chunk < v; chunk++) {
        CutSizes z = part_sizes(c, p, v, i, chunk);
        elements += elements_stage(&z);
        gradients += elements_gradients(&z);
    }
    Peaks peak = peaks_of(t, p, v, i);
    CutSizes z = cut_sizes(c, 1, 0);
    bool shares = p > 1 && (i == 0 || i + 1 == p);
    double tied = shares ? ring_bytes(ALL_REDUCE_PASSES, 2, elements_wte(&z), E) : 0;
    check_costs(
        run, "%s", "%s",
        (CostRow[]){
            { "sent.calls", "messages sent", "calls", BY_FORMULA(m * messages), seen->messages },
            { "sent.bytes", "messages sent", "bytes", BY_FORMULA(messages * bytes),
              seen->message_bytes },
            { "sent.all", "messages of all ranks: 2m(pv-1)", "calls",
              BY_FORMULA(p == 1 ? 0 : 2 * m * (p * v - 1)), sum_of_ranks(run, seen->messages) },
            { "flight", "in flight: min(2(p-1-i)+(v-1)p+1, mv)", "chunks", BY_FORMULA(flight),
              seen->in_flight },
            { "activations", "activations, peak", "bytes", BY_PLAY(peak.activations),
              seen->activations },
            { "loop.flight", "own loop: in flight", "chunks", BY_FORMULA(flight), loop->in_flight },
            { "loop.activations", "own loop: activations, peak", "bytes", BY_PLAY(peak.activations),
              loop->activations },
            { "loop.buffers", "own loop: buffers, peak", "bytes", BY_PLAY(peak.buffers),
              loop->message_buffers },
            { "buffers", "message buffers, peak", "bytes", BY_FORMULA(executor_buffers(t, p, v, i)),
              seen->message_buffers },
            { "parameters", "parameters of my chunks", "bytes", BY_FORMULA(elements * E),
              seen->parameters },
            { "gradients", "gradients of my chunks", "bytes", BY_FORMULA(gradients * E),
              seen->gradients },
            { "optimizer", "optimizer state of my chunks", "bytes",
              BY_FORMULA((t->optimizer.kind == ADAMW) * 2 * elements * E), seen->optimizer },
            { "tied.bytes", "tied sum of wte", "bytes", BY_FORMULA(tied), seen->tied_bytes },
            { 0 } });
}
