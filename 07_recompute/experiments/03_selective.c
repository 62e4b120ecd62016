// Compares three ways to keep activations under tensor parallelism, bit by bit: keep everything,
// recompute attention's probabilities, recompute blocks. published.c has the paper's figures.
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

// Measured in the last step.
typedef struct {
    Counts counts[8];                              // per layer
    size_t parameters, gradients, optimizer, peak; // bytes; peak: of activations
    size_t calls, bytes;                           // all-reduces of the layers
    Picoseconds computing;                         // of this rank
    Timing timing;                                 // of all ranks
} Measured;

// ---------------------------------------------------------------- training, the same for every way

typedef struct {
    Comm *tp;
    Measured seen;
} Trained;

static StepResult step(void *trained, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Trained *r = trained;
    for (size_t i = 0; i < m->n_layers; i++) r->seen.counts[i] = (Counts){ 0 };
    comm_ledger_reset(r->tp);
    model_zero_gradients(m);
    double loss = model_forward_backward(m, b) * b->token_weight;
    model_fold_tied(m);
    // The ledger is read before the norm's all-reduce, so that only those of the layers count.
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
    tensor_parallel(m, tp); // chapter 03: cuts parameters, replaces layers
    counted_wrap_blocks(m, seen->counts);
    recompute(m, how); // wraps the tensor-parallel blocks
    model_allocate(m);
    training_run(c, m, t, 1, 0, step, &r); // the same tokens on every rank
    seen->timing = picture_timing(c->run);
    seen->computing = counted_computing();
    seen->parameters = memory_now(MEM_PARAMETERS);
    seen->gradients = memory_now(MEM_GRADIENTS);
    seen->optimizer = memory_now(MEM_OPTIMIZER);
    seen->peak = memory_peak(MEM_ACTIVATIONS);
    model_free(m);
    return r.seen;
}

// ---------------------------------------------------------------- the costs of a step

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
    size_t L = c->layers, tokens = t->sequences * c->context, e = sizeof(real);
    size_t own = elements_stage(&z);
    way_cost(run, name, "weights", "weights", "bytes", (double)(own * e), (double)got->parameters);
    way_cost(run, name, "gradients", "gradients, two uses of wte", "bytes",
             (double)(elements_gradients(&z) * e), (double)got->gradients);
    way_cost(run, name, "optimizer", "optimizer state: SGD has none", "bytes", 0,
             (double)got->optimizer);

    size_t all = kept_block(&z), scores = kept_scores(&z), head = kept_head(&z);
    size_t outputs = kept_between(&z); // of the embedding and the blocks
    // The items of one block are rebuilt at a time. The head's items are gone before the first
    // block's are rebuilt, so the larger of the two counts.
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
    if (!clock_config()->simulated) return; // real time is not predicted
    double rings = layers.time + ring_time(ALL_REDUCE_PASSES, N, config_tensors(c), sizeof(double));
    way_cost(run, name, "computing", "this rank computes", "ps", step_work(t, N, rank, how).time,
             (double)got->computing);
    way_cost(run, name, "exposed", "exposed: every ring", "ps", (double)N * rings,
             (double)got->timing.exposed);
    // Rank 0 has the most heads, columns and vocabulary entries, so the other ranks wait for it.
    way_cost(run, name, "step", "step", "ps", step_work(t, N, 0, how).time + rings,
             (double)got->timing.step);
}

#define EACH_WAY(id) \
    { "none." id, "selective." id, "full." id }
static void show_results(Run *run, const Measured got[WAYS]) {
    static const char *const columns[] = { "none", "selective", "full", NULL };
    char mfu[3][32], hfu[3][32];
    for (size_t i = 0; i < 3; i++)
        counted_percent(mfu[i], hfu[i], &got[i].timing, got[RECOMPUTE_NONE].timing.flops);
    bool simulated = clock_config()->simulated;
    const Result rows[] = {
        { "activations, peak", "none: all; full: inputs and 1 block", EACH_WAY("peak") },
        { "sent per rank", "4L + 5 all-reduces; full 6L + 5", EACH_WAY("sent") },
        { "FLOPs, all ranks", "3F, and what is computed again", EACH_WAY("flops") },
        { simulated ? "step" : NULL, "rank 0's work, and all all-reduces", EACH_WAY("step") },
        { "MFU", "3F / the ranks' peak in a step", { mfu[0], mfu[1], mfu[2] } },
        { 0 }
    };
    results(run, columns, rows);
}

// The wall clock may measure a shorter step, so the sentences name the measured direction.
static double longer(const Measured *got, const Measured *none, const char **word) {
    double percent = 100 * ((double)got->timing.step / (double)none->timing.step - 1);
    *word = percent < 0 ? "shorter" : "longer";
    return percent < 0 ? -percent : percent;
}
static void conclude(Run *run, const Training *t, const Measured got[WAYS]) {
    CutSizes z = cut_sizes(&t->model, 1, 0);
    double share = 100 * (double)kept_scores(&z) / (double)(kept_block(&z) + z.C);
    double again = 100 * work_scores(&z, t->sequences).flops / work_block(&z, t->sequences).flops;
    char peak[WAYS][32];
    const char *id[WAYS] = { "none.peak", "selective.peak", "full.peak" }, *word[WAYS];
    for (size_t i = 0; i < WAYS; i++)
        page_value(peak[i], sizeof peak[i], cost_value(run, id[i]), "bytes");
    const Measured *none = &got[RECOMPUTE_NONE];
    double step = longer(&got[RECOMPUTE_SELECTIVE], none, &word[RECOMPUTE_SELECTIVE]);
    double full_step = longer(&got[RECOMPUTE_FULL], none, &word[RECOMPUTE_FULL]);
    say_answer(run,
               "The attention probabilities. They are %.0f %% of what a block keeps, and only "
               "%.1f %% of its forward's work. Without them a rank keeps %s instead of %s, "
               "and a step is %.1f %% %s.",
               share, again, peak[RECOMPUTE_SELECTIVE], peak[RECOMPUTE_NONE], step,
               word[RECOMPUTE_SELECTIVE]);
    say_cost(run,
             "q k^T once more per block; nothing is sent again. Full recomputation would "
             "need %s, with a step %.0f %% %s.",
             peak[RECOMPUTE_FULL], full_step, word[RECOMPUTE_FULL]);
    say_use_when(run, "sequences are long and the attention kernel stores its probabilities "
                      "(FlashAttention does not).");
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
    // Tensor parallelism adds partial sums in another order, so its limit is the one of rounding.
    // Recomputation repeats the same operations on the same elements: every bit is equal.
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
        "%zu tensor-parallel rank%s: each holds a part of the heads and of the weights, and "
        "computes all tokens.",
        tp->size, tp->size == 1 ? "" : "s");
    say(run, "L = %zu blocks, width C = %zu, H = %zu heads, T = %zu tokens; %d sequences.",
        tiny.layers, tiny.width, tiny.heads, tiny.context, SEQUENCES);
    say(run, "F: FLOPs of a forward. MFU: the 3F that a step needs, as a share of the ranks' "
             "peak.");
    say(run, "none: a block keeps all its items for backward; attention's probabilities are 2HT "
             "per token.");
    say(run, "selective: a block drops the probabilities and computes them again. full: it keeps "
             "only its input.");
    Trajectory got[WAYS], unsplit = training_unsplit(run, &t, 1);
    Measured seen[WAYS];
    for (Recompute how = RECOMPUTE_NONE; how <= RECOMPUTE_FULL; how++) {
        got[how] = trajectory_new(run, &t);
        seen[how] = train(tp, how, &t, &got[how]);
        char title[64];
        snprintf(title, sizeof title, "recompute %s", way_name[how].name);
        bool drawn = !strcmp(option_text(run, "draw"), way_name[how].name);
        picture_show(run, title,
                     PICTURE_MEMORY | PICTURE_SAME_SCALE | PICTURE_ALIKE_ONCE |
                         (drawn ? 0 : PICTURE_NO_FILES | PICTURE_DETAIL));
        if (option_flag(run, "verbose")) picture_summary(run, &seen[how].timing);
        costs(run, &t, how, &seen[how]);
        compare(run, how, &seen[how], &got[how], &got[RECOMPUTE_NONE], &unsplit);
    }
    show_results(run, seen);
    conclude(run, &t, seen);
    published_items(run, &tiny);
    published_figure7(run);
    published_overhead(run);
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
