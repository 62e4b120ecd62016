// 07_compare.c (experiment): one batch in each of the seven ways: time, idle share, memory,
// messages, age of gradients; published figures by the lists alone.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include "judge/draw/plot.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const ModelConfig sizes = {
    .layers = 1, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};

// ---------------------------------------------------------------- what the lists say

static size_t way_chunks(const PipelineWay *w, size_t p) { return p > 1 ? w->chunks : 1; }
static Stack way_stack(const PipelineWay *w, const Stack *stack, size_t p) {
    Stack s = *stack;
    s.chunks = way_chunks(w, p);
    return s;
}

// Of the lists alone: when so many batches end. Messages as over the chosen link, or none.
static Picoseconds way_end(const PipelineWay *w, const Stack *stack, size_t p, size_t m,
                           size_t batches, bool messages) {
    Schedule *stage = host_alloc(p * sizeof *stage);
    Stack part = *stack;
    part.blocks /= way_chunks(w, p);
    OpTimes t = zb_times(&part);                   // a whole backward takes both halves
    if (!messages) t.message = 0;
    for (size_t i = 0; i < p; i++) stage[i] = w->list(p, m, batches, i);
    return lists_makespan(stage, p, batches * m, &t);
}
// Of one more batch, where the pipeline is full.
static Picoseconds way_batch(const PipelineWay *w, const Stack *stack, size_t p, size_t m,
                             bool messages) {
    if (w->kind == WAY_FLUSH) return way_end(w, stack, p, m, 1, messages);
    return way_end(w, stack, p, m, 3, messages) - way_end(w, stack, p, m, 2, messages);
}

// Most updates between the version that a gradient is taken at and the one that it is subtracted
// from.
static size_t way_late(const Schedule *s) {
    size_t updates = 0, read = 0, most = 0;
    for (size_t e = 0; e < s->n; e++) {
        if (s->ops[e].what == BACKWARD) read = s->ops[e].version;
        if (s->ops[e].what != UPDATE) continue;
        if (updates - read > most) most = updates - read;
        updates++;
    }
    return most;
}

// ---------------------------------------------------------------- one batch, measured

// This rank's measurements of one batch in the steady state.
typedef struct {
    Picoseconds batch;
    double busy;                                   // picoseconds, added over the ranks
    size_t activations, weights, messages, late;   // bytes, peak; bytes; calls; updates
} WaySeen;

typedef struct { const PipelineWay *way; Comm *tied; size_t m, batches; } OneWay;
static PipelineResult by_way(const void *how, Comm *pp, Model *model, const Batch *batch,
                             size_t n) {
    const OneWay *one = how;
    Optimizer o = sgd(0.01);
    (void)n;
    tensor_fill(model->g, 0);  // the stack has no embedding, but its table's gradient is summed
    return pipeline_way_run(one->way, pp, one->tied, model, &o, batch, one->m, one->batches);
}
// Runs so many batches by the functions of the way's own lesson.
static Played play(Run *run, const PipelineWay *w, const Stack *stack, size_t m, size_t batches) {
    OneWay one = { w, w->kind == WAY_2BW ? pipeline_tied_group(run->world) : NULL, m, batches };
    Stack chunked = way_stack(w, stack, run->world->size);
    comm_ledger_reset(run->world);
    Played played = stack_play_by(run, &chunked, MEM_ACTIVATIONS, by_way, &one,
                                  w->kind == WAY_FLUSH ? m : batches * m);
    if (one.tied) comm_free(one.tied);
    return played;
}

// One batch where the pipeline is as full as it gets: what three batches take more than two.
static WaySeen measure(Run *run, const PipelineWay *w, const Stack *stack, size_t m) {
    size_t p = run->world->size;
    Played two = {0};
    size_t messages = 0;
    if (w->kind != WAY_FLUSH) {
        two = play(run, w, stack, m, 2);
        messages = run->world->ledger[COMM_SEND].calls;
    }
    Played last = play(run, w, stack, m, 3);
    Schedule list = w->list(p, m, 3, run->world->rank);
    WaySeen seen = { .batch = last.timing.step - two.timing.step,
                     .busy = (double)(last.timing.busy - two.timing.busy),
                     .activations = last.activations, .weights = memory_peak(MEM_PARAMETERS),
                     .messages = run->world->ledger[COMM_SEND].calls - messages,
                     .late = way_late(&list) };
    schedule_free(&list);
    return seen;
}

// ---------------------------------------------------------------- costs

// Most micro-batches in flight on stage i; 0: chunks or halves, of which only the list says the
// bytes.
static size_t flight(const PipelineWay *w, size_t p, size_t m, size_t i) {
    const size_t most[PIPELINE_WAYS] = { 1, m, p - i, 0, 0, p - i, p - i };
    return most[w - pipeline_ways];
}
static size_t listed_activations(const PipelineWay *w, const Stack *stack, size_t p, size_t m,
                                 size_t i) {
    size_t v = way_chunks(w, p), now = 0, most = 0;
    Stack part = *stack;
    part.blocks /= v;
    Schedule list = w->list(p, m, 3, i);
    if (w->chunks == 1) most = zb_stack_peak(stack, &list, p, i);
    for (size_t n = 0; n < list.n && w->chunks > 1; n++) {         // chunks may keep unequally much
        size_t kept = stack_kept(&part, v * p, list.ops[n].chunk * p + i);
        now = list.ops[n].what == FORWARD ? now + kept : now - kept;
        if (now > most) most = now;
    }
    schedule_free(&list);
    return most;
}

static size_t weights(const PipelineWay *w, const Stack *stack, size_t p, size_t i) {
    size_t v = way_chunks(w, p), elements = 0,
           versions = w->kind == WAY_PIPEDREAM ? p - i
                      : w->kind == WAY_2BW     ? 2
                                               : 1;
    ModelConfig whole = stack->model;
    whole.layers = stack->blocks * p;
    for (size_t chunk = 0; chunk < v; chunk++) {
        CutSizes z = cut_stage(cut_sizes(&whole, 1, 0), v * p, chunk * p + i);
        elements += elements_stage(&z);
    }
    return versions * elements * sizeof(real);
}

static void costs(Run *run, const PipelineWay *w, const Stack *stack, size_t m,
                  const WaySeen *seen) {
    size_t p = run->world->size, i = run->world->rank, v = way_chunks(w, p);
    size_t late = w->kind == WAY_PIPEDREAM ? p - 1 - i : w->kind == WAY_2BW;
    StackTimes t = stack_times(stack);
    size_t in_flight = flight(w, p, m, i);
    const char *id_of[] = { "naive", "gpipe", "1f1b", "interleaved", "zb-h1", "pipedream", "2bw" };
    const char *way = id_of[w - pipeline_ways];
    CostName id, name;
#define ID(what) cost_name(&id, "%s.%s", what, way)
#define NAME(what) cost_name(&name, "%s: %s", w->name, what)
    check_cost(run, ID("activations"), NAME("activations, peak"), "bytes",
               in_flight ? formula(in_flight * stack_kept(stack, p, i)) : NOT_PREDICTED,
               in_flight ? NOT_PREDICTED : played(listed_activations(w, stack, p, m, i)),
               seen->activations);
    check_cost(run, ID("weights"), NAME("weights, all versions"), "bytes",
               formula(weights(w, stack, p, i)), NOT_PREDICTED, seen->weights);
    size_t messages = p == 1 ? 0 : m * (v - (i + 1 == p)) + m * (v - (i == 0));
    check_cost(run, ID("sent"), NAME("messages sent, a batch"), "calls", formula(messages),
               NOT_PREDICTED, seen->messages);
    check_cost(run, ID("late"), NAME("updates late"), "updates", formula(late), NOT_PREDICTED,
               seen->late);
    if (!clock_config()->simulated) return;  // real time differs from run to run
    Picoseconds batch = way_batch(w, stack, p, m, true);
    double ideal = (double)(m * (t.forward + t.backward));
    check_cost(run, ID("batch"), NAME("a batch"), "ps", NOT_PREDICTED, played(batch), seen->batch);
    check_cost(run, ID("idle"), NAME("idle"), "millionths", NOT_PREDICTED,
               played(round(1e6 * (1 - ideal / (double)batch))),
               round(1e6 * (1 - seen->busy / ((double)p * (double)seen->batch))));
#undef ID
#undef NAME
}

// -------------------------------------------------------------- published figures, by the lists

// In units of a stage's t_f, with t_b = 2 t_f; a chunk takes 1/v of them.
static double interleaved_units(size_t p, size_t m, size_t v) {
    Schedule *stage = host_alloc(p * sizeof *stage);
    for (size_t i = 0; i < p; i++) stage[i] = schedule_interleaved(p, m, v, i);
    return (double)lists_makespan(stage, p, m, &(OpTimes){ 1, 2, 0, 0 }) / (double)v;
}

static void published(Run *run) {
    double got[] = { makespan(schedule_naive, 4, 8, 1, 2), makespan(schedule_gpipe, 4, 8, 1, 2),
                     makespan(schedule_1f1b, 4, 8, 1, 2),  interleaved_units(4, 8, 2),
                     interleaved_units(4, 8, 4),           makespan(schedule_1f1b, 8, 32, 1, 2),
                     interleaved_units(8, 32, 4) };
    double want[] = { 96, 33, 33, 28.5, 26.25, 117, 101.25 };
    check_numbers(run, "published", "PTD-P's (p-1)/m and (p-1)/(vm) in units of t_f", got, want, 7,
                  0);
    // GPipe, table 2: Transformer-48, M = 32; throughput on K stages against that of K = 2 with M =
    // 1. All of a batch's work is the same, so a stage's share of a micro-batch is 1/(K M) of it.
    static const double table[] = { 1.8, 3.4, 6.3 };
    double ideal[3], speed_up[3];
    bool close = true;
    for (size_t n = 0; n < 3; n++) {
        size_t K = (size_t)2 << n, M = 32;
        // K M such shares in a row.
        double one = (double)makespan(schedule_gpipe, 2, 1, 1, 2) / 2;
        ideal[n] = (double)(K * M) * one / (double)makespan(schedule_gpipe, K, M, 1, 2);
        speed_up[n] = (double)(K * M) / (double)(M + K - 1);
        close = close && table[n] <= ideal[n] && table[n] >= 0.92 * ideal[n];
    }
    check_numbers(run, "published", "GPipe's speed-up K M/(M+K-1)", ideal, speed_up, 3, 1e-12);
    check_true(run, "published", "its table 2 within 8 % of it", close);
    OpTimes units = { 1, 1, 1, 0 };
    double bubble[] = { (double)zb_judge(schedule_zb_h1, 4, 8, &units).step - 24,
                        ((double)zb_judge(schedule_1f1b, 4, 8, &units).step - 24) / 3 };
    check_numbers(run, "published", "ZB-H1's bubble is a third of 1F1B's", &bubble[0], &bubble[1],
                  1, 0);
}

// The closed forms, where messages take no time, of lists alone.
static void closed_forms(Run *run, const Stack *stack, size_t m) {
    size_t p = run->world->size, v = way_chunks(&pipeline_ways[3], p);
    StackTimes t = stack_times(stack);
    OpTimes halves = zb_times(stack);
    double bubble = (double)(halves.forward + halves.backward_inputs - halves.backward_weights);
    double both = (double)(t.forward + t.backward), got[PIPELINE_WAYS];
    double want[PIPELINE_WAYS] = { (double)(m * p) * both,
                                   (double)(m + p - 1) * both,
                                   (double)(m + p - 1) * both,
                                   ((double)m + (double)(p - 1) / (double)v) * both,
                                   (double)m * both + (double)(p - 1) * bubble,
                                   (double)m * both,
                                   (double)m * both };
    for (size_t k = 0; k < PIPELINE_WAYS; k++)
        got[k] = (double)way_batch(&pipeline_ways[k], stack, p, m, false);
    check_numbers(run, "lists = closed forms", "a batch, without messages", got, want,
                  PIPELINE_WAYS, 1e-12);
}

// ---------------------------------------------------------------- bars, table, plot

// Of the idle share, without messages.
static const char *const idle_formula[PIPELINE_WAYS] = {
    "1-1/p", "(p-1)/(m+p-1)", "(p-1)/(m+p-1)", "(p-1)/(vm+p-1)", "(p-1)(F+B-W)/step", "0", "0"
};

// The most of all ranks.
static double most(Run *run, double mine) {
    size_t p = run->world->size;
    double *all = host_alloc(p * sizeof *all), max = 0;
    for (size_t i = 0; i < p; i++) all[i] = i == run->world->rank ? mine : 0;
    ledger_pause();
    comm_all_reduce_doubles(run->world, all, p);
    ledger_resume();
    for (size_t i = 0; i < p; i++) max = all[i] > max ? all[i] : max;
    free(all);
    return max;
}

static void table(Run *run, const Stack *stack, size_t m, const WaySeen *seen) {
    enum { COLUMNS = 6, WIDTH = 76 };
    static const char *const unit[COLUMNS] = { "ps",    "millionths", "bytes",
                                               "bytes", "calls",      "updates" };
    char cell[PIPELINE_WAYS][COLUMNS][32];
    Result rows[PIPELINE_WAYS + 1] = {{0}};
    size_t p = run->world->size;
    bool simulated = clock_config()->simulated;
    say(run, "A batch of m = %zu micro-batches on %zu stages of %zu blocks.%s", m, p, stack->blocks,
        simulated ? "  = computing  . idle" : "");
    for (size_t k = 0; k < PIPELINE_WAYS; k++) {
        const WaySeen *s = &seen[k];
        double busy = s->busy / ((double)p * (double)s->batch), longest = (double)seen[0].batch;
        double value[COLUMNS] = { (double)s->batch,
                                  1e6 * (1 - busy),
                                  most(run, (double)s->activations),
                                  most(run, (double)s->weights),
                                  most(run, (double)s->messages),
                                  most(run, (double)s->late) };
        rows[k] = (Result){ .what = pipeline_ways[k].name,
                            .formula = simulated ? idle_formula[k] : NULL };
        for (size_t c = simulated ? 0 : 2, n = 0; c < COLUMNS; c++, n++) {
            cell[k][n][0] = '=';
            page_value(cell[k][n] + 1, sizeof cell[k][n] - 1, round(value[c]), unit[c]);
            rows[k].cell[n] = cell[k][n];
        }
        char bar[WIDTH + 1] = "";
        size_t all = (size_t)((double)s->batch / longest * WIDTH + 0.5),
               full = (size_t)((double)all * busy + 0.5);
        for (size_t x = 0; x < all && x < WIDTH; x++) bar[x] = x < full ? '=' : '.';
        if (simulated) say(run, "  %-12s %s", pipeline_ways[k].name, bar);
    }
    static const char *const columns[] = { "a batch",  "idle", "activations", "weights",
                                           "messages", "late", NULL };
    results(run, simulated ? columns : columns + 2, rows);
    say(run,
        "Of the rank that has most. late: updates since the version that a gradient was taken at.");
}

// Idle share by the number of micro-batches, of the lists with their messages.
static void plot(Run *run, const Stack *stack) {
    enum { POINTS = 8 };
    double x[POINTS], y[PIPELINE_WAYS][POINTS];
    PlotLine lines[PIPELINE_WAYS];
    size_t p = run->world->size;
    StackTimes t = stack_times(stack);
    for (size_t n = 0; n < POINTS; n++) {
        size_t m = (n + 1) * p;
        x[n] = (double)m;
        double computing = (double)(m * (t.forward + t.backward));
        for (size_t k = 0; k < PIPELINE_WAYS; k++)
            y[k][n] =
                100 - 100 * computing / (double)way_batch(&pipeline_ways[k], stack, p, m, true);
    }
    for (size_t k = 0; k < PIPELINE_WAYS; k++) lines[k] = (PlotLine){ pipeline_ways[k].name, y[k] };
    Plot plot = { .title = "idle, by the number of micro-batches",
                  .x_label = "micro-batches m of a batch", .y_label = "% idle", .x = x, .n = POINTS,
                  .lines = lines, .n_lines = PIPELINE_WAYS };
    plot_show(run, &plot, PICTURE_DETAIL);
}

// ---------------------------------------------------------------- the lesson

static void compare(Run *run) {
    require_one_link(run);
    size_t p = run->world->size, m = (8 + p - 1) / p * p;          // 8, or the next multiple of p
    Stack stack = { .model = sizes, .blocks = 2, .sequences = 1 };
    stack.model.seed = run->seed;
    WaySeen seen[PIPELINE_WAYS];
    for (size_t k = 0; k < PIPELINE_WAYS; k++) {
        seen[k] = measure(run, &pipeline_ways[k], &stack, m);
        costs(run, &pipeline_ways[k], &stack, m, &seen[k]);
    }
    closed_forms(run, &stack, m);
    published(run);
    table(run, &stack, m, seen);
    plot(run, &stack);
}
EXPERIMENT(compare, NULL);
