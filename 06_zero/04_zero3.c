// ranks: 4
// level: core
// question: How can a rank compute with weights that it does not hold?
//
// ZeRO stage 3; PyTorch's fully sharded data parallel (FSDP) with reshard_after_forward=True. A rank keeps 1/N of
// everything: weights, gradients, m and v. A unit's weights are gathered just before its layer runs, forward and
// backward, and dropped after it (zero.c, gather_and_forward and gather_and_backward). At any time one block is whole;
// all others are in parts.
//
//     forward  of a unit:   all-gather weights . compute . drop
//     backward of a unit:   all-gather weights . compute . reduce-scatter gradient . drop both
//
// The tied embedding is needed at both ends of a step: it is gathered once, kept, and reduced once.
//
// FSDP's words: a "unit" is what one wrapped module gathers at a time; reshard_after_forward=False keeps the weights
// from forward to backward (2 units of traffic a micro-batch, and stage 2's memory). Left out: prefetch, which real
// systems add: the next unit is gathered while this one computes, so two units are whole at a time; 16-bit weights;
// offloading parts to host memory.
#include "06_zero/trainings.h"
#include "06_zero/zero.h"

static const ModelConfig tiny = { .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1 };

// ---------------------------------------------------------------- the step, cut where ranks must talk

static StepResult step(void *comm, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    Comm *dp = comm;
    double loss = 0;
    comm_ledger_reset(dp);
    zero_begin(m);                                 // all-gather of wte; room for its two gradients
    for (size_t k = 0; k < t->micro_batches; k++)
        loss += model_forward_backward(m, &mine[k]);       // gather, compute, drop; gather, compute, reduce, drop
    model_fold_tied(m);
    zero_reduce(m);                                // reduce-scatter of wte; its gathered weights are dropped

    double norm = model_grad_norm(m, dp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    zero_end(m);                                   // nothing to gather: the next forward does
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * mine[0].token_weight, norm };
}

// ---------------------------------------------------------------- predictions, from sizes alone

static void costs(Run *run, Comm *dp, const Training *t) {
    size_t N = dp->size, m = t->micro_batches;
    Share wte = share_of_wte(&t->model, N, dp->rank), others = share_of_others(&t->model, N, dp->rank);
    double e = sizeof(real), mine = (double)(wte.mine + others.mine);      // about Psi / N, to the element
    double units = (double)others.units, M = (double)m;
    cost_with(run, m, "weights between steps: 4 / N", "bytes", mine * e, (double)memory_now(MEM_PARAMETERS));
    cost_with(run, m, "gradients between steps: 4 / N", "bytes", mine * e, (double)memory_now(MEM_GRADIENTS));
    cost_with(run, m, "m and v: 8 / N", "bytes", 2 * mine * e, (double)memory_now(MEM_OPTIMIZER));
    cost_with(run, m, "all state between steps: 16 / N", "bytes", 4 * mine * e,
              (double)(memory_now(MEM_PARAMETERS) + memory_now(MEM_GRADIENTS) + memory_now(MEM_OPTIMIZER)));
    // weights, gradient; and the part that arrives, where it must be added to another
    double in_flight = (double)(2 * others.largest + (m > 1 ? others.largest_part : 0));
    cost_with(run, m, "in flight: 3 wte + twice the largest unit", "bytes", (3 * (double)wte.whole + in_flight) * e,
              (double)memory_peak(MEM_COMMUNICATION));
    cost_with(run, m, "in flight between steps: nothing", "bytes", 0, (double)memory_now(MEM_COMMUNICATION));
    cost_with(run, m, "activations, peak", "bytes", (double)activations(t, N, dp->rank) * e,
              (double)memory_peak(MEM_ACTIVATIONS));
    cost_with(run, m, "all-gather calls: 2m a unit, wte once", "calls", 2 * M * units + 1,
              (double)dp->ledger[COMM_ALL_GATHER].calls);
    cost_with(run, m, "all-gather: 2m units of traffic", "bytes", 2 * M * others.bytes + wte.bytes,
              (double)dp->ledger[COMM_ALL_GATHER].bytes);
    cost_with(run, m, "reduce-scatter calls: m a unit, wte once", "calls", M * units + 1,
              (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    cost_with(run, m, "reduce-scatter: m units of traffic", "bytes", M * others.bytes + wte.bytes,
              (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
    cost_with(run, m, "all traffic: 3m units (wte 2), loss and norm", "bytes",
              3 * M * others.bytes + 2 * wte.bytes + scalars_bytes(&t->model, N), (double)comm_bytes_sent(dp));
    costs_in_time(run, t, 3 * M * others.time + 2 * wte.time);
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, Comm *dp, Training t, const char *name) {
    static const ZeroLesson lesson = { 3, step, costs };
    // Gathered weights are moved data and change no bit. What is added in which order is as in stage 2.
    double limit = t.micro_batches == 1 && t.clip == 0 ? every_bit(run) : LIMIT_ROUNDING;
    zero_compare(run, dp, &lesson, t, name, limit);
}

static void zero3(Run *run) {
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Training t = zero_training(run, dp, &tiny);
    size_t m = option_size(run, "micro-batches");

    t.optimizer = sgd(0.1);
    compare(run, dp, t, "SGD");
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;
    t.recorded = true;
    compare(run, dp, t, "AdamW, weight decay 0.1");

    t.micro_batches = m;
    t.recorded = false;
    t.optimizer = sgd(0.1);
    t.clip = 0.5;                                  // below every norm: each step is clipped
    compare(run, dp, t, "SGD, clipped at 0.5");
    t.clip = 0;
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;
    t.recorded = true;
    compare(run, dp, t, "AdamW, weight decay 0.1");
    comm_free(dp);
}

static const Option options[] = {
    { "batch", "N", "11", "sequences of all ranks together in a step" },
    { "micro-batches", "N", "3", "micro-batches of each rank, in the second half" },
    { "steps", "N", "3", "training steps" },
    { "dropout", "X", "0.1", "probability of dropping an element" },
    { "link", "NAME", "ib", NULL },
    {0},
};
LESSON(zero3, options);
