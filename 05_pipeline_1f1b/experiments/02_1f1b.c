// 02_1f1b.c (experiment): 1F1B equals gradient accumulation and GPipe in every bit, run by its own
// loops and by the executor. Equal stages take GPipe's time and keep min(p-i, m) micro-batches.
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

// One step on equal stages, as this rank measured it. activations: peak, in bytes.
typedef struct {
    Timing timing;
    size_t in_flight, activations, messages;
} EqualStep;

enum { MICRO = 8 }; // micro-batches of one sequence; stages of two blocks

static void equal_costs(Run *run, const Stack *stack, const EqualStep *gpipe,
                        const EqualStep *seen) {
    size_t p = run->world->size, i = run->world->rank, m = MICRO, flight = p - i < m ? p - i : m;
    size_t one = stack_kept(stack, p, i); // bytes of a micro-batch
    Predicted sent = formula(m * stage_neighbours(run));
    check_costs(run, "equal.%s", "equal stages: %s",
                (CostRow[]){ { "flight.gpipe", "in flight, GPipe", "micro-batches", BY_FORMULA(m),
                               gpipe->in_flight },
                             { "flight.1f1b", "in flight, 1F1B", "micro-batches",
                               BY_FORMULA(flight), seen->in_flight },
                             { "activations.gpipe", "activations, peak, GPipe", "bytes",
                               BY_FORMULA(m * one), gpipe->activations },
                             { "activations.1f1b", "activations, peak, 1F1B", "bytes",
                               BY_FORMULA(flight * one), seen->activations },
                             { "sent.gpipe", "messages sent, GPipe", "calls", sent, NOT_PREDICTED,
                               gpipe->messages },
                             { "sent.1f1b", "messages sent, 1F1B", "calls", sent, NOT_PREDICTED,
                               seen->messages },
                             { 0 } });
    if (!clock_config()->simulated) return; // real time differs from run to run
    // Where messages take time, 1F1B's step has no short formula, so the lists are played.
    StackTimes d = stack_times(stack);
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
    check_cost(run, "exposed-and-hidden.1f1b",
               "equal stages, 1F1B: exposed and hidden, 2m(p-1) messages", "ps",
               formula(2 * m * (p - 1) * d.message), NOT_PREDICTED,
               seen->timing.exposed + seen->timing.hidden);
    say_detail(run, "Exposed, per rank: GPipe %.1f us, 1F1B %.1f us",
               1e-6 * (double)gpipe->timing.exposed / (double)p,
               1e-6 * (double)seen->timing.exposed / (double)p);
}

// Runs and records one step by this list, and draws it. In real time no cost says how long the step
// took, so the summary is printed.
static EqualStep equal_step(Run *run, const Stack *stack, ScheduleRule rule, const char *schedule,
                            const char *name) {
    char title[48];
    snprintf(title, sizeof title, "%s, %zu equal stages, m = %d", name, run->world->size, MICRO);
    comm_ledger_reset(run->world);
    memory_reset_peaks();
    Played played = stack_play(run, stack, rule, MICRO);
    EqualStep step = { .timing = played.timing,
                       .in_flight = played.result.in_flight,
                       .activations = memory_peak(MEM_ACTIVATIONS),
                       .messages = run->world->ledger[COMM_SEND].calls };
    int same_scale = rule == schedule_1f1b ? PICTURE_SAME_SCALE : 0;
    picture_show(run, title, picture_flags(run, schedule) | same_scale);
    if (option_flag(run, "verbose") || !clock_config()->simulated)
        picture_summary(run, &step.timing);
    return step;
}

// On rank 0: did stage i work in this published order?
static void check_published(Run *run, size_t i, const char *want) {
    char name[16], *order = picture_order(run, i);
    snprintf(name, sizeof name, "stage %zu", i);
    check_true(run, "events = list, as published", name, !order || !strcmp(order, want));
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
    for (size_t i = 0; i < p; i++) {
        char name[24];
        snprintf(name, sizeof name, "stage %zu", i);
        check_true(run, "events = list", name,
                   events_in_order(run, "1F1B", i, schedule_1f1b(p, MICRO, i)));
    }
    if (p == 4) {
        check_published(run, 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
        check_published(run, 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
    }
    equal_costs(run, &stack, &gpipe, &seen);
}

// ---------------------------------------------------------- training, on stages of unequal size

// Draws the last step of a training, if --verbose is given.
static void show(Run *run, const char *title, int what) {
    Timing last = picture_timing(run);
    if (!option_flag(run, "verbose")) return;
    picture_show(run, title, what | PICTURE_MEMORY | PICTURE_NO_FILES);
    picture_summary(run, &last);
}

// Tokens of micro-batches k to end - 1.
static size_t tokens_of(const Training *t, size_t k, size_t end) {
    size_t n = 0;
    for (; k < end; k++) n += stage_tokens(t, k);
    return n;
}

static void training_costs(Run *run, const Training *t, const StageCosts *seen,
                           const StageCosts *gpipe) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches;
    size_t E = weight_bytes(&t->model), kept = stage_kept_bytes(&t->model, p, i),
           all = t->sequences * t->model.context;
    size_t flight = p - i < m ? p - i : m;
    stage_check_costs(run, t, NULL, seen); // messages, sums, state: as with GPipe
    check_costs(run, "%s", "%s",
                (CostRow[]){ { "sent.gpipe", "messages sent, GPipe", "bytes",
                               BY_FORMULA(stage_neighbours(run) * all * t->model.width * E),
                               gpipe->message_bytes },
                             { "flight.gpipe", "in flight, GPipe: m", "micro-batches",
                               BY_FORMULA(m), gpipe->in_flight },
                             { "flight.1f1b", "in flight, 1F1B: min(p-i, m)", "micro-batches",
                               BY_FORMULA(flight), seen->in_flight },
                             { "activations.gpipe", "activations, peak, GPipe", "bytes",
                               BY_FORMULA(kept * all), gpipe->activations },
                             // The first micro-batches are the largest.
                             { "activations.1f1b", "activations, peak, 1F1B", "bytes",
                               BY_FORMULA(kept * tokens_of(t, 0, flight)), seen->activations },
                             { "buffers", "message buffers, peak, 1F1B", "bytes",
                               BY_FORMULA(stage_message_buffers(t, p, i)), seen->message_buffers },
                             { 0 } });
}

static size_t max(size_t a, size_t b) { return a > b ? a : b; }

// Most tokens in the buffers of the lesson's own loop, over all forwards and backwards of stage i.
// The loop has a buffer for each output that the next stage has not used yet. It has one more for
// the tensor that it receives, and one for the gradient that it sends.
static size_t buffered_tokens(const Training *t, size_t p, size_t i) {
    size_t m = t->micro_batches, flight = p - i < m ? p - i : m, most = 0;
    bool next = i + 1 < p, before = i > 0;
    for (size_t k = 0; k < m; k++) {
        size_t back = k < flight ? 0 : k + 1 - flight, ahead = k + flight < m ? k + flight : m;
        size_t sending = before && back > 0 ? stage_tokens(t, back - 1) : 0;
        // A forward holds the outputs y and one input x.
        most = max(most, next * tokens_of(t, back, k + 1) + before * stage_tokens(t, k) + sending);
        sending = before && k > 0 ? stage_tokens(t, k - 1) : 0;
        // A backward holds the outputs y and one gradient dy, then sends dx.
        most = max(most, next * (tokens_of(t, k, ahead) + stage_tokens(t, k)) + sending);
        most = max(most, next * (tokens_of(t, k + 1, ahead) + stage_tokens(t, k)) +
                             before * stage_tokens(t, k));
    }
    return most;
}

static void loop_costs(Run *run, const Training *t, const StageCosts *loop) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches;
    size_t E = weight_bytes(&t->model);
    size_t flight = p - i < m ? p - i : m;
    stage_check_loop(run, t, loop);
    check_costs(run, "loop.%s", "own loops: %s",
                (CostRow[]){
                    { "flight", "in flight, min(p-i, m)", "micro-batches", BY_FORMULA(flight),
                      loop->in_flight },
                    { "activations", "activations, peak", "bytes",
                      BY_FORMULA(stage_kept_bytes(&t->model, p, i) * tokens_of(t, 0, flight)),
                      loop->activations },
                    { "buffers", "buffers, peak", "bytes",
                      BY_FORMULA(buffered_tokens(t, p, i) * t->model.width * E),
                      loop->message_buffers },
                    { 0 } });
    if (!clock_config()->simulated) return; // real time differs from run to run
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    StackTimes d = stack_times(&stack);
    Played seen = stack_play_loop(run, &stack, pipeline_1f1b, m);
    check_cost(run, "loop.step", "own loops: equal stages, step", "ps", NOT_PREDICTED,
               played(makespan_with_link(schedule_1f1b, p, m, d.forward, d.backward, d.message)),
               seen.timing.step);
}

// ---------------------------------------------------------------- the page

static void table(Run *run) {
    static const char *const columns[] = { "GPipe", "1F1B", NULL };
    static const Result rows[] = {
        { "step", "(m+p-1)(t_f+t_b), plus messages", { "step.gpipe", "step.1f1b" } },
        { "idle, of the step", "(p-1)/(m+p-1), plus messages", { "idle.gpipe", "idle.1f1b" } },
        { "micro-batches in flight",
          "GPipe m, 1F1B min(p-i, m) on stage i",
          { "equal.flight.gpipe", "equal.flight.1f1b" } },
        { "activations, peak of a rank",
          "bytes per micro-batch x in flight",
          { "equal.activations.gpipe", "equal.activations.1f1b" } },
        { "messages sent by a rank",
          "m to each neighbour",
          { "equal.sent.gpipe", "equal.sent.1f1b" } },
        { 0 },
    };
    // In real time no cost is a time.
    results(run, columns, clock_config()->simulated ? rows : rows + 2);
    say(run, "  p stages, m micro-batches; t_f, t_b: forward, backward. Flush: no update before "
             "all backwards end.");
}

static void answer(Run *run) {
    char time[96] = "";
    if (clock_config()->simulated && run->is_root) {
        Comparison step =
            compare_times(cost_value(run, "step.1f1b"), cost_value(run, "step.gpipe"));
        snprintf(time, sizeof time, " in %s, %s GPipe", cost_text(run, "step.1f1b"), step.text);
    }
    say_answer(run,
               "Yes. 1F1B gives the same bits%s. Micro-batches in memory per rank: %s instead "
               "of %d.",
               time, cost_text(run, "equal.flight.1f1b"), MICRO);
    say_cost(run, "no extra messages. But in its steady state a stage waits for the gradient of an "
                  "earlier micro-batch, so a slow link costs more time than with GPipe.");
    say_use_when(run, "each step ends with a flush. It replaces GPipe, and saves most if m is far "
                      "above p.");
}

// ---------------------------------------------------------------- the lesson

static void one_forward_one_backward(Run *run) {
    Training t = stages_training(run, &sizes, SEQUENCES);
    t.clip = clip;
    t.watched = MEM_ACTIVATIONS;
    t.model.dropout = option_real(run, "dropout");
    training_store(run, &t);
    equal_stages(run, &t);
    Schedule list = schedule_1f1b(run->world->size, t.micro_batches, run->world->rank);
    StageCosts loop = stages_same_bits(run, "1F1B: executor = own loop", &t, NULL, NULL,
                                       pipeline_1f1b, &list, pipeline_run);
    schedule_free(&list);
    StageCosts seen = { 0 }, gpipe = { 0 };
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        t.recorded = i == 1;
        Trajectory all_then_all = trajectory_new(run, &t), got = trajectory_new(run, &t);
        Trajectory want = training_unsplit(run, &t, 1);
        // Both trainings run the same step; only the list differs.
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
    answer(run);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "7", "pieces the batch is cut into" },
    { "dropout", "X", "0.1", "probability of dropping an element; at 0 less is kept" },
    STORAGE_OPTION,
    { "draw", "gpipe|1f1b", "1f1b", "the schedule whose picture --svg and --trace write" },
    { 0 },
};
EXPERIMENT(one_forward_one_backward, options);
