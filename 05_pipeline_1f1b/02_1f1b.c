// ranks: 4
// level: core
// question: Can a pipeline give the same bits as GPipe in the same time, with fewer micro-batches in memory?
//
// 1F1B, or PipeDream-Flush: stage i runs p - 1 - i forwards ahead and from then on one forward, one backward. A
// backward comes as early as it can and frees what its forward kept. Model, messages and sums are those of GPipe; only
// the lists differ. Both run here, and both are held against gradient accumulation on one device. Gradients are
// clipped, which needs the norm of all stages.
// Left out: several chunks of layers per stage (interleaving), and schedules that never wait for the pipeline to run
// empty.
#include "04_pipeline_naive/stages.h"
#include "05_pipeline_1f1b/schedule_1f1b.h"
#include <stdlib.h>

// 11 sequences of 5 to 10 counted tokens in 7 micro-batches: 2, 2, 2, 2, 1, 1, 1; 9 blocks on 4 stages: 3, 2, 2, 2.
static const ModelConfig sizes = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1 };
enum { SEQUENCES = 11 };
static const double clip = 0.25;

// ---------------------------------------------------------------- one step, whatever the list

static StepResult pipeline_step(void *stages, Model *m, Optimizer *o, const Training *t, const Batch *batch) {
    Stages *s = stages;
    model_zero_gradients(m);
    PipelineResult r = pipeline_run(s->pp, m, &s->schedule, batch, t->micro_batches);
    s->in_flight = r.in_flight;
    pipeline_tied_sum(m, s->tied);                         // before the norm: it is of the whole gradient
    comm_all_reduce_doubles(s->pp, &r.loss, 1);
    // One number a tensor, from the stage that owns it and zeros from the others; then added in model order. So the
    // norm, and with it every clipped weight, has the same bits however the layers are spread. wte counts once, on the
    // first stage.
    double norm = model_grad_norm(m, s->pp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ r.loss * batch[0].token_weight, norm };
}

// ---------------------------------------------------------------- the predictions, from sizes alone

// Elements that stage i keeps of one token from its forward to its backward: the list of 04's 03_gpipe.
static size_t kept_per_token(size_t p, size_t i) {
    size_t L = sizes.layers, C = sizes.width, T = sizes.context, H = sizes.heads, V = sizes.vocab;
    size_t blocks = L / p + (i < L % p), first = i == 0, last = i + 1 == p;
    size_t block = 2 * (C + 2) + 3 * C + 2 * H * T + C + C + 2 * 4 * C;    // norms, q k v, probabilities, mix, sum, MLP
    size_t head = C + 2 + V + 1;
    return blocks * block + last * head + (blocks + first + last - 1) * C + !first * C;
}

static size_t tokens_of(size_t m, size_t k) { return range_size(shard_range(SEQUENCES, m, k)) * sizes.context; }

static void predict(Run *run, size_t m, const StageCosts *seen, const StageCosts *gpipe) {
    size_t p = run->world->size, i = run->world->rank, E = sizeof(real), C = sizes.width;
    size_t next = i + 1 < p, before = i > 0, kept = kept_per_token(p, i) * E;
    size_t flight = p - i < m ? p - i : m, held = 0, all = SEQUENCES * sizes.context;
    for (size_t k = 0; k < flight; k++) held += tokens_of(m, k);               // the first ones are the largest
    cost(run, "in flight, GPipe: m", "micro-batches", m, gpipe->in_flight);
    cost(run, "in flight, 1F1B: min(p-i, m)", "micro-batches", flight, seen->in_flight);
    cost(run, "activations, peak, GPipe", "bytes", kept * all, gpipe->activations);
    cost(run, "activations, peak, 1F1B", "bytes", kept * held, seen->activations);
    // When gradient 0 leaves, the activation of the last forward before it stands in the other buffer.
    size_t buffers = next && before ? tokens_of(m, 0) + tokens_of(m, flight - 1) : next || before ? tokens_of(m, 0) : 0;
    cost(run, "send buffers, peak, 1F1B", "bytes", buffers * C * E, seen->send_buffers);
    size_t calls = m * (next + before), bytes = (next + before) * all * C * E;
    cost(run, "messages sent, GPipe", "calls", calls, gpipe->messages);
    cost(run, "messages sent, GPipe", "bytes", bytes, gpipe->message_bytes);
    cost(run, "messages sent, 1F1B", "calls", calls, seen->messages);
    cost(run, "messages sent, 1F1B", "bytes", bytes, seen->message_bytes);
}

// The step times that follow from the lists: equal stages, t_f = 1, t_b = 2, messages take no time.
static void step_time(Run *run, size_t m) {
    size_t p = run->world->size;
    Schedule *list = schedule_all(schedule_1f1b, p, m);
    Timeline t = timeline_of(list, p, m, 1, 2);
    say(run, "The op lists of %zu stages, played: %zu units, %zu if no stage were ever idle", p, t.end, m * 3);
    for (size_t i = 0; i < p && run->verbose && 3 * t.end < 110; i++) {
        char *row = timeline_row(&t, i);
        say(run, "  stage %zu  %s", i, row);
        free(row);
    }
    double units[] = { makespan(schedule_gpipe, p, m, 1, 2), t.end }, want[] = { (m + p - 1) * 3, (m + p - 1) * 3 };
    check_numbers(run, "op lists = formula", "GPipe and 1F1B: (m+p-1)(t_f+t_b)", units, want, 2, 0);
    timeline_free(&t);
    schedule_all_free(list, p);
}

// ---------------------------------------------------------------- the lesson

static void one_forward_one_backward(Run *run) {
    size_t p = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks", p, sizes.layers);
    REQUIRE(m >= 1 && m <= SEQUENCES, "--micro-batches %zu: the batch has %d sequences: choose 1 to %d", m, SEQUENCES,
            SEQUENCES);
    Training t = { .model = sizes, .steps = 3, .sequences = SEQUENCES, .micro_batches = m, .clip = clip };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    StageCosts seen = {0}, gpipe = {0};
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        Course all_then_all = course_new(run, &t), got = course_new(run, &t), want = course_unsplit(run, &t, 1);
        gpipe = stages_train(run, &t, schedule_gpipe, pipeline_step, &all_then_all);
        seen = stages_train(run, &t, schedule_1f1b, pipeline_step, &got);
        say(run, "%s: loss %.4f, %.4f, %.4f; norm %.3f, %.3f, %.3f, clipped to %.2f", i ? "AdamW" : "SGD",
            got.loss[0], got.loss[1], got.loss[2], got.norm[0], got.norm[1], got.norm[2], clip);
        course_compare(run, "1F1B = accumulation", &got, &want, 0);
        course_compare(run, "GPipe = accumulation", &all_then_all, &want, 0);
        bool clipped = true;
        for (size_t n = 0; n < t.steps; n++) clipped &= got.norm[n] > clip;
        check_true(run, "clipping", "is at work in every step", clipped);
        course_free(&all_then_all);
        course_free(&got);
        course_free(&want);
    }
    predict(run, m, &seen, &gpipe);
    step_time(run, m);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "7", "pieces the batch is cut into" },
    {0},
};
int main(int argc, char **argv) { return lesson_main(argc, argv, one_forward_one_backward, options); }
