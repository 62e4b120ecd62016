// ring_nodes.c: checks the sum, bytes and time of 03_ring's hierarchical all-reduce over nodes, and
// shows them beside those of the flat ring.
#include "01_data_parallel/experiments/experiments.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdlib.h>

enum { ACROSS = 24000 }; // elements of the tensor; divisible by 1 to 6, 8, 10 and 12 ranks

Tensor ring_tensor(Run *run, Arena *memory, size_t count) {
    Tensor t = tensor_shaped(memory, tensor_shape(1, count, option_storage(run)));
    real *value = host_alloc(count * sizeof *value);
    const uint64_t key = random_key(run->seed, run->world->rank);
    for (size_t i = 0; i < count; i++) value[i] = (real)(random_key(key, i) % 17) - 8;
    tensor_upload(t, value);
    free(value);
    return t;
}

// Returns the picoseconds of the all-reduces between nodes. Each all-reduce has a network card of
// its own.
static double between_nodes(size_t M, size_t part, size_t e) {
    const ClockLink l = clock_link(CLOCK_ONE_CARD);
    const double bytes = ring_bytes(ALL_REDUCE_PASSES, M, part, e);
    return l.beta == 0 ? 0 : round((double)(2 * (M - 1)) * l.alpha * 1e12 + bytes * 1e12 / l.beta);
}

// Returns the number of rings of the flat way, one per network card of a node of n ranks.
static size_t rings(size_t n) {
    const size_t rails = clock_config()->rails;
    return rails && rails < n ? rails : n;
}

static void costs(Run *run, Comm *inside, Comm *between) {
    Comm *c = run->world;
    const size_t N = c->size, n = inside->size, M = between->size;
    const size_t e = element_size(option_storage(run)), part = ceil_div(ACROSS, n);
    const size_t own = part_size(ACROSS, n, inside->rank);
    const double across =
        M == 1 ? 0 : ring_bytes(ALL_REDUCE_PASSES, N, ACROSS, e) / (double)rings(n);
    Arena memory = arena(MEM_GRADIENTS);
    Tensor flat = ring_tensor(run, &memory, ACROSS), t = ring_tensor(run, &memory, ACROSS);
    double start = 0;
    comm_all_reduce_doubles(c, &start, 1); // a common start for all ranks
    comm_ledger_reset(c);
    const Picoseconds begin = clock_now();
    comm_all_reduce(c, flat);
    const Picoseconds middle = clock_now();
    hierarchical_all_reduce(inside, between, t);
    const Picoseconds end = clock_now();
    // The flat way has one ring per card, and each ring carries one part of the tensor. In each
    // ring one rank per node sends to the next node.
    const size_t cards = c->cards;
    const double sent = (double)comm_bytes_sent(c);
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    snapshot_put(got, "sum", 1, ACROSS, t, 0, 0);
    if (run->is_root) snapshot_put(want, "sum", 1, ACROSS, flat, 0, 0);
    check_equal(run, "hierarchical = library", got, want);
    snapshot_free(got);
    snapshot_free(want);
    arena_free(&memory);
    check_costs(run, "nodes.%s", "over nodes, %s",
                (CostRow[]){ { "flat.sent", "flat: sent", "bytes",
                               BY_FORMULA(ring_bytes(ALL_REDUCE_PASSES, N, ACROSS, e)), sent },
                             { "flat.across", "flat: a card sends to other nodes", "bytes",
                               BY_FORMULA(across),
                               cards == CLOCK_INSIDE ? 0 : sent / (double)cards },
                             { "inside.sent", "hierarchical: sent inside the node", "bytes",
                               BY_FORMULA(2 * ring_bytes(ONE_PASS, n, ACROSS, e)),
                               (double)comm_bytes_sent(inside) },
                             { "between.sent", "hierarchical: sent to other nodes", "bytes",
                               BY_FORMULA(ring_bytes(ALL_REDUCE_PASSES, M, own, e)),
                               (double)comm_bytes_sent(between) },
                             { 0 } });
    if (!clock_config()->simulated) return;
    const double time = 2 * ring_time(ONE_PASS, n, ACROSS, e) + between_nodes(M, part, e);
    check_costs(run, "nodes.%s", "over nodes, %s",
                (CostRow[]){ { "flat.time", "flat: time", "ps",
                               BY_FORMULA(ring_time(ALL_REDUCE_PASSES, N, ACROSS, e)),
                               (double)(middle - begin) },
                             { "time", "hierarchical: time", "ps", BY_FORMULA(time),
                               (double)(end - middle) },
                             { 0 } });
}

static void table(Run *run, size_t n, size_t M) {
    const ClockConfig *k = clock_config();
    say(run,
        "\nOver nodes: %zu ranks, M = %zu nodes of n = %zu, link %s inside and %s between. S = "
        "%s.\nFlat: %zu ring%s of all ranks, one per network card of a node. Each ring adds %s of "
        "S.\nHierarchical: reduce-scatter in each node, all-reduce of each part between nodes, "
        "all-gather inside.\n",
        n * M, M, n, k->link.name, k->between.name,
        value_text(run, (double)(ACROSS * element_size(option_storage(run))), "bytes"), rings(n),
        rings(n) == 1 ? "" : "s", rings(n) == 1 ? "all" : page_text(run, "1/%zu", rings(n)));
    results(run, (const char *const[]){ "flat ring", "hierarchical", NULL },
            (const Result[]){ { "a card sends to other nodes",
                                "2(N-1)/N of S/cards; 2(M-1)/M of S/n",
                                { "nodes.flat.across", "nodes.between.sent" } },
                              { k->simulated ? "time" : NULL,
                                "bytes / slow link; + S / fast link inside",
                                { "nodes.flat.time", "nodes.time" } },
                              { 0 } });
}

bool ring_nodes(Run *run) {
    Comm *c = run->world;
    const size_t node = clock_config()->node, n = node < c->size ? node : c->size;
    if (c->size % n > 0) {
        say(run, "\n%zu ranks do not fill nodes of %zu: no hierarchical all-reduce.\n", c->size, n);
        return false;
    }
    Comm *inside = comm_split(c, c->rank / n, c->rank, "node");
    Comm *between = comm_split(c, c->rank % n, c->rank, "nodes");
    costs(run, inside, between);
    if (between->size > 1) table(run, n, between->size);
    const bool several = between->size > 1;
    comm_free(inside);
    comm_free(between);
    return several;
}
