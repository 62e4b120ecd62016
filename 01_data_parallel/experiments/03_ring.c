// 03_ring.c: compares four ways to make an all-reduce with the library's comm_all_reduce(), at
// sizes from one element on. The numbers have exact sums, so every bit must agree. Compares
// messages, bytes, scratch memory and time with formulas (ring_costs.c). tests/test_ring.c has more
// sizes, and numbers whose sums are rounded.
#include "01_data_parallel/experiments/experiments.h"
#include "judge/draw/plot.h"
#include <math.h>
#include <stdlib.h>

// POINTS sizes of 1, 4, 16, ... elements, up to 4 MB in fp32, are drawn. The last size, UNEVEN
// elements, is not drawn. Few numbers of ranks divide UNEVEN.
enum { UNEVEN = 10007, POINTS = 11, SIZES = POINTS + 1 };
static size_t size_of(size_t i) { return i < POINTS ? (size_t)1 << 2 * i : UNEVEN; }

typedef void AllReduce(Comm *c, Tensor t); // replaces t by its sum over c's ranks
static AllReduce *const all_reduce[WAYS] = { [RING] = ring_all_reduce,
                                             [GATHER] = gather_broadcast_all_reduce,
                                             [TREE] = tree_all_reduce,
                                             [HALVING] = halving_doubling_all_reduce };
static const char *const way_id[WAYS] = { "ring", "gather", "tree", "halving" };

// ---------------------------------------------------------------- the picture

// The page draws a ring of at most 8 ranks. With more than 4 ranks the page draws two hops of each
// phase.
enum { MOST_RANKS = 8, ALL_HOPS = 4 };

// Draws which chunk each rank sends in each hop.
static void draw_hops(Run *run) {
    const size_t N = run->world->size, shown = N > ALL_HOPS ? 2 : N - 1;
    if (N < 2 || N > MOST_RANKS) return;
    say(run,
        "The ring on %zu ranks: in each hop every rank sends one chunk (a, b, ...) to the next "
        "rank.\n",
        N);
    for (size_t k = 0; k < 2 * (N - 1); k++) {
        const char *line = page_text(run, "  hop %2zu   0", k);
        for (size_t r = 0; r < N; r++) {
            const char chunk = (char)('a' + (r + 2 * N - k) % N);
            line = page_text(run, "%s -%c-> %zu", line, chunk, (r + 1) % N);
        }
        const char *phase = k < N - 1 ? "added: reduce-scatter" : "copied: all-gather";
        if (k % (N - 1) < shown) say(run, "%s   %s\n", line, phase);
        if (k % (N - 1) == shown) say(run, "  ...\n");
    }
}

// ---------------------------------------------------------------- sums, costs and times

// Returns the largest value of all ranks. The ledger does not count the call.
static double largest(Comm *c, double value) {
    double *all = host_alloc(c->size * sizeof *all), most = 0;
    all[c->rank] = value;
    ledger_pause();
    comm_all_reduce_doubles(c, all, c->size);
    ledger_resume();
    for (size_t r = 0; r < c->size; r++) most = fmax(most, all[r]);
    free(all);
    return most;
}

// Sums tensors of all sizes in one way. Compares the sums with the library's sums, and the costs
// with formulas. Sets took[i] to the picoseconds from a common start until the last rank has the
// sum of size i.
static void check_way(Run *run, Way way, double took[SIZES]) {
    Comm *c = run->world;
    const ClockConfig *k = clock_config();
    const size_t e = element_size(option_storage(run));
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    WayCosts seen = { 0 }, costs = { 0 };
    double time = 0, time_wanted = 0;
    for (size_t i = 0; i < SIZES; i++) {
        const size_t count = size_of(i);
        const char *name = page_text(run, "%zu elements", count);
        const WayCosts one = way_costs(way, c->size, c->rank, count, e);
        Arena memory = arena(MEM_GRADIENTS);
        Tensor t = ring_tensor(run, &memory, count), library = ring_tensor(run, &memory, count);
        double start = 0;
        comm_all_reduce(c, library);
        comm_all_reduce_doubles(c, &start, 1); // a common start for all ranks
        comm_ledger_reset(c);
        memory_reset_peaks();
        const Picoseconds begin = clock_now();
        all_reduce[way](c, t);
        took[i] = largest(c, (double)(clock_now() - begin));
        seen.messages += c->ledger[COMM_SEND].calls;
        seen.bytes += c->ledger[COMM_SEND].bytes;
        seen.scratch += memory_peak(MEM_COMMUNICATION);
        costs.messages += one.messages;
        costs.bytes += one.bytes;
        costs.scratch += one.scratch;
        time += took[i];
        time_wanted += way_time_on(&k->between, way, c->size, count, e);
        snapshot_put(got, name, 1, count, t, 0, 0);
        if (run->is_root) snapshot_put(want, name, 1, count, library, 0, 0);
        arena_free(&memory);
    }
    check_equal(run, page_text(run, "%s = library", way_name[way]), got, want);
    snapshot_free(got);
    snapshot_free(want);
    check_costs(run, page_text(run, "%%s.%s", way_id[way]),
                page_text(run, "%s: %%s, 12 sizes", way_name[way]),
                (CostRow[]){
                    { "calls", "messages sent", "calls", BY_FORMULA((double)costs.messages),
                      (double)seen.messages },
                    { "sent", "sent", "bytes", BY_FORMULA((double)costs.bytes),
                      (double)seen.bytes },
                    { "scratch", "scratch", "bytes", BY_FORMULA((double)costs.scratch),
                      (double)seen.scratch },
                    { k->simulated ? "time" : NULL, "time", "ps", BY_FORMULA(time_wanted), time },
                    { 0 } });
}

// ---------------------------------------------------------------- the page

static void chart(Run *run, double took[WAYS][SIZES]) {
    const ClockConfig *k = clock_config();
    double bytes[POINTS], us[WAYS][POINTS];
    PlotLine lines[WAYS];
    for (Way way = RING; way < WAYS; way++) {
        for (size_t i = 0; i < POINTS; i++) {
            bytes[i] = (double)(size_of(i) * element_size(option_storage(run)));
            us[way][i] = took[way][i] * 1e-6;
        }
        lines[way] = (PlotLine){ way_name[way], us[way] };
    }
    const char *title = page_text(run, "All-reduce on %zu ranks, %s", run->world->size,
                                  k->simulated ? k->between.name : "real time");
    Plot plot = { title, "bytes", "microseconds", bytes, POINTS, lines, WAYS, true, true };
    plot_show(run, &plot, PICTURE_DETAIL);
}

static void table(Run *run, double took[WAYS][SIZES]) {
    static const size_t shown[] = { 0, 1, POINTS - 1 };
    enum { SHOWN = sizeof shown / sizeof *shown };
    // On a link that takes 1 ps per message, or 1 ps per byte, a time is the number of messages or
    // bytes in a row.
    static const ClockLink messages = { .alpha = 1e-12, .beta = INFINITY };
    static const ClockLink bytes = { .beta = 1e12 };
    const size_t N = run->world->size, e = element_size(option_storage(run));
    const size_t S = N * e * size_of(POINTS - 1); // N divides S / e
    Result rows[SHOWN + 3] = { { 0 } };
    for (size_t i = 0; i < SHOWN; i++)
        rows[i].what = value_text(run, (double)(size_of(shown[i]) * e), "bytes");
    rows[0].formula = "1 element cannot be cut";
    rows[SHOWN].what = "messages in a row";
    rows[SHOWN].formula = "alpha each";
    rows[SHOWN + 1].what = "bytes in a row";
    rows[SHOWN + 1].formula = "1/beta each";
    for (Way way = RING; way < WAYS; way++) {
        for (size_t i = 0; i < SHOWN; i++)
            rows[i].cell[way] = value_cell(run, took[way][shown[i]], "ps");
        rows[SHOWN].cell[way] = page_text(run, "=%.0f", way_time_on(&messages, way, N, S / e, e));
        rows[SHOWN + 1].cell[way] =
            page_text(run, "=%.2f S", way_time_on(&bytes, way, N, S / e, e) / (double)S);
    }
    const ClockConfig *k = clock_config();
    const char *link = k->simulated ? page_text(run, " on link %s", k->between.name) : "";
    say(run,
        "\nGather + broadcast: rank 0 adds all. Tree: ranks add in pairs, then pairs of pairs; "
        "the sum goes\nback the same way. Halving-doubling: far partners swap halves, then near "
        "partners halves of halves,\nthen the same steps backwards. In a row: messages that wait "
        "for one another. S bytes%s:\n",
        link);
    results(run,
            (const char *const[]){ way_name[RING], way_name[GATHER], way_name[TREE],
                                   way_name[HALVING], NULL },
            rows);
}

static void answer(Run *run, bool nodes) {
    const ClockConfig *k = clock_config();
    const size_t N = run->world->size, e = element_size(option_storage(run));
    const char *both = "", *from = "", *over = "";
    if ((N & (N - 1)) == 0)
        both = k->simulated && !nodes
                   ? " Halving-doubling has both here, so no way is faster (N is a power of two)."
                   : " Halving-doubling has both here, because N is a power of two.";
    if (k->simulated && k->between.beta > 0)
        from = page_text(run, " From %s on the ring is no slower than the tree.",
                         value_text(run, (double)way_ring_overtakes(N, e), "bytes"));
    if (nodes)
        over = page_text(run, " Over nodes: flat ring %s, hierarchical %s.",
                         cost_text(run, "nodes.flat.time"), cost_text(run, "nodes.time"));
    if (N == 1) say_answer(run, "One rank has the sum already, and sends nothing.");
    else
        say_answer(
            run,
            "Ranks send chunks or whole tensors, and add them. For large tensors the fastest "
            "way has the fewest bytes in a row (ring), for small ones the fewest messages in a "
            "row (tree).%s%s%s",
            both, from, over);
    say_cost(run,
             "ring: %zu messages in a row, each 1/N of the tensor. Tree: %zu whole tensors in a "
             "row.",
             2 * (N - 1), 2 * way_height(N));
    say_use_when(run,
                 "ring: large tensors. Tree: small tensors on many ranks. Halving-doubling: far "
                 "links as fast as near links. Hierarchical: links inside nodes are faster.");
}

static void ring(Run *run) {
    const ClockConfig *k = clock_config();
    double took[WAYS][SIZES];
    clock_set_one_port(true);
    clock_set_link(&k->between);
    for (Way way = RING; way < WAYS; way++) check_way(run, way, took[way]);
    clock_set_link(NULL);
    clock_set_one_port(false);
    chart(run, took);
    draw_hops(run);
    table(run, took);
    const bool nodes = ring_nodes(run) && k->simulated;
    answer(run, nodes);
}

static const Option options[] = { { "link", "NAME[,NAME]", "fast,slow", NULL },
                                  { "node", "N", "2", "N neighbouring ranks share a node" },
                                  ONLY_STORAGE_OPTION,
                                  { 0 } };
EXPERIMENT(ring, options);
