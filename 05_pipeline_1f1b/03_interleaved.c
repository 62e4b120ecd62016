// ranks: 4
// level: core
// question: Can the bubble shrink without more micro-batches, and what does that cost?
// vary: layers 17..20, width 18|24, context 7..13, vocab 31..50
//
// Interleaved 1F1B (Narayanan et al. 2021, PTD-P, section 2.2): a stage holds v chunks of the model in place of one.
// The model is cut into v p parts, and chunk c of stage i is part c p + i. So a micro-batch goes round the stages v
// times, and the pipeline fills and drains in 1/v of the time, as a chunk takes 1/v of the time of a stage. Each
// boundary between parts is a message: about v times as many, and a new link, from the last stage to the first one.
// And more is kept: in 1F1B stage 0 has p micro-batches in flight, of L/p of the L blocks each; here v p + p - 1
// chunks of L/(v p) blocks, which are (p-1)/(v p) more.
//     p = 2, v = 2:   stage 0 has parts 0 and 2, stage 1 has parts 1 and 3;   a micro-batch goes 0 > 1 > 0 > 1
// Sums are those of 1F1B: a chunk adds the gradients of micro-batches 0, 1, 2, ... in this order. Both are compared
// with gradient accumulation on one device.
// Left out: a number of micro-batches that p does not divide; the order works in groups of p. v = 1 is 1F1B.
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "04_pipeline_naive/experiments/stack.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/experiments/costs.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ================================ the technique ================================

// The order of Megatron-LM. All stages do their forwards in this one order: p micro-batches go through chunk 0, then
// the same p through chunk 1, ..., chunk v - 1; then the next p. Backwards have it, too, but begin with the last chunk.
static PipeOp turn(PipeWhat what, size_t n, size_t p, size_t v) {
    size_t group = n / (p * v), chunk = n % (p * v) / p;
    return (PipeOp){ .what = what, .micro_batch = group * p + n % p,
                     .chunk = what == FORWARD ? chunk : v - 1 - chunk };
}

// p = 2, v = 2, m = 4; F1c0: forward of micro-batch 1, chunk 0.
//     stage 0   F0c0 F1c0 F0c1 F1c1 F2c0 B0c1 F3c0 B1c1 F2c1 B0c0 F3c1 B1c0 B2c1 B3c1 B2c0 B3c0
//     stage 1   F0c0 F1c0 F0c1 B0c1 F1c1 B1c1 F2c0 B0c0 F3c0 B1c0 F2c1 B2c1 F3c1 B3c1 B2c0 B3c0
Schedule schedule_interleaved(size_t p, size_t m, size_t v, size_t i) {
    Schedule s = {0};
    // EXERCISE 05.03a (5 points): the list of stage i of p, v chunks, m micro-batches: warm-up, then a forward and a
    // backward in turn, then the last backwards; turn() says which forward and which backward is the n-th. In its
    // warm-up the last stage runs the first group through all chunks but the last one; each stage before it runs 2
    // forwards more than the one behind it. With v = 1 the list is 1F1B's. No stage has more than m v forwards.
    // Calls: turn, schedule_add_op.
    size_t all = m * v, ahead = v == 1 ? p - 1 - i : 2 * (p - 1 - i) + (v - 1) * p;
    if (ahead > all) ahead = all;
    for (size_t n = 0; n < all + ahead; n++) {
        if (n < all) schedule_add_op(&s, turn(FORWARD, n, p, v));
        if (n >= ahead) schedule_add_op(&s, turn(BACKWARD, n - ahead, p, v));
    }
    // END
    return s;
}
// Why 2 (p-1-i) and not p-1-i: both are as fast where messages take no time. But with p-1-i a chunk's output is needed
// by the next stage as soon as it is computed; with 2 (p-1-i) that stage has another op to run first, while the message
// travels. And messages between two ranks are matched by their order alone. With p = 2 the next stage and the one
// before are the same rank; with p-1-i, it would receive x and dy in another order than they are sent.

// My chunks of the model: chunk c is part c p + i. blocks [v p] of each part, or NULL: as equal as possible.
Model *interleaved_describe(const ModelConfig *c, const size_t *blocks, size_t p, size_t v, size_t i) {
    Range *chunk = host_alloc(v * sizeof *chunk);
    for (size_t k = 0; k < v; k++) chunk[k] = pipeline_stage_layers(c, blocks, v * p, k * p + i);
    Model *m = model_describe_chunks(c, chunk, v);
    free(chunk);
    return m;
}

// The list with its messages, [B*T, C] each. They go round in a ring: y to the next stage, dx to the one before; y of
// the last stage is x of the FIRST one, a chunk later. Only part 0 receives no x, and only part v p - 1 sends no y.
// Sends are started and not waited for: in the warm-up all stages send y round the ring, and if each waited until its y
// is received, nobody would receive. x stays in b->input until its backward is done.
// What is sent keeps its buffer to the end of the step here: simple. pipeline_run (04/executor.c) has two for each
// neighbour, and posts its receives a message ahead; the trainer of chapter 08 uses that. The experiment compares both.
PipelineResult pipeline_interleaved(Comm *pp, Model *mine, const Batch *batch, size_t m) {
    PipelineStage s = pipeline_begin(pp, mine, batch, m);
    size_t p = pp->size, i = pp->rank, v = model_chunks(mine);
    Schedule list = schedule_interleaved(p, m, v, i);
    Arena sent = arena(MEM_COMMUNICATION);
    Request **request = host_alloc(list.n * sizeof *request);
    for (size_t n = 0; n < list.n; n++) {
        PipeOp op = list.ops[n];
        size_t k = op.chunk * m + op.micro_batch;          // s.micro has all micro-batches of chunk 0, then of chunk 1
        PipelineBatch *b = &s.micro[k];
        bool first = op.chunk == 0 && i == 0, last = op.chunk + 1 == v && i + 1 == p;          // part 0, part v p - 1
        Arena incoming = arena(MEM_COMMUNICATION);
        if (op.what == FORWARD) {
            if (!first) comm_recv(pp, b->x = tensor_shaped(&b->input, b->in), s.before);       // B*T*C elements: x
            if (!last) b->y = tensor_shaped(&sent, b->out);
            pipeline_forward(&s, k);                       // the layers of this chunk
            if (!last) request[n] = comm_start_send(pp, b->y, s.next);                         // B*T*C elements: y
        } else {
            if (!last) comm_recv(pp, b->dy = tensor_shaped(&incoming, b->out), s.next);        // B*T*C elements: dy
            if (!first) b->dx = tensor_shaped(&sent, b->in);
            pipeline_backward(&s, k);
            if (!first) request[n] = comm_start_send(pp, b->dx, s.before);                     // B*T*C elements: dx
        }
        arena_free(&incoming);
    }
    for (size_t n = 0; n < list.n; n++) comm_wait(request[n]);
    free(request);
    arena_free(&sent);
    schedule_free(&list);
    return pipeline_end(&s);
}

// PTD-P section 4.1, scatter/gather: the t tensor-parallel ranks of a stage all have the same y [B*T, C], and all t of
// the next stage want it. So each sends 1/t of it over the link between nodes, to the rank of its own number; there the
// t ranks put it together over the link inside their node. pp: the ranks of my number, a stage each.
void pipeline_send_scattered(Comm *pp, Comm *tp, Tensor y, size_t to) {
    Range r = shard_range(tensor_count(y), tp->size, tp->rank);
    comm_send(pp, tensor_flat_range(y, r.lo, r.hi), to);   // B*T*C/t elements, in place of B*T*C
}
void pipeline_recv_gathered(Comm *pp, Comm *tp, Tensor x, size_t from) {
    Range r = shard_range(tensor_count(x), tp->size, tp->rank);
    Tensor mine = tensor_flat_range(x, r.lo, r.hi);
    comm_recv(pp, mine, from);
    comm_all_gather(tp, x, mine);                          // (t-1) B*T*C/t elements, inside the node
}

// ================================ the experiment ================================

// One step of training by the executor, with this list.
static StepResult interleaved_step(void *rank, Model *m, Optimizer *o, const Training *t, const Batch *batch) {
    PipelineRank *me = rank;
    Schedule list = schedule_interleaved(me->pp->size, t->micro_batches, model_chunks(m), me->pp->rank);
    model_zero_gradients(m);
    PipelineResult r = pipeline_run(me->pp, m, &list, batch, t->micro_batches);
    schedule_free(&list);
    return pipeline_update(me, m, o, t, batch, r);
}

// ---------------------------------------------------------------- lists

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
    interleaved_list_checks(run, p, m, v);
}

// ---------------------------------------------------------------- equal stages: 1F1B and v chunks beside each other

static EqualStep equal_step(Run *run, const Stack *stack, size_t m, const char *name, bool drawn) {
    char title[64];
    size_t p = run->world->size, v = stack->chunks;
    snprintf(title, sizeof title, "%s, %zu equal stages, m = %zu", name, p, m);
    comm_ledger_reset(run->world);
    Schedule list = schedule_interleaved(p, m, v, run->world->rank);
    Played played = stack_play_list(run, stack, &list, m);
    schedule_free(&list);
    EqualStep step = { .timing = played.timing, .in_flight = played.result.in_flight,
                       .activations = played.activations, .messages = run->world->ledger[COMM_SEND].calls };
    bool strips = option_flag(run, "verbose") || option_text(run, "svg") || option_text(run, "trace");
    picture_show(run, title, (strips ? PICTURE_MEMORY : 0) | (v > 1 ? PICTURE_SAME_SCALE : PICTURE_DETAIL) |
                             (drawn ? 0 : PICTURE_NO_FILES));
    if (option_flag(run, "verbose") || !clock_config()->simulated) picture_summary(run, &step.timing);
    for (size_t k = 0; k < p; k++) {                       // did every stage work in the order of its list?
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
    if (v > 1) say(run, "%-8sF B: chunk 0, f b: chunk 1%s", "", v > 2 ? "; F B: chunk 2, and so on" : "");
    interleaved_equal_costs(run, &stack, m, &one, &seen);
    return stack;
}

// ---------------------------------------------------------------- scatter/gather: two stages of t ranks

static void scatter_gather(Run *run, const ModelConfig *c) {
    size_t t = run->world->size / 2, i = run->world->rank, stage = t ? i / t : 0;
    bool in = t && stage < 2;                              // a last odd rank is in no stage
    Comm *tp = comm_split(run->world, in ? stage : 2, i, "tp");
    Comm *pp = comm_split(run->world, in ? i % t : t, i, "pp");
    Arena a = arena(MEM_WORKSPACE);
    Tensor y = tensor_new(&a, 3 * c->context, c->width), x = tensor_new(&a, 3 * c->context, c->width);
    tensor_randomize(y, run->seed, 1);                     // every rank knows it, so every rank can compare
    tensor_fill(x, 0);
    if (in) {
        comm_connect(pp, COMM_NEIGHBOURS);
        if (stage == 0) pipeline_send_scattered(pp, tp, y, 1);
        else pipeline_recv_gathered(pp, tp, x, 0);
    }
    check_true(run, "scatter/gather", "the next stage has the message, every bit", !in || !stage || tensor_equal(x, y));
    interleaved_scatter_costs(run, tensor_count(y), in, t, stage, pp, tp);
    comm_free(tp);
    comm_free(pp);
    arena_free(&a);
}

// ---------------------------------------------------------------- training, on stages of unequal size

// 17 blocks in 8 parts: 3, 2, 2, 2, ...; 19 sequences of 5 to 10 counted tokens in 8 micro-batches: 3, 3, 3, 2, ...
static const ModelConfig sizes = { .layers = 17, .width = 12, .heads = 3, .context = 10, .vocab = 37 };
enum { SEQUENCES = 19 };
static const double clip = 0.25;

static Model *chunks_of(Run *run, const Training *t, size_t v) {
    Model *m = interleaved_describe(&t->model, NULL, run->world->size, v, run->world->rank);
    model_allocate(m);
    return m;
}

static void train(Run *run, Training *t, size_t v) {
    StageCosts seen = {0};
    Schedule list = schedule_interleaved(run->world->size, t->micro_batches, v, run->world->rank);
    Model *a = chunks_of(run, t, v), *b = chunks_of(run, t, v);
    StageCosts loop = stages_same_bits_models(run, "executor = own loop", t, a, b, pipeline_interleaved, &list);
    model_free(a);
    model_free(b);
    schedule_free(&list);
    for (size_t i = 0; i < 2; i++) {
        t->optimizer = i ? adamw(0.01) : sgd(0.3);
        Trajectory got = trajectory_new(run, t), want = training_unsplit(run, t, 1);
        Model *mine = chunks_of(run, t, v);
        seen = stages_train_model(run, t, mine, interleaved_step, NULL, &got);
        say_detail(run, "%s: loss %.4f, %.4f, %.4f; norm %.3f, %.3f, %.3f, clipped to %.2f", i ? "AdamW" : "SGD",
                   got.loss[0], got.loss[1], got.loss[2], got.norm[0], got.norm[1], got.norm[2], clip);
        training_compare(run, "interleaved = accumulation", &got, &want, 0);
        check_true(run, "clipping", "is at work in every step", trajectory_clipped(&got, clip));
        trajectory_free(&got);
        trajectory_free(&want);
        model_free(mine);
    }
    interleaved_costs(run, t, v, &seen, &loop);
}

static void interleaved(Run *run) {
    require_one_link(run);
    size_t p = run->world->size, v = p == 1 ? 1 : option_size(run, "chunks");     // one stage alone has nothing to fill
    size_t m = option_given(run, "micro-batches") ? option_size(run, "micro-batches") : 2 * p;
    REQUIRE(v >= 1 && v * p <= sizes.layers, "--chunks %zu: %zu stages have %zu parts, and the model has %zu blocks: "
            "choose 1 to %zu, or fewer ranks", v, p, v * p, sizes.layers, sizes.layers / p);
    REQUIRE(m >= 1 && m <= SEQUENCES, "--micro-batches %zu: the batch has %d sequences: choose 1 to %d", m, SEQUENCES,
            SEQUENCES);
    REQUIRE(v == 1 || m % p == 0, "--micro-batches %zu: stages with several chunks take micro-batches in groups of "
            "p = %zu, each group through all chunks; a smaller last group would not be back from the last stage when "
            "the first one starts its next chunk: choose a multiple of %zu, or --chunks 1", m, p, p);
    REQUIRE(option_size(run, "tokens") >= 1, "--tokens 0: choose at least 1");
    Training t = { .model = sizes, .steps = 3, .sequences = SEQUENCES, .micro_batches = m, .clip = clip,
                   .watched = MEM_ACTIVATIONS };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    lists(run, p, m, v);
    Stack stack = equal_stages(run, &t.model, m, v);
    train(run, &t, v);
    scatter_gather(run, &t.model);
    interleaved_table(run, &stack, m);
    data_free(&t.data);
}

static const Option options[] = {
    { "chunks", "N", "2", "v, the parts of the model on each stage; 1 is 1F1B" },
    { "micro-batches", "N", NULL, "pieces the batch is cut into; without it: twice the stages" },
    { "tokens", "N", "10", "of a micro-batch on equal stages: with few, messages take longer than work" },
    { "dropout", "X", "0.1", "probability of dropping an element; at 0 less is kept" },
    { "draw", "1f1b|interleaved", "interleaved", "the schedule whose picture --svg and --trace write" },
    {0},
};
EXPERIMENT(interleaved, options);
