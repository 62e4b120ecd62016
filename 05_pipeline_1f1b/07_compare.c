// ranks: 4
// level: extra
// question: Seven ways to run a pipeline: what does each cost in time, memory, messages and old gradients?
//
// The same model, the same stages, the same batches of m micro-batches, run in the ways of chapters 04 and 05, each by
// the list that its lesson makes. Rank i is stage i. Whatever the list, a forward receives [B*T, C] elements from the
// part of the model before it and sends as many on, and a backward does so the other way.
//     naive          04.02   a micro-batch there and back, then the next
//     GPipe          04.03   all forwards, all backwards
//     1F1B           05.02   a forward, a backward; p - i in flight
//     interleaved    05.03   two chunks of the model per stage
//     ZB-H1          05.06   backwards in two halves, of which the second fills the bubble
//     PipeDream      05.04   no flush, an update after every micro-batch, p - i versions of the weights
//     2BW            05.05   no flush, an update per batch, one late, two versions
// The first five give the bits of one device; the last two train something else, which 05.04 and 05.05 say.
// One batch is measured: of those with a flush a step, of the others the third batch, as the pipeline is full then.
// Left out: recomputation, data and tensor parallelism, which all of them combine with (chapters 07, 08).
#include "04_pipeline_naive/experiments/costs.h"
#include "05_pipeline_1f1b/experiments/05_2bw.h"
#include "05_pipeline_1f1b/experiments/06_costs.h"
#include "05_pipeline_1f1b/experiments/07_ways.h"

// ================================ the seven ways ================================

static Schedule naive(size_t p, size_t m, size_t batches, size_t i) { (void)batches; return schedule_naive(p, m, i); }
static Schedule gpipe(size_t p, size_t m, size_t batches, size_t i) { (void)batches; return schedule_gpipe(p, m, i); }
static Schedule one_f_one_b(size_t p, size_t m, size_t batches, size_t i) {
    (void)batches;
    return schedule_1f1b(p, m, i);
}
static Schedule interleaved(size_t p, size_t m, size_t batches, size_t i) {
    (void)batches;
    return schedule_interleaved(p, m, p == 1 ? 1 : COMPARE_CHUNKS, i);
}
static Schedule zero_bubble(size_t p, size_t m, size_t batches, size_t i) {
    (void)batches;
    return schedule_zb_h1(p, m, i);
}
static Schedule pipedream(size_t p, size_t m, size_t batches, size_t i) {
    return schedule_pipedream(WEIGHT_STASHING, p, batches * m, i);
}
static Schedule two_bw(size_t p, size_t m, size_t batches, size_t i) { return schedule_2bw(p, m, batches, i); }

static const Way ways[COMPARE_WAYS] = {
    { "naive", "1-1/p", WAY_FLUSH, naive, FLIGHT_ONE, false },
    { "GPipe", "(p-1)/(m+p-1)", WAY_FLUSH, gpipe, FLIGHT_ALL, false },
    { "1F1B", "(p-1)/(m+p-1)", WAY_FLUSH, one_f_one_b, FLIGHT_FEW, false },
    { "interleaved", "(p-1)/(vm+p-1)", WAY_FLUSH, interleaved, FLIGHT_LISTED, true },
    { "ZB-H1", "(p-1)(F+B-W)/step", WAY_FLUSH, zero_bubble, FLIGHT_LISTED, false },
    { "PipeDream", "0", WAY_PIPEDREAM, pipedream, FLIGHT_FEW, false },
    { "2BW", "0", WAY_2BW, two_bw, FLIGHT_FEW, false },
};

// Runs so many batches by the functions of the way's own lesson.
static Played play(Run *run, const Way *w, const Stack *stack, size_t m, size_t batches) {
    size_t p = run->world->size, i = run->world->rank;
    Stack mine = way_stack(w, stack, p);
    Schedule list = w->list(p, m, batches, i);
    Played played;
    comm_ledger_reset(run->world);
    if (w->kind == WAY_FLUSH) played = stack_play_list(run, &mine, &list, m);
    else if (w->kind == WAY_2BW) played = two_bw_play(run, &mine, m, batches);
    else played = pipedream_play(run, &mine, &list, pipedream_older(WEIGHT_STASHING, p, i), batches * m);
    schedule_free(&list);
    return played;
}

// One batch where the pipeline is as full as it gets: what three batches take more than two.
static WaySeen measure(Run *run, const Way *w, const Stack *stack, size_t m) {
    size_t p = run->world->size;
    Played two = {0};
    size_t messages = 0;
    if (w->kind != WAY_FLUSH) {
        two = play(run, w, stack, m, 2);
        messages = run->world->ledger[COMM_SEND].calls;
    }
    Played last = play(run, w, stack, m, 3);
    Schedule list = w->list(p, m, 3, run->world->rank);
    WaySeen seen = { .batch = last.timing.step - two.timing.step, .busy = (double)(last.timing.busy - two.timing.busy),
                     .activations = last.activations, .weights = memory_peak(MEM_PARAMETERS),
                     .messages = run->world->ledger[COMM_SEND].calls - messages, .late = way_late(&list) };
    schedule_free(&list);
    return seen;
}

// ================================ the experiment ================================

static const ModelConfig sizes = { .layers = 1, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1 };

// The closed forms, where messages take no time, of lists alone.
static void closed_forms(Run *run, const Stack *stack, size_t m) {
    size_t p = run->world->size, v = way_chunks(&ways[3], p);
    StackTimes t = stack_times(stack);
    OpTimes halves = zb_times(stack);
    double bubble = (double)(halves.forward + halves.backward_inputs - halves.backward_weights);
    double both = (double)(t.forward + t.backward), got[COMPARE_WAYS];
    double want[COMPARE_WAYS] = { (double)(m * p) * both, (double)(m + p - 1) * both, (double)(m + p - 1) * both,
                                  ((double)m + (double)(p - 1) / (double)v) * both,
                                  (double)m * both + (double)(p - 1) * bubble,
                                  (double)m * both, (double)m * both };
    for (size_t k = 0; k < COMPARE_WAYS; k++) got[k] = (double)way_batch(&ways[k], stack, p, m, false);
    check_numbers(run, "lists = closed forms", "a batch, without messages", got, want, COMPARE_WAYS, 1e-12);
}

static void compare(Run *run) {
    require_one_link(run);
    size_t p = run->world->size, m = (8 + p - 1) / p * p;          // 8, or the next multiple of p
    Stack stack = { .model = sizes, .blocks = 2, .sequences = 1 };
    stack.model.seed = run->seed;
    WaySeen seen[COMPARE_WAYS];
    for (size_t k = 0; k < COMPARE_WAYS; k++) {
        seen[k] = measure(run, &ways[k], &stack, m);
        compare_costs(run, &ways[k], &stack, m, &seen[k]);
    }
    closed_forms(run, &stack, m);
    compare_published(run);
    compare_results(run, ways, &stack, m, seen);
    compare_plot(run, ways, &stack);
}
EXPERIMENT(compare, NULL);
