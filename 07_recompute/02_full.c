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
#include "07_recompute/recompute.h"
#include "common/course.h"
#include <stdio.h>

static const ModelConfig tiny = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1 };
typedef enum { KEEP_EVERYTHING, RECOMPUTE_BLOCKS, RECOMPUTE_STAGES, WAYS } Way;
static const char *const way_name[WAYS] = { "keep everything", "recompute blocks", "recompute stages" };

// ---------------------------------------------------------------- a stage as one layer, recomputed as a whole

// Blocks are recomputed by recompute.c. A stage is the same idea once more: a layer that walks the whole list of the
// stage.
typedef struct { Layer layer; Model *model; } Stage;

static void stage_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)s;
    Model *m = ((Stage *)l)->model;
    flight_free(walk_forward(m->layers, m->n_layers, b, x, y));        // forgotten; the executor keeps x
}
static void stage_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)s;
    Model *m = ((Stage *)l)->model;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor y = tensor_new(&scratch, dy.rows, dy.cols);                 // computed again, and not needed
    Flight *f = walk_forward(m->layers, m->n_layers, b, x, y);
    arena_free(&scratch);
    walk_backward(m->layers, m->n_layers, b, f, dy, dx);
}
static const LayerKind recomputed_stage = { "recomputed stage", stage_forward, stage_backward, NULL, NULL };

// ---------------------------------------------------------------- training, the same for every way

typedef struct {
    Comm *pp, *tied;                               // all stages; {first, last}, or NULL
    Way way;
    Counts counts[16];                             // of my layers, in the last step
    size_t peak, send_bytes;                       // activations; messages to neighbours; in the last step
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

static Pipeline train(Comm *pp, Way way, const Training *t, Course *c) {
    Pipeline p = { .pp = pp, .tied = pipeline_tied_group(pp), .way = way };
    Model *m = model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, pp->size, pp->rank));
    count_blocks(m, p.counts);
    if (way == RECOMPUTE_BLOCKS) recompute(m, RECOMPUTE_FULL);
    model_allocate(m);
    course_train(c, m, t, 1, 0, step, &p);
    p.peak = memory_peak(MEM_ACTIVATIONS);
    p.send_bytes = pp->ledger[COMM_SEND].bytes;
    model_free(m);
    comm_free(p.tied);
    return p;
}

// ---------------------------------------------------------------- predictions, from sizes alone

static void costs(Run *run, const Training *t, const Pipeline *got) {
    Comm *pp = got->pp;
    Way way = got->way;
    const ModelConfig *c = &t->model;
    size_t C = c->width, blocks = range_size(shard_range(c->layers, pp->size, pp->rank));
    bool first = pp->rank == 0, last = pp->rank + 1 == pp->size;
    // Numbers a token: two norm outputs and their statistics; q, k, v; heads' output; middle; fc and its GELU;
    // probabilities, dropped and not.
    size_t block = 2 * C + 4 + 3 * C + C + C + 8 * C + 2 * c->heads * c->context;
    size_t head = last ? C + 2 + c->vocab + 1 : 0;                     // last norm, its statistics, logits, their sum
    size_t input = first ? 0 : C;                                      // tokens are no activation
    // a layer's output is the next one's input; the last output leaves the stage
    size_t between = (first + blocks + last - 1) * C;
    // tokens: of m micro-batches, of the first
    size_t m = t->micro_batches, all = t->sequences * c->context, one = ceil_div(t->sequences, m) * c->context;
    size_t numbers = 0;
    if (way == KEEP_EVERYTHING) numbers = all * (input + between + blocks * block + head);
    size_t worst = block > head ? block : head;                        // of the last stage: whichever backward is in
    if (way == RECOMPUTE_BLOCKS) numbers = all * (input + between) + (all - one) * head + one * worst;
    if (way == RECOMPUTE_STAGES) numbers = all * input + one * (between + blocks * block + head);

    size_t forwards = 0, rebuilds = 0;
    for (size_t i = 0; i < sizeof got->counts / sizeof *got->counts; i++) {
        forwards += got->counts[i].forwards;
        rebuilds += got->counts[i].rebuilds;
    }
    char name[64];
    snprintf(name, sizeof name, "%s: activation peak", way_name[way]);
    cost(run, name, "bytes", (double)(numbers * sizeof(real)), (double)got->peak);
    snprintf(name, sizeof name, "%s: forwards of my blocks", way_name[way]);
    cost(run, name, "calls", (double)(blocks * m * (way == KEEP_EVERYTHING ? 1 : 2)), (double)(forwards + rebuilds));
    // a second forward asks nobody for anything
    snprintf(name, sizeof name, "%s: sent to neighbours", way_name[way]);
    cost(run, name, "bytes", (double)((!first + !last) * all * C * sizeof(real)), (double)got->send_bytes);
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, const Training *t, const Pipeline *p, Course *got, Course *want) {
    char what[64];
    snprintf(what, sizeof what, "%s = unsplit", way_name[p->way]);
    // The same layers with the same inputs and the same dropout, in the same order: equal in every bit.
    course_compare(run, what, got, want, 0);
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
                   .micro_batches = option_size(run, "micro-batches"), .optimizer = sgd(0.1) };
    REQUIRE(pp->size <= tiny.layers, "%zu stages need as many blocks; the model has %zu: start at most %zu ranks",
            pp->size, tiny.layers, tiny.layers);
    REQUIRE(t.steps > 0 && t.micro_batches > 0, "--steps and --micro-batches must be at least 1");
    REQUIRE(t.sequences >= t.micro_batches, "--batch %zu leaves some of the %zu micro-batches empty: choose at least "
            "%zu", t.sequences, t.micro_batches, t.micro_batches);
    t.data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    t.model.seed = run->seed;

    // One device that keeps everything, and takes the same micro-batches, one by one.
    Course unsplit = course_unsplit(run, &t, 1);
    for (Way way = 0; way < WAYS; way++) {
        Course got = course_new(run, &t);
        Pipeline p = train(pp, way, &t, &got);
        compare(run, &t, &p, &got, &unsplit);
        costs(run, &t, &p);
        course_free(&got);
    }
    say(run, "%zu steps, loss %.4f -> %.4f", t.steps, unsplit.loss[0], unsplit.loss[t.steps - 1]);
    course_free(&unsplit);
    data_free(&t.data);
    comm_free(pp);
}

static const Option options[] = {
    { "batch", "N", "7", "sequences in a step" },
    { "micro-batches", "N", "3", "micro-batches of a step" },
    { "steps", "N", "3", "training steps" },
    {0},
};
int main(int argc, char **argv) { return lesson_main(argc, argv, full, options); }
