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
#include "common/course.h"

// ---------------------------------------------------------------- data and sizes

enum { SEQUENCES = 26, STEPS = 3 };            // of 4 ranks two have 7 sequences, in 3 + 2 + 2, and two have 6
static const ModelConfig tiny = { .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

// ---------------------------------------------------------------- one step, cut where the ranks must talk

// One replica. `sum` is a second gradient buffer, which only the forgetful twin needs.
typedef struct { Comm *dp; Tensor sum; } Replica;

// The whole batch's gradient is here, alike on every rank. Of the loss only my tokens' part is; as in the gradient, a
// token weighs 1 / (counted tokens of all 26 sequences).
static StepResult update(Model *model, Optimizer *o, double loss, double token_weight) {
    double norm = model_grad_norm(model, NULL);
    optimizer_step(o, model, 1);
    return (StepResult){ loss * token_weight, norm };
}

// Backward adds to the local gradient, m times, and not a word is said. Then everybody speaks once.
static StepResult no_sync(void *replica, Model *model, Optimizer *o, const Training *t, const Batch *mine) {
    Replica *r = replica;
    double loss = 0;
    model_zero_gradients(model);
    for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(model, &mine[k]);
    model_fold_tied(model);
    data_parallel_all_reduce(r->dp, model);    // once a step, after the last micro-batch: 2(N-1)/N Psi, whatever m is
    return update(model, o, loss, mine->token_weight);
}

// Every micro-batch is a little step of chapter 01; what comes back is added in a second buffer. Reducing the running
// sum instead would count the earlier micro-batches again, N times: they are everybody's already.
static StepResult forgetful(void *replica, Model *model, Optimizer *o, const Training *t, const Batch *mine) {
    Replica *r = replica;
    double loss = 0;
    tensor_fill(r->sum, 0);
    for (size_t k = 0; k < t->micro_batches; k++) {
        model_zero_gradients(model);
        loss += model_forward_backward(model, &mine[k]);
        model_fold_tied(model);
        data_parallel_all_reduce(r->dp, model);            // m times a step
        op_add(r->sum, r->sum, model->g);
    }
    tensor_copy(model->g, r->sum);
    return update(model, o, loss, mine->token_weight);
}

// ---------------------------------------------------------------- training

typedef struct { size_t calls, bytes, gradients; } Measured;       // all-reduces of the training; gradient buffers

static Course train(Run *run, Comm *dp, const Training *t, Step *step, Measured *seen) {
    Course c = course_new(run, t);
    Model *model = model_describe(&t->model, model_layers(&t->model));
    model_allocate(model);                     // functions of the seed: the same weights everywhere
    Replica r = { .dp = dp };
    if (step == forgetful) r.sum = tensor_new(&model->gradients, 1, model->size);
    comm_ledger_reset(dp);
    course_train(&c, model, t, dp->size, dp->rank, step, &r);
    *seen = (Measured){ dp->ledger[COMM_ALL_REDUCE].calls, dp->ledger[COMM_ALL_REDUCE].bytes,
                        memory_now(MEM_GRADIENTS) };
    comm_all_reduce_doubles(dp, c.loss, t->steps);         // for the log: every rank's part of it
    model_free(model);
    return c;
}

// ---------------------------------------------------------------- the predictions

static void predict(Run *run, const Measured *silent, const Measured *talkative, size_t m) {
    size_t V = tiny.vocab, T = tiny.context, C = tiny.width, L = tiny.layers, e = sizeof(real), N = run->world->size;
    size_t Psi = V * C + T * C + L * (12 * C * C + 13 * C) + 2 * C;
    size_t ring = 2 * (N - 1) * ceil_div(Psi, N) * e;      // one all-reduce of the gradient, per rank
    cost(run, "no_sync: all-reduces, 3 steps", "calls", STEPS, (double)silent->calls);
    cost(run, "no_sync: sent, 3 steps (no m)", "bytes", (double)(STEPS * ring), (double)silent->bytes);
    cost(run, "forgetful: all-reduces, 3 steps", "calls", (double)(STEPS * m), (double)talkative->calls);
    cost(run, "forgetful: sent, 3 steps (m times)", "bytes", (double)(STEPS * m * ring), (double)talkative->bytes);
    cost(run, "no_sync: gradients (wte twice)", "bytes", (double)((Psi + V * C) * e), (double)silent->gradients);
    cost(run, "forgetful: gradients, and the sum", "bytes", (double)((2 * Psi + V * C) * e),
         (double)talkative->gradients);
}

static void accumulation_on_ranks(Run *run) {
    size_t n = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(m >= 1 && m <= SEQUENCES, "--micro-batches must be from 1 to %d, the number of sequences", SEQUENCES);
    Training t = { .model = tiny, .data = data_synthetic(tiny.vocab, tiny.context, run->seed), .steps = STEPS,
                   .sequences = SEQUENCES, .micro_batches = m };
    Measured silent, talkative;
    t.model.seed = run->seed;
    say(run, "%d sequences on %zu ranks in %zu micro-batches each; rank 0:", SEQUENCES, n, m);
    for (size_t k = 0; k < m; k++) {
        Range r = training_micro_batch(&t, n, 0, k);
        say(run, "    micro-batch %zu: %zu sequences, %zu tokens in step 0\n", k, range_size(r),
            data_count(&t.data, 0, r.lo, range_size(r)));
    }
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.1);
        Training at_once = t;
        at_once.micro_batches = 1;
        Course got = train(run, run->world, &t, no_sync, &silent);
        Course often = train(run, run->world, &t, forgetful, &talkative);
        // One process that accumulates each replica's micro-batches from zero and then adds the replicas in rank order
        // gets the same bits. Accumulating all n*m micro-batches in one row would group the sum in another way.
        Course whole = course_unsplit(run, &at_once, 1), ordered = course_unsplit(run, &t, n);
        course_compare(run, "no_sync = at once", &got, &whole, LIMIT_ROUNDING);
        course_compare(run, "no_sync = replicas in order", &got, &ordered, every_bit(run));
        // Right numbers, too: only the bill tells the two apart.
        course_compare(run, "forgetful = at once", &often, &whole, LIMIT_ROUNDING);
        course_free(&got);
        course_free(&often);
        course_free(&whole);
        course_free(&ordered);
    }
    predict(run, &silent, &talkative, m);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "3", "pieces in which a replica takes its part, 1 to 26" },
    {0},
};
int main(int argc, char **argv) { return lesson_main(argc, argv, accumulation_on_ranks, options); }
