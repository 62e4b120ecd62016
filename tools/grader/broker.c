// broker.c: starts the ranks of a graded run and carries every message between them.
// tools/Grader.pm starts this program.
//
//     broker RANKS SECONDS ALTER FILES COMMAND...
//
// Every rank is a separate process. A rank runs COMMAND, usually in its own sandbox, with a socket
// to the broker as file descriptor 3. No rank can reach the memory of another rank or of the
// broker. So a graded body can change neither the broker's counts of calls and bytes, nor the
// contents of a message after it was sent.
//
// ALTER names the real numbers that the broker alters:
//   none    no numbers
//   body    the numbers that a rank sends while a graded body runs there
//   body-K  the numbers that a rank sends while body K runs there
//   all     the fp32 numbers of every message and collective, but no doubles
// A result that stays right although the messages were altered does not come from the messages.
// Bytes and times are never altered.
//
// The broker ends all ranks when SECONDS have passed, when a rank fails, or when all ranks wait for
// each other. The broker writes four files:
//   FILES.results  the records of rank 0, for the judge
//   FILES.out      rank 0's output
//   FILES.err      the errors of all ranks
//   FILES.run      lines with words that tools/Grader.pm reads
#define _GNU_SOURCE
#include "tools/grader/mpi.h"
#include "tools/grader/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct Message {
    Frame frame;
    int from; // the sender, as a rank in the communicator
    char *data;
    struct Message *next;
} Message;

// A Meeting is one collective of a communicator.
typedef struct Meeting {
    Frame frame[MOST_RANKS];
    char *data[MOST_RANKS];
    bool here[MOST_RANKS];
    int arrived;
    uint64_t number;
    struct Meeting *next;
} Meeting;

typedef struct {
    int size, world[MOST_RANKS], children;
    char path[120];            // the splits that made this Comm, the same in every run
    Message *sent[MOST_RANKS]; // by receiver: messages that no receive has taken
    Message *wanted[MOST_RANKS];
    Meeting *meetings;
    uint64_t met[MOST_RANKS]; // collectives that this member has started
} Comm;

enum { MOST_COMMS = 4096, MOST_COUNTS = 20000, MOST_QUEUED = 1 << 30, MOST_BODIES = 100 };
typedef struct {
    pid_t pid;
    int socket;
    int depth, in_body[MOST_BODIES]; // number of bodies that run now: of all; of body K
    bool bye, ended, waits;
    char *in, *out; // bytes received; bytes to send
    size_t in_count, in_room, out_count, out_room;
    uint64_t answers; // frames that the broker has sent to this rank
    int status;
    long peak;      // largest kB of memory, by the kernel's count
    double seconds; // seconds of processor time
} Rank;

typedef struct {
    char key[200];
    uint64_t calls, bytes;
} Count;

static uint64_t entered[MOST_BODIES]; // how often body K began, on all ranks
static int altered_body;              // K of body-K; 0: any body
static Rank rank_of[MOST_RANKS];
static Comm *comm[MOST_COMMS];
static int ranks, comms;
static Count count[MOST_COUNTS];
static int counts;
static const char *alter = "none", *why = "";
static size_t queued;
static FILE *results;
static char text[4096];

static void *must(void *memory) {
    if (memory != NULL) return memory;
    fprintf(stderr, "unsplit: broker: out of memory\n");
    exit(3);
}
static _Noreturn void broken(const char *what) {
    fprintf(stderr, "unsplit: broker: %s: %s\n", what, strerror(errno));
    exit(3);
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- counting and altering ----

static const char *const type_name[] = { "",     "byte",   "byte",   "int",
                                         "real", "double", "uint16", "time" };

static void count_bytes(int rank, const Comm *c, const char *kind, int type, size_t bytes) {
    char key[200];
    snprintf(key, sizeof key, "%d %s %s %s", rank, c->path, kind, type_name[type]);
    int i = 0;
    while (i < counts && strcmp(count[i].key, key) != 0) i++;
    if (i == MOST_COUNTS) return;
    if (i == counts) {
        snprintf(count[i].key, sizeof count[i].key, "%s", key);
        counts++;
    }
    count[i].calls++;
    count[i].bytes += bytes;
}

// Returns an altered value. Every second element grows by half, and the other elements shrink by
// half. A zero stays zero. So if a body sends only zeros, the results stay right, which shows that
// they do not come from the messages.
static double altered(double x, size_t i) { return i % 2 == 0 ? 1.5 * x : 0.5 * x; }

static void change(int rank, const Frame *f, char *data) {
    const Rank *r = &rank_of[rank];
    bool inside = strncmp(alter, "body", 4) == 0 &&
                  (altered_body > 0 ? r->in_body[altered_body] : r->depth) > 0;
    float *reals = (void *)data;
    double *doubles = (void *)data;
    if (!inside && strcmp(alter, "all") != 0) return;
    for (size_t i = 0; f->type == MPI_FLOAT && i < f->bytes / sizeof *reals; i++)
        reals[i] = (float)altered((double)reals[i], i);
    for (size_t i = 0; f->type == MPI_DOUBLE && inside && i < f->bytes / sizeof *doubles; i++)
        doubles[i] = altered(doubles[i], i);
}

// ---- answers ----

static void answer(int rank, Frame f, const char *data) {
    Rank *r = &rank_of[rank];
    size_t more = sizeof f + f.bytes;
    if (r->ended) return;
    f.kind = FRAME_DONE;
    if (r->out_count + more > r->out_room) {
        r->out_room = 2 * (r->out_count + more);
        r->out = must(realloc(r->out, r->out_room));
    }
    memcpy(r->out + r->out_count, &f, sizeof f);
    if (f.bytes > 0) memcpy(r->out + r->out_count + sizeof f, data, f.bytes);
    r->out_count += more;
    r->answers++;
    r->waits = false;
}

static int member(const Comm *c, int rank) {
    for (int i = 0; i < c->size; i++)
        if (c->world[i] == rank) return i;
    return -1;
}

// ---- messages ----

static void deliver(const Comm *c, int to, const Message *m, const Frame *wanted) {
    Frame f = { .id = wanted->id, .bytes = m->frame.bytes, .peer = m->from, .tag = m->frame.tag };
    answer(c->world[to], f, m->data);
    if (m->frame.sync) answer(c->world[m->from], (Frame){ .id = m->frame.id }, NULL);
}

static void append(Message **list, Message *m) {
    while (*list != NULL) list = &(*list)->next;
    *list = m;
}

static Message *remove_match(Message **list, int from, int tag) {
    while (*list != NULL && !((*list)->from == from && (*list)->frame.tag == tag))
        list = &(*list)->next;
    Message *m = *list;
    if (m != NULL) *list = m->next;
    return m;
}

static void drop(Message *m) {
    queued -= m->frame.bytes;
    free(m->data);
    free(m);
}

static Message *message(const Frame *f, int from, const char *data) {
    Message *m = must(calloc(1, sizeof *m));
    m->frame = *f;
    m->from = from;
    if (f->bytes > 0) memcpy(m->data = must(malloc(f->bytes)), data, f->bytes);
    queued += f->bytes;
    return m;
}

static void take_send(int rank, Comm *c, int from, const Frame *f, char *data) {
    enum { TAG_TIME = 1, TAG_COLLECTIVE = 16 }; // TAG_TIME is TAG_NOTE in comm_mpi.c
    if (f->tag != TAG_TIME) change(rank, f, data);
    count_bytes(rank, c, f->tag >= TAG_COLLECTIVE ? "collective" : "message", f->type, f->bytes);
    Message *m = message(f, from, data), *r = remove_match(&c->wanted[f->peer], from, f->tag);
    if (r == NULL) {
        append(&c->sent[f->peer], m);
        return;
    }
    deliver(c, f->peer, m, &r->frame);
    drop(m);
    drop(r);
}

// Takes a message, or posts the receive. A posted receive is kept as a Message without data, whose
// `from` is the rank that the receive waits for.
static void take_recv(Comm *c, int to, const Frame *f) {
    Message *m = remove_match(&c->sent[to], f->peer, f->tag);
    Frame head = *f;
    head.bytes = 0;
    if (m == NULL) {
        append(&c->wanted[to], message(&head, f->peer, NULL));
        return;
    }
    deliver(c, to, m, f);
    drop(m);
}

// ---- collectives ----

#define COMBINE(kind) \
    do { \
        for (size_t i = 0; i < bytes / sizeof(kind); i++) { \
            kind *to = (kind *)(void *)sum + i; \
            kind x = ((const kind *)(const void *)data)[i]; \
            if (op == MPI_SUM) *to += x; \
            if (op == MPI_MAX && x > *to) *to = x; \
            if (op == MPI_MIN && x < *to) *to = x; \
        } \
    } while (0)
static void combine(char *sum, const char *data, size_t bytes, int type, int op) {
    if (type == MPI_FLOAT) COMBINE(float);
    else if (type == MPI_DOUBLE) COMBINE(double);
    else if (type == MPI_UINT64_T) COMBINE(uint64_t);
    else if (type == MPI_INT) COMBINE(int);
}

static int order_of(const void *a, const void *b) {
    const int *x = a, *y = b; // colour, key, member
    for (int i = 0; i < 3; i++)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
}

static void split(Comm *c, const Meeting *m) {
    int wish[MOST_RANKS][3], child = c->children++;
    for (int i = 0; i < c->size; i++) {
        SplitWish w = { 0 };
        if (m->frame[i].bytes == sizeof w) memcpy(&w, m->data[i], sizeof w);
        wish[i][0] = w.colour;
        wish[i][1] = w.key;
        wish[i][2] = i;
    }
    qsort(wish, (size_t)c->size, sizeof wish[0], order_of);
    for (int i = 0; i < c->size; i++) {
        if (i == 0 || wish[i][0] != wish[i - 1][0]) {
            if (comms == MOST_COMMS) broken("too many communicators");
            comm[comms] = must(calloc(1, sizeof *comm[0]));
            snprintf(comm[comms]->path, sizeof comm[comms]->path, "%.90s.%d:%d", c->path, child,
                     wish[i][0]);
            comms++;
        }
        Comm *part = comm[comms - 1];
        part->world[part->size++] = c->world[wish[i][2]];
    }
    for (int i = 0; i < c->size; i++) {
        SplitResult s = { 0 };
        for (int k = comms - 1; s.size == 0; k--) {
            s.rank = member(comm[k], c->world[i]);
            if (s.rank < 0) continue;
            s.comm = k;
            s.size = comm[k]->size;
        }
        answer(c->world[i], (Frame){ .id = m->frame[i].id, .bytes = sizeof s }, (const char *)&s);
    }
}

static void hold_meeting(Comm *c, Meeting *m) {
    int root = m->frame[0].call == MEET_BCAST ? m->frame[0].peer : 0;
    const Frame *first = &m->frame[0];
    size_t bytes = m->frame[root].bytes;
    if (first->call == MEET_SPLIT) {
        split(c, m);
        return;
    }
    char *sum = must(malloc(bytes + 1));
    if (bytes > 0) memcpy(sum, m->data[first->call == MEET_BCAST ? root : 0], bytes);
    for (int i = 1; i < c->size; i++)
        if (first->call == MEET_SUM)
            combine(sum, m->data[i], m->frame[i].bytes < bytes ? m->frame[i].bytes : bytes,
                    first->type, first->op);
    if (first->call == MEET_GATHER) {
        sum = must(realloc(sum, bytes * (size_t)c->size + 1));
        for (int i = 0; i < c->size; i++)
            if (m->frame[i].bytes == bytes && bytes > 0)
                memcpy(sum + (size_t)i * bytes, m->data[i], bytes);
        bytes *= (size_t)c->size;
    }
    for (int i = 0; i < c->size; i++) {
        bool gets = first->call != MEET_BARRIER && !(first->call == MEET_BCAST && i == root);
        answer(c->world[i], (Frame){ .id = m->frame[i].id, .bytes = gets ? bytes : 0 }, sum);
    }
    free(sum);
}

static void take_meet(int rank, Comm *c, int from, const Frame *f, char *data) {
    static const char *const name[] = { "barrier", "broadcast", "sum", "gather", "split" };
    if (f->type != MPI_UINT64_T) change(rank, f, data);
    if (f->type != MPI_UINT64_T && f->call != MEET_SPLIT)
        count_bytes(rank, c, name[f->call], f->type, f->bytes);
    uint64_t number = c->met[from]++;
    Meeting **at = &c->meetings;
    while (*at != NULL && (*at)->number != number) at = &(*at)->next;
    if (*at == NULL) {
        *at = must(calloc(1, sizeof **at));
        (*at)->number = number;
    }
    Meeting *m = *at;
    m->frame[from] = *f;
    m->here[from] = true;
    m->data[from] = must(malloc(f->bytes + 1));
    if (f->bytes > 0) memcpy(m->data[from], data, f->bytes);
    if (++m->arrived < c->size) return;
    for (int i = 1; i < c->size; i++)
        if (m->frame[i].call != m->frame[0].call) why = "the ranks called different collectives";
    if (*why == 0) hold_meeting(c, m);
    *at = m->next;
    for (int i = 0; i < c->size; i++) free(m->data[i]);
    free(m);
}

// ---- the kernel's counts ----

// Adds the processor time of a process and its children, and finds the largest memory peak. The
// rank waits for the answer to its last frame, so the process still exists.
static void measure(Rank *r, pid_t pid) {
    char name[80], line[1024];
    long ticks[4], kilobytes;
    snprintf(name, sizeof name, "/proc/%d/stat", pid);
    FILE *f = fopen(name, "r");
    if (f == NULL) return;
    const char *at = fgets(line, sizeof line, f) != NULL ? strrchr(line, ')') : NULL;
    fclose(f);
    if (at != NULL && sscanf(at, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld %ld %ld",
                             &ticks[0], &ticks[1], &ticks[2], &ticks[3]) == 4)
        for (int i = 0; i < 4; i++) r->seconds += (double)ticks[i] / (double)sysconf(_SC_CLK_TCK);
    snprintf(name, sizeof name, "/proc/%d/status", pid);
    f = fopen(name, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "VmHWM: %ld", &kilobytes) == 1 && kilobytes > r->peak) r->peak = kilobytes;
    if (f != NULL) fclose(f);
    snprintf(name, sizeof name, "/proc/%d/task/%d/children", pid, pid);
    f = fopen(name, "r");
    int child;
    while (f != NULL && fscanf(f, "%d", &child) == 1) measure(r, child);
    if (f != NULL) fclose(f);
}

// ---- frames ----

// Notes that body K begins on this rank (k = K), or ends (k = -K).
static void mark(Rank *r, int k) {
    int step = k > 0 ? 1 : -1;
    r->depth += step;
    if (k == 0 || k <= -MOST_BODIES || k >= MOST_BODIES) return;
    r->in_body[k * step] += step;
    if (k > 0) entered[k]++;
}

static void take(int rank, const Frame *f, char *data) {
    Rank *r = &rank_of[rank];
    if (f->kind == FRAME_BYE) {
        if (!r->bye) measure(r, r->pid);
        r->bye = true;
        answer(rank, (Frame){ .id = f->id }, NULL);
    } else if (f->kind == FRAME_WAIT) r->waits = f->id == r->answers; // no frame is on its way
    else if (f->kind == FRAME_MARK) mark(r, f->tag);
    else if (f->kind == FRAME_RESULT) {
        if (rank == 0) fwrite(data, 1, f->bytes, results);
    } else {
        Comm *c = f->comm >= 0 && f->comm < comms ? comm[f->comm] : NULL;
        int me = c != NULL ? member(c, rank) : -1;
        bool sane = me >= 0 && f->type >= 0 && f->type <= MPI_UINT64_T && f->peer < c->size &&
                    f->peer >= 0 && f->call >= 0 && f->call <= MEET_SPLIT;
        if (!sane) why = "a rank sent a frame that no program sends";
        else if (f->kind == FRAME_SEND) take_send(rank, c, me, f, data);
        else if (f->kind == FRAME_RECV) take_recv(c, me, f);
        else if (f->kind == FRAME_MEET) take_meet(rank, c, me, f, data);
    }
    if (queued > MOST_QUEUED) why = "more than 1 GiB was sent, but not received";
}

static void read_rank(int rank) {
    enum { ROOM = 1 << 16 };
    Rank *r = &rank_of[rank];
    if (r->in_room - r->in_count < ROOM) {
        r->in_room = 2 * r->in_room + ROOM;
        r->in = must(realloc(r->in, r->in_room));
    }
    ssize_t n = recv(r->socket, r->in + r->in_count, r->in_room - r->in_count, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) { // the rank has ended
        close(r->socket);
        r->socket = -1;
        return;
    }
    r->in_count += (size_t)n;
    r->waits = false;
    size_t at = 0;
    Frame f;
    while (r->in_count - at >= sizeof f) {
        memcpy(&f, r->in + at, sizeof f);
        if (f.bytes > MOST_QUEUED) {
            why = "a message of more than 1 GiB";
            return;
        }
        if (r->in_count - at < sizeof f + f.bytes) break;
        // the data of a frame begins at any byte, so it is copied to an aligned place
        char *data = must(malloc(f.bytes + 1));
        memcpy(data, r->in + at + sizeof f, f.bytes);
        take(rank, &f, data);
        free(data);
        at += sizeof f + f.bytes;
    }
    memmove(r->in, r->in + at, r->in_count - at);
    r->in_count -= at;
}

static void write_rank(int rank) {
    Rank *r = &rank_of[rank];
    ssize_t n = send(r->socket, r->out, r->out_count, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n <= 0) return;
    memmove(r->out, r->out + n, r->out_count - (size_t)n);
    r->out_count -= (size_t)n;
}

// ---- the end ----

// Adds to the text the call in which a waiting rank waits.
static size_t describe(int rank, size_t at) {
    for (int k = 0; k < comms; k++) {
        const Comm *c = comm[k];
        int me = member(c, rank);
        if (me < 0) continue;
        for (const Message *m = c->wanted[me]; m != NULL; m = m->next)
            if (m->frame.tag == 0 || m->frame.tag >= 16)
                return at + (size_t)snprintf(text + at, sizeof text - at,
                                             "; rank %d waits to receive from rank %d", rank,
                                             c->world[m->from]);
        for (int to = 0; to < c->size; to++)
            for (const Message *m = c->sent[to]; m != NULL; m = m->next)
                if (m->from == me && m->frame.sync)
                    return at + (size_t)snprintf(text + at, sizeof text - at,
                                                 "; rank %d waits until rank %d receives", rank,
                                                 c->world[to]);
        for (const Meeting *m = c->meetings; m != NULL; m = m->next)
            if (m->here[me] && m->frame[me].type != MPI_UINT64_T)
                return at + (size_t)snprintf(text + at, sizeof text - at,
                                             "; rank %d waits in a collective of %d ranks", rank,
                                             c->size);
    }
    return at;
}

static bool all_wait(void) {
    int waiting = 0;
    for (int i = 0; i < ranks; i++) {
        const Rank *r = &rank_of[i];
        if (r->out_count > 0 || (r->socket >= 0 && !r->waits && !r->bye)) return false;
        waiting += r->socket >= 0 && r->waits;
    }
    return waiting > 0;
}

static void deadlock(void) {
    size_t at = (size_t)snprintf(text, sizeof text, "deadlock: all ranks wait for each other");
    for (int i = 0; i < ranks && at < sizeof text - 100; i++)
        if (rank_of[i].socket >= 0 && rank_of[i].waits) at = describe(i, at);
    why = text;
}

// Returns whether a rank has printed why it ends. Then judge/frame waits for the other ranks, which
// takes long.
static bool complained(const char *files) {
    char name[4096], line[4096];
    bool found = false;
    snprintf(name, sizeof name, "%s.err", files);
    FILE *f = fopen(name, "r");
    while (f != NULL && !found && fgets(line, sizeof line, f) != NULL)
        found = strncmp(line, "unsplit: ", 9) == 0 || strncmp(line, "[rank ", 6) == 0;
    if (f != NULL) fclose(f);
    return found;
}

static void end_all(void) {
    for (int i = 0; i < ranks; i++)
        if (!rank_of[i].ended) kill(rank_of[i].pid, SIGKILL);
}

// Collects the statuses of ranks that have ended. With `block` waits until every rank has ended.
// Returns true if a rank still runs.
static bool reap(bool block) {
    bool running = false;
    for (int i = 0; i < ranks; i++) {
        Rank *r = &rank_of[i];
        int status;
        if (r->ended) continue;
        pid_t pid = waitpid(r->pid, &status, block ? 0 : WNOHANG);
        running |= pid == 0;
        if (pid <= 0) continue;
        r->ended = true;
        r->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return running;
}

static void write_run(const char *files, bool late) {
    char name[4096];
    snprintf(name, sizeof name, "%s.run", files);
    FILE *f = fopen(name, "w");
    if (f == NULL) broken(name);
    if (late) why = "it ran longer than allowed";
    if (*why) fprintf(f, "why %s\n", why);
    for (int i = 0; i < ranks; i++) {
        const Rank *r = &rank_of[i];
        fprintf(f, "rank %d status %d peak %ld seconds %.3f bye %d\n", i, r->status, r->peak,
                r->seconds, r->bye);
    }
    for (int i = 0; i < counts; i++)
        fprintf(f, "count %llu %llu %s\n", (unsigned long long)count[i].calls,
                (unsigned long long)count[i].bytes, count[i].key);
    for (int k = 1; k < MOST_BODIES; k++)
        if (entered[k] > 0) fprintf(f, "entered %d %llu\n", k, (unsigned long long)entered[k]);
    if (fclose(f) != 0) broken(name);
}

static void start_rank(int i, char **command, const char *files) {
    int pair[2];
    char name[4096], number[12], size[12];
    snprintf(number, sizeof number, "%d", i);
    snprintf(size, sizeof size, "%d", ranks);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) broken("socketpair");
    rank_of[i].socket = pair[0];
    rank_of[i].pid = fork();
    if (rank_of[i].pid < 0) broken("fork");
    if (rank_of[i].pid > 0) {
        close(pair[1]);
        return;
    }
    if (pair[1] == SOCKET) fcntl(SOCKET, F_SETFD, 0);
    else dup2(pair[1], SOCKET);
    snprintf(name, sizeof name, "%s.%s", files, "out");
    int out = open(i == 0 ? name : "/dev/null", O_WRONLY | O_CREAT | O_APPEND, 0600);
    snprintf(name, sizeof name, "%s.%s", files, "err");
    int err = open(name, O_WRONLY | O_CREAT | O_APPEND, 0600), in = open("/dev/null", O_RDONLY);
    dup2(in, 0);
    dup2(out, 1);
    dup2(err, 2);
    for (int fd = SOCKET + 1; fd < 256; fd++) close(fd);
    setenv("OMPI_COMM_WORLD_RANK", number, 1);
    setenv("OMPI_COMM_WORLD_SIZE", size, 1);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", size, 1);
    execvp(command[0], command);
    _exit(127);
}

int main(int argc, char **argv) {
    if (argc < 6) {
        fprintf(stderr, "usage: broker RANKS SECONDS none|body|body-K|all FILES COMMAND...\n");
        return 2;
    }
    ranks = atoi(argv[1]);
    double until = now() + atof(argv[2]), failed = 0, looked = 0, reaped = 0;
    alter = argv[3];
    if (strncmp(alter, "body-", 5) == 0) altered_body = atoi(alter + 5);
    if (altered_body < 0 || altered_body >= MOST_BODIES) return 2;
    char name[4096];
    snprintf(name, sizeof name, "%s.results", argv[4]);
    results = fopen(name, "w");
    if (results == NULL) broken(name);
    if (ranks < 1 || ranks > MOST_RANKS) return 2;
    comm[0] = must(calloc(1, sizeof *comm[0]));
    comm[0]->size = ranks;
    snprintf(comm[0]->path, sizeof comm[0]->path, "world");
    comms = 1;
    for (int i = 0; i < ranks; i++) comm[0]->world[i] = i;
    for (int i = 0; i < ranks; i++) start_rank(i, argv + 5, argv[4]);
    bool late = false;
    for (;;) {
        struct pollfd p[MOST_RANKS];
        int open_sockets = 0;
        for (int i = 0; i < ranks; i++) {
            short events = rank_of[i].out_count > 0 ? POLLIN | POLLOUT : POLLIN;
            p[i] = (struct pollfd){ rank_of[i].socket, events, 0 };
            open_sockets += rank_of[i].socket >= 0;
        }
        if (open_sockets == 0 || now() > reaped + 0.02) {
            reaped = now();
            if (!reap(false) && open_sockets == 0) break;
        }
        poll(p, (nfds_t)ranks, 50);
        for (int i = 0; i < ranks; i++) {
            if (p[i].revents & POLLOUT) write_rank(i);
            if (p[i].revents & (POLLIN | POLLHUP | POLLERR)) read_rank(i);
        }
        for (int i = 0; i < ranks; i++)
            if (rank_of[i].out_count > 0 && rank_of[i].socket >= 0) write_rank(i);
        for (int i = 0; i < ranks; i++)
            if (rank_of[i].ended && rank_of[i].status != 0 && rank_of[i].status != 1 && failed == 0)
                failed = now();
        for (int i = 0; i < ranks; i++) // ended too early
            if (rank_of[i].ended && !rank_of[i].bye && failed == 0) failed = now();
        if (failed == 0 && now() > looked + 0.1) {
            looked = now();
            if (complained(argv[4])) failed = now();
        }
        if (*why == 0 && failed == 0 && all_wait()) deadlock();
        late = now() > until;
        if (late || *why || (failed > 0 && now() > failed + 0.3)) break;
    }
    end_all();
    reap(true);
    if (fclose(results) != 0) broken(name);
    write_run(argv[4], late);
    return 0;
}
