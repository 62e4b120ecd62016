// ways.c: measures one batch on equal stages in each of 07_compare.c's seven ways, and predicts the
// batch from sizes and from the lists alone (experiments.h).
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <math.h>

const char *const pipeline_way_id[PIPELINE_WAYS] = { "naive", "gpipe",     "1f1b", "interleaved",
                                                     "zb-h1", "pipedream", "2bw" };

static size_t chunks_of(const PipelineWay *w, size_t p) { return p > 1 ? w->chunks : 1; }
// Returns the same stages, cut into as many chunks as the way has.
static Stack stack_of(const PipelineWay *w, const Stack *stack, size_t p) {
    Stack s = *stack;
    s.chunks = chunks_of(w, p);
    return s;
}

// ---------------------------------------------------------------- predicted

// Returns the time at which `batches` batches end.
static Picoseconds way_end(const PipelineWay *w, const Stack *stack, size_t p, size_t m,
                           size_t batches, bool messages) {
    Schedule *stage = host_alloc(p * sizeof *stage);
    Stack part = *stack;
    part.blocks /= chunks_of(w, p);
    OpTimes t = zb_times(&part); // a whole backward takes B + W
    if (!messages) t.message = 0;
    for (size_t i = 0; i < p; i++) stage[i] = w->list(p, m, batches, i);
    return lists_makespan(stage, p, batches * m, &t);
}
Picoseconds pipeline_way_batch(const PipelineWay *w, const Stack *stack, size_t p, size_t m,
                               bool messages) {
    if (w->kind == WAY_FLUSH) return way_end(w, stack, p, m, 1, messages);
    return way_end(w, stack, p, m, 3, messages) - way_end(w, stack, p, m, 2, messages);
}

// ---------------------------------------------------------------- measured

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
    optimizer_allocate(&o, model);
    tensor_fill(model->g, 0); // the stack has no embedding, but its table's gradient is summed
    return pipeline_way_run(one->way, pp, one->tied, model, &o, batch, one->m, one->batches);
}
// Runs `batches` batches with the functions of the way's own lesson.
static Played play(Run *run, const PipelineWay *w, const Stack *stack, size_t m, size_t batches) {
    OneWay one = { w, w->kind == WAY_2BW ? pipeline_tied_group(run->world) : NULL, m, batches };
    Stack chunked = stack_of(w, stack, run->world->size);
    Played played = stack_play_by(run, &chunked, MEM_ACTIVATIONS, by_way, &one,
                                  w->kind == WAY_FLUSH ? m : batches * m);
    if (one.tied) comm_free(one.tied);
    return played;
}

// The costs of one batch, as this rank measured them. busy: picoseconds, added over the ranks.
// activations, weights: peak bytes.
typedef struct {
    Picoseconds batch, busy;
    size_t activations, weights, messages;
} WaySeen;
// Checks the costs of one batch. For ways with chunks or halves there is no closed form of the
// activations, so the list is played.
static void check_way(Run *run, const PipelineWay *w, const Stack *stack, size_t m,
                      const WaySeen *seen) {
    size_t p = run->world->size, i = run->world->rank, v = chunks_of(w, p);
    size_t most = p - i < m ? p - i : m, versions = w->kind == WAY_PIPEDREAM ? p - i : 1;
    if (w->kind == WAY_2BW) versions = 2;
    const size_t flights[PIPELINE_WAYS] = { 1, m, most, 0, 0, p - i, p - i }; // 0: no formula
    size_t flight = flights[w - pipeline_ways];
    size_t messages = p == 1 ? 0 : m * (v - (i + 1 == p)) + m * (v - (i == 0));
    ModelConfig whole = stack->model;
    whole.layers = stack->blocks * p;
    CutSizes z = stage_sizes(&whole, p, i); // chunks have the same elements in all
    size_t one_version = elements_stage(&z) * weight_bytes(&whole);
    Stack chunked = stack_of(w, stack, p);
    Schedule list = w->list(p, m, 3, i);
    Predicted kept = flight ? formula(flight * stack_kept(stack, p, i)) : NOT_PREDICTED;
    StackTimes t = stack_times(stack);
    double batch = (double)pipeline_way_batch(w, stack, p, m, true);
    double idle = 1 - (double)(m * (t.forward + t.backward)) / batch;
    double measured = 1 - (double)seen->busy / (double)(p * seen->batch);
    check_costs(run, page_text(run, "%%s.%s", pipeline_way_id[w - pipeline_ways]),
                page_text(run, "%s: %%s", w->name),
                (CostRow[]){ { "activations", "activations, peak", "bytes", kept,
                               played(stack_peak(&chunked, &list, p, i)), seen->activations },
                             { "versions", "versions of the weights", "versions",
                               BY_FORMULA(versions), (double)seen->weights / (double)one_version },
                             { "weights", "weights, all versions", "bytes",
                               BY_FORMULA(versions * one_version), seen->weights },
                             { "sent", "messages sent, a batch", "calls", BY_FORMULA(messages),
                               seen->messages },
                             // Real time differs from run to run.
                             { clock_config()->simulated ? "batch" : NULL, "a batch", "ps",
                               BY_PLAY(batch), seen->batch },
                             { "idle", "idle", "millionths", BY_PLAY(round(1e6 * idle)),
                               round(1e6 * measured) },
                             { 0 } });
    schedule_free(&list);
}

void pipeline_way_measure(Run *run, const PipelineWay *w, const Stack *stack, size_t m,
                          const char *title) {
    Played two = { 0 };
    if (w->kind != WAY_FLUSH) two = play(run, w, stack, m, 2);
    if (title) picture_show(run, title, PICTURE_CHART);
    Played last = play(run, w, stack, m, 3);
    WaySeen seen = { .batch = last.timing.step - two.timing.step,
                     .busy = last.timing.busy - two.timing.busy,
                     .activations = last.activations,
                     .weights = memory_peak(MEM_PARAMETERS),
                     .messages = last.messages - two.messages };
    check_way(run, w, stack, m, &seen);
}
