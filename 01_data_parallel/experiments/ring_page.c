// ring_page.c: the page of 03_ring: the hops of the ring, and a table of the faster of two ways.
#include "01_data_parallel/experiments/experiments.h"

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

// Returns the faster of ring and tree, and its speed relative to gather + broadcast, such as "tree,
// 7.6x", or "no difference".
static const char *faster(Run *run, size_t N, size_t count, size_t e) {
    const ClockLink *l = &clock_config()->between;
    const double ring = way_time_on(l, RING, N, count, e), tree = way_time_on(l, TREE, N, count, e);
    const double gather = way_time_on(l, GATHER, N, count, e), least = ring < tree ? ring : tree;
    if (ring == tree && ring == gather) return "=no difference";
    return page_text(run, "=%s, %.1fx", least == ring ? "ring" : "tree", gather / least);
}

void ring_fastest(Run *run) {
    static const size_t count[] = { 1, 16, 256, 1 << 20 };
    enum { COUNTS = sizeof count / sizeof *count };
    const size_t e = element_size(option_storage(run));
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
        "formula.\n\"tree, 3.8x\": 3.8 times as fast as rank 0 that receives all tensors, adds "
        "them and sends the sum.\nOn 16 and 256 ranks halving-doubling is as fast as both or "
        "faster, if far links are as fast as near.\n"
        "The sizes grow with latency times bandwidth: try --link ethernet.\n",
        clock_config()->between.name);
    results(run, (const char *const[]){ "3 ranks", "16 ranks", "256 ranks", NULL }, rows);
}
