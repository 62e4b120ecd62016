// ranks: 4
// level: core
// question: If all replicas make the same update, why should each of them keep the whole optimizer state?
// vary: layers 1|3, width 18|21|24, context 7..12, vocab 40..60
//
// ZeRO stage 1 (Rajbhandari et al. 2020, section 5.1). Every rank holds all weights and all gradients, as in data
// parallelism, but AdamW's m and v only for its part: shard_range of the flat elements of each unit (an embedding
// table, a block, the last norm). So the all-reduce comes apart into its two halves, with the update between them:
//
//     all-reduce       =  reduce-scatter                      +  all-gather
//     data parallel:      sum of gradients, everywhere,          then everybody updates everything
//     ZeRO-1:             sum of MY part of the gradients,  I update my part,  all-gather of weights
//
// In the comments below a unit has `size` elements, and N ranks have a replica of it: u->replicas, which is dp here.
//
// Left out: 16-bit weights with an fp32 master copy, where the saving is larger (01_by_hand has the table).
#include "06_zero/experiments/zero_page.h"
#include "06_zero/zero.h"

// ================================ the technique ================================

// Every rank: w [size] and g [size] whole. It owns part r of N of every unit: own_w and own_g [size/N] are views of
// that part. optimizer_allocate() then gives m and v [size/N] to what is owned, and optimizer_step() updates that.
void zero1_allocate(Model *m, Comm *dp) {
    model_replicas(m, dp);
    model_allocate(m);
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;                  // the head's use of wte: the same weights
        u->own = shard_range(u->size, u->replicas->size, u->replicas->rank);
        u->own_w = tensor_flat_range(u->w, u->own.lo, u->own.hi);
        u->own_g = tensor_flat_range(u->g, u->own.lo, u->own.hi);
    }
}

// Once a step, after the last backward. Outside my part g keeps what this rank alone has computed: nobody reads it.
void zero1_reduce(Model *m) {
    // EXERCISE 06.02a (3 points): reduce the gradients. Every unit of the model has this rank's own gradient in g,
    // whole. Afterwards own_g, a view of my part of g, holds the sum over the ranks of u->replicas. A unit that is tied
    // to another (tied_to) has nothing of its own. One collective a unit, which gives every rank its own part only.
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;                  // its gradient has been added to the embedding's
        comm_reduce_scatter(u->replicas, u->own_g, u->g);  // own_g [size/N] <- sum of g [size]; a rank sends (N-1)/N
    }
    // END
}

// Once a step, after the update: every rank gets the parts that the others have updated.
void zero1_gather(Model *m) {
    // EXERCISE 06.02b (2 points): gather the weights. In every unit own_w, a view of my part of w, has been updated;
    // the rest of w is old. Afterwards w is the same on all ranks of u->replicas. One collective a unit; tied units as
    // above.
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;
        comm_all_gather(u->replicas, u->w, u->own_w);      // w [size] <- own_w [size/N] of all; a rank sends (N-1)/N
    }
    // END
}

// One step on this rank's micro-batches. Each rank sends 2 (N-1)/N of the model, however many micro-batches there are,
// as in data parallelism.
static StepResult zero1_step(void *comm, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    Comm *dp = comm;
    double loss = 0;
    model_zero_gradients(m);
    for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(m, &mine[k]);     // nothing is sent
    model_fold_tied(m);                            // on whole local gradients: before anything is reduced
    zero1_reduce(m);                               // reduce-scatter of each unit

    double norm = model_grad_norm(m, dp);          // of the elements I own; all-reduce of a double for each tensor
    optimizer_step(o, m, clip_factor(norm, t->clip));      // own_w, with own_g and my m and v
    zero1_gather(m);                               // all-gather of each unit
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * mine[0].token_weight, norm };
}

// ================================ the experiment ================================

// C = 15 and T = 11 make every unit odd: no part is equal, and parts cut through tensors with and without weight decay.
static const ModelConfig tiny = { .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1 };

static void zero1(Run *run) {
    static const ZeroLesson lesson = { "ZeRO-1", 1, zero1_allocate, zero1_step, zero1_costs, NULL };
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Training t = zero_training(run, dp, &tiny);

    t.optimizer = sgd(0.1);
    zero_compare(run, dp, &lesson, t, "SGD", every_bit(run));
    t.clip = 0.5;                                  // below every norm: each step is clipped
    // The squares of the norm are added in another order when they are cut, and clipping multiplies by a factor that
    // comes from the norm.
    zero_compare(run, dp, &lesson, t, "SGD, clipped at 0.5", LIMIT_ROUNDING);
    t.clip = 0;
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;                // for matrices; a part may hold elements of both kinds
    t.micro_batches = option_size(run, "micro-batches");
    t.recorded = true;
    zero_compare(run, dp, &lesson, t, "AdamW, weight decay 0.1", every_bit(run));
    zero_page(run, dp, &lesson, t);
    comm_free(dp);
}

static const Option options[] = {
    { "batch", "N", "11", "sequences of all ranks together in a step" },
    { "micro-batches", "N", "3", "micro-batches of each rank, in the training whose costs are looked at" },
    { "steps", "N", "3", "training steps" },
    { "dropout", "X", "0.1", "probability of dropping an element" },
    { "link", "NAME[,NAME]", "slow", NULL },
    {0},
};
EXPERIMENT(zero1, options);
