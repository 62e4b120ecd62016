// 03_costs.c: what 03_gpipe predicts; see costs.h.
#include "04_pipeline_naive/support/costs.h"
#include "04_pipeline_naive/support/stack.h"
#include <stdio.h>

void pipeline_gpipe_costs(Run *run, const Training *t, const StageCosts *gpipe, const StageCosts *naive) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, E = sizeof(real);
    size_t kept = stage_kept(&t->model, p, i) * E, all = t->sequences * t->model.context, largest = stage_tokens(t, 0);
    stage_cost_lines(run, t, gpipe);                          // as when naive
    cost(run, "in flight, naive", "micro-batches", 1, naive->in_flight);
    cost(run, "in flight, GPipe: m", "micro-batches", m, gpipe->in_flight);
    cost(run, "activations, peak, naive: the largest micro-batch", "bytes", kept * largest, naive->activations);
    cost(run, "activations, peak, GPipe: all of them", "bytes", kept * all, gpipe->activations);
    cost(run, "message buffers, peak", "bytes", stage_message_buffers(t, p, i), gpipe->message_buffers);
}

static size_t max(size_t a, size_t b) { return a > b ? a : b; }

// Equal stages of two blocks, micro-batches of one sequence. The first micro-batch passes all stages and links: p t_f +
// (p-1) d, with d the time of a message. Each of the others follows it as closely as the slowest on the way lets it, a
// stage or a link. So messages that are not longer than the work of a stage hide behind it: all but the first of each
// link and direction.
void pipeline_gpipe_time(Run *run, const Training *t) {
    size_t p = run->world->size;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    StackTimes d = stack_times(&stack);
    size_t links = p - 1, way = links ? d.message : 0, f = d.forward, b = d.backward;
    say(run, "%zu equal stages, their step in units of t_f, with t_b = 2 t_f; ideal: m (t_f + t_b)", p);
    say(run, "     m    naive    GPipe   ideal   bubble / step   bubble / ideal");
    for (size_t m = 1; m <= 32; m *= 2) {
        char name[48];
        Played slow = stack_play(run, &stack, schedule_naive, m), seen = stack_play(run, &stack, schedule_gpipe, m);
        size_t step = p * (f + b) + 2 * links * way + (m - 1) * (max(f, way) + max(b, way));
        size_t in_turn = m * (p * (f + b) + 2 * links * way);
        sprintf(name, "equal stages, m = %zu: step", m);
        cost(run, name, "ps", step, seen.timing.step);
        double naive = (double)slow.timing.step / (double)f, gpipe = (double)seen.timing.step / (double)f;
        say(run, "  %4zu  %7.1f  %7.1f  %6zu  %12.1f %%  %13.1f %%", m, naive, gpipe, 3 * m,
            100 * seen.timing.idle_of_total, 100 * seen.timing.idle_of_ideal);
        if (m != 8) continue;
        stack_bubble_costs(run, "equal stages, m = 8", &stack, m, step, &seen.timing);
        size_t late = (way > f ? way - f : 0) + (way > b ? way - b : 0);         // 0: the others hide
        size_t exposed = links * (2 * way + (m - 1) * late);
        cost(run, "equal stages, m = 8: exposed, 2(p-1) messages or more", "ps", exposed, seen.timing.exposed);
        cost(run, "equal stages, m = 8: hidden", "ps", links * 2 * m * way - exposed, seen.timing.hidden);
        cost(run, "naive, m = 8: step", "ps", in_turn, slow.timing.step);
        stack_bubble_costs(run, "naive, m = 8", &stack, m, in_turn, &slow.timing);
        cost(run, "naive, m = 8: exposed, 2m(p-1) messages", "ps", 2 * m * links * way, slow.timing.exposed);
    }
}

// The loops of the lesson, m as in its training. Where stages are equal, nobody waits longer than under the executor.
void pipeline_gpipe_loop_costs(Run *run, const Training *t, const StageCosts *loops) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, E = sizeof(real);
    size_t neighbours = (i + 1 < p) + (i > 0), all = t->sequences * t->model.context;
    stage_loop_lines(run, t, loops);
    cost(run, "own loops: in flight, m", "micro-batches", m, loops->in_flight);
    cost(run, "own loops: activations, peak", "bytes", stage_kept(&t->model, p, i) * E * all, loops->activations);
    // In a forward x and y, in a backward dy and dx.
    cost(run, "own loops: buffers, peak", "bytes", neighbours * stage_tokens(t, 0) * t->model.width * E,
         loops->message_buffers);
    if (!clock_config()->simulated) return;                // real time differs from run to run
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    StackTimes d = stack_times(&stack);
    Played seen = stack_play_loop(run, &stack, pipeline_gpipe, m);
    size_t way = p > 1 ? d.message : 0;
    size_t first = p * (d.forward + d.backward) + 2 * (p - 1) * way;
    size_t step = first + (m - 1) * (max(d.forward, way) + max(d.backward, way));
    cost(run, "own loops: equal stages, step", "ps", step, seen.timing.step);
}
