// 02_costs.c: what 02_naive predicts; see costs.h.
#include "04_pipeline_naive/experiments/costs.h"
#include "04_pipeline_naive/experiments/stack.h"
#include <stdio.h>

void pipeline_naive_costs(Run *run, const Training *t, const StageCosts *seen) {
    size_t p = run->world->size, i = run->world->rank, E = sizeof(real), neighbours = (i + 1 < p) + (i > 0);
    stage_cost_lines(run, t, seen);                           // messages, sums, parameters, gradients, optimizer state
    cost(run, "in flight, most", "micro-batches", 1, seen->in_flight);
    // Micro-batch 0 is the largest. What its forward keeps is freed by its backward, before the next one starts.
    cost(run, "activations, peak", "bytes", stage_kept(&t->model, p, i) * stage_tokens(t, 0) * E, seen->activations);
    // In a backward, a gradient from each neighbour behind me and one to each before me.
    cost(run, "message buffers, peak", "bytes", neighbours * stage_tokens(t, 0) * t->model.width * E,
         seen->message_buffers);
}

void pipeline_naive_each_costs(Run *run, const Training *t, const StageCosts *seen) {
    size_t p = run->world->size, i = run->world->rank, E = sizeof(real), neighbours = (i + 1 < p) + (i > 0);
    cost(run, "a sequence each: messages sent", "calls", t->micro_batches * neighbours, seen->messages);
    cost(run, "a sequence each: in flight, most", "micro-batches", 1, seen->in_flight);
    cost(run, "a sequence each: activations, peak", "bytes", stage_kept(&t->model, p, i) * stage_tokens(t, 0) * E,
         seen->activations);
    cost(run, "a sequence each: buffers, peak", "bytes", neighbours * stage_tokens(t, 0) * t->model.width * E,
         seen->message_buffers);
}

// Nothing ever happens at the same time: a micro-batch passes every stage twice, and every link between two of them.
void pipeline_naive_time(Run *run, const Training *t, const Timing *last) {
    size_t p = run->world->size, m = t->micro_batches;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    Picoseconds work = 0, transfer = 0;
    for (size_t k = 0; k < m; k++) {
        size_t B = range_size(shard_range(t->sequences, m, k));
        for (size_t i = 0; i < p; i++) work += 3 * stage_forward_time(&t->model, p, i, B);       // t_b = 2 t_f
        transfer += 2 * (p - 1) * stage_message_time(&t->model, B);
    }
    // Then the sums: of wte's gradient, of the loss and of the squares. Everybody waits for all of it.
    CutSizes z = stage_sizes(&t->model, p, 0);
    double sums = p > 1 ? ring_time(ALL_REDUCE_PASSES, 2, elements_wte(&z), sizeof(real)) : 0;
    sums += ring_time(ALL_REDUCE_PASSES, p, 1, sizeof(double));
    sums += ring_time(ALL_REDUCE_PASSES, p, config_tensors(&t->model), sizeof(double));
    cost(run, "last step: work, messages, sums in a row", "ps", work + transfer + sums, last->step);

    // Where all stages are equal, here of two blocks: m p (t_f + t_b), so that a stage is idle for 1 - 1/p of the step.
    Played seen = stack_play_loop(run, &stack, pipeline_naive, m);
    StackTimes d = stack_times(&stack);
    Picoseconds step = m * (p * (d.forward + d.backward) + 2 * (p - 1) * d.message);
    cost(run, "equal stages: step", "ps", step, seen.timing.step);
    stack_bubble_costs(run, "equal stages", &stack, m, step, &seen.timing);
    cost(run, "equal stages: exposed, 2m(p-1) messages", "ps", 2 * m * (p - 1) * d.message, seen.timing.exposed);
    cost(run, "equal stages: hidden", "ps", 0, seen.timing.hidden);
}

// The model as it is on one device, and on the ranks; then the times of equal stages.
void pipeline_naive_results(Run *run, const Training *t, const double loss[2]) {
    size_t p = run->world->size;
    CutSizes whole = stage_sizes(&t->model, 1, 0);
    char weights[32], moments[32], kept[32], same[2][32], ranks[48];
    double kB = sizeof(real) / 1e3;
    snprintf(weights, sizeof weights, "=%.1f kB", (double)elements_stage(&whole) * kB);
    snprintf(moments, sizeof moments, "=%.1f kB", 2 * (double)elements_stage(&whole) * kB);
    snprintf(kept, sizeof kept, "=%.0f kB", (double)(kept_stage(&whole) * stage_tokens(t, 0)) * kB);
    for (size_t k = 0; k < 2; k++) snprintf(same[k], sizeof *same, "=%.4f", loss[k]);
    snprintf(ranks, sizeof ranks, "each of %zu ranks", p);
    Result rows[] = {
        { "loss of the last step", NULL, { same[0], same[1] } },
        { "weights", "12C^2+13C a block; embedding first, head last", { weights, "parameters of my stage" } },
        { "AdamW's moments", "twice the weights", { moments, "optimizer state of my stage" } },
        { "activations, peak", "those of one micro-batch", { kept, "activations, peak" } },
        { "messages sent", "m [B*T, C] for each neighbour", { "=0 B", "messages sent" } },
        { "equal stages: step", "m(p(f+b) + 2(p-1)d)", { NULL, "equal stages: step" } },
        { "  of it messages", "2m(p-1)d", { NULL, "equal stages: exposed, 2m(p-1) messages" } },
        { "  idle", "1-(f+b)/(p(f+b)+2(p-1)d)", { NULL, "equal stages: bubble / step" } }, {0} };
    if (!clock_config()->simulated) rows[5].what = NULL;   // times were not compared
    results(run, (const char *const[]){ "one device", ranks, NULL }, rows);
    if (!clock_config()->simulated) return;
    StackTimes d = stack_times(&(Stack){ .model = t->model, .blocks = 2, .sequences = 1 });
    say(run, "  Drawn: the model, %zu blocks, C = %zu, a = %zu; %zu sequences of T = %zu, m = %zu. Equal stages: a "
        "second", t->model.layers, t->model.width, t->model.heads, t->sequences, t->model.context, t->micro_batches);
    say(run, "  run, two blocks a stage, one sequence a micro-batch: f = %.3g us is a stage's forward, b = 2f its",
        (double)d.forward / 1e6);
    say(run, "  backward, d = %.3g us a message.", p > 1 ? (double)d.message / 1e6 : 0);
}
