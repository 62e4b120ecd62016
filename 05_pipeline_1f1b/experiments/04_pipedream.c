// 04_pipedream.c (experiment): checks that PipeDream equals one device that runs PipeDream's
// recurrence, in every bit, and that without stashing the gradient is wrong. Compares versions,
// memory and time with those of 1F1B.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>

// A mini-batch has 3 sequences of 5 to 10 counted tokens. The 4 stages have 3, 2, 2 and 2 of the 9
// blocks.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};
// PIECES is the number of micro-batches in a step of 1F1B on equal stages.
enum { SEQUENCES = 3, STEPS = 12, PIECES = 4 };

// ---------------------------------------------------------------- trainings

// FLUSH: 1F1B with a flush and an update after every mini-batch.
// BARE: no stashing.
enum { FLUSH, STASHED, VERTICAL, BARE, WAYS };
static const VersionsWay ways[WAYS] = {
    [FLUSH] = { "flush", "flush", VERSIONS_FLUSH, NO_STASHING, false },
    [STASHED] = { "stashing", "stashing", VERSIONS_PIPEDREAM, WEIGHT_STASHING, false },
    [VERTICAL] = { "vertical", "vertical sync", VERSIONS_PIPEDREAM, VERTICAL_SYNC, false },
    [BARE] = { "no-stashing", "no stashing", VERSIONS_PIPEDREAM, NO_STASHING, false },
};

// Returns the relative error of the gradient of mini-batch 1 without stashing, over all stages. On
// all stages but the last stage the backward of mini-batch 1 reads other weights than the forward
// of mini-batch 1. The loss of mini-batch 1 has the right bits, and its gradient is wrong.
static double error_without_stashing(Run *run, const Training *t) {
    CutSizes z = stage_sizes(&t->model, run->world->size, run->world->rank);
    size_t size = elements_gradients(&z);
    Trajectory wrong = trajectory_new(run, t), right = trajectory_new(run, t);
    real *a = host_alloc(size * sizeof *a), *b = host_alloc(size * sizeof *b);
    versions_train(run, t, &ways[BARE], (VersionsRecords){ &wrong, wrong.loss, a, true });
    versions_train(run, t, &ways[STASHED], (VersionsRecords){ &right, right.loss, b, false });
    double squares[2] = { 0 };
    for (size_t e = 0; e < size; e++) {
        double off = a[e] - b[e];
        squares[0] += off * off;
        squares[1] += b[e] * b[e];
    }
    ledger_pause();
    comm_all_reduce_doubles(run->world, squares, 2);
    ledger_resume();
    double off = sqrt(squares[0] / squares[1]);
    check_numbers(run, "no stashing", "losses 0 and 1", wrong.loss, right.loss, 2, 0);
    check_true(run, "no stashing", "gradient 1 off by 1 % or more",
               run->world->size == 1 || off > 0.01);
    free(a);
    free(b);
    trajectory_free(&wrong);
    trajectory_free(&right);
    return off;
}

// Trains on text in each way. loss[way] becomes the mean loss of the last LAST mini-batches.
// Returns the number of blocks of the trained model.
enum { LONG = 160, LAST = 40 };
static size_t losses_on_text(Run *run, double loss[WAYS]) {
    Training t = versions_text(run, LONG, 4, 1);
    for (size_t way = 0; way < WAYS; way++)
        loss[way] = versions_last_loss(run, &t, &ways[way], LAST);
    data_free(&t.data);
    return t.model.layers;
}

// ---------------------------------------------------------------- the page

static void table(Run *run, double off, size_t text_blocks, const double loss[WAYS]) {
    static const char *const columns[] = { "1F1B, flush", "stashing", "vertical sync",
                                           "no stashing", NULL };
    size_t old = run->world->size - 1;
    const char *text[WAYS], *own = page_text(run, "=0..%zu", old);
    for (size_t way = 0; way < WAYS; way++) text[way] = page_text(run, "=%.2f", loss[way]);
    const Result rows[] = {
        { "4 more forwards + backwards", NULL, { "step.1f1b", "step.pipedream", "=-", "=-" } },
        { "weight versions kept",
          NULL,
          { "versions.flush", "versions.stashing", "versions.vertical", "versions.no-stashing" } },
        { "updates late", NULL, { "=0", own, page_text(run, "=%zu", old), old ? "=mixed" : "=0" } },
        { "error of the 2nd gradient",
          NULL,
          { "=0", "=0", "=0", page_text(run, "=%.0f %%", 100 * off) } },
        { page_text(run, "loss, %zu-block model on a text", text_blocks),
          NULL,
          { text[0], text[1], text[2], text[3] } },
        { 0 },
    };
    // Under the wall clock the row of times is left out.
    results(run, columns, clock_config()->simulated ? rows : rows + 1);
    say(run,
        "  Time, plus messages: 1F1B (m+p-1)(f+b), with a flush after m = %d; stashing m(f+b). f, "
        "b: times of\n"
        "  F, B. Late by n: an update changes version k with a gradient that was computed with "
        "version k - n.\n"
        "  Stage i of p: stashing p-i versions, p-1-i late; vertical sync p versions, p-1 late. "
        "mixed: "
        "only\n"
        "  F's weights are late. Error: relative, from one device whose F and B both read F's "
        "version.\n"
        "  Loss: mean of the last %d updates of one mini-batch each, so here 1F1B flushes after "
        "each of them.",
        PIECES, LAST);
}

static void answer(Run *run, double off, const double loss[WAYS]) {
    const size_t p = run->world->size;
    say_use_when(run,
                 "the bubble is large and late gradients do no harm. Large language models use "
                 "a flush.");
    const char *time = "", *error = "", *vertical = "";
    if (clock_config()->simulated && run->is_root)
        time = page_text(run, " %d more forwards + backwards take %s, with 1F1B's flush %s.",
                         PIECES, cost_text(run, "step.pipedream"), cost_text(run, "step.1f1b"));
    if (p > 1)
        error =
            page_text(run, " Without stashing the 2nd gradient is wrong by %.0f %%.", 100 * off);
    if (p > 1 && loss[BARE] < 1.03 * loss[STASHED])
        error = page_text(run,
                          "%s The loss does not show this error: %.2f without stashing, %.2f "
                          "with stashing.",
                          error, loss[BARE], loss[STASHED]);
    say_answer(run, "Yes, in every bit, with weight stashing.%s%s", time, error);
    bool highest = true;
    for (size_t way = 0; way < WAYS; way++)
        highest &= way == VERTICAL || loss[VERTICAL] > loss[way];
    if (highest)
        vertical = page_text(run,
                             " Vertical sync makes all stages %zu update%s late, and its loss is "
                             "highest: %.2f.",
                             p - 1, p == 2 ? "" : "s", loss[VERTICAL]);
    say_cost(run,
             "the weight versions, %s per rank, must fit. Late gradients: loss %.2f, with a "
             "flush %.2f.%s",
             cost_text(run, "versions.stashing"), loss[STASHED], loss[FLUSH], vertical);
}

// ---------------------------------------------------------------- the lesson

static void pipedream(Run *run) {
    require_one_link(run);
    size_t p = run->world->size;
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks",
            p, sizes.layers);
    Training t = { .model = sizes, .steps = STEPS, .sequences = SEQUENCES, .micro_batches = 1 };
    double loss[WAYS];
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    training_store(run, &t);
    say(run, "PipeDream has 1F1B's order and never runs empty. A mini-batch is the samples of one "
             "update. A stage\n"
             "updates after each backward. So on every stage but the last, weights change between "
             "F and B. Version\n"
             "n of the weights has had n updates. Stashing: a backward reads its forward's "
             "version. Vertical sync:\n"
             "stashing, and for a mini-batch all stages read the version that stage 0 reads. No "
             "stashing (a bug):\n"
             "backwards read the newest version. Flush: the pipeline runs empty before an update.");
    Stack stack = { .model = t.model, .blocks = 2, .sequences = 1 };
    equal_stages(run, &equal_ways[WAY_1F1B], &stack, PIECES, NULL, 0);
    equal_stages(run, &equal_ways[WAY_PIPEDREAM], &stack, PIECES, "PipeDream, 8 mini-batches",
                 PICTURE_NO_LINKS);
    // Under the wall clock ranks also wait for other reasons.
    if (p > 1 && clock_config()->simulated)
        say(run,
            "The end is idle only because no mini-batch follows. 1F1B with m = %d has this order, "
            "but one update.",
            2 * PIECES);
    // Backward p is the first backward of stage 0 that reads another version than 0.
    Schedule list = schedule_pipedream(WEIGHT_STASHING, p, 2 * p, 0);
    size_t ops = 0;
    while (ops < list.n && (list.ops[ops].what != BACKWARD || list.ops[ops].version == 0)) ops++;
    say(run, "Stage 0, stashing: each op, and the version of the weights that it reads. U0 makes "
             "version 1.");
    say_versions(run, &list, ops + 1);
    schedule_free(&list);
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        versions_compare(run, &t, "flush each time = unsplit", &ways[FLUSH]);
        versions_compare(run, &t, "weight stashing = recurrence", &ways[STASHED]);
        versions_compare(run, &t, "vertical sync = recurrence", &ways[VERTICAL]);
    }
    t.optimizer = sgd(0.3);
    double off = error_without_stashing(run, &t);
    size_t text_blocks = losses_on_text(run, loss);
    table(run, off, text_blocks, loss);
    answer(run, off, loss);
    data_free(&t.data);
}
static const Option options[] = {
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(pipedream, options);
