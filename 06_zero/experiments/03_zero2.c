// Compares ZeRO-2 with data parallelism and the unsplit model, for one micro-batch per rank and for
// several.
#include "06_zero/experiments/experiments.h"

// The size of every unit is odd, so parts are not equal. The default batch is 11 sequences: with 4
// ranks and 3 micro-batches, one micro-batch of rank 3 is empty. The rank must take part in this
// micro-batch's reductions all the same.
static const ModelConfig tiny = {
    .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1
};

// ---------------------------------------------------------------- the costs of a step

static void zero2_costs(Run *run, Comm *dp, const Training *t) {
    size_t N = dp->size, m = t->micro_batches;
    Share wte = share_of_wte(&t->model, N, dp->rank),
          others = share_of_others(&t->model, N, dp->rank);
    double w = (double)weight_bytes(&t->model), g = (double)gradient_bytes(&t->model);
    double state = (double)adamw_bytes(&t->model), scalars = zero_scalars_bytes(&t->model, N);
    double own = (double)(wte.part + others.part); // about Psi / N
    double all = (double)(wte.whole + others.whole), units = (double)others.units, M = (double)m;
    zero_cost(run, m, "weights", "weights: 4 bytes per parameter in fp32", "bytes", all * w,
              (double)memory_now(MEM_PARAMETERS));
    zero_cost(run, m, "gradients", "gradients between steps: 4 / N", "bytes", own * g,
              (double)memory_now(MEM_GRADIENTS));
    zero_cost(run, m, "moments", "m and v: 8 / N", "bytes", own * state,
              (double)memory_now(MEM_OPTIMIZER));
    zero_cost(run, m, "state", "all state between steps: 4 + 12 / N", "bytes",
              all * w + own * (g + state), zero_state_now());
    // The whole gradient of a unit; for m > 1 also the reduced part, which is added to own_g.
    double in_flight = (double)(others.largest + (m > 1 ? others.largest_part : 0));
    zero_cost(run, m, "in-flight", "in flight: 2 wte + the largest unit", "bytes",
              (2 * (double)wte.whole + in_flight) * g, (double)memory_peak(MEM_COMMUNICATION));
    zero_cost(run, m, "in-flight.between", "in flight between steps: nothing", "bytes", 0,
              (double)memory_now(MEM_COMMUNICATION));
    zero_cost_activations(run, dp, t);
    zero_cost(run, m, "reduce-scatter.calls", "reduce-scatter calls: m per unit, wte once", "calls",
              M * units + 1, (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    zero_cost(run, m, "reduce-scatter.bytes", "reduce-scatter: m passes over the parameters",
              "bytes", M * others.scatter_bytes + wte.scatter_bytes,
              (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
    zero_cost(run, m, "all-gather.calls", "all-gather calls, one per unit", "calls", units + 1,
              (double)dp->ledger[COMM_ALL_GATHER].calls);
    zero_cost(run, m, "all-gather.bytes", "all-gather: 1 pass over the parameters", "bytes",
              others.gather_bytes + wte.gather_bytes, (double)dp->ledger[COMM_ALL_GATHER].bytes);
    zero_cost(run, m, "sent", "all traffic: m + 1 units (wte 2), loss and norm", "bytes",
              M * others.scatter_bytes + others.gather_bytes + wte.scatter_bytes +
                  wte.gather_bytes + scalars,
              (double)comm_bytes_sent(dp));
    zero_costs_in_time(run, t,
                       M * others.scatter_time + others.gather_time + wte.scatter_time +
                           wte.gather_time);
}

static void conclude(Run *run, const ZeroTexts *seen) {
    say_answer(run,
               "A rank keeps the gradients of its own 1/%zu for the step, so state is %s "
               "instead of %s. A whole gradient lives for one layer's backward: at most %s "
               "are in flight.",
               seen->ranks, seen->state, seen->dp_state, seen->in_flight);
    say_cost(run,
             "a reduction per micro-batch. For m = %zu that is %s sent per rank instead of "
             "%s, and %s per step instead of %s.",
             seen->m, seen->sent, seen->dp_sent, seen->step, seen->dp_step);
    say_use_when(run, "whole gradients do not fit and a step has few micro-batches. With many, "
                      "stage 1 sends less.");
}

static const ZeroLesson lesson = {
    .name = "ZeRO-2", .stage = 2, .allocate = zero2_allocate, .step = zero2_step,
    .costs = zero2_costs, .conclude = conclude,
    .explains = "S after a layer's B sums that layer's gradient; a rank keeps its part and drops "
                "the rest.",
    .lines = {
        [ZERO_STATE] = { "state", "(4 + 12/N) Psi" },
        [ZERO_IN_FLIGHT] = { "in-flight", "4 (2 wte + block [+ block/N])" },
        [ZERO_SENT] = { "sent", "4(N-1)/N ((m+1)(Psi-wte)+2 wte)" },
    },
};

static void zero2(Run *run) { zero_one_and_several(run, &tiny, &lesson); }

static const Option options[] = { STORAGE_OPTION,
                                  ZERO_OPTIONS("micro-batches of each rank, in the second half") };
EXPERIMENT(zero2, options);
