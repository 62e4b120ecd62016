// comm_mpi.c: ranks are MPI processes. Works with MPI 3.1 (no large counts). With GPUs this is the transport "staged":
// comm.c has copied what is sent to host memory.
//
// Every operation is started nonblocking, and every wait is a loop around MPI_Test with a deadline: a lost or confused
// rank becomes a message, not a hang. The loop yields the core, because tests run more ranks than there are cores.
//
// --reduce ordered: an exchange in which rank i gets part i of everybody, a sum in rank order, an all-gather of the
// sums. That moves as many bytes as a ring does, and gives the bits of a sum from rank 0 to rank n-1. --reduce fast is
// the library's own algorithm.
//
//   1 checked calls and deadlines   2 collectives   3 point to point   4 communicators   5 the launch
#include "comm_mpi.h"
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "device.h"

// What a Request keeps while it is under way. MPI reads the tables of counts until the operation is complete.
typedef struct {
    MPI_Request request, stamp_request;
    uint64_t stamp;            // of the model clock: what this rank says, then the latest of all (a recv: the sender's)
    size_t size;
    int table[];               // 4 tables of `size` ints
} Flight;
typedef struct { int *part_count, *part_start, *mine_count, *mine_start; } Tables;

// A buffered send that its sender has waited for, but not yet its receiver.
typedef struct Afloat {
    struct Afloat *next;
    Flight *flight;
    Buffer data;
    Request what;              // for messages only
} Afloat;

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
    if (n > INT_MAX) fault("%zu elements are too many for one call of MPI, which counts up to %d", n, INT_MAX);
    return (int)n;
}

void (*mpi_meanwhile)(void);

// False when the deadline has passed.
static bool poll_until(MPI_Request *request, MPI_Status *status, double timeout, int *error) {
    double deadline = now() + timeout;
    for (int done = 0;;) {
        *error = MPI_Test(request, &done, status);
        if (done || *error != MPI_SUCCESS) return true;
        if (now() > deadline) return false;
        if (mpi_meanwhile) mpi_meanwhile();
        sched_yield();
    }
}

_Noreturn void too_late(double timeout, const char *where) {
    fault("waited %g s in %s; --timeout sets how long. Virtual ranks (make emu-..., --emulate N) say at once who waits "
          "for whom", timeout, where);
}

static _Noreturn void wait_failed(const Request *r, int error, int class, size_t bytes) {
    char text[200];
    describe(r, text);
    if (class == MPI_ERR_TRUNCATE && r->action != DO_RECV)
        fault("sizes do not match in %s: a message was longer", text);
    if (class != MPI_ERR_TRUNCATE) check_mpi(error, text);
    fault("sizes do not match in %s: the message has %zu bytes", text, bytes);
}

static void wait_for(const Request *r, MPI_Request *request, MPI_Status *status) {
    int error, class = MPI_SUCCESS;
    double timeout = r->comm->state->timeout * (r->patient ? 100 : 1);
    if (!poll_until(request, status, timeout, &error)) {
        char text[200];
        describe(r, text);
        too_late(timeout, text);
    }
    if (error == MPI_SUCCESS) return;
    MPI_Error_class(error, &class);
    MPI_Count bytes = 0;
    if (class == MPI_ERR_TRUNCATE && status != MPI_STATUS_IGNORE)
        MPI(MPI_Get_elements_x(status, MPI_BYTE, &bytes));     // Open MPI tells it of too long a message as well
    wait_failed(r, error, class, (size_t)bytes);
}

static void wait_for_message(const Request *r, MPI_Request *request) {
    MPI_Status status;
    MPI_Count bytes;
    wait_for(r, request, &status);
    if (r->action != DO_RECV) return;
    MPI(MPI_Get_elements_x(&status, MPI_BYTE, &bytes));        // an int would not do for 2 GiB
    if ((size_t)bytes != r->count * element_size(r->element)) wait_failed(r, MPI_SUCCESS, MPI_SUCCESS, (size_t)bytes);
}

static MPI_Datatype datatype(Element e) {
    if (e == BYTES) return MPI_BYTE;
    return e == DOUBLES || sizeof(real) == sizeof(double) ? MPI_DOUBLE : MPI_FLOAT;
}

static Flight *flight_of(Request *r) {
    if (!r->extra) {
        Flight *f = host_alloc(sizeof *f + 4 * r->comm->size * sizeof f->table[0]);
        f->size = r->comm->size;
        r->extra = f;
    }
    return r->extra;
}

// ---- 2. Collectives ----

// part_*: the parts of the whole by rank. mine_*: everybody's contribution to my part, one behind the other.
static Tables make_tables(Request *r) {
    Flight *f = flight_of(r);
    size_t n = r->comm->size, mine = range_size(request_part(r, r->comm->rank));
    Tables t = { f->table, f->table + n, f->table + 2 * n, f->table + 3 * n };
    for (size_t i = 0; i < n; i++) {
        Range part = request_part(r, i);
        t.part_count[i] = fits_int(range_size(part));
        t.part_start[i] = fits_int(part.lo);
        t.mine_count[i] = fits_int(mine);
        t.mine_start[i] = fits_int(i * mine);
    }
    return t;
}

static bool library_sums(const Request *r) {                   // maxima and doubles never: their order is always fixed
    return r->comm->state->reduce == REDUCE_FAST && r->element == REALS && r->action != DO_ALL_REDUCE_MAX;
}

// The exchange: part i of everybody's whole goes to rank i.
static void start_exchange(Request *r, Tables t, MPI_Datatype type, MPI_Request *request) {
    size_t n = r->comm->size;
    buffer_reserve(&r->scratch, n * (size_t)t.mine_count[0] * element_size(r->element));
    MPI(MPI_Ialltoallv(r->in.data, t.part_count, t.part_start, type, r->scratch.data, t.mine_count, t.mine_start, type,
                       link_of(r)->comm, request));
}

// The model clock's stamps travel beside the data: a maximum over the members; with a message, a second one.
static bool stamped(const Request *r) { return r->booked && clock_config()->model; }
enum { TAG_DATA, TAG_STAMP };

static void start_stamp(Request *r) {
    Flight *f = flight_of(r);
    MPI_Comm comm = link_of(r)->comm;
    f->stamp_request = MPI_REQUEST_NULL;
    if (!stamped(r)) return;
    f->stamp = r->stamp;
    if (r->action == DO_SEND)
        MPI(MPI_Isend(&f->stamp, 1, MPI_UINT64_T, fits_int(r->peer), TAG_STAMP, comm, &f->stamp_request));
    else if (r->action == DO_RECV)
        MPI(MPI_Irecv(&f->stamp, 1, MPI_UINT64_T, fits_int(r->peer), TAG_STAMP, comm, &f->stamp_request));
    else
        MPI(MPI_Iallreduce(MPI_IN_PLACE, &f->stamp, 1, MPI_UINT64_T, MPI_MAX, comm, &f->stamp_request));
}

void mpi_meet(Request *r) {
    Flight *f = r->extra;
    if (!stamped(r) || f->stamp_request == MPI_REQUEST_NULL) return;
    wait_for(r, &f->stamp_request, MPI_STATUS_IGNORE);
    r->stamp = f->stamp;
}

static void start_collective(Request *r) {
    MPI_Comm comm = link_of(r)->comm;
    MPI_Request *request = &flight_of(r)->request;
    MPI_Datatype type = datatype(r->element);
    Tables t = make_tables(r);
    int count = fits_int(r->count), root = fits_int(r->peer), me = fits_int(r->comm->rank);
    bool fast = library_sums(r);
    char *in = r->in.data, *out = r->out.data;
    switch (r->action) {
    case DO_ALL_REDUCE:
    case DO_ALL_REDUCE_MAX:
        if (fast) MPI(MPI_Iallreduce(in, out, count, type, MPI_SUM, comm, request));
        else start_exchange(r, t, type, request);
        break;
    case DO_REDUCE_SCATTER:
        if (fast) MPI(MPI_Ireduce_scatter(in, out, t.part_count, type, MPI_SUM, comm, request));
        else start_exchange(r, t, type, request);
        break;
    case DO_REDUCE:
        if (fast) {
            MPI(MPI_Ireduce(in, out, count, type, MPI_SUM, root, comm, request));
        } else {
            if (me == root) buffer_reserve(&r->scratch, r->comm->size * r->count * element_size(r->element));
            MPI(MPI_Igather(in, count, type, r->scratch.data, count, type, root, comm, request));
        }
        break;
    case DO_ALL_GATHER:
        MPI(MPI_Iallgatherv(in, t.part_count[me], type, out, t.part_count, t.part_start, type, comm, request));
        break;
    case DO_BROADCAST: MPI(MPI_Ibcast(me == root ? in : out, count, type, root, comm, request)); break;
    default: MPI(MPI_Ibarrier(comm, request)); break;
    }
}

// The exchanged parts lie one behind the other in scratch.
static void sum_parts(Request *r, char *out, size_t count) {
    const char *parts[r->comm->size];
    for (size_t i = 0; i < r->comm->size; i++) parts[i] = r->scratch.data + i * count * element_size(r->element);
    combine_in_rank_order(r, out, parts, count);
}

static void finish_collective(Request *r) {
    Flight *f = r->extra;
    wait_for(r, &f->request, MPI_STATUS_IGNORE);
    if (library_sums(r)) return;
    Range part = request_part(r, r->comm->rank);
    if (r->action == DO_REDUCE_SCATTER) sum_parts(r, r->out.data, range_size(part));
    if (r->action == DO_REDUCE && r->comm->rank == r->peer) sum_parts(r, r->out.data, r->count);
    if (r->action != DO_ALL_REDUCE && r->action != DO_ALL_REDUCE_MAX) return;
    sum_parts(r, r->out.data + part.lo * element_size(r->element), range_size(part));
    MPI_Datatype type = datatype(r->element);
    MPI(MPI_Iallgatherv(MPI_IN_PLACE, 0, type, r->out.data, f->table, f->table + f->size, type, link_of(r)->comm,
                        &f->request));
    wait_for(r, &f->request, MPI_STATUS_IGNORE);
}

// ---- 3. Point to point. One tag: messages of a pair of ranks arrive in the order in which they were sent. ----

static void start_message(Request *r) {
    MPI_Request *request = &flight_of(r)->request;
    int count = fits_int(r->count), peer = fits_int(r->peer);
    MPI_Datatype type = datatype(r->element);
    MPI_Comm comm = link_of(r)->comm;
    if (r->action == DO_RECV) MPI(MPI_Irecv(r->out.data, count, type, peer, TAG_DATA, comm, request));
    else if (r->buffered) MPI(MPI_Isend(r->in.data, count, type, peer, TAG_DATA, comm, request));
    else MPI(MPI_Issend(r->in.data, count, type, peer, TAG_DATA, comm, request));      // complete when it is received
}

static void reap_afloat(MpiLink *l) {
    for (Afloat **place = &l->afloat; *place;) {
        Afloat *a = *place;
        int done, stamped;
        MPI(MPI_Test(&a->flight->request, &done, MPI_STATUS_IGNORE));
        MPI(MPI_Test(&a->flight->stamp_request, &stamped, MPI_STATUS_IGNORE));
        if (!done || !stamped) {
            place = &a->next;
            continue;
        }
        *place = a->next;
        a->next = l->landed;
        l->landed = a;
    }
}

// The sender goes on without its receiver; the copy lives until that has come. The request gets an older one's buffers
// in exchange, so that a step allocates nothing.
static void set_afloat(Request *r) {
    MpiLink *l = link_of(r);
    reap_afloat(l);
    Afloat *a = l->landed;
    if (a) l->landed = a->next;
    else a = host_alloc(sizeof *a);
    Flight *flight = a->flight;
    Buffer data = a->data;
    *a = (Afloat){ .next = l->afloat, .flight = r->extra, .data = r->in, .what = *r };
    l->afloat = a;
    r->extra = flight;
    r->in = data;
}

static void free_landed(MpiLink *l) {
    while (l->landed) {
        Afloat *a = l->landed;
        l->landed = a->next;
        free(a->flight);
        buffer_free(&a->data);
        free(a);
    }
}

void mpi_start(Request *r) {
    reap_afloat(link_of(r));
    if (r->action == DO_SEND || r->action == DO_RECV) start_message(r);
    else start_collective(r);
    start_stamp(r);
}

void mpi_finish(Request *r) {
    if (r->buffered) {
        set_afloat(r);
        return;
    }
    if (r->action == DO_SEND || r->action == DO_RECV) wait_for_message(r, &((Flight *)r->extra)->request);
    else finish_collective(r);
    mpi_meet(r);
}

// ---- 4. Communicators ----

void mpi_link_open(MpiLink *l, MPI_Comm comm) {
    l->comm = comm;
    MPI(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
}
static MpiLink *link_new(MPI_Comm comm) {
    MpiLink *l = host_alloc(sizeof *l);
    mpi_link_open(l, comm);
    return l;
}

// All members have just met in the parent, so this blocking call does not wait for a rank that is elsewhere.
MPI_Comm mpi_split_comm(Comm *parent, const size_t *members, size_t n, size_t me) {
    MPI_Comm comm;
    int size, rank;
    MPI(MPI_Comm_split(((MpiLink *)parent->state->link)->comm, fits_int(members[0]), fits_int(me), &comm));
    MPI(MPI_Comm_size(comm, &size));
    MPI(MPI_Comm_rank(comm, &rank));
    if ((size_t)size != n || (size_t)rank != me)
        fault("MPI_Comm_split gave rank %d of %d instead of %zu of %zu", rank, size, me, n);
    return comm;
}
static void *mpi_split(Comm *parent, const size_t *members, size_t n, size_t me) {
    return link_new(mpi_split_comm(parent, members, n, me));
}

void mpi_link_close(Comm *c) {
    MpiLink *l = c->state->link;
    for (double deadline = now() + c->state->timeout; l->afloat; sched_yield()) {
        reap_afloat(l);
        if (!l->afloat || now() < deadline) continue;
        char text[200];
        describe(&l->afloat->what, text);
        too_late(c->state->timeout, text);
    }
    free_landed(l);
    MPI_Status status;
    int forgotten, bytes;
    MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, l->comm, &forgotten, &status));
    if (forgotten) {
        MPI(MPI_Get_count(&status, MPI_BYTE, &bytes));
        fault("a message of %d bytes from rank %d of %s was never received", bytes, status.MPI_SOURCE, c->name);
    }
    MPI(MPI_Comm_free(&l->comm));
}
static void mpi_close(Comm *c) {
    mpi_link_close(c);
    free(c->state->link);
}

static const Wire wire_mpi = { false, mpi_start, mpi_finish, mpi_meet, mpi_split, mpi_close };

// ---- 5. The launch ----

static bool number_in_environment(const char *const *names, size_t *value) {
    for (; *names; names++) {
        const char *text = getenv(*names);
        if (!text) continue;
        *value = strtoul(text, NULL, 10);
        return true;
    }
    return false;
}

// Open MPI's mpirun; PMIx (srun --mpi=pmix); PMI (MPICH, srun --mpi=pmi2). PMIx does not tell the size, Slurm does.
bool comm_launched_by_mpi(size_t *rank, size_t *size) {
    static const char *const rank_names[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", NULL };
    static const char *const size_names[] =
        { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", NULL };
    int initialized, r, s;
    MPI_Initialized(&initialized);
    *rank = 0;
    *size = 1;
    if (initialized) {
        MPI_Comm_rank(MPI_COMM_WORLD, &r);
        MPI_Comm_size(MPI_COMM_WORLD, &s);
        *rank = (size_t)r;
        *size = (size_t)s;
        return true;
    }
    if (!number_in_environment(rank_names, rank)) return false;
    number_in_environment(size_names, size);
    return true;
}

static MPI_Comm this_host(void) {
    MPI_Comm host;
    MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
    return host;
}

size_t mpi_local_rank(void) {
    MPI_Comm host = this_host();
    int rank;
    MPI(MPI_Comm_rank(host, &rank));
    MPI(MPI_Comm_free(&host));
    return (size_t)rank;
}

bool mpi_all_different(const char id[32]) {
    MPI_Comm host = this_host();
    int rank, size, different = 1, everywhere;
    MPI(MPI_Comm_rank(host, &rank));
    MPI(MPI_Comm_size(host, &size));
    char (*all)[32] = host_alloc((size_t)size * sizeof *all);
    MPI(MPI_Allgather(id, sizeof *all, MPI_CHAR, all, sizeof *all, MPI_CHAR, host));
    for (int i = 0; i < size; i++)
        if (i != rank && strncmp(all[i], id, sizeof *all) == 0) different = 0;
    free(all);
    MPI(MPI_Allreduce(&different, &everywhere, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD));
    MPI(MPI_Comm_free(&host));
    return everywhere;
}

static void abort_all(int status) {
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, status);
    _exit(status);
}

void comm_process_begin(int *argc, char ***argv) {
    size_t rank, size;
    if (!comm_launched_by_mpi(&rank, &size)) return;
    // With more ranks than cores, a rank that waits must give its core away, or every message takes a time slice.
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (local && atol(local) > sysconf(_SC_NPROCESSORS_ONLN)) setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    device_prepare();
    MPI(MPI_Init(argc, argv));
    MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    comm_launched_by_mpi(&this_rank, &this_world_size);
    end_all_ranks = abort_all;
    ranks_are_processes = true;
}

void comm_process_end(void) {
    int initialized;
    MPI_Initialized(&initialized);
    if (initialized) MPI_Finalize();
}

static Comm *duplicate_world(const LaunchOptions *o, const char *name) {
    MPI_Comm comm;
    MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    return comm_new(name, this_rank, this_world_size, &wire_mpi, link_new(comm), o->reduce, o->timeout);
}

Comm *mpi_side_channel(const LaunchOptions *o) { return duplicate_world(o, "side channel"); }

void mpi_run(const LaunchOptions *o, RankBody body) {
    Comm *world = duplicate_world(o, "world");
    comm_run_rank(world, mpi_side_channel(o), body);
    mpi_leave_together(o);
}

void mpi_leave_together(const LaunchOptions *o) {
    // No process may finalize while another can still fail: Open MPI's mpirun then sometimes hangs or crashes.
    MPI_Request request;
    int error;
    MPI(MPI_Ibarrier(MPI_COMM_WORLD, &request));
    if (!poll_until(&request, MPI_STATUS_IGNORE, o->timeout, &error)) too_late(o->timeout, "the end of all processes");
    check_mpi(error, "MPI_Ibarrier");
}
