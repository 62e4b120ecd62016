// 02_naive.c (experiment): checks that the pipeline's training equals the training of one device in
// every bit. Also checks that each stage's messages and memory and the time of a step equal their
// formulas.
#include "04_pipeline_naive/experiments/experiments.h"

// The 4 stages have 3, 2, 2 and 2 of the 9 blocks. A sequence has 5 to 10 counted tokens.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};
enum { SEQUENCES = 5 };

// Returns the predicted time of a step. Ops and messages run one after the other, so their times
// add up, also on unequal stages. A micro-batch passes every stage and every link twice. A backward
// takes twice the time of a forward.
static double step_time(const Training *t, size_t p) {
    Picoseconds work = 0, transfer = 0;
    for (size_t k = 0; k < t->micro_batches; k++) {
        size_t B = range_size(shard_range(t->sequences, t->micro_batches, k));
        for (size_t i = 0; i < p; i++) {
            CutSizes z = stage_sizes(&t->model, p, i);
            work += 3 * (Picoseconds)work_stage(&z, B).time;
        }
        transfer += 2 * (p - 1) * stage_message_time(&t->model, B);
    }
    return work + transfer + stage_sums_time(&t->model, p); // the sums come last
}

// Returns a line that gives the number of blocks of each rank and the ranks that compute longest.
// The first ranks compute longest, because they have one block more than the others, and the last
// rank's head takes less time than a block. If all ranks have equally many blocks, the line is
// empty.
static const char *cut_line(Run *run, const ModelConfig *c) {
    const size_t p = run->world->size, longer = c->layers % p;
    const char *blocks = page_text(run, "%zu", range_size(shard_range(c->layers, p, 0)));
    const char *longest = "rank 0 computes";
    if (longer == 0) return "";
    for (size_t i = 1; i < p; i++)
        blocks = page_text(run, "%s%s%zu", blocks, i + 1 < p ? ", " : " and ",
                           range_size(shard_range(c->layers, p, i)));
    if (longer > 1) longest = page_text(run, "ranks 0 to %zu compute", longer - 1);
    return page_text(run, "  The ranks have %s of the %zu blocks, so %s longest.\n", blocks,
                     c->layers, longest);
}

static void show(Run *run, const Training *t, const StageCosts *seen) {
    size_t p = run->world->size, m = t->micro_batches;
    CutSizes whole = stage_sizes(&t->model, 1, 0);
    const double weights = (double)(elements_stage(&whole) * weight_bytes(&t->model));
    const double kept = (double)(kept_stage_bytes(&whole) * stage_tokens(t, 0));
    Result rows[] = {
        { "loss of the last step",
          "-",
          { page_text(run, "=%.4f", seen->unsplit_loss), page_text(run, "=%.4f", seen->loss) } },
        { "weights",
          "12 C² + 13 C elements per block, and the ends",
          { page_text(run, "=%.1f kB", weights / 1e3), "parameters" } },
        { "activations, peak",
          "those of one micro-batch",
          { page_text(run, "=%.0f kB", kept / 1e3), "activations" } },
        { "messages sent", "m messages [B T, C] to each neighbour", { "=0 B", "sent.bytes" } },
        { 0 }
    };
    const char *ranks = page_text(run, "each of %zu ranks", p);
    results(run, (const char *const[]){ "one device", ranks, NULL }, rows);
    say(run,
        "%s  m = %zu micro-batch%s of B = %zu sequences of T = %zu tokens; width C = %zu. a..b: "
        "smallest and\n"
        "  largest value of a rank. Ends: the first rank also holds the embedding, the last rank "
        "the head.\n"
        "  A: first and last rank add wte's two gradients; all add the loss, and squares for the "
        "norm.\n"
        "  Without messages the ranks are idle for 1-1/p = %.0f %% of the step, mean over the "
        "ranks (04.03).",
        cut_line(run, &t->model), m, m > 1 ? "es" : "", t->sequences / m, t->model.context,
        t->model.width, 100 * (1 - 1 / (double)p));
    say_use_when(run, "you want to read every message of a pipeline. To train, use 04.03.");
    if (p == 1) {
        say_answer(run, "One rank holds all weights: start two or more ranks.");
        say_cost(run, "nothing is sent.");
        return;
    }
    say_answer(run, "Yes, in every bit. Each of the %zu ranks holds %s of the %.1f kB of weights.",
               p, cost_text(run, "parameters"), weights / 1e3);
    const char *tied =
        page_text(run, ", %s more on the first and the last rank for wte's gradient",
                  value_text(run,
                             (double)(t->model.vocab * t->model.width * gradient_bytes(&t->model)),
                             "bytes"));
    say_cost(run,
             "only one rank works at a time, so the ranks are idle for %.0f %% of the step. %s of "
             "messages per rank and step, %s for the sums of loss and norm%s.",
             100 * seen->timing.idle_of_total, cost_text(run, "sent.bytes"),
             cost_text(run, "sums.bytes"), tied);
}

// ---------------------------------------------------------------- the lesson

static void naive(Run *run) {
    Training t = stages_training(run, &sizes, SEQUENCES);
    const StagesWay way = { "naive = unsplit", .step = naive_step };
    const StagesWay single = { "a sequence each = unsplit", .step = naive_step };
    StageCosts seen, unused;
    // Trains one step in which each sequence is a micro-batch, so that the loop runs several
    // micro-batches even if --micro-batches is 1.
    Training one_by_one = t;
    one_by_one.micro_batches = SEQUENCES;
    one_by_one.steps = 1;
    stages_compare(run, &one_by_one, &single, 1, &unused);
    t.recorded = true;
    t.watched = MEM_ACTIVATIONS;
    stages_compare(run, &t, &way, 1, &seen);
    t.optimizer = adamw(0.01); // `seen` has the costs of the training with AdamW
    picture_show(run, "Naive, the last training step", PICTURE_MEMORY);
    picture_summary(run, &seen.timing);
    // A backward has buffers for dy from the next stage and for dx to the stage before.
    size_t message = stage_tokens(&t, 0) * t.model.width * weight_bytes(&t.model);
    stage_check_costs(run, &t, NULL, 1, stage_neighbours(run) * message, &seen);
    if (clock_config()->simulated) // real times differ from run to run
        check_cost(run, "step.model", "last step: work, messages, sums in a row", "ps",
                   formula(step_time(&t, run->world->size)), NOT_PREDICTED, seen.timing.step);
    show(run, &t, &seen);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "1",
      "number of pieces of the batch; each starts after the backward of the one before" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(naive, options);
