// 02_accumulate.c (experiment): trains with a batch in micro-batches, and with the same batch in
// one piece. Compares the gradients, measures the memory, and shows the trap, the mean of means.
#include "01_data_parallel/experiments/experiments.h"
#include "02_grad_accumulation/accumulation.h"
#include <math.h>
#include <stdlib.h>

enum { SEQUENCES = 7, STEPS = 3 };
// The dropout comes from --dropout.
static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61
};

static StepResult take_step(void *nothing, Model *model, Optimizer *o, const Training *t,
                            const Batch *batch) {
    (void)nothing;
    return accumulate_step(model, o, batch, t->micro_batches);
}
static Trajectory train(Run *run, const Training *t, Measured *seen) {
    Trajectory c = trajectory_new(run, t);
    Model *model = whole_model(&t->model);
    training_run(&c, model, t, 1, 0, take_step, NULL);
    *seen = measured_now(run->world);
    model_free(model);
    return c;
}

// ---------------------------------------------------------------- the trap

// Shows the trap. Every micro-batch takes the mean over its own tokens, and the m means are
// averaged. The result is wrong only where micro-batches have different numbers of counted tokens.
// So this function looks for the first step in which these numbers differ.
static void show_trap(Run *run, const Training *t) {
    size_t m = t->micro_batches, count[SEQUENCES];
    uint64_t step = 0;
    for (bool equal = true; equal; step += equal)
        for (size_t k = 0; k < m; k++) {
            Range r = training_micro_batch(t, 1, 0, k);
            count[k] = data_count(&t->data, step, r.lo, range_size(r));
            equal = equal && count[k] == count[0];
        }
    Model *model = whole_model(&t->model);
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = training_batches(t, &tokens, step, 1, 0);
    Snapshot *wrong = snapshot_new(run), *right = snapshot_new(run);
    double loss = accumulate_gradients(model, batch, m);
    model_snapshot(model, right, UNIT_GRADIENTS, NULL);
    for (size_t k = 0; k < m; k++) batch[k].token_weight = 1 / (double)(m * count[k]);
    double loss_wrong = accumulate_gradients(model, batch, m);
    model_snapshot(model, wrong, UNIT_GRADIENTS, NULL);
    // Rounding stays a hundred times below 1e-3; with 16 bits it stays below its own limit.
    check_differs(run, "trap: the mean of means", wrong, right, fmax(1e-3, rounding_limit(run)));
    snapshot_free(wrong);
    snapshot_free(right);
    free(batch);
    arena_free(&tokens);
    model_free(model);
    say(run,
        "Trap: the mean of the micro-batches' means is %.4f, the mean loss of all tokens %.4f "
        "(step %zu).",
        loss_wrong, loss, (size_t)step);
}

// ---------------------------------------------------------------- the picture

// Draws the same batch twice, first in one piece, then in m micro-batches.
static Timing draw(Run *run, const Training *t, const Training *whole) {
    Model *model = whole_model(&t->model);
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *at_once = training_batches(whole, &tokens, 0, 1, 0),
          *batch = training_batches(t, &tokens, 0, 1, 0);
    picture_begin(run, MEM_ACTIVATIONS);
    accumulate_gradients(model, at_once, 1);
    accumulate_gradients(model, batch, t->micro_batches);
    picture_end(run);
    Timing timing = picture_timing(run);
    picture_show(run, "One batch at once, then in micro-batches", PICTURE_MEMORY);
    if (option_flag(run, "verbose")) picture_summary(run, &timing);
    free(at_once);
    free(batch);
    arena_free(&tokens);
    model_free(model);
    return timing;
}

// ---------------------------------------------------------------- costs

// Prints the page's table and answer.
static void show(Run *run, const Training *t, double whole_time, double pieces_time) {
    const size_t m = t->micro_batches;
    const char *kept = page_text(run, "sequences x %zu tokens x %zu elements x %zu B",
                                 t->model.context, kept_model(&t->model), weight_bytes(&t->model));
    const Result rows[] = {
        { "sequences on the device",
          "ceil(B / m)",
          { page_text(run, "=%zu", t->sequences),
            page_text(run, "=%zu", ceil_div(t->sequences, m)) } },
        { "activations, peak", kept, { "activations.whole", "activations.pieces" } },
        { "weights", "Psi for any m", { "weights", "weights" } },
        { "gradients", "Psi, and wte a second time", { "gradients", "gradients" } },
        { "AdamW's moments", "2 Psi for any m", { "moments", "moments" } },
        { pieces_time > 0 ? "forward and backward" : NULL,
          "3F; F is proportional to sequences",
          { page_text(run, "=%.2f ms", whole_time / 1e9),
            page_text(run, "=%.2f ms", pieces_time / 1e9) } },
        { 0 }
    };
    say(run, "\nB sequences in m micro-batches. Psi: the parameters. wte: the embedding table.%s\n",
        pieces_time > 0 ? " F: a forward of B." : "");
    results(run, (const char *const[]){ "at once", page_text(run, "%zu micro-batches", m), NULL },
            rows);
    say_answer(run,
               "In %zu micro-batches the activations need %s instead of %s, because the "
               "device runs %zu of %zu sequences at a time. Yes, the gradients are the same "
               "up to rounding.",
               m, cost_text(run, "activations.pieces"), cost_text(run, "activations.whole"),
               ceil_div(t->sequences, m), t->sequences);
    say_cost(run,
             "no message and no extra memory, because all micro-batches add to one gradient "
             "buffer (%s). Weights and moments need as much as before.",
             cost_text(run, "gradients"));
    say_use_when(run, "the activations of the batch do not fit, but those of one sequence do. Take "
                      "the largest micro-batch that fits, because small ones use a GPU poorly.");
}

// Checks the costs. got: the training in micro-batches. whole: the training with the undivided
// batch. both: the time of forward and backward, for the undivided batch and then for its
// micro-batches.
static void costs(Run *run, const Training *t, const Measured *got, const Measured *whole,
                  const Timing *both) {
    const ModelConfig *c = &t->model;
    const CutSizes model = cut_sizes(c, 1, 0); // only the number of sequences changes with m
    const size_t m = t->micro_batches, weights = elements_stage(&model);
    const size_t gradients = elements_gradients(&model);
    check_costs(run, "%s", "%s",
                (CostRow[]){
                    { "activations.whole", "activations, at once", "bytes",
                      BY_FORMULA((double)activations_bytes(&model, t->sequences)),
                      whole->activations_peak },
                    { "activations.pieces", "activations, m micro-batches", "bytes",
                      BY_FORMULA((double)activations_bytes(&model, ceil_div(t->sequences, m))),
                      got->activations_peak },
                    { "weights", "parameters", "bytes",
                      BY_FORMULA((double)(weights * weight_bytes(c))), got->parameters },
                    { "gradients", "gradients (wte twice): no m", "bytes",
                      BY_FORMULA((double)(gradients * gradient_bytes(c))), got->gradients },
                    { "moments", c->storage == REALS ? "AdamW's m and v" : "m, v and masters",
                      "bytes", BY_FORMULA((double)(weights * adamw_bytes(c))), got->optimizer },
                    { 0 } });
    double whole_time = 0, pieces = 0;
    if (clock_config()->simulated) {
        whole_time = work_model(c, t->sequences).time;
        for (size_t k = 0; k < m; k++) pieces += work_model(c, part_size(t->sequences, m, k)).time;
        check_cost(run, "time", "time, at once and then in pieces", "ps",
                   formula(whole_time + pieces), NOT_PREDICTED, (double)both->step);
    }
    show(run, t, whole_time, pieces);
}

// ---------------------------------------------------------------- the trainings

static void accumulation(Run *run) {
    REQUIRE(run->world->size == 1,
            "02_accumulate runs on one device: start it with one rank, or run 03_no_sync");
    size_t m = option_size(run, "micro-batches");
    double dropout = option_real(run, "dropout");
    REQUIRE(dropout >= 0 && dropout < 1, "--dropout must be at least 0 and less than 1, not %g",
            dropout);
    REQUIRE(m >= 2 && m <= SEQUENCES,
            "--micro-batches %zu: choose 2 to %d, because the batch has %d sequences", m, SEQUENCES,
            SEQUENCES);
    Training t = synthetic_training(run, &tiny, STEPS, SEQUENCES), whole;
    t.micro_batches = m;
    Measured seen, seen_whole;
    t.model.dropout = dropout;
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.1);
        whole = t;
        whole.micro_batches = 1;
        Trajectory got = train(run, &t, &seen);
        Trajectory at_once = train(run, &whole, &seen_whole); // only its memory is used
        Trajectory want = training_unsplit(run, &whole, 1);
        training_compare(run, "accumulated = at once", &got, &want, rounding_limit(run));
        trajectory_free(&got);
        trajectory_free(&at_once);
        trajectory_free(&want);
    }
    Timing both = draw(run, &t, &whole);
    costs(run, &t, &seen, &seen_whole, &both);
    show_trap(run, &t);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "3", "number of pieces of the batch, 2 to 7" },
    { "dropout", "X", "0.1", "at 0 attention keeps its probabilities once, not twice" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(accumulation, options);
