// 03_ring.c: compares four ways of an all-reduce with the library's. The numbers have exact sums,
// so every bit must agree. Compares messages, bytes, scratch memory and time with formulas
// (ring_costs.c). ring_page.c has the picture and the first table, ring_nodes.c the hierarchical
// way over nodes. tests/test_ring.c has more sizes and real numbers.
#include "01_data_parallel/experiments/experiments.h"
#include "judge/draw/plot.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { UNEVEN = 10007 };              // elements; few numbers of ranks divide it
enum { SMALLEST = 256, POINTS = 13 }; // elements: 1 kB to 4 MB in fp32, doubling

typedef void AllReduce(Comm *c, Tensor t); // replaces t by its sum over c's ranks
static AllReduce *const all_reduce[WAYS] = { [RING] = ring_all_reduce,
                                             [GATHER] = gather_broadcast_all_reduce,
                                             [TREE] = tree_all_reduce,
                                             [HALVING] = halving_doubling_all_reduce };
static const char *const way_id[WAYS] = { "ring", "gather", "tree", "halving" };

// ---------------------------------------------------------------- sums, messages and bytes

static void sums(Run *run, Way way) {
    Comm *c = run->world;
    static const char *const name[] = { "few", "uneven" };
    const size_t count[] = { c->size - 1, UNEVEN }; // few: one chunk is empty
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    WayCosts seen;
    for (size_t i = 0; i < 2; i++) {
        Arena memory = arena(MEM_GRADIENTS);
        Tensor t = ring_tensor(run, &memory, count[i]);
        Tensor library = ring_tensor(run, &memory, count[i]);
        comm_all_reduce(c, library);
        comm_ledger_reset(c);
        memory_reset_peaks();
        all_reduce[way](c, t);
        seen = (WayCosts){ c->ledger[COMM_SEND].calls, c->ledger[COMM_SEND].bytes,
                           memory_peak(MEM_COMMUNICATION) };
        snapshot_put(got, name[i], 1, count[i], t, 0, 0);
        if (run->is_root) snapshot_put(want, name[i], 1, count[i], library, 0, 0);
        arena_free(&memory);
    }
    check_equal(run, page_text(run, "%s = library", way_name[way]), got, want);
    snapshot_free(got);
    snapshot_free(want);
    const size_t e = element_size(option_storage(run));
    const WayCosts costs = way_costs(way, c->size, c->rank, UNEVEN, e);
    check_costs(run, page_text(run, "%%s.%s", way_id[way]),
                page_text(run, "%s: %%s", way_name[way]),
                (CostRow[]){ { "calls", "messages sent", "calls",
                               BY_FORMULA((double)costs.messages), (double)seen.messages },
                             { "sent", "sent", "bytes", BY_FORMULA((double)costs.bytes),
                               (double)seen.bytes },
                             { "scratch", "scratch", "bytes", BY_FORMULA((double)costs.scratch),
                               (double)seen.scratch },
                             { 0 } });
}

// ---------------------------------------------------------------- time

// Returns the picoseconds from a common start until the last rank is done.
static double time_of(Run *run, Way way, size_t count) {
    Comm *c = run->world;
    Arena memory = arena(MEM_GRADIENTS);
    Tensor t = ring_tensor(run, &memory, count);
    double *took = host_alloc(c->size * sizeof *took), last = 0, start = 0;
    comm_all_reduce_doubles(c, &start, 1); // a collective ends at the same time on all ranks
    const Picoseconds begin = clock_now();
    all_reduce[way](c, t);
    took[c->rank] = (double)(clock_now() - begin);
    ledger_pause();
    comm_all_reduce_doubles(c, took, c->size);
    ledger_resume();
    for (size_t r = 0; r < c->size; r++) last = fmax(last, took[r]);
    free(took);
    arena_free(&memory);
    return last;
}

// Measures the time of 13 sizes with one port per rank and every message over the link between
// nodes. chart: draws time over size.
static void times(Run *run, bool chart) {
    const ClockConfig *k = clock_config();
    const size_t N = run->world->size, e = element_size(option_storage(run));
    double bytes[POINTS], us[WAYS][POINTS];
    PlotLine lines[WAYS];
    clock_set_one_port(true);
    clock_set_link(&k->between);
    for (Way way = RING; way < WAYS; way++) {
        double sum = 0, want = 0;
        for (size_t i = 0; i < POINTS; i++) {
            const size_t count = (size_t)SMALLEST << i;
            const double took = time_of(run, way, count);
            bytes[i] = (double)(count * e);
            us[way][i] = took * 1e-6;
            sum += took;
            want += way_time_on(&k->between, way, N, count, e);
        }
        lines[way] = (PlotLine){ way_name[way], us[way] };
        if (!k->simulated) continue;
        check_cost(run, page_text(run, "time.%s", way_id[way]),
                   page_text(run, "%s: time, 13 sizes", way_name[way]), "ps", formula(want),
                   NOT_PREDICTED, sum);
    }
    const char *title = page_text(run, "All-reduce on %zu ranks, %s", N,
                                  k->simulated ? k->between.name : "real time");
    Plot plot = { title, "bytes", "microseconds", bytes, POINTS, lines, WAYS, true, true };
    if (chart) plot_show(run, &plot, 0);
    clock_set_link(NULL);
    clock_set_one_port(false);
}

// ---------------------------------------------------------------- the page

static void ring(Run *run) {
    const ClockConfig *k = clock_config();
    const size_t N = run->world->size;
    for (Way way = RING; way < WAYS; way++) sums(run, way);
    times(run, option_text(run, "svg") || strcmp(option_text(run, "picture"), "times") == 0);
    ring_hops(run);
    ring_fastest(run);
    const size_t e = element_size(option_storage(run));
    const bool nodes = ring_nodes(run) && k->simulated;
    const char *from = "", *over = "";
    if (k->simulated && k->between.beta > 0 && N > 1)
        from = page_text(run,
                         " With %zu ranks, all on link %s, the ring is no slower than the "
                         "tree from %s on.",
                         N, k->between.name,
                         value_text(run, (double)way_ring_overtakes(N, e), "bytes"));
    if (nodes)
        over = page_text(run, " Over nodes the flat ring takes %s, the hierarchical way %s.",
                         cost_text(run, "nodes.flat.time"), cost_text(run, "nodes.time"));
    say_answer(run,
               "The ring sends the fewest bytes, because chunks are added on their way round. The "
               "tree sends whole tensors, in the fewest messages in a row.%s%s",
               from, over);
    say_cost(run,
             "ring: %zu messages in a row, each 1/N of the tensor. Tree: %zu whole tensors in a "
             "row.",
             2 * (N - 1), 2 * way_height(N));
    say_use_when(run, "ring: large tensors, such as gradients. Tree: small tensors on many ranks. "
                      "Hierarchical: nodes with faster links inside. NCCL's tree sends a tensor in "
                      "pieces.");
}

static const Option options[] = {
    { "picture", "none|times", "none",
      "times: a chart of the four ways' times by size, as --svg writes it" },
    { "link", "NAME[,NAME]", "fast,slow", NULL },
    { "node", "N", "2", "N neighbouring ranks share a node" },
    ONLY_STORAGE_OPTION,
    { 0 }
};
EXPERIMENT(ring, options);
