// ranks: 4
// level: core
// question: How do the ranks compute the loss when none of them has all logits of a token?
//
// The smallest language model that has both ends of GPT: x = dropout(E[token]), logits = x E^T, loss = cross entropy,
// one table E [V, C] for both (tied). Rank i holds the rows of its vocabulary entries, so it makes the
// columns of the logits of its entries.
//     embedding       a rank looks up its own entries, with zeros for the others'; the sum over ranks is the lookup
//     cross entropy   log(sum of exp(logit)) - logit of the target: three elements per token are exchanged, not V
// 61 entries do not divide by anything up to 60; sequences have unequal numbers of counted targets.
#include "03_tensor_parallel/tensor_parallel.h"
#include "03_tensor_parallel/experiments/costs.h"
#include "03_tensor_parallel/experiments/trial.h"
#include <math.h>
#include "common/model/data.h"
#include "common/tensor/random.h"

// ================================ the technique ================================

// y [M, C] <- rows of the whole table; this rank holds rows [V/tp, C] from `first` on.
void vocab_parallel_lookup(Comm *tp, Tensor y, Tensor table, const int *tokens, size_t first) {
    op_embed_tokens(y, table, tokens, first);                      // zero rows for entries of other ranks
    comm_all_reduce(tp, y);                                        // M*C elements; of a row's summands one is not zero
}

// loss [M, 1], the same on every rank, of logits [M, V/tp]; these become exponentials, and sum [M, 1] theirs, for
// backward. The logits [M, V] are never together on one rank.
void vocab_parallel_loss(Comm *tp, Tensor loss, Tensor sum, Tensor logits, const int *targets, size_t first) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor max = tensor_new(&scratch, logits.rows, 1), picked = tensor_new(&scratch, logits.rows, 1);
    op_row_max(max, logits);
    comm_all_reduce_max(tp, max);                                  // 1: M elements, the largest logit, for exp
    op_pick_target(picked, logits, targets, first);                // 0 where the target is not my entry
    comm_all_reduce(tp, picked);                                   // 2: M elements, the target's logit
    op_exp_sum(sum, logits, max);                                  // logits <- exp(logits - max); my entries' sum
    comm_all_reduce(tp, sum);                                      // 3: M elements, the sum of exponentials
    op_token_loss(loss, picked, max, sum, targets);                // log(sum) + max - picked
    arena_free(&scratch);
}

// dlogits [M, V/tp] = (exponential / sum - onehot) dloss follows from what a rank has. logits = x table^T is
// column-parallel, with the table transposed: its gradient is finished, dx is a partial sum.
void vocab_parallel_backward(Comm *tp, Tensor dx, Tensor dlogits, Tensor x, Param *table) {
    linear_gradients(table, NULL, dlogits, x);                     // [V/tp, C] = [M, V/tp]^T x [M, C]: finished
    op_matmul(dx, dlogits, table->w);                              // [M, C] = [M, V/tp] x [V/tp, C]: a partial sum
    comm_all_reduce(tp, dx);                                       // f: M*C elements
}

// ---------------------------------------------------------------- as layers of GPT

static void embedding_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)x; (void)s;
    vocab_parallel_lookup(l->comm, y, l->units[0]->params[0].w, b->tokens, l->vocab.lo);
    op_add_positions(y, y, l->units[1]->params[0].w, b->position);  // once, after the sum
    op_dropout(y, y, layer_dropout(l, b, SITE_EMBEDDING));
}
static void embedding_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)x; (void)dx; (void)s;
    embedding_gradients(l, b, dy);                                 // dy is whole: a rank takes its entries' rows
}
const LayerKind tensor_parallel_embedding = {
    .name = "tensor-parallel embedding", .output = hidden_shape,
    .forward = embedding_forward, .backward = embedding_backward,
    .backward_inputs = embedding_backward_inputs, .backward_weights = embedding_backward_weights,
};

static void head_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)b;
    Param *p = l->units[0]->params, *wte = &l->units[1]->params[0];
    saved_tensor(s, S_LN, x.rows, x.cols); saved_tensor(s, S_STATS, x.rows, 2);
    op_layer_norm(s->t[S_LN], s->t[S_STATS], x, p[0].w, p[1].w);
    op_matmul_nt(y, s->t[S_LN], wte->w);                           // logits [B*T, V/tp], of my entries: sends nothing
}
static void head_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)b;
    Param *p = l->units[0]->params;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dnorm = tensor_new(&scratch, dx.rows, dx.cols);
    vocab_parallel_backward(l->comm, dnorm, dy, s->t[S_LN], &l->units[1]->params[0]);
    norm_gradients(&p[0], &p[1], x, s->t[S_STATS], dnorm);         // dnorm is whole: equal on every rank
    op_layer_norm_backward(dx, x, s->t[S_STATS], p[0].w, dnorm);
    arena_free(&scratch);
}
const LayerKind tensor_parallel_head = { .name = "tensor-parallel head", .output = logits_shape, .input = hidden_shape,
                                         .forward = head_forward, .backward = head_backward };

// x [B*T, V/tp] becomes exponentials; its gradient, which sends nothing, is the unsplit layer's, in x's place.
static void loss_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    saved_tensor(s, S_SUM, x.rows, 1);
    vocab_parallel_loss(l->comm, y, s->t[S_SUM], x, b->targets, l->vocab.lo);
}
const LayerKind tensor_parallel_loss = { .name = "tensor-parallel loss", .output = token_shape, .input = logits_shape,
                                         .in_place = true, .forward = loss_forward, .backward = loss_backward };

// ================================ the experiment ================================

enum { B = 3, T = 8, M = B * T, V = 61, C = 12 };
enum { KEY_TABLE = 101, KEY_MASK };

typedef struct {
    Range entries;                                         // mine
    Param embedding, head;                                 // [V/tp, C]: E in its two uses, each with a gradient
    Tensor x, logits, sum, loss;                           // [M, C], [M, V/tp], [M, 1], [M, 1]
    Arena parameters, gradients, kept, output;
} Bigram;

static Bigram bigram_new(uint64_t seed, Range entries) {
    Bigram m = { .entries = entries, .parameters = arena(MEM_PARAMETERS), .gradients = arena(MEM_GRADIENTS),
                 .kept = arena(MEM_ACTIVATIONS), .output = arena(MEM_WORKSPACE) };
    m.embedding.w = m.head.w = tensor_new(&m.parameters, range_size(entries), C);
    m.embedding.g = tensor_new(&m.gradients, range_size(entries), C);
    m.head.g = tensor_new(&m.gradients, range_size(entries), C);
    m.x = tensor_new(&m.kept, M, C);
    m.logits = tensor_new(&m.kept, M, range_size(entries));
    m.sum = tensor_new(&m.kept, M, 1);
    m.loss = tensor_new(&m.output, M, 1);
    ledger_pause();                                        // drawn whole, then cut
    Arena scratch = arena(MEM_REFERENCE);
    Tensor whole = tensor_new(&scratch, V, C);
    tensor_randomize(whole, random_key(seed, KEY_TABLE), 0.7);
    tensor_copy(m.head.w, tensor_row_range(whole, entries.lo, entries.hi));
    arena_free(&scratch);
    ledger_resume();
    return m;
}
static void bigram_free(Bigram *m) {
    arena_free(&m->parameters); arena_free(&m->gradients); arena_free(&m->kept); arena_free(&m->output);
}
static void drop(Run *run, Tensor x, const Batch *b) {     // x is whole: the same mask on every rank
    op_dropout(x, x, (Dropout){ .key = random_key(random_key(run->seed, KEY_MASK), b->step), .p = 0.1 });
}

static void forward(Run *run, Comm *tp, Bigram *m, const Batch *b) {
    vocab_parallel_lookup(tp, m->x, m->embedding.w, b->tokens, m->entries.lo);
    drop(run, m->x, b);
    op_matmul_nt(m->logits, m->x, m->head.w);              // [M, V/tp] = [M, C] x [V/tp, C]^T: sends nothing
    vocab_parallel_loss(tp, m->loss, m->sum, m->logits, b->targets, m->entries.lo);
}
static void backward(Run *run, Comm *tp, Bigram *m, const Batch *b, Tensor dloss, Tensor dx) {
    m->head.gradient_empty = true;                                  // the head's contribution overwrites
    op_cross_entropy_backward(m->logits, m->sum, b->targets, dloss, m->entries.lo);
    vocab_parallel_backward(tp, dx, m->logits, m->x, &m->head);
    drop(run, dx, b);
    op_embed_tokens_grad(m->embedding.g, b->tokens, dx, m->entries.lo);      // each rank takes its own entries' rows
    op_add(m->embedding.g, m->head.g, m->embedding.g);     // tied: head, then embedding
}

static void unsplit_forward(Run *run, Bigram *m, const Batch *b) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor max = tensor_new(&scratch, M, 1), picked = tensor_new(&scratch, M, 1);
    op_embed_tokens(m->x, m->embedding.w, b->tokens, 0);
    drop(run, m->x, b);
    op_matmul_nt(m->logits, m->x, m->head.w);
    op_row_max(max, m->logits);
    op_pick_target(picked, m->logits, b->targets, 0);
    op_exp_sum(m->sum, m->logits, max);
    op_token_loss(m->loss, picked, max, m->sum, b->targets);
    arena_free(&scratch);
}
static void unsplit_backward(Run *run, Bigram *m, const Batch *b, Tensor dloss, Tensor dx) {
    op_cross_entropy_backward(m->logits, m->sum, b->targets, dloss, 0);
    op_matmul_tn(m->head.g, m->logits, m->x);
    op_matmul(dx, m->logits, m->head.w);
    drop(run, dx, b);
    op_embed_tokens_grad(m->embedding.g, b->tokens, dx, 0);
    op_add(m->embedding.g, m->head.g, m->embedding.g);
}

static void train(Run *run, Comm *tp, TrialResult *r) {
    Data data = data_synthetic(V, T, run->seed);
    Bigram m = bigram_new(run->seed, tp ? shard_range(V, tp->size, tp->rank) : (Range){0, V});
    for (size_t step = 0; step < TRIAL_STEPS; step++) {
        memory_reset_peaks();
        Arena buffers = arena(MEM_WORKSPACE);
        Batch b = data_batch(&data, &buffers, step, 0, B, B);
        Tensor dloss = tensor_new(&buffers, M, 1), dx = tensor_new(&buffers, M, C);
        tensor_fill(dloss, (real)b.token_weight);          // 1 / counted tokens
        if (tp) forward(run, tp, &m, &b);
        else unsplit_forward(run, &m, &b);
        r->loss[step] = tensor_sum(m.loss) * b.token_weight;
        if (tp) backward(run, tp, &m, &b, dloss, dx);
        else unsplit_backward(run, &m, &b, dloss, dx);
        trial_put(r->seen, "loss of each token", step, M, 1, m.loss, 0, 0);
        trial_put(r->seen, "grad logits", step, M, V, m.logits, 0, m.entries.lo);    // where the logits were
        trial_put(r->seen, "grad E", step, V, C, m.embedding.g, m.entries.lo, 0);
        op_sgd(m.embedding.w, m.embedding.g, 1, (real)0.5, 0);
        trial_held(r);
        arena_free(&buffers);
    }
    snapshot_put(r->weights, "E after 3 steps", V, C, m.embedding.w, m.entries.lo, 0);
    bigram_free(&m);
    data_free(&data);
}

// ---------------------------------------------------------------- two things to see

// The sum over ranks of one row and zeros: nothing is rounded, so the parallel lookup is the unsplit one to the last
// bit.
static void lookup_moves_data(Run *run, const Batch *b) {
    Comm *tp = run->world;
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    Bigram m = bigram_new(run->seed, shard_range(V, tp->size, tp->rank));
    vocab_parallel_lookup(tp, m.x, m.embedding.w, b->tokens, m.entries.lo);
    snapshot_put(got, "E[token]", M, C, m.x, 0, 0);
    bigram_free(&m);
    if (tp->rank == 0) {
        m = bigram_new(run->seed, (Range){0, V});
        op_embed_tokens(m.x, m.embedding.w, b->tokens, 0);
        snapshot_put(want, "E[token]", M, C, m.x, 0, 0);
        bigram_free(&m);
    }
    check_equal(run, "lookup = unsplit", got, want);
    snapshot_free(got); snapshot_free(want);
}

// Token 0 through vocab_parallel_loss: what each rank puts into its three all-reduces.
static void one_token(Run *run, const Batch *b) {
    Range entries = shard_range(V, run->world->size, run->world->rank);
    Bigram m = bigram_new(run->seed, entries);
    vocab_parallel_lookup(run->world, m.x, m.embedding.w, b->tokens, entries.lo);
    drop(run, m.x, b);
    op_matmul_nt(m.logits, m.x, m.head.w);
    op_row_max(m.sum, m.logits);                           // before the loss overwrites both
    double max = tensor_sum(tensor_row_range(m.sum, 0, 1));
    op_pick_target(m.loss, m.logits, b->targets, entries.lo);
    double picked = tensor_sum(tensor_row_range(m.loss, 0, 1));
    vocab_parallel_loss(run->world, m.loss, m.sum, m.logits, b->targets, entries.lo);
    double sum = tensor_sum(tensor_row_range(m.logits, 0, 1)), loss = tensor_sum(tensor_row_range(m.loss, 0, 1));
    vocabulary_token(run, entries, (double[]){ max, picked, sum }, loss);
    bigram_free(&m);
}

// Logits that were gathered before, handed to the vocabulary-parallel loss. Each rank takes its [M, V] for the logits
// of V entries of its own, of t V in all: rank 0 finds the target, but every exponential is counted t times: log(t sum)
// = log(sum) + log t.
typedef struct { double right, wrong; } Losses;
static Losses gathered_logits(Run *run, const Batch *b) {
    Comm *tp = run->world;
    Bigram m = bigram_new(run->seed, (Range){0, V});
    op_embed_tokens(m.x, m.embedding.w, b->tokens, 0);
    drop(run, m.x, b);
    op_matmul_nt(m.logits, m.x, m.head.w);
    vocab_parallel_loss(tp, m.loss, m.sum, m.logits, b->targets, tp->rank * V);
    double wrong = tensor_sum(m.loss) * b->token_weight, less = wrong - log((double)tp->size);
    unsplit_forward(run, &m, b);
    double right = tensor_sum(m.loss) * b->token_weight;
    check_numbers(run, "gathered logits: the trap", "loss - log t", &less, &right, 1, LIMIT_ROUNDING);
    bigram_free(&m);
    return (Losses){ right, wrong };
}

static void vocabulary(Run *run) {
    REQUIRE(run->world->size <= V, "%zu ranks cannot share %d entries: start at most %d", run->world->size, V, V);
    TrialResult r = trial_compare(run, "vocabulary-parallel = unsplit", train);
    ledger_pause();
    Data data = data_synthetic(V, T, run->seed);
    Arena tokens = arena(MEM_REFERENCE);
    Batch b = data_batch(&data, &tokens, 0, 0, B, B);
    lookup_moves_data(run, &b);
    Losses loss = gathered_logits(run, &b);
    one_token(run, &b);
    arena_free(&tokens);
    data_free(&data);
    ledger_resume();
    vocabulary_costs(run, &(VocabularySizes){ M, V, C }, &r);
    vocabulary_results(run, &(VocabularySizes){ M, V, C }, loss.right, loss.wrong);
}

static const Option options[] = { {0} };
EXPERIMENT(vocabulary, options);
