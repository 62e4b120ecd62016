// 04_costs.c: see 04_costs.h.
#include "04_pipeline_naive/experiments/04_costs.h"
#include "04_pipeline_naive/experiments/costs.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- all cuts

// Goes through all cuts of cost [n] into p parts; most, least: of the parts before. Keeps the best in *score, and the
// largest part of that one in *largest.
static void try_all(const double *cost, size_t n, size_t p, double most, double least, bool difference, double *score,
                    double *largest) {
    double sum = 0;
    if (p == 0) {
        double mine = difference ? most - least : most;
        if (n > 0 || mine >= *score) return;
        *score = mine;
        *largest = most;
        return;
    }
    for (size_t i = 1; i + p <= n + 1; i++) {
        sum += cost[i - 1];
        try_all(cost + i, n - i, p - 1, fmax(most, sum), fmin(least, sum), difference, score, largest);
    }
}
double partition_exhaustive(const double *cost, size_t n, size_t p) {
    double score = INFINITY, largest = 0;
    try_all(cost, n, p, 0, INFINITY, false, &score, &largest);
    return largest;
}
double partition_max_min(const double *cost, size_t n, size_t p) {
    double score = INFINITY, largest = 0;
    try_all(cost, n, p, 0, INFINITY, true, &score, &largest);
    return largest;
}
double partition_largest(const double *cost, size_t p, const size_t *first) {
    double most = 0;
    for (size_t i = 0; i < p; i++) {
        double sum = 0;
        for (size_t k = first[i]; k < first[i + 1]; k++) sum += cost[k];
        most = fmax(most, sum);
    }
    return most;
}

void partition_blocks(Run *run, size_t layers, size_t *blocks) {
    size_t p = run->world->size, n = 0, sum = 0;
    const char *text = option_given(run, "blocks") ? option_text(run, "blocks") : NULL;
    for (size_t i = 0; i < p; i++) blocks[i] = p != 3 ? range_size(shard_range(layers, p, i)) : i == 1 ? layers - 6 : 3;
    while (text) {
        char *end = NULL;
        size_t value = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
        REQUIRE(value >= 1 && n < p && (*end == ',' || !*end), "--blocks %s: give %zu numbers, 1 or more, with commas "
                "between them, such as 3,4,3: the blocks of each stage", option_text(run, "blocks"), p);
        sum += blocks[n++] = value;
        text = *end ? end + 1 : NULL;
        REQUIRE(text || (n == p && sum == layers), "--blocks %s: give %zu numbers that add up to the %zu blocks of the "
                "model", option_text(run, "blocks"), p, layers);
    }
}

// ---------------------------------------------------------------- times, from sizes

// A forward of every layer for one sequence, in this step: embedding, blocks, head.
static void forward_times(const Training *t, Growth g, size_t step, double *cost) {
    CutSizes z = cut_sizes(&t->model, 1, 0);
    size_t L = t->model.layers;
    cost[0] = 0;                                           // a lookup: no product
    for (size_t k = 0; k < L; k++)
        cost[k + 1] = work_block(&z, 1).time * (k < g.blocks && step >= g.from ? (double)g.times : 1);
    cost[L + 1] = work_head(&z, 1).time;
}
static double stage_time(const double *cost, const size_t *blocks, size_t p, size_t i) {
    size_t lo = 0;
    for (size_t k = 0; k < i; k++) lo += blocks[k] + (k == 0);
    double sum = 0;
    for (size_t k = 0; k < blocks[i] + (i == 0) + (i + 1 == p); k++) sum += cost[lo + k];
    return sum;
}

// GPipe on unequal stages: the first micro-batch passes all of them, the others follow as closely as the slowest, stage
// or link, lets them; then the sums at the end of a step. Backward is twice forward.
static double step_time(const Training *t, const double *cost, const size_t *blocks, size_t p) {
    CutSizes z = cut_sizes(&t->model, 1, 0);
    double sum = 0, slowest = 0, way = p > 1 ? (double)stage_message_time(&t->model, 1) : 0;
    double others = (double)t->micro_batches - 1;
    for (size_t i = 0; i < p; i++) {
        double f = stage_time(cost, blocks, p, i);
        sum += 3 * f;
        slowest = fmax(slowest, f);
    }
    double sums = p > 1 ? ring_time(ALL_REDUCE_PASSES, 2, elements_wte(&z), sizeof(real)) : 0;
    sums += ring_time(ALL_REDUCE_PASSES, p, 1, sizeof(double));
    sums += ring_time(ALL_REDUCE_PASSES, p, config_tensors(&t->model), sizeof(double));
    if (stage_time(cost, blocks, p, 0) == 0) sum -= way;   // only the embedding: its message begins the step
    return sum + 2 * (double)(p - 1) * way + others * (fmax(slowest, way) + fmax(2 * slowest, way)) + sums;
}

// ---------------------------------------------------------------- the cost lines

static void time_lines(Run *run, const Training *t, Growth g, const char *name, const Rebalanced *r, bool moves) {
    size_t p = run->world->size, n = t->model.layers + 2;
    double *now = host_alloc(n * sizeof *now), *before = host_alloc(n * sizeof *before);
    for (size_t s = 0; s < t->steps; s++) {
        char line[64];
        forward_times(t, g, s, now);
        forward_times(t, g, s > 0 ? s - s % g.every - 1 : 0, before);      // what the last cut knew, if there was one
        bool solved = moves && s >= g.every && !memcmp(now, before, n * sizeof *now);
        double slowest = solved ? partition_exhaustive(now, n, p) : 0;
        for (size_t i = 0; i < p && !solved; i++) slowest = fmax(slowest, stage_time(now, r->blocks[s], p, i));
        snprintf(line, sizeof line, "%s, step %zu: slowest stage%s", name, s, solved ? ", of the best cut" : "");
        cost(run, line, "ps", 3 * slowest * (double)t->micro_batches, (double)r->timing[s].busiest);
        snprintf(line, sizeof line, "%s, step %zu: step", name, s);
        cost(run, line, "ps", step_time(t, now, r->blocks[s], p), (double)r->timing[s].step);
    }
    free(now);
    free(before);
}

static size_t stage_of(const size_t *blocks, size_t k) {
    size_t i = 0;
    for (; k >= blocks[i]; i++) k -= blocks[i];
    return i;
}

static void text_of(char *cell, const size_t *blocks, size_t p) {
    strcpy(cell, "=");
    for (size_t i = 0; i < p; i++) sprintf(cell + strlen(cell), "%s%zu", i ? " " : "", blocks[i]);
}

static void table(Run *run, const Training *t, Growth g, const Rebalanced *stays, const Rebalanced *moved) {
    static const char *const columns[] = { "blocks stay", "step", "idle", "blocks move", "step", "idle", NULL };
    char text[MOST_STEPS][6][64], name[MOST_STEPS][48];
    Result rows[MOST_STEPS + 1] = { {0} };
    for (size_t s = 0; s < t->steps; s++) {
        const Rebalanced *both[] = { stays, moved };
        snprintf(name[s], sizeof name[s], s == g.from ? "step %zu, blocks cost more" : "step %zu", s);
        rows[s].what = name[s];
        for (size_t k = 0; k < 2; k++) {
            text_of(text[s][3 * k], both[k]->blocks[s], run->world->size);
            page_value(text[s][3 * k + 1] + 1, sizeof text[s][0] - 1, (double)both[k]->timing[s].step, "ps");
            snprintf(text[s][3 * k + 2] + 1, sizeof text[s][0] - 1, "%.1f %%", 100 * both[k]->timing[s].idle_of_total);
            text[s][3 * k + 1][0] = text[s][3 * k + 2][0] = '=';
        }
        for (size_t k = 0; k < 6; k++) rows[s].cell[k] = text[s][k];
    }
    results(run, columns, rows);
    double *cost = host_alloc((t->model.layers + 2) * sizeof *cost);
    forward_times(t, (Growth){0}, 0, cost);
    say(run, "  GPipe's step: sum(f+b) + (m-1)(max f + max b), and messages. A block: f = %.3g us, b = 2f. The",
        cost[1] / 1e6);
    say(run, "  head costs %.2f blocks, the embedding nothing; from step %zu on the first %zu blocks cost %zu times "
        "it.", cost[t->model.layers + 1] / cost[1], g.from, g.blocks, g.times);
    say(run, "  Costs 9 5 5 9 6 on 3 stages: the largest is 14 by min-max, 15 by the smallest max - min.");
    free(cost);
}

void partition_cost_lines(Run *run, const Training *t, Growth g, const Rebalanced *stays, const Rebalanced *moved) {
    size_t p = run->world->size, i = run->world->rank, E = sizeof(real), last = t->steps - 1;
    CutSizes z = cut_sizes(&t->model, 1, 0);
    double messages[2] = {0}, bytes[2] = {0};              // predicted, measured; of all steps
    double sums = 0, said = 0;
    for (size_t s = 1; s < t->steps; s++) {
        for (size_t k = 0; k < t->model.layers; k++)
            if (stage_of(moved->blocks[s - 1], k) == i && stage_of(moved->blocks[s], k) != i) {
                messages[0] += 3;                          // weights and both moments
                bytes[0] += 3 * (double)(elements_block(&z) * E);
            }
        messages[1] += moved->moved[s].messages;
        bytes[1] += moved->moved[s].bytes;
        sums += s % g.every ? 0 : ring_bytes(ALL_REDUCE_PASSES, p, t->model.layers + 2, sizeof(double));
        said += moved->moved[s].sum_bytes;
    }
    cost(run, "blocks that move: messages sent", "calls", messages[0], messages[1]);
    cost(run, "blocks that move: 3(12C^2+13C) elements each", "bytes", bytes[0], bytes[1]);
    cost(run, "sums of the layers' costs", "bytes", sums, said);
    z.blocks = moved->blocks[last][i];
    z.first = i == 0;
    z.last = i + 1 == p;
    cost(run, "parameters of my stage at the end", "bytes", elements_stage(&z) * E, moved->parameters);
    cost(run, "optimizer state of my stage at the end", "bytes", 2 * elements_stage(&z) * E, moved->optimizer);
    if (clock_config()->simulated) {                       // real time differs from run to run
        time_lines(run, t, g, "blocks stay", stays, false);
        time_lines(run, t, g, "blocks move", moved, true);
    }
    table(run, t, g, stays, moved);
}
