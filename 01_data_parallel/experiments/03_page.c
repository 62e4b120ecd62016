// 03_page.c: see 03_page.h.
#include "01_data_parallel/experiments/03_page.h"
#include <stdio.h>
#include <string.h>

enum { MOST_RANKS = 8, ALL_STEPS = 6 };        // as many as have room in a line; more steps are left out

void ring_say_steps(Run *run) {
    size_t N = run->world->size;
    if (N < 2 || N > MOST_RANKS) return;
    say(run, "The ring on %zu ranks: in each step every rank sends one chunk (a, b, ...) to the next rank.\n", N);
    for (size_t k = 0; k < 2 * (N - 1); k++) {
        char line[128];
        size_t n = (size_t)snprintf(line, sizeof line, "  step %2zu   0", k), in_phase = k % (N - 1);
        bool shown = 2 * (N - 1) <= ALL_STEPS || in_phase == 0 || in_phase == N - 2;
        if (!shown && in_phase == 1) say(run, "  ...\n");
        for (size_t r = 0; r < N; r++)
            n += (size_t)snprintf(line + n, sizeof line - n, " -%c-> %zu", (char)('a' + (r + 2 * N - k) % N),
                                  (r + 1) % N);
        if (shown) say(run, "%s   %s\n", line, k < N - 1 ? "added: reduce-scatter" : "copied: all-gather");
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
    static const size_t ranks[] = { 3, 16, 256 }, count[] = { 1, 16, 256, 1 << 20 };
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
    say(run, "\nBy the formulas of this run's simulated times: one port per rank, one kind of link.\n");
    say_detail(run, "The ring beats the tree from alpha beta (N-1-h) / (h-(N-1)/N) bytes on, h = log2 N rounded up.\n"
                    "Gather + broadcast sends all through rank 0 and never beats the tree. Halving-doubling takes\n"
                    "at most the tree's time and, for N a power of two, at most the ring's, while every pair of\n"
                    "ranks has a link of its own.\n");
}

void ring_say_nodes(Run *run, size_t count) {
    const ClockConfig *k = clock_config();
    size_t N = run->world->size, n = k->node < N ? k->node : N;
    if (N % n > 0 || n == N) return;
    char size[32];
    page_value(size, sizeof size, (double)(count * sizeof(real)), "bytes");
    say(run, "\nOne all-reduce of S = %s over M = %zu nodes of n = %zu ranks, link %s inside, %s between nodes:\n",
        size, N / n, n, k->link.name, k->between.name);
    results(run, (const char *const[]){ "flat ring", "hierarchical", NULL }, (const Result[]){
        { "sent by a rank in its node", "hierarchical: 2(n-1)/n S",
          { "=-", "over nodes, hierarchical: sent inside the node" } },
        { "sent by a rank to other nodes", "last of node 2(N-1)/N S; all 2(M-1)/M S/n",
          { "over nodes, flat: sent", "over nodes, hierarchical: sent to other nodes" } },
        { "time", "flat: by the slowest link",
          { k->simulated ? "over nodes, flat: time" : NULL, k->simulated ? "over nodes, hierarchical: time" : NULL } },
        {0} });
}
