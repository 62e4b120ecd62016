// Compares three ways to keep activations in a GPipe pipeline with the unsplit model, bit by bit:
// every item; the input of every block; the input of the stage. One rank is a pipeline of one
// stage.
#include "07_recompute/experiments/experiments.h"
#include <string.h>

static const ModelConfig tiny = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1
};
typedef enum { KEEP_EVERYTHING, RECOMPUTE_BLOCKS, RECOMPUTE_STAGES, WAYS } Way;
static const char *const way_id[WAYS] = { "keep", "blocks", "stages" };
static const char *const way_name[WAYS] = { "keep everything", "recompute blocks",
                                            "recompute stages" };

// ---- what the second forward leaves beside the backward ----

// Two wrappers of a block, outside and inside of its recomputation, read how much workspace is held
// when their backward begins. Between the two stands the second forward.
typedef struct {
    size_t outside, most; // bytes; most: of any block more inside than outside
} Beside;
static void plain_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    layer_forward(l->inner, b, x, y, s);
}
static void outside_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    ((Beside *)l->technique)->outside = memory_now(MEM_WORKSPACE);
    layer_backward(l->inner, b, x, dy, dx, s);
}
static void inside_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Beside *beside = l->technique;
    size_t more = memory_now(MEM_WORKSPACE) - beside->outside;
    beside->most = larger(beside->most, more);
    layer_backward(l->inner, b, x, dy, dx, s);
}
static const LayerKind outside = { .name = "outside",
                                   .forward = plain_forward,
                                   .backward = outside_backward };
static const LayerKind inside = { .name = "inside",
                                  .forward = plain_forward,
                                  .backward = inside_backward };
static void watch_blocks(Model *m, const LayerKind *kind, Beside *beside) {
    for (size_t i = 0; i < m->n_layers; i++) {
        size_t number = m->layers[i].number;
        if (number < 1 || number > m->config.layers) continue;
        layer_wrap(&m->layers[i], kind, NULL);
        m->layers[i].technique = beside;
    }
}

static RecomputeSeen train(Run *run, const Training *t, Way way, Beside *beside, Trajectory *got) {
    Range layers = pipeline_stage_layers(&t->model, NULL, run->world->size, run->world->rank);
    Model *m = model_describe(&t->model, layers);
    if (way == RECOMPUTE_BLOCKS) {
        watch_blocks(m, &inside, beside);
        recompute_blocks(m);
        watch_blocks(m, &outside, beside);
    }
    if (way == RECOMPUTE_STAGES) recompute_wrap_range(m, 0, m->n_layers);
    return recompute_train(run, t, m, got);
}

// ---------------------------------------------------------------- the predicted costs of a step

// Between forward and backward a stage keeps its share of all m micro-batches. The peak is in the
// backward of the first micro-batch, the largest: one block, or one stage, is complete again.
static size_t kept(const Training *t, const CutSizes *z, Way way) {
    size_t head = z->last ? kept_head_bytes(z) : 0, stage = kept_stage_bytes(z);
    size_t input =
        z->first
            ? 0
            : z->C * weight_bytes(&t->model); // the first stage's input is tokens, not activations
    size_t all = t->sequences * z->T, one = ceil_div(t->sequences, t->micro_batches) * z->T;
    if (way == KEEP_EVERYTHING) return all * stage;
    if (way == RECOMPUTE_STAGES) return all * input + one * (stage - input);
    return all * kept_between_bytes(z) + (all - one) * head +
           one * larger(kept_block_bytes(z), head);
}

// A step of a stage. Backward has two products for each product of forward. Backward also repeats
// the dropped part of forward: the blocks, or the whole stage.
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

static void costs(Run *run, const Training *t, Way way, const RecomputeSeen *seen,
                  const Beside *beside) {
    size_t p = run->world->size;
    CutSizes z = stage_sizes(&t->model, p, run->world->rank);
    double flops = 0,
           message = (double)(message_elements(&z, t->sequences) * weight_bytes(&t->model));
    for (size_t i = 0; i < p; i++) {
        CutSizes stage = stage_sizes(&t->model, p, i);
        flops += step_work(t, &stage, way).flops;
    }
    CostName ids, names;
    const CostRow row[] = {
        { "peak", "activation peak", "bytes", BY_FORMULA((double)kept(t, &z, way)), seen->peak },
        // A second forward sends nothing, because the stage has kept its input.
        { "sent", "sent to neighbours", "bytes",
          BY_FORMULA((double)stage_neighbours(run) * message), seen->sent },
        { "flops", "hardware FLOPs, all stages", "FLOPs", BY_FORMULA(flops), seen->timing.flops },
        // Real time is not predicted.
        { clock_config()->simulated ? "computing" : NULL, "this stage computes", "ps",
          BY_FORMULA(step_work(t, &z, way).time), (double)seen->computing },
        { 0 }
    };
    check_costs(run, cost_name(&ids, "%s.%%s", way_id[way]),
                cost_name(&names, "%s: %%s", way_name[way]), row);
    // The output of the second forward is freed before the backward begins.
    if (way == RECOMPUTE_BLOCKS)
        check_cost(run, "blocks.workspace", "recompute blocks: left by the second forward", "bytes",
                   formula(0), NOT_PREDICTED, (double)beside->most);
}

// ---------------------------------------------------------------- the page

#define EACH_WAY(id) \
    { "keep." id, "blocks." id, "stages." id }
static void show_results(Run *run, const RecomputeSeen seen[WAYS]) {
    static const char *const columns[] = { "keep all", "recompute blocks", "recompute stages",
                                           NULL };
    char mfu[WAYS][32], hfu[WAYS][32], step[WAYS][24];
    for (Way w = 0; w < WAYS; w++) {
        recompute_percent(mfu[w], hfu[w], &seen[w].timing, seen[KEEP_EVERYTHING].timing.flops);
        page_cell(step[w], (double)seen[w].timing.step, "ps");
    }
    const Result rows[] = { { "activations, peak", "inputs, one block or stage", EACH_WAY("peak") },
                            { "sent to neighbours", "nothing is sent again", EACH_WAY("sent") },
                            { "FLOPs, all stages", "3F, and what is recomputed",
                              EACH_WAY("flops") },
                            { "step", "simulated, GPipe's order", { step[0], step[1], step[2] } },
                            { "MFU", "3F / peak FLOPs of a step", { mfu[0], mfu[1], mfu[2] } },
                            { "HFU", "all FLOPs / the same", { hfu[0], hfu[1], hfu[2] } },
                            { 0 } };
    results(run, columns, rows);
}

static void conclude(Run *run, const RecomputeSeen seen[WAYS]) {
    const Timing *keep = &seen[KEEP_EVERYTHING].timing, *blocks = &seen[RECOMPUTE_BLOCKS].timing;
    char peak[WAYS][32], longer[32];
    CostName id;
    for (Way w = 0; w < WAYS; w++)
        page_value(peak[w], sizeof peak[w], cost_value(run, cost_name(&id, "%s.peak", way_id[w])),
                   "bytes");
    recompute_longer(longer, 1, blocks, keep);
    say_answer(run,
               "With only block inputs kept, activations take %s per rank instead of %s. The "
               "second forward makes a step %s.",
               peak[RECOMPUTE_BLOCKS], peak[KEEP_EVERYTHING], longer);
    say_cost(run,
             "%.1f %% more FLOPs, no more bytes sent. Keeping only stage inputs would need "
             "%s.",
             100 * (blocks->flops / keep->flops - 1), peak[RECOMPUTE_STAGES]);
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
        "m = %zu micro-batches.",
        tiny.layers, run->world->size, tiny.width, tiny.heads, tiny.context, t.sequences,
        t.micro_batches);
    say(run, "keep all: all items that backward needs stay. recompute blocks, stages: only their "
             "inputs stay,");
    say(run, "and backward begins with a second forward. F: FLOPs of one forward; a step needs "
             "3F.");
    say(run, "MFU: 3F as a share of what the devices could compute in a step. HFU: all FLOPs "
             "count.");
    // One device keeps everything and takes the same micro-batches, one by one.
    Trajectory unsplit = training_unsplit(run, &t, 1);
    RecomputeSeen seen[WAYS];
    for (Way way = 0; way < WAYS; way++) {
        Trajectory got = trajectory_new(run, &t);
        Beside beside = { 0 };
        seen[way] = train(run, &t, way, &beside, &got);
        bool drawn = !strcmp(option_text(run, "draw"), way_id[way]);
        picture_show(run, way_name[way],
                     PICTURE_MEMORY | PICTURE_SAME_SCALE |
                         (drawn ? 0 : PICTURE_NO_FILES | PICTURE_DETAIL));
        if (option_flag(run, "verbose")) picture_summary(run, &seen[way].timing);
        costs(run, &t, way, &seen[way], &beside);
        // The same layers run in the same order, with the same inputs and the same dropout: every
        // bit is equal.
        CostName what;
        training_compare(run, cost_name(&what, "%s = unsplit", way_name[way]), &got, &unsplit, 0);
        trajectory_free(&got);
    }
    show_results(run, seen);
    conclude(run, seen);
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
