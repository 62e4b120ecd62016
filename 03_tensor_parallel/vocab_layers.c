// vocab_layers.c: makes layers of the embedding, the head and the loss of a GPT. 06_transformer.c
// puts these layers into a model. The layers call the functions of 05_vocab.c. M is the number of
// tokens, B T. Each rank has V/t vocabulary entries, l->vocab.
#include "03_tensor_parallel/tensor_parallel.h"

static void embedding_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)x;
    (void)s;
    Tensor table = l->units[0]->params[0].w;
    vocab_parallel_lookup(l->comm, y, table, b->tokens, l->vocab.lo); // all-reduce: M C elements
    // Each position counts once, so positions are added after the sum.
    op_add_positions(y, y, l->units[1]->params[0].w, b->position);
    op_dropout(y, y, layer_dropout(l, b, SITE_EMBEDDING));
}
static void embedding_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)x;
    (void)dx;
    (void)s;
    embedding_gradients(l, b, dy); // dy is whole: a rank adds the rows of its own entries
}
const LayerKind tensor_parallel_embedding = {
    .name = "tensor-parallel embedding",
    .output = hidden_shape,
    .forward = embedding_forward,
    .backward = embedding_backward,
    .backward_inputs = embedding_backward_inputs,
    .backward_weights = embedding_backward_weights,
};

static void head_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)b;
    Param *norm = l->units[0]->params;
    Param *wte = &l->units[1]->params[0];
    saved_tensor(s, S_LN, x.rows, x.cols);
    normalize(l, norm, s->t[S_LN], x, s, S_STATS);
    op_matmul_nt(y, s->t[S_LN], wte->w); // [M, V/t], logits of this rank's entries: sends nothing
}
static void head_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)b;
    Param *norm = l->units[0]->params;
    Param *wte = &l->units[1]->params[0];
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dnorm = tensor_like(&scratch, dx);
    vocab_parallel_backward(l->comm, dnorm, dy, s->t[S_LN], wte); // all-reduce: M C
    norm_gradients(&norm[0], &norm[1], x, s->t[S_STATS], dnorm);
    normalize_backward(dx, x, s->t[S_STATS], norm[0].w, dnorm);
    arena_free(&scratch);
}
const LayerKind tensor_parallel_head = {
    .name = "tensor-parallel head",
    .output = logits_shape,
    .input = hidden_shape,
    .forward = head_forward,
    .backward = head_backward,
};

static void loss_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    saved_reals(s, S_SUM, x.rows, 1);
    vocab_parallel_loss(l->comm, y, s->t[S_SUM], x, b->targets, l->vocab.lo); // 3 all-reduces of M
}
// backward is loss_backward() of the unsplit layer. loss_backward() turns the exponentials in x
// into the gradient of the logits, and sends nothing.
const LayerKind tensor_parallel_loss = {
    .name = "tensor-parallel loss",
    .output = token_shape,
    .input = logits_shape,
    .in_place = true,
    .forward = loss_forward,
    .backward = loss_backward,
};
