// 04_costs.c: what 04_pipedream predicts, from sizes alone; see 04_pipedream.h.
#include "05_pipeline_1f1b/experiments/04_pipedream.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include <stdio.h>
#include <stdlib.h>

static void line(Run *run, size_t way, const char *what, const char *unit, double predicted, double measured) {
    static const char *const name[] = { "flush", "stashing", "vertical sync", "no stashing" };
    char text[96];
    snprintf(text, sizeof text, "%s: %s", name[way], what);
    cost(run, text, unit, predicted, measured);
}

void pipedream_costs(Run *run, const Training *t, size_t way, const PipeDreamSeen *seen) {
    size_t p = run->world->size, i = run->world->rank, n = t->steps, E = sizeof(real);
    size_t next = i + 1 < p, before = i > 0, versions[] = { 1, p - i, p, 1 };
    size_t flight = way == 0 ? 1 : p - i < n ? p - i : n;
    CutSizes z = stage_sizes(&t->model, p, i);
    size_t untied = p == 1 ? elements_wte(&z) : 0;             // one stage has both tables
    size_t mine = elements_stage(&z) + untied, message = message_elements(&z, t->sequences);
    line(run, way, "versions of the weights", "versions", versions[way],
         (double)seen->weights / (double)(seen->size * E));
    line(run, way, "weights of all versions", "bytes", versions[way] * mine * E, seen->weights);
    line(run, way, "gradients", "bytes", mine * E, seen->gradients);
    line(run, way, "optimizer state", "bytes", (t->optimizer.kind == ADAMW) * 2 * mine * E, seen->optimizer);
    line(run, way, "in flight", "mini-batches", flight, seen->in_flight);
    line(run, way, "activations, peak", "bytes", kept_stage(&z) * flight * t->sequences * t->model.context * E,
         seen->activations);
    line(run, way, "message buffers, peak", "bytes", (next + before) * 3 * message * E, seen->buffers);
    line(run, way, "messages sent", "calls", n * (next + before), seen->messages);
    line(run, way, "messages sent", "bytes", n * (next + before) * message * E, seen->message_bytes);
    line(run, way, "sums over stages", "calls", 0, seen->sums);
}

// ---------------------------------------------------------------- lists alone: times and versions

// Versions that a stage must hold at once: from the oldest that an op still to come reads to the newest.
static size_t versions_needed(const Schedule *s) {
    size_t newest = 0, most = 1;
    for (size_t e = 0; e < s->n; e++) {
        newest += s->ops[e].what == UPDATE;
        for (size_t later = e + 1; later < s->n; later++)
            if (s->ops[later].what != UPDATE && newest + 1 > most + s->ops[later].version)
                most = newest + 1 - s->ops[later].version;
    }
    return most;
}

static Schedule stashing(size_t p, size_t n, size_t i) { return schedule_pipedream(WEIGHT_STASHING, p, n, i); }
static Schedule vertical(size_t p, size_t n, size_t i) { return schedule_pipedream(VERTICAL_SYNC, p, n, i); }
enum { PIECES = 8, FLUSH = 4 };
static Schedule flushed(size_t p, size_t n, size_t i) { return schedule_flushed(p, FLUSH, i, n / FLUSH); }

enum { MOST_STAGES = 8, MOST_BATCHES = 24, LISTS = MOST_STAGES * MOST_BATCHES };
static void all_lists(Run *run) {
    double end[LISTS], want_end[LISTS], held[2][LISTS * MOST_STAGES], want[2][LISTS * MOST_STAGES];
    size_t lists = 0, stages = 0;
    for (size_t p = 1; p <= MOST_STAGES; p++)
        for (size_t n = 1; n <= MOST_BATCHES; n++, lists++) {
            end[lists] = makespan(stashing, p, n, 1, 2);
            want_end[lists] = (n + p - 1) * 3;
            for (size_t i = 0; i < p; i++, stages++) {
                Schedule s[2] = { stashing(p, n, i), vertical(p, n, i) };
                for (size_t r = 0; r < 2; r++) {
                    held[r][stages] = versions_needed(&s[r]);
                    size_t versions = r ? p : p - i;
                    want[r][stages] = versions < n ? versions : n;
                    schedule_free(&s[r]);
                }
            }
        }
    check_numbers(run, "op lists = formulas", "(n+p-1)(t_f+t_b)", end, want_end, lists, 0);
    check_numbers(run, "op lists = formulas", "p-i versions", held[0], want[0], stages, 0);
    check_numbers(run, "op lists = formulas", "p if in sync", held[1], want[1], stages, 0);
}

// ---------------------------------------------------------------- equal stages, on the clock

static Timing play(Run *run, const Stack *stack, PipeDreamList list, size_t older, size_t n, const char *title) {
    Schedule s = list(run->world->size, n, run->world->rank);
    Played played = pipedream_play(run, stack, &s, older, n);
    int flush = PICTURE_NO_FILES | (run->world->size > 4 ? PICTURE_DETAIL : 0);       // two are too long for a page
    if (title) picture_show(run, title, list == flushed ? flush : PICTURE_CHART);
    schedule_free(&s);
    return played.timing;
}

void pipedream_equal_stages(Run *run, const Training *t) {
    size_t p = run->world->size, older = p - 1 - run->world->rank;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    Timing flush = play(run, &stack, flushed, 0, PIECES, "1F1B, 8 pieces, flush after 4");
    Timing dream = play(run, &stack, stashing, older, PIECES, "PipeDream, 8 mini-batches");
    Timing flush_long = play(run, &stack, flushed, 0, 2 * PIECES, NULL);
    Timing dream_long = play(run, &stack, stashing, older, 2 * PIECES, NULL);
    all_lists(run);
    if (!clock_config()->simulated) return;
    Picoseconds one[2] = { pipedream_makespan(&stack, flushed, p, PIECES),
                           pipedream_makespan(&stack, stashing, p, PIECES) };
    Picoseconds two[2] = { pipedream_makespan(&stack, flushed, p, 2 * PIECES),
                           pipedream_makespan(&stack, stashing, p, 2 * PIECES) };
    cost(run, "equal stages, 1F1B: 8 pieces", "ps", one[0], flush.step);
    cost(run, "equal stages, PipeDream: 8 pieces", "ps", one[1], dream.step);
    cost(run, "equal stages, 1F1B: 8 more", "ps", two[0] - one[0], flush_long.step - flush.step);
    cost(run, "equal stages, PipeDream: 8 more", "ps", two[1] - one[1], dream_long.step - dream.step);
}

// ---------------------------------------------------------------- the table of the page

void pipedream_results(Run *run, double off, const double loss[4], size_t first, size_t last) {
    size_t old = run->world->size - 1;
    char text[4][16], age[3][16], deviation[16], what[64];
    for (size_t way = 0; way < 4; way++) snprintf(text[way], sizeof *text, "=%.2f", loss[way]);
    snprintf(age[0], sizeof *age, old ? "=0..%zu" : "=%zu", old);
    snprintf(age[1], sizeof *age, "=%zu", old);
    snprintf(age[2], sizeof *age, old ? "=both" : "=0");
    snprintf(deviation, sizeof deviation, "=%.0f %%", 100 * off);
    snprintf(what, sizeof what, "loss, %zu..%zu", first, last);
    const Result rows[] = {
        { "8 pieces more", "2(m+p-1), 8: t_f+t_b",
          { "equal stages, 1F1B: 8 more", "equal stages, PipeDream: 8 more" } },
        { "versions held", "1, p-i, p, 1",
          { "flush: versions of the weights", "stashing: versions of the weights",
            "vertical sync: versions of the weights", "no stashing: versions of the weights" } },
        { "weights per rank", "versions x stage",
          { "flush: weights of all versions", "stashing: weights of all versions",
            "vertical sync: weights of all versions", "no stashing: weights of all versions" } },
        { "updates missed", "0, p-1-i, p-1", { "=0", age[0], age[1], age[2] } },
        { "gradient 1 error", "|g'-g| / |g|", { "=0", "=0", "=0", deviation } },
        { what, NULL, { text[0], text[1], text[2], text[3] } }, {0} };
    results(run, (const char *const[]){ "1F1B", "stashing", "vertical sync", "no stashing", NULL },
            clock_config()->simulated ? rows : rows + 1);      // no cost is a time in real time
}
