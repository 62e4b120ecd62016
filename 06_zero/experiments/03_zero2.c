// Compares ZeRO-2 with data parallelism and the unsplit model, for one micro-batch per rank and for
// several.
#include "06_zero/experiments/experiments.h"

// The sizes of wte, wpe and the blocks are odd, so 4 ranks get unequal parts. The default batch is
// 11 sequences. So with 4 ranks and 3 micro-batches, one micro-batch of rank 3 is empty.
static const ModelConfig tiny = {
    .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1
};

static void zero2(Run *run) {
    const ZeroLesson *lesson = &zero_stages[2];
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    const size_t m = option_size(run, "micro-batches");
    const Training t = zero_training(run, dp, &tiny);
    zero_compare_one_and_several(run, dp, lesson, t, m);

    const ZeroPage page = {
        .column = { &zero_stages[0], lesson, m > 1 ? lesson : NULL },
        .m = { m, 1, m },
        .explains =
            "In flight: wte's two gradients, from F0 on, and a block's gradient, until their S "
            "ends. Formula's\n[ ]: if m > 1, also the new sum of the rank's part, until the rank "
            "adds it to the earlier sums.",
        .notes = "S sums a layer's gradient after its B (first S: last norm). G gathers weights. "
                 "sent: + loss, norm.",
        .formula = { [ZERO_STATE] = "(4 + 12/N) Psi",
                     [ZERO_IN_FLIGHT] = "4 (2 wte + block [+ block/N])",
                     [ZERO_SENT] = "4(N-1)/N ((m+1)(Psi-wte)+2 wte)",
                     [ZERO_EXPOSED] = "a rank waits in every call",
                     [ZERO_STEP] = "computing + all calls" },
    };
    ZeroMeasured seen[ZERO_COLUMNS];
    zero_page(run, dp, &t, &page, seen);
    const ZeroMeasured *all = &seen[0], *own = &seen[m > 1 ? 2 : 1];
    say_answer(
        run,
        "A rank keeps the gradients of its own 1/%zu of the parameters, from backward to "
        "update. A block's whole gradient and wte's two gradients stay only until their S ends. "
        "%s take at most %s. The state is %s instead of %s.",
        dp->size, m > 1 ? "These gradients and a new sum of the rank's part" : "These gradients",
        zero_text(run, own, ZERO_IN_FLIGHT), zero_text(run, own, ZERO_STATE),
        zero_text(run, all, ZERO_STATE));
    say_cost(run,
             "a reduction per micro-batch. For m = %zu that is %s sent per rank instead of %s, and "
             "%s per step instead of %s.",
             m, zero_text(run, own, ZERO_SENT), zero_text(run, all, ZERO_SENT),
             zero_text(run, own, ZERO_STEP), zero_text(run, all, ZERO_STEP));
    say_use_when(
        run, "whole gradients do not fit and micro-batches are few. With many, ZeRO-1 sends less.");
    comm_free(dp);
}

static const Option options[] = { ZERO_OPTIONS };
EXPERIMENT(zero2, options);
