// 03_interleaved.c (experiment): checks that a training with v chunks per stage equals gradient
// accumulation in every bit, with the lesson's own loop and with the executor. Compares idle time,
// messages and activations with those of 1F1B.
#include "05_pipeline_1f1b/experiments/experiments.h"

// The 8 parts have 3, 2, 2, 2, ... of the 17 blocks. The 8 micro-batches have 3, 3, 3, 2, ... of
// the 19 sequences. A sequence has 5 to 10 counted tokens.
static const ModelConfig sizes = {
    .layers = 17, .width = 12, .heads = 3, .context = 10, .vocab = 37
};
enum { SEQUENCES = 19 };
static const double clip = 0.25;

// -------------------------------------------- equal stages: 1F1B and v chunks beside each other

// The step of 1F1B is drawn only with --verbose.
static void equal_step(Run *run, const Stack *stack, size_t m, PipelineWay which) {
    const EqualWay *way = &equal_ways[which];
    const char *name =
        which == WAY_1F1B ? way->name : page_text(run, "With v = %zu", stack->chunks);
    const char *title = page_text(run, "%s, %zu equal stages, m = %zu", name, run->world->size, m);
    equal_stages(run, way, stack, m, title,
                 equal_files(run, way) | (which == WAY_1F1B ? PICTURE_DETAIL : PICTURE_SAME_SCALE));
}

// ---------------------------------------- training, on stages and micro-batches of unequal size

// Returns the number of chunks per stage. A pipeline of one stage gets one chunk, because one stage
// has no bubble.
static size_t chunks(Run *run) { return run->world->size == 1 ? 1 : option_size(run, "chunks"); }

static Model *stage_of(Run *run, const Training *t) {
    Comm *pp = run->world;
    Model *m = interleaved_describe(&t->model, NULL, pp->size, chunks(run), pp->rank);
    model_allocate(m);
    return m;
}

// Runs the list of interleaved 1F1B with the executor.
static PipelineResult run_list(Comm *pp, Model *m, const Batch *batch, size_t micro_batches) {
    return pipeline_way_run(WAY_INTERLEAVED, pp, NULL, m, NULL, batch, micro_batches, 1);
}
static void train(Run *run, const Training *t) {
    enum { LOOP, EXECUTOR, WAYS };
    static const StagesWay ways[WAYS] = {
        { .what = "own loop = accumulation", .loop = pipeline_interleaved, .stage = stage_of },
        { .what = "interleaved = accumulation", .loop = run_list, .stage = stage_of },
    };
    StageCosts seen[WAYS];
    stages_compare(run, t, ways, WAYS, seen);
    size_t p = run->world->size, i = run->world->rank;
    check_cost(run, "loop.flight", "own loop: in flight", "chunks",
               equal_flight(&equal_ways[WAY_INTERLEAVED], p, t->micro_batches, chunks(run), i),
               NOT_PREDICTED, seen[LOOP].in_flight);
}

// ---------------------------------------------------------------- the page

static void table(Run *run, size_t v) {
    const char *const columns[] = { "1F1B", page_text(run, "v = %zu", v), NULL };
    const Result rows[] = {
        { "step", "(m+(p-1)/v)(f+b), plus messages", { "step.1f1b", "step.interleaved" } },
        { "idle, of the step",
          "(p-1)/(vm+p-1), plus messages",
          { "idle.1f1b", "idle.interleaved" } },
        { "chunks in flight",
          "min(2(p-1-i)+(v-1)p+1, mv) on stage i",
          { "flight.1f1b", "flight.interleaved" } },
        { "activations, peak of a rank",
          "bytes per chunk x in flight",
          { "activations.1f1b", "activations.interleaved" } },
        { "messages sent by a rank",
          "2vm, first and last rank (2v-1)m",
          { "sent.1f1b", "sent.interleaved" } },
        { 0 },
    };
    // Under the wall clock the rows of times are left out.
    results(run, columns, clock_config()->simulated ? rows : rows + 2);
    double most = cost_value(run, "flight.interleaved");
    say(run, "  p stages, m micro-batches, v chunks per stage (1F1B: 1); f, b: a stage's "
             "forward, backward.");
    say(run,
        "  In flight: between forward and backward. 1F1B: min(p-i, m), and a chunk is a whole "
        "stage. Here\n  a chunk is 1/%zu of a stage: %.0f chunks in flight are %.1f "
        "micro-batches.",
        v, most, most / (double)v);
}

static void answer(Run *run, size_t v) {
    if (run->is_root && clock_config()->simulated) {
        bool faster = cost_value(run, "step.interleaved") < cost_value(run, "step.1f1b");
        say_answer(run,
                   "%s. With %zu chunks per stage the step takes %s instead of %s, and %s of "
                   "it is idle instead of %s.",
                   faster ? "Yes" : "Not here", v, cost_text(run, "step.interleaved"),
                   cost_text(run, "step.1f1b"), cost_text(run, "idle.interleaved"),
                   cost_text(run, "idle.1f1b"));
    } else {
        say_answer(run, "The bits are the same. Times need the simulated clock.");
    }
    say_cost(run, "%s messages per rank instead of %s, and activations of %s instead of %s.",
             cost_text(run, "sent.interleaved"), cost_text(run, "sent.1f1b"),
             cost_text(run, "activations.interleaved"), cost_text(run, "activations.1f1b"));
    say_use_when(run, "m is only a few times p and a multiple of p, and a message takes much less "
                      "time than a chunk's forward.");
}

// ---------------------------------------------------------------- the lesson

static void interleaved(Run *run) {
    size_t p = run->world->size, v = chunks(run);
    option_default(run, "micro-batches", page_text(run, "%zu", 2 * p));
    Training t = stages_training(run, &sizes, SEQUENCES);
    size_t m = t.micro_batches;
    REQUIRE(v >= 1 && v * p <= sizes.layers,
            "--chunks %zu: %zu stages have %zu parts, and the model has %zu blocks: "
            "choose 1 to %zu, or fewer ranks",
            v, p, v * p, sizes.layers, sizes.layers / p);
    REQUIRE(v == 1 || m % p == 0,
            "--micro-batches %zu: stages with several chunks take micro-batches in groups of "
            "p = %zu; choose a multiple of %zu, or --chunks 1",
            m, p, p);
    REQUIRE(option_size(run, "tokens") >= 1, "--tokens 0: choose at least 1");
    t.clip = clip;
    t.model.dropout = option_real(run, "dropout");
    Stack stack = { .model = t.model, .blocks = v < 2 ? 2 : v, .sequences = 1, .chunks = 1 };
    stack.model.context = option_size(run, "tokens");
    equal_step(run, &stack, m, WAY_1F1B);
    stack.chunks = v;
    say(run,
        "The bubble is the idle time while the pipeline fills and drains. 1F1B (05.02) gives a "
        "stage one part");
    say(run, "of the model, so the bubble is p-1 forwards and backwards of a whole stage.");
    if (v > 1)
        say(run,
            "Interleaved, stage i has v = %zu of v p = %zu parts. Its chunks 0, 1, ... are parts "
            "i, i + p, ...\n"
            "A micro-batch passes all stages v times. The pipeline fills and drains with chunks. A "
            "chunk\n"
            "takes 1/v of the stage's time. So the bubble is v times shorter.",
            v, v * p);
    equal_step(run, &stack, m, WAY_INTERLEAVED);
    if (v > 1)
        say(run,
            "Between chunks 0 and 1 a forward's message goes from rank %zu to rank 0, a backward's "
            "from 0 to %zu.",
            p - 1, p - 1);
    train(run, &t);
    table(run, v);
    answer(run, v);
    data_free(&t.data);
}

static const Option options[] = {
    { "chunks", "N", "2", "v, the parts of the model on each stage; 1 is 1F1B" },
    { "micro-batches", "N", NULL, "pieces the batch is cut into; without it: twice the stages" },
    { "tokens", "N", "10",
      "of a micro-batch on equal stages: with few, messages take longer than work" },
    { "dropout", "X", "0.1", "probability of dropping an element; at 0 less is kept" },
    { "draw", "1f1b|interleaved", "interleaved",
      "the schedule whose picture --svg and --trace write" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(interleaved, options);
