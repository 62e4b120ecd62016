// ranks: 8
// level: core
// question: Can everything so far be combined, and does it still compute what one device would?
// vary: ranks 2|4|8
// grade: --check --save build/judged --save-over --steps 3 --layers 4 --width 24 --context 8 --batch 8 --reduce ordered
//
// Trains GPT-2's architecture on bytes of real text with data x tensor x pipeline parallelism. What a step does is in
// trainer.c; here are the options, the loop, the checks, and (--check) the unsplit model that is trained beside it.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/checkpoint.h"
#include "08_3d/finite.h"
#include "08_3d/log.h"
#include "08_3d/resume.h"
#include "08_3d/safetensors.h"
#include "08_3d/settings.h"
#include "08_3d/step_lines.h"
#include "08_3d/stop.h"
#include "08_3d/support/mesh_picture.h"
#include "08_3d/support/train_checks.h"
#include "08_3d/support/train_costs.h"
#include "08_3d/support/train_memory.h"
#include "08_3d/support/unsplit.h"
#include "08_3d/unsent.h"
#include "common/device/device.h"
#include "common/lesson/picture.h"
#include "common/lesson/sketch.h"

static const Option options[] = {
    OPTION_GROUP("Parallelism"),
    { "dp", "N", NULL, "data-parallel replicas; without it: the ranks that --tp and --pp leave" },
    { "tp", "N", NULL, "tensor-parallel ranks of a stage; without it: 2 where the ranks allow, else 1" },
    { "pp", "N", NULL, "pipeline stages; without it: 2 where the ranks allow, else 1" },
    { "cp", "N", NULL, "context-parallel ranks: they share the positions of a sequence (ring attention); default 1" },
    { "tensor", "1d|2d|2.5d|3d", "1d", "tp ranks cut layers by columns and rows, on a square, q x q x d, a cube" },
    { "depth", "N", "0", "with --tensor 2.5d: layers of the grid; 0: the fewest that make one of the tp ranks" },
    { "sequence-parallel", NULL, NULL, "with --tp: norms, dropout and residual paths on 1/tp of the rows" },
    { "schedule", "naive|gpipe|1f1b|interleaved|zero-bubble", "1f1b", "order of forwards and backwards of stages" },
    { "chunks", "N", "2", "of the model on each stage; interleaved only" },
    { "stage-layers", "LIST", NULL, "blocks of each stage, such as 3,4,3; without it: as equal as possible" },
    { "rebalance", "N", "0", "steps after which blocks move to where the measured times want them; 0: never" },
    { "zero", "0|1|2|3", "0", "shard nothing, optimizer state, gradients too, weights too, over the replicas" },
    { "prefetch", NULL, NULL, "with --zero 3: gather a layer's weights while the one before it computes" },
    { "overlap", NULL, NULL, "with --zero 0: reduce the gradient in buckets while the last backward runs" },
    { "compress", "none|top-k|power-sgd", "none", "send the gradient over dp in fewer bytes, the rest a step later" },
    { "keep-one-of", "N", "32", "with --compress top-k: of so many elements the largest one is sent" },
    { "power-rank", "N", "2", "with --compress power-sgd: columns of the factors that stand for a matrix" },
    OPTION_GROUP("Model"),
    { "layers", "N", "4", "blocks" },
    { "width", "N", "128", "features of a token" },
    { "heads", "N", "4", "attention heads" },
    { "context", "N", "64", "tokens of a sequence" },
    { "vocab", "N", NULL, "entries of the vocabulary; needed for tokens (GPT-2: 50257); without it: 256, of bytes" },
    { "dropout", "X", "0", "probability of dropping an element; with --check: 0.1 unless given" },
    { "attention", "plain|blockwise", "plain", "keep all scores, or none: in blocks; with --cp always blockwise" },
    OPTION_GROUP("Data"),
    { "data", "FILES", NULL, "text, or tokens: .bin of llm.c or nanoGPT; 'a*.bin': several; default: this tree's" },
    { "data-eval", "FILES", NULL, "held-out text or tokens; without it: the last tenth of --data" },
    OPTION_GROUP("Training"),
    { "batch", "N", "16", "sequences of one step, over all replicas" },
    { "micro-batch", "N", "4", "sequences of one replica and micro-batch, at most" },
    { "steps", "N", "400", "optimizer steps, after which the training ends" },
    { "lr", "X", "0.003", "highest learning rate" },
    { "warmup", "N", "20", "steps of linear warm-up; then the rate falls as a cosine to --min-lr" },
    { "decay-steps", "N", NULL, "step at which the rate is --min-lr; without it: the first --steps" },
    { "min-lr", "X", NULL, "lowest learning rate after the warm-up; without it: a tenth of --lr" },
    { "weight-decay", "X", "0.1", "of matrices; AdamW only" },
    { "beta1", "X", "0.9", "of AdamW: how much of the mean gradient stays, at each step" },
    { "beta2", "X", "0.95", "of AdamW: the same of the mean squared gradient" },
    { "eps", "X", "1e-5", "of AdamW: added to the root of the mean squared gradient" },
    { "clip", "X", "1", "largest gradient norm; 0: no clipping" },
    { "skip-nonfinite", "N", "0", "steps in a row without a finite loss or gradient to skip; more end the run" },
    { "optimizer", "sgd|adamw", "adamw", "update rule" },
    { "eval-every", "N", "100", "steps between evaluations on held-out text; 0: at the end only" },
    { "check", NULL, NULL, "train the unsplit model beside it and compare losses, norms, gradients and weights" },
    OPTION_GROUP("Memory"),
    { "recompute", "none|selective|full", "none", "what backward computes again instead of keeping it" },
    { "activation-budget", "N", NULL, "bytes of activations per rank: each block keeps what fits" },
    OPTION_GROUP("Checkpoints"),
    { "save", "DIR", NULL, "write checkpoints: DIR/step-000100 and so on" },
    { "save-every", "N", "100", "with --save: steps between checkpoints; one more at the end" },
    { "keep", "N", NULL, "with --save: keep the newest N checkpoints, and the best one" },
    { "save-over", NULL, NULL, "with --save: first remove the checkpoints of other runs in DIR" },
    { "exit-after", "MINUTES", NULL, "with --save: save and end before then, as at SIGTERM and SIGINT; status 4" },
    { "resume", "DIR", NULL, "take up the newest checkpoint in DIR, at any layout, with the options of its training" },
    { "newest-good", NULL, NULL, "with --resume: take the newest checkpoint that is not torn" },
    { "override", "NAMES", NULL, "with --resume: options that may differ from before: lr,data" },
    OPTION_GROUP("Output"),
    { "export", "FILE", NULL, "write the weights as safetensors, and config.json beside them (GPT-2)" },
    { "log", "FILE", NULL, "one JSON object a step, and one for each evaluation, checkpoint, move of blocks, stop" },
    { "reduce", "ordered|fast", "fast", NULL },
    { "node", "N", "4", "ranks of a node" },
    { "threads", "N", NULL, "of a rank; without it: cores / ranks, but 1 with --check or --reduce ordered" },
    OPTION_EXAMPLE("train --emulate 8 --dp 2 --tp 2 --pp 2 --check --steps 5", "8 virtual ranks, held to one device"),
    OPTION_EXAMPLE("mpirun -np 4 train --data my.txt --save runs/a --save-every 100", "learns a text, and saves"),
    OPTION_EXAMPLE("mpirun -np 2 train --resume runs/a --save runs/a --steps 800", "goes on, with other ranks"),
    OPTION_EXAMPLE("train --data 'train_*.bin' --data-eval val.bin --vocab 50257 --context 256", "learns tokens"),
    OPTION_EXAMPLE("train --steps 50 --eval-every 10 --log run.jsonl --export gpt2.safetensors", "a log, and weights"),
    {0},
};

// ---------------------------------------------------------------- the unsplit model beside it (rank 0, --check)

typedef struct { Model *model; Optimizer optimizer; Compressed *rule; } Unsplit;       // rule: with --compress

static Unsplit unsplit_new(Run *run, const TrainerConfig *c) {
    Unsplit u = { .model = unsplit_model(c), .optimizer = settings_optimizer(run) };
    ledger_pause();
    optimizer_allocate(&u.optimizer, u.model);
    ledger_resume();
    return u;
}

// ---------------------------------------------------------------- training

static Curve curve_new(size_t steps) {
    return (Curve){ host_alloc(steps * sizeof(double)), host_alloc(steps * sizeof(double)) };
}
static void curve_set(Curve c, size_t step, StepResult r) { c.loss[step] = r.loss; c.norm[step] = r.norm; }
static void curve_free(Curve c) { free(c.loss); free(c.norm); }

enum { SOME_WINDOWS = 64, MOST_WINDOWS = 256 };    // of the held-out text: while training, and at the end
static size_t at_most(size_t n, size_t most) { return n < most ? n : most; }

// After a step, which took `seconds`: writes a checkpoint, where one is due. True: the training ends here, because it was
// told to stop, or because its weights are not finite.
static bool save_and_stop(Run *run, FiniteRule *rule, const Trainer *t, const Log *log, SavedRun *saved, size_t done,
                          size_t steps, double seconds, double eval_loss) {
    if (!option_given(run, "save")) return false;
    bool stop = done < steps && stop_due(run, seconds);
    if (stop || done == steps || done % option_size(run, "save-every") == 0) {
        if (!finite_weights(run, rule, t, done)) return true;
        RankState unsent = unsent_read(t);
        checkpoint_save(run, t->model, &t->optimizer, &unsent, saved, option_text(run, "save"), done,
                        eval_loss);
        unsent_free(&unsent);
        log_event(log, "checkpoint", done);
    }
    if (stop) {
        log_event(log, "stop", done);
        say(run, "stopped: saved after %zu of %zu steps; go on with --resume %s\n", done, steps,
            option_text(run, "save"));
        report_stopped(run);
    }
    return stop;
}

// Between two steps.
static void rebalance(Run *run, Trainer *t, const Log *log, size_t done, size_t steps) {
    size_t every = option_size(run, "rebalance");
    if (!every || done % every || done == steps || !trainer_rebalance(t)) return;
    log_event(log, "rebalance", done);
    char text[256] = "";
    size_t v = trainer_chunks(&t->config);
    for (size_t i = 0; i < v * t->config.mesh.pp && strlen(text) < sizeof text - 24; i++)
        sprintf(text + strlen(text), " %zu", t->blocks[i]);
    say(run, "             from step %zu on, blocks of the %s:%s\n", done, v > 1 ? "chunks" : "stages", text);
}

// Steps [from, steps) of the training; returns how many are done at the end.
static size_t loop(Run *run, FiniteRule *rule, Trainer *t, Unsplit *u, const Data *d, const Log *log, SavedRun *saved,
                   size_t from, Curve got, Curve want) {
    size_t steps = settings_steps(run), every = option_size(run, "eval-every"), windows = data_eval_windows(d);
    StepLines lines = step_lines_begin(run, &t->config, from);
    for (size_t step = from; step < steps; step++) {
        progress(run, "step", step, steps);
        double start = now();
        bool last = step + 1 == steps;
        if (last) { train_costs_begin(t); picture_begin(run, MEM_ACTIVATIONS); }
        StepResult r = trainer_gradients(t, d, step), w = {0};
        curve_set(got, step, r);
        if (u->model)
            curve_set(want, step, w = u->rule ? compressed_gradients(u->rule, u->model, &t->config, d, step)
                                              : unsplit_gradients(u->model, &t->config, d, step));
        t->optimizer.lr = u->optimizer.lr = settings_rate(run, step);
        size_t tokens = data_count(d, step, 0, t->config.batch);
        StepOutcome outcome = finite_step(run, rule, t, step, r);
        if (outcome == STEP_LOST) {
            if (last) picture_end(run);
            log_step(log, step, r, t->optimizer.lr, tokens, now() - start);
            log_event(log, "lost", step);
            return step;
        }
        if (option_flag(run, "check") && step == from) train_check_first(run, t, u->model);
        if (outcome == STEP_SKIPPED) trainer_skip(t);
        else trainer_update(t, r);
        if (last) { picture_end(run); train_costs_end(run, t); }
        rebalance(run, t, log, step + 1, steps);
        if (u->model) optimizer_step(&u->optimizer, u->model, clip_factor(w.norm, t->config.clip));

        double seconds = now() - start;
        log_step(log, step, r, t->optimizer.lr, tokens, seconds);
        if (outcome == STEP_SKIPPED) log_event(log, "skipped", step);
        else step_lines_add(run, &lines, step, r, t->optimizer.lr, tokens, seconds);
        double eval_loss = NAN;                    // of what is saved below, where it is measured
        if (every && (step + 1) % every == 0 && (!last || option_given(run, "save"))) {
            eval_loss = trainer_evaluate(t, d, at_most(windows, SOME_WINDOWS));
            log_evaluation(log, step + 1, eval_loss);
            say(run, "             held-out loss %.4f\n", eval_loss);
        }
        if (save_and_stop(run, rule, t, log, saved, step + 1, steps, now() - start, eval_loss)) return step + 1;
    }
    progress(run, "step", steps, steps);
    return steps;
}

static void show(Run *run, FiniteRule *rule, Trainer *t, const Data *d, Log *log, size_t from, Curve got) {
    Timing timing = picture_timing(run);
    say(run, "\n");
    picture_show(run, clock_config()->simulated ? "the last step, simulated" : "the last step, real time",
                 PICTURE_MEMORY | PICTURE_ALIKE_ONCE);
    picture_summary(run, &timing);
    train_results(run, t);
    train_say_faster(run, t, &timing);
    size_t all = data_eval_windows(d), windows = at_most(all, MOST_WINDOWS);
    double eval = trainer_evaluate(t, d, windows), entropy = data_entropy(d);
    log_end(log, eval);
    finite_held_out(run, rule, eval);
    size_t steps = settings_steps(run);
    const char *unit = d->token_bytes == 1 ? "byte" : "token";
    if (option_flag(run, "verbose"))
        sketch_curve(run, d->token_bytes == 1 ? "loss, nats per byte" : "loss, nats per token", got.loss + from,
                     steps - from);
    say(run, "\nloss %.4f nats per %s at step %zu, %.4f at step %zu\n", got.loss[from], unit, from, got.loss[steps - 1],
        steps - 1);
    say(run, "held-out loss %.4f, over %zu of %zu windows; %ss guessed by their frequency alone: %.4f\n", eval,
        windows, all, unit, entropy);
    report_config_number(run, "step_ps", (double)timing.step);     // of the last step
    report_config_number(run, "eval_loss", eval);
    report_config_number(run, "eval_windows", (double)windows);
    report_config_number(run, "byte_entropy", entropy);
}

// Before the work: can it be written? What is written where?
static void require_files(Run *run) {
    if (option_given(run, "export")) safetensors_require(run, option_text(run, "export"));
    static const char *const of_save[] = { "save-every", "keep", "save-over" };
    bool save = option_given(run, "save");
    for (size_t i = 0; i < 3; i++)
        REQUIRE(save || !option_given(run, of_save[i]),
                "--%s says how to save, and --save DIR where: give both", of_save[i]);
    stop_require(run);
    if (!save) return;
    REQUIRE(option_size(run, "save-every") > 0, "--save-every must be at least 1");
    REQUIRE(!option_given(run, "keep") || option_size(run, "keep") > 0,
            "--keep must be at least 1");
    stop_catch();
}

static void train(Run *run) {
    Checkpoint *before = resume_open(run);
    TrainerConfig c = settings_config(run);
    Optimizer optimizer = settings_optimizer(run);
    size_t steps = settings_steps(run);
    size_t from = before ? checkpoint_step(before) : 0;
    bool check = option_flag(run, "check");
    REQUIRE(from < steps, "--resume %s: all of its %zu steps are done; give more --steps", option_text(run, "resume"),
            from);
    require_files(run);
    FiniteRule rule = finite_rule(run);
    train_checks_require(run, &c);
    Data data = training_text(run, option_text(run, "data"), option_text(run, "data-eval"),
                              option_text(run, "vocab") ? c.model.vocab : 0, c.model.context, c.batch);
    data.ragged = check;                           // unequal token counts: without them real bugs pass
    memory_set_poison(check);                      // otherwise speed counts
    if (!option_given(run, "threads") && !check && run->reduce == REDUCE_FAST && !device_is_gpu())
        device_set_threads(side_cores_each());     // their number may change the bits of products
    SavedRun saved = resume_run(run, before, &data);
    Log log = log_open(run, saved.id);
    Trainer *t = trainer_new(run->world, &c, optimizer);
    Unsplit u = {0};
    if (check && run->world->rank == 0) u = unsplit_new(run, &c);
    if (check && c.compressed) u.rule = compressed_new(t);
    if (before) {
        checkpoint_load(before, t->model, &t->optimizer);
        if (u.model) checkpoint_load(before, u.model, &u.optimizer);
        unsent_resume(before, t, u.rule);
        resume_say(run, before);
        checkpoint_free(before);
    }
    settings_record(run, &c);
    say(run, "%zu parameters; batch %zu, %zu micro-batches per replica; %zu %s\n",
        config_parameters(&c.model), c.batch, t->micro_batches, data.tokens,
        data.token_bytes == 1 ? "bytes of text" : "tokens");
    if (tensor_is_grid(&c))
        say(run, "a tp group is a grid of %zu x %zu x %zu ranks", tensor_sides(&c).q, tensor_sides(&c).q,
            tensor_sides(&c).depth);
    if (c.tensor == TENSOR_3D) say(run, "a tp group is a cube of %zu^3 ranks", cube_side(c.mesh.tp));
    char cp[40] = "";
    if (t->mesh.cp) snprintf(cp, sizeof cp, " x cp %zu", c.mesh.cp);
    say(run,
        "dp %zu x tp %zu x pp %zu%s, [ ] is a tp group; schedule %s, ZeRO %zu%s, recompute %s, %d thread%s per rank",
        c.mesh.dp, c.mesh.tp, c.mesh.pp, cp, option_text(run, "schedule"), c.zero,
        c.prefetch ? " with prefetch" : c.overlap ? ", overlapped" : !c.compressed ? ""
            : c.compression.method == TOP_K ? ", compressed by top-k" : ", compressed by PowerSGD",
        option_text(run, "recompute"), device_threads, device_threads > 1 ? "s" : "");
    train_show_mesh(run, &c);
    say(run, "\n");

    Curve got = curve_new(steps), want = curve_new(steps);
    size_t done = loop(run, &rule, t, &u, &data, &log, &saved, from, got, want);
    if (done < steps || rule.lost) report_ended_early(run);
    else show(run, &rule, t, &data, &log, from, got);
    if (saved.best_step)
        say(run, "lowest held-out loss of a checkpoint: %.4f, step %zu\n", saved.best_loss,
            saved.best_step);
    if (!rule.lost && finite_weights(run, &rule, t, done)) {
        if (option_given(run, "export")) safetensors_export(run, t->model, option_text(run, "export"));
        train_checks(run, t, u.model, (Range){ from, done }, got, want);
    }
    if (check && option_given(run, "save") && !rule.lost) {        // what one relies on who takes it up
        train_check_epochs(run, &data);
        train_check_saved(run, t, u.model, &u.optimizer, done);
    }
    train_show_memory(run);
    curve_free(got);
    curve_free(want);
    if (u.model) model_free(u.model);
    compressed_free(u.rule);
    trainer_free(t);
    data_free(&data);
    free((void *)c.stage_blocks);
}

LESSON(train, options);
