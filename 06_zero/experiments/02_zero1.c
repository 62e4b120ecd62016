// Compares ZeRO-1 with data parallelism and the unsplit model, under SGD, under SGD with clipping
// and under AdamW.
#include "06_zero/experiments/experiments.h"

// C = 15 and T = 11 make the sizes of wte, wpe and the blocks odd, so 4 ranks get unequal parts. A
// part may hold elements of several tensors, with and without weight decay.
static const ModelConfig tiny = {
    .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1
};

static void zero1(Run *run) {
    const ZeroLesson *lesson = &zero_stages[1];
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    const size_t m = option_size(run, "micro-batches");
    Training t = zero_training(run, dp, &tiny);
    zero_compare(run, dp, lesson, t);
    t.clip = 0.5; // below every norm: each step is clipped
    zero_compare(run, dp, lesson, t);
    zero_compare(run, dp, lesson, zero_adamw(t, m));

    const ZeroPage page = {
        .column = { &zero_stages[0], lesson },
        .m = { m, m },
        .explains = "A rank keeps moments for its part: 1/N of wte, of each block and of the rest.",
        .notes =
            "S sums the gradients, then each rank updates its part (too short to draw), then G "
            "gathers weights.",
        .formula = { [ZERO_STATE] = "the sum; ZeRO-1: (8 + 8/N) Psi + 4 wte",
                     [ZERO_WEIGHTS] = "4 Psi",
                     [ZERO_GRADIENTS] = "4 Psi + 4 wte: wte has two uses",
                     [ZERO_MOMENTS] = "8 Psi; ZeRO-1: 8/N Psi",
                     [ZERO_SENT] = "2 (N-1)/N x 4 Psi, and loss and norm",
                     [ZERO_EXPOSED] = "a rank waits in every call",
                     [ZERO_STEP] = "computing + all calls" },
    };
    ZeroMeasured seen[ZERO_COLUMNS];
    zero_page(run, dp, &t, &page, seen);
    const ZeroMeasured *all = &seen[0], *own = &seen[1];
    say_answer(run,
               "No. Each rank updates 1/%zu of the weights and gathers the rest. It holds "
               "%s of state instead of %s, and the training is the same.",
               dp->size, zero_text(run, own, ZERO_STATE), zero_text(run, all, ZERO_STATE));
    say_cost(run,
             "%s sent per rank instead of %s, mostly because the gradient norm needs a sum over "
             "ranks for each tensor. A step takes %s instead of %s. ZeRO-1 makes more calls than "
             "one all-reduce, and only the next forward can hide its gather.",
             zero_text(run, own, ZERO_SENT), zero_text(run, all, ZERO_SENT),
             zero_text(run, own, ZERO_STEP), zero_text(run, all, ZERO_STEP));
    say_use_when(
        run, "there is data parallelism and the optimizer keeps state. In 16-bit training ZeRO-1 "
             "divides 12 of 16 bytes, here 8.");
    comm_free(dp);
}

static const Option options[] = { ZERO_OPTIONS };
EXPERIMENT(zero1, options);
