// ranks: 4
// level: core
// question: How long are stages idle when the batch is cut into micro-batches, and what does keeping them busy cost?
//
// GPipe (Huang et al. 2018): a stage hands micro-batch 0 on and starts micro-batch 1 at once, so that all stages work
// at the same time on different micro-batches. All forwards come first, then all backwards. We run the backwards
// ascending, to keep the bits of accumulation; torchgpipe runs them descending. One step still adds the gradients of
// all micro-batches: nothing but the order of the ops differs from the naive pipeline, and every result is the same in
// every bit. The price is memory: what m forwards keep waits until the last of them is done.
// Left out: giving the memory back by keeping only stage inputs (GPipe does that; chapter 07), and the time of
// messages.
#include "04_pipeline_naive/stages.h"
#include <stdlib.h>

// 7 sequences of 5 to 10 counted tokens each, in 4 micro-batches of 2, 2, 2 and 1; 9 blocks on 4 stages: 3, 2, 2, 2.
static const ModelConfig sizes = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1 };
enum { SEQUENCES = 7 };

// ---------------------------------------------------------------- one step: that of 02_naive, whatever the list

static StepResult pipeline_step(void *stages, Model *m, Optimizer *o, const Training *t, const Batch *batch) {
    Stages *s = stages;
    model_zero_gradients(m);
    PipelineResult r = pipeline_run(s->pp, m, &s->schedule, batch, t->micro_batches);
    s->in_flight = r.in_flight;
    pipeline_tied_sum(m, s->tied);
    comm_all_reduce_doubles(s->pp, &r.loss, 1);
    double norm = model_grad_norm(m, s->pp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ r.loss * batch[0].token_weight, norm };
}

// ---------------------------------------------------------------- the predictions, from sizes alone

// Elements that stage i keeps of one token from its forward to its backward. Chapter 07 takes this list apart.
static size_t kept_per_token(size_t p, size_t i) {
    size_t L = sizes.layers, C = sizes.width, T = sizes.context, H = sizes.heads, V = sizes.vocab;
    size_t blocks = L / p + (i < L % p), first = i == 0, last = i + 1 == p;
    size_t block = C + 2             // first norm, and its two statistics
                 + 3 * C             // q, k, v
                 + 2 * H * T         // attention probabilities before and after dropout
                 + C                 // what the heads mix, side by side
                 + C                 // the sum after attention
                 + C + 2             // second norm
                 + 2 * 4 * C;        // the MLP before and after GELU
    size_t head = C + 2 + V + 1;     // last norm, logits, the sum of their exponentials
    size_t layers = blocks + first + last;
    size_t between = (layers - 1) * C + !first * C;        // what one layer hands to the next, and what was received
    return blocks * block + last * head + between;
}

static size_t tokens_of(size_t m, size_t k) { return range_size(shard_range(SEQUENCES, m, k)) * sizes.context; }

static void predict(Run *run, size_t m, const StageCosts *gpipe, const StageCosts *naive) {
    size_t p = run->world->size, i = run->world->rank, E = sizeof(real), C = sizes.width;
    size_t next = i + 1 < p, before = i > 0, kept = kept_per_token(p, i) * E;
    size_t all = SEQUENCES * sizes.context, largest = tokens_of(m, 0), smallest = tokens_of(m, m - 1);
    cost(run, "messages sent, as when naive", "calls", m * (next + before), gpipe->messages);
    cost(run, "messages sent, as when naive", "bytes", (next + before) * all * C * E, gpipe->message_bytes);
    cost(run, "in flight, naive", "micro-batches", 1, naive->in_flight);
    cost(run, "in flight, GPipe: m", "micro-batches", m, gpipe->in_flight);
    cost(run, "activations, peak, naive: the largest micro-batch", "bytes", kept * largest, naive->activations);
    cost(run, "activations, peak, GPipe: all of them", "bytes", kept * all, gpipe->activations);
    // When the first gradient leaves for the stage before, the last activation still stands in the other buffer.
    size_t buffers = next && before ? largest + smallest : next || before ? largest : 0;
    cost(run, "send buffers, peak", "bytes", buffers * C * E, gpipe->send_buffers);
}

// Step times of equal stages, from the lists alone; t_f = 1, t_b = 2. Bubble: what is missing to all stages working all
// the time.
static void step_time(Run *run, size_t m) {
    enum { SIZES = 6, BOTH = 3 };
    size_t p = run->world->size;
    double units[SIZES], want[SIZES], share[2 * SIZES], want_share[2 * SIZES];
    say(run, "Step time of %zu stages by the op lists, t_f = 1 and t_b = 2 units; ideal: m (t_f + t_b):", p);
    say(run, "     m   naive   GPipe   ideal   bubble / total   bubble / ideal");
    for (size_t n = 0, micro = 1; n < SIZES; n++, micro *= 2) {
        size_t slow = makespan(schedule_naive, p, micro, 1, 2), fast = makespan(schedule_gpipe, p, micro, 1, 2);
        size_t ideal = micro * BOTH;
        units[n] = fast;
        share[2 * n] = (double)(fast - ideal) / (double)fast;
        share[2 * n + 1] = (double)(fast - ideal) / (double)ideal;
        want[n] = (micro + p - 1) * BOTH;
        want_share[2 * n] = (double)(p - 1) / (double)(micro + p - 1);
        want_share[2 * n + 1] = (double)(p - 1) / (double)micro;
        say(run, "  %4zu  %6zu  %6zu  %6zu  %13.1f %%  %13.1f %%", micro, slow, fast, ideal, 100 * share[2 * n],
            100 * share[2 * n + 1]);
    }
    Schedule *list = schedule_all(schedule_gpipe, p, m);
    Timeline t = timeline_of(list, p, m, 1, 2);
    for (size_t i = 0; i < p && run->verbose && 3 * t.end < 110; i++) {
        char *row = timeline_row(&t, i);
        say(run, "  stage %zu  %s", i, row);
        free(row);
    }
    timeline_free(&t);
    schedule_all_free(list, p);
    check_numbers(run, "op lists = formula", "step time (m+p-1)(t_f+t_b)", units, want, SIZES, 0);
    // 1e-12: quotients of doubles.
    check_numbers(run, "op lists = formula", "(p-1)/(m+p-1) of total, (p-1)/m of ideal", share, want_share, 2 * SIZES,
                  1e-12);
}

// ---------------------------------------------------------------- the lesson

static void gpipe(Run *run) {
    size_t p = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks", p, sizes.layers);
    REQUIRE(m >= 1 && m <= SEQUENCES, "--micro-batches %zu: the batch has %d sequences: choose 1 to %d", m, SEQUENCES,
            SEQUENCES);
    Training t = { .model = sizes, .steps = 3, .sequences = SEQUENCES, .micro_batches = m };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    StageCosts seen = {0}, slow = {0};
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        Course naive = course_new(run, &t), got = course_new(run, &t), want = course_unsplit(run, &t, 1);
        slow = stages_train(run, &t, schedule_naive, pipeline_step, &naive);           // for its costs
        seen = stages_train(run, &t, schedule_gpipe, pipeline_step, &got);
        say(run, "%s: loss %.4f, %.4f, %.4f", i ? "AdamW" : "SGD", got.loss[0], got.loss[1], got.loss[2]);
        course_compare(run, "GPipe = accumulation", &got, &want, 0);
        course_free(&naive);
        course_free(&got);
        course_free(&want);
    }
    predict(run, m, &seen, &slow);
    step_time(run, m);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "4", "pieces the batch is cut into" },
    {0},
};
int main(int argc, char **argv) { return lesson_main(argc, argv, gpipe, options); }
