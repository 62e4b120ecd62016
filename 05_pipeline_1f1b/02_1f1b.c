// ranks: 4
// level: core
// question: Can a pipeline give the same bits as GPipe in the same time, with fewer micro-batches in memory?
//
// 1F1B, or PipeDream-Flush: stage i runs p - 1 - i forwards ahead and from then on one forward, one backward. A
// backward comes as early as it can and frees what its forward kept. Model, messages and sums are those of GPipe; only
// the lists differ. Both run here, and both are held against gradient accumulation on one device. Gradients are
// clipped, which needs the norm of all stages.
// Left out: several chunks of layers per stage (interleaving), and schedules that never wait for the pipeline to run
// empty.
#include "04_pipeline_naive/stack.h"
#include "04_pipeline_naive/stage_costs.h"
#include "05_pipeline_1f1b/schedule_1f1b.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// 11 sequences of 5 to 10 counted tokens in 7 micro-batches: 2, 2, 2, 2, 1, 1, 1; 9 blocks on 4 stages: 3, 2, 2, 2.
static const ModelConfig sizes = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37 };
enum { SEQUENCES = 11 };
static const double clip = 0.25;

// ---------------------------------------------------------------- one step, whatever the list

static StepResult pipeline_step(void *stages, Model *m, Optimizer *o, const Training *t, const Batch *batch) {
    Stages *s = stages;
    model_zero_gradients(m);
    PipelineResult r = pipeline_run(s->pp, m, &s->schedule, batch, t->micro_batches);
    s->in_flight = r.in_flight;
    pipeline_tied_sum(m, s->tied);                         // before the norm: it is of the whole gradient
    comm_all_reduce_doubles(s->pp, &r.loss, 1);
    // One number a tensor, from the stage that owns it and zeros from the others; then added in model order. So the
    // norm, and with it every clipped weight, has the same bits however the layers are spread. wte counts once, on the
    // first stage.
    double norm = model_grad_norm(m, s->pp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ r.loss * batch[0].token_weight, norm };
}

// ---------------------------------------------------------------- the predictions, from sizes alone

static void predict(Run *run, const Training *t, const StageCosts *seen, const StageCosts *gpipe) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, E = sizeof(real);
    size_t next = i + 1 < p, before = i > 0, kept = stage_kept(&t->model, p, i) * E;
    size_t flight = p - i < m ? p - i : m, held = 0, all = SEQUENCES * sizes.context;
    for (size_t k = 0; k < flight; k++) held += tokens_of(t, k);               // the first ones are the largest
    cost_of_stage(run, t, seen);                                               // messages, sums, state: as with GPipe
    cost(run, "messages sent, GPipe", "bytes", (next + before) * all * sizes.width * E, gpipe->message_bytes);
    cost(run, "in flight, GPipe: m", "micro-batches", m, gpipe->in_flight);
    cost(run, "in flight, 1F1B: min(p-i, m)", "micro-batches", flight, seen->in_flight);
    cost(run, "activations, peak, GPipe", "bytes", kept * all, gpipe->activations);
    cost(run, "activations, peak, 1F1B", "bytes", kept * held, seen->activations);
    cost(run, "message buffers, peak, 1F1B", "bytes", message_buffers(t, p, i), seen->message_buffers);
}

// ---------------------------------------------------------------- equal stages: the lists played, and what happens

enum { MICRO = 8 };                                        // micro-batches of one sequence; stages of two blocks

// In which order a stage worked, by its recorded events; on rank 0.
static void same_order(Run *run, const char *what, size_t i, const char *want) {
    char name[40], *order = picture_order(run, i);
    sprintf(name, "stage %zu", i);
    if (order) say(run, "  stage %zu: %s", i, order);
    check_true(run, what, name, !order || !strcmp(order, want));
    free(order);
}

static void step_time(Run *run, const Training *t) {
    size_t p = run->world->size, i = run->world->rank, links = p - 1;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    double units[] = { makespan(schedule_gpipe, p, MICRO, 1, 2), makespan(schedule_1f1b, p, MICRO, 1, 2) };
    double want[] = { (MICRO + p - 1) * 3, (MICRO + p - 1) * 3 };
    check_numbers(run, "op lists = formula", "GPipe and 1F1B: (m+p-1)(t_f+t_b)", units, want, 2, 0);

    Played gpipe = stack_play(run, &stack, schedule_gpipe, MICRO), seen = stack_play(run, &stack, schedule_1f1b, MICRO);
    say(run, "1F1B, %zu equal stages, m = %d: what they did, from the recorded events", p, MICRO);
    for (size_t k = 0; k < p; k++) {
        Schedule list = schedule_1f1b(p, MICRO, k);
        char text[8 * MICRO] = "";
        for (size_t n = 0; n < list.n; n++)
            sprintf(text + strlen(text), "%s%c%zu", n ? " " : "", "FB"[list.ops[n].what == BACKWARD],
                    list.ops[n].micro_batch);
        same_order(run, "events = list", k, text);
        schedule_free(&list);
    }
    if (p == 4) same_order(run, "events = published order", 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
    if (p == 4) same_order(run, "events = published order", 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
    cost(run, "equal stages: in flight, 1F1B", "micro-batches", p - i < MICRO ? p - i : MICRO, seen.result.in_flight);
    if (!clock_config()->simulated) return;                    // real time differs from run to run
    StackTimes d = stack_times(&stack);
    // Where messages take time, too, 1F1B's step has no short formula: the lists, played, say how long it is.
    Picoseconds all_then_all = makespan_with_link(schedule_gpipe, p, MICRO, d.forward, d.backward, d.message);
    Picoseconds one_by_one = makespan_with_link(schedule_1f1b, p, MICRO, d.forward, d.backward, d.message);
    cost(run, "equal stages: step, GPipe", "ps", all_then_all, gpipe.timing.step);
    cost(run, "equal stages: step, 1F1B", "ps", one_by_one, seen.timing.step);
    cost_of_bubble(run, "equal stages, 1F1B", &stack, MICRO, one_by_one, &seen.timing);
    Picoseconds said = seen.timing.exposed + seen.timing.hidden;
    cost(run, "equal stages, 1F1B: exposed and hidden, 2m(p-1) messages", "ps", 2 * MICRO * links * d.message, said);
    say(run, "Exposed, added over the stages: GPipe %.1f us, 1F1B %.1f us", 1e-6 * (double)gpipe.timing.exposed,
        1e-6 * (double)seen.timing.exposed);
}

// ---------------------------------------------------------------- the lesson

// Both pictures are shown, one of them is written to a file.
static void show(Run *run, const char *schedule, const char *title, int what) {
    Timing last = picture_timing(run);
    picture_show(run, title, what | (strcmp(option_text(run, "draw"), schedule) ? PICTURE_NO_FILES : 0));
    picture_summary(run, &last);
}

static void one_forward_one_backward(Run *run) {
    size_t p = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks", p, sizes.layers);
    REQUIRE(m >= 1 && m <= SEQUENCES, "--micro-batches %zu: the batch has %d sequences: choose 1 to %d", m, SEQUENCES,
            SEQUENCES);
    Training t = { .model = sizes, .steps = 3, .sequences = SEQUENCES, .micro_batches = m, .clip = clip,
                   .watched = MEM_ACTIVATIONS };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    StageCosts seen = {0}, gpipe = {0};
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        t.recorded = i == 1;
        Trajectory all_then_all = trajectory_new(run, &t), got = trajectory_new(run, &t), want = training_unsplit(run, &t, 1);
        gpipe = stages_train(run, &t, schedule_gpipe, pipeline_step, &all_then_all);
        if (t.recorded) show(run, "gpipe", "GPipe, the last step", PICTURE_MEMORY);
        seen = stages_train(run, &t, schedule_1f1b, pipeline_step, &got);
        if (t.recorded) show(run, "1f1b", "1F1B, the last step", PICTURE_MEMORY | PICTURE_SAME_SCALE);
        say(run, "%s: loss %.4f, %.4f, %.4f; norm %.3f, %.3f, %.3f, clipped to %.2f", i ? "AdamW" : "SGD",
            got.loss[0], got.loss[1], got.loss[2], got.norm[0], got.norm[1], got.norm[2], clip);
        training_compare(run, "1F1B = accumulation", &got, &want, 0);
        training_compare(run, "GPipe = accumulation", &all_then_all, &want, 0);
        bool clipped = true;
        for (size_t n = 0; n < t.steps; n++) clipped &= got.norm[n] > clip;
        check_true(run, "clipping", "is at work in every step", clipped);
        trajectory_free(&all_then_all);
        trajectory_free(&got);
        trajectory_free(&want);
    }
    predict(run, &t, &seen, &gpipe);
    step_time(run, &t);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "7", "pieces the batch is cut into" },
    { "dropout", "X", "0.1", "probability of dropping an element; at 0 less is kept" },
    { "draw", "gpipe|1f1b", "1f1b", "the schedule whose picture --svg and --trace write" },
    {0},
};
LESSON(one_forward_one_backward, options);
