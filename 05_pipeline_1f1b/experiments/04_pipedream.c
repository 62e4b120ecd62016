// 04_pipedream.c (experiment): PipeDream equals one device that runs its recurrence, in every bit.
// Without stashing its gradient is wrong. Compares versions, memory and time with 1F1B's.
// tests/lists.t has the lists of other sizes.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// Mini-batches of 3 sequences of 5 to 10 counted tokens; 9 blocks on 4 stages: 3, 2, 2, 2.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};
// PIECES: mini-batches on equal stages.
enum { SEQUENCES = 3, STEPS = 12, PIECES = 4 };

// ---------------------------------------------------------------- trainings

// SYNCHRONOUS: a flush and an update after every mini-batch. BARE: no stashing.
enum { SYNCHRONOUS, STASHED, VERTICAL, BARE, WAYS };
static const struct {
    const char *id, *name;
    PipeDreamRule rule;
} ways[WAYS] = {
    [SYNCHRONOUS] = { "flush", "flush", NO_STASHING },
    [STASHED] = { "stashing", "stashing", WEIGHT_STASHING },
    [VERTICAL] = { "vertical", "vertical sync", VERTICAL_SYNC },
    [BARE] = { "no-stashing", "no stashing", NO_STASHING },
};

static VersionsList list_of(Run *run, size_t way, size_t n) {
    size_t p = run->world->size, i = run->world->rank;
    return (VersionsList){ .list = way == SYNCHRONOUS ? schedule_flushed(p, 1, i, n)
                                                      : schedule_pipedream(ways[way].rule, p, n, i),
                           .older = pipedream_older(ways[way].rule, p, i) };
}

// Stage i reads weights that are this many updates older than the newest ones.
static size_t age_of(size_t way, size_t p, size_t i) {
    return way == STASHED ? p - 1 - i : way == VERTICAL ? p - 1 : 0;
}

static void training_costs(Run *run, const Training *t, size_t way, const VersionsSeen *seen) {
    size_t p = run->world->size, i = run->world->rank, flight = p - i < t->steps ? p - i : t->steps;
    versions_check_costs(run, t, ways[way].id, ways[way].name, 1 + age_of(way, p, i),
                         way == SYNCHRONOUS ? 1 : flight, seen);
}

// The training must equal the recurrence on one device in every bit. AdamW's costs are checked.
static void equals_recurrence(Run *run, const Training *t, size_t way, const char *what) {
    size_t *age = host_alloc(run->world->size * sizeof *age);
    for (size_t i = 0; i < run->world->size; i++) age[i] = age_of(way, run->world->size, i);
    VersionsSeen seen = versions_compare(run, t, what, list_of(run, way, t->steps), age);
    if (t->optimizer.kind == ADAMW) training_costs(run, t, way, &seen);
    versions_seen_free(&seen);
    free(age);
}

// |a - b| / |b| over all stages, of the gradients of mini-batch 1.
static double deviation(Run *run, const VersionsSeen *a, const VersionsSeen *b) {
    double squares[2] = { 0 };
    for (size_t e = 0; e < a->size; e++) {
        squares[0] += (a->second[e] - b->second[e]) * (a->second[e] - b->second[e]);
        squares[1] += b->second[e] * b->second[e];
    }
    ledger_pause();
    comm_all_reduce_doubles(run->world, squares, 2);
    ledger_resume();
    return sqrt(squares[0] / squares[1]);
}

// Without stashing, all stages but the last walk mini-batch 1 back through weights that its forward
// never read. The loss of mini-batch 1 has the right bits, and its gradient is wrong. Returns the
// relative error.
static double no_stashing(Run *run, const Training *t) {
    Trajectory wrong = trajectory_new(run, t), right = trajectory_new(run, t);
    VersionsSeen bare = versions_train(run, t, list_of(run, BARE, t->steps), &wrong);
    VersionsSeen stashed = versions_train(run, t, list_of(run, STASHED, t->steps), &right);
    double off = deviation(run, &bare, &stashed);
    training_costs(run, t, BARE, &bare);
    check_numbers(run, "no stashing", "losses 0 and 1", wrong.loss, right.loss, 2, 0);
    if (run->world->size == 1)
        check_equal(run, "no stashing, one stage", wrong.weights, right.weights);
    check_true(run, "no stashing", "gradient 1 off by 1 % or more",
               run->world->size == 1 || off > 0.01);
    versions_seen_free(&bare);
    versions_seen_free(&stashed);
    trajectory_free(&wrong);
    trajectory_free(&right);
    return off;
}

// loss[way]: the mean loss of the last mini-batches of a training on text.
enum { LONG = 160, LAST = 40 };
static void losses_on_text(Run *run, double loss[WAYS]) {
    Training t = versions_text(run, LONG, 4, 1);
    for (size_t way = 0; way < WAYS; way++)
        loss[way] = versions_last_loss(run, &t, list_of(run, way, LONG), LAST);
    data_free(&t.data);
}

// ---------------------------------------------------------------- the table of the page

static void table(Run *run, double off, const double loss[WAYS]) {
    size_t old = run->world->size - 1;
    char text[WAYS][16], age[WAYS][16] = { "=0" }, wrong[16];
    for (size_t way = 0; way < WAYS; way++) snprintf(text[way], sizeof *text, "=%.2f", loss[way]);
    snprintf(age[STASHED], sizeof *age, old ? "=0..%zu" : "=%zu", old);
    snprintf(age[VERTICAL], sizeof *age, "=%zu", old);
    snprintf(age[BARE], sizeof *age, old ? "=mixed" : "=0");
    snprintf(wrong, sizeof wrong, "=%.0f %%", 100 * off);
    const Result rows[] = {
        { "time of 4 more mini-batches", NULL, { "batch.1f1b", "batch.pipedream", "=-", "=-" } },
        { "weight versions kept",
          NULL,
          { "versions.flush", "versions.stashing", "versions.vertical", "versions.no-stashing" } },
        { "weights of all versions, per rank",
          NULL,
          { "weights.flush", "weights.stashing", "weights.vertical", "weights.no-stashing" } },
        { "updates late", NULL, { age[0], age[1], age[2], age[3] } },
        { "error of the 2nd gradient", NULL, { "=0", "=0", "=0", wrong } },
        { "loss on a text, last 40 updates", NULL, { text[0], text[1], text[2], text[3] } },
        { 0 },
    };
    results(run,
            (const char *const[]){ "1F1B, flush", "stashing", "vertical sync", "no stashing",
                                   NULL },
            clock_config()->simulated ? rows : rows + 1); // real clock: no row of times
    say(run, "  Updates late: updates between the read of a weight and the use of its gradient. "
             "mixed: the forward");
    say(run, "  reads old weights, the backward new ones. On stage i of p, stashing keeps p-i "
             "versions and is");
    say(run,
        "  p-1-i updates late; vertical sync keeps p and is p-1 late. Time, m = %d on the "
        "picture's "
        "equal",
        PIECES);
    say(run,
        "  stages: 1F1B (m+p-1)(F+B), stashing m(F+B). Weights: of %zu blocks. Loss: 1F1B flushes "
        "each time.",
        sizes.layers);
}

static void answer(Run *run, double off, const double loss[WAYS]) {
    size_t old = run->world->size - 1;
    char time[160] = "", curve[128] = "";
    say_use_when(run, "the bubble is large, old gradients do no harm, and the versions fit. Large "
                      "language models use a flush instead.");
    if (old == 0) {
        say_answer(run, "Yes, in every bit. But one stage has no bubble and no old weights.");
        return;
    }
    if (clock_config()->simulated && run->is_root)
        snprintf(time, sizeof time,
                 " Once it runs, %d more mini-batches take %s; 1F1B, which "
                 "runs empty after every %d, takes %s.",
                 PIECES, cost_text(run, "batch.pipedream"), PIECES, cost_text(run, "batch.1f1b"));
    if (loss[BARE] < 1.02 * loss[STASHED])
        snprintf(curve, sizeof curve, ", but the loss, %.2f, does not show the error", loss[BARE]);
    say_answer(run,
               "Yes, in every bit, if each stage stashes weights.%s Without stashing the 2nd "
               "gradient is wrong by %.0f %%%s.",
               time, 100 * off, curve);
    say_cost(run, "%s versions of weights per rank, and old gradients: loss %.2f instead of %.2f.",
             cost_text(run, "versions.stashing"), loss[STASHED], loss[SYNCHRONOUS]);
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
    say(run, "1F1B ends each step with a flush: it runs empty, then updates. PipeDream updates "
             "after each backward");
    say(run,
        "and goes on; the picture ends after %d mini-batches (micro-batches with an update "
        "each). Stashing: a",
        2 * PIECES);
    say(run, "stage keeps the weights of a forward until its backward ends. Vertical sync: a "
             "mini-batch reads");
    say(run, "weights of one age on all stages. With 1F1B and m = 4 rank 0 would start F4 only "
             "after B3.");
    Stack stack = { .model = t.model, .blocks = 2, .sequences = 1 };
    pipeline_way_measure(run, &pipeline_ways[EQUAL_1F1B], &stack, PIECES, NULL);
    pipeline_way_measure(run, &pipeline_ways[EQUAL_PIPEDREAM], &stack, PIECES,
                         "PipeDream, 8 mini-batches");
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        equals_recurrence(run, &t, SYNCHRONOUS, "flush each time = unsplit");
        equals_recurrence(run, &t, STASHED, "weight stashing = recurrence");
        equals_recurrence(run, &t, VERTICAL, "vertical sync = recurrence");
    }
    t.optimizer = sgd(0.3);
    double off = no_stashing(run, &t);
    losses_on_text(run, loss);
    table(run, off, loss);
    answer(run, off, loss);
    data_free(&t.data);
}
static const Option options[] = {
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(pipedream, options);
