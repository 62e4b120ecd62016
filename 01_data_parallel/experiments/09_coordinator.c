// 09_coordinator.c: gradients of a model with branches, which every rank computes in an order of
// its own. The player shows the deadlock without a coordinator. With one, the sums must have the
// bits of one device. Calls, bytes and times are compared with formulas.
#include "01_data_parallel/coordinator.h"
#include "common/model/costs.h"
#include "common/tensor/ops.h"
#include "common/tensor/random.h"
#include "judge/frame/training.h"
#include "judge/play/play.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 8, BRANCHES = 3, BATCH = 8, ROWS = 64, WIDTH = 64, ELEMENTS = ROWS * WIDTH };
enum { TENSORS = LAYERS * BRANCHES, STEPS = 2, CYCLES = 5, THRESHOLDS = 3, CYCLE = 6 };
static const size_t cycles[CYCLES] = { 1, 3, CYCLE, 12, TENSORS };
static const size_t tensors_fused[THRESHOLDS] = { 1, 3, TENSORS }; // that fit in the threshold

// The tensors have the order of backward. In each layer rank r begins with branch r.
static size_t tensor_at(size_t rank, size_t k) {
    return k / BRANCHES * BRANCHES + (k + rank) % BRANCHES;
}

// A rank's part of a gradient: t [ROWS, WIDTH] <- x^T dy, from BATCH rows of its own.
static void gradient(const Run *run, Tensor t, size_t rank, size_t step, size_t tensor) {
    Arena a = arena(MEM_WORKSPACE);
    Tensor x = tensor_new(&a, BATCH, ROWS), dy = tensor_new(&a, BATCH, WIDTH);
    const uint64_t key = random_key(random_key(random_key(run->seed, rank), step), tensor);
    tensor_randomize(x, random_key(key, 0), 1);
    tensor_randomize(dy, random_key(key, 1), 1);
    op_matmul_tn(tensor_reshape(t, ROWS, WIDTH), x, dy);
    arena_free(&a);
}

// A step. calls, bytes: of the negotiation. sums: all-reduces of gradients.
typedef struct {
    size_t calls, bytes, sums;
    Picoseconds time;
} Seen;

// The first step sends names, the second one uses the cache. cycle 0: no coordinator; every rank
// starts the layers' all-reduces in the order of the layers. Compares the sums with `want`.
static void train(Run *run, size_t cycle, size_t fused, Snapshot *want, Seen seen[STEPS]) {
    Snapshot *got = snapshot_new(run);
    Comm *data = run->world, *control = comm_split(data, 0, data->rank, "control");
    Arena a = arena(MEM_GRADIENTS);
    Tensor g = tensor_shaped(&a, tensor_shape(1, TENSORS * ELEMENTS, option_storage(run)));
    Range part[TENSORS];
    for (size_t i = 0; i < TENSORS; i++) part[i] = (Range){ i * ELEMENTS, (i + 1) * ELEMENTS };
    Coordinator c = coordinator_new(control, data, g, part, TENSORS,
                                    fused * ELEMENTS * element_size(g.element));
    for (size_t step = 0; step < STEPS; step++) {
        Request *sum[LAYERS];
        bool done = cycle == 0;
        const Picoseconds begin = clock_now();
        comm_ledger_reset(control);
        comm_ledger_reset(data);
        for (size_t k = 0; k < TENSORS; k++) {
            const size_t i = tensor_at(data->rank, k), first = k + 1 - BRANCHES;
            gradient(run, tensor_flat_range(g, part[i].lo, part[i].hi), data->rank, step, i);
            coordinator_ready(&c, i);
            if (cycle > 0 && (k + 1) % cycle == 0) done = coordinator_cycle(&c);
            if (cycle == 0 && (k + 1) % BRANCHES == 0)
                sum[k / BRANCHES] =
                    comm_start_all_reduce(data, tensor_flat_range(g, part[first].lo, part[k].hi));
        }
        while (!done) done = coordinator_cycle(&c);
        for (size_t l = 0; cycle == 0 && l < LAYERS; l++) comm_wait(sum[l]);
        if (cycle > 0) coordinator_wait(&c);
        seen[step] =
            (Seen){ control->ledger[COMM_SEND].calls + control->ledger[COMM_BROADCAST].calls +
                        control->ledger[COMM_ALL_REDUCE].calls,
                    comm_bytes_sent(control), data->ledger[COMM_ALL_REDUCE].calls,
                    clock_now() - begin };
        snapshot_put(got, step ? "second step" : "first step", 1, TENSORS * ELEMENTS, g, 0, 0);
    }
    char what[64];
    snprintf(what, sizeof what, "cycle %zu, %zu fused: the sums of one device", cycle, fused);
    if (exact_limit(run) > 0) check_close(run, what, got, want, exact_limit(run));
    else check_equal(run, what, got, want);
    snapshot_free(got);
    coordinator_free(&c);
    arena_free(&a);
    comm_free(control);
}

// One device computes the gradients of all ranks and adds them in rank order.
static Snapshot *one_device(Run *run) {
    Snapshot *want = snapshot_new(run);
    ledger_pause();
    Arena a = arena(MEM_REFERENCE);
    Tensor sum = tensor_new(&a, 1, ELEMENTS);
    Tensor t = tensor_shaped(&a, tensor_shape(1, ELEMENTS, option_storage(run)));
    for (size_t n = 0; n < STEPS * TENSORS && run->world->rank == 0; n++) {
        const size_t step = n / TENSORS, i = n % TENSORS;
        gradient(run, t, 0, step, i);
        tensor_copy(sum, t);
        for (size_t rank = 1; rank < run->world->size; rank++) {
            gradient(run, t, rank, step, i);
            op_add(sum, sum, t);
        }
        tensor_copy(t, sum); // rounds the sum once
        snapshot_put_flat(want, step ? "second step" : "first step", 1, TENSORS * ELEMENTS, t,
                          i * ELEMENTS);
    }
    arena_free(&a);
    ledger_resume();
    return want;
}

// Every rank calls the all-reduces of the first layer in its own order, each on a group of its own.
static void deadlock(Run *run) {
    const size_t N = run->world->size;
    Play *p = play_new(N, NULL);
    for (size_t i = 0; i < BRANCHES; i++)
        play_group(p, (const char *const[]){ "tensor A", "tensor B", "tensor C" }[i], 0, N, 1);
    for (size_t rank = 0; rank < N; rank++)
        for (size_t k = 0; k < BRANCHES; k++)
            play_call(p, rank, tensor_at(rank, k), COMM_ALL_REDUCE, ELEMENTS, sizeof(real));
    const bool stuck = !play_run(p);
    char *why = play_why(p);
    check_true(run, "each rank in its own order", N > 1 ? "deadlock" : "one rank runs",
               stuck == (N > 1));
    size_t shown = 0; // the first four lines
    for (size_t lines = 0; why[shown] && lines < 4; shown++) lines += why[shown] == '\n';
    say(run, "Each rank calls the all-reduces of A, B and C in its own order: %s\n%.*s%s",
        stuck ? "deadlock" : "one rank waits for nobody", (int)shown, why,
        why[shown] ? "...\n" : "");
    free(why);
    play_free(p);
}

// ---------------------------------------------------------------- the predictions

// The number of tensors that the last rank has at the end of cycle j, but not before.
static size_t agreed_in(size_t j, size_t N, size_t cycle) {
    size_t agreed = 0;
    for (size_t i = 0; i < TENSORS; i++) {
        size_t last = 0;
        for (size_t rank = 0; rank < N; rank++)
            for (size_t k = 0; k < TENSORS; k++)
                if (tensor_at(rank, k) == i && k > last) last = k;
        agreed += last / cycle == j;
    }
    return agreed;
}

typedef struct {
    double calls, bytes, sums, time;
} Expected;

// `tensors` leave at `ready`, up to `fused` together. Their all-reduces follow one another.
static void send_sums(const Run *run, Expected *x, size_t tensors, size_t fused, double ready) {
    const size_t N = run->world->size, e = element_size(option_storage(run));
    while (tensors > 0) {
        const size_t n = tensors < fused ? tensors : fused;
        x->time = fmax(x->time, ready) + ring_time(ALL_REDUCE_PASSES, N, n * ELEMENTS, e);
        x->sums++;
        tensors -= n;
    }
}

static Expected expect(const Run *run, size_t cycle, size_t fused, bool names) {
    const size_t N = run->world->size, K = ceil_div(TENSORS, cycle), e = sizeof(real);
    size_t bits = 1;
    while (pow(2, (double)bits) <= (double)N) bits++;
    const size_t question = ceil_div(TENSORS, 24 / bits);
    double now = 0, answer = 0;
    Expected x = { 0 };
    for (size_t j = 0; j < K; j++) {
        const size_t fresh = j + 1 < K ? cycle : TENSORS - j * cycle;
        const size_t agreed = agreed_in(j, N, cycle);
        now += (double)fresh * work_product(ROWS, WIDTH, BATCH).time;
        if (names) {
            // Every other rank sends its count and its list to rank 0, which broadcasts both.
            if (N > 1) now += send_time(e) + send_time(2 * fresh * e);
            now += chain_time(N, e) + (agreed ? chain_time(N, agreed * e) : 0);
            x.calls += (run->world->rank ? 3 : 1) + (agreed > 0);
            x.bytes += (double)((run->world->rank ? 1 + 2 * fresh : N > 1 ? 1 + agreed : 0) * e);
            send_sums(run, &x, agreed, fused, now);
            continue;
        }
        now = fmax(now, answer);
        if (j > 0) send_sums(run, &x, agreed_in(j - 1, N, cycle), fused, now);
        answer = now + ring_time(ALL_REDUCE_PASSES, N, question, e);
        x.calls++;
        x.bytes += ring_bytes(ALL_REDUCE_PASSES, N, question, e);
    }
    if (!names) send_sums(run, &x, agreed_in(K - 1, N, cycle), fused, fmax(now, answer));
    return x;
}

static void check_step(Run *run, const char *id, const char *name, Expected x, const Seen *seen) {
    char ids[32], names[64];
    snprintf(ids, sizeof ids, "%%s.%s", id);
    snprintf(names, sizeof names, "%s: %%s", name);
    check_costs(
        run, ids, names,
        (const CostRow[]){
            { "calls", "calls to agree", "calls", BY_FORMULA(x.calls), (double)seen->calls },
            { "bytes", "bytes to agree", "bytes", BY_FORMULA(x.bytes), (double)seen->bytes },
            { "sums", "all-reduces of gradients", "calls", BY_FORMULA(x.sums), (double)seen->sums },
            { clock_config()->simulated ? "time" : NULL, "step", "ps", BY_FORMULA(x.time),
              (double)seen->time },
            { 0 } });
}

// ---------------------------------------------------------------- the page

// The times with the cache, for every cycle and threshold. Returns the number of the fastest cycle
// with the largest threshold.
static size_t grid(Run *run, Snapshot *want) {
    const bool simulated = clock_config()->simulated;
    Picoseconds time[CYCLES];
    size_t best = 0;
    if (simulated)
        say(run,
            "\nA step with a coordinator and its cache. Columns: a cycle ends after so many "
            "gradients.\n"
            "                         %8zu  %8zu  %8zu  %8zu  %8zu\n",
            cycles[0], cycles[1], cycles[2], cycles[3], cycles[4]);
    for (size_t t = 0; t < THRESHOLDS; t++) {
        char line[128];
        int at = snprintf(line, sizeof line, "  fused: at most %2zu", tensors_fused[t]);
        for (size_t k = 0; k < CYCLES; k++) {
            Seen seen[STEPS];
            char id[32], text[32];
            train(run, cycles[k], tensors_fused[t], want, seen);
            snprintf(id, sizeof id, "c%zu-f%zu", cycles[k], tensors_fused[t]);
            check_step(run, id, id, expect(run, cycles[k], tensors_fused[t], false), &seen[1]);
            time[k] = seen[1].time;
            page_value(text, sizeof text, (double)time[k], "ps");
            at += snprintf(line + at, sizeof line - (size_t)at, "  %8s", text);
        }
        if (simulated) say(run, "%s\n", line);
    }
    for (size_t k = 1; k < CYCLES; k++)
        if (time[k] < time[best]) best = k;
    return best;
}

static void coordinator(Run *run) {
    const size_t N = run->world->size;
    const bool simulated = clock_config()->simulated;
    Seen fixed[STEPS], seen[STEPS];
    Expected x = { .sums = 0 };
    require_one_link(run);
    Snapshot *want = one_device(run);
    deadlock(run);
    for (size_t l = 1; l <= LAYERS; l++)
        send_sums(run, &x, BRANCHES, BRANCHES,
                  (double)(l * BRANCHES) * work_product(ROWS, WIDTH, BATCH).time);
    train(run, 0, 1, want, fixed);
    check_step(run, "fixed", "fixed order", x, &fixed[1]);
    train(run, CYCLE, TENSORS, want, seen);
    check_step(run, "names", "names", expect(run, CYCLE, TENSORS, true), &seen[0]);
    check_step(run, "cache", "cache", expect(run, CYCLE, TENSORS, false), &seen[1]);
    const size_t best = grid(run, want);
    say(run,
        "\nfixed order: every rank waits for the gradients of a layer, then starts its "
        "all-reduce (as DDP).\nnames: the first step, in K cycles of %d gradients. Ranks send "
        "rank 0 names; in J of the cycles it\nanswers with those that all ranks have. cache: "
        "later steps. One small all-reduce per cycle counts\nthe ranks that have each of the n "
        "tensors. e: bytes of an element.\n",
        CYCLE);
    results(run, (const char *const[]){ "fixed order", "names", "cache", NULL },
            (const Result[]){ { "calls to agree",
                                "rank 0 K + J, others 3K + J; K",
                                { "calls.fixed", "calls.names", "calls.cache" } },
                              { "bytes to agree",
                                "rank 0 (K + n)e, others (K + 2n)e; K small sums",
                                { "bytes.fixed", "bytes.names", "bytes.cache" } },
                              { "all-reduces",
                                "one per layer; fused",
                                { "sums.fixed", "sums.names", "sums.cache" } },
                              { simulated ? "step" : NULL,
                                "backward, and what it does not hide",
                                { "time.fixed", "time.names", "time.cache" } },
                              { 0 } });
    if (N == 1) say_answer(run, "Any one: one rank waits for nobody.");
    else
        say_answer(run,
                   "The one that all ranks have. So %d tensors, finished in %zu orders, need %s "
                   "all-reduces in one order, with the bits of one device. With the cache no rank "
                   "coordinates, and each sends %s per step to agree.",
                   TENSORS, N < BRANCHES ? N : BRANCHES, cost_text(run, "sums.cache"),
                   cost_text(run, "bytes.cache"));
    if (simulated)
        say_cost(run,
                 "a tensor waits for the end of its cycle. Above, cycles of %zu gradients are the "
                 "fastest. In a shorter cycle ranks wait for answers; a longer one sends late.",
                 cycles[best]);
    else say_cost(run, "a tensor waits for the end of a cycle, and for the answer.");
    say_use_when(run, "ranks may finish in different orders, or some without a tensor. Else use a "
                      "fixed order, which needs no messages to agree.");
    snapshot_free(want);
}

static const Option options[] = {
    { "link", "NAME[,NAME]", "ethernet", NULL },
    ONLY_STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(coordinator, options);
