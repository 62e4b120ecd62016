// ranks: 4
// level: core
// question: What tensor parallelism keeps whole on every rank, can it be cut too, without sending more?
// vary: SEQUENCES 3..5, MICRO_BATCHES 2..3, vocab 50..70
//
// In 06_transformer the matrices are cut, but norms, dropout and residual paths run on all M = B*T rows on every rank,
// and every rank keeps these activations. All three work row by row. So rank i takes rows shard_range(M, tp, i) of
// them, and only what lies between a column cut and a row cut sees all rows (Korthikanti et al. 2022, section 4.2.2):
//
//     norm: M/tp rows . all-gather . A by columns, GELU, B by rows: M rows . reduce-scatter . bias, dropout, + x: M/tp
//
// An all-reduce is a reduce-scatter and an all-gather. They stand at the two ends of the region now, and send the same
// bytes. Each rank has seen some rows: gradients of norms and of biases added after a sum are partial, and are added up
// once per step. Rows need not divide by tp. Left out: to overlap backward's second all-gather with the product for dX.
#include "03_tensor_parallel/tensor_parallel.h"
#include "03_tensor_parallel/experiments/costs.h"
#include "judge/frame/training.h"

// ================================ the technique ================================

// ---------------------------------------------------------------- the ends of a region in which all rows are there
// A call on M*C elements sends (tp-1) ceil(M/tp) C of them, half of an all-reduce. The paper's g is `enter`, g with a
// bar `leave`. Backward of enter: each rank used all rows for its own columns, so their gradient is a partial sum on
// every rank. Backward of leave: each rank added its part to every row, so it needs the gradient of all rows.
void sequence_enter(Comm *tp, Tensor whole, Tensor mine) { comm_all_gather_rows(tp, whole, mine); }
void sequence_enter_backward(Comm *tp, Tensor dmine, Tensor dpartial) { comm_reduce_scatter_rows(tp, dmine, dpartial); }
void sequence_leave(Comm *tp, Tensor mine, Tensor partial) { comm_reduce_scatter_rows(tp, mine, partial); }
void sequence_leave_backward(Comm *tp, Tensor dwhole, Tensor dmine) { comm_all_gather_rows(tp, dwhole, dmine); }

static Range my_rows(const Layer *l, const Batch *b) { return shard_range(b->B * b->T, l->comm->size, l->comm->rank); }
static Shape rows_shape(const Layer *l, const Batch *b) {                  // [M/tp, C]; a stage's messages, too
    return (Shape){ range_size(my_rows(l, b)), l->config->width };
}
static Dropout dropout_rows(const Layer *l, const Batch *b, int site) {
    Dropout d = layer_dropout(l, b, site);
    d.row0 = my_rows(l, b).lo;                             // else each rank would draw the masks of the first M/tp rows
    return d;
}

// The input of a column-parallel layer: my rows, which the norm writes, and all rows, which the product and the weight
// gradient read. One of the two is kept, in s->t[name]: my rows (backward gathers the rest again), or all.
typedef struct { Tensor mine, whole; } Input;
static bool keeps_whole(const Layer *l) {
    return l->kind == &sequence_parallel_block_whole || l->kind == &sequence_parallel_head_whole;
}
static Input input_new(const Layer *l, const Batch *b, Saved *s, int name, Arena *scratch) {
    Range rows = my_rows(l, b);
    size_t M = b->B * b->T, C = l->config->width;
    saved_tensor(s, name, keeps_whole(l) ? M : range_size(rows), C);
    if (keeps_whole(l)) return (Input){ tensor_row_range(s->t[name], rows.lo, rows.hi), s->t[name] };
    return (Input){ s->t[name], tensor_new(scratch, M, C) };
}
static Tensor input_again(const Layer *l, const Batch *b, const Saved *s, int name, Arena *scratch) {
    if (keeps_whole(l)) return s->t[name];
    Tensor whole = tensor_new(scratch, b->B * b->T, l->config->width);
    sequence_enter(l->comm, whole, s->t[name]);                            // all-gather, a second time
    return whole;
}

// ---------------------------------------------------------------- block: x + attention(norm(x)), then + mlp(norm(.))
// x, middle, y and their gradients are [M/tp, C]. Compare with 06_transformer.c: the all-reduces were in the functions
// of lessons 03 and 04; here their products stand, and an all-reduce is two calls. shed, rebuild: of chapter 07.
static void block_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Comm *tp = l->comm;
    Param *p = l->units[0]->params;
    TensorParallelHeads heads = layer_heads(l, b);
    size_t M = b->B * b->T, C = x.cols, F = p[FC_W].w.cols;                // F: of this rank, 4C/tp
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor partial = tensor_new(&scratch, M, C);                           // of all rows, summed over my columns

    Input norm = input_new(l, b, s, S_LN1, &scratch); saved_tensor(s, S_STATS1, x.rows, 2);
    op_layer_norm(norm.mine, s->t[S_STATS1], x, p[LN1_GAIN].w, p[LN1_BIAS].w);
    sequence_enter(tp, norm.whole, norm.mine);                             // all-gather: M*C elements
    saved_tensor(s, S_QKV, M, p[QKV_W].w.cols); saved_tensor(s, S_MIX, M, p[PROJ_W].w.rows);   // [M, 3C/tp], [M, C/tp]
    column_parallel_forward(s->t[S_QKV], norm.whole, &p[QKV_W], &p[QKV_B]);
    tensor_parallel_heads_forward(&heads, s);
    linear(partial, s->t[S_MIX], &p[PROJ_W]);
    saved_tensor(s, S_MIDDLE, x.rows, C);
    Tensor middle = s->t[S_MIDDLE];                                        // [M/tp, C]
    sequence_leave(tp, middle, partial);                                   // reduce-scatter: M*C elements
    op_add_bias(middle, middle, p[PROJ_B].w);                              // once: no other rank has these rows
    op_dropout(middle, middle, dropout_rows(l, b, SITE_MIDDLE));
    op_add(middle, x, middle);

    norm = input_new(l, b, s, S_LN2, &scratch); saved_tensor(s, S_STATS2, x.rows, 2);
    op_layer_norm(norm.mine, s->t[S_STATS2], middle, p[LN2_GAIN].w, p[LN2_BIAS].w);
    sequence_enter(tp, norm.whole, norm.mine);                             // all-gather: M*C elements
    saved_tensor(s, S_FC, M, F); saved_tensor(s, S_ACT, M, F);
    column_parallel_forward(s->t[S_FC], norm.whole, &p[FC_W], &p[FC_B]);
    op_gelu(s->t[S_ACT], s->t[S_FC]);
    linear(partial, s->t[S_ACT], &p[OUT_W]);
    sequence_leave(tp, y, partial);                                        // reduce-scatter: M*C elements
    op_add_bias(y, y, p[OUT_B].w);
    op_dropout(y, y, dropout_rows(l, b, SITE_OUT));
    op_add(y, middle, y);
    arena_free(&scratch);
}

static void block_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Comm *tp = l->comm;
    Param *p = l->units[0]->params;
    TensorParallelHeads heads = layer_heads(l, b);
    size_t M = b->B * b->T, C = x.cols;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_new(&scratch, x.rows, C), dnorm = tensor_new(&scratch, x.rows, C);       // of my rows
    Tensor dmiddle = tensor_new(&scratch, x.rows, C), dwhole = tensor_new(&scratch, M, C);     // of all rows
    Tensor dh = tensor_new(&scratch, M, s->t[S_FC].cols), dmix = tensor_new(&scratch, M, s->t[S_MIX].cols);
    Tensor dqkv = tensor_new(&scratch, M, s->t[S_QKV].cols);

    // EXERCISE 03.07a (5 points): back through the MLP half. dy [M/tp, C] has my rows; d and dnorm [M/tp, C], dwhole
    // [M, C] and dh [M, 4C/tp] are there to be written, dmiddle [M/tp, C] is the result: the gradient of S_MIDDLE, the
    // residual path included. Add all gradients of LN2, FC and OUT: linear_gradients (bias NULL: of the weights alone),
    // bias_gradient of OUT_B, norm_gradients. S_ACT and S_FC were kept of all rows; input_again() has the input of FC.
    op_dropout(d, dy, dropout_rows(l, b, SITE_OUT));
    bias_gradient(&p[OUT_B], d);                                           // of my rows: partial
    sequence_leave_backward(tp, dwhole, d);                                // all-gather: M*C elements
    linear_gradients(&p[OUT_W], NULL, s->t[S_ACT], dwhole);                // of all rows: finished
    op_matmul_nt(dh, dwhole, p[OUT_W].w);
    op_gelu_backward(dh, s->t[S_FC], dh);
    linear_gradients(&p[FC_W], &p[FC_B], input_again(l, b, s, S_LN2, &scratch), dh);           // all-gather: M*C
    op_matmul_nt(dwhole, dh, p[FC_W].w);                                   // a partial sum, of my columns
    sequence_enter_backward(tp, dnorm, dwhole);                            // reduce-scatter: M*C elements
    norm_gradients(&p[LN2_GAIN], &p[LN2_BIAS], s->t[S_MIDDLE], s->t[S_STATS2], dnorm);         // of my rows: partial
    op_layer_norm_backward(dmiddle, s->t[S_MIDDLE], s->t[S_STATS2], p[LN2_GAIN].w, dnorm);
    op_add(dmiddle, dy, dmiddle);
    // END

    op_dropout(d, dmiddle, dropout_rows(l, b, SITE_MIDDLE));
    bias_gradient(&p[PROJ_B], d);
    sequence_leave_backward(tp, dwhole, d);                                // all-gather: M*C elements
    linear_gradients(&p[PROJ_W], NULL, s->t[S_MIX], dwhole);
    op_matmul_nt(dmix, dwhole, p[PROJ_W].w);
    tensor_parallel_heads_backward(&heads, dqkv, dmix, s);
    linear_gradients(&p[QKV_W], &p[QKV_B], input_again(l, b, s, S_LN1, &scratch), dqkv);       // all-gather: M*C
    op_matmul_nt(dwhole, dqkv, p[QKV_W].w);
    sequence_enter_backward(tp, dnorm, dwhole);                            // reduce-scatter: M*C elements
    norm_gradients(&p[LN1_GAIN], &p[LN1_BIAS], x, s->t[S_STATS1], dnorm);
    op_layer_norm_backward(dx, x, s->t[S_STATS1], p[LN1_GAIN].w, dnorm);
    op_add(dx, dmiddle, dx);
    arena_free(&scratch);
}

#define BLOCK(text) { .name = text, .output = rows_shape, .forward = block_forward, .backward = block_backward, \
                      .shed = block_shed, .rebuild = tensor_parallel_rebuild }
const LayerKind sequence_parallel_block = BLOCK("sequence-parallel block");
const LayerKind sequence_parallel_block_whole = BLOCK("sequence-parallel block that keeps gathered inputs");

// ---------------------------------------------------------------- the two ends of the model
// The lookup of my vocabulary entries, with zeros for the others', is a partial sum of all rows. Positions are added to
// my rows. In backward each rank gathers all rows for its entries, so the gradient of wpe comes out whole, equal on
// all. backward_inputs, backward_weights: of 05_pipeline_1f1b/06_zero_bubble.c, which runs the two halves apart.
static void embedding_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)x; (void)s;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor partial = tensor_new(&scratch, b->B * b->T, y.cols);
    op_embed_tokens(partial, l->units[0]->params[0].w, b->tokens, l->vocab.lo);
    sequence_leave(l->comm, y, partial);                                   // reduce-scatter: M*C elements
    op_add_positions(y, y, l->units[1]->params[0].w, b->position + my_rows(l, b).lo);  // after the sum: once
    op_dropout(y, y, dropout_rows(l, b, SITE_EMBEDDING));
    arena_free(&scratch);
}
static void embedding_weights(Layer *l, const Batch *b, Tensor x, Saved *s) {
    (void)x;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dwhole = tensor_new(&scratch, b->B * b->T, l->config->width);
    sequence_leave_backward(l->comm, dwhole, s->t[S_DY]);                  // all-gather: M*C elements
    embedding_gradients(l, b, dwhole);
    arena_free(&scratch);
}
static void embedding_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)dx;
    s->t[S_DY] = dy;
    embedding_weights(l, b, x, s);
}
const LayerKind sequence_parallel_embedding = {
    .name = "sequence-parallel embedding", .output = rows_shape, .forward = embedding_forward,
    .backward = embedding_backward, .backward_inputs = embedding_backward_inputs, .backward_weights = embedding_weights,
};

// The logits of all rows, of my vocabulary entries, are column-parallel; the loss stays lesson 05's.
static void head_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Param *p = l->units[0]->params, *wte = &l->units[1]->params[0];
    Arena scratch = arena(MEM_WORKSPACE);
    Input norm = input_new(l, b, s, S_LN, &scratch); saved_tensor(s, S_STATS, x.rows, 2);
    op_layer_norm(norm.mine, s->t[S_STATS], x, p[0].w, p[1].w);
    sequence_enter(l->comm, norm.whole, norm.mine);                        // all-gather: M*C elements
    op_matmul_nt(y, norm.whole, wte->w);
    arena_free(&scratch);
}
static void head_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Param *p = l->units[0]->params, *wte = &l->units[1]->params[0];
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dwhole = tensor_new(&scratch, dy.rows, dx.cols), dnorm = tensor_new(&scratch, dx.rows, dx.cols);
    linear_gradients(wte, NULL, dy, input_again(l, b, s, S_LN, &scratch)); // all-gather: M*C elements
    op_matmul(dwhole, dy, wte->w);
    sequence_enter_backward(l->comm, dnorm, dwhole);                       // reduce-scatter: M*C elements
    norm_gradients(&p[0], &p[1], x, s->t[S_STATS], dnorm);
    op_layer_norm_backward(dx, x, s->t[S_STATS], p[0].w, dnorm);
    arena_free(&scratch);
}
#define HEAD(text) { .name = text, .output = logits_shape, .input = rows_shape, .forward = head_forward, \
                     .backward = head_backward }
const LayerKind sequence_parallel_head = HEAD("sequence-parallel head");
const LayerKind sequence_parallel_head_whole = HEAD("sequence-parallel head that keeps its gathered input");

// ---------------------------------------------------------------- the model

// Who holds what of the parameters is as before. Gradients marked `partial` are each rank's, of its own rows:
// model_partial_sums adds them up over tp, once per step: 6C elements of a block, 2C of the last norm.
void sequence_parallel(Model *m, Comm *tp, KeptInput keep) {
    static const int of_rows[] = { LN1_GAIN, LN1_BIAS, PROJ_B, LN2_GAIN, LN2_BIAS, OUT_B };
    tensor_parallel(m, tp);
    for (size_t i = 0; i < m->n_layers; i++) {
        Layer *l = &m->layers[i];
        if (l->kind == &tensor_parallel_embedding) l->kind = &sequence_parallel_embedding;
        if (l->kind == &tensor_parallel_block) {
            l->kind = keep == KEEP_WHOLE ? &sequence_parallel_block_whole : &sequence_parallel_block;
            for (size_t k = 0; k < sizeof of_rows / sizeof *of_rows; k++) l->units[0]->params[of_rows[k]].partial = tp;
        }
        if (l->kind == &tensor_parallel_head) {
            l->kind = keep == KEEP_WHOLE ? &sequence_parallel_head_whole : &sequence_parallel_head;
            for (size_t k = 0; k < 2; k++) l->units[0]->params[k].partial = tp;
        }
    }
}

// ================================ the experiment ================================

enum { STEPS = 3, SEQUENCES = 3, MICRO_BATCHES = 2 };      // of 2 and 1 sequences: 8 rows, and 4
static const double max_norm = 0.5;                        // small enough that every step is clipped

static StepResult step(void *measured, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    SequenceMeasured *r = measured;
    Comm *tp = r->tp;
    double loss = 0;
    model_zero_gradients(m);
    comm_ledger_reset(tp);
    for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(m, &b[k]);
    r->layers = sequence_sent(tp);
    comm_ledger_reset(tp);
    model_partial_sums(m);                                 // once per step: the norms' gradients, and two biases'
    r->partial = sequence_sent(tp);
    model_fold_tied(m);
    double norm = model_grad_norm(m, tp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss * b[0].token_weight, norm };
}

static SequenceMeasured train(Run *run, const Training *t, SequenceWay way, Trajectory *c) {
    SequenceMeasured r = { .tp = run->world };
    Model *m = model_describe(&t->model, model_layers(&t->model));
    if (way == TENSOR_ONLY) tensor_parallel(m, run->world);
    else sequence_parallel(m, run->world, way == SEQUENCE_WHOLE ? KEEP_WHOLE : KEEP_SHARD);
    model_allocate(m);
    training_run(c, m, t, 1, 0, step, &r);
    sequence_held(&r, m, t);
    model_free(m);
    return r;
}

static void sequence(Run *run) {
    ModelConfig c = { .layers = option_size(run, "layers"), .width = option_size(run, "width"),
                      .heads = option_size(run, "heads"), .context = option_size(run, "context"), .vocab = 61,
                      .dropout = option_real(run, "dropout"), .seed = run->seed };
    config_require(&c);
    Training t = { .model = c, .data = data_synthetic(c.vocab, c.context, run->seed), .steps = STEPS,
                   .sequences = SEQUENCES, .micro_batches = MICRO_BATCHES, .clip = max_norm,
                   .watched = MEM_ACTIVATIONS };
    for (size_t i = 0; i < 2; i++) {                       // SGD, then AdamW
        t.optimizer = i ? adamw(0.01) : sgd(0.5);
        t.recorded = i;
        Trajectory got[SEQUENCE_WAYS], unsplit = training_unsplit(run, &t, 1);
        for (SequenceWay way = 0; way < SEQUENCE_WAYS; way++) {
            got[way] = trajectory_new(run, &t);
            SequenceMeasured r = train(run, &t, way, &got[way]);
            if (i) sequence_costs(run, &t, way, &r);
        }
        Trajectory *tensor = &got[TENSOR_ONLY], *shard = &got[SEQUENCE_SHARD], *whole = &got[SEQUENCE_WHOLE];
        training_compare(run, "sequence-parallel = unsplit", shard, &unsplit, LIMIT_ROUNDING);
        training_compare(run, "kept whole = gathered again", whole, shard, 0);
        check_true(run, i ? "AdamW" : "SGD", "every step is clipped", trajectory_clipped(shard, max_norm));
        // Forward adds the same terms in the same order as an all-reduce; norms' gradients come in another one.
        check_numbers(run, "forward = tensor parallel's", "loss", shard->loss, tensor->loss, 1, every_bit(run));
        for (size_t way = 0; way < SEQUENCE_WAYS; way++) trajectory_free(&got[way]);
        trajectory_free(&unsplit);
    }
    sequence_results(run, &t);
    data_free(&t.data);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "27", "columns; a multiple of --heads" },
    { "heads", "N", "9", "attention heads; at least one a rank" },
    { "context", "N", "4", "positions of a sequence" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    {0},
};
EXPERIMENT(sequence, options);
