// play.c: the player. It keeps lists of steps, computes their times, and returns the results.
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
// The collectives of a group in order.
typedef struct {
    CommKind kind;
    size_t count, size;
    size_t arrived;         // number of members that have started the collective
    Picoseconds begin, end; // begin: the latest start of a member so far
} Meeting;
// The messages from one rank to another. The n-th send and the n-th receive are message n.
typedef struct {
    size_t bytes;
    bool sent, posted;
    Picoseconds begin, end; // on the lane
} Message;
typedef struct {
    Message *message;
    size_t n, sends, posts; // sends, posts: in the lists so far
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
        for (size_t k = 0; g->lane && k < g->n * g->n; k++) free(g->lane[k].message);
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

// Returns the network cards of a node that a collective uses. Nodes hold neighbouring members. A
// collective uses as many cards as the smallest of its nodes has members, but at most the cards of
// a node.
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

// Returns the place of a rank among the members, by binary search.
static size_t member_of(const Group *g, size_t rank) {
    size_t lo = 0, hi = g->n;
    while (lo < hi) {
        size_t middle = (lo + hi) / 2;
        if (g->rank[middle] < rank) lo = middle + 1;
        else hi = middle;
    }
    if (lo == g->n || g->rank[lo] != rank) fault("rank %zu is no member of %s", rank, g->name);
    return lo;
}
// Returns the lane from this rank to the peer, or back.
static Lane *lane_of(const Group *g, size_t rank, size_t peer, bool sends) {
    const size_t me = member_of(g, rank);
    return &g->lane[sends ? me * g->n + peer : peer * g->n + me];
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

// Returns the time of a transfer. cards: 0 inside a node.
static Picoseconds transfer(const Play *p, size_t cards, size_t steps, size_t bytes) {
    const ClockLink inside = p->clock.link, link = cards ? p->clock.between : inside;
    if (!p->links || link.beta == 0) return 0;
    double beta = cards ? (double)cards * link.beta : link.beta;
    if (inside.beta > 0) beta = fmin(beta, inside.beta); // all bytes also pass the link inside
    return (Picoseconds)llround((double)steps * link.alpha * 1e12 + (double)bytes * 1e12 / beta);
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
    if (first->kind != m.kind || first->count != m.count || first->size != m.size)
        fault("rank %zu starts %s of %zu times %zu bytes on %s, where another rank starts %s of "
              "%zu times %zu bytes",
              rank, comm_kind_name[m.kind], m.count, m.size, g->name, comm_kind_name[first->kind],
              first->count, first->size);
    return add(p, rank,
               (PlayStep){ .what = PLAY_START, .group = group, .number = number, .takes = takes });
}
size_t play_start(Play *p, size_t rank, size_t group, CommKind kind, size_t count, size_t size) {
    const Group *g = &p->group[group];
    if (kind == COMM_BROADCAST || kind == COMM_REDUCE)
        fault("the player has no %s: its collectives are rings", comm_kind_name[kind]);
    const size_t steps = (kind == COMM_ALL_REDUCE ? 2 : 1) * (g->n - 1); // of a ring
    const size_t bytes = steps * ceil_div(count, g->n) * size;
    PlayCount *sum = &g->count[member_of(g, rank)][kind];
    sum->calls++;
    sum->bytes += bytes;
    return start(p, rank, group, (Meeting){ .kind = kind, .count = count, .size = size },
                 transfer(p, g->cards, steps, bytes));
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
    const bool sends = what == PLAY_SEND;
    if (peer >= g->n)
        fault("rank %zu has a message with member %zu of %s, which has %zu", rank, peer, g->name,
              g->n);
    if (!g->lane) g->lane = host_alloc(g->n * g->n * sizeof *g->lane);
    Lane *lane = lane_of(g, rank, peer, sends);
    const size_t number = sends ? lane->sends++ : lane->posts++;
    if (number == lane->n) {
        lane->message = grown(lane->message, lane->n, sizeof *lane->message);
        lane->message[lane->n++] = (Message){ .bytes = bytes };
    }
    const size_t other = lane->message[number].bytes; // bytes at the other end
    if (other != bytes)
        fault("message %zu between rank %zu and rank %zu of %s: %zu bytes are sent, and the "
              "receive has %zu",
              number, rank, g->rank[peer], g->name, sends ? bytes : other, sends ? other : bytes);
    if (sends) {
        PlayCount *sum = &g->count[member_of(g, rank)][COMM_SEND];
        sum->calls++;
        sum->bytes += g->rank[peer] == rank ? 0 : bytes;
    }
    return add(p, rank,
               (PlayStep){
                   .what = what, .group = group, .peer = peer, .number = number, .takes = takes });
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
static bool has_met(const Group *g, size_t number) { return g->meeting[number].arrived == g->n; }

// Have all members started every collective that this member has started? Only the member's latest
// collective can be incomplete.
static bool all_met(const Group *g, size_t member) {
    return g->started[member] == 0 || has_met(g, g->started[member] - 1);
}

// Lets a rank arrive at a collective. The last member sets begin and end.
static bool join(Play *p, size_t rank, const PlayStep *s, Picoseconds now) {
    Group *g = &p->group[s->group];
    const size_t member = member_of(g, rank);
    if (!all_met(g, member)) return false;
    Meeting *m = &g->meeting[s->number];
    g->started[member]++;
    m->begin = later(m->begin, now);
    if (++m->arrived < g->n) return true;
    if (s->number > 0) m->begin = later(m->begin, g->meeting[s->number - 1].end);
    m->end = m->begin + s->takes;
    return true;
}

// Returns the message of a send or of a posted receive.
static Message *message_of(const Play *p, size_t rank, const PlayStep *s) {
    return &lane_of(&p->group[s->group], rank, s->peer, s->what == PLAY_SEND)->message[s->number];
}

// Can this rank continue after a wait for its step s? *until is the time at which it continues.
static bool is_over(const Play *p, size_t rank, const PlayStep *s, Picoseconds *until) {
    *until = 0;
    if (s->what == PLAY_START) {
        const Group *g = &p->group[s->group];
        *until = g->meeting[s->number].end;
        return all_met(g, member_of(g, rank));
    }
    if (s->what == PLAY_SEND) return message_of(p, rank, s)->posted;
    if (s->what != PLAY_POST) return true;
    *until = message_of(p, rank, s)->end;
    return message_of(p, rank, s)->sent;
}

// Sends a message. A message leaves when its lane is free.
static void send(const Play *p, size_t rank, PlayStep *s, Picoseconds now) {
    Lane *lane = lane_of(&p->group[s->group], rank, s->peer, true);
    Message *m = message_of(p, rank, s);
    m->sent = true;
    m->begin = later(now, lane->free_at);
    m->end = m->begin + s->takes;
    lane->free_at = m->end;
    s->begin = m->begin;
    s->end = m->end;
}

// Does the next step of a rank, if the rank is not stuck.
static bool do_step(Play *p, size_t rank) {
    Rank *r = &p->rank[rank];
    if (r->done == r->n) return false;
    PlayStep *s = &r->step[r->done];
    Picoseconds until;
    s->begin = r->clock;
    s->end = r->clock;
    switch (s->what) {
    case PLAY_WORK:
        s->end = r->clock + s->takes;
        r->clock = s->end;
        break;
    case PLAY_START:
        if (!join(p, rank, s, r->clock)) return false;
        break;
    case PLAY_SEND: send(p, rank, s, r->clock); break;
    case PLAY_POST: message_of(p, rank, s)->posted = true; break;
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
    for (size_t r = 0; r < p->ranks; r++) all &= p->rank[r].done == p->rank[r].n;
    return all;
}

// ---- results ----

PlayCount play_count(const Play *p, size_t rank, size_t group, CommKind kind) {
    const Group *g = &p->group[group];
    return g->count[member_of(g, rank)][kind];
}
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

// A product of a rank. before: the time for which the rank was busy before this product.
typedef struct {
    Picoseconds begin, end, before;
} Stretch;
// Returns the time for which a rank was busy before t. work[n] are the rank's products, in order.
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

// Does step i of a rank complete a collective, or receive a message? Then *begin and *end become
// its times on the lane.
static bool communication(const Play *p, size_t rank, size_t i, Picoseconds *begin,
                          Picoseconds *end) {
    const PlayStep *list = p->rank[rank].step, *s = &list[i];
    if (s->what == PLAY_START) {
        const Meeting *m = &p->group[s->group].meeting[s->number];
        *begin = m->begin;
        *end = m->end;
        return has_met(&p->group[s->group], s->number);
    }
    if (s->what != PLAY_WAIT || list[s->target].what != PLAY_POST) return false;
    const Message *m = message_of(p, rank, &list[s->target]);
    *begin = m->begin;
    *end = m->end;
    return true;
}

PlayTiming play_timing(const Play *p) {
    PlayTiming t = { 0 };
    Picoseconds first = UINT64_MAX, last = 0;
    for (size_t k = 0; k < p->ranks; k++) {
        const Rank *r = &p->rank[k];
        Stretch *work = host_alloc((r->n + 1) * sizeof *work);
        Picoseconds busy = 0, begin, end;
        size_t n = 0;
        for (size_t i = 0; i < r->done; i++) {
            const PlayStep *s = &r->step[i];
            if (s->what != PLAY_WORK || s->takes == 0) continue;
            work[n++] = (Stretch){ s->begin, s->end, busy };
            busy += s->takes;
            first = s->begin < first ? s->begin : first;
            last = later(last, s->end);
        }
        for (size_t i = 0; i < r->done; i++) {
            if (!communication(p, k, i, &begin, &end)) continue;
            if (r->step[i].what == PLAY_START && begin < first) first = begin;
            last = later(last, r->step[i].what == PLAY_WAIT ? r->step[i].end : end);
            Picoseconds hidden = busy_until(work, n, end) - busy_until(work, n, begin);
            t.hidden += hidden;
            t.exposed += end - begin - hidden;
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
            snprintf(at, room, "rank %zu waits in %s on %s, not reached by", k,
                     comm_kind_name[g->meeting[number].kind], g->name);
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
