// ranks: 4
// level: core
// question: Why do whole heads make attention the easiest part of a Transformer to split?
//
// Y = dropout(attention(X W_qkv + b_qkv) W_O + b_O). W_qkv is W_Q | W_K | W_V side by side, [C, 3C]; each head owns D
// columns of each of the three, and D rows of W_O. Heads never look at each other, so a rank with whole heads
// computes scores, softmax and mixing alone, and the rows of W_O that its heads feed are its own: column-parallel,
// then row-parallel, as in the MLP. 9 heads over 4 ranks: 3, 2, 2, 2. Left out: norms and the residual path (lesson
// 06).
#include "common/model/formulas.h"
#include "common/lesson/lesson.h"
#include "common/tensor/ops.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdio.h>

enum { B = 2, T = 7, M = B * T, H = 9, D = 4, C = H * D, STEPS = 3 };      // D: columns of one head
enum { W_QKV, B_QKV, W_O, B_O, PARAMS };
static const char *const param_name[PARAMS] = { "W_qkv", "b_qkv", "W_O", "b_O" };
static const size_t whole_rows[PARAMS] = { C, 1, C, 1 }, whole_cols[PARAMS] = { 3 * C, 3 * C, C, C };
enum { KEY_X = 101, KEY_TARGET, KEY_WEIGHTS, KEY_PROBABILITIES, KEY_OUT };
static const double drop = 0.1, rate = 0.1;

typedef struct {
    Range heads;                                           // mine
    size_t A;                                              // their columns: heads * D
    Tensor w[PARAMS], g[PARAMS];
    Tensor qkv, probs, dropped, mix;                       // [M, 3A], twice [B*heads*T, T], [M, A]: kept for backward
    Arena parameters, gradients, kept;
} Attention;

// ---------------------------------------------------------------- who holds what

// W_qkv [C, 3C] is three matrices side by side, so a rank's columns are three pieces: its heads' q, its heads' k, its
// heads' v.
//      q: head 0 .. 8          k: head 0 .. 8          v: head 0 .. 8
//     [a a a b b c c d d]     [a a a b b c c d d]     [a a a b b c c d d]        a, b, c, d: the four ranks
// Cut in one piece, rank a's third of the 3C columns would be all of q, without any k or v: the trap below.
static void copy_blocks(Tensor mine, Tensor whole, Range heads) {
    size_t A = range_size(heads) * D;
    for (size_t block = 0; block < 3; block++)
        tensor_copy(tensor_col_range(mine, block * A, (block + 1) * A),
                    tensor_col_range(whole, block * C + heads.lo * D, block * C + heads.hi * D));
}
static void copy_contiguous(Tensor mine, Tensor whole, Range heads) {
    tensor_copy(mine, tensor_col_range(whole, 3 * heads.lo * D, 3 * heads.hi * D));
}

static Attention attention_new(uint64_t seed, Range heads, void (*copy_qkv)(Tensor mine, Tensor whole, Range heads)) {
    Attention a = { .heads = heads, .A = range_size(heads) * D,
                    .parameters = arena(MEM_PARAMETERS), .gradients = arena(MEM_GRADIENTS),
                    .kept = arena(MEM_ACTIVATIONS) };
    const size_t rows[PARAMS] = { C, 1, a.A, 1 }, cols[PARAMS] = { 3 * a.A, 3 * a.A, C, C };
    for (int p = 0; p < PARAMS; p++) {
        a.w[p] = tensor_new(&a.parameters, rows[p], cols[p]);
        a.g[p] = tensor_new(&a.gradients, rows[p], cols[p]);
        ledger_pause();                                    // drawn whole, then cut
        Arena scratch = arena(MEM_REFERENCE);
        Tensor whole = tensor_new(&scratch, whole_rows[p], whole_cols[p]);
        tensor_randomize(whole, random_key(random_key(seed, KEY_WEIGHTS), (uint64_t)p), 0.2);
        if (p == W_QKV || p == B_QKV) copy_qkv(a.w[p], whole, heads);
        else if (p == W_O) tensor_copy(a.w[p], tensor_row_range(whole, heads.lo * D, heads.hi * D));
        else tensor_copy(a.w[p], whole);
        arena_free(&scratch);
        ledger_resume();
    }
    size_t scores = B * range_size(heads) * T;             // rows of the score matrices of my heads
    a.qkv = tensor_new(&a.kept, M, 3 * a.A);     a.mix = tensor_new(&a.kept, M, a.A);
    a.probs = tensor_new(&a.kept, scores, T);    a.dropped = tensor_new(&a.kept, scores, T);
    return a;
}
static void attention_free(Attention *a) {
    arena_free(&a->parameters); arena_free(&a->gradients); arena_free(&a->kept);
}

// ---------------------------------------------------------------- the heart: any set of heads, no words

static Tensor block_of(const Attention *a, Tensor qkv, size_t i) {
    return tensor_col_range(qkv, i * a->A, (i + 1) * a->A);
}
static uint64_t mask_key(Run *run, uint64_t site, size_t step) { return random_key(random_key(run->seed, site), step); }
static void drop_probabilities(Run *run, const Attention *a, Tensor y, Tensor x, size_t step) {
    // Keyed by the head's number in the whole layer: rank 1's first head has the mask of head 3, not that of head 0.
    op_dropout_heads(y, x, mask_key(run, KEY_PROBABILITIES, step), drop, 0, B, range_size(a->heads), a->heads.lo);
}

static void mix_heads(Run *run, Attention *a, size_t step) {
    size_t heads = range_size(a->heads);
    op_heads_scores(a->probs, block_of(a, a->qkv, 0), block_of(a, a->qkv, 1), B, heads);   // S = Q K^T
    op_causal_softmax(a->probs, a->probs, (real)(1 / sqrt(D)));                            // P = softmax(S / sqrt(D))
    drop_probabilities(run, a, a->dropped, a->probs, step);
    op_heads_mix(a->mix, a->dropped, block_of(a, a->qkv, 2), B, heads);                    // O = dropout(P) V
}
static void mix_heads_backward(Run *run, Attention *a, Tensor dqkv, Tensor dmix, size_t step) {
    size_t heads = range_size(a->heads);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dp = tensor_new(&scratch, a->probs.rows, T);
    op_heads_mix_t(block_of(a, dqkv, 2), a->dropped, dmix, B, heads);                      // dV = dropout(P)^T dO
    op_heads_scores(dp, dmix, block_of(a, a->qkv, 2), B, heads);                           // dP = dO V^T
    drop_probabilities(run, a, dp, dp, step);
    op_causal_softmax_backward(dp, a->probs, dp, (real)(1 / sqrt(D)));                     // dS
    op_heads_mix(block_of(a, dqkv, 0), dp, block_of(a, a->qkv, 1), B, heads);              // dQ = dS K
    op_heads_mix_t(block_of(a, dqkv, 1), dp, block_of(a, a->qkv, 0), B, heads);            // dK = dS^T Q
    arena_free(&scratch);
}

// ---------------------------------------------------------------- the layer; tp NULL: unsplit, all heads

static void forward(Run *run, Comm *tp, Attention *a, Tensor y, Tensor x, size_t step) {
    op_matmul(a->qkv, x, a->w[W_QKV]);                     // [M, 3C/tp] = [M, C] x [C, 3C/tp]   q | k | v of my heads
    op_add_bias(a->qkv, a->qkv, a->w[B_QKV]);
    mix_heads(run, a, step);                               // [M, C/tp]: nothing to say
    op_matmul(y, a->mix, a->w[W_O]);                       // [M, C] = [M, C/tp] x [C/tp, C]     my rows: a partial sum
    if (tp) comm_all_reduce(tp, y);                        // the only words of the forward pass: M*C reals
    op_add_bias(y, y, a->w[B_O]);                          // once, after the sum
    op_dropout(y, y, (Dropout){ .key = mask_key(run, KEY_OUT, step), .p = drop });     // the same on every rank
}
static void backward(Run *run, Comm *tp, Attention *a, Tensor dx, Tensor x, Tensor dy, size_t step) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dmix = tensor_new(&scratch, M, a->A), dqkv = tensor_new(&scratch, M, 3 * a->A);
    op_dropout(dy, dy, (Dropout){ .key = mask_key(run, KEY_OUT, step), .p = drop });
    op_matmul_tn(a->g[W_O], a->mix, dy);
    op_sum_rows(a->g[B_O], dy);                            // equal on every rank
    op_matmul_nt(dmix, dy, a->w[W_O]);                     // [M, C/tp]: the columns of my heads
    mix_heads_backward(run, a, dqkv, dmix, step);
    op_matmul_tn(a->g[W_QKV], x, dqkv);
    op_sum_rows(a->g[B_QKV], dqkv);
    op_matmul_nt(dx, dqkv, a->w[W_QKV]);                   // [M, C]: what my heads say about X
    if (tp) comm_all_reduce(tp, dx);                       // the only words of the backward pass: M*C reals
    arena_free(&scratch);
}

// ---------------------------------------------------------------- three steps

static Tensor drawn(Run *run, Arena *arena, uint64_t what, size_t step) {
    Tensor t = tensor_new(arena, M, C);
    tensor_randomize(t, random_key(random_key(run->seed, what), step), 1);
    return t;
}

static void put(Snapshot *s, const Attention *a, const Tensor *t, const char *kind, size_t step) {
    for (int p = 0; p < PARAMS; p++) {
        char name[40];
        snprintf(name, sizeof name, "%s%s, step %zu", kind, param_name[p], step + 1);
        if (p == W_O) snapshot_put(s, name, C, C, t[p], a->heads.lo * D, 0);
        else if (p == B_O) snapshot_put(s, name, 1, C, t[p], 0, 0);
        else for (size_t block = 0; block < 3; block++)
            snapshot_put(s, name, whole_rows[p], 3 * C, block_of(a, t[p], block), 0, block * C + a->heads.lo * D);
    }
}

typedef struct { size_t parameters, gradients, optimizer, activations; } Held;     // bytes on this rank
static Held held_now(void) {                               // activations: the most since the step began
    return (Held){ memory_now(MEM_PARAMETERS), memory_now(MEM_GRADIENTS), memory_now(MEM_OPTIMIZER),
                   memory_peak(MEM_ACTIVATIONS) };
}
static Held train(Run *run, Comm *tp, Snapshot *seen, Snapshot *weights, double loss[STEPS]) {
    Attention a = attention_new(run->seed, tp ? shard_range(H, tp->size, tp->rank) : (Range){0, H}, copy_blocks);
    Held held = {0};
    for (size_t step = 0; step < STEPS; step++) {
        memory_reset_peaks();
        Arena buffers = arena(MEM_WORKSPACE), kept = arena(MEM_ACTIVATIONS);
        Tensor x = drawn(run, &kept, KEY_X, step), target = drawn(run, &buffers, KEY_TARGET, step);
        Tensor y = tensor_new(&buffers, M, C), dy = tensor_new(&buffers, M, C), dx = tensor_new(&buffers, M, C);
        forward(run, tp, &a, y, x, step);
        op_scale(dy, target, -1);
        op_add(dy, y, dy);                                 // the loss: half the squared distance, per token
        loss[step] = tensor_sum_of_squares(dy) / (2 * M);
        op_scale(dy, dy, (real)(1.0 / M));
        backward(run, tp, &a, dx, x, dy, step);

        char name[2][40];
        snprintf(name[0], sizeof name[0], "Y, step %zu", step + 1);
        snprintf(name[1], sizeof name[1], "grad X, step %zu", step + 1);
        snapshot_put(seen, name[0], M, C, y, 0, 0);
        snapshot_put(seen, name[1], M, C, dx, 0, 0);
        put(seen, &a, a.g, "grad ", step);
        for (int p = 0; p < PARAMS; p++) op_sgd(a.w[p], a.g[p], 1, (real)rate, 0);
        held = held_now();
        arena_free(&buffers);
        arena_free(&kept);
    }
    put(weights, &a, a.w, "updated ", STEPS - 1);
    attention_free(&a);
    return held;
}

// ---------------------------------------------------------------- the trap: shapes fit, heads do not

static void forward_only(Run *run, Comm *tp, Range heads, void (*copy_qkv)(Tensor, Tensor, Range), Snapshot *s) {
    Attention a = attention_new(run->seed, heads, copy_qkv);
    Arena buffers = arena(MEM_WORKSPACE);
    Tensor x = drawn(run, &buffers, KEY_X, 0), y = tensor_new(&buffers, M, C);
    forward(run, tp, &a, y, x, 0);
    snapshot_put(s, "Y", M, C, y, 0, 0);
    attention_free(&a);
    arena_free(&buffers);
}
static void contiguous_cut(Run *run) {
    Comm *tp = run->world;
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    ledger_pause();
    forward_only(run, tp, shard_range(H, tp->size, tp->rank), copy_contiguous, got);
    if (tp->rank == 0) forward_only(run, NULL, (Range){0, H}, copy_blocks, want);
    ledger_resume();
    check_differs(run, "contiguous cut of q|k|v is wrong", got, want, 0.1);
    snapshot_free(got); snapshot_free(want);
}

// ---------------------------------------------------------------- comparison and predictions

static void attention(Run *run) {
    Comm *tp = run->world;
    REQUIRE(tp->size <= H, "%zu ranks cannot share %d heads: start at most %d", tp->size, H, H);
    double loss[STEPS], want_loss[STEPS] = {0};
    Snapshot *got = snapshot_new(run), *weights = snapshot_new(run);
    Snapshot *want = snapshot_new(run), *want_weights = snapshot_new(run);
    comm_ledger_reset(tp);
    Held held = train(run, tp, got, weights, loss);
    size_t calls = tp->ledger[COMM_ALL_REDUCE].calls, bytes = comm_bytes_sent(tp);
    ledger_pause();
    if (tp->rank == 0) train(run, NULL, want, want_weights, want_loss);
    ledger_resume();
    check_numbers(run, "tensor-parallel = unsplit", "loss, 3 steps", loss, want_loss, STEPS, LIMIT_ROUNDING);
    check_close(run, "tensor-parallel = unsplit", got, want, LIMIT_ROUNDING);
    check_close(run, "tensor-parallel = unsplit", weights, want_weights, LIMIT_ROUNDING);
    snapshot_free(got); snapshot_free(weights); snapshot_free(want); snapshot_free(want_weights);
    if (tp->size > 1) contiguous_cut(run);

    // All is cut but b_O. Kept: X whole; q|k|v, the probabilities before and after dropout, and mix of my heads.
    const size_t heads = range_size(shard_range(H, tp->size, tp->rank)), A = heads * D, e = sizeof(real);
    const size_t parameters = (C + 1) * 3 * A + A * C + C, kept = M * C + M * 4 * A + 2 * B * heads * T * T;
    cost(run, "W_qkv, b_qkv, W_O, b_O", "bytes", (double)(parameters * e), (double)held.parameters);
    cost(run, "gradients", "bytes", (double)(parameters * e), (double)held.gradients);
    cost(run, "SGD's state", "bytes", 0, (double)held.optimizer);
    cost(run, "kept for backward", "bytes", (double)(kept * e), (double)held.activations);
    cost(run, "all-reduces a step", "calls", 2, (double)calls / STEPS);                                    // Y, and dX
    cost(run, "sent a step", "bytes", 2 * ring_bytes(ALL_REDUCE_PASSES, tp->size, M * C, e), (double)bytes / STEPS);
}

static const Option options[] = { {0} };
LESSON(attention, options);
