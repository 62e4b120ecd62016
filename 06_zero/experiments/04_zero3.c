// Compares ZeRO-3 with data parallelism and the unsplit model, for one micro-batch per rank and for
// several.
#include "06_zero/experiments/experiments.h"

static const ModelConfig tiny = {
    .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1
};

static void conclude(Run *run, size_t m, const ZeroMeasured *dp, const ZeroMeasured *own) {
    say_answer(
        run,
        "It gathers a layer's weights before its forward and again before its backward. Each time "
        "it then drops them. A rank keeps %s of state instead of %s, and at most %s are in "
        "flight.",
        zero_bytes(run, own, ZERO_STATE), zero_bytes(run, dp, ZERO_STATE),
        zero_bytes(run, own, ZERO_IN_FLIGHT));
    say_cost(run,
             "two gathers and a reduction per micro-batch. For m = %zu that is %s sent per "
             "rank instead of %s, and %s per step instead of %s.",
             m, zero_bytes(run, own, ZERO_SENT), zero_bytes(run, dp, ZERO_SENT),
             zero_time(run, own), zero_time(run, dp));
    say_use_when(run, "the state does not fit otherwise, and micro-batches are large enough to "
                      "hide the gathers (06.05).");
}

static const ZeroLesson lesson = {
    .name = "ZeRO-3", .stage = 3, .allocate = zero3_allocate, .step = zero3_step,
    .conclude = conclude,
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
