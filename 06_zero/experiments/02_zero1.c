// Compares ZeRO-1 with data parallelism and the unsplit model: SGD, SGD with clipping, AdamW.
#include "06_zero/experiments/experiments.h"

// C = 15 and T = 11 make the size of every unit odd. So parts are not equal, and a part may hold
// elements of several tensors, with and without weight decay.
static const ModelConfig tiny = {
    .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1
};

// ---------------------------------------------------------------- the costs of a step

static void zero1_costs(Run *run, Comm *dp, const Training *t) {
    size_t N = dp->size, m = t->micro_batches;
    Share wte = share_of_wte(&t->model, N, dp->rank),
          others = share_of_others(&t->model, N, dp->rank);
    double w = (double)weight_bytes(&t->model), g = (double)gradient_bytes(&t->model);
    double state = (double)adamw_bytes(&t->model), scalars = zero_scalars_bytes(&t->model, N);
    double all = (double)(wte.whole + others.whole); // Psi: wte counts once
    double own = (double)(wte.part + others.part);   // about Psi / N
    double second_use = (double)wte.whole;           // the head's gradient of wte
    double units = (double)(wte.units + others.units);
    // sent in one pass over the parameters
    double scatter = wte.scatter_bytes + others.scatter_bytes,
           gather = wte.gather_bytes + others.gather_bytes;
    zero_cost(run, m, "weights", "weights: 4 bytes per parameter in fp32", "bytes", all * w,
              (double)memory_now(MEM_PARAMETERS));
    zero_cost(run, m, "gradients", "gradients: 4 (and the head's use of wte)", "bytes",
              (all + second_use) * g, (double)memory_now(MEM_GRADIENTS));
    zero_cost(run, m, "moments", "m and v: 8 / N", "bytes", own * state,
              (double)memory_now(MEM_OPTIMIZER));
    zero_cost(run, m, "state", "all state: 8 + 8 / N (and the head's use of wte)", "bytes",
              all * w + (all + second_use) * g + own * state, zero_state_now());
    zero_cost(run, m, "in-flight", "in flight: nothing, at any time", "bytes", 0,
              (double)memory_peak(MEM_COMMUNICATION));
    zero_cost_activations(run, dp, t);
    zero_cost(run, m, "reduce-scatter.calls", "reduce-scatter calls, one per unit", "calls", units,
              (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    zero_cost(run, m, "reduce-scatter.bytes", "reduce-scatter: 1 pass over the parameters", "bytes",
              scatter, (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
    zero_cost(run, m, "all-gather.calls", "all-gather calls, one per unit", "calls", units,
              (double)dp->ledger[COMM_ALL_GATHER].calls);
    zero_cost(run, m, "all-gather.bytes", "all-gather: 1 pass over the parameters", "bytes", gather,
              (double)dp->ledger[COMM_ALL_GATHER].bytes);
    zero_cost(run, m, "scalars", "all-reduce of loss and norm", "bytes", scalars,
              (double)dp->ledger[COMM_ALL_REDUCE].bytes);
    zero_cost(run, m, "sent", "all traffic: 2 units, loss and norm", "bytes",
              scatter + gather + scalars, (double)comm_bytes_sent(dp));
    zero_costs_in_time(run, t,
                       wte.scatter_time + others.scatter_time + wte.gather_time +
                           others.gather_time);
}

static void conclude(Run *run, const ZeroTexts *seen) {
    say_answer(run,
               "It should not. Each rank updates 1/%zu of the weights and gathers the rest. "
               "It holds %s of state instead of %s, and the training is the same.",
               seen->ranks, seen->state, seen->dp_state);
    say_cost(run,
             "%s sent per rank instead of %s, because parts are rounded up and the norm "
             "needs a sum; a step takes %s instead of %s.",
             seen->sent, seen->dp_sent, seen->step, seen->dp_step);
    say_use_when(run, "there is data parallelism and the optimizer keeps state. Its only drawback "
                      "is that it makes more calls. In 16-bit training it divides 12 of 16 bytes, "
                      "here 8 of 16.");
}

static const ZeroLesson lesson = {
    .name = "ZeRO-1", .stage = 1, .allocate = zero1_allocate, .step = zero1_step,
    .costs = zero1_costs, .conclude = conclude,
    .explains = "A rank keeps moments for its part, 1/N of every unit.\nS sums the "
                "gradients, then each rank updates its part (too short to draw), then G gathers "
                "weights.",
    .lines = {
        [ZERO_STATE] = { "state", "(8 + 8/N) Psi + 4 wte" },
        [ZERO_WEIGHTS] = { "weights", "4 Psi" },
        [ZERO_GRADIENTS] = { "gradients", "4 Psi + 4 wte: wte has two uses" },
        [ZERO_MOMENTS] = { "moments", "8/N Psi; data parallel: 8 Psi" },
        [ZERO_SENT] = { "sent", "2 (N-1)/N x 4 Psi, and loss and norm" },
    },
};

// ---------------------------------------------------------------- the trainings

static void zero1(Run *run) {
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Training t = zero_training(run, dp, &tiny);

    t.optimizer = sgd(0.1);
    zero_compare(run, dp, &lesson, t, "SGD", training_exact(run, &t));
    t.clip = 0.5; // below every norm: each step is clipped
    // The squares of the norm are added part by part, in another order. Clipping multiplies every
    // gradient by a factor that depends on the norm, so the limit is the one of rounding.
    zero_compare(run, dp, &lesson, t, "SGD, clipped at 0.5", training_limit(&t));
    t.clip = 0;
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1; // of matrices only
    t.micro_batches = option_size(run, "micro-batches");
    t.recorded = true;
    zero_compare(run, dp, &lesson, t, "AdamW, weight decay 0.1", training_exact(run, &t));
    zero_page(run, dp, &lesson, t);
    comm_free(dp);
}

static const Option options[] = {
    STORAGE_OPTION,
    ZERO_OPTIONS("micro-batches of each rank, in the training whose costs are checked")
};
EXPERIMENT(zero1, options);
