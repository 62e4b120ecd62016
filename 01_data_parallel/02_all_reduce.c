// ranks: 4
// level: core
// question: How can N devices train one model, each on a part of the batch, and hold the same weights all the time?
//
// Every rank holds the whole model (a replica: weights, gradients, optimizer state) and a part of the sequences of
// every step. They talk twice: once at the start, so that all begin with rank 0's weights, and once a step, to add
// their gradients. The sum is right because every shard's loss already carries 1 / (counted tokens of the WHOLE
// batch): nothing is divided by N.
// Left out: talking while backward still runs (buckets), and clipping, which would hide a gradient of the wrong length.
#include "01_data_parallel/data_parallel.h"
#include "common/data.h"
#include "common/optimizer.h"
#include "common/random.h"
#include <stdio.h>
#include <stdlib.h>

// ---------------------------------------------------------------- data and sizes

// 7 sequences divide by no number of ranks but 7: shards are uneven (of 8 ranks one has nothing). Sequences end early
// at different lengths, so shards of equally many sequences hold unequally many tokens.
enum { SEQUENCES = 7, STEPS = 3 };
static const ModelConfig tiny = { .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

// What a training leaves behind for the comparison.
typedef struct { Snapshot *gradients[STEPS], *weights[STEPS]; double loss[STEPS], norm[STEPS]; } Record;

typedef struct { size_t reductions, reduced, broadcasts, broadcast, parameters, gradients, optimizer; } Measured;

static Record record_new(Run *run) {
    Record r = {0};
    for (size_t s = 0; s < STEPS; s++) { r.gradients[s] = snapshot_new(run); r.weights[s] = snapshot_new(run); }
    return r;
}
static void record_free(Record *r) {
    for (size_t s = 0; s < STEPS; s++) { snapshot_free(r->gradients[s]); snapshot_free(r->weights[s]); }
}

static Model *new_model(uint64_t seed) {
    ModelConfig c = tiny;
    c.seed = seed;
    Model *m = model_describe(&c, model_layers(&c));
    model_allocate(m);
    return m;
}

// ---------------------------------------------------------------- one step, cut where the ranks must talk

// Fills m->g with the part of the batch's gradient that comes from sequences `mine`, and returns their part of the
// batch's mean loss: a token weighs 1 / (counted tokens of ALL sequences), a number every rank knows from the data
// order.
static double local_gradients(Model *m, const Data *d, uint64_t step, Range mine) {
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_batch(d, &tokens, step, mine.lo, range_size(mine), SEQUENCES);
    model_zero_gradients(m);
    double loss = model_forward_backward(m, &b) * b.token_weight;
    model_fold_tied(m);                        // wte's two gradients become one before anybody adds over ranks
    arena_free(&tokens);
    return loss;
}

static double replica_gradients(Comm *dp, Model *m, const Data *d, uint64_t step) {
    double loss = local_gradients(m, d, step, shard_range(SEQUENCES, dp->size, dp->rank));
    data_parallel_all_reduce(dp, m);           // Psi elements, once: m->g is now the whole batch's, on every rank
    return loss;                               // still my shard's part
}

// The update needs no word: equal weights, equal gradients and equal optimizer state give equal weights. Neither does
// the norm.
static void update(Model *m, Optimizer *o, Record *r, size_t step) {
    double *squares = host_alloc(config_tensors(&tiny) * sizeof *squares);
    model_grad_squares(m, squares);
    r->norm[step] = norm_of_squares(squares, config_tensors(&tiny));
    free(squares);
    model_snapshot_gradients(m, r->gradients[step]);
    optimizer_step(o, m, 1);
    model_snapshot_weights(m, r->weights[step]);           // put by every rank: a check fails when a bit differs
}

static Record train_replicas(Run *run, Comm *dp, const Data *d, Optimizer o, Measured *cost) {
    Record r = record_new(run);
    Model *m = new_model(run->seed);
    optimizer_allocate(&o, m);
    // As if every process had drawn its own weights, as it would without a common seed: only the broadcast makes them
    // equal.
    if (dp->rank) tensor_randomize(m->w, random_key(run->seed, dp->rank), 0.1);
    comm_ledger_reset(dp);
    data_parallel_broadcast(dp, m);
    for (size_t step = 0; step < STEPS; step++) {
        r.loss[step] = replica_gradients(dp, m, d, step);
        update(m, &o, &r, step);
    }
    *cost = (Measured){
        dp->ledger[COMM_ALL_REDUCE].calls, dp->ledger[COMM_ALL_REDUCE].bytes,
        dp->ledger[COMM_BROADCAST].calls, dp->ledger[COMM_BROADCAST].bytes,
        memory_now(MEM_PARAMETERS), memory_now(MEM_GRADIENTS), memory_now(MEM_OPTIMIZER) };
    comm_all_reduce_doubles(dp, r.loss, STEPS);            // for the log: the training never needs to know its loss
    model_free(m);
    return r;
}

// ---------------------------------------------------------------- the unsplit twins, on rank 0

// The whole batch at once.
static double whole_gradients(Model *m, const Data *d, uint64_t step, size_t shards) {
    (void)shards;
    return local_gradients(m, d, step, (Range){ 0, SEQUENCES });
}

// One process that does what the ranks do, one after another, and adds in rank order: to the last bit what they must
// get.
static double shard_by_shard_gradients(Model *m, const Data *d, uint64_t step, size_t shards) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor sum = tensor_new(&scratch, 1, m->size);
    double loss = 0;
    for (size_t k = 0; k < shards; k++) {
        loss += local_gradients(m, d, step, shard_range(SEQUENCES, shards, k));
        if (k == 0) tensor_copy(sum, m->g);
        else op_add(sum, sum, m->g);
    }
    tensor_copy(m->g, sum);
    arena_free(&scratch);
    return loss;
}

typedef double Gradients(Model *m, const Data *d, uint64_t step, size_t shards);
static Record train_unsplit(Run *run, const Data *d, Optimizer o, Gradients *gradients) {
    Record r = record_new(run);
    if (run->world->rank) return r;                        // the others have nothing to compare with
    ledger_pause();
    Model *m = new_model(run->seed);
    optimizer_allocate(&o, m);
    for (size_t step = 0; step < STEPS; step++) {
        r.loss[step] = gradients(m, d, step, run->world->size);
        update(m, &o, &r, step);
    }
    model_free(m);
    ledger_resume();
    return r;
}

// ---------------------------------------------------------------- the comparison

// With --reduce fast the library adds in an order of its own: close, not equal.
static void same(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit) {
    if (run->reduce == REDUCE_ORDERED) check_equal(run, what, got, want);
    else check_close(run, what, got, want, limit);
}

// AdamW divides by the root of the squared gradient, so in fp32 the rounding of a gradient near zero becomes a step of
// some size. There (weights_too false) a twin that adds in another order is left to losses and norms, and to 1e-4
// under --reduce fast.
static void compare(Run *run, const char *optimizer, bool weights_too, Record *got, Record *whole, Record *ordered) {
    char what[80];
    double limit = weights_too ? LIMIT_ROUNDING : 1e-4, numbers = run->reduce == REDUCE_ORDERED ? 0 : LIMIT_ROUNDING;
    for (size_t s = 0; s < STEPS; s++) {
        snprintf(what, sizeof what, "%s step %zu: gradients = unsplit", optimizer, s);
        if (weights_too) check_close(run, what, got->gradients[s], whole->gradients[s], LIMIT_ROUNDING);
        snprintf(what, sizeof what, "%s step %zu: gradients = shards in order", optimizer, s);
        same(run, what, got->gradients[s], ordered->gradients[s], limit);
        snprintf(what, sizeof what, "%s step %zu: replicas = shards in order", optimizer, s);
        same(run, what, got->weights[s], ordered->weights[s], limit);
    }
    snprintf(what, sizeof what, "%s, %d steps: data-parallel = unsplit", optimizer, STEPS);
    if (weights_too) check_close(run, what, got->weights[STEPS - 1], whole->weights[STEPS - 1], LIMIT_ROUNDING);
    check_numbers(run, what, "loss", got->loss, whole->loss, STEPS, LIMIT_ROUNDING);
    check_numbers(run, what, "gradient norm", got->norm, whole->norm, STEPS, LIMIT_ROUNDING);
    snprintf(what, sizeof what, "%s, %d steps: = shards in order", optimizer, STEPS);
    check_numbers(run, what, "loss", got->loss, ordered->loss, STEPS, numbers);
    check_numbers(run, what, "gradient norm", got->norm, ordered->norm, STEPS, numbers);
}

// ---------------------------------------------------------------- the predictions

static void predict(Run *run, const Measured *is) {
    size_t V = tiny.vocab, T = tiny.context, C = tiny.width, L = tiny.layers, e = sizeof(real), N = run->world->size;
    size_t Psi = V * C + T * C + L * (12 * C * C + 13 * C) + 2 * C;         // every parameter, the tied table once
    size_t ring = 2 * (N - 1) * ceil_div(Psi, N) * e;                       // what a rank sends in one all-reduce
    cost(run, "all-reduces, 3 steps", "calls", STEPS, (double)is->reductions);
    cost(run, "sent by all-reduces, 3 steps", "bytes", (double)(STEPS * ring), (double)is->reduced);
    cost(run, "broadcasts", "calls", 1, (double)is->broadcasts);
    cost(run, "sent by the broadcast: Psi e at the root", "bytes",
         run->world->rank == 0 && N > 1 ? (double)(Psi * e) : 0, (double)is->broadcast);
    // No N from here on: a full replica.
    cost(run, "parameters", "bytes", (double)(Psi * e), (double)is->parameters);
    cost(run, "gradients (wte twice)", "bytes", (double)((Psi + V * C) * e), (double)is->gradients);
    cost(run, "AdamW's m and v", "bytes", (double)(2 * Psi * e), (double)is->optimizer);
}

static void all_reduce(Run *run) {
    Data data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    Range mine = shard_range(SEQUENCES, run->world->size, run->world->rank);
    say(run, "%zu parameters on each of %zu ranks\n", config_parameters(&tiny), run->world->size);
    say(run, "rank 0 has sequences %zu to %zu of %d, in step 0 %zu of %zu tokens\n", mine.lo, mine.hi - 1, SEQUENCES,
        data_count(&data, 0, mine.lo, range_size(mine)), data_count(&data, 0, 0, SEQUENCES));
    const struct { const char *name; Optimizer o; } with[] = { { "SGD", sgd(0.1) }, { "AdamW", adamw(0.01) } };
    for (size_t i = 0; i < 2; i++) {
        Measured measured;
        Record got = train_replicas(run, run->world, &data, with[i].o, &measured);
        Record whole = train_unsplit(run, &data, with[i].o, whole_gradients);
        Record ordered = train_unsplit(run, &data, with[i].o, shard_by_shard_gradients);
        compare(run, with[i].name, with[i].o.kind == SGD || sizeof(real) == 8, &got, &whole, &ordered);
        if (with[i].o.kind == ADAMW) predict(run, &measured);
        record_free(&got);
        record_free(&whole);
        record_free(&ordered);
    }
    data_free(&data);
}

int main(int argc, char **argv) { return lesson_main(argc, argv, all_reduce, NULL); }
