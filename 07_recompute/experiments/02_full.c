// Compares three ways to keep activations in a GPipe pipeline with the unsplit model, bit by bit:
// keep every item, the input of every block, or the input of the stage. One rank is a pipeline of
// one stage.
#include "07_recompute/experiments/experiments.h"
#include <string.h>

static const ModelConfig tiny = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1
};
typedef enum { KEEP_EVERYTHING, RECOMPUTE_BLOCKS, RECOMPUTE_STAGES, WAYS } Way;
static const char *const way_id[WAYS] = { "keep", "blocks", "stages" };
static const char *const way_name[WAYS] = { "keep everything", "recompute blocks",
                                            "recompute stages" };

static RecomputeSeen train(Run *run, const Training *t, Way way, Trajectory *got) {
    Range layers = pipeline_stage_layers(&t->model, NULL, run->world->size, run->world->rank);
    Model *m = model_describe(&t->model, layers);
    if (way == RECOMPUTE_BLOCKS) recompute_blocks(m);
    if (way == RECOMPUTE_STAGES) recompute_wrap_range(m, 0, m->n_layers);
    return recompute_train(run, t, m, got);
}

// ---------------------------------------------------------------- the predicted costs of a step

// Returns the peak of the kept bytes. Between forward and backward a stage keeps items of all m
// micro-batches. If these are not all items, the peak is in the backward of micro-batch 0, the
// largest: then all items of one block, or of the stage, are in memory again.
static size_t kept(const Training *t, const CutSizes *z, Way way) {
    size_t head = z->last ? kept_head_bytes(z) : 0, stage = kept_stage_bytes(z);
    // The first stage's input is tokens, which are no activations.
    size_t input = z->first ? 0 : z->C * weight_bytes(&t->model);
    size_t all = t->sequences * z->T, one = stage_tokens(t, 0);
    if (way == KEEP_EVERYTHING) return all * stage;
    if (way == RECOMPUTE_STAGES) return all * input + one * (stage - input);
    return all * kept_between_bytes(z) + (all - one) * head +
           one * larger(kept_block_bytes(z), head);
}

// Returns the work of a stage in a step. Backward has two products for each product of forward.
// Backward also repeats the dropped part of forward: the blocks, or the whole stage.
static Work step_work(const Training *t, const CutSizes *z, Way way) {
    CutSizes dropped = *z;
    dropped.last = z->last && way == RECOMPUTE_STAGES;
    Work sum = { 0 };
    for (size_t k = 0; k < t->micro_batches; k++) {
        size_t B = part_size(t->sequences, t->micro_batches, k);
        Work again = work_times(way == KEEP_EVERYTHING ? 0 : 1, work_stage(&dropped, B));
        sum = work_sum(sum, work_sum(work_times(3, work_stage(z, B)), again));
    }
    return sum;
}

// Checks the costs of a way. seen: the results of all ways up to this one.
static void costs(Run *run, const Training *t, Way way, const RecomputeSeen *seen) {
    CutSizes z = stage_sizes(&t->model, run->world->size, run->world->rank);
    Work work = step_work(t, &z, way);
    double message = (double)(message_elements(&z, t->sequences) * weight_bytes(&t->model));
    const RecomputeSeen *now = &seen[way];
    const CostRow row[] = { { "peak", "activation peak", "bytes",
                              BY_FORMULA((double)kept(t, &z, way)), now->peak },
                            // A second forward sends nothing, because the stage has kept its input.
                            { "sent", "sent to neighbours", "bytes",
                              BY_FORMULA((double)stage_neighbours(run) * message), now->sent },
                            { "flops", "hardware FLOPs, all stages", "FLOPs",
                              BY_FORMULA(sum_of_ranks(run, work.flops)), now->timing.flops },
                            // Real time is not predicted.
                            { clock_config()->simulated ? "computing" : NULL, "this stage computes",
                              "ps", BY_FORMULA(work.time), (double)now->computing },
                            { 0 } };
    check_costs(run, page_text(run, "%s.%%s", way_id[way]),
                page_text(run, "%s: %%s", way_name[way]), row);
    // The output of the second forward is freed before the backward begins, so the workspace is
    // not larger than without a second forward.
    if (way == RECOMPUTE_BLOCKS)
        check_cost(run, "blocks.workspace", "recompute blocks: left by the second forward", "bytes",
                   formula(0), NOT_PREDICTED, now->workspace - seen[KEEP_EVERYTHING].workspace);
}

// ---------------------------------------------------------------- the page

static void show(Run *run, const RecomputeSeen seen[WAYS]) {
    static const char *const columns[] = { "keep all", "recompute blocks", "recompute stages",
                                           NULL };
    Result rows[] = { { "activations, peak", "inputs, one block or stage", { 0 } },
                      { "sent to neighbours", "nothing is sent again", { 0 } },
                      { "FLOPs, all stages", "3F, and what is recomputed", { 0 } },
                      { "step", "simulated, GPipe's order", { 0 } },
                      { "MFU", "3F / peak FLOPs of a step", { 0 } },
                      { "HFU", "all FLOPs / the same", { 0 } },
                      { 0 } };
    recompute_results(run, way_id, seen, columns, rows);
    const Timing *keep = &seen[KEEP_EVERYTHING].timing, *blocks = &seen[RECOMPUTE_BLOCKS].timing;
    say_answer(run,
               "With only block inputs kept, activations take %s per rank instead of %s. The "
               "second forward makes a step %s.",
               recompute_peak(run, "blocks"), recompute_peak(run, "keep"),
               recompute_longer(run, 1, blocks, keep));
    say_cost(run,
             "%.1f %% more FLOPs, no more bytes sent. Keeping only stage inputs needs %s, because "
             "backward holds a whole stage.",
             100 * (blocks->flops / keep->flops - 1), recompute_peak(run, "stages"));
    say_use_when(run, "activations do not fit, and selective recomputation (07.03) does not save "
                      "enough.");
}

static void full(Run *run) {
    Training t = stages_training(run, &tiny, option_size(run, "batch"));
    t.steps = option_size(run, "steps");
    REQUIRE(t.steps > 0, "--steps must be at least 1");
    t.optimizer = sgd(0.1);
    t.recorded = true;
    t.watched = MEM_ACTIVATIONS;
    t.model.dropout = option_real(run, "dropout");
    config_require(&t.model);
    say(run,
        "%zu blocks on %zu stages; width C = %zu, H = %zu heads, T = %zu tokens; %zu sequences in "
        "m = %zu micro-batches.\n"
        "keep all: all items that backward needs stay. recompute blocks, stages: only their inputs "
        "stay,\n"
        "and backward begins with a second forward. F: FLOPs of one forward; a step needs 3F.\n"
        "MFU: 3F as a share of what the devices could compute in a step. HFU: all FLOPs count.",
        tiny.layers, run->world->size, tiny.width, tiny.heads, tiny.context, t.sequences,
        t.micro_batches);
    // One device keeps everything and takes the same micro-batches, one by one.
    Trajectory unsplit = training_unsplit(run, &t, 1);
    RecomputeSeen seen[WAYS];
    for (Way way = 0; way < WAYS; way++) {
        Trajectory got = trajectory_new(run, &t);
        seen[way] = train(run, &t, way, &got);
        recompute_show(run, way_name[way], !strcmp(option_text(run, "draw"), way_id[way]),
                       &seen[way].timing);
        costs(run, &t, way, seen);
        // The same layers run in the same order, with the same inputs and the same dropout: every
        // bit is equal.
        training_compare(run, page_text(run, "%s = unsplit", way_name[way]), &got, &unsplit, 0);
        trajectory_free(&got);
    }
    show(run, seen);
    trajectory_free(&unsplit);
    data_free(&t.data);
}

static const Option options[] = {
    { "batch", "N", "7", "sequences in a step" },
    { "micro-batches", "N", "3", "micro-batches of a step" },
    { "steps", "N", "3", "training steps" },
    { "dropout", "X", "0.1", "probability of dropping an element" },
    { "draw", "keep|blocks|stages", "blocks", "the way whose step is drawn, here and in files" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(full, options);
