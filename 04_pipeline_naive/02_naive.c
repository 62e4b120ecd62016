// ranks: 4
// level: core
// question: Can every rank hold only a few layers, train the model together, and get the very same bits?
//
// A model is a list of layers, so a stage is a sub-list: rank i holds some neighbouring layers, their gradients and
// their optimizer state, nothing else. A micro-batch goes all the way forward, from rank to rank, and its gradient all
// the way back, before the next one starts. The embedding table wte is used twice, on the first and on the last stage:
// both keep a copy of it.
// Left out: working at the same time. Exactly one rank is busy at any moment; 03_gpipe does something about that.
#include "04_pipeline_naive/stages.h"
#include <stdlib.h>

// 9 blocks do not divide by 4 stages (3, 2, 2, 2); the sequences of a batch count 5 to 10 tokens each.
static const ModelConfig sizes = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1 };
enum { SEQUENCES = 5 };

// ---------------------------------------------------------------- one step, on stage i

static StepResult naive_step(void *stages, Model *m, Optimizer *o, const Training *t, const Batch *batch) {
    Stages *s = stages;
    // My list is F0 B0 F1 B1 ... A forward receives [B*T, C] from stage i - 1 and sends as much to stage i + 1; a
    // backward receives the gradient of what I sent, and sends the gradient of what I received.
    model_zero_gradients(m);
    PipelineResult r = pipeline_run(s->pp, m, &s->schedule, batch, t->micro_batches);
    s->in_flight = r.in_flight;
    // The first stage has the embedding's part of wte's gradient, the last one the head's. Both need the sum.
    pipeline_tied_sum(m, s->tied);

    // Only the last stage knows the loss, and each stage the squares of its own tensors: the others add zeros.
    comm_all_reduce_doubles(s->pp, &r.loss, 1);
    double norm = model_grad_norm(m, s->pp);
    optimizer_step(o, m, clip_factor(norm, t->clip));      // my layers only
    // token_weight: 1 / counted tokens of the whole batch.
    return (StepResult){ r.loss * batch[0].token_weight, norm };
}

// ---------------------------------------------------------------- the predictions, from sizes alone

static void predict(Run *run, size_t m, const StageCosts *seen) {
    size_t p = run->world->size, i = run->world->rank, E = sizeof(real);
    size_t L = sizes.layers, C = sizes.width, T = sizes.context, V = sizes.vocab;
    size_t next = i + 1 < p, before = i > 0;                                       // have I a neighbour on this side?

    // Per micro-batch one activation [B*T, C] to the next stage, and one gradient of that shape to the stage before.
    cost(run, "messages sent", "calls", m * (next + before), seen->messages);
    cost(run, "messages sent", "bytes", (next + before) * SEQUENCES * T * C * E, seen->message_bytes);
    double all = (double)seen->messages;
    ledger_pause();
    comm_all_reduce_doubles(run->world, &all, 1);
    ledger_resume();
    cost(run, "messages of all ranks: 2m(p-1)", "calls", 2 * m * (p - 1), all);

    // The first and the last stage add their gradients of wte: in a ring of two, each sends both halves of it once.
    size_t shares = p > 1 && (!next || !before);
    cost(run, "tied sum of wte", "calls", shares, seen->tied_calls);
    cost(run, "tied sum of wte", "bytes", shares * 2 * ceil_div(V * C, 2) * E, seen->tied_bytes);
    size_t tensors = 2 + 12 * L + 2, D = sizeof(double);           // wte, wpe; 12 a block; the last norm's two
    cost(run, "sums of loss and squares", "calls", 2, seen->scalar_calls);
    cost(run, "sums of loss and squares", "bytes", 2 * (p - 1) * (1 + ceil_div(tensors, p)) * D, seen->scalar_bytes);

    // A block is 12CC + 13C. The first stage adds wte and wpe, the last one its norm and its copy of wte; where they
    // are one stage, there is one wte, but a gradient for each of its uses.
    size_t blocks = L / p + (i < L % p);
    size_t mine = blocks * (12 * C * C + 13 * C) + !before * (V + T) * C + !next * 2 * C + (!next && before) * V * C;
    cost(run, "parameters of my stage", "bytes", mine * E, seen->parameters);
    cost(run, "gradients of my stage", "bytes", (mine + (p == 1) * V * C) * E, seen->gradients);
    cost(run, "AdamW's m and v of my stage", "bytes", 2 * mine * E, seen->optimizer);

    // One buffer for each direction I send in; as large as the largest micro-batch.
    size_t largest = ceil_div(SEQUENCES, m) * T * C * E;
    cost(run, "send buffers, peak", "bytes", (next + before) * largest, seen->send_buffers);
    cost(run, "in flight, most", "micro-batches", 1, seen->in_flight);
}

// How long a step takes follows from the lists: t_f = 1 and t_b = 2 units on each stage; messages take no time.
static void step_time(Run *run, size_t m) {
    size_t p = run->world->size, t_f = 1, t_b = 2;
    Schedule *list = schedule_all(schedule_naive, p, m);
    Timeline t = timeline_of(list, p, m, t_f, t_b);
    say(run, "The op lists of %zu stages, played with t_f = %zu and t_b = %zu units of time:", p, t_f, t_b);
    for (size_t i = 0; i < p && run->verbose && 3 * t.end < 100; i++) {
        char *row = timeline_row(&t, i);
        say(run, "  stage %zu  %s", i, row);
        free(row);
    }
    double units = t.end, idle = 1 - (double)timeline_busy(&t) / (double)(p * t.end);
    double want_units = m * p * (t_f + t_b), want_idle = 1 - 1 / (double)p;
    say(run, "  %.0f units; an average stage is idle for %.1f %% of them", units, 100 * idle);
    check_numbers(run, "op lists = formula", "step time m p (t_f + t_b)", &units, &want_units, 1, 0);
    // 1e-12: quotients of doubles.
    check_numbers(run, "op lists = formula", "idle share 1 - 1/p", &idle, &want_idle, 1, 1e-12);
    timeline_free(&t);
    schedule_all_free(list, p);
}

// ---------------------------------------------------------------- the lesson

static void naive(Run *run) {
    size_t p = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks", p, sizes.layers);
    REQUIRE(m >= 1 && m <= SEQUENCES, "--micro-batches %zu: the batch has %d sequences: choose 1 to %d", m, SEQUENCES,
            SEQUENCES);
    Training t = { .model = sizes, .steps = 3, .sequences = SEQUENCES, .micro_batches = m };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    StageCosts seen = {0};
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        Course got = course_new(run, &t), want = course_unsplit(run, &t, 1);
        seen = stages_train(run, &t, schedule_naive, naive_step, &got);
        say(run, "%s: loss %.4f, %.4f, %.4f", i ? "AdamW" : "SGD", got.loss[0], got.loss[1], got.loss[2]);
        course_compare(run, "naive = unsplit", &got, &want, 0);
        course_free(&got);
        course_free(&want);
    }
    predict(run, m, &seen);
    step_time(run, m);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "1", "pieces the batch is cut into; each goes there and back before the next one" },
    {0},
};
int main(int argc, char **argv) { return lesson_main(argc, argv, naive, options); }
