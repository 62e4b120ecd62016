// ZeRO-3 with prefetch beside ZeRO-3, data parallelism and the unsplit model; its time by a
// recurrence.
#include "06_zero/experiments/experiments.h"
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

// Four blocks: with two, those two are all units that are large, and to keep all of them costs
// nothing more.
static const ModelConfig tiny = {
    .layers = 4, .width = 15, .heads = 3, .context = 11, .vocab = 53, .dropout = 0.1
};

static void resharding(Model *m, Comm *dp) { prefetch_allocate(m, dp, true); }
static void keeping(Model *m, Comm *dp) { prefetch_allocate(m, dp, false); }

// ---------------------------------------------------------------- sizes

// Layer i of n = L + 2 (the embedding, blocks, the head) gathers one unit: wpe, its own, the last
// norm.
static size_t unit_size(const ModelConfig *c, size_t i) {
    CutSizes z = cut_sizes(c, 1, 0);
    return elements_unit(&z, i);
}

// Elements in flight, at most, on this rank: the tied embedding's weights and two gradients, all
// the time; in forward the layer's unit and the next one; in backward the layer's unit and the one
// before it, the layer's gradient, and of the layer above, whose reduction is under way, the
// gradient, what comm.c holds for a started sum, and, where the sum must be added to another, the
// part that arrives. Kept weights: all units up to this one, or all that come.
static size_t in_flight(const Training *t, size_t N, size_t rank, bool reshard) {
    const ModelConfig *c = &t->model;
    size_t n = c->layers + 2, most = 0, kept = 0;
    for (size_t i = 0; i < n; i++) {
        kept += unit_size(c, i);
        size_t before = i ? unit_size(c, i - 1) : 0, above = i + 1 < n ? unit_size(c, i + 1) : 0,
               weights, reducing = 0;
        if (i + 1 < n) {
            reducing = above + (N > 1 ? N * ceil_div(above, N) : 0);
            if (t->micro_batches > 1) reducing += range_size(shard_range(above, N, rank));
        }
        weights = reshard ? unit_size(c, i) + before : kept;
        if (weights + unit_size(c, i) + reducing > most)
            most = weights + unit_size(c, i) + reducing;
    }
    return 3 * c->vocab * c->width + most;
}

// ---------------------------------------------------------------- time

// What prefetch_step() does, on N ranks at once: every rank has a compute row, and all share one
// communication lane. A communication begins when its last member has started it and the one before
// has ended. All ranks start and wait for the same ones in the same order; what differs is how long
// they compute.
typedef struct { double begin, end; } Span;
typedef struct {
    const Training *t;
    size_t N, n;                                   // ranks, layers
    double *now;                                   // [N] of each rank's compute row
    Span *sent;                                    // communications in order
    size_t count;
    double hidden, total;   // communication while a rank computes, and all; added over ranks
} Steps;

static double last_of(const Steps *s) {
    double last = 0;
    for (size_t r = 0; r < s->N; r++) last = s->now[r] > last ? s->now[r] : last;
    return last;
}
// Returns its end.
static double start(Steps *s, double takes) {
    double begin = last_of(s), free = s->count ? s->sent[s->count - 1].end : 0;
    if (free > begin) begin = free;
    s->sent[s->count++] = (Span){ begin, begin + takes };
    s->total += (double)s->N * takes;
    return begin + takes;
}
static void wait(Steps *s, double end) {
    for (size_t r = 0; r < s->N; r++) if (end > s->now[r]) s->now[r] = end;
}
static double ring(const Steps *s, size_t elements) {
    return ring_time(ONE_PASS, s->N, elements, sizeof(real));
}

// `products` times the work of layer i's forward, for micro-batch k. All that is on its way has
// been started.
static void compute(Steps *s, size_t i, size_t k, double products) {
    const ModelConfig *c = &s->t->model;
    CutSizes z = cut_sizes(c, 1, 0);
    for (size_t r = 0; r < s->N; r++) {
        size_t B = zero_sequences(s->t, s->N, r, k);
        Work one = i == 0 ? (Work){0} : i <= c->layers ? work_block(&z, B) : work_head(&z, B);
        double begin = s->now[r], end = begin + products * one.time;
        for (size_t j = s->count; j-- > 0 && s->sent[j].end > begin;) {
            double from = s->sent[j].begin > begin ? s->sent[j].begin : begin;
            double until = s->sent[j].end < end ? s->sent[j].end : end;
            if (until > from) s->hidden += until - from;
        }
        s->now[r] = end;
    }
}

static void micro_batch(Steps *s, size_t k, bool reshard) {
    const ModelConfig *c = &s->t->model;
    double gather = start(s, ring(s, unit_size(c, 0))), reduction = 0;
    for (size_t i = 0; i < s->n; i++) {
        double next = i + 1 < s->n ? start(s, ring(s, unit_size(c, i + 1))) : 0;
        wait(s, gather);
        compute(s, i, k, 1);
        gather = next;
    }
    if (reshard) gather = start(s, ring(s, unit_size(c, s->n - 1)));
    for (size_t i = s->n; i-- > 0;) {
        double before = reshard && i > 0 ? start(s, ring(s, unit_size(c, i - 1))) : 0;
        wait(s, gather);
        compute(s, i, k, 2);
        wait(s, reduction);
        reduction = start(s, ring(s, unit_size(c, i)));
        gather = before;
    }
    wait(s, reduction);                            // by the next forward, or the end of the step
}

typedef struct { double exposed, hidden, step; } Times;
static Times recurrence(const Training *t, size_t N, bool reshard) {
    const ModelConfig *c = &t->model;
    Steps s = { .t = t, .N = N, .n = c->layers + 2, .now = host_alloc(N * sizeof *s.now),
                .sent = host_alloc((4 + 3 * t->micro_batches * (c->layers + 2)) * sizeof *s.sent) };
    for (size_t r = 0; r < N; r++) s.now[r] = 0;
    wait(&s, start(&s, ring(&s, c->vocab * c->width)));
    for (size_t k = 0; k < t->micro_batches; k++) micro_batch(&s, k, reshard);
    wait(&s, start(&s, ring(&s, c->vocab * c->width)));
    // norm
    wait(&s, start(&s, ring_time(ALL_REDUCE_PASSES, N, config_tensors(c), sizeof(double))));
    wait(&s, start(&s, ring_time(ALL_REDUCE_PASSES, N, 1, sizeof(double))));    // loss
    Times times = { s.total - s.hidden, s.hidden, last_of(&s) };
    free(s.now);
    free(s.sent);
    return times;
}

// ---------------------------------------------------------------- the costs

static void prefetch_cost_lines(Run *run, Comm *dp, const Training *t, bool reshard) {
    const ModelConfig *c = &t->model;
    size_t N = dp->size, m = t->micro_batches, n = c->layers + 2, wte = c->vocab * c->width;
    double e = sizeof(real), M = (double)m, gathers = reshard ? 2 * M : M, mine, bytes = 0;
    double wte_bytes = ring_bytes(ONE_PASS, N, wte, sizeof(real));
    mine = (double)range_size(shard_range(wte, N, dp->rank));
    for (size_t i = 0; i < n; i++) {
        mine += (double)range_size(shard_range(unit_size(c, i), N, dp->rank));
        bytes += ring_bytes(ONE_PASS, N, unit_size(c, i), sizeof(real));
    }
    zero_cost(run, m, "state", "all state between steps: 16 / N", "bytes", 4 * mine * e,
              zero_state_now());
    zero_cost(run, m, "in-flight",
              reshard ? "in flight: 3 wte, 2 units, 2 gradients, a sum"
                      : "in flight: 3 wte, all units, 2 gradients, a sum",
              "bytes", (double)in_flight(t, N, dp->rank, reshard) * e,
              (double)memory_peak(MEM_COMMUNICATION));
    zero_cost(run, m, "in-flight.between", "in flight between steps: nothing", "bytes", 0,
              (double)memory_now(MEM_COMMUNICATION));
    zero_cost_activations(run, dp, t);
    zero_cost(run, m, "all-gather.calls",
              reshard ? "all-gather calls: 2m a unit, wte once"
                      : "all-gather calls: m a unit, wte once",
              "calls", gathers * (double)n + 1, (double)dp->ledger[COMM_ALL_GATHER].calls);
    zero_cost(run, m, "all-gather.bytes", reshard ? "all-gather: 2m passes over the parameters" :
                                "all-gather: m passes over the parameters", "bytes",
              gathers * bytes + wte_bytes, (double)dp->ledger[COMM_ALL_GATHER].bytes);
    zero_cost(run, m, "reduce-scatter.calls", "reduce-scatter calls: m a unit, wte once", "calls",
              M * (double)n + 1, (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    zero_cost(run, m, "reduce-scatter.bytes", "reduce-scatter: m passes over the parameters",
              "bytes", M * bytes + wte_bytes, (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
    zero_cost(run, m, "sent",
              reshard ? "all traffic: 3m units (wte 2), loss and norm"
                      : "all traffic: 2m units (wte 2), loss and norm",
              "bytes", (gathers + M) * bytes + 2 * wte_bytes + zero_scalars_bytes(c, N),
              (double)comm_bytes_sent(dp));
    if (!clock_config()->simulated) return;            // real time is not predicted
    Timing timing = picture_timing(run);
    Times times = recurrence(t, N, reshard);
    zero_cost_played(run, m, "exposed", "exposed, all ranks", "ps", times.exposed,
                     (double)timing.exposed);
    zero_cost_played(run, m, "hidden", "hidden, all ranks", "ps", times.hidden,
                     (double)timing.hidden);
    zero_cost_played(run, m, "step", "step", "ps", times.step, (double)timing.step);
}
static void prefetch_costs(Run *run, Comm *dp, const Training *t) {
    prefetch_cost_lines(run, dp, t, true);
}
static void prefetch_costs_kept(Run *run, Comm *dp, const Training *t) {
    prefetch_cost_lines(run, dp, t, false);
}

// ---------------------------------------------------------------- the page

// A step of ZeRO-3 without prefetch and with it: of one micro-batch in pictures, of one and of t's
// in a table.
static void prefetch_page(Run *run, Comm *dp, const ZeroLesson *lesson, Training t, bool reshard) {
    static const ZeroLesson zero3 = {
        .name = "ZeRO-3", .stage = 3, .allocate = zero3_allocate, .step = zero3_step,
    };
    const ZeroLesson *way[2] = { &zero3, lesson };
    enum { ROWS = 5 };
    size_t m[2] = { 1, t.micro_batches }, columns = m[1] > 1 ? 4 : 2;
    char text[ROWS][4][24], heads[4][32];
    const char *names[5] = {0};
    Result row[ROWS + 1] = {
        { "in flight, at most", reshard ? "5 blocks, not 2" : "L + 2 blocks, not 2", { 0 } },
        { "sent per rank", reshard ? "the same" : "2m, not 3m units", { 0 } },
        { "exposed, per rank", "waits; ranks' mean", { 0 } },
        { "hidden, per rank", "under F, B; mean", { 0 } },
        { "step", "its slowest rank", { 0 } }
    };
    for (size_t i = 0; i < columns; i++) {
        t.micro_batches = m[i / 2];
        ZeroMeasured seen = zero_measure(run, dp, way[i % 2], t);
        snprintf(heads[i], sizeof heads[i], "%s, m=%zu", i % 2 ? "prefetch" : "ZeRO-3",
                 t.micro_batches);
        names[i] = heads[i];
        page_cell(text[0][i], seen.in_flight, "bytes");
        page_cell(text[1][i], seen.sent, "bytes");
        page_cell(text[2][i], (double)seen.timing.exposed / (double)dp->size, "ps");
        page_cell(text[3][i], (double)seen.timing.hidden / (double)dp->size, "ps");
        page_cell(text[4][i], (double)seen.timing.step, "ps");
        for (size_t k = 0; k < ROWS; k++) row[k].cell[i] = text[k][i];
        int strips = zero_strips(run) ? PICTURE_MEMORY : PICTURE_CHART;
        if (i < 2)
            picture_show(run, heads[i], strips | (i == 0 ? PICTURE_NO_FILES : PICTURE_SAME_SCALE));
        if (i < 2 && option_flag(run, "verbose")) picture_summary(run, &seen.timing);
    }
    zero_say_sizes(run, dp, &t.model, "");
    say(run,
        "In flight, and 3 wte: ZeRO-3 the weights and gradient of 1 block; prefetch the weights of "
        "%s,",
        reshard ? "2 blocks" : "L - 1");
    say(run,
        "2 gradients, and a copy of the one that is being summed. Both: block/N more where m > 1.");
    say(run, "A ring hides where a layer computes for as long: in a larger micro-batch a larger "
             "share of it hides.");
    results(run, names, row);
}

// ---------------------------------------------------------------- the trainings

// The same training with prefetch and without: every bit.
typedef struct { ZeroStep *step; Comm *dp; } Stepped;
static StepResult take_step(void *stepped, Model *m, Optimizer *o, const Training *t,
                            const Batch *batch) {
    const Stepped *s = stepped;
    return s->step(m, s->dp, batch, t->micro_batches, o, t->clip);
}
static Trajectory train(Run *run, Comm *dp, const Training *t, void (*allocate)(Model *, Comm *),
                        ZeroStep *step) {
    Stepped stepped = { step, dp };
    Trajectory c = trajectory_new(run, t);
    Model *m = model_describe(&t->model, model_layers(&t->model));
    allocate(m, dp);
    training_run(&c, m, t, dp->size, dp->rank, take_step, &stepped);
    if (allocate != zero3_allocate) prefetch_free(m);
    model_free(m);
    return c;
}
static void beside_zero3(Run *run, Comm *dp, const Training *t, void (*allocate)(Model *, Comm *)) {
    Trajectory got = train(run, dp, t, allocate, prefetch_step);
    Trajectory want = train(run, dp, t, zero3_allocate, zero3_step);
    training_compare_tensors(run, "prefetch = ZeRO-3", &got, &want, every_bit(run));
    training_compare_numbers(run, "prefetch = ZeRO-3", &got, &want, every_bit(run));
    trajectory_free(&got);
    trajectory_free(&want);
}

static void prefetch(Run *run) {
    bool reshard = strcmp(option_text(run, "reshard-after-forward"), "yes") == 0;
    const ZeroLesson lesson = {
        .name = "ZeRO-3 with prefetch", .stage = 3, .allocate = reshard ? resharding : keeping,
        .step = prefetch_step, .costs = reshard ? prefetch_costs : prefetch_costs_kept,
        .free = prefetch_free,
    };
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Training t = zero_training(run, dp, &tiny);

    t.optimizer = sgd(0.1);
    zero_compare(run, dp, &lesson, t, "SGD", every_bit(run));
    t.micro_batches = option_size(run, "micro-batches");
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;
    t.recorded = true;
    zero_compare(run, dp, &lesson, t, "AdamW, weight decay 0.1",
                 t.micro_batches == 1 ? every_bit(run) : LIMIT_ROUNDING);
    t.clip = 0.5;                                  // below every norm: each step is clipped
    t.recorded = false;
    beside_zero3(run, dp, &t, lesson.allocate);
    prefetch_page(run, dp, &lesson, t, reshard);
    comm_free(dp);
}

static const Option options[] = {
    { "reshard-after-forward", "yes|no", "yes",
      "drop weights after forward, and gather them again for backward" },
    ZERO_OPTIONS("micro-batches of each rank, in the second half")
};
EXPERIMENT(prefetch, options);
