// 03_interleaved.c (experiment): v chunks per stage equal gradient accumulation in every bit, by
// the own loop and by the executor; beside 1F1B: less idle time, more messages and activations.
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

// Most chunks between their forward and their backward, as published: Megatron's order, and 1F1B's.
static size_t in_flight(size_t p, size_t m, size_t v, size_t i) {
    size_t most = v == 1 ? p - i : 2 * (p - 1 - i) + (v - 1) * p + 1;
    return most < m * v ? most : m * v;
}

static size_t step_of_lists(size_t p, size_t m, size_t v, size_t t_f, size_t t_b, size_t message) {
    Schedule *stage = host_alloc(p * sizeof *stage);
    for (size_t i = 0; i < p; i++) stage[i] = schedule_interleaved(p, m, v, i);
    return lists_makespan(stage, p, m, &(OpTimes){ t_f, t_b, 0, message });  // t_f, t_b: of a chunk
}

static void list_checks(Run *run, size_t p, size_t m, size_t v) {
    size_t T_F = v, T_B = 2 * v;  // of a stage: a chunk takes 1 and 2 units
    double units = (double)step_of_lists(p, m, v, T_F / v, T_B / v, 0);
    double want = (double)m * (double)(T_F + T_B) + (double)((p - 1) * (T_F + T_B)) / (double)v;
    check_numbers(run, "op lists = formula", "(m+(p-1)/v)(t_f+t_b)", &units, &want, 1, 0);
}

static void reads(Run *run, const char *name, Schedule s, const char *want) {
    char *text = schedule_text(&s);
    say_detail(run, "  %s: %s", name, text);
    check_true(run, "order as published", name, !strcmp(text, want));
    free(text);
    schedule_free(&s);
}

static void lists(Run *run, size_t p, size_t m, size_t v) {
    reads(run, "p = 2, v = 2, m = 4, stage 0", schedule_interleaved(2, 4, 2, 0),
          "F0c0 F1c0 F0c1 F1c1 F2c0 B0c1 F3c0 B1c1 F2c1 B0c0 F3c1 B1c0 B2c1 B3c1 B2c0 B3c0");
    reads(run, "p = 2, v = 2, m = 4, stage 1", schedule_interleaved(2, 4, 2, 1),
          "F0c0 F1c0 F0c1 B0c1 F1c1 B1c1 F2c0 B0c0 F3c0 B1c0 F2c1 B2c1 F3c1 B3c1 B2c0 B3c0");
    Schedule plain = schedule_1f1b(4, 7, 1);
    char *text = schedule_text(&plain);
    reads(run, "v = 1 is 1F1B, whatever m is", schedule_interleaved(4, 7, 1, 1), text);
    free(text);
    schedule_free(&plain);
    list_checks(run, p, m, v);
}

// -------------------------------------------- equal stages: 1F1B and v chunks beside each other

// One step on equal stages: what this rank has measured. Bytes, peak; calls.
typedef struct { Timing timing; size_t in_flight, activations, messages; } EqualStep;

static const char *column_of(size_t v) { return v == 1 ? "1F1B" : "interleaved"; }

static void equal_cost(Run *run, const Stack *stack, size_t v, size_t m, const EqualStep *seen) {
    size_t p = run->world->size, i = run->world->rank, flight = in_flight(p, m, v, i), bytes = 0,
           most = 0;
    const char *way = column_of(v);
    CostName id, name;
    check_cost(run, cost_name(&id, "flight.%s", way),
               cost_name(&name, "equal stages: in flight, %s", way), "chunks", formula(flight),
               NOT_PREDICTED, seen->in_flight);
    Stack part = *stack;
    part.blocks /= v;
    // Chunks may keep unequally much: the list says which of them are in flight at once.
    Schedule list = schedule_interleaved(p, m, v, i);
    for (size_t n = 0; n < list.n; n++) {
        size_t kept = stack_kept(&part, v * p, list.ops[n].chunk * p + i);
        bytes = list.ops[n].what == FORWARD ? bytes + kept : bytes - kept;
        if (bytes > most) most = bytes;
    }
    schedule_free(&list);
    check_cost(run, cost_name(&id, "activations.%s", way),
               cost_name(&name, "equal stages: activations, peak, %s", way), "bytes", NOT_PREDICTED,
               played(most), seen->activations);
    // y of every chunk but the last part's, dx of every chunk but the first part's.
    size_t messages = p == 1 ? 0 : m * (v - (i + 1 == p)) + m * (v - (i == 0));
    check_cost(run, cost_name(&id, "sent.%s", way),
               cost_name(&name, "equal stages: messages sent, %s", way), "calls", formula(messages),
               NOT_PREDICTED, seen->messages);
    if (!clock_config()->simulated) return;                // real time differs from run to run
    StackTimes d = stack_times(&part);
    Predicted by_play = played(step_of_lists(p, m, v, d.forward, d.backward, d.message)),
              by_formula = NOT_PREDICTED;
    // (m + (p-1)/v)(t_f + t_b)
    if (d.message == 0) by_formula = formula((m * v + p - 1) * (d.forward + d.backward));
    check_cost(run, cost_name(&id, "step.%s", way), cost_name(&name, "equal stages: step, %s", way),
               "ps", by_formula, by_play, seen->timing.step);
    CostName title;
    stack_check_bubble(run, way, cost_name(&title, "equal stages, %s", way), stack, m, by_formula,
                       by_play, &seen->timing);
}

static EqualStep equal_step(Run *run, const Stack *stack, size_t m, const char *name, bool drawn) {
    char title[64];
    size_t p = run->world->size, v = stack->chunks;
    snprintf(title, sizeof title, "%s, %zu equal stages, m = %zu", name, p, m);
    comm_ledger_reset(run->world);
    Schedule list = schedule_interleaved(p, m, v, run->world->rank);
    Played played = play_list(run, stack, &list, m);
    schedule_free(&list);
    EqualStep step = { .timing = played.timing, .in_flight = played.result.in_flight,
                       .activations = played.activations,
                       .messages = run->world->ledger[COMM_SEND].calls };
    bool strips =
        option_flag(run, "verbose") || option_text(run, "svg") || option_text(run, "trace");
    picture_show(run, title,
                 (strips ? PICTURE_MEMORY : 0) | (v > 1 ? PICTURE_SAME_SCALE : PICTURE_DETAIL) |
                     (drawn ? 0 : PICTURE_NO_FILES));
    if (option_flag(run, "verbose") || !clock_config()->simulated)
        picture_summary(run, &step.timing);
    for (size_t k = 0; k < p; k++) {  // did every stage work in the order of its list?
        Schedule wanted = schedule_interleaved(p, m, v, k);
        char *want = schedule_text(&wanted), *order = picture_order(run, k), line[48];
        sprintf(line, "v = %zu, stage %zu", v, k);
        check_true(run, "events = list", line, !order || !strcmp(order, want));
        free(want);
        free(order);
        schedule_free(&wanted);
    }
    return step;
}

static Stack equal_stages(Run *run, const ModelConfig *model, size_t m, size_t v) {
    Stack stack = { .model = *model, .blocks = v < 2 ? 2 : v, .sequences = 1, .chunks = 1 };
    stack.model.context = option_size(run, "tokens");
    char name[32];
    bool draw_v = strcmp(option_text(run, "draw"), "1f1b");
    EqualStep one = equal_step(run, &stack, m, "1F1B", !draw_v);
    stack.chunks = v;
    snprintf(name, sizeof name, "v = %zu", v);
    EqualStep seen = equal_step(run, &stack, m, name, draw_v);
    if (v > 1)
        say(run, "%-8sF B: chunk 0, f b: chunk 1%s", "", v > 2 ? "; F B: chunk 2, and so on" : "");
    equal_cost(run, &stack, 1, m, &one);
    if (v > 1) equal_cost(run, &stack, v, m, &seen);
    return stack;
}

// ---------------------------------------------------------------- scatter/gather

static void scatter_costs(Run *run, size_t count, bool in, size_t t, size_t stage, const Comm *pp,
                          const Comm *tp) {
    size_t E = sizeof(real);
    bool sends = in && stage == 0, gathers = in && stage == 1;
    check_cost(run, "scatter.sent", "scatter/gather: bytes between stages", "bytes",
               formula(sends ? part_size(count, t, tp->rank) * E : 0), NOT_PREDICTED,
               pp->ledger[COMM_SEND].bytes);
    check_cost(run, "scatter.gathered", "scatter/gather: bytes inside a stage", "bytes",
               formula(gathers ? ring_bytes(ONE_PASS, t, count, E) : 0), NOT_PREDICTED,
               tp->ledger[COMM_ALL_GATHER].bytes);
    check_cost(run, "scatter.all", "scatter/gather: bytes between stages, all ranks", "bytes",
               formula(t ? count * E : 0), NOT_PREDICTED,
               sum_of_ranks(run, (double)pp->ledger[COMM_SEND].bytes));
}

static void scatter_gather(Run *run, const ModelConfig *c) {
    size_t t = run->world->size / 2, i = run->world->rank, stage = t ? i / t : 0;
    bool in = t && stage < 2;                              // a last odd rank is in no stage
    Comm *tp = comm_split(run->world, in ? stage : 2, i, "tp");
    Comm *pp = comm_split(run->world, in ? i % t : t, i, "pp");
    Arena a = arena(MEM_WORKSPACE);
    Tensor y = tensor_new(&a, 3 * c->context, c->width),
           x = tensor_new(&a, 3 * c->context, c->width);
    tensor_randomize(y, run->seed, 1);  // every rank knows it, so every rank can compare
    tensor_fill(x, 0);
    if (in) {
        comm_connect(pp, COMM_NEIGHBOURS);
        if (stage == 0) pipeline_send_scattered(pp, tp, y, 1);
        else pipeline_recv_gathered(pp, tp, x, 0);
    }
    check_true(run, "scatter/gather", "the next stage has the message, every bit",
               !in || !stage || tensor_equal(x, y));
    scatter_costs(run, tensor_count(y), in, t, stage, pp, tp);
    comm_free(tp);
    comm_free(pp);
    arena_free(&a);
}

// ---------------------------------------- training, on stages and micro-batches of unequal size

// One step of training by the executor, with this list.
static StepResult interleaved_step(PipelineRank *rank, Model *m, Optimizer *o, const Batch *batch,
                                   size_t micro_batches) {
    Schedule list =
        schedule_interleaved(rank->pp->size, micro_batches, model_chunks(m), rank->pp->rank);
    model_zero_gradients(m);
    PipelineResult r = zero_bubble_run(rank->pp, m, &list, batch, micro_batches);
    schedule_free(&list);
    return pipeline_update(rank, m, o, batch, r);
}

static CutSizes part_sizes(const ModelConfig *c, size_t p, size_t v, size_t i, size_t chunk) {
    return stage_sizes(c, v * p, chunk * p + i);
}

static void training_costs(Run *run, const Training *t, size_t v, const StageCosts *seen,
                           const StageCosts *loop) {
    const ModelConfig *c = &t->model;
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, E = sizeof(real);
    // Messages of each direction.
    size_t forwards = p == 1 ? 0 : v - (i + 1 == p), backwards = p == 1 ? 0 : v - (i == 0);
    size_t message = t->sequences * c->context * c->width * E;  // of all micro-batches together
    check_cost(run, "sent.calls", "messages sent", "calls", formula(m * (forwards + backwards)),
               NOT_PREDICTED, seen->messages);
    check_cost(run, "sent.bytes", "messages sent", "bytes",
               formula((forwards + backwards) * message), NOT_PREDICTED, seen->message_bytes);
    check_cost(run, "sent.all", "messages of all ranks: 2m(pv-1)", "calls",
               formula(p == 1 ? 0 : 2 * m * (p * v - 1)), NOT_PREDICTED,
               sum_of_ranks(run, seen->messages));
    check_cost(run, "flight", "in flight: min(2(p-1-i)+(v-1)p+1, mv)", "chunks",
               formula(in_flight(p, m, v, i)), NOT_PREDICTED, seen->in_flight);

    size_t held = 0, most = 0, sent = 0, buffers = 0;
    Schedule list = schedule_interleaved(p, m, v, i);
    for (size_t n = 0; n < list.n; n++) {
        PipeOp op = list.ops[n];
        bool forward = op.what == FORWARD;
        size_t part = op.chunk * p + i, tokens = stage_tokens(t, op.micro_batch);
        CutSizes z = part_sizes(c, p, v, i, op.chunk);
        size_t kept = kept_stage(&z) * tokens * E, one = tokens * c->width * E;
        held = forward ? held + kept : held - kept;
        if (held > most) most = held;
        // The loop of the lesson: all that it has sent so far, and one that it receives.
        bool receives = forward ? part > 0 : part + 1 < v * p,
             sends = forward ? part + 1 < v * p : part > 0;
        sent += sends * one;
        if (sent + receives * one > buffers) buffers = sent + receives * one;
    }
    schedule_free(&list);
    check_cost(run, "activations", "activations, peak", "bytes", NOT_PREDICTED, played(most),
               seen->activations);
    check_cost(run, "loop.flight", "own loop: in flight", "chunks", formula(in_flight(p, m, v, i)),
               NOT_PREDICTED, loop->in_flight);
    check_cost(run, "loop.activations", "own loop: activations, peak", "bytes", NOT_PREDICTED,
               played(most), loop->activations);
    check_cost(run, "loop.buffers", "own loop: buffers, peak", "bytes", NOT_PREDICTED,
               played(buffers), loop->message_buffers);
    // The executor: to each side two messages on their way out; one expected from each neighbour.
    // Of two stages both neighbours are one.
    size_t largest = stage_tokens(t, 0) * c->width * E, two = m * v < 2 ? 1 : 2;
    size_t neighbours = p > 2 && v > 1 ? 2 : p == 1 ? 0 : v > 1 ? 1 : (i > 0) + (i + 1 < p);
    check_cost(run, "buffers", "message buffers, peak", "bytes",
               formula(((forwards > 0) + (backwards > 0)) * two * largest + neighbours * largest),
               NOT_PREDICTED, seen->message_buffers);

    size_t mine = 0, gradients = 0;
    for (size_t chunk = 0; chunk < v; chunk++) {
        CutSizes z = part_sizes(c, p, v, i, chunk);
        mine += elements_stage(&z);
        gradients += elements_gradients(&z);
    }
    check_cost(run, "parameters", "parameters of my chunks", "bytes", formula(mine * E),
               NOT_PREDICTED, seen->parameters);
    check_cost(run, "gradients", "gradients of my chunks", "bytes", formula(gradients * E),
               NOT_PREDICTED, seen->gradients);
    check_cost(run, "optimizer", "optimizer state of my chunks", "bytes",
               formula((t->optimizer.kind == ADAMW) * 2 * mine * E), NOT_PREDICTED,
               seen->optimizer);
    CutSizes z = cut_sizes(c, 1, 0);
    bool shares = p > 1 && (i == 0 || i + 1 == p);
    double tied = ring_bytes(ALL_REDUCE_PASSES, 2, elements_wte(&z), E);
    check_cost(run, "tied.bytes", "tied sum of wte", "bytes", formula(shares ? tied : 0),
               NOT_PREDICTED, seen->tied_bytes);
}

static Model *chunks_of(Run *run, const Training *t, size_t v) {
    Model *m = interleaved_describe(&t->model, NULL, run->world->size, v, run->world->rank);
    model_allocate(m);
    return m;
}

static void train(Run *run, Training *t, size_t v) {
    StageCosts seen = {0};
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
    training_costs(run, t, v, &seen, &loop);
}

// ---------------------------------------------------------------- the table of the page

// By lists: the steps of one chunk and of v, where a message takes share * t_f. Do v chunks win?
static bool row(Run *run, char cell[2][40], const Stack *stack, size_t m, double share) {
    size_t p = run->world->size, v[2] = { 1, stack->chunks }, step[2];
    Picoseconds t_f = stack_times(stack).forward, message = (Picoseconds)((double)t_f * share);
    for (size_t k = 0; k < 2; k++) {
        step[k] = step_of_lists(p, m, v[k], t_f / v[k], 2 * t_f / v[k], message);
        cell[k][0] = '=';
        page_value(cell[k] + 1, 39, (double)step[k], "ps");
    }
    return step[1] < step[0];
}

static void table(Run *run, const Stack *stack, size_t m) {
    size_t v = stack->chunks;
    char name[32], cell[3][2][40];
    static const double share[] = { 0, 0.5, 4 };
    if (v == 1) return;                                    // nothing to compare
    bool wins[3];
    for (size_t k = 0; k < 3; k++) wins[k] = row(run, cell[k], stack, m, share[k]);
    check_true(run, "both sides of the trade", "without message times v chunks are faster",
               wins[0]);
    check_true(run, "both sides of the trade", "where a message takes 4 t_f they are slower",
               !wins[2]);
    snprintf(name, sizeof name, "v = %zu", v);
    const char *const columns[] = { "1F1B", name, NULL };
    const Result rows[] = {
        { "step", "(m+(p-1)/v)(t_f+t_b), and messages", { "step.1F1B", "step.interleaved" } },
        { "idle, of the step",
          "(p-1)/(vm+p-1), and messages",
          { "idle.1F1B", "idle.interleaved" } },
        { "chunks in flight",
          "p-i; min(2(p-1-i)+(v-1)p+1, mv)",
          { "flight.1F1B", "flight.interleaved" } },
        { "activations, peak of a rank",
          "kept per chunk x in flight",
          { "activations.1F1B", "activations.interleaved" } },
        { "messages sent by a rank",
          "v m each side; ends: v m and (v-1) m",
          { "sent.1F1B", "sent.interleaved" } },
        { "step, a message takes 0", "the lists, played", { cell[0][0], cell[0][1] } },
        { "step, it takes t_f / 2", "the same", { cell[1][0], cell[1][1] } },
        { "step, it takes 4 t_f", "the same: the links set the pace", { cell[2][0], cell[2][1] } },
        {0}
    };
    results(run, columns, clock_config()->simulated ? rows : rows + 2);
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
            "p = %zu, each group through all chunks; a smaller last group would not be back from "
            "the last stage when the first one starts its next chunk: choose a multiple of %zu, or "
            "--chunks 1",
            m, p, p);
    REQUIRE(option_size(run, "tokens") >= 1, "--tokens 0: choose at least 1");
    Training t = { .model = sizes, .steps = 3, .sequences = SEQUENCES, .micro_batches = m,
                   .clip = clip, .watched = MEM_ACTIVATIONS };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    lists(run, p, m, v);
    Stack stack = equal_stages(run, &t.model, m, v);
    train(run, &t, v);
    scatter_gather(run, &t.model);
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
    {0},
};
EXPERIMENT(interleaved, options);
