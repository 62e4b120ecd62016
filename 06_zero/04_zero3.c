// ranks: 4
// level: core
// question: How can a rank compute with weights that it does not hold?
// vary: layers 1|3, width 18|21|24, context 7..12, vocab 40..60
//
// ZeRO stage 3 (Rajbhandari et al. 2020, section 5.3); PyTorch's fully sharded data parallel (FSDP) with
// reshard_after_forward=True. A rank keeps 1/N of everything: weights, gradients, m and v. A unit's weights are
// gathered just before its layer runs, forward and backward, and dropped after it (gather_and_forward and
// gather_and_backward). At any time one block is whole; all others are in parts.
//
//     forward  of a unit:   all-gather weights . compute . drop
//     backward of a unit:   all-gather weights . compute . reduce-scatter gradient . drop both
//
// The tied embedding is needed at both ends of a step: it is gathered once, kept, and reduced once.
//
// FSDP's words: a "unit" is what one wrapped module gathers at a time; reshard_after_forward=False keeps the weights
// from forward to backward: per micro-batch each rank then sends 2 (N-1)/N of the model, not 3, and has stage 2's
// memory. The reduction of gradients is stage 2's, and stands in 03_zero2.c. Left out: prefetch, which is
// 05_prefetch.c's: the next unit is gathered while this one computes, so two units are whole at a time; 16-bit
// weights; offloading parts to host memory.
#include "06_zero/experiments/zero_page.h"
#include "06_zero/zero.h"

// ================================ the technique ================================

// ---------------------------------------------------------------- weights live for one layer's forward or backward

static void gather_unit(Unit *u, Arena *a) {
    Tensor w = tensor_new(a, 1, u->size);
    // EXERCISE 06.04a (1 point): gather the weights of a unit. Each rank of u->replicas has its part, own_w [size/N];
    // w [size] gets all of them.
    comm_all_gather(u->replicas, w, u->own_w);     // w [size] <- own_w [size/N] of all; each rank sends (N-1)/N of it
    // END
    unit_attach_weights(u, w);
}
static void gather(Layer *l, Arena *in_flight) {
    for (size_t i = 0; i < l->n_units; i++)
        if (!zero2_stays_whole(l->units[i])) gather_unit(l->units[i], in_flight);
}
static void drop(Layer *l, Arena *in_flight) {
    for (size_t i = 0; i < l->n_units; i++)
        if (!zero2_stays_whole(l->units[i])) unit_attach_weights(l->units[i], (Tensor){0});
    arena_free(in_flight);
}

static void gather_and_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Arena in_flight = arena(MEM_COMMUNICATION);
    gather(l, &in_flight);
    layer_forward(l->inner, b, x, y, s);
    drop(l, &in_flight);
}
static void gather_and_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    // EXERCISE 06.04b (2 points): backward of a layer whose weights are in parts. The forward has dropped what it
    // gathered. The weights must be whole while the layer's backward runs, in an arena of MEM_COMMUNICATION. Its
    // gradients are reduced as in stage 2, by zero2_backward_and_reduce, which calls the layer's own backward.
    // Afterwards nothing whole is left. Calls: gather, drop and that one.
    Arena in_flight = arena(MEM_COMMUNICATION);
    gather(l, &in_flight);
    zero2_backward_and_reduce(l, b, x, dy, dx, s);         // own_g [size/N] += my part of sum of g; sends (N-1)/N
    drop(l, &in_flight);
    // END
}
// In halves: weights are gathered for dx; their gradients do not read them.
static void gather_and_backward_inputs(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Arena in_flight = arena(MEM_COMMUNICATION);
    gather(l, &in_flight);
    layer_backward_inputs(l->inner, b, x, dy, dx, s);
    drop(l, &in_flight);
}
static const LayerKind zero3_layer = {
    .name = "ZeRO-3 layer", .forward = gather_and_forward, .backward = gather_and_backward,
    .backward_inputs = gather_and_backward_inputs, .backward_weights = zero2_backward_weights_and_reduce,
};

// ---------------------------------------------------------------- the model

// Every rank: weights [size/N], gradients [size/N], no more: no rank ever holds a whole model.
void zero3_allocate_parts(Model *m, Comm *dp) {
    model_replicas(m, dp);
    model_measure(m);
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;
        u->own = shard_range(u->size, u->replicas->size, u->replicas->rank);
        u->own_w = tensor_new(&m->parameters, 1, range_size(u->own));
        u->own_g = tensor_new(&m->gradients, 1, range_size(u->own));
        unit_initialize(u, u->own_w, u->own, m->config.seed);
    }
}
void zero3_allocate(Model *m, Comm *dp) {
    zero3_allocate_parts(m, dp);
    for (size_t i = 0; i < m->n_layers; i++) layer_wrap(&m->layers[i], &zero3_layer, dp);
}

// The tied embedding, gathered once a step, before the first forward, and kept. m->gathered holds its weights alone:
// zero2_reduce frees m->buffers, with its gradients, while the weights are still in use.
void zero3_gather_wte(Model *m) {
    for (size_t i = 0; i < m->n_units; i++)
        if (zero2_stays_whole(&m->units[i]) && !m->units[i].tied_to) gather_unit(&m->units[i], &m->gathered);
}
void zero3_drop_wte(Model *m) {
    for (size_t i = 0; i < m->n_units; i++)
        if (zero2_stays_whole(&m->units[i])) unit_attach_weights(&m->units[i], (Tensor){0});
    arena_free(&m->gathered);
}

void zero3_begin(Model *m) {
    zero3_gather_wte(m);
    zero2_begin(m);
}
void zero3_reduce(Model *m) {
    zero2_reduce(m);                               // reduce-scatter of wte
    zero3_drop_wte(m);
}

// One step on this rank's m micro-batches. Each rank sends 3m (N-1)/N of all units but wte, of wte 2 (N-1)/N.
StepResult zero3_step(void *comm, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    Comm *dp = comm;
    double loss = 0;
    zero3_begin(m);                                // all-gather of wte; room for its two gradients
    for (size_t k = 0; k < t->micro_batches; k++)
        loss += model_forward_backward(m, &mine[k]);       // gather, compute, drop; gather, compute, reduce, drop
    model_fold_tied(m);
    zero3_reduce(m);                               // reduce-scatter of wte; its gathered weights are dropped

    double norm = model_grad_norm(m, dp);          // all-reduce of a double for each tensor: sums of squares
    optimizer_step(o, m, clip_factor(norm, t->clip));      // nothing to gather after it: the next forward does
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * mine[0].token_weight, norm };
}

// ---------------------------------------------------------------- all stages behind one set of functions

// For the trainer of chapter 08. Stage 0 is data parallelism, as in DeepSpeed.
void zero_allocate(Model *m, Comm *dp, size_t stage) {
    REQUIRE(stage <= 3, "ZeRO has stages 0, 1, 2 and 3, not %zu", stage);
    if (m->size) fault("zero_allocate() of a model that is allocated: it takes model_allocate()'s place");
    if (stage == 0) {
        model_replicas(m, dp);
        model_allocate(m);
    }
    if (stage == 1) zero1_allocate(m, dp);
    if (stage == 2) zero2_allocate(m, dp);
    if (stage == 3) zero3_allocate(m, dp);
}
// Stage 0. g <- the sum over the replicas of each unit. Units that lie side by side and have the same replicas share
// one all-reduce; where dp has all of them it is the one of data_parallel_all_reduce (chapter 01).
static void all_reduce_units(Model *m) {
    for (size_t i = 0, end, lo = 0, hi = 0; i < m->n_units; i = end, lo = hi) {
        Comm *replicas = m->units[i].replicas;
        for (end = i; end < m->n_units && m->units[end].replicas == replicas; end++)
            if (!m->units[end].tied_to) hi += m->units[end].size;
        if (hi > lo) comm_all_reduce(replicas, tensor_flat_range(m->g, lo, hi));
    }
}
void zero_begin(Model *m, size_t stage) {
    if (stage < 2) model_zero_gradients(m);
    if (stage == 2) zero2_begin(m);
    if (stage == 3) zero3_begin(m);
}
void zero_reduce(Model *m, size_t stage) {
    if (stage == 0) all_reduce_units(m);
    if (stage == 1) zero1_reduce(m);
    if (stage == 2) zero2_reduce(m);
    if (stage == 3) zero3_reduce(m);
}
void zero_end(Model *m, size_t stage) {
    if (stage == 1 || stage == 2) zero1_gather(m);
}
void zero_evaluation_begin(Model *m, size_t stage) {
    if (stage == 3) zero3_gather_wte(m);
}
void zero_evaluation_end(Model *m, size_t stage) {
    if (stage == 3) zero3_drop_wte(m);
}

// ================================ the experiment ================================

static const ModelConfig tiny = { .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1 };

static void zero3(Run *run) {
    static const ZeroLesson lesson = { "ZeRO-3", 3, zero3_allocate, zero3_step, zero3_costs, NULL };
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Training t = zero_training(run, dp, &tiny);

    t.optimizer = sgd(0.1);
    zero_compare(run, dp, &lesson, t, "SGD", every_bit(run));
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;
    t.recorded = true;
    zero_compare(run, dp, &lesson, t, "AdamW, weight decay 0.1", every_bit(run));

    // Gathered weights are moved data and change no bit. What is added in which order is as in stage 2.
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
    zero_check_stages(run, dp, t);
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
EXPERIMENT(zero3, options);
