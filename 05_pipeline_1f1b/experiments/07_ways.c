// 07_ways.c: see 07_ways.h.
#include "05_pipeline_1f1b/experiments/07_ways.h"
#include "04_pipeline_naive/experiments/costs.h"
#include "05_pipeline_1f1b/experiments/06_costs.h"
#include "judge/draw/plot.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// ---------------------------------------------------------------- what the lists say

size_t way_chunks(const Way *w, size_t p) { return w->chunks && p > 1 ? COMPARE_CHUNKS : 1; }
Stack way_stack(const Way *w, const Stack *stack, size_t p) {
    Stack s = *stack;
    s.chunks = way_chunks(w, p);
    return s;
}

Picoseconds way_end(const Way *w, const Stack *stack, size_t p, size_t m, size_t batches, bool messages) {
    Schedule *stage = host_alloc(p * sizeof *stage);
    Stack part = *stack;
    part.blocks /= way_chunks(w, p);
    OpTimes t = zb_times(&part);                   // a whole backward takes both halves
    if (!messages) t.message = 0;
    for (size_t i = 0; i < p; i++) stage[i] = w->list(p, m, batches, i);
    Timeline line = timeline_with_times(stage, p, batches * m, &t);
    Picoseconds end = line.stuck ? UINT64_MAX : line.end;
    timeline_free(&line);
    schedule_all_free(stage, p);
    return end;
}
Picoseconds way_batch(const Way *w, const Stack *stack, size_t p, size_t m, bool messages) {
    if (w->kind == WAY_FLUSH) return way_end(w, stack, p, m, 1, messages);
    return way_end(w, stack, p, m, 3, messages) - way_end(w, stack, p, m, 2, messages);
}

size_t way_late(const Schedule *s) {
    size_t updates = 0, read = 0, most = 0;
    for (size_t e = 0; e < s->n; e++) {
        if (s->ops[e].what != UPDATE) { if (s->ops[e].what == BACKWARD) read = s->ops[e].version; continue; }
        if (updates - read > most) most = updates - read;
        updates++;
    }
    return most;
}

// ---------------------------------------------------------------- the cost lines

static size_t activations(const Way *w, const Stack *stack, size_t p, size_t m, size_t i) {
    size_t v = way_chunks(w, p), now = 0, most = 0;
    if (w->flight != FLIGHT_LISTED)
        return (w->flight == FLIGHT_ONE ? 1 : w->flight == FLIGHT_ALL ? m : p - i) * stack_kept(stack, p, i);
    Stack part = *stack;
    part.blocks /= v;
    Schedule list = w->list(p, m, 3, i);
    if (!w->chunks) most = zb_stack_peak(stack, &list, p, i);
    for (size_t n = 0; n < list.n && w->chunks; n++) {             // chunks may keep unequally much
        size_t kept = stack_kept(&part, v * p, list.ops[n].chunk * p + i);
        now = list.ops[n].what == FORWARD ? now + kept : now - kept;
        if (now > most) most = now;
    }
    schedule_free(&list);
    return most;
}

static size_t weights(const Way *w, const Stack *stack, size_t p, size_t i) {
    size_t v = way_chunks(w, p), elements = 0, versions = w->kind == WAY_PIPEDREAM ? p - i : w->kind == WAY_2BW ? 2 : 1;
    ModelConfig whole = stack->model;
    whole.layers = stack->blocks * p;
    for (size_t chunk = 0; chunk < v; chunk++) {
        CutSizes z = cut_stage(cut_sizes(&whole, 1, 0), v * p, chunk * p + i);
        elements += elements_stage(&z);
    }
    return versions * elements * sizeof(real);
}

void compare_costs(Run *run, const Way *w, const Stack *stack, size_t m, const WaySeen *seen) {
    size_t p = run->world->size, i = run->world->rank, v = way_chunks(w, p);
    size_t late = w->kind == WAY_PIPEDREAM ? p - 1 - i : w->kind == WAY_2BW;
    StackTimes t = stack_times(stack);
    char line[64];
#define LINE(what) (snprintf(line, sizeof line, "%s: %s", w->name, what), line)
    cost(run, LINE("activations, peak"), "bytes", activations(w, stack, p, m, i), seen->activations);
    cost(run, LINE("weights, all versions"), "bytes", weights(w, stack, p, i), seen->weights);
    size_t messages = p == 1 ? 0 : m * (v - (i + 1 == p)) + m * (v - (i == 0));
    cost(run, LINE("messages sent, a batch"), "calls", messages, seen->messages);
    cost(run, LINE("updates late"), "updates", late, seen->late);
    if (!clock_config()->simulated) return;                        // real time differs from run to run
    Picoseconds batch = way_batch(w, stack, p, m, true);
    double ideal = (double)(m * (t.forward + t.backward));
    cost(run, LINE("a batch"), "ps", batch, seen->batch);
    cost(run, LINE("idle"), "millionths", round(1e6 * (1 - ideal / (double)batch)),
         round(1e6 * (1 - seen->busy / ((double)p * (double)seen->batch))));
#undef LINE
}

// ---------------------------------------------------------------- published figures, by the lists

static double interleaved_units(size_t p, size_t m, size_t v) {    // t_f = 1, t_b = 2 of a stage: a chunk 1/v of it
    Schedule *stage = host_alloc(p * sizeof *stage);
    for (size_t i = 0; i < p; i++) stage[i] = schedule_interleaved(p, m, v, i);
    Timeline t = timeline_of(stage, p, m, 1, 2);
    double units = (double)t.end / (double)v;
    timeline_free(&t);
    schedule_all_free(stage, p);
    return units;
}

void compare_published(Run *run) {
    double got[] = { makespan(schedule_naive, 4, 8, 1, 2), makespan(schedule_gpipe, 4, 8, 1, 2),
                     makespan(schedule_1f1b, 4, 8, 1, 2), interleaved_units(4, 8, 2), interleaved_units(4, 8, 4),
                     makespan(schedule_1f1b, 8, 32, 1, 2), interleaved_units(8, 32, 4) };
    double want[] = { 96, 33, 33, 28.5, 26.25, 117, 101.25 };
    check_numbers(run, "published", "PTD-P's (p-1)/m and (p-1)/(vm) in units of t_f", got, want, 7, 0);
    // GPipe, table 2: Transformer-48, M = 32; throughput on K stages against that of K = 2 with M = 1. All of a batch's
    // work is the same, so a stage's share of a micro-batch is 1/(K M) of it.
    static const double table[] = { 1.8, 3.4, 6.3 };
    double ideal[3], formula[3];
    bool close = true;
    for (size_t n = 0; n < 3; n++) {
        size_t K = (size_t)2 << n, M = 32;
        double one = (double)makespan(schedule_gpipe, 2, 1, 1, 2) / 2;         // of K M such shares in a row
        ideal[n] = (double)(K * M) * one / (double)makespan(schedule_gpipe, K, M, 1, 2);
        formula[n] = (double)(K * M) / (double)(M + K - 1);
        close = close && table[n] <= ideal[n] && table[n] >= 0.92 * ideal[n];
    }
    check_numbers(run, "published", "GPipe's speed-up K M/(M+K-1)", ideal, formula, 3, 1e-12);
    check_true(run, "published", "its table 2 within 8 % of it", close);
    OpTimes units = { 1, 1, 1, 0 };
    double bubble[] = { (double)zb_judge(schedule_zb_h1, 4, 8, &units).step - 24,
                        ((double)zb_judge(schedule_1f1b, 4, 8, &units).step - 24) / 3 };
    check_numbers(run, "published", "ZB-H1's bubble is a third of 1F1B's", &bubble[0], &bubble[1], 1, 0);
}

// ---------------------------------------------------------------- bars, table, plot

// The most of all ranks.
static double most(Run *run, double mine) {
    size_t p = run->world->size;
    double *all = host_alloc(p * sizeof *all), max = 0;
    for (size_t i = 0; i < p; i++) all[i] = i == run->world->rank ? mine : 0;
    ledger_pause();
    comm_all_reduce_doubles(run->world, all, p);
    ledger_resume();
    for (size_t i = 0; i < p; i++) max = all[i] > max ? all[i] : max;
    free(all);
    return max;
}

void compare_results(Run *run, const Way *ways, const Stack *stack, size_t m, const WaySeen *seen) {
    enum { COLUMNS = 6, WIDTH = 76 };
    static const char *const unit[COLUMNS] = { "ps", "millionths", "bytes", "bytes", "calls", "updates" };
    char cell[COMPARE_WAYS][COLUMNS][32];
    Result rows[COMPARE_WAYS + 1] = {{0}};
    size_t p = run->world->size;
    bool simulated = clock_config()->simulated;
    say(run, "A batch of m = %zu micro-batches on %zu stages of %zu blocks.%s", m, p, stack->blocks,
        simulated ? "  = computing  . idle" : "");
    for (size_t k = 0; k < COMPARE_WAYS; k++) {
        const WaySeen *s = &seen[k];
        double busy = s->busy / ((double)p * (double)s->batch), longest = (double)seen[0].batch;
        double value[COLUMNS] = { (double)s->batch, 1e6 * (1 - busy), most(run, (double)s->activations),
                                  most(run, (double)s->weights), most(run, (double)s->messages),
                                  most(run, (double)s->late) };
        rows[k] = (Result){ .what = ways[k].name, .formula = simulated ? ways[k].formula : NULL };
        for (size_t c = simulated ? 0 : 2, n = 0; c < COLUMNS; c++, n++) {
            cell[k][n][0] = '=';
            page_value(cell[k][n] + 1, sizeof cell[k][n] - 1, round(value[c]), unit[c]);
            rows[k].cell[n] = cell[k][n];
        }
        char bar[WIDTH + 1] = "";
        size_t all = (size_t)((double)s->batch / longest * WIDTH + 0.5), full = (size_t)((double)all * busy + 0.5);
        for (size_t x = 0; x < all && x < WIDTH; x++) bar[x] = x < full ? '=' : '.';
        if (simulated) say(run, "  %-12s %s", ways[k].name, bar);
    }
    static const char *const columns[] = { "a batch", "idle", "activations", "weights", "messages", "late", NULL };
    results(run, simulated ? columns : columns + 2, rows);
    say(run, "Of the rank that has most. late: updates since the version that a gradient was taken at.");
}

// Idle share by the number of micro-batches, of the lists with their messages.
void compare_plot(Run *run, const Way *ways, const Stack *stack) {
    enum { POINTS = 8 };
    double x[POINTS], y[COMPARE_WAYS][POINTS];
    PlotLine lines[COMPARE_WAYS];
    size_t p = run->world->size;
    StackTimes t = stack_times(stack);
    for (size_t n = 0; n < POINTS; n++) {
        size_t m = (n + 1) * p;
        x[n] = (double)m;
        double computing = (double)(m * (t.forward + t.backward));
        for (size_t k = 0; k < COMPARE_WAYS; k++)
            y[k][n] = 100 - 100 * computing / (double)way_batch(&ways[k], stack, p, m, true);
    }
    for (size_t k = 0; k < COMPARE_WAYS; k++) lines[k] = (PlotLine){ ways[k].name, y[k] };
    Plot plot = { .title = "idle, by the number of micro-batches", .x_label = "micro-batches m of a batch",
                  .y_label = "% idle", .x = x, .n = POINTS, .lines = lines, .n_lines = COMPARE_WAYS };
    plot_show(run, &plot, PICTURE_DETAIL);
}
