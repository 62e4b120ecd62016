// ranks: 1
// level: core
// question: How much memory does a batch need when it comes in m micro-batches, and are its gradients the same?
// vary: SEQUENCES 5..11, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// One device. 7 sequences come in m micro-batches (--micro-batches, default 3: of 3, 2 and 2 sequences). Forward and
// backward run for one micro-batch at a time, so only its activations are alive; the gradients of all are added in the
// one gradient buffer there is.
// Left out: other devices (the next lesson), and overlapping micro-batches, which is a pipeline (chapter 04).
#include "02_grad_accumulation/experiments/02_costs.h"
#include "judge/frame/training.h"
#include "judge/draw/picture.h"
#include <stdlib.h>

// ================================ the technique ================================

// The gradient of the whole batch's mean loss, from m micro-batches: zero once, add m times, fold the tied table once.
// model->g [Psi] is the only gradient buffer. Every token weighs 1 / (counted tokens of the whole batch), which the
// order of the data says in advance (data_count): no micro-batch needs to know how many tokens the others have.
static double accumulate(Model *model, const Batch *batch, size_t m) {
    double loss = 0;
    // EXERCISE 02.02a (4 points): accumulate. Leave the gradient of the whole batch's mean loss in the model's
    // gradients, and that loss in `loss`. The batch comes in micro-batches batch[0] to batch[m - 1].
    // model_forward_backward() walks one of them forward and backward: it ADDS to the gradients, in which a token
    // weighs batch[k].token_weight, and returns the sum of the losses of its tokens, not yet weighed. The gradients may
    // hold anything when you begin. The table wte is used twice and has two gradients; model_fold_tied() makes one of
    // them, once all is added.
    model_zero_gradients(model);
    for (size_t k = 0; k < m; k++)             // activations come and go in here
        loss += model_forward_backward(model, &batch[k]) * batch[k].token_weight;
    model_fold_tied(model);
    // END
    return loss;
}

// A step: m micro-batches, then one norm and one update.
static StepResult step(void *nothing, Model *model, Optimizer *o, const Training *t, const Batch *batch) {
    (void)nothing;
    double loss = accumulate(model, batch, t->micro_batches), norm = model_grad_norm(model, NULL);
    optimizer_step(o, model, 1);
    return (StepResult){ loss, norm };
}

// ================================ the experiment ================================

enum { SEQUENCES = 7, STEPS = 3 };
static const ModelConfig tiny = { .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61 };   // --dropout 0.1

static Model *new_model(const Training *t) {
    Model *model = model_describe(&t->model, model_layers(&t->model));
    model_allocate(model);
    return model;
}

static Trajectory train(Run *run, const Training *t, AccumulationBytes *seen) {
    Trajectory c = trajectory_new(run, t);
    Model *model = new_model(t);
    training_run(&c, model, t, 1, 0, step, NULL);
    *seen = (AccumulationBytes){ memory_peak(MEM_ACTIVATIONS), memory_now(MEM_PARAMETERS), memory_now(MEM_GRADIENTS),
                                 memory_now(MEM_OPTIMIZER) };
    model_free(model);
    return c;
}

// ---------------------------------------------------------------- the trap

// Every micro-batch takes the mean over its own tokens, and the m means are averaged. With equally many tokens in every
// micro-batch the trap cannot be seen, which is why it lives so long: so a step is taken whose micro-batches are
// unequal.
static void show_trap(Run *run, const Training *t) {
    size_t m = t->micro_batches, count[SEQUENCES];
    uint64_t step = 0;
    for (bool equal = true; equal; step += equal)
        for (size_t k = 0; k < m; k++) {
            Range r = training_micro_batch(t, 1, 0, k);
            count[k] = data_count(&t->data, step, r.lo, range_size(r));
            equal = equal && count[k] == count[0];
        }
    Model *model = new_model(t);
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = training_batches(t, &tokens, step, 1, 0);
    Snapshot *wrong = snapshot_new(run), *right = snapshot_new(run);
    double loss = accumulate(model, batch, m);
    model_snapshot(model, right, UNIT_GRADIENTS, NULL);
    for (size_t k = 0; k < m; k++) batch[k].token_weight = 1 / (double)(m * count[k]);
    double loss_wrong = accumulate(model, batch, m);
    model_snapshot(model, wrong, UNIT_GRADIENTS, NULL);
    say(run, "step %zu: mean loss of the tokens %.4f; mean of the micro-batches' means %.4f (the trap)\n", (size_t)step,
        loss, loss_wrong);
    check_differs(run, "trap: the mean of means", wrong, right, 1e-3);     // a hundred times what rounding may do
    snapshot_free(wrong);
    snapshot_free(right);
    free(batch);
    arena_free(&tokens);
    model_free(model);
}

// ---------------------------------------------------------------- the picture

// The same batch twice, one after the other: at once, and in m micro-batches. It takes as long, and much less room.
static Timing draw(Run *run, const Training *t, const Training *whole) {
    Model *model = new_model(t);
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *at_once = training_batches(whole, &tokens, 0, 1, 0), *batch = training_batches(t, &tokens, 0, 1, 0);
    picture_begin(run, MEM_ACTIVATIONS);
    accumulate(model, at_once, 1);
    accumulate(model, batch, t->micro_batches);
    picture_end(run);
    Timing timing = picture_timing(run);
    picture_show(run, "one batch at once, then in micro-batches", PICTURE_MEMORY);
    if (option_flag(run, "verbose")) picture_summary(run, &timing);
    free(at_once);
    free(batch);
    arena_free(&tokens);
    model_free(model);
    return timing;
}

static void accumulation(Run *run) {
    REQUIRE(run->world->size == 1,
            "02_accumulate is about one device: start it with one rank (03_no_sync has several)");
    size_t m = option_size(run, "micro-batches");
    double dropout = option_real(run, "dropout");
    REQUIRE(dropout >= 0 && dropout < 1, "--dropout must be at least 0 and less than 1, not %g", dropout);
    REQUIRE(m >= 2 && m <= SEQUENCES,
            "--micro-batches must be from 2 to %d, so that the batch is cut and no piece is empty", SEQUENCES);
    Data data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    say_detail(run, "%d sequences in %zu micro-batches; counted tokens in step 0:", SEQUENCES, m);
    for (size_t k = 0; k < m; k++) {
        Range r = shard_range(SEQUENCES, m, k);
        say_detail(run, "    micro-batch %zu: %zu sequences, %zu tokens\n", k, range_size(r),
                   data_count(&data, 0, r.lo, range_size(r)));
    }
    Training t = { .model = tiny, .data = data, .steps = STEPS, .sequences = SEQUENCES, .micro_batches = m }, whole;
    AccumulationBytes seen, seen_whole;
    t.model.seed = run->seed;
    t.model.dropout = dropout;
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.1);
        whole = t;
        whole.micro_batches = 1;
        Trajectory got = train(run, &t, &seen), at_once = train(run, &whole, &seen_whole);    // this one for its memory
        Trajectory want = training_unsplit(run, &whole, 1);
        training_compare(run, "accumulated = at once", &got, &want, LIMIT_ROUNDING);
        trajectory_free(&got);
        trajectory_free(&at_once);
        trajectory_free(&want);
    }
    show_trap(run, &t);
    Timing both = draw(run, &t, &whole);
    accumulation_costs(run, &t, &seen, &seen_whole, &both);        // of AdamW's training
    data_free(&data);
}

static const Option options[] = {
    { "micro-batches", "N", "3", "pieces in which the batch comes, 2 to 7" },
    { "dropout", "X", "0.1", "the model's; without it, attention keeps its probabilities once, not twice" },
    {0},
};
EXPERIMENT(accumulation, options);
