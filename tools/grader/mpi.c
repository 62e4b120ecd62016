// mpi.c: MPI for a graded rank. Every send, receive, collective and split becomes a frame to the
// broker, on the socket that the broker has opened. mpi.h gives the reason.
#include "tools/grader/mpi.h"
#include "tools/grader/wire.h"
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// An operation that this rank has started and not yet finished. A send that needs no answer of the
// broker is done at once.
struct Pending {
    uint64_t id;
    bool done, too_long;
    char *out;
    size_t capacity;
    struct Pending *next;
};

static struct Pending *pending;
static uint64_t last_id, taken; // taken: number of frames read from the broker
static bool initialized, told_waiting;
enum { MOST_COMMS = 1 << 16 };
static SplitResult comms[MOST_COMMS]; // by the broker's number, modulo MOST_COMMS

static void gone(void) { _exit(3); } // the broker has ended the run, so this rank ends, too

static void write_all(const void *data, size_t bytes) {
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = send(SOCKET, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) gone();
        at += n;
        bytes -= (size_t)n;
    }
}

// Bytes that have been read from the socket, and that read_all() has not returned yet. So one call
// of the kernel reads several small frames.
static struct {
    char data[1 << 16];
    size_t at, count;
} ahead;

static void read_all(void *data, size_t bytes) {
    char *at = data;
    while (bytes > 0) {
        if (ahead.at == ahead.count) {
            ssize_t n = read(SOCKET, ahead.data, sizeof ahead.data);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) gone();
            ahead.at = 0;
            ahead.count = (size_t)n;
        }
        size_t n = ahead.count - ahead.at < bytes ? ahead.count - ahead.at : bytes;
        memcpy(at, ahead.data + ahead.at, n);
        ahead.at += n;
        at += n;
        bytes -= n;
    }
}

static void put(Frame f, const void *data, size_t bytes) {
    static char whole[1 << 16]; // one call of the kernel sends a small frame
    f.bytes = bytes;
    told_waiting = false;
    if (sizeof f + bytes > sizeof whole) {
        write_all(&f, sizeof f);
        write_all(data, bytes);
        return;
    }
    memcpy(whole, &f, sizeof f);
    if (bytes > 0) memcpy(whole + sizeof f, data, bytes);
    write_all(whole, sizeof f + bytes);
}

// probe.c uses these functions. tools/Grader.pm compiles both files with random names for these
// functions, so that no body can call them.
void grader_result(const void *data, size_t bytes);
void grader_mark(int step);
void grader_result(const void *data, size_t bytes) {
    put((Frame){ .kind = FRAME_RESULT }, data, bytes);
}
void grader_mark(int step) { put((Frame){ .kind = FRAME_MARK, .tag = step }, NULL, 0); }

static struct Pending *start(Frame f, const void *data, size_t bytes, void *out, size_t capacity) {
    struct Pending *p = calloc(1, sizeof *p);
    if (p == NULL) gone();
    f.id = p->id = ++last_id;
    p->out = out;
    p->capacity = capacity;
    p->next = pending;
    pending = p;
    put(f, data, bytes);
    return p;
}

static void take_frame(void) {
    static char rest[4096];
    Frame f;
    read_all(&f, sizeof f);
    struct Pending *p = pending;
    while (p != NULL && p->id != f.id) p = p->next;
    if (p == NULL) gone();
    size_t fits = f.bytes < p->capacity ? f.bytes : p->capacity;
    read_all(p->out, fits);
    for (size_t left = f.bytes - fits, n; left > 0; left -= n) {
        n = left < sizeof rest ? left : sizeof rest;
        read_all(rest, n);
    }
    p->too_long = f.bytes > p->capacity;
    p->done = true;
    taken++;
    told_waiting = false;
}

// Takes all frames that have arrived, and waits up to this time for the first frame. Returns true
// if a frame was taken.
static bool take_frames(int milliseconds) {
    struct pollfd p = { SOCKET, POLLIN, 0 };
    bool any = false;
    while (ahead.at < ahead.count || poll(&p, 1, any ? 0 : milliseconds) > 0) {
        take_frame();
        any = true;
    }
    return any;
}

static int finish(MPI_Request *r) {
    struct Pending *p = *r, **at = &pending;
    int error = p->too_long ? MPI_ERR_TRUNCATE : MPI_SUCCESS;
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    free(p);
    *r = MPI_REQUEST_NULL;
    return error;
}

int MPI_Test(MPI_Request *r, int *flag, MPI_Status *status) {
    enum {
        TURNS = 8,
        WAIT = 10
    }; // after more turns of WAIT ms without a frame, the rank tells the broker that it waits
    static int turns;
    (void)status;
    *flag = *r == MPI_REQUEST_NULL || (*r)->done;
    if (!*flag) {
        turns = take_frames(WAIT) ? 0 : turns + 1;
        if (turns > TURNS && !told_waiting) {
            put((Frame){ .kind = FRAME_WAIT, .id = taken }, NULL, 0);
            told_waiting = true;
        }
        return MPI_SUCCESS;
    }
    turns = 0;
    return *r == MPI_REQUEST_NULL ? MPI_SUCCESS : finish(r);
}
static int complete(MPI_Request r) {
    int flag = 0, error = MPI_SUCCESS;
    while (!flag) error = MPI_Test(&r, &flag, MPI_STATUS_IGNORE);
    return error;
}

// ---- the process ----

static int number(const char *name) {
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : 0;
}

int MPI_Init_thread(int *argc, char ***argv, int wanted, int *provided) {
    (void)argc;
    (void)argv;
    *provided = wanted;
    comms[MPI_COMM_WORLD].rank = number("OMPI_COMM_WORLD_RANK");
    comms[MPI_COMM_WORLD].size = number("OMPI_COMM_WORLD_SIZE");
    initialized = true;
    return MPI_SUCCESS;
}
int MPI_Initialized(int *flag) {
    *flag = initialized;
    return MPI_SUCCESS;
}
int MPI_Finalize(void) {
    MPI_Request r = start((Frame){ .kind = FRAME_BYE }, NULL, 0, NULL, 0);
    return complete(r);
}
int MPI_Abort(MPI_Comm c, int status) {
    (void)c;
    _exit(status);
}

// ---- communicators ----

int MPI_Comm_rank(MPI_Comm c, int *rank) {
    *rank = comms[c % MOST_COMMS].rank;
    return MPI_SUCCESS;
}
int MPI_Comm_size(MPI_Comm c, int *size) {
    *size = comms[c % MOST_COMMS].size;
    return MPI_SUCCESS;
}
int MPI_Comm_split(MPI_Comm c, int colour, int key, MPI_Comm *part) {
    SplitWish wish = { colour, key };
    SplitResult got = { 0 };
    Frame f = { .kind = FRAME_MEET, .comm = c, .call = MEET_SPLIT };
    int error = complete(start(f, &wish, sizeof wish, &got, sizeof got));
    comms[got.comm % MOST_COMMS] = got;
    *part = got.comm;
    return error;
}
int MPI_Comm_dup(MPI_Comm c, MPI_Comm *copy) {
    return MPI_Comm_split(c, 0, comms[c % MOST_COMMS].rank, copy);
}
int MPI_Comm_split_type(MPI_Comm c, int type, int key, MPI_Info info, MPI_Comm *part) {
    (void)type;
    (void)info;
    return MPI_Comm_split(c, 0, key, part);
}
int MPI_Comm_free(MPI_Comm *c) {
    *c = -1;
    return MPI_SUCCESS;
}
int MPI_Comm_set_errhandler(MPI_Comm c, MPI_Errhandler handler) {
    (void)c;
    (void)handler;
    return MPI_SUCCESS;
}
int MPI_Error_string(int error, char *text, int *length) {
    *length = snprintf(text, MPI_MAX_ERROR_STRING, "%s",
                       error == MPI_ERR_TRUNCATE ? "a message was longer than its receive"
                                                 : "a mistake in a call");
    return MPI_SUCCESS;
}

// ---- messages ----

static size_t size_of(MPI_Datatype t) {
    if (t == MPI_BYTE || t == MPI_CHAR) return 1;
    if (t == MPI_UINT16_T) return 2;
    return t == MPI_INT || t == MPI_FLOAT ? 4 : 8;
}

int MPI_Isend(const void *data, int n, MPI_Datatype t, int to, int tag, MPI_Comm c,
              MPI_Request *r) {
    Frame f = { .kind = FRAME_SEND, .comm = c, .peer = to, .tag = tag, .type = t };
    struct Pending *p = start(f, data, (size_t)n * size_of(t), NULL, 0);
    p->done = true;
    *r = p;
    return MPI_SUCCESS;
}
int MPI_Issend(const void *data, int n, MPI_Datatype t, int to, int tag, MPI_Comm c,
               MPI_Request *r) {
    Frame f = { .kind = FRAME_SEND, .comm = c, .peer = to, .tag = tag, .type = t, .sync = 1 };
    *r = start(f, data, (size_t)n * size_of(t), NULL, 0);
    return MPI_SUCCESS;
}
int MPI_Irecv(void *data, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *r) {
    Frame f = { .kind = FRAME_RECV, .comm = c, .peer = from, .tag = tag, .type = t };
    *r = start(f, NULL, 0, data, (size_t)n * size_of(t));
    return MPI_SUCCESS;
}
// Takes frames. A rank calls this function while it computes or waits, so that messages progress.
int MPI_Iprobe(int from, int tag, MPI_Comm c, int *flag, MPI_Status *status) {
    (void)from;
    (void)tag;
    (void)c;
    (void)status;
    take_frames(0);
    *flag = 0;
    return MPI_SUCCESS;
}

// ---- collectives ----

static struct Pending *meet(Meet call, const void *in, void *out, size_t in_bytes, size_t out_bytes,
                            MPI_Datatype t, MPI_Op op, int root, MPI_Comm c) {
    Frame f = { .kind = FRAME_MEET, .comm = c, .peer = root, .type = t, .op = op, .call = call };
    return start(f, in == MPI_IN_PLACE ? out : in, in_bytes, out, out_bytes);
}

int MPI_Ibarrier(MPI_Comm c, MPI_Request *r) {
    *r = meet(MEET_BARRIER, NULL, NULL, 0, 0, MPI_BYTE, 0, 0, c);
    return MPI_SUCCESS;
}
int MPI_Barrier(MPI_Comm c) {
    MPI_Request r;
    MPI_Ibarrier(c, &r);
    return complete(r);
}
int MPI_Ibcast(void *data, int n, MPI_Datatype t, int root, MPI_Comm c, MPI_Request *r) {
    size_t bytes = (size_t)n * size_of(t);
    bool own = comms[c % MOST_COMMS].rank == root;
    *r = meet(MEET_BCAST, data, data, own ? bytes : 0, own ? 0 : bytes, t, 0, root, c);
    return MPI_SUCCESS;
}
int MPI_Bcast(void *data, int n, MPI_Datatype t, int root, MPI_Comm c) {
    MPI_Request r;
    MPI_Ibcast(data, n, t, root, c, &r);
    return complete(r);
}
int MPI_Iallreduce(const void *in, void *out, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c,
                   MPI_Request *r) {
    size_t bytes = (size_t)n * size_of(t);
    *r = meet(MEET_SUM, in, out, bytes, bytes, t, op, 0, c);
    return MPI_SUCCESS;
}
int MPI_Allreduce(const void *in, void *out, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c) {
    MPI_Request r;
    MPI_Iallreduce(in, out, n, t, op, c, &r);
    return complete(r);
}
int MPI_Allgather(const void *in, int n, MPI_Datatype t, void *out, int out_n, MPI_Datatype out_t,
                  MPI_Comm c) {
    size_t each = (size_t)out_n * size_of(out_t);
    return complete(meet(MEET_GATHER, in, out, (size_t)n * size_of(t),
                         each * (size_t)comms[c % MOST_COMMS].size, t, 0, 0, c));
}

// ---- no shared memory ----

int MPI_Win_allocate_shared(MPI_Aint bytes, int unit, MPI_Info info, MPI_Comm c, void *memory,
                            MPI_Win *w) {
    (void)bytes;
    (void)unit;
    (void)info;
    (void)c;
    (void)memory;
    (void)w;
    return MPI_ERR_OTHER;
}
int MPI_Win_shared_query(MPI_Win w, int rank, MPI_Aint *bytes, int *unit, void *memory) {
    (void)w;
    (void)rank;
    (void)bytes;
    (void)unit;
    (void)memory;
    return MPI_ERR_OTHER;
}
int MPI_Win_free(MPI_Win *w) {
    (void)w;
    return MPI_SUCCESS;
}
