// Experiment of 08_ring_attention.c, ring_self_attention.c and ulysses.c. A GPT is trained with its
// sequences cut over all ranks, in four ways, against the unsplit training. Then attention alone,
// on longer sequences and with scores of several hundreds: what it computes, sends, keeps, and how
// long the slowest rank takes.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "03_tensor_parallel/context_parallel.h"
#include "common/comm/record.h"
#include "common/model/costs.h"
#include "common/tensor/random.h"
#include "judge/draw/picture.h"
#include "judge/frame/training.h"

enum { RING, ZIGZAG, RSA, ULYSSES, KINDS };
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

// ------------------------------------------------------------ bytes that a rank sends in one layer

typedef struct { size_t b, s, heads, D; } LayerSizes;

static size_t positions_of(int kind, size_t s, size_t n, size_t i) {
    if (kind != ZIGZAG) return part_size(s, n, i);
    return part_size(s, 2 * n, i) + part_size(s, 2 * n, 2 * n - 1 - i);
}
static double layer_bytes(Run *run, int kind, LayerSizes z) {
    const size_t n = run->world->size, A = z.heads * z.D, e = sizeof(real);
    if (kind == ULYSSES) {                                 // q, k, v; out; their gradients
        size_t part = z.b * ceil_div(z.s, n) * ceil_div(z.heads, n) * z.D;
        return (double)(8 * (n - 1) * part * e);
    }
    size_t visits = 0, all = n > 1 ? z.s : 0;             // positions of the blocks that leave here
    for (size_t k = 0; k + 1 < n; k++)
        visits += positions_of(kind, z.s, n, (run->world->rank + n - k) % n);
    if (kind == RSA)                                      // k; v; v, k again; the sums of dk and dv
        return (double)(4 * visits * z.b * A * e)
             + 2 * ring_bytes(ALL_REDUCE_PASSES, n, z.b * z.s * A, e);
    return (double)((2 * visits + 2 * visits + 2 * all) * z.b * A * e);    // k, v; again; dk, dv
}

// --------------------------------------------------------- a GPT, its sequences cut over all ranks

enum { SEQUENCES = 3, STEPS = 3 };
static const ModelConfig tiny = { .layers = 2, .width = 27, .heads = 9, .context = 27, .vocab = 61,
                                  .dropout = 0.1 };
static const double max_norm = 0.5;                       // small enough that every step is clipped

typedef struct {
    Comm *cp;
    size_t sent, sums;                                     // bytes: in the layers; of gradients
    size_t parameters, gradients, activations;             // bytes; the last a peak
} Trained;

static StepResult step(void *trained, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Trained *r = trained;
    model_zero_gradients(m);
    comm_ledger_reset(r->cp);
    // This rank's positions of every sequence. token_weight is of the whole batch, so nothing is
    // divided afterwards.
    double loss = model_forward_backward(m, b) * b->token_weight;
    r->sent = comm_bytes_sent(r->cp);
    model_fold_tied(m);
    comm_all_reduce(r->cp, m->g);                          // each rank has a part of every sum
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
    LayerSizes layer = { b, c->context, c->heads, c->width / c->heads };
    CutSizes whole = cut_sizes(c, 1, 0), z = whole;
    z.T = positions_of(kind, c->context, n, run->world->rank);     // queries; all keys in a row
    z.online = kind != RSA;
    size_t kept = b * z.T * kept_stage(&z), heads = part_size(c->heads, n, run->world->rank);
    // Ulysses keeps q, k, v, out and lse of its heads, for all positions; and no lse of its
    // positions.
    if (kind == ULYSSES)
        kept += c->layers * (b * c->context * heads * (4 * layer.D + 1) - b * z.T * c->heads);
    check_bytes(run, kind, "gpt.sent", "sent in the layers, a step",
                (double)c->layers * layer_bytes(run, kind, layer), r->sent);
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

// One sequence: positions of a rank, heads, columns of a head.
typedef struct { size_t chunk, heads, D; } Sizes;
static const Sizes alone = { .chunk = 192, .heads = 8, .D = 4 };
typedef struct {
    size_t sent, kept, buffers;                            // bytes; of communication, their peak
    Timing forward, backward;
} Attended;

// A collective ends everywhere at once, so the recording starts with equal clocks.
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

// One device does the whole sequence (kind NULL), or this rank its positions: puts out and the
// gradients of q, k and v. The deviation of 16 makes scores of several hundreds: their exp is no
// float.
static Attended attend(Run *run, const Sizes *z, const AttentionKind *kind, Snapshot *s) {
    const size_t T = z->chunk * run->world->size, A = z->heads * z->D;
    AttentionHeads h = { .B = 1, .T = kind ? z->chunk : T, .D = z->D, .heads = {0, z->heads},
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
    for (size_t i = 0, row = 0; i < own.n; i++)
        for (size_t t = own.chunk[i].lo; t < own.chunk[i].hi; t++, row++) {
            tensor_copy(tensor_row_range(saved.t[S_QKV], row, row + 1),
                        tensor_row_range(whole, t, t + 1));
            tensor_copy(tensor_row_range(dmix, row, row + 1),
                        tensor_row_range(whole_dout, t, t + 1));
            host[row] = (int)t;
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
        if (zigzag || kind == &ring_attention)
            picture_show(run, zigzag ? "zigzag chunks, forward" : "contiguous chunks, forward",
                         written ? PICTURE_CHART : PICTURE_NO_FILES);
        begin_together(run);
    }
    record_enter(EVENT_BACKWARD, NO_NUMBER);
    attention_backward(&h, dqkv, dmix, &saved);
    record_leave();
    if (kind) r.backward = end_together(run, &r);
    r.buffers = memory_peak(MEM_COMMUNICATION);
    for (size_t i = 0, row = 0; i < own.n; row += range_size(own.chunk[i++])) {
        size_t end = row + range_size(own.chunk[i]), first = own.chunk[i].lo;
        snapshot_put(s, "out", T, A, tensor_row_range(saved.t[S_MIX], row, end), first, 0);
        snapshot_put(s, "grad q, k, v", T, 3 * A, tensor_row_range(dqkv, row, end), first, 0);
    }
    saved_free(&saved);
    arena_free(&a);
    return r;
}

// ---------------------------------------------------------------- attention alone: predictions

static size_t kept_elements(int kind, const Sizes *z, size_t n, size_t rank) {
    size_t heads = part_size(z->heads, n, rank);
    if (kind == RSA) return z->heads * z->chunk * n * z->chunk;       // rows of scores, of all keys
    if (kind == ULYSSES) return n * z->chunk * heads * (4 * z->D + 1);     // q, k, v, out, lse
    return z->heads * z->chunk;                                            // lse
}
static size_t buffer_elements(int kind, const Sizes *z, size_t n) {
    size_t c = z->chunk, A = z->heads * z->D;
    if (kind == RSA) return n * c * A;                             // dk of all keys, before its sum
    if (kind == ULYSSES) return 2 * n * 3 * c * ceil_div(z->heads, n) * z->D;  // q, k, v, twice
    return (n > 2 ? 5 : 2 * n) * c * 2 * A;     // k, v: here, coming; dk, dv: here, leaving, coming
}
// The most positions of a rank for which q, k, v, out, what is kept and buffers have room.
static size_t longest_chunk(int kind, Sizes z, size_t n, size_t bytes) {
    size_t lo = 0, hi = bytes;
    while (hi - lo > 1) {
        z.chunk = (lo + hi) / 2;
        size_t all = 4 * z.chunk * z.heads * z.D;
        all += kept_elements(kind, &z, n, 0) + buffer_elements(kind, &z, n);
        if (all * sizeof(real) <= bytes) lo = z.chunk;
        else hi = z.chunk;
    }
    return lo;
}

// Pairs of a query and a key that a rank computes in step k, when it has rank j's keys. Zigzag: two
// triangles and a square; then two quarters, whoever's keys they are.
static double pairs(int kind, double c, size_t n, size_t rank, size_t k) {
    size_t j = (rank + n - k) % n;
    if (kind == ZIGZAG) return k == 0 ? c * (c + 1) / 2 : c * c / 2;
    return j < rank ? c * c : j == rank ? c * (c + 1) / 2 : 0;
}
typedef struct { double step, busy; } RingTime;    // of the last rank; all ranks' computing

// The ring, played step by step. products: of pairs x D, 2 in forward and 5 in backward, where the
// gradient follows a step behind. lane: from r to the next rank; a message leaves when it is free.
static RingTime ring_pass(Run *run, int kind, const Sizes *z, int products) {
    enum { MOST = 256 };
    const size_t n = run->world->size;
    const double takes = send_time(z->chunk * 2 * z->heads * z->D * sizeof(real));
    const bool sums = products == 5 && n > 1;
    double now[MOST] = {0}, lane[MOST] = {0}, block[MOST] = {0}, sum[MOST] = {0},
        next_sum[MOST] = {0};
    RingTime t = {0};
    if (n > MOST) fault("predictions for at most %d ranks", MOST);
    for (size_t k = 0; k < n; k++) {
        for (size_t r = 0; r < n; r++) {
            if (k + 1 < n) lane[r] = fmax(lane[r], now[r]) + takes;
            block[(r + 1) % n] = k + 1 < n ? lane[r] : 0;
            size_t computed = (size_t)pairs(kind, (double)z->chunk, n, r, k);
            double work = products * (double)z->heads * work_product(computed, 1, z->D).time;
            t.busy += work;
            now[r] += work;
        }
        for (size_t r = 0; sums && r < n; r++) {
            now[r] = fmax(now[r], sum[r]);
            lane[r] = fmax(lane[r], now[r]) + takes;
            next_sum[(r + 1) % n] = lane[r];
        }
        for (size_t r = 0; r < n; r++) {
            now[r] = fmax(now[r], block[r]);
            if (sums) sum[r] = next_sum[r];
        }
    }
    for (size_t r = 0; r < n; r++) t.step = fmax(t.step, fmax(now[r], sum[r]));
    return t;
}
// RSA: every rank does the same, a product of all rows in a pass, or alone. Ulysses: rank 0 has
// most heads.
static double pass_time(Run *run, int kind, const Sizes *z, bool backward) {
    const size_t n = run->world->size, c = z->chunk, T = n * c, A = z->heads * z->D,
        e = sizeof(real);
    if (kind == RSA) {
        double work = (double)z->heads * work_product(c, c, z->D).time;
        double pass = work + (double)(n - 1) * fmax(work, send_time(c * A * e));
        double keys = (double)n * work + ring_time(ALL_REDUCE_PASSES, n, T * A, e);
        return 2 * pass + (backward ? 2 * keys : 0);
    }
    size_t most = ceil_div(z->heads, n), part = n * c * most * z->D;
    double product = (double)most * work_product(T * (T + 1) / 2, 1, z->D).time;
    return ring_time(ONE_PASS, n, 3 * part, e) + ring_time(ONE_PASS, n, part, e)
         + (backward ? 5 : 2) * product;
}

static void alone_costs(Run *run, const Sizes *z, int kind, const Attended *r) {
    const size_t n = run->world->size, e = sizeof(real), bsh = n * z->chunk * z->heads * z->D;
    LayerSizes layer = { 1, n * z->chunk, z->heads, z->D };
    double sent = layer_bytes(run, kind, layer);
    check_bytes(run, kind, "sent", "sent in both", sent, r->sent);
    check_bytes(run, kind, "kept", "kept by attention",
                (double)(kept_elements(kind, z, n, run->world->rank) * e), r->kept);
    check_bytes(run, kind, "buffers", "buffers, peak", (double)(buffer_elements(kind, z, n) * e),
                r->buffers);
    // Of bsh/N elements.
    double N = (double)n, ring = n > 1 ? 6 * N - 4 : 0;
    double units[] = { ring, ring, 8 * (N - 1), 8 * (N - 1) / N };
    if (kind != ULYSSES || z->heads % n == 0)
        check_true(run, "closed form", "sent",
                   fabs(sent - units[kind] * (double)(bsh / n * e)) < 1e-6);
    if (!clock_config()->simulated) return;
    bool around = kind == RING || kind == ZIGZAG;
    for (int back = 0; back < 2; back++) {
        double time = around ? ring_pass(run, kind, z, back ? 5 : 2).step : pass_time(run, kind, z,
                                                                                      back);
        const char *name = back ? "backward" : "forward";
        check_kind(run, kind, name, name, "ps", around ? NOT_PREDICTED : formula(time),
                   around ? played(time) : NOT_PREDICTED,
                       (double)(back ? r->backward : r->forward).step);
    }
    if (!around) return;
    RingTime t = ring_pass(run, kind, z, 2);
    double busy = t.busy / (N * t.step), c = (double)z->chunk;
    check_kind(run, kind, "busy", "busy in forward", "millionths", NOT_PREDICTED,
               played(round(1e6 * busy)),
               round(1e6 * (1 - r->forward.idle_of_total)));
    // Where messages are hidden. With long chunks N/(2N-1); a triangle has its diagonal, the rest.
    double closed = kind == RING ? (N * c + 1) / ((2 * N - 1) * c + 1) : 1;
    double triangle = 2 * (double)z->heads * work_product(z->chunk * z->chunk / 2, 1, z->D).time;
    if (send_time(2 * z->chunk * z->heads * z->D * e) < triangle)
        check_true(run, "closed form", "busy", fabs(busy - closed) < 1e-9);
}

// ---------------------------------------------------------------- the table, and the run

#define EACH(id) { id ".ring", id ".zigzag", id ".rsa", id ".ulysses" }
static void table(Run *run, const Sizes *z) {
    enum { LONGEST = 1000000 };
    const size_t n = run->world->size;
    char chunk[KINDS][40], busy[80];
    for (int k = 0; k < KINDS; k++) {
        size_t end = (size_t)snprintf(chunk[k], sizeof chunk[k], "=%zu",
                                      longest_chunk(k, *z, 4, LONGEST));
        if (k == ULYSSES) continue;                // has no more ranks than heads
        snprintf(chunk[k] + end, sizeof chunk[k] - end, ", %zu", longest_chunk(k, *z, 64, LONGEST));
    }
    snprintf(busy, sizeof busy, "N/(2N-1) = %.1f %%; 1", 100 * (double)n / (2 * (double)n - 1));
    const char *const columns[] = { "ring", "zigzag", "RSA", "Ulysses", NULL };
    const Result rows[] = {
        { "forward", "the slowest rank, and messages", EACH("forward") },
        { "  busy, mean of ranks", busy, { "busy.ring", "busy.zigzag", NULL, NULL } },
        { "backward", "5 products for 2; RSA 4", EACH("backward") },
        { "sent in both", "bsh/N x 6N-4; 8(N-1); 8(N-1)/N", EACH("sent") },
        { "kept besides q, k, v, out", "ac; acs; (4h+a)c", EACH("kept") },
        { "longest c in 1 MB, N = 4, 64", "q, k, v, out; kept; buffers",
          { chunk[0], chunk[1], chunk[2], chunk[3] } }, {0} };
    enum { TIMES = 3 };                            // rows that the simulated clock has
    results(run, columns, clock_config()->simulated ? rows : rows + TIMES);
    say(run, "  attention alone: b = 1 sequence of s = %zu, c = s/N = %zu, N = %zu; "
             "h = %zu in a = %zu heads",
        n * z->chunk, z->chunk, n, z->heads * z->D, z->heads);
}

static void attention_alone(Run *run) {
    // In fp32 a score of 500 is rounded by 3e-5, and its exp by as much.
    const double limit = sizeof(real) == 8 ? 1e-10 : 1e-3;
    comm_connect(run->world, COMM_NEIGHBOURS);
    Snapshot *want = snapshot_new(run);
    ledger_pause();
    if (run->is_root) attend(run, &alone, NULL, want);
    ledger_resume();
    for (int i = 0; i < KINDS; i++) {
        Snapshot *got = snapshot_new(run);
        Attended r = attend(run, &alone, kinds[i], got);
        char what[48];
        snprintf(what, sizeof what, "split = plain, %s", kinds[i]->name);
        check_close(run, what, got, want, limit);
        alone_costs(run, &alone, i, &r);
        snapshot_free(got);
    }
    snapshot_free(want);
    table(run, &alone);
}

static void ring(Run *run) {
    REQUIRE(run->world->size <= tiny.heads,
            "%zu ranks cannot share %zu heads, as Ulysses does: start at most %zu",
            run->world->size, tiny.heads, tiny.heads);
    require_one_link(run);
    trainings(run);
    attention_alone(run);
}

static const Option options[] = {
    { "picture", "contiguous|zigzag", "contiguous", "which of the two --svg and --trace write" },
    {0},
};
EXPERIMENT(ring, options);
