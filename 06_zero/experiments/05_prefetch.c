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

static void cost_lines(Run *run, Comm *dp, const Training *t, bool reshard) {
    const ModelConfig *c = &t->model;
    size_t N = dp->size, m = t->micro_batches;
    Share wte = share_of_wte(c, N, dp->rank), others = share_of_others(c, N, dp->rank);
    double e = sizeof(real), M = (double)m, units = (double)others.units;
    double own = (double)(wte.part + others.part); // about Psi / N
    double gathers = reshard ? 2 * M : M;          // of each unit but wte, per step
    zero_cost(run, m, "state", "all state between steps: 16 / N", "bytes", 4 * own * e,
              zero_state_now());
    zero_cost(run, m, "in-flight",
              reshard ? "in flight: 3 wte, 2 units, 2 gradients, a sum"
                      : "in flight: 3 wte, all units, 2 gradients, a sum",
              "bytes", (double)prefetch_in_flight(t, N, dp->rank, reshard) * e,
              (double)memory_peak(MEM_COMMUNICATION));
    zero_cost(run, m, "in-flight.between", "in flight between steps: nothing", "bytes", 0,
              (double)memory_now(MEM_COMMUNICATION));
    zero_cost_activations(run, dp, t);
    zero_cost(run, m, "all-gather.calls",
              reshard ? "all-gather calls: 2m per unit, wte once"
                      : "all-gather calls: m per unit, wte once",
              "calls", gathers * units + 1, (double)dp->ledger[COMM_ALL_GATHER].calls);
    zero_cost(run, m, "all-gather.bytes",
              reshard ? "all-gather: 2m passes over the parameters"
                      : "all-gather: m passes over the parameters",
              "bytes", gathers * others.gather_bytes + wte.gather_bytes,
              (double)dp->ledger[COMM_ALL_GATHER].bytes);
    zero_cost(run, m, "reduce-scatter.calls", "reduce-scatter calls: m per unit, wte once", "calls",
              M * units + 1, (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    zero_cost(run, m, "reduce-scatter.bytes", "reduce-scatter: m passes over the parameters",
              "bytes", M * others.scatter_bytes + wte.scatter_bytes,
              (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
    zero_cost(run, m, "sent",
              reshard ? "all traffic: 3m units (wte 2), loss and norm"
                      : "all traffic: 2m units (wte 2), loss and norm",
              "bytes",
              gathers * others.gather_bytes + M * others.scatter_bytes + wte.gather_bytes +
                  wte.scatter_bytes + zero_scalars_bytes(c, N),
              (double)comm_bytes_sent(dp));
    if (!clock_config()->simulated) return; // real time is not predicted
    Timing timing = picture_timing(run);
    PrefetchTimes times = prefetch_times(t, N, reshard);
    zero_cost_played(run, m, "exposed", "exposed, all ranks", "ps", times.exposed,
                     (double)timing.exposed);
    zero_cost_played(run, m, "hidden", "hidden, all ranks", "ps", times.hidden,
                     (double)timing.hidden);
    zero_cost_played(run, m, "step", "step", "ps", times.step, (double)timing.step);
}
static void costs_resharding(Run *run, Comm *dp, const Training *t) {
    cost_lines(run, dp, t, true);
}
static void costs_keeping(Run *run, Comm *dp, const Training *t) { cost_lines(run, dp, t, false); }

// ---------------------------------------------------------------- the page

static const ZeroLesson zero3 = {
    .name = "ZeRO-3",
    .stage = 3,
    .allocate = zero3_allocate,
    .step = zero3_step,
};

// before: a step of ZeRO-3; after: the same step with prefetch; one micro-batch per rank. several:
// the step of m micro-batches with prefetch, or NULL.
static void answer(Run *run, const ZeroMeasured *before, const ZeroMeasured *after,
                   const ZeroMeasured *several, size_t m) {
    char step[2][32], in_flight[2][32], share[192];
    const ZeroMeasured *seen[2] = { before, after };
    for (size_t i = 0; i < 2; i++) {
        page_value(step[i], sizeof step[i], (double)seen[i]->timing.step, "ps");
        page_value(in_flight[i], sizeof in_flight[i], seen[i]->in_flight, "bytes");
    }
    double hidden = (double)after->timing.hidden, all = hidden + (double)after->timing.exposed;
    double percent = all > 0 ? 100 * hidden / all : 0;
    if (run->world->size == 1) {
        say_answer(run, "One rank sends nothing, so there is nothing to hide: a step takes %s.",
                   step[1]);
        return;
    }
    if (all == 0) {
        say_answer(run,
                   "Communication takes no time here, so there is nothing to hide: a step "
                   "takes %s.",
                   step[1]);
        return;
    }
    snprintf(share, sizeof share,
             "%s. With one micro-batch %.0f %% of the communication is hidden.",
             hidden > 0 ? "Yes" : "No", percent);
    double hidden_of_several = several ? (double)several->timing.hidden : 0;
    if (hidden > 0 && hidden_of_several > 0)
        snprintf(share, sizeof share,
                 "Yes. With one micro-batch %.0f %% of the communication is hidden. With %zu it is "
                 "%.0f %%, because each has fewer tokens to compute while a gather runs.",
                 percent, m,
                 100 * hidden_of_several / (hidden_of_several + (double)several->timing.exposed));
    if (after->timing.hidden_unknown)
        snprintf(share, sizeof share, "The wall clock does not show how much.");
    say_answer(run,
               "%s With one micro-batch a step takes %s instead of %s, and at most %s are in "
               "flight instead of %s.",
               share, step[1], step[0], in_flight[1], in_flight[0]);
}

static void conclude(Run *run, const ZeroMeasured *before, const ZeroMeasured *after,
                     const ZeroMeasured *several, size_t m) {
    bool fewer = after->sent < before->sent;
    answer(run, before, after, several, m);
    char more[32];
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

// The table's columns: ZeRO-3 and prefetch with one micro-batch, both with t's micro-batches. The
// pictures are of the first two.
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
    zero_say_sizes(run, dp, &t);
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
    say(run, "In flight, besides 3 wte: ZeRO-3 holds one block's weights and gradient. Prefetch "
             "holds");
    say(run,
        "weights of %s blocks, two gradients, and the copy being sent. If m > 1, 1/N of a "
        "block more.",
        reshard ? "two" : "L - 1");
    results(run, names, row);
    conclude(run, &seen[0], &seen[1], columns > 2 ? &seen[3] : NULL, m[1]);
}

// ---------------------------------------------------------------- the trainings

// Prefetch changes when messages are sent, not what is added: every bit is equal.
static void compare_with_zero3(Run *run, Comm *dp, const ZeroLesson *lesson, const Training *t) {
    ZeroTrained got = zero_train(run, dp, lesson, t), want = zero_train(run, dp, &zero3, t);
    training_compare_tensors(run, "prefetch = ZeRO-3", &got.trajectory, &want.trajectory,
                             exact_limit(run));
    training_compare_numbers(run, "prefetch = ZeRO-3", &got.trajectory, &want.trajectory,
                             exact_limit(run));
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

    t.optimizer = sgd(0.1);
    zero_compare(run, dp, &lesson, t, "SGD", exact_limit(run));
    t.micro_batches = option_size(run, "micro-batches");
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;
    t.recorded = true;
    zero_compare(run, dp, &lesson, t, "AdamW, weight decay 0.1",
                 t.micro_batches == 1 ? exact_limit(run) : LIMIT_ROUNDING);
    t.clip = 0.5; // below every norm: each step is clipped
    t.recorded = false;
    compare_with_zero3(run, dp, &lesson, &t);
    page(run, dp, &lesson, t, reshard);
    comm_free(dp);
}

static const Option options[] = {
    { "reshard-after-forward", "yes|no", "yes",
      "drop weights after forward, and gather them again for backward" },
    ZERO_OPTIONS("micro-batches of each rank, in the second half")
};
EXPERIMENT(prefetch, options);
