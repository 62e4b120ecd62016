// play.c: the player. It keeps lists of steps, computes their times, and returns the results.
#include "judge/play/play.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    PlayStep *step;
    size_t n, done, recorded; // recorded: the first counted step
    size_t now[MEM_CATEGORIES], peak[MEM_CATEGORIES], total, total_peak;
    Picoseconds clock; // the end of the last step done
} Rank;
// The collectives of a group in order, and their places in the members' lists.
typedef struct {
    CommKind kind;
    size_t root, count, size;
    size_t arrived;         // number of members that have started the collective
    Picoseconds begin, end; // begin: the latest start of a member so far
} Meeting;
// The messages from one rank to another, with the places of their sends and receives in the lists.
typedef struct {
    size_t *send, *post;
    size_t sends, posts;
    Picoseconds free_at;
} Lane;
typedef struct {
    char name[12];
    size_t n, *rank; // [n] ascending
    size_t cards;    // network cards of a node that its collectives use; 0 inside a node
    PlayCount (*count)[COMM_KINDS]; // [n]
    // listed [n]: number of collectives in each member's list. started [n]: number of collectives
    // that the member has started.
    size_t *listed, *started;
    Meeting *meeting;
    size_t meetings;
    Lane *lane; // [n n] by sender and receiver; NULL before the first message
} Group;
struct Play {
    bool links;
    ClockConfig clock;
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
    p->links = clock != NULL;
    if (clock) p->clock = *clock;
    return p;
}

void play_free(Play *p) {
    for (size_t r = 0; r < p->ranks; r++) free(p->rank[r].step);
    for (size_t i = 0; i < p->groups; i++) {
        Group *g = &p->group[i];
        for (size_t k = 0; g->lane && k < g->n * g->n; k++) {
            free(g->lane[k].send);
            free(g->lane[k].post);
        }
        free(g->lane);
        free(g->rank);
        free(g->count);
        free(g->listed);
        free(g->started);
        free(g->meeting);
    }
    free(p->group);
    free(p->rank);
    free(p);
}

static bool same_node(const Play *p, size_t a, size_t b) {
    size_t node = p->clock.node;
    return node == 0 || a / node == b / node;
}

// Nodes hold neighbouring members. A collective uses as many cards as the smallest of its nodes has
// members, at most those that a node has.
static size_t cards_of(const Play *p, const Group *g) {
    size_t least = g->n;
    for (size_t first = 0, i = 1; i <= g->n; i++) {
        if (i < g->n && same_node(p, g->rank[first], g->rank[i])) continue;
        if (i - first < least) least = i - first;
        first = i;
    }
    if (least == g->n) return 0;
    return p->clock.rails && p->clock.rails < least ? p->clock.rails : least;
}

size_t play_group_of(Play *p, const char *name, size_t n, const size_t *rank) {
    p->group = grown(p->group, p->groups, sizeof *p->group);
    Group *g = &p->group[p->groups];
    *g = (Group){ .n = n,
                  .rank = host_alloc(n * sizeof *g->rank),
                  .count = host_alloc(n * sizeof *g->count),
                  .listed = host_alloc(n * sizeof *g->listed),
                  .started = host_alloc(n * sizeof *g->started) };
    snprintf(g->name, sizeof g->name, "%s", name);
    for (size_t i = 0; i < n; i++) {
        if (rank[i] >= p->ranks || (i > 0 && rank[i] <= rank[i - 1]))
            fault("rank %zu as member %zu of %s: choose ascending ranks below %zu", rank[i], i,
                  name, p->ranks);
        g->rank[i] = rank[i];
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
size_t play_cards(const Play *p, size_t group) { return p->group[group].cards; }

// Returns the place of a rank among the members, by binary search; n if it is not a member.
static size_t find_member(const Group *g, size_t rank) {
    size_t lo = 0, hi = g->n;
    while (lo < hi) {
        size_t middle = (lo + hi) / 2;
        if (g->rank[middle] < rank) lo = middle + 1;
        else hi = middle;
    }
    return lo < g->n && g->rank[lo] == rank ? lo : g->n;
}
static size_t member_of(const Group *g, size_t rank) {
    size_t member = find_member(g, rank);
    if (member == g->n) fault("rank %zu is no member of %s", rank, g->name);
    return member;
}
static Lane *lane_of(const Group *g, size_t from, size_t to) { return &g->lane[from * g->n + to]; }

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

// cards: 0 inside a node. Several cards are at most as fast as the link inside.
static Picoseconds transfer(const Play *p, size_t cards, size_t steps, size_t bytes) {
    ClockLink inside = p->clock.link, link = cards ? p->clock.between : inside;
    if (!p->links || link.beta == 0) return 0;
    double beta = link.beta, most = inside.beta > beta ? inside.beta : beta;
    if (cards > 1 && inside.beta == 0) beta *= (double)cards;
    else if (cards > 1) beta = (double)cards * beta < most ? (double)cards * beta : most;
    return (Picoseconds)llround((double)steps * link.alpha * 1e12 + (double)bytes * 1e12 / beta);
}

// Computes the bytes that member `me` sends and receives in a collective, and its time, for a ring
// or a chain as in comm.h.
static Picoseconds collective(const Play *p, const Group *g, size_t me, const Meeting *m,
                              PlayCount *books) {
    bool chain = m->kind == COMM_BROADCAST || m->kind == COMM_REDUCE;
    size_t rounds = m->kind == COMM_ALL_REDUCE ? 2 : 1, steps = rounds * (g->n - 1);
    size_t bytes = steps * ceil_div(m->count, g->n) * m->size;
    *books = (PlayCount){ 1, bytes, bytes };
    if (chain) {
        size_t head = m->kind == COMM_BROADCAST
                          ? m->root
                          : (m->root + 1) % g->n; // the first member of the chain
        bool sends = (me == m->root) == (m->kind == COMM_BROADCAST);
        bytes = g->n > 1 ? m->count * m->size : 0;
        *books = (PlayCount){ 1, sends ? bytes : 0, me != head ? bytes : 0 };
    }
    return transfer(p, g->cards, steps, bytes);
}

static void book(Group *g, size_t member, CommKind kind, PlayCount c) {
    PlayCount *sum = &g->count[member][kind];
    sum->calls += c.calls;
    sum->bytes += c.bytes;
    sum->received += c.received;
}

// Appends the rank's next collective. All members must make the same call.
static size_t start(Play *p, size_t rank, size_t group, Meeting m, Picoseconds takes) {
    Group *g = &p->group[group];
    size_t number = g->listed[member_of(g, rank)]++;
    if (number == g->meetings) {
        g->meeting = grown(g->meeting, g->meetings, sizeof m);
        g->meeting[g->meetings++] = m;
    }
    const Meeting *first = &g->meeting[number];
    if (first->kind != m.kind || first->root != m.root || first->count != m.count ||
        first->size != m.size)
        fault("rank %zu starts %s of %zu times %zu bytes on %s, where another rank starts %s of "
              "%zu times %zu bytes",
              rank, comm_kind_name[m.kind], m.count, m.size, g->name, comm_kind_name[first->kind],
              first->count, first->size);
    return add(p, rank,
               (PlayStep){ .what = PLAY_START,
                           .kind = m.kind,
                           .group = group,
                           .peer = m.root,
                           .number = number,
                           .count = m.count,
                           .size = m.size,
                           .takes = takes });
}
size_t play_start_rooted(Play *p, size_t rank, size_t group, CommKind kind, size_t root,
                         size_t count, size_t size) {
    Group *g = &p->group[group];
    size_t me = member_of(g, rank);
    Meeting m = { .kind = kind, .root = root, .count = count, .size = size };
    PlayCount books;
    Picoseconds takes = collective(p, g, me, &m, &books);
    book(g, me, kind, books);
    return start(p, rank, group, m, takes);
}
size_t play_start(Play *p, size_t rank, size_t group, CommKind kind, size_t count, size_t size) {
    return play_start_rooted(p, rank, group, kind, 0, count, size);
}
void play_call(Play *p, size_t rank, size_t group, CommKind kind, size_t count, size_t size) {
    play_wait(p, rank, play_start(p, rank, group, kind, count, size));
}

void play_call_taking(Play *p, size_t rank, size_t group, Picoseconds takes) {
    play_wait(p, rank, start(p, rank, group, (Meeting){ .kind = COMM_ALL_REDUCE }, takes));
}

static size_t message(Play *p, size_t rank, size_t group, PlayWhat what, size_t peer, size_t bytes,
                      Picoseconds takes) {
    Group *g = &p->group[group];
    bool sends = what == PLAY_SEND;
    size_t me = member_of(g, rank), crosses = peer == me ? 0 : bytes;
    if (peer >= g->n)
        fault("rank %zu has a message with member %zu of %s, which has %zu", rank, peer, g->name,
              g->n);
    if (!g->lane) g->lane = host_alloc(g->n * g->n * sizeof *g->lane);
    Lane *lane = sends ? lane_of(g, me, peer) : lane_of(g, peer, me);
    size_t **place = sends ? &lane->send : &lane->post, *n = sends ? &lane->sends : &lane->posts;
    *place = grown(*place, *n, sizeof **place);
    (*place)[*n] = p->rank[rank].n;
    book(g, me, COMM_SEND, sends ? (PlayCount){ 1, crosses, 0 } : (PlayCount){ 0, 0, crosses });
    return add(p, rank,
               (PlayStep){ .what = what,
                           .kind = COMM_SEND,
                           .group = group,
                           .peer = peer,
                           .number = (*n)++,
                           .count = bytes,
                           .size = 1,
                           .takes = takes });
}
size_t play_send_taking(Play *p, size_t rank, size_t group, size_t to, size_t bytes,
                        Picoseconds takes) {
    return message(p, rank, group, PLAY_SEND, to, bytes, takes);
}
size_t play_send(Play *p, size_t rank, size_t group, size_t to, size_t bytes) {
    bool near = same_node(p, rank, p->group[group].rank[to]);
    return play_send_taking(p, rank, group, to, bytes, transfer(p, !near, 1, bytes));
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
    if (category != MEM_REFERENCE) r->total += bytes;
    if (r->total > r->total_peak) r->total_peak = r->total;
}
void play_drop(Play *p, size_t rank, MemoryCategory category, size_t bytes) {
    Rank *r = &p->rank[rank];
    if (bytes > r->now[category])
        fault("rank %zu drops %zu bytes of memory category %d, but it holds %zu", rank, bytes,
              (int)category, r->now[category]);
    r->now[category] -= bytes;
    if (category != MEM_REFERENCE) r->total -= bytes;
}

void play_record(Play *p, size_t rank) {
    Rank *r = &p->rank[rank];
    r->recorded = r->n;
    memcpy(r->peak, r->now, sizeof r->peak);
    r->total_peak = r->total;
    for (size_t i = 0; i < p->groups; i++) {
        Group *g = &p->group[i];
        size_t me = find_member(g, rank);
        if (me < g->n) memset(g->count[me], 0, sizeof g->count[me]);
    }
}

// ---- playing ----

static Picoseconds later(Picoseconds a, Picoseconds b) { return a > b ? a : b; }
static bool has_met(const Group *g, size_t number) { return g->meeting[number].arrived == g->n; }

// Have all members started every collective that this member has started? Only its latest
// collective can be incomplete.
static bool all_met(const Group *g, size_t member) {
    return g->started[member] == 0 || has_met(g, g->started[member] - 1);
}

// A member arrives at a collective. The last member sets begin and end.
static bool join(Group *g, size_t member, const PlayStep *s, Picoseconds now) {
    if (!all_met(g, member)) return false;
    Meeting *m = &g->meeting[s->number];
    g->started[member]++;
    m->begin = later(m->begin, now);
    if (++m->arrived < g->n) return true;
    if (s->number > 0) m->begin = later(m->begin, g->meeting[s->number - 1].end);
    m->end = m->begin + s->takes;
    return true;
}

// Returns the step of the other rank of a message; NULL: that rank has not done it yet.
static const PlayStep *other_end(const Play *p, size_t rank, const PlayStep *s) {
    const Group *g = &p->group[s->group];
    size_t me = member_of(g, rank);
    bool sends = s->what == PLAY_SEND;
    const Lane *lane = sends ? lane_of(g, me, s->peer) : lane_of(g, s->peer, me);
    const Rank *other = &p->rank[g->rank[s->peer]];
    if (s->number >= (sends ? lane->posts : lane->sends)) return NULL;
    size_t at = (sends ? lane->post : lane->send)[s->number];
    if (at >= other->done) return NULL;
    size_t theirs = other->step[at].count;
    if (theirs != s->count)
        fault("message %zu from rank %zu to rank %zu of %s: %zu bytes are sent, and the receive "
              "has %zu",
              s->number, sends ? me : s->peer, sends ? s->peer : me, g->name,
              sends ? s->count : theirs, sends ? theirs : s->count);
    return &other->step[at];
}

// Can this rank continue after a wait for its step s? *until is the time at which it continues.
static bool is_over(const Play *p, size_t rank, const PlayStep *s, Picoseconds *until) {
    const Group *g = &p->group[s->group];
    const PlayStep *other;
    *until = 0;
    switch (s->what) {
    case PLAY_START:
        if (!all_met(g, member_of(g, rank))) return false;
        *until = g->meeting[s->number].end;
        return true;
    case PLAY_SEND: return other_end(p, rank, s) != NULL;
    case PLAY_POST:
        other = other_end(p, rank, s);
        if (other) *until = other->end;
        return other != NULL;
    case PLAY_WORK:
    case PLAY_WAIT: break;
    }
    return true;
}

// Does the next step of a rank, if the rank is not stuck.
static bool do_step(Play *p, size_t rank) {
    Rank *r = &p->rank[rank];
    if (r->done == r->n) return false;
    PlayStep *s = &r->step[r->done];
    Group *g = s->what == PLAY_START || s->what == PLAY_SEND ? &p->group[s->group] : NULL;
    Picoseconds until;
    s->begin = r->clock;
    s->end = r->clock;
    switch (s->what) {
    case PLAY_WORK:
        s->end = r->clock + s->takes;
        r->clock = s->end;
        break;
    case PLAY_START:
        if (!join(g, member_of(g, rank), s, r->clock)) return false;
        break;
    case PLAY_SEND: {
        Lane *lane = lane_of(g, member_of(g, rank), s->peer);
        s->begin = later(r->clock, lane->free_at);
        s->end = s->begin + s->takes;
        lane->free_at = s->end;
        break;
    }
    case PLAY_POST: break;
    case PLAY_WAIT:
        if (s->target >= r->done || !is_over(p, rank, &r->step[s->target], &until)) return false;
        s->end = later(r->clock, until);
        r->clock = s->end;
        break;
    }
    r->done++;
    return true;
}

// Plays all lists. No step prevents another rank's step, so the order of the ranks does not matter.
bool play_run(Play *p) {
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t r = 0; r < p->ranks; r++)
            while (do_step(p, r)) moved = true;
    }
    bool all = true;
    for (size_t r = 0; r < p->ranks; r++) {
        Rank *k = &p->rank[r];
        all &= k->done == k->n;
        for (size_t i = 0; i < k->done; i++) {
            PlayStep *s = &k->step[i];
            if (s->what != PLAY_START || !has_met(&p->group[s->group], s->number)) continue;
            s->begin = p->group[s->group].meeting[s->number].begin;
            s->end = p->group[s->group].meeting[s->number].end;
        }
    }
    return all;
}

// ---- results ----

PlayCount play_count(const Play *p, size_t rank, size_t group, CommKind kind) {
    const Group *g = &p->group[group];
    return g->count[member_of(g, rank)][kind];
}
size_t play_bytes_sent(const Play *p, size_t rank, size_t group) {
    size_t bytes = 0;
    for (size_t kind = 0; kind < COMM_KINDS; kind++)
        bytes += play_count(p, rank, group, (CommKind)kind).bytes;
    return bytes;
}
size_t play_now(const Play *p, size_t rank, MemoryCategory category) {
    return p->rank[rank].now[category];
}
size_t play_peak(const Play *p, size_t rank, MemoryCategory category) {
    return p->rank[rank].peak[category];
}
size_t play_peak_total(const Play *p, size_t rank) { return p->rank[rank].total_peak; }
Picoseconds play_end(const Play *p, size_t rank) { return p->rank[rank].clock; }
size_t play_done(const Play *p, size_t rank) { return p->rank[rank].done; }
const PlayStep *play_step(const Play *p, size_t rank, size_t step) {
    return &p->rank[rank].step[step];
}
const PlayStep *play_stuck(const Play *p, size_t rank) {
    const Rank *r = &p->rank[rank];
    return r->done < r->n ? &r->step[r->done] : NULL;
}

// A recorded product of a rank. before: the time that the rank was busy before this product.
typedef struct {
    Picoseconds begin, end, before;
} Stretch;
// Returns the time that a rank was busy before t. work[n] are the rank's recorded products, in
// order.
static Picoseconds busy_until(const Stretch *work, size_t n, Picoseconds t) {
    size_t lo = 0, hi = n; // products [0, lo) begin before t
    while (lo < hi) {
        size_t middle = (lo + hi) / 2;
        if (work[middle].begin < t) lo = middle + 1;
        else hi = middle;
    }
    if (lo == 0) return 0;
    const Stretch *last = &work[lo - 1];
    return last->before + (t < last->end ? t : last->end) - last->begin;
}

Picoseconds play_busy(const Play *p, size_t rank) {
    const Rank *r = &p->rank[rank];
    Picoseconds sum = 0;
    for (size_t i = r->recorded; i < r->done; i++)
        if (r->step[i].what == PLAY_WORK) sum += r->step[i].takes;
    return sum;
}

// Returns the communication that step i of a rank completes: a collective, or the message of a
// receive; NULL: none.
static const PlayStep *communication(const Play *p, size_t rank, size_t i) {
    const Rank *r = &p->rank[rank];
    const PlayStep *s = &r->step[i];
    if (s->what == PLAY_START) return has_met(&p->group[s->group], s->number) ? s : NULL;
    if (s->what != PLAY_WAIT || r->step[s->target].what != PLAY_POST) return NULL;
    return other_end(p, rank, &r->step[s->target]);
}

PlayTiming play_timing(const Play *p) {
    PlayTiming t = { 0 };
    Picoseconds first = UINT64_MAX, last = 0;
    for (size_t k = 0; k < p->ranks; k++) {
        const Rank *r = &p->rank[k];
        Stretch *work = host_alloc((r->n + 1) * sizeof *work);
        Picoseconds busy = 0;
        size_t n = 0;
        for (size_t i = r->recorded; i < r->done; i++) {
            const PlayStep *s = &r->step[i];
            if (s->what != PLAY_WORK || s->takes == 0) continue;
            work[n++] = (Stretch){ s->begin, s->end, busy };
            busy += s->takes;
        }
        for (size_t i = r->recorded; i < r->done; i++) {
            const PlayStep *s = &r->step[i], *c = communication(p, k, i);
            bool works = s->what == PLAY_WORK && s->takes > 0;
            if ((works || s->what == PLAY_START) && s->begin < first) first = s->begin;
            if ((works || c) && s->end > last) last = s->end;
            if (!c) continue;
            Picoseconds hidden = busy_until(work, n, c->end) - busy_until(work, n, c->begin);
            t.hidden += hidden;
            t.exposed += c->end - c->begin - hidden;
        }
        free(work);
        t.busy += busy;
        t.busiest = later(t.busiest, busy);
    }
    t.step = last > first ? last - first : 0;
    return t;
}

// ---- which rank waits for which ----

// Lists the members that have not started this collective.
static void add_missing(const Group *g, size_t number, char *text, size_t room) {
    const char *before = "";
    for (size_t me = 0; me < g->n; me++) {
        size_t length = strlen(text);
        if (g->started[me] > number || length + 32 >= room) continue;
        snprintf(text + length, room - length, "%s rank %zu", before, g->rank[me]);
        before = ",";
    }
}

char *play_why(const Play *p) {
    enum { LINE = 240 };
    char *text = host_alloc(p->ranks * LINE + 1), *at = text;
    for (size_t k = 0; k < p->ranks; k++) {
        const PlayStep *s = play_stuck(p, k);
        if (!s) continue;
        if (s->what == PLAY_WAIT && s->target >= p->rank[k].done) {
            at += sprintf(at, "rank %zu waits for a step that its list has later\n", k);
            continue;
        }
        if (s->what == PLAY_WAIT) s = &p->rank[k].step[s->target];
        const Group *g = &p->group[s->group];
        size_t room = LINE - 1;
        if (s->what == PLAY_START) {
            size_t number = g->started[member_of(g, k)] - 1; // the first incomplete one
            const Meeting *m = &g->meeting[number];
            char root[32] = "on";
            if (m->kind == COMM_BROADCAST) snprintf(root, sizeof root, "from rank %zu of", m->root);
            if (m->kind == COMM_REDUCE) snprintf(root, sizeof root, "to rank %zu of", m->root);
            snprintf(at, room, "rank %zu waits in %s %s %s, not reached by", k,
                     comm_kind_name[m->kind], root, g->name);
            add_missing(g, number, at, room);
        } else {
            snprintf(at, room, "rank %zu waits in %s rank %zu of %s", k,
                     s->what == PLAY_SEND ? "send to" : "recv from", s->peer, g->name);
        }
        at += strlen(at);
        *at++ = '\n';
        *at = 0;
    }
    return text;
}
