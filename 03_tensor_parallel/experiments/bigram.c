// bigram.c: the smallest language model with both ends of GPT, for the experiment of 05_vocab.c:
// split over the vocabulary, and unsplit.
#include "03_tensor_parallel/experiments/experiments.h"
#include "common/tensor/random.h"

enum { M = BIGRAM_B * BIGRAM_T, V = BIGRAM_V, C = BIGRAM_C };
enum { KEY_TABLE = 101, KEY_MASK };

Bigram bigram_new(const Run *run, Range entries) {
    const Element e = option_storage(run);
    Bigram m = { .entries = entries,
                 .parameters = arena(MEM_PARAMETERS),
                 .gradients = arena(MEM_GRADIENTS),
                 .kept = arena(MEM_ACTIVATIONS),
                 .output = arena(MEM_WORKSPACE) };
    m.embedding.w = tensor_shaped(&m.parameters, tensor_shape(range_size(entries), C, e));
    m.head.w = m.embedding.w;
    m.embedding.g = tensor_new(&m.gradients, range_size(entries), C);
    m.head.g = tensor_new(&m.gradients, range_size(entries), C);
    m.x = tensor_shaped(&m.kept, tensor_shape(M, C, e));
    m.logits = tensor_new(&m.kept, M, range_size(entries));
    m.sum = tensor_new(&m.kept, M, 1);
    m.loss = tensor_new(&m.output, M, 1);
    ledger_pause(); // every rank draws all of E, then cuts
    Arena scratch = arena(MEM_REFERENCE);
    Tensor whole = tensor_new(&scratch, V, C);
    tensor_randomize(whole, random_key(run->seed, KEY_TABLE), 0.7);
    tensor_copy(m.head.w, tensor_row_range(whole, entries.lo, entries.hi));
    arena_free(&scratch);
    ledger_resume();
    return m;
}
void bigram_free(Bigram *m) {
    arena_free(&m->parameters);
    arena_free(&m->gradients);
    arena_free(&m->kept);
    arena_free(&m->output);
}

// Drops elements of x. x is whole on every rank, so every rank applies the same mask.
static void drop(Run *run, Tensor x, const Batch *b) {
    uint64_t mask = random_key(random_key(run->seed, KEY_MASK), b->step);
    op_dropout(x, x, (Dropout){ .key = mask, .p = 0.1 });
}

void bigram_logits(Run *run, Comm *tp, Bigram *m, const Batch *b) {
    if (tp) vocab_parallel_lookup(tp, m->x, m->embedding.w, b->tokens, m->entries.lo);
    else op_embed_tokens(m->x, m->embedding.w, b->tokens, 0);
    drop(run, m->x, b);
    op_matmul_nt(m->logits, m->x, m->head.w); // [M, V/t] = [M, C] x [V/t, C]^T
}
void bigram_loss(Comm *tp, Bigram *m, const Batch *b) {
    if (tp) {
        vocab_parallel_loss(tp, m->loss, m->sum, m->logits, b->targets, m->entries.lo);
        return;
    }
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor max = tensor_new(&scratch, M, 1);
    Tensor picked = tensor_new(&scratch, M, 1);
    op_row_max(max, m->logits);
    op_pick_target(picked, m->logits, b->targets, 0);
    op_exp_sum(m->sum, m->logits, max);
    op_token_loss(m->loss, picked, max, m->sum, b->targets);
    arena_free(&scratch);
}
void bigram_backward(Run *run, Comm *tp, Bigram *m, const Batch *b) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dx = tensor_like(&scratch, m->x);
    Tensor dloss = tensor_new(&scratch, M, 1);
    tensor_fill(dloss, (real)b->token_weight); // 1 / counted tokens
    op_cross_entropy_backward(m->logits, m->sum, b->targets, dloss, m->entries.lo);
    if (tp) {
        m->head.gradient_empty = true; // so the head's gradient overwrites old values
        vocab_parallel_backward(tp, dx, m->logits, m->x, &m->head);
    } else {
        op_matmul_tn(m->head.g, m->logits, m->x);
        op_matmul(dx, m->logits, m->head.w);
    }
    drop(run, dx, b);
    op_embed_tokens_grad(m->embedding.g, b->tokens, dx, m->entries.lo); // own entries only
    op_add(m->embedding.g, m->head.g, m->embedding.g); // E is tied: adds the gradients of both uses
    arena_free(&scratch);
}
