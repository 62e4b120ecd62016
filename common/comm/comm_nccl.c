// comm_nccl.c: ranks are processes with a GPU each, and NCCL moves their tensors in place. MPI
// starts NCCL and carries host memory (comm_mpi.c). If memory is poisoned (lessons, --check), and
// under the simulated clock, MPI also carries a note beside every tensor. A note has the call of
// this rank and its time. NCCL does not compare calls, so without notes calls that do not match
// would hang or mix up bytes. Without NCCL the file has no transport.
//
// Streams. The ops of a rank run on its compute stream. Every communicator has its own stream, its
// lane, so a group with a late member delays no other group. Collectives go onto the lanes in
// program order, which is the same on all ranks. NCCL demands the same order, because two
// collectives in different orders on two ranks could wait for each other. comm_connect gives every
// ordered pair of ranks a lane and a communicator of two ranks for messages. So a send with a late
// receiver delays nothing else, and the sends and receives of a group progress side by side. On the
// GPU an operation first waits for the earlier work of the compute stream (event `ready`).
// comm_wait() makes the compute stream wait, on the GPU, for the operation's end (event `done`).
// The host waits for notes only.
//
// NCCL never blocks the host (blocking = 0). A call that must wait for other ranks stays "in
// progress", and until then the communicator takes no other call. So operations wait in a queue
// until they are on their stream. Every wait, here, in MPI or for the GPU, advances all queues,
// checks for errors and has a deadline.
//
// With --reduce ordered each rank receives its part of every rank's tensor and adds the parts in
// rank order. Then it sends the sum to all ranks. This happens piece by piece. --reduce fast uses
// NCCL's own algorithm.
//
// Tensors of 16 bits travel as they are stored, as ncclBfloat16 or ncclHalf. NCCL's own sums would
// round them at every hop, so their sums are always in rank order: a kernel adds in real and rounds
// once (op_combine). An all-reduce of S elements on n ranks sends 2 (n - 1) / n * 2 S bytes per
// rank, as a ring of 16-bit elements does.
//
// Sections: 1 errors, 2 communicators and connections, 3 notes, 4 work on a stream, 5 queues, 6
// start and finish, 7 groups, 8 the launch.
#include "common/comm/transport.h"
#ifndef HAVE_NCCL

const char *nccl_missing(void) {
    return "this program was built without NCCL; make doctor shows what is missing";
}

void nccl_run(const LaunchOptions *o, RankBody body) {
    (void)o, (void)body;
    fault("nccl_run: %s", nccl_missing());
}

#else
#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/comm/comm_mpi.h"
#include "common/device/device.h"
#include "common/device/device_cuda.h"
#include "common/tensor/ops.h"
#include "common/tensor/random.h"

// A stream and its queue of operations, oldest first.
typedef struct Lane {
    cudaStream_t stream;
    struct Flight *waiting;
    struct Lane *next;
} Lane;

// The fields of a note. CALL is a message's length, or the hash of a collective's call. INVERSE is
// ~CALL. All CALLs are equal only if the largest INVERSE over all members is the inverse of the
// largest CALL.
enum { NOTE_TIME, NOTE_CALL, NOTE_INVERSE, NOTE_LENGTH };

// An operation in flight.
typedef struct Flight {
    struct Flight *behind; // next in its queue
    struct Flight *next;   // next in the list of spare flights
    Request what;          // the request as it was started
    Lane *lane;
    ncclComm_t comm;
    struct Pair *pair; // for a message
    size_t steps;      // number of steps that are on the stream
    bool launched;     // all steps are on the stream
    cudaEvent_t ready, done;
    MPI_Request note_request;
    uint64_t note[NOTE_LENGTH];
} Flight;

// Messages from one rank to another, in one Comm.
typedef struct Pair {
    Lane lane;
    bool to_myself;
    ncclComm_t nccl;
    ncclUniqueId id; // the sender makes it and sends it to the receiver
} Pair;

typedef struct {
    MpiLink mpi;       // must be first: comm_mpi.c sees only this
    ncclComm_t nccl;   // NULL in a group of one
    Lane lane;         // for its collectives, which wait in process.waiting
    char *piece;       // [PIECE] the contributions of a sum, under --reduce ordered
    Pair **to, **from; // by rank; NULL: not connected
} Link;

// The state of this process's only rank.
static struct {
    Flight *waiting; // collectives of all lanes, in program order
    Lane *lanes;     // all lanes of this rank
    Flight *spare;
    Request latest; // the last operation with a wait; the GPU may still wait for it
    double timeout;
    ncclComm_t *communicators;
    size_t n_communicators;
} process;

enum { TAG_NOTE = 2, TAG_ID }; // apart from the tags of comm_mpi.c
enum { PIECE = 1 << 18 };      // elements

static Link *link_of(const Comm *c) { return c->state->link; }

// ---- 1. Errors ----

static void check_nccl(ncclResult_t result, const char *doing, size_t length) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    fault("%.*s failed: %s: %s; set NCCL_DEBUG=WARN to see more", (int)length, doing,
          ncclGetErrorString(result), ncclGetLastError(NULL));
}
#define NCCL(call) check_nccl(call, #call, strcspn(#call, "("))

// May the communicator be called again? fault() if it has failed. A rank that faults prints the
// reason and ends all other ranks. So this rank reports a remote failure only if it is still alive
// after a while.
static bool settled(ncclComm_t comm, const char *doing) {
    ncclResult_t state;
    NCCL(ncclCommGetAsyncError(comm, &state));
    if (state == ncclRemoteError) sleep(2);
    check_nccl(state, doing, strlen(doing));
    return state != ncclInProgress;
}

// One turn of a waiting loop. MPI's messages move only while this rank calls MPI. After a deadline
// no communicator is aborted, because fault() ends the process with its kernels, but
// ncclCommAbort() could wait for a kernel.
static void move_on(void);
static void turn(double since, double timeout, const char *where) {
    int any;
    move_on();
    MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &any, MPI_STATUS_IGNORE));
    if (now() > since + timeout) too_late(timeout, where);
    give_core_away(now() - since);
}

static const ncclDataType_t REAL = sizeof(real) == sizeof(double) ? ncclDouble : ncclFloat;
static ncclDataType_t type_of(const Request *r) {
    return r->element == BF16S ? ncclBfloat16 : r->element == FP16S ? ncclHalf : REAL;
}

// ---- 2. Communicators. All end together at the end of the run, because ending one is collective.
// ----

static void keep(ncclComm_t comm) {
    process.communicators = realloc(process.communicators, ++process.n_communicators * sizeof comm);
    if (!process.communicators)
        fault("out of memory for %zu communicators", process.n_communicators);
    process.communicators[process.n_communicators - 1] = comm;
}

// most_blocks: limit of a kernel's blocks on the GPU; 0: NCCL's choice. The function returns at
// once; settled() is true when all ranks have joined.
static ncclComm_t join(ncclUniqueId id, int size, int rank, int most_blocks) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    config.blocking = 0;
    if (most_blocks > 0) config.maxCTAs = most_blocks;
    NCCL(ncclCommInitRankConfig(&comm, size, id, rank, &config));
    keep(comm);
    return comm;
}

static void settle(ncclComm_t comm, double timeout, const char *doing) {
    for (double since = now(); !settled(comm, doing);) turn(since, timeout, doing);
}

static void lane_open(Lane *l) {
    CUDA(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking));
    l->next = process.lanes;
    process.lanes = l;
}
static void lane_close(Lane *l) {
    Lane **place = &process.lanes;
    while (*place != l) place = &(*place)->next;
    *place = l->next;
    CUDA(cudaStreamDestroy(l->stream));
}

// Waits until everything on a lane is done.
static void drain(const Lane *l, double timeout, const char *where) {
    cudaError_t state;
    for (double since = now(); (state = cudaStreamQuery(l->stream)) == cudaErrorNotReady;) {
        // cudaErrorNotReady is expected here. Clear it, so that the next launch does not report it.
        cudaGetLastError();
        turn(since, timeout, where);
    }
    check_cuda(state, "cudaStreamQuery");
}

// NCCL connects ranks when an operation first needs it. Later, while kernels wait for each other,
// connecting may hang. So these operations use all connections of the communicator at the start.
static void use_all_connections(ncclComm_t comm, const Lane *l, int me, int size, double timeout) {
    size_t bytes = (size_t)(size + 1) * sizeof(real);
    real *element = device_alloc(bytes);
    if (!element) fault("out of memory on the GPU: %zu bytes to connect ranks", bytes);
    CUDA(cudaMemsetAsync(element, 0, bytes, device_stream()));
    device_synchronize();
    NCCL(ncclAllReduce(element, element, 1, REAL, ncclSum, comm, l->stream));
    settle(comm, timeout, "a connection");
    NCCL(ncclGroupStart());
    for (int peer = 0; peer < size; peer++) {
        if (peer == me) continue;
        NCCL(ncclSend(element, 1, REAL, peer, comm, l->stream));
        NCCL(ncclRecv(element + 1 + peer, 1, REAL, peer, comm, l->stream));
    }
    NCCL(ncclGroupEnd());
    settle(comm, timeout, "a connection");
    drain(l, timeout, "a connection");
    device_free(element);
}

// A send's kernel waits on the GPU for its receiver. It has few blocks, so that the kernels of all
// pairs fit on the GPU beside the collectives and the ops. Otherwise the ranks would hang: a kernel
// would wait for room on the GPU, and the kernels that hold the room would wait for it.
enum { PAIR_BLOCKS = 4 };

static Pair *pair_new(bool to_myself) {
    Pair *p = host_alloc(sizeof *p);
    p->to_myself = to_myself;
    lane_open(&p->lane);
    return p;
}
static void pair_free(Pair *p) {
    if (!p) return;
    lane_close(&p->lane);
    free(p);
}

// A rank calls this before it waits for any message, because joining a communicator may hang while
// kernels wait for each other.
static void nccl_connect(Comm *c, CommPeers peers) {
    Link *l = link_of(c);
    size_t n = c->size, me = c->rank, requests = 0;
    MPI_Request *request = host_alloc(2 * n * sizeof *request);
    bool *joins = host_alloc(2 * n * sizeof *joins); // [to, from] by rank
    int told = 0;
    for (size_t peer = 0; peer < n; peer++) {
        bool neighbour = peer == (me + 1) % n || me == (peer + 1) % n;
        if (peer == me || l->to[peer] || (peers == COMM_NEIGHBOURS && !neighbour)) continue;
        Pair *to = l->to[peer] = pair_new(false), *from = l->from[peer] = pair_new(false);
        joins[peer] = true;
        NCCL(ncclGetUniqueId(&to->id));
        MPI(MPI_Isend(&to->id, sizeof to->id, MPI_BYTE, (int)peer, TAG_ID, l->mpi.comm,
                      &request[requests++]));
        MPI(MPI_Irecv(&from->id, sizeof from->id, MPI_BYTE, (int)peer, TAG_ID, l->mpi.comm,
                      &request[requests++]));
    }
    for (double since = now(); !told; turn(since, c->state->timeout, "comm_connect"))
        MPI(MPI_Testall((int)requests, request, &told, MPI_STATUSES_IGNORE));
    for (size_t peer = 0; peer < n; peer++) {
        if (!joins[peer]) continue;
        // in this communicator rank 0 sends to rank 1
        l->to[peer]->nccl = join(l->to[peer]->id, 2, 0, PAIR_BLOCKS);
        l->from[peer]->nccl = join(l->from[peer]->id, 2, 1, PAIR_BLOCKS);
    }
    for (size_t peer = 0; peer < n; peer++) {
        if (!joins[peer]) continue;
        settle(l->to[peer]->nccl, c->state->timeout, "comm_connect");
        settle(l->from[peer]->nccl, c->state->timeout, "comm_connect");
    }
    for (size_t lo = 0; lo < n; lo++) // pair by pair, in the same order on all ranks
        for (size_t hi = lo + 1; hi < n; hi++) {
            size_t peer = me == lo ? hi : lo;
            if ((me != lo && me != hi) || !joins[peer]) continue;
            Pair *up = me == lo ? l->to[peer] : l->from[peer],
                 *down = me == lo ? l->from[peer] : l->to[peer];
            use_all_connections(up->nccl, &up->lane, me == lo ? 0 : 1, 2, c->state->timeout);
            use_all_connections(down->nccl, &down->lane, me == lo ? 1 : 0, 2, c->state->timeout);
        }
    free(request);
    free(joins);
}

static Pair *pair_of(const Request *r) {
    Link *l = link_of(r->comm);
    if (r->peer != r->comm->rank) return (r->action == DO_SEND ? l->to : l->from)[r->peer];
    if (!l->to[r->peer]) l->to[r->peer] = pair_new(true);
    return l->to[r->peer];
}

// ---- 3. Notes ----

// The note of a collective carries the largest `ready` of the simulated clock, and shows whether
// all members make the same call. The note of a message carries `arrives` and the length in bytes.
// A send waits for its receiver through its note, because NCCL buffers short messages.
static uint64_t message_bytes(const Request *r) { return r->count * element_size(r->element); }
static void start_note(Flight *f) {
    Request *r = &f->what;
    f->note_request = MPI_REQUEST_NULL;
    if (!memory_poison() && !request_simulated(r)) return;
    MPI_Comm comm = link_of(r->comm)->mpi.comm;
    uint64_t key = random_key(random_key(random_key(r->action, r->count), r->peer), r->element);
    f->note[NOTE_TIME] = r->action == DO_SEND ? r->arrives : r->ready;
    f->note[NOTE_CALL] = request_is_message(r) ? message_bytes(r) : random_key(key, r->row);
    f->note[NOTE_INVERSE] = ~f->note[NOTE_CALL];
    const int n = NOTE_LENGTH, peer = (int)r->peer;
    if (r->action == DO_RECV)
        MPI(MPI_Irecv(f->note, n, MPI_UINT64_T, peer, TAG_NOTE, comm, &f->note_request));
    else if (r->action == DO_SEND)
        MPI(MPI_Issend(f->note, n, MPI_UINT64_T, peer, TAG_NOTE, comm, &f->note_request));
    else
        MPI(MPI_Iallreduce(MPI_IN_PLACE, f->note, n, MPI_UINT64_T, MPI_MAX, comm,
                           &f->note_request));
}

static bool note_came(Flight *f) {
    const Request *r = &f->what;
    char text[200];
    int came;
    if (f->note_request == MPI_REQUEST_NULL) return true;
    MPI(MPI_Test(&f->note_request, &came, MPI_STATUS_IGNORE));
    if (!came) return false;
    describe(r, text);
    if (r->action == DO_RECV && f->note[NOTE_CALL] != message_bytes(r))
        fault("sizes do not match in %s: the message has %zu bytes", text,
              (size_t)f->note[NOTE_CALL]);
    if (!request_is_message(r) && f->note[NOTE_CALL] != ~f->note[NOTE_INVERSE])
        fault("calls do not match in %s: another rank makes another call, or the same call with "
              "another size, element type or root; all ranks must make the same calls",
              text);
    return true;
}

// ---- 4. Work on a stream: one step, or two per piece of a sum in rank order ----

static bool equal_parts(const Request *r) { return r->count % (r->comm->size * r->row) == 0; }

// NCCL is not used for a maximum, because it does not promise to keep a NaN, nor for sums of 16-bit
// elements, because it would round at every hop. NCCL computes a reduce-scatter only if all parts
// are equal.
static bool library_sums(const Request *r) {
    return r->comm->state->reduce == REDUCE_FAST && r->element == REALS &&
           r->action != DO_ALL_REDUCE_MAX && (r->action != DO_REDUCE_SCATTER || equal_parts(r));
}
static bool summed_here(const Request *r) { return request_adds(r) && !library_sums(r); }

static void copy(const Request *r, void *to, const void *from, size_t count, cudaStream_t stream) {
    const size_t bytes = count * element_size(r->element);
    if (count && to != from)
        CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}

// A started sum is one piece, in its request's scratch.
static size_t piece_size(const Request *r) {
    return r->scratch ? request_longest_part(r) : PIECE / r->comm->size;
}
static char *scratch_of(const Request *r) {
    return r->scratch ? r->scratch : link_of(r->comm)->piece;
}

// Starts one round of a collective. All of its parcels progress together.
static void exchange(const Request *r, const Parcel parcel[], ncclComm_t comm,
                     cudaStream_t stream) {
    NCCL(ncclGroupStart());
    for (size_t i = 0; i < r->comm->size; i++) {
        const Parcel *p = &parcel[i];
        if (p->sends) NCCL(ncclSend(p->send, p->sends, type_of(r), (int)i, comm, stream));
        if (p->receives) NCCL(ncclRecv(p->receive, p->receives, type_of(r), (int)i, comm, stream));
    }
    NCCL(ncclGroupEnd());
}

static void exchange_contributions(const Request *r, size_t offset, ncclComm_t comm,
                                   cudaStream_t stream) {
    Parcel parcel[r->comm->size];
    parcels_of_contributions(r, scratch_of(r), offset, piece_size(r), parcel);
    exchange(r, parcel, comm, stream);
}

static void add_pieces(const Request *r, size_t offset, ncclComm_t comm, cudaStream_t stream) {
    Range own = request_piece(r, r->comm->rank, offset, piece_size(r));
    bool part_only = r->action == DO_REDUCE_SCATTER || r->action == DO_REDUCE;
    size_t count = range_size(own), n = r->comm->size, size = element_size(r->element);
    char *scratch = scratch_of(r), *out = r->out + (part_only ? offset : own.lo) * size;
    // the sum replaces the first part
    Tensor parts = { .rows = n, .cols = count, .ld = piece_size(r), .element = r->element };
    parts.data = (real *)scratch;
    copy(r, scratch + r->comm->rank * piece_size(r) * size, r->in + own.lo * size, count, stream);
    device_divert(stream);
    op_combine(tensor_row_range(parts, 0, 1), parts, r->action == DO_ALL_REDUCE_MAX);
    device_divert(NULL);
    copy(r, out, scratch, count, stream);
    if (part_only) return;
    Parcel parcel[n];
    parcels_of_sums(r, scratch, offset, piece_size(r), parcel);
    exchange(r, parcel, comm, stream);
}

static void gather(const Request *r, ncclComm_t comm, cudaStream_t stream) {
    Range part = request_part(r, r->comm->rank);
    char *own = r->out + part.lo * element_size(r->element);
    copy(r, own, r->in, r->in_count, stream);
    if (equal_parts(r)) {
        NCCL(ncclAllGather(own, r->out, range_size(part), type_of(r), comm, stream));
        return;
    }
    Parcel parcel[r->comm->size];
    parcels_of_sums(r, own, 0, request_longest_part(r), parcel);
    exchange(r, parcel, comm, stream);
}

static void all_to_all(const Request *r, ncclComm_t comm, cudaStream_t stream) {
    Range own = request_part(r, r->comm->rank);
    size_t size = element_size(r->element);
    Parcel parcel[r->comm->size];
    copy(r, r->out + r->comm->rank * range_size(own) * size, r->in + own.lo * size, range_size(own),
         stream);
    parcels_to_all(r, parcel);
    exchange(r, parcel, comm, stream);
}

static void whole_operation(const Request *r, ncclComm_t comm, cudaStream_t stream) {
    const char *in = r->in;
    const ncclDataType_t type = type_of(r);
    // nccl_finish() copies the result of a started sum from scratch
    char *out = r->scratch ? r->scratch : r->out;
    int root = (int)r->peer;
    switch (r->action) {
    case DO_SEND: NCCL(ncclSend(in, r->count, type, 1, comm, stream)); break;
    case DO_RECV: NCCL(ncclRecv(out, r->count, type, 0, comm, stream)); break;
    case DO_BROADCAST:
        NCCL(ncclBroadcast(in, r->comm->rank == r->peer ? (char *)in : out, r->count, type, root,
                           comm, stream));
        break;
    case DO_ALL_GATHER: gather(r, comm, stream); break;
    case DO_ALL_TO_ALL: all_to_all(r, comm, stream); break;
    case DO_ALL_REDUCE: NCCL(ncclAllReduce(in, out, r->count, type, ncclSum, comm, stream)); break;
    case DO_REDUCE: NCCL(ncclReduce(in, out, r->count, type, ncclSum, root, comm, stream)); break;
    default:
        NCCL(ncclReduceScatter(in, out, r->count / r->comm->size, type, ncclSum, comm, stream));
        break;
    }
}

// A sum in rank order has two steps per piece. Every other operation has one step.
static size_t steps_of(const Request *r) {
    return r->count == 0    ? 0
           : summed_here(r) ? 2 * ceil_div(request_longest_part(r), piece_size(r))
                            : 1;
}
static void one_step(const Request *r, size_t step, ncclComm_t comm, cudaStream_t stream) {
    size_t at = step / 2 * piece_size(r);
    if (!summed_here(r)) whole_operation(r, comm, stream);
    else if (step % 2 == 0) exchange_contributions(r, at, comm, stream);
    else add_pieces(r, at, comm, stream);
}

// ---- 5. Queues ----

static void launched(Flight *f) {
    CUDA(cudaEventRecord(f->done, f->lane->stream));
    f->launched = true;
}

static bool launch(Flight *f) {
    const Request *r = &f->what;
    char text[200];
    describe(r, text);
    for (; f->steps < steps_of(r); f->steps++) {
        if (!settled(f->comm, text)) return false;
        if (f->steps == 0) CUDA(cudaStreamWaitEvent(f->lane->stream, f->ready, 0));
        one_step(r, f->steps, f->comm, f->lane->stream);
    }
    if (!settled(f->comm, text)) return false; // only now all steps are on the stream
    launched(f);
    return true;
}

// A send and a receive of the same rank become a copy, once both are in the queue. Removes the
// partner from the queue.
static bool launch_to_myself(Lane *l) {
    Flight *f = l->waiting, **other = &f->behind;
    while (*other && (*other)->what.action == f->what.action) other = &(*other)->behind;
    Flight *g = *other;
    if (!g) return false;
    *other = g->behind;
    const Request *send = f->what.action == DO_SEND ? &f->what : &g->what;
    const Request *recv = send == &f->what ? &g->what : &f->what;
    CUDA(cudaStreamWaitEvent(l->stream, f->ready, 0));
    CUDA(cudaStreamWaitEvent(l->stream, g->ready, 0));
    if (send->count == recv->count) // otherwise their notes report the mismatch
        copy(send, recv->out, send->in, send->count, l->stream);
    launched(f);
    launched(g);
    return true;
}

// Launches everything that can be launched. Collectives are launched in program order.
static void move_on(void) {
    while (process.waiting && launch(process.waiting)) process.waiting = process.waiting->behind;
    for (Lane *l = process.lanes; l; l = l->next)
        for (Flight *f; (f = l->waiting) != NULL; l->waiting = f->behind)
            if (f->pair->to_myself ? !launch_to_myself(l) : !launch(f)) break;
}

// Called while the host waits for the GPU, which may wait for other ranks.
static void meanwhile(double waited) {
    char text[200] = "the GPU";
    int any;
    move_on();
    if (waited > 0)
        MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &any, MPI_STATUS_IGNORE));
    for (size_t i = 0; i < process.n_communicators && waited > 0.1; i++)
        settled(process.communicators[i], "an operation");
    if (waited < process.timeout) return;
    if (process.latest.comm) describe(&process.latest, text);
    too_late(process.timeout, text);
}

// ---- 6. Start and finish ----

static Flight *flight_new(void) {
    Flight *f = process.spare;
    if (f) {
        process.spare = f->next;
    } else {
        f = host_alloc(sizeof *f);
        CUDA(cudaEventCreateWithFlags(&f->ready, cudaEventDisableTiming));
        CUDA(cudaEventCreateWithFlags(&f->done, cudaEventDisableTiming));
    }
    *f = (Flight){ .ready = f->ready, .done = f->done };
    return f;
}

static void nccl_start(Request *r) {
    if (!element_of_tensor(r->element)) {
        mpi_start(r);
        return;
    }
    Link *l = link_of(r->comm);
    Flight *f = r->more = flight_new();
    if (summed_here(r) && !r->scratch && !l->piece) {
        l->piece = device_alloc(PIECE * sizeof(real));
        if (!l->piece) fault("out of memory on the GPU: %zu bytes for sums", PIECE * sizeof(real));
    }
    f->what = *r;
    f->pair = request_is_message(r) ? pair_of(r) : NULL;
    f->lane = f->pair ? &f->pair->lane : &l->lane;
    f->comm = f->pair ? f->pair->nccl : l->nccl;
    CUDA(cudaEventRecord(f->ready, device_stream()));
    start_note(f);
    Flight **last = f->pair ? &f->lane->waiting : &process.waiting;
    while (*last) last = &(*last)->behind;
    *last = f;
    move_on();
}

static bool is_launched(Flight *f) { return f->launched; }

static void wait_until(bool (*came)(Flight *), Flight *f, const Request *r) {
    char text[200];
    describe(r, text);
    for (double since = now(); !came(f); turn(since, r->comm->state->timeout, text))
        if (f->comm) settled(f->comm, text);
}

static void take_time(Request *r) {
    Picoseconds time = ((Flight *)r->more)->note[NOTE_TIME];
    if (!request_simulated(r)) return;
    if (request_is_message(r)) r->arrives = time;
    else r->all_ready = time;
}

static void nccl_meet(Request *r) {
    if (!element_of_tensor(r->element)) {
        mpi_meet(r);
        return;
    }
    wait_until(note_came, r->more, r);
    take_time(r);
}

static void nccl_finish(Request *r) {
    Flight *f = r->more;
    if (!element_of_tensor(r->element)) {
        mpi_finish(r);
        return;
    }
    process.latest = *r;
    wait_until(note_came, f, r);
    wait_until(is_launched, f, r);
    take_time(r);
    // later work of this rank runs after the operation
    CUDA(cudaStreamWaitEvent(device_stream(), f->done, 0));
    if (r->scratch && library_sums(r))
        device_copy(r->out, r->scratch, r->out_count * element_size(r->element));
    f->next = process.spare;
    process.spare = f;
    r->more = NULL;
}

// ---- 7. Groups ----

static Link *link_new(MPI_Comm comm, size_t size) {
    Link *l = host_alloc(sizeof *l);
    mpi_link_open(&l->mpi, comm);
    lane_open(&l->lane);
    l->to = host_alloc(size * sizeof *l->to);
    l->from = host_alloc(size * sizeof *l->from);
    return l;
}

// NCCL can split a communicator only if nothing is in flight on it. A group of one rank needs no
// split.
static void *nccl_split(Comm *parent, const size_t *members, size_t n, size_t me) {
    Link *from = link_of(parent), *l = link_new(mpi_split_comm(parent, members, n, me), n);
    double timeout = parent->state->timeout;
    for (double since = now(); process.waiting; turn(since, timeout, "a split")) {}
    if (!from->nccl) return l;
    drain(&from->lane, timeout, "a split");
    int colour = n > 1 ? (int)members[0] : NCCL_SPLIT_NOCOLOR;
    NCCL(ncclCommSplit(from->nccl, colour, (int)me, &l->nccl, NULL));
    settle(from->nccl, timeout, "a split"); // afterwards NCCL has created the new communicator
    if (n == 1) return l;
    settle(l->nccl, timeout, "a split");
    keep(l->nccl);
    use_all_connections(l->nccl, &l->lane, (int)me, (int)n, timeout);
    return l;
}

static void nccl_close(Comm *c) {
    Link *l = link_of(c);
    double timeout = c->state->timeout;
    for (size_t i = 0; i < c->size; i++) {
        if (l->to[i]) drain(&l->to[i]->lane, timeout, "the last messages");
        if (l->from[i]) drain(&l->from[i]->lane, timeout, "the last messages");
        pair_free(l->to[i]);
        pair_free(l->from[i]);
    }
    drain(&l->lane, timeout, "the last operations");
    if (process.latest.comm == c) process.latest.comm = NULL;
    lane_close(&l->lane);
    if (l->piece) device_free(l->piece);
    mpi_link_close(c);
    free(l->to);
    free(l->from);
    free(l);
}

static const Wire wire_nccl = { true,         nccl_start, nccl_finish, nccl_meet,
                                nccl_connect, nccl_split, nccl_close };

// ---- 8. The launch ----

const char *nccl_missing(void) { return NULL; }

// Starts to end all communicators, then waits for all of them, so ranks may arrive in any order.
static void end_communicators(double timeout) {
    for (size_t i = 0; i < process.n_communicators; i++)
        NCCL(ncclCommFinalize(process.communicators[i]));
    for (size_t i = 0; i < process.n_communicators; i++)
        settle(process.communicators[i], timeout, "the end of NCCL");
    for (size_t i = 0; i < process.n_communicators; i++)
        NCCL(ncclCommDestroy(process.communicators[i]));
    free(process.communicators);
    for (Flight *f; (f = process.spare) != NULL;) {
        process.spare = f->next;
        CUDA(cudaEventDestroy(f->ready));
        CUDA(cudaEventDestroy(f->done));
        free(f);
    }
}

void nccl_run(const LaunchOptions *o, RankBody body) {
    MPI_Comm comm;
    ncclUniqueId id;
    device_stream(); // from here on the process uses its GPU
    process.timeout = o->timeout;
    MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    Link *l = link_new(comm, this_world_size);
    if (this_world_size > 1) {
        if (this_rank == 0) NCCL(ncclGetUniqueId(&id));
        MPI(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, comm));
        l->nccl = join(id, (int)this_world_size, (int)this_rank, 0);
        settle(l->nccl, o->timeout, "the start of NCCL");
        use_all_connections(l->nccl, &l->lane, (int)this_rank, (int)this_world_size, o->timeout);
    }
    mpi_meanwhile = move_on;
    device_meanwhile = meanwhile;
    comm_run_rank(comm_new("world", this_rank, this_world_size, NULL, &wire_nccl, l, o->reduce,
                           o->timeout),
                  mpi_side_channel(o), body);
    mpi_meanwhile = NULL;
    device_meanwhile = NULL;
    end_communicators(o->timeout);
    mpi_leave_together(o);
}
#endif
