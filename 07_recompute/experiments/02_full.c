// Compares three ways to keep activations in a GPipe pipeline with the unsplit model. The trainings
// must be equal in every bit. A stage keeps every item, the input of every block, or the input of
// the stage.
#include "07_recompute/experiments/experiments.h"
#include <string.h>

static const ModelConfig tiny = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1
};
typedef enum { KEEP_EVERYTHING, RECOMPUTE_BLOCKS, RECOMPUTE_STAGES, WAYS } Way;
static const char *const way_id[WAYS] = { "keep", "blocks", "stages" };
static const char *const way_name[WAYS] = { "keep everything", "recompute blocks",
                                            "recompute stages" };

// ---------------------------------------------------------------- the predicted costs of a step

// Returns the peak of the kept bytes. Between forward and backward a stage keeps items of all m
// micro-batches. If a way keeps only some items, the peak is in the backward of micro-batch 0, the
// largest micro-batch. In this backward all items of one block, or of the stage, are in memory
// again.
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

// `seen` has the results of all ways up to this one.
static void costs(Run *run, const Training *t, Way way, const RecomputeSeen *seen) {
    CutSizes z = stage_sizes(&t->model, run->world->size, run->world->rank);
    const double again = way == KEEP_EVERYTHING ? 0 : (double)z.blocks;
    Work work = recompute_work(t, &z, again, 0, way == RECOMPUTE_STAGES);
    double message = (double)(message_elements(&z, t->sequences) * weight_bytes(&t->model));
    const RecomputeSeen *now = &seen[way];
    const CostRow row[] = { { "peak", "activation peak", "bytes",
                              BY_FORMULA((double)kept(t, &z, way)), now->peak },
                            // A second forward sends nothing, because the stage has kept its input.
                            { "sent", "sent to neighbours", "bytes",
                              BY_FORMULA((double)stage_neighbours(run) * message), now->sent },
                            { "flops", "hardware FLOPs, all stages", "FLOPs",
                              BY_FORMULA(sum_of_ranks(run, work.flops)), now->timing.flops },
                            // With the wall clock the table ends here, because real time is not
                            // predicted.
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
    Result rows[] = { { "activations, peak", "inputs, block (stage), head", { 0 } },
                      { "sent to neighbours", "nothing is sent again", { 0 } },
                      { "FLOPs, all stages", "3 forwards + recomputation", { 0 } },
                      { "step", "simulated, GPipe's order", { 0 } },
                      { "MFU", "needed / possible FLOPs", { 0 } },
                      { "HFU", "all / possible FLOPs", { 0 } },
                      { 0 } };
    recompute_results(run, way_id, seen, columns, rows);
    const Timing *keep = &seen[KEEP_EVERYTHING].timing, *blocks = &seen[RECOMPUTE_BLOCKS].timing;
    say_answer(run,
               "With only block inputs kept, the fullest rank keeps %s of activations instead of "
               "%s. The second forward makes a step %s.",
               recompute_peak(run, "blocks"), recompute_peak(run, "keep"),
               recompute_longer(run, 1, blocks, keep));
    say_cost(
        run,
        "%.1f %% more FLOPs, no more bytes sent. Keeping only stage inputs needs %s, because "
        "backward holds all items of a whole stage. The last stage then recomputes its head, too.",
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
        "keep all: all items (tensors of a block's forward) stay for backward. recompute blocks "
        "(stages): a\n"
        "block (stage) keeps only its input; a second forward makes the rest. A backward costs 2 "
        "forwards.\n"
        "MFU: the FLOPs of 3 forwards / the FLOPs possible in the step. HFU: all FLOPs / the FLOPs "
        "possible.",
        tiny.layers, run->world->size, tiny.width, tiny.heads, tiny.context, t.sequences,
        t.micro_batches);
    // The unsplit model keeps everything and takes the same micro-batches, one by one.
    Trajectory unsplit = training_unsplit(run, &t, 1);
    RecomputeSeen seen[WAYS];
    for (Way way = 0; way < WAYS; way++) {
        Model *stage = recompute_stage(run, &t);
        if (way == RECOMPUTE_BLOCKS) recompute_blocks(stage);
        if (way == RECOMPUTE_STAGES) recompute_wrap_range(stage, 0, stage->n_layers);
        seen[way] = recompute_train(run, &t, stage, way_name[way], &unsplit);
        recompute_show(run, way_name[way], !strcmp(option_text(run, "draw"), way_id[way]),
                       &seen[way].timing);
        costs(run, &t, way, seen);
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
