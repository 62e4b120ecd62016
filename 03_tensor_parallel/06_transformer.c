// ranks: 4
// level: core
// question: Does a GPT whose every matrix is cut train like the whole one, and what does its communication cost?
//
// tensor_parallel() puts lessons 02 to 05 together: embedding and head by vocabulary entries, attention by heads, the
// MLP by hidden columns; norms, row-cut biases and positions whole on every rank. Every rank runs every layer on every
// token, with its part of each matrix. Compare the block here with the unsplit one of common/model/layer.c. Here it
// trains, with dropout, unequal token counts and clipping, three steps under SGD and three under AdamW. 9 heads over 4
// ranks are 3, 2, 2, 2; 61 vocabulary entries 16, 15, 15, 15.
#include "03_tensor_parallel/tensor_parallel.h"
#include "03_tensor_parallel/experiments/costs.h"
#include "judge/frame/training.h"

// ================================ the technique ================================
// Four all-reduces of [B*T, C] per block and micro-batch: attention's and the MLP's y in forward (g), their dx in
// backward (f). Two more for the whole model, the embedding's y and the head's dx, and three of [B*T, 1] in the loss.

// ---------------------------------------------------------------- block: x + attention(norm(x)), then + mlp(norm(.))

static void block_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Param *p = l->units[0]->params;
    TensorParallelHeads heads = layer_heads(l, b);
    size_t M = b->B * b->T, C = l->config->width;

    saved_tensor(s, S_LN1, M, C); saved_tensor(s, S_STATS1, M, 2);         // whole on every rank
    op_layer_norm(s->t[S_LN1], s->t[S_STATS1], x, p[LN1_GAIN].w, p[LN1_BIAS].w);
    saved_tensor(s, S_MIDDLE, M, C);
    Tensor middle = s->t[S_MIDDLE];
    tensor_parallel_attention_forward(l->comm, &heads, &p[QKV_W], middle, s->t[S_LN1], s);     // all-reduce: B*T*C
    op_dropout(middle, middle, layer_dropout(l, b, SITE_MIDDLE));          // the same mask on every rank
    op_add(middle, x, middle);

    saved_tensor(s, S_LN2, M, C); saved_tensor(s, S_STATS2, M, 2);
    op_layer_norm(s->t[S_LN2], s->t[S_STATS2], middle, p[LN2_GAIN].w, p[LN2_BIAS].w);
    tensor_parallel_mlp_forward(l->comm, &p[FC_W], y, s->t[S_LN2], s);                         // all-reduce: B*T*C
    op_dropout(y, y, layer_dropout(l, b, SITE_OUT));
    op_add(y, middle, y);
}

static void block_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Param *p = l->units[0]->params;
    TensorParallelHeads heads = layer_heads(l, b);
    size_t M = b->B * b->T, C = l->config->width;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_new(&scratch, M, C), dnorm = tensor_new(&scratch, M, C), dmiddle = tensor_new(&scratch, M, C);

    op_dropout(d, dy, layer_dropout(l, b, SITE_OUT));
    tensor_parallel_mlp_backward(l->comm, &p[FC_W], dnorm, s->t[S_LN2], d, s);                 // all-reduce: B*T*C
    // After the all-reduce: dnorm is whole, so the norm's gradients are equal on every rank and need no sum.
    norm_gradients(&p[LN2_GAIN], &p[LN2_BIAS], s->t[S_MIDDLE], s->t[S_STATS2], dnorm);
    op_layer_norm_backward(dmiddle, s->t[S_MIDDLE], s->t[S_STATS2], p[LN2_GAIN].w, dnorm);
    op_add(dmiddle, dy, dmiddle);                                          // the residual path: already whole

    op_dropout(d, dmiddle, layer_dropout(l, b, SITE_MIDDLE));
    tensor_parallel_attention_backward(l->comm, &heads, &p[QKV_W], dnorm, s->t[S_LN1], d, s);  // all-reduce: B*T*C
    norm_gradients(&p[LN1_GAIN], &p[LN1_BIAS], x, s->t[S_STATS1], dnorm);
    op_layer_norm_backward(dx, x, s->t[S_STATS1], p[LN1_GAIN].w, dnorm);
    op_add(dx, dmiddle, dx);
    arena_free(&scratch);
}

// For selective recomputation, chapter 07.
void tensor_parallel_rebuild(Layer *l, const Batch *b, Saved *s) {
    TensorParallelHeads heads = layer_heads(l, b);
    tensor_parallel_probabilities(&heads, s);
}

const LayerKind tensor_parallel_block = { .name = "tensor-parallel block", .output = hidden_shape,
                                          .forward = block_forward, .backward = block_backward, .shed = block_shed,
                                          .rebuild = tensor_parallel_rebuild };

// ---------------------------------------------------------------- who holds what: the cut of a model's description

static void cut_block(Layer *l, Comm *tp) {
    const ModelConfig *c = l->config;
    Param *p = l->units[0]->params;
    l->heads = shard_range(c->heads, tp->size, tp->rank);
    tensor_parallel_attention_cut(&p[QKV_W], l->heads, c->width / c->heads);
    tensor_parallel_mlp_cut(&p[FC_W], shard_range(4 * c->width, tp->size, tp->rank));
    l->kind = &tensor_parallel_block;
}
static void cut_vocabulary(Layer *l, Unit *wte, Comm *tp, const LayerKind *kind) {
    l->vocab = shard_range(l->config->vocab, tp->size, tp->rank);
    row_parallel_cut(&wte->params[0], l->vocab);
    l->kind = kind;
}

static void cut_loss(Layer *l, Comm *tp) {                                // it has no parameters
    l->vocab = shard_range(l->config->vocab, tp->size, tp->rank);
    l->kind = &tensor_parallel_loss;
}

void tensor_parallel(Model *m, Comm *tp) {
    REQUIRE(tp->size <= m->config.heads, "%zu tensor-parallel ranks need as many heads; the model has %zu: choose "
            "%zu ranks or fewer, or more --heads", tp->size, m->config.heads, m->config.heads);
    REQUIRE(tp->size <= m->config.vocab, "%zu tensor-parallel ranks need as many entries; the vocabulary has %zu: "
            "choose %zu ranks or fewer", tp->size, m->config.vocab, m->config.vocab);
    for (size_t i = 0; i < m->n_layers; i++)
        if (m->layers[i].inner || m->w.data)
            fault("tensor_parallel() of layer %zu (%s%s): it cuts plain layers, before recompute() and before weights "
                  "are allocated", m->layers[i].number, m->layers[i].kind->name, m->w.data ? ", with weights" : "");
    for (size_t i = 0; i < m->n_layers; i++) {
        Layer *l = &m->layers[i];
        l->comm = tp;
        if (l->kind == &layer_embedding) cut_vocabulary(l, l->units[0], tp, &tensor_parallel_embedding);
        else if (l->kind == &layer_head) cut_vocabulary(l, l->units[1], tp, &tensor_parallel_head);
        else if (l->kind == &layer_loss) cut_loss(l, tp);
        else cut_block(l, tp);
    }
    // A whole tensor has the same gradient on every rank: only rank 0's copy enters the norm.
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params; k++)
            m->units[i].params[k].in_norm = !param_is_whole(&m->units[i].params[k]) || tp->rank == 0;
}

// ================================ the experiment ================================

enum { STEPS = 3, BATCH = 3 };
static const double max_norm = 0.5;                        // small enough that every step is clipped

typedef struct { Comm *tp; TransformerMeasured r; } Measuring;

static StepResult step(void *measuring, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Comm *tp = ((Measuring *)measuring)->tp;
    TransformerMeasured *r = &((Measuring *)measuring)->r;
    model_zero_gradients(m);
    comm_ledger_reset(tp);
    double loss = model_forward_backward(m, b) * b->token_weight;  // all communication is inside the layers
    r->calls = tp->ledger[COMM_ALL_REDUCE].calls;
    r->bytes = comm_bytes_sent(tp);
    model_fold_tied(m);                                            // my rows of wte, both uses: sends nothing
    // Each rank has squares of its parts of the cut tensors; whole tensors have the same gradient on every rank and are
    // counted on rank 0 only (Param.in_norm). One sum over the ranks gives the norm that the unsplit model finds.
    double norm = model_grad_norm(m, tp);
    r->norm_bytes = comm_bytes_sent(tp) - r->bytes;
    optimizer_step(o, m, clip_factor(norm, t->clip));              // each rank updates what it holds
    return (StepResult){ loss, norm };
}

// What differs from the unsplit training is one line.
static void train(void *measuring, const Training *t, Trajectory *c) {
    Measuring *x = measuring;
    TransformerMeasured *r = &x->r;
    Model *m = model_describe(&t->model, model_layers(&t->model));
    tensor_parallel(m, x->tp);                                     // cuts the parameters, replaces the layers
    model_allocate(m);                                             // initial values: by the place in the WHOLE tensor
    training_run(c, m, t, 1, 0, step, x);                          // every rank reads every token
    r->block = model_unit(m, "h.0.ln_1.weight")->size * sizeof(real);
    r->parameters = memory_now(MEM_PARAMETERS);
    r->gradients = memory_now(MEM_GRADIENTS);
    r->optimizer = memory_now(MEM_OPTIMIZER);
    r->activations = memory_peak(MEM_ACTIVATIONS);
    if (t->optimizer.kind == SGD) cost(c->run, "SGD's state", "bytes", 0, (double)r->optimizer);
    model_free(m);
}

static void transformer(Run *run) {
    ModelConfig c = { .layers = option_size(run, "layers"), .width = option_size(run, "width"),
                      .heads = option_size(run, "heads"), .context = 7, .vocab = 61,
                      .dropout = option_real(run, "dropout"), .seed = run->seed };
    config_require(&c);
    say_detail(run, "%zu parameters in %zu tensors", config_parameters(&c), config_tensors(&c));
    Training t = { .model = c, .data = data_synthetic(c.vocab, c.context, run->seed), .steps = STEPS,
                   .sequences = BATCH, .micro_batches = 1, .clip = max_norm, .recorded = true,
                   .watched = MEM_ACTIVATIONS };
    Measuring measuring = { .tp = run->world };
    training_both(run, "tensor-parallel = unsplit", &t, train, &measuring);        // SGD, then AdamW
    transformer_costs(run, &c, BATCH, &measuring.r);
    data_free(&t.data);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "27", "columns; a multiple of --heads" },
    { "heads", "N", "9", "attention heads; at least one a rank" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    {0},
};
EXPERIMENT(transformer, options);
