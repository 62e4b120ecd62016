// comm_nccl.c: runs the ranks as processes with a GPU each. NCCL moves the ranks' tensors in place.
// MPI starts NCCL and carries host memory (comm_mpi.c). If memory is poisoned (lessons, --check),
// and under the simulated clock, MPI also carries a note beside every tensor (comm_mpi.h). A note
// describes the call of this rank and has a time. NCCL buffers small messages, so a small send
// waits for its receiver only through the note. NCCL does not compare the calls of the ranks. So
// without notes, calls that do not match hang or mix up bytes. In a build without NCCL this file
// only reports that NCCL is missing.
//
// The ops of a rank run on its compute stream. Every Comm has a lane for its collectives. A lane is
// a communicator of NCCL with its own stream. So a group with a late member delays no other group.
// Collectives go onto the lanes in program order, which is the same on all ranks. NCCL demands the
// same order on all ranks, because otherwise two collectives could wait for each other.
// comm_connect gives every ordered pair of connected ranks its own lane for messages, with a
// communicator of two ranks. So a send with a late receiver delays nothing else, and the sends and
// receives of a group progress side by side. On the GPU an operation first waits for the earlier
// work of the compute stream (event `ready`). comm_wait() makes the compute stream wait, on the
// GPU, for the operation's end (event `done`). The host waits only for notes, and until the
// operation is on its stream.
//
// NCCL never blocks the host (blocking = 0). A call that must wait for other ranks stays "in
// progress", and meanwhile the communicator takes no other call. So an operation waits in a queue
// until all its steps are on its stream. Every wait (in this file, in MPI or for the GPU) advances
// all queues, checks for errors and has a deadline.
//
// With --reduce ordered each rank receives its part of every rank's tensor and adds these parts in
// rank order. In an all-reduce the rank then sends its sum to all ranks. A blocking sum works piece
// by piece. With --reduce fast NCCL computes the sums that library_sums() allows.
//
// Tensors of 16 bits travel as they are stored, as ncclBfloat16 or ncclHalf. NCCL's own sums would
// round at every hop, so sums of 16 bits are always in rank order. The kernel of op_combine() adds
// in real and rounds once.
//
// Sections: 1 errors, 2 communicators and connections, 3 work on a stream, 4 queues, 5 start and
// finish, 6 groups, 7 the launch.
#include "common/comm/transport.h"
#ifndef HAVE_NCCL

const char *nccl_missing(void) {
    return "this program was built without NCCL; make doctor shows what is missing";
}

void nccl_run(const Launch *launch, RankBody body) {
    (void)launch, (void)body;
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

// A Lane is a communicator of NCCL with its own stream, and with a queue of the messages that wait,
// oldest first.
typedef struct Lane {
    ncclComm_t nccl; // NULL in a group of one, and for messages of a rank to itself
    ncclUniqueId id; // made by one rank, which sends the id to the others
    cudaStream_t stream;
    struct Flight *waiting;
    struct Lane *next;
} Lane;

typedef struct Flight {
    struct Flight *behind; // the next Flight in the queue
    const Request *request;
    Lane *lane;
    size_t steps;  // number of steps that are on the stream
    bool launched; // all steps are on the stream
    cudaEvent_t ready, done;
} Flight;

typedef struct {
    MpiLink mpi;       // must be the first member, because comm_mpi.c reads a Link as an MpiLink
    Lane *lane;        // for the Comm's collectives, which wait in process.waiting
    char *piece;       // device memory for [PIECE] elements: all ranks' contributions to a piece
    Lane **to, **from; // [rank] lanes for messages to and from the rank; NULL: not connected
} Link;

// `process` has the state of this process's only rank.
static struct {
    Flight *waiting; // collectives of all lanes, in program order
    Lane *lanes;     // all lanes of this rank, also of Comms that were freed
    Comm *world;
    double timeout;
    char latest[200]; // the last operation in nccl_finish(); the GPU may still wait for its end
} process = { .latest = "the GPU" };

enum { TAG_ID = 2 };      // differs from the tags of comm_mpi.c
enum { PIECE = 1 << 18 }; // elements of all ranks together

static Link *link_of(const Comm *c) { return c->state->link; }

// ---- 1. Errors ----

static void check_nccl(ncclResult_t result, const char *doing, size_t length) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    fault("%.*s failed: %s: %s; set NCCL_DEBUG=WARN to see more", (int)length, doing,
          ncclGetErrorString(result), ncclGetLastError(NULL));
}
#define NCCL(call) check_nccl(call, #call, strcspn(#call, "("))

// Returns whether the communicator may be called again. Calls fault() if the communicator has
// failed. A rank that faults prints the reason and ends all other ranks. So after a remote failure
// this rank first waits, and reports the failure only if no other rank has ended this rank.
static bool settled(ncclComm_t comm, const char *doing) {
    ncclResult_t state;
    NCCL(ncclCommGetAsyncError(comm, &state));
    if (state == ncclRemoteError) sleep(2);
    check_nccl(state, doing, strlen(doing));
    return state != ncclInProgress;
}

static const ncclDataType_t REAL = sizeof(real) == sizeof(double) ? ncclDouble : ncclFloat;
static ncclDataType_t type_of(const Request *r) {
    return r->element == BF16S ? ncclBfloat16 : r->element == FP16S ? ncclHalf : REAL;
}

// ---- 2. Communicators ----

static Lane *lane_new(void) {
    Lane *l = host_alloc(sizeof *l);
    CUDA(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking));
    l->next = process.lanes;
    return process.lanes = l;
}

// Starts to join a communicator and returns at once. settled() is true when all ranks have joined.
// most_blocks limits the blocks of NCCL's kernels on the GPU; 0 leaves the choice to NCCL.
static void join(Lane *l, int size, int rank, int most_blocks) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (most_blocks > 0) config.maxCTAs = most_blocks;
    NCCL(ncclCommInitRankConfig(&l->nccl, size, l->id, rank, &config));
}

// Waits until the communicator may be called again. After a deadline wait_turn() calls fault(),
// which ends the process with its kernels. No communicator is aborted, because ncclCommAbort()
// could wait for a kernel.
static void settle(const Lane *l, const char *doing) {
    for (double since = now(); !settled(l->nccl, doing);) wait_turn(since, doing);
}

// Waits until the GPU has done all work on a lane.
static void drain(const Lane *l, const char *where) {
    cudaError_t state;
    for (double since = now(); (state = cudaStreamQuery(l->stream)) == cudaErrorNotReady;) {
        // Clear the expected error cudaErrorNotReady, so that the next launch does not report this
        // error.
        cudaGetLastError();
        wait_turn(since, where);
    }
    check_cuda(state, "cudaStreamQuery");
}

// Uses every connection of a communicator once. NCCL connects two ranks when an operation first
// needs their connection. If NCCL connected two ranks later, while kernels wait for each other,
// NCCL might hang.
static void use_all_connections(const Lane *l, int me, int size) {
    size_t bytes = (size_t)(size + 1) * sizeof(real);
    real *element = device_alloc(bytes);
    if (!element) fault("out of memory on the GPU: %zu bytes to connect ranks", bytes);
    CUDA(cudaMemsetAsync(element, 0, bytes, device_stream()));
    device_synchronize();
    NCCL(ncclAllReduce(element, element, 1, REAL, ncclSum, l->nccl, l->stream));
    settle(l, "a connection");
    NCCL(ncclGroupStart());
    for (int peer = 0; peer < size; peer++) {
        if (peer == me) continue;
        NCCL(ncclSend(element, 1, REAL, peer, l->nccl, l->stream));
        NCCL(ncclRecv(element + 1 + peer, 1, REAL, peer, l->nccl, l->stream));
    }
    NCCL(ncclGroupEnd());
    settle(l, "a connection");
    drain(l, "a connection");
    device_free(element);
}

// A send's kernel waits on the GPU for its receiver. Such a kernel has few blocks, so that the
// kernels of all pairs fit on the GPU beside the collectives and the ops. Otherwise a kernel could
// wait for room on the GPU while the running kernels wait for this kernel, and the ranks would
// hang.
enum { PAIR_BLOCKS = 4 };

// Joins the communicators of this rank's pairs. A rank joins before it sends any message, because
// joining may hang while kernels wait for each other.
static void nccl_connect(Comm *c, CommPeers peers) {
    Link *l = link_of(c);
    size_t n = c->size, me = c->rank, requests = 0;
    MPI_Request *request = host_alloc(2 * n * sizeof *request);
    bool *joins = host_alloc(n * sizeof *joins); // [peer]: whether this call joins the pair
    int told = 0;
    for (size_t peer = 0; peer < n; peer++) {
        bool neighbour = peer == (me + 1) % n || me == (peer + 1) % n;
        if (peer == me || l->to[peer] || (peers == COMM_NEIGHBOURS && !neighbour)) continue;
        Lane *to = l->to[peer] = lane_new(), *from = l->from[peer] = lane_new();
        joins[peer] = true;
        NCCL(ncclGetUniqueId(&to->id));
        MPI(MPI_Isend(&to->id, sizeof to->id, MPI_BYTE, (int)peer, TAG_ID, l->mpi.comm,
                      &request[requests++]));
        MPI(MPI_Irecv(&from->id, sizeof from->id, MPI_BYTE, (int)peer, TAG_ID, l->mpi.comm,
                      &request[requests++]));
    }
    for (double since = now(); !told; wait_turn(since, "comm_connect"))
        MPI(MPI_Testall((int)requests, request, &told, MPI_STATUSES_IGNORE));
    for (size_t peer = 0; peer < n; peer++) {
        if (!joins[peer]) continue;
        // In the communicator of an ordered pair, rank 0 sends to rank 1.
        join(l->to[peer], 2, 0, PAIR_BLOCKS);
        join(l->from[peer], 2, 1, PAIR_BLOCKS);
    }
    for (size_t peer = 0; peer < n; peer++) {
        if (!joins[peer]) continue;
        settle(l->to[peer], "comm_connect");
        settle(l->from[peer], "comm_connect");
    }
    for (size_t lo = 0; lo < n; lo++) // pair by pair, in the same order on all ranks
        for (size_t hi = lo + 1; hi < n; hi++) {
            size_t peer = me == lo ? hi : lo;
            if ((me != lo && me != hi) || !joins[peer]) continue;
            use_all_connections(me == lo ? l->to[peer] : l->from[peer], me == lo ? 0 : 1, 2);
            use_all_connections(me == lo ? l->from[peer] : l->to[peer], me == lo ? 1 : 0, 2);
        }
    free(request);
    free(joins);
}

static Lane *lane_of(const Request *r) {
    Link *l = link_of(r->comm);
    if (!request_is_message(r)) return l->lane;
    const bool sends = r->action == DO_SEND || r->peer == r->comm->rank;
    return (sends ? l->to : l->from)[r->peer];
}

// ---- 3. Work on a stream ----

static bool equal_parts(const Request *r) { return r->count % (r->comm->size * r->row) == 0; }

// Returns whether NCCL computes the sum. NCCL does not compute a maximum, because NCCL does not
// promise to keep a NaN. NCCL does not compute sums of 16-bit elements, because NCCL would round at
// every hop. NCCL's reduce-scatter needs parts of equal size.
static bool library_sums(const Request *r) {
    return r->comm->state->launch->reduce == REDUCE_FAST && r->element == REALS &&
           r->action != DO_ALL_REDUCE_MAX && (r->action != DO_REDUCE_SCATTER || equal_parts(r));
}
static bool summed_here(const Request *r) { return request_adds(r) && !library_sums(r); }

static void copy(const Request *r, void *to, const void *from, size_t count, const Lane *l) {
    const size_t bytes = count * element_size(r->element);
    if (count && to != from)
        CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, l->stream));
}

// Returns piece `number` of a sum. A started sum has only one piece, whose contributions go into
// the scratch of the request.
static Piece piece_at(const Request *r, size_t number) {
    const size_t most = r->scratch ? request_longest_part(r) : PIECE / r->comm->size;
    char *scratch = r->scratch ? r->scratch : link_of(r->comm)->piece;
    return (Piece){ .offset = number * most, .most = most, .scratch = scratch };
}

// Starts one round of a collective. All parcels of the round progress at the same time.
static void exchange(const Request *r, const Piece *piece, const Lane *l) {
    const Parcel own = request_parcel(r, r->comm->rank, piece);
    copy(r, own.receive, own.send, own.sends, l);
    NCCL(ncclGroupStart());
    for (size_t i = 0; i < r->comm->size; i++) {
        const Parcel p = request_parcel(r, i, piece);
        if (i == r->comm->rank) continue;
        if (p.sends) NCCL(ncclSend(p.send, p.sends, type_of(r), (int)i, l->nccl, l->stream));
        if (p.receives)
            NCCL(ncclRecv(p.receive, p.receives, type_of(r), (int)i, l->nccl, l->stream));
    }
    NCCL(ncclGroupEnd());
}

static void add_pieces(const Request *r, Piece piece, const Lane *l) {
    const Range own = request_piece(r, r->comm->rank, &piece);
    const bool part_only = r->action == DO_REDUCE_SCATTER || r->action == DO_REDUCE;
    const size_t count = range_size(own), n = r->comm->size, size = element_size(r->element);
    // The sum replaces rank 0's contribution in the scratch.
    Tensor parts = { .rows = n, .cols = count, .ld = piece.most, .element = r->element };
    parts.data = (real *)piece.scratch;
    copy(r, piece.scratch + r->comm->rank * piece.most * size, r->in + own.lo * size, count, l);
    device_divert(l->stream);
    op_combine(tensor_row_range(parts, 0, 1), parts, r->action == DO_ALL_REDUCE_MAX);
    device_divert(NULL);
    piece.sum = piece.scratch;
    if (part_only) copy(r, r->out + piece.offset * size, piece.sum, count, l);
    else exchange(r, &piece, l);
}

static void whole_operation(const Request *r, const Lane *l) {
    const char *in = r->in;
    const ncclDataType_t type = type_of(r);
    char *out = r->out;
    int root = (int)r->peer;
    switch (r->action) {
    case DO_SEND: NCCL(ncclSend(in, r->count, type, 1, l->nccl, l->stream)); break;
    case DO_RECV: NCCL(ncclRecv(out, r->count, type, 0, l->nccl, l->stream)); break;
    case DO_BROADCAST:
        NCCL(ncclBroadcast(in, r->comm->rank == r->peer ? (char *)in : out, r->count, type, root,
                           l->nccl, l->stream));
        break;
    case DO_ALL_TO_ALL: exchange(r, NULL, l); break;
    case DO_ALL_GATHER:
        if (equal_parts(r))
            NCCL(ncclAllGather(in, out, r->count / r->comm->size, type, l->nccl, l->stream));
        else exchange(r, NULL, l);
        break;
    case DO_ALL_REDUCE:
        NCCL(ncclAllReduce(in, out, r->count, type, ncclSum, l->nccl, l->stream));
        break;
    case DO_REDUCE:
        NCCL(ncclReduce(in, out, r->count, type, ncclSum, root, l->nccl, l->stream));
        break;
    default:
        NCCL(ncclReduceScatter(in, out, r->count / r->comm->size, type, ncclSum, l->nccl,
                               l->stream));
        break;
    }
}

// An operation without elements has no step. A sum in rank order has two steps per piece. Every
// other operation has one step.
static size_t steps_of(const Request *r) {
    return r->count == 0    ? 0
           : summed_here(r) ? 2 * ceil_div(request_longest_part(r), piece_at(r, 0).most)
                            : 1;
}
static void one_step(const Request *r, size_t step, const Lane *l) {
    const Piece piece = piece_at(r, step / 2);
    if (!summed_here(r)) whole_operation(r, l);
    else if (step % 2 == 0) exchange(r, &piece, l);
    else add_pieces(r, piece, l);
}

// ---- 4. Queues ----

static void launched(Flight *f) {
    CUDA(cudaEventRecord(f->done, f->lane->stream));
    f->launched = true;
}

static bool launch(Flight *f) {
    const Request *r = f->request;
    char text[200];
    describe(r, text);
    for (; f->steps < steps_of(r); f->steps++) {
        if (!settled(f->lane->nccl, text)) return false;
        if (f->steps == 0) CUDA(cudaStreamWaitEvent(f->lane->stream, f->ready, 0));
        one_step(r, f->steps, f->lane);
    }
    if (!settled(f->lane->nccl, text)) return false; // the last step is not on the stream yet
    launched(f);
    return true;
}

// Handles a message of a rank to itself. The first operation in the queue is a send or a receive.
// If the other operation of the message is in the queue, copies the data, removes that other
// operation from the queue and returns true. Otherwise returns false.
static bool launch_to_myself(Lane *l) {
    Flight *f = l->waiting, **other = &f->behind;
    while (*other && (*other)->request->action == f->request->action) other = &(*other)->behind;
    Flight *g = *other;
    if (!g) return false;
    *other = g->behind;
    const Request *send = f->request->action == DO_SEND ? f->request : g->request;
    const Request *recv = send == f->request ? g->request : f->request;
    CUDA(cudaStreamWaitEvent(l->stream, f->ready, 0));
    CUDA(cudaStreamWaitEvent(l->stream, g->ready, 0));
    if (send->count == recv->count) // notes, if there are any, report a mismatch
        copy(send, recv->out, send->in, send->count, l);
    launched(f);
    launched(g);
    return true;
}

// Launches all waiting operations that can be launched. Collectives are launched in program order.
static void move_on(void) {
    while (process.waiting && launch(process.waiting)) process.waiting = process.waiting->behind;
    for (Lane *l = process.lanes; l; l = l->next)
        for (Flight *f; (f = l->waiting) != NULL; l->waiting = f->behind)
            if (l->nccl ? !launch(f) : !launch_to_myself(l)) break;
}

// Launches waiting operations. Every product and every wait of the host calls this function. In a
// wait the function also calls MPI, because MPI's messages move only while this rank calls MPI. In
// a long wait the function checks all communicators for errors.
static void meanwhile(double waited) {
    int any;
    move_on();
    if (waited > 0)
        MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &any, MPI_STATUS_IGNORE));
    for (Lane *l = process.lanes; l && waited > 0.1; l = l->next)
        if (l->nccl) settled(l->nccl, "an operation");
}

// Calls meanwhile() at each product, and while the host waits for the GPU, which may wait for other
// ranks. Ends all ranks after --timeout.
static void meanwhile_on_gpu(double waited) {
    meanwhile(waited);
    if (waited >= process.timeout) too_late(process.timeout, process.latest);
}

// ---- 5. Start and finish ----

static void nccl_start(Request *r) {
    if (!element_of_tensor(r->element)) {
        mpi_start(r);
        return;
    }
    Link *l = link_of(r->comm);
    Flight *f = r->flight = host_alloc(sizeof *f);
    CUDA(cudaEventCreateWithFlags(&f->ready, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&f->done, cudaEventDisableTiming));
    if (summed_here(r) && !r->scratch && !l->piece) {
        l->piece = device_alloc(PIECE * sizeof(real));
        if (!l->piece) fault("out of memory on the GPU: %zu bytes for sums", PIECE * sizeof(real));
    }
    f->request = r;
    f->lane = lane_of(r);
    CUDA(cudaEventRecord(f->ready, device_stream()));
    mpi_start_note(r);
    Flight **last = request_is_message(r) ? &f->lane->waiting : &process.waiting;
    while (*last) last = &(*last)->behind;
    *last = f;
    move_on();
}

static void nccl_finish(Request *r) {
    Flight *f = r->flight;
    if (!element_of_tensor(r->element)) {
        mpi_finish(r);
        return;
    }
    describe(r, process.latest);
    mpi_meet(r);
    for (double since = now(); !f->launched;) wait_turn(since, process.latest);
    // The later work of this rank runs after the operation.
    CUDA(cudaStreamWaitEvent(device_stream(), f->done, 0));
    // CUDA allows this call while an event is still in use. CUDA then frees the event after the
    // event has happened.
    CUDA(cudaEventDestroy(f->ready));
    CUDA(cudaEventDestroy(f->done));
    free(f);
}

// ---- 6. Groups ----

static Link *link_new(MPI_Comm comm, size_t size, size_t me) {
    Link *l = host_alloc(sizeof *l);
    l->mpi.comm = comm;
    l->lane = lane_new();
    l->to = host_alloc(size * sizeof *l->to);
    l->from = host_alloc(size * sizeof *l->from);
    l->to[me] = lane_new(); // messages to itself
    return l;
}

// NCCL can split a communicator only if no operation is in flight on the communicator. A group of
// one rank gets no communicator of NCCL.
static void *nccl_split(Comm *parent, const size_t *members, size_t n, size_t me) {
    const Lane *from = link_of(parent)->lane;
    Link *l = link_new(mpi_split_comm(parent, members, me), n, me);
    for (double since = now(); process.waiting;) wait_turn(since, "a split");
    if (!from->nccl) return l;
    drain(from, "a split");
    int colour = n > 1 ? (int)members[0] : NCCL_SPLIT_NOCOLOR;
    ncclComm_t nccl;
    NCCL(ncclCommSplit(from->nccl, colour, (int)me, &nccl, NULL));
    // After settle() NCCL has set `nccl` to the new communicator.
    settle(from, "a split");
    if (n == 1) return l;
    l->lane->nccl = nccl;
    settle(l->lane, "a split");
    use_all_connections(l->lane, (int)me, (int)n);
    return l;
}

// Starts to end all communicators of NCCL, then waits for the end of each, so ranks may arrive in
// any order. The communicators end together with the world, because all ranks of a communicator
// must end the communicator.
static void end_lanes(void) {
    for (Lane *l = process.lanes; l; l = l->next)
        if (l->nccl) NCCL(ncclCommFinalize(l->nccl));
    while (process.lanes) {
        Lane *l = process.lanes;
        if (l->nccl) settle(l, "the end of NCCL");
        if (l->nccl) NCCL(ncclCommDestroy(l->nccl));
        CUDA(cudaStreamDestroy(l->stream));
        process.lanes = l->next;
        free(l);
    }
}

static void nccl_close(Comm *c) {
    Link *l = link_of(c);
    for (size_t i = 0; i < c->size; i++) {
        if (l->to[i]) drain(l->to[i], "the last messages");
        if (l->from[i]) drain(l->from[i], "the last messages");
    }
    drain(l->lane, "the last operations");
    if (l->piece) device_free(l->piece);
    MPI(MPI_Comm_free(&l->mpi.comm));
    free(l->to);
    free(l->from);
    free(l);
    if (c == process.world) end_lanes();
}

static const Wire wire_nccl = { nccl_start,   nccl_finish, mpi_meet,
                                nccl_connect, nccl_split,  nccl_close };

// ---- 7. The launch ----

const char *nccl_missing(void) { return NULL; }

void nccl_run(const Launch *launch, RankBody body) {
    MPI_Comm comm;
    device_stream(); // the process uses its GPU from here on
    process.timeout = launch->timeout;
    Comm *side = mpi_side_channel(launch);
    mpi_meanwhile = meanwhile;
    device_meanwhile = meanwhile_on_gpu;
    MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    Link *l = link_new(comm, this_world_size, this_rank);
    if (this_world_size > 1) {
        if (this_rank == 0) NCCL(ncclGetUniqueId(&l->lane->id));
        MPI(MPI_Bcast(&l->lane->id, sizeof l->lane->id, MPI_BYTE, 0, comm));
        join(l->lane, (int)this_world_size, (int)this_rank, 0);
        settle(l->lane, "the start of NCCL");
        use_all_connections(l->lane, (int)this_rank, (int)this_world_size);
    }
    process.world = comm_of_world("world", &wire_nccl, l, launch);
    comm_run_rank(process.world, side, body);
    mpi_meanwhile = NULL;
    device_meanwhile = NULL;
}
#endif
