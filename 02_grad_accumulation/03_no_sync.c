// ranks: 4
// level: core
// question: When data-parallel ranks also accumulate, when must they talk, and what does it cost to talk too often?
//
// 26 sequences go to N replicas, and each replica takes its part in m micro-batches (--micro-batches, default 3).
// Backward adds to the local gradient and nobody speaks until the last micro-batch is done; then there is one
// all-reduce, as in chapter 01. PyTorch calls the silence no_sync. The forgetful twin reduces after every micro-batch:
// its numbers are right, its bill is m times as long.
// Left out: overlapping the one reduction with the last backward.
#include "01_data_parallel/data_parallel.h"
#include "common/data.h"
#include "common/optimizer.h"
#include <stdio.h>
#include <stdlib.h>

// ---------------------------------------------------------------- data and sizes

enum { SEQUENCES = 26, STEPS = 3 };            // of 4 ranks two have 7 sequences, in 3 + 2 + 2, and two have 6
static const ModelConfig tiny = { .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

typedef struct {
    Snapshot *gradients[STEPS], *weights[STEPS];
    double loss[STEPS], norm[STEPS];
    size_t calls, bytes, gradient_bytes;       // all-reduces of the training, what they sent; the gradient buffers
} Record;

static Record record_new(Run *run) {
    Record r = {0};
    for (size_t s = 0; s < STEPS; s++) { r.gradients[s] = snapshot_new(run); r.weights[s] = snapshot_new(run); }
    return r;
}
static void record_free(Record *r) {
    for (size_t s = 0; s < STEPS; s++) { snapshot_free(r->gradients[s]); snapshot_free(r->weights[s]); }
}

// How a step's batch is cut: over n replicas, then in m micro-batches each.
typedef struct { size_t n, m; } Cut2;

// ---------------------------------------------------------------- one step, cut where the ranks must talk

// Adds the gradient of one micro-batch to the local gradient: a token weighs 1 / (counted tokens of all 26 sequences).
static double add_micro_batch(Model *model, const Data *d, uint64_t step, Range sequences) {
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_batch(d, &tokens, step, sequences.lo, range_size(sequences), SEQUENCES);
    double loss = model_forward_backward(model, &b) * b.token_weight;
    arena_free(&tokens);
    return loss;
}
static Range micro_batch(Cut2 cut, size_t replica, size_t k) {
    Range mine = shard_range(SEQUENCES, cut.n, replica), r = shard_range(range_size(mine), cut.m, k);
    return (Range){ mine.lo + r.lo, mine.lo + r.hi };
}

// What one replica does by itself: m forwards and backwards, not a word.
static double accumulate(Model *model, const Data *d, uint64_t step, Cut2 cut, size_t replica) {
    double loss = 0;
    model_zero_gradients(model);
    for (size_t k = 0; k < cut.m; k++) loss += add_micro_batch(model, d, step, micro_batch(cut, replica, k));
    model_fold_tied(model);
    return loss;
}

typedef double Gradients(Comm *dp, Model *model, const Data *d, uint64_t step, Cut2 cut, Tensor spare);

static double no_sync(Comm *dp, Model *model, const Data *d, uint64_t step, Cut2 cut, Tensor spare) {
    (void)spare;
    double loss = accumulate(model, d, step, cut, dp->rank);
    data_parallel_all_reduce(dp, model);       // once a step, after the last micro-batch: 2(N-1)/N Psi, whatever m is
    return loss;
}

// Every micro-batch is a little step of chapter 01; what comes back is added in a second buffer. Reducing the running
// sum instead would count the earlier micro-batches again, N times: they are everybody's already.
static double forgetful(Comm *dp, Model *model, const Data *d, uint64_t step, Cut2 cut, Tensor spare) {
    double loss = 0;
    tensor_fill(spare, 0);
    for (size_t k = 0; k < cut.m; k++) {
        model_zero_gradients(model);
        loss += add_micro_batch(model, d, step, micro_batch(cut, dp->rank, k));
        model_fold_tied(model);
        data_parallel_all_reduce(dp, model);   // m times a step
        op_add(spare, spare, model->g);
    }
    tensor_copy(model->g, spare);
    return loss;
}

// ---------------------------------------------------------------- the unsplit twins, on rank 0 (dp is not used)

static double at_once(Comm *dp, Model *model, const Data *d, uint64_t step, Cut2 cut, Tensor spare) {
    (void)dp; (void)cut; (void)spare;
    return accumulate(model, d, step, (Cut2){ 1, 1 }, 0);
}

// One process that accumulates each replica's micro-batches from zero and then adds the replicas in rank order: bit
// for bit what the ranks must get. Accumulating all n*m micro-batches in one row would group the sum in another way.
static double replicas_in_order(Comm *dp, Model *model, const Data *d, uint64_t step, Cut2 cut, Tensor spare) {
    (void)dp;
    double loss = 0;
    for (size_t r = 0; r < cut.n; r++) {
        loss += accumulate(model, d, step, cut, r);
        if (r == 0) tensor_copy(spare, model->g);
        else op_add(spare, spare, model->g);
    }
    tensor_copy(model->g, spare);
    return loss;
}

// ---------------------------------------------------------------- training

static Record train(Run *run, Comm *dp, const Data *d, Optimizer o, Gradients *gradients, Cut2 cut) {
    Record r = record_new(run);
    ModelConfig c = tiny;
    c.seed = run->seed;
    Model *model = model_describe(&c, model_layers(&c));
    // the same weights everywhere: they are functions of the seed (chapter 01 broadcasts)
    model_allocate(model);
    optimizer_allocate(&o, model);
    Tensor spare = {0};
    if (gradients == forgetful || gradients == replicas_in_order) spare = tensor_new(&model->gradients, 1, model->size);
    double *squares = host_alloc(config_tensors(&c) * sizeof *squares);
    comm_ledger_reset(dp);
    for (size_t step = 0; step < STEPS; step++) {
        r.loss[step] = gradients(dp, model, d, step, cut, spare);
        model_grad_squares(model, squares);
        r.norm[step] = norm_of_squares(squares, config_tensors(&c));
        model_snapshot_gradients(model, r.gradients[step]);
        optimizer_step(&o, model, 1);
        model_snapshot_weights(model, r.weights[step]);
    }
    r.calls = dp->ledger[COMM_ALL_REDUCE].calls;
    r.bytes = dp->ledger[COMM_ALL_REDUCE].bytes;
    r.gradient_bytes = memory_now(MEM_GRADIENTS);
    free(squares);
    model_free(model);
    return r;
}

// The loss is for the log: every rank's part of it is added once, after the training.
static Record train_ranks(Run *run, const Data *d, Optimizer o, Gradients *gradients, Cut2 cut) {
    Record r = train(run, run->world, d, o, gradients, cut);
    comm_all_reduce_doubles(run->world, r.loss, STEPS);
    return r;
}
static Record train_twin(Run *run, const Data *d, Optimizer o, Gradients *gradients, Cut2 cut) {
    if (run->world->rank) return record_new(run);
    ledger_pause();
    Record r = train(run, run->world, d, o, gradients, cut);
    ledger_resume();
    return r;
}

// ---------------------------------------------------------------- the comparison

static void same(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit) {
    if (run->reduce == REDUCE_ORDERED) check_equal(run, what, got, want);
    else check_close(run, what, got, want, limit);         // the library adds in an order of its own
}

// weights_too is false for AdamW in fp32, where the rounding of a gradient near zero becomes a step of some size:
// there a twin that adds in another order is left to losses and norms, and to 1e-4 under --reduce fast.
static void compare(Run *run, const char *optimizer, bool weights_too, Record *got, Record *whole, Record *ordered) {
    char what[80];
    double limit = weights_too ? LIMIT_ROUNDING : 1e-4, numbers = run->reduce == REDUCE_ORDERED ? 0 : LIMIT_ROUNDING;
    for (size_t s = 0; s < STEPS; s++) {
        snprintf(what, sizeof what, "%s step %zu: gradients = at once", optimizer, s);
        if (weights_too) check_close(run, what, got->gradients[s], whole->gradients[s], LIMIT_ROUNDING);
        snprintf(what, sizeof what, "%s step %zu: gradients = replicas in order", optimizer, s);
        same(run, what, got->gradients[s], ordered->gradients[s], limit);
        snprintf(what, sizeof what, "%s step %zu: weights = replicas in order", optimizer, s);
        same(run, what, got->weights[s], ordered->weights[s], limit);
    }
    snprintf(what, sizeof what, "%s, %d steps: no_sync = at once", optimizer, STEPS);
    if (weights_too) check_close(run, what, got->weights[STEPS - 1], whole->weights[STEPS - 1], LIMIT_ROUNDING);
    check_numbers(run, what, "loss", got->loss, whole->loss, STEPS, LIMIT_ROUNDING);
    check_numbers(run, what, "gradient norm", got->norm, whole->norm, STEPS, LIMIT_ROUNDING);
    snprintf(what, sizeof what, "%s, %d steps: = replicas in order", optimizer, STEPS);
    check_numbers(run, what, "gradient norm", got->norm, ordered->norm, STEPS, numbers);
}

// Right numbers, too: only the bill tells the two apart.
static void compare_forgetful(Run *run, Record *got, Record *whole) {
    check_close(run, "forgetful: gradients of the last step", got->gradients[STEPS - 1], whole->gradients[STEPS - 1],
                LIMIT_ROUNDING);
    check_close(run, "forgetful: weights after 3 steps", got->weights[STEPS - 1], whole->weights[STEPS - 1],
                LIMIT_ROUNDING);
    check_numbers(run, "forgetful", "loss", got->loss, whole->loss, STEPS, LIMIT_ROUNDING);
}

// ---------------------------------------------------------------- the predictions

static void predict(Run *run, const Record *silent, const Record *talkative, size_t m) {
    size_t V = tiny.vocab, T = tiny.context, C = tiny.width, L = tiny.layers, e = sizeof(real), N = run->world->size;
    size_t Psi = V * C + T * C + L * (12 * C * C + 13 * C) + 2 * C;
    size_t ring = 2 * (N - 1) * ceil_div(Psi, N) * e;      // one all-reduce of the gradient, per rank
    cost(run, "no_sync: all-reduces, 3 steps", "calls", STEPS, (double)silent->calls);
    cost(run, "no_sync: sent, 3 steps (no m)", "bytes", (double)(STEPS * ring), (double)silent->bytes);
    cost(run, "forgetful: all-reduces, 3 steps", "calls", (double)(STEPS * m), (double)talkative->calls);
    cost(run, "forgetful: sent, 3 steps (m times)", "bytes", (double)(STEPS * m * ring), (double)talkative->bytes);
    cost(run, "no_sync: gradients (wte twice)", "bytes", (double)((Psi + V * C) * e), (double)silent->gradient_bytes);
    cost(run, "forgetful: gradients, and the sum", "bytes", (double)((2 * Psi + V * C) * e),
         (double)talkative->gradient_bytes);
}

static void accumulation_on_ranks(Run *run) {
    Cut2 cut = { run->world->size, option_size(run, "micro-batches") };
    REQUIRE(cut.m >= 1 && cut.m <= SEQUENCES, "--micro-batches must be from 1 to %d, the number of sequences",
            SEQUENCES);
    Data data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    say(run, "%d sequences on %zu ranks in %zu micro-batches each; rank 0:", SEQUENCES, cut.n, cut.m);
    for (size_t k = 0; k < cut.m; k++) {
        Range r = micro_batch(cut, 0, k);
        say(run, "    micro-batch %zu: %zu sequences, %zu tokens in step 0\n", k, range_size(r),
            data_count(&data, 0, r.lo, range_size(r)));
    }
    const struct { const char *name; Optimizer o; } with[] = { { "SGD", sgd(0.1) }, { "AdamW", adamw(0.01) } };
    for (size_t i = 0; i < 2; i++) {
        Record got = train_ranks(run, &data, with[i].o, no_sync, cut);
        Record whole = train_twin(run, &data, with[i].o, at_once, cut);
        Record ordered = train_twin(run, &data, with[i].o, replicas_in_order, cut);
        compare(run, with[i].name, with[i].o.kind == SGD || sizeof(real) == 8, &got, &whole, &ordered);
        if (with[i].o.kind == SGD) {
            Record talkative = train_ranks(run, &data, with[i].o, forgetful, cut);
            compare_forgetful(run, &talkative, &whole);
            predict(run, &got, &talkative, cut.m);
            record_free(&talkative);
        }
        record_free(&got);
        record_free(&whole);
        record_free(&ordered);
    }
    data_free(&data);
}

static const Option options[] = {
    { "micro-batches", "N", "3", "pieces in which a replica takes its part, 1 to 26" },
    {0},
};
int main(int argc, char **argv) { return lesson_main(argc, argv, accumulation_on_ranks, options); }
