// Compares three ways to keep activations in a GPipe pipeline with the unsplit model, bit by bit:
// every item; the input of every block; the input of the stage. One rank is a pipeline of one
// stage.
#include "07_recompute/experiments/experiments.h"
#include <stdio.h>
#include <string.h>

static const ModelConfig tiny = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1
};
static const WayName way_name[FULL_WAYS] = {
    { "keep", "keep everything" },
    { "blocks", "recompute blocks" },
    { "stages", "recompute stages" },
};

// Measured in the last step.
typedef struct {
    Counts counts[16];                             // per layer of this stage
    size_t parameters, gradients, optimizer, peak; // bytes; peak: of activations
    size_t sends, send_bytes;                      // messages to neighbours
    size_t other_bytes;                            // tied sum, loss and norm
    Picoseconds computing;                         // of this rank
    Timing timing;                                 // of all ranks
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

// ---------------------------------------------------------------- the costs of a step

static void costs(Run *run, const Training *t, Way way, const Measured *got) {
    const ModelConfig *c = &t->model;
    WayName name = way_name[way];
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches;
    bool first = i == 0, last = i + 1 == p;
    CutSizes z = cut_stage(cut_sizes(c, 1, 0), p, i);
    size_t wte = elements_wte(&z), own = elements_stage(&z), e = sizeof(real);
    way_cost(run, name, "weights", "weights of this stage", "bytes", (double)(own * e),
             (double)got->parameters);
    way_cost(run, name, "gradients", "gradients, two uses of wte", "bytes",
             (double)(elements_gradients(&z) * e), (double)got->gradients);
    way_cost(run, name, "optimizer", "optimizer state: SGD has none", "bytes", 0,
             (double)got->optimizer);
    way_cost(run, name, "peak", "activation peak", "bytes", (double)(way_kept(t, p, i, way) * e),
             (double)got->peak);
    Counts sum = counted_sum(got->counts, sizeof got->counts / sizeof *got->counts);
    size_t times = way == KEEP_EVERYTHING ? 1 : 2;
    way_cost(run, name, "forwards", "forwards of this stage's blocks", "calls",
             (double)(z.blocks * m * times), (double)(sum.forwards + sum.rebuilds));
    // A second forward sends nothing, because the stage has kept its input.
    size_t neighbours = (size_t)!first + (size_t)!last;
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
    for (size_t k = 0; k < p; k++) hardware += way_work(t, p, k, way).flops;
    for (size_t k = 0; k < p; k++) model += way_work(t, p, k, KEEP_EVERYTHING).flops;
    way_cost(run, name, "flops", "hardware FLOPs, all stages", "FLOPs", hardware,
             got->timing.flops);
    counted_utilisations(run, name.name, &got->timing, model);
    if (!clock_config()->simulated) return; // real time is not predicted
    way_cost(run, name, "computing", "this stage computes", "ps", way_work(t, p, i, way).time,
             (double)got->computing);
    way_cost_played(run, name, "step", "step", "ps", way_step_time(t, p, way),
                    (double)got->timing.step);
}

// ---------------------------------------------------------------- the page

#define EACH_WAY(id) \
    { "keep." id, "blocks." id, "stages." id }
static void show_results(Run *run, const Measured got[FULL_WAYS]) {
    static const char *const columns[] = { "keep all", "recompute blocks", "recompute stages",
                                           NULL };
    char mfu[FULL_WAYS][32], hfu[FULL_WAYS][32];
    for (Way w = 0; w < FULL_WAYS; w++)
        counted_percent(mfu[w], hfu[w], &got[w].timing, got[KEEP_EVERYTHING].timing.flops);
    bool simulated = clock_config()->simulated;
    const Result rows[] = {
        { "activations, peak", "inputs, one block or stage", EACH_WAY("peak") },
        { "forwards of blocks", "m per block; again: 2m", EACH_WAY("forwards") },
        { "sent to neighbours", "nothing is sent again", EACH_WAY("sent") },
        { "FLOPs, all stages", "3F, and what is recomputed", EACH_WAY("flops") },
        { simulated ? "step" : NULL, "simulated", EACH_WAY("step") },
        { "MFU", "3F / peak FLOPs of a step", { mfu[0], mfu[1], mfu[2] } },
        { "HFU", "all FLOPs / the same", { hfu[0], hfu[1], hfu[2] } },
        { 0 }
    };
    results(run, columns, rows);
}

// The wall clock may measure a shorter step, so the sentence names the measured direction.
static void conclude(Run *run, const Measured got[FULL_WAYS]) {
    const Timing *keep = &got[KEEP_EVERYTHING].timing, *blocks = &got[RECOMPUTE_BLOCKS].timing;
    double before = cost_value(run, "keep.peak"), after = cost_value(run, "blocks.peak");
    double step = 100 * ((double)blocks->step / (double)keep->step - 1);
    char peak[FULL_WAYS][32];
    page_value(peak[KEEP_EVERYTHING], sizeof peak[0], before, "bytes");
    page_value(peak[RECOMPUTE_BLOCKS], sizeof peak[0], after, "bytes");
    page_value(peak[RECOMPUTE_STAGES], sizeof peak[0], cost_value(run, "stages.peak"), "bytes");
    say_answer(run,
               "With only block inputs kept, activations take %s per rank instead of %s. The "
               "second forward makes a step %.1f %% %s.",
               peak[RECOMPUTE_BLOCKS], peak[KEEP_EVERYTHING], step < 0 ? -step : step,
               step < 0 ? "shorter" : "longer");
    say_cost(run,
             "%.1f %% more FLOPs, no more bytes sent. Keeping only stage inputs would need "
             "%s.",
             100 * (blocks->flops / keep->flops - 1), peak[RECOMPUTE_STAGES]);
    say_use_when(run, "activations do not fit, and selective recomputation (07.03) does not save "
                      "enough.");
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, const Training *t, Way way, const Measured *seen, Trajectory *got,
                    Trajectory *want) {
    char what[64];
    snprintf(what, sizeof what, "%s = unsplit", way_name[way].name);
    // The same layers run in the same order, with the same inputs and the same dropout: every bit
    // is equal.
    training_compare(run, what, got, want, 0);
    size_t p = run->world->size, rank = run->world->rank;
    size_t blocks = range_size(shard_range(t->model.layers, p, rank)), first = rank == 0;
    size_t times = way == KEEP_EVERYTHING ? 1 : 2;
    bool each = true;
    for (size_t i = 0; i < blocks; i++)
        each &= seen->counts[first + i].forwards == t->micro_batches * times;
    const char *claim =
        times == 1 ? "each block: one forward" : "each block: exactly one forward more";
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
            "--batch %zu leaves some of the %zu micro-batches empty: choose at least %zu",
            t.sequences, t.micro_batches, t.micro_batches);
    t.data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    config_require(&t.model);

    say(run,
        "%zu blocks on %zu stages; width C = %zu, H = %zu heads, T = %zu tokens; %zu sequences in "
        "m = %zu micro-batches.",
        tiny.layers, pp->size, tiny.width, tiny.heads, tiny.context, t.sequences, t.micro_batches);
    say(run, "keep all: all items that backward needs stay. recompute blocks, stages: only their "
             "inputs stay,");
    say(run, "and backward begins with a second forward. F: FLOPs of one forward; a step needs "
             "3F.");
    say(run, "MFU: 3F as a share of what the devices could compute in a step. HFU: all FLOPs "
             "count.");
    // One device keeps everything and takes the same micro-batches, one by one.
    Trajectory unsplit = training_unsplit(run, &t, 1);
    Measured seen[FULL_WAYS];
    for (Way way = 0; way < FULL_WAYS; way++) {
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
    conclude(run, seen);
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
    { 0 },
};
EXPERIMENT(full, options);
