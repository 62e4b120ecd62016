// test_segments.c: trains stages that keep the input of every k-th block only (Chen et al. 2016),
// for several k. Checks the peak of activations, the best k, and every bit against the unsplit
// model.
//
// ranks: 2
// level: core
// question: Can one kept input serve several blocks?
#include "07_recompute/experiments/experiments.h"
#include <math.h>

static const ModelConfig tiny = {
    .layers = 64, .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1
};
enum { LENGTHS = 4 }; // k = 1, 2, 4, 8

// Returns the bytes per token of the segment whose forward or backward runs. The segment holds the
// items of its k blocks, and the inputs of all blocks but the first. The input of the first block
// is kept anyway.
static size_t segment(const CutSizes *z, size_t k) {
    return k * kept_block_bytes(z) + (k - 1) * z->C * element_size(z->storage);
}

static size_t segment_peak(const Training *t, const CutSizes *z, size_t k) {
    size_t segments = ceil_div(z->blocks, k), last = z->blocks - (segments - 1) * k;
    size_t input = z->C * element_size(z->storage), waiting = (segments + z->last) * input;
    // The last segment may be shorter. Then the segment before the last may need more.
    size_t running = waiting + segment(z, last);
    if (segments > 1) running = larger(running, segments * input + segment(z, k));
    if (z->last) waiting += kept_head_bytes(z);
    size_t all = t->sequences * z->T, one = stage_tokens(t, 0);
    return (all - one) * waiting + one * larger(waiting, running);
}

// Returns the first stage's peak, on every rank.
static double train(Run *run, const Training *t, size_t k, Trajectory *unsplit) {
    CutSizes z = stage_sizes(&t->model, run->world->size, run->world->rank);
    Model *stage = recompute_stage(run, t);
    // If the stage has an embedding, the blocks follow the embedding. A segment becomes one layer;
    // the last segment may be shorter.
    for (size_t s = 0; s * k < z.blocks; s++)
        recompute_wrap_range(stage, z.first + s, z.blocks - s * k < k ? z.blocks - s * k : k);
    RecomputeSeen seen = recompute_train(run, t, stage, "every segment", unsplit);
    check_cost(run, page_text(run, "every%zu.peak", k),
               page_text(run, "every %zu: activation peak", k), "bytes",
               formula((double)segment_peak(t, &z, k)), NOT_PREDICTED, seen.peak);
    return sum_of_ranks(run, run->world->rank == 0 ? seen.peak : 0);
}

static void segments(Run *run) {
    Training t = stages_training(run, &tiny, option_size(run, "batch"));
    t.steps = 2;
    t.optimizer = sgd(0.1);
    t.clip = 0.5;
    t.recorded = true;
    t.watched = MEM_ACTIVATIONS;
    config_require(&t.model);
    Trajectory unsplit = training_unsplit(run, &t, 1);
    double least = INFINITY;
    size_t best = 0; // the k whose peak is `least`
    for (size_t i = 0; i < LENGTHS; i++) {
        size_t k = (size_t)1 << i;
        double peak = train(run, &t, k, &unsplit);
        if (peak >= least) continue;
        least = peak;
        best = k;
    }
    // Each of the L/p blocks on a stage keeps n times its input. Memory is least at k = sqrt(m L/(p
    // n)).
    CutSizes z = stage_sizes(&t.model, run->world->size, 0);
    double n = (double)(kept_block(&z) + z.C) / (double)z.C;
    double root = sqrt((double)(t.micro_batches * z.blocks) / n);
    say(run, "k = %zu needs least, sqrt(m L/(p n)) = %.1f", best, root);
    check_true(run, "the best k", "is within a factor of sqrt(2) of sqrt(m L/(p n)), or 1",
               (best == 1 && root < 1) || fabs(log2((double)best / root)) <= 0.5);
    trajectory_free(&unsplit);
    data_free(&t.data);
}

static const Option options[] = {
    { "batch", "N", "4", "sequences in a step" },
    { "micro-batches", "N", "2", "micro-batches of a step" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(segments, options);
