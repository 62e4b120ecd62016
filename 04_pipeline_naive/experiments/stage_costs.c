// stage_costs.c: predicts memory, messages and times of a stage from sizes, and checks them. E is
// the number of bytes of a weight or an activation.
#include "04_pipeline_naive/experiments/experiments.h"

CutSizes stage_sizes(const ModelConfig *c, size_t p, size_t i) {
    return cut_stage(cut_sizes(c, 1, 0), p, i);
}

size_t stage_tokens(const Training *t, size_t k) {
    return range_size(shard_range(t->sequences, t->micro_batches, k)) * t->model.context;
}

size_t stage_neighbours(const Run *run) {
    return (run->world->rank + 1 < run->world->size) + (run->world->rank > 0);
}

// Counts for each neighbour one expected message and two send buffers, or one send buffer if the
// step has one micro-batch.
size_t stage_message_buffers(const Training *t, size_t p, size_t i) {
    size_t neighbours = (i + 1 < p) + (i > 0), out = t->micro_batches < 2 ? 1 : 2;
    return neighbours * (out + 1) * stage_tokens(t, 0) * t->model.width * weight_bytes(&t->model);
}

double stage_sums_time(const ModelConfig *c, size_t p) {
    CutSizes z = stage_sizes(c, p, 0);
    double tied = 0;
    if (stage_shares_table(&z))
        tied = ring_time(ALL_REDUCE_PASSES, 2, elements_wte(&z), gradient_bytes(c));
    return tied + ring_time(ALL_REDUCE_PASSES, p, 1, sizeof(double)) +
           ring_time(ALL_REDUCE_PASSES, p, config_tensors(c), sizeof(double));
}

// Checks the messages and the kept activations of the stage with the sizes z. The stage keeps at
// most `flight` micro-batches, and the first micro-batches are the largest.
static void check_step(Run *run, const char *ids, const char *names, const Training *t,
                       const CutSizes *z, size_t flight, const StageCosts *seen) {
    size_t m = t->micro_batches, neighbours = stage_neighbours(run), kept = 0;
    size_t message = message_elements(z, t->sequences); // elements of all micro-batches together
    for (size_t k = 0; k < flight; k++) kept += activations_bytes(z, part_size(t->sequences, m, k));
    check_costs(
        run, ids, names,
        (CostRow[]){
            // Per micro-batch a stage sends activations [B*T, C] to the next stage, and gradients
            // of the same shape to the stage before.
            { "sent.calls", "messages sent", "calls", BY_FORMULA(m * neighbours), seen->messages },
            { "sent.bytes", "messages sent", "bytes",
              BY_FORMULA(neighbours * message * weight_bytes(&t->model)), seen->message_bytes },
            { "flight", "in flight", "micro-batches", BY_FORMULA(flight), seen->in_flight },
            { "activations", "activations, peak", "bytes", BY_FORMULA(kept), seen->activations },
            { 0 } });
}

void stage_check_loop(Run *run, const Training *t, PipelineLoop *loop, ScheduleRule rule,
                      size_t flight, const StageCosts *seen) {
    size_t p = run->world->size, m = t->micro_batches;
    CutSizes z = stage_sizes(&t->model, p, run->world->rank);
    check_step(run, "loop.%s", "own loops: %s", t, &z, flight, seen);
    if (!clock_config()->simulated) return; // real time differs from run to run
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    StackTimes d = stack_times(&stack);
    OpTimes times = { d.forward, d.backward, 0, d.message };
    size_t end = lists_makespan(schedule_all(rule, p, m), p, m, &times);
    check_cost(run, "loop.step", "own loops: equal stages, step", "ps", BY_PLAY(end),
               stack_play_loop(run, &stack, loop, m).timing.step);
}

double sum_of_ranks(Run *run, double sum) {
    ledger_pause();
    comm_all_reduce_doubles(run->world, &sum, 1);
    ledger_resume();
    return sum;
}

void stage_check_costs(Run *run, const Training *t, const char *way, size_t flight, size_t buffers,
                       const StageCosts *seen) {
    const ModelConfig *c = &t->model;
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches;
    size_t E = weight_bytes(c), D = sizeof(double);
    CutSizes z = stage_sizes(c, p, i);
    // The first and the last stage add their gradients of a tied wte. In a ring of two stages each
    // stage sends half of the gradient in the reduce-scatter and half in the all-gather.
    size_t shares = stage_shares_table(&z);
    double tied =
        shares ? ring_bytes(ALL_REDUCE_PASSES, 2, elements_wte(&z), gradient_bytes(c)) : 0;
    // All ranks sum the loss, and one double per tensor of the model for the norm.
    double sums = ring_bytes(ALL_REDUCE_PASSES, p, 1, D) +
                  ring_bytes(ALL_REDUCE_PASSES, p, config_tensors(c), D);
    size_t elements = elements_stage(&z);
    size_t state = t->optimizer.kind == ADAMW ? adamw_bytes(c) : master_bytes(c);
    const char *ids = page_text(run, way ? "%s.%%s" : "%%s", way);
    const char *names = page_text(run, way ? "%s: %%s" : "%%s", way);
    check_step(run, ids, names, t, &z, flight, seen);
    check_costs(
        run, ids, names,
        (CostRow[]){
            { "sent.all", "messages of all ranks: 2m(p-1)", "calls", BY_FORMULA(2 * m * (p - 1)),
              sum_of_ranks(run, seen->messages) },
            { "tied.calls", "tied sum of wte", "calls", BY_FORMULA(shares), seen->tied_calls },
            { "tied.bytes", "tied sum of wte", "bytes", BY_FORMULA(tied), seen->tied_bytes },
            { "sums.calls", "sums of loss and squares", "calls", BY_FORMULA(2),
              seen->scalar_calls },
            { "sums.bytes", "sums of loss and squares", "bytes", BY_FORMULA(sums),
              seen->scalar_bytes },
            { "parameters", "parameters of the stage", "bytes", BY_FORMULA(elements * E),
              seen->parameters },
            { "gradients", "gradients of the stage", "bytes",
              BY_FORMULA(elements_gradients(&z) * gradient_bytes(c)), seen->gradients },
            { "optimizer", "optimizer state of the stage", "bytes", BY_FORMULA(state * elements),
              seen->optimizer },
            { "buffers", "message buffers, peak", "bytes", BY_FORMULA(buffers),
              seen->message_buffers },
            { 0 } });
}
