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
#include "common/course.h"
#include "common/random.h"

// ---------------------------------------------------------------- data and sizes

// 7 sequences divide by no number of ranks but 7: shards are uneven (of 8 ranks one has nothing). Sequences end early
// at different lengths, so shards of equally many sequences hold unequally many tokens.
enum { SEQUENCES = 7, STEPS = 3 };
static const ModelConfig tiny = { .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

typedef struct { size_t reductions, reduced, broadcasts, broadcast, parameters, gradients, optimizer; } Measured;

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

static Course train_replicas(Run *run, Comm *dp, const Training *t, Measured *cost) {
    Course c = course_new(run, t);
    Optimizer o = t->optimizer;
    Model *m = model_describe(&t->model, model_layers(&t->model));
    model_allocate(m);
    optimizer_allocate(&o, m);
    // As if every process had drawn its own weights, as it would without a common seed: only the broadcast makes them
    // equal.
    if (dp->rank) tensor_randomize(m->w, random_key(run->seed, dp->rank), 0.1);
    comm_ledger_reset(dp);
    data_parallel_broadcast(dp, m);
    for (size_t step = 0; step < t->steps; step++) {
        double loss = replica_gradients(dp, m, &t->data, step);
        // From here on no word is needed: equal weights, equal gradients and equal optimizer state give equal norms and
        // equal weights.
        double norm = model_grad_norm(m, NULL);
        optimizer_step(&o, m, 1);
        course_record(&c, step, m, loss, norm);            // put by every rank: a check fails when a bit differs
    }
    *cost = (Measured){
        dp->ledger[COMM_ALL_REDUCE].calls, dp->ledger[COMM_ALL_REDUCE].bytes,
        dp->ledger[COMM_BROADCAST].calls, dp->ledger[COMM_BROADCAST].bytes,
        memory_now(MEM_PARAMETERS), memory_now(MEM_GRADIENTS), memory_now(MEM_OPTIMIZER) };
    comm_all_reduce_doubles(dp, c.loss, t->steps);         // for the log: the training never needs to know its loss
    model_free(m);
    return c;
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
    Training t = { .model = tiny, .data = data, .steps = STEPS, .sequences = SEQUENCES, .micro_batches = 1 };
    t.model.seed = run->seed;
    Measured measured;
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.1);
        Course got = train_replicas(run, run->world, &t, &measured);
        // Two unsplit twins. One takes the whole batch at once. The other does what the ranks do, one shard after the
        // other, and adds in rank order: to the last bit what they must get.
        Course whole = course_unsplit(run, &t, 1), ordered = course_unsplit(run, &t, run->world->size);
        course_compare(run, "replicas = unsplit", &got, &whole, LIMIT_ROUNDING);
        course_compare(run, "replicas = shards in order", &got, &ordered, every_bit(run));
        course_free(&got);
        course_free(&whole);
        course_free(&ordered);
    }
    predict(run, &measured);                               // of AdamW's training
    data_free(&data);
}

int main(int argc, char **argv) { return lesson_main(argc, argv, all_reduce, NULL); }
