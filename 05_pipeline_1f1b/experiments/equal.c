// equal.c: runs equal stages in one of the ways of 07_compare.c, or with a planner's lists.
// Predicts the costs of a batch from sizes and lists alone, and checks the costs.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <math.h>
#include <string.h>

const EqualWay equal_ways[PIPELINE_WAYS] = {
    { WAY_NAIVE, "naive", "naive", NULL, NULL },
    { WAY_GPIPE, "gpipe", "GPipe", NULL, NULL },
    { WAY_1F1B, "1f1b", "1F1B", NULL, NULL },
    { WAY_INTERLEAVED, "interleaved", "interleaved", NULL, NULL },
    { WAY_ZB_H1, "zb-h1", "ZB-H1", NULL, NULL },
    { WAY_PIPEDREAM, "pipedream", "PipeDream", NULL, NULL },
    { WAY_2BW, "2bw", "2BW", NULL, NULL },
};

static bool has_flush(const EqualWay *w) { return w->way < WAY_PIPEDREAM; }
static size_t chunks_of(const Stack *s) { return s->chunks ? s->chunks : 1; }

// ---------------------------------------------------------------- predicted

static Schedule list_of(const EqualWay *w, size_t p, size_t m, size_t v, size_t batches, size_t i) {
    return w->rule ? w->rule(p, m, i) : pipeline_way_list(w->way, p, m, v, batches, i);
}
static double batches_end(const EqualWay *w, const Stack *stack, size_t p, size_t m, size_t batches,
                          bool messages) {
    Schedule *stage = host_alloc(p * sizeof *stage);
    Stack chunk = *stack;
    chunk.blocks /= chunks_of(stack);
    OpTimes t = zb_times(&chunk); // a whole backward takes the times of its two halves
    if (!messages) t.message = 0;
    for (size_t i = 0; i < p; i++) stage[i] = list_of(w, p, m, chunks_of(stack), batches, i);
    return (double)lists_makespan(stage, p, batches * m, &t);
}
double equal_batch(const EqualWay *w, const Stack *stack, size_t p, size_t m, bool messages) {
    if (has_flush(w)) return batches_end(w, stack, p, m, 1, messages);
    return batches_end(w, stack, p, m, 3, messages) - batches_end(w, stack, p, m, 2, messages);
}

Predicted equal_flight(const EqualWay *w, size_t p, size_t m, size_t v, size_t i) {
    const size_t early = p - i < m ? p - i : m, ahead = 2 * (p - 1 - i) + (v - 1) * p + 1;
    const size_t flights[PIPELINE_WAYS] = {
        [WAY_NAIVE] = 1,
        [WAY_GPIPE] = m,
        [WAY_1F1B] = early,
        [WAY_INTERLEAVED] = v == 1          ? early
                            : ahead < m * v ? ahead
                                            : m * v,
        [WAY_ZB_H1] = p < m ? p : m,
        [WAY_PIPEDREAM] = p - i,
        [WAY_2BW] = p - i,
    };
    return w->rule ? NOT_PREDICTED : formula((double)flights[w->way]);
}

// ---------------------------------------------------------------- measured

typedef struct {
    const EqualWay *way;
    Comm *tied;
    size_t m, batches;
} Running;
static PipelineResult run_way(const void *how, Comm *pp, Model *model, const Batch *batch,
                              size_t n) {
    const Running *r = how;
    if (r->way->loop) return r->way->loop(pp, model, batch, n);
    Optimizer o = sgd(0.01);
    optimizer_allocate(&o, model);
    // The layers of embedding and head do not run, but updates read their gradients.
    tensor_fill(model->g, 0);
    return pipeline_way_run(r->way->way, pp, r->tied, model, &o, batch, r->m, r->batches);
}
static Played play(Run *run, const EqualWay *w, const Stack *stack, size_t m, size_t batches) {
    Running r = { w, w->way == WAY_2BW ? pipeline_tied_group(run->world) : NULL, m, batches };
    Played played = stack_play_by(run, stack, MEM_ACTIVATIONS, run_way, &r, batches * m);
    if (r.tied) comm_free(r.tied);
    return played;
}

// The measured costs of one batch. `busy` is the sum over the ranks, and `activations` and
// `weights` are this rank's peak bytes.
typedef struct {
    Picoseconds batch, busy;
    size_t flight, activations, weights, messages;
} EqualSeen;

// Checks the costs of a batch. If a way has several chunks or halves of backwards, the activations
// have no closed form and are predicted from the list alone.
static void check_batch(Run *run, const EqualWay *w, const Stack *stack, size_t m,
                        const EqualSeen *seen) {
    size_t p = run->world->size, i = run->world->rank, v = chunks_of(stack);
    size_t versions = w->way == WAY_PIPEDREAM ? p - i : w->way == WAY_2BW ? 2 : 1;
    // The number of boundaries between parts over which this stage sends y (forward) or dx
    // (backward).
    size_t boundaries = p == 1 ? 0 : (v - (i + 1 == p)) + (v - (i == 0));
    Predicted flight = equal_flight(w, p, m, v, i), kept = NOT_PREDICTED;
    if (flight.given && v == 1 && w->way != WAY_ZB_H1)
        kept = formula(flight.value * (double)stack_kept(stack, p, i));
    ModelConfig whole = stack->model;
    whole.layers = stack->blocks * p;
    CutSizes z = stage_sizes(&whole, p, i); // cut into chunks, the stage has as many elements
    size_t one_version = elements_stage(&z) * weight_bytes(&whole);
    Schedule list = list_of(w, p, m, v, 3, i);
    double batch = equal_batch(w, stack, p, m, true);
    double idle = 1 - (double)seen->busy / (double)(p * seen->batch);
    check_costs(run, page_text(run, "%%s.%s", w->id),
                page_text(run, "equal stages, %s: %%s", w->name),
                (CostRow[]){ { "flight", "in flight", v > 1 ? "chunks" : "micro-batches", flight,
                               played(list_in_flight(&list)), seen->flight },
                             { "activations", "activations, peak", "bytes", kept,
                               played(stack_peak(stack, &list, p, i)), seen->activations },
                             { "versions", "versions of the weights", "versions",
                               BY_FORMULA(versions), (double)seen->weights / (double)one_version },
                             { "weights", "weights, all versions", "bytes",
                               BY_FORMULA(versions * one_version), seen->weights },
                             { "sent", "messages sent", "calls", BY_FORMULA(m * boundaries),
                               seen->messages },
                             // Real time differs from run to run.
                             { clock_config()->simulated ? "step" : NULL,
                               has_flush(w) ? "step" : "a batch", "ps", BY_PLAY(batch),
                               seen->batch },
                             { "idle", "bubble / step", "millionths",
                               BY_PLAY(stack_idle(stack, m, batch)), round(1e6 * idle) },
                             { 0 } });
    schedule_free(&list);
}

int equal_files(Run *run, const EqualWay *w) {
    bool strips =
        option_flag(run, "verbose") || option_text(run, "svg") || option_text(run, "trace");
    bool files = !strcmp(option_text(run, "draw"), w->id);
    return (strips ? PICTURE_MEMORY : 0) | (files ? 0 : PICTURE_NO_FILES);
}

void equal_stages(Run *run, const EqualWay *w, const Stack *stack, size_t m, const char *title,
                  int picture) {
    Played last = play(run, w, stack, m, has_flush(w) ? 1 : 2), before = { 0 };
    if (title) picture_show(run, title, picture);
    // Under the wall clock the costs have no times, so the summary gives the time of the step.
    if (title && (option_flag(run, "verbose") || !clock_config()->simulated))
        picture_summary(run, &last.timing);
    if (!has_flush(w)) {
        before = last;
        last = play(run, w, stack, m, 3);
    }
    EqualSeen seen = { .batch = last.timing.step - before.timing.step,
                       .busy = last.timing.busy - before.timing.busy,
                       .flight = last.result.in_flight,
                       .activations = last.activations,
                       .weights = memory_peak(MEM_PARAMETERS),
                       .messages = last.messages - before.messages };
    check_batch(run, w, stack, m, &seen);
}

const char *compare_times(Run *run, double time, double with) {
    double percent = 100 * (time / with - 1);
    if (percent >= 0.05) return page_text(run, "%.1f %% more than", percent);
    if (percent <= -0.05) return page_text(run, "%.1f %% less than", -percent);
    return "the same as";
}
