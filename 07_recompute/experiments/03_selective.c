// Three ways under tensor parallelism: keep everything, recompute attention's probabilities,
// recompute blocks. All give the same bits. And what the paper (Korthikanti et al. 2022) publishes,
// computed again.
#include "03_tensor_parallel/tensor_parallel.h"
#include "07_recompute/experiments/experiments.h"
#include <stdio.h>
#include <string.h>

static const ModelConfig tiny = {
    .layers = 3, .width = 27, .heads = 9, .context = 24, .vocab = 53, .dropout = 0.1
};
enum { SEQUENCES = 3, STEPS = 3, WAYS = RECOMPUTE_FULL + 1 };

static const WayName way_name[WAYS] = { { "none", "none" },
                                        { "selective", "selective" },
                                        { "full", "full" } };

typedef struct {
    Counts counts[8];                              // of every layer, in the last step
    size_t parameters, gradients, optimizer, peak; // bytes; peak: of activations, in the last step
    size_t calls, bytes;                           // all-reduces of its layers, in the last step
    Picoseconds computing;                         // this rank, in the last step
    Timing timing;                                 // all ranks, in the last step
} Measured;

// ---------------------------------------------------------------- training, the same for every way

typedef struct { Comm *tp; Measured seen; } Trained;

static StepResult step(void *trained, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Trained *r = trained;
    for (size_t i = 0; i < m->n_layers; i++) r->seen.counts[i] = (Counts){0};
    comm_ledger_reset(r->tp);
    model_zero_gradients(m);
    double loss = model_forward_backward(m, b) * b->token_weight;
    model_fold_tied(m);
    // of the layers only: the norm's comes after
    r->seen.calls = r->tp->ledger[COMM_ALL_REDUCE].calls;
    r->seen.bytes = r->tp->ledger[COMM_ALL_REDUCE].bytes;
    double norm = model_grad_norm(m, r->tp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss, norm };
}

static Measured train(Comm *tp, Recompute how, const Training *t, Trajectory *c) {
    Trained r = { .tp = tp };
    Measured *seen = &r.seen;
    Model *m = model_describe(&t->model, model_layers(&t->model));
    tensor_parallel(m, tp);                        // chapter 03: cuts parameters, replaces layers
    counted_wrap_blocks(m, seen->counts);
    recompute(m, how);                             // wraps the blocks, whatever they are by now
    model_allocate(m);
    training_run(c, m, t, 1, 0, step, &r);         // the same tokens on every rank
    seen->timing = picture_timing(c->run);
    seen->computing = counted_computing();
    seen->parameters = memory_now(MEM_PARAMETERS);
    seen->gradients = memory_now(MEM_GRADIENTS);
    seen->optimizer = memory_now(MEM_OPTIMIZER);
    seen->peak = memory_peak(MEM_ACTIVATIONS);
    model_free(m);
    return r.seen;
}

// ---------------------------------------------------------------- what a step must cost

// One step of a rank: forward, backward with twice the products, and what backward computes again.
static Work step_work(const Training *t, size_t N, size_t rank, Recompute how) {
    CutSizes z = cut_sizes(&t->model, N, rank);
    Work again[] = { { 0 }, work_scores(&z, t->sequences), work_block(&z, t->sequences) };
    return work_sum(work_times(3, work_stage(&z, t->sequences)),
                    work_times((double)z.blocks, again[how]));
}

static void costs(Run *run, const Training *t, Recompute how, const Measured *got) {
    const ModelConfig *c = &t->model;
    WayName name = way_name[how];
    size_t N = run->world->size, rank = run->world->rank;
    CutSizes z = cut_sizes(c, N, rank);
    size_t L = c->layers, tokens = t->sequences * c->context, e = sizeof(real),
           mine = elements_stage(&z);
    way_cost(run, name, "weights", "weights", "bytes", (double)(mine * e), (double)got->parameters);
    way_cost(run, name, "gradients", "gradients, two uses of wte", "bytes",
             (double)(elements_gradients(&z) * e), (double)got->gradients);
    way_cost(run, name, "optimizer", "optimizer state: SGD has none", "bytes", 0,
             (double)got->optimizer);

    size_t all = kept_block(&z), scores = kept_scores(&z), head = kept_head(&z);
    size_t outputs = kept_between(&z);                     // of the embedding and the blocks
    // of what comes and goes: whichever backward is in
    size_t kept[] = { outputs + L * all + head,
                      outputs + L * (all - scores) + (scores > head ? scores : head),
                      outputs + (all > head ? all : head) };
    way_cost(run, name, "peak", "activation peak", "bytes", (double)(tokens * kept[how] * e),
             (double)got->peak);

    Traffic layers = traffic_tensor_parallel(&z, N, t->sequences, how == RECOMPUTE_FULL);
    way_cost(run, name, "calls", "all-reduces", "calls", layers.calls, (double)got->calls);
    way_cost(run, name, "sent", "all-reduce bytes", "bytes", layers.bytes, (double)got->bytes);

    double hardware = 0, model = 0;
    for (size_t k = 0; k < N; k++) hardware += step_work(t, N, k, how).flops;
    for (size_t k = 0; k < N; k++) model += step_work(t, N, k, RECOMPUTE_NONE).flops;
    way_cost(run, name, "flops", "hardware FLOPs, all ranks", "FLOPs", hardware, got->timing.flops);
    counted_utilisations(run, name.name, &got->timing, model);
    if (!clock_config()->simulated) return;                    // real time is not predicted
    double rings = layers.time + ring_time(ALL_REDUCE_PASSES, N, config_tensors(c), sizeof(double));
    way_cost(run, name, "computing", "this rank computes", "ps", step_work(t, N, rank, how).time,
             (double)got->computing);
    way_cost(run, name, "exposed", "exposed: every ring", "ps", (double)N * rings,
             (double)got->timing.exposed);
    // Rank 0 has most heads, columns and vocabulary entries: the others wait for it.
    way_cost(run, name, "step", "step", "ps", step_work(t, N, 0, how).time + rings,
             (double)got->timing.step);
}

#define EACH_WAY(id) { "none." id, "selective." id, "full." id }
static void show_results(Run *run, const Training *t, const Measured got[WAYS]) {
    static const char *const columns[] = { "none", "selective", "full", NULL };
    char mfu[3][32], hfu[3][32];
    for (size_t i = 0; i < 3; i++)
        counted_percent(mfu[i], hfu[i], &got[i].timing, got[RECOMPUTE_NONE].timing.flops);
    bool simulated = clock_config()->simulated;
    const Result rows[] = {
        { "activations, peak", "all items; less 2HT; inputs, 1 block", EACH_WAY("peak") },
        { "sent per rank", "4L + 5 all-reduces; same; 6L + 5", EACH_WAY("sent") },
        { "FLOPs, all ranks", "3F; 3F + q k^T; 3F + F of the blocks", EACH_WAY("flops") },
        { simulated ? "step" : NULL, "rank 0 computes, and every ring", EACH_WAY("step") },
        { "MFU", "3F / what the ranks could do", { mfu[0], mfu[1], mfu[2] } },
        {0}
    };
    results(run, columns, rows);
    CutSizes z = cut_sizes(&t->model, 1, 0);
    say(run,
        "Attention's probabilities: %.0f %% of what a block keeps. Computing them again: %.1f %% "
        "of its forward.",
        100 * (double)kept_scores(&z) / (double)(kept_block(&z) + z.C),
        100 * work_scores(&z, t->sequences).flops / work_block(&z, t->sequences).flops);
}

// ------------------------------------------------ the paper's list of items, and ours

// The items of kept_items() without the statistics, which the paper leaves out: bytes per token for
// each column of h (or, for attention, for each of a*s/h columns), elements and masks of so many
// bytes.
static size_t item_bytes(const ModelConfig *c, const KeptItem *item, size_t element, size_t mask) {
    size_t columns = item->kind == KEPT_SCORES ? c->heads * c->context : c->width;
    return (item->elements * element + item->masks * mask) / columns;
}
// sum[0] times s*b*h, sum[1] times s*b*h * a*s/h. Without dropout there are no masks, and its
// output is its input.
static void item_sums(const ModelConfig *c, bool dropout, size_t element, size_t mask,
                      double sum[2]) {
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
    say_detail(run,
               "bytes a token of one block      times   paper, 16 bit   paper, fp32   ours, fp32");
    for (size_t i = 0; i < KEPT_ITEMS; i++)
        if (item[i].kind != KEPT_STATISTICS)
            say_detail(run, "  %-31s %5s %14zu %13zu %12zu", item[i].name,
                       item[i].kind == KEPT_SCORES ? "a*s/h" : "h", item_bytes(c, &item[i], 2, 1),
                       item_bytes(c, &item[i], 4, 1), item_bytes(c, &item[i], 4, 0));
    // 16 bit and fp32, with dropout and without
    static const double published[4][2] = { { 34, 5 }, { 32, 2 }, { 66, 9 }, { 64, 4 } };
    static const char *const name[4] = { "16 bit, dropout: 34, 5", "16 bit, no dropout: 32, 2",
                                         "fp32, dropout: 66, 9", "fp32, no dropout: 64, 4" };
    double sum[2], h = (double)c->width, as = (double)(c->heads * c->context);
    for (size_t i = 0; i < 4; i++) {
        item_sums(c, i % 2 == 0, i < 2 ? 2 : 4, 1, sum);
        check_numbers(run, "paper: bytes, h and as", name[i], sum, published[i], 2, 0);
    }
    // The predictions above count the block's input with the layer below it, and 4 statistics per
    // token, which the paper leaves out.
    double listed = 64 * h + 8 * as, predicted = 4 * (double)(kept_block(&z) + c->width - 4);
    check_numbers(run, "ours: bytes, h and as", "fp32, dropout: 64, 8", &listed, &predicted, 1, 0);
}

// Figure 7 of the paper: activations in percent of tensor parallelism alone, t = 8, s = 2048.
static void figure7(Run *run) {
    static const struct { const char *name; double a, h, published[4];
    } model[4] = {
        { "22B", 64, 6144, { 66.8, 49.4, 16.1, 7.6 } },
        { "175B", 96, 12288, { 62.0, 56.5, 18.5, 8.7 } },
        { "530B", 128, 20480, { 58.3, 61.9, 20.2, 9.5 } },
        { "1T", 160, 25600, { 58.3, 61.9, 20.2, 9.5 } },
    };
    const double t = 8, s = 2048;
    say_detail(run,
               "percent of tensor parallelism alone: sequence parallel, selective, both, full");
    for (size_t i = 0; i < 4; i++) {
        double as_h = model[i].a * s / model[i].h, base = 10 + 24 / t + 5 * as_h / t;
        double percent[4] = { 100 * (34 + 5 * as_h) / t / base, 100 * (10 + 24 / t) / base,
                              100 * 34 / t / base, 100 * 2 / base };
        say_detail(run, "  %-5s %6.2f %6.2f %6.2f %6.2f", model[i].name, percent[0], percent[1],
                   percent[2], percent[3]);
        // printed to 0.1 percent
        check_numbers(run, "Korthikanti, figure 7", model[i].name, percent, model[i].published, 4,
                      1e-3);
    }
}

// Extra work. A block's forward is 24 b s h^2 + 4 b s^2 h floating-point operations; the second
// term is q k^T and its product with v, half each. The paper computes both again (4 b s^2 h); this
// tree keeps the heads' output and computes only q k^T again (2 b s^2 h).
static void overhead(Run *run) {
    static const struct {
        const char *name;
        double h;
    } model[2] = { { "175B", 12288 }, { "530B", 20480 } };
    // percent; the paper's text, which is of the forward pass
    static const double published[2] = { 2.7, 1.6 };
    const double s = 2048;
    double of_forward[2];
    say_detail(run, "extra operations, percent   paper: of forward   of both ways   ours: of "
                    "forward   of both ways");
    for (size_t i = 0; i < 2; i++) {
        double forward = 24 * s * model[i].h * model[i].h + 4 * s * s * model[i].h,
               extra = 4 * s * s * model[i].h;
        of_forward[i] = 100 * extra / forward;
        say_detail(run, "  %-5s %36.2f %14.2f %18.2f %14.2f", model[i].name, of_forward[i],
                   of_forward[i] / 3, of_forward[i] / 2, of_forward[i] / 6);
    }
    // printed to 0.1 percent
    check_numbers(run, "paper: 2.7, 1.6 % more", "175B and 530B, of the forward pass", of_forward,
                  published, 2, 0.05 / 2.7);
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, Recompute how, const Measured *seen, Trajectory *got,
                    Trajectory *none, Trajectory *unsplit) {
    static const char *const claim[WAYS] = { "one forward a block",
                                             "attention once more, nothing else",
                                             "one forward more a block" };
    bool counted = true;
    for (size_t i = 1; i <= tiny.layers; i++) {
        counted &= seen->counts[i].forwards == (how == RECOMPUTE_FULL ? 2 : 1);
        counted &= seen->counts[i].rebuilds == (how == RECOMPUTE_SELECTIVE ? 1 : 0);
    }
    check_true(run, way_name[how].name, claim[how], counted);
    char what[64];
    snprintf(what, sizeof what, "%s = none", way_name[how].name);
    // Tensor parallelism adds partial sums: a tolerance, as in chapter 03. Recomputation does the
    // same operations on the same elements: every bit.
    if (how == RECOMPUTE_NONE)
        training_compare(run, "none = unsplit", got, unsplit, LIMIT_ROUNDING);
    else training_compare(run, what, got, none, 0);
}

static void selective(Run *run) {
    Comm *tp = comm_split(run->world, 0, run->world->rank, "tp");
    Training t = { .model = tiny,
                   .data = data_synthetic(tiny.vocab, tiny.context, run->seed),
                   .steps = STEPS,
                   .sequences = SEQUENCES,
                   .micro_batches = 1,
                   .optimizer = sgd(0.1),
                   .recorded = true,
                   .watched = MEM_ACTIVATIONS };
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    config_require(&t.model);
    say(run,
        "%zu blocks, C = %zu, H = %zu, T = %zu, V = %zu; one micro-batch of %d sequences; %zu "
        "ranks",
        tiny.layers, tiny.width, tiny.heads, tiny.context, tiny.vocab, SEQUENCES, tp->size);
    Trajectory got[WAYS], unsplit = training_unsplit(run, &t, 1);
    Measured seen[WAYS];
    for (Recompute how = RECOMPUTE_NONE; how <= RECOMPUTE_FULL; how++) {
        got[how] = trajectory_new(run, &t);
        seen[how] = train(tp, how, &t, &got[how]);
        char title[64];
        snprintf(title, sizeof title, "recompute %s", way_name[how].name);
        bool drawn = !strcmp(option_text(run, "draw"), way_name[how].name);
        picture_show(run, title,
                     PICTURE_MEMORY | PICTURE_SAME_SCALE |
                         (drawn ? 0 : PICTURE_NO_FILES | PICTURE_DETAIL));
        if (option_flag(run, "verbose")) picture_summary(run, &seen[how].timing);
        costs(run, &t, how, &seen[how]);
        compare(run, how, &seen[how], &got[how], &got[RECOMPUTE_NONE], &unsplit);
    }
    show_results(run, &t, seen);
    item_list(run, &tiny);
    figure7(run);
    overhead(run);
    for (size_t w = 0; w < WAYS; w++) trajectory_free(&got[w]);
    trajectory_free(&unsplit);
    data_free(&t.data);
    comm_free(tp);
}

static const Option options[] = {
    { "dropout", "X", "0.1", "probability of dropping an element" },
    { "draw", "none|selective|full", "selective",
      "the way whose step is drawn, here and in files" },
    { 0 },
};
EXPERIMENT(selective, options);
