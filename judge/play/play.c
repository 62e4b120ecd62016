// play.c: the player, which keeps lists of steps, computes their times, and returns the results.
#include "judge/play/play.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    PlayStep *step;
    size_t n, done;
    size_t now[MEM_CATEGORIES], peak[MEM_CATEGORIES];
    Picoseconds clock; // the end of the last step done
} Rank;
// A collective or a message.
typedef struct {
    CommKind kind;
    size_t bytes;      // of the whole tensor
    size_t arrived;    // number of ranks that have started the transfer
    Picoseconds begin; // on the lane; until all ranks have arrived, the latest start so far
    Picoseconds end;   // when the transfer is done and its lane is free for the next transfer
} Transfer;
// The collectives of a group, or the messages from one rank to another. Transfers leave in order.
typedef struct {
    Transfer *transfer;
    size_t n, complete;  // complete: number of transfers that have left
    size_t sends, posts; // messages in the lists so far
    size_t posted;       // receives that the receiver has posted
    Picoseconds free_at;
} Lane;
typedef struct {
    size_t rank;
    size_t listed;  // collectives in the member's list
    size_t started; // collectives that the member has started
} Member;
typedef struct {
    char name[12];
    size_t n;
    Member *member; // [n], their ranks ascending
    size_t cards;   // network cards of a node that its collectives use; 0 inside a node
    Lane collectives;
    Lane *lane; // [n n] by sender and receiver; NULL before the first message
} Group;
struct Play {
    ClockConfig clock; // all zero: one node, and no link takes time
    size_t ranks, groups;
    Rank *rank;
    Group *group;
};

// Returns array [n] with room for one more item. The room is a power of two.
static void *grown(void *array, size_t n, size_t size) {
    if ((n & (n - 1)) != 0) return array;
    array = realloc(array, (n ? 2 * n : 1) * size);
    if (!array) fault("out of memory: a list of %zu steps", n);
    return array;
}

Play *play_new(size_t ranks, const ClockConfig *clock) {
    Play *p = host_alloc(sizeof *p);
    p->ranks = ranks;
    p->rank = host_alloc(ranks * sizeof *p->rank);
    if (clock) p->clock = *clock;
    return p;
}

void play_free(Play *p) {
    for (size_t r = 0; r < p->ranks; r++) free(p->rank[r].step);
    for (size_t i = 0; i < p->groups; i++) {
        Group *g = &p->group[i];
        for (size_t k = 0; g->lane && k < g->n * g->n; k++) free(g->lane[k].transfer);
        free(g->lane);
        free(g->collectives.transfer);
        free(g->member);
    }
    free(p->group);
    free(p->rank);
    free(p);
}

static bool same_node(const Play *p, size_t a, size_t b) {
    size_t node = p->clock.node;
    return node == 0 || a / node == b / node;
}

// Returns the network cards of a node that a collective uses. Nodes hold neighbouring members. A
// collective uses as many cards as the smallest of its nodes has members, but at most the cards of
// a node. Returns 0 if all members are on one node.
static size_t cards_of(const Play *p, const Group *g) {
    size_t least = g->n;
    for (size_t first = 0, i = 1; i <= g->n; i++) {
        if (i < g->n && same_node(p, g->member[first].rank, g->member[i].rank)) continue;
        if (i - first < least) least = i - first;
        first = i;
    }
    if (least == g->n) return 0;
    return p->clock.rails && p->clock.rails < least ? p->clock.rails : least;
}

size_t play_group_of(Play *p, const char *name, size_t n, const size_t *rank) {
    p->group = grown(p->group, p->groups, sizeof *p->group);
    Group *g = &p->group[p->groups];
    *g = (Group){ .n = n, .member = host_alloc(n * sizeof *g->member) };
    snprintf(g->name, sizeof g->name, "%s", name);
    for (size_t i = 0; i < n; i++) {
        if (rank[i] >= p->ranks || (i > 0 && rank[i] <= rank[i - 1]))
            fault("rank %zu as member %zu of %s: choose ascending ranks below %zu", rank[i], i,
                  name, p->ranks);
        g->member[i].rank = rank[i];
    }
    g->cards = cards_of(p, g);
    return p->groups++;
}
size_t play_group(Play *p, const char *name, size_t first, size_t n, size_t stride) {
    size_t *rank = host_alloc(n * sizeof *rank);
    for (size_t i = 0; i < n; i++) rank[i] = first + i * stride;
    size_t group = play_group_of(p, name, n, rank);
    free(rank);
    return group;
}

static size_t member_of(const Group *g, size_t rank) {
    size_t lo = 0, hi = g->n;
    while (lo < hi) {
        size_t middle = (lo + hi) / 2;
        if (g->member[middle].rank < rank) lo = middle + 1;
        else hi = middle;
    }
    if (lo == g->n || g->member[lo].rank != rank)
        fault("rank %zu is no member of %s", rank, g->name);
    return lo;
}
// Returns the lane of a step that is no product and no wait.
static Lane *lane_of(const Play *p, const PlayStep *s) {
    Group *g = &p->group[s->group];
    if (s->what == PLAY_START) return &g->collectives;
    return &g->lane[s->what == PLAY_SEND ? s->member * g->n + s->peer : s->peer * g->n + s->member];
}

// ---- lists ----

static size_t add(Play *p, size_t rank, PlayStep s) {
    Rank *r = &p->rank[rank];
    r->step = grown(r->step, r->n, sizeof s);
    r->step[r->n] = s;
    return r->n++;
}

size_t play_length(const Play *p, size_t rank) { return p->rank[rank].n; }
size_t play_work(Play *p, size_t rank, Picoseconds takes) {
    return add(p, rank, (PlayStep){ .what = PLAY_WORK, .takes = takes });
}

// Returns the time of a transfer. `cards` is 0 inside a node.
static Picoseconds transfer_time(const Play *p, size_t cards, size_t steps, size_t bytes) {
    const ClockLink inside = p->clock.link, link = cards ? p->clock.between : inside;
    if (link.beta == 0) return 0;
    double beta = cards ? (double)cards * link.beta : link.beta;
    if (inside.beta > 0) beta = fmin(beta, inside.beta); // all bytes also pass the link inside
    return (Picoseconds)llround((double)steps * link.alpha * 1e12 + (double)bytes * 1e12 / beta);
}

// Appends a step with transfer number s.number of its lane. All ranks of a transfer must give the
// same kind and bytes.
static size_t add_transfer(Play *p, size_t rank, PlayStep s, CommKind kind, size_t bytes) {
    Lane *lane = lane_of(p, &s);
    if (s.number == lane->n) {
        lane->transfer = grown(lane->transfer, lane->n, sizeof *lane->transfer);
        lane->transfer[lane->n++] = (Transfer){ .kind = kind, .bytes = bytes };
    }
    const Transfer *first = &lane->transfer[s.number];
    if (first->kind != kind || first->bytes != bytes)
        fault("rank %zu starts %s of %zu bytes on %s, where another rank starts %s of %zu bytes",
              rank, comm_kind_name[kind], bytes, p->group[s.group].name,
              comm_kind_name[first->kind], first->bytes);
    return add(p, rank, s);
}

size_t play_start(Play *p, size_t rank, size_t group, CommKind kind, size_t count, size_t size) {
    const Group *g = &p->group[group];
    if (kind == COMM_BROADCAST || kind == COMM_REDUCE)
        fault("the player has no %s: its collectives are rings", comm_kind_name[kind]);
    const size_t steps = (kind == COMM_ALL_REDUCE ? 2 : 1) * (g->n - 1); // the steps of a ring
    PlayStep s = { .what = PLAY_START, .group = group, .member = member_of(g, rank) };
    s.number = g->member[s.member].listed++;
    s.takes = transfer_time(p, g->cards, steps, steps * ceil_div(count, g->n) * size);
    return add_transfer(p, rank, s, kind, count * size);
}
void play_call(Play *p, size_t rank, size_t group, CommKind kind, size_t count, size_t size) {
    play_wait(p, rank, play_start(p, rank, group, kind, count, size));
}

static size_t message(Play *p, size_t rank, size_t group, PlayWhat what, size_t peer, size_t bytes,
                      Picoseconds takes) {
    Group *g = &p->group[group];
    if (peer >= g->n)
        fault("rank %zu has a message with member %zu of %s, which has %zu", rank, peer, g->name,
              g->n);
    if (!g->lane) g->lane = host_alloc(g->n * g->n * sizeof *g->lane);
    PlayStep s = { .what = what, .group = group, .member = member_of(g, rank) };
    s.peer = peer;
    s.takes = takes;
    Lane *lane = lane_of(p, &s);
    s.number = what == PLAY_SEND ? lane->sends++ : lane->posts++;
    return add_transfer(p, rank, s, COMM_SEND, bytes);
}
size_t play_send_taking(Play *p, size_t rank, size_t group, size_t to, size_t bytes,
                        Picoseconds takes) {
    return message(p, rank, group, PLAY_SEND, to, bytes, takes);
}
size_t play_send(Play *p, size_t rank, size_t group, size_t to, size_t bytes) {
    const Group *g = &p->group[group];
    bool near =
        to < g->n && same_node(p, rank, g->member[to].rank); // message() rejects other members
    return play_send_taking(p, rank, group, to, bytes, transfer_time(p, !near, 1, bytes));
}
size_t play_post(Play *p, size_t rank, size_t group, size_t from, size_t bytes) {
    return message(p, rank, group, PLAY_POST, from, bytes, 0);
}
void play_wait(Play *p, size_t rank, size_t step) {
    add(p, rank, (PlayStep){ .what = PLAY_WAIT, .target = step });
}

void play_hold(Play *p, size_t rank, MemoryCategory category, size_t bytes) {
    Rank *r = &p->rank[rank];
    r->now[category] += bytes;
    if (r->now[category] > r->peak[category]) r->peak[category] = r->now[category];
}
void play_drop(Play *p, size_t rank, MemoryCategory category, size_t bytes) {
    Rank *r = &p->rank[rank];
    if (bytes > r->now[category])
        fault("rank %zu drops %zu bytes of memory category %d, but it holds %zu", rank, bytes,
              (int)category, r->now[category]);
    r->now[category] -= bytes;
}

// ---- playing ----

static Picoseconds later(Picoseconds a, Picoseconds b) { return a > b ? a : b; }
static Transfer *transfer_of(const Play *p, const PlayStep *s) {
    return &lane_of(p, s)->transfer[s->number];
}

// Returns whether all members have started every collective that this rank has started. s is a
// collective of this rank. Only the rank's latest collective can be incomplete.
static bool all_met(const Play *p, const PlayStep *s) {
    const Group *g = &p->group[s->group];
    return g->member[s->member].started <= g->collectives.complete;
}

// Records that a rank has started a transfer of `ranks` ranks. The last of these ranks sets begin
// and end.
static void arrive(const Play *p, const PlayStep *s, size_t ranks, Picoseconds now) {
    Lane *lane = lane_of(p, s);
    Transfer *t = transfer_of(p, s);
    t->begin = later(t->begin, now);
    if (++t->arrived < ranks) return;
    t->begin = later(t->begin, lane->free_at);
    t->end = t->begin + s->takes;
    lane->free_at = t->end;
    lane->complete++;
}

// Returns whether a rank can continue after a wait for its step s. If so, *clock moves to the end
// of a collective or of a received message. A sender continues when the receive is posted, and its
// clock stays.
static bool is_over(const Play *p, const PlayStep *s, Picoseconds *clock) {
    if (s->what == PLAY_SEND) return lane_of(p, s)->posted > s->number;
    if (s->what == PLAY_WORK || s->what == PLAY_WAIT) return true;
    bool over = s->what == PLAY_START ? all_met(p, s) : lane_of(p, s)->complete > s->number;
    if (over) *clock = later(*clock, transfer_of(p, s)->end);
    return over;
}

// Does the next step of a rank. Returns false if the list has ended or the rank is stuck.
static bool do_step(Play *p, size_t rank) {
    Rank *r = &p->rank[rank];
    if (r->done == r->n) return false;
    PlayStep *s = &r->step[r->done];
    s->begin = r->clock;
    s->end = r->clock;
    switch (s->what) {
    case PLAY_WORK:
        s->end += s->takes;
        r->clock = s->end;
        break;
    case PLAY_START:
        if (!all_met(p, s)) return false;
        p->group[s->group].member[s->member].started++;
        arrive(p, s, p->group[s->group].n, r->clock);
        break;
    case PLAY_SEND:
        arrive(p, s, 1, r->clock);
        s->begin = transfer_of(p, s)->begin;
        s->end = transfer_of(p, s)->end;
        break;
    case PLAY_POST: lane_of(p, s)->posted++; break;
    case PLAY_WAIT:
        if (s->target >= r->done || !is_over(p, &r->step[s->target], &r->clock)) return false;
        s->end = r->clock;
        break;
    }
    r->done++;
    return true;
}

// A step of one rank never prevents a step of another rank, so the order of the ranks does not
// matter.
bool play_run(Play *p) {
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t r = 0; r < p->ranks; r++)
            while (do_step(p, r)) moved = true;
    }
    for (size_t r = 0; r < p->ranks; r++)
        if (play_stuck(p, r)) return false;
    return true;
}

// ---- results ----

size_t play_peak(const Play *p, size_t rank, MemoryCategory category) {
    return p->rank[rank].peak[category];
}
Picoseconds play_end(const Play *p, size_t rank) { return p->rank[rank].clock; }
size_t play_done(const Play *p, size_t rank) { return p->rank[rank].done; }
const PlayStep *play_step(const Play *p, size_t rank, size_t step) {
    return &p->rank[rank].step[step];
}
const PlayStep *play_stuck(const Play *p, size_t rank) {
    const Rank *r = &p->rank[rank];
    return r->done < r->n ? &r->step[r->done] : NULL;
}

static Picoseconds busy_between(const Rank *r, Picoseconds begin, Picoseconds end) {
    Picoseconds busy = 0;
    for (const PlayStep *s = r->step; s < r->step + r->done; s++) {
        Picoseconds from = later(s->begin, begin), to = s->end < end ? s->end : end;
        if (s->what == PLAY_WORK && from < to) busy += to - from;
    }
    return busy;
}

// Returns the complete collective that a rank starts in step s, or the message that the rank
// receives in step s. Returns NULL for any other step.
static const Transfer *communication(const Play *p, const Rank *r, const PlayStep *s) {
    if (s->what == PLAY_START)
        return lane_of(p, s)->complete > s->number ? transfer_of(p, s) : NULL;
    if (s->what != PLAY_WAIT || r->step[s->target].what != PLAY_POST) return NULL;
    return transfer_of(p, &r->step[s->target]);
}

PlayTiming play_timing(const Play *p) {
    PlayTiming t = { 0 };
    Picoseconds first = UINT64_MAX, last = 0;
    for (const Rank *r = p->rank; r < p->rank + p->ranks; r++)
        for (const PlayStep *s = r->step; s < r->step + r->done; s++) {
            const Transfer *c = communication(p, r, s);
            if (!c && (s->what != PLAY_WORK || s->takes == 0)) continue;
            const Picoseconds begin = c ? c->begin : s->begin, end = c ? c->end : s->end;
            if (!c || c->kind != COMM_SEND) first = begin < first ? begin : first;
            last = later(last, end);
            if (!c) continue;
            const Picoseconds hidden = busy_between(r, begin, end);
            t.hidden += hidden;
            t.exposed += end - begin - hidden;
        }
    t.step = last > first ? last - first : 0;
    return t;
}

// ---- which rank waits for which ----

char *play_why(const Play *p) {
    char *text;
    size_t length;
    FILE *f = open_memstream(&text, &length);
    if (!f) fault("out of memory: the waits of %zu ranks", p->ranks);
    for (size_t k = 0; k < p->ranks; k++) {
        const PlayStep *s = play_stuck(p, k);
        if (!s) continue;
        fprintf(f, "rank %zu waits ", k);
        if (s->what == PLAY_WAIT && s->target >= p->rank[k].done) {
            fprintf(f, "for a step that its list has later\n");
            continue;
        }
        if (s->what == PLAY_WAIT) s = &p->rank[k].step[s->target];
        const Group *g = &p->group[s->group];
        if (s->what != PLAY_START) {
            fprintf(f, "in %s rank %zu of %s\n", s->what == PLAY_SEND ? "send to" : "recv from",
                    s->peer, g->name);
            continue;
        }
        const size_t number = g->collectives.complete; // this collective is incomplete
        fprintf(f, "in %s on %s", comm_kind_name[g->collectives.transfer[number].kind], g->name);
        const char *before = ", not reached by";
        for (size_t i = 0; i < g->n; i++) {
            if (g->member[i].started > number) continue;
            fprintf(f, "%s rank %zu", before, g->member[i].rank);
            before = ",";
        }
        fprintf(f, "\n");
    }
    fclose(f);
    return text;
}
