// ranks: 8
// level: core
// question: Do all techniques together still compute the result of one device, and at which cost?
// vary: ranks 2|4|8
// grade: --check --save build/judged --save-over --steps 3 --layers 4 --width 24 --context 8
// --batch 8 --reduce ordered
//
// Trains a model of GPT-2's or Llama's architecture on text, with data x tensor x pipeline
// parallelism. trainer.c has the step, train_settings.c reads the options. This file has the loop.
// With --check rank 0 trains the unsplit model, too.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/cores.h"
#include "08_3d/log.h"
#include "08_3d/safetensors.h"
#include "08_3d/step_lines.h"
#include "08_3d/stop.h"
#include "08_3d/train_options.h"
#include "08_3d/train_program.h"
#include "08_3d/unsent.h"
#include "08_3d/weights.h"
#include "common/device/device.h"
#include "judge/draw/sketch.h"
#include "judge/frame/training.h"

// ---------------------------------------------------------------- the unsplit model of --check

// rule: the rule of --compress on one device; NULL without --compress.
typedef struct {
    Model *model;
    Optimizer optimizer;
    Compressed *rule;
} Unsplit;

static Unsplit unsplit_new(Run *run, const TrainerConfig *c) {
    Unsplit u = { .model = unsplit_model(c), .optimizer = train_optimizer(run) };
    ledger_pause();
    optimizer_allocate(&u.optimizer, u.model);
    ledger_resume();
    return u;
}

// ---------------------------------------------------------------- training

static LossCurve curve_new(size_t steps) {
    return (LossCurve){ host_alloc(steps * sizeof(double)), host_alloc(steps * sizeof(double)) };
}
static void curve_set(LossCurve c, size_t step, StepResult r) {
    c.loss[step] = r.loss;
    c.norm[step] = r.norm;
}
static void curve_free(LossCurve c) {
    free(c.loss);
    free(c.norm);
}

// The most windows of the held-out text that are evaluated: SOME_WINDOWS during the training,
// MOST_WINDOWS at its end.
enum { SOME_WINDOWS = 64, MOST_WINDOWS = 256 };
static size_t at_most(size_t n, size_t most) { return n < most ? n : most; }

// Removes the last newline of the note, because say() adds a newline.
static void say_note(Run *run, char note[CHECKPOINT_NOTE]) {
    size_t n = strlen(note);
    if (n == 0) return;
    note[n - 1] = 0;
    say(run, "%s", note);
}

// With --save a checkpoint is due every --save-every steps, and after the last step.
static bool checkpoint_due(Run *run, size_t done, bool last) {
    return option_given(run, "save") && (last || done % option_size(run, "save-every") == 0);
}

// Writes a checkpoint if one is due, or if the training has to stop. Returns true if the training
// ends now, because of a signal, of --exit-after, or of weights that are not finite.
// seconds: the time of the step and its evaluation.
static bool save_and_stop(Run *run, FiniteRule *rule, const Trainer *t, const Log *log,
                          SavedRun *saved, size_t done, size_t steps, double seconds,
                          double eval_loss) {
    if (!option_given(run, "save")) return false;
    bool stop = done < steps && stop_due(train_seconds_left(run), seconds);
    if (stop || checkpoint_due(run, done, done == steps)) {
        if (!train_finite_weights(run, rule, t, done)) return true;
        RankState unsent = unsent_read(t);
        train_scale_save(t, saved);
        RunOptions options = train_run_options(run, &t->config.mesh);
        char note[CHECKPOINT_NOTE];
        checkpoint_save(run->world, &options, t->model, &t->optimizer, &unsent, saved,
                        option_text(run, "save"), done, eval_loss,
                        option_given(run, "keep") ? option_size(run, "keep") : 0, note);
        say_note(run, note);
        free(options.option);
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

// Moves blocks between stages after every --rebalance steps, if another cut is better for the
// measured times.
static void rebalance(Run *run, Trainer *t, const Log *log, size_t done, size_t steps) {
    size_t every = option_size(run, "rebalance");
    if (!every || done % every || done == steps || !trainer_rebalance(t)) return;
    log_event(log, "rebalance", done);
    char text[256] = "";
    size_t v = trainer_chunks(&t->config);
    for (size_t i = 0; i < v * t->config.mesh.pp && strlen(text) < sizeof text - 24; i++)
        sprintf(text + strlen(text), " %zu", t->blocks[i]);
    say(run, "             from step %zu on, blocks of the %s:%s\n", done,
        v > 1 ? "chunks" : "stages", text);
}

// Returns whether the held-out loss is measured after `done` steps. The program measures the loss
// every --eval-every steps (0: never). With --keep the program also measures the loss before each
// checkpoint, because the checkpoint with the best loss is kept. After the last step show()
// measures the loss, so the result is true only if a checkpoint is due.
static bool evaluation_due(Run *run, size_t done, bool last) {
    size_t every = option_size(run, "eval-every");
    bool saved_now = checkpoint_due(run, done, last);
    if (every == 0 || (last && !saved_now)) return false;
    return done % every == 0 || (saved_now && option_given(run, "keep"));
}

// The tokens of the training, and the real time of its steps in seconds, without evaluations and
// checkpoints.
typedef struct {
    double tokens, seconds;
} Speed;

// Trains the steps [from, steps). Returns the number of steps that are done at the end.
static size_t loop(Run *run, FiniteRule *rule, Trainer *t, Unsplit *u, const Data *d,
                   const Log *log, SavedRun *saved, size_t from, LossCurve got, LossCurve want,
                   Speed *speed) {
    size_t steps = train_steps(run);
    size_t windows = data_eval_windows(d);
    StepLines lines = step_lines_begin(&t->config, from, steps);
    RateRule rate = train_rate(run);
    bool compared = false; // a step has updated the weights (train_check_first())
    for (size_t step = from; step < steps; step++) {
        progress(run, "step", step, steps);
        double start = now();
        bool last = step + 1 == steps;
        if (last) {
            train_costs_begin(t);
            picture_begin(run, MEM_ACTIVATIONS);
        }
        const double factor = t->loss_scale.factor, shown = train_scaled(t) ? factor : 0;
        StepResult r = trainer_gradients(t, d, step), w = { 0 };
        if (u->rule) w = compressed_gradients(u->rule, u->model, &t->config, d, step, factor);
        else if (u->model) w = unsplit_gradients(u->model, &t->config, d, step, factor);
        t->optimizer.lr = settings_rate(&rate, step);
        u->optimizer.lr = t->optimizer.lr;
        size_t tokens = data_count(d, step, 0, t->config.batch);
        StepOutcome outcome = train_finite_step(run, rule, t, step, r);
        curve_set(got, step, train_scaled(t) ? train_overflow_is_0(r) : r);
        if (u->model) curve_set(want, step, train_scaled(t) ? train_overflow_is_0(w) : w);
        if (outcome == STEP_LOST) {
            if (last) picture_end(run);
            log_step(log, step, r, t->optimizer.lr, shown, tokens, now() - start);
            log_event(log, "lost", step);
            return step;
        }
        const bool updates = outcome == STEP_FINITE;
        if (option_flag(run, "check") && updates && !compared) train_check_first(run, t, u->model);
        compared = compared || updates;
        if (updates) trainer_update(t, r);
        else trainer_skip(t, r);
        if (last) {
            picture_end(run);
            train_costs_end(run, t);
        }
        rebalance(run, t, log, step + 1, steps);
        // With a loss scale the unsplit model's own norm decides whether the unsplit model skips
        // the step. If only one of the split and the unsplit model skips a step, their loss curves
        // differ.
        if (u->model && (!train_scaled(t) || isfinite(w.norm)))
            optimizer_step(&u->optimizer, u->model, clip_factor(w.norm, t->config.clip) / factor);

        double seconds = now() - start;
        speed->tokens += (double)tokens;
        speed->seconds += seconds;
        char line[STEP_LINE];
        log_step(log, step, r, t->optimizer.lr, shown, tokens, seconds);
        if (outcome == STEP_SKIPPED) log_event(log, "skipped", step);
        else if (outcome == STEP_OVERFLOWED) log_overflow(log, step, factor, t->loss_scale.factor);
        else if (step_lines_add(&lines, step, r, t->optimizer.lr, shown, tokens, seconds, line))
            say(run, "%s", line);
        double eval_loss = NAN; // held-out loss of the checkpoint below; NAN: not measured
        if (evaluation_due(run, step + 1, last)) {
            eval_loss = trainer_evaluate(t, d, at_most(windows, SOME_WINDOWS));
            log_evaluation(log, step + 1, eval_loss);
            say(run, "             held-out loss %.4f\n", eval_loss);
        }
        if (save_and_stop(run, rule, t, log, saved, step + 1, steps, now() - start, eval_loss))
            return step + 1;
    }
    progress(run, "step", steps, steps);
    if (option_flag(run, "check") && !compared)
        check_true(run, "3D = unsplit", "a step's gradients were compared", false);
    return steps;
}

static void train_export(Run *run, const Trainer *t) {
    const char *type = option_text(run, "export-type");
    const FileType own = sizeof(real) == 8 ? FILE_F64 : FILE_F32;
    safetensors_export(t->model, option_text(run, "export"),
                       !type                       ? own
                       : strcmp(type, "bf16") == 0 ? FILE_BF16
                                                   : FILE_F32);
}

static void say_saved(Run *run, size_t done) {
    if (option_given(run, "save"))
        say(run, "saved: %s/step-%06zu; continue with --resume %s and more --steps\n",
            option_text(run, "save"), done, option_text(run, "save"));
    if (option_given(run, "export"))
        say(run, "exported: %s, with config.json beside it\n", option_text(run, "export"));
    if (!option_given(run, "save") && !option_given(run, "export"))
        say(run, "nothing is saved; --save DIR keeps checkpoints, --export FILE the weights\n");
}

// Writes a text such as "fell from 5.8162 to 5.5976 nats per byte in 3 steps".
enum { LOSS_TEXT = 96 };
static void loss_text(char text[LOSS_TEXT], const char *unit, double first, double last,
                      size_t steps) {
    if (!isfinite(first) || !isfinite(last))
        snprintf(text, LOSS_TEXT, "was not finite at the first or the last of %zu steps", steps);
    else if (steps == 1)
        snprintf(text, LOSS_TEXT, "of the only step is %.4f nats per %s", last, unit);
    else
        snprintf(text, LOSS_TEXT, "%s from %.4f to %.4f nats per %s in %zu steps",
                 last < first   ? "fell"
                 : last > first ? "rose"
                                : "went",
                 first, last, unit, steps);
}

// done: the steps of this run.
static void answer(Run *run, const Trainer *t, const Data *d, Range done, LossCurve got,
                   Speed speed) {
    char loss[LOSS_TEXT];
    const Timing timing = picture_timing(run);
    loss_text(loss, d->token_bytes == 1 ? "byte" : "token", got.loss[done.lo],
              got.loss[done.hi - 1], range_size(done));
    say_answer(run, "%s The loss %s, at %.0f tokens/s in real time.",
               option_flag(run, "check") ? "Yes, it equals the reference of one device."
                                         : "This run has not compared them; --check does.",
               loss, speed.tokens / speed.seconds);
    say_cost(run,
             "a rank sends %s over tp, %s over pp and %s over dp per step; ranks are idle for %.1f "
             "%% of the last step.",
             cost_text(run, "tp.sent"), cost_text(run, "pp.sent"), cost_text(run, "dp.sent"),
             100 * timing.idle_of_total);
    say_use_when(run, t->mesh.world->size == 1
                          ? "the model fits one device."
                          : "the model's state does not fit a node: tp inside a node, pp until a "
                            "stage fits, dp for the rest.");
}

static void show(Run *run, FiniteRule *rule, Trainer *t, const Data *d, Log *log, size_t from,
                 LossCurve got) {
    Timing timing = picture_timing(run);
    say(run, "\n");
    picture_show(run,
                 clock_config()->simulated ? "the last step, simulated"
                                           : "the last step, real time",
                 PICTURE_MEMORY | PICTURE_ALIKE_ONCE);
    picture_summary(run, &timing);
    train_check_time(run, t, &timing);
    train_results(run, t);
    train_say_faster(run, t);
    size_t all = data_eval_windows(d), windows = at_most(all, MOST_WINDOWS);
    double eval = trainer_evaluate(t, d, windows), entropy = data_entropy(d);
    log_end(log, eval);
    train_finite_held_out(run, rule, eval);
    size_t steps = train_steps(run);
    const char *unit = d->token_bytes == 1 ? "byte" : "token";
    if (option_flag(run, "verbose"))
        sketch_curve(run, d->token_bytes == 1 ? "loss, nats per byte" : "loss, nats per token",
                     got.loss + from, steps - from);
    say(run, "\nloss %.4f nats per %s at step %zu, %.4f at step %zu\n", got.loss[from], unit, from,
        got.loss[steps - 1], steps - 1);
    say(run,
        "held-out loss %.4f, over %zu of %zu windows; %ss guessed by their frequency alone: %.4f\n",
        eval, windows, all, unit, entropy);
    train_say_skipped(run, t, steps - from);
    report_config_number(run, "step_ps", (double)timing.step); // the time of the last step
    report_config_number(run, "eval_loss", eval);
    report_config_number(run, "eval_windows", (double)windows);
    report_config_number(run, "byte_entropy", entropy);
}

// Checks, before the training, that --export's files can be written and that the options of
// --export and --save are complete. With --save the run then catches signals.
static void require_files(Run *run, const ModelConfig *c) {
    if (option_given(run, "export") && run->is_root)
        safetensors_require(c, option_text(run, "export"));
    REQUIRE(option_given(run, "export") || !option_given(run, "export-type"),
            "--export-type says how to export, and --export FILE where: give both");
    static const char *const of_save[] = { "save-every", "keep", "save-over" };
    bool save = option_given(run, "save");
    for (size_t i = 0; i < 3; i++)
        REQUIRE(save || !option_given(run, of_save[i]),
                "--%s says how to save, and --save DIR where: give both", of_save[i]);
    train_stop_require(run);
    if (!save) return;
    REQUIRE(option_size(run, "save-every") > 0, "--save-every must be at least 1");
    REQUIRE(!option_given(run, "keep") || option_size(run, "keep") > 0,
            "--keep must be at least 1");
    stop_catch();
}

// With --init the training begins at step 0 with these weights and a new optimizer state.
static Weights init_open(Run *run) {
    Weights w = { 0 };
    if (!option_given(run, "init")) return w;
    size_t heads = option_given(run, "heads") ? option_size(run, "heads") : 0;
    w = weights_open(run->world, "init", option_text(run, "init"),
                     option_given(run, "heads") ? &heads : NULL, run->seed);
    train_take_model(run, &w.model);
    return w;
}

static void train(Run *run) {
    char note[CHECKPOINT_NOTE];
    REQUIRE(!option_given(run, "init") || !option_given(run, "resume"),
            "--init begins a training, and --resume continues one: leave --init or --resume out");
    RunOptions options = train_run_options(run, NULL);
    Checkpoint *before = resume_open(run->world, &options, note);
    say_note(run, note);
    if (before) train_take_options(run, &options);
    free(options.option);
    Weights init = init_open(run);
    TrainerConfig c = train_config(run);
    Optimizer optimizer = train_optimizer(run);
    size_t steps = train_steps(run);
    size_t from = before ? checkpoint_step(before) : 0;
    bool check = option_flag(run, "check");
    REQUIRE(from < steps, "--resume %s: all of its %zu steps are done; give more --steps",
            option_text(run, "resume"), from);
    require_files(run, &c.model);
    FiniteRule rule = train_finite_rule(run);
    train_checks_require(run, &c);
    Data data =
        training_text(run, option_text(run, "data"), option_text(run, "data-eval"),
                      option_text(run, "vocab") ? c.model.vocab : 0, c.model.context, c.batch);
    // With --check some sequences end early, because some bugs show only at unequal token counts.
    data.ragged = check;
    memory_set_poison(check); // filling new memory with NaN costs time
    if (!option_given(run, "threads") && !check && run->reduce == REDUCE_FAST && !device_is_gpu())
        device_set_threads(cores_per_rank()); // may change the bits of products
    options = train_run_options(run, &c.mesh);
    SavedRun saved = resume_run(&options, before, &data);
    bool logged = option_given(run, "log") && run->is_root;
    Log log =
        log_open(logged ? option_text(run, "log") : NULL, option_given(run, "resume"), saved.id);
    Trainer *t = trainer_new(run->world, &c, optimizer);
    Unsplit u = { 0 };
    if (check && run->world->rank == 0) u = unsplit_new(run, &c);
    if (check && c.reduction == REDUCE_COMPRESSED) u.rule = compressed_new(t);
    if (before) {
        checkpoint_load(before, t->model, &t->optimizer);
        if (u.model) checkpoint_load(before, u.model, &u.optimizer);
        unsent_resume(before, t);
        compressed_load(u.rule, before, t);
        train_scale_resume(run, t, &saved);
        char *line = resume_line(&options, before, &saved);
        say(run, "%s", line);
        free(line);
        checkpoint_free(before);
    }
    if (init.from) {
        weights_fill(&init, t->model);
        if (u.model) weights_fill(&init, u.model);
        say(run, "begins with the weights of %s\n", init.from);
        weights_close(&init);
    }
    free(options.option);
    train_record(run, &c);
    say(run, "%zu parameters; batch %zu, %zu micro-batches per replica; %zu %s\n",
        config_parameters(&c.model), c.batch, t->micro_batches, data.tokens,
        data.token_bytes == 1 ? "bytes of text" : "tokens");
    if (tensor_is_grid(&c))
        say(run, "a tp group is a grid of %zu x %zu x %zu ranks", tensor_sides(&c).q,
            tensor_sides(&c).q, tensor_sides(&c).depth);
    if (c.tensor == TENSOR_3D)
        say(run, "a tp group is a cube of %zu^3 ranks", cube_side(c.mesh.tp));
    char cp[40] = "";
    if (t->mesh.cp) snprintf(cp, sizeof cp, " x cp %zu", c.mesh.cp);
    say(run,
        "dp %zu x tp %zu x pp %zu%s, [ ] is a tp group; schedule %s, ZeRO %zu%s, recompute %s, %d "
        "thread%s per rank",
        c.mesh.dp, c.mesh.tp, c.mesh.pp, cp, option_text(run, "schedule"), trainer_zero(&c),
        train_reduction_words(&c), option_text(run, "recompute"), device_threads,
        device_threads > 1 ? "s" : "");
    train_say_storage(run, t);
    train_say_defaults(run, &c, steps);
    train_show_mesh(run, &c);
    say(run, "\n");

    LossCurve got = curve_new(steps), want = curve_new(steps);
    Speed speed = { 0 };
    size_t done = loop(run, &rule, t, &u, &data, &log, &saved, from, got, want, &speed);
    if (done < steps || rule.lost) report_ended_early(run);
    else show(run, &rule, t, &data, &log, from, got);
    if (saved.best_step)
        say(run, "lowest held-out loss of a checkpoint: %.4f, step %zu\n", saved.best_loss,
            saved.best_step);
    if (!rule.lost && train_finite_weights(run, &rule, t, done)) {
        if (option_given(run, "export")) train_export(run, t);
        train_checks(run, t, u.model, (Range){ from, done }, got, want);
        if (done == steps) {
            say_saved(run, done);
            answer(run, t, &data, (Range){ from, done }, got, speed);
        }
    }
    // A resumed run relies on the order of the data and on the saved state.
    if (check && option_given(run, "save") && !rule.lost) {
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

EXPERIMENT(train, train_options);
