// bigram.c: the smallest language model with both ends of GPT: split over the vocabulary, and
// unsplit.
#include "03_tensor_parallel/experiments/experiments.h"
#include "common/tensor/random.h"

enum { B = BIGRAM_B, T = BIGRAM_T, M = B * T, V = BIGRAM_V, C = BIGRAM_C };

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
void bigram_drop(Run *run, Tensor x, const Batch *b) {
    uint64_t mask = random_key(random_key(run->seed, KEY_MASK), b->step);
    op_dropout(x, x, (Dropout){ .key = mask, .p = 0.1 });
}

// ---------------------------------------------------------------- split and unsplit

void bigram_split_forward(Run *run, Bigram *m, const Batch *b) {
    Comm *tp = run->world;
    vocab_parallel_lookup(tp, m->x, m->embedding.w, b->tokens, m->entries.lo);
    bigram_drop(run, m->x, b);
    op_matmul_nt(m->logits, m->x, m->head.w); // [M, V/t] = [M, C] x [V/t, C]^T
    vocab_parallel_loss(tp, m->loss, m->sum, m->logits, b->targets, m->entries.lo);
}
void bigram_split_backward(Run *run, Bigram *m, const Batch *b, Tensor dloss, Tensor dx) {
    m->head.gradient_empty = true; // so the head's gradient overwrites old values
    op_cross_entropy_backward(m->logits, m->sum, b->targets, dloss, m->entries.lo);
    vocab_parallel_backward(run->world, dx, m->logits, m->x, &m->head);
    bigram_drop(run, dx, b);
    op_embed_tokens_grad(m->embedding.g, b->tokens, dx, m->entries.lo); // own entries only
    op_add(m->embedding.g, m->head.g, m->embedding.g); // E is tied: adds the gradients of both uses
}

void bigram_forward(Run *run, Bigram *m, const Batch *b) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor max = tensor_new(&scratch, M, 1);
    Tensor picked = tensor_new(&scratch, M, 1);
    op_embed_tokens(m->x, m->embedding.w, b->tokens, 0);
    bigram_drop(run, m->x, b);
    op_matmul_nt(m->logits, m->x, m->head.w);
    op_row_max(max, m->logits);
    op_pick_target(picked, m->logits, b->targets, 0);
    op_exp_sum(m->sum, m->logits, max);
    op_token_loss(m->loss, picked, max, m->sum, b->targets);
    arena_free(&scratch);
}
void bigram_backward(Run *run, Bigram *m, const Batch *b, Tensor dloss, Tensor dx) {
    op_cross_entropy_backward(m->logits, m->sum, b->targets, dloss, 0);
    op_matmul_tn(m->head.g, m->logits, m->x);
    op_matmul(dx, m->logits, m->head.w);
    bigram_drop(run, dx, b);
    op_embed_tokens_grad(m->embedding.g, b->tokens, dx, 0);
    op_add(m->embedding.g, m->head.g, m->embedding.g);
}
