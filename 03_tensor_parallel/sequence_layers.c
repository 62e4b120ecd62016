// sequence_layers.c: computes the embedding and the head of a sequence-parallel model, and gives a
// model the layers of sequence parallelism. 07_sequence_parallel.c has the block, and also
// sequence_enter(), sequence_leave() and the backward of each. Each collective has M*C elements.
// The embedding makes a reduce-scatter forward and an all-gather of dy backward. The head makes an
// all-gather forward and a reduce-scatter backward. With KEEP_SHARD the head makes one more
// all-gather in backward.
#include "03_tensor_parallel/sequence_rows.h"

// ---------------------------------------------------------------- embedding
// Looks up this rank's vocabulary entries for all rows and puts zeros for entries of other ranks.
// The result is a partial sum of all rows. Each rank adds positions to its own rows after the sum,
// so that positions count once. Backward gathers all rows of dy, because any row may have one of
// the rank's entries. So the gradient of wpe is whole, and equal on all ranks.
static void embedding_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)x;
    (void)s;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor partial = tensor_shaped(&scratch, hidden_shape(l, b));
    op_embed_tokens(partial, l->units[0]->params[0].w, b->tokens, l->vocab.lo);
    sequence_leave(l->comm, y, partial); // reduce-scatter of M*C: own rows
    op_add_positions(y, y, l->units[1]->params[0].w, b->position + sequence_rows(l, b).lo);
    op_dropout(y, y, sequence_dropout(l, b, SITE_EMBEDDING));
    arena_free(&scratch);
}
// Adds the gradients of wte and wpe, from dy in S_DY. A pipeline that runs the two halves of a
// backward apart calls this function as the second half.
static void embedding_weights(Layer *l, const Batch *b, Tensor x, Saved *s) {
    (void)x;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dwhole = tensor_shaped(&scratch, hidden_shape(l, b));
    sequence_leave_backward(l->comm, dwhole, s->t[S_DY]); // all-gather of M*C: dy of all rows
    embedding_gradients(l, b, dwhole);
    arena_free(&scratch);
}
static void embedding_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)dx;
    s->t[S_DY] = dy;
    embedding_weights(l, b, x, s);
}
const LayerKind sequence_parallel_embedding = {
    .name = "sequence-parallel embedding",
    .output = sequence_shape,
    .forward = embedding_forward,
    .backward = embedding_backward,
    .backward_inputs = embedding_backward_inputs,
    .backward_weights = embedding_weights,
};

// ---------------------------------------------------------------- head
// Computes the logits of all rows for this rank's vocabulary entries, by a column-parallel product.
// The loss is tensor_parallel_loss (vocab_layers.c): three all-reduces of M elements.
static void head_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Param *p = l->units[0]->params, *wte = &l->units[1]->params[0];
    Arena scratch = arena(MEM_WORKSPACE);
    SequenceInput norm = sequence_input(l, b, s, S_LN, &scratch);
    normalize(l, p, norm.own, x, s, S_STATS);
    sequence_enter(l->comm, norm.whole, norm.own); // all-gather of M*C: logits of all rows
    op_matmul_nt(y, norm.whole, wte->w);
    arena_free(&scratch);
}
static void head_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Param *p = l->units[0]->params, *wte = &l->units[1]->params[0];
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dwhole = tensor_shaped(&scratch, hidden_shape(l, b));
    Tensor dnorm = tensor_like(&scratch, dx);
    Tensor input = sequence_input_again(l, b, s, S_LN, &scratch); // KEEP_SHARD: all-gather of M*C
    linear_gradients(wte, NULL, dy, input);
    op_matmul(dwhole, dy, wte->w);                   // a partial sum over this rank's entries
    sequence_enter_backward(l->comm, dnorm, dwhole); // reduce-scatter of M*C: own rows
    norm_gradients(&p[0], &p[1], x, s->t[S_STATS], dnorm);
    normalize_backward(dx, x, s->t[S_STATS], p[0].w, dnorm);
    arena_free(&scratch);
}
const LayerKind sequence_parallel_head = { .name = "sequence-parallel head",
                                           .output = logits_shape,
                                           .input = sequence_shape,
                                           .forward = head_forward,
                                           .backward = head_backward };

// ---------------------------------------------------------------- the model
// Norms, and biases that are added after a sum, have seen only this rank's rows, so their gradients
// are partial sums over tp.
void sequence_parallel(Model *m, Comm *tp, KeptInput keep) {
    static const int of_rows[] = { LN1_GAIN, LN1_BIAS, PROJ_B, LN2_GAIN, LN2_BIAS, OUT_B };
    tensor_parallel(m, tp);
    for (size_t i = 0; i < m->n_layers; i++) {
        Layer *l = &m->layers[i];
        if (l->kind == &tensor_parallel_embedding) l->kind = &sequence_parallel_embedding;
        if (l->kind == &tensor_parallel_block) {
            l->kind = &sequence_parallel_block;
            sequence_keep(l, keep);
            for (size_t k = 0; k < sizeof of_rows / sizeof *of_rows; k++)
                l->units[0]->params[of_rows[k]].partial = tp;
        }
        if (l->kind == &tensor_parallel_head) {
            l->kind = &sequence_parallel_head;
            sequence_keep(l, keep);
            for (size_t k = 0; k < 2; k++) l->units[0]->params[k].partial = tp;
        }
    }
}
