// 05_costs.c: what 05_pipedream_2bw predicts, from sizes alone; see 05_2bw.h.
#include "05_pipeline_1f1b/experiments/05_2bw.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include <stdio.h>

void two_bw_costs(Run *run, const Training *t, const TwoBwSeen *seen) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, n = t->steps * m, E = sizeof(real);
    size_t next = i + 1 < p, before = i > 0, tied = p > 1 && !(next && before), flight = p - i;
    CutSizes z = stage_sizes(&t->model, p, i);
    size_t mine = elements_stage(&z), table = elements_wte(&z), held = 0;
    // The most tokens of so many neighbouring micro-batches: of the last ones of a batch and the first of the next.
    for (size_t k = 0; k < flight; k++) held += stage_tokens(t, k);
    cost(run, "2BW: versions of the weights", "versions", 2, (double)seen->weights / (double)(seen->size * E));
    cost(run, "2BW: weights of both versions", "bytes", 2 * mine * E, seen->weights);
    cost(run, "2BW: gradients, the tied table's twice", "bytes", (elements_gradients(&z) + tied * table) * E,
         seen->gradients);
    cost(run, "2BW: optimizer state", "bytes",
         (t->optimizer.kind == ADAMW ? 2 : t->optimizer.momentum > 0) * mine * E, seen->optimizer);
    cost(run, "2BW: in flight: p-i", "micro-batches", flight, seen->in_flight);
    cost(run, "2BW: activations, peak", "bytes", kept_stage(&z) * held * E, seen->activations);
    cost(run, "2BW: messages sent", "calls", n * (next + before), seen->messages);
    cost(run, "2BW: messages sent", "bytes", t->steps * (next + before) * message_elements(&z, t->sequences) * E,
         seen->message_bytes);
    cost(run, "2BW: message buffers, peak", "bytes", stage_message_buffers(t, p, i) + tied * table * E, seen->buffers);
    cost(run, "2BW: gradients of the tied table sent", "calls", tied * t->steps, seen->table_calls);
    cost(run, "2BW: gradients of the tied table sent", "bytes", tied * t->steps * table * E, seen->table_bytes);
    cost(run, "2BW: sums over stages", "calls", 0, seen->sums);
}

// ---------------------------------------------------------------- lists alone

// Two versions are enough for a list if every op reads the newest or the one before it, as they are at its place.
static bool two_are_enough(const Schedule *s) {
    size_t newest = 0;
    bool enough = true;
    for (size_t e = 0; e < s->n; e++)
        if (s->ops[e].what == UPDATE) newest++;
        else enough = enough && s->ops[e].version <= newest && newest <= s->ops[e].version + 1;
    return enough;
}

enum { MOST_STAGES = 8, MOST_MICRO = 24, BATCHES = 3 };
static void all_lists(Run *run) {
    bool enough = true, too_few = true;
    for (size_t p = 1; p <= MOST_STAGES; p++)
        for (size_t m = 1; m <= MOST_MICRO; m++) {
            bool all = true;
            for (size_t i = 0; i < p; i++) {
                Schedule s = schedule_2bw(p, m, BATCHES, i);
                all = all && two_are_enough(&s);
                schedule_free(&s);
            }
            if (m >= p) enough = enough && all;
            if (m + 2 <= p) too_few = too_few && !all;     // m = p - 1 is the limit: an update just before its reader
        }
    check_true(run, "op lists", "two versions suffice for m >= p", enough);
    check_true(run, "op lists", "not for m < p - 1", too_few);
}

// ---------------------------------------------------------------- equal stages, on the clock: four ways

enum { WAYS = 4, GPIPE = 0, ONE_F_ONE_B, PIPEDREAM, TWO_BW };
static const char *const way_name[WAYS] = { "GPipe", "1F1B", "PipeDream", "2BW" };
typedef struct { size_t in_flight, weights, activations; Picoseconds batch, predicted; } Way;

static Schedule stashing(size_t p, size_t n, size_t i) { return schedule_pipedream(WEIGHT_STASHING, p, n, i); }
static Schedule as_one_batch(size_t p, size_t n, size_t i) { return schedule_2bw(p, n, 1, i); }

static Way measured(const Played *played, Picoseconds batch, Picoseconds predicted) {
    return (Way){ played->result.in_flight, memory_peak(MEM_PARAMETERS), played->activations, batch, predicted };
}
static Way synchronous(Run *run, const Stack *stack, ScheduleRule rule, size_t m) {
    StackTimes d = stack_times(stack);
    Played seen = stack_play(run, stack, rule, m);
    return measured(&seen, seen.timing.step,
                    makespan_with_link(rule, run->world->size, m, d.forward, d.backward, d.message));
}
static Way pipedream(Run *run, const Stack *stack, size_t m) {
    size_t p = run->world->size, i = run->world->rank;
    Played seen[2];
    for (size_t k = 0; k < 2; k++) {
        Schedule list = stashing(p, (k + 2) * m, i);
        seen[k] = pipedream_play(run, stack, &list, pipedream_older(WEIGHT_STASHING, p, i), (k + 2) * m);
        schedule_free(&list);
    }
    return measured(&seen[1], seen[1].timing.step - seen[0].timing.step,
                    pipedream_makespan(stack, stashing, p, 3 * m) - pipedream_makespan(stack, stashing, p, 2 * m));
}

// Predicted without the messages of the table, measured with them: but for the last one, which comes after all work,
// they must be hidden.
static Way two_bw(Run *run, const Stack *stack, size_t m) {
    size_t p = run->world->size;
    Played two = two_bw_play(run, stack, m, 2);
    picture_show(run, "2BW, two batches", PICTURE_CHART);
    Played three = two_bw_play(run, stack, m, 3);
    Picoseconds work = pipedream_makespan(stack, as_one_batch, p, 2 * m);
    double table = p > 1 ? send_time(stack->model.vocab * stack->model.width * sizeof(real)) : 0;
    if (clock_config()->simulated)
        cost(run, "equal stages, 2BW: two batches, and the table", "ps", (double)work + table, two.timing.step);
    return measured(&three, three.timing.step - two.timing.step,
                    pipedream_makespan(stack, as_one_batch, p, 3 * m) - work);
}

void two_bw_equal_stages(Run *run, const Training *t) {
    size_t p = run->world->size, i = run->world->rank, m = p < 4 ? 4 : p;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    ModelConfig whole = t->model;
    whole.layers = stack.blocks * p;
    CutSizes z = cut_stage(cut_sizes(&whole, 1, 0), p, i);
    size_t stage = elements_stage(&z) * sizeof(real), one = stack_kept(&stack, p, i);
    all_lists(run);
    Way way[WAYS] = { synchronous(run, &stack, schedule_gpipe, m), synchronous(run, &stack, schedule_1f1b, m),
                      pipedream(run, &stack, m), two_bw(run, &stack, m) };
    for (size_t k = 0; k < WAYS; k++) {
        size_t versions[] = { 1, 1, p - i, 2 }, flight = k == GPIPE ? m : p - i;
        char line[80];
        snprintf(line, sizeof line, "equal stages, %s: versions", way_name[k]);
        cost(run, line, "versions", versions[k], (double)way[k].weights / (double)stage);
        snprintf(line, sizeof line, "equal stages, %s: weights", way_name[k]);
        cost(run, line, "bytes", versions[k] * stage, way[k].weights);
        snprintf(line, sizeof line, "equal stages, %s: in flight", way_name[k]);
        cost(run, line, "micro-batches", flight, way[k].in_flight);
        snprintf(line, sizeof line, "equal stages, %s: activations", way_name[k]);
        cost(run, line, "bytes", flight * one, way[k].activations);
        snprintf(line, sizeof line, "equal stages, %s: weights and activations", way_name[k]);
        cost(run, line, "bytes", versions[k] * stage + flight * one, way[k].weights + way[k].activations);
        snprintf(line, sizeof line, "equal stages, %s: a batch more", way_name[k]);
        if (clock_config()->simulated) cost(run, line, "ps", way[k].predicted, way[k].batch);
    }
}

void two_bw_results(Run *run, const double loss[2], size_t last) {
    static const char *const of[] = { "a batch more", "versions", "weights", "activations", "weights and activations" };
    char cell[5][WAYS][64], text[2][16], old[16], what[32];
    for (size_t q = 0; q < 5; q++)
        for (size_t k = 0; k < WAYS; k++)
            snprintf(cell[q][k], sizeof cell[q][k], "equal stages, %s: %s", way_name[k], of[q]);
    for (size_t k = 0; k < 2; k++) snprintf(text[k], sizeof *text, "=%.2f", loss[k]);
    snprintf(old, sizeof old, run->world->size > 1 ? "=0..%zu" : "=%zu", run->world->size - 1);
    snprintf(what, sizeof what, "loss, last %zu", last);
#define CELLS(q) { cell[q][0], cell[q][1], cell[q][2], cell[q][3] }
    const Result rows[] = {
        { "a batch more", "m+p-1, m: t_f+t_b", CELLS(0) },
        { "versions held", "1, 1, p-i, 2", CELLS(1) },
        { "weights", "versions x stage", CELLS(2) },
        { "activations", "m, p-i in flight", CELLS(3) },
        { "both", "weights, kept", CELLS(4) },
        { "updates missed", "0, 0, p-1-i, 1", { "=0", "=0", old, "=1" } },
        { what, NULL, { text[0], text[0], NULL, text[1] } }, {0} };
#undef CELLS
    results(run, (const char *const[]){ "GPipe", "1F1B", "PipeDream", "2BW", NULL },
            clock_config()->simulated ? rows : rows + 1);      // no cost is a time in real time
}
