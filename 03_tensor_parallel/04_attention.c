// ranks: 4
// level: core
// question: Why is attention split by whole heads?
//
// Y = dropout(attention(X W_qkv + b_qkv) W_O + b_O). W_qkv is W_Q | W_K | W_V side by side, [C, 3C]; each head owns D
// columns of each of the three, and D rows of W_O. Heads never look at each other, so a rank with whole heads
// computes scores, softmax and mixing alone, and the rows of W_O that its heads feed are its own: column-parallel,
// then row-parallel, as in the MLP. 9 heads over 4 ranks: 3, 2, 2, 2. Left out: norms and the residual path (lesson
// 06).
#include "03_tensor_parallel/tensor_parallel.h"
#include "03_tensor_parallel/experiments/costs.h"
#include "03_tensor_parallel/experiments/trial.h"
#include <math.h>
#include "common/tensor/random.h"
#include "common/comm/record.h"

// ================================ the technique ================================

// W_qkv [C, 3C] is three matrices side by side, so a rank's columns are three pieces: its heads' q, its heads' k, its
// heads' v.
//      q: head 0 .. 8          k: head 0 .. 8          v: head 0 .. 8
//     [a a a b b c c d d]     [a a a b b c c d d]     [a a a b b c c d d]        a, b, c, d: the four ranks
// Cut in one piece, rank a's third of the 3C columns would be all of q, without any k or v: the trap below.
void tensor_parallel_attention_cut(Param *p, Range heads, size_t D) {
    Range features = {heads.lo * D, heads.hi * D};         // of q, of k, of v, and of the output of the heads
    column_parallel_cut(&p[ATTENTION_QKV], features);      // [C, 3C/tp]: blocks is 3, so q, k and v are cut one by one
    column_parallel_cut(&p[ATTENTION_QKV_BIAS], features); // [3C/tp]
    row_parallel_cut(&p[ATTENTION_O], features);           // [C/tp, C]; its bias [C] stays whole: added after the sum
}

// Lesson 02's two layers, with the heads between them. Its g in forward and its f in backward are all communication:
// one all-reduce of [B*T, C] each, of which a rank sends 2(tp-1)/tp B*T*C elements, 4 bytes each in fp32.
void tensor_parallel_attention_forward(Comm *tp, const TensorParallelHeads *h, Param *p, Tensor y, Tensor x, Saved *s) {
    saved_tensor(s, S_QKV, x.rows, p[ATTENTION_QKV].w.cols);               // [B*T, 3C/tp]: q | k | v of my heads
    column_parallel_forward(s->t[S_QKV], x, &p[ATTENTION_QKV], &p[ATTENTION_QKV_BIAS]);        // sends nothing
    saved_tensor(s, S_MIX, x.rows, p[ATTENTION_O].w.rows);                 // [B*T, C/tp]: my heads side by side
    tensor_parallel_heads_forward(h, s);                                                       // sends nothing
    row_parallel_forward(tp, y, s->t[S_MIX], &p[ATTENTION_O], &p[ATTENTION_O_BIAS]);           // g: all-reduce of y
}

void tensor_parallel_attention_backward(Comm *tp, const TensorParallelHeads *h, Param *p, Tensor dx, Tensor x,
                                        Tensor dy, Saved *s) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dmix = tensor_new(&scratch, x.rows, s->t[S_MIX].cols);          // [B*T, C/tp]
    Tensor dqkv = tensor_new(&scratch, x.rows, s->t[S_QKV].cols);          // [B*T, 3C/tp]
    row_parallel_backward(dmix, s->t[S_MIX], dy, &p[ATTENTION_O], &p[ATTENTION_O_BIAS]);       // sends nothing
    tensor_parallel_heads_backward(h, dqkv, dmix, s);                                          // sends nothing
    column_parallel_backward(tp, dx, x, dqkv, &p[ATTENTION_QKV], &p[ATTENTION_QKV_BIAS]);      // f: all-reduce of dx
    arena_free(&scratch);
}

// ---------------------------------------------------------------- the heads of one rank: no communication

static Tensor part_of(const TensorParallelHeads *h, Tensor qkv, size_t which) {    // q, k or v [B*T, C/tp]
    size_t columns = range_size(h->heads) * h->D;
    return tensor_col_range(qkv, which * columns, (which + 1) * columns);
}
static real score_scale(const TensorParallelHeads *h) { return (real)(1 / sqrt((double)h->D)); }
static HeadsPlace place_of(const TensorParallelHeads *h) {         // every query, every key
    return (HeadsPlace){ h->B, range_size(h->heads), h->position, h->position };
}
static void drop_probabilities(const TensorParallelHeads *h, Tensor y, Tensor x) {
    // Keyed by the head's number in the whole layer: rank 1's first head has the mask of head 3, not that of head 0.
    op_dropout_heads(y, x, h->key, h->drop, h->first_sequence, h->heads.lo, place_of(h));
}

// Each of the three functions below is the plain attention, unless h->kind says another one (08_ring_attention).
void tensor_parallel_probabilities(const TensorParallelHeads *h, Saved *s) {
    if (h->kind) { attention_rebuild(h, s); return; }
    size_t heads = range_size(h->heads);
    Tensor qkv = s->t[S_QKV], probs = tensor_new(&s->attention, h->B * heads * h->T, h->T);    // [B*H/tp*T, T]
    op_heads_scores(probs, part_of(h, qkv, 0), part_of(h, qkv, 1), h->B, heads);               // S = Q K^T
    op_causal_softmax(probs, probs, score_scale(h), place_of(h));                      // P = softmax(S / sqrt(D))
    s->t[S_PROBS] = s->t[S_DROPPED] = probs;                                                   // one without dropout
    if (h->drop == 0) return;
    s->t[S_DROPPED] = tensor_new(&s->attention, probs.rows, h->T);
    drop_probabilities(h, s->t[S_DROPPED], probs);
}
void tensor_parallel_heads_forward(const TensorParallelHeads *h, Saved *s) {
    if (h->kind) { attention_forward(h, s); return; }
    tensor_parallel_probabilities(h, s);
    Tensor v = part_of(h, s->t[S_QKV], 2);
    op_heads_mix(s->t[S_MIX], s->t[S_DROPPED], v, h->B, range_size(h->heads));                 // O = dropout(P) V
}
void tensor_parallel_heads_backward(const TensorParallelHeads *h, Tensor dqkv, Tensor dmix, Saved *s) {
    if (h->kind) { attention_backward(h, dqkv, dmix, s); return; }
    size_t heads = range_size(h->heads);
    Tensor qkv = s->t[S_QKV];
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dp = tensor_new(&scratch, s->t[S_PROBS].rows, h->T);
    op_heads_mix_t(part_of(h, dqkv, 2), s->t[S_DROPPED], dmix, h->B, heads);                   // dV = dropout(P)^T dO
    op_heads_scores(dp, dmix, part_of(h, qkv, 2), h->B, heads);                                // dP = dO V^T
    drop_probabilities(h, dp, dp);
    op_causal_softmax_backward(dp, s->t[S_PROBS], dp, score_scale(h), place_of(h));            // dS
    op_heads_mix(part_of(h, dqkv, 0), dp, part_of(h, qkv, 1), h->B, heads);                    // dQ = dS K
    op_heads_mix_t(part_of(h, dqkv, 1), dp, part_of(h, qkv, 0), h->B, heads);                  // dK = dS^T Q
    arena_free(&scratch);
}

// ================================ the experiment ================================

enum { B = 2, T = 7, M = B * T, H = 9, D = 4, C = H * D };     // D: columns of one head
enum { KEY_X = 101, KEY_TARGET, KEY_WEIGHTS, KEY_PROBABILITIES, KEY_OUT };
static const double dropout = 0.1;

static uint64_t key(uint64_t seed, TrialData what, size_t i) {
    static const uint64_t of[] = { KEY_X, KEY_TARGET, KEY_WEIGHTS };
    return random_key(random_key(seed, of[what]), i);
}
static void drop(const Trial *t, Tensor y) {               // Y is whole on every rank: so is the mask
    op_dropout(y, y, (Dropout){ .key = random_key(random_key(t->run->seed, KEY_OUT), t->step), .p = dropout });
}
static TensorParallelHeads heads_of(const Trial *t) {
    Range heads = t->tp ? shard_range(H, t->tp->size, t->tp->rank) : (Range){0, H};
    uint64_t mask = random_key(random_key(t->run->seed, KEY_PROBABILITIES), t->step);
    return (TensorParallelHeads){ .B = B, .T = T, .D = D, .heads = heads, .key = mask, .drop = dropout };
}

static void split_forward(Trial *t, Tensor y, Tensor x, Saved *s) {
    TensorParallelHeads h = heads_of(t);
    record_enter(EVENT_FORWARD, NO_NUMBER);                // for the picture
    tensor_parallel_attention_forward(t->tp, &h, t->params, y, x, s);
    drop(t, y);
    record_leave();
}
static void split_backward(Trial *t, Tensor dx, Tensor x, Tensor dy, Saved *s) {
    TensorParallelHeads h = heads_of(t);
    record_enter(EVENT_BACKWARD, NO_NUMBER);
    drop(t, dy);
    tensor_parallel_attention_backward(t->tp, &h, t->params, dx, x, dy, s);
    record_leave();
}

// Unsplit: all heads at once, whole matrices. It calls no function of the technique.
static const HeadsPlace all_heads = { .B = B, .heads = H };
static Tensor third(Tensor qkv, size_t which) { return tensor_col_range(qkv, which * C, (which + 1) * C); }
static void drop_whole(const TensorParallelHeads *h, Tensor y, Tensor x) {
    op_dropout_heads(y, x, h->key, dropout, 0, 0, all_heads);
}
static void unsplit_forward(Trial *t, Tensor y, Tensor x, Saved *s) {
    const Param *p = t->params;
    TensorParallelHeads h = heads_of(t);
    saved_tensor(s, S_QKV, M, 3 * C); saved_tensor(s, S_MIX, M, C);
    op_matmul(s->t[S_QKV], x, p[ATTENTION_QKV].w);
    op_add_bias(s->t[S_QKV], s->t[S_QKV], p[ATTENTION_QKV_BIAS].w);
    s->t[S_PROBS] = tensor_new(&s->attention, B * H * T, T);
    s->t[S_DROPPED] = tensor_new(&s->attention, B * H * T, T);
    op_heads_scores(s->t[S_PROBS], third(s->t[S_QKV], 0), third(s->t[S_QKV], 1), B, H);
    op_causal_softmax(s->t[S_PROBS], s->t[S_PROBS], (real)(1 / sqrt(D)), all_heads);
    drop_whole(&h, s->t[S_DROPPED], s->t[S_PROBS]);
    op_heads_mix(s->t[S_MIX], s->t[S_DROPPED], third(s->t[S_QKV], 2), B, H);
    op_matmul(y, s->t[S_MIX], p[ATTENTION_O].w);
    op_add_bias(y, y, p[ATTENTION_O_BIAS].w);
    drop(t, y);
}
static void unsplit_backward(Trial *t, Tensor dx, Tensor x, Tensor dy, Saved *s) {
    Param *p = t->params;
    TensorParallelHeads h = heads_of(t);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dmix = tensor_new(&scratch, M, C), dqkv = tensor_new(&scratch, M, 3 * C);
    Tensor dp = tensor_new(&scratch, B * H * T, T), qkv = s->t[S_QKV];
    drop(t, dy);
    linear_gradients(&p[ATTENTION_O], &p[ATTENTION_O_BIAS], s->t[S_MIX], dy);
    op_matmul_nt(dmix, dy, p[ATTENTION_O].w);
    op_heads_mix_t(third(dqkv, 2), s->t[S_DROPPED], dmix, B, H);
    op_heads_scores(dp, dmix, third(qkv, 2), B, H);
    drop_whole(&h, dp, dp);
    op_causal_softmax_backward(dp, s->t[S_PROBS], dp, (real)(1 / sqrt(D)), all_heads);
    op_heads_mix(third(dqkv, 0), dp, third(qkv, 1), B, H);
    op_heads_mix_t(third(dqkv, 1), dp, third(qkv, 0), B, H);
    linear_gradients(&p[ATTENTION_QKV], &p[ATTENTION_QKV_BIAS], x, dqkv);
    op_matmul_nt(dx, dqkv, p[ATTENTION_QKV].w);
    arena_free(&scratch);
}

static Trial layers(Run *run, Comm *tp) {
    Trial t = { .run = run, .tp = tp, .M = M, .K = C, .N = C, .x_cols = {0, C}, .y_cols = {0, C},
                .params = { param_describe("W_qkv", C, 3 * C, 3), param_describe("b_qkv", 0, 3 * C, 3),
                            param_describe("W_O", C, C, 1), param_describe("b_O", 0, C, 1) },
                .deviation = 0.2, .rate = 0.1, .before = "updated ", .after = ", step 3", .recorded = true,
                .key = key, .forward = tp ? split_forward : unsplit_forward,
                .backward = tp ? split_backward : unsplit_backward };
    if (tp) tensor_parallel_attention_cut(t.params, shard_range(H, tp->size, tp->rank), D);
    return t;
}
static void train(Run *run, Comm *tp, TrialResult *r) {
    Trial t = layers(run, tp);
    trial_train(&t, r);
}

// ---------------------------------------------------------------- the trap: shapes fit, heads do not

// As if W_qkv were one block of columns instead of three.
static void cut_contiguous(Param *p) {
    for (int i = ATTENTION_QKV; i <= ATTENTION_QKV_BIAS; i++) {
        p[i].blocks = 1;
        column_parallel_cut(&p[i], (Range){3 * p[i].my_cols.lo, 3 * p[i].my_cols.hi});
    }
}
static void contiguous_cut(Run *run) {
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    Trial split = layers(run, run->world), unsplit = layers(run, NULL);
    cut_contiguous(split.params);
    ledger_pause();
    trial_forward(&split, got);
    if (run->world->rank == 0) trial_forward(&unsplit, want);
    ledger_resume();
    check_differs(run, "contiguous cut of q|k|v is wrong", got, want, 0.1);
    snapshot_free(got); snapshot_free(want);
}

static void attention(Run *run) {
    Comm *tp = run->world;
    REQUIRE(tp->size <= H, "%zu ranks cannot share %d heads: start at most %d", tp->size, H, H);
    TrialResult r = trial_compare(run, "tensor-parallel = unsplit", train);
    if (tp->size > 1) contiguous_cut(run);
    attention_costs(run, &(AttentionSizes){ B, T, H, D }, &r);
}

static const Option options[] = { {0} };
EXPERIMENT(attention, options);
