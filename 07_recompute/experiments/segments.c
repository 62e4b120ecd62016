// segments.c: trains with the input of every k-th block only, for several k (Chen et al. 2016).
#include "07_recompute/experiments/experiments.h"
#include <math.h>

// Returns the bytes per token of the segment at work: the items of its k blocks, and the inputs of
// all blocks but the first, whose input is kept anyway.
static size_t segment(const CutSizes *z, size_t k) {
    return k * kept_block_bytes(z) + (k - 1) * z->C * element_size(z->storage);
}

static size_t segment_peak(const Training *t, const CutSizes *z, size_t k) {
    size_t segments = ceil_div(z->blocks, k), last = z->blocks - (segments - 1) * k;
    size_t input = z->C * element_size(z->storage), waiting = (segments + z->last) * input;
    // The last segment may be shorter. Then the segment before it may need more.
    size_t at_work = waiting + segment(z, last);
    if (segments > 1) at_work = larger(at_work, segments * input + segment(z, k));
    if (z->last) waiting += kept_head_bytes(z);
    size_t all = t->sequences * z->T, one = stage_tokens(t, 0);
    return ((all - one) * waiting + one * larger(waiting, at_work));
}

// Trains with segments of k blocks and compares with the unsplit model. Returns the first stage's
// peak, on every rank.
static double train(Run *run, const Training *t, size_t k, Trajectory *unsplit) {
    size_t p = run->world->size, i = run->world->rank;
    Model *m = model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, p, i));
    CutSizes z = stage_sizes(&t->model, p, i);
    // Blocks follow the embedding, if the stage has one. A segment becomes one layer; the last may
    // be shorter.
    for (size_t s = 0; s * k < z.blocks; s++)
        recompute_wrap_range(m, z.first + s, z.blocks - s * k < k ? z.blocks - s * k : k);
    Trajectory got = trajectory_new(run, t);
    RecomputeSeen seen = recompute_train(run, t, m, &got);
    check_cost(run, page_text(run, "every%zu.peak", k),
               page_text(run, "every %zu: activation peak", k), "bytes",
               formula((double)segment_peak(t, &z, k)), NOT_PREDICTED, seen.peak);
    training_compare(run, "every segment = unsplit", &got, unsplit, 0);
    trajectory_free(&got);
    return sum_of_ranks(run, i == 0 ? seen.peak : 0);
}

// Trains with several lengths of segments. L blocks keep n times their input each. Memory is least
// with the input of every k-th block for k = sqrt(m L/n).
void segments_train(Run *run, Training t) {
    const char *every[4];
    double least = INFINITY;
    size_t fewest = 0; // the k whose peak is `least`
    t.model.layers = SEGMENTS_BLOCKS;
    Trajectory unsplit = training_unsplit(run, &t, 1);
    for (size_t i = 0; i < 4; i++) {
        size_t k = (size_t)1 << i;
        double peak = train(run, &t, k, &unsplit);
        every[i] = value_text(run, peak, "bytes");
        if (peak >= least) continue;
        least = peak;
        fewest = k;
    }
    trajectory_free(&unsplit);
    CutSizes z = stage_sizes(&t.model, run->world->size, 0);
    double n = (double)(kept_block(&z) + z.C) / (double)z.C;
    double best = sqrt((double)(t.micro_batches * z.blocks) / n);
    say(run,
        "Also: %d blocks, all recomputed; stage 0 has L = %zu. Can one kept input serve k "
        "blocks?\n"
        "Backward then holds the items of k blocks. The peak of stage 0, for m = %zu "
        "micro-batches:",
        SEGMENTS_BLOCKS, z.blocks, t.micro_batches);
    say(run, "  k = 1: %s   k = 2: %s   k = 4: %s   k = 8: %s", every[0], every[1], every[2],
        every[3]);
    say(run,
        "%s: k = %zu needs least. By formula k = sqrt(m L/n) = %.1f; a block keeps nC elements, "
        "n = %.1f.",
        fewest > 1 ? "Yes" : "No", fewest, best, n);
}
