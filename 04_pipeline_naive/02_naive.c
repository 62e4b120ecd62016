// ranks: 4
// level: core
// question: Can every rank hold only a few layers, train the model together, and get the very same bits?
//
// A model is a list of layers, so a stage is a sub-list: rank i holds some neighbouring layers, their gradients and
// their optimizer state, nothing else. A micro-batch goes all the way forward, from rank to rank, and its gradient all
// the way back, before the next one starts. The embedding table wte is used twice, on the first and on the last stage:
// both keep a copy of it.
// Left out: working at the same time. Exactly one rank is busy at any moment; 03_gpipe does something about that.
#include "04_pipeline_naive/stack.h"
#include "04_pipeline_naive/stage_costs.h"

// 9 blocks do not divide by 4 stages (3, 2, 2, 2); the sequences of a batch count 5 to 10 tokens each.
static const ModelConfig sizes = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1 };
enum { SEQUENCES = 5 };

// ---------------------------------------------------------------- one step, on stage i

static StepResult naive_step(void *stages, Model *m, Optimizer *o, const Training *t, const Batch *batch) {
    Stages *s = stages;
    // My list is F0 B0 F1 B1 ... A forward receives [B*T, C] from stage i - 1 and sends as much to stage i + 1; a
    // backward receives the gradient of what I sent, and sends the gradient of what I received.
    model_zero_gradients(m);
    PipelineResult r = pipeline_run(s->pp, m, &s->schedule, batch, t->micro_batches);
    s->in_flight = r.in_flight;
    // The first stage has the embedding's part of wte's gradient, the last one the head's. Both need the sum.
    pipeline_tied_sum(m, s->tied);

    // Only the last stage knows the loss, and each stage the squares of its own tensors: the others add zeros.
    comm_all_reduce_doubles(s->pp, &r.loss, 1);
    double norm = model_grad_norm(m, s->pp);
    optimizer_step(o, m, clip_factor(norm, t->clip));      // my layers only
    // token_weight: 1 / counted tokens of the whole batch.
    return (StepResult){ r.loss * batch[0].token_weight, norm };
}

// ---------------------------------------------------------------- the predictions, from sizes alone

static void predict(Run *run, const Training *t, const StageCosts *seen) {
    size_t p = run->world->size, i = run->world->rank, E = sizeof(real);
    cost_of_stage(run, t, seen);                           // messages, sums, parameters, gradients, optimizer state
    cost(run, "in flight, most", "micro-batches", 1, seen->in_flight);
    // Micro-batch 0 is the largest. What its forward keeps is freed by its backward, before the next one starts.
    cost(run, "activations, peak", "bytes", stage_kept(&t->model, p, i) * tokens_of(t, 0) * E, seen->activations);
    cost(run, "message buffers, peak", "bytes", message_buffers(t, p, i), seen->message_buffers);
}

// Nothing ever happens at the same time: a micro-batch passes every stage twice, and every link between two of them.
static void step_time(Run *run, const Training *t, const Timing *last) {
    size_t p = run->world->size, m = t->micro_batches;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    if (!clock_config()->simulated) return;                    // real time differs from run to run
    Picoseconds work = 0, transfer = 0;
    for (size_t k = 0; k < m; k++) {
        size_t B = range_size(shard_range(SEQUENCES, m, k));
        for (size_t i = 0; i < p; i++) work += 3 * stage_forward_time(&t->model, p, i, B);       // t_b = 2 t_f
        transfer += 2 * (p - 1) * message_time(&t->model, B);
    }
    // Then the sums: of wte's gradient, of the loss and of the squares. Everybody waits for all of it.
    double sums = p > 1 ? ring_time(ALL_REDUCE_PASSES, 2, sizes.vocab * sizes.width, sizeof(real)) : 0;
    sums += ring_time(ALL_REDUCE_PASSES, p, 1, sizeof(double));
    sums += ring_time(ALL_REDUCE_PASSES, p, 12 * sizes.layers + 4, sizeof(double));
    cost(run, "last step: work, messages, sums in a row", "ps", work + transfer + sums, last->step);

    // Where all stages are equal, here of two blocks: m p (t_f + t_b), so that a stage is idle for 1 - 1/p of the step.
    Played seen = stack_play(run, &stack, schedule_naive, m);
    StackTimes d = stack_times(&stack);
    Picoseconds step = m * (p * (d.forward + d.backward) + 2 * (p - 1) * d.message);
    cost(run, "equal stages: step", "ps", step, seen.timing.step);
    cost_of_bubble(run, "equal stages", &stack, m, step, &seen.timing);
    cost(run, "equal stages: exposed, 2m(p-1) messages", "ps", 2 * m * (p - 1) * d.message, seen.timing.exposed);
    cost(run, "equal stages: hidden", "ps", 0, seen.timing.hidden);
}

// ---------------------------------------------------------------- the lesson

static void naive(Run *run) {
    size_t p = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks", p, sizes.layers);
    REQUIRE(m >= 1 && m <= SEQUENCES, "--micro-batches %zu: the batch has %d sequences: choose 1 to %d", m, SEQUENCES,
            SEQUENCES);
    Training t = { .model = sizes, .steps = 3, .sequences = SEQUENCES, .micro_batches = m,
                   .recorded = true, .watched = MEM_ACTIVATIONS };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    StageCosts seen = {0};
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        Trajectory got = trajectory_new(run, &t), want = training_unsplit(run, &t, 1);
        seen = stages_train(run, &t, schedule_naive, naive_step, &got);
        say(run, "%s: loss %.4f, %.4f, %.4f", i ? "AdamW" : "SGD", got.loss[0], got.loss[1], got.loss[2]);
        training_compare(run, "naive = unsplit", &got, &want, 0);
        trajectory_free(&got);
        trajectory_free(&want);
    }
    Timing last = picture_timing(run);
    picture_show(run, "naive, the last step", PICTURE_MEMORY);
    picture_summary(run, &last);
    predict(run, &t, &seen);
    step_time(run, &t, &last);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "1", "pieces the batch is cut into; each goes there and back before the next one" },
    {0},
};
LESSON(naive, options);
