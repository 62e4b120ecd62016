// waits.c: see waits.h.
#include "common/comm/waits.h"
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { POLLS = 1000 };

// Of one process; written by it alone, but for spoken.
typedef struct {
    _Atomic uint64_t number;               // of its waits: odd while it waits
    _Atomic uint64_t polls;                // how often it has asked MPI
    _Atomic bool spoken;                   // of the first: has somebody printed the table?
    _Atomic bool told;                     // it has said why it ends all
    size_t rank;                           // in the world
    double since, patience;                // when its wait began, and after how long that is suspicious
    char text[200], comm[64];
    uint64_t id;                           // of the Comm, with its name
    int meeting;                           // -1: a message
    bool sends;
    size_t n;
    uint32_t whom[];                       // [n] world ranks: the peer, or the members
} Slot;

static MPI_Win window = MPI_WIN_NULL;
static char *slots;                        // [ranks], each of slot_bytes
static size_t ranks, slot_bytes, me;
static double seconds;
static struct { uint64_t number, polls; } *seen;               // [ranks] when the deadlock was suspected
static bool suspected;
static double next_look;

static Slot *slot(size_t i) { return (Slot *)(slots + i * slot_bytes); }

void waits_open(MPI_Comm host, double deadlock) {
    int n, rank, unit;
    MPI_Aint bytes;
    void *mine;
    MPI_Comm_size(host, &n);
    MPI_Comm_rank(host, &rank);
    ranks = (size_t)n, me = (size_t)rank, seconds = deadlock;
    slot_bytes = ceil_div(sizeof(Slot) + this_world_size * sizeof(uint32_t), 64) * 64;
    // The first has it all: one stretch. Where MPI cannot share memory there is no table, and --timeout remains.
    if (MPI_Win_allocate_shared(me == 0 ? (MPI_Aint)(ranks * slot_bytes) : 0, 1, MPI_INFO_NULL, host,
                                                 &mine, &window) != MPI_SUCCESS) return;
    MPI_Win_shared_query(window, 0, &bytes, &unit, &mine);
    slots = mine;
    seen = host_alloc(ranks * sizeof *seen);
    memset(slot(me), 0, slot_bytes);
    slot(me)->rank = this_rank;
    MPI_Barrier(host);
}

void waits_close(void) {
    if (!slots) return;
    slots = NULL;
    free(seen);
    MPI_Win_free(&window);
}

void waits_post(const Request *r, int meeting, double since) {
    if (!slots) return;
    Slot *s = slot(me);
    bool message = r->action == DO_SEND || r->action == DO_RECV;
    s->since = since;
    s->patience = seconds + (double)(r->count * element_size(r->element)) / 1e7;
    describe(r, s->text);
    snprintf(s->comm, sizeof s->comm, "%s", r->comm->name);
    s->id = r->comm->state->id;
    s->sends = r->action == DO_SEND;
    s->meeting = message ? -1 : meeting;
    s->n = message ? 1 : r->comm->size;
    for (size_t i = 0; i < s->n; i++) s->whom[i] = (uint32_t)r->comm->state->world_rank[message ? r->peer : i];
    atomic_fetch_add(&s->number, 1);
    suspected = false;
}

void waits_clear(void) {
    if (slots) atomic_fetch_add(&slot(me)->number, 1);
}

void waits_tell(void) {
    if (slots) atomic_store(&slot(me)->told, true);
}
bool waits_told(size_t rank) {
    for (size_t i = 0; slots && i < ranks; i++)
        if (slot(i)->rank == rank) return atomic_load(&slot(i)->told);
    return false;
}

static bool waiting(const Slot *s) { return atomic_load(&s->number) % 2 == 1; }

// Do both stand in the same collective, or are a send and its receive?
static bool meets(const Slot *a, const Slot *b) {
    if (!waiting(a) || !waiting(b) || a->id != b->id || strcmp(a->comm, b->comm) != 0 || a->meeting != b->meeting)
        return false;
    return a->meeting >= 0 ? strcmp(a->text, b->text) == 0
                           : a->whom[0] == b->rank && b->whom[0] == a->rank && a->sends != b->sends;
}
static bool waits_for(const Slot *a, const Slot *b) {
    if (a == b || !waiting(a) || meets(a, b)) return false;
    for (size_t i = 0; i < a->n; i++)
        if (a->whom[i] == b->rank) return true;
    return false;
}

static bool too_long(const Slot *s, double time) { return waiting(s) && time > s->since + s->patience; }

// A cycle of ranks that wait for too long, as places in path[]; how many: 0: there is none. Depth first: mark[] says
// who is on this path (1) and who leads to no cycle (2).
static size_t cycle_from(size_t at, size_t depth, size_t *path, char *mark, double time, size_t *start) {
    mark[at] = 1;
    path[depth] = at;
    for (size_t to = 0; to < ranks; to++) {
        if (!too_long(slot(to), time) || !waits_for(slot(at), slot(to)) || mark[to] == 2) continue;
        if (mark[to] == 1) {
            for (*start = depth; path[*start] != to;) --*start;
            return depth + 1;
        }
        size_t end = cycle_from(to, depth + 1, path, mark, time, start);
        if (end) return end;
    }
    mark[at] = 2;
    return 0;
}
static size_t find_cycle(size_t *path, double time, size_t *start) {
    char *mark = host_alloc(ranks);
    size_t end = 0;
    for (size_t i = 0; i < ranks && !end; i++)
        if (!mark[i] && too_long(slot(i), time)) end = cycle_from(i, 0, path, mark, time, start);
    free(mark);
    return end;
}

// ---- the table ----

typedef struct { char *text; size_t n, room; } Text;
static void add(Text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(Text *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(t->text + t->n, t->room - t->n, format, arguments);
    va_end(arguments);
    if (n > 0) t->n = t->n + (size_t)n < t->room ? t->n + (size_t)n : t->room - 1;
}

static bool here(size_t rank) {
    for (size_t i = 0; i < ranks; i++)
        if (slot(i)->rank == rank) return true;
    return false;
}

static void add_rank(Text *t, const Slot *s) {
    if (!waiting(s)) {
        add(t, "  rank %zu is in no call: it computes\n", s->rank);
        return;
    }
    add(t, "  rank %zu waits %.0f s in %s", s->rank, now() - s->since, s->text);
    bool any = false;
    for (size_t i = 0; s->meeting >= 0 && i < ranks; i++)
        if (waits_for(s, slot(i))) add(t, "%s rank %zu", any ? "" : ", not reached by", slot(i)->rank), any = true;
    any = false;
    for (size_t i = 0; i < s->n; i++)
        if (!here(s->whom[i])) add(t, "%s rank %u", any ? "" : "; on another node:", s->whom[i]), any = true;
    add(t, "\n");
}

static bool first_to_speak(void) { return !atomic_exchange(&slot(0)->spoken, true); }

// One write, so that lines of several processes do not mix.
static void print_table(const char *title, size_t *path, size_t start, size_t end) {
    Text t = { .room = (ranks + 2) * 512 + ranks * ranks * 12 };
    t.text = host_alloc(t.room);
    add(&t, "%s", title);
    for (size_t i = 0; i < ranks; i++) add_rank(&t, slot(i));
    for (size_t i = start; i < end; i++)
        add(&t, i == start ? "  the cycle: rank %zu waits for" : " rank %zu, who waits for", slot(path[i])->rank);
    if (end) add(&t, " rank %zu\n", slot(path[start])->rank);
    fflush(stdout);
    fwrite(t.text, 1, t.n, stderr);
    fflush(stderr);
    free(t.text);
}

void waits_print(void) {
    if (slots && seconds > 0 && first_to_speak()) print_table("", NULL, 0, 0);
}

// Have all that wait asked often enough, in the same wait, since it was suspected? path NULL: all ranks.
static bool confirmed(const size_t *path, size_t start, size_t end) {
    for (size_t i = start; i < end; i++) {
        size_t k = path ? path[i] : i;
        if (atomic_load(&slot(k)->number) != seen[k].number || atomic_load(&slot(k)->polls) < seen[k].polls + POLLS)
            return false;
    }
    return true;
}

void waits_look(void) {
    if (!slots || seconds <= 0) return;
    atomic_fetch_add(&slot(me)->polls, 1);
    double time = now();
    if (time < next_look || !too_long(slot(me), time)) return;
    next_look = time + 0.1;
    bool all = ranks == this_world_size;
    for (size_t i = 0; i < ranks; i++) all = all && too_long(slot(i), time);
    size_t *path = host_alloc((ranks + 1) * sizeof *path), start = 0, end = find_cycle(path, time, &start);
    if ((all || end) && suspected && (all ? confirmed(NULL, 0, ranks) : confirmed(path, start, end)) &&
        first_to_speak()) {
        char title[200];
        snprintf(title, sizeof title, "unsplit: deadlock: %s for more than %g s (--deadlock), and none of these can go "
                 "on\n", all ? "all ranks have waited" : "some ranks of this node have waited", seconds);
        print_table(title, path, start, end);
        end_all_ranks(STATUS_FAULT);
        _exit(STATUS_FAULT);
    }
    for (size_t i = 0; i < ranks; i++) {
        if (suspected && seen[i].number == atomic_load(&slot(i)->number)) continue;
        seen[i].number = atomic_load(&slot(i)->number);
        seen[i].polls = atomic_load(&slot(i)->polls);
    }
    suspected = all || end;
    free(path);
}
