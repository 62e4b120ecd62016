// partition_costs.c: predicts the costs of a training whose blocks may move between stages
// (04_partition.c), from sizes alone. The costs are step times, the time of the slowest stage and
// the bytes of the blocks that move.
#include "04_pipeline_naive/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>

// ---------------------------------------------------------------- times, from sizes

// Fills cost [L+2] with the time of each layer's forward in this step, for one sequence.
static void forward_times(const Training *t, size_t step, double *cost) {
    CutSizes z = cut_sizes(&t->model, 1, 0);
    size_t L = t->model.layers;
    cost[0] = 0; // the embedding has no product
    for (size_t k = 0; k < L; k++)
        cost[k + 1] =
            work_block(&z, 1).time * (k < GROWN_BLOCKS && step >= GROWN ? (double)GROWTH : 1);
    cost[L + 1] = work_head(&z, 1).time;
}
static double stage_time(const double *cost, const size_t *blocks, size_t p, size_t i) {
    size_t lo = 0;
    for (size_t k = 0; k < i; k++) lo += blocks[k] + (k == 0);
    double sum = 0;
    for (size_t k = 0; k < blocks[i] + (i == 0) + (i + 1 == p); k++) sum += cost[lo + k];
    return sum;
}

// Returns the time of a step of GPipe on unequal stages. The first micro-batch passes all stages;
// each later micro-batch adds the time of the slowest stage or link. The sums at the end of the
// step come last. A backward takes twice the time of a forward.
static double step_time(const Training *t, const double *cost, const size_t *blocks, size_t p) {
    double sum = 0, slowest = 0, way = p > 1 ? (double)stage_message_time(&t->model, 1) : 0;
    double others = (double)t->micro_batches - 1;
    for (size_t i = 0; i < p; i++) {
        double f = stage_time(cost, blocks, p, i);
        sum += 3 * f;
        slowest = fmax(slowest, f);
    }
    // A step begins with its first product. A stage 0 that has only the embedding has no product,
    // so its first message is sent before the step.
    if (stage_time(cost, blocks, p, 0) == 0) sum -= way;
    return sum + 2 * (double)(p - 1) * way +
           others * (fmax(slowest, way) + fmax(2 * slowest, way)) + stage_sums_time(&t->model, p);
}

// ---------------------------------------------------------------- costs

static void time_lines(Run *run, const Training *t, const char *name, const Rebalanced *r,
                       bool moves) {
    size_t p = run->world->size, n = t->model.layers + 2, last;
    double *now = host_alloc(n * sizeof *now);
    for (size_t s = 0; s < t->steps; s++) {
        forward_times(t, s, now);
        // cut: the step before which the blocks last moved. partition_solve then found the best cut
        // for the costs of step cut - 1. solved: whether this cut is also the best for step s,
        // because the costs are the same.
        const size_t cut = s - s % MOVE_EVERY;
        const bool solved = moves && cut > 0 && (cut - 1 >= GROWN) == (s >= GROWN);
        double slowest = solved ? partition_exhaustive(now, n, p, &last) : 0;
        for (size_t i = 0; i < p && !solved; i++)
            slowest = fmax(slowest, stage_time(now, r->blocks[s], p, i));
        const char *ids = page_text(run, "%%s.%s.%zu", moves ? "move" : "stay", s);
        check_costs(run, ids, page_text(run, "%s, step %zu: %%s", name, s),
                    (CostRow[]){
                        { "busiest", solved ? "slowest stage, of the best cut" : "slowest stage",
                          "ps", BY_FORMULA(3 * slowest * (double)t->micro_batches),
                          (double)r->timing[s].busiest },
                        { "step", "step", "ps", BY_FORMULA(step_time(t, now, r->blocks[s], p)),
                          (double)r->timing[s].step },
                        { 0 } });
    }
    free(now);
}

static size_t stage_of(const size_t *blocks, size_t k) {
    size_t i = 0;
    for (; k >= blocks[i]; i++) k -= blocks[i];
    return i;
}

void partition_check_costs(Run *run, const Training *t, const Rebalanced *stays,
                           const Rebalanced *moved) {
    size_t i = run->world->rank;
    CutSizes z = cut_sizes(&t->model, 1, 0);
    double bytes[2] = { 0 }; // predicted [0] and measured [1], of all steps
    for (size_t s = 1; s < t->steps; s++) {
        for (size_t k = 0; k < t->model.layers; k++) // a block has weights and two moments
            if (stage_of(moved->blocks[s - 1], k) == i && stage_of(moved->blocks[s], k) != i)
                bytes[0] += (double)(elements_block(&z) *
                                     (weight_bytes(&t->model) + adamw_bytes(&t->model)));
        bytes[1] += moved->moved_bytes[s];
    }
    check_cost(run, "moved.bytes", "blocks that move: 3(12C^2+13C) elements each", "bytes",
               formula(bytes[0]), NOT_PREDICTED, bytes[1]);
    if (!clock_config()->simulated) return; // real time differs from run to run
    time_lines(run, t, "blocks stay", stays, false);
    time_lines(run, t, "blocks move", moved, true);
}
