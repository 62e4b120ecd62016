// compare_lists.c: times of 07_compare's seven ways from their lists alone, and published figures
// (experiments.h).
#include "05_pipeline_1f1b/experiments/experiments.h"

size_t pipeline_way_chunks(const PipelineWay *w, size_t p) { return p > 1 ? w->chunks : 1; }
Stack pipeline_way_stack(const PipelineWay *w, const Stack *stack, size_t p) {
    Stack s = *stack;
    s.chunks = pipeline_way_chunks(w, p);
    return s;
}

// The time at which `batches` batches end, from the lists alone. messages: they take the time of
// the chosen link; otherwise they take none.
static Picoseconds way_end(const PipelineWay *w, const Stack *stack, size_t p, size_t m,
                           size_t batches, bool messages) {
    Schedule *stage = host_alloc(p * sizeof *stage);
    Stack part = *stack;
    part.blocks /= pipeline_way_chunks(w, p);
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

size_t pipeline_way_late(const Schedule *s) {
    size_t updates = 0, read = 0, most = 0;
    for (size_t e = 0; e < s->n; e++) {
        if (s->ops[e].what == BACKWARD) read = s->ops[e].version;
        if (s->ops[e].what != UPDATE) continue;
        if (updates - read > most) most = updates - read;
        updates++;
    }
    return most;
}

// ---------------------------------------------------------------- published figures

// The step in units of a stage's t_f, with t_b = 2 t_f. A chunk takes 1/v of them.
static double interleaved_units(size_t p, size_t m, size_t v) {
    return (double)interleaved_makespan(p, m, v, 1, 2, 0) / (double)v;
}

void compare_published(Run *run) {
    double got[] = { makespan(schedule_naive, 4, 8, 1, 2), makespan(schedule_gpipe, 4, 8, 1, 2),
                     makespan(schedule_1f1b, 4, 8, 1, 2),  interleaved_units(4, 8, 2),
                     interleaved_units(4, 8, 4),           makespan(schedule_1f1b, 8, 32, 1, 2),
                     interleaved_units(8, 32, 4) };
    double want[] = { 96, 33, 33, 28.5, 26.25, 117, 101.25 };
    check_numbers(run, "published", "PTD-P's (p-1)/m and (p-1)/(vm) in units of t_f", got, want, 7,
                  0);
    // GPipe, table 2: Transformer-48, M = 32; throughput on K stages against that of K = 2 with
    // M = 1. A batch's work is the same everywhere, so a stage does 1/(K M) of it per micro-batch.
    static const double table[] = { 1.8, 3.4, 6.3 };
    double ideal[3], speed_up[3];
    bool close = true;
    for (size_t n = 0; n < 3; n++) {
        size_t K = (size_t)2 << n, M = 32;
        double one = (double)makespan(schedule_gpipe, 2, 1, 1, 2) / 2; // one share of the work
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

// Where messages take no time, the lists must take what the closed forms say.
void compare_closed_forms(Run *run, const Stack *stack, size_t m) {
    size_t p = run->world->size, v = pipeline_way_chunks(&pipeline_ways[3], p);
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
        got[k] = (double)pipeline_way_batch(&pipeline_ways[k], stack, p, m, false);
    check_numbers(run, "lists = closed forms", "a batch, without messages", got, want,
                  PIPELINE_WAYS, 1e-12);
}
