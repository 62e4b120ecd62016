// 09_coordinator.c: ranks compute the gradients of a model with branches in different orders.
// judge/play plays the deadlock of ranks that call in their own orders. In a fixed order and with a
// coordinator, the sums must have the bits of one device. Calls, bytes and times are compared with
// formulas. tests/coordinator.t varies --cycle and --fused.
#include "01_data_parallel/coordinator.h"
#include "common/model/costs.h"
#include "common/tensor/ops.h"
#include "common/tensor/random.h"
#include "judge/frame/training.h"
#include "judge/play/play.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 8, BRANCHES = 3, BATCH = 8, ROWS = 4, WIDTH = 3, ELEMENTS = ROWS * WIDTH };
enum { TENSORS = LAYERS * BRANCHES, STEPS = 2 };

// Returns the k-th tensor that the rank finishes. Layers are numbered in the order of backward. In
// each layer a rank begins with branch rank % BRANCHES.
static size_t tensor_at(size_t rank, size_t k) {
    return k / BRANCHES * BRANCHES + (k + rank) % BRANCHES;
}

// Sets t [ROWS, WIDTH] to x^T dy, the rank's part of a gradient, from BATCH random rows.
static void gradient(const Run *run, Tensor t, size_t rank, size_t step, size_t tensor) {
    Arena a = arena(MEM_WORKSPACE);
    Tensor x = tensor_new(&a, BATCH, ROWS), dy = tensor_new(&a, BATCH, WIDTH);
    const uint64_t key = random_key(random_key(random_key(run->seed, rank), step), tensor);
    tensor_randomize(x, random_key(key, 0), 1);
    tensor_randomize(dy, random_key(key, 1), 1);
    op_matmul_tn(tensor_reshape(t, ROWS, WIDTH), x, dy);
    arena_free(&a);
}

// FIXED: without a coordinator, every rank starts the layers' all-reduces in the order of the
// layers. NAMES: a coordinator's first step. CACHE: a coordinator's later steps.
typedef enum { FIXED, NAMES, CACHE } Order;
// A step, measured or predicted.
typedef struct {
    double calls, bytes; // of the messages with which ranks agree
    double sums;         // number of all-reduces of gradients
    double time;         // picoseconds
} StepCost;

// Makes two steps and compares the sums with `want`. The first step sends names. In the second step
// names are cached. A cycle ends after every `cycle` tensors, and an all-reduce adds at most
// `fused` tensors. With cycle 0 no coordinator runs, so every rank starts the layers' all-reduces
// in the order of the layers.
static void train(Run *run, size_t cycle, size_t fused, Snapshot *want, StepCost seen[STEPS]) {
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
        seen[step] = (StepCost){ .bytes = (double)comm_bytes_sent(control),
                                 .sums = (double)data->ledger[COMM_ALL_REDUCE].calls,
                                 .time = (double)(clock_now() - begin) };
        for (size_t k = 0; k < COMM_KINDS; k++)
            seen[step].calls += (double)control->ledger[k].calls;
        snapshot_put(got, step ? "second step" : "first step", 1, TENSORS * ELEMENTS, g, 0, 0);
    }
    const char *what = page_text(run, "cycle %zu, %zu fused: the sums of one device", cycle, fused);
    if (exact_limit(run) > 0) check_close(run, what, got, want, exact_limit(run));
    else check_equal(run, what, got, want);
    snapshot_free(got);
    coordinator_free(&c);
    arena_free(&a);
    comm_free(control);
}

// Computes the gradients of all ranks on one device, and adds these gradients in rank order.
static Snapshot *one_device(Run *run) {
    Snapshot *want = snapshot_new(run);
    ledger_pause();
    Arena a = arena(MEM_REFERENCE);
    Tensor sum = tensor_new(&a, 1, ELEMENTS);
    Tensor t = tensor_shaped(&a, tensor_shape(1, ELEMENTS, option_storage(run)));
    for (size_t n = 0; n < STEPS * TENSORS && run->is_root; n++) {
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

// Returns a text that says which tensor each rank calls first. For more than 4 ranks the line has
// no room, and the text names no tensor.
static const char *first_calls(Run *run) {
    const size_t N = run->world->size;
    if (N > 4) return "Each rank calls in its own order";
    const char *text = page_text(run, "Called first: A by rank%s", N > BRANCHES ? "s" : "");
    for (size_t i = 0; i < BRANCHES && i < N; i++) {
        if (i > 0) text = page_text(run, "%s, %c by", text, (int)('A' + i));
        for (size_t rank = 0; rank < N; rank++)
            if (tensor_at(rank, 0) == i) text = page_text(run, "%s %zu", text, rank);
    }
    return text;
}

// Plays a deadlock. Every rank calls the all-reduces of the first layer in its own order, and each
// all-reduce has a group of its own.
static void deadlock(Run *run) {
    static const char *const name[BRANCHES] = { "tensor A", "tensor B", "tensor C" };
    const size_t N = run->world->size;
    Play *p = play_new(N, NULL);
    for (size_t i = 0; i < BRANCHES; i++) play_group(p, name[i], 0, N, 1);
    for (size_t n = 0; n < N * BRANCHES; n++)
        play_call(p, n / BRANCHES, tensor_at(n / BRANCHES, n % BRANCHES), COMM_ALL_REDUCE, ELEMENTS,
                  sizeof(real));
    const bool stuck = !play_run(p);
    check_true(run, "each rank in its own order", "deadlock", stuck == (N > 1));
    char *why = play_why(p); // the first line is enough
    say(run,
        "An all-reduce waits for all ranks. Without an agreed order, and with a group per tensor:\n"
        "%s: %s\n%.*s",
        first_calls(run), stuck ? "deadlock" : "no deadlock", (int)strcspn(why, "\n"), why);
    free(why);
    play_free(p);
}

// ---------------------------------------------------------------- the predictions

// agreed_cycle() returns the cycle at whose end the last rank has tensor i. agreed_in() returns the
// number of tensors whose agreed_cycle() is j.
static size_t agreed_cycle(size_t i, size_t N, size_t cycle) {
    size_t last = 0; // tensor i's latest place in its layer, of all ranks
    for (size_t rank = 0; rank < N; rank++) {
        const size_t place = (i + N * BRANCHES - rank) % BRANCHES;
        if (place > last) last = place;
    }
    return (i / BRANCHES * BRANCHES + last) / cycle;
}
static size_t agreed_in(size_t j, size_t N, size_t cycle) {
    size_t agreed = 0;
    for (size_t i = 0; i < TENSORS; i++) agreed += agreed_cycle(i, N, cycle) == j;
    return agreed;
}

// Adds the calls and bytes of a cycle of names to c, and returns the time of these calls. Every
// rank but rank 0 sends rank 0 the number and the list of its new tensors. Rank 0 broadcasts the
// number and the list of the agreed tensors.
static double ask_by_names(const Run *run, StepCost *c, size_t fresh, size_t agreed) {
    const size_t N = run->world->size, e = sizeof(real);
    const double questions = N > 1 ? send_time(e) + send_time(2 * fresh * e) : 0;
    c->calls += (run->is_root ? 1 : 3) + (agreed > 0);
    c->bytes += (double)((!run->is_root ? 1 + 2 * fresh : N > 1 ? 1 + agreed : 0) * e);
    return questions + chain_time(N, e) + (agreed ? chain_time(N, agreed * e) : 0);
}

// Returns the number of bits of a count of ranks, which is at most N.
static size_t count_bits(size_t N) {
    size_t bits = 1;
    while (pow(2, (double)bits) <= (double)N) bits++;
    return bits;
}
// Returns the number of elements that hold a count of ranks for each tensor. An element holds 24
// bits of counts, because fp32 stores integers of 24 bits exactly.
static size_t question_size(size_t N) { return ceil_div(TENSORS, 24 / count_bits(N)); }

// Predicts a step. Without a coordinator a rank asks nobody, and a cycle is a layer, whose tensors
// are adjacent in memory. With CACHE the answer to a question comes one cycle later.
static StepCost expect(const Run *run, Order order, size_t cycle, size_t fused) {
    const size_t N = run->world->size, K = ceil_div(TENSORS, cycle);
    const size_t e = element_size(option_storage(run));
    const size_t question = question_size(N);
    size_t n = 0; // number of all-reduces so far
    StepCost c = { 0 };
    double answer = 0, copies[TENSORS], end[TENSORS];
    for (size_t j = 0; j < K + (order == CACHE); j++) {
        const size_t fresh = j + 1 < K ? cycle : j < K ? TENSORS - j * cycle : 0;
        const size_t asked = order == CACHE ? j - 1 : j; // the first cycle has no answer yet
        size_t agreed = agreed_in(asked, N, cycle);
        c.time = fmax(c.time + (double)fresh * work_product(ROWS, WIDTH, BATCH).time, answer);
        if (order == NAMES) c.time += ask_by_names(run, &c, fresh, agreed);
        // The question's all-reduce does not wait for all-reduces of gradients.
        if (order == CACHE && j < K) {
            answer = c.time + ring_time(ALL_REDUCE_PASSES, N, question, sizeof(real));
            c.bytes += ring_bytes(ALL_REDUCE_PASSES, N, question, sizeof(real));
            c.calls++;
        }
        // Up to `fused` tensors are copied side by side. A single tensor is not copied. An
        // all-reduce starts when the all-reduce before has ended.
        for (; agreed > 0; n++) {
            const size_t size = agreed < fused ? agreed : fused;
            copies[n] = order != FIXED && size > 1 ? (double)size * copy_time(ELEMENTS * e) : 0;
            c.time += copies[n];
            end[n] = fmax(c.time, n ? end[n - 1] : 0) +
                     ring_time(ALL_REDUCE_PASSES, N, size * ELEMENTS, e);
            agreed -= size;
        }
    }
    for (size_t k = 0; k < n; k++) c.time = fmax(c.time, end[k]) + copies[k];
    c.sums = (double)n;
    return c;
}

static void check_step(Run *run, const char *id, StepCost x, StepCost seen) {
    check_costs(run, page_text(run, "%%s.%s", id), page_text(run, "%s: %%s", id),
                (const CostRow[]){
                    { "calls", "calls to agree", "calls", BY_FORMULA(x.calls), seen.calls },
                    { "bytes", "bytes to agree", "bytes", BY_FORMULA(x.bytes), seen.bytes },
                    { "sums", "all-reduces of gradients", "calls", BY_FORMULA(x.sums), seen.sums },
                    { clock_config()->simulated ? "time" : NULL, "step", "ps", BY_FORMULA(x.time),
                      seen.time },
                    { 0 } });
}

// ---------------------------------------------------------------- the page

// Prints the first `cycles` cycles. A line shows the gradients that a rank finishes in each cycle.
// The last line shows for each cycle the gradients that all ranks have at its end, but not at the
// end of the cycle before.
static void picture(Run *run, size_t cycle, size_t cycles) {
    const size_t N = run->world->size;
    for (size_t row = 0; row <= BRANCHES; row++) {
        const bool all = row == BRANCHES;
        if (row >= N && !all) continue;
        const char *line =
            all ? "  now on all ranks " : page_text(run, "  rank %zu finishes  ", row);
        for (size_t j = 0; j < cycles; j++) {
            const char *cell = "";
            for (size_t k = 0; k < cycles * cycle; k++)
                if (j == (all ? agreed_cycle(k, N, cycle) : k / cycle))
                    cell =
                        page_text(run, "%s%c ", cell, (int)('A' + (all ? k : tensor_at(row, k))));
            line = page_text(run, "%s| %-*s", line, (int)(2 * (cycle + BRANCHES - 1)), cell);
        }
        say(run, "%s|", line);
    }
}

static void page(Run *run, size_t cycle) {
    const size_t N = run->world->size, K = ceil_div(TENSORS, cycle), shown = K < 4 ? K : 4;
    size_t answers = 0;
    for (size_t j = 0; j < K; j++) answers += agreed_in(j, N, cycle) > 0;
    say(run,
        "\nSo the ranks agree on an order during backward. A cycle ends when a rank has "
        "finished %zu more of\nits %d gradients. Then each rank reports which gradients it has, "
        "and all ranks start one all-reduce\n(fused) for gradients newly ready on all ranks. First "
        "%zu of %zu cycles%s:\n",
        cycle, TENSORS, shown, K, N > BRANCHES ? " (rank 3 as 0, ...)" : "");
    picture(run, cycle, shown);
    say(run,
        "\n  fixed order  no messages to agree: one all-reduce per layer (%d gradients): A B C, "
        "then D E F, ...\n  names        (first step) in each cycle ranks send rank 0 name and "
        "size of their new gradients;\n               rank 0 broadcasts the names that all ranks "
        "have\n  cache        (later steps) an all-reduce per cycle counts ranks; the next cycle "
        "uses the counts\n  single       as cache, but every gradient has its own all-reduce",
        BRANCHES);
#define ROW(id) \
    { "calls." id, "bytes." id, "sums." id, "time." id }
    const bool simulated = clock_config()->simulated;
    results(run,
            (const char *const[]){ "calls", "bytes", "all-reduces", simulated ? "step" : NULL,
                                   NULL },
            (const Result[]){ { "fixed order", NULL, ROW("fixed") },
                              { "names", "calls K+J, 3K+J; bytes (K+n)e, (K+2n)e", ROW("names") },
                              { "cache", "calls K; bytes K rings of q e", ROW("cache") },
                              { "single", "as cache", ROW("single") },
                              { 0 } });
    say(run,
        "  calls, bytes: per rank, of the messages to agree. all-reduces: those of gradients. "
        "names: first of\n  rank 0, then of another rank; a broadcast's bytes count at rank 0 "
        "only. K = %zu cycles; in J = %zu of\n  them a gradient becomes ready on all ranks. q = "
        "%zu numbers of e = %zu bytes count n = %d gradients.",
        K, answers, question_size(N), sizeof(real), TENSORS);
}

static void answer(Run *run) {
    const size_t N = run->world->size;
    if (N == 1) say_answer(run, "Any one: one rank waits for nobody.");
    else
        say_answer(
            run,
            "The ranks agree on the list of gradients that all ranks have. The next all-reduce "
            "adds the gradients that are new in this list. All ranks start the same %s all-reduces "
            "in one order, for %d gradients that were finished in %d different orders.",
            cost_text(run, "sums.cache"), TENSORS, N < BRANCHES ? (int)N : BRANCHES);
    const char *times = "";
    if (clock_config()->simulated)
        times = page_text(run,
                          " With the cache the ranks compute while they agree: %s per step, names "
                          "%s, fixed order %s.",
                          cost_text(run, "time.cache"), cost_text(run, "time.names"),
                          cost_text(run, "time.fixed"));
    say_cost(run, "a gradient ready on all ranks waits until the ranks agree.%s", times);
    say_use_when(
        run,
        "no order is known before the step, and each rank finishes every gradient. Here "
        "only the gradients inside a layer change their order, so a fixed order of layers, as in "
        "DDP, is cheaper.");
}

static void coordinator(Run *run) {
    const size_t cycle = option_size(run, "cycle"), fused = option_size(run, "fused");
    if (cycle < 1 || cycle > TENSORS || fused < 1)
        usage_error("--cycle must be 1 to %d, and --fused at least 1", TENSORS);
    require_one_link(run);
    Snapshot *want = one_device(run);
    StepCost fixed[STEPS], together[STEPS], single[STEPS];
    train(run, 0, 1, want, fixed);
    train(run, cycle, fused, want, together);
    train(run, cycle, 1, want, single);
    snapshot_free(want);
    check_step(run, "fixed", expect(run, FIXED, BRANCHES, BRANCHES), fixed[1]);
    check_step(run, "names", expect(run, NAMES, cycle, fused), together[0]);
    check_step(run, "cache", expect(run, CACHE, cycle, fused), together[1]);
    check_step(run, "single", expect(run, CACHE, cycle, 1), single[1]);

    deadlock(run);
    page(run, cycle);
    answer(run);
}

static const Option options[] = { { "cycle", "N", "2", "gradients of a cycle" },
                                  { "fused", "N", "24", "most gradients of an all-reduce" },
                                  ONLY_STORAGE_OPTION,
                                  { 0 } };
EXPERIMENT(coordinator, options);
