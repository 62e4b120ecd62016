// 02_1f1b.c (experiment): checks that 1F1B equals gradient accumulation and GPipe in every bit,
// with its own loops and with the executor. Measures 1F1B and GPipe on equal stages.
#include "05_pipeline_1f1b/experiments/experiments.h"

// The 7 micro-batches have 2, 2, 2, 2, 1, 1 and 1 of the 11 sequences. A sequence has 5 to 10
// counted tokens. The 4 stages have 3, 2, 2 and 2 of the 9 blocks.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37
};
enum { SEQUENCES = 11, MICRO = 8 }; // MICRO: micro-batches on equal stages
static const double clip = 0.25;

// ----------------------------------------------- equal stages: GPipe and 1F1B beside each other

static void beside_each_other(Run *run, const Training *t) {
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    for (size_t k = WAY_GPIPE; k <= WAY_1F1B; k++) {
        const EqualWay *way = &equal_ways[k];
        const char *title =
            page_text(run, "%s, %zu equal stages, m = %d", way->name, run->world->size, MICRO);
        int scale = k == WAY_1F1B ? PICTURE_SAME_SCALE : 0;
        equal_stages(run, way, &stack, MICRO, title, equal_files(run, way) | scale);
    }
}

// ---------------------------------------------------------------- the page

static void table(Run *run) {
    static const char *const columns[] = { "GPipe", "1F1B", NULL };
    static const Result rows[] = {
        { "step", "(m+p-1)(f+b), plus messages", { "step.gpipe", "step.1f1b" } },
        { "idle, of the step", "(p-1)/(m+p-1), plus messages", { "idle.gpipe", "idle.1f1b" } },
        { "micro-batches in flight",
          "GPipe m, 1F1B min(p-i, m) on stage i",
          { "flight.gpipe", "flight.1f1b" } },
        { "activations, peak of a rank",
          "bytes per micro-batch x in flight",
          { "activations.gpipe", "activations.1f1b" } },
        { "messages sent by a rank", "m to each neighbour", { "sent.gpipe", "sent.1f1b" } },
        { 0 },
    };
    // Under the wall clock times are not predicted, so the first two rows are left out.
    results(run, columns, clock_config()->simulated ? rows : rows + 2);
    say(run, "  p stages, m micro-batches; f, b: forward, backward. Flush: no update before "
             "all backwards end.");
}

static void answer(Run *run) {
    const char *time = "";
    if (clock_config()->simulated && run->is_root) {
        const char *step =
            compare_times(run, cost_value(run, "step.1f1b"), cost_value(run, "step.gpipe"));
        time = page_text(run, " in %s, %s GPipe", cost_text(run, "step.1f1b"), step);
    }
    say_answer(run,
               "Yes. 1F1B gives the same weights%s. Micro-batches in memory per rank: %s instead "
               "of %d.",
               time, cost_text(run, "flight.1f1b"), MICRO);
    say_cost(run, "no extra messages. But in its steady state a stage waits for the gradient of an "
                  "earlier micro-batch, so a slow link costs more time than with GPipe.");
    say_use_when(run,
                 "each step ends with a flush. 1F1B replaces GPipe, and saves most if m is far "
                 "above p.");
}

// ---------------------------------------------------------------- the lesson

static void one_forward_one_backward(Run *run) {
    Training t = stages_training(run, &sizes, SEQUENCES);
    size_t p = run->world->size, i = run->world->rank, m = t.micro_batches;
    t.clip = clip;
    t.watched = MEM_ACTIVATIONS;
    t.recorded = true;
    t.model.dropout = option_real(run, "dropout");
    beside_each_other(run, &t);
    enum { LOOPS, GPIPE_LIST, LIST, WAYS };
    static const StagesWay ways[WAYS] = {
        { .what = "1F1B, own loops = accumulation", .loop = pipeline_1f1b },
        { "GPipe = accumulation", "GPipe, the last step", .step = pipeline_step,
          .schedule = schedule_gpipe },
        { "1F1B = accumulation", "1F1B, the last step", .step = pipeline_step,
          .schedule = schedule_1f1b },
    };
    StageCosts seen[WAYS];
    stages_compare(run, &t, ways, WAYS, seen);
    t.optimizer = adamw(0.01); // `seen` has the costs of the trainings with AdamW
    size_t buffers = stage_message_buffers(&t, p, i), flight = p - i < m ? p - i : m;
    stage_check_loop(run, &t, pipeline_1f1b, schedule_1f1b, flight, &seen[LOOPS]);
    stage_check_costs(run, &t, "gpipe", m, buffers, &seen[GPIPE_LIST]);
    stage_check_costs(run, &t, NULL, flight, buffers, &seen[LIST]);
    table(run);
    answer(run);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "7", "pieces the batch is cut into" },
    { "dropout", "X", "0.1", "probability of dropping an element; at 0 less is kept" },
    STORAGE_OPTION,
    { "draw", "gpipe|1f1b", "1f1b", "the schedule whose picture --svg and --trace write" },
    { 0 },
};
EXPERIMENT(one_forward_one_backward, options);
