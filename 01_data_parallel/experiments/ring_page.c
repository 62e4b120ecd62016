// ring_page.c: the page of 03_ring: the hops of the ring, and a table of the faster of two ways.
#include "01_data_parallel/experiments/experiments.h"
#include <math.h>

// MOST_RANKS: the most ranks that have room in a line. ALL_HOPS: with more hops than that, the page
// shows the first and the last hop of each phase only.
enum { MOST_RANKS = 8, ALL_HOPS = 6 };

void ring_hops(Run *run) {
    const size_t N = run->world->size, hops = 2 * (N - 1);
    if (N < 2 || N > MOST_RANKS) return;
    say(run,
        "The ring on %zu ranks: in each hop every rank sends one chunk (a, b, ...) to the next "
        "rank.\n",
        N);
    for (size_t k = 0; k < hops; k++) {
        const size_t in_phase = k % (N - 1);
        const bool shown = hops <= ALL_HOPS || in_phase == 0 || in_phase == N - 2;
        const char *line = page_text(run, "  hop %2zu   0", k);
        for (size_t r = 0; r < N; r++) {
            const char chunk = (char)('a' + (r + 2 * N - k) % N);
            line = page_text(run, "%s -%c-> %zu", line, chunk, (r + 1) % N);
        }
        if (shown)
            say(run, "%s   %s\n", line, k < N - 1 ? "added: reduce-scatter" : "copied: all-gather");
        else if (in_phase == 1) say(run, "  ...\n");
    }
}

static double time_of(Way way, size_t N, size_t count, size_t e) {
    return way_time_on(&clock_config()->between, way, N, count, e);
}

// Returns the time of gather + broadcast, relative to the faster of ring and tree.
static double speedup(size_t N, size_t count, size_t e) {
    const double least = fmin(time_of(RING, N, count, e), time_of(TREE, N, count, e));
    return least > 0 ? time_of(GATHER, N, count, e) / least : 1;
}

// Returns a cell with the faster of ring and tree and its speedup, such as "tree, 7.6x", or "no
// difference".
static const char *faster(Run *run, size_t N, size_t count, size_t e) {
    const double ring = time_of(RING, N, count, e), tree = time_of(TREE, N, count, e);
    if (ring == tree && ring == time_of(GATHER, N, count, e)) return "=no difference";
    return page_text(run, "=%s, %.1fx", ring <= tree ? "ring" : "tree", speedup(N, count, e));
}

void ring_fastest(Run *run) {
    static const size_t count[] = { 1, 16, 256, 1 << 20 };
    enum { COUNTS = sizeof count / sizeof *count };
    const size_t e = element_size(option_storage(run));
    const double example = speedup(16, count[0], e);
    Result rows[COUNTS + 1] = { { 0 } };
    for (size_t i = 0; i < COUNTS; i++)
        rows[i] = (Result){ value_text(run, (double)(count[i] * e), "bytes"),
                            NULL,
                            { faster(run, 3, count[i], e), faster(run, 16, count[i], e),
                              faster(run, 256, count[i], e) } };
    rows[0].formula = "latency decides: few messages in a row";
    rows[COUNTS - 1].formula = "bytes decide: 2(N-1)/N of the tensor";
    say(run,
        "\nRing or tree (ranks add in pairs, then pairs of pairs): the faster one on link %s, by "
        "formula.\n%.1fx: gather and broadcast (rank 0 adds all tensors and sends the sum) takes "
        "%.1f times as long.\nHalving-doubling (partners swap halves, then halves of halves) is "
        "not in this table. For 16 and 256\nranks it is as fast as both or faster, if far links "
        "are as fast as near ones.\n",
        clock_config()->between.name, example, example);
    results(run, (const char *const[]){ "3 ranks", "16 ranks", "256 ranks", NULL }, rows);
}
