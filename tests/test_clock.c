// ranks: 1
// level: core
// question: Does the simulated clock give the step times, orders and transfer times that the closed forms say?
//
// All stages of a pipeline are equal. The test runs naive, GPipe and 1F1B for p = the number of
// ranks and several m. A step is counted in units of a forward and a backward. The order of events
// is also tested for interleaved stages and ZB-H1. Also tests links, ports, copies, arrivals, the
// speed of a device, and collectives within and between nodes.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "04_pipeline_naive/experiments/experiments.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "judge/draw/picture.h"
#include "common/model/costs.h"
#include "tests/cost.h"

static const ModelConfig sizes = {
    .layers = 1, .width = 12, .heads = 3, .context = 6, .vocab = 17, .dropout = 0.1
};
enum { B = 2, COPIED = 12345 };

static Stack stack_of(Run *run) {
    Stack s = { .model = sizes, .blocks = 2, .sequences = B };
    s.model.seed = run->seed;
    return s;
}

// Returns the time of a stage's forward, in ps. A block takes 24 M C^2 + 4 M T C FLOPs. A stage has
// 2 blocks. With device lesson all times are whole picoseconds.
static double forward_time(void) {
    double C = (double)sizes.width, T = (double)sizes.context, M = B * T;
    return 2 * (24 * M * C * C + 4 * M * T * C) / clock_config()->device.flops * 1e12;
}

static size_t min(size_t a, size_t b) { return a < b ? a : b; }

static void check_schedule(Run *run, const char *name, ScheduleRule rule, size_t m, size_t units,
                           size_t in_flight) {
    char text[64];
    Stack stack = stack_of(run);
    Played got = stack_play(run, &stack, rule, m);
    double t_f = forward_time();
    snprintf(text, sizeof text, "%s m=%zu: step", name, m);
    cost(run, text, "ps", (double)units * 3 * t_f, (double)got.timing.step);
    snprintf(text, sizeof text, "%s m=%zu: in flight", name, m);
    cost(run, text, "micro-batches", (double)in_flight, (double)got.result.in_flight);
    double idle[] = { got.timing.idle_of_total, got.timing.idle_of_ideal };
    double want[] = { 1 - (double)m / (double)units, (double)units / (double)m - 1 };
    check_numbers(run, name, "bubble, both definitions", idle, want, 2, 1e-9);
}

// Checks the step with a real link. All stages and links are equal, so the step grows by the
// transfers on the critical path. Naive has 2 (p - 1) transfers per micro-batch on this path. GPipe
// has 2 (p - 1) per step if a transfer takes no longer than a forward.
static void exposed(Run *run, const char *name, ScheduleRule rule, size_t m, size_t units,
                    size_t transfers) {
    Stack stack = stack_of(run);
    Played got = stack_play(run, &stack, rule, m);
    double t_f = forward_time();
    size_t message =
        clock_transfer(CLOCK_INSIDE, 1, B * sizes.context * sizes.width * sizeof(real));
    if (run->world->size == 1) transfers = 0;
    cost(run, name, "ps", (double)units * 3 * t_f + (double)(transfers * message),
         (double)got.timing.step);
}

static void golden(Run *run) {
    static const char *const stage0 = "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7";
    Stack stack = stack_of(run);
    stack_play(run, &stack, schedule_1f1b, 8);
    char *first = picture_order(run, 0);
    check_true(run, "golden order", "1F1B, p = 4, m = 8, stage 0, from the events",
               !first || !strcmp(first, stage0));
    free(first);
    char *last = picture_order(run, 3);
    check_true(run, "golden order", "1F1B, p = 4, m = 8, stage 3, from the events",
               !last || !strcmp(last, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"));
    free(last);
}

static PipelineResult run_list(const void *list, Comm *pp, Model *stage, const Batch *batch,
                               size_t m) {
    return zero_bubble_run(pp, stage, list, batch, m);
}
// Checks that the recorded events of every stage have the order of the stage's list. Only rank 0
// has the recording. A recording writes B for a whole backward and for a backward of inputs, so I
// becomes B in the list's text.
static void events_are_lists(Run *run, PipelineWay way, const char *name, size_t v, size_t m) {
    size_t p = run->world->size, i = run->world->rank;
    Stack stack = stack_of(run);
    stack.chunks = v;
    Schedule own = pipeline_way_list(way, p, m, v, 1, i);
    stack_play_by(run, &stack, MEM_ACTIVATIONS, run_list, &own, m);
    schedule_free(&own);
    bool same = true;
    for (size_t k = 0; k < p; k++) {
        Schedule list = pipeline_way_list(way, p, m, v, 1, k);
        char *want = schedule_text(&list), *order = picture_order(run, k);
        for (char *letter = want; *letter; letter++)
            if (*letter == 'I') *letter = 'B';
        same &= !order || !strcmp(order, want);
        free(want);
        free(order);
        schedule_free(&list);
    }
    check_true(run, "order of the events", name, same);
}

static void speeds(Run *run) {
    double factor = option_real(run, "speed"), work = 1e6, flops = clock_flops(), took[3];
    for (size_t k = 0; k < 3; k++) {
        Picoseconds begin = clock_now();
        clock_set_speed(k == 1 ? factor : 1);
        clock_charge_flops(work);
        took[k] = (double)(clock_now() - begin);
    }
    double unit = work / clock_config()->device.flops * 1e12,
           want[] = { unit, unit / factor, unit };
    check_numbers(run, "speed of a device", "ps: as it is, changed, as it is", took, want, 3, 0);
    check_true(run, "speed of a device", "the FLOPs are the same",
               clock_flops() - flops == 3 * work);
}

// Every rank except rank 0 computes for a while and sends rank 0 a message, twice. Rank 0 asks when
// the messages arrive. A question does not move rank 0's clock, but a wait does.
static void arrivals(Run *run) {
    Comm *w = run->world;
    size_t n = w->size, unit = 1000;
    Arena a = arena(MEM_WORKSPACE);
    double *got = host_alloc(2 * n * sizeof *got), *want = host_alloc(2 * n * sizeof *want);
    Request **r = host_alloc(2 * n * sizeof *r);
    comm_connect(w, COMM_EVERYBODY);
    comm_barrier(w);
    Picoseconds begin = clock_now();
    for (size_t i = 0; i < 2 && w->rank > 0; i++) { // higher ranks send earlier
        clock_charge_flops((double)(unit * (n - w->rank)));
        Tensor t = tensor_new(&a, 1, 10 * w->rank);
        tensor_fill(t, (real)i);
        r[i] = comm_start_send(w, t, 0);
    }
    Picoseconds *since = host_alloc(n * sizeof *since), *all = NULL;
    size_t *sizes = NULL;
    all = side_gather(&begin, sizeof begin, &sizes);
    if (w->rank == 0) memcpy(since, all, n * sizeof *since);
    side_broadcast(since, n * sizeof *since);
    bool still = true;
    for (size_t i = 0; i < 2 * n && w->rank == 0; i++)
        if (i % n > 0) r[i] = comm_start_recv(w, tensor_new(&a, 1, 10 * (i % n)), i % n);
    for (size_t i = 0; i < 2 * n && w->rank == 0; i++) {
        size_t from = i % n, bytes = 10 * from * sizeof(real);
        if (from == 0) continue;
        double compute = (double)(unit * (n - from)) * 1e12 / clock_config()->device.flops;
        double transfer = (double)clock_transfer(CLOCK_INSIDE, 1, bytes),
               first = (double)since[from] + compute + transfer;
        double sent = (double)since[from] + 2 * compute, link_free = first;
        want[i] = i < n ? first : (sent > link_free ? sent : link_free) + transfer;
        got[i] = (double)comm_arrival(r[i]);
        still = still && clock_now() == begin;
    }
    for (size_t i = 0; i < 2 && w->rank > 0; i++) comm_wait(r[i]);
    // A message that has already arrived takes no time at its wait.
    double after[] = { 0, (double)begin };
    for (size_t i = 2 * n; i-- > 0 && w->rank == 0;) {
        if (i % n == 0) continue;
        comm_wait(r[i]);
        after[1] = want[i] > after[1] ? want[i] : after[1];
    }
    after[0] = w->rank == 0 ? (double)clock_now() : 0;
    side_broadcast(got, 2 * n * sizeof *got);
    side_broadcast(after, sizeof after);
    check_numbers(run, "arrivals", "ps: two messages of every rank", got, want, 2 * n, 0);
    check_numbers(run, "arrivals", "ps: after the last message", after, after + 1, 1, 0);
    check_true(run, "arrivals", "asking takes no time", still);
    free(got);
    free(want);
    free(r);
    free(since);
    free(all);
    free(sizes);
    arena_free(&a);
}

// Every rank except rank 0 sends 1000 elements to rank 0, which answers each message. With a port
// per peer all messages arrive at once. With one port the messages arrive, and the answers leave,
// one after the other.
static void ports(Run *run) {
    Comm *c = run->world;
    Arena memory = arena(MEM_COMMUNICATION);
    Tensor t = tensor_new(&memory, 1, 1000);
    tensor_fill(t, 1);
    double message = (double)clock_transfer(CLOCK_INSIDE, 1, 1000 * sizeof(real)),
           rest = (double)(c->size - 1);
    for (size_t one_port = 0; one_port < 2; one_port++) {
        clock_set_one_port(one_port);
        comm_all_reduce(c, t); // so that all ranks begin at the same time
        Picoseconds begin = clock_now();
        for (size_t peer = 1; peer < c->size && c->rank == 0; peer++) comm_recv(c, t, peer);
        if (c->rank > 0) comm_send(c, t, 0);
        for (size_t peer = 1; peer < c->size && c->rank == 0; peer++) comm_send(c, t, peer);
        if (c->rank > 0) comm_recv(c, t, 0);
        double all_here = c->size == 1 ? 0 : one_port ? rest * message : message;
        double expected = c->rank == 0 ? 0 : one_port ? (double)c->rank * message : message;
        cost(run, one_port ? "to rank 0 and back, one port" : "to rank 0 and back", "ps",
             all_here + expected, (double)(clock_now() - begin));
    }
    clock_set_one_port(false);
    arena_free(&memory);
}

// After clock_set_link(&other) an all-reduce must use `other`, and after clock_set_link(NULL) the
// link of --link. ring_time() must use the same link.
static void links(Run *run) {
    const ClockLink other = { .name = "other", .alpha = 3e-6, .beta = 5e7 };
    Comm *c = run->world;
    Arena memory = arena(MEM_COMMUNICATION);
    Tensor t = tensor_new(&memory, 1, 1000);
    tensor_fill(t, 1);
    comm_all_reduce(c, t);
    double took[3], want[3], bytes = ring_bytes(ALL_REDUCE_PASSES, c->size, 1000, sizeof(real));
    for (int i = 0; i < 3; i++) {
        clock_set_link(i == 1 ? &other : NULL);
        want[i] = ring_time(ALL_REDUCE_PASSES, c->size, 1000, sizeof(real));
        if (i == 1)
            want[i] =
                round(2 * (double)(c->size - 1) * other.alpha * 1e12 + bytes * 1e12 / other.beta);
        Picoseconds begin = clock_now();
        comm_all_reduce(c, t);
        took[i] = (double)(clock_now() - begin);
    }
    check_numbers(run, "link that is set", "ps: as it is, another, as it is", took, want, 3, 0);
    arena_free(&memory);
}

// A copy takes the time to read and to write its bytes.
static void copies(Run *run) {
    const Picoseconds begin = clock_now();
    clock_charge_copy(COPIED);
    const Picoseconds end = clock_now();
    ledger_pause();
    clock_charge_copy(COPIED);
    ledger_resume();
    cost(run, "copy in memory", "ps", round(2e12 * COPIED / clock_config()->device.memory),
         (double)(end - begin));
    cost(run, "uncounted copy", "ps", 0, (double)(clock_now() - end));
}

// ---- nodes and lanes ----

enum { COUNT = 1000 }; // elements of every operation here
// Returns the picoseconds of `steps` messages with `bytes` in total. `cards` is the number of cards
// in use between nodes, and 0 inside a node.
static double transfer(size_t cards, size_t steps, size_t bytes) {
    const ClockLink inside = clock_config()->link, card = clock_config()->between;
    ClockLink l = cards ? card : inside;
    if (cards > 1) l.beta *= (double)cards;
    if (cards && inside.beta > 0 && l.beta > inside.beta) l.beta = inside.beta;
    return l.beta == 0 ? 0 : round((double)steps * l.alpha * 1e12 + (double)bytes * 1e12 / l.beta);
}
static double all_reduce_time(size_t n, size_t cards) {
    size_t steps = 2 * (n - 1);
    return transfer(cards, steps, steps * ((COUNT + n - 1) / n) * sizeof(real));
}

// Returns the time of a chain of n ranks. The latencies of its n - 1 messages add up. The pieces of
// COUNT elements pass all links at the same time, so their bytes count once.
static double chain(size_t n, size_t cards) {
    return transfer(cards, n - 1, n > 1 ? COUNT * sizeof(real) : 0);
}

// Starts an all-reduce on each of c[0] to c[n - 1] at the same time and waits for all of them.
// Returns the duration in ps.
static double together(Run *run, Comm *const *c, size_t n, Tensor *t) {
    Request *r[4];
    comm_all_reduce(run->world, t[0]); // so that all ranks begin at the same time
    Picoseconds begin = clock_now();
    for (size_t i = 0; i < n; i++) r[i] = comm_start_all_reduce(c[i], t[i]);
    for (size_t i = 0; i < n; i++) comm_wait(r[i]);
    return (double)(clock_now() - begin);
}

// Tests communicators of three kinds: the ranks of one node, the ranks with the same place in their
// nodes, and all ranks. Without --node there is one node.
static void lanes(Run *run) {
    Comm *w = run->world;
    size_t rank = w->rank, p = w->size, node = clock_config()->node ? clock_config()->node : p;
    size_t first = rank / node * node, in_node = min(p - first, node),
           nodes = (p - 1 - rank % node) / node + 1;
    Comm *inside = comm_split(w, rank / node, rank, "inside"),
         *between = comm_split(w, rank % node, rank, "between");
    Comm *alone = comm_split(between, between->rank, 0, "alone"),
         *again = comm_split(between, 0, 0, "again");
    check_true(run, "nodes", "the groups have their sizes",
               inside->size == in_node && between->size == nodes);
    check_true(run, "nodes", "one_node is true if the communicator's ranks share a node",
               inside->one_node && alone->one_node && between->one_node == (nodes == 1) &&
                   again->one_node == (nodes == 1) && w->one_node == (p <= node));
    Arena memory = arena(MEM_COMMUNICATION);
    Tensor t[] = { tensor_new(&memory, 1, COUNT), tensor_new(&memory, 1, COUNT),
                   tensor_new(&memory, 1, COUNT) };
    for (size_t i = 0; i < 3; i++) tensor_fill(t[i], 1);
    // The world uses as many cards as its smallest node has ranks, but at most `rails`. If all
    // ranks are in one node, the world uses no card.
    const size_t rails = clock_config()->rails ? clock_config()->rails : node;
    const size_t cards = p <= node ? 0 : min(p % node ? p % node : node, rails);
    check_true(run, "nodes", "a communicator knows how many cards its collectives use",
               w->cards == cards && inside->cards == 0 && between->cards == (nodes > 1));
    double fast = all_reduce_time(in_node, 0), slow = all_reduce_time(nodes, nodes > 1);
    cost(run, "all-reduce in a node", "ps", fast, together(run, &inside, 1, t));
    cost(run, "all-reduce between nodes", "ps", slow, together(run, &between, 1, t));
    cost(run, "all-reduce of the world", "ps", all_reduce_time(p, cards), together(run, &w, 1, t));
    cost(run, "two on two communicators overlap", "ps", fast > slow ? fast : slow,
         together(run, (Comm *[]){ inside, between }, 2, t));
    cost(run, "two on one communicator queue", "ps", 2 * fast,
         together(run, (Comm *[]){ inside, inside }, 2, t));
    double longer = 2 * fast > slow ? 2 * fast : slow;
    cost(run, "two in a node, one between nodes", "ps", longer,
         together(run, (Comm *[]){ inside, between, inside }, 3, t));
    // A collective in flight must not delay a shorter collective of another communicator.
    comm_all_reduce(w, t[0]);
    Picoseconds begin = clock_now();
    Request *r = comm_start_all_reduce(between, t[1]);
    comm_all_reduce(inside, t[0]);
    cost(run, "a blocking beside a started all-reduce", "ps", fast, (double)(clock_now() - begin));
    comm_wait(r);
    comm_all_reduce(w, t[0]);
    begin = clock_now();
    comm_broadcast(w, t[0], 0);
    cost(run, "broadcast to the world", "ps", chain(p, cards), (double)(clock_now() - begin));
    begin = clock_now();
    comm_reduce(w, t[0], 0);
    cost(run, "reduce of the world", "ps", chain(p, cards), (double)(clock_now() - begin));
    // Each rank sends a message to the next rank. The time is that of the link inside a node or
    // between nodes.
    size_t before = (rank + p - 1) % p;
    comm_connect(w, COMM_NEIGHBOURS);
    comm_all_reduce(w, t[0]);
    begin = clock_now();
    r = p > 1 ? comm_start_send(w, t[1], (rank + 1) % p) : NULL;
    if (p > 1) comm_recv(w, t[2], before);
    double message = p > 1 ? transfer(before / node != rank / node, 1, COUNT * sizeof(real)) : 0;
    cost(run, "a message from the rank before", "ps", message, (double)(clock_now() - begin));
    comm_wait(r);
    comm_free(again);
    comm_free(alone);
    comm_free(between);
    comm_free(inside);
    arena_free(&memory);
}

static void clock_test(Run *run) {
    size_t p = run->world->size, i = run->world->rank, list[] = { 1, p, 2 * p, 24 };
    REQUIRE(clock_config()->simulated,
            "this test is about the simulated clock: add --clock simulated");
    lanes(run);
    if (clock_config()->node > 0) return; // the other tests need one link
    bool free_link = clock_config()->link.beta == 0;
    for (size_t k = 0; k < 4 && free_link; k++) {
        size_t m = list[k];
        check_schedule(run, "naive", schedule_naive, m, m * p, 1);
        check_schedule(run, "GPipe", schedule_gpipe, m, m + p - 1, m);
        check_schedule(run, "1F1B", schedule_1f1b, m, m + p - 1, min(p - i, m));
    }
    for (size_t k = 0; k < 4 && !free_link; k++) {
        size_t m = list[k];
        exposed(run, "naive", schedule_naive, m, m * p, m * 2 * (p - 1));
        exposed(run, "GPipe", schedule_gpipe, m, m + p - 1, 2 * (p - 1));
    }
    if (p == 4) golden(run);
    events_are_lists(run, WAY_GPIPE, "GPipe", 1, 8);
    events_are_lists(run, WAY_1F1B, "1F1B", 1, 8);
    if (p > 1) events_are_lists(run, WAY_INTERLEAVED, "interleaved", 2, 2 * p);
    events_are_lists(run, WAY_ZB_H1, "ZB-H1", 1, 8);
    speeds(run);
    arrivals(run);
    ports(run);
    copies(run);
    links(run);
}

static const Option options[] = {
    { "speed", "X", "0.5", "speed of this device, as a multiple of --device" }, { 0 }
};
EXPERIMENT(clock_test, options);
