// ranks: 4
// level: core
// question: Whose gradients must a rank keep, and for how long?
// vary: layers 1|3, width 18|21|24, context 7..12, vocab 40..60
//
// ZeRO stage 2 (Rajbhandari et al. 2020, section 5.2). Only the owner of a part needs the sum of its gradients. So a
// unit's whole gradient exists on a rank just while the backward pass of its layer runs: it is reduce-scattered at once
// and dropped (backward_and_reduce: a layer around a layer). Between layers a rank holds its own parts, already summed
// over all ranks.
//
//     backward of a layer:   allocate whole g . compute . reduce-scatter g . add my part to own_g . drop g
//
// The price: with m micro-batches the reduction happens m times. The embedding is the exception: both ends of the
// backward pass add to it, so its gradients (two, one a use) stay whole for the step and are reduced once.
//
// Left out: the reduction of one layer while the backward pass of the next runs (chapter 01's overlap); 16-bit
// gradients.
#include "06_zero/experiments/zero_page.h"
#include "06_zero/zero.h"

// ================================ the technique ================================

// wte, or, in a pipeline, the last stage's copy of it: a tensor that two layers use.
bool zero2_stays_whole(const Unit *u) { return u->params[0].number == 0; }

// ---------------------------------------------------------------- a gradient lives for one layer's backward

void zero2_allocate_gradient(Unit *u, Arena *a) {
    unit_attach_gradients(u, tensor_new(a, 1, u->size));                   // g [size]
    for (size_t i = 0; i < u->n_params; i++) u->params[i].gradient_empty = true;    // it starts at zero
}

// own_g += my part of the sum of g over ranks. The first micro-batch's is written in place.
static void reduce_gradient(Unit *u, Comm *dp) {
    // EXERCISE 06.03b (3 points): add to my part. g [size] is whole on each rank, own_g [size/N] is what earlier
    // micro-batches have left, or nothing yet (own_gradient_empty): then the sum is written there and needs no other
    // memory. Otherwise it arrives beside own_g, in a tensor of MEM_COMMUNICATION that is freed here, and op_add adds
    // it. One collective. range_size(u->own) is the length of my part.
    if (u->own_gradient_empty) {
        comm_reduce_scatter(dp, u->own_g, u->g);   // own_g [size/N] <- sum of g [size]; each rank sends (N-1)/N of it
    } else {
        Arena part = arena(MEM_COMMUNICATION);
        Tensor arrived = tensor_new(&part, 1, range_size(u->own));
        comm_reduce_scatter(dp, arrived, u->g);    // the same, beside own_g
        op_add(u->own_g, u->own_g, arrived);
        arena_free(&part);
    }
    u->own_gradient_empty = false;
    // END
}

// A layer's own backward, or only its gradients of weights, and their reduction. Every rank must come here for every
// micro-batch, an empty one, too.
static void backward_and_reduce(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s, bool weights_only) {
    // EXERCISE 06.03a (4 points): backward, with whole gradients for this layer alone. Each unit of the layer gets room
    // for its whole gradient in an arena of MEM_COMMUNICATION (zero2_allocate_gradient); layer_backward of l->inner
    // fills it (layer_backward_weights where weights_only: dx has been computed), and unit_partial_sums completes it;
    // reduce_gradient adds my part of the sum over u->replicas to own_g; then the unit has no whole gradient any more
    // (unit_attach_gradients with (Tensor){0}) and the arena is freed. Units of which zero2_stays_whole() is true are
    // left alone: zero2_begin and zero2_reduce take care of them.
    Arena in_flight = arena(MEM_COMMUNICATION);
    for (size_t i = 0; i < l->n_units; i++)
        if (!zero2_stays_whole(l->units[i])) zero2_allocate_gradient(l->units[i], &in_flight);
    if (weights_only) layer_backward_weights(l->inner, b, x, s);
    else layer_backward(l->inner, b, x, dy, dx, s);
    for (size_t i = 0; i < l->n_units; i++) {
        Unit *u = l->units[i];
        if (zero2_stays_whole(u)) continue;
        unit_partial_sums(u);                      // nothing is sent here: lesson 03.07 has gradients that need it
        reduce_gradient(u, u->replicas);
        unit_attach_gradients(u, (Tensor){0});     // the whole gradient is dropped
    }
    arena_free(&in_flight);
    // END
}
void zero2_backward_and_reduce(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    backward_and_reduce(l, b, x, dy, dx, s, false);
}
static void forward_as_it_is(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    layer_forward(l->inner, b, x, y, s);
}

// Where a pipeline splits the backward in two (chapter 05, zero bubble): dx first, which needs no gradients of weights;
// those later.
static void backward_inputs_as_they_are(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    layer_backward_inputs(l->inner, b, x, dy, dx, s);
}
void zero2_backward_weights_and_reduce(Layer *l, const Batch *b, Tensor x, Saved *s) {
    backward_and_reduce(l, b, x, (Tensor){0}, (Tensor){0}, s, true);
}
static const LayerKind zero2_layer = {
    .name = "ZeRO-2 layer", .forward = forward_as_it_is, .backward = zero2_backward_and_reduce,
    .backward_inputs = backward_inputs_as_they_are, .backward_weights = zero2_backward_weights_and_reduce,
};

// ---------------------------------------------------------------- the model

// Every rank: w [size] whole, own_w a view of my part; gradients [size/N]. Every layer is wrapped.
void zero2_allocate(Model *m, Comm *dp) {
    model_replicas(m, dp);
    model_allocate_weights(m);
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;
        u->own = shard_range(u->size, u->replicas->size, u->replicas->rank);
        u->own_w = tensor_flat_range(u->w, u->own.lo, u->own.hi);
        u->own_g = tensor_new(&m->gradients, 1, range_size(u->own));
    }
    for (size_t i = 0; i < m->n_layers; i++) layer_wrap(&m->layers[i], &zero2_layer, dp);
}

// Before the first forward of a step: every own_g starts at zero, and wte has room for its whole gradients, one a use.
void zero2_begin(Model *m) {
    model_zero_gradients(m);
    for (size_t i = 0; i < m->n_units; i++)
        if (zero2_stays_whole(&m->units[i])) zero2_allocate_gradient(&m->units[i], &m->buffers);
}

// After the last backward. All other units have been reduced.
void zero2_reduce(Model *m) {
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (!zero2_stays_whole(u)) continue;
        if (!u->tied_to) reduce_gradient(u, u->replicas);  // the head's use of wte has been added to the embedding's
        unit_attach_gradients(u, (Tensor){0});
    }
    arena_free(&m->buffers);
}

// One step on this rank's m micro-batches. Each rank sends (m + 1) (N-1)/N of the model, and of wte 2 (N-1)/N.
static StepResult zero2_step(void *comm, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    Comm *dp = comm;
    double loss = 0;
    zero2_begin(m);
    for (size_t k = 0; k < t->micro_batches; k++)
        loss += model_forward_backward(m, &mine[k]);       // each layer's backward ends with a reduce-scatter
    model_fold_tied(m);                            // the head's gradient of wte + the embedding's, both whole
    zero2_reduce(m);                               // reduce-scatter of wte; all that is left are own parts

    double norm = model_grad_norm(m, dp);          // from here on as in stage 1
    optimizer_step(o, m, clip_factor(norm, t->clip));
    zero1_gather(m);                               // all-gather of each unit
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * mine[0].token_weight, norm };
}

// ================================ the experiment ================================

// Every unit is odd, so no part is equal. 11 sequences: with 4 ranks and 3 micro-batches, one micro-batch of rank 3 is
// empty, and must still take part in the reductions.
static const ModelConfig tiny = { .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1 };

static void zero2(Run *run) {
    static const ZeroLesson lesson = { "ZeRO-2", 2, zero2_allocate, zero2_step, zero2_costs, NULL };
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Training t = zero_training(run, dp, &tiny);

    t.optimizer = sgd(0.1);
    zero_compare(run, dp, &lesson, t, "SGD", every_bit(run));
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;
    t.recorded = true;
    zero_compare(run, dp, &lesson, t, "AdamW, weight decay 0.1", every_bit(run));

    // One micro-batch: both add the ranks' gradients in rank order, and the bits are equal. More: data parallelism adds
    // micro-batches on each rank and then the ranks; stage 2 adds the ranks for each micro-batch and then the
    // micro-batches. Same terms, other order. So it is with the squares of the norm, and with every clipped weight.
    t.micro_batches = option_size(run, "micro-batches");
    t.recorded = false;
    t.optimizer = sgd(0.1);
    t.clip = 0.5;                                  // below every norm: each step is clipped
    zero_compare(run, dp, &lesson, t, "SGD, clipped at 0.5", LIMIT_ROUNDING);
    t.clip = 0;
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;
    t.recorded = true;
    zero_compare(run, dp, &lesson, t, "AdamW, weight decay 0.1",
                 t.micro_batches == 1 ? every_bit(run) : LIMIT_ROUNDING);
    zero_page(run, dp, &lesson, t);
    comm_free(dp);
}

static const Option options[] = {
    { "batch", "N", "11", "sequences of all ranks together in a step" },
    { "micro-batches", "N", "3", "micro-batches of each rank, in the second half" },
    { "steps", "N", "3", "training steps" },
    { "dropout", "X", "0.1", "probability of dropping an element" },
    { "link", "NAME[,NAME]", "slow", NULL },
    {0},
};
EXPERIMENT(zero2, options);
