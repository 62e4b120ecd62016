// waits.c: keeps the table of the processes and waits on one node, and searches the table for
// blocked ranks.
#include "common/comm/waits.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/tensor/random.h"

enum { POLLS = 1000 };

// Each process has a slot. A process reads all slots and writes only its own slot. Only `printed`
// of rank 0's slot may be set by any process of the node, because every node's table has this slot.
typedef struct {
    _Atomic uint64_t number; // grows by 1 when a wait begins or ends; odd while the process waits
    _Atomic uint64_t polls;  // number of MPI polls
    _Atomic bool told;       // the process has printed why it ends all ranks
    _Atomic bool printed;    // slot of rank 0 only: a process of the node has printed the table
    int pid;                 // 0: a rank of another node
    double since;            // the time when the process's wait began
    double patience;         // after this many seconds the wait may be a deadlock
    char text[200];
    uint64_t flow; // of the Request that the process waits for
    size_t n;
    uint32_t whom[]; // [n] world ranks: the peer, or all members
} Slot;

static MPI_Win window = MPI_WIN_NULL;
static char *slots; // [rank in the world], each of slot_bytes
static size_t slot_bytes, ranks_here;
static double seconds; // --deadlock
static bool visible;   // the processes of the node see each other in /proc
// blocked[rank] means that the rank has waited for too long, and for another blocked rank.
// polls[rank] is the rank's number of polls when the search first saw the present waits of the
// blocked ranks.
static bool *blocked;
static uint64_t *polls;

static Slot *slot(size_t rank) { return (Slot *)(slots + rank * slot_bytes); }

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
    ranks_here = (size_t)n;
    slot_bytes = ceil_div(sizeof(Slot) + this_world_size * sizeof(uint32_t), 64) * 64;
    // The first process of the node owns the memory of the whole table.
    bytes = rank == 0 ? (MPI_Aint)(this_world_size * slot_bytes) : 0;
    // If MPI cannot share memory, there is no table. Then no rank looks for ended processes or for
    // a deadlock, so a deadlock lasts until --timeout.
    if (MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, host, &memory, &window) != MPI_SUCCESS)
        return;
    MPI_Win_shared_query(window, 0, &bytes, &unit, &memory);
    slots = memory;
    blocked = host_alloc(this_world_size * sizeof *blocked);
    polls = host_alloc(this_world_size * sizeof *polls);
    if (rank == 0) memset(slots, 0, (size_t)bytes);
    MPI_Barrier(host);
    slot(this_rank)->pid = (int)getpid();
    MPI_Barrier(host);
    // The loop sets `visible` to false if the processes are in several containers, each with its
    // own process numbers.
    visible = true;
    for (size_t i = 0; i < this_world_size; i++)
        visible = visible && (!slot(i)->pid || state_of(slot(i)->pid));
    // No process may end before all processes have run the loop.
    MPI_Barrier(host);
}

void waits_search(double deadlock) { seconds = deadlock; }

void waits_close(void) {
    if (!slots) return;
    slots = NULL;
    visible = false;
    free(blocked);
    free(polls);
    MPI_Win_free(&window);
}

void waits_post(const Request *r, double since) {
    if (!slots) return;
    Slot *s = slot(this_rank);
    bool message = request_is_message(r);
    s->since = since;
    s->patience = seconds + (double)request_bytes(r) / 1e7;
    describe(r, s->text);
    s->flow = r->flow;
    s->n = message ? 1 : r->comm->size;
    for (size_t i = 0; i < s->n; i++)
        s->whom[i] = (uint32_t)request_world_rank(r, message ? r->peer : i);
    atomic_fetch_add(&s->number, 1);
}

void waits_clear(void) {
    if (slots) atomic_fetch_add(&slot(this_rank)->number, 1);
}

void waits_tell(void) {
    if (slots) atomic_store(&slot(this_rank)->told, true);
}

bool waits_see_all(void) { return visible && ranks_here == this_world_size; }

void waits_require_alive(double waited, double timeout) {
    const double every = 0.4; // seconds
    static double last_look;
    if (!visible || waited < every || now() < last_look + every) return;
    last_look = now();
    for (size_t rank = 0; rank < this_world_size; rank++) {
        const Slot *s = slot(rank);
        if (!s->pid) continue;
        const char state = state_of(s->pid);
        if (!state && !atomic_load(&s->told))
            fault("rank %zu is gone: its process has ended; its own message, or dmesg, has the "
                  "reason",
                  rank);
        if (state == 'T' && waited > timeout)
            fault("rank %zu is stopped: process %d got SIGSTOP or SIGTSTP; start all ranks again",
                  rank, s->pid);
    }
}

// ---- which rank waits for which ----

static bool waiting(const Slot *s) { return atomic_load(&s->number) % 2 == 1; }
static bool too_long(const Slot *s) { return waiting(s) && now() > s->since + s->patience; }

// Returns whether a and b wait in the same collective, or in a send and its receive. Ranks with
// different calls in place of the same collective do not meet.
static bool meets(const Slot *a, const Slot *b) {
    if (!waiting(b) || a->flow != b->flow) return false;
    return a->n == 1 || strcmp(a->text, b->text) == 0;
}

// Returns a blocked rank that `rank` waits for, or the size of the world if there is none.
static size_t next_blocked(size_t rank) {
    const Slot *s = slot(rank);
    for (size_t k = 0; k < s->n; k++) {
        const size_t to = s->whom[k];
        if (blocked[to] && to != rank && !meets(s, slot(to))) return to;
    }
    return this_world_size;
}

// Finds the blocked ranks. At first every rank that has waited for too long counts as blocked. Then
// the loop unblocks each rank that waits for no blocked rank, until no such rank is left. Returns a
// key of the waits of the remaining ranks, or 0 if no rank is blocked.
static uint64_t find_blocked(void) {
    uint64_t key = 0;
    for (size_t i = 0; i < this_world_size; i++) blocked[i] = too_long(slot(i));
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < this_world_size; i++) {
            if (!blocked[i] || next_blocked(i) < this_world_size) continue;
            blocked[i] = false;
            changed = true;
        }
    }
    for (size_t i = 0; i < this_world_size; i++)
        if (blocked[i]) key = random_key(random_key(key, i), atomic_load(&slot(i)->number));
    return key;
}

// ---- the table ----

static void print_rank(FILE *f, size_t rank) {
    const Slot *s = slot(rank);
    if (!s->pid) return;
    if (!waiting(s)) {
        fprintf(f, "  rank %zu is in no call: it computes\n", rank);
        return;
    }
    fprintf(f, "  rank %zu waits %.0f s in %s", rank, now() - s->since, s->text);
    const char *before = ", not reached by";
    for (size_t k = 0; k < s->n; k++) {
        const size_t member = s->whom[k];
        const Slot *other = slot(member);
        if (member == rank || meets(s, other)) continue;
        fprintf(f, "%s rank %zu%s", before, member, other->pid ? "" : " of another node");
        before = ",";
    }
    fprintf(f, "\n");
}

// Prints a cycle of blocked ranks. Each blocked rank waits for another blocked rank. So a walk from
// rank to rank, with as many steps as there are ranks, ends in a cycle.
static void print_cycle(FILE *f) {
    size_t first = 0, steps = 0;
    while (!blocked[first]) first++;
    for (; steps < this_world_size; steps++) first = next_blocked(first);
    fprintf(f, "  the cycle: rank %zu waits for", first);
    for (size_t at = next_blocked(first); at != first; at = next_blocked(at))
        fprintf(f, " rank %zu, which waits for", at);
    fprintf(f, " rank %zu\n", first);
}

// Prints the table with one write to stderr, so lines of several processes do not mix. Only the
// first process of the node that calls this function prints the table. Returns whether this process
// printed.
static bool print_table(bool deadlock) {
    char *text = NULL;
    size_t length = 0;
    FILE *f = atomic_exchange(&slot(0)->printed, true) ? NULL : open_memstream(&text, &length);
    if (!f) return false;
    if (deadlock)
        fprintf(f,
                "unsplit: deadlock: ranks have waited for each other for more than %g s "
                "(--deadlock)\n",
                seconds);
    for (size_t i = 0; i < this_world_size; i++) print_rank(f, i);
    if (deadlock) print_cycle(f);
    fclose(f);
    fflush(stdout);
    fwrite(text, 1, length, stderr);
    fflush(stderr);
    free(text);
    return true;
}

void waits_print(void) {
    if (slots && seconds > 0) print_table(false);
}

void waits_look(void) {
    static double next_look;
    static uint64_t seen; // the key of the blocked ranks' waits at the last search
    if (!slots || seconds <= 0) return;
    atomic_fetch_add(&slot(this_rank)->polls, 1);
    if (now() < next_look || !too_long(slot(this_rank))) return;
    next_look = now() + 0.1;
    const uint64_t key = find_blocked();
    bool deadlock = key != 0 && key == seen;
    for (size_t i = 0; i < this_world_size; i++) {
        if (key != seen) polls[i] = atomic_load(&slot(i)->polls);
        if (blocked[i] && atomic_load(&slot(i)->polls) < polls[i] + POLLS) deadlock = false;
    }
    seen = key;
    if (!deadlock || !print_table(true)) return;
    end_all_ranks(STATUS_FAULT);
    _exit(STATUS_FAULT);
}
