// ranks: 4
// level: core
// question: How is a loss computed over words that no rank has all of?
//
// The smallest language model that has both ends of GPT: x = dropout(E[token]), logits = x E^T, loss = cross entropy,
// one table E [V, C] for both (tied). Rank i holds the rows of its words, so it makes the columns of the logits of
// its words.
//     embedding       a rank looks up its own words and writes zeros for the others'; the sum over ranks is the lookup
//     cross entropy   log(sum of exp(logit)) - logit of the target: three numbers a token are exchanged, not V
// 61 words do not divide by anything up to 60; sequences have unequal numbers of counted targets.
#include "common/model/data.h"
#include "common/model/formulas.h"
#include "common/lesson/lesson.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdio.h>

enum { B = 3, T = 8, M = B * T, V = 61, C = 12, STEPS = 3 };
enum { KEY_TABLE = 101, KEY_MASK };
static const double drop = 0.1, rate = 0.5;

typedef struct {
    Range words;                                           // mine
    Tensor table, grad, head_grad;                         // [V/tp, C]: E, its gradient, and the head's share of that
    Tensor x, logits, sum, loss;                           // [M, C], [M, V/tp], [M, 1], [M, 1]
    Arena parameters, gradients, kept, output;
} Bigram;

static Bigram bigram_new(uint64_t seed, Range words) {
    Bigram m = { .words = words, .parameters = arena(MEM_PARAMETERS), .gradients = arena(MEM_GRADIENTS),
                 .kept = arena(MEM_ACTIVATIONS), .output = arena(MEM_WORKSPACE) };
    m.table = tensor_new(&m.parameters, range_size(words), C);
    m.grad = tensor_new(&m.gradients, range_size(words), C);
    m.head_grad = tensor_new(&m.gradients, range_size(words), C);
    m.x = tensor_new(&m.kept, M, C);
    m.logits = tensor_new(&m.kept, M, range_size(words));
    m.sum = tensor_new(&m.kept, M, 1);
    m.loss = tensor_new(&m.output, M, 1);
    ledger_pause();                                        // drawn whole, then cut
    Arena scratch = arena(MEM_REFERENCE);
    Tensor whole = tensor_new(&scratch, V, C);
    tensor_randomize(whole, random_key(seed, KEY_TABLE), 0.7);
    tensor_copy(m.table, tensor_row_range(whole, words.lo, words.hi));
    arena_free(&scratch);
    ledger_resume();
    return m;
}
static void bigram_free(Bigram *m) {
    arena_free(&m->parameters); arena_free(&m->gradients); arena_free(&m->kept); arena_free(&m->output);
}
static Dropout mask(Run *run, const Batch *b) {
    return (Dropout){ .key = random_key(random_key(run->seed, KEY_MASK), b->step), .p = drop };
}

// ---------------------------------------------------------------- vocabulary-parallel

static void embed(Comm *tp, Bigram *m, const Batch *b) {
    op_embed_tokens(m->x, m->table, b->tokens, m->words.lo);       // zero rows for words of other ranks
    comm_all_reduce(tp, m->x);                                     // M*C reals; of each row's summands one is not zero
}

static void loss_of_logits(Comm *tp, Bigram *m, const Batch *b) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor max = tensor_new(&scratch, M, 1), picked = tensor_new(&scratch, M, 1);
    op_row_max(max, m->logits);
    comm_all_reduce_max(tp, max);                                  // 1: the largest logit, for safe exponentials
    op_pick_target(picked, m->logits, b->targets, m->words.lo);    // 0 where the target is not my word
    comm_all_reduce(tp, picked);                                   // 2: the target's logit
    op_exp_sum(m->sum, m->logits, max);                            // logits <- exp(logits - max); my words' sum
    comm_all_reduce(tp, m->sum);                                   // 3: the sum of exponentials
    op_token_loss(m->loss, picked, max, m->sum, b->targets);       // log(sum) + max - picked, on every rank alike
    arena_free(&scratch);
}

static void forward(Run *run, Comm *tp, Bigram *m, const Batch *b) {
    embed(tp, m, b);
    op_dropout(m->x, m->x, mask(run, b));                          // x is whole: the same mask on every rank
    op_matmul_nt(m->logits, m->x, m->table);                       // [M, V/tp] = [M, C] x [V/tp, C]^T: nothing to say
    loss_of_logits(tp, m, b);
}

static void backward(Run *run, Comm *tp, Bigram *m, const Batch *b, Tensor dloss, Tensor dx) {
    op_cross_entropy_backward(m->logits, m->sum, b->targets, dloss, m->words.lo);  // (exp / sum - onehot) dloss: local
    op_matmul_tn(m->head_grad, m->logits, m->x);                   // [V/tp, C] = [M, V/tp]^T x [M, C]: finished
    op_matmul(dx, m->logits, m->table);                            // [M, C] = [M, V/tp] x [V/tp, C]: what my words say
    comm_all_reduce(tp, dx);                                       // M*C reals
    op_dropout(dx, dx, mask(run, b));
    op_embed_tokens_grad(m->grad, b->tokens, dx, m->words.lo);     // each rank takes the rows of its own words
    op_add(m->grad, m->head_grad, m->grad);                        // tied: head, then embedding
}

// ---------------------------------------------------------------- unsplit

static void unsplit_forward(Run *run, Bigram *m, const Batch *b) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor max = tensor_new(&scratch, M, 1), picked = tensor_new(&scratch, M, 1);
    op_embed_tokens(m->x, m->table, b->tokens, 0);
    op_dropout(m->x, m->x, mask(run, b));
    op_matmul_nt(m->logits, m->x, m->table);
    op_row_max(max, m->logits);
    op_pick_target(picked, m->logits, b->targets, 0);
    op_exp_sum(m->sum, m->logits, max);
    op_token_loss(m->loss, picked, max, m->sum, b->targets);
    arena_free(&scratch);
}
static void unsplit_backward(Run *run, Bigram *m, const Batch *b, Tensor dloss, Tensor dx) {
    op_cross_entropy_backward(m->logits, m->sum, b->targets, dloss, 0);
    op_matmul_tn(m->head_grad, m->logits, m->x);
    op_matmul(dx, m->logits, m->table);
    op_dropout(dx, dx, mask(run, b));
    op_embed_tokens_grad(m->grad, b->tokens, dx, 0);
    op_add(m->grad, m->head_grad, m->grad);
}

// ---------------------------------------------------------------- three steps

static void put(Snapshot *s, const char *name, uint64_t step, size_t rows, size_t cols, Tensor part,
                size_t row0, size_t col0) {
    char label[40];
    snprintf(label, sizeof label, "%s, step %zu", name, (size_t)step + 1);
    snapshot_put(s, label, rows, cols, part, row0, col0);
}

typedef struct { size_t parameters, gradients, optimizer, activations; } Held;     // bytes on this rank
static Held held_now(void) {                               // activations: the most since the step began
    return (Held){ memory_now(MEM_PARAMETERS), memory_now(MEM_GRADIENTS), memory_now(MEM_OPTIMIZER),
                   memory_peak(MEM_ACTIVATIONS) };
}
static Held train(Run *run, Comm *tp, const Data *data, Snapshot *seen, Snapshot *weights, double loss[STEPS]) {
    Bigram m = bigram_new(run->seed, tp ? shard_range(V, tp->size, tp->rank) : (Range){0, V});
    Held held = {0};
    for (uint64_t step = 0; step < STEPS; step++) {
        memory_reset_peaks();
        Arena buffers = arena(MEM_WORKSPACE);
        Batch b = data_batch(data, &buffers, step, 0, B, B);
        Tensor dloss = tensor_new(&buffers, M, 1), dx = tensor_new(&buffers, M, C);
        tensor_fill(dloss, (real)b.token_weight);          // 1 / counted tokens
        if (tp) forward(run, tp, &m, &b);
        else unsplit_forward(run, &m, &b);
        loss[step] = tensor_sum(m.loss) * b.token_weight;
        if (tp) backward(run, tp, &m, &b, dloss, dx);
        else unsplit_backward(run, &m, &b, dloss, dx);
        put(seen, "loss of each token", step, M, 1, m.loss, 0, 0);
        put(seen, "grad logits", step, M, V, m.logits, 0, m.words.lo);     // backward left it where the logits were
        put(seen, "grad E", step, V, C, m.grad, m.words.lo, 0);
        op_sgd(m.table, m.grad, 1, (real)rate, 0);
        held = held_now();
        arena_free(&buffers);
    }
    snapshot_put(weights, "E after 3 steps", V, C, m.table, m.words.lo, 0);
    bigram_free(&m);
    return held;
}

// ---------------------------------------------------------------- two things to see

// The sum over ranks of one row and zeros: nothing is rounded, so the parallel lookup is the unsplit one to the last
// bit.
static void lookup_moves_data(Run *run, const Batch *b) {
    Comm *tp = run->world;
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    Bigram m = bigram_new(run->seed, shard_range(V, tp->size, tp->rank));
    embed(tp, &m, b);
    snapshot_put(got, "E[token]", M, C, m.x, 0, 0);
    bigram_free(&m);
    if (tp->rank == 0) {
        m = bigram_new(run->seed, (Range){0, V});
        op_embed_tokens(m.x, m.table, b->tokens, 0);
        snapshot_put(want, "E[token]", M, C, m.x, 0, 0);
        bigram_free(&m);
    }
    check_equal(run, "lookup = unsplit", got, want);
    snapshot_free(got); snapshot_free(want);
}

// Logits that were gathered before, handed to the vocabulary-parallel loss. Each rank takes its [M, V] for the logits
// of V words of its own, of t V in all: rank 0 finds the target, but every exponential is counted t times: log(t sum)
// = log(sum) + log t.
static void gathered_logits(Run *run, const Batch *b) {
    Comm *tp = run->world;
    Bigram m = bigram_new(run->seed, (Range){0, V});
    op_embed_tokens(m.x, m.table, b->tokens, 0);
    op_dropout(m.x, m.x, mask(run, b));
    op_matmul_nt(m.logits, m.x, m.table);
    m.words.lo = tp->rank * V;
    loss_of_logits(tp, &m, b);
    double wrong = tensor_sum(m.loss) * b->token_weight, less = wrong - log((double)tp->size);
    m.words.lo = 0;
    unsplit_forward(run, &m, b);
    double right = tensor_sum(m.loss) * b->token_weight;
    say(run, "gathered logits in the parallel loss: %.4f instead of %.4f, log %zu = %.4f more", wrong, right, tp->size,
        log((double)tp->size));
    check_numbers(run, "gathered logits: the trap", "loss - log t", &less, &right, 1, LIMIT_ROUNDING);
    bigram_free(&m);
}

// ---------------------------------------------------------------- comparison and predictions

static void vocabulary(Run *run) {
    Comm *tp = run->world;
    REQUIRE(tp->size <= V, "%zu ranks cannot share %d words: start at most %d", tp->size, V, V);
    Data data = data_synthetic(V, T, run->seed);
    double loss[STEPS], want_loss[STEPS] = {0};
    Snapshot *got = snapshot_new(run), *weights = snapshot_new(run);
    Snapshot *want = snapshot_new(run), *want_weights = snapshot_new(run);
    comm_ledger_reset(tp);
    Held held = train(run, tp, &data, got, weights, loss);
    size_t calls = tp->ledger[COMM_ALL_REDUCE].calls, bytes = comm_bytes_sent(tp);
    ledger_pause();
    if (tp->rank == 0) train(run, NULL, &data, want, want_weights, want_loss);
    ledger_resume();
    check_numbers(run, "vocabulary-parallel = unsplit", "loss, 3 steps", loss, want_loss, STEPS, LIMIT_ROUNDING);
    check_close(run, "vocabulary-parallel = unsplit", got, want, LIMIT_ROUNDING);
    check_close(run, "vocabulary-parallel = unsplit", weights, want_weights, LIMIT_ROUNDING);
    snapshot_free(got); snapshot_free(weights); snapshot_free(want); snapshot_free(want_weights);

    ledger_pause();
    Arena tokens = arena(MEM_REFERENCE);
    Batch b = data_batch(&data, &tokens, 0, 0, B, B);
    lookup_moves_data(run, &b);
    gathered_logits(run, &b);
    arena_free(&tokens);
    ledger_resume();
    data_free(&data);

    // Two of [M, C] (x forward, dx backward) and the three numbers a token. Gathering the logits would be [M, V] in
    // place of 3 M.
    const size_t n = tp->size, words = range_size(shard_range(V, n, tp->rank)), e = sizeof(real);
    const double wide = ring_bytes(ALL_REDUCE_PASSES, n, M * C, e), narrow = ring_bytes(ALL_REDUCE_PASSES, n, M, e);
    cost(run, "E", "bytes", (double)(words * C * e), (double)held.parameters);
    cost(run, "gradients, of both uses of E", "bytes", (double)(2 * words * C * e), (double)held.gradients);
    cost(run, "SGD's state", "bytes", 0, (double)held.optimizer);
    cost(run, "kept: x, my logits, a sum a token", "bytes", (double)(M * (C + words + 1) * e),
         (double)held.activations);
    cost(run, "all-reduces a step", "calls", 2 + 3, (double)calls / STEPS);
    cost(run, "sent a step", "bytes", 2 * wide + 3 * narrow, (double)bytes / STEPS);
    say(run, "for the loss a rank sends %.0f bytes a step; in an all-gather of the logits it would send %.0f",
        3 * narrow, ring_bytes(ONE_PASS, n, (size_t)M * V, e));
}

static const Option options[] = { {0} };
LESSON(vocabulary, options);
