// gpipe_time.c: see gpipe_time.h.
#include "07_recompute/experiments/gpipe_time.h"
#include <stdlib.h>
#include <string.h>

// What stage i computes for B sequences. Backward is two products for each of forward's, and what it computes again.
static Work forward_work(const ModelConfig *c, size_t p, size_t i, size_t B, bool with_head) {
    CutSizes z = cut_stage(cut_sizes(c, 1, 0), p, i);
    z.last = z.last && with_head;
    return work_stage(&z, B);
}
static Work backward_work(const ModelConfig *c, size_t p, size_t i, size_t B, Way way) {
    Work twice = work_times(2, forward_work(c, p, i, B, true));
    return way == KEEP_EVERYTHING ? twice : work_sum(twice, forward_work(c, p, i, B, way == RECOMPUTE_STAGES));
}
static size_t sequences(const Training *t, size_t k) {
    return range_size(shard_range(t->sequences, t->micro_batches, k));
}
Work gpipe_time_work(const Training *t, size_t p, size_t i, Way way) {
    Work sum = {0};
    for (size_t k = 0; k < t->micro_batches; k++)
        sum = work_sum(sum, work_sum(forward_work(&t->model, p, i, sequences(t, k), true),
                                     backward_work(&t->model, p, i, sequences(t, k), way)));
    return sum;
}

// One way through the pipeline: stage i starts micro-batch k when it is done with the one before and k has arrived. A
// message waits for the one before it, and its sender does not.
static void pass(const Training *t, size_t p, size_t i, Way way, bool forward, double *end, double *arrives) {
    const ModelConfig *c = &t->model;
    CutSizes z = cut_sizes(c, 1, 0);
    double link = 0;
    for (size_t k = 0; k < t->micro_batches; k++) {
        size_t B = sequences(t, k);
        Work work = forward ? forward_work(c, p, i, B, true) : backward_work(c, p, i, B, way);
        *end = (arrives[k] > *end ? arrives[k] : *end) + work.time;
        link = (link > *end ? link : *end) + send_time(message_elements(&z, B) * sizeof(real));
        arrives[k] = link;
    }
}
// A step: forwards down the stages, backwards up, the sum of the tied gradients, the sums of loss and squares.
double gpipe_time_step(const Training *t, size_t p, Way way) {
    const ModelConfig *c = &t->model;
    double *end = host_alloc(p * sizeof *end), *arrives = host_alloc(t->micro_batches * sizeof *arrives), all = 0;
    for (size_t i = 0; i < p; i++) pass(t, p, i, way, true, &end[i], arrives);
    memset(arrives, 0, t->micro_batches * sizeof *arrives);
    for (size_t i = p; i-- > 0;) pass(t, p, i, way, false, &end[i], arrives);
    double both = end[0] > end[p - 1] ? end[0] : end[p - 1];
    CutSizes z = cut_sizes(c, 1, 0);
    if (p > 1) end[0] = both + ring_time(ALL_REDUCE_PASSES, 2, elements_wte(&z), sizeof(real));
    for (size_t i = 0; i < p; i++) all = end[i] > all ? end[i] : all;
    free(end);
    free(arrives);
    return all + ring_time(ALL_REDUCE_PASSES, p, 1, sizeof(double)) +
           ring_time(ALL_REDUCE_PASSES, p, config_tensors(c), sizeof(double));
}
