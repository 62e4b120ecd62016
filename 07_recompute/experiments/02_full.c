// Three ways to keep activations in a GPipe pipeline, on the same ranks: every item; the input of
// every block; the input of the stage. All give the bits of the unsplit model. One rank is a
// pipeline of one stage: the plain case.
#include "07_recompute/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ModelConfig tiny = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1
};
typedef enum { KEEP_EVERYTHING, RECOMPUTE_BLOCKS, RECOMPUTE_STAGES, WAYS } Way;
static const WayName way_name[WAYS] = {
    { "keep", "keep everything" },
    { "blocks", "recompute blocks" },
    { "stages", "recompute stages" },
};

typedef struct {
    Counts counts[16];                             // of my layers, in the last step
    size_t parameters, gradients, optimizer, peak; // bytes; peak: of activations, in the last step
    // messages to neighbours; tied sum, loss and norm; in the last step
    size_t sends, send_bytes, other_bytes;
    Picoseconds computing;                         // this rank, in the last step
    Timing timing;                                 // all ranks, in the last step
} Measured;

// ---------------------------------------------------------------- training

static Measured train(Comm *pp, Way way, const Training *t, Trajectory *c) {
    RecomputeStage stage = { .pp = pp, .tied = pipeline_tied_group(pp) };
    Model *m =
        model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, pp->size, pp->rank));
    counted_wrap_blocks(m, stage.counts);
    if (way == RECOMPUTE_BLOCKS) recompute_blocks(m);
    if (way == RECOMPUTE_STAGES) recompute_wrap_range(m, 0, m->n_layers);
    model_allocate(m);
    training_run(c, m, t, 1, 0, recompute_stage_step, &stage);
    Measured seen = {
        .parameters = memory_now(MEM_PARAMETERS),
        .gradients = memory_now(MEM_GRADIENTS),
        .optimizer = memory_now(MEM_OPTIMIZER),
        .peak = memory_peak(MEM_ACTIVATIONS),
        .sends = pp->ledger[COMM_SEND].calls,
        .send_bytes = pp->ledger[COMM_SEND].bytes,
        .other_bytes =
            pp->ledger[COMM_ALL_REDUCE].bytes + (stage.tied ? comm_bytes_sent(stage.tied) : 0),
        .computing = counted_computing(),
        .timing = picture_timing(c->run),
    };
    memcpy(seen.counts, stage.counts, sizeof seen.counts);
    model_free(m);
    comm_free(stage.tied);
    return seen;
}

// ---------------------------------------------------------------- what a step must cost

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

// Elements that stage i keeps, at most: of all m micro-batches, and of the first one, while
// backward is in it.
static size_t kept(const Training *t, size_t p, size_t i, Way way) {
    CutSizes z = cut_stage(cut_sizes(&t->model, 1, 0), p, i);
    size_t block = kept_block(&z), head = z.last ? kept_head(&z) : 0, stage = kept_stage(&z);
    size_t input = z.first ? 0 : z.C;              // tokens are no activation
    size_t all = t->sequences * z.T, one = ceil_div(t->sequences, t->micro_batches) * z.T;
    switch (way) {
    case RECOMPUTE_BLOCKS:
        return all * kept_between(&z) + (all - one) * head + one * most(block, head);
    case RECOMPUTE_STAGES: return all * input + one * (stage - input);
    default:               return all * stage;
    }
}

// What stage i computes for B sequences. Backward is two products for each of forward's, and what
// it computes again.
static Work forward_work(const ModelConfig *c, size_t p, size_t i, size_t B, bool with_head) {
    CutSizes z = cut_stage(cut_sizes(c, 1, 0), p, i);
    z.last = z.last && with_head;
    return work_stage(&z, B);
}
static Work backward_work(const ModelConfig *c, size_t p, size_t i, size_t B, Way way) {
    Work twice = work_times(2, forward_work(c, p, i, B, true));
    return way == KEEP_EVERYTHING
               ? twice
               : work_sum(twice, forward_work(c, p, i, B, way == RECOMPUTE_STAGES));
}
static size_t sequences(const Training *t, size_t k) {
    return range_size(shard_range(t->sequences, t->micro_batches, k));
}
static Work stage_work(const Training *t, size_t p, size_t i, Way way) {
    Work sum = {0};
    for (size_t k = 0; k < t->micro_batches; k++)
        sum = work_sum(sum, work_sum(forward_work(&t->model, p, i, sequences(t, k), true),
                                     backward_work(&t->model, p, i, sequences(t, k), way)));
    return sum;
}

// One way through the pipeline: stage i starts micro-batch k when it is done with the one before
// and k has arrived. A message waits for the one before it, and its sender does not.
static void pass(const Training *t, size_t p, size_t i, Way way, bool forward, double *end,
                 double *arrives) {
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
// A step: forwards down the stages, backwards up, the sum of the tied gradients, the sums of loss
// and squares.
static double step_time(const Training *t, size_t p, Way way) {
    const ModelConfig *c = &t->model;
    double *end = host_alloc(p * sizeof *end),
           *arrives = host_alloc(t->micro_batches * sizeof *arrives), all = 0;
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

static void costs(Run *run, const Training *t, Way way, const Measured *got) {
    const ModelConfig *c = &t->model;
    WayName name = way_name[way];
    size_t p = run->world->size, i = run->world->rank, first = i == 0, last = i + 1 == p,
           m = t->micro_batches;
    CutSizes z = cut_stage(cut_sizes(c, 1, 0), p, i);
    size_t wte = elements_wte(&z), mine = elements_stage(&z), e = sizeof(real);
    way_cost(run, name, "weights", "weights of my stage", "bytes", (double)(mine * e),
             (double)got->parameters);
    way_cost(run, name, "gradients", "gradients, two uses of wte", "bytes",
             (double)(elements_gradients(&z) * e), (double)got->gradients);
    way_cost(run, name, "optimizer", "optimizer state: SGD has none", "bytes", 0,
             (double)got->optimizer);
    way_cost(run, name, "peak", "activation peak", "bytes", (double)(kept(t, p, i, way) * e),
             (double)got->peak);
    Counts sum = counted_sum(got->counts, sizeof got->counts / sizeof *got->counts);
    size_t times = way == KEEP_EVERYTHING ? 1 : 2;
    way_cost(run, name, "forwards", "forwards of my blocks", "calls",
             (double)(z.blocks * m * times), (double)(sum.forwards + sum.rebuilds));
    // a second forward communicates with nobody
    size_t neighbours = !first + !last;
    way_cost(run, name, "sends", "sent to neighbours", "calls", (double)(neighbours * m),
             (double)got->sends);
    way_cost(run, name, "sent", "sent to neighbours", "bytes",
             (double)(neighbours * message_elements(&z, t->sequences) * e),
             (double)got->send_bytes);
    double tied = p > 1 && (first || last) ? ring_bytes(ALL_REDUCE_PASSES, 2, wte, e) : 0;
    double scalars = ring_bytes(ALL_REDUCE_PASSES, p, 1, sizeof(double)) +
                     ring_bytes(ALL_REDUCE_PASSES, p, config_tensors(c), sizeof(double));
    way_cost(run, name, "scalars", "tied sum, loss and norm", "bytes", tied + scalars,
             (double)got->other_bytes);

    double hardware = 0, model = 0;
    for (size_t k = 0; k < p; k++) hardware += stage_work(t, p, k, way).flops;
    for (size_t k = 0; k < p; k++) model += stage_work(t, p, k, KEEP_EVERYTHING).flops;
    way_cost(run, name, "flops", "hardware FLOPs, all stages", "FLOPs", hardware,
             got->timing.flops);
    counted_utilisations(run, name.name, &got->timing, model);
    if (!clock_config()->simulated) return;            // real time is not predicted
    way_cost(run, name, "computing", "my stage computes", "ps", stage_work(t, p, i, way).time,
             (double)got->computing);
    way_cost_played(run, name, "step", "step", "ps", step_time(t, p, way),
                    (double)got->timing.step);
}

#define EACH_WAY(id) { "keep." id, "blocks." id, "stages." id }
static void show_results(Run *run, const Measured got[WAYS]) {
    static const char *const columns[] = { "keep all", "blocks", "stages", NULL };
    char mfu[WAYS][32], hfu[WAYS][32];
    for (Way w = 0; w < WAYS; w++)
        counted_percent(mfu[w], hfu[w], &got[w].timing, got[KEEP_EVERYTHING].timing.flops);
    bool simulated = clock_config()->simulated;
    const Result rows[] = {
        { "activations, peak", "all; inputs and one block/stage", EACH_WAY("peak") },
        { "forwards of blocks", "m per block; 2m", EACH_WAY("forwards") },
        { "sent to neighbours", "nothing is sent again", EACH_WAY("sent") },
        { "FLOPs, all stages", "3F; 3F + F of the blocks; 4F", EACH_WAY("flops") },
        { simulated ? "step" : NULL, "GPipe's order", EACH_WAY("step") },
        { "MFU", "3F / (p x rate x step)", { mfu[0], mfu[1], mfu[2] } },
        { "HFU", "all FLOPs / the same", { hfu[0], hfu[1], hfu[2] } },
        {0}
    };
    results(run, columns, rows);
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, const Training *t, Way way, const Measured *seen, Trajectory *got,
                    Trajectory *want) {
    char what[64];
    snprintf(what, sizeof what, "%s = unsplit", way_name[way].name);
    // The same layers with the same inputs and the same dropout, in the same order: equal in every
    // bit.
    training_compare(run, what, got, want, 0);
    size_t p = run->world->size, rank = run->world->rank;
    size_t blocks = range_size(shard_range(t->model.layers, p, rank)), first = rank == 0;
    size_t times = way == KEEP_EVERYTHING ? 1 : 2;
    bool each = true;
    for (size_t i = 0; i < blocks; i++)
        each &= seen->counts[first + i].forwards == t->micro_batches * times;
    const char *claim = times == 1 ? "each block: one forward"
                                   : "each block: exactly one forward more";
    check_true(run, way_name[way].name, claim, each);
}

static void full(Run *run) {
    require_one_link(run);
    Comm *pp = comm_split(run->world, 0, run->world->rank, "pp");
    Training t = { .model = tiny,
                   .steps = option_size(run, "steps"),
                   .sequences = option_size(run, "batch"),
                   .micro_batches = option_size(run, "micro-batches"),
                   .optimizer = sgd(0.1),
                   .recorded = true,
                   .watched = MEM_ACTIVATIONS };
    REQUIRE(pp->size <= tiny.layers,
            "%zu stages need as many blocks; the model has %zu: start at most %zu ranks", pp->size,
            tiny.layers, tiny.layers);
    REQUIRE(t.steps > 0 && t.micro_batches > 0, "--steps and --micro-batches must be at least 1");
    REQUIRE(t.sequences >= t.micro_batches,
            "--batch %zu leaves some of the %zu micro-batches empty: choose at least "
            "%zu",
            t.sequences, t.micro_batches, t.micro_batches);
    t.data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    config_require(&t.model);

    say(run,
        "%zu blocks on %zu stages, C = %zu, H = %zu, T = %zu, V = %zu; %zu sequences in %zu "
        "micro-batches",
        tiny.layers, pp->size, tiny.width, tiny.heads, tiny.context, tiny.vocab, t.sequences,
        t.micro_batches);
    // One device that keeps everything, and takes the same micro-batches, one by one.
    Trajectory unsplit = training_unsplit(run, &t, 1);
    Measured seen[WAYS];
    for (Way way = 0; way < WAYS; way++) {
        Trajectory got = trajectory_new(run, &t);
        seen[way] = train(pp, way, &t, &got);
        bool drawn = !strcmp(option_text(run, "draw"), way_name[way].id);
        picture_show(run, way_name[way].name,
                     PICTURE_MEMORY | PICTURE_SAME_SCALE |
                         (drawn ? 0 : PICTURE_NO_FILES | PICTURE_DETAIL));
        if (option_flag(run, "verbose")) picture_summary(run, &seen[way].timing);
        costs(run, &t, way, &seen[way]);
        compare(run, &t, way, &seen[way], &got, &unsplit);
        trajectory_free(&got);
    }
    show_results(run, seen);
    say(run, "One step of one way is drawn; of another: --draw keep, blocks or stages.");
    say_detail(run, "%zu steps, loss %.4f -> %.4f", t.steps, unsplit.loss[0],
               unsplit.loss[t.steps - 1]);
    trajectory_free(&unsplit);
    data_free(&t.data);
    comm_free(pp);
}

static const Option options[] = {
    { "batch", "N", "7", "sequences in a step" },
    { "micro-batches", "N", "3", "micro-batches of a step" },
    { "steps", "N", "3", "training steps" },
    { "dropout", "X", "0.1", "probability of dropping an element" },
    { "draw", "keep|blocks|stages", "blocks", "the way whose step is drawn, here and in files" },
    {0},
};
EXPERIMENT(full, options);
