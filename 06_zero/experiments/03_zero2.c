// Compares ZeRO-2 with data parallelism and the unsplit model, for one micro-batch per rank and for
// several.
#include "06_zero/experiments/experiments.h"

// The sizes of wte, wpe and the blocks are odd, so their parts are not equal. The default batch is
// 11 sequences: with 4 ranks and 3 micro-batches, one micro-batch of rank 3 is empty. The rank must
// take part in this micro-batch's reductions all the same.
static const ModelConfig tiny = {
    .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1
};

static void conclude(Run *run, size_t m, const ZeroMeasured *dp, const ZeroMeasured *own) {
    say_answer(run,
               "Only those of its own 1/%zu of the parameters. With gradients and moments in "
               "parts, state is %s instead of %s. A block's whole gradient lives for its backward, "
               "wte's two for the step: "
               "at most %s "
               "are in flight.",
               run->world->size, zero_bytes(run, own, ZERO_STATE), zero_bytes(run, dp, ZERO_STATE),
               zero_bytes(run, own, ZERO_IN_FLIGHT));
    say_cost(run,
             "a reduction per micro-batch. For m = %zu that is %s sent per rank instead of "
             "%s, and %s per step instead of %s.",
             m, zero_bytes(run, own, ZERO_SENT), zero_bytes(run, dp, ZERO_SENT),
             zero_time(run, own), zero_time(run, dp));
    say_use_when(run, "whole gradients do not fit and a step has few micro-batches. With many, "
                      "ZeRO-1 sends less.");
}

static const ZeroLesson lesson = {
    .name = "ZeRO-2", .stage = 2, .allocate = zero2_allocate, .step = zero2_step,
    .conclude = conclude,
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
