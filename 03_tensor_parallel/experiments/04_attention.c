// 04_attention.c: trains attention, Y = dropout(attention(X W_qkv + b_qkv) W_O + b_O), twice: cut
// by heads, and unsplit. The two trainings must agree. The table also has the predicted costs of a
// cut inside the heads. 4 ranks hold 3, 2, 2 and 2 of 9 heads.
#include "03_tensor_parallel/experiments/experiments.h"
#include "common/tensor/random.h"

enum { B = 2, T = 7, M = B * T, H = 9, D = 4, C = H * D }; // D: columns of one head
enum { KEY_PROBABILITIES = 105 };                          // trial.c uses keys 101 to 104
// Heads of key and value. With grouped heads KEY_HEADS is less than H, and RATIO heads of the query
// share one head of key and value. QKV: columns of q | k | v.
enum { KEY_HEADS = H, RATIO = H / KEY_HEADS, QKV = C + 2 * KEY_HEADS * D };
static const double theta = 0;     // the base of rotary positions; 0: none
static const double dropout = 0.1; // dropout of the probabilities and of Y

// ---------------------------------------------------------------- split and unsplit

// Returns this rank's heads of the query, which share whole heads of key and value.
static Range own_heads(const Comm *tp) {
    if (!tp) return (Range){ 0, H };
    const Range keys = shard_range(KEY_HEADS, tp->size, tp->rank);
    return (Range){ RATIO * keys.lo, RATIO * keys.hi };
}
static AttentionHeads heads_of(const Trial *t) {
    const uint64_t seed = random_key(t->run->seed, KEY_PROBABILITIES);
    return (AttentionHeads){ .B = B,
                             .T = T,
                             .D = D,
                             .key = random_key(seed, t->step),
                             .drop = dropout,
                             .heads = own_heads(t->tp),
                             .ratio = RATIO,
                             .theta = theta };
}
static void split_forward(Trial *t, Tensor y, Tensor x) {
    AttentionHeads h = heads_of(t);
    tensor_parallel_attention_forward(t->tp, &h, t->params, y, x, &t->saved);
}
static void split_backward(Trial *t, Tensor dx, Tensor x, Tensor dy) {
    AttentionHeads h = heads_of(t);
    tensor_parallel_attention_backward(t->tp, &h, t->params, dx, x, dy, &t->saved);
}

// Multiplies by all of W_qkv, runs common/model's attention over all heads, and multiplies by all
// of W_O.
static void unsplit_forward(Trial *t, Tensor y, Tensor x) {
    Saved *s = &t->saved;
    const Param *p = t->params;
    const AttentionHeads h = heads_of(t);
    saved_tensor(s, S_QKV, M, QKV);
    saved_tensor(s, S_MIX, M, C);
    op_matmul(s->t[S_QKV], x, p[ATTENTION_QKV].w);
    op_add_bias(s->t[S_QKV], s->t[S_QKV], p[ATTENTION_QKV_BIAS].w);
    attention_forward(&h, s);
    op_matmul(y, s->t[S_MIX], p[ATTENTION_O].w);
    op_add_bias(y, y, p[ATTENTION_O_BIAS].w);
}
static void unsplit_backward(Trial *t, Tensor dx, Tensor x, Tensor dy) {
    Saved *s = &t->saved;
    Param *p = t->params;
    const AttentionHeads h = heads_of(t);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dmix = tensor_like(&scratch, s->t[S_MIX]);
    Tensor dqkv = tensor_like(&scratch, s->t[S_QKV]);
    linear_gradients(&p[ATTENTION_O], &p[ATTENTION_O_BIAS], s->t[S_MIX], dy);
    op_matmul_nt(dmix, dy, p[ATTENTION_O].w);
    attention_backward(&h, dqkv, dmix, s);
    linear_gradients(&p[ATTENTION_QKV], &p[ATTENTION_QKV_BIAS], x, dqkv);
    op_matmul_nt(dx, dqkv, p[ATTENTION_QKV].w);
    arena_free(&scratch);
}

static void train(Run *run, Comm *tp, TrialResult *r) {
    Trial t = trial_new(run, tp, M, C, C);
    t.params[ATTENTION_QKV] = param_describe_grouped("W_qkv", C, QKV, 3, RATIO);
    t.params[ATTENTION_QKV_BIAS] = param_describe_grouped("b_qkv", 0, QKV, 3, RATIO);
    t.params[ATTENTION_O] = param_describe("W_O", C, C, 1);
    t.params[ATTENTION_O_BIAS] = param_describe("b_O", 0, C, 1);
    t.deviation = 0.2;
    t.rate = 0.1;
    t.dropout = dropout;
    t.forward = tp ? split_forward : unsplit_forward;
    t.backward = tp ? split_backward : unsplit_backward;
    if (tp) tensor_parallel_attention_cut(t.params, own_heads(tp), D);
    trial_train(&t, r);
}

// ---------------------------------------------------------------- costs

// Checks the costs. All parameters but b_O are cut. A rank keeps all of X. Of its own heads the
// rank keeps q, k and v, the probabilities before and after dropout, and the output. The two
// all-reduces add Y and dX.
static void costs(Run *run, const TrialResult *r) {
    const Comm *tp = run->world;
    const size_t heads = range_size(own_heads(tp));
    const size_t A = heads * D;
    const size_t own_qkv = A + 2 * A / RATIO;
    const size_t parameters = (C + 1) * own_qkv + A * C + C;
    const size_t kept = M * C + M * (own_qkv + A) + 2 * B * heads * T * T;
    const size_t e = element_size(option_storage(run));
    const double sent = 2 * ring_bytes(ALL_REDUCE_PASSES, tp->size, M * C, e);
    const TrialCosts predicted = {
        .parameters = parameters, .kept = kept, .calls = 2, .sent = sent
    };
    trial_costs(run, "%s", "%s", &predicted, r);
}

static void ending(Run *run, const char *added) {
    if (!answer_alone(run))
        say_answer(run,
                   "Because attention computes each head on its own: whole heads send 0 B "
                   "between W_qkv and W_O. With a cut inside the heads each rank would have only "
                   "partial sums of q k^T and dO v^T, and adding them would send %s per rank.",
                   added);
    say_cost(run, "%s per rank and step in %s all-reduces, exposed.", cost_text(run, "sent"),
             cost_text(run, "calls"));
    say_use_when(run, "ranks share a Transformer block. The number of ranks should divide the "
                      "heads. Else ranks with fewer heads wait for those with more.");
}

// Prints the table, with a column for the other cut, which gives each rank D/t columns of every
// head. The scores q k^T and, in backward, dO v^T are then partial sums over D. The ranks would
// have to add both products, [B*H*T, T] elements each.
static void table(Run *run, const TrialResult *r) {
    static const char *const columns[] = { "whole heads", "heads cut, predicted", NULL };
    const size_t n = run->world->size;
    const size_t e = element_size(option_storage(run));
    const double scores = 2 * ring_bytes(ALL_REDUCE_PASSES, n, B * H * T * T, e);
    const char *added = value_cell(run, scores, "bytes");
    const char *all = value_cell(run, (double)r->sent + scores, "bytes");
    const char *heads = page_text(run, H % n ? "=%zu..%zu" : "=%zu", H / n, ceil_div(H, n));
    const Result rows[] = {
        { "heads per rank", "H/t heads, or D/t columns of each", { heads, "=1/t of every head" } },
        { "weights and biases", "4 C²/t + 3 C/t + C", { "parameters", "=-" } },
        { "kept for backward", "M C + 4 M C/t + 2 B H T²/t", { "kept", "=-" } },
        { "all-reduces per step", "of Y, dX; cut: also q k^T, dO v^T", { "calls", "=4" } },
        { "sent between W_qkv and W_O", "heads cut: 4 (t-1) ceil(B H T²/t)", { "=0 B", added } },
        { "sent per rank and step", "that, and 4 (t-1) ceil(M C/t)", { "sent", all } },
        { 0 }
    };
    results(run, columns, rows);
    say(run,
        "  B = %d sequences of T = %d, M = B T; H = %d heads of D = %d, C = H D; t = %zu, %zu "
        "bytes per element\n  2 B H T²: the probabilities before and after dropout. dO: the "
        "gradient of the heads' output\n  heads cut: each rank would have some columns of every "
        "head.",
        B, T, H, D, n, e);
    ending(run, added + 1);
}

static void attention(Run *run) {
    const size_t n = run->world->size;
    REQUIRE(n <= KEY_HEADS, "%zu ranks: attention has %d heads; choose %d ranks or fewer", n,
            KEY_HEADS, KEY_HEADS);
    say(run, "q = X W_q, k = X W_k, v = X W_v. A token's output is a mean of the v of all tokens "
             "up to itself,\nweighted by softmax(q k^T / sqrt(D)). A head does this with D columns "
             "of its own; W_O mixes heads.\nEach rank holds whole heads: their columns of W_qkv "
             "(W_q, W_k, W_v), their rows of W_O; X is whole.");
    TrialResult r = trial_compare(run, "tensor-parallel = unsplit", train);
    costs(run, &r);
    picture_show(run, page_text(run, "Attention on %zu rank%s, last step", n, n == 1 ? "" : "s"),
                 PICTURE_CHART);
    table(run, &r);
}

static const Option options[] = { ONLY_STORAGE_OPTION, { 0 } };
EXPERIMENT(attention, options);
