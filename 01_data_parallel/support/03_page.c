// 03_page.c: see 03_page.h.
#include "01_data_parallel/support/03_page.h"
#include <stdio.h>
#include <string.h>

enum { MOST_RANKS = 8 };                       // as many as have room in a line
void ring_say_steps(Run *run) {
    size_t N = run->world->size;
    if (N < 2 || N > MOST_RANKS) return;
    say(run, "The ring on %zu ranks: in each step every rank sends one chunk (a, b, ...) to the next rank.\n", N);
    for (size_t k = 0; k < 2 * (N - 1); k++) {
        char line[128];
        size_t n = (size_t)snprintf(line, sizeof line, "  step %2zu   0", k);
        for (size_t r = 0; r < N; r++)
            n += (size_t)snprintf(line + n, sizeof line - n, " -%c-> %zu", (char)('a' + (r + 2 * N - k) % N),
                                  (r + 1) % N);
        say(run, "%s   %s\n", line, k < N - 1 ? "added: reduce-scatter" : "copied: all-gather");
    }
}

static const ClockLink *link_named(const char *name) {
    const ClockLink *l = clock_links;
    while (l->name && strcmp(l->name, name)) l++;
    return l;
}

// "tree 7.6x": the fastest of three ways, and how many times as fast as gather and broadcast it is.
static void fastest(char *text, size_t room, const ClockLink *l, size_t N, size_t count) {
    double ring = way_time_on(l, RING, N, count), tree = way_time_on(l, TREE, N, count);
    double gather = way_time_on(l, GATHER, N, count), least = ring < tree ? ring : tree;
    const char *name = ring == tree && ring == gather ? "all alike" : least == ring ? "ring" : "tree";
    snprintf(text, room, "=%s %.1fx", name, gather / least);
}

void ring_say_fastest(Run *run) {
    static const size_t ranks[] = { 3, 16, 256 }, count[] = { 1, 16, 64, 256, 16384, 1 << 20 };
    enum { LINKS = 2, RANKS = sizeof ranks / sizeof *ranks, COUNTS = sizeof count / sizeof *count };
    static const char *const link[LINKS] = { "fast", "slow" };
    char label[COUNTS][24], cell[COUNTS][RESULT_COLUMNS][24];
    Result rows[COUNTS + 1] = {{0}};
    for (size_t i = 0; i < COUNTS; i++) {
        snprintf(label[i], sizeof label[i], "%zu element%s", count[i], count[i] > 1 ? "s" : "");
        rows[i].what = label[i];
        for (size_t k = 0; k < LINKS * RANKS; k++) {
            fastest(cell[i][k], sizeof cell[i][k], link_named(link[k / RANKS]), ranks[k % RANKS], count[i]);
            rows[i].cell[k] = cell[i][k];
        }
    }
    say(run, "\nThe fastest of ring, tree and gather + broadcast. 2.0x: twice as fast as gather + broadcast.\n");
    results(run, (const char *const[]){ "fast: N=3", "N=16", "N=256", "slow: N=3", "N=16", "N=256", NULL }, rows);
    say(run, "\nBy the formulas that this run's simulated times are compared with, one port per rank. The ring beats\n"
             "the tree from alpha beta (N-1-h) / (h-(N-1)/N) bytes on, h = log2 N rounded up. Gather + broadcast\n"
             "sends all through rank 0 and never beats the tree. Halving-doubling takes at most the tree's time\n"
             "and, for N a power of two, at most the ring's, while every pair of ranks has a link of its own.\n");
}
