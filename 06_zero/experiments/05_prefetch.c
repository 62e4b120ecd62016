// Compares prefetching ZeRO-3 with plain ZeRO-3, data parallelism and the unsplit model.
#include "06_zero/experiments/experiments.h"
#include <stdio.h>
#include <string.h>

// Four blocks. With two, both are in flight together, so keeping all units would cost no memory.
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

// ---------------------------------------------------------------- the page

static const ZeroLesson zero3 = {
    .name = "ZeRO-3",
    .stage = 3,
    .allocate = zero3_allocate,
    .step = zero3_step,
};

static double percent_hidden(const ZeroMeasured *seen) {
    double all = (double)(seen->timing.hidden + seen->timing.exposed);
    return all > 0 ? 100 * (double)seen->timing.hidden / all : 0;
}

// before: a step of ZeRO-3; after: the same step with prefetch; one micro-batch per rank. several:
// the step of m micro-batches with prefetch.
static void conclude(Run *run, const ZeroMeasured *before, const ZeroMeasured *after,
                     const ZeroMeasured *several, size_t m) {
    char step[2][32], in_flight[2][32], more[32], share[96] = "", later[120] = "";
    const ZeroMeasured *seen[2] = { before, after };
    for (size_t i = 0; i < 2; i++) {
        page_value(step[i], sizeof step[i], (double)seen[i]->timing.step, "ps");
        page_value(in_flight[i], sizeof in_flight[i], seen[i]->in_flight, "bytes");
    }
    double percent = percent_hidden(after);
    if (after->timing.hidden_unknown)
        snprintf(share, sizeof share, "The wall clock does not show how much.");
    else if (after->timing.hidden + after->timing.exposed == 0)
        snprintf(share, sizeof share, "No communication takes time here.");
    else
        snprintf(share, sizeof share,
                 "%s. With one micro-batch %.0f %% of the communication is hidden.",
                 percent > 0 ? "Yes" : "No", percent);
    if (m > 1 && percent > 0 && percent_hidden(several) > 0)
        snprintf(later, sizeof later,
                 " With %zu it is %.0f %%, because each has fewer tokens to compute while a gather "
                 "runs.",
                 m, percent_hidden(several));
    say_answer(run,
               "%s%s With one micro-batch a step takes %s instead of %s, and at most %s are in "
               "flight instead of %s.",
               share, later, step[1], step[0], in_flight[1], in_flight[0]);
    bool fewer = after->sent < before->sent;
    page_value(more, sizeof more, after->in_flight - before->in_flight, "bytes");
    say_cost(run,
             "%s more memory, for %s, one more gradient and the copy being sent. The "
             "bytes sent are %s.",
             more, fewer ? "the weights of more blocks" : "the weights of one more block",
             fewer ? "fewer, because weights stay from forward to backward" : "the same");
    say_use_when(run,
                 "you use ZeRO-3, and the weights of %s, two gradients and the copy being "
                 "sent fit in memory beside the rank's parts.",
                 fewer ? "nearly all layers" : "two layers");
}

// The table's columns: ZeRO-3 and prefetch with one micro-batch, then ZeRO-3 and prefetch with t's
// micro-batches. The pictures show the first two columns.
static void page(Run *run, Comm *dp, const ZeroLesson *lesson, Training t, bool reshard) {
    const ZeroLesson *way[2] = { &zero3, lesson };
    ZeroMeasured seen[4];
    enum { ROWS = 5 };
    size_t m[2] = { 1, t.micro_batches }, columns = m[1] > 1 ? 4 : 2;
    char text[ROWS][4][24], heads[4][32];
    const char *names[5] = { 0 };
    Result row[ROWS + 1] = {
        { "in flight, peak", reshard ? "5 blocks instead of 2" : "L + 2 blocks, not 2", { 0 } },
        { "sent per rank", reshard ? "the same" : "2m passes instead of 3m", { 0 } },
        { "exposed, mean", "while a rank waits", { 0 } },
        { "hidden, mean", "while it computes", { 0 } },
        { "step", "the slowest rank", { 0 } }
    };
    zero_say_sizes(run, dp, &t, true);
    say(run, "Communication is hidden while the rank computes, exposed while the rank waits (#).");
    for (size_t i = 0; i < columns; i++) {
        t.micro_batches = m[i / 2];
        seen[i] = zero_measure(run, dp, way[i % 2], t);
        snprintf(heads[i], sizeof heads[i], "%s, m=%zu", i % 2 ? "prefetch" : "ZeRO-3",
                 t.micro_batches);
        names[i] = heads[i];
        page_cell(text[0][i], seen[i].in_flight, "bytes");
        page_cell(text[1][i], seen[i].sent, "bytes");
        page_cell(text[2][i], (double)seen[i].timing.exposed / (double)dp->size, "ps");
        page_cell(text[3][i], (double)seen[i].timing.hidden / (double)dp->size, "ps");
        page_cell(text[4][i], (double)seen[i].timing.step, "ps");
        for (size_t k = 0; k < ROWS; k++) row[k].cell[i] = text[k][i];
        if (i >= 2) continue;
        int what = zero_strips(run) ? PICTURE_MEMORY : PICTURE_CHART;
        what |= i == 0 ? PICTURE_NO_FILES : PICTURE_SAME_SCALE;
        picture_show(run, heads[i], what | PICTURE_ALIKE_ONCE);
        if (option_flag(run, "verbose")) picture_summary(run, &seen[i].timing);
    }
    say(run, "In flight, besides wte and its two gradients: with ZeRO-3 one block's weights and "
             "gradient; with");
    say(run,
        "prefetch weights of %s blocks, two gradients, and the copy being sent. If m > 1, block/N "
        "more.",
        reshard ? "two" : "L - 1");
    results(run, names, row);
    conclude(run, &seen[0], &seen[1], &seen[columns - 1], m[1]);
}

// ---------------------------------------------------------------- the trainings

// Prefetch changes when messages are sent, not what is added: every bit is equal.
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

    zero_compare(run, dp, &lesson, t, training_exact(run, &t));
    t = zero_adamw(t, option_size(run, "micro-batches"));
    zero_compare(run, dp, &lesson, t, zero_limit(run, &t));
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
