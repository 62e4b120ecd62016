// ranks: 4
// level: core
// question: The matrices of a GPT are cut. Does it train like the whole GPT, and what does its communication cost?
//
// Holds:  each rank has 1/t of every matrix but wpe: attention by heads, the MLP by hidden columns,
//         wte by entries. Norms, biases of the row-cut matrices, wpe and activations between
//         layers, [M, C] with M = B T, are whole.
// Sends:  a micro-batch makes four all-reduces of M C elements per block (two forward, two
//         backward). At the model's ends the embedding's output and the head's dX have one
//         all-reduce of M C each, and the loss has three of M (05_vocab.c). A step has one
//         all-reduce of 12 L + 4 doubles for the gradient norm.
// Saves:  a block has 12 C C/t + 7 C/t + 6 C parameters per rank, instead of 12 C C + 13 C.
// Costs:  each rank sends 8 M C (t-1)/t elements per block and micro-batch, exposed. A rank keeps
//         M C (4 + 4/C) elements of a block whole, and computes all norms and residual paths.
// Loss, gradients and weights must equal those of the unsplit GPT within rounding. Shoeybi et al.
// 2019, section 3. Left out: a cut of the norms' rows (07_sequence_parallel.c).
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/model/block.h"

// ---------------------------------------------------------------- a block: four all-reduces
//
//     forward    x -> norm -> attention =1=> + x -> norm -> MLP =2=> + -> y
//     backward   dx <- + <- norm <=4= attention <- + <- norm <=3= MLP <- dy
//
// =1=> =2=> <=3= <=4= are the all-reduces of [M, C]. Each all-reduce is the only message of a
// function of 03_mlp.c or 04_attention.c. Before all-reduces 1 and 2 a rank has the partial sum of
// the output over its own heads or hidden columns. Before all-reduces 3 and 4 a rank has the
// partial sum of the input's gradient over the same heads or columns. After the all-reduce the
// result is whole on every rank, so all other calls are those of the unsplit block
// (common/model/layer.c). The comments 1 to 4 below mark these calls. vocab_layers.c has the
// embedding, the head and the loss.

static void block_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Param *p = l->units[0]->params;
    AttentionHeads heads = layer_heads(l, b); // this rank's heads
    size_t M = b->B * b->T;
    size_t C = l->config->width;

    saved_tensor(s, S_LN1, M, C);
    normalize(l, &p[LN1_GAIN], s->t[S_LN1], x, s, S_STATS1);
    saved_tensor(s, S_MIDDLE, M, C);
    Tensor middle = s->t[S_MIDDLE];
    tensor_parallel_attention_forward(l->comm, &heads, &p[QKV_W], middle, s->t[S_LN1], s); // 1
    op_dropout(middle, middle, layer_dropout(l, b, SITE_MIDDLE)); // the same mask on every rank
    op_add(middle, x, middle);

    saved_tensor(s, S_LN2, M, C);
    normalize(l, &p[LN2_GAIN], s->t[S_LN2], middle, s, S_STATS2);
    tensor_parallel_mlp_forward(l->comm, &p[FC_W], y, s->t[S_LN2], s); // 2
    op_dropout(y, y, layer_dropout(l, b, SITE_OUT));
    op_add(y, middle, y);
}

static void block_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Param *p = l->units[0]->params;
    AttentionHeads heads = layer_heads(l, b);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_like(&scratch, x);
    Tensor dnorm = tensor_like(&scratch, x);
    Tensor dmiddle = tensor_like(&scratch, x);

    op_dropout(d, dy, layer_dropout(l, b, SITE_OUT));
    tensor_parallel_mlp_backward(l->comm, &p[FC_W], dnorm, s->t[S_LN2], d, s); // 3
    // All-reduce 3 has made dnorm whole. So the norm's gradients are the same on every rank, and
    // need no sum.
    norm_gradients(&p[LN2_GAIN], &p[LN2_BIAS], s->t[S_MIDDLE], s->t[S_STATS2], dnorm);
    normalize_backward(dmiddle, s->t[S_MIDDLE], s->t[S_STATS2], p[LN2_GAIN].w, dnorm);
    op_add(dmiddle, dy, dmiddle); // the residual path: dy is whole already

    op_dropout(d, dmiddle, layer_dropout(l, b, SITE_MIDDLE));
    tensor_parallel_attention_backward(l->comm, &heads, &p[QKV_W], dnorm, s->t[S_LN1], d, s); // 4
    norm_gradients(&p[LN1_GAIN], &p[LN1_BIAS], x, s->t[S_STATS1], dnorm);
    normalize_backward(dx, x, s->t[S_STATS1], p[LN1_GAIN].w, dnorm);
    op_add(dx, dmiddle, dx);
    arena_free(&scratch);
}

const LayerKind tensor_parallel_block = {
    .name = "tensor-parallel block",
    .output = hidden_shape,
    .forward = block_forward,
    .backward = block_backward,
    .shed = block_shed,
    .rebuild = block_rebuild,
};

// ---------------------------------------------------------------- the cut of a described model

static void cut_block(Layer *l, Comm *tp) {
    const ModelConfig *c = l->config;
    Param *p = l->units[0]->params;
    Range keys = shard_range(config_kv_heads(c), tp->size, tp->rank);
    size_t ratio = config_head_ratio(c); // GPT-2: 1
    l->heads = (Range){ keys.lo * ratio, keys.hi * ratio };
    tensor_parallel_attention_cut(&p[QKV_W], l->heads, c->width / c->heads);
    tensor_parallel_mlp_cut(&p[FC_W], shard_range(block_hidden(c), tp->size, tp->rank));
    l->kind = &tensor_parallel_block;
}
// Sets the layer's vocabulary entries and kind, and cuts `table` by rows. `table` is wte, an untied
// head's own table, or NULL.
static void cut_vocabulary(Layer *l, Param *table, Comm *tp, const LayerKind *kind) {
    l->vocab = shard_range(l->config->vocab, tp->size, tp->rank);
    if (table) row_parallel_cut(table, l->vocab); // the loss has no parameters
    l->kind = kind;
}

void tensor_parallel(Model *m, Comm *tp) {
    // More ranks than heads of key and value would have to copy some of these heads. The gradient
    // norm would then count a copied element several times, and the gradient of this element would
    // need a sum over the copies.
    REQUIRE(tp->size <= config_kv_heads(&m->config) || tp->size > m->config.heads,
            "%zu tensor-parallel ranks need as many heads of key and value; the model has %zu: "
            "choose %zu ranks or fewer, or more --kv-heads",
            tp->size, config_kv_heads(&m->config), config_kv_heads(&m->config));
    REQUIRE(tp->size <= m->config.heads,
            "%zu tensor-parallel ranks need as many heads; the model "
            "has %zu: choose %zu ranks or fewer, or more --heads",
            tp->size, m->config.heads, m->config.heads);
    REQUIRE(tp->size <= block_hidden(&m->config),
            "%zu tensor-parallel ranks need as many features of the MLP; the model has %zu: "
            "choose %zu ranks or fewer, or a larger --ffn",
            tp->size, block_hidden(&m->config), block_hidden(&m->config));
    REQUIRE(tp->size <= m->config.vocab,
            "%zu tensor-parallel ranks need as many entries; the vocabulary has %zu: choose %zu "
            "ranks or fewer",
            tp->size, m->config.vocab, m->config.vocab);
    for (size_t i = 0; i < m->n_layers; i++) {
        const Layer *l = &m->layers[i];
        if (l->inner || m->w.data)
            fault("tensor_parallel() of layer %zu (%s%s): it cuts plain layers, before recompute() "
                  "and before weights are allocated",
                  l->number, l->kind->name, m->w.data ? ", with weights" : "");
    }
    for (size_t i = 0; i < m->n_layers; i++) {
        Layer *l = &m->layers[i];
        l->comm = tp;
        if (l->kind == &layer_embedding)
            cut_vocabulary(l, &l->units[0]->params[0], tp, &tensor_parallel_embedding);
        else if (l->kind == &layer_head)
            cut_vocabulary(l, &l->units[1]->params[0], tp, &tensor_parallel_head);
        else if (l->kind == &layer_loss) cut_vocabulary(l, NULL, tp, &tensor_parallel_loss);
        else cut_block(l, tp);
    }
    // model_grad_norm sums squares over the ranks, one double per tensor. All parts of a cut tensor
    // enter the sum. A whole tensor has the same gradient on every rank, so only rank 0's copy
    // enters.
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params; k++) {
            Param *p = &m->units[i].params[k];
            p->in_norm = !param_is_whole(p) || tp->rank == 0;
        }
}
