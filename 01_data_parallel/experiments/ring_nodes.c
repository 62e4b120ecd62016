// ring_nodes.c: the hierarchical all-reduce of 03_ring over nodes: its sums, bytes and times, and
// the table of them.
#include "01_data_parallel/data_parallel.h"
#include "01_data_parallel/experiments/experiments.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ACROSS = 24000 }; // elements of the timed tensor; most numbers of ranks divide it

// Fills t with the elements of one rank. Small whole numbers have exact sums. Other sums are
// rounded, so they depend on the order.
void ring_fill(Tensor t, uint64_t seed, size_t rank, bool whole) {
    size_t n = tensor_count(t);
    real *value = host_alloc(n * sizeof *value);
    for (size_t i = 0; i < n; i++)
        value[i] = whole ? (real)((7 * rank + 3 * i) % 17) - 8
                         : (real)random_unit(random_key(random_key(seed, rank), i));
    tensor_upload(t, value);
    free(value);
}

// The network cards of a node that an all-reduce over n ranks of each node uses (clock.h).
static size_t cards_of(size_t n) {
    size_t rails = clock_config()->rails;
    return rails && rails < n ? rails : n;
}
// Picoseconds of a collective of `steps` messages of `count` elements. cards 0: inside a node.
// Several cards are at most as fast as the link inside.
static double lasts(size_t cards, size_t steps, size_t count) {
    const ClockConfig *k = clock_config();
    const ClockLink *l = cards ? &k->between : &k->link;
    double bytes = (double)(steps * count * sizeof(real)), beta = l->beta;
    if (beta == 0) return 0;
    if (cards > 1 && k->link.beta == 0) beta *= (double)cards;
    else if (cards > 1) beta = fmax(beta, fmin((double)cards * beta, k->link.beta));
    return round((double)steps * l->alpha * 1e12 + bytes * 1e12 / beta);
}

// Costs of one all-reduce over nodes of n ranks, flat (a ring over all ranks) and hierarchical: the
// bytes that a rank sends, and the time from a common start until this rank is done.
static void costs_over_nodes(Run *run, Comm *inside, Comm *between, Tensor t) {
    const ClockConfig *k = clock_config();
    Comm *all[] = { run->world, inside, between };
    size_t N = run->world->size, n = inside->size, M = N / n, count = tensor_count(t);
    size_t part = ceil_div(count, n), own = part_size(count, n, inside->rank), e = sizeof(real);
    tensor_fill(t, 0);
    comm_all_reduce(run->world, t); // a collective ends at the same time on all ranks
    for (size_t i = 0; i < 3; i++) comm_ledger_reset(all[i]);
    Picoseconds begin = clock_now();
    comm_all_reduce(run->world, t);
    Picoseconds middle = clock_now();
    hierarchical_all_reduce(inside, between, t);
    Picoseconds end = clock_now();
    check_cost(run, "nodes.flat.sent", "over nodes, flat: sent", "bytes",
               formula((double)(2 * (N - 1) * ceil_div(count, N) * e)), NOT_PREDICTED,
               (double)comm_bytes_sent(run->world));
    check_cost(run, "nodes.inside.sent", "over nodes, hierarchical: sent inside the node", "bytes",
               formula((double)(2 * (n - 1) * part * e)), NOT_PREDICTED,
               (double)comm_bytes_sent(inside));
    check_cost(run, "nodes.between.sent", "over nodes, hierarchical: sent to other nodes", "bytes",
               formula((double)(2 * (M - 1) * ceil_div(own, M) * e)), NOT_PREDICTED,
               (double)comm_bytes_sent(between));
    if (!k->simulated) return;
    check_cost(run, "nodes.flat.time", "over nodes, flat: time", "ps",
               formula(lasts(M > 1 ? cards_of(n) : 0, 2 * (N - 1), ceil_div(count, N))),
               NOT_PREDICTED, (double)(middle - begin));
    check_cost(run, "nodes.time", "over nodes, hierarchical: time", "ps",
               formula(2 * lasts(0, n - 1, part) + lasts(1, 2 * (M - 1), ceil_div(part, M))),
               NOT_PREDICTED, (double)(end - middle));
}

// Puts the sums of all sizes into s. inside NULL: by the library's all-reduce.
static void sums(Run *run, Snapshot *s, const size_t *count, const char *const *name, size_t sizes,
                 bool whole, Comm *inside, Comm *between) {
    for (size_t i = 0; i < sizes; i++) {
        Arena memory = arena(MEM_GRADIENTS);
        Tensor t = tensor_new(&memory, 1, count[i]);
        ring_fill(t, run->seed, run->world->rank, whole);
        if (inside) hierarchical_all_reduce(inside, between, t);
        else comm_all_reduce(run->world, t);
        if (inside || run->is_root) snapshot_put(s, name[i], 1, tensor_count(t), t, 0, 0);
        arena_free(&memory);
    }
}

void ring_nodes_check(Run *run, const size_t *count, const char *const *name, size_t sizes) {
    Comm *c = run->world;
    size_t node = clock_config()->node, n = node < c->size ? node : c->size;
    if (c->size % n > 0) {
        say(run, "\n%zu ranks do not fill nodes of %zu: no hierarchical all-reduce.\n", c->size, n);
        return;
    }
    Comm *inside = comm_split(c, c->rank / n, c->rank, "node"),
         *between = comm_split(c, c->rank % n, c->rank, "nodes");
    for (size_t whole = 2; whole-- > 0;) {
        Snapshot *flat = snapshot_new(run), *got = snapshot_new(run);
        sums(run, flat, count, name, sizes, whole, NULL, NULL);
        sums(run, got, count, name, sizes, whole, inside, between);
        if (whole) check_equal(run, "hierarchical = library, whole numbers", got, flat);
        else check_close(run, "hierarchical = library, real numbers", got, flat, LIMIT_ROUNDING);
        snapshot_free(flat);
        snapshot_free(got);
    }
    Arena memory = arena(MEM_GRADIENTS);
    costs_over_nodes(run, inside, between, tensor_new(&memory, 1, ACROSS));
    arena_free(&memory);
    comm_free(inside);
    comm_free(between);
}

bool ring_nodes_table(Run *run) {
    const ClockConfig *k = clock_config();
    size_t N = run->world->size, n = k->node < N ? k->node : N;
    if (N % n > 0 || n == N) return false;
    char size[32];
    page_value(size, sizeof size, (double)(ACROSS * sizeof(real)), "bytes");
    say(run,
        "\nOne all-reduce of S = %s on N = %zu ranks, M = %zu nodes of n = %zu: link %s inside, %s "
        "between.\nHierarchical: reduce-scatter in each node, all-reduce of each part between "
        "nodes, all-gather inside.\nFlat: one ring. A rank sends 2(N-1)/N of S: the last one of a "
        "node to the next node, others inside:\n",
        size, N, N / n, n, k->link.name, k->between.name);
    char cards[80];
    snprintf(cards, sizeof cards,
             "flat: %zu card%s of each node at once; hierarchical: one per part", cards_of(n),
             cards_of(n) == 1 ? "" : "s");
    results(run, (const char *const[]){ "flat ring", "hierarchical", NULL },
            (const Result[]){
                { "sent per rank in its node",
                  "hierarchical: 2(n-1)/n of S",
                  { n > 1 ? "nodes.flat.sent" : "=-", "nodes.inside.sent" } },
                { "sent per rank to other nodes",
                  "hierarchical: 2(M-1)/M of S/n",
                  { "nodes.flat.sent", "nodes.between.sent" } },
                { "time",
                  cards,
                  { k->simulated ? "nodes.flat.time" : NULL, k->simulated ? "nodes.time" : NULL } },
                { 0 } });
    return true;
}
