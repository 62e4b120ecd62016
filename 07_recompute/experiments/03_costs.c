// 03_costs.c: see 03_costs.h.
#include "07_recompute/experiments/03_costs.h"
#include "common/model/costs.h"
#include <stdio.h>

const char *const selective_way_name[] = { "none", "selective", "full" };

// One step of a rank: forward, backward with twice the products, and what backward computes again.
static Work step_work(const Training *t, size_t N, size_t rank, Recompute how) {
    CutSizes z = cut_sizes(&t->model, N, rank);
    Work again[] = { { 0 }, work_scores(&z, t->sequences), work_block(&z, t->sequences) };
    return work_sum(work_times(3, work_stage(&z, t->sequences)), work_times((double)z.blocks, again[how]));
}

void selective_costs(Run *run, const Training *t, Recompute how, const SelectiveMeasured *got) {
    const ModelConfig *c = &t->model;
    const char *name = selective_way_name[how];
    size_t N = run->world->size, rank = run->world->rank;
    CutSizes z = cut_sizes(c, N, rank);
    size_t L = c->layers, tokens = t->sequences * c->context, e = sizeof(real), mine = elements_stage(&z);
    counted_cost(run, name, "weights", "bytes", (double)(mine * e), (double)got->parameters);
    counted_cost(run, name, "gradients, two uses of wte", "bytes", (double)(elements_gradients(&z) * e),
                 (double)got->gradients);
    counted_cost(run, name, "optimizer state: SGD has none", "bytes", 0, (double)got->optimizer);

    size_t all = kept_block(&z), scores = kept_scores(&z), head = kept_head(&z);
    size_t outputs = kept_between(&z);                     // of the embedding and the blocks
    // of what comes and goes: whichever backward is in
    size_t kept[] = { outputs + L * all + head, outputs + L * (all - scores) + (scores > head ? scores : head),
                      outputs + (all > head ? all : head) };
    counted_cost(run, name, "activation peak", "bytes", (double)(tokens * kept[how] * e), (double)got->peak);

    Traffic layers = traffic_tensor_parallel(&z, N, t->sequences, how == RECOMPUTE_FULL);
    counted_cost(run, name, "all-reduces", "calls", layers.calls, (double)got->calls);
    counted_cost(run, name, "all-reduce bytes", "bytes", layers.bytes, (double)got->bytes);

    double hardware = 0, model = 0;
    for (size_t k = 0; k < N; k++) hardware += step_work(t, N, k, how).flops;
    for (size_t k = 0; k < N; k++) model += step_work(t, N, k, RECOMPUTE_NONE).flops;
    counted_cost(run, name, "hardware FLOPs, all ranks", "FLOPs", hardware, got->timing.flops);
    counted_utilisations(run, name, &got->timing, model);
    if (!clock_config()->simulated) return;                    // real time is as it is
    double rings = layers.time + ring_time(ALL_REDUCE_PASSES, N, config_tensors(c), sizeof(double));
    counted_cost(run, name, "this rank computes", "ps", step_work(t, N, rank, how).time, (double)got->computing);
    counted_cost(run, name, "exposed: every ring", "ps", (double)N * rings, (double)got->timing.exposed);
    // Rank 0 has most heads, columns and vocabulary entries: the others wait for it.
    counted_cost(run, name, "step", "ps", step_work(t, N, 0, how).time + rings, (double)got->timing.step);
}

#define EACH_WAY(name) { "none: " name, "selective: " name, "full: " name }
void selective_results(Run *run, const Training *t, const SelectiveMeasured got[RECOMPUTE_FULL + 1]) {
    static const char *const columns[] = { "none", "selective", "full", NULL };
    char mfu[3][32], hfu[3][32];
    for (size_t i = 0; i < 3; i++)
        counted_percent(mfu[i], hfu[i], &got[i].timing, got[RECOMPUTE_NONE].timing.flops);
    bool simulated = clock_config()->simulated;
    const Result rows[] = {
        { "activations, peak", "all items; less 2HT; inputs, 1 block", EACH_WAY("activation peak") },
        { "sent per rank", "4L + 5 all-reduces; same; 6L + 5", EACH_WAY("all-reduce bytes") },
        { "FLOPs, all ranks", "3F; 3F + q k^T; 3F + F of the blocks", EACH_WAY("hardware FLOPs, all ranks") },
        { simulated ? "step" : NULL, "rank 0 computes, and every ring", EACH_WAY("step") },
        { "MFU", "3F / what the ranks could do", { mfu[0], mfu[1], mfu[2] } },
        {0}
    };
    results(run, columns, rows);
    CutSizes z = cut_sizes(&t->model, 1, 0);
    say(run, "Attention's probabilities: %.0f %% of what a block keeps. Computing them again: %.1f %% of its forward.",
        100 * (double)kept_scores(&z) / (double)(kept_block(&z) + z.C),
        100 * work_scores(&z, t->sequences).flops / work_block(&z, t->sequences).flops);
}

// ---------------------------------------------------------------- the paper's list of items, and ours

// The items of kept_items() without the statistics, which the paper leaves out: bytes per token for each column of h
// (or, for attention, for each of a*s/h columns), elements and masks of so many bytes.
static size_t item_bytes(const ModelConfig *c, const KeptItem *item, size_t element, size_t mask) {
    size_t columns = item->kind == KEPT_SCORES ? c->heads * c->context : c->width;
    return (item->elements * element + item->masks * mask) / columns;
}
// sum[0] times s*b*h, sum[1] times s*b*h * a*s/h. Without dropout there are no masks, and its output is its input.
static void item_sums(const ModelConfig *c, bool dropout, size_t element, size_t mask, double sum[2]) {
    CutSizes z = cut_sizes(c, 1, 0);
    KeptItem item[KEPT_ITEMS];
    z.dropout = dropout;
    kept_items(&z, item);
    sum[0] = sum[1] = 0;
    for (size_t i = 0; i < KEPT_ITEMS; i++)
        if (item[i].kind != KEPT_STATISTICS)
            sum[item[i].kind == KEPT_SCORES] += (double)item_bytes(c, &item[i], element, mask);
}
static void item_list(Run *run, const ModelConfig *c) {
    CutSizes z = cut_sizes(c, 1, 0);
    KeptItem item[KEPT_ITEMS];
    z.dropout = true;
    kept_items(&z, item);
    say_detail(run, "bytes a token of one block      times   paper, 16 bit   paper, fp32   ours, fp32");
    for (size_t i = 0; i < KEPT_ITEMS; i++)
        if (item[i].kind != KEPT_STATISTICS)
            say_detail(run, "  %-31s %5s %14zu %13zu %12zu", item[i].name, item[i].kind == KEPT_SCORES ? "a*s/h" : "h",
                item_bytes(c, &item[i], 2, 1), item_bytes(c, &item[i], 4, 1), item_bytes(c, &item[i], 4, 0));
    // 16 bit and fp32, with dropout and without
    static const double published[4][2] = { { 34, 5 }, { 32, 2 }, { 66, 9 }, { 64, 4 } };
    static const char *const name[4] = { "16 bit, dropout: 34, 5", "16 bit, no dropout: 32, 2", "fp32, dropout: 66, 9",
                                         "fp32, no dropout: 64, 4" };
    double sum[2], h = (double)c->width, as = (double)(c->heads * c->context);
    for (size_t i = 0; i < 4; i++) {
        item_sums(c, i % 2 == 0, i < 2 ? 2 : 4, 1, sum);
        check_numbers(run, "paper: bytes, h and as", name[i], sum, published[i], 2, 0);
    }
    // The predictions above count the block's input with the layer below it, and 4 statistics per token, which the
    // paper leaves out.
    double listed = 64 * h + 8 * as, predicted = 4 * (double)(kept_block(&z) + c->width - 4);
    check_numbers(run, "ours: bytes, h and as", "fp32, dropout: 64, 8", &listed, &predicted, 1, 0);
}

// Figure 7 of the paper: activations in percent of tensor parallelism alone, t = 8, s = 2048.
static void figure7(Run *run) {
    static const struct { const char *name; double a, h, published[4]; } model[4] = {
        { "22B", 64, 6144, { 66.8, 49.4, 16.1, 7.6 } },     { "175B", 96, 12288, { 62.0, 56.5, 18.5, 8.7 } },
        { "530B", 128, 20480, { 58.3, 61.9, 20.2, 9.5 } },  { "1T", 160, 25600, { 58.3, 61.9, 20.2, 9.5 } },
    };
    const double t = 8, s = 2048;
    say_detail(run, "percent of tensor parallelism alone: sequence parallel, selective, both, full");
    for (size_t i = 0; i < 4; i++) {
        double as_h = model[i].a * s / model[i].h, base = 10 + 24 / t + 5 * as_h / t;
        double percent[4] = { 100 * (34 + 5 * as_h) / t / base, 100 * (10 + 24 / t) / base, 100 * 34 / t / base,
                              100 * 2 / base };
        say_detail(run, "  %-5s %6.2f %6.2f %6.2f %6.2f", model[i].name, percent[0], percent[1], percent[2],
                   percent[3]);
        // printed to 0.1 percent
        check_numbers(run, "Korthikanti, figure 7", model[i].name, percent, model[i].published, 4, 1e-3);
    }
}

// Extra work. A block's forward is 24 b s h^2 + 4 b s^2 h floating-point operations; the second term is q k^T and its
// product with v, half each. The paper computes both again (4 b s^2 h); this tree keeps the heads' output and computes
// only q k^T again (2 b s^2 h).
static void overhead(Run *run) {
    static const struct { const char *name; double h; } model[2] = { { "175B", 12288 }, { "530B", 20480 } };
    static const double published[2] = { 2.7, 1.6 };       // percent; the paper's text, which is of the forward pass
    const double s = 2048;
    double of_forward[2];
    say_detail(run, "extra operations, percent   paper: of forward   of both ways   ours: of forward   of both ways");
    for (size_t i = 0; i < 2; i++) {
        double forward = 24 * s * model[i].h * model[i].h + 4 * s * s * model[i].h, extra = 4 * s * s * model[i].h;
        of_forward[i] = 100 * extra / forward;
        say_detail(run, "  %-5s %36.2f %14.2f %18.2f %14.2f", model[i].name, of_forward[i], of_forward[i] / 3,
            of_forward[i] / 2, of_forward[i] / 6);
    }
    // printed to 0.1 percent
    check_numbers(run, "paper: 2.7, 1.6 % more", "175B and 530B, of the forward pass", of_forward, published, 2,
                  0.05 / 2.7);
}

void selective_published(Run *run, const ModelConfig *c) {
    item_list(run, c);
    figure7(run);
    overhead(run);
}
