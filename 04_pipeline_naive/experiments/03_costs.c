// 03_costs.c: what 03_gpipe predicts; see costs.h.
#include "04_pipeline_naive/experiments/costs.h"
#include "04_pipeline_naive/experiments/stack.h"
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
void pipeline_gpipe_time(Run *run, const Training *t, const Timing *last) {
    enum { CASES = RESULT_COLUMNS };                       // m = 1, 2, 4, 8, 16, 32
    char cell[8][CASES][24], column[CASES][12];
    size_t p = run->world->size, i = run->world->rank;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    StackTimes d = stack_times(&stack);
    size_t links = p - 1, way = links ? d.message : 0, f = d.forward, b = d.backward;
    for (size_t k = 0; k < CASES; k++) {
        char name[64];
        size_t m = (size_t)1 << k;
        Played slow = stack_play(run, &stack, schedule_naive, m), seen = stack_play(run, &stack, schedule_gpipe, m);
        size_t step = p * (f + b) + 2 * links * way + (m - 1) * (max(f, way) + max(b, way));
        size_t in_turn = m * (p * (f + b) + 2 * links * way), ideal = m * (f + b), free = (m + p - 1) * (f + b);
        sprintf(name, "equal stages, m = %zu: step", m);
        cost(run, name, "ps", step, seen.timing.step);
        sprintf(name, "equal stages, m = %zu: activations, peak", m);
        cost(run, name, "bytes", m * stack_kept(&stack, p, i), seen.activations);
        sprintf(column[k], "m = %zu", m);
        page_cell(cell[0][k], (double)slow.timing.step, "ps");
        page_cell(cell[1][k], 1e6 * slow.timing.idle_of_total, "millionths");
        page_cell(cell[2][k], (double)seen.timing.step, "ps");
        page_cell(cell[3][k], (double)seen.timing.step - (double)free, "ps");
        page_cell(cell[4][k], 1e6 * seen.timing.idle_of_total, "millionths");
        page_cell(cell[5][k], 1e6 * (1 - (double)ideal / (double)free), "millionths");
        page_cell(cell[6][k], (double)slow.activations, "bytes");
        page_cell(cell[7][k], (double)seen.activations, "bytes");
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
    static const char *const what[] = { "naive: step", "  idle", "GPipe: step", "  messages", "  idle",
                                        "  idle, d = 0", "kept, naive", "kept, GPipe" };
    static const char *const formula[] = { "m(p(f+b)+2(p-1)d)", "1-m(f+b)/step", "(m+p-1)(f+b)+2(p-1)d", "2(p-1)d",
                                           "1-m(f+b)/step", "(p-1)/(m+p-1)",
                                           "one micro-batch's, rank 0", "m times that" };
    const char *columns[CASES + 1] = { NULL };
    Result rows[9] = { {0} };
    for (size_t k = 0; k < CASES; k++) columns[k] = column[k];
    for (size_t r = 0; r < 8; r++) {
        rows[r] = (Result){ .what = what[r], .formula = formula[r] };
        for (size_t k = 0; k < CASES; k++) rows[r].cell[k] = cell[r][k];
    }
    results(run, columns, rows);
    say(run, "  Stages of two blocks, C = %zu, a = %zu; micro-batches of one sequence, T = %zu. f = %.3g us is a",
        t->model.width, t->model.heads, t->model.context, (double)f / 1e6);
    say(run, "  forward, b = 2f, d = %.3g us a message; formulas need d <= f. The last stage keeps %zu B more.",
        (double)way / 1e6, t->model.context * t->model.width * sizeof(real));
    say(run, "  The model: %zu blocks and the head on unequal stages, %zu sequences in %zu micro-batches: idle "
        "%.1f %%.", t->model.layers, t->sequences, t->micro_batches, 100 * last->idle_of_total);
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
