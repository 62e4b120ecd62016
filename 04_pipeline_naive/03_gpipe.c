// ranks: 4
// level: core
// question: How long are stages idle when the batch is cut into micro-batches, and what does keeping them busy cost?
//
// GPipe (Huang et al. 2018): a stage hands micro-batch 0 on and starts micro-batch 1 at once, so that all stages work
// at the same time on different micro-batches. All forwards come first, then all backwards. We run the backwards
// ascending, to keep the bits of accumulation; torchgpipe runs them descending. One step still adds the gradients of
// all micro-batches: nothing but the order of the ops differs from the naive pipeline, and every result is the same in
// every bit. The price is memory: what m forwards keep waits until the last of them is done.
// Left out: giving the memory back by keeping only stage inputs (GPipe does that; chapter 07).
#include "04_pipeline_naive/stack.h"
#include "04_pipeline_naive/stage_costs.h"
#include <stdio.h>

// 7 sequences of 5 to 10 counted tokens each, in 4 micro-batches of 2, 2, 2 and 1; 9 blocks on 4 stages: 3, 2, 2, 2.
static const ModelConfig sizes = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37 };
enum { SEQUENCES = 7 };

// ---------------------------------------------------------------- one step: that of 02_naive, whatever the list

static StepResult pipeline_step(void *stages, Model *m, Optimizer *o, const Training *t, const Batch *batch) {
    Stages *s = stages;
    model_zero_gradients(m);
    PipelineResult r = pipeline_run(s->pp, m, &s->schedule, batch, t->micro_batches);
    s->in_flight = r.in_flight;
    pipeline_tied_sum(m, s->tied);
    comm_all_reduce_doubles(s->pp, &r.loss, 1);
    double norm = model_grad_norm(m, s->pp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ r.loss * batch[0].token_weight, norm };
}

// ---------------------------------------------------------------- the predictions, from sizes alone

static void predict(Run *run, const Training *t, const StageCosts *gpipe, const StageCosts *naive) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, E = sizeof(real);
    size_t kept = stage_kept(&t->model, p, i) * E, all = SEQUENCES * sizes.context, largest = tokens_of(t, 0);
    cost_of_stage(run, t, gpipe);                          // as when naive
    cost(run, "in flight, naive", "micro-batches", 1, naive->in_flight);
    cost(run, "in flight, GPipe: m", "micro-batches", m, gpipe->in_flight);
    cost(run, "activations, peak, naive: the largest micro-batch", "bytes", kept * largest, naive->activations);
    cost(run, "activations, peak, GPipe: all of them", "bytes", kept * all, gpipe->activations);
    cost(run, "message buffers, peak", "bytes", message_buffers(t, p, i), gpipe->message_buffers);
}

static size_t max(size_t a, size_t b) { return a > b ? a : b; }

// Equal stages of two blocks, micro-batches of one sequence. The first micro-batch passes all stages and links: p t_f +
// (p-1) d, with d the time of a message. Each of the others follows it as closely as the slowest on the way lets it, a
// stage or a link. So messages that are not longer than the work of a stage hide behind it: all but the first of each
// link and direction.
static void step_time(Run *run, const Training *t) {
    size_t p = run->world->size;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    if (!clock_config()->simulated) return;                    // real time differs from run to run
    StackTimes d = stack_times(&stack);
    size_t links = p - 1, way = links ? d.message : 0, f = d.forward, b = d.backward;
    say(run, "%zu equal stages, their step in units of t_f, with t_b = 2 t_f; ideal: m (t_f + t_b)", p);
    say(run, "     m    naive    GPipe   ideal   bubble / step   bubble / ideal");
    for (size_t m = 1; m <= 32; m *= 2) {
        char name[48];
        Played slow = stack_play(run, &stack, schedule_naive, m), seen = stack_play(run, &stack, schedule_gpipe, m);
        size_t step = p * (f + b) + 2 * links * way + (m - 1) * (max(f, way) + max(b, way));
        size_t in_turn = m * (p * (f + b) + 2 * links * way);
        sprintf(name, "equal stages, m = %zu: step", m);
        cost(run, name, "ps", step, seen.timing.step);
        double naive = (double)slow.timing.step / (double)f, gpipe = (double)seen.timing.step / (double)f;
        say(run, "  %4zu  %7.1f  %7.1f  %6zu  %12.1f %%  %13.1f %%", m, naive, gpipe, 3 * m,
            100 * seen.timing.idle_of_total, 100 * seen.timing.idle_of_ideal);
        if (m != 8) continue;
        cost_of_bubble(run, "equal stages, m = 8", &stack, m, step, &seen.timing);
        size_t late = (way > f ? way - f : 0) + (way > b ? way - b : 0);         // 0: the others hide
        size_t exposed = links * (2 * way + (m - 1) * late);
        cost(run, "equal stages, m = 8: exposed, 2(p-1) messages or more", "ps", exposed, seen.timing.exposed);
        cost(run, "equal stages, m = 8: hidden", "ps", links * 2 * m * way - exposed, seen.timing.hidden);
        cost(run, "naive, m = 8: step", "ps", in_turn, slow.timing.step);
        cost_of_bubble(run, "naive, m = 8", &stack, m, in_turn, &slow.timing);
        cost(run, "naive, m = 8: exposed, 2m(p-1) messages", "ps", 2 * m * links * way, slow.timing.exposed);
    }
}

// ---------------------------------------------------------------- the lesson

static void gpipe(Run *run) {
    size_t p = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks", p, sizes.layers);
    REQUIRE(m >= 1 && m <= SEQUENCES, "--micro-batches %zu: the batch has %d sequences: choose 1 to %d", m, SEQUENCES,
            SEQUENCES);
    Training t = { .model = sizes, .steps = 3, .sequences = SEQUENCES, .micro_batches = m,
                   .recorded = true, .watched = MEM_ACTIVATIONS };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    StageCosts seen = {0}, slow = {0};
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        Trajectory naive = trajectory_new(run, &t), got = trajectory_new(run, &t), want = training_unsplit(run, &t, 1);
        slow = stages_train(run, &t, schedule_naive, pipeline_step, &naive);           // for its costs
        seen = stages_train(run, &t, schedule_gpipe, pipeline_step, &got);
        say(run, "%s: loss %.4f, %.4f, %.4f", i ? "AdamW" : "SGD", got.loss[0], got.loss[1], got.loss[2]);
        training_compare(run, "GPipe = accumulation", &got, &want, 0);
        trajectory_free(&naive);
        trajectory_free(&got);
        trajectory_free(&want);
    }
    Timing last = picture_timing(run);
    picture_show(run, "GPipe, the last step", PICTURE_MEMORY);
    picture_summary(run, &last);
    predict(run, &t, &seen, &slow);
    step_time(run, &t);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "4", "pieces the batch is cut into" },
    { "dropout", "X", "0.1", "probability of dropping an element; at 0 less is kept" },
    {0},
};
LESSON(gpipe, options);
