// ranks: 4
// level: core
// question: Which few items of a block take most of its memory and least work to compute again?
//
// Selective recomputation (Korthikanti et al. 2022, section 5), together with tensor parallelism as in the paper. Of
// all that a block keeps, only the attention probabilities grow with the square of the sequence: T numbers for each
// head and token, before dropout and after. They are dropped after the forward pass and computed again from the kept q
// and k. Everything else stays.
//
//     none        backward finds everything
//     selective   backward computes softmax(q k^T) and its dropout again; the heads' output is still there
//     full        backward runs the whole forward again, and with it two more all-reduces a block (chapter 03)
//
// Rank i holds its heads, hidden columns and words. 9 heads on 4 ranks: 3, 2, 2, 2. Left out: attention kernels that
// never write the probabilities down (they make this unnecessary), sequence parallelism.
#include "03_tensor_parallel/tensor_parallel.h"
#include "07_recompute/counted.h"
#include "07_recompute/recompute.h"
#include "common/lesson/training.h"
#include "common/model/formulas.h"
#include "common/lesson/picture.h"
#include <stdio.h>
#include <string.h>

static const ModelConfig tiny = { .layers = 3, .width = 27, .heads = 9, .context = 24, .vocab = 53, .dropout = 0.1 };
enum { SEQUENCES = 3, STEPS = 3, WAYS = 3 };
static const char *const way_name[WAYS] = { "none", "selective", "full" };
static const Recompute way[WAYS] = { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL };

// ---------------------------------------------------------------- training

typedef struct {
    Comm *tp;
    Counts counts[8];                              // of every layer, in the last step
    size_t parameters, gradients, optimizer, peak; // bytes; peak: of activations, in the last step
    size_t calls, bytes;                           // all-reduces of its layers, in the last step
    Picoseconds computing;                         // this rank, in the last step
    Timing timing;                                 // all ranks, in the last step
} Measured;

static StepResult step(void *measured, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Measured *r = measured;
    for (size_t i = 0; i < m->n_layers; i++) r->counts[i] = (Counts){0};
    comm_ledger_reset(r->tp);
    model_zero_gradients(m);
    double loss = model_forward_backward(m, b) * b->token_weight;
    model_fold_tied(m);
    r->calls = r->tp->ledger[COMM_ALL_REDUCE].calls;       // of the step's layers only: the norm's own words come after
    r->bytes = r->tp->ledger[COMM_ALL_REDUCE].bytes;
    double norm = model_grad_norm(m, r->tp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss, norm };
}

static Measured train(Comm *tp, Recompute how, const Training *t, Trajectory *c) {
    Measured r = { .tp = tp };
    Model *m = model_describe(&t->model, model_layers(&t->model));
    tensor_parallel(m, tp);                        // chapter 03: cuts parameters, replaces layers
    count_blocks(m, r.counts);
    recompute(m, how);                             // wraps the blocks, whatever they are by now
    model_allocate(m);
    training_run(c, m, t, 1, 0, step, &r);         // the same tokens on every rank
    r.timing = picture_timing(c->run);
    r.computing = recorded_computing();
    r.parameters = memory_now(MEM_PARAMETERS);
    r.gradients = memory_now(MEM_GRADIENTS);
    r.optimizer = memory_now(MEM_OPTIMIZER);
    r.peak = memory_peak(MEM_ACTIVATIONS);
    model_free(m);
    return r;
}

// ---------------------------------------------------------------- predictions, from sizes alone

// One step of a rank: forward, backward with twice the products, and what backward computes again.
static Work step_work(const ModelConfig *c, size_t N, size_t rank, size_t w) {
    size_t heads = range_size(shard_range(c->heads, N, rank)), F = range_size(shard_range(4 * c->width, N, rank));
    size_t V = range_size(shard_range(c->vocab, N, rank));
    Work block = work_block(c, SEQUENCES, heads, F), head = work_head(c, SEQUENCES, V);
    Work again[WAYS] = { { 0 }, work_scores(c, SEQUENCES, heads), block };
    return work_sum(work_times(3, head), work_times((double)c->layers, work_sum(work_times(3, block), again[w])));
}

static void costs(Run *run, Comm *tp, const ModelConfig *c, size_t w, const Measured *t) {
    const char *name = way_name[w];
    size_t C = c->width, L = c->layers, N = tp->size, tokens = SEQUENCES * c->context, e = sizeof(real);
    size_t heads = range_size(shard_range(c->heads, N, tp->rank)), A = heads * (C / c->heads);
    size_t F = range_size(shard_range(4 * C, N, tp->rank)), V = range_size(shard_range(c->vocab, N, tp->rank));
    // qkv, projection, fc, out; the norms and the biases added after a sum are whole on every rank
    size_t block = (C + 1) * 3 * A + A * C + (C + 1) * F + F * C + 6 * C;
    size_t mine = V * C + c->context * C + L * block + 2 * C;
    cost_of_way(run, name, "weights", "bytes", (double)(mine * e), (double)t->parameters);
    cost_of_way(run, name, "gradients, two uses of wte", "bytes", (double)((mine + V * C) * e), (double)t->gradients);
    cost_of_way(run, name, "optimizer state: SGD has none", "bytes", 0, (double)t->optimizer);

    size_t all = kept_block(c, heads, F), scores = kept_scores(c, heads), head = kept_head(c, V);
    size_t outputs = (L + 1) * C;                          // of the embedding and the blocks
    // of what comes and goes: whichever backward is in
    size_t numbers[WAYS] = { outputs + L * all + head, outputs + L * (all - scores) + (scores > head ? scores : head),
                             outputs + (all > head ? all : head) };
    cost_of_way(run, name, "activation peak", "bytes", (double)(tokens * numbers[w] * e), (double)t->peak);

    // of [tokens, C]: blocks, embedding, head; of [tokens, 1]: the loss
    size_t wide = L * (way[w] == RECOMPUTE_FULL ? 6 : 4) + 2, narrow = 3, passes = ALL_REDUCE_PASSES;
    cost_of_way(run, name, "all-reduces", "calls", (double)(wide + narrow), (double)t->calls);
    cost_of_way(run, name, "all-reduce bytes", "bytes", (double)wide * ring_bytes(passes, N, tokens * C, e) +
                (double)narrow * ring_bytes(passes, N, tokens, e), (double)t->bytes);

    double hardware = 0, model = 0;
    for (size_t k = 0; k < N; k++) hardware += step_work(c, N, k, w).flops;
    for (size_t k = 0; k < N; k++) model += step_work(c, N, k, 0).flops;
    cost_of_way(run, name, "hardware FLOPs, all ranks", "FLOPs", hardware, t->timing.flops);
    utilisations(run, name, &t->timing, model);
    if (!clock_config()->simulated) return;                    // real time is as it is
    double norm = ring_time(passes, N, config_tensors(c), sizeof(double));
    double rings = (double)wide * ring_time(passes, N, tokens * C, e) +
                   (double)narrow * ring_time(passes, N, tokens, e) + norm;
    cost_of_way(run, name, "this rank computes", "ps", step_work(c, N, tp->rank, w).time, (double)t->computing);
    cost_of_way(run, name, "exposed: every ring", "ps", (double)N * rings, (double)t->timing.exposed);
    // Rank 0 has most heads, columns and words: the others wait for it.
    cost_of_way(run, name, "step", "ps", step_work(c, N, 0, w).time + rings, (double)t->timing.step);
}

// ---------------------------------------------------------------- the paper's list of items, and ours

// Values a token and column of h (or, for attention, of a*s/h): what the paper stores, its one-byte masks, what this
// tree stores.
typedef struct { const char *item; bool attention; int values, masks, ours; } Item;
static const Item items[] = {
    { "input of norm 1 (the block's x)", false, 1, 0, 1 }, { "input of q, k, v", false, 1, 0, 1 },
    { "q and k", false, 2, 0, 2 },                         { "v", false, 1, 0, 1 },
    { "softmax output", true, 1, 0, 1 },                   { "attention dropout mask", true, 0, 1, 0 },
    { "attention dropout output", true, 1, 0, 1 },         { "input of the projection", false, 1, 0, 1 },
    { "dropout mask 1", false, 0, 1, 0 },                  { "input of norm 2", false, 1, 0, 1 },
    { "input of fc", false, 1, 0, 1 },                     { "input of GELU", false, 4, 0, 4 },
    { "input of the MLP's projection", false, 4, 0, 4 },   { "dropout mask 2", false, 0, 1, 0 },
};
// Bytes: sum[0] times s*b*h, sum[1] times s*b*h * a*s/h. Without dropout there are no masks, and its output is its
// input.
static void item_sums(double e, bool dropout, bool ours, double sum[2]) {
    sum[0] = sum[1] = 0;
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        const Item *t = &items[i];
        double bytes = ours ? t->ours * e : t->values * e + t->masks;
        if (!dropout && t->attention && i > 4) bytes = 0;
        if (!dropout && !t->attention && t->masks) bytes = 0;
        sum[t->attention] += bytes;
    }
}
static void item_list(Run *run) {
    say(run, "bytes a token of one block      times   paper, 16 bit   paper, fp32   ours, fp32");
    for (size_t i = 0; i < sizeof items / sizeof *items; i++)
        say(run, "  %-31s %5s %14d %13d %12d", items[i].item, items[i].attention ? "a*s/h" : "h",
            items[i].values * 2 + items[i].masks, items[i].values * 4 + items[i].masks, items[i].ours * 4);
    // 16 bit and fp32, with dropout and without
    static const double published[4][2] = { { 34, 5 }, { 32, 2 }, { 66, 9 }, { 64, 4 } };
    static const char *const name[4] = { "16 bit, dropout: 34, 5", "16 bit, no dropout: 32, 2", "fp32, dropout: 66, 9",
                                         "fp32, no dropout: 64, 4" };
    double sum[2], h = (double)tiny.width, as = (double)(tiny.heads * tiny.context);
    for (size_t i = 0; i < 4; i++) {
        item_sums(i < 2 ? 2 : 4, i % 2 == 0, false, sum);
        check_numbers(run, "sum of the paper's items", name[i], sum, published[i], 2, 0);
    }
    item_sums(4, true, true, sum);
    // The predictions above count the block's input with the layer below it, and 4 statistics a token, which the paper
    // leaves out.
    size_t kept = kept_block(&tiny, tiny.heads, 4 * tiny.width);
    double listed = sum[0] * h + sum[1] * as, predicted = 4 * (double)(kept + tiny.width - 4);
    check_numbers(run, "sum of our items = what costs predict", "fp32, dropout: 64, 8", &listed, &predicted, 1, 0);
}

// Figure 7 of the paper: activations in percent of tensor parallelism alone, t = 8, s = 2048.
static void figure7(Run *run) {
    static const struct { const char *name; double a, h, published[4]; } model[4] = {
        { "22B", 64, 6144, { 66.8, 49.4, 16.1, 7.6 } },     { "175B", 96, 12288, { 62.0, 56.5, 18.5, 8.7 } },
        { "530B", 128, 20480, { 58.3, 61.9, 20.2, 9.5 } },  { "1T", 160, 25600, { 58.3, 61.9, 20.2, 9.5 } },
    };
    const double t = 8, s = 2048;
    say(run, "percent of tensor parallelism alone: sequence parallel, selective, both, full");
    for (size_t i = 0; i < 4; i++) {
        double as_h = model[i].a * s / model[i].h, base = 10 + 24 / t + 5 * as_h / t;
        double percent[4] = { 100 * (34 + 5 * as_h) / t / base, 100 * (10 + 24 / t) / base, 100 * 34 / t / base,
                              100 * 2 / base };
        say(run, "  %-5s %6.2f %6.2f %6.2f %6.2f", model[i].name, percent[0], percent[1], percent[2], percent[3]);
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
    say(run, "extra operations, percent   paper: of forward   of both ways   ours: of forward   of both ways");
    for (size_t i = 0; i < 2; i++) {
        double forward = 24 * s * model[i].h * model[i].h + 4 * s * s * model[i].h, extra = 4 * s * s * model[i].h;
        of_forward[i] = 100 * extra / forward;
        say(run, "  %-5s %36.2f %14.2f %18.2f %14.2f", model[i].name, of_forward[i], of_forward[i] / 3,
            of_forward[i] / 2, of_forward[i] / 6);
    }
    // printed to 0.1 percent
    check_numbers(run, "selective, extra operations", "175B and 530B, of the forward pass", of_forward, published, 2,
                  0.05 / 2.7);
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, size_t w, const Measured *seen, Trajectory *got, Trajectory *none, Trajectory *unsplit) {
    static const char *const claim[WAYS] = { "one forward a block", "attention once more, nothing else",
                                             "one forward more a block" };
    bool counted = true;
    for (size_t i = 1; i <= tiny.layers; i++) {
        counted &= seen->counts[i].forwards == (way[w] == RECOMPUTE_FULL ? 2 : 1);
        counted &= seen->counts[i].rebuilds == (way[w] == RECOMPUTE_SELECTIVE ? 1 : 0);
    }
    check_true(run, way_name[w], claim[w], counted);
    char what[64];
    snprintf(what, sizeof what, "%s = none", way_name[w]);
    // Tensor parallelism adds partial sums: a tolerance, as in chapter 03. Recomputation does the same operations on
    // the same numbers: every bit.
    if (w == 0) training_compare(run, "none = unsplit", got, unsplit, LIMIT_ROUNDING);
    else training_compare(run, what, got, none, 0);
}

static void selective(Run *run) {
    Comm *tp = comm_split(run->world, 0, run->world->rank, "tp");
    Training t = { .model = tiny, .data = data_synthetic(tiny.vocab, tiny.context, run->seed), .steps = STEPS,
                   .sequences = SEQUENCES, .micro_batches = 1, .optimizer = sgd(0.1),
                   .recorded = true, .watched = MEM_ACTIVATIONS };
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    config_require(&t.model);
    Trajectory got[WAYS], unsplit = training_unsplit(run, &t, 1);
    Measured seen[WAYS];
    for (size_t w = 0; w < WAYS; w++) {
        got[w] = trajectory_new(run, &t);
        seen[w] = train(tp, way[w], &t, &got[w]);
        char title[64];
        snprintf(title, sizeof title, "recompute %s", way_name[w]);
        bool in_file = !strcmp(option_text(run, "draw"), way_name[w]);
        picture_show(run, title, PICTURE_MEMORY | PICTURE_SAME_SCALE | (in_file ? 0 : PICTURE_NO_FILES));
        picture_summary(run, &seen[w].timing);
        costs(run, tp, &t.model, w, &seen[w]);
        compare(run, w, &seen[w], &got[w], &got[0], &unsplit);
    }
    item_list(run);
    figure7(run);
    overhead(run);
    for (size_t w = 0; w < WAYS; w++) trajectory_free(&got[w]);
    trajectory_free(&unsplit);
    data_free(&t.data);
    comm_free(tp);
}

static const Option options[] = {
    { "dropout", "X", "0.1", "probability of dropping an element" },
    { "link", "NAME", "nvlink", NULL },
    { "draw", "none|selective|full", "selective", "the way whose step --svg and --trace write" },
    {0},
};
LESSON(selective, options);
