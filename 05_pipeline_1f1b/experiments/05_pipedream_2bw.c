// 05_pipedream_2bw.c (experiment): checks that 2BW equals one device whose gradients are one update
// late, in every bit. Compares GPipe, 1F1B, PipeDream and 2BW on equal stages.
#include "05_pipeline_1f1b/experiments/experiments.h"

// A batch has 11 sequences of 5 to 10 counted tokens. The 4 stages have 3, 2, 2 and 2 of the 9
// blocks.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};
enum { SEQUENCES = 11, STEPS = 5 };

// f_t is the loss of batch t, and W(t) are the weights after t updates. With a flush W(t+1) = W(t)
// - eta grad f_t(W(t)). In 2BW the gradient is grad f_t(W(t-1)).
static const VersionsWay flushed = {
    .id = "flush", .name = "flush", .order = VERSIONS_FLUSH, .two_buffers = true
};
static const VersionsWay late = {
    .id = "training", .name = "2BW", .order = VERSIONS_2BW, .two_buffers = true
};

// Returns m of the picture and of the training on text. 2BW needs at least one per stage.
static size_t page_micro_batches(const Run *run) {
    const size_t p = run->world->size;
    return p < 4 ? 4 : p;
}

// Trains on text. The mean loss of the last LAST batches becomes loss[0] with a flush, and loss[1]
// with 2BW. Returns the number of blocks of the trained model.
enum { LONG = 80, LAST = 20 };
static size_t losses_on_text(Run *run, double loss[2]) {
    const size_t m = page_micro_batches(run);
    Training t = versions_text(run, LONG, m, m);
    loss[0] = versions_last_loss(run, &t, &flushed, LAST);
    loss[1] = versions_last_loss(run, &t, &late, LAST);
    data_free(&t.data);
    return t.model.layers;
}

// ---------------------------------------------------------------- equal stages: four ways

enum { WAYS = 4 };
static const size_t ways[WAYS] = { WAY_GPIPE, WAY_1F1B, WAY_PIPEDREAM, WAY_2BW };

static void four_ways(Run *run, const Training *t) {
    const size_t p = run->world->size, m = page_micro_batches(run);
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    for (size_t k = 0; k < WAYS; k++)
        equal_stages(run, &equal_ways[ways[k]], &stack, m,
                     ways[k] == WAY_2BW ? "2BW, two batches" : NULL, PICTURE_NO_LINKS);
    if (clock_config()->simulated) // under the wall clock updates take time
        say(run,
            "U0, the update of batch 0, follows B%zu on each rank and takes no time on this clock.",
            m - 1);
    // The third batch is the first batch that reads another version than 0.
    Schedule list = schedule_2bw(p, m, 3, 0);
    size_t ops = 0;
    while (ops < list.n && !(list.ops[ops].what == UPDATE && list.ops[ops].micro_batch == 1)) ops++;
    say(run, "Stage 0: ops, and the version of the weights that each reads. U0 makes version 1, "
             "U1 version 2.");
    say_versions(run, &list, ops + 1);
    schedule_free(&list);
}

// ---------------------------------------------------------------- the page

static void table(Run *run, size_t text_blocks, const double loss[2]) {
    enum { COSTS = 4 };
    static const char *const id[COSTS] = { "step", "versions", "weights", "activations" };
    size_t old = run->world->size - 1;
    const char *columns[WAYS + 1] = { NULL };
    const char *none = page_text(run, "=%.2f", loss[0]), *late = page_text(run, "=%.2f", loss[1]);
    const char *own = page_text(run, "=0..%zu", old);
    Result rows[] = { { .what = "each further batch" },
                      { .what = "weight versions kept" },
                      { .what = "weights of all versions" },
                      { .what = "activations, peak" },
                      { "updates late", NULL, { "=0", "=0", own, "=1" } },
                      { page_text(run, "loss, %zu-block model on a text", text_blocks),
                        NULL,
                        { none, none, "=-", late } },
                      { 0 } };
    for (size_t k = 0; k < WAYS; k++) {
        columns[k] = equal_ways[ways[k]].name;
        for (size_t q = 0; q < COSTS; q++)
            rows[q].cell[k] = page_text(run, "%s.%s", id[q], equal_ways[ways[k]].id);
    }
    results(run, columns, clock_config()->simulated ? rows : rows + 1);
    say(run, "  Time: GPipe, 1F1B (m+p-1)(f+b), others m(f+b); f, b: a stage's "
             "forward, backward.");
    say(run, "  Stage i of p: GPipe keeps activations of m micro-batches, the others of p-i. "
             "PipeDream keeps p-i");
    say(run,
        "  versions and is p-1-i late. Loss: mean of the last %d batches (PipeDream updates per "
        "micro-batch).",
        LAST);
}

static void answer(Run *run, const double loss[2]) {
    const char *time = "";
    size_t p = run->world->size;
    if (clock_config()->simulated && run->is_root) {
        const char *batch =
            compare_times(run, cost_value(run, "step.2bw"), cost_value(run, "step.1f1b"));
        time = page_text(run, "%s%zu a further batch takes %s, %s with 1F1B.",
                         p < 4 ? " With m = " : " The gain is largest if m = p: for p = ",
                         p < 4 ? (size_t)4 : p, cost_text(run, "step.2bw"), batch);
    }
    say_answer(run,
               "Yes, with at least as many micro-batches as stages. The result equals, in "
               "every bit, one device whose gradients are one update late.%s",
               time);
    say_cost(run,
             "one more version, so weights of %s per rank instead of %s; and late gradients: "
             "on a text the loss is %.2f instead of %.2f.",
             cost_text(run, "weights.2bw"), cost_text(run, "weights.1f1b"), loss[1], loss[0]);
    say_use_when(run,
                 "m is at least p and only a few times p, and an update that is one batch late "
                 "is acceptable.");
}

// ---------------------------------------------------------------- the lesson

static void two_bw(Run *run) {
    size_t p = run->world->size;
    option_default(run, "micro-batches", page_text(run, "%zu", p));
    Training t = stages_training(run, &sizes, SEQUENCES);
    t.steps = STEPS;
    REQUIRE(t.micro_batches >= p,
            "--micro-batches %zu: 2BW takes at least as many as the %zu stages, because two "
            "versions of the weights then suffice (arXiv 2006.09503, section 3.1)",
            t.micro_batches, p);
    double loss[2];
    const size_t m = page_micro_batches(run);
    say(run,
        "2BW (double-buffered weights) updates once per batch of m = %zu micro-batches, and keeps "
        "two versions.\nBatch t reads version t-1 (batch 0: version 0), so no batch waits for the "
        "update before it. When\nU0 makes version 1, stage 0 has begun p-1 later micro-batches. "
        "If m >= p, all of them belong to\nbatch 1, so batch 2 (from F%zu on) finds version 1. "
        "B%zu is the last op that reads version 0. Then U1\nreplaces version 0 by version 2. So "
        "two versions are enough.",
        m, 2 * m, 2 * m - 1);
    if (p > 1)
        say(run, "After a batch the first and the last rank also exchange the gradients of their "
                 "shared table.");
    four_ways(run, &t);
    t.optimizer = sgd(0.3);
    versions_compare(run, &t, "with a flush = unsplit", &flushed);
    versions_compare(run, &t, "2BW = one update late", &late);
    t.optimizer = adamw(0.01);
    versions_compare(run, &t, "2BW = one update late", &late);
    size_t text_blocks = losses_on_text(run, loss);
    table(run, text_blocks, loss);
    answer(run, loss);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", NULL, "of a batch; default: as many as stages" },
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(two_bw, options);
