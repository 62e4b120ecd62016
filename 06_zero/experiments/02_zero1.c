// ZeRO-1 beside data parallelism and the unsplit model: SGD, SGD with clipping, AdamW.
#include "06_zero/experiments/experiments.h"

// C = 15 and T = 11 make every unit odd: no part is equal, and parts cut through tensors with and
// without weight decay.
static const ModelConfig tiny = {
    .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1
};

// ---------------------------------------------------------------- what a step costs

static void zero1_costs(Run *run, Comm *dp, const Training *t) {
    size_t N = dp->size, m = t->micro_batches;
    Share wte = share_of_wte(&t->model, N, dp->rank),
          others = share_of_others(&t->model, N, dp->rank);
    // Psi: the parameters, the tied one once; about Psi / N, to the element; what a ring sends of
    // the whole model, once
    double e = sizeof(real), all = (double)(wte.whole + others.whole),
           mine = (double)(wte.part + others.part);
    double second_use = (double)wte.whole, units = (double)(wte.units + others.units),
           unit = wte.bytes + others.bytes;
    zero_cost(run, m, "weights", "weights: 4 bytes a parameter in fp32", "bytes", all * e,
              (double)memory_now(MEM_PARAMETERS));
    zero_cost(run, m, "gradients", "gradients: 4 (and the head's use of wte)", "bytes",
              (all + second_use) * e, (double)memory_now(MEM_GRADIENTS));
    zero_cost(run, m, "moments", "m and v: 8 / N", "bytes", 2 * mine * e,
              (double)memory_now(MEM_OPTIMIZER));
    zero_cost(run, m, "state", "all state: 8 + 8 / N (and that use of wte)", "bytes",
              (2 * all + 2 * mine + second_use) * e, zero_state_now());
    zero_cost(run, m, "in-flight", "in flight: nothing, at any time", "bytes", 0,
              (double)memory_peak(MEM_COMMUNICATION));
    zero_cost_activations(run, dp, t);
    zero_cost(run, m, "reduce-scatter.calls", "reduce-scatter calls, one a unit", "calls", units,
              (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    zero_cost(run, m, "reduce-scatter.bytes", "reduce-scatter: 1 pass over the parameters", "bytes",
              unit, (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
    zero_cost(run, m, "all-gather.calls", "all-gather calls, one a unit", "calls", units,
              (double)dp->ledger[COMM_ALL_GATHER].calls);
    zero_cost(run, m, "all-gather.bytes", "all-gather: 1 pass over the parameters", "bytes", unit,
              (double)dp->ledger[COMM_ALL_GATHER].bytes);
    zero_cost(run, m, "scalars", "all-reduce of loss and norm", "bytes",
              zero_scalars_bytes(&t->model, N), (double)dp->ledger[COMM_ALL_REDUCE].bytes);
    zero_cost(run, m, "sent", "all traffic: 2 units, loss and norm", "bytes",
              2 * unit + zero_scalars_bytes(&t->model, N), (double)comm_bytes_sent(dp));
    zero_costs_in_time(run, t, 2 * (wte.time + others.time));
}

static const ZeroLesson lesson = {
    .name = "ZeRO-1", .stage = 1, .allocate = zero1_allocate, .step = zero1_step,
    .costs = zero1_costs,
    .answer = "They need not: each rank updates its part, 1/N, "
              "and gets the other parts by an all-gather.",
    .lines = {
        [ZERO_STATE] = { "state", "(8 + 8/N) Psi + 4 wte; was 16 Psi + 4 wte" },
        [ZERO_WEIGHTS] = { "weights", "4 Psi" },
        [ZERO_GRADIENTS] = { "gradients", "4 Psi + 4 wte" },
        [ZERO_MOMENTS] = { "moments", "8/N Psi; was 8 Psi" },
        [ZERO_SENT] = { "sent", "2 (N-1)/N x 4 Psi, loss and norm" },
    },
};

// ---------------------------------------------------------------- the trainings

static void zero1(Run *run) {
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Training t = zero_training(run, dp, &tiny);

    t.optimizer = sgd(0.1);
    zero_compare(run, dp, &lesson, t, "SGD", every_bit(run));
    t.clip = 0.5;                                  // below every norm: each step is clipped
    // The squares of the norm are added in another order when they are cut, and clipping multiplies
    // by a factor that comes from the norm.
    zero_compare(run, dp, &lesson, t, "SGD, clipped at 0.5", LIMIT_ROUNDING);
    t.clip = 0;
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;     // for matrices; a part may hold elements of both kinds
    t.micro_batches = option_size(run, "micro-batches");
    t.recorded = true;
    zero_compare(run, dp, &lesson, t, "AdamW, weight decay 0.1", every_bit(run));
    zero_page(run, dp, &lesson, t);
    comm_free(dp);
}

static const Option options[] = { ZERO_OPTIONS(
    "micro-batches of each rank, in the training whose costs are looked at") };
EXPERIMENT(zero1, options);
