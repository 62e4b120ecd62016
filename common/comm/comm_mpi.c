// comm_mpi.c: runs the ranks as MPI processes. MPI 3.1 is enough, because the file uses no large
// counts. The transport "staged" also uses this file: comm.c first copies the tensors from a GPU to
// host memory.
//
// Except for calls that make or free a communicator, every MPI call of this file is nonblocking,
// and every wait is a loop around MPI_Test with a deadline. So a lost rank or a wrong call ends
// with a message instead of a hang. The loop yields the core, because there may be more ranks than
// cores.
//
// With --reduce ordered, an all-reduce or a reduce-scatter lets rank i receive part i of every
// rank's tensor and add these parts in rank order. In an all-reduce the ranks then exchange their
// sums. Both collectives move as many bytes as a ring. A blocking sum works in place, piece by
// piece. So the sum needs only PIECE_BYTES of memory, and a piece stays in the CPU's cache. A
// started sum uses its request's scratch. With --reduce fast, blocking all-reduces of reals on more
// than two ranks use the library's own algorithm.
//
// Sections: 1 checked calls and deadlines, 2 messages, 3 sums, 4 other collectives, 5
// communicators, 6 the launch.
#include "common/comm/comm_mpi.h"
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/comm/waits.h"
#include "common/device/device.h"
#include "common/tensor/random.h"

// A Flight is the state of a Request in flight.
typedef struct {
    uint64_t note[NOTE_LENGTH];
    int requests, tag;
    MPI_Request note_request, request[]; // [2 * ranks of the Comm]
} Flight;

static MpiLink *link_of(const Request *r) { return r->comm->state->link; }

// ---- 1. Checked calls and deadlines ----

void check_mpi(int error, const char *call) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (error == MPI_SUCCESS) return;
    MPI_Error_string(error, text, &length);
    fault("%s failed: %s", call, text);
}

static int fits_int(size_t n) {
    if (n > INT_MAX)
        fault("%zu elements are too many for one call of MPI, which counts up to %d", n, INT_MAX);
    return (int)n;
}

void (*mpi_meanwhile)(double waited);
static double timeout = 60; // --timeout

// After SIGTERM a rank keeps running so that it can write its checkpoint (stop_catch). mpirun also
// sends SIGTERM to the survivors of a killed rank. If all ranks share a node, waits_require_alive()
// sees whether a rank has ended. Otherwise nothing shows whether a rank of another node has ended.
// So a rank exits if it still waits PATIENCE + 2 * longest_wait seconds after the signal.
// longest_wait is the rank's longest wait so far.
static double longest_wait;
static void others_are_gone(void) {
    enum { PATIENCE = 4 }; // seconds
    if (waits_see_all()) return;
    if (stop_asked() > PATIENCE + 2 * longest_wait)
        fault("a signal to stop came %.0f s ago, and another rank has not answered since, so it "
              "has ended; start all ranks again",
              stop_asked());
}

static bool crowded; // there are more ranks than cores on this node

_Noreturn void too_late(double waited, const char *where) {
    waits_print();
    fault("waited %g s in %s; --timeout sets how long. Virtual ranks (make emu-..., --emulate N) "
          "show at once which rank waits for which",
          waited, where);
}

// Yields the core, or sleeps in a long wait. A waiting rank that only yields would still use the
// core, which another rank may need. If each rank has its own core, a rank sleeps later and for a
// shorter time.
static void give_core_away(double waited) {
    const double spin = crowded ? 20e-6 : 1e-3, most_sleep = crowded ? 500e-6 : 100e-6; // seconds
    if (waited > spin) usleep((useconds_t)(1e6 * fmin(spin + waited / 8, most_sleep)));
    else sched_yield();
}

static void one_turn(double waited) {
    others_are_gone();
    waits_require_alive(waited, timeout);
    if (mpi_meanwhile) mpi_meanwhile(waited);
    give_core_away(waited);
}
void wait_turn(double since, const char *where) {
    const double waited = now() - since;
    if (waited > timeout) too_late(timeout, where);
    one_turn(waited);
}

// Waits for n MPI requests of r, one after the other. Writes a long wait into the node's table of
// waits, for the deadlock search (waits.h).
static void wait_for(const Request *r, int n, MPI_Request *request) {
    const double long_wait = 0.2, since = now();
    // A patient request may wait a hundred times longer, because rank 0 may work alone.
    const double deadline = r->patient ? 100 * timeout : timeout;
    char text[200];
    bool posted = false;
    for (int i = 0, done; i < n;) {
        const int error = MPI_Test(&request[i], &done, MPI_STATUS_IGNORE);
        if (error == MPI_SUCCESS && done) {
            i++;
            continue;
        }
        describe(r, text);
        check_mpi(error, text);
        const double waited = now() - since;
        if (waited > deadline) too_late(deadline, text);
        if (!posted && waited > long_wait) {
            waits_post(r, since);
            posted = true;
        }
        if (posted) waits_look();
        one_turn(waited);
    }
    if (posted) waits_clear();
    longest_wait = fmax(longest_wait, now() - since);
}

static MPI_Datatype datatype(Element e) {
    if (e == BYTES) return MPI_BYTE;
    if (element_is_half(e)) return MPI_UINT16_T;
    return e == DOUBLES || sizeof(real) == sizeof(double) ? MPI_DOUBLE : MPI_FLOAT;
}

static Flight *flight_of(Request *r) {
    if (!r->extra) r->extra = host_alloc(sizeof(Flight) + 2 * r->comm->size * sizeof(MPI_Request));
    return r->extra;
}

// ---- 2. Messages ----

// The data of every message have the tag TAG_DATA, so the messages of a pair of ranks arrive in the
// order of their sends. The tag of a collective's parcels contains the number of the collective
// (modulo COLLECTIVES). So parcels of different collectives are not mixed up. MPI guarantees tags
// up to 32767.
enum { TAG_DATA, TAG_NOTE, TAG_COLLECTIVE = 16, COLLECTIVES = 8000 };

static MPI_Request *next_request(const Request *r) {
    Flight *f = r->extra;
    return &f->request[f->requests++];
}

// Starts a send. The data of a message go through MPI_Issend(), so even a small send completes only
// when the receiver has begun to receive. The parcels of collectives go through MPI_Isend().
static void send_to(const Request *r, const char *from, size_t count, size_t to, int tag) {
    const MPI_Datatype type = datatype(r->element);
    const MPI_Comm comm = link_of(r)->comm;
    const int n = fits_int(count);
    if (tag == TAG_DATA) MPI(MPI_Issend(from, n, type, (int)to, tag, comm, next_request(r)));
    else MPI(MPI_Isend(from, n, type, (int)to, tag, comm, next_request(r)));
}
static void receive_from(const Request *r, char *to, size_t count, size_t from, int tag) {
    MPI(MPI_Irecv(to, fits_int(count), datatype(r->element), (int)from, tag, link_of(r)->comm,
                  next_request(r)));
}

// Starts one round of a collective. The second round of an all-reduce has another tag than the
// first round.
static void start_parcels(const Request *r, const Piece *piece) {
    const int tag = ((const Flight *)r->extra)->tag + (piece && piece->sum ? 1 : 0);
    const size_t rank = r->comm->rank;
    for (size_t i = 0; i < r->comm->size; i++) {
        const Parcel p = request_parcel(r, i, piece);
        if (p.receives && i != rank) receive_from(r, p.receive, p.receives, i, tag);
    }
    for (size_t i = 0; i < r->comm->size; i++) {
        const Parcel p = request_parcel(r, i, piece);
        if (p.sends && i != rank) send_to(r, p.send, p.sends, i, tag);
    }
    const Parcel own = request_parcel(r, rank, piece);
    if (own.sends && own.receive != own.send)
        memcpy(own.receive, own.send, own.sends * element_size(r->element));
}

static void wait_for_parts(const Request *r) {
    Flight *f = r->extra;
    wait_for(r, f->requests, f->request);
    f->requests = 0;
}

// The note of a message is a second message. The note of a collective is an all-reduce of the
// maximum over all members. Every collective starts its note before its data, so the notes meet
// even if the calls do not match.
void mpi_start_note(Request *r) {
    Flight *f = flight_of(r);
    MPI_Comm comm = link_of(r)->comm;
    MPI_Request *request = &f->note_request;
    const int n = NOTE_LENGTH, peer = (int)r->peer;
    *request = MPI_REQUEST_NULL;
    if (!memory_poison() && !request_simulated(r)) return;
    uint64_t call = random_key(random_key(random_key(r->action, r->count), r->peer), r->element);
    f->note[NOTE_TIME] = r->action == DO_SEND ? r->arrives : r->ready;
    f->note[NOTE_CALL] = request_is_message(r) ? request_bytes(r) : random_key(call, r->row);
    f->note[NOTE_INVERSE] = ~f->note[NOTE_CALL];
    if (r->action == DO_RECV)
        MPI(MPI_Irecv(f->note, n, MPI_UINT64_T, peer, TAG_NOTE, comm, request));
    else if (r->action == DO_SEND)
        MPI(MPI_Issend(f->note, n, MPI_UINT64_T, peer, TAG_NOTE, comm, request));
    else MPI(MPI_Iallreduce(MPI_IN_PLACE, f->note, n, MPI_UINT64_T, MPI_MAX, comm, request));
}

void mpi_meet(Request *r) {
    Flight *f = r->extra;
    char text[200];
    if (f->note_request == MPI_REQUEST_NULL) return;
    wait_for(r, 1, &f->note_request);
    if (request_is_message(r)) r->arrives = f->note[NOTE_TIME];
    else r->all_ready = f->note[NOTE_TIME];
    bool same_size = r->action != DO_RECV || f->note[NOTE_CALL] == request_bytes(r);
    bool same_call = request_is_message(r) || f->note[NOTE_CALL] == ~f->note[NOTE_INVERSE];
    if (same_size && same_call) return;
    describe(r, text);
    if (!same_size)
        fault("sizes do not match in %s: the message has %zu bytes", text,
              (size_t)f->note[NOTE_CALL]);
    fault("calls do not match in %s: another rank makes another call, or the same call with "
          "another size, element type or root; all ranks must make the same calls",
          text);
}

// ---- 3. Sums ----

enum { PIECE_BYTES = 1 << 20 };
static _Alignas(64) char contributions[PIECE_BYTES]; // all ranks' contributions to one piece

// A started sum has only one piece, whose contributions go into the scratch of the request.
static Piece first_piece(const Request *r) {
    if (r->scratch) return (Piece){ .most = request_longest_part(r), .scratch = r->scratch };
    return (Piece){ .most = PIECE_BYTES / element_size(r->element) / r->comm->size,
                    .scratch = contributions };
}

static void finish_piece(const Request *r, Piece piece) {
    const size_t size = element_size(r->element), rank = r->comm->rank;
    const bool part_only = r->action == DO_REDUCE_SCATTER || r->action == DO_REDUCE;
    const Range own = request_piece(r, rank, &piece);
    const char *parts[r->comm->size];
    char *sum = r->out + (part_only ? piece.offset : own.lo) * size;
    wait_for_parts(r);
    for (size_t i = 0; i < r->comm->size; i++) parts[i] = piece.scratch + i * piece.most * size;
    parts[rank] = r->in + own.lo * size;
    if (range_size(own)) combine_in_rank_order(r, sum, parts, range_size(own));
    if (part_only) return;
    piece.sum = sum;
    start_parcels(r, &piece);
    wait_for_parts(r);
}

// mpi_start() has already started the first piece.
static void sum_by_pieces(const Request *r) {
    Piece piece = first_piece(r);
    for (; piece.offset < request_longest_part(r); piece.offset += piece.most) {
        if (piece.offset > 0) start_parcels(r, &piece);
        finish_piece(r, piece);
    }
}

// Returns whether the MPI library computes the sum. With two ranks the order does not matter,
// because a + b = b + a, and the sums of this file are faster. sum_by_library() passes the tensor
// in pieces, because the library's scratch is as large as its input.
static bool library_sums(const Request *r) {
    return r->comm->state->launch->reduce == REDUCE_FAST && r->comm->size > 2 &&
           r->element == REALS && !r->scratch && r->action == DO_ALL_REDUCE;
}
static void sum_by_library(Request *r) {
    const size_t most = PIECE_BYTES / sizeof(real);
    MPI_Request request;
    for (size_t at = 0; at < r->count; at += most) {
        int count = fits_int(r->count - at < most ? r->count - at : most);
        const real *in = (const real *)r->in + at;
        real *out = (real *)r->out + at;
        MPI(MPI_Iallreduce(in == out ? MPI_IN_PLACE : in, out, count, datatype(REALS), MPI_SUM,
                           link_of(r)->comm, &request));
        wait_for(r, 1, &request);
    }
}

// ---- 4. Other collectives ----

static void start_broadcast(const Request *r) {
    void *data = r->comm->rank == r->peer ? (void *)r->in : r->out;
    MPI(MPI_Ibcast(data, fits_int(r->count), datatype(r->element), (int)r->peer, link_of(r)->comm,
                   next_request(r)));
}

static size_t under_way; // operations of this rank that are in flight

void mpi_start(Request *r) {
    const Piece first = first_piece(r);
    Flight *f = flight_of(r);
    f->requests = 0;
    f->tag = TAG_COLLECTIVE + (int)(r->comm->state->meetings % COLLECTIVES) * 2;
    under_way++;
    mpi_start_note(r);
    if (r->action == DO_SEND) send_to(r, r->in, r->count, r->peer, TAG_DATA);
    else if (r->action == DO_RECV) receive_from(r, r->out, r->count, r->peer, TAG_DATA);
    else if (r->action == DO_BROADCAST) start_broadcast(r);
    else if (r->action == DO_BARRIER) MPI(MPI_Ibarrier(link_of(r)->comm, next_request(r)));
    else if (!request_adds(r)) start_parcels(r, NULL);
    else if (!library_sums(r)) start_parcels(r, &first);
}

void mpi_finish(Request *r) {
    mpi_meet(r);
    if (!request_adds(r)) wait_for_parts(r);
    else if (library_sums(r)) sum_by_library(r);
    else sum_by_pieces(r);
    under_way--;
}

// Lets long messages progress. A long message progresses only while its sender or receiver calls
// MPI. So a computing rank calls this function at each product, and while the rank waits for its
// GPU.
static void move_on(double waited) {
    int any;
    (void)waited;
    if (under_way)
        MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &any, MPI_STATUS_IGNORE));
}

// ---- 5. Communicators ----

static MpiLink *link_new(MPI_Comm comm) {
    MpiLink *l = host_alloc(sizeof *l);
    // The new communicator inherits the error handler MPI_ERRORS_RETURN from MPI_COMM_WORLD.
    l->comm = comm;
    return l;
}

// All ranks of the parent have just met in an all-gather, so the blocking MPI_Comm_split() waits
// only for a short time.
MPI_Comm mpi_split_comm(Comm *parent, const size_t *members, size_t me) {
    const MpiLink *l = parent->state->link;
    MPI_Comm comm;
    MPI(MPI_Comm_split(l->comm, fits_int(members[0]), fits_int(me), &comm));
    return comm;
}
static void *mpi_split(Comm *parent, const size_t *members, size_t n, size_t me) {
    (void)n;
    return link_new(mpi_split_comm(parent, members, me));
}

static void mpi_close(Comm *c) {
    MpiLink *l = c->state->link;
    MPI(MPI_Comm_free(&l->comm));
    free(l);
}

static const Wire wire_mpi = { mpi_start, mpi_finish, mpi_meet, NULL, mpi_split, mpi_close };

// ---- 6. The launch ----

void mpi_open(MPI_Comm host) {
    int size;
    MPI(MPI_Comm_size(host, &size));
    crowded = size > sysconf(_SC_NPROCESSORS_ONLN);
    waits_open(host);
}

static Comm *duplicate_world(const Launch *launch, const char *name) {
    MPI_Comm comm;
    MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    return comm_of_world(name, &wire_mpi, link_new(comm), launch);
}

Comm *mpi_side_channel(const Launch *launch) {
    Comm *side_channel = duplicate_world(launch, "side channel");
    alarm(0); // ends the alarm of judge/frame/process.c, because all ranks have started
    timeout = launch->timeout;
    return side_channel;
}

void mpi_run(const Launch *launch, RankBody body) {
    Comm *world = duplicate_world(launch, "world");
    device_meanwhile = move_on;
    waits_search(launch->deadlock);
    comm_run_rank(world, mpi_side_channel(launch), body);
    device_meanwhile = NULL;
}
