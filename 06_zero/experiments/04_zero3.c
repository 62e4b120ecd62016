// Compares ZeRO-3 with data parallelism and the unsplit model, for one micro-batch per rank and for
// several.
#include "06_zero/experiments/experiments.h"

static const ModelConfig tiny = {
    .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1
};

// ---------------------------------------------------------------- the costs of a step

static void zero3_costs(Run *run, Comm *dp, const Training *t) {
    size_t N = dp->size, m = t->micro_batches;
    Share wte = share_of_wte(&t->model, N, dp->rank),
          others = share_of_others(&t->model, N, dp->rank);
    double w = (double)weight_bytes(&t->model), g = (double)gradient_bytes(&t->model);
    double state = (double)adamw_bytes(&t->model), scalars = zero_scalars_bytes(&t->model, N);
    double own = (double)(wte.part + others.part); // about Psi / N
    double units = (double)others.units, M = (double)m;
    zero_cost(run, m, "weights", "weights between steps: 4 / N", "bytes", own * w,
              (double)memory_now(MEM_PARAMETERS));
    zero_cost(run, m, "gradients", "gradients between steps: 4 / N", "bytes", own * g,
              (double)memory_now(MEM_GRADIENTS));
    zero_cost(run, m, "moments", "m and v: 8 / N", "bytes", own * state,
              (double)memory_now(MEM_OPTIMIZER));
    zero_cost(run, m, "state", "all state between steps: 16 / N", "bytes", own * (w + g + state),
              zero_state_now());
    // Weights and gradient of a unit; for m > 1 also the reduced part, which is added to own_g.
    double part = m > 1 ? (double)others.largest_part : 0, whole = (double)wte.whole,
           largest = (double)others.largest;
    zero_cost(run, m, "in-flight", "in flight: 3 wte + twice the largest unit", "bytes",
              (whole + largest) * w + (2 * whole + largest + part) * g,
              (double)memory_peak(MEM_COMMUNICATION));
    zero_cost(run, m, "in-flight.between", "in flight between steps: nothing", "bytes", 0,
              (double)memory_now(MEM_COMMUNICATION));
    zero_cost_activations(run, dp, t);
    zero_cost(run, m, "all-gather.calls", "all-gather calls: 2m per unit, wte once", "calls",
              2 * M * units + 1, (double)dp->ledger[COMM_ALL_GATHER].calls);
    zero_cost(run, m, "all-gather.bytes", "all-gather: 2m passes over the parameters", "bytes",
              2 * M * others.gather_bytes + wte.gather_bytes,
              (double)dp->ledger[COMM_ALL_GATHER].bytes);
    zero_cost(run, m, "reduce-scatter.calls", "reduce-scatter calls: m per unit, wte once", "calls",
              M * units + 1, (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    zero_cost(run, m, "reduce-scatter.bytes", "reduce-scatter: m passes over the parameters",
              "bytes", M * others.scatter_bytes + wte.scatter_bytes,
              (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
    zero_cost(run, m, "sent", "all traffic: 3m units (wte 2), loss and norm", "bytes",
              2 * M * others.gather_bytes + M * others.scatter_bytes + wte.gather_bytes +
                  wte.scatter_bytes + scalars,
              (double)comm_bytes_sent(dp));
    zero_costs_in_time(run, t,
                       2 * M * others.gather_time + M * others.scatter_time + wte.gather_time +
                           wte.scatter_time);
}

static void conclude(Run *run, const ZeroTexts *seen) {
    say_answer(run,
               "It gathers a layer's weights before each forward and backward, and drops "
               "them after it. A rank keeps %s of state instead of %s, and at most %s are in "
               "flight.",
               seen->state, seen->dp_state, seen->in_flight);
    say_cost(run,
             "two gathers and a reduction per micro-batch. For m = %zu that is %s sent per "
             "rank instead of %s, and %s per step instead of %s.",
             seen->m, seen->sent, seen->dp_sent, seen->step, seen->dp_step);
    say_use_when(run, "the state does not fit otherwise, and micro-batches are large enough to "
                      "hide the gathers (06.05).");
}

static const ZeroLesson lesson = {
    .name = "ZeRO-3", .stage = 3, .allocate = zero3_allocate, .step = zero3_step,
    .costs = zero3_costs, .conclude = conclude,
    .explains = "G before each F and B gathers the layer's weights. After each F and B the rank "
                "drops them.",
    .lines = {
        [ZERO_STATE] = { "state", "16/N Psi" },
        [ZERO_IN_FLIGHT] = { "in-flight", "4 (3 wte+2 blocks [+ block/N])" },
        [ZERO_SENT] = { "sent", "4(N-1)/N (3m(Psi-wte)+2 wte)" },
    },
};

static void zero3(Run *run) { zero_one_and_several(run, &tiny, &lesson); }

static const Option options[] = { STORAGE_OPTION,
                                  ZERO_OPTIONS("micro-batches of each rank, in the second half") };
EXPERIMENT(zero3, options);
