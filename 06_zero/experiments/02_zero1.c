// Compares ZeRO-1 with data parallelism and the unsplit model: SGD, SGD with clipping, AdamW.
#include "06_zero/experiments/experiments.h"

// C = 15 and T = 11 make the sizes of wte, wpe and the blocks odd. So their parts are not equal. A
// part may hold elements of several tensors, with and without weight decay.
static const ModelConfig tiny = {
    .layers = 2, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1
};

static void conclude(Run *run, size_t m, const ZeroMeasured *dp, const ZeroMeasured *own) {
    (void)m;
    say_answer(run,
               "It should not. Each rank updates 1/%zu of the weights and gathers the rest. "
               "It holds %s of state instead of %s, and the training is the same.",
               run->world->size, zero_bytes(run, own, ZERO_STATE), zero_bytes(run, dp, ZERO_STATE));
    say_cost(run,
             "%s sent per rank instead of %s, mostly because the norm needs a sum per tensor; "
             "a step takes %s instead of %s.",
             zero_bytes(run, own, ZERO_SENT), zero_bytes(run, dp, ZERO_SENT), zero_time(run, own),
             zero_time(run, dp));
    say_use_when(run,
                 "there is data parallelism and the optimizer keeps state. But it makes more "
                 "calls, and only the next forward can hide the gather of the weights. In 16-bit "
                 "training ZeRO-1 divides 12 of 16 bytes, here 8 of 16.");
}

static const ZeroLesson lesson = {
    .name = "ZeRO-1", .stage = 1, .allocate = zero1_allocate, .step = zero1_step,
    .conclude = conclude,
    .explains = "A rank keeps moments for its part: 1/N of wte, of each block and of the rest.\n"
                "S sums the gradients, then each rank updates its part (too short to draw), then G "
                "gathers weights.",
    .lines = {
        [ZERO_STATE] = { "state", "the sum; ZeRO-1: (8 + 8/N) Psi + 4 wte" },
        [ZERO_WEIGHTS] = { "weights", "4 Psi" },
        [ZERO_GRADIENTS] = { "gradients", "4 Psi + 4 wte: wte has two uses" },
        [ZERO_MOMENTS] = { "moments", "8 Psi; ZeRO-1: 8/N Psi" },
        [ZERO_SENT] = { "sent", "2 (N-1)/N x 4 Psi, and loss and norm" },
    },
};

static void zero1(Run *run) {
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Training t = zero_training(run, dp, &tiny);
    zero_compare(run, dp, &lesson, t);
    t.clip = 0.5; // below every norm: each step is clipped
    zero_compare(run, dp, &lesson, t);
    t = zero_adamw(t, option_size(run, "micro-batches"));
    zero_compare(run, dp, &lesson, t);
    zero_page(run, dp, &lesson, t);
    comm_free(dp);
}

static const Option options[] = {
    STORAGE_OPTION,
    ZERO_OPTIONS("micro-batches of each rank, in the training whose costs are checked")
};
EXPERIMENT(zero1, options);
