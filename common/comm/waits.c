// waits.c: keeps the table of processes and waits on one node, and searches the table for a cycle.
#include "common/comm/waits.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { POLLS = 1000, NONE = -1 };

// One process writes a slot; the other processes read the slot.
typedef struct {
    _Atomic uint64_t number; // number of waits so far, doubled; odd while it waits
    _Atomic uint64_t polls;  // number of MPI polls
    _Atomic bool told;       // the process has printed why it ends all ranks
    _Atomic bool printed;    // first slot only: a process has printed the table
    size_t rank;             // in the world
    int pid;
    double since, patience; // when its wait began; a longer wait in seconds is suspicious
    char text[200];
    uint64_t id; // of the Comm
    int meeting; // the collective's number, or NONE for a message
    bool sends;
    size_t n;
    uint32_t whom[]; // [n] world ranks: the peer, or all members
} Slot;

static MPI_Win window = MPI_WIN_NULL;
static char *slots; // [ranks], each of slot_bytes
static size_t ranks, slot_bytes, me;
static double seconds;
// A member of a cycle, and its wait when the search saw the cycle.
typedef struct {
    size_t i; // its slot
    uint64_t number, polls;
} Member;
static Member *suspects; // [ranks] the cycle, as the search first saw it
static size_t n_suspects;
static double next_look;
static bool visible; // do the processes of the node see each other in /proc?

static Slot *slot(size_t i) { return (Slot *)(slots + i * slot_bytes); }

// Returns the state in proc(5), such as 'T' for a process that a signal has stopped. Returns 0 if
// the process has ended.
static char state_of(int pid) {
    char name[40], state = 0;
    snprintf(name, sizeof name, "/proc/%d/stat", pid);
    FILE *f = fopen(name, "r");
    bool read = f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1;
    if (f) fclose(f);
    return read && state != 'Z' && state != 'X' ? state : 0;
}

void waits_open(MPI_Comm host) {
    int n, rank, unit;
    MPI_Aint bytes;
    void *memory;
    MPI_Comm_size(host, &n);
    MPI_Comm_rank(host, &rank);
    ranks = (size_t)n;
    me = (size_t)rank;
    slot_bytes = ceil_div(sizeof(Slot) + this_world_size * sizeof(uint32_t), 64) * 64;
    bytes = me == 0 ? (MPI_Aint)(ranks * slot_bytes) : 0; // the first process owns the whole table
    // If MPI cannot share memory, there is no table, and only --timeout ends a wait.
    if (MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, host, &memory, &window) != MPI_SUCCESS)
        return;
    MPI_Win_shared_query(window, 0, &bytes, &unit, &memory);
    slots = memory;
    suspects = host_alloc(ranks * sizeof *suspects);
    memset(slot(me), 0, slot_bytes);
    slot(me)->rank = this_rank;
    slot(me)->pid = (int)getpid();
    MPI_Barrier(host);
    visible = true; // false in containers of their own, where the numbers mean nothing
    for (size_t i = 0; i < ranks; i++) visible = visible && state_of(slot(i)->pid);
    MPI_Barrier(host); // no process ends before all have looked
}

void waits_search(double deadlock) { seconds = deadlock; }

void waits_close(void) {
    if (!slots) return;
    slots = NULL;
    visible = false;
    free(suspects);
    MPI_Win_free(&window);
}

void waits_post(const Request *r, int meeting, double since) {
    if (!slots) return;
    Slot *s = slot(me);
    const size_t *world_rank = r->comm->state->world_rank;
    bool message = request_is_message(r);
    s->since = since;
    s->patience = seconds + (double)(r->count * element_size(r->element)) / 1e7;
    describe(r, s->text);
    s->id = r->comm->state->id;
    s->sends = r->action == DO_SEND;
    s->meeting = message ? NONE : meeting;
    s->n = message ? 1 : r->comm->size;
    for (size_t i = 0; i < s->n; i++) s->whom[i] = (uint32_t)world_rank[message ? r->peer : i];
    atomic_fetch_add(&s->number, 1);
}

void waits_clear(void) {
    if (slots) atomic_fetch_add(&slot(me)->number, 1);
}

void waits_tell(void) {
    if (slots) atomic_store(&slot(me)->told, true);
}

bool waits_see_all(void) { return visible && ranks == this_world_size; }

void waits_require_alive(double waited, double timeout) {
    const double every = 0.4; // seconds
    static double last_look;
    if (!visible || waited < every || now() < last_look + every) return;
    last_look = now();
    for (size_t i = 0; i < ranks; i++) {
        const Slot *s = slot(i);
        const char state = state_of(s->pid);
        if (!state && !atomic_load(&s->told))
            fault("rank %zu is gone: its process has ended; its own message, or dmesg, has the "
                  "reason",
                  s->rank);
        if (state == 'T' && waited > timeout)
            fault("rank %zu is stopped: process %d got SIGSTOP or SIGTSTP; start all ranks again",
                  s->rank, s->pid);
    }
}

// ---- which rank waits for which ----

static bool waiting(const Slot *s) { return atomic_load(&s->number) % 2 == 1; }
static bool too_long(const Slot *s, double time) {
    return waiting(s) && time > s->since + s->patience;
}

// Are a and b in the same collective, or in a send and its receive?
static bool meets(const Slot *a, const Slot *b) {
    if (!waiting(b) || a->id != b->id || a->meeting != b->meeting) return false;
    if (a->meeting != NONE) return strcmp(a->text, b->text) == 0;
    return a->whom[0] == b->rank && b->whom[0] == a->rank && a->sends != b->sends;
}
static bool waits_for(const Slot *a, const Slot *b) {
    if (a == b || !waiting(a) || meets(a, b)) return false;
    for (size_t i = 0; i < a->n; i++)
        if (a->whom[i] == b->rank) return true;
    return false;
}

// Returns the next stuck rank that i waits for, or `ranks` if there is none.
static size_t next_stuck(size_t i, const bool *stuck) {
    size_t to = 0;
    while (to < ranks && !(stuck[to] && waits_for(slot(i), slot(to)))) to++;
    return to;
}

// Writes the ranks of a cycle to cycle[] and returns their number, or 0 if there is no cycle.
// First, every rank that has waited for too long counts as stuck. Then the loop removes each rank
// that waits for no stuck rank, until it finds no more. Each remaining rank waits for another
// remaining rank. So a walk from a remaining rank is in a cycle after `ranks` steps.
static size_t find_cycle(Member *cycle, double time) {
    bool *stuck = host_alloc(ranks);
    size_t at = 0, n = 0, next;
    for (size_t i = 0; i < ranks; i++) stuck[i] = too_long(slot(i), time);
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < ranks; i++) {
            if (!stuck[i] || next_stuck(i, stuck) < ranks) continue;
            stuck[i] = false;
            changed = true;
        }
    }
    while (at < ranks && !stuck[at]) at++;
    for (size_t step = 0; step < ranks && at < ranks; step++) at = next_stuck(at, stuck);
    for (next = at; next < ranks && n < ranks && (n == 0 || next != at);
         next = next_stuck(next, stuck))
        cycle[n++] =
            (Member){ next, atomic_load(&slot(next)->number), atomic_load(&slot(next)->polls) };
    free(stuck);
    return next == at ? n : 0; // a wait may have ended during the search
}

// ---- the table ----

static bool on_this_node(size_t rank) {
    size_t i = 0;
    while (i < ranks && slot(i)->rank != rank) i++;
    return i < ranks;
}

static void print_rank(FILE *f, const Slot *s) {
    if (!waiting(s)) {
        fprintf(f, "  rank %zu is in no call: it computes\n", s->rank);
        return;
    }
    fprintf(f, "  rank %zu waits %.0f s in %s", s->rank, now() - s->since, s->text);
    const char *before = ", not reached by";
    for (size_t i = 0; s->meeting != NONE && i < ranks; i++) {
        if (!waits_for(s, slot(i))) continue;
        fprintf(f, "%s rank %zu", before, slot(i)->rank);
        before = ",";
    }
    before = "; on another node:";
    for (size_t i = 0; i < s->n; i++) {
        if (on_this_node(s->whom[i])) continue;
        fprintf(f, "%s rank %u", before, s->whom[i]);
        before = ",";
    }
    fprintf(f, "\n");
}

// Prints the table with one write to stderr, so lines of several processes do not mix. Only the
// first process that calls this function prints, and gets true.
static bool print_table(const char *title, const Member *cycle, size_t n) {
    char *text = NULL;
    size_t length = 0;
    FILE *f = atomic_exchange(&slot(0)->printed, true) ? NULL : open_memstream(&text, &length);
    if (!f) return false;
    fprintf(f, "%s", title);
    for (size_t i = 0; i < ranks; i++) print_rank(f, slot(i));
    for (size_t i = 0; i < n; i++)
        fprintf(f, i == 0 ? "  the cycle: rank %zu waits for" : " rank %zu, which waits for",
                slot(cycle[i].i)->rank);
    if (n > 0) fprintf(f, " rank %zu\n", slot(cycle[0].i)->rank);
    fclose(f);
    fflush(stdout);
    fwrite(text, 1, length, stderr);
    fflush(stderr);
    free(text);
    return true;
}

void waits_print(void) {
    if (slots && seconds > 0) print_table("", NULL, 0);
}

static void report(const Member *cycle, size_t n) {
    const double time = now();
    bool all = ranks == this_world_size;
    for (size_t i = 0; i < ranks; i++) all = all && too_long(slot(i), time);
    char title[200];
    snprintf(title, sizeof title,
             "unsplit: deadlock: %s for more than %g s (--deadlock), and none of these can go on\n",
             all ? "all ranks have waited" : "some ranks of this node have waited", seconds);
    if (!print_table(title, cycle, n)) return;
    end_all_ranks(STATUS_FAULT);
    _exit(STATUS_FAULT);
}

void waits_look(void) {
    if (!slots || seconds <= 0) return;
    atomic_fetch_add(&slot(me)->polls, 1);
    double time = now();
    if (time < next_look || !too_long(slot(me), time)) return;
    next_look = time + 0.1;
    Member *cycle = host_alloc(ranks * sizeof *cycle);
    size_t n = find_cycle(cycle, time);
    // the same waits as before, and each rank has polled often enough since then
    bool same = n == n_suspects, polled = n > 0;
    for (size_t i = 0; i < n && same; i++) {
        same = cycle[i].i == suspects[i].i && cycle[i].number == suspects[i].number;
        polled = polled && cycle[i].polls >= suspects[i].polls + POLLS;
    }
    if (same && polled) report(cycle, n);
    if (!same) memcpy(suspects, cycle, n * sizeof *cycle);
    n_suspects = n;
    free(cycle);
}
