// stage_costs.c: predicts memory, messages and times of a stage from sizes, and checks them.
// E: bytes of a weight or an activation.
#include "04_pipeline_naive/experiments/experiments.h"
#include <stdarg.h>
#include <stdio.h>

CutSizes stage_sizes(const ModelConfig *c, size_t p, size_t i) {
    return cut_stage(cut_sizes(c, 1, 0), p, i);
}

size_t stage_kept(const ModelConfig *c, size_t p, size_t i) {
    CutSizes z = stage_sizes(c, p, i);
    return kept_stage(&z);
}

size_t stage_kept_bytes(const ModelConfig *c, size_t p, size_t i) {
    CutSizes z = stage_sizes(c, p, i);
    return activations_bytes(&z, 1) / z.T;
}

size_t stage_tokens(const Training *t, size_t k) {
    return range_size(shard_range(t->sequences, t->micro_batches, k)) * t->model.context;
}

size_t stage_neighbours(const Run *run) {
    return (run->world->rank + 1 < run->world->size) + (run->world->rank > 0);
}

// Per neighbour: two send buffers (one, if there is one micro-batch) and one expected message.
size_t stage_message_buffers(const Training *t, size_t p, size_t i) {
    size_t neighbours = (i + 1 < p) + (i > 0), out = t->micro_batches < 2 ? 1 : 2;
    return neighbours * (out + 1) * stage_tokens(t, 0) * t->model.width * weight_bytes(&t->model);
}

Picoseconds stage_forward_time(const ModelConfig *c, size_t p, size_t i, size_t B) {
    CutSizes z = stage_sizes(c, p, i);
    return (Picoseconds)work_stage(&z, B).time;
}
Picoseconds stage_message_time(const ModelConfig *c, size_t B) {
    CutSizes z = cut_sizes(c, 1, 0);
    return (Picoseconds)send_time(message_elements(&z, B) * weight_bytes(c));
}

const char *cost_name(CostName *name, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(name->text, sizeof name->text, format, args);
    va_end(args);
    return name->text;
}

void stage_check_loop(Run *run, const Training *t, const StageCosts *seen) {
    size_t neighbours = stage_neighbours(run), tokens = t->sequences * t->model.context;
    check_cost(run, "loop.sent.calls", "own loops: messages sent", "calls",
               formula(t->micro_batches * neighbours), NOT_PREDICTED, seen->messages);
    check_cost(run, "loop.sent.bytes", "own loops: messages sent", "bytes",
               formula(neighbours * tokens * t->model.width * weight_bytes(&t->model)),
               NOT_PREDICTED, seen->message_bytes);
}

double sum_of_ranks(Run *run, double sum) {
    ledger_pause();
    comm_all_reduce_doubles(run->world, &sum, 1);
    ledger_resume();
    return sum;
}

void stage_check_costs(Run *run, const Training *t, const char *way, const StageCosts *seen) {
    const ModelConfig *c = &t->model;
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches;
    size_t E = weight_bytes(c), D = sizeof(double), neighbours = stage_neighbours(run);
    CutSizes z = stage_sizes(c, p, i);
    size_t message = message_elements(&z, t->sequences); // sum of all micro-batches
    CostName id;
#define ID(what) cost_name(&id, "%s%s%s", way ? way : "", way ? "." : "", what)

    // Per micro-batch: activations [B*T, C] to the next stage, gradients of that shape back.
    check_cost(run, ID("sent.calls"), "messages sent", "calls", formula(m * neighbours),
               NOT_PREDICTED, seen->messages);
    check_cost(run, ID("sent.bytes"), "messages sent", "bytes", formula(neighbours * message * E),
               NOT_PREDICTED, seen->message_bytes);
    check_cost(run, ID("sent.all"), "messages of all ranks: 2m(p-1)", "calls",
               formula(2 * m * (p - 1)), NOT_PREDICTED, sum_of_ranks(run, seen->messages));

    // The first and the last stage add their gradients of wte. In a ring of two, each sends both
    // halves once.
    size_t shares = p > 1 && (i == 0 || i + 1 == p);
    double tied = ring_bytes(ALL_REDUCE_PASSES, 2, elements_wte(&z), gradient_bytes(c));
    check_cost(run, ID("tied.calls"), "tied sum of wte", "calls", formula(shares), NOT_PREDICTED,
               seen->tied_calls);
    check_cost(run, ID("tied.bytes"), "tied sum of wte", "bytes", formula(shares ? tied : 0),
               NOT_PREDICTED, seen->tied_bytes);
    double loss = ring_bytes(ALL_REDUCE_PASSES, p, 1, D);
    // One double per tensor of the model.
    double squares = ring_bytes(ALL_REDUCE_PASSES, p, config_tensors(c), D);
    check_cost(run, ID("sums.calls"), "sums of loss and squares", "calls", formula(2),
               NOT_PREDICTED, seen->scalar_calls);
    check_cost(run, ID("sums.bytes"), "sums of loss and squares", "bytes", formula(loss + squares),
               NOT_PREDICTED, seen->scalar_bytes);

    size_t elements = elements_stage(&z);
    check_cost(run, ID("parameters"), "parameters of the stage", "bytes", formula(elements * E),
               NOT_PREDICTED, seen->parameters);
    check_cost(run, ID("gradients"), "gradients of the stage", "bytes",
               formula(elements_gradients(&z) * gradient_bytes(c)), NOT_PREDICTED, seen->gradients);
    check_cost(run, ID("optimizer"), "optimizer state of the stage", "bytes",
               formula(elements * (t->optimizer.kind == ADAMW ? adamw_bytes(c) : master_bytes(c))),
               NOT_PREDICTED, seen->optimizer);
#undef ID
}
