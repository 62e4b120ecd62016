// stage_costs.c: predictions for 02_full: the activations that a stage of a GPipe pipeline keeps,
// the work of a stage and the time of a step, from sizes alone.
#include "07_recompute/experiments/experiments.h"
#include <stdlib.h>
#include <string.h>

static size_t most(size_t a, size_t b) { return a > b ? a : b; }
static double later(double a, double b) { return a > b ? a : b; }

// Between forward and backward a stage keeps its share of all m micro-batches. The peak is in the
// backward of the first micro-batch, the largest: one block, or one stage, is complete again.
size_t way_kept(const Training *t, size_t p, size_t i, Way way) {
    CutSizes z = cut_stage(cut_sizes(&t->model, 1, 0), p, i);
    size_t block = kept_block(&z), head = z.last ? kept_head(&z) : 0, stage = kept_stage(&z);
    // the first stage's input is tokens, not activations
    size_t input = z.first ? 0 : z.C;
    size_t all = t->sequences * z.T, one = ceil_div(t->sequences, t->micro_batches) * z.T;
    switch (way) {
    case RECOMPUTE_BLOCKS:
        return all * kept_between(&z) + (all - one) * head + one * most(block, head);
    case RECOMPUTE_STAGES: return all * input + one * (stage - input);
    default: return all * stage;
    }
}

// ---------------------------------------------------------------- computation

// Stage i computes this for B sequences, with or without the head.
static Work forward_work(const ModelConfig *c, size_t p, size_t i, size_t B, bool with_head) {
    CutSizes z = cut_stage(cut_sizes(c, 1, 0), p, i);
    z.last = z.last && with_head;
    return work_stage(&z, B);
}
// Backward has two products for each product of forward. It also repeats the dropped part of
// forward.
static Work backward_work(const ModelConfig *c, size_t p, size_t i, size_t B, Way way) {
    Work twice = work_times(2, forward_work(c, p, i, B, true));
    if (way == KEEP_EVERYTHING) return twice;
    return work_sum(twice, forward_work(c, p, i, B, way == RECOMPUTE_STAGES));
}
static size_t sequences(const Training *t, size_t k) {
    return range_size(shard_range(t->sequences, t->micro_batches, k));
}
Work way_work(const Training *t, size_t p, size_t i, Way way) {
    Work sum = { 0 };
    for (size_t k = 0; k < t->micro_batches; k++)
        sum = work_sum(sum, work_sum(forward_work(&t->model, p, i, sequences(t, k), true),
                                     backward_work(&t->model, p, i, sequences(t, k), way)));
    return sum;
}

// ---------------------------------------------------------------- time

// All forwards, or all backwards, of stage i. The stage starts micro-batch k when k has arrived and
// the previous micro-batch is done. A message starts when the previous message has arrived; the
// sender does not wait. end: when the stage's last computation ends. arrives[k]: when k arrives,
// before the call at this stage, after the call at the next stage.
static void pass(const Training *t, size_t p, size_t i, Way way, bool forward, double *end,
                 double *arrives) {
    const ModelConfig *c = &t->model;
    CutSizes z = cut_sizes(c, 1, 0);
    double link = 0;
    for (size_t k = 0; k < t->micro_batches; k++) {
        size_t B = sequences(t, k);
        Work work = forward ? forward_work(c, p, i, B, true) : backward_work(c, p, i, B, way);
        *end = later(*end, arrives[k]) + work.time;
        link = later(link, *end) + send_time(message_elements(&z, B) * sizeof(real));
        arrives[k] = link;
    }
}
// The time of a step in GPipe's order. First all forwards run, from the first stage to the last.
// Then all backwards run, from the last stage to the first. At the end come three sums: of wte's
// gradients over the first and the last stage, of the loss, and of the norm's squares.
double way_step_time(const Training *t, size_t p, Way way) {
    const ModelConfig *c = &t->model;
    double *end = host_alloc(p * sizeof *end);
    double *arrives = host_alloc(t->micro_batches * sizeof *arrives);
    double all = 0;
    for (size_t i = 0; i < p; i++) pass(t, p, i, way, true, &end[i], arrives);
    memset(arrives, 0, t->micro_batches * sizeof *arrives);
    for (size_t i = p; i-- > 0;) pass(t, p, i, way, false, &end[i], arrives);
    CutSizes z = cut_sizes(c, 1, 0);
    if (p > 1)
        end[0] = later(end[0], end[p - 1]) +
                 ring_time(ALL_REDUCE_PASSES, 2, elements_wte(&z), sizeof(real));
    for (size_t i = 0; i < p; i++) all = later(all, end[i]);
    free(end);
    free(arrives);
    return all + ring_time(ALL_REDUCE_PASSES, p, 1, sizeof(double)) +
           ring_time(ALL_REDUCE_PASSES, p, config_tensors(c), sizeof(double));
}
