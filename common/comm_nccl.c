// comm_nccl.c: ranks are processes with a GPU each; NCCL moves their tensors. MPI starts it, carries what lies in host
// memory (comm_mpi.c), and beside every tensor a note: what this rank thinks it is calling, and when. NCCL compares
// nothing: of calls that do not match it makes a hang, or mixed up bytes. Empty where NCCL is not built in.
//
// Streams. The ops of a rank run on its compute stream. Collectives of all its communicators run on one other stream,
// in program order, as NCCL demands: two of them, in different orders on two ranks, would wait for each other. Messages
// have a stream and a communicator of two ranks for every ordered pair of ranks that talk: so a send whose receiver is
// not ready keeps nobody else waiting, and the sends and receives of a group go on side by side. An operation first
// waits, on the GPU, for what the compute stream was told before it (ready). The host waits only in finish, until the
// GPU has passed the operation's end (done): until then computing and talking overlap.
//
// Nothing blocks the host inside of NCCL (blocking = 0). A call that must wait for other ranks, as the first one does
// to connect, stays "in progress", and the communicator takes no other before that is settled. So operations stand in a
// lane until they are on its stream, and whoever waits, here or in MPI, moves all lanes on. Every wait looks for errors
// and has a deadline.
//
// --reduce ordered: each rank gets its part of everybody's whole, adds in rank order, and passes the sum around, as in
// comm_mpi.c. --reduce fast is NCCL's own algorithm.
//
//   1 errors   2 communicators   3 notes   4 what goes on a stream   5 lanes   6 start and finish   7 groups
//   8 the launch
#include "transport.h"
#ifndef HAVE_NCCL

const char *nccl_missing(void) {
    return "this program was built without NCCL; make doctor says what is missing";
}

void nccl_run(const LaunchOptions *o, RankBody body) {
    (void)o, (void)body;
    fault("nccl_run: %s", nccl_missing());
}

#else
#include <nccl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "comm_mpi.h"
#include "device_cuda.h"
#include "ops.h"
#include "random.h"

// An operation under way. It outlives its Request when that was a buffered send.
typedef struct Flight {
    struct Flight *behind;                 // in its lane
    struct Flight *next;                   // among those afloat, or among the spare ones
    Request what;                          // as it was started
    struct Pair *pair;                     // of a message
    int steps;                             // of two that are on the stream
    bool launched;                         // all of it
    cudaEvent_t ready, done;
    MPI_Request note_request;
    uint64_t note[3];
    Buffer kept;                           // what a buffered send sends
} Flight;

// A stream, and what is to go on it when it can, oldest first.
typedef struct Lane {
    cudaStream_t stream;
    Flight *waiting;
    struct Lane *next;
} Lane;

// Messages from one rank to another, of one Comm. Made at the first of them, at both ends; messages wait for it.
typedef struct Pair {
    Lane lane;
    bool to_myself;
    int me;                                // 0 sends to 1
    ncclComm_t nccl;
    ncclUniqueId id;                       // made by the sender, which tells the receiver
    MPI_Request id_request;
} Pair;

typedef struct {
    MpiLink mpi;                           // first: comm_mpi.c sees only this
    ncclComm_t nccl;                       // NULL in a group of one
    Pair **to, **from;                     // by rank; NULL before the first message
} Link;

// This process's only rank.
static struct {
    Lane collectives;
    Lane *lanes;                           // all of them
    Flight *afloat, *spare;                // afloat: buffered sends that were waited for, and are not over yet
    ncclComm_t *communicators;
    size_t n_communicators;
} mine;

enum { TAG_NOTE = 2, TAG_ID };             // after the tags of comm_mpi.c

static Link *link_of(const Comm *c) { return c->state->link; }
static bool message(const Request *r) { return r->action == DO_SEND || r->action == DO_RECV; }

// ---- 1. Errors ----

static void check_nccl(ncclResult_t result, const char *doing, size_t length) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    fault("%.*s failed: %s: %s; with NCCL_DEBUG=WARN it says more", (int)length, doing, ncclGetErrorString(result),
          ncclGetLastError(NULL));
}
#define NCCL(call) check_nccl(call, #call, strcspn(#call, "("))

// May the communicator be called again? fault() when it has failed. A rank that was lost by a fault has said why and is
// ending all others: this one speaks only if it is still alive after a while.
static bool settled(ncclComm_t comm, const char *doing) {
    ncclResult_t state;
    NCCL(ncclCommGetAsyncError(comm, &state));
    if (state == ncclRemoteError) sleep(2);
    check_nccl(state, doing, strlen(doing));
    return state != ncclInProgress;
}

static bool passed(cudaEvent_t event) {
    cudaError_t state = cudaEventQuery(event);
    if (state == cudaErrorNotReady) cudaGetLastError();        // it is none: do not let the next launch find it
    else check_cuda(state, "cudaEventQuery");
    return state == cudaSuccess;
}

// A turn of a loop that waits. MPI's messages move only while MPI is called. No NCCL communicator is aborted when a
// deadline has passed: fault() ends the process, and with it its kernels, but ncclCommAbort could wait for one of them.
static void move_on(void);
static void turn(double since, double timeout, const char *where) {
    int any;
    move_on();
    MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &any, MPI_STATUS_IGNORE));
    if (now() > since + timeout) too_late(timeout, where);
    sched_yield();
}

// ---- 2. Communicators. They are ended all together, at the end of the run, as that is a meeting of their ranks. ----

static void keep(ncclComm_t comm) {
    mine.communicators = realloc(mine.communicators, ++mine.n_communicators * sizeof comm);
    if (!mine.communicators) fault("out of memory for %zu communicators", mine.n_communicators);
    mine.communicators[mine.n_communicators - 1] = comm;
}

// most_blocks: of a kernel on the GPU; 0: NCCL's choice. Returns at once; settled() says when all have come.
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
    l->next = mine.lanes;
    mine.lanes = l;
}

// Most pairs of ranks never talk, so a pair is made at its first message. Both ends know of that, but not at the same
// time, and the sender must not wait: it posts the id of the new communicator and joins it; the receiver does when it
// has the id.
static Pair *pair_of(const Request *r) {
    Link *l = link_of(r->comm);
    bool sends = r->action == DO_SEND, to_myself = r->peer == r->comm->rank;
    Pair **place = sends || to_myself ? &l->to[r->peer] : &l->from[r->peer];
    if (*place) return *place;
    Pair *p = *place = host_alloc(sizeof *p);
    *p = (Pair){ .to_myself = to_myself, .me = sends ? 0 : 1, .id_request = MPI_REQUEST_NULL };
    lane_open(&p->lane);
    if (to_myself) return p;
    if (sends) NCCL(ncclGetUniqueId(&p->id));
    if (sends) MPI(MPI_Isend(&p->id, sizeof p->id, MPI_BYTE, (int)r->peer, TAG_ID, l->mpi.comm, &p->id_request));
    else MPI(MPI_Irecv(&p->id, sizeof p->id, MPI_BYTE, (int)r->peer, TAG_ID, l->mpi.comm, &p->id_request));
    return p;
}

// A send's kernel waits on the GPU for its receiver. Few blocks, so that those of all pairs find a place beside the
// collectives and the ops: a kernel that finds none, while those that have one wait for it, would wait for ever.
enum { PAIR_BLOCKS = 4 };

static bool pair_ready(Pair *p, const char *doing) {
    int told;
    MPI(MPI_Test(&p->id_request, &told, MPI_STATUS_IGNORE));
    if (told && !p->nccl) p->nccl = join(p->id, 2, p->me, PAIR_BLOCKS);
    return told && settled(p->nccl, doing);
}

// ---- 3. Notes. Of a collective: the largest stamp of the model clock, and whether all members make the same call (the
// largest of a number and of its complement belong together only if all are equal). Of a message: stamp and length. A
// send that waits for its receiver does so by its note: NCCL takes short messages into a buffer. ----

static void start_note(Flight *f) {
    Request *r = &f->what;
    MPI_Comm comm = link_of(r->comm)->mpi.comm;
    uint64_t call = message(r) ? r->count : random_key(random_key(r->action, r->count), r->peer);
    f->note[0] = r->stamp, f->note[1] = call, f->note[2] = ~call;
    int peer = (int)r->peer;
    if (r->action == DO_RECV) MPI(MPI_Irecv(f->note, 3, MPI_UINT64_T, peer, TAG_NOTE, comm, &f->note_request));
    else if (!message(r)) MPI(MPI_Iallreduce(MPI_IN_PLACE, f->note, 3, MPI_UINT64_T, MPI_MAX, comm, &f->note_request));
    else if (r->buffered) MPI(MPI_Isend(f->note, 3, MPI_UINT64_T, peer, TAG_NOTE, comm, &f->note_request));
    else MPI(MPI_Issend(f->note, 3, MPI_UINT64_T, peer, TAG_NOTE, comm, &f->note_request));
}

static bool note_came(Flight *f) {
    const Request *r = &f->what;
    char text[200];
    int came;
    if (f->note_request == MPI_REQUEST_NULL) return true;
    MPI(MPI_Test(&f->note_request, &came, MPI_STATUS_IGNORE));
    if (!came) return false;
    describe(r, text);
    if (r->action == DO_RECV && f->note[1] != r->count)
        fault("sizes do not match in %s: the message has %zu bytes", text, (size_t)f->note[1] * sizeof(real));
    if (!message(r) && f->note[1] != ~f->note[2])
        fault("calls do not match in %s: another rank makes another call, or with another size or root", text);
    return true;
}

// ---- 4. What goes on a stream: two steps, the second of them empty but for sums in rank order ----

static const ncclDataType_t REAL = sizeof(real) == sizeof(double) ? ncclDouble : ncclFloat;

// A maximum never is NCCL's, as it does not promise that a NaN stays; a reduce-scatter only in equal parts.
static bool library_sums(const Request *r) {
    return r->comm->state->reduce == REDUCE_FAST && r->action != DO_ALL_REDUCE_MAX &&
           (r->action != DO_REDUCE_SCATTER || r->count % r->comm->size == 0);
}
static bool summed_here(const Request *r) {
    bool sums = r->action == DO_ALL_REDUCE || r->action == DO_ALL_REDUCE_MAX || r->action == DO_REDUCE_SCATTER;
    return (sums || (r->action == DO_REDUCE && r->comm->rank == r->peer)) && !library_sums(r);
}
static Range my_part(const Request *r) {                       // what this rank sums
    return r->action == DO_REDUCE ? (Range){ 0, r->count } : request_part(r, r->comm->rank);
}

static void copy(real *to, const real *from, size_t count, cudaStream_t stream) {
    if (count && to != from)
        CUDA(cudaMemcpyAsync(to, from, count * sizeof(real), cudaMemcpyDeviceToDevice, stream));
}

// Everybody's contribution to my part comes to scratch, in rank order; of a reduce, all parts are the root's.
static void exchange(const Request *r, ncclComm_t comm, cudaStream_t stream) {
    real *in = (real *)r->in.data, *scratch = (real *)r->scratch.data;
    size_t me = r->comm->rank, mine_count = range_size(my_part(r));
    NCCL(ncclGroupStart());
    for (size_t i = 0; i < r->comm->size; i++) {
        Range part = r->action == DO_REDUCE ? (Range){ 0, i == r->peer ? r->count : 0 } : request_part(r, i);
        if (i == me) continue;
        if (range_size(part)) NCCL(ncclSend(in + part.lo, range_size(part), REAL, (int)i, comm, stream));
        if (mine_count && summed_here(r))
            NCCL(ncclRecv(scratch + i * mine_count, mine_count, REAL, (int)i, comm, stream));
    }
    NCCL(ncclGroupEnd());
}

// My part, in its place in out, goes to everybody, and theirs come.
static void pass_parts(const Request *r, ncclComm_t comm, cudaStream_t stream) {
    real *out = (real *)r->out.data;
    Range part = request_part(r, r->comm->rank);
    if (r->count % r->comm->size == 0) {
        NCCL(ncclAllGather(out + part.lo, out, range_size(part), REAL, comm, stream));
        return;
    }
    NCCL(ncclGroupStart());
    for (size_t i = 0; i < r->comm->size; i++) {
        Range theirs = request_part(r, i);
        if (i == r->comm->rank) continue;
        if (range_size(part)) NCCL(ncclSend(out + part.lo, range_size(part), REAL, (int)i, comm, stream));
        if (range_size(theirs)) NCCL(ncclRecv(out + theirs.lo, range_size(theirs), REAL, (int)i, comm, stream));
    }
    NCCL(ncclGroupEnd());
}

static void first_step(const Request *r, ncclComm_t comm, cudaStream_t stream) {
    real *in = (real *)r->in.data, *out = (real *)r->out.data;
    size_t n = r->comm->size;
    int root = (int)r->peer;
    bool fast = library_sums(r), at_root = r->comm->rank == r->peer;
    if (r->count == 0) return;
    switch (r->action) {
    case DO_SEND: NCCL(ncclSend(in, r->count, REAL, 1, comm, stream)); return;
    case DO_RECV: NCCL(ncclRecv(out, r->count, REAL, 0, comm, stream)); return;
    case DO_BROADCAST: NCCL(ncclBroadcast(in, at_root ? in : out, r->count, REAL, root, comm, stream)); return;
    case DO_ALL_GATHER:
        copy(out + my_part(r).lo, in, r->in_count, stream);
        pass_parts(r, comm, stream);
        return;
    default: break;
    }
    if (!fast) exchange(r, comm, stream);
    else if (r->action == DO_ALL_REDUCE) NCCL(ncclAllReduce(in, out, r->count, REAL, ncclSum, comm, stream));
    else if (r->action == DO_REDUCE) NCCL(ncclReduce(in, out, r->count, REAL, ncclSum, root, comm, stream));
    else NCCL(ncclReduceScatter(in, out, r->count / n, REAL, ncclSum, comm, stream));
}

static void second_step(const Request *r, ncclComm_t comm, cudaStream_t stream) {
    if (r->count == 0 || message(r) || !summed_here(r)) return;
    Range part = my_part(r);
    size_t count = range_size(part), n = r->comm->size;
    bool whole = r->action != DO_REDUCE_SCATTER;               // is out
    Tensor parts = { .data = (real *)r->scratch.data, .rows = n, .cols = count, .ld = count };
    Tensor sum = { .data = (real *)r->out.data + (whole ? part.lo : 0), .rows = 1, .cols = count, .ld = count };
    copy(parts.data + r->comm->rank * count, (real *)r->in.data + part.lo, count, stream);
    device_divert(stream);
    if (r->action == DO_ALL_REDUCE_MAX) op_max_parts(sum, parts);
    else op_sum_parts(sum, parts);
    device_divert(NULL);
    if (whole && r->action != DO_REDUCE) pass_parts(r, comm, stream);
}

// ---- 5. Lanes ----

static void launched(Flight *f, cudaStream_t stream) {
    CUDA(cudaEventRecord(f->done, stream));
    f->launched = true;
}

static bool launch(Flight *f, cudaStream_t stream) {
    const Request *r = &f->what;
    char text[200];
    describe(r, text);
    if (f->pair && !pair_ready(f->pair, text)) return false;
    ncclComm_t comm = f->pair ? f->pair->nccl : link_of(r->comm)->nccl;
    for (; f->steps < 2; f->steps++) {
        if (!settled(comm, text)) return false;
        if (f->steps == 0) CUDA(cudaStreamWaitEvent(stream, f->ready, 0));
        (f->steps == 0 ? first_step : second_step)(r, comm, stream);
    }
    if (!settled(comm, text)) return false;                    // only now all of it is on the stream
    launched(f, stream);
    return true;
}

// A send and a receive of one rank make a copy, once both are there. Takes the partner out of the lane.
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
    if (send->count == recv->count)                            // if not, their notes will say so
        copy((real *)recv->out.data, (const real *)send->in.data, send->count, l->stream);
    launched(f, l->stream);
    launched(g, l->stream);
    return true;
}

static bool over(Flight *f) { return note_came(f) && f->launched && passed(f->done); }

static void flight_spare(Flight *f) {
    f->next = mine.spare;
    mine.spare = f;
}

static void move_on(void) {
    for (Lane *l = mine.lanes; l; l = l->next)
        for (Flight *f; (f = l->waiting) != NULL; l->waiting = f->behind)
            if (f->pair && f->pair->to_myself ? !launch_to_myself(l) : !launch(f, l->stream)) break;
    for (Flight **place = &mine.afloat; *place;) {
        Flight *f = *place;
        if (!over(f)) {
            place = &f->next;
            continue;
        }
        *place = f->next;
        flight_spare(f);
    }
}

// ---- 6. Start and finish ----

static Flight *flight_new(void) {
    Flight *f = mine.spare;
    if (f) {
        mine.spare = f->next;
    } else {
        f = host_alloc(sizeof *f);
        f->kept.place = ON_DEVICE;
        CUDA(cudaEventCreateWithFlags(&f->ready, cudaEventDisableTiming));
        CUDA(cudaEventCreateWithFlags(&f->done, cudaEventDisableTiming));
    }
    f->behind = NULL;
    f->steps = 0;
    f->launched = false;
    f->pair = NULL;
    return f;
}

static void nccl_start(Request *r) {
    if (!r->on_device) {
        mpi_start(r);
        return;
    }
    Flight *f = r->more = flight_new();
    if (!message(r) && summed_here(r))
        buffer_reserve(&r->scratch, r->comm->size * range_size(my_part(r)) * sizeof(real));
    f->what = *r;
    if (message(r)) f->pair = pair_of(r);
    CUDA(cudaEventRecord(f->ready, device_stream()));
    start_note(f);
    Flight **last = f->pair ? &f->pair->lane.waiting : &mine.collectives.waiting;
    while (*last) last = &(*last)->behind;
    *last = f;
    move_on();
}

static void wait_until(bool (*came)(Flight *), Flight *f, const Request *r) {
    char text[200];
    describe(r, text);
    for (double since = now(); !came(f); turn(since, r->comm->state->timeout, text)) {
        ncclComm_t comm = f->pair ? f->pair->nccl : link_of(r->comm)->nccl;
        if (comm) settled(comm, text);
    }
}

static void take_stamp(Request *r) {
    if (r->action != DO_SEND) r->stamp = ((Flight *)r->more)->note[0];
}

static void nccl_meet(Request *r) {
    if (!r->on_device) {
        mpi_meet(r);
        return;
    }
    wait_until(note_came, r->more, r);
    take_stamp(r);
}

static void nccl_finish(Request *r) {
    Flight *f = r->more;
    if (!r->on_device) {
        mpi_finish(r);
        return;
    }
    if (r->buffered) {                     // the flight keeps the bytes, the request gets those of an older one
        Buffer kept = f->kept;
        f->kept = r->in;
        r->in = kept;
        f->next = mine.afloat;
        mine.afloat = f;
    } else {
        wait_until(over, f, r);
        take_stamp(r);
        flight_spare(f);
    }
    r->more = NULL;
}

// ---- 7. Groups ----

static Link *link_new(MPI_Comm comm, size_t size) {
    Link *l = host_alloc(sizeof *l);
    mpi_link_open(&l->mpi, comm);
    l->to = host_alloc(size * sizeof *l->to);
    l->from = host_alloc(size * sizeof *l->from);
    return l;
}

// NCCL splits a communicator only when nothing is under way on it. A group of one needs none.
static void *nccl_split(Comm *parent, const size_t *members, size_t n, size_t me) {
    Link *from = link_of(parent), *l = link_new(mpi_split_comm(parent, members, n, me), n);
    for (Request *r = parent->state->open; r; r = r->next)
        if (!message(r) && r->more) wait_until(over, r->more, r);
    if (!from->nccl) return l;
    int colour = n > 1 ? (int)members[0] : NCCL_SPLIT_NOCOLOR;
    NCCL(ncclCommSplit(from->nccl, colour, (int)me, &l->nccl, NULL));
    settle(from->nccl, parent->state->timeout, "a split");     // then it has set the new one
    if (n == 1) return l;
    settle(l->nccl, parent->state->timeout, "a split");
    keep(l->nccl);
    return l;
}

static Flight *afloat_of(const Comm *c) {
    Flight *f = mine.afloat;
    while (f && f->what.comm != c) f = f->next;
    return f;
}

static void nccl_close(Comm *c) {
    Link *l = link_of(c);
    MPI_Status status;
    int forgotten;
    uint64_t note[3];
    char text[200];
    MPI(MPI_Iprobe(MPI_ANY_SOURCE, TAG_NOTE, l->mpi.comm, &forgotten, &status));
    if (forgotten) {
        MPI(MPI_Recv(note, 3, MPI_UINT64_T, status.MPI_SOURCE, TAG_NOTE, l->mpi.comm, MPI_STATUS_IGNORE));
        fault("a message of %zu bytes from rank %d of %s was never received", (size_t)note[1] * sizeof(real),
              status.MPI_SOURCE, c->name);
    }
    double since = now();
    for (Flight *f; (f = afloat_of(c)) != NULL; turn(since, c->state->timeout, text)) describe(&f->what, text);
    mpi_link_close(c);
    free(l->to);
    free(l->from);
    free(l);
}

static const Wire wire_nccl = { true, nccl_start, nccl_finish, nccl_meet, nccl_split, nccl_close };

// ---- 8. The launch ----

const char *nccl_missing(void) { return NULL; }

// All of them are told, then all are waited for: so ranks may come to theirs in any order.
static void end_communicators(double timeout) {
    for (size_t i = 0; i < mine.n_communicators; i++) NCCL(ncclCommFinalize(mine.communicators[i]));
    for (size_t i = 0; i < mine.n_communicators; i++) settle(mine.communicators[i], timeout, "the end of NCCL");
    for (size_t i = 0; i < mine.n_communicators; i++) NCCL(ncclCommDestroy(mine.communicators[i]));
    free(mine.communicators);
    for (Flight *f; (f = mine.spare) != NULL;) {
        mine.spare = f->next;
        buffer_free(&f->kept);
        CUDA(cudaEventDestroy(f->ready));
        CUDA(cudaEventDestroy(f->done));
        free(f);
    }
    for (Lane *l; (l = mine.lanes) != NULL;) {
        mine.lanes = l->next;
        CUDA(cudaStreamDestroy(l->stream));
        if (l != &mine.collectives) free(l);                   // its pair
    }
}

void nccl_run(const LaunchOptions *o, RankBody body) {
    MPI_Comm comm;
    ncclUniqueId id;
    device_stream();                                           // from now on this process uses its GPU
    lane_open(&mine.collectives);
    MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    Link *l = link_new(comm, this_world_size);
    if (this_world_size > 1) {
        if (this_rank == 0) NCCL(ncclGetUniqueId(&id));
        MPI(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, comm));
        l->nccl = join(id, (int)this_world_size, (int)this_rank, 0);
        settle(l->nccl, o->timeout, "the start of NCCL");
    }
    mpi_meanwhile = move_on;
    comm_run_rank(comm_new("world", this_rank, this_world_size, &wire_nccl, l, o->reduce, o->timeout),
                  mpi_side_channel(o), body);
    mpi_meanwhile = NULL;
    end_communicators(o->timeout);
    mpi_leave_together(o);
}
#endif
