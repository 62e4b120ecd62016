// segments.c: trains with the input of every k-th block only, for several k (Chen et al. 2016), and
// with the inputs of whole stages (GPipe).
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

// Trains with segments of k blocks and compares with the unsplit model. The id of the cost is made
// of kind and number. Returns the peak of the first stage on all ranks.
static double train(Run *run, const Training *t, const char *kind, size_t number, size_t k) {
    size_t p = run->world->size, i = run->world->rank;
    Model *m = model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, p, i));
    CutSizes z = stage_sizes(&t->model, p, i);
    // Blocks follow the embedding, if any. A segment becomes one layer; the last may be shorter.
    for (size_t s = 0; s * k < z.blocks; s++)
        recompute_wrap_range(m, z.first + s, z.blocks - s * k < k ? z.blocks - s * k : k);
    Trajectory got = trajectory_new(run, t), unsplit = training_unsplit(run, t, 1);
    RecomputeSeen seen = recompute_train(run, t, m, &got);
    check_cost(run, page_text(run, "%s%zu.peak", kind, number),
               page_text(run, "%s %zu: activation peak", kind, number), "bytes",
               formula((double)segment_peak(t, &z, k)), NOT_PREDICTED, seen.peak);
    training_compare(run, "every segment = unsplit", &got, &unsplit, 0);
    trajectory_free(&got);
    trajectory_free(&unsplit);
    return sum_of_ranks(run, i == 0 ? seen.peak : 0);
}

// Trains with several lengths of segments. L blocks keep n times their input each. Memory is least
// with the input of every k-th block for k = sqrt(m L/n). GPipe has one segment per stage. The
// memory of GPipe is O(N + L/K N/M) for N sequences in M micro-batches and L/K blocks per stage
// (Huang et al. 2018, section 2.3; their K is our p).
void segments_train(Run *run, Training t) {
    const char *every[4], *whole[3];
    double least = 0;
    size_t fewest = 0; // the k whose peak is `least`
    t.model.layers = SEGMENTS_BLOCKS;
    for (size_t i = 0; i < 4; i++) {
        size_t k = (size_t)1 << i;
        double peak = train(run, &t, "every", k, k);
        every[i] = value_text(run, peak, "bytes");
        if (fewest > 0 && peak >= least) continue;
        least = peak;
        fewest = k;
    }
    CutSizes z = stage_sizes(&t.model, run->world->size, 0);
    double n = (double)(kept_block(&z) + z.C) / (double)z.C;
    double best = sqrt((double)(t.micro_batches * z.blocks) / n);
    say(run,
        "Can one kept input serve several blocks? The peak of stage 0 (L = %zu) of %d blocks, all "
        "recomputed:",
        z.blocks, SEGMENTS_BLOCKS);
    say(run, "  every k-th input, m = %zu:  k = 1: %s   k = 2: %s   k = 4: %s   k = 8: %s",
        t.micro_batches, every[0], every[1], every[2], every[3]);
    for (size_t i = 0; i < 3; i++) {
        t.micro_batches = (size_t)1 << i;
        whole[i] = "too few sequences";
        if (t.sequences >= t.micro_batches)
            whole[i] =
                value_text(run, train(run, &t, "whole", t.micro_batches, SEGMENTS_BLOCKS), "bytes");
    }
    say(run,
        "  the stage's input only:  m = 1: %s   m = 2: %s   m = 4: %s, because backward then\n"
        "  holds the items of all L blocks, for a micro-batch of %zu/m sequences.",
        whole[0], whole[1], whole[2], t.sequences);
    say(run,
        "%s: k = %zu needs least. By formula k = sqrt(m L/n) = %.1f, if a block keeps n = %.1f "
        "times "
        "its input.",
        fewest > 1 ? "Yes" : "No", fewest, best, n);
}
