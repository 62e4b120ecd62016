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
#include <stdio.h>
#include <stdlib.h>
#include "04_pipeline_naive/pipeline.h"
#include "07_recompute/counted.h"
#include "07_recompute/recompute.h"
#include "common/data.h"
#include "common/optimizer.h"

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

typedef struct { size_t steps, batch, m; Data data; ModelConfig model; } Training;
typedef struct {
    double *loss, *norm;                           // [steps], the same on every rank
    Snapshot *gradients, *weights;                 // of the last step, and after it
    Counts counts[16];                             // of my layers, in the last step
    size_t peak, send_calls, send_bytes;           // activations; messages to neighbours; in the last step
} Trained;

static Trained trained_new(Run *run, size_t steps) {
    return (Trained){ .loss = host_alloc(steps * sizeof(double)), .norm = host_alloc(steps * sizeof(double)),
                      .gradients = snapshot_new(run), .weights = snapshot_new(run) };
}
static void trained_free(Trained *t) {
    free(t->loss); free(t->norm);
    snapshot_free(t->gradients); snapshot_free(t->weights);
}

// One step of my stage: m forwards, m backwards, the tied sum, SGD. The norm adds squares over the stages.
static void step(Comm *pp, Comm *tied, Model *m, Optimizer *o, Way way, const Training *t, const Batch *batch,
                 double *loss, double *norm) {
    size_t tensors = config_tensors(&t->model);
    double *squares = host_alloc(tensors * sizeof *squares);
    Stage stage = { { .kind = &recomputed_stage, .config = &m->config }, m };
    // what the executor walks: my layers, or one layer that is all of them
    Model list = *m;
    if (way == RECOMPUTE_STAGES) { list.layers = &stage.layer; list.n_layers = 1; }

    model_zero_gradients(m);
    Schedule s = schedule_gpipe(pp->size, t->m, pp->rank);
    *loss = pipeline_run(pp, &list, &s, batch, t->m).loss;
    schedule_free(&s);
    pipeline_tied_sum(m, tied);
    model_grad_squares(m, squares);
    comm_all_reduce_doubles(pp, squares, tensors);
    comm_all_reduce_doubles(pp, loss, 1);          // zero on all stages but the last
    *norm = norm_of_squares(squares, tensors);
    optimizer_step(o, m, 1);
    free(squares);
}

static Batch *micro_batches(const Training *t, Arena *tokens, size_t step) {
    Batch *batch = host_alloc(t->m * sizeof *batch);
    for (size_t k = 0; k < t->m; k++) {
        Range r = shard_range(t->batch, t->m, k);
        batch[k] = data_batch(&t->data, tokens, step, r.lo, range_size(r), t->batch);
    }
    return batch;
}

static Trained train(Run *run, Comm *pp, Way way, const Training *t) {
    Trained done = trained_new(run, t->steps);
    Comm *tied = pipeline_tied_group(pp);
    Model *m = model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, pp->size, pp->rank));
    count_blocks(m, done.counts);
    if (way == RECOMPUTE_BLOCKS) recompute(m, RECOMPUTE_FULL);
    model_allocate(m);
    Optimizer o = sgd(0.1);
    for (size_t s = 0; s < t->steps; s++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *batch = micro_batches(t, &tokens, s);
        for (size_t i = 0; i < m->n_layers; i++) done.counts[i] = (Counts){0};
        memory_reset_peaks();
        comm_ledger_reset(pp);
        step(pp, tied, m, &o, way, t, batch, &done.loss[s], &done.norm[s]);
        free(batch);
        arena_free(&tokens);
    }
    done.peak = memory_peak(MEM_ACTIVATIONS);
    done.send_calls = pp->ledger[COMM_SEND].calls;
    done.send_bytes = pp->ledger[COMM_SEND].bytes;
    model_snapshot_gradients(m, done.gradients);
    model_snapshot_weights(m, done.weights);
    model_free(m);
    comm_free(tied);
    return done;
}

// ---------------------------------------------------------------- the unsplit twin: one device, keeps everything

static Trained train_unsplit(Run *run, const Training *t) {
    Trained done = trained_new(run, t->steps);
    if (run->world->rank > 0) return done;
    ledger_pause();
    size_t tensors = config_tensors(&t->model);
    double *squares = host_alloc(tensors * sizeof *squares);
    Model *m = model_describe(&t->model, model_layers(&t->model));
    model_allocate(m);
    Optimizer o = sgd(0.1);
    for (size_t s = 0; s < t->steps; s++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *batch = micro_batches(t, &tokens, s);
        model_zero_gradients(m);
        // the same micro-batches, one by one
        for (size_t k = 0; k < t->m; k++) done.loss[s] += model_forward_backward(m, &batch[k]);
        model_fold_tied(m);
        model_grad_squares(m, squares);
        done.norm[s] = norm_of_squares(squares, tensors);
        optimizer_step(&o, m, 1);
        free(batch);
        arena_free(&tokens);
    }
    model_snapshot_gradients(m, done.gradients);
    model_snapshot_weights(m, done.weights);
    model_free(m);
    free(squares);
    ledger_resume();
    return done;
}

// ---------------------------------------------------------------- predictions, from sizes alone

static void costs(Run *run, Comm *pp, Way way, const Training *t, const Trained *got) {
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
    size_t all = t->batch * c->context, one = range_size(shard_range(t->batch, t->m, 0)) * c->context;
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
    cost(run, name, "calls", (double)(blocks * t->m * (way == KEEP_EVERYTHING ? 1 : 2)), (double)(forwards + rebuilds));
    // a second forward asks nobody for anything
    snprintf(name, sizeof name, "%s: sent to neighbours", way_name[way]);
    cost(run, name, "bytes", (double)((!first + !last) * all * C * sizeof(real)), (double)got->send_bytes);
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, Comm *pp, const Training *t, Way way, Trained *got, Trained *want) {
    char what[64];
    snprintf(what, sizeof what, "%s = unsplit", way_name[way]);
    // The same layers with the same inputs and the same dropout, in the same order: equal in every bit.
    check_numbers(run, what, "loss of each step", got->loss, want->loss, t->steps, 0);
    check_numbers(run, what, "gradient norm of each step", got->norm, want->norm, t->steps, 0);
    snprintf(what, sizeof what, "%s = unsplit, gradients", way_name[way]);
    check_equal(run, what, got->gradients, want->gradients);
    snprintf(what, sizeof what, "%s = unsplit, weights", way_name[way]);
    check_equal(run, what, got->weights, want->weights);
    size_t blocks = range_size(shard_range(t->model.layers, pp->size, pp->rank)), first = pp->rank == 0;
    bool each = true;
    size_t times = way == KEEP_EVERYTHING ? 1 : 2;
    for (size_t i = 0; i < blocks; i++) each &= got->counts[first + i].forwards == t->m * times;
    check_true(run, way_name[way], times == 1 ? "each block: one forward" : "each block: exactly one forward more", each);
}

static void full(Run *run) {
    Comm *pp = comm_split(run->world, 0, run->world->rank, "pp");
    Training t = { .model = tiny, .steps = option_size(run, "steps"), .batch = option_size(run, "batch"),
                   .m = option_size(run, "micro-batches"), .data = data_synthetic(tiny.vocab, tiny.context, run->seed) };
    REQUIRE(pp->size <= tiny.layers, "%zu stages need as many blocks; the model has %zu: start at most %zu ranks",
            pp->size, tiny.layers, tiny.layers);
    REQUIRE(t.steps > 0 && t.m > 0, "--steps and --micro-batches must be at least 1");
    REQUIRE(t.batch >= t.m, "--batch %zu leaves some of the %zu micro-batches empty: choose at least %zu", t.batch,
            t.m, t.m);
    t.model.seed = run->seed;

    Trained unsplit = train_unsplit(run, &t), trained[WAYS];
    for (Way way = 0; way < WAYS; way++) {
        trained[way] = train(run, pp, way, &t);
        compare(run, pp, &t, way, &trained[way], &unsplit);
    }
    for (Way way = 0; way < WAYS; way++) {
        costs(run, pp, way, &t, &trained[way]);
        trained_free(&trained[way]);
    }
    say(run, "%zu steps, loss %.4f -> %.4f", t.steps, unsplit.loss[0] / (double)data_count(&t.data, 0, 0, t.batch),
        unsplit.loss[t.steps - 1] / (double)data_count(&t.data, t.steps - 1, 0, t.batch));
    trained_free(&unsplit);
    comm_free(pp);
}

static const Option options[] = {
    { "batch", "N", "7", "sequences in a step" },
    { "micro-batches", "N", "3", "micro-batches of a step" },
    { "steps", "N", "3", "training steps" },
    {0},
};
int main(int argc, char **argv) { return lesson_main(argc, argv, full, options); }
