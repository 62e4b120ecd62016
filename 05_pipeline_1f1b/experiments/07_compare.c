// 07_compare.c (experiment): measures one batch in each of the seven ways: time, idle share,
// memory, messages, age of gradients. compare_lists.c predicts times from the lists alone, and
// recomputes published figures.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include "judge/draw/plot.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const ModelConfig sizes = {
    .layers = 1, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};

// ---------------------------------------------------------------- one batch, measured

// One batch in the steady state, as this rank measured it.
typedef struct {
    Picoseconds batch;
    double busy;                                 // picoseconds, added over the ranks
    size_t activations, weights, messages, late; // bytes, peak; bytes; calls; updates
} WaySeen;

typedef struct {
    const PipelineWay *way;
    Comm *tied;
    size_t m, batches;
} OneWay;
static PipelineResult by_way(const void *how, Comm *pp, Model *model, const Batch *batch,
                             size_t n) {
    const OneWay *one = how;
    Optimizer o = sgd(0.01);
    (void)n;
    tensor_fill(model->g, 0); // the stack has no embedding, but its table's gradient is summed
    return pipeline_way_run(one->way, pp, one->tied, model, &o, batch, one->m, one->batches);
}
// Runs `batches` batches with the functions of the way's own lesson.
static Played play(Run *run, const PipelineWay *w, const Stack *stack, size_t m, size_t batches) {
    OneWay one = { w, w->kind == WAY_2BW ? pipeline_tied_group(run->world) : NULL, m, batches };
    Stack chunked = pipeline_way_stack(w, stack, run->world->size);
    comm_ledger_reset(run->world);
    Played played = stack_play_by(run, &chunked, MEM_ACTIVATIONS, by_way, &one,
                                  w->kind == WAY_FLUSH ? m : batches * m);
    if (one.tied) comm_free(one.tied);
    return played;
}

// Measures one batch. Without a flush that is the difference between three batches and two, because
// the pipeline is then full.
static WaySeen measure(Run *run, const PipelineWay *w, const Stack *stack, size_t m) {
    size_t p = run->world->size;
    Played two = { 0 };
    size_t messages = 0;
    if (w->kind != WAY_FLUSH) {
        two = play(run, w, stack, m, 2);
        messages = run->world->ledger[COMM_SEND].calls;
    }
    Played last = play(run, w, stack, m, 3);
    Schedule list = w->list(p, m, 3, run->world->rank);
    WaySeen seen = { .batch = last.timing.step - two.timing.step,
                     .busy = (double)(last.timing.busy - two.timing.busy),
                     .activations = last.activations,
                     .weights = memory_peak(MEM_PARAMETERS),
                     .messages = run->world->ledger[COMM_SEND].calls - messages,
                     .late = pipeline_way_late(&list) };
    schedule_free(&list);
    return seen;
}

// ---------------------------------------------------------------- costs

// Predicts the peak of stage i's activations, in bytes. For ways with chunks or halves there is no
// closed form, so the list is played.
typedef struct {
    Predicted by_formula, by_play;
} Activations;
static Activations activations(const PipelineWay *w, const Stack *stack, size_t p, size_t m,
                               size_t i) {
    const size_t flight[PIPELINE_WAYS] = { 1, m, p - i, 0, 0, p - i, p - i };
    size_t in_flight = flight[w - pipeline_ways];
    if (in_flight)
        return (Activations){ formula(in_flight * stack_kept(stack, p, i)), NOT_PREDICTED };
    Stack chunked = pipeline_way_stack(w, stack, p);
    Schedule list = w->list(p, m, 3, i);
    size_t most = w->chunks > 1 ? chunked_stack_peak(&chunked, &list, p, i)
                                : zb_stack_peak(stack, &list, p, i);
    schedule_free(&list);
    return (Activations){ NOT_PREDICTED, played(most) };
}

static size_t weights(const PipelineWay *w, const Stack *stack, size_t p, size_t i) {
    size_t v = pipeline_way_chunks(w, p), elements = 0, versions = 1;
    ModelConfig whole = stack->model;
    whole.layers = stack->blocks * p;
    if (w->kind == WAY_PIPEDREAM) versions = p - i;
    if (w->kind == WAY_2BW) versions = 2;
    for (size_t chunk = 0; chunk < v; chunk++) {
        CutSizes z = cut_stage(cut_sizes(&whole, 1, 0), v * p, chunk * p + i);
        elements += elements_stage(&z);
    }
    return versions * elements * sizeof(real);
}

static const char *const way_id[PIPELINE_WAYS] = { "naive", "gpipe",     "1f1b", "interleaved",
                                                   "zb-h1", "pipedream", "2bw" };

static void costs(Run *run, const PipelineWay *w, const Stack *stack, size_t m,
                  const WaySeen *seen) {
    size_t p = run->world->size, i = run->world->rank, v = pipeline_way_chunks(w, p);
    size_t late = w->kind == WAY_PIPEDREAM ? p - 1 - i : w->kind == WAY_2BW;
    size_t messages = p == 1 ? 0 : m * (v - (i + 1 == p)) + m * (v - (i == 0));
    Activations kept = activations(w, stack, p, m, i);
    CostName ids, names;
    cost_name(&ids, "%%s.%s", way_id[w - pipeline_ways]);
    cost_name(&names, "%s: %%s", w->name);
    check_costs(run, ids.text, names.text,
                (CostRow[]){ { "activations", "activations, peak", "bytes", kept.by_formula,
                               kept.by_play, seen->activations },
                             { "weights", "weights, all versions", "bytes",
                               BY_FORMULA(weights(w, stack, p, i)), seen->weights },
                             { "sent", "messages sent, a batch", "calls", BY_FORMULA(messages),
                               seen->messages },
                             { "late", "updates late", "updates", BY_FORMULA(late), seen->late },
                             { 0 } });
    if (!clock_config()->simulated) return; // real time differs from run to run
    StackTimes t = stack_times(stack);
    double batch = (double)pipeline_way_batch(w, stack, p, m, true);
    double idle = 1 - (double)(m * (t.forward + t.backward)) / batch;
    double measured = 1 - seen->busy / ((double)p * (double)seen->batch);
    check_costs(run, ids.text, names.text,
                (CostRow[]){ { "batch", "a batch", "ps", BY_PLAY(batch), seen->batch },
                             { "idle", "idle", "millionths", BY_PLAY(round(1e6 * idle)),
                               round(1e6 * measured) },
                             { 0 } });
}

// ---------------------------------------------------------------- bars, table, plot

// The idle share, without messages.
static const char *const idle_formula[PIPELINE_WAYS] = {
    "1-1/p", "(p-1)/(m+p-1)", "(p-1)/(m+p-1)", "(p-1)/(vm+p-1)", "(p-1)(F+B-W)/step", "0", "0"
};

// Draws a bar for each way: the time of a batch, computing first, then idle.
enum { BAR = 76 }; // columns of the longest bar
static void bars(Run *run, const WaySeen *seen) {
    for (size_t k = 0; k < PIPELINE_WAYS; k++) {
        double busy = seen[k].busy / ((double)run->world->size * (double)seen[k].batch);
        double share = (double)seen[k].batch / (double)seen[0].batch;
        size_t all = (size_t)(share * BAR + 0.5), full = (size_t)((double)all * busy + 0.5);
        char bar[BAR + 1] = "";
        for (size_t x = 0; x < all && x < BAR; x++) bar[x] = x < full ? '=' : '.';
        say(run, "  %-12s %s", pipeline_ways[k].name, bar);
    }
}

// Each cell is the value of the rank that has most.
static void table(Run *run) {
    enum { COLUMNS = 6 };
    static const char *const ids[COLUMNS] = { "batch",   "idle", "activations",
                                              "weights", "sent", "late" };
    static const char *const units[COLUMNS] = { "ps",    "millionths", "bytes",
                                                "bytes", "calls",      "updates" };
    static const char *const columns[] = { "batch time", "idle",         "activations", "weights",
                                           "messages",   "updates late", NULL };
    bool simulated = clock_config()->simulated;
    size_t first = simulated ? 0 : 2; // in real time no cost is a time
    char cell[PIPELINE_WAYS][COLUMNS][24];
    Result rows[PIPELINE_WAYS + 1] = { { 0 } };
    for (size_t k = 0; k < PIPELINE_WAYS; k++) {
        rows[k].what = pipeline_ways[k].name;
        rows[k].formula = simulated ? idle_formula[k] : NULL;
        for (size_t c = first; c < COLUMNS; c++) {
            CostName id;
            cost_name(&id, "%s.%s", ids[c], way_id[k]);
            page_cell(cell[k][c], cost_value(run, id.text), units[c]);
            rows[k].cell[c - first] = cell[k][c];
        }
    }
    results(run, columns + first, rows);
    say(run, "Each number is that of the rank that has most. Updates late: how many updates come "
             "between the");
    say(run, "read of a weight and the use of its gradient. Formula: of idle, without messages. p "
             "stages,");
    say(run, "m micro-batches, v chunks per stage; F, B, W: forward, and a backward's halves "
             "(05.06).");
}

// Returns the way of [from, to) that has least of this quantity; of equal ways the first.
static size_t least(Run *run, const char *quantity, size_t from, size_t to) {
    size_t best = from;
    CostName a, b;
    for (size_t k = from + 1; k < to; k++) {
        cost_name(&a, "%s.%s", quantity, way_id[k]);
        cost_name(&b, "%s.%s", quantity, way_id[best]);
        if (cost_value(run, a.text) < cost_value(run, b.text)) best = k;
    }
    return best;
}

static void answer(Run *run) {
    enum { FIRST_LATE = 5 }; // the ways before it give the bits of one device
    say_use_when(run, "you choose a schedule: 1F1B first; interleaved or ZB-H1 if the bubble is "
                      "still too large; 2BW only if late gradients are acceptable.");
    say_cost(run, "interleaved sends more messages; ZB-H1 keeps more activations on the last "
                  "stages; PipeDream and 2BW keep more versions of the weights.");
    if (!run->is_root) return;
    if (!clock_config()->simulated) {
        say_answer(run,
                   "1F1B keeps activations of %s per rank, GPipe %s. Times need the simulated "
                   "clock.",
                   cost_text(run, "activations.1f1b"), cost_text(run, "activations.gpipe"));
        return;
    }
    size_t fast = least(run, "batch", 0, FIRST_LATE);
    size_t late = least(run, "batch", FIRST_LATE, PIPELINE_WAYS);
    double age = cost_value(run, "late.pipedream");
    CostName fast_id, late_id;
    cost_name(&fast_id, "batch.%s", way_id[fast]);
    cost_name(&late_id, "batch.%s", way_id[late]);
    if (run->world->size == 1)
        say_answer(run, "One stage has no bubble: a batch takes %s in each way.",
                   cost_text(run, fast_id.text));
    else
        say_answer(run,
                   "With the bits of one device %s is fastest: %s per batch; 1F1B takes %s. "
                   "Without a flush a batch takes %s, but gradients are up to %.0f update%s late "
                   "with PipeDream and %.0f with 2BW.",
                   pipeline_ways[fast].name, cost_text(run, fast_id.text),
                   cost_text(run, "batch.1f1b"), cost_text(run, late_id.text), age,
                   age == 1 ? "" : "s", cost_value(run, "late.2bw"));
}

// Plots the idle share by the number of micro-batches, from the played lists with their messages.
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
            y[k][n] = 100 - 100 * computing /
                                (double)pipeline_way_batch(&pipeline_ways[k], stack, p, m, true);
    }
    for (size_t k = 0; k < PIPELINE_WAYS; k++) lines[k] = (PlotLine){ pipeline_ways[k].name, y[k] };
    Plot plot = { .title = "idle, by the number of micro-batches",
                  .x_label = "micro-batches m of a batch",
                  .y_label = "% idle",
                  .x = x,
                  .n = POINTS,
                  .lines = lines,
                  .n_lines = PIPELINE_WAYS };
    plot_show(run, &plot, PICTURE_DETAIL);
}

// ---------------------------------------------------------------- the lesson

static void compare(Run *run) {
    require_one_link(run);
    size_t p = run->world->size, m = (8 + p - 1) / p * p; // 8, or the next multiple of p
    Stack stack = { .model = sizes, .blocks = 2, .sequences = 1 };
    stack.model.seed = run->seed;
    WaySeen seen[PIPELINE_WAYS];
    for (size_t k = 0; k < PIPELINE_WAYS; k++) {
        seen[k] = measure(run, &pipeline_ways[k], &stack, m);
        costs(run, &pipeline_ways[k], &stack, m, &seen[k]);
    }
    compare_closed_forms(run, &stack, m);
    compare_published(run);
    bool simulated = clock_config()->simulated;
    char unit[24];
    page_value(unit, sizeof unit, (double)seen[0].batch / BAR, "ps");
    say(run, "A batch of m = %zu micro-batches on p = %zu stages of %zu blocks.", m, p,
        stack.blocks);
    if (simulated) {
        say(run, "Time per batch, mean of the ranks: = computing, . idle. Each sign is %s.", unit);
        bars(run, seen);
    }
    table(run);
    plot(run, &stack);
    answer(run);
}
EXPERIMENT(compare, NULL);
