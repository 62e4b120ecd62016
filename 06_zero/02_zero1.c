// ranks: 4
// level: core
// question: If all replicas make the same update, why should each of them keep the whole optimizer state?
//
// ZeRO stage 1. Every rank holds all weights and all gradients, as in data parallelism, but AdamW's m and v only for
// its part: shard_range of the flat elements of each unit (an embedding table, a block, the last norm). So the
// all-reduce comes apart into its two halves, with the update between them:
//
//     all-reduce       =  reduce-scatter                      +  all-gather
//     data parallel:      sum of gradients, everywhere,          then everybody updates everything
//     ZeRO-1:             sum of MY part of the gradients,  I update my part,  all-gather of weights
//
// Left out: 16-bit weights with an fp32 master copy, where the saving is larger (01_by_hand has the table).
#include "06_zero/trainings.h"
#include "06_zero/zero.h"

// C = 15 and T = 11 make every unit odd: no part is equal, and parts cut through tensors with and without weight decay.
static const ModelConfig tiny = { .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1 };

// ---------------------------------------------------------------- the step, cut where ranks must talk

static StepResult step(void *comm, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    Comm *dp = comm;
    double loss = 0;
    comm_ledger_reset(dp);
    zero_begin(m);
    for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(m, &mine[k]);
    model_fold_tied(m);                            // on whole local gradients: before anything is reduced
    zero_reduce(m);                                // reduce-scatter of each unit: own_g <- my part of the sum

    double norm = model_grad_norm(m, dp);          // of the elements I own; a tensor may lie on several ranks
    optimizer_step(o, m, clip_factor(norm, t->clip));      // own_w, with my m and v
    zero_end(m);                                   // all-gather of each unit: w <- everybody's own_w
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * mine[0].token_weight, norm };
}

// ---------------------------------------------------------------- predictions, from sizes alone

static void costs(Run *run, Comm *dp, const Training *t) {
    size_t N = dp->size, m = t->micro_batches;
    Share wte = share_of_wte(&t->model, N, dp->rank), others = share_of_others(&t->model, N, dp->rank);
    // Psi: the parameters, the tied one once; about Psi / N, to the element; what a ring sends of the whole model, once
    double e = sizeof(real), all = (double)(wte.whole + others.whole), mine = (double)(wte.mine + others.mine);
    double second_use = (double)wte.whole, units = (double)(wte.units + others.units), unit = wte.bytes + others.bytes;
    cost_with(run, m, "weights: 4 bytes a parameter in fp32", "bytes", all * e, (double)memory_now(MEM_PARAMETERS));
    cost_with(run, m, "gradients: 4 (and the head's use of wte)", "bytes", (all + second_use) * e,
              (double)memory_now(MEM_GRADIENTS));
    cost_with(run, m, "m and v: 8 / N", "bytes", 2 * mine * e, (double)memory_now(MEM_OPTIMIZER));
    cost_with(run, m, "all state: 8 + 8 / N (and that use of wte)", "bytes", (2 * all + 2 * mine + second_use) * e,
              (double)(memory_now(MEM_PARAMETERS) + memory_now(MEM_GRADIENTS) + memory_now(MEM_OPTIMIZER)));
    cost_with(run, m, "in flight: nothing, at any time", "bytes", 0, (double)memory_peak(MEM_COMMUNICATION));
    cost_with(run, m, "activations, peak", "bytes", (double)activations(t, N, dp->rank) * e,
              (double)memory_peak(MEM_ACTIVATIONS));
    cost_with(run, m, "reduce-scatter calls, one a unit", "calls", units,
              (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    cost_with(run, m, "reduce-scatter: 1 unit of traffic", "bytes", unit,
              (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
    cost_with(run, m, "all-gather calls, one a unit", "calls", units, (double)dp->ledger[COMM_ALL_GATHER].calls);
    cost_with(run, m, "all-gather: 1 unit of traffic", "bytes", unit, (double)dp->ledger[COMM_ALL_GATHER].bytes);
    cost_with(run, m, "all-reduce of loss and norm", "bytes", scalars_bytes(&t->model, N),
              (double)dp->ledger[COMM_ALL_REDUCE].bytes);
    cost_with(run, m, "all traffic: 2 units, loss and norm", "bytes", 2 * unit + scalars_bytes(&t->model, N),
              (double)comm_bytes_sent(dp));
    costs_in_time(run, t, 2 * (wte.time + others.time));
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, Comm *dp, Training t, const char *name) {
    static const ZeroLesson lesson = { 1, step, costs };
    // The squares of the norm are added in another order when they are cut, and clipping multiplies by a factor that
    // comes from the norm.
    double limit = t.clip > 0 ? LIMIT_ROUNDING : every_bit(run);
    zero_compare(run, dp, &lesson, t, name, limit);
}

static void zero1(Run *run) {
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Training t = zero_training(run, dp, &tiny);
    size_t m = option_size(run, "micro-batches");

    t.optimizer = sgd(0.1);
    compare(run, dp, t, "SGD");
    t.clip = 0.5;                                  // below every norm: each step is clipped
    compare(run, dp, t, "SGD, clipped at 0.5");
    t.clip = 0;
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;                // for matrices; a part may hold elements of both kinds
    t.micro_batches = m;
    t.recorded = true;
    compare(run, dp, t, "AdamW, weight decay 0.1");
    comm_free(dp);
}

static const Option options[] = {
    { "batch", "N", "11", "sequences of all ranks together in a step" },
    { "micro-batches", "N", "3", "micro-batches of each rank, in the training whose costs are looked at" },
    { "steps", "N", "3", "training steps" },
    { "dropout", "X", "0.1", "probability of dropping an element" },
    { "link", "NAME", "ib", NULL },
    {0},
};
LESSON(zero1, options);
