// test_context.c: compares every kind of context parallelism with the unsplit model. Each kind is
// combined with tensor and sequence parallelism, recomputation, split backwards and ZeRO.
// Recomputation and split backwards must give the bits of plain backwards.
//
// ranks: 4
// level: core
// question: Does context parallelism compose with tensor parallelism, ZeRO and recomputation?
#include <stdio.h>
#include "03_tensor_parallel/context_parallel.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "08_3d/zero_step.h"
#include "07_recompute/recompute.h"
#include "judge/frame/training.h"

enum { SEQUENCES = 3, STEPS = 3 };
// 2 and 4 ranks cannot divide the 17 positions of `small` evenly.
static const ModelConfig small = {
    .layers = 2, .width = 36, .heads = 9, .context = 17, .vocab = 47, .dropout = 0.1
};

typedef struct {
    Comm *world, *tp, *cp;
    size_t zero;
    bool halves;
} Groups;

// Runs forward and backward as a zero-bubble pipeline does: first all gradients of inputs, then all
// gradients of weights.
static double in_halves(Model *m, const Batch *b) {
    Arena outside = arena(MEM_WORKSPACE);
    Tensor y = tensor_shaped(&outside, layer_output(&m->layers[m->n_layers - 1], b)), none = { 0 };
    ActivationStash *f = walk_forward(m->layers, m->n_layers, b, none, y);
    double loss = tensor_sum(y);
    tensor_fill(y, (real)b->token_weight);
    walk_backward_inputs(m->layers, m->n_layers, b, f, y, none);
    walk_backward_weights(m->layers, m->n_layers, b, f);
    arena_free(&outside);
    return loss;
}

static StepResult step(void *groups, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    const Groups *g = groups;
    zero_begin(m, g->zero);
    double loss = (g->halves ? in_halves(m, b) : model_forward_backward(m, b)) * b->token_weight;
    model_partial_sums(m); // adds the partial sums of sequence parallelism over tp
    model_fold_tied(m);
    zero_reduce(m, g->zero); // sums over cp, whose ranks have the same parameters
    comm_all_reduce_doubles(g->cp, &loss, 1);
    double norm = model_grad_norm(m, g->zero ? g->world : g->tp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    zero_end(m, g->zero);
    return (StepResult){ loss, norm };
}

static Trajectory train(Run *run, const Training *whole, Groups *g, const AttentionKind *kind,
                        bool sequence, Recompute how) {
    Training t = *whole;
    Trajectory c = trajectory_new(run, &t);
    Model *m = model_describe(&t.model, model_layers(&t.model));
    if (sequence) sequence_parallel(m, g->tp, KEEP_SHARD);
    else tensor_parallel(m, g->tp);
    t.data.positions = context_parallel(m, g->cp, kind);
    recompute(m, how);
    zero_allocate(m, g->cp, g->zero);
    training_run(&c, m, &t, 1, 0, step, g);
    model_free(m);
    return c;
}

static void composed(Run *run, const Training *t, Trajectory *unsplit, Groups *g,
                     const AttentionKind *kind, const char *with) {
    bool sequence = g->tp->size > 1;
    char what[80];
    Trajectory none = train(run, t, g, kind, false, RECOMPUTE_NONE);
    snprintf(what, sizeof what, "split = unsplit, %s%s", kind->name, with);
    training_compare(run, what, &none, unsplit, LIMIT_ROUNDING);
    static const char *const way[] = { NULL, "selective", "full" };
    for (int how = RECOMPUTE_SELECTIVE; how <= RECOMPUTE_FULL; how++) {
        Trajectory again = train(run, t, g, kind, false, (Recompute)how);
        snprintf(what, sizeof what, "%s = none, %s%s", way[how], kind->name, with);
        training_compare(run, what, &again, &none, 0);
        trajectory_free(&again);
    }
    g->halves = true;
    Trajectory halves = train(run, t, g, kind, false, RECOMPUTE_NONE);
    g->halves = false;
    snprintf(what, sizeof what, "halves = whole, %s%s", kind->name, with);
    training_compare(run, what, &halves, &none, 0);
    trajectory_free(&halves);
    if (sequence) {
        Trajectory rows = train(run, t, g, kind, true, RECOMPUTE_SELECTIVE);
        snprintf(what, sizeof what, "sequence parallel = unsplit, %s%s", kind->name, with);
        training_compare(run, what, &rows, unsplit, LIMIT_ROUNDING);
        trajectory_free(&rows);
    }
    trajectory_free(&none);
}

static void context_test(Run *run) {
    static const AttentionKind *const kinds[] = { &ring_attention, &ring_attention_zigzag,
                                                  &ring_self_attention, &ulysses_attention };
    const size_t world = run->world->size, rank = run->world->rank, two = world % 2 ? 1 : 2;
    for (size_t tp = 1; tp <= two; tp++) { // neighbours share a tp group
        Groups g = { .world = run->world,
                     .tp = comm_split(run->world, rank / tp, rank, "tp"),
                     .cp = comm_split(run->world, rank % tp, rank, "cp") };
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            Training t = { .model = small,
                           .steps = STEPS,
                           .sequences = SEQUENCES,
                           .micro_batches = 1,
                           .clip = 0.5,
                           .optimizer = sgd(0.5) };
            t.model.seed = run->seed;
            if (i == 1) t.model.context = 130;
            t.data = data_synthetic(small.vocab, t.model.context, run->seed);
            Trajectory unsplit = training_unsplit(run, &t, 1);
            composed(run, &t, &unsplit, &g, kinds[i], tp > 1 ? ", tp 2" : "");
            g.zero = 1;
            Trajectory sharded = train(run, &t, &g, kinds[i], false, RECOMPUTE_NONE);
            char what[80];
            snprintf(what, sizeof what, "ZeRO-1 = unsplit, %s%s", kinds[i]->name,
                     tp > 1 ? ", tp 2" : "");
            training_compare(run, what, &sharded, &unsplit, LIMIT_ROUNDING);
            g.zero = 0;
            trajectory_free(&sharded);
            trajectory_free(&unsplit);
            data_free(&t.data);
        }
        comm_free(g.tp);
        comm_free(g.cp);
    }
}
EXPERIMENT(context_test, NULL);
