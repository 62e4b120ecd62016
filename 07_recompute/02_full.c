// ranks: 4
// level: core
// question: How much memory does it save to keep only a layer's input, and what does the second forward cost?
//
// Full recomputation (Chen et al. 2016) where it is needed most: in a GPipe pipeline, where stage i must hold m
// micro-batches at once, from their forward to their backward. One rank is a pipeline of one stage: the plain case.
// Three ways on the same ranks:
//
//     way                  kept for m micro-batches                   and, for one, while backward is in it
//     keep everything      every item that backward reads             -
//     recompute blocks     the input of every block                   everything of one block
//     recompute stages     the input of the stage (as GPipe does)     everything of the stage
//
// Who holds what: rank i holds the blocks of stage i. Left out: keeping as many micro-batches as fit and recomputing
// the rest.
#include "04_pipeline_naive/pipeline.h"
#include "07_recompute/counted.h"
#include "07_recompute/gpipe_time.h"
#include "07_recompute/recompute.h"
#include "common/lesson/picture.h"
#include <stdio.h>
#include <string.h>

static const ModelConfig tiny = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1 };
static const char *const way_name[WAYS] = { "keep everything", "recompute blocks", "recompute stages" };
static const char *const way_option[WAYS] = { "keep", "blocks", "stages" };

// ---------------------------------------------------------------- a stage as one layer, recomputed as a whole

// Blocks are recomputed by recompute.c. A stage is the same idea once more: a layer that walks the whole list of the
// stage.
typedef struct { Layer layer; Model *model; } Stage;

static void stage_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)s;
    Model *m = ((Stage *)l)->model;
    activation_stash_free(walk_forward(m->layers, m->n_layers, b, x, y));        // forgotten; the executor keeps x
}
static void stage_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)s;
    Model *m = ((Stage *)l)->model;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor y = tensor_new(&scratch, dy.rows, dy.cols);                 // computed again, and not needed
    ActivationStash *f = walk_forward(m->layers, m->n_layers, b, x, y);
    arena_free(&scratch);
    walk_backward(m->layers, m->n_layers, b, f, dy, dx);
}
static const LayerKind recomputed_stage = { "recomputed stage", stage_forward, stage_backward, NULL, NULL };

// ---------------------------------------------------------------- training, the same for every way

typedef struct {
    Comm *pp, *tied;                               // all stages; {first, last}, or NULL
    Way way;
    Counts counts[16];                             // of my layers, in the last step
    size_t parameters, gradients, optimizer, peak; // bytes; peak: of activations, in the last step
    size_t sends, send_bytes, other_bytes;         // messages to neighbours; tied sum, loss and norm; in the last step
    Picoseconds computing;                         // this rank, in the last step
    Timing timing;                                 // all ranks, in the last step
} Pipeline;

// One step of my stage: m forwards, m backwards, the tied sum, SGD. The norm adds squares over the stages.
static StepResult step(void *pipeline, Model *m, Optimizer *o, const Training *t, const Batch *batch) {
    Pipeline *p = pipeline;
    Stage stage = { { .kind = &recomputed_stage, .config = &m->config }, m };
    // what the executor walks: my layers, or one layer that is all of them
    Model list = *m;
    if (p->way == RECOMPUTE_STAGES) { list.layers = &stage.layer; list.n_layers = 1; }

    for (size_t i = 0; i < m->n_layers; i++) p->counts[i] = (Counts){0};
    comm_ledger_reset(p->pp);
    if (p->tied) comm_ledger_reset(p->tied);
    model_zero_gradients(m);
    Schedule s = schedule_gpipe(p->pp->size, t->micro_batches, p->pp->rank);
    double loss = pipeline_run(p->pp, &list, &s, batch, t->micro_batches).loss;
    schedule_free(&s);
    pipeline_tied_sum(m, p->tied);
    comm_all_reduce_doubles(p->pp, &loss, 1);      // zero on all stages but the last
    double norm = model_grad_norm(m, p->pp);
    optimizer_step(o, m, 1);
    return (StepResult){ loss * batch[0].token_weight, norm };
}

static Pipeline train(Comm *pp, Way way, const Training *t, Trajectory *c) {
    Pipeline p = { .pp = pp, .tied = pipeline_tied_group(pp), .way = way };
    Model *m = model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, pp->size, pp->rank));
    count_blocks(m, p.counts);
    if (way == RECOMPUTE_BLOCKS) recompute(m, RECOMPUTE_FULL);
    model_allocate(m);
    training_run(c, m, t, 1, 0, step, &p);
    p.timing = picture_timing(c->run);
    p.computing = recorded_computing();
    p.parameters = memory_now(MEM_PARAMETERS);
    p.gradients = memory_now(MEM_GRADIENTS);
    p.optimizer = memory_now(MEM_OPTIMIZER);
    p.peak = memory_peak(MEM_ACTIVATIONS);
    p.sends = pp->ledger[COMM_SEND].calls;
    p.send_bytes = pp->ledger[COMM_SEND].bytes;
    p.other_bytes = pp->ledger[COMM_ALL_REDUCE].bytes + (p.tied ? comm_bytes_sent(p.tied) : 0);
    model_free(m);
    comm_free(p.tied);
    return p;
}

// ---------------------------------------------------------------- predictions, from sizes alone

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

// Numbers that stage i keeps, at most: of all m micro-batches, and of the first one, while backward is in it.
static size_t kept(const Training *t, size_t p, size_t i, Way way) {
    const ModelConfig *c = &t->model;
    size_t C = c->width, blocks = range_size(shard_range(c->layers, p, i)), first = i == 0, last = i + 1 == p;
    size_t block = kept_block(c, c->heads, 4 * C), head = last * kept_head(c, c->vocab);
    size_t input = !first * C;                     // tokens are no activation
    // a layer's output is the next one's input; the last output leaves the stage
    size_t between = (first + blocks + last - 1) * C;
    size_t all = t->sequences * c->context, one = ceil_div(t->sequences, t->micro_batches) * c->context;
    switch (way) {
    case RECOMPUTE_BLOCKS: return all * (input + between) + (all - one) * head + one * most(block, head);
    case RECOMPUTE_STAGES: return all * input + one * (between + blocks * block + head);
    default:               return all * (input + between + blocks * block + head);
    }
}

static void costs(Run *run, const Training *t, const Pipeline *got) {
    const ModelConfig *c = &t->model;
    Way way = got->way;
    const char *name = way_name[way];
    size_t p = got->pp->size, i = got->pp->rank, first = i == 0, last = i + 1 == p, m = t->micro_batches;
    size_t C = c->width, wte = c->vocab * C, blocks = range_size(shard_range(c->layers, p, i)), e = sizeof(real);
    size_t mine = blocks * (12 * C * C + 13 * C) + first * (wte + c->context * C) + last * (2 * C + !first * wte);
    cost_of_way(run, name, "weights of my stage", "bytes", (double)(mine * e), (double)got->parameters);
    cost_of_way(run, name, "gradients, two uses of wte", "bytes", (double)((mine + (p == 1) * wte) * e),
                (double)got->gradients);
    cost_of_way(run, name, "optimizer state: SGD has none", "bytes", 0, (double)got->optimizer);
    cost_of_way(run, name, "activation peak", "bytes", (double)(kept(t, p, i, way) * e), (double)got->peak);
    size_t forwards = 0, rebuilds = 0;
    for (size_t k = 0; k < sizeof got->counts / sizeof *got->counts; k++) {
        forwards += got->counts[k].forwards;
        rebuilds += got->counts[k].rebuilds;
    }
    size_t times = way == KEEP_EVERYTHING ? 1 : 2;
    cost_of_way(run, name, "forwards of my blocks", "calls", (double)(blocks * m * times),
                (double)(forwards + rebuilds));
    // a second forward asks nobody for anything
    size_t neighbours = !first + !last;
    cost_of_way(run, name, "sent to neighbours", "calls", (double)(neighbours * m), (double)got->sends);
    cost_of_way(run, name, "sent to neighbours", "bytes", (double)(neighbours * t->sequences * c->context * C * e),
                (double)got->send_bytes);
    double tied = p > 1 && (first || last) ? ring_bytes(ALL_REDUCE_PASSES, 2, wte, e) : 0;
    double scalars = ring_bytes(ALL_REDUCE_PASSES, p, 1, sizeof(double)) +
                     ring_bytes(ALL_REDUCE_PASSES, p, config_tensors(c), sizeof(double));
    cost_of_way(run, name, "tied sum, loss and norm", "bytes", tied + scalars, (double)got->other_bytes);

    double hardware = 0, model = 0;
    for (size_t k = 0; k < p; k++) hardware += stage_work(t, p, k, way).flops;
    for (size_t k = 0; k < p; k++) model += stage_work(t, p, k, KEEP_EVERYTHING).flops;
    cost_of_way(run, name, "hardware FLOPs, all stages", "FLOPs", hardware, got->timing.flops);
    utilisations(run, name, &got->timing, model);
    if (!clock_config()->simulated) return;            // real time is as it is
    cost_of_way(run, name, "my stage computes", "ps", stage_work(t, p, i, way).time, (double)got->computing);
    cost_of_way(run, name, "step", "ps", step_time(t, p, way), (double)got->timing.step);
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, const Training *t, const Pipeline *p, Trajectory *got, Trajectory *want) {
    char what[64];
    snprintf(what, sizeof what, "%s = unsplit", way_name[p->way]);
    // The same layers with the same inputs and the same dropout, in the same order: equal in every bit.
    training_compare(run, what, got, want, 0);
    size_t blocks = range_size(shard_range(t->model.layers, p->pp->size, p->pp->rank)), first = p->pp->rank == 0;
    size_t times = p->way == KEEP_EVERYTHING ? 1 : 2;
    bool each = true;
    for (size_t i = 0; i < blocks; i++) each &= p->counts[first + i].forwards == t->micro_batches * times;
    const char *claim = times == 1 ? "each block: one forward" : "each block: exactly one forward more";
    check_true(run, way_name[p->way], claim, each);
}

static void full(Run *run) {
    Comm *pp = comm_split(run->world, 0, run->world->rank, "pp");
    Training t = { .model = tiny, .steps = option_size(run, "steps"), .sequences = option_size(run, "batch"),
                   .micro_batches = option_size(run, "micro-batches"), .optimizer = sgd(0.1),
                   .recorded = true, .watched = MEM_ACTIVATIONS };
    REQUIRE(pp->size <= tiny.layers, "%zu stages need as many blocks; the model has %zu: start at most %zu ranks",
            pp->size, tiny.layers, tiny.layers);
    REQUIRE(t.steps > 0 && t.micro_batches > 0, "--steps and --micro-batches must be at least 1");
    REQUIRE(t.sequences >= t.micro_batches, "--batch %zu leaves some of the %zu micro-batches empty: choose at least "
            "%zu", t.sequences, t.micro_batches, t.micro_batches);
    t.data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    config_require(&t.model);

    // One device that keeps everything, and takes the same micro-batches, one by one.
    Trajectory unsplit = training_unsplit(run, &t, 1);
    for (Way way = 0; way < WAYS; way++) {
        Trajectory got = trajectory_new(run, &t);
        Pipeline p = train(pp, way, &t, &got);
        bool in_file = !strcmp(option_text(run, "draw"), way_option[way]);
        picture_show(run, way_name[way], PICTURE_MEMORY | PICTURE_SAME_SCALE | (in_file ? 0 : PICTURE_NO_FILES));
        picture_summary(run, &p.timing);
        costs(run, &t, &p);
        compare(run, &t, &p, &got, &unsplit);
        trajectory_free(&got);
    }
    say(run, "%zu steps, loss %.4f -> %.4f", t.steps, unsplit.loss[0], unsplit.loss[t.steps - 1]);
    trajectory_free(&unsplit);
    data_free(&t.data);
    comm_free(pp);
}

static const Option options[] = {
    { "batch", "N", "7", "sequences in a step" },
    { "micro-batches", "N", "3", "micro-batches of a step" },
    { "steps", "N", "3", "training steps" },
    { "dropout", "X", "0.1", "probability of dropping an element" },
    { "draw", "keep|blocks|stages", "blocks", "the way whose step --svg and --trace write" },
    {0},
};
LESSON(full, options);
