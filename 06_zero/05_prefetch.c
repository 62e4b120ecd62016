// ranks: 4
// level: extra
// question: Can ZeRO-3's communication hide behind its computation, and what memory does that cost?
// vary: layers 2..5, width 15|18|21, context 9..13, vocab 40..70
//
// 04_zero3.c waits for every unit that it gathers and for every gradient that it reduces. Here both are started early
// and waited for late (Zhao et al. 2023, PyTorch FSDP, section 3.3; FSDP's backward_prefetch=BACKWARD_PRE):
//
//     forward  of layer i:   start gather i+1 . wait for gather i . compute . drop weights i
//     backward of layer i:   start gather i-1 . wait for gather i . compute . drop weights i
//                            . wait for reduction i+1, drop gradient i+1 . start reduction i
//
// A rank runs one communication at a time, in the order of the starts, and the same order on all ranks: in backward the
// gather of layer i-1 is started before the reduction of layer i, because the next computation needs it and nobody
// waits for the reduction. The memory: one more gathered unit, and in backward one more whole gradient.
// --reshard-after-forward no keeps weights from forward to backward (FSDP's option of this name): 2m passes over the
// parameters instead of 3m, and all units in memory at the end of forward.
//
// Left out: to keep the last unit from forward to backward, where it is needed first (torchtitan does); FSDP's rate
// limiter, which bounds how many units are in flight where the host runs ahead of the device; two communications at a
// time.
#include "06_zero/experiments/prefetch_costs.h"
#include "06_zero/zero.h"
#include <stdlib.h>
#include <string.h>

// ================================ the technique ================================

// What a layer knows (Layer.technique): the one unit that is gathered for it (a block's, wpe, or the last norm; wte
// stays whole for a step), and its neighbours on this rank. NULL: the list of layers, or the chunk of a pipeline stage,
// ends here.
typedef struct Prefetched {
    Unit *unit;
    struct Prefetched *previous, *next;
    struct Prefetch *model;
    Tensor weights;                                // [size] from the start of the gather until they are dropped
    Arena in_flight;                               // MEM_COMMUNICATION
    Request *gather;                               // started, and not yet waited for
} Prefetched;
typedef struct Prefetch {
    bool reshard;
    Prefetched *reducing;                          // the layer whose gradient is on its way; NULL: none
    Request *reduction;
    Tensor arriving;                               // [size/N], to be added to own_g; {0}: the sum arrives in own_g
    Arena gradient;                                // its whole gradient [size], and `arriving`
    Prefetched layer[];
} Prefetch;

// ---------------------------------------------------------------- weights: gathered one layer ahead

// Nothing to do where the weights are there, or on their way.
static void start_gather(Prefetched *p) {
    if (!p || p->weights.data) return;
    p->in_flight = arena(MEM_COMMUNICATION);
    p->weights = tensor_new(&p->in_flight, 1, p->unit->size);
    // w [size] <- own_w [size/N] of all ranks; each rank sends (N-1)/N of the unit
    p->gather = comm_start_all_gather(p->unit->replicas, p->weights, p->unit->own_w);
}
static void wait_for_weights(Prefetched *p) {
    comm_wait(p->gather);                          // NULL where they were kept from forward
    p->gather = NULL;
    unit_attach_weights(p->unit, p->weights);
}
static void drop_weights(Prefetched *p) {
    p->weights = (Tensor){0};
    unit_attach_weights(p->unit, p->weights);
    arena_free(&p->in_flight);
}

// ---------------------------------------------------------------- gradients: reduced behind the next backward

// own_g += my part of the sum over ranks, as in stage 2, but started here and added in finish_reduction.
static void start_reduction(Prefetched *p, Arena gradient) {
    Prefetch *all = p->model;
    Unit *u = p->unit;
    unit_partial_sums(u);                          // nothing is sent here, as in stage 2
    all->reducing = p;
    all->gradient = gradient;                      // it must stay, and stay as it is, until the reduction is done
    all->arriving = u->own_gradient_empty ? (Tensor){0} : tensor_new(&all->gradient, 1, range_size(u->own));
    // own part [size/N] <- sum of g [size]; each rank sends (N-1)/N of it. Until the wait comm.c holds as much again.
    all->reduction = comm_start_reduce_scatter(u->replicas, u->own_gradient_empty ? u->own_g : all->arriving, u->g);
}
static void finish_reduction(Prefetch *all) {
    if (!all->reducing) return;
    Unit *u = all->reducing->unit;
    comm_wait(all->reduction);
    if (!u->own_gradient_empty) op_add(u->own_g, u->own_g, all->arriving);
    u->own_gradient_empty = false;
    unit_attach_gradients(u, (Tensor){0});
    arena_free(&all->gradient);
    all->reducing = NULL;
}

// ---------------------------------------------------------------- a layer around a layer

// The last reduction of the backward before this walk was started before any gather of this walk, and communications
// run in that order: to wait for it here, at the first layer, delays nobody.
static void prefetch_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Prefetched *p = l->technique;
    if (!p->previous) finish_reduction(p->model);
    start_gather(p);                               // the first layer; all others have been started by the one before
    start_gather(p->next);                         // on its way while this layer computes
    wait_for_weights(p);
    layer_forward(l->inner, b, x, y, s);
    if (p->model->reshard || !b->training) drop_weights(p);        // an evaluation has no backward to keep them for
}
static void prefetch_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Prefetched *p = l->technique;
    Arena gradient = arena(MEM_COMMUNICATION);
    // EXERCISE 06.05a (4 points): backward. Compute dx and the gradient of p's unit, which needs room (`gradient`) from
    // here to the end of its reduction. While this layer computes, the weights of the layer that computes next are
    // gathered, and the gradient of the one that computed last is reduced. No unit stays in memory without need, and
    // all ranks start and wait for the same communications in the same order, the oldest first.
    if (!p->next) finish_reduction(p->model);
    start_gather(p);                               // the last layer's; nothing if forward has kept them
    start_gather(p->previous);                     // backward walks down: the layer before is the next to compute
    wait_for_weights(p);
    zero2_allocate_gradient(p->unit, &gradient);   // g [size]
    layer_backward(l->inner, b, x, dy, dx, s);     // where blocks are recomputed, this runs their forward again, too
    drop_weights(p);
    finish_reduction(p->model);                    // the gradient of the layer above had all this backward's time
    start_reduction(p, gradient);
    // END
}
static const LayerKind prefetch_layer = { .name = "ZeRO-3 layer, prefetch", .forward = prefetch_forward,
                                          .backward = prefetch_backward };

// ---------------------------------------------------------------- the model

// The weights and gradients of stage 3, and another layer around each layer. Blocks must have been cut and wrapped
// before (tensor_parallel, recompute).
void prefetch_allocate(Model *m, Comm *dp, bool reshard) {
    if (m->size) fault("prefetch_allocate() of a model that is allocated: it takes model_allocate()'s place");
    zero3_allocate_parts(m, dp);
    size_t n = m->n_layers, k = 0;
    Prefetch *all = host_alloc(sizeof *all + n * sizeof *all->layer);
    all->reshard = reshard;
    for (size_t i = 0; i < n; i++) {
        Layer *l = &m->layers[i];
        if (l->n_units == 0) continue;             // the loss: nothing to gather
        Unit *gathered = l->units[0];              // of the embedding's wte and wpe, the head's ln_f and wte: not wte
        if (zero2_stays_whole(gathered)) gathered = l->units[1];
        bool neighbours = k && m->layers[i - 1].chunk == l->chunk;
        all->layer[k] = (Prefetched){ .unit = gathered, .model = all };
        if (neighbours) all->layer[k].previous = &all->layer[k - 1];
        if (neighbours) all->layer[k - 1].next = &all->layer[k];
        layer_wrap(l, &prefetch_layer, dp);
        l->technique = &all->layer[k++];
    }
}
static Prefetch *prefetch_of(Model *m) { return ((Prefetched *)m->layers[0].technique)->model; }
void prefetch_finish(Model *m) { finish_reduction(prefetch_of(m)); }
void prefetch_free(Model *m) { free(prefetch_of(m)); }

// One step, as zero3_step: what is started early and waited for late is inside the layers.
static StepResult prefetch_step(void *comm, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    Comm *dp = comm;
    double loss = 0;
    zero3_begin(m);                                // all-gather of wte; room for its two gradients
    for (size_t k = 0; k < t->micro_batches; k++)
        loss += model_forward_backward(m, &mine[k]);
    prefetch_finish(m);                            // of the first layer; no computation is left to hide it
    model_fold_tied(m);
    zero3_reduce(m);                               // reduce-scatter of wte; its gathered weights are dropped

    double norm = model_grad_norm(m, dp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * mine[0].token_weight, norm };
}

// ================================ the experiment ================================

// Four blocks: with two, those two are all units that are large, and to keep all of them costs nothing more.
static const ModelConfig tiny = { .layers = 4, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1 };

static void resharding(Model *m, Comm *dp) { prefetch_allocate(m, dp, true); }
static void keeping(Model *m, Comm *dp) { prefetch_allocate(m, dp, false); }

// The same training with prefetch and without: every bit.
static Trajectory train(Run *run, Comm *dp, const Training *t, void (*allocate)(Model *, Comm *), Step *step) {
    Trajectory c = trajectory_new(run, t);
    Model *m = model_describe(&t->model, model_layers(&t->model));
    allocate(m, dp);
    training_run(&c, m, t, dp->size, dp->rank, step, dp);
    if (allocate != zero3_allocate) prefetch_free(m);
    model_free(m);
    return c;
}
static void beside_zero3(Run *run, Comm *dp, const Training *t, void (*allocate)(Model *, Comm *)) {
    Trajectory got = train(run, dp, t, allocate, prefetch_step);
    Trajectory want = train(run, dp, t, zero3_allocate, zero3_step);
    training_compare_tensors(run, "prefetch = ZeRO-3", &got, &want, every_bit(run));
    training_compare_numbers(run, "prefetch = ZeRO-3", &got, &want, every_bit(run));
    trajectory_free(&got);
    trajectory_free(&want);
}

static void prefetch(Run *run) {
    bool reshard = strcmp(option_text(run, "reshard-after-forward"), "yes") == 0;
    const ZeroLesson lesson = { "ZeRO-3 with prefetch", 3, reshard ? resharding : keeping, prefetch_step,
                                reshard ? prefetch_costs : prefetch_costs_kept, prefetch_free };
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Training t = zero_training(run, dp, &tiny);

    t.optimizer = sgd(0.1);
    zero_compare(run, dp, &lesson, t, "SGD", every_bit(run));
    t.micro_batches = option_size(run, "micro-batches");
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;
    t.recorded = true;
    zero_compare(run, dp, &lesson, t, "AdamW, weight decay 0.1",
                 t.micro_batches == 1 ? every_bit(run) : LIMIT_ROUNDING);
    t.clip = 0.5;                                  // below every norm: each step is clipped
    t.recorded = false;
    beside_zero3(run, dp, &t, lesson.allocate);
    prefetch_page(run, dp, &lesson, t, reshard);
    comm_free(dp);
}

static const Option options[] = {
    { "reshard-after-forward", "yes|no", "yes", "drop weights after forward, and gather them again for backward" },
    { "batch", "N", "11", "sequences of all ranks together in a step" },
    { "micro-batches", "N", "3", "micro-batches of each rank, in the second half" },
    { "steps", "N", "3", "training steps" },
    { "dropout", "X", "0.1", "probability of dropping an element" },
    { "link", "NAME[,NAME]", "slow", NULL },
    {0},
};
EXPERIMENT(prefetch, options);
