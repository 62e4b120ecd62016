// ranks: 8
// level: core
// question: Can everything so far be combined, and does it still compute what one device would?
//
// Trains GPT-2's architecture on bytes of real text with data x tensor x pipeline parallelism. What a step does is in
// trainer.c; here are the options, the loop, the checks, and (--check) the unsplit model that is trained beside it.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/log.h"
#include "08_3d/safetensors.h"
#include "08_3d/settings.h"
#include "08_3d/support/mesh_picture.h"
#include "08_3d/support/train_costs.h"
#include "common/device/device.h"
#include "common/lesson/picture.h"
#include "common/lesson/sketch.h"

static const Option options[] = {
    { "dp", "N", NULL, "data-parallel replicas; without it: the ranks that --tp and --pp leave" },
    { "tp", "N", NULL, "tensor-parallel ranks of a stage; without it: 2 where the ranks allow, else 1" },
    { "pp", "N", NULL, "pipeline stages; without it: 2 where the ranks allow, else 1" },
    { "tensor", "1d|2d|2.5d", "1d", "tp ranks cut layers by columns and rows, on a square, on a square in layers" },
    { "depth", "N", "0", "with --tensor 2.5d: layers of the grid; 0: the fewest that make one of the tp ranks" },
    { "batch", "N", "16", "sequences of one step, over all replicas" },
    { "micro-batch", "N", "4", "sequences of one replica and micro-batch, at most" },
    { "schedule", "naive|gpipe|1f1b", "1f1b", "order of forwards and backwards in the pipeline" },
    { "stage-layers", "LIST", NULL, "blocks of each stage, such as 3,4,3; without it: as equal as possible" },
    { "zero", "0|1|2|3", "0", "shard nothing, optimizer state, gradients too, weights too, over the replicas" },
    { "prefetch", NULL, NULL, "with --zero 3: gather a layer's weights while the one before it computes" },
    { "overlap", NULL, NULL, "with --zero 0: reduce the gradient in buckets while the last backward runs" },
    { "recompute", "none|selective|full", "none", "what backward computes again instead of keeping it" },
    { "layers", "N", "4", "blocks" },
    { "width", "N", "128", "features of a token" },
    { "heads", "N", "4", "attention heads" },
    { "context", "N", "64", "tokens of a sequence" },
    { "dropout", "X", "0", "probability of dropping an element; with --check: 0.1 unless given" },
    { "data", "FILE", NULL, "text to learn; without it: this tree's own Markdown and sources" },
    { "steps", "N", "400", "optimizer steps" },
    { "lr", "X", "0.003", "highest learning rate" },
    { "warmup", "N", "20", "steps of linear warm-up; then the rate falls as a cosine to a tenth" },
    { "weight-decay", "X", "0.1", "of matrices; AdamW only" },
    { "clip", "X", "1", "largest gradient norm; 0: no clipping" },
    { "optimizer", "sgd|adamw", "adamw", "update rule" },
    { "eval-every", "N", "100", "steps between evaluations on held-out text; 0: at the end only" },
    { "export", "FILE", NULL, "write the weights as safetensors, for Hugging Face's GPT-2" },
    { "check", NULL, NULL, "train the unsplit model beside it and compare losses, norms, gradients and weights" },
    { "log", "FILE", NULL, "one JSON object a step" },
    { "reduce", "ordered|fast", "fast", NULL },
    { "node", "N", "4", "ranks of a node" },
    { "threads", "N", NULL, "of a rank; without it: cores / ranks, but 1 with --check or --reduce ordered" },
    {0},
};

// ---------------------------------------------------------------- the unsplit model beside it (rank 0, --check)

typedef struct { Model *model; Optimizer optimizer; } Unsplit;

static Unsplit unsplit_new(Run *run, const TrainerConfig *c) {
    Unsplit u = { .optimizer = settings_optimizer(run) };
    ledger_pause();
    u.model = model_describe(&c->model, model_layers(&c->model));
    model_allocate(u.model);
    optimizer_allocate(&u.optimizer, u.model);
    ledger_resume();
    return u;
}

// The whole global batch at once.
static StepResult unsplit_gradients(Unsplit *u, const TrainerConfig *c, const Data *d, uint64_t step) {
    ledger_pause();
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_batch(d, &tokens, step, 0, c->batch, c->batch);
    model_zero_gradients(u->model);
    StepResult r = { .loss = model_forward_backward(u->model, &b) * b.token_weight };
    model_fold_tied(u->model);
    r.norm = model_grad_norm(u->model, NULL);
    arena_free(&tokens);
    ledger_resume();
    return r;
}

// ---------------------------------------------------------------- which tensors are compared

// A replica holds some tensors more than once: norms, positions and row-cut biases on every slice, wte on its first and
// last stage. When sums are added in rank order, all these ranks must hold the same bits. Under --reduce fast the
// library may add the same terms in another order where a tensor lies elsewhere in its message, as these copies do:
// then the same place of every replica must have the same bits, and copies within a replica must be close.
static bool original(const Unit *u, const Param *p) { return p->in_norm && !u->tied_copy; }
static bool whole(const Unit *u, const Param *p) { (void)u; return param_is_whole(p); }
static bool table(const Unit *u, const Param *p) { (void)u; return p->number == 0; }
static Which one_of_each(const Run *run) { return run->reduce == REDUCE_ORDERED ? NULL : original; }

static void compare_copies(Run *run, const Trainer *t, double limit) {
    const Mesh *mesh = &t->mesh;
    // On a grid the layers of its depth hold the same, and a layer has no copies.
    bool grid = tensor_is_grid(&t->config);
    size_t copies = grid ? t->grid.depth : mesh->n.tp, mine = grid ? t->grid.layer : mesh->at.tp;
    if (copies == 1 && mesh->n.pp == 1) return;
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    for (size_t copy = 1; copy < copies; copy++) {
        char label[40];
        snprintf(label, sizeof label, " of slice %zu", copy);
        snapshot_label(got, label);
        snapshot_label(want, label);
        if (mine == copy) model_snapshot(t->model, got, UNIT_WEIGHTS, grid ? NULL : whole);
        if (mine == 0) model_snapshot(t->model, want, UNIT_WEIGHTS, grid ? NULL : whole);
    }
    snapshot_label(got, " of the last stage");
    snapshot_label(want, " of the last stage");
    if (mesh->tied) model_snapshot(t->model, mesh->at.pp ? got : want, UNIT_WEIGHTS, table);
    check_close(run, "copies within a replica are alike", got, want, limit);
    snapshot_free(got);
    snapshot_free(want);
}

// A row of C features that dropout has emptied has no variance, and the norm after it multiplies what is left of it,
// rounding too, by 1 / sqrt(1e-5). The share of such rows is dropout^C: below any influence in all but the narrowest
// models. In double, rounding stays below the limit even so.
static double rounding_limit(const ModelConfig *c) {
    double magnified = pow(c->dropout, (double)c->width) / sqrt(1e-5);
    return LIMIT_ROUNDING * (sizeof(real) == 4 && magnified > 1 ? magnified : 1);
}

// ---------------------------------------------------------------- training

typedef struct { double *loss, *norm; } Curve;
static Curve curve_new(size_t steps) {
    return (Curve){ host_alloc(steps * sizeof(double)), host_alloc(steps * sizeof(double)) };
}
static void curve_set(Curve c, size_t step, StepResult r) { c.loss[step] = r.loss; c.norm[step] = r.norm; }
static void curve_free(Curve c) { free(c.loss); free(c.norm); }

enum { SOME_WINDOWS = 64, MOST_WINDOWS = 256 };    // of the held-out text: while training, and at the end
static size_t at_most(size_t n, size_t most) { return n < most ? n : most; }

static void first_gradients(Run *run, const Trainer *t, const Unsplit *u) {
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    model_snapshot(t->model, got, UNIT_GRADIENTS, one_of_each(run));
    if (u->model) model_snapshot(u->model, want, UNIT_GRADIENTS, NULL);
    check_close(run, "3D = unsplit, first step's gradients", got, want, rounding_limit(&t->config.model));
    snapshot_free(got);
    snapshot_free(want);
}

static void loop(Run *run, Trainer *t, Unsplit *u, const Data *d, const Log *log, Curve got, Curve want) {
    size_t steps = settings_steps(run), every = option_size(run, "eval-every"), windows = data_eval_windows(d);
    size_t show = steps > 10 ? steps / 10 : 1;
    for (size_t step = 0; step < steps; step++) {
        progress(run, "step", step, steps);
        double start = now();
        bool last = step + 1 == steps;
        if (last) { train_costs_begin(t); picture_begin(run, MEM_ACTIVATIONS); }
        StepResult r = trainer_gradients(t, d, step), w = {0};
        curve_set(got, step, r);
        if (u->model) curve_set(want, step, w = unsplit_gradients(u, &t->config, d, step));
        if (option_flag(run, "check") && step == 0) first_gradients(run, t, u);
        t->optimizer.lr = u->optimizer.lr = settings_rate(run, step);
        trainer_update(t, r);
        if (last) { picture_end(run); train_costs_end(run, t); }
        if (u->model) optimizer_step(&u->optimizer, u->model, clip_factor(w.norm, t->config.clip));

        double seconds = now() - start;
        size_t tokens = data_count(d, step, 0, t->config.batch);
        log_step(log, step, r, t->optimizer.lr, tokens, seconds);
        if (step % show == 0 || last)
            say(run, "step %5zu   loss %7.4f   gradient norm %8.4f   lr %.5f   %8.0f tokens/s\n", step, r.loss, r.norm,
                t->optimizer.lr, (double)tokens / seconds);
        if (every && (step + 1) % every == 0 && !last)
            say(run, "             held-out loss %.4f\n", trainer_evaluate(t, d, at_most(windows, SOME_WINDOWS)));
    }
    progress(run, "step", steps, steps);
}

static void show(Run *run, Trainer *t, const Data *d, Log *log, Curve got) {
    Timing timing = picture_timing(run);
    say(run, "\n");
    picture_show(run, "the last step", PICTURE_MEMORY | PICTURE_ALIKE_ONCE);
    picture_summary(run, &timing);
    train_results(run, t);
    train_say_faster(run, t, &timing);
    size_t all = data_eval_windows(d), windows = at_most(all, MOST_WINDOWS);
    double eval = trainer_evaluate(t, d, windows), entropy = data_byte_entropy(d);
    log_end(log, eval);
    size_t steps = settings_steps(run);
    if (option_flag(run, "verbose")) sketch_curve(run, "loss, nats per byte", got.loss, steps);
    say(run, "\nloss %.4f nats per byte at step 0, %.4f at step %zu\n", got.loss[0], got.loss[steps - 1], steps - 1);
    say(run, "held-out loss %.4f, over %zu of %zu windows; bytes guessed by their frequency alone: %.4f\n", eval,
        windows, all, entropy);
    report_config_number(run, "eval_loss", eval);
    report_config_number(run, "eval_windows", (double)windows);
    report_config_number(run, "byte_entropy", entropy);
}

// What the ledger says beside what the process had. Virtual ranks are one process.
static void show_memory(Run *run) {
    struct { size_t ledger, process, resident; } mine = { memory_most(), memory_process_most(), resident_most() }, *all;
    size_t *sizes, most = 0, resident = 0;
    char list[3][512] = { "", "", "" };
    side_gather(&mine, sizeof mine, (void **)&all, &sizes);
    if (!run->is_root) return;
    for (size_t r = 0; r < run->world->size; r++) {
        size_t value[3] = { all[r].ledger, all[r].process, all[r].resident };
        for (int i = 0; i < 3; i++) {
            size_t end = strlen(list[i]);
            snprintf(list[i] + end, sizeof list[i] - end, "%s%zu", r ? " " : "", value[i]);
        }
        most = all[r].ledger > most ? all[r].ledger : most;
        resident = all[r].resident > resident ? all[r].resident : resident;
    }
    say(run, "memory at most, largest rank: %.1f MB in the ledger, %.1f MB resident in its process%s\n",
        1e-6 * (double)most, 1e-6 * (double)resident, ranks_are_processes ? "" : " (all ranks)");
    report_config_text(run, "memory_most", list[0]);              // bytes, by rank
    report_config_text(run, "process_memory_most", list[1]);
    report_config_text(run, "resident_most", list[2]);
    free(all);
    free(sizes);
}

static void checks(Run *run, Trainer *t, Unsplit *u, Curve got, Curve want) {
    size_t steps = settings_steps(run);
    double limit = rounding_limit(&t->config.model);
    bool exact = sizeof(real) == 8 || t->optimizer.kind == SGD, check = option_flag(run, "check");
    Snapshot *weights = check ? snapshot_new(run) : snapshot_new_prints(run), *unsplit = snapshot_new(run);
    model_snapshot(t->model, weights, UNIT_WEIGHTS, one_of_each(run));
    if (u->model) model_snapshot(u->model, unsplit, UNIT_WEIGHTS, NULL);
    // fp32 under AdamW: rounding in a gradient that is nearly zero changes its update by a whole learning rate, so
    // single weights drift apart (losses and norms hardly feel it); they are compared under SGD, and in double.
    if (check) {
        check_numbers(run, "3D = unsplit", "loss of every step", got.loss, want.loss, steps, limit);
        check_numbers(run, "3D = unsplit", "gradient norm of every step", got.norm, want.norm, steps, limit);
        if (exact) check_close(run, "3D = unsplit, weights after the last step", weights, unsplit, limit);
    } else {
        check_replicas(run, "replicas hold the same weights", weights);            // and no element is missing
    }
    if (run->reduce == REDUCE_FAST && t->mesh.model->size > 1) compare_copies(run, t, exact ? LIMIT_ROUNDING : 1e-3);
    snapshot_free(weights);
    snapshot_free(unsplit);
}

static void train(Run *run) {
    TrainerConfig c = settings_config(run);
    Optimizer optimizer = settings_optimizer(run);
    size_t steps = settings_steps(run);
    bool check = option_flag(run, "check");
    if (option_given(run, "export")) safetensors_require(run, option_text(run, "export"));     // before the work
    Data data = training_text(run, option_given(run, "data") ? option_text(run, "data") : NULL, c.model.context);
    data.ragged = check;                           // unequal token counts: without them real bugs pass
    memory_set_poison(check);                      // otherwise speed counts
    if (!option_given(run, "threads") && !check && run->reduce == REDUCE_FAST && !device_is_gpu())
        device_set_threads(side_cores_each());     // their number may change the bits of products
    Log log = log_open(run);
    Trainer *t = trainer_new(run->world, &c, optimizer);
    Unsplit u = {0};
    if (check && run->world->rank == 0) u = unsplit_new(run, &c);
    settings_record(run, &c);
    say(run, "%zu parameters; batch %zu, %zu micro-batches per replica; %zu bytes of text\n",
        config_parameters(&c.model), c.batch, t->micro_batches, data.bytes);
    if (tensor_is_grid(&c))
        say(run, "a tp group is a grid of %zu x %zu x %zu ranks", tensor_sides(&c).q, tensor_sides(&c).q,
            tensor_sides(&c).depth);
    say(run, "dp %zu x tp %zu x pp %zu, [ ] is a tp group; schedule %s, ZeRO %zu%s, recompute %s, %d thread%s per rank",
        c.mesh.dp, c.mesh.tp, c.mesh.pp, option_text(run, "schedule"), c.zero,
        c.prefetch ? " with prefetch" : c.overlap ? ", overlapped" : "", option_text(run, "recompute"), device_threads,
        device_threads > 1 ? "s" : "");
    train_show_mesh(run, &c);
    say(run, "\n");

    Curve got = curve_new(steps), want = curve_new(steps);
    loop(run, t, &u, &data, &log, got, want);
    show(run, t, &data, &log, got);
    if (option_given(run, "export")) safetensors_export(run, t->model, option_text(run, "export"));
    checks(run, t, &u, got, want);
    show_memory(run);
    curve_free(got);
    curve_free(want);
    if (u.model) model_free(u.model);
    trainer_free(t);
    data_free(&data);
    free((void *)c.stage_blocks);
}

LESSON(train, options);
