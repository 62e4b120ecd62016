// 07_compare.c (experiment): measures time, idle share, memory, messages and versions of the
// weights of one batch in each of the seven ways (equal.c).
#include "05_pipeline_1f1b/experiments/experiments.h"
#include "judge/draw/plot.h"
#include <math.h>

static const ModelConfig sizes = {
    .layers = 1, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};

enum { CHUNKS = 2 }; // chunks of each interleaved stage

// ---------------------------------------------------------------- bars, table, plot

static const char *const idle_formula[PIPELINE_WAYS] = {
    "1-1/p", "(p-1)/(m+p-1)", "(p-1)/(m+p-1)", "(p-1)/(vm+p-1)", "(p-1)(F+B-W)/step", "0", "0"
};

// Returns on rank 0 the largest value that any rank measured for a cost of a way. Returns 0 on the
// other ranks.
static double cost_of(Run *run, const char *what, size_t way) {
    return cost_value(run, page_text(run, "%s.%s", what, equal_ways[way].id));
}

// Prints a line for each way, with a bar for its batch. In the bar computing time comes first, then
// idle time.
static void bars(Run *run) {
    static const char *const does[PIPELINE_WAYS] = {
        "one micro-batch at a time (04.02)",  "all forwards, all backwards (04.03)",
        "forward, backward in turn (05.02)",  "1F1B, v chunks per stage (05.03)",
        "1F1B, backwards in halves (05.06)",  "an update per micro-batch (05.04)",
        "one update per batch, late (05.05)",
    };
    static const char computing[] = "================================================";
    static const char idle[] = "................................................";
    enum { BAR = sizeof idle - 1 }; // columns of the longest bar
    double longest = cost_of(run, "step", WAY_NAIVE);
    if (!run->is_root) return;
    say(run, "Time per batch, mean of the ranks: = computing, . idle. Each character is %s.",
        value_text(run, longest / BAR, "ps"));
    for (size_t k = 0; k < PIPELINE_WAYS; k++) {
        double columns = BAR * cost_of(run, "step", k) / longest;
        int full = (int)lround(columns * (1 - cost_of(run, "idle", k) / 1e6));
        int rest = (int)lround(columns) - full;
        say(run, "  %-11s %-35s %.*s%.*s", equal_ways[k].name, does[k], full, computing, rest,
            idle);
    }
}

static void table(Run *run) {
    static const struct {
        const char *column, *id, *unit;
    } cost[] = { { "batch time", "step", "ps" },
                 { "idle", "idle", "millionths" },
                 { "activations", "activations", "bytes" },
                 { "weights", "weights", "bytes" },
                 { "messages", "sent", "calls" },
                 { "versions", "versions", "versions" } };
    enum { COSTS = sizeof cost / sizeof *cost };
    bool simulated = clock_config()->simulated;
    size_t first = simulated ? 0 : 2; // under the wall clock the columns of times are left out
    const char *columns[COSTS + 1] = { NULL };
    Result rows[PIPELINE_WAYS + 1] = { { 0 } };
    for (size_t k = 0; k < PIPELINE_WAYS; k++) {
        rows[k].what = equal_ways[k].name;
        rows[k].formula = simulated ? idle_formula[k] : NULL;
        for (size_t c = first; c < COSTS; c++) {
            columns[c - first] = cost[c].column;
            rows[k].cell[c - first] = value_cell(run, cost_of(run, cost[c].id, k), cost[c].unit);
        }
    }
    results(run, columns, rows);
    say(run,
        "Each value is the largest over the ranks, but idle is the mean. Flush: the pipeline runs "
        "empty\nbefore an update. PipeDream and 2BW have no flush. With n versions of the "
        "weights, a gradient is up\nto n - 1 updates late. The formula gives idle without "
        "messages. v = %zu chunks per stage. F is a\nforward; B and W are the halves of a "
        "backward: B computes dx, W the gradients of the weights.",
        (size_t)CHUNKS);
}

// Returns the fastest of the ways [from, to), or the first of equally fast ways.
static size_t fastest(Run *run, size_t from, size_t to) {
    size_t best = from;
    for (size_t k = from + 1; k < to; k++)
        if (cost_of(run, "step", k) < cost_of(run, "step", best)) best = k;
    return best;
}

static void answer(Run *run) {
    say_use_when(run, "you choose a schedule: 1F1B first; interleaved or ZB-H1 if the bubble is "
                      "still too large; 2BW only if late gradients are acceptable.");
    say_cost(run, "GPipe, interleaved and ZB-H1 keep more activations than 1F1B. Interleaved "
                  "also sends more messages. PipeDream and 2BW keep more versions of the weights.");
    if (!run->is_root) return;
    if (!clock_config()->simulated) {
        say_answer(run,
                   "1F1B keeps activations of %s per rank, GPipe %s. Times need the simulated "
                   "clock.",
                   cost_text(run, "activations.1f1b"), cost_text(run, "activations.gpipe"));
        return;
    }
    // The ways before PipeDream have no late gradients.
    size_t fast = fastest(run, 0, WAY_PIPEDREAM);
    size_t late = fastest(run, WAY_PIPEDREAM, PIPELINE_WAYS);
    say_answer(run,
               "Of the ways whose gradients are never late, %s is fastest: %s per batch; 1F1B "
               "takes %s. Without a flush a batch takes %s, but gradients are late: with PipeDream "
               "by up to %.0f updates, with 2BW by %.0f.",
               equal_ways[fast].name, value_text(run, cost_of(run, "step", fast), "ps"),
               cost_text(run, "step.1f1b"), value_text(run, cost_of(run, "step", late), "ps"),
               cost_of(run, "versions", WAY_PIPEDREAM) - 1, cost_of(run, "versions", WAY_2BW) - 1);
}

// Returns the stack with CHUNKS chunks per stage for interleaved 1F1B on several stages, else with
// one chunk per stage.
static Stack chunked(const Stack *stack, size_t p, size_t way) {
    Stack s = *stack;
    s.chunks = p > 1 && way == WAY_INTERLEAVED ? CHUNKS : 1;
    return s;
}

static void plot(Run *run, const Stack *stack) {
    enum { POINTS = 8 };
    double x[POINTS], y[PIPELINE_WAYS][POINTS];
    PlotLine lines[PIPELINE_WAYS];
    size_t p = run->world->size;
    for (size_t k = 0; k < PIPELINE_WAYS; k++) {
        Stack stages = chunked(stack, p, k);
        lines[k] = (PlotLine){ equal_ways[k].name, y[k] };
        for (size_t n = 0; n < POINTS; n++) {
            size_t m = (n + 1) * p;
            double batch = equal_batch(&equal_ways[k], &stages, p, m, true);
            x[n] = (double)m;
            y[k][n] = stack_idle(stack, m, batch) / 1e4;
        }
    }
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

static void compare_closed_forms(Run *run, const Stack *stack, size_t m) {
    size_t p = run->world->size;
    double v = p > 1 ? CHUNKS : 1, full = (double)m, ramp = (double)(p - 1);
    StackTimes t = stack_times(stack);
    OpTimes halves = zb_times(stack);
    double both = (double)(t.forward + t.backward), got[PIPELINE_WAYS];
    double bubble = (double)(halves.forward + halves.backward_inputs - halves.backward_weights);
    double want[PIPELINE_WAYS] = { full * (double)p * both,
                                   (full + ramp) * both,
                                   (full + ramp) * both,
                                   (full + ramp / v) * both,
                                   full * both + ramp * bubble,
                                   full * both,
                                   full * both };
    for (size_t k = 0; k < PIPELINE_WAYS; k++) {
        Stack stages = chunked(stack, p, k);
        got[k] = equal_batch(&equal_ways[k], &stages, p, m, false);
    }
    check_numbers(run, "lists = closed forms", "a batch, without messages", got, want,
                  PIPELINE_WAYS, 1e-12);
}

static void compare(Run *run) {
    require_one_link(run);
    size_t p = run->world->size, m = (8 + p - 1) / p * p; // 8, or the next multiple of p
    Stack stack = { .model = sizes, .blocks = 2, .sequences = 1 };
    stack.model.seed = run->seed;
    config_store(run, &stack.model);
    for (size_t k = 0; k < PIPELINE_WAYS; k++) {
        Stack stages = chunked(&stack, p, k);
        equal_stages(run, &equal_ways[k], &stages, m, NULL, 0);
    }
    compare_closed_forms(run, &stack, m);
    say(run, "A batch of m = %zu micro-batches on p = %zu stages of %zu blocks.", m, p,
        stack.blocks);
    if (clock_config()->simulated) bars(run);
    table(run);
    plot(run, &stack);
    answer(run);
}
static const Option options[] = { STORAGE_OPTION, { 0 } };
EXPERIMENT(compare, options);
