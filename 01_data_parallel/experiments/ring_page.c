// ring_page.c: the page of 03_ring: the steps of the ring, and a table of the fastest ways.
#include "01_data_parallel/experiments/experiments.h"
#include <stdio.h>

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

// Writes the fastest of three ways and its speed relative to gather + broadcast, such as "tree
// 7.6x", or "no difference".
static void fastest(char *text, size_t room, size_t N, size_t count, size_t e) {
    const ClockLink *l = &clock_config()->between;
    double ring = way_time_on(l, RING, N, count, e), tree = way_time_on(l, TREE, N, count, e);
    double gather = way_time_on(l, GATHER, N, count, e), least = ring < tree ? ring : tree;
    if (ring == tree && ring == gather) snprintf(text, room, "=no difference");
    else snprintf(text, room, "=%s, %.1fx", least == ring ? "ring" : "tree", gather / least);
}

void ring_fastest(Run *run) {
    static const size_t ranks[] = { 3, 16, 256 }, count[] = { 1, 16, 256, 1 << 20 };
    enum { RANKS = sizeof ranks / sizeof *ranks, COUNTS = sizeof count / sizeof *count };
    const size_t e = element_size(option_storage(run));
    char label[COUNTS][24], cell[COUNTS][RANKS][24];
    Result rows[COUNTS + 1] = { { 0 } };
    for (size_t i = 0; i < COUNTS; i++) {
        page_value(label[i], sizeof label[i], (double)(count[i] * e), "bytes");
        rows[i].what = label[i];
        for (size_t k = 0; k < RANKS; k++) {
            fastest(cell[i][k], sizeof cell[i][k], ranks[k], count[i], e);
            rows[i].cell[k] = cell[i][k];
        }
    }
    rows[0].formula = "latency decides: few messages in a row";
    rows[COUNTS - 1].formula = "bytes decide: 2(N-1)/N of the tensor";
    say(run,
        "\nTree: ranks add in pairs, then pairs of pairs, up to rank 0, and the sum goes back.\n"
        "The fastest way by size and number of ranks, from formulas, on link %s. \"tree, 3.8x\": "
        "the tree\nis fastest, 3.8 times as fast as rank 0 that receives all tensors, adds them "
        "and sends the sum.\n",
        clock_config()->between.name);
    results(run, (const char *const[]){ "3 ranks", "16 ranks", "256 ranks", NULL }, rows);
}
