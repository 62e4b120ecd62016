// Compares ZeRO-3 with data parallelism and the unsplit model, for one micro-batch per rank and for
// several.
#include "06_zero/experiments/experiments.h"

static const ModelConfig tiny = {
    .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1
};

static void zero3(Run *run) {
    const ZeroLesson *lesson = &zero_stages[3];
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    const size_t m = option_size(run, "micro-batches");
    const Training t = zero_training(run, dp, &tiny);
    zero_compare_one_and_several(run, dp, lesson, t, m);

    const ZeroPage page = {
        .column = { &zero_stages[0], lesson, m > 1 ? lesson : NULL },
        .m = { m, 1, m },
        .explains = "In flight: a layer's gathered weights in its forward, weights and gradient in "
                    "its backward; wte's\n"
                    "weights and two gradients in the whole step. [ ]: if m > 1, also a new sum, "
                    "until the rank adds it.",
        .notes = "Before F and before B of a layer, G gathers the layer's weights. After B, S sums "
                 "its gradient.",
        .formula = { [ZERO_STATE] = "16/N Psi",
                     [ZERO_IN_FLIGHT] = "4 (3 wte+2 blocks [+ block/N])",
                     [ZERO_SENT] = "4(N-1)/N (3m(Psi-wte)+2 wte)",
                     [ZERO_EXPOSED] = "a rank waits in every call",
                     [ZERO_STEP] = "computing + all calls" },
    };
    ZeroMeasured seen[ZERO_COLUMNS];
    zero_page(run, dp, &t, &page, seen);
    const ZeroMeasured *all = &seen[0], *own = &seen[m > 1 ? 2 : 1];
    say_answer(
        run,
        "A rank gathers a layer's weights before its forward and again before its backward. "
        "After each use the rank drops them. It keeps %s of state instead of %s, and at most %s "
        "are in flight.",
        zero_text(run, own, ZERO_STATE), zero_text(run, all, ZERO_STATE),
        zero_text(run, own, ZERO_IN_FLIGHT));
    say_cost(run,
             "two gathers and a reduction per micro-batch. For m = %zu that is %s sent per rank "
             "instead of %s, and %s per step instead of %s.",
             m, zero_text(run, own, ZERO_SENT), zero_text(run, all, ZERO_SENT),
             zero_text(run, own, ZERO_STEP), zero_text(run, all, ZERO_STEP));
    say_use_when(run, "the state does not fit otherwise, and micro-batches are large enough to "
                      "hide the gathers (06.05).");
    comm_free(dp);
}

static const Option options[] = { ZERO_OPTIONS };
EXPERIMENT(zero3, options);
