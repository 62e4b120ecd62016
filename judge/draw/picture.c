// picture.c: gathers the events of all ranks on rank 0, over the side channel, and draws them.
#include "judge/draw/picture.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "judge/frame/frame.h"
#include "common/comm/record.h"
#include "judge/draw/svg.h"

// ---- gathering ----

static _Thread_local double flops_before; // FLOPs before the recording began

// Sets the start of the wall clock on this rank. Before this call each rank counts from its own
// start. On one machine all ranks read the same clock, so after this call all ranks count from rank
// 0's start. On several machines the ranks take the end of a barrier as the same time.
static void common_time(Run *run) {
    struct {
        char host[64];
        double begun, now;
    } first = { .begun = clock_begun() };
    char host[sizeof first.host] = "";
    gethostname(host, sizeof host - 1);
    memcpy(first.host, host, sizeof host);
    comm_barrier(run->world);
    first.now = now();
    side_broadcast(&first, sizeof first);
    clock_set_begun(strcmp(host, first.host) == 0 ? first.begun
                                                  : now() - (first.now - first.begun));
}

static void take_latest(void *latest, size_t rank, const void *data, size_t bytes) {
    (void)rank;
    Picoseconds present;
    memcpy(&present, data, bytes);
    if (present > *(Picoseconds *)latest) *(Picoseconds *)latest = present;
}
// Waits for the latest rank under the simulated clock, where a barrier takes no time. Ranks may end
// a step at different times. If an early rank began the recorded step at once, communication of the
// previous step would count as a part of the recorded step.
static void wait_for_latest(void) {
    Picoseconds present = clock_now(), latest = 0;
    side_gather_each(&present, sizeof present, take_latest, &latest);
    side_broadcast(&latest, sizeof latest);
    clock_wait_until(latest);
}

static _Thread_local MemoryCategory watched; // the category that the last recording sampled

void picture_begin(Run *run, MemoryCategory category) {
    watched = category;
    if (!clock_config()->simulated) common_time(run);
    comm_barrier(run->world); // if a rank has left out a call, this barrier reports it
    if (clock_config()->simulated) wait_for_latest();
    flops_before = clock_flops();
    record_start();
    samples_start(category);
}
void picture_end(Run *run) {
    record_stop();
    samples_stop();
    comm_barrier(run->world);
}

static int by_start(const void *a, const void *b) {
    const RecordedEvent *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

static int by_flow(const void *a, const void *b) {
    uint64_t x = (*(const RecordedEvent *const *)a)->flow,
             y = (*(const RecordedEvent *const *)b)->flow;
    return x < y ? -1 : x > y;
}
// The events of one kind, from all ranks, sorted by flow. All events of one message or collective
// have the same flow (record.h).
typedef struct {
    RecordedEvent **event;
    size_t n;
} ByFlow;
static ByFlow events_by_flow(const Recording *all, EventKind kind) {
    size_t room = 1;
    for (size_t r = 0; all->rank && r < all->ranks; r++) room += all->rank[r].n;
    ByFlow list = { .event = host_alloc(room * sizeof *list.event) };
    for (size_t r = 0; all->rank && r < all->ranks; r++)
        for (size_t i = 0; i < all->rank[r].n; i++)
            if (all->rank[r].events[i].kind == kind) list.event[list.n++] = &all->rank[r].events[i];
    qsort(list.event, list.n, sizeof *list.event, by_flow);
    return list;
}
// Returns the event with the flow of e, or NULL if that event happened before or after the
// recording.
static RecordedEvent **find_flow(const ByFlow *list, const RecordedEvent *e) {
    return bsearch(&e, list->event, list->n, sizeof *list->event, by_flow);
}

// Ends each send at the end of its receive. Under the wall clock only the receiver sees when a
// message arrives.
static void end_sends(Recording *all) {
    ByFlow sends = events_by_flow(all, EVENT_SEND), receives = events_by_flow(all, EVENT_RECV);
    for (size_t i = 0; i < sends.n; i++) {
        RecordedEvent *send = sends.event[i], **received = find_flow(&receives, send);
        if (received && (*received)->end > send->start) send->end = (*received)->end;
    }
    free(sends.event);
    free(receives.event);
}

Recording recording_gather(Run *run) {
    Recording all = { .ranks = run->world->size };
    size_t n, samples, *sizes = NULL;
    const RecordedEvent *events = record_events(&n);
    const MemorySample *memory = samples_recorded(&samples);
    ledger_pause();
    all.buffer[0] = side_gather(events, n * sizeof *events, &sizes);
    if (run->is_root) {
        all.rank = host_alloc(all.ranks * sizeof *all.rank);
        char *at = all.buffer[0];
        for (size_t r = 0; r < all.ranks; at += sizes[r++]) {
            all.rank[r].events = (RecordedEvent *)at;
            all.rank[r].n = sizes[r] / sizeof *events;
            qsort(all.rank[r].events, all.rank[r].n, sizeof *events, by_start);
        }
    }
    free(sizes);
    all.buffer[1] = side_gather(memory, samples * sizeof *memory, &sizes);
    if (run->is_root) {
        char *at = all.buffer[1];
        for (size_t r = 0; r < all.ranks; at += sizes[r++]) {
            all.rank[r].memory = (MemorySample *)at;
            all.rank[r].samples = sizes[r] / sizeof *memory;
        }
        if (!clock_config()->simulated) end_sends(&all);
        all.begin = UINT64_MAX;
        for (size_t r = 0; r < all.ranks; r++)
            for (size_t i = 0; i < all.rank[r].n; i++) {
                const RecordedEvent *e = &all.rank[r].events[i];
                // A send may end after the step, so the end of a send does not count.
                bool waited = e->kind == EVENT_COLLECTIVE || e->kind == EVENT_RECV;
                if (e->kind > EVENT_UPDATE && !waited) continue;
                if (e->kind != EVENT_RECV && e->start < all.begin) all.begin = e->start;
                if (e->end > all.end) all.end = e->end;
            }
        if (all.begin > all.end) all.begin = all.end = 0;
    }
    free(sizes);
    ledger_resume();
    return all;
}
void recording_free(Recording *r) {
    free(r->buffer[0]);
    free(r->buffer[1]);
    free(r->rank);
}

// ---- times ----

// The busy stretches of a compute row in order, with the busy time before each stretch.
// busy_until() is called often, so it uses binary search.
typedef struct {
    Picoseconds start, end, before;
} Stretch;
typedef struct {
    Stretch *stretch;
    size_t n;
    Picoseconds sum;
} Busy;

static Busy busy_of(const RankRecording *r) {
    Busy b = { .stretch = host_alloc((r->n + 1) * sizeof *b.stretch) };
    for (size_t i = 0; i < r->n; i++) {
        const RecordedEvent *e = &r->events[i];
        if (e->kind > EVENT_UPDATE) continue;
        b.stretch[b.n++] = (Stretch){ e->start, e->end, b.sum };
        b.sum += e->end - e->start;
    }
    return b;
}
static Picoseconds busy_until(const Busy *b, Picoseconds t) {
    size_t lo = 0, hi = b->n; // stretches [0, lo) begin before t
    while (lo < hi) {
        size_t middle = (lo + hi) / 2;
        if (b->stretch[middle].start < t) lo = middle + 1;
        else hi = middle;
    }
    if (lo == 0) return 0;
    const Stretch *last = &b->stretch[lo - 1];
    return last->before + (t < last->end ? t : last->end) - last->start;
}

// Adds rank k's communication. Communication is exposed while k waits, and hidden while k computes.
// Only the simulated clock shows when a message moves, so the function needs this clock.
static void add_communication(Timing *t, const RankRecording *k, const Busy *busy,
                              const ByFlow *sends) {
    for (size_t i = 0; i < k->n; i++) {
        const RecordedEvent *e = &k->events[i], *m = e;
        if (e->kind == EVENT_RECV) {
            RecordedEvent **sent = find_flow(sends, e); // the send of the received message
            if (!sent) continue;
            m = *sent;
        } else if (e->kind != EVENT_COLLECTIVE) {
            continue;
        }
        Picoseconds hidden = busy_until(busy, m->end) - busy_until(busy, m->start);
        t->hidden += hidden;
        t->exposed += m->end - m->start - hidden;
    }
}

// Adds rank k's waits under the wall clock. A message cannot move before its send, and a collective
// cannot move before its last member arrives. So a wait before that time does not count. Data may
// also have moved before the wait, while k computed. How long these data moved is unknown.
static void add_waits(Timing *t, const RankRecording *k, const ByFlow *sends,
                      const ByFlow *collectives) {
    for (size_t i = 0; i < k->n; i++) {
        const RecordedEvent *e = &k->events[i];
        const ByFlow *list = e->kind == EVENT_RECV ? sends : collectives;
        if (e->kind != EVENT_RECV && e->kind != EVENT_COLLECTIVE) continue;
        RecordedEvent **found = find_flow(list, e), **end = list->event + list->n;
        if (!found) continue;
        Picoseconds begun = (*found)->start;
        for (RecordedEvent **m = found; m < end && (*m)->flow == e->flow; m++)
            if ((*m)->start > begun) begun = (*m)->start;
        for (RecordedEvent **m = found; m > list->event && m[-1]->flow == e->flow; m--)
            if (m[-1]->start > begun) begun = m[-1]->start;
        if (e->waited > begun) t->hidden_unknown = true;
        Picoseconds since = e->waited > begun ? e->waited : begun;
        if (e->end > since) t->exposed += e->end - since;
    }
}

Timing picture_timing(Run *run) {
    Timing t = { 0 };
    double flops = clock_flops() - flops_before;
    Recording all = recording_gather(run);
    ledger_pause();
    comm_all_reduce_doubles(run->world, &flops, 1);
    ledger_resume();
    ByFlow sends = events_by_flow(&all, EVENT_SEND),
           collectives = events_by_flow(&all, EVENT_COLLECTIVE);
    for (size_t r = 0; all.rank && r < all.ranks; r++) {
        Busy busy = busy_of(&all.rank[r]);
        t.busy += busy.sum;
        if (busy.sum > t.busiest) t.busiest = busy.sum;
        if (clock_config()->simulated) add_communication(&t, &all.rank[r], &busy, &sends);
        else add_waits(&t, &all.rank[r], &sends, &collectives);
        free(busy.stretch);
    }
    free(sends.event);
    free(collectives.event);
    t.step = all.end - all.begin;
    if (t.busy) {
        t.idle_of_total = 1 - (double)t.busy / ((double)all.ranks * (double)t.step);
        t.idle_of_ideal = (double)t.step / (double)t.busiest - 1;
    }
    t.flops = flops;
    if (t.step)
        t.utilisation =
            flops * 1e12 / ((double)all.ranks * (double)t.step * clock_config()->device.flops);
    recording_free(&all);
    side_broadcast(&t, sizeof t);
    return t;
}

static const char *duration(char text[32], Picoseconds ps) {
    const double s = (double)ps * 1e-12;
    if (s >= 1) snprintf(text, 32, "%.3f s", s);
    else if (s >= 1e-3) snprintf(text, 32, "%.3f ms", s * 1e3);
    else snprintf(text, 32, "%.3f us", s * 1e6);
    return text;
}

static const char *length_of(char text[32], const Recording *all) {
    Picoseconds length = all->end - all->begin;
    if (!all->unit) return duration(text, length);
    snprintf(text, 32, "%.4g units", (double)length / (double)all->unit);
    return text;
}

void picture_summary(Run *run, const Timing *t) {
    char a[32], b[32], c[32];
    double ranks = (double)run->world->size;
    Picoseconds exposed = (Picoseconds)((double)t->exposed / ranks),
                hidden = (Picoseconds)((double)t->hidden / ranks);
    say(run, "step %s, idle (. and #) %.1f %%; communication, mean: %s exposed, %s hidden",
        duration(a, t->step), 100 * t->idle_of_total, duration(b, exposed),
        t->hidden_unknown ? "unknown time" : duration(c, hidden));
    say_detail(run, "idle %.1f %% on top of the ideal; GEMMs %.3g FLOPs", 100 * t->idle_of_ideal,
               t->flops);
    // Under the wall clock, the utilisation of the lessons' invented device would have no meaning.
    if (!clock_config()->simulated && !option_given(run, "device")) return;
    say_detail(run, "%s %.1f %% of %zu devices at %.4g FLOP/s (%s)",
               clock_config()->simulated ? "utilisation" : "MFU", 100 * t->utilisation,
               run->world->size, clock_config()->device.flops, clock_config()->device.name);
}

// ---- the chart ----

enum { LABEL = 8, WIDE = 512 };
static const char *const colour_of[] = {
    "36", "33", "32", "35", "31", "2"
}; // the index is a value of ChartRow.what

// A row of the chart. Each column has a kind of event, a micro-batch and a chunk. Neighbouring
// equal columns begin with a label, such as F0. Stages with several chunks have short ops, so one
// letter names the micro-batch. The letter is small if the chunk is odd.
enum { COMMUNICATES = EVENT_UPDATE + 1, IDLE };
typedef struct {
    uint8_t what[WIDE], number[WIDE], chunk[WIDE];
    char text[WIDE];
    size_t width;
    bool chunks; // the recording has stages with several chunks
} ChartRow;

static void put_label(ChartRow *row, size_t lo, size_t hi) {
    static const char letter[] = "FBWU#.", fill[] = "-=~u#.";
    char label[8] = "";
    int what = row->what[lo];
    bool numbered = what < EVENT_UPDATE && row->number[lo] != NO_NUMBER;
    if (numbered && row->chunks)
        snprintf(label, sizeof label, "%c",
                 (row->chunk[lo] % 2 ? 'a' : 'A') + row->number[lo] % 26);
    else if (numbered) snprintf(label, sizeof label, "%c%u", letter[what], row->number[lo]);
    else snprintf(label, sizeof label, "%c", letter[what]);
    for (size_t x = lo; x < hi; x++) {
        size_t k = x - lo;
        row->text[x] =
            k < strlen(label) && (hi - lo >= strlen(label) || k == 0) ? label[k] : fill[what];
    }
}
static void put_labels(ChartRow *row) {
    for (size_t lo = 0, hi; lo < row->width; lo = hi) {
        for (hi = lo + 1; hi < row->width && row->what[hi] == row->what[lo] &&
                          row->number[hi] == row->number[lo] && row->chunk[hi] == row->chunk[lo];
             hi++) {}
        put_label(row, lo, hi);
    }
}

static size_t column(const Recording *all, size_t width, Picoseconds t) {
    if (t <= all->begin) return 0;
    if (t >= all->end) return width;
    return (size_t)((double)(t - all->begin) / (double)(all->end - all->begin) * (double)width +
                    0.5);
}

// Returns the number of chunks per stage.
static size_t most_chunks(const Recording *all) {
    size_t most = 1;
    for (size_t r = 0; r < all->ranks; r++)
        for (size_t i = 0; i < all->rank[r].n; i++) {
            const RecordedEvent *e = &all->rank[r].events[i];
            if (e->kind < EVENT_UPDATE && e->chunk >= most) most = e->chunk + 1u;
        }
    return most;
}

static ChartRow chart_row(const Recording *all, size_t rank, size_t width) {
    ChartRow row = { .width = width, .chunks = most_chunks(all) > 1 };
    memset(row.what, IDLE, width);
    memset(row.number, NO_NUMBER, width);
    const RankRecording *r = &all->rank[rank];
    for (int computes = 0; computes < 2; computes++) // computation is drawn over communication
        for (size_t i = 0; i < r->n; i++) {
            const RecordedEvent *e = &r->events[i];
            if ((e->kind <= EVENT_UPDATE) != computes || e->kind == EVENT_SEND ||
                e->kind == EVENT_RECV)
                continue;
            for (size_t x = column(all, width, e->start); x < column(all, width, e->end); x++) {
                row.what[x] = computes ? e->kind : COMMUNICATES;
                row.number[x] = computes ? e->number : NO_NUMBER;
                row.chunk[x] = computes ? e->chunk : 0;
            }
        }
    put_labels(&row);
    return row;
}

// ---- the link ----
// Each communication has at least one column. A communication that begins in a column is drawn over
// an earlier communication.

// Returns the character of a communication: a capital for a collective, '>' for a message to a
// higher rank, '<' for a message to a lower rank.
static char link_letter(const RecordedEvent *e, size_t rank) {
    static const char of_kind[COMM_KINDS] = { [COMM_ALL_REDUCE] = 'A',
                                              [COMM_REDUCE_SCATTER] = 'S',
                                              [COMM_ALL_GATHER] = 'G',
                                              [COMM_BROADCAST] = 'B',
                                              [COMM_REDUCE] = 'R' };
    if (e->kind == EVENT_SEND) return e->peer > rank ? '>' : '<';
    return of_kind[e->call] ? of_kind[e->call] : 'C';
}
// Fills the row of a rank's link. A collective has a capital in its first column and small letters
// in its other columns. Returns false if the rank has no collective, and no message that takes
// time.
static bool link_row(ChartRow *row, const Recording *all, size_t rank, size_t width) {
    *row = (ChartRow){ .width = width };
    memset(row->what, IDLE, width);
    memset(row->text, '.', width);
    const RankRecording *r = &all->rank[rank];
    bool any = false;
    for (size_t i = 0; i < r->n; i++) {
        const RecordedEvent *e = &r->events[i];
        if (!on_link(e)) continue;
        any = true;
        size_t lo = column(all, width, e->start), hi = column(all, width, e->end);
        if (lo >= width) lo = width - 1;
        if (hi <= lo) hi = lo + 1;
        char letter = link_letter(e, rank);
        for (size_t x = lo; x < hi; x++) {
            row->what[x] = COMMUNICATES;
            row->text[x] =
                x == lo || letter == '>' || letter == '<' ? letter : (char)(letter | 0x20);
        }
    }
    return any;
}
static void link_key(char *text, size_t room, const Recording *all) {
    bool kinds[COMM_KINDS] = { 0 }, messages = false;
    for (size_t k = 0; k < all->ranks; k++)
        for (size_t i = 0; i < all->rank[k].n; i++) {
            const RecordedEvent *e = &all->rank[k].events[i];
            if (!on_link(e)) continue;
            if (e->kind == EVENT_SEND) messages = true;
            else kinds[e->call] = true;
        }
    size_t n = 0;
    *text = 0;
    for (size_t k = 0; k < COMM_KINDS && n < room; k++)
        if (kinds[k])
            n += (size_t)snprintf(
                text + n, room - n, "%s%c %s", n ? "  " : "",
                link_letter(&(RecordedEvent){ .kind = EVENT_COLLECTIVE, .call = (uint8_t)k }, 0),
                comm_kind_name[k]);
    if (messages && n < room)
        snprintf(text + n, room - n, "%s> < messages to a higher, a lower rank", n ? "  " : "");
}

static bool row_is_empty(const ChartRow *row) {
    for (size_t x = 0; x < row->width; x++)
        if (row->what[x] != IDLE) return false;
    return true;
}

static void print_row(Run *run, const char *label, const ChartRow *row) {
    char line[LABEL + WIDE * 10];
    size_t n = (size_t)snprintf(line, sizeof line, "%-*s", LABEL, label);
    bool colour = run->state->program->color;
    for (size_t x = 0; x < row->width; x++) {
        bool changes = colour && (x == 0 || row->what[x] != row->what[x - 1]);
        if (changes)
            n += (size_t)snprintf(line + n, sizeof line - n, "\033[0;%sm", colour_of[row->what[x]]);
        line[n++] = row->text[x];
    }
    line[n] = 0;
    say(run, "%s%s", line, colour ? "\033[0m" : "");
}

// Returns a row that shows the bytes over time as digits, in ninths of `peak`, rounded up.
static ChartRow memory_row(const Recording *all, size_t rank, size_t width, size_t peak) {
    const RankRecording *r = &all->rank[rank];
    ChartRow row = { .width = width };
    size_t i = 0, level = 0;
    for (size_t x = 0; x < width; x++) {
        Picoseconds until = all->begin + (Picoseconds)((double)(all->end - all->begin) *
                                                       (double)(x + 1) / (double)width);
        size_t high = level;
        for (; i < r->samples && r->memory[i].at <= until; i++) {
            if (r->memory[i].high > high) high = r->memory[i].high;
            level = r->memory[i].bytes;
        }
        size_t ninth = peak ? (high * 9 + peak - 1) / peak : 0;
        row.text[x] = high ? (char)('0' + ninth) : ' ';
        row.what[x] = IDLE;
    }
    return row;
}

static size_t highest(const Recording *all) {
    size_t peak = 0;
    for (size_t r = 0; r < all->ranks; r++)
        for (size_t i = 0; i < all->rank[r].samples; i++)
            if (all->rank[r].memory[i].high > peak) peak = all->rank[r].memory[i].high;
    return peak;
}

// A page has room for MOST_ROWS rows of a picture. If there are more rows, only the first two rows
// and the last row are drawn, with a line that counts the rows between. With --verbose all rows are
// drawn.
enum { MOST_ROWS = 4 };
static bool row_drawn(Run *run, size_t row, size_t rows) {
    bool room = rows <= MOST_ROWS || run->state->program->verbose;
    bool drawn = room || row + 2 < MOST_ROWS || row + 1 == rows;
    if (!drawn && row + 2 == MOST_ROWS)
        say(run, "%-*s%zu rows between: --verbose", LABEL, "...", rows - MOST_ROWS + 1);
    return drawn;
}

// Returns whether the update of any rank fills a column.
static bool update_is_drawn(const Recording *all, size_t width) {
    for (size_t r = 0; r < all->ranks; r++)
        for (size_t i = 0; i < all->rank[r].n; i++) {
            const RecordedEvent *e = &all->rank[r].events[i];
            if (e->kind == EVENT_UPDATE &&
                column(all, width, e->start) < column(all, width, e->end))
                return true;
        }
    return false;
}

// Returns whether two rows of links are equal. A collective may begin in another column, so
// capitals equal small letters.
static bool links_alike(const ChartRow *a, const ChartRow *b) {
    for (size_t x = 0; x < a->width; x++)
        if (tolower(a->text[x]) != tolower(b->text[x])) return false;
    return true;
}

static char capital(const char *title) { return (char)toupper((unsigned char)*title); }

static void print_chart(Run *run, const Recording *all, const char *title, int what) {
    bool memory = what & PICTURE_MEMORY, alike_once = what & PICTURE_ALIKE_ONCE;
    size_t width = page_width() - LABEL;
    char time[32], label[LABEL + 1];
    if (all->end == all->begin) {
        say(run, "%c%s: no time passed, nothing to draw", capital(title), title + 1);
        return;
    }
    char key[80];
    bool chunks = most_chunks(all) > 1, halves = recording_has(all, EVENT_WEIGHTS);
    bool updates = update_is_drawn(all, width);
    if (chunks)
        snprintf(key, sizeof key, "A- forward  A== backward%s  # communication  . idle",
                 halves ? " (of inputs)  A~ weights" : "");
    else
        snprintf(key, sizeof key, "F forward  B backward%s%s  # communication  . idle",
                 halves ? " (of inputs)  W weights" : "", updates ? "  U update" : "");
    length_of(time, all);
    bool fits = strlen(title) + 2 + strlen(time) + 3 + strlen(key) <= LABEL + width;
    say(run, "%c%s: %s%s%s", capital(title), title + 1, time, fits ? "   " : "\n", key);
    ChartRow *link = host_alloc(all->ranks * sizeof *link),
             *kept = host_alloc(all->ranks * sizeof *kept);
    ChartRow *work = host_alloc(all->ranks * sizeof *work);
    bool any = false, one_link = true, one_kept = true;
    const bool in_flight = watched == MEM_COMMUNICATION;
    for (size_t r = 0; r < all->ranks; r++) {
        any |= link_row(&link[r], all, r, width);
        kept[r] = memory_row(all, r, width, all->scale);
        work[r] = chart_row(all, r, width);
        one_link &= !memcmp(link[r].text, link[0].text, width);
        one_kept &= !memcmp(kept[r].text, kept[0].text, width);
    }
    bool links_drawn = any && !(what & PICTURE_NO_LINKS);
    size_t *end = host_alloc(all->ranks * sizeof *end), rows = 0; // end: the last rank of each row
    for (size_t r = 0; r < all->ranks; r++) {
        bool alike = alike_once && r + 1 < all->ranks &&
                     !memcmp(work[r].text, work[r + 1].text, width) &&
                     (!links_drawn || links_alike(&link[r], &link[r + 1])) &&
                     !memcmp(kept[r].text, kept[r + 1].text, width);
        if (!alike) end[rows++] = r;
    }
    for (size_t row = 0; row < rows; row++) {
        size_t first = row ? end[row - 1] + 1 : 0, r = end[row];
        bool last = row + 1 == rows;
        if (!(what & PICTURE_EVERY_ROW) && !row_drawn(run, row, rows)) continue;
        snprintf(label, sizeof label, first < r ? "%zu to %zu" : "rank %zu", first, r);
        // A rank that only sends and receives, such as a parameter server, has a row for its link
        // and no row for computation.
        bool works = !any || one_link || !row_is_empty(&work[r]);
        if (works) print_row(run, label, &work[r]);
        if (links_drawn && (!one_link || last))
            print_row(run, one_link ? "  links" : works ? "   link" : label, &link[r]);
        if (memory && (!one_kept || last))
            print_row(run, in_flight ? "   held" : "   kept", &kept[r]);
    }
    free(end);
    free(link);
    free(kept);
    free(work);
    char links[160], peak[32];
    memcpy(links, "link: ", 7);
    link_key(links + 6, sizeof links - 6, all);
    page_value(peak, sizeof peak, (double)all->scale, "bytes");
    if (links[6] && !(what & PICTURE_NO_LINKS)) {
        printf("%-*s", LABEL, "");
        page_wrap(links, LABEL, LABEL);
    }
    if (chunks)
        say(run,
            "%-*sA: micro-batch 0, B: micro-batch 1, ...; capitals: chunk 0%s, small: chunk 1%s",
            LABEL, "", most_chunks(all) > 2 ? ", 2, ..." : "",
            most_chunks(all) > 3 ? ", 3, ..." : "");
    if (memory)
        say(run, "%-*s%s: %s, in ninths of %s, rounded up", LABEL, "", in_flight ? "held" : "kept",
            in_flight ? "memory in flight" : memory_category_name[watched], peak);
}

// ---- the order of work ----

char *picture_order(Run *run, size_t rank) {
    Recording all = recording_gather(run);
    char *text = NULL;
    if (all.rank) {
        const RankRecording *r = &all.rank[rank];
        text = host_alloc(r->n * 12 + 1);
        const RecordedEvent *before = NULL;
        bool chunks = false;
        for (size_t i = 0; i < r->n; i++) chunks |= r->events[i].chunk > 0;
        size_t n = 0;
        for (size_t i = 0; i < r->n; i++) {
            const RecordedEvent *e = &r->events[i];
            if (e->kind > EVENT_WEIGHTS) continue;
            if (before && e->kind == before->kind && e->number == before->number &&
                e->chunk == before->chunk)
                continue;
            const char letter = "FBW"[e->kind];
            n += (size_t)sprintf(text + n, "%s%c%u", n ? " " : "", letter, e->number);
            if (chunks) n += (size_t)sprintf(text + n, "c%u", e->chunk);
            before = e;
        }
    }
    recording_free(&all);
    return text;
}

static _Thread_local size_t scale; // bytes of a full strip in the previous picture

void picture_show(Run *run, const char *title, int what) {
    Recording all = recording_gather(run);
    recording_show(run, &all, title, what);
    recording_free(&all);
}

void recording_show(Run *run, Recording *all, const char *title, int what) {
    bool memory = what & PICTURE_MEMORY, files = !(what & PICTURE_NO_FILES);
    size_t peak = all->rank ? highest(all) : 0; // gathered on rank 0
    if (peak > scale || !(what & PICTURE_SAME_SCALE)) scale = peak;
    all->scale = scale;
    run->state->pictured = true;
    const char *svg = option_text(run, "svg"), *trace = option_text(run, "trace");
    if (run->is_root) {
        char time[32];
        length_of(time, all);
        if (!(what & PICTURE_DETAIL) || run->state->program->verbose)
            print_chart(run, all, title, what);
        if (files && svg)
            svg_write(all, title, time, memory ? memory_category_name[watched] : NULL, svg);
        if (files && trace) trace_write(all, memory_category_name[watched], trace);
    }
}

// ---- the state of each rank between steps ----

StateBytes picture_state_now(void) {
    return (StateBytes){ { memory_now(MEM_PARAMETERS), memory_now(MEM_GRADIENTS),
                           memory_now(MEM_OPTIMIZER) } };
}

static _Thread_local size_t most; // bytes of the longest bar drawn so far

// A bar of ranks first..last, which hold equal bytes.
typedef struct {
    size_t first, last;
    char bar[WIDE + 1], sum[32];
} StateRow;
static StateRow state_row(const StateBytes *held, size_t rank) {
    static const char letter[] = "wgo";
    StateRow row = { .first = rank, .last = rank };
    size_t n = 0, width = page_width() - LABEL - 12, bytes = 0;
    for (size_t k = 0; k < 3; k++) {
        bytes += held->bytes[k];
        size_t end = (size_t)((double)bytes / (double)most * (double)width + 0.5);
        if (held->bytes[k] && end <= n) end = n + 1; // at least a column for each kind
        while (n < end && n < WIDE) row.bar[n++] = letter[k];
    }
    row.bar[n] = 0;
    page_value(row.sum, sizeof row.sum, (double)bytes, "bytes");
    return row;
}
void picture_state(Run *run, const char *title, StateBytes local) {
    size_t *sizes = NULL;
    ledger_pause();
    StateBytes *all = side_gather(&local, sizeof local, &sizes);
    ledger_resume();
    for (size_t r = 0; run->is_root && r < run->world->size; r++) {
        size_t sum = all[r].bytes[0] + all[r].bytes[1] + all[r].bytes[2];
        if (sum > most) most = sum;
    }
    if (run->is_root && most)
        say(run, "%c%s: w weights  g gradients  o optimizer state", capital(title), title + 1);
    if (run->is_root && most) {
        StateRow *row = host_alloc(run->world->size * sizeof *row);
        size_t rows = 0;
        for (size_t r = 0; r < run->world->size; r++) {
            StateRow next = state_row(&all[r], r);
            bool alike = rows && !strcmp(next.bar, row[rows - 1].bar) &&
                         !strcmp(next.sum, row[rows - 1].sum);
            if (alike) row[rows - 1].last = r;
            else row[rows++] = next;
        }
        for (size_t k = 0; k < rows; k++) {
            char label[32];
            if (!row_drawn(run, k, rows)) continue;
            if (row[k].first < row[k].last)
                snprintf(label, sizeof label, "%zu to %zu", row[k].first, row[k].last);
            else snprintf(label, sizeof label, "rank %zu", row[k].first);
            say(run, "%-*s%s  %s", LABEL, label, row[k].bar, row[k].sum);
        }
        free(row);
    }
    free(all);
    free(sizes);
}
