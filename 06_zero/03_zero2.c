// ranks: 4
// level: core
// question: Whose gradients must a rank keep, and for how long?
//
// ZeRO stage 2. Only the owner of a part needs the sum of its gradients. So a unit's whole gradient exists on a rank
// just while the backward pass of its layer runs: it is reduce-scattered at once and dropped (zero.c,
// backward_and_reduce: a layer around a layer). Between layers a rank holds its own parts, already summed over all
// ranks.
//
// The price: with m micro-batches the reduction happens m times. The embedding is the exception: both ends of the
// backward pass add to it, so its gradients (two, one a use) stay whole for the step and are reduced once.
//
// Left out: the reduction of one layer while the backward pass of the next runs (chapter 01's overlap); 16-bit
// gradients.
#include "06_zero/trainings.h"
#include "06_zero/zero.h"

// Every unit is odd, so no part is equal. 11 sequences: with 4 ranks and 3 micro-batches, one micro-batch of rank 3 is
// empty, and must still take part in the reductions.
static const ModelConfig tiny = { .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1 };

// ---------------------------------------------------------------- the step, cut where ranks must talk

static StepResult step(void *comm, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    Comm *dp = comm;
    double loss = 0;
    comm_ledger_reset(dp);
    zero_begin(m);                                 // room for the two gradients of the embedding
    for (size_t k = 0; k < t->micro_batches; k++)
        loss += model_forward_backward(m, &mine[k]);       // each layer's backward ends with a reduce-scatter
    model_fold_tied(m);                            // the head's gradient of wte + the embedding's, both whole
    zero_reduce(m);                                // reduce-scatter of wte; afterwards all that is left are own parts

    double norm = model_grad_norm(m, dp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    zero_end(m);                                   // all-gather of each unit, as in stage 1
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * mine[0].token_weight, norm };
}

// ---------------------------------------------------------------- predictions, from sizes alone

static void costs(Run *run, Comm *dp, const Training *t) {
    size_t N = dp->size, m = t->micro_batches;
    Share wte = share_of_wte(&t->model, N, dp->rank), others = share_of_others(&t->model, N, dp->rank);
    double e = sizeof(real), mine = (double)(wte.mine + others.mine);      // about Psi / N, to the element
    double all = (double)(wte.whole + others.whole), units = (double)others.units, M = (double)m;
    cost_with(run, m, "weights: 4 bytes a parameter in fp32", "bytes", all * e, (double)memory_now(MEM_PARAMETERS));
    cost_with(run, m, "gradients between steps: 4 / N", "bytes", mine * e, (double)memory_now(MEM_GRADIENTS));
    cost_with(run, m, "m and v: 8 / N", "bytes", 2 * mine * e, (double)memory_now(MEM_OPTIMIZER));
    cost_with(run, m, "all state between steps: 4 + 12 / N", "bytes", (all + 3 * mine) * e,
              (double)(memory_now(MEM_PARAMETERS) + memory_now(MEM_GRADIENTS) + memory_now(MEM_OPTIMIZER)));
    // whole, on its way; and the part that arrives, where it must be added to another
    double in_flight = (double)(others.largest + (m > 1 ? others.largest_part : 0));
    cost_with(run, m, "in flight: 2 wte + the largest unit", "bytes", (2 * (double)wte.whole + in_flight) * e,
              (double)memory_peak(MEM_COMMUNICATION));
    cost_with(run, m, "in flight between steps: nothing", "bytes", 0, (double)memory_now(MEM_COMMUNICATION));
    cost_with(run, m, "activations, peak", "bytes", (double)activations(t, N, dp->rank) * e,
              (double)memory_peak(MEM_ACTIVATIONS));
    cost_with(run, m, "reduce-scatter calls: m a unit, wte once", "calls", M * units + 1,
              (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    cost_with(run, m, "reduce-scatter: m units of traffic", "bytes", M * others.bytes + wte.bytes,
              (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
    cost_with(run, m, "all-gather calls, one a unit", "calls", units + 1, (double)dp->ledger[COMM_ALL_GATHER].calls);
    cost_with(run, m, "all-gather: 1 unit of traffic", "bytes", others.bytes + wte.bytes,
              (double)dp->ledger[COMM_ALL_GATHER].bytes);
    cost_with(run, m, "all traffic: m + 1 units (wte 2), loss and norm", "bytes",
              (M + 1) * others.bytes + 2 * wte.bytes + scalars_bytes(&t->model, N), (double)comm_bytes_sent(dp));
    costs_in_time(run, t, (M + 1) * others.time + 2 * wte.time);
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, Comm *dp, Training t, const char *name) {
    static const ZeroLesson lesson = { 2, step, costs };
    // One micro-batch: both add the ranks' gradients in rank order, and the bits are equal. More: data parallelism adds
    // micro-batches on each rank and then the ranks; stage 2 adds the ranks for each micro-batch and then the
    // micro-batches. Same terms, other order. So it is with the squares of the norm, and with every clipped weight.
    double limit = t.micro_batches == 1 && t.clip == 0 ? every_bit(run) : LIMIT_ROUNDING;
    zero_compare(run, dp, &lesson, t, name, limit);
}

static void zero2(Run *run) {
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
LESSON(zero2, options);
