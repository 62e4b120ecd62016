// ring_nodes.c: the hierarchical all-reduce of 03_ring over nodes: its sums, bytes and times, and
// the table of them.
#include "01_data_parallel/experiments/experiments.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdio.h>

enum { ACROSS = 24000 }; // elements of the timed tensor; most numbers of ranks divide it

// The network cards of a node that an all-reduce over n ranks of each node uses (clock.h).
static size_t cards_of(size_t n) {
    size_t rails = clock_config()->rails;
    return rails && rails < n ? rails : n;
}
// Picoseconds of a collective of `steps` messages of `size` bytes. cards 0: inside a node.
// Several cards are at most as fast as the link inside.
static double lasts(size_t cards, size_t steps, size_t size) {
    const ClockConfig *k = clock_config();
    const ClockLink *l = cards ? &k->between : &k->link;
    double bytes = (double)(steps * size), beta = l->beta;
    if (beta == 0) return 0;
    if (cards > 1 && k->link.beta == 0) beta *= (double)cards;
    else if (cards > 1) beta = fmax(beta, fmin((double)cards * beta, k->link.beta));
    return round((double)steps * l->alpha * 1e12 + bytes * 1e12 / beta);
}

void ring_nodes_costs(Run *run, Comm *inside, Comm *between) {
    const ClockConfig *k = clock_config();
    Comm *all[] = { run->world, inside, between };
    size_t N = run->world->size, n = inside->size, M = N / n, count = ACROSS;
    const Element element = option_storage(run);
    const size_t e = element_size(element);
    size_t part = ceil_div(count, n), own = part_size(count, n, inside->rank);
    Arena memory = arena(MEM_GRADIENTS);
    Tensor t = tensor_shaped(&memory, tensor_shape(1, count, element));
    tensor_fill(t, 0);
    comm_all_reduce(run->world, t); // a collective ends at the same time on all ranks
    for (size_t i = 0; i < 3; i++) comm_ledger_reset(all[i]);
    Picoseconds begin = clock_now();
    comm_all_reduce(run->world, t);
    Picoseconds middle = clock_now();
    hierarchical_all_reduce(inside, between, t);
    Picoseconds end = clock_now();
    arena_free(&memory);
    check_costs(run, "nodes.%s", "over nodes, %s",
                (CostRow[]){ { "flat.sent", "flat: sent", "bytes",
                               BY_FORMULA((double)(2 * (N - 1) * ceil_div(count, N) * e)),
                               (double)comm_bytes_sent(run->world) },
                             { "inside.sent", "hierarchical: sent inside the node", "bytes",
                               BY_FORMULA((double)(2 * (n - 1) * part * e)),
                               (double)comm_bytes_sent(inside) },
                             { "between.sent", "hierarchical: sent to other nodes", "bytes",
                               BY_FORMULA((double)(2 * (M - 1) * ceil_div(own, M) * e)),
                               (double)comm_bytes_sent(between) },
                             { 0 } });
    if (!k->simulated) return;
    double flat = lasts(M > 1 ? cards_of(n) : 0, 2 * (N - 1), ceil_div(count, N) * e);
    double nodes = 2 * lasts(0, n - 1, part * e) + lasts(1, 2 * (M - 1), ceil_div(part, M) * e);
    check_costs(run, "nodes.%s", "over nodes, %s",
                (CostRow[]){
                    { "flat.time", "flat: time", "ps", BY_FORMULA(flat), (double)(middle - begin) },
                    { "time", "hierarchical: time", "ps", BY_FORMULA(nodes),
                      (double)(end - middle) },
                    { 0 } });
}

bool ring_nodes_table(Run *run) {
    const ClockConfig *k = clock_config();
    size_t N = run->world->size, n = k->node < N ? k->node : N;
    if (N % n > 0 || n == N) return false;
    char size[32], cards[80];
    page_value(size, sizeof size, (double)(ACROSS * element_size(option_storage(run))), "bytes");
    const size_t rings = cards_of(n);
    if (rings == 1) snprintf(cards, sizeof cards, "flat: one card of a node sends all its bytes");
    else snprintf(cards, sizeof cards, "flat: %zu cards of a node share its bytes", rings);
    say(run,
        "\nOver nodes: %zu ranks, M = %zu nodes of n = %zu, link %s inside and %s between. "
        "S = %s.\nFlat: %zu ring%s of all ranks, one per network card of a node. Together the "
        "rings "
        "send S.\n"
        "Hierarchical: reduce-scatter in each node, all-reduce of each part between nodes, "
        "all-gather inside.\n",
        N, N / n, n, k->link.name, k->between.name, size, rings, rings == 1 ? "" : "s");
    results(run, (const char *const[]){ "flat ring", "hierarchical", NULL },
            (const Result[]){
                { "a rank sends to other nodes",
                  "2(N-1)/N of S; 2(M-1)/M of S/n",
                  { "nodes.flat.sent", "nodes.between.sent" } },
                { "time",
                  cards,
                  { k->simulated ? "nodes.flat.time" : NULL, k->simulated ? "nodes.time" : NULL } },
                { 0 } });
    return true;
}
