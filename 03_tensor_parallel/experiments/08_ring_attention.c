// 08_ring_attention.c: the experiment of 08_ring_attention.c, ring_self_attention.c and ulysses.c.
// Trains a GPT with its sequences cut over all ranks in four ways, and compares with the unsplit
// training. Then runs attention alone, on longer sequences and with scores of several hundred, and
// checks results, bytes, memory and the time of the slowest rank. context_costs.c has the
// predictions.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "03_tensor_parallel/context_parallel.h"
#include "03_tensor_parallel/experiments/context_costs.h"
#include "common/comm/record.h"
#include "common/model/costs.h"
#include "common/tensor/random.h"
#include "judge/draw/picture.h"
#include "judge/frame/training.h"

static const AttentionKind *const kinds[KINDS] = { &ring_attention, &ring_attention_zigzag,
                                                   &ring_self_attention, &ulysses_attention };
static const char *const kind_name[KINDS] = { "ring", "zigzag", "RSA", "Ulysses" };
static const char *const kind_id[KINDS] = { "ring", "zigzag", "rsa", "ulysses" };

static void check_kind(Run *run, int kind, const char *id, const char *what, const char *unit,
                       Predicted by_formula, Predicted by_play, double measured) {
    char text[48], name[80];
    snprintf(text, sizeof text, "%s.%s", id, kind_id[kind]);
    snprintf(name, sizeof name, "%s: %s", kind_name[kind], what);
    check_cost(run, text, name, unit, by_formula, by_play, measured);
}
static void check_bytes(Run *run, int kind, const char *id, const char *what, double predicted,
                        size_t measured) {
    check_kind(run, kind, id, what, "bytes", formula(predicted), NOT_PREDICTED, (double)measured);
}

// ---------------------------------------------------------------- training a GPT

enum { SEQUENCES = 3, STEPS = 3 };
static const ModelConfig tiny = { .layers = 2, .width = 27, .heads = 9, .context = 27, .vocab = 61,
                                  .dropout = 0.1 };
static const double max_norm = 0.5;                       // small enough that every step is clipped

typedef struct {
    Comm *cp;
    size_t sent, sums;                                     // bytes sent: layers, gradients
    size_t parameters, gradients, activations;             // bytes; activations: their peak
} Trained;

static StepResult step(void *trained, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Trained *r = trained;
    model_zero_gradients(m);
    comm_ledger_reset(r->cp);
    // The batch has this rank's positions of every sequence. token_weight counts the tokens of all
    // ranks, so sums over the ranks are not divided.
    double loss = model_forward_backward(m, b) * b->token_weight;
    r->sent = comm_bytes_sent(r->cp);
    model_fold_tied(m);
    comm_all_reduce(r->cp, m->g);                          // partial sums over own tokens
    r->sums = comm_bytes_sent(r->cp) - r->sent;
    comm_all_reduce_doubles(r->cp, &loss, 1);
    double norm = model_grad_norm(m, NULL);                // the same on every rank
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss, norm };
}

static Trained train(Run *run, const Training *unsplit, const AttentionKind *kind, Trajectory *c) {
    Trained r = { .cp = run->world };
    Training t = *unsplit;
    Model *m = model_describe(&t.model, model_layers(&t.model));
    t.data.positions = context_parallel(m, run->world, kind);
    model_allocate(m);
    training_run(c, m, &t, 1, 0, step, &r);
    r.parameters = memory_now(MEM_PARAMETERS);
    r.gradients = memory_now(MEM_GRADIENTS);
    r.activations = memory_peak(MEM_ACTIVATIONS);
    model_free(m);
    return r;
}

static void trained_costs(Run *run, const Training *t, int kind, const Trained *r) {
    const ModelConfig *c = &t->model;
    const size_t n = run->world->size, e = sizeof(real), b = t->sequences;
    ContextLayer layer = { b, c->context, c->heads, config_kv_heads(c), c->width / c->heads };
    CutSizes whole = cut_sizes(c, 1, 0), z = whole;
    z.T = context_chunk(kind, c->context, n, run->world->rank);    // this rank's queries
    z.online = kind != RSA;
    size_t kept = b * z.T * kept_stage(&z), keys = part_size(layer.key_heads, n, run->world->rank);
    size_t heads = keys * config_head_ratio(c);
    // Ulysses keeps q, k, v, out and lse of its heads for all positions, and no lse of its
    // positions.
    if (kind == ULYSSES)
        kept += c->layers * (b * c->context * (heads * (2 * layer.D + 1) + 2 * keys * layer.D) -
                             b * z.T * c->heads);
    check_bytes(run, kind, "gpt.sent", "sent in the layers, a step",
                (double)c->layers * context_layer_bytes(run->world, kind, layer), r->sent);
    check_bytes(run, kind, "gpt.sums", "sent for the sum of gradients",
                ring_bytes(ALL_REDUCE_PASSES, n, elements_stage(&whole), e), r->sums);
    check_bytes(run, kind, "gpt.parameters", "parameters", (double)(elements_stage(&whole) * e),
                r->parameters);
    check_bytes(run, kind, "gpt.gradients", "gradients", (double)(elements_gradients(&whole) * e),
                r->gradients);
    check_bytes(run, kind, "gpt.kept", "activations, peak", (double)(kept * e), r->activations);
}

static void trainings(Run *run) {
    Training t = { .model = tiny, .steps = STEPS, .sequences = SEQUENCES, .micro_batches = 1,
                   .clip = max_norm };
    t.model.seed = run->seed;
    t.data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    for (int adam = 0; adam < 2; adam++) {                 // SGD, then AdamW
        t.optimizer = adam ? adamw(0.01) : sgd(0.5);
        Trajectory want = training_unsplit(run, &t, 1);
        for (int i = 0; i < KINDS; i++) {
            char what[40];
            snprintf(what, sizeof what, "split = unsplit, %s", kinds[i]->name);
            Trajectory got = trajectory_new(run, &t);
            Trained r = train(run, &t, kinds[i], &got);
            training_compare(run, what, &got, &want, LIMIT_ROUNDING);
            check_true(run, "clipping", "is at work in every step",
                       trajectory_clipped(&got, max_norm));
            if (adam) trained_costs(run, &t, i, &r);
            trajectory_free(&got);
        }
        trajectory_free(&want);
    }
    data_free(&t.data);
}

// ---------------------------------------------------------------- attention alone: the run

static const ContextSizes alone = { .chunk = 192, .heads = 8, .D = 4 };
typedef struct {
    size_t sent, kept, buffers;                            // bytes; buffers: their peak
    Timing forward, backward;
} Attended;

// A collective ends on all ranks at the same time. So all clocks are equal when the recording
// begins.
static void begin_together(Run *run) {
    double none = 0;
    comm_all_reduce_doubles(run->world, &none, 1);
    comm_ledger_reset(run->world);
    picture_begin(run, MEM_ACTIVATIONS);
}
static Timing end_together(Run *run, Attended *r) {
    picture_end(run);
    r->sent += comm_bytes_sent(run->world);
    return picture_timing(run);
}

// Runs attention of the whole sequence on one device (kind NULL), or of this rank's positions. Puts
// out and the gradients of q, k and v. A deviation of 16 makes scores of several hundred, whose
// exponential no float can hold.
static Attended attend(Run *run, const AttentionKind *kind, Snapshot *s) {
    const size_t T = alone.chunk * run->world->size, A = alone.heads * alone.D;
    AttentionHeads h = { .B = 1, .T = kind ? alone.chunk : T, .D = alone.D,
                         .heads = {0, alone.heads},
                         .kind = kind, .cp = run->world, .length = T };
    Positions own = { 1, { {0, T} } };
    if (kind) own = context_positions_of(&h, run->world->rank);
    Arena a = arena(MEM_WORKSPACE);
    Tensor whole = tensor_new(&a, T, 3 * A), whole_dout = tensor_new(&a, T, A);
    tensor_randomize(whole, random_key(run->seed, 1), 16);
    tensor_randomize(whole_dout, random_key(run->seed, 2), 1);
    Saved saved = saved_new();
    saved_tensor(&saved, S_QKV, h.T, 3 * A);
    saved_tensor(&saved, S_MIX, h.T, A);
    Tensor dqkv = tensor_new(&a, h.T, 3 * A), dmix = tensor_new(&a, h.T, A);
    int *position = ints_new(&a, h.T), *host = host_alloc(h.T * sizeof *host);
    size_t row = 0;
    for (size_t i = 0; i < own.n; i++)
        for (size_t t = own.chunk[i].lo; t < own.chunk[i].hi; t++) {
            tensor_copy(tensor_row_range(saved.t[S_QKV], row, row + 1),
                        tensor_row_range(whole, t, t + 1));
            tensor_copy(tensor_row_range(dmix, row, row + 1),
                        tensor_row_range(whole_dout, t, t + 1));
            host[row] = (int)t;
            row++;
        }
    ints_upload(position, host, h.T);
    h.position = position;
    free(host);

    Attended r = {0};
    size_t without = memory_now(MEM_ACTIVATIONS);
    memory_reset_peaks();
    if (kind) begin_together(run);
    record_enter(EVENT_FORWARD, NO_NUMBER);
    attention_forward(&h, &saved);
    record_leave();
    r.kept = memory_now(MEM_ACTIVATIONS) - without;
    if (kind) {
        r.forward = end_together(run, &r);
        bool zigzag = kind == &ring_attention_zigzag;
        bool written = zigzag == !strcmp(option_text(run, "picture"), "zigzag");
        int files = written ? PICTURE_CHART : PICTURE_NO_FILES | PICTURE_DETAIL;
        if (zigzag || kind == &ring_attention)
            picture_show(run, zigzag ? "zigzag chunks, forward" : "contiguous chunks, forward",
                         files | (zigzag ? PICTURE_ALIKE_ONCE : 0));
        begin_together(run);
    }
    record_enter(EVENT_BACKWARD, NO_NUMBER);
    attention_backward(&h, dqkv, dmix, &saved);
    record_leave();
    if (kind) r.backward = end_together(run, &r);
    r.buffers = memory_peak(MEM_COMMUNICATION);
    row = 0;
    for (size_t i = 0; i < own.n; i++) {
        size_t end = row + range_size(own.chunk[i]), first = own.chunk[i].lo;
        snapshot_put(s, "out", T, A, tensor_row_range(saved.t[S_MIX], row, end), first, 0);
        snapshot_put(s, "grad q, k, v", T, 3 * A, tensor_row_range(dqkv, row, end), first, 0);
        row = end;
    }
    saved_free(&saved);
    arena_free(&a);
    return r;
}

// ---------------------------------------------------------------- attention alone: costs

static void check_time(Run *run, int kind, bool backward, double measured) {
    const char *name = backward ? "backward" : "forward";
    const size_t n = run->world->size;
    if (kind == RING || kind == ZIGZAG)
        check_kind(run, kind, name, name, "ps", NOT_PREDICTED,
                   played(context_ring_time(kind, alone, n, backward).step), measured);
    else
        check_kind(run, kind, name, name, "ps",
                   formula(context_pass_time(kind, alone, n, backward)), NOT_PREDICTED, measured);
}

// Where messages are hidden, contiguous ranks compute N/(2N-1) of the time. The exact fraction
// counts the diagonal of the triangle of pairs, too.
static void check_busy(Run *run, int kind, const Timing *forward) {
    const size_t n = run->world->size;
    const double N = (double)n, c = (double)alone.chunk;
    RingTime t = context_ring_time(kind, alone, n, false);
    double busy = t.busy / (N * t.step);
    check_kind(run, kind, "busy", "busy in forward", "millionths", NOT_PREDICTED,
               played(round(1e6 * busy)), round(1e6 * (1 - forward->idle_of_total)));
    double closed = kind == RING ? (N * c + 1) / ((2 * N - 1) * c + 1) : 1;
    double triangle =
        2 * (double)alone.heads * work_product(alone.chunk * alone.chunk / 2, 1, alone.D).time;
    if (send_time(2 * alone.chunk * alone.heads * alone.D * sizeof(real)) < triangle)
        check_true(run, "closed form", "busy", fabs(busy - closed) < 1e-9);
}

static void alone_costs(Run *run, int kind, const Attended *r) {
    const size_t n = run->world->size, e = sizeof(real);
    const ContextLayer layer = { 1, n * alone.chunk, alone.heads, alone.heads, alone.D };
    const double sent = context_layer_bytes(run->world, kind, layer);
    check_bytes(run, kind, "sent", "sent in both", sent, r->sent);
    check_bytes(run, kind, "kept", "kept by attention",
                (double)(context_kept(kind, alone, n, run->world->rank) * e), r->kept);
    check_bytes(run, kind, "buffers", "buffers, peak",
                (double)(context_buffers(kind, alone, n) * e), r->buffers);
    // The closed forms, in units of B T C/N elements.
    const double N = (double)n, ring = n > 1 ? 6 * N - 4 : 0;
    const double units[] = { ring, ring, 8 * (N - 1), 8 * (N - 1) / N };
    const double unit = (double)(alone.chunk * alone.heads * alone.D * e);
    if (kind != ULYSSES || alone.heads % n == 0)
        check_true(run, "closed form", "sent", fabs(sent - units[kind] * unit) < 1e-6);
    if (!clock_config()->simulated) return;
    check_time(run, kind, false, (double)r->forward.step);
    check_time(run, kind, true, (double)r->backward.step);
    if (kind == RING || kind == ZIGZAG) check_busy(run, kind, &r->forward);
}

// ---------------------------------------------------------------- the table, and the run

#define EACH(id) { id ".ring", id ".zigzag", id ".rsa", id ".ulysses" }
static void table(Run *run) {
    enum { MEGABYTE = 1000000, MANY = 64 };
    const size_t n = run->world->size;
    char longest[KINDS][24], busy[40], largest[40], more[40];
    for (int k = 0; k < KINDS; k++)
        snprintf(longest[k], sizeof longest[k], "=%zu",
                 context_longest_chunk(k, alone, MANY, MEGABYTE));
    snprintf(busy, sizeof busy, "ring: N/(2N-1) = %.1f %%",
             100 * (double)n / (2 * (double)n - 1));
    snprintf(largest, sizeof largest, "largest chunk for 1 MB, %d ranks", MANY);
    snprintf(more, sizeof more, "Ulysses: %d > H = %zu", MANY, alone.heads);
    const char *const columns[] = { "ring", "zigzag", "RSA", "Ulysses", NULL };
    const Result rows[] = {
        { "forward", "q k^T, p v; slowest rank", EACH("forward") },
        { "  time computing, mean", busy, { "busy.ring", "busy.zigzag", "=-", "=-" } },
        { "backward: scores, dV, dP, dQ, dK", "RSA keeps the scores", EACH("backward") },
        { "sent per rank", "forward and backward", EACH("sent") },
        { "  elements sent / (B T C/N)", NULL, { "=6N-4", "=6N-4", "=8(N-1)", "=8(N-1)/N" } },
        { "extra memory", "besides q, k, v, output", EACH("kept") },
        { largest, more, { longest[RING], longest[ZIGZAG], longest[RSA], "=impossible" } }, {0} };
    enum { TIMES = 3 };                            // rows that only the simulated clock has
    results(run, columns, clock_config()->simulated ? rows : rows + TIMES);
    say(run, "  attention alone: B = 1, T = %zu positions, c = T/N = %zu, N = %zu; C = %zu in "
             "H = %zu heads", n * alone.chunk, alone.chunk, n, alone.heads * alone.D, alone.heads);
    say(run, "  extra memory: ring, zigzag c H elements; RSA c H T; Ulysses c (4 C + H): it keeps "
        "q, k, v and");
    say(run, "  output once more, cut by heads; a program that frees the first copy keeps c H");
}

static void ending(Run *run) {
    const size_t n = run->world->size;
    if (n == 1)
        say_answer(run, "One rank has the whole sequence and sends nothing. Choose two or more.");
    else if (clock_config()->simulated)
        say_answer(run, "Each rank keeps the queries of its 1/%zu of the positions, and keys and "
                   "values travel from rank to rank. Forward takes %s with zigzag chunks, %s with "
                   "contiguous ones.", n,
                   cost_text(run, "forward.zigzag"), cost_text(run, "forward.ring"));
    else
        say_answer(run, "Each rank keeps the queries of its 1/%zu of the positions, and keys and "
                   "values travel from rank to rank. A rank keeps %s besides q, k, v, output.", n,
                   cost_text(run, "kept.zigzag"));
    say_cost(run, "%s sent per rank, forward and backward, and all scores computed twice. Ulysses "
             "sends %s, but needs a head per rank.", cost_text(run, "sent.zigzag"),
             cost_text(run, "sent.ulysses"));
    say_use_when(run, "one sequence is too long for a device. Ulysses is enough while every rank "
                 "has a head of keys and values, after tensor parallelism (grouped-query models "
                 "often have 8).");
}

static void attention_alone(Run *run) {
    // In fp32 a score of 500 is rounded by 3e-5, and so is its exponential, relatively.
    const double limit = sizeof(real) == 8 ? 1e-10 : 1e-3;
    comm_connect(run->world, COMM_NEIGHBOURS);
    Snapshot *want = snapshot_new(run);
    ledger_pause();
    if (run->is_root) attend(run, NULL, want);
    ledger_resume();
    for (int i = 0; i < KINDS; i++) {
        Snapshot *got = snapshot_new(run);
        Attended r = attend(run, kinds[i], got);
        char what[48];
        snprintf(what, sizeof what, "split = plain, %s", kinds[i]->name);
        check_close(run, what, got, want, limit);
        alone_costs(run, i, &r);
        snapshot_free(got);
    }
    snapshot_free(want);
    table(run);
    ending(run);
}

static void introduction(Run *run) {
    say(run, "A position attends only to itself and earlier ones (causal), so late chunks are more "
        "work.");
    say(run, "Ring: a chunk per rank; keys, values travel round. Zigzag: an early and a late "
        "piece, equal work.");
    say(run, "RSA (Ring Self-Attention) keeps whole rows of scores. Ulysses: ranks exchange "
        "positions for heads.");
}

static void ring(Run *run) {
    REQUIRE(run->world->size <= tiny.heads,
            "%zu ranks: Ulysses needs a head per rank, and the model has %zu; choose %zu or fewer",
            run->world->size, tiny.heads, tiny.heads);
    require_one_link(run);
    introduction(run);
    trainings(run);
    attention_alone(run);
}

static const Option options[] = {
    { "picture", "contiguous|zigzag", "contiguous", "the picture that --svg and --trace write" },
    {0},
};
EXPERIMENT(ring, options);
