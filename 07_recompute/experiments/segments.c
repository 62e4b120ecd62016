// segments.c: keeps the input of every k-th block only, for several k (Chen et al. 2016), and of
// whole stages (GPipe).
#include "07_recompute/experiments/experiments.h"
#include <math.h>
#include <stdio.h>

enum { SEGMENTS = 4 };
static const size_t every[SEGMENTS] = { 1, 2, 4, 8 };

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

// ---------------------------------------------------------------- the costs

// Elements per token of the segment at work: the items of its k blocks, and the inputs of all
// blocks but the first, whose input is kept anyway.
static size_t segment(const CutSizes *z, size_t k) { return k * kept_block(z) + (k - 1) * z->C; }

static size_t segment_peak(const Training *t, size_t p, size_t i, size_t k) {
    CutSizes z = budget_sizes(t, p, i);
    size_t segments = ceil_div(z.blocks, k), last = z.blocks - (segments - 1) * k;
    size_t waiting = (segments + z.last) * z.C;
    // The last segment may be shorter. Then the one before it may need more.
    size_t at_work = waiting + segment(&z, last);
    if (segments > 1) at_work = most(at_work, segments * z.C + segment(&z, k));
    if (z.last) waiting += kept_head(&z);
    size_t all = t->sequences * z.T, one = ceil_div(t->sequences, t->micro_batches) * z.T;
    return (all - one) * waiting + one * most(waiting, at_work);
}

static void segment_costs(Run *run, WayName name, const Training *t, size_t k,
                          const StageMeasured *got) {
    size_t p = run->world->size, i = run->world->rank;
    way_cost(run, name, "peak", "activation peak", "bytes",
             (double)(segment_peak(t, p, i, k) * sizeof(real)), (double)got->peak);
    double flops = 0;
    for (size_t s = 0; s < p; s++) {
        CutSizes z = budget_sizes(t, p, s);
        flops += 3 * work_stage(&z, t->sequences).flops +
                 (double)z.blocks * work_block(&z, t->sequences).flops;
    }
    way_cost(run, name, "flops", "hardware FLOPs, all stages", "FLOPs", flops, got->timing.flops);
}

// ---------------------------------------------------------------- the trainings

// Trains with segments of k blocks. Returns the peak of the first stage, in bytes.
static size_t train_segment(Run *run, Comm *pp, const Training *t, WayName name, size_t k) {
    Trajectory got = trajectory_new(run, t), unsplit = training_unsplit(run, t, 1);
    StageMeasured r = budget_train(pp, t, NULL, k, &got);
    segment_costs(run, name, t, k, &r);
    training_compare(run, "every segment = unsplit", &got, &unsplit, 0);
    trajectory_free(&got);
    trajectory_free(&unsplit);
    double peak = pp->rank == 0 ? (double)r.peak : 0;
    comm_all_reduce_doubles(pp, &peak, 1);
    return (size_t)peak;
}

// L blocks keep n times their input each. Memory is least with the input of every k-th block for k
// = sqrt(m L/n). GPipe has one segment per stage. Its memory is O(N + L/K N/M) for N sequences in M
// micro-batches and L/K blocks per stage (Huang et al. 2018, section 2.3; their K is our p).
void budget_segments(Run *run, Comm *pp, Training t) {
    char id[16], name[48], peak[SEGMENTS][32];
    t.model.layers = BUDGET_LONG;
    for (size_t i = 0; i < SEGMENTS; i++) {
        snprintf(id, sizeof id, "every%zu", every[i]);
        snprintf(name, sizeof name, "every %zu", every[i]);
        size_t bytes = train_segment(run, pp, &t, (WayName){ id, name }, every[i]);
        page_value(peak[i], sizeof peak[i], (double)bytes, "bytes");
    }
    CutSizes z = budget_sizes(&t, pp->size, 0);
    double n = (double)kept_block(&z) / (double)z.C;
    say(run,
        "Can one kept input serve several blocks? A model of %d blocks, all recomputed; stage "
        "0 (L = %zu):",
        BUDGET_LONG, z.blocks);
    say(run, "  every k-th input, m = %zu     k = 1: %s   k = 2: %s   k = 4: %s   k = 8: %s",
        t.micro_batches, peak[0], peak[1], peak[2], peak[3]);
    double best = sqrt((double)(t.micro_batches * z.blocks) / n);
    size_t m = t.micro_batches;
    for (size_t i = 0; i < 3; i++) {
        t.micro_batches = (size_t)1 << i;
        snprintf(id, sizeof id, "whole%zu", t.micro_batches);
        snprintf(name, sizeof name, "whole stage, M = %zu", t.micro_batches);
        snprintf(peak[i], sizeof peak[i], "no step"); // too few sequences
        if (t.sequences < t.micro_batches) continue;
        size_t bytes = train_segment(run, pp, &t, (WayName){ id, name }, BUDGET_LONG);
        page_value(peak[i], sizeof peak[i], (double)bytes, "bytes");
    }
    say(run, "  only the stage's input      m = 1: %s   m = 2: %s   m = 4: %s", peak[0], peak[1],
        peak[2]);
    say(run,
        "A block keeps n = %.1f times its input, so for m = %zu k = sqrt(m L/n) = %.1f is "
        "best by formula.",
        n, m, best);
}
