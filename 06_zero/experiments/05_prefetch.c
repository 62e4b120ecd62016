// Compares prefetching ZeRO-3 with plain ZeRO-3, data parallelism and the unsplit model.
#include "06_zero/experiments/experiments.h"
#include <string.h>

// The model has four blocks. In a model of two blocks prefetch holds the weights of the two blocks
// at once. So in such a model keeping all units from forward to backward would hardly cost more
// memory.
static const ModelConfig tiny = {
    .layers = 4, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1
};

static bool reshards(Run *run) { return !strcmp(option_text(run, "reshard-after-forward"), "yes"); }
static void resharding(Model *m, Comm *dp) { prefetch_allocate(m, dp, true); }
static void keeping(Model *m, Comm *dp) { prefetch_allocate(m, dp, false); }

static void costs(Run *run, Comm *dp, const Training *t, size_t stage, const ZeroMeasured *seen) {
    (void)stage;
    const size_t N = dp->size;
    const double m = (double)t->micro_batches;
    const ModelConfig *c = &t->model;
    Share wte = share_of_wte(c, N, dp->rank), others = share_of_others(c, N, dp->rank);
    double own = (double)(wte.part + others.part); // the rank's parts: about Psi / N
    double bytes = (double)(weight_bytes(c) + gradient_bytes(c) + adamw_bytes(c));
    Play *play = prefetch_steps(t, N, reshards(run));
    PlayTiming want = play_timing(play);
    const CostRow row[] = { { "state", "all state between steps: 16 / N", "bytes",
                              BY_FORMULA(own * bytes), seen->row[ZERO_STATE] },
                            { "in-flight", "in flight: 3 wte, units, 2 gradients, a sum", "bytes",
                              BY_PLAY((double)play_peak(play, dp->rank, MEM_COMMUNICATION)),
                              seen->row[ZERO_IN_FLIGHT] },
                            // With the wall clock the table ends here, because real time is not
                            // predicted.
                            { clock_config()->simulated ? "exposed" : NULL, "exposed, all ranks",
                              "ps", BY_PLAY((double)want.exposed), (double)seen->timing.exposed },
                            { "hidden", "hidden, all ranks", "ps", BY_PLAY((double)want.hidden),
                              (double)seen->timing.hidden },
                            { "step", "step", "ps", BY_PLAY((double)want.step),
                              seen->row[ZERO_STEP] },
                            { 0 } };
    zero_costs_sent(run, dp, t, reshards(run) ? 2 * m : m, m);
    zero_check(run, t, row);
    play_free(play);
}

// Prefetch sends messages earlier than ZeRO-3, but adds the same numbers in the same order. So the
// two trainings must be equal in every bit.
static void compare_with_zero3(Run *run, Comm *dp, const ZeroLesson *lesson, const Training *t) {
    ZeroTrained got = zero_train(run, dp, lesson, t);
    ZeroTrained want = zero_train(run, dp, &zero_stages[3], t);
    training_compare(run, "prefetch = ZeRO-3", &got.trajectory, &want.trajectory,
                     training_exact(run, t));
    zero_trained_free(lesson, &got);
    zero_trained_free(&zero_stages[3], &want);
}

static double percent_hidden(const ZeroMeasured *seen) {
    double all = seen->row[ZERO_HIDDEN] + seen->row[ZERO_EXPOSED];
    return all > 0 ? 100 * seen->row[ZERO_HIDDEN] / all : 0;
}

// seen[0] is a step of ZeRO-3 with one micro-batch, and seen[1] is the same step with prefetch.
// seen[2] and seen[3] are these steps with m micro-batches.
static void conclude(Run *run, const ZeroMeasured *seen, size_t m) {
    const char *share = "The wall clock does not show how much";
    if (!seen[1].timing.hidden_unknown)
        share =
            page_text(run, "%s: %.0f %% of the communication is hidden with one micro-batch",
                      percent_hidden(&seen[1]) > 0 ? "In part" : "No", percent_hidden(&seen[1]));
    if (!seen[1].timing.hidden_unknown && m > 1)
        share =
            page_text(run,
                      "%s, %.0f %% with m = %zu, because then a micro-batch has fewer tokens to "
                      "compute",
                      share, percent_hidden(&seen[3]), m);
    say_answer(run,
               "%s. With one micro-batch a step takes %s instead of %s, and %s are in flight "
               "instead of %s.",
               share, zero_text(run, &seen[1], ZERO_STEP), zero_text(run, &seen[0], ZERO_STEP),
               zero_text(run, &seen[1], ZERO_IN_FLIGHT), zero_text(run, &seen[0], ZERO_IN_FLIGHT));
    const double sent = seen[1].row[ZERO_SENT], sent_before = seen[0].row[ZERO_SENT];
    const char *before = "as without prefetch";
    if (sent != sent_before)
        before = page_text(run, "instead of %s", zero_text(run, &seen[0], ZERO_SENT));
    say_cost(
        run,
        "memory for the weights of %s, a second gradient, and a buffer as large as the gradient "
        "being sent. A rank sends %s, %s.",
        reshards(run) ? "a second layer" : "nearly all layers", zero_text(run, &seen[1], ZERO_SENT),
        before);
    say_use_when(run, "ZeRO-3 waits for its messages, there is memory left, and a micro-batch has "
                      "so many tokens that a layer computes about as long as its gather takes.");
}

static void prefetch(Run *run) {
    const bool reshard = reshards(run);
    const size_t m = option_size(run, "micro-batches");
    const ZeroLesson *plain = &zero_stages[3];
    const ZeroLesson lesson = { "prefetch",    3,     reshard ? resharding : keeping,
                                prefetch_step, costs, prefetch_free };
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    const Training t = zero_training(run, dp, &tiny);
    Training clipped = zero_adamw(t, m);
    zero_compare(run, dp, &lesson, t);
    zero_compare(run, dp, &lesson, clipped);
    clipped.clip = 0.5; // below every norm: each step is clipped
    compare_with_zero3(run, dp, &lesson, &clipped);

    const ZeroPage page = {
        .column = { plain, &lesson, m > 1 ? plain : NULL, m > 1 ? &lesson : NULL },
        .m = { 1, 1, m, m },
        .explains = "Communication is hidden while the rank computes, exposed while the rank waits "
                    "(#).",
        .notes =
            page_text(run,
                      "In flight, both: wte with a gradient per use. ZeRO-3: a block's weights "
                      "and gradient. Prefetch: the\nweights of %s, 2 gradients, and a buffer as "
                      "large as the gradient being sent.",
                      reshard ? "2 blocks" : "all blocks but one"),
        .formula = { [ZERO_IN_FLIGHT] = reshard ? "5 blocks, not 2" : "L + 2 blocks, not 2",
                     [ZERO_SENT] = reshard ? "the same" : "2m passes, not 3m",
                     [ZERO_EXPOSED] = "while a rank waits",
                     [ZERO_HIDDEN] = "while a rank computes",
                     [ZERO_STEP] = "the slowest rank" },
    };
    ZeroMeasured seen[ZERO_COLUMNS];
    zero_page(run, dp, &t, &page, seen);
    conclude(run, seen, m);
    comm_free(dp);
}

static const Option options[] = { { "reshard-after-forward", "yes|no", "yes",
                                    "drop weights after forward, and gather them again for "
                                    "backward" },
                                  ZERO_OPTIONS };
EXPERIMENT(prefetch, options);
