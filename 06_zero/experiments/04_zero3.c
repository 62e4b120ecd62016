// ZeRO-3 beside data parallelism and the unsplit model, with one micro-batch per rank and with
// several.
#include "06_zero/experiments/experiments.h"

static const ModelConfig tiny = {
    .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1
};

// ---------------------------------------------------------------- what a step costs

static void zero3_costs(Run *run, Comm *dp, const Training *t) {
    size_t N = dp->size, m = t->micro_batches;
    Share wte = share_of_wte(&t->model, N, dp->rank),
          others = share_of_others(&t->model, N, dp->rank);
    // about Psi / N, to the element
    double e = sizeof(real), mine = (double)(wte.part + others.part);
    double units = (double)others.units, M = (double)m;
    zero_cost(run, m, "weights", "weights between steps: 4 / N", "bytes", mine * e,
              (double)memory_now(MEM_PARAMETERS));
    zero_cost(run, m, "gradients", "gradients between steps: 4 / N", "bytes", mine * e,
              (double)memory_now(MEM_GRADIENTS));
    zero_cost(run, m, "moments", "m and v: 8 / N", "bytes", 2 * mine * e,
              (double)memory_now(MEM_OPTIMIZER));
    zero_cost(run, m, "state", "all state between steps: 16 / N", "bytes", 4 * mine * e,
              zero_state_now());
    // weights, gradient; and the part that arrives, where it must be added to another
    double in_flight = (double)(2 * others.largest + (m > 1 ? others.largest_part : 0));
    zero_cost(run, m, "in-flight", "in flight: 3 wte + twice the largest unit", "bytes",
              (3 * (double)wte.whole + in_flight) * e, (double)memory_peak(MEM_COMMUNICATION));
    zero_cost(run, m, "in-flight.between", "in flight between steps: nothing", "bytes", 0,
              (double)memory_now(MEM_COMMUNICATION));
    zero_cost_activations(run, dp, t);
    zero_cost(run, m, "all-gather.calls", "all-gather calls: 2m a unit, wte once", "calls",
              2 * M * units + 1, (double)dp->ledger[COMM_ALL_GATHER].calls);
    zero_cost(run, m, "all-gather.bytes", "all-gather: 2m passes over the parameters", "bytes",
              2 * M * others.bytes + wte.bytes, (double)dp->ledger[COMM_ALL_GATHER].bytes);
    zero_cost(run, m, "reduce-scatter.calls", "reduce-scatter calls: m a unit, wte once", "calls",
              M * units + 1, (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    zero_cost(run, m, "reduce-scatter.bytes", "reduce-scatter: m passes over the parameters",
              "bytes", M * others.bytes + wte.bytes, (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
    zero_cost(run, m, "sent", "all traffic: 3m units (wte 2), loss and norm", "bytes",
              3 * M * others.bytes + 2 * wte.bytes + zero_scalars_bytes(&t->model, N),
              (double)comm_bytes_sent(dp));
    zero_costs_in_time(run, t, 3 * M * others.time + 2 * wte.time);
}

static const ZeroLesson lesson = {
    .name = "ZeRO-3", .stage = 3, .allocate = zero3_allocate, .step = zero3_step,
    .costs = zero3_costs,
    .answer = "G before each F and B gathers the layer's weights from all ranks; "
              "they are dropped after it.",
    .lines = {
        [ZERO_STATE] = { "state", "16/N Psi" },
        [ZERO_IN_FLIGHT] = { "in-flight", "4 (3 wte+2 blocks [+ block/N])" },
        [ZERO_SENT] = { "sent", "4(N-1)/N (3m(Psi-wte)+2 wte)" },
    },
};

static void zero3(Run *run) { zero_one_and_several(run, &tiny, &lesson); }

static const Option options[] = { ZERO_OPTIONS("micro-batches of each rank, in the second half") };
EXPERIMENT(zero3, options);
