// Compares prefetching ZeRO-3 with plain ZeRO-3, data parallelism and the unsplit model.
#include "06_zero/experiments/experiments.h"
#include <string.h>

// The model has four blocks. With two, both would be in flight together, so keeping all units would
// cost no memory.
static const ModelConfig tiny = {
    .layers = 4, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1
};

static void resharding(Model *m, Comm *dp) { prefetch_allocate(m, dp, true); }
static void keeping(Model *m, Comm *dp) { prefetch_allocate(m, dp, false); }

// ---------------------------------------------------------------- the costs

static void costs(Run *run, Comm *dp, const Training *t, bool reshard) {
    size_t N = dp->size, m = t->micro_batches;
    Share wte = share_of_wte(&t->model, N, dp->rank),
          others = share_of_others(&t->model, N, dp->rank);
    const ModelConfig *c = &t->model;
    double own = (double)(wte.part + others.part); // about Psi / N
    double bytes = (double)(weight_bytes(c) + gradient_bytes(c) + adamw_bytes(c));
    Play *play = prefetch_steps(t, N, reshard);
    PlayTiming want = play_timing(play);
    Timing timing = picture_timing(run);
    const CostRow row[] = { { "state", "all state between steps: 16 / N", "bytes",
                              BY_FORMULA(own * bytes), zero_state_now() },
                            { "in-flight", "in flight: 3 wte, units, 2 gradients, a sum", "bytes",
                              BY_PLAY((double)play_peak(play, dp->rank, MEM_COMMUNICATION)),
                              (double)memory_peak(MEM_COMMUNICATION) },
                            // Real time is not predicted.
                            { clock_config()->simulated ? "exposed" : NULL, "exposed, all ranks",
                              "ps", BY_PLAY((double)want.exposed), (double)timing.exposed },
                            { "hidden", "hidden, all ranks", "ps", BY_PLAY((double)want.hidden),
                              (double)timing.hidden },
                            { "step", "step", "ps", BY_PLAY((double)want.step),
                              (double)timing.step },
                            { 0 } };
    zero_check(run, t, row);
    zero_costs_sent(run, dp, t, reshard ? 2 * (double)m : (double)m, (double)m);
    play_free(play);
}
static void costs_resharding(Run *run, Comm *dp, const Training *t) { costs(run, dp, t, true); }
static void costs_keeping(Run *run, Comm *dp, const Training *t) { costs(run, dp, t, false); }

static const ZeroLesson zero3 = {
    .name = "ZeRO-3",
    .stage = 3,
    .allocate = zero3_allocate,
    .step = zero3_step,
};

// ---------------------------------------------------------------- the page

static double percent_hidden(const Timing *t) {
    double all = (double)(t->hidden + t->exposed);
    return all > 0 ? 100 * (double)t->hidden / all : 0;
}

// Says the answer. seen: a step of ZeRO-3 and the same step with prefetch, with one micro-batch;
// then both with m.
static void conclude(Run *run, const ZeroMeasured seen[4], size_t m, bool reshard) {
    const char *share = "The wall clock does not show how much";
    if (!seen[1].timing.hidden_unknown) {
        double one = percent_hidden(&seen[1].timing), several = percent_hidden(&seen[3].timing);
        share =
            page_text(run,
                      "%s: %.0f %% of the communication is hidden with one micro-batch, %.0f %% "
                      "with m = %zu, because then a micro-batch has fewer tokens to compute",
                      one > 0 ? "In part" : "No", one, several, m);
    }
    say_answer(run, "%s. With one micro-batch a step takes %s, not %s.", share,
               zero_time(run, &seen[1]), zero_time(run, &seen[0]));
    say_cost(run,
             "%s in flight instead of %s: more weights, one more gradient, and a copy of the "
             "gradient that is being sent. A rank sends %s (plain ZeRO-3: %s).",
             zero_bytes(run, &seen[1], ZERO_IN_FLIGHT), zero_bytes(run, &seen[0], ZERO_IN_FLIGHT),
             zero_bytes(run, &seen[1], ZERO_SENT), zero_bytes(run, &seen[0], ZERO_SENT));
    say_use_when(run,
                 "you use ZeRO-3, and have memory for %s, two gradients, and a copy of a gradient.",
                 reshard ? "the weights of two layers" : "nearly all weights");
}

// Prints the page. The pictures show the first two columns.
static void page(Run *run, Comm *dp, const ZeroLesson *lesson, Training t, bool reshard) {
    enum { COLUMNS = 4 };
    const ZeroLesson *way[2] = { &zero3, lesson };
    const size_t m[2] = { 1, t.micro_batches };
    const char *names[COLUMNS + 1] = { 0 };
    ZeroMeasured seen[COLUMNS];
    Result row[] = {
        { "in flight, peak", reshard ? "5 blocks instead of 2" : "L + 2 blocks, not 2", { 0 } },
        { "sent per rank", reshard ? "the same" : "2m passes instead of 3m", { 0 } },
        { "exposed, mean", "while a rank waits", { 0 } },
        { "hidden, mean", "while it computes", { 0 } },
        { "step", "the slowest rank", { 0 } },
        { 0 }
    };
    zero_say_sizes(run, dp, &t, true);
    say(run, "Communication is hidden while the rank computes, exposed while the rank waits (#).");
    for (size_t i = 0; i < COLUMNS; i++) {
        t.micro_batches = m[i / 2];
        seen[i] = zero_measure(run, dp, way[i % 2], t);
        const Timing *timing = &seen[i].timing;
        names[i] = page_text(run, "%s, m=%zu", i % 2 ? "prefetch" : "ZeRO-3", t.micro_batches);
        row[0].cell[i] = value_cell(run, seen[i].bytes[ZERO_IN_FLIGHT], "bytes");
        row[1].cell[i] = value_cell(run, seen[i].bytes[ZERO_SENT], "bytes");
        row[2].cell[i] = value_cell(run, (double)timing->exposed / (double)dp->size, "ps");
        row[3].cell[i] = value_cell(run, (double)timing->hidden / (double)dp->size, "ps");
        row[4].cell[i] = value_cell(run, (double)timing->step, "ps");
        if (i >= 2) continue;
        int what = zero_strips(run) ? PICTURE_MEMORY : PICTURE_CHART;
        what |= i == 0 ? PICTURE_NO_FILES : PICTURE_SAME_SCALE;
        picture_show(run, names[i], what | PICTURE_ALIKE_ONCE);
        if (option_flag(run, "verbose")) picture_summary(run, timing);
    }
    say(run,
        "In flight beside wte and its gradients: with ZeRO-3 a block's weights and gradient; "
        "with prefetch\nweights of %s blocks, two gradients, and a copy of the one being "
        "sent. m > 1: block/N more.",
        reshard ? "two" : "L - 1");
    results(run, names, row);
    conclude(run, seen, m[1], reshard);
}

// ---------------------------------------------------------------- the trainings

// Checks that the trainings of prefetch and ZeRO-3 are equal in every bit. Prefetch changes when
// messages are sent, not what is added.
static void compare_with_zero3(Run *run, Comm *dp, const ZeroLesson *lesson, const Training *t) {
    ZeroTrained got = zero_train(run, dp, lesson, t), want = zero_train(run, dp, &zero3, t);
    training_compare(run, "prefetch = ZeRO-3", &got.trajectory, &want.trajectory,
                     training_exact(run, t));
    zero_trained_free(lesson, &got);
    zero_trained_free(&zero3, &want);
}

static void prefetch(Run *run) {
    bool reshard = strcmp(option_text(run, "reshard-after-forward"), "yes") == 0;
    const ZeroLesson lesson = {
        .name = "ZeRO-3 with prefetch",
        .stage = 3,
        .allocate = reshard ? resharding : keeping,
        .step = prefetch_step,
        .costs = reshard ? costs_resharding : costs_keeping,
        .free = prefetch_free,
    };
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Training t = zero_training(run, dp, &tiny);

    zero_compare(run, dp, &lesson, t);
    t = zero_adamw(t, option_size(run, "micro-batches"));
    zero_compare(run, dp, &lesson, t);
    t.clip = 0.5; // below every norm: each step is clipped
    t.recorded = false;
    compare_with_zero3(run, dp, &lesson, &t);
    page(run, dp, &lesson, t, reshard);
    comm_free(dp);
}

static const Option options[] = {
    STORAGE_OPTION,
    { "reshard-after-forward", "yes|no", "yes",
      "drop weights after forward, and gather them again for backward" },
    ZERO_OPTIONS("micro-batches of each rank, in the second half")
};
EXPERIMENT(prefetch, options);
