// 02_naive.c (experiment): the pipeline's training equals the training of one device in every bit.
// Messages, memory and times of each stage equal their formulas.
#include "04_pipeline_naive/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>

// 9 blocks do not divide by 4 stages (3, 2, 2, 2). A sequence has 5 to 10 counted tokens.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};
enum { SEQUENCES = 5 };

static const StagesWay way = { "naive = unsplit", NULL, naive_step, NULL, NULL };

// One SGD step in which every sequence is a micro-batch, so that the loop has several turns.
static void one_by_one(Run *run, Training t) {
    t.micro_batches = SEQUENCES;
    t.steps = 1;
    t.recorded = false;
    t.optimizer = sgd(0.3);
    Trajectory got = trajectory_new(run, &t), want = training_unsplit(run, &t, 1);
    stages_train(run, &t, &way, &got);
    training_compare(run, "a sequence each = unsplit", &got, &want, 0);
    trajectory_free(&got);
    trajectory_free(&want);
}

// Checks pipeline_loss, which runs forwards only: on even stages, and on stages of one block each,
// except that the last stage has the rest.
static void evaluation(Run *run, const Training *t) {
    Comm *pp = run->world;
    size_t p = pp->size, *uneven = host_alloc(p * sizeof *uneven);
    for (size_t i = 0; i < p; i++) uneven[i] = i + 1 < p ? 1 : t->model.layers - (p - 1);
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = training_batches(t, &tokens, 0, 1, 0);
    double got[2], want[2] = { 0 };
    for (size_t k = 0; k < 2; k++) {
        Model *m = model_describe(&t->model,
                                  pipeline_stage_layers(&t->model, k ? uneven : NULL, p, pp->rank));
        model_allocate(m);
        got[k] = pipeline_loss(pp, m, &batch[0]); // 0 on all stages but the last
        model_free(m);
    }
    comm_all_reduce_doubles(pp, got, 2);
    ledger_pause();
    if (run->is_root) {
        Model *whole = model_describe(&t->model, model_layers(&t->model));
        model_allocate(whole);
        want[0] = model_loss(whole, &batch[0]);
        want[1] = want[0];
        model_free(whole);
    }
    ledger_resume();
    check_numbers(run, "evaluation = unsplit", "loss; even stages, and 1, 1, ... and the rest", got,
                  want, 2, 0);
    free(batch);
    free(uneven);
    arena_free(&tokens);
}

// ---------------------------------------------------------------- costs

// Ops and messages come one after the other. A micro-batch passes every stage and every link twice.
static void times(Run *run, const Training *t, const Timing *last) {
    size_t p = run->world->size, m = t->micro_batches;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    Picoseconds work = 0, transfer = 0;
    for (size_t k = 0; k < m; k++) {
        size_t B = range_size(shard_range(t->sequences, m, k));
        // A backward takes twice the time of a forward.
        for (size_t i = 0; i < p; i++) work += 3 * stage_forward_time(&t->model, p, i, B);
        transfer += 2 * (p - 1) * stage_message_time(&t->model, B);
    }
    double sums = stage_sums_time(&t->model, p); // all ranks wait for them
    check_cost(run, "step.model", "last step: work, messages, sums in a row", "ps",
               formula(work + transfer + sums), NOT_PREDICTED, last->step);

    // On equal stages, here of two blocks, a stage is idle for 1 - 1/p of the step.
    Played seen = stack_play_loop(run, &stack, pipeline_naive, m);
    StackTimes times = stack_times(&stack);
    Picoseconds f = times.forward, b = times.backward, d = times.message;
    Picoseconds step = m * (p * (f + b) + 2 * (p - 1) * d);
    check_cost(run, "step.equal", "equal stages: step", "ps", formula(step), NOT_PREDICTED,
               seen.timing.step);
    stack_check_bubble(run, "equal", "equal stages", &stack, m, formula(step), NOT_PREDICTED,
                       &seen.timing);
}

// The page's table: the model on one device and on the ranks; times of equal stages.
static void table(Run *run, const Training *t, const StageCosts *seen) {
    size_t p = run->world->size;
    CutSizes whole = stage_sizes(&t->model, 1, 0);
    const double weights = (double)(elements_stage(&whole) * weight_bytes(&t->model));
    const double kept = (double)(kept_stage_bytes(&whole) * stage_tokens(t, 0));
    Result rows[] = {
        { "loss of the last step",
          "-",
          { page_text(run, "=%.4f", seen->unsplit_loss), page_text(run, "=%.4f", seen->loss) } },
        { "weights",
          "12C^2+13C elements a block, and the ends",
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
        "  m = %zu micro-batch%s of B = %zu sequences of T = %zu tokens; width C = %zu. "
        "a..b: smallest",
        t->micro_batches, t->micro_batches > 1 ? "es" : "", t->sequences / t->micro_batches,
        t->model.context, t->model.width);
    say(run, "  and largest rank. Ends: the first rank also holds the embedding, the last rank the "
             "head.");
    if (!clock_config()->simulated) return; // real times were not compared
    StackTimes d = stack_times(&(Stack){ .model = t->model, .blocks = 2, .sequences = 1 });
    say(run,
        "  These stages are unequal, so no short formula gives the step. A second run, not drawn, "
        "has p = %zu\n  equal stages of two blocks: B = 1, forward f = %.3g us, backward b = 2f, "
        "message d = %.3g us.",
        p, (double)d.forward / 1e6, p > 1 ? (double)d.message / 1e6 : 0);
    say(run,
        "  Its step takes m(p(f+b) + 2(p-1)d) = %s, and %s of it is idle; without messages "
        "1-1/p.",
        cost_text(run, "step.equal"), cost_text(run, "idle.equal"));
}

static void answer(Run *run, const ModelConfig *c, const Timing *last) {
    size_t p = run->world->size;
    CutSizes whole = stage_sizes(c, 1, 0);
    if (p == 1)
        say_answer(run, "Yes, in every bit. But one rank holds the whole model; start 2 or more "
                        "ranks to split it.");
    else
        say_answer(run,
                   "Yes, in every bit. Each of the %zu ranks holds %s of the %.1f kB of "
                   "weights. But only one rank works at a time, so the ranks are idle for "
                   "%.0f %% of the step.",
                   p, cost_text(run, "parameters"),
                   (double)(elements_stage(&whole) * weight_bytes(c)) / 1e3,
                   100 * last->idle_of_total);
    say_cost(run,
             "%s of messages per rank and step, and the time in which a rank waits for the "
             "others.",
             cost_text(run, "sent.bytes"));
    say_use_when(run, "you want to read every message of a pipeline. To train, use 04.03.");
}

// ---------------------------------------------------------------- the lesson

static void naive(Run *run) {
    Training t = stages_training(run, &sizes, SEQUENCES);
    StageCosts seen;
    t.recorded = true;
    t.watched = MEM_ACTIVATIONS;
    one_by_one(run, t);
    stages_compare(run, &t, &way, 1, &seen);
    t.optimizer = adamw(0.01); // seen: the costs of the training with AdamW
    picture_show(run, "Naive, the last training step", PICTURE_MEMORY);
    picture_summary(run, &seen.timing);
    evaluation(run, &t);
    // A backward has buffers for dy from the next stage and for dx to the stage before.
    size_t message = stage_tokens(&t, 0) * t.model.width * weight_bytes(&t.model);
    stage_check_costs(run, &t, NULL, 1, stage_neighbours(run) * message, &seen);
    if (clock_config()->simulated) times(run, &t, &seen.timing); // real times differ
    table(run, &t, &seen);
    answer(run, &t.model, &seen.timing);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "1",
      "number of pieces of the batch; each starts after the backward of the one before" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(naive, options);
