// comm_emu.c: runs virtual ranks. Each rank is a thread, but only one rank runs at a time, the rank
// that holds the baton. So a run is deterministic and can be stepped through in a debugger, and the
// ranks' own code needs no locks.
//
// A rank that must wait stores its request in waits_for and hands the baton to the next rank that
// can continue (round robin). If no rank can continue, the ranks wait for each other, which is a
// deadlock. Then deadlock() prints all waits.
//
// The ranks read and write tensors in place, also on a GPU, because all virtual ranks share the
// GPU. With virtual ranks --reduce fast adds in rank order, as --reduce ordered does, because no
// library computes the sums.
#include "common/comm/transport.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/device/device.h"
#include "common/tensor/ops.h"

enum { STACK_BYTES = 16 << 20 };

typedef struct {
    pthread_t thread;
    pthread_cond_t wake;
    const Request *waits_for; // NULL: the rank can continue
    bool ended;
} Rank;

// A Meeting is a collective or a message that some of its members have started, but not yet all of
// them.
typedef struct Meeting {
    struct Meeting *next;
    uint64_t flow;
    size_t arrived;
    Request *of[]; // [rank]; for a message [0] is its send and [1] its receive; NULL: not started
} Meeting;

// `stage` is the state of all ranks. Only the rank that holds the baton, `running`, changes this
// state.
static struct {
    pthread_mutex_t lock;
    size_t ranks, running;
    Rank *rank;
    Meeting *meetings;
    const Launch *launch;
    RankBody body;
} stage = { .lock = PTHREAD_MUTEX_INITIALIZER };

// ---- 1. The baton ----

static bool can_go_on(const Rank *r) { return !r->ended && (!r->waits_for || r->waits_for->done); }

// Returns the place of r's meeting in the list stage.meetings, or the end of this list.
static Meeting **meeting_of(const Request *r) {
    Meeting **place = &stage.meetings;
    while (*place && (*place)->flow != r->flow) place = &(*place)->next;
    return place;
}

static void print_missing(const Request *r) {
    if (request_is_message(r)) return;
    const Meeting *m = *meeting_of(r);
    const char *before = ", not reached by";
    for (size_t i = 0; i < r->comm->size; i++) {
        if (m->of[i]) continue;
        fprintf(stderr, "%s rank %zu", before, request_world_rank(r, i));
        before = ",";
    }
}

// Prints all waits and ends the process, because no rank can continue. All ranks still have a wait,
// because a rank ends only after the last barrier of all ranks.
_Noreturn static void deadlock(void) {
    fflush(stdout);
    fprintf(stderr, "unsplit: deadlock: no rank can go on\n");
    for (size_t i = 0; i < stage.ranks; i++) {
        char text[200];
        describe(stage.rank[i].waits_for, text);
        fprintf(stderr, "  rank %zu waits in %s", i, text);
        print_missing(stage.rank[i].waits_for);
        fprintf(stderr, "\n");
    }
    end_all_ranks(STATUS_FAULT);
    _exit(STATUS_FAULT);
}

// Hands the baton to the next rank that can continue. The caller holds the lock.
static void hand_on(void) {
    for (size_t step = 1; step <= stage.ranks; step++) {
        size_t next = (stage.running + step) % stage.ranks;
        if (!can_go_on(&stage.rank[next])) continue;
        stage.running = next;
        pthread_cond_signal(&stage.rank[next].wake);
        return;
    }
    if (!stage.rank[stage.running].ended) deadlock();
}

static void take_baton(size_t me) {
    while (stage.running != me) pthread_cond_wait(&stage.rank[me].wake, &stage.lock);
}

static void wait_until_done(Request *r) {
    if (r->done) return;
    pthread_mutex_lock(&stage.lock);
    stage.rank[this_rank].waits_for = r;
    hand_on();
    take_baton(this_rank);
    stage.rank[this_rank].waits_for = NULL;
    pthread_mutex_unlock(&stage.lock);
}

// ---- 2. Meetings: the last rank to arrive computes all outputs ----

static void check_same_call(const Request *local, const Meeting *m) {
    const Request *other = NULL;
    for (size_t i = 0; i < local->comm->size && !other; i++) other = m->of[i];
    if (!other) return;
    bool same_call = strcmp(local->call, other->call) == 0;
    bool same_sizes = local->count == other->count && local->row == other->row &&
                      local->element == other->element;
    if (same_call && same_sizes && local->peer == other->peer) return;
    char my_text[200], other_text[200];
    describe(local, my_text);
    describe(other, other_text);
    fault("calls do not match: rank %zu calls %s, where rank %zu calls %s; all ranks must make the "
          "same calls in the same order",
          this_rank, my_text, request_world_rank(local, other->comm->rank), other_text);
}

// Adds the parts, or takes their maximum, on a GPU in rank order, piece by piece. Row i of `piece`
// is a copy of a piece of rank i's part, and op_combine() adds the rows. The copies count as
// MEM_REFERENCE, because the ledger counts no memory for a blocking sum on the other transports.
static void combine_on_device(const Request *r, char *out, const char *const parts[],
                              size_t count) {
    enum { PIECE = 1 << 18 }; // elements of all ranks together
    const size_t n = r->comm->size, most = PIECE / n, size = element_size(r->element);
    Arena scratch = arena(MEM_REFERENCE);
    Tensor rows = tensor_shaped(&scratch, tensor_shape(n, most, r->element));
    for (size_t at = 0; at < count; at += most) {
        const size_t length = count - at < most ? count - at : most;
        const Tensor piece = tensor_col_range(rows, 0, length);
        for (size_t i = 0; i < n; i++)
            device_copy(tensor_row_range(piece, i, i + 1).data, parts[i] + at * size,
                        length * size);
        op_combine(tensor_row_range(piece, 0, 1), piece, r->action == DO_ALL_REDUCE_MAX);
        device_copy(out + at * size, piece.data, length * size);
    }
    arena_free(&scratch);
}
static void combine(const Request *r, char *out, const char *const parts[], size_t count) {
    if (element_of_tensor(r->element) && device_is_gpu()) combine_on_device(r, out, parts, count);
    else combine_in_rank_order(r, out, parts, count);
}

static void deliver(const Request *send, Request *recv) {
    if (send->count != recv->count || send->element != recv->element)
        fault("sizes do not match on %s: rank %zu sends %zu bytes, where rank %zu receives %zu",
              send->comm->name, request_world_rank(send, recv->peer), request_bytes(send),
              request_world_rank(send, send->peer), request_bytes(recv));
    request_copy(recv, recv->out, send->in, send->count);
    if (request_simulated(recv)) recv->arrives = send->arrives;
}

static void collect(Request *const of[], size_t n) {
    size_t size = element_size(of[0]->element), count = of[0]->count, root = of[0]->peer;
    const char *parts[n];
    for (size_t i = 0; i < n; i++) parts[i] = of[i]->in;
    switch (of[0]->action) {
    case DO_ALL_REDUCE:
    case DO_ALL_REDUCE_MAX:
        combine(of[0], of[0]->out, parts, count);
        for (size_t i = 1; i < n; i++) request_copy(of[i], of[i]->out, of[0]->out, count);
        break;
    case DO_REDUCE:
    case DO_REDUCE_SCATTER:
        for (size_t to = 0; to < n; to++) {
            Range part = request_part(of[0], to);
            for (size_t i = 0; i < n; i++) parts[i] = of[i]->in + part.lo * size;
            combine(of[to], of[to]->out, parts, range_size(part));
        }
        break;
    case DO_ALL_GATHER:
    case DO_ALL_TO_ALL:
        for (size_t to = 0; to < n; to++)
            for (size_t from = 0; from < n; from++) {
                Parcel given = request_parcel(of[from], to, NULL);
                request_copy(of[to], request_parcel(of[to], from, NULL).receive, given.send,
                             given.sends);
            }
        break;
    case DO_BROADCAST:
        for (size_t i = 0; i < n; i++)
            if (i != root) request_copy(of[i], of[i]->out, parts[root], count);
        break;
    case DO_SEND: deliver(of[0], of[1]); break;
    default: break; // a barrier moves nothing
    }
}

static void emu_start(Request *r) {
    const bool message = request_is_message(r), tensors = element_of_tensor(r->element);
    const size_t n = message ? 2 : r->comm->size;
    Meeting **place = meeting_of(r);
    Picoseconds latest = 0;
    if (!*place) {
        *place = host_alloc(sizeof **place + n * sizeof(Request *));
        (*place)->flow = r->flow;
    }
    Meeting *m = *place;
    // After emu_start() other ranks may use the tensors of r on their own streams. So the work on
    // this rank's stream must be complete.
    if (tensors) device_synchronize();
    if (!message) check_same_call(r, m);
    m->of[message ? r->action == DO_RECV : r->comm->rank] = r;
    if (++m->arrived < n) return;
    collect(m->of, n);
    if (tensors) device_synchronize();
    for (size_t i = 0; i < n; i++)
        if (m->of[i]->ready > latest) latest = m->of[i]->ready;
    for (size_t i = 0; i < n; i++) {
        m->of[i]->all_ready = latest;
        m->of[i]->done = true;
    }
    *place = m->next;
    free(m);
}

// ---- 3. The launch ----

static const Wire wire_emu = { .start = emu_start,
                               .finish = wait_until_done,
                               .meet = wait_until_done };

// Ends the process without freeing anything, because the other threads may still use the memory.
static void end_process(int status) {
    fflush(stdout);
    _exit(status);
}

static void *rank_main(void *argument) {
    Rank *me = argument;
    this_rank = (size_t)(me - stage.rank);
    this_world_size = stage.ranks;
    pthread_mutex_lock(&stage.lock);
    take_baton(this_rank);
    pthread_mutex_unlock(&stage.lock);
    Comm *world = comm_of_world("world", &wire_emu, NULL, stage.launch);
    comm_run_rank(world, comm_of_world("side channel", &wire_emu, NULL, stage.launch), stage.body);
    pthread_mutex_lock(&stage.lock);
    me->ended = true;
    hand_on();
    pthread_mutex_unlock(&stage.lock);
    return NULL;
}

void emu_run(const Launch *launch, RankBody body) {
    const size_t ranks = launch->ranks;
    void (*end_before)(int) = end_all_ranks;
    end_all_ranks = end_process;
    stage.ranks = ranks;
    stage.running = 0;
    stage.rank = host_alloc(ranks * sizeof *stage.rank);
    stage.launch = launch;
    stage.body = body;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    for (size_t i = 0; i < ranks; i++) pthread_cond_init(&stage.rank[i].wake, NULL);
    // The lock makes each new thread wait until all threads exist.
    pthread_mutex_lock(&stage.lock);
    for (size_t i = 0; i < ranks; i++)
        if (pthread_create(&stage.rank[i].thread, &attributes, rank_main, &stage.rank[i]) != 0)
            fault("cannot start the thread of virtual rank %zu of %zu; choose fewer ranks", i,
                  ranks);
    pthread_mutex_unlock(&stage.lock);
    for (size_t i = 0; i < ranks; i++) pthread_join(stage.rank[i].thread, NULL);
    for (size_t i = 0; i < ranks; i++) pthread_cond_destroy(&stage.rank[i].wake);
    pthread_attr_destroy(&attributes);
    free(stage.rank);
    end_all_ranks = end_before;
}
