// 02_1f1b.c (experiment): 1F1B equals gradient accumulation and GPipe in every bit, by its loops
// and by the executor; equal stages take GPipe's time and keep min(p-i, m) micro-batches.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// 11 sequences of 5 to 10 counted tokens in 7 micro-batches: 2, 2, 2, 2, 1, 1, 1; 9 blocks on 4
// stages: 3, 2, 2, 2.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37
};
enum { SEQUENCES = 11 };
static const double clip = 0.25;

// ----------------------------------------------- equal stages: GPipe and 1F1B beside each other

// One step on equal stages: what this rank has measured. Bytes, peak; calls.
typedef struct { Timing timing; size_t in_flight, activations, messages; } EqualStep;

static void equal_costs(Run *run, const Stack *stack, size_t m, const EqualStep *gpipe,
                        const EqualStep *seen) {
    size_t p = run->world->size, i = run->world->rank, flight = p - i < m ? p - i : m;
    size_t one = stack_kept(stack, p, i);        // bytes of a micro-batch
    size_t neighbours = stage_neighbours(run);
    check_cost(run, "equal.flight.gpipe", "equal stages: in flight, GPipe", "micro-batches",
               formula(m), NOT_PREDICTED, gpipe->in_flight);
    check_cost(run, "equal.flight.1f1b", "equal stages: in flight, 1F1B", "micro-batches",
               formula(flight), NOT_PREDICTED, seen->in_flight);
    check_cost(run, "equal.activations.gpipe", "equal stages: activations, peak, GPipe", "bytes",
               formula(m * one), NOT_PREDICTED, gpipe->activations);
    check_cost(run, "equal.activations.1f1b", "equal stages: activations, peak, 1F1B", "bytes",
               formula(flight * one), NOT_PREDICTED, seen->activations);
    check_cost(run, "equal.sent.gpipe", "equal stages: messages sent, GPipe", "calls",
               formula(m * neighbours), NOT_PREDICTED, gpipe->messages);
    check_cost(run, "equal.sent.1f1b", "equal stages: messages sent, 1F1B", "calls",
               formula(m * neighbours), NOT_PREDICTED, seen->messages);
    if (!clock_config()->simulated) return;                    // real time differs from run to run
    StackTimes d = stack_times(stack);
    // Where messages take time, too, 1F1B's step has no short formula: the lists, played, say how
    // long it is.
    Picoseconds all_then_all =
        makespan_with_link(schedule_gpipe, p, m, d.forward, d.backward, d.message);
    Picoseconds one_by_one =
        makespan_with_link(schedule_1f1b, p, m, d.forward, d.backward, d.message);
    check_cost(run, "step.gpipe", "equal stages: step, GPipe", "ps", NOT_PREDICTED,
               played(all_then_all), gpipe->timing.step);
    check_cost(run, "step.1f1b", "equal stages: step, 1F1B", "ps", NOT_PREDICTED,
               played(one_by_one), seen->timing.step);
    stack_check_bubble(run, "gpipe", "equal stages, GPipe", stack, m, NOT_PREDICTED,
                       played(all_then_all), &gpipe->timing);
    stack_check_bubble(run, "1f1b", "equal stages, 1F1B", stack, m, NOT_PREDICTED,
                       played(one_by_one), &seen->timing);
    Picoseconds said = seen->timing.exposed + seen->timing.hidden;
    check_cost(run, "exposed-and-hidden.1f1b",
               "equal stages, 1F1B: exposed and hidden, 2m(p-1) messages", "ps",
               formula(2 * m * (p - 1) * d.message), NOT_PREDICTED, said);
    say_detail(run, "Exposed, per rank: GPipe %.1f us, 1F1B %.1f us",
               1e-6 * (double)gpipe->timing.exposed / (double)p,
               1e-6 * (double)seen->timing.exposed / (double)p);
}

static void table(Run *run) {
    static const char *const columns[] = { "GPipe", "1F1B", NULL };
    static const Result rows[] = {
        { "step", "(m+p-1)(t_f+t_b), and messages", { "step.gpipe", "step.1f1b" } },
        { "idle, of the step", "(p-1)/(m+p-1), and messages",
          { "idle.gpipe", "idle.1f1b" } },
        { "micro-batches in flight", "m; on stage i min(p-i, m)",
          { "equal.flight.gpipe", "equal.flight.1f1b" } },
        { "activations, peak of a rank", "kept per micro-batch x in flight",
          { "equal.activations.gpipe", "equal.activations.1f1b" } },
        { "messages sent by a rank", "m to each neighbour",
          { "equal.sent.gpipe", "equal.sent.1f1b" } }, {0} };
    // In real time no cost is a time.
    results(run, columns, clock_config()->simulated ? rows : rows + 2);
}

enum { MICRO = 8 };  // micro-batches of one sequence; stages of two blocks

// One step by this list, recorded, and its picture. --svg and --trace write the one that --draw
// names, and then there are strips of what each rank keeps; as with --verbose. In real time no cost
// says how long it took: the summary does.
static EqualStep equal_step(Run *run, const Stack *stack, ScheduleRule rule, const char *schedule,
                            const char *name) {
    char title[48];
    snprintf(title, sizeof title, "%s, %zu equal stages, m = %d", name, run->world->size, MICRO);
    comm_ledger_reset(run->world);
    memory_reset_peaks();
    Played played = stack_play(run, stack, rule, MICRO);
    EqualStep step = { .timing = played.timing, .in_flight = played.result.in_flight,
                       .activations = memory_peak(MEM_ACTIVATIONS),
                       .messages = run->world->ledger[COMM_SEND].calls };
    bool verbose = option_flag(run, "verbose");
    bool strips = verbose || option_text(run, "svg") || option_text(run, "trace");
    picture_show(run, title,
                 (strips ? PICTURE_MEMORY : 0) | (rule == schedule_1f1b ? PICTURE_SAME_SCALE : 0) |
                     (strcmp(option_text(run, "draw"), schedule) ? PICTURE_NO_FILES : 0));
    if (verbose || !clock_config()->simulated) picture_summary(run, &step.timing);
    return step;
}

// In which order a stage worked, by its recorded events; on rank 0.
static void same_order(Run *run, const char *what, size_t i, const char *want) {
    char name[40], *order = picture_order(run, i);
    sprintf(name, "stage %zu", i);
    if (order) say_detail(run, "  stage %zu: %s", i, order);
    check_true(run, what, name, !order || !strcmp(order, want));
    free(order);
}

static void equal_stages(Run *run, const Training *t) {
    size_t p = run->world->size;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    double units[] = { makespan(schedule_gpipe, p, MICRO, 1, 2),
                       makespan(schedule_1f1b, p, MICRO, 1, 2) };
    double want[] = { (MICRO + p - 1) * 3, (MICRO + p - 1) * 3 };
    check_numbers(run, "op lists = formula", "GPipe and 1F1B: (m+p-1)(t_f+t_b)", units, want, 2, 0);
    EqualStep gpipe = equal_step(run, &stack, schedule_gpipe, "gpipe", "GPipe");
    EqualStep seen = equal_step(run, &stack, schedule_1f1b, "1f1b", "1F1B");
    for (size_t k = 0; k < p; k++) {
        Schedule list = schedule_1f1b(p, MICRO, k);
        char text[8 * MICRO] = "";
        for (size_t n = 0; n < list.n; n++)
            sprintf(text + strlen(text), "%s%c%zu", n ? " " : "",
                    "FB"[list.ops[n].what == BACKWARD], list.ops[n].micro_batch);
        same_order(run, "events = list", k, text);
        schedule_free(&list);
    }
    if (p == 4)
        same_order(run, "events = list, as published", 0,
                   "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
    if (p == 4)
        same_order(run, "events = list, as published", 3,
                   "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
    equal_costs(run, &stack, MICRO, &gpipe, &seen);
}

// ---------------------------------------------------------- training, on stages of unequal size

// The last step of a training, for --verbose.
static void show(Run *run, const char *title, int what) {
    Timing last = picture_timing(run);
    if (!option_flag(run, "verbose")) return;
    picture_show(run, title, what | PICTURE_MEMORY | PICTURE_NO_FILES);
    picture_summary(run, &last);
}

static void training_costs(Run *run, const Training *t, const StageCosts *seen,
                           const StageCosts *gpipe) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, E = sizeof(real);
    size_t next = i + 1 < p, before = i > 0, kept = stage_kept(&t->model, p, i) * E;
    size_t flight = p - i < m ? p - i : m, held = 0, all = t->sequences * t->model.context;
    // The first micro-batches are the largest.
    for (size_t k = 0; k < flight; k++) held += stage_tokens(t, k);
    stage_check_costs(run, t, NULL, seen);   // messages, sums, state: as with GPipe
    check_cost(run, "sent.gpipe", "messages sent, GPipe", "bytes",
               formula((next + before) * all * t->model.width * E), NOT_PREDICTED,
               gpipe->message_bytes);
    check_cost(run, "flight.gpipe", "in flight, GPipe: m", "micro-batches", formula(m),
               NOT_PREDICTED, gpipe->in_flight);
    check_cost(run, "flight.1f1b", "in flight, 1F1B: min(p-i, m)", "micro-batches", formula(flight),
               NOT_PREDICTED, seen->in_flight);
    check_cost(run, "activations.gpipe", "activations, peak, GPipe", "bytes", formula(kept * all),
               NOT_PREDICTED, gpipe->activations);
    check_cost(run, "activations.1f1b", "activations, peak, 1F1B", "bytes", formula(kept * held),
               NOT_PREDICTED, seen->activations);
    check_cost(run, "buffers", "message buffers, peak, 1F1B", "bytes",
               formula(stage_message_buffers(t, p, i)), NOT_PREDICTED, seen->message_buffers);
}

// Tokens of micro-batches k, k + 1, ..., before end.
static size_t tokens_of(const Training *t, size_t k, size_t end) {
    size_t n = 0;
    for (; k < end; k++) n += stage_tokens(t, k);
    return n;
}
static size_t max(size_t a, size_t b) { return a > b ? a : b; }

// The loop of the lesson has a buffer for each output that the next stage has not used yet, and at
// a time one for what it receives and one for the gradient that it sends. Most tokens in them, over
// all forwards and backwards of stage i.
static size_t buffered_tokens(const Training *t, size_t p, size_t i) {
    size_t m = t->micro_batches, flight = p - i < m ? p - i : m, most = 0;
    bool next = i + 1 < p, before = i > 0;
    for (size_t k = 0; k < m; k++) {
        size_t back = k < flight ? 0 : k + 1 - flight, ahead = k + flight < m ? k + flight : m;
        size_t sending = before && back > 0 ? stage_tokens(t, back - 1) : 0;
        // Forward: y, x.
        most = max(most, next * tokens_of(t, back, k + 1) + before * stage_tokens(t, k) + sending);
        sending = before && k > 0 ? stage_tokens(t, k - 1) : 0;
        // Backward: y, dy.
        most = max(most, next * (tokens_of(t, k, ahead) + stage_tokens(t, k)) + sending);
        most = max(most, next * (tokens_of(t, k + 1, ahead) + stage_tokens(t, k)) +
                             before * stage_tokens(t, k));
    }
    return most;
}

static void loop_costs(Run *run, const Training *t, const StageCosts *loop) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches,
           flight = p - i < m ? p - i : m;
    stage_check_loop(run, t, loop);
    check_cost(run, "loop.flight", "own loops: in flight, min(p-i, m)", "micro-batches",
               formula(flight), NOT_PREDICTED, loop->in_flight);
    check_cost(run, "loop.activations", "own loops: activations, peak", "bytes",
               formula(stage_kept(&t->model, p, i) * tokens_of(t, 0, flight) * sizeof(real)),
               NOT_PREDICTED, loop->activations);
    check_cost(run, "loop.buffers", "own loops: buffers, peak", "bytes",
               formula(buffered_tokens(t, p, i) * t->model.width * sizeof(real)), NOT_PREDICTED,
               loop->message_buffers);
    if (!clock_config()->simulated) return;                // real time differs from run to run
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    StackTimes d = stack_times(&stack);
    Played seen = stack_play_loop(run, &stack, pipeline_1f1b, m);
    check_cost(run, "loop.step", "own loops: equal stages, step", "ps", NOT_PREDICTED,
               played(makespan_with_link(schedule_1f1b, p, m, d.forward, d.backward, d.message)),
               seen.timing.step);
}

// ---------------------------------------------------------------- the lesson

static void one_forward_one_backward(Run *run) {
    Training t = stages_training(run, &sizes, SEQUENCES);
    t.clip = clip;
    t.watched = MEM_ACTIVATIONS;
    t.model.dropout = option_real(run, "dropout");
    equal_stages(run, &t);
    Schedule list = schedule_1f1b(run->world->size, t.micro_batches, run->world->rank);
    StageCosts loop = stages_same_bits(run, "1F1B: executor = own loop", &t, NULL, NULL,
                                       pipeline_1f1b, &list, pipeline_run);
    schedule_free(&list);
    StageCosts seen = {0}, gpipe = {0};
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        t.recorded = i == 1;
        Trajectory all_then_all = trajectory_new(run, &t), got = trajectory_new(run, &t);
        Trajectory want = training_unsplit(run, &t, 1);
        // The same step, another list.
        gpipe = stages_train(run, &t, NULL, pipeline_step, schedule_gpipe, &all_then_all);
        if (t.recorded) show(run, "GPipe, the last step", 0);
        seen = stages_train(run, &t, NULL, pipeline_step, schedule_1f1b, &got);
        if (t.recorded) show(run, "1F1B, the last step", PICTURE_SAME_SCALE);
        say_detail(run, "%s: loss %.4f, %.4f, %.4f; norm %.3f, %.3f, %.3f, clipped to %.2f",
                   i ? "AdamW" : "SGD", got.loss[0], got.loss[1], got.loss[2], got.norm[0],
                   got.norm[1], got.norm[2], clip);
        training_compare(run, "1F1B = accumulation", &got, &want, 0);
        training_compare(run, "GPipe = accumulation", &all_then_all, &want, 0);
        check_true(run, "clipping", "is at work in every step", trajectory_clipped(&got, clip));
        trajectory_free(&all_then_all);
        trajectory_free(&got);
        trajectory_free(&want);
    }
    training_costs(run, &t, &seen, &gpipe);
    loop_costs(run, &t, &loop);
    table(run);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "7", "pieces the batch is cut into" },
    { "dropout", "X", "0.1", "probability of dropping an element; at 0 less is kept" },
    { "draw", "gpipe|1f1b", "1f1b", "the schedule whose picture --svg and --trace write" },
    {0},
};
EXPERIMENT(one_forward_one_backward, options);
