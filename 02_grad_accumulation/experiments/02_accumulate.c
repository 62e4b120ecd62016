// 02_accumulate.c (experiment): trains with a batch in micro-batches, and with the same batch in
// one piece. Compares the gradients and the memory, and shows the trap, the mean of means.
#include "01_data_parallel/experiments/experiments.h"
#include "02_grad_accumulation/accumulation.h"
#include <math.h>
#include <stdlib.h>

enum { SEQUENCES = 7, STEPS = 3 };
// accumulation() sets the dropout from --dropout.
static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61
};

static StepResult take_step(void *nothing, Model *model, Optimizer *o, const Training *t,
                            const Batch *batch) {
    (void)nothing;
    return accumulate_step(model, o, batch, t->micro_batches);
}

// ---------------------------------------------------------------- one batch, three ways to compute

// Returns the first step in which the micro-batches have different numbers of counted tokens, and
// sets `count` to these numbers. In a step with equal numbers the trap gives the right result.
static uint64_t uneven_step(const Training *t, size_t count[SEQUENCES]) {
    uint64_t step = 0;
    for (bool equal = true; equal; step += equal)
        for (size_t k = 0; k < t->micro_batches; k++) {
            Range r = training_micro_batch(t, 1, 0, k);
            count[k] = data_count(&t->data, step, r.lo, range_size(r));
            equal = equal && count[k] == count[0];
        }
    return step;
}

// Records and draws two computations of a batch's gradient, first at once and then in m
// micro-batches. Then shows the trap, in which every micro-batch takes the mean over its own
// tokens, and the m means are averaged. Sets seen[0] to the costs of the batch at once, and seen[1]
// to the costs in micro-batches. Returns the time of the two computations together.
static Picoseconds one_batch(Run *run, const Training *t, const Training *whole, Measured seen[2]) {
    const size_t m = t->micro_batches;
    size_t count[SEQUENCES];
    const uint64_t step = uneven_step(t, count);
    Model *model = whole_model(&t->model);
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *at_once = training_batches(whole, &tokens, step, 1, 0);
    Batch *batch = training_batches(t, &tokens, step, 1, 0);
    Snapshot *wrong = snapshot_new(run), *right = snapshot_new(run);

    picture_begin(run, MEM_ACTIVATIONS);
    memory_reset_peaks();
    accumulate_gradients(model, at_once, 1);
    seen[0] = measured_now(run->world);
    memory_reset_peaks();
    double loss = accumulate_gradients(model, batch, m);
    seen[1] = measured_now(run->world);
    picture_end(run);
    Picoseconds time = picture_timing(run).step;
    picture_show(run, "The whole batch, then micro-batches", PICTURE_MEMORY);

    model_snapshot(model, right, UNIT_GRADIENTS, NULL);
    Tensor difference = tensor_like(&tokens, model->g);
    tensor_copy(difference, model->g);
    const double whole_norm = sqrt(tensor_sum_of_squares(model->g));
    for (size_t k = 0; k < m; k++) batch[k].token_weight = 1 / (double)(m * count[k]);
    double loss_wrong = accumulate_gradients(model, batch, m);
    model_snapshot(model, wrong, UNIT_GRADIENTS, NULL);
    // The limit of rounding errors in fp32 is a hundredth of 1e-3. With 16 bits the limit is
    // larger, and the trap's error must exceed this larger limit.
    check_differs(run, "trap: the mean of means", wrong, right, fmax(1e-3, rounding_limit(run)));
    op_scale(difference, difference, -1);
    op_add(difference, model->g, difference); // the trap's gradient - the batch's gradient
    say(run,
        "Trap: each micro-batch takes the mean loss of its own tokens. The mean of these means is "
        "%.4f.\nThe mean loss of all tokens is %.4f (step %zu). The gradients differ by %.0f %% "
        "(norm of their\ndifference, divided by the norm of the batch's gradient).",
        loss_wrong, loss, (size_t)step, 100 * sqrt(tensor_sum_of_squares(difference)) / whole_norm);
    snapshot_free(wrong);
    snapshot_free(right);
    free(at_once);
    free(batch);
    arena_free(&tokens);
    model_free(model);
    return time;
}

// ---------------------------------------------------------------- costs, and the page

// Checks the costs, and prints the table of results and the answer.
//     seen  the costs at once [0], and in micro-batches [1]
//     time  the time of the two computations together
static void costs(Run *run, const Training *t, const Measured seen[2], Picoseconds time) {
    const ModelConfig *c = &t->model;
    const CutSizes model = cut_sizes(c, 1, 0); // only the number of sequences changes with m
    const size_t B = t->sequences, m = t->micro_batches, largest = ceil_div(B, m);
    const size_t gradients = elements_gradients(&model);
    double predicted_time = work_model(c, B).time;
    for (size_t k = 0; k < m; k++) predicted_time += work_model(c, part_size(B, m, k)).time;
    check_costs(run, "%s", "%s",
                (CostRow[]){
                    { "activations.whole", "activations, at once", "bytes",
                      BY_FORMULA((double)activations_bytes(&model, B)), seen[0].activations_peak },
                    { "activations.pieces", "activations, m micro-batches", "bytes",
                      BY_FORMULA((double)activations_bytes(&model, largest)),
                      seen[1].activations_peak },
                    { "gradients", "gradients (wte twice): no m", "bytes",
                      BY_FORMULA((double)(gradients * gradient_bytes(c))), seen[1].gradients },
                    { clock_config()->simulated ? "time" : NULL, "time, at once and then in pieces",
                      "ps", BY_FORMULA(predicted_time), (double)time },
                    { 0 } });

    const char *kept = page_text(run, "sequences x %zu tokens x %zu elements x %zu B", c->context,
                                 kept_model(c), weight_bytes(c));
    say(run,
        "\nB sequences in m micro-batches. Psi: the parameters. wte: the embedding table.\nA token "
        "keeps %zu elements for backward (the reference of chapter 02 lists them).\n",
        kept_model(c));
    results(run, (const char *const[]){ "whole", page_text(run, "%zu micro-batches", m), NULL },
            (const Result[]){
                { "sequences on the device",
                  "ceil(B / m)",
                  { page_text(run, "=%zu", B), page_text(run, "=%zu", largest) } },
                { "activations, peak", kept, { "activations.whole", "activations.pieces" } },
                { "gradients", "Psi, and wte a second time", { "gradients", "gradients" } },
                { 0 } });
    say_answer(run,
               "In %zu micro-batches the activations need %s instead of %s, because the "
               "device runs %zu of %zu sequences at a time. Yes, the gradients are the same "
               "up to rounding.",
               m, cost_text(run, "activations.pieces"), cost_text(run, "activations.whole"),
               largest, B);
    say_cost(run,
             "no message, and scratch memory for the new gradients of one operation. All "
             "micro-batches add to one gradient buffer (%s). Weights and moments need as much as "
             "before. Forward and backward take as long as before, if small matrix products are "
             "as fast as large ones.",
             cost_text(run, "gradients"));
    say_use_when(run, "the activations of the batch do not fit, but those of one sequence do. Take "
                      "the largest micro-batch that fits, because small ones use a GPU poorly.");
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
    t.model.dropout = dropout;
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.1);
        whole = t;
        whole.micro_batches = 1;
        Trajectory got = trajectory_new(run, &t), want = training_unsplit(run, &whole, 1);
        Model *model = whole_model(&t.model);
        training_run(&got, model, &t, 1, 0, take_step, NULL);
        training_compare(run, "accumulated = at once", &got, &want, rounding_limit(run));
        model_free(model);
        trajectory_free(&got);
        trajectory_free(&want);
    }
    Measured seen[2];
    Picoseconds time = one_batch(run, &t, &whole, seen);
    costs(run, &t, seen, time);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "3", "number of pieces of the batch, 2 to 7" },
    { "dropout", "X", "0.1", "at 0 attention keeps its probabilities once, not twice" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(accumulation, options);
