// 03_interleaved.c (experiment): v chunks per stage equal gradient accumulation in every bit, by
// the lesson's own loop and by the executor. Compared with 1F1B: less idle time, more messages and
// activations.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// 17 blocks in 8 parts: 3, 2, 2, 2, ...; 19 sequences of 5 to 10 counted tokens in 8 micro-batches:
// 3, 3, 3, 2, ...
static const ModelConfig sizes = {
    .layers = 17, .width = 12, .heads = 3, .context = 10, .vocab = 37
};
enum { SEQUENCES = 19 };
static const double clip = 0.25;

// ---------------------------------------------------------------- lists

static void check_order(Run *run, const char *name, Schedule s, const char *want) {
    char *text = schedule_text(&s);
    say_detail(run, "  %s: %s", name, text);
    check_true(run, "order as published", name, !strcmp(text, want));
    free(text);
    schedule_free(&s);
}

static void lists(Run *run, size_t p, size_t m, size_t v) {
    check_order(run, "p = 2, v = 2, m = 4, stage 0", schedule_interleaved(2, 4, 2, 0),
                "F0c0 F1c0 F0c1 F1c1 F2c0 B0c1 F3c0 B1c1 F2c1 B0c0 F3c1 B1c0 B2c1 B3c1 B2c0 B3c0");
    check_order(run, "p = 2, v = 2, m = 4, stage 1", schedule_interleaved(2, 4, 2, 1),
                "F0c0 F1c0 F0c1 B0c1 F1c1 B1c1 F2c0 B0c0 F3c0 B1c0 F2c1 B2c1 F3c1 B3c1 B2c0 B3c0");
    Schedule plain = schedule_1f1b(4, 7, 1);
    char *text = schedule_text(&plain);
    check_order(run, "v = 1 is 1F1B, whatever m is", schedule_interleaved(4, 7, 1, 1), text);
    free(text);
    schedule_free(&plain);
    // A chunk takes 1 and 2 units, so a stage takes v and 2v.
    double units = (double)interleaved_makespan(p, m, v, 1, 2, 0);
    double want = (double)(3 * (m * v + p - 1));
    check_numbers(run, "op lists = formula", "(m+(p-1)/v)(t_f+t_b)", &units, &want, 1, 0);
}

// -------------------------------------------- equal stages: 1F1B and v chunks beside each other

// One step on equal stages, as this rank measured it. activations: peak, in bytes.
typedef struct {
    Timing timing;
    size_t in_flight, activations, messages;
} EqualStep;

// stack->chunks: v
static void equal_costs(Run *run, const Stack *stack, size_t m, const EqualStep *seen) {
    size_t p = run->world->size, i = run->world->rank, v = stack->chunks;
    const char *way = v == 1 ? "1F1B" : "interleaved";
    CostName ids, names, title;
    Schedule list = schedule_interleaved(p, m, v, i);
    size_t kept = stack_peak(stack, &list, p, i);
    schedule_free(&list);
    cost_name(&ids, "%%s.%s", way);
    cost_name(&names, "equal stages: %%s, %s", way);
    check_costs(run, ids.text, names.text,
                (CostRow[]){ { "flight", "in flight", "chunks",
                               BY_FORMULA(interleaved_in_flight(p, m, v, i)), seen->in_flight },
                             { "activations", "activations, peak", "bytes", BY_PLAY(kept),
                               seen->activations },
                             { "sent", "messages sent", "calls",
                               BY_FORMULA(m * interleaved_boundaries(p, v, i)), seen->messages },
                             { 0 } });
    if (!clock_config()->simulated) return; // real time differs from run to run
    Stack part = *stack;
    part.blocks /= v;
    StackTimes d = stack_times(&part);
    Predicted by_play = played(interleaved_makespan(p, m, v, d.forward, d.backward, d.message));
    Predicted by_formula = NOT_PREDICTED;
    // (m + (p-1)/v)(t_f + t_b) of a stage
    if (d.message == 0) by_formula = formula((m * v + p - 1) * (d.forward + d.backward));
    check_costs(run, ids.text, names.text,
                (CostRow[]){ { "step", "step", "ps", by_formula, by_play, seen->timing.step },
                             { 0 } });
    Stack whole = *stack;
    whole.chunks = 1;
    stack_check_bubble(run, way, cost_name(&title, "equal stages, %s", way), &whole, m, by_formula,
                       by_play, &seen->timing);
}

// Runs and records one step. Draws it, 1F1B's with --verbose only.
static EqualStep equal_step(Run *run, const Stack *stack, size_t m, const char *draw) {
    char title[64], way[32] = "1F1B";
    size_t p = run->world->size, v = stack->chunks;
    if (v > 1) snprintf(way, sizeof way, "v = %zu", v);
    snprintf(title, sizeof title, "%s, %zu equal stages, m = %zu", way, p, m);
    comm_ledger_reset(run->world);
    Schedule list = schedule_interleaved(p, m, v, run->world->rank);
    Played played = play_list(run, stack, &list, m);
    schedule_free(&list);
    EqualStep step = { .timing = played.timing,
                       .in_flight = played.result.in_flight,
                       .activations = played.activations,
                       .messages = run->world->ledger[COMM_SEND].calls };
    if (v > 1) {
        say(run,
            "The model is cut in v p = %zu chunks; stage i has chunks i, %s, here called its "
            "chunks 0, %s.",
            v * p, v > 2 ? "i + p, ..." : "i + p", v > 2 ? "1, ..." : "1");
        say(run, "%sA: micro-batch 0 in chunk 0, a: in chunk 1.",
            p > 1 ? "So the last rank sends chunk 0's output back to rank 0. " : "");
    }
    picture_show(run, title,
                 picture_flags(run, draw) | (v > 1 ? PICTURE_SAME_SCALE : PICTURE_DETAIL));
    if (option_flag(run, "verbose") || !clock_config()->simulated)
        picture_summary(run, &step.timing);
    for (size_t i = 0; i < p; i++) {
        char name[48];
        snprintf(name, sizeof name, "v = %zu, stage %zu", v, i);
        check_true(run, "events = list", name,
                   events_in_order(run, way, i, schedule_interleaved(p, m, v, i)));
    }
    return step;
}

static Stack equal_stages(Run *run, const ModelConfig *model, size_t m, size_t v) {
    Stack stack = { .model = *model, .blocks = v < 2 ? 2 : v, .sequences = 1, .chunks = 1 };
    stack.model.context = option_size(run, "tokens");
    Stack chunked = stack;
    chunked.chunks = v;
    EqualStep one = equal_step(run, &stack, m, "1f1b");
    EqualStep seen = equal_step(run, &chunked, m, "interleaved");
    equal_costs(run, &stack, m, &one);
    if (v > 1) equal_costs(run, &chunked, m, &seen);
    return chunked;
}

// ---------------------------------------- training, on stages and micro-batches of unequal size

// One step of training: the executor runs the interleaved list.
static StepResult interleaved_step(PipelineRank *rank, Model *m, Optimizer *o, const Batch *batch,
                                   size_t micro_batches) {
    Schedule list =
        schedule_interleaved(rank->pp->size, micro_batches, model_chunks(m), rank->pp->rank);
    model_zero_gradients(m);
    PipelineResult r = zero_bubble_run(rank->pp, m, &list, batch, micro_batches);
    schedule_free(&list);
    return pipeline_update(rank, m, o, batch, r);
}

static Model *chunks_of(Run *run, const Training *t, size_t v) {
    Model *m = interleaved_describe(&t->model, NULL, run->world->size, v, run->world->rank);
    model_allocate(m);
    return m;
}

static void train(Run *run, Training *t, size_t v) {
    StageCosts seen = { 0 };
    Schedule list = schedule_interleaved(run->world->size, t->micro_batches, v, run->world->rank);
    Model *a = chunks_of(run, t, v), *b = chunks_of(run, t, v);
    StageCosts loop = stages_same_bits(run, "executor = own loop", t, a, b, pipeline_interleaved,
                                       &list, zero_bubble_run);
    model_free(a);
    model_free(b);
    schedule_free(&list);
    for (size_t i = 0; i < 2; i++) {
        t->optimizer = i ? adamw(0.01) : sgd(0.3);
        Trajectory got = trajectory_new(run, t), want = training_unsplit(run, t, 1);
        Model *mine = chunks_of(run, t, v);
        seen = stages_train(run, t, mine, interleaved_step, NULL, &got);
        say_detail(run, "%s: loss %.4f, %.4f, %.4f; norm %.3f, %.3f, %.3f, clipped to %.2f",
                   i ? "AdamW" : "SGD", got.loss[0], got.loss[1], got.loss[2], got.norm[0],
                   got.norm[1], got.norm[2], clip);
        training_compare(run, "interleaved = accumulation", &got, &want, 0);
        check_true(run, "clipping", "is at work in every step", trajectory_clipped(&got, clip));
        trajectory_free(&got);
        trajectory_free(&want);
        model_free(mine);
    }
    interleaved_costs(run, t, v, &seen, &loop);
}

// ---------------------------------------------------------------- the table of the page

// The steps of the played lists where a message takes `share` of t_f: [0] of 1F1B, [1] of v chunks.
static void steps_of_lists(Run *run, double step[2], const Stack *stack, size_t m, double share) {
    size_t p = run->world->size, v[2] = { 1, stack->chunks };
    Picoseconds t_f = stack_times(stack).forward, message = (Picoseconds)((double)t_f * share);
    for (size_t k = 0; k < 2; k++)
        step[k] = (double)interleaved_makespan(p, m, v[k], t_f / v[k], 2 * t_f / v[k], message);
}

static void answer(Run *run, size_t v, const double free_links[2]) {
    if (run->is_root && clock_config()->simulated) {
        bool faster = cost_value(run, "step.interleaved") < cost_value(run, "step.1F1B");
        say_answer(run,
                   "%s. With %zu chunks per stage the step takes %s instead of %s, and %s of "
                   "it is idle instead of %s.",
                   faster ? "Yes" : "Not over this link", v, cost_text(run, "step.interleaved"),
                   cost_text(run, "step.1F1B"), cost_text(run, "idle.interleaved"),
                   cost_text(run, "idle.1F1B"));
    } else {
        say_answer(run,
                   "Yes. Without message times the played lists with %zu chunks per stage "
                   "take %.1f %% less time than 1F1B's.",
                   v, 100 - 100 * free_links[1] / free_links[0]);
    }
    say_cost(run, "%s messages per rank instead of %s, and activations of %s instead of %s.",
             cost_text(run, "sent.interleaved"), cost_text(run, "sent.1F1B"),
             cost_text(run, "activations.interleaved"), cost_text(run, "activations.1F1B"));
    say_use_when(run, "a batch gives few micro-batches per stage, and a message takes much less "
                      "time than a chunk's forward.");
}

static void table(Run *run, const Stack *stack, size_t m) {
    static const double share[] = { 0, 0.5, 4 };
    size_t v = stack->chunks;
    double step[3][2];
    char name[32], cell[3][2][24];
    if (v == 1) {
        say_answer(run, "Not with one chunk per stage: then the lists are those of 1F1B.");
        return;
    }
    for (size_t k = 0; k < 3; k++) {
        steps_of_lists(run, step[k], stack, m, share[k]);
        for (size_t way = 0; way < 2; way++) page_cell(cell[k][way], step[k][way], "ps");
    }
    check_true(run, "both sides of the trade", "without message times v chunks are faster",
               step[0][1] < step[0][0]);
    check_true(run, "both sides of the trade", "where a message takes 4 t_f they are slower",
               step[2][1] >= step[2][0]);
    snprintf(name, sizeof name, "v = %zu", v);
    const char *const columns[] = { "1F1B", name, NULL };
    const Result rows[] = {
        { "step", "(m+(p-1)/v)(t_f+t_b), plus messages", { "step.1F1B", "step.interleaved" } },
        { "idle, of the step",
          "(p-1)/(vm+p-1), plus messages",
          { "idle.1F1B", "idle.interleaved" } },
        { "chunks in flight", "below", { "flight.1F1B", "flight.interleaved" } },
        { "activations, peak of a rank",
          "bytes per chunk x in flight",
          { "activations.1F1B", "activations.interleaved" } },
        { "messages sent by a rank",
          "2vm, first and last rank (2v-1)m",
          { "sent.1F1B", "sent.interleaved" } },
        { "step if a message takes no time", "simulated", { cell[0][0], cell[0][1] } },
        { "step if messages take t_f / 2", "simulated", { cell[1][0], cell[1][1] } },
        { "step if messages take 4 t_f",
          "simulated: links are the bottleneck",
          { cell[2][0], cell[2][1] } },
        { 0 },
    };
    results(run, columns, clock_config()->simulated ? rows : rows + 2);
    say(run, "  p stages, m micro-batches, v chunks per stage (1F1B: 1); t_f, t_b: a stage's "
             "forward, backward.");
    say(run, "  Chunks in flight on stage i: 1F1B min(p-i, m), else min(2(p-1-i)+(v-1)p+1, mv).");
    answer(run, v, step[0]);
}

// ---------------------------------------------------------------- the lesson

static void interleaved(Run *run) {
    require_one_link(run);
    // One stage alone has no pipeline to fill.
    size_t p = run->world->size, v = p == 1 ? 1 : option_size(run, "chunks");
    size_t m = option_given(run, "micro-batches") ? option_size(run, "micro-batches") : 2 * p;
    REQUIRE(v >= 1 && v * p <= sizes.layers,
            "--chunks %zu: %zu stages have %zu parts, and the model has %zu blocks: "
            "choose 1 to %zu, or fewer ranks",
            v, p, v * p, sizes.layers, sizes.layers / p);
    REQUIRE(m >= 1 && m <= SEQUENCES,
            "--micro-batches %zu: the batch has %d sequences: choose 1 to %d", m, SEQUENCES,
            SEQUENCES);
    REQUIRE(v == 1 || m % p == 0,
            "--micro-batches %zu: stages with several chunks take micro-batches in groups of "
            "p = %zu; choose a multiple of %zu, or --chunks 1",
            m, p, p);
    REQUIRE(option_size(run, "tokens") >= 1, "--tokens 0: choose at least 1");
    Training t = { .model = sizes,
                   .steps = 3,
                   .sequences = SEQUENCES,
                   .micro_batches = m,
                   .clip = clip,
                   .watched = MEM_ACTIVATIONS };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    lists(run, p, m, v);
    Stack stack = equal_stages(run, &t.model, m, v);
    train(run, &t, v);
    check_scatter_gather(run, &t.model);
    table(run, &stack, m);
    data_free(&t.data);
}

static const Option options[] = {
    { "chunks", "N", "2", "v, the parts of the model on each stage; 1 is 1F1B" },
    { "micro-batches", "N", NULL, "pieces the batch is cut into; without it: twice the stages" },
    { "tokens", "N", "10",
      "of a micro-batch on equal stages: with few, messages take longer than work" },
    { "dropout", "X", "0.1", "probability of dropping an element; at 0 less is kept" },
    { "draw", "1f1b|interleaved", "interleaved",
      "the schedule whose picture --svg and --trace write" },
    { 0 },
};
EXPERIMENT(interleaved, options);
