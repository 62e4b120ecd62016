// ring_page.c: the page of 03_ring: the steps of the ring, and a table of the fastest ways.
#include "01_data_parallel/experiments/experiments.h"
#include <stdio.h>
#include <string.h>
#include "judge/frame/presets.h"

// MOST_RANKS: the most ranks that have room in a line. ALL_STEPS: with more steps than that, the
// page shows the first and the last step of each phase only.
enum { MOST_RANKS = 8, ALL_STEPS = 6 };

void ring_steps(Run *run) {
    size_t N = run->world->size;
    if (N < 2 || N > MOST_RANKS) return;
    say(run,
        "The ring on %zu ranks: in each step every rank sends one chunk (a, b, ...) to the next "
        "rank.\n",
        N);
    for (size_t k = 0; k < 2 * (N - 1); k++) {
        char line[128];
        size_t n = (size_t)snprintf(line, sizeof line, "  step %2zu   0", k),
               in_phase = k % (N - 1);
        bool shown = 2 * (N - 1) <= ALL_STEPS || in_phase == 0 || in_phase == N - 2;
        if (!shown && in_phase == 1) say(run, "  ...\n");
        for (size_t r = 0; r < N; r++)
            n += (size_t)snprintf(line + n, sizeof line - n, " -%c-> %zu",
                                  (char)('a' + (r + 2 * N - k) % N), (r + 1) % N);
        if (shown)
            say(run, "%s   %s\n", line, k < N - 1 ? "added: reduce-scatter" : "copied: all-gather");
    }
}

static const ClockLink *link_named(const char *name) {
    const ClockLink *l = clock_links;
    while (l->name && strcmp(l->name, name)) l++;
    return l;
}

// Writes the fastest of three ways and its speed relative to gather + broadcast, such as "tree
// 7.6x", or "no difference".
static void fastest(char *text, size_t room, const ClockLink *l, size_t N, size_t count, size_t e) {
    double ring = way_time_on(l, RING, N, count, e), tree = way_time_on(l, TREE, N, count, e);
    double gather = way_time_on(l, GATHER, N, count, e), least = ring < tree ? ring : tree;
    if (ring == tree && ring == gather) snprintf(text, room, "=no difference");
    else snprintf(text, room, "=%s %.1fx", least == ring ? "ring" : "tree", gather / least);
}

void ring_fastest(Run *run) {
    static const size_t ranks[] = { 3, 16, 256 }, count[] = { 1, 16, 256, 1 << 20 };
    enum { LINKS = 2, RANKS = sizeof ranks / sizeof *ranks, COUNTS = sizeof count / sizeof *count };
    static const char *const link[LINKS] = { "fast", "slow" };
    char label[COUNTS][24], cell[COUNTS][RESULT_COLUMNS][24];
    Result rows[COUNTS + 1] = { { 0 } };
    for (size_t i = 0; i < COUNTS; i++) {
        snprintf(label[i], sizeof label[i], "%zu element%s", count[i], count[i] > 1 ? "s" : "");
        rows[i].what = label[i];
        for (size_t k = 0; k < LINKS * RANKS; k++) {
            fastest(cell[i][k], sizeof cell[i][k], link_named(link[k / RANKS]), ranks[k % RANKS],
                    count[i], element_size(option_storage(run)));
            rows[i].cell[k] = cell[i][k];
        }
    }
    say(run, "\nTree: ranks add in pairs, then the sums in pairs, up to rank 0, and the sum goes "
             "back: 2 h messages\none by one, h = log2 N rounded up. Table, from formulas: the "
             "fastest way per link and rank count,\nif a rank handles one message at a time. 2x: "
             "twice as fast as if rank 0 gets all tensors and adds.\n");
    results(run,
            (const char *const[]){ "fast: 3 ranks", "fast: 16", "fast: 256", "slow: 3 ranks",
                                   "slow: 16", "slow: 256", NULL },
            rows);
}
