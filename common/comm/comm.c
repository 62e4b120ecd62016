// comm.c: holds the code that all transports share, such as checks of arguments, the ledger, copies
// in and out, and sums in rank order. comm_emu.c, comm_mpi.c and comm_nccl.c move the bytes.
// transport.h is the interface between comm.c and these files.
//
// Sections: 1 requests, 2 tensors in and out, 3 time, 4 the ledger, 5 collectives, 6 messages, 7
// communicators, 8 the side channel, 9 the launch.
#include "common/comm/transport.h"
#include "common/device/device.h"
#include "common/tensor/random.h"
#include "common/tensor/storage.h"
#include "common/comm/record.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const comm_kind_name[COMM_KINDS] = {
    "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "reduce", "send",
};

// An Extent says which elements a rank gives or gets. EACH_PART means a part from every rank.
typedef enum { NOTHING, WHOLE, PART, EACH_PART, AT_ROOT, EXCEPT_ROOT } Extent;

// The table has the properties of each Action. `passes` is how often a ring passes the data around,
// or 0 for a chain, a message or a barrier.
static const struct {
    const char *name; // the name in error messages
    CommKind kind;    // the kind in the ledger
    size_t passes;
    Extent gives, gets;
} calls[] = {
    [DO_ALL_REDUCE] = { "all-reduce", COMM_ALL_REDUCE, 2, WHOLE, WHOLE },
    [DO_ALL_REDUCE_MAX] = { "all-reduce of maxima", COMM_ALL_REDUCE, 2, WHOLE, WHOLE },
    [DO_REDUCE_SCATTER] = { "reduce-scatter", COMM_REDUCE_SCATTER, 1, WHOLE, PART },
    [DO_ALL_GATHER] = { "all-gather", COMM_ALL_GATHER, 1, PART, WHOLE },
    [DO_ALL_TO_ALL] = { "all-to-all", COMM_ALL_TO_ALL, 1, WHOLE, EACH_PART },
    [DO_BROADCAST] = { "broadcast", COMM_BROADCAST, 0, AT_ROOT, EXCEPT_ROOT },
    [DO_REDUCE] = { "reduce", COMM_REDUCE, 0, WHOLE, AT_ROOT },
    [DO_SEND] = { "send", COMM_SEND, 0, WHOLE, NOTHING },
    [DO_RECV] = { "recv", COMM_SEND, 0, NOTHING, WHOLE },
    [DO_BARRIER] = { .gives = NOTHING, .gets = NOTHING },
};

static _Thread_local Comm *side; // this rank's side channel: a second Comm over the whole world

// ---- 1. Requests ----

bool request_is_message(const Request *r) { return r->action == DO_SEND || r->action == DO_RECV; }
static bool collective(const Request *r) { return !request_is_message(r); }

size_t request_bytes(const Request *r) { return r->count * element_size(r->element); }
size_t request_world_rank(const Request *r, size_t member) {
    return r->comm->state->world_rank[member];
}

void request_copy(const Request *r, void *to, const void *from, size_t count) {
    const size_t bytes = count * element_size(r->element);
    if (to == from || bytes == 0) return;
    if (element_of_tensor(r->element)) device_copy(to, from, bytes);
    else memmove(to, from, bytes);
}

bool request_adds(const Request *r) {
    return r->action <= DO_REDUCE_SCATTER || r->action == DO_REDUCE;
}

bool request_simulated(const Request *r) { return r->counted && clock_config()->simulated; }

Range request_part(const Request *r, size_t rank) {
    if (r->action == DO_REDUCE) return (Range){ 0, rank == r->peer ? r->count : 0 };
    Range rows = shard_range(r->count / r->row, r->comm->size, rank);
    return (Range){ rows.lo * r->row, rows.hi * r->row };
}

size_t request_longest_part(const Request *r) {
    return r->action == DO_REDUCE ? r->count : ceil_div(r->count / r->row, r->comm->size) * r->row;
}

Range request_piece(const Request *r, size_t rank, const Piece *piece) {
    Range part = request_part(r, rank);
    if (!piece) return part;
    const size_t lo = part.lo + piece->offset;
    if (lo >= part.hi) return (Range){ lo, lo };
    return (Range){ lo, part.hi - lo < piece->most ? part.hi : lo + piece->most };
}

Parcel request_parcel(const Request *r, size_t other, const Piece *piece) {
    const size_t size = element_size(r->element), me = r->comm->rank;
    const Range own = request_piece(r, me, piece), theirs = request_piece(r, other, piece);
    const size_t owned = range_size(own), n = range_size(theirs);
    if (r->action == DO_ALL_TO_ALL)
        return (Parcel){ r->in + theirs.lo * size, r->out + other * owned * size, n, owned };
    if (r->action == DO_ALL_GATHER) return (Parcel){ r->in, r->out + theirs.lo * size, owned, n };
    if (piece->sum) return (Parcel){ piece->sum, r->out + theirs.lo * size, owned, n };
    if (other == me) return (Parcel){ 0 };
    char *place = piece->scratch + other * piece->most * size;
    return (Parcel){ r->in + theirs.lo * size, place, n, owned };
}

void describe(const Request *r, char text[200]) {
    char whom[48] = " on";
    if (r->action == DO_SEND || r->action == DO_REDUCE)
        snprintf(whom, sizeof whom, " to rank %zu of", r->peer);
    if (r->action == DO_RECV || r->action == DO_BROADCAST)
        snprintf(whom, sizeof whom, " from rank %zu of", r->peer);
    const size_t bytes = request_bytes(r);
    int length = snprintf(text, 200, "%s%s %.60s", r->call, whom, r->comm->name);
    char rows[40] = "";
    if (r->row > 1) snprintf(rows, sizeof rows, " in rows of %zu", r->row);
    if (r->element != BYTES)
        snprintf(text + length, 90, " (%zu elements%s, %zu bytes)", r->count, rows, bytes);
    else if (bytes > 0) snprintf(text + length, 60, " (%zu bytes)", bytes);
}

static size_t extent(const Request *r, Extent e) {
    const size_t part = range_size(request_part(r, r->comm->rank));
    const bool root = r->comm->rank == r->peer;
    switch (e) {
    case NOTHING: return 0;
    case WHOLE: return r->count;
    case PART: return part;
    case EACH_PART: return r->comm->size * part;
    case AT_ROOT: return root ? r->count : 0;
    case EXCEPT_ROOT: return root ? 0 : r->count;
    }
    return 0;
}

static size_t input_count(const Request *r) { return extent(r, calls[r->action].gives); }
static size_t output_count(const Request *r) { return extent(r, calls[r->action].gets); }

static uint64_t flow_number(const Request *r) {
    struct CommState *s = r->comm->state;
    if (collective(r)) return random_key(random_key(s->id, s->meetings), UINT64_MAX);
    const bool sends = r->action == DO_SEND;
    const size_t number = sends ? s->peer[r->peer].sent++ : s->peer[r->peer].received++;
    const size_t from = sends ? r->comm->rank : r->peer, to = sends ? r->peer : r->comm->rank;
    return random_key(random_key(random_key(s->id, from), to), number);
}

static Request *request_new(Comm *c, Action action, const char *call, Element element, size_t count,
                            size_t peer) {
    Request *r = c->state->idle;
    if (r) c->state->idle = r->next;
    else r = host_alloc(sizeof *r);
    *r = (Request){ .comm = c,
                    .action = action,
                    .call = call,
                    .element = element,
                    .count = count,
                    .row = 1,
                    .peer = peer,
                    .held = arena(MEM_COMMUNICATION),
                    .shadow = arena(MEM_REFERENCE),
                    .pinned = r->pinned,
                    .pinned_bytes = r->pinned_bytes,
                    .extra = r->extra };
    if (peer >= c->size)
        fault("%s on %s names rank %zu, but there are %zu ranks; ranks count from 0", call, c->name,
              peer, c->size);
    if (collective(r)) c->state->meetings++;
    r->flow = flow_number(r);
    return r;
}

static void request_recycle(Request *r) {
    arena_free(&r->held);
    arena_free(&r->shadow);
    r->next = r->comm->state->idle;
    r->comm->state->idle = r;
}

static void request_free_list(Request *r) {
    while (r) {
        Request *next = r->next;
        if (r->pinned) device_host_free(r->pinned);
        free(r->extra);
        free(r);
        r = next;
    }
}

// Returns the larger number, or NaN if a or b is NaN.
static real larger(real a, real b) { return b > a || isnan(b) ? b : a; }

// Adds the parts, or takes their maximum, block by block, so that a block stays in the L1 cache
// while the parts of all ranks are added.
static void combine_reals(const Request *r, char *out, const char *const parts[], size_t count) {
    enum { BLOCK_ELEMENTS = 2048 };
    const bool half = element_is_half(r->element), max = r->action == DO_ALL_REDUCE_MAX;
    const size_t size = element_size(r->element);
    real sum[BLOCK_ELEMENTS], wide[BLOCK_ELEMENTS];
    for (size_t at = 0, n; at < count; at += n) {
        n = count - at < BLOCK_ELEMENTS ? count - at : (size_t)BLOCK_ELEMENTS;
        for (size_t rank = 0; rank < r->comm->size; rank++) {
            const char *part = parts[rank] + at * size;
            const real *x = half ? wide : (const real *)part;
            if (half) widen_part(wide, (const uint16_t *)part, r->element, 0, n);
            if (rank == 0) memcpy(sum, x, n * sizeof *sum);
            else if (max)
                for (size_t i = 0; i < n; i++) sum[i] = larger(sum[i], x[i]);
            else
                for (size_t i = 0; i < n; i++) sum[i] += x[i];
        }
        if (half) round_part((uint16_t *)out + at, sum, r->element, 0, n);
        else memcpy(out + at * size, sum, n * sizeof *sum);
    }
}
static void combine_doubles(const Request *r, double *out, const char *const parts[],
                            size_t count) {
    for (size_t i = 0; i < count; i++) {
        double sum = ((const double *)parts[0])[i];
        for (size_t rank = 1; rank < r->comm->size; rank++) sum += ((const double *)parts[rank])[i];
        out[i] = sum;
    }
}
void combine_in_rank_order(const Request *r, char *out, const char *const parts[], size_t count) {
    if (r->element == DOUBLES) combine_doubles(r, (double *)out, parts, count);
    else combine_reals(r, out, parts, count);
}

// In a group of one rank the result of a collective is the input. So wire_alone copies the input
// and calls no transport.
static void do_nothing(Request *r) { (void)r; }
static void copy_input(Request *r) { request_copy(r, r->out, r->in, output_count(r)); }
static const Wire wire_alone = { .start = do_nothing, .finish = copy_input, .meet = do_nothing };
static const Wire *wire(const Request *r) {
    return r->comm->size == 1 && collective(r) ? &wire_alone : r->comm->state->wire;
}

// ---- 2. Tensors in, tensors out ----

static Request *tensor_request(Comm *c, Action action, size_t count, size_t peer, Tensor input,
                               Tensor output) {
    const char *call = calls[action].name;
    if (!tensor_contiguous(input) || !tensor_contiguous(output))
        fault("%s on %s: the tensor is not contiguous", call, c->name);
    if (input.element != output.element)
        fault("%s on %s: the input is stored in %s, the output in %s: choose one of them", call,
              c->name, element_name(input.element), element_name(output.element));
    Request *r = request_new(c, action, call, input.element, count, peer);
    r->input = input;
    r->output = output;
    r->in = (const char *)input.data;
    r->out = (char *)output.data;
    return r;
}

static bool staged(const Request *r) {
    return r->comm->state->launch->transport == TRANSPORT_STAGED && element_of_tensor(r->element) &&
           wire(r) != &wire_alone;
}

// Copies the input to pinned host memory. The output is also in pinned memory, until deliver()
// copies the output to the device. The scratch, too, is in pinned memory, so the scratch on the
// device stays unused.
static void stage_in(Request *r) {
    const size_t size = element_size(r->element);
    const size_t in = input_count(r) * size, out = output_count(r) * size;
    const size_t bytes = in + out + arena_bytes(&r->held);
    if (r->pinned_bytes < bytes) {
        if (r->pinned) device_host_free(r->pinned);
        r->pinned = device_host_alloc(bytes);
        r->pinned_bytes = bytes;
    }
    r->in = r->pinned;
    r->out = r->pinned + in;
    if (r->scratch) r->scratch = r->pinned + in + out;
    if (in) device_download(r->pinned, r->input.data, in);
}

// Gives a started operation its shadow, if memory is poisoned, and gives a started sum its scratch
// (transport.h).
static void hold(Request *r) {
    if (wire(r) == &wire_alone) return;
    if (memory_poison()) {
        const size_t in = input_count(r);
        r->seen = tensor_shaped(&r->shadow, tensor_shape(1, in, r->element));
        r->result = tensor_shaped(&r->shadow, tensor_shape(1, output_count(r), r->element));
        if (in) tensor_copy(r->seen, tensor_reshape(r->input, 1, in));
        r->in = (const char *)r->seen.data;
        r->out = (char *)r->result.data;
    }
    if (!request_adds(r)) return;
    r->scratch =
        arena_alloc(&r->held, r->comm->size * request_longest_part(r) * element_size(r->element));
}

// Copies the result to the caller's tensor, unless the transport has written the result to this
// tensor.
static void deliver(Request *r) {
    const size_t count = output_count(r);
    if (count == 0) return;
    if (staged(r)) device_upload(r->output.data, r->out, tensor_bytes(r->output));
    else if (r->result.data) tensor_copy(tensor_reshape(r->output, 1, count), r->result);
}

// ---- 3. Time (clock.h): begin and end of operations, and their recording ----

static Picoseconds duration(const Request *r) {
    const bool near = clock_same_node(this_rank, request_world_rank(r, r->peer));
    const size_t message_cards = near ? CLOCK_INSIDE : CLOCK_ONE_CARD;
    return clock_transfer(collective(r) ? r->comm->cards : message_cards, r->steps, r->bytes);
}
static Picoseconds later(Picoseconds a, Picoseconds b) { return a > b ? a : b; }

static void record(const Request *r, EventKind kind, Picoseconds start, Picoseconds end) {
    const size_t peer = collective(r) ? r->peer : request_world_rank(r, r->peer);
    RecordedEvent e = { .start = start,
                        .end = end,
                        .waited = r->waited,
                        .flow = r->flow,
                        .bytes = r->bytes,
                        .kind = (uint8_t)kind,
                        .call = (uint8_t)calls[r->action].kind,
                        .peer = (uint16_t)peer };
    record_transfer(e, r->comm->name);
}

// Waits until all members have started a collective. Then computes the collective's end under the
// simulated clock. The Comm's next collective begins no earlier than this end.
static void meet(Request *r) {
    if (r->met) return;
    r->met = true;
    wire(r)->meet(r);
    r->end = r->all_ready + duration(r);
    r->comm->state->lane_free = r->end;
    record(r, EVENT_COLLECTIVE, r->all_ready, r->end);
}
static void meet_open(const Comm *c) {
    for (Request *r = c->state->open; r; r = r->next)
        if (r->timed && collective(r)) meet(r);
}

static void send_leaves(Request *r) {
    Picoseconds *lane_free = &r->comm->state->peer[r->peer].lane_free;
    Picoseconds leaves = later(clock_now(), *lane_free), takes = duration(r);
    if (r->peer != r->comm->rank) leaves = clock_port_out(leaves, takes);
    r->arrives = leaves + takes;
    *lane_free = r->arrives;
    record(r, EVENT_SEND, leaves, r->arrives);
}

static void time_begins(Request *r) {
    r->timed = r->counted && !ledger_paused();
    if (!r->timed) return;
    record_pause_compute();
    bool simulated = clock_config()->simulated;
    if (simulated && collective(r)) meet_open(r->comm);
    r->issued = r->waited = record_moment();
    if (!simulated) return;
    if (r->action == DO_SEND) send_leaves(r);
    r->ready = r->all_ready = later(clock_now(), r->comm->state->lane_free);
}

static void time_ends(Request *r) {
    if (!r->timed) return;
    bool simulated = clock_config()->simulated;
    if (collective(r)) {
        if (simulated) clock_wait_until(r->end);
        else record(r, EVENT_COLLECTIVE, r->issued, record_moment());
    } else if (r->action == DO_RECV) {
        bool from_itself = r->peer == r->comm->rank;
        if (simulated)
            clock_wait_until(from_itself ? r->arrives : clock_port_in(r->arrives, duration(r)));
        record(r, EVENT_RECV, r->waited, record_moment());
    } else if (!simulated) {
        // judge/draw/picture.c takes the end of the message from its receive, because only the
        // receiver sees when the message arrives.
        record(r, EVENT_SEND, r->issued, r->issued);
    }
    record_resume_compute();
}

static void begin(Request *r) {
    time_begins(r);
    if (staged(r)) stage_in(r);
    wire(r)->start(r);
    if (r->timed) record_resume_compute();
}

static void finish(Request *r) {
    if (r->timed) record_pause_compute();
    if (r->timed && collective(r) && clock_config()->simulated) {
        meet(r);
        meet_open(r->comm);
    }
    if (!r->found) wire(r)->finish(r);
    time_ends(r);
    deliver(r);
    request_recycle(r);
}

static void check_unchanged(Request *r) {
    if (input_count(r) == 0 || !r->seen.data || tensor_equal(r->input, r->seen)) return;
    char text[200];
    describe(r, text);
    fault("the input of %s was changed before comm_wait", text);
}

static void run_now(Request *r) {
    begin(r);
    finish(r);
}

static Request *run_later(Request *r) {
    Request **last = &r->comm->state->open;
    hold(r);
    // begin() may call meet() for every collective in the list `open`, and meet() needs collectives
    // that have started. So r joins the list only after begin().
    begin(r);
    while (*last) last = &(*last)->next;
    *last = r;
    return r;
}

// ---- 4. The ledger ----

// Counts r in the ledger, with the bytes that this rank sends and receives. Under the simulated
// clock r takes as long as `steps` messages with `bytes` bytes together. A message counts as a call
// of its sender.
static Request *counted(Request *r, size_t sent, size_t received, size_t steps, size_t bytes) {
    const CommKind kind = calls[r->action].kind;
    Comm *c = r->comm;
    if (!ledger_paused()) {
        c->ledger[kind].calls += r->action != DO_RECV;
        c->ledger[kind].bytes += sent;
        c->ledger[kind].received += received;
    }
    r->counted = true;
    r->steps = steps;
    r->bytes = bytes;
    return r;
}

// Counts r as a ring of n ranks. A pass has n - 1 steps. In each step a rank sends a chunk as long
// as the longest part.
static Request *ring(Request *r) {
    size_t steps = calls[r->action].passes * (r->comm->size - 1);
    size_t bytes = steps * request_longest_part(r) * element_size(r->element);
    return counted(r, bytes, bytes, steps, bytes);
}

// Counts r as a chain of n ranks, with n - 1 links. Each link carries the bytes of the whole
// tensor, and all links work at the same time.
static Request *chain(Request *r, bool sends, bool receives) {
    const size_t steps = r->comm->size - 1, bytes = steps > 0 ? request_bytes(r) : 0;
    return counted(r, sends ? bytes : 0, receives ? bytes : 0, steps, bytes);
}

void comm_ledger_reset(Comm *c) { memset(c->ledger, 0, sizeof c->ledger); }

size_t comm_bytes_sent(const Comm *c) {
    size_t bytes = 0;
    for (size_t kind = 0; kind < COMM_KINDS; kind++) bytes += c->ledger[kind].bytes;
    return bytes;
}
size_t comm_bytes_received(const Comm *c) {
    size_t bytes = 0;
    for (size_t kind = 0; kind < COMM_KINDS; kind++) bytes += c->ledger[kind].received;
    return bytes;
}

// ---- 5. Collectives ----

// Returns a new request on the tensor `whole` and on `local`, this rank's part of `whole`. The
// ledger has counted the request. If by_rows is true, `whole` is cut between rows.
static Request *part_request(Comm *c, Action action, Tensor local, Tensor whole, bool by_rows) {
    const bool gathers = action == DO_ALL_GATHER;
    const char *call = calls[action].name;
    size_t count = by_rows ? whole.rows : tensor_count(whole);
    size_t part = range_size(shard_range(count, c->size, c->rank));
    if (by_rows && (local.rows != part || local.cols != whole.cols))
        fault("%s on %s: this rank's rows of [%zu, %zu] are [%zu, %zu], but the tensor given for "
              "them is [%zu, %zu]",
              call, c->name, whole.rows, whole.cols, part, whole.cols, local.rows, local.cols);
    if (!by_rows && tensor_count(local) != part)
        fault("%s on %s: this rank's part of %zu elements is %zu, but the tensor given for it has "
              "%zu",
              call, c->name, count, part, tensor_count(local));
    Request *r = tensor_request(c, action, tensor_count(whole), 0, gathers ? local : whole,
                                gathers ? whole : local);
    if (by_rows && whole.cols > 0) r->row = whole.cols;
    return ring(r);
}

static Request *all_reduce(Comm *c, Action action, Tensor t) {
    return ring(tensor_request(c, action, tensor_count(t), 0, t, t));
}

void comm_all_reduce(Comm *c, Tensor t) { run_now(all_reduce(c, DO_ALL_REDUCE, t)); }
void comm_all_reduce_max(Comm *c, Tensor t) { run_now(all_reduce(c, DO_ALL_REDUCE_MAX, t)); }
Request *comm_start_all_reduce(Comm *c, Tensor t) {
    return run_later(all_reduce(c, DO_ALL_REDUCE, t));
}
void comm_reduce_scatter(Comm *c, Tensor local, Tensor whole) {
    run_now(part_request(c, DO_REDUCE_SCATTER, local, whole, false));
}
void comm_reduce_scatter_rows(Comm *c, Tensor local, Tensor whole) {
    run_now(part_request(c, DO_REDUCE_SCATTER, local, whole, true));
}
Request *comm_start_reduce_scatter(Comm *c, Tensor local, Tensor whole) {
    return run_later(part_request(c, DO_REDUCE_SCATTER, local, whole, false));
}
void comm_all_gather(Comm *c, Tensor whole, Tensor local) {
    run_now(part_request(c, DO_ALL_GATHER, local, whole, false));
}
void comm_all_gather_rows(Comm *c, Tensor whole, Tensor local) {
    run_now(part_request(c, DO_ALL_GATHER, local, whole, true));
}
Request *comm_start_all_gather(Comm *c, Tensor whole, Tensor local) {
    return run_later(part_request(c, DO_ALL_GATHER, local, whole, false));
}

void comm_broadcast(Comm *c, Tensor t, size_t root) {
    Request *r = tensor_request(c, DO_BROADCAST, tensor_count(t), root, t, t);
    run_now(chain(r, c->rank == root, c->rank != root));
}

void comm_reduce(Comm *c, Tensor t, size_t root) {
    Request *r = tensor_request(c, DO_REDUCE, tensor_count(t), root, t, t);
    run_now(chain(r, c->rank != root, c->rank != (root + 1) % c->size));
}

void comm_all_to_all(Comm *c, Tensor out, Tensor in) {
    size_t count = tensor_count(in), part = range_size(shard_range(count, c->size, c->rank));
    if (tensor_count(out) != c->size * part)
        fault("all-to-all on %s: %zu ranks have %zu elements each for this rank, but the tensor "
              "given for them has %zu",
              c->name, c->size, part, tensor_count(out));
    const char *from = (const char *)in.data, *to = (const char *)out.data;
    if (count > 0 && to < from + tensor_bytes(in) && from < to + tensor_bytes(out))
        fault("all-to-all on %s: out and in overlap", c->name);
    run_now(ring(tensor_request(c, DO_ALL_TO_ALL, count, 0, in, out)));
}

// Runs an operation on host memory and waits for its end. The operation takes time on the simulated
// clock only if counted() has counted the operation.
static void host_run(Request *r, const void *in, void *out) {
    r->in = in;
    r->out = out;
    run_now(r);
}

void comm_all_reduce_doubles(Comm *c, double *values, size_t n) {
    host_run(ring(request_new(c, DO_ALL_REDUCE, "all-reduce of doubles", DOUBLES, n, 0)), values,
             values);
}

void comm_barrier(Comm *c) {
    host_run(request_new(c, DO_BARRIER, "barrier", BYTES, 0, 0), NULL, NULL);
}

// ---- 6. Messages ----

void comm_connect(Comm *c, CommPeers peers) {
    if (peers <= c->state->connected) return;
    if (c->state->wire->connect && c->size > 1) c->state->wire->connect(c, peers);
    c->state->connected = peers;
}

// Only NCCL needs to know the pairs before the first message. All transports require comm_connect,
// so that every transport reports a missing call.
static void require_connected(const Comm *c, const char *call, size_t peer) {
    bool neighbours =
        peer == c->rank || peer == (c->rank + 1) % c->size || c->rank == (peer + 1) % c->size;
    if (c->state->connected == COMM_EVERYBODY ||
        (c->state->connected == COMM_NEIGHBOURS && neighbours))
        return;
    fault("%s between ranks %zu and %zu of %s, which comm_connect has not connected: call "
          "comm_connect first",
          call, c->rank, peer, c->name);
}

// A message of a rank to itself adds no bytes to the ledger.
static Request *message(Comm *c, Action action, Tensor t, size_t peer) {
    size_t bytes = peer != c->rank ? tensor_bytes(t) : 0;
    if (peer < c->size) require_connected(c, calls[action].name, peer);
    return counted(tensor_request(c, action, tensor_count(t), peer, t, t),
                   action == DO_SEND ? bytes : 0, action == DO_RECV ? bytes : 0, 1, bytes);
}

void comm_send(Comm *c, Tensor t, size_t to) {
    if (to == c->rank)
        fault("send to myself (rank %zu of %s) can never be received: use comm_start_send", to,
              c->name);
    run_now(message(c, DO_SEND, t, to));
}
void comm_recv(Comm *c, Tensor t, size_t from) { run_now(message(c, DO_RECV, t, from)); }
Request *comm_start_send(Comm *c, Tensor t, size_t to) {
    return run_later(message(c, DO_SEND, t, to));
}
Request *comm_start_recv(Comm *c, Tensor t, size_t from) {
    return run_later(message(c, DO_RECV, t, from));
}

void comm_wait(Request *r) {
    if (!r) return;
    Request **place = &r->comm->state->open;
    for (; *place && *place != r; place = &(*place)->next)
        if (collective(r) && collective(*place))
            fault("comm_wait on %s out of order: an older %s is still open", r->comm->name,
                  (*place)->call);
    if (!*place)
        fault("comm_wait on %s for one %s that was waited for before: wait once per operation",
              r->comm->name, r->call);
    *place = r->next;
    check_unchanged(r);
    r->waited = record_moment();
    finish(r);
}

Picoseconds comm_arrival(Request *r) {
    const Request *o = r->comm->state->open;
    while (o && o != r) o = o->next;
    if (!o || r->action != DO_RECV)
        fault("comm_arrival on %s of one %s: pass the result of comm_start_recv, before its "
              "comm_wait",
              r->comm->name, r->call);
    if (r->found) return r->arrives;
    if (r->timed) record_pause_compute();
    wire(r)->finish(r);
    if (!r->timed || !clock_config()->simulated) r->arrives = clock_now();
    if (r->timed) record_resume_compute();
    r->found = true;
    return r->arrives;
}

// ---- 7. Communicators ----

static Comm *comm_new(const char *name, size_t rank, size_t size, struct CommState state) {
    Comm *c = host_alloc(sizeof *c);
    state.peer = host_alloc(size * sizeof *state.peer);
    *c = (Comm){ .name = name, .rank = rank, .size = size, .state = host_alloc(sizeof state) };
    *c->state = state;
    c->cards = clock_cards(size, state.world_rank);
    c->one_node = c->cards == CLOCK_INSIDE;
    return c;
}

Comm *comm_of_world(const char *name, const Wire *wire, void *link, const Launch *launch) {
    struct CommState state = { .wire = wire, .link = link, .launch = launch };
    state.world_rank = host_alloc(this_world_size * sizeof *state.world_rank);
    for (size_t i = 0; i < this_world_size; i++) state.world_rank[i] = i;
    return comm_new(name, this_rank, this_world_size, state);
}

Comm *comm_split(Comm *parent, size_t colour, size_t key, const char *name) {
    typedef struct {
        size_t colour, key;
    } Wish;
    Wish local = { colour, key };
    Wish *wish = host_alloc(parent->size * sizeof *wish);
    size_t *member = host_alloc(parent->size * sizeof *member), n = 0, me = 0;
    host_run(request_new(parent, DO_ALL_GATHER, "split", BYTES, parent->size * sizeof *wish, 0),
             &local, wish);
    // Insertion sort by key. Ranks with equal keys keep their order.
    for (size_t rank = 0; rank < parent->size; rank++) {
        if (wish[rank].colour != colour) continue;
        size_t place = n++;
        for (; place > 0 && wish[member[place - 1]].key > wish[rank].key; place--)
            member[place] = member[place - 1];
        member[place] = rank;
    }
    while (member[me] != parent->rank) me++;
    const struct CommState *s = parent->state;
    struct CommState state = { .wire = s->wire, .launch = s->launch, .world_rank = member };
    state.id = random_key(random_key(s->id, s->meetings), colour);
    if (s->wire->split) state.link = s->wire->split(parent, member, n, me);
    for (size_t i = 0; i < n; i++) member[i] = s->world_rank[member[i]];
    free(wish);
    return comm_new(name, me, n, state);
}

void comm_free(Comm *c) {
    if (!c) return;
    if (c->state->open) {
        char text[200];
        describe(c->state->open, text);
        fault("comm_free of %s, but %s was started and never waited for: call comm_wait", c->name,
              text);
    }
    if (c->state->wire->close) c->state->wire->close(c);
    request_free_list(c->state->idle);
    free(c->state->peer);
    free(c->state->world_rank);
    free(c->state);
    free(c);
}

// ---- 8. The side channel ----

// Moves bytes on the side channel. A transport may count bytes in an int, and may keep a copy of a
// message. So long messages are cut into pieces. The other ranks wait in this function while rank 0
// works alone (unsplit training, comparisons, drawing, a slow disk), or while rank 0 receives from
// one rank after the other. So broadcasts and sends of this function may wait a hundred times
// --timeout. If rank 0 dies, the launcher ends the other ranks.
static void side_message(Action action, const char *call, char *data, size_t bytes, size_t peer) {
    enum { PIECE_BYTES = 1 << 24 };
    size_t at = 0, length;
    do {
        length = bytes - at < PIECE_BYTES ? bytes - at : (size_t)PIECE_BYTES;
        Request *r = request_new(side, action, call, BYTES, length, peer);
        r->patient = action != DO_RECV;
        host_run(r, data + at, data + at);
        at += length;
    } while (at < bytes);
}

void side_gather_each(const void *local, size_t bytes, SideTake *take, void *context) {
    const char *call = "side_gather";
    char begin = 0;
    side_message(DO_BROADCAST, call, &begin, sizeof begin, 0);
    size_t *size = host_alloc(side->size * sizeof *size);
    host_run(request_new(side, DO_ALL_GATHER, call, BYTES, side->size * sizeof *size, 0), &bytes,
             size);
    if (side->rank > 0) side_message(DO_SEND, call, (char *)local, bytes, 0);
    else take(context, 0, local, bytes);
    for (size_t rank = 1; side->rank == 0 && rank < side->size; rank++) {
        char *part = host_alloc(size[rank]);
        side_message(DO_RECV, call, part, size[rank], rank);
        take(context, rank, part, size[rank]);
        free(part);
    }
    free(size);
}

typedef struct {
    char *all;
    size_t bytes, *sizes;
} Gathered;
static void append(void *gathered, size_t rank, const void *data, size_t bytes) {
    Gathered *g = gathered;
    g->all = realloc(g->all, g->bytes + bytes + 1);
    if (!g->all) fault("out of memory: %zu bytes from all ranks", g->bytes + bytes);
    if (bytes > 0) memcpy(g->all + g->bytes, data, bytes);
    g->bytes += bytes;
    g->sizes[rank] = bytes;
}
void *side_gather(const void *local, size_t bytes, size_t **sizes) {
    Gathered g = { .sizes = side->rank == 0 ? host_alloc(side->size * sizeof *g.sizes) : NULL };
    side_gather_each(local, bytes, append, &g);
    if (side->rank == 0) *sizes = g.sizes;
    return g.all;
}

void side_broadcast(void *data, size_t bytes) {
    side_message(DO_BROADCAST, "side_broadcast", data, bytes, 0);
}
bool side_any(bool local) {
    double any = local;
    Request *r = request_new(side, DO_ALL_REDUCE, "side_any", DOUBLES, 1, 0);
    r->patient = true; // rank 0 may come late
    host_run(r, &any, &any);
    return any > 0;
}

// ---- 9. The launch ----

void comm_run_rank(Comm *world, Comm *side_channel, RankBody body) {
    side = side_channel;
    side->state->id = 1; // differs from the id of the Comm of the world, which is 0
    memory_rank_begin();
    clock_rank_begin();
    body.body(world, body.context);
    // No rank ends before all ranks have finished. If a rank's body returns too early, the rank's
    // barrier meets another call. Then emu reports that the calls do not match. Under mpi the ranks
    // report the mismatch only if memory is poisoned. Otherwise the ranks wait until --timeout or
    // --deadlock.
    host_run(request_new(world, DO_BARRIER, "end-of-run barrier", BYTES, 0, 0), NULL, NULL);
    comm_free(world);
    memory_rank_end();
    device_rank_end();
    record_free();
    // No process may end MPI while another process can still fail. Otherwise Open MPI's mpirun
    // sometimes hangs or crashes.
    host_run(request_new(side, DO_BARRIER, "end of all processes", BYTES, 0, 0), NULL, NULL);
    comm_free(side);
}
