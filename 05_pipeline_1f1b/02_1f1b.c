// ranks: 4
// level: core
// question: Can a pipeline give GPipe's bits in GPipe's time with fewer micro-batches in memory?
// vary: SEQUENCES 8..12, layers 7..12, width 18|24, context 7..13, vocab 31..50
//
// 1F1B, or PipeDream-Flush: stage i runs p - 1 - i forwards ahead and from then on one forward, one backward. A
// backward comes as early as it can and frees what its forward kept. Model, messages and sums are those of GPipe; only
// the order differs. Both run here, and both are held against gradient accumulation on one device. What surrounds the
// loop in a step (gradients start at zero; the tied sum, loss and norm, the update) is that of 04/02_naive, and stands
// there. Gradients are clipped, which needs the norm of all stages.
// Left out: several chunks of layers per stage (interleaving), and schedules that never wait for the pipeline to run
// empty.
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "04_pipeline_naive/experiments/stack.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/experiments/costs.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ================================ the technique ================================

// Forwards that stage i runs before its first backward: one for each of the p - 1 - i later stages, so that each has
// work.
static size_t warm_up(size_t p, size_t m, size_t i) { return p - 1 - i < m ? p - 1 - i : m; }

// A send must not wait here: in the steady state a stage sends activations to the next one while that one sends a
// gradient to it. If both waited until their message is received, nobody would receive. So a send is started, and its
// tensor stays until the message is received.
typedef struct { Arena arena; Request *request; } Sending;
static Tensor output_buffer(Sending *s, Shape shape) {
    s->arena = arena(MEM_COMMUNICATION);
    return tensor_shaped(&s->arena, shape);
}
static void wait_received(Sending *s) {
    comm_wait(s->request);
    arena_free(&s->arena);
    s->request = NULL;
}

// Messages are those of 04/02_naive, [B*T, C] each. pipeline_forward walks my layers, y from x, and pipeline_backward
// walks them back, dx from dy; both stand in 04/02_naive.c.
static void forward_step(Comm *pp, PipelineStage *s, size_t k, Sending *activations) {
    PipelineBatch *b = &s->micro[k];
    if (!s->first) comm_recv(pp, b->x = tensor_shaped(&b->input, b->in), s->before);       // B*T*C elements: x
    if (!s->last) b->y = output_buffer(&activations[k], b->out);
    pipeline_forward(s, k);
    if (!s->last) activations[k].request = comm_start_send(pp, b->y, s->next);             // B*T*C elements: y
}
static void backward_step(Comm *pp, PipelineStage *s, size_t k, Sending *activations, Sending *gradient) {
    PipelineBatch *b = &s->micro[k];
    Arena incoming = arena(MEM_COMMUNICATION);
    if (!s->last) comm_recv(pp, b->dy = tensor_shaped(&incoming, b->out), s->next);        // B*T*C elements: dy
    if (!s->last) wait_received(&activations[k]);          // no time is lost: their gradient is here already
    if (!s->first) wait_received(gradient);                // of the micro-batch before; of the first one: nothing
    if (!s->first) b->dx = output_buffer(gradient, b->in);
    pipeline_backward(s, k);                               // frees what the forward of k kept
    if (!s->first) gradient->request = comm_start_send(pp, b->dx, s->before);              // B*T*C elements: dx
    arena_free(&incoming);
}

PipelineResult pipeline_1f1b(Comm *pp, Model *m, const Batch *batch, size_t micro_batches) {
    PipelineStage s = pipeline_begin(pp, m, batch, micro_batches);
    size_t ahead = warm_up(pp->size, micro_batches, pp->rank);
    Sending *activations = host_alloc(micro_batches * sizeof *activations), gradient = {0};
    // EXERCISE 05.02a (5 points): warm-up, steady state and cool-down. `ahead` forwards; then a forward, a backward,
    // until no forward is left; then the last backwards. forward_step and backward_step of a micro-batch receive,
    // compute and start to send. The backwards come in ascending order. At the end the last gradient must have been
    // received (wait_received). Calls: these three functions.
    for (size_t k = 0; k < ahead; k++)             // warm-up: receives activations from the stage before, sends its own
        forward_step(pp, &s, k, activations);
    // Steady state: the same for k; then receives the gradient of k - ahead from the next stage and sends a gradient to
    // the stage before. ahead + 1 micro-batches are in flight: p - i, if there are so many.
    for (size_t k = ahead; k < micro_batches; k++) {
        forward_step(pp, &s, k, activations);
        backward_step(pp, &s, k - ahead, activations, &gradient);
    }
    // Cool-down: receives the gradients of the last `ahead` micro-batches, sends gradients; no activations any more.
    for (size_t k = micro_batches - ahead; k < micro_batches; k++) backward_step(pp, &s, k, activations, &gradient);
    wait_received(&gradient);
    // END
    free(activations);
    return pipeline_end(&s);
}

// The same order as a list of ops. pipeline_run in 04/executor.c, the executor, works down any such list, and starts
// each receive one message early. The trainer of chapter 08 uses that; the experiment compares both.
Schedule schedule_1f1b(size_t p, size_t m, size_t i) {
    size_t ahead = warm_up(p, m, i);
    Schedule s = {0};
    for (size_t k = 0; k < ahead; k++) schedule_add(&s, FORWARD, k);
    for (size_t k = ahead; k < m; k++) {
        schedule_add(&s, FORWARD, k);
        schedule_add(&s, BACKWARD, k - ahead);
    }
    for (size_t k = m - ahead; k < m; k++) schedule_add(&s, BACKWARD, k);
    return s;
}

// ================================ the experiment ================================

// ---------------------------------------------------------------- equal stages: GPipe and 1F1B beside each other

enum { MICRO = 8 };                                        // micro-batches of one sequence; stages of two blocks

// One step by this list, recorded, and its picture. --svg and --trace write the one that --draw names, and then there
// are strips of what each rank keeps; as with --verbose. In real time no cost says how long it took: the summary does.
static EqualStep equal_step(Run *run, const Stack *stack, ScheduleRule rule, const char *schedule, const char *name) {
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
    picture_show(run, title, (strips ? PICTURE_MEMORY : 0) | (rule == schedule_1f1b ? PICTURE_SAME_SCALE : 0) |
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
    double units[] = { makespan(schedule_gpipe, p, MICRO, 1, 2), makespan(schedule_1f1b, p, MICRO, 1, 2) };
    double want[] = { (MICRO + p - 1) * 3, (MICRO + p - 1) * 3 };
    check_numbers(run, "op lists = formula", "GPipe and 1F1B: (m+p-1)(t_f+t_b)", units, want, 2, 0);
    EqualStep gpipe = equal_step(run, &stack, schedule_gpipe, "gpipe", "GPipe");
    EqualStep seen = equal_step(run, &stack, schedule_1f1b, "1f1b", "1F1B");
    for (size_t k = 0; k < p; k++) {
        Schedule list = schedule_1f1b(p, MICRO, k);
        char text[8 * MICRO] = "";
        for (size_t n = 0; n < list.n; n++)
            sprintf(text + strlen(text), "%s%c%zu", n ? " " : "", "FB"[list.ops[n].what == BACKWARD],
                    list.ops[n].micro_batch);
        same_order(run, "events = list", k, text);
        schedule_free(&list);
    }
    if (p == 4) same_order(run, "events = list, as published", 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
    if (p == 4) same_order(run, "events = list, as published", 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
    pipeline_1f1b_equal_costs(run, &stack, MICRO, &gpipe, &seen);
}

// ---------------------------------------------------------------- training, on stages of unequal size

// 11 sequences of 5 to 10 counted tokens in 7 micro-batches: 2, 2, 2, 2, 1, 1, 1; 9 blocks on 4 stages: 3, 2, 2, 2.
static const ModelConfig sizes = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37 };
enum { SEQUENCES = 11 };
static const double clip = 0.25;

// The last step of a training, for --verbose.
static void show(Run *run, const char *title, int what) {
    Timing last = picture_timing(run);
    if (!option_flag(run, "verbose")) return;
    picture_show(run, title, what | PICTURE_MEMORY | PICTURE_NO_FILES);
    picture_summary(run, &last);
}

static void one_forward_one_backward(Run *run) {
    require_one_link(run);
    size_t p = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks", p, sizes.layers);
    REQUIRE(m >= 1 && m <= SEQUENCES, "--micro-batches %zu: the batch has %d sequences: choose 1 to %d", m, SEQUENCES,
            SEQUENCES);
    Training t = { .model = sizes, .steps = 3, .sequences = SEQUENCES, .micro_batches = m, .clip = clip,
                   .watched = MEM_ACTIVATIONS };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    equal_stages(run, &t);
    StageCosts loop = stages_same_bits(run, "1F1B: executor = own loop", &t, pipeline_1f1b, schedule_1f1b);
    StageCosts seen = {0}, gpipe = {0};
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        t.recorded = i == 1;
        Trajectory all_then_all = trajectory_new(run, &t), got = trajectory_new(run, &t);
        Trajectory want = training_unsplit(run, &t, 1);
        gpipe = stages_train(run, &t, pipeline_step, schedule_gpipe, &all_then_all);   // the same step, another list
        if (t.recorded) show(run, "GPipe, the last step", 0);
        seen = stages_train(run, &t, pipeline_step, schedule_1f1b, &got);
        if (t.recorded) show(run, "1F1B, the last step", PICTURE_SAME_SCALE);
        say_detail(run, "%s: loss %.4f, %.4f, %.4f; norm %.3f, %.3f, %.3f, clipped to %.2f", i ? "AdamW" : "SGD",
                   got.loss[0], got.loss[1], got.loss[2], got.norm[0], got.norm[1], got.norm[2], clip);
        training_compare(run, "1F1B = accumulation", &got, &want, 0);
        training_compare(run, "GPipe = accumulation", &all_then_all, &want, 0);
        check_true(run, "clipping", "is at work in every step", trajectory_clipped(&got, clip));
        trajectory_free(&all_then_all);
        trajectory_free(&got);
        trajectory_free(&want);
    }
    pipeline_1f1b_costs(run, &t, &seen, &gpipe);
    pipeline_1f1b_loop_costs(run, &t, &loop);
    pipeline_1f1b_table(run);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "7", "pieces the batch is cut into" },
    { "dropout", "X", "0.1", "probability of dropping an element; at 0 less is kept" },
    { "draw", "gpipe|1f1b", "1f1b", "the schedule whose picture --svg and --trace write" },
    {0},
};
EXPERIMENT(one_forward_one_backward, options);
