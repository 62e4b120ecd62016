// judge.c: reads lists of ops from a text, and judges lists of ops.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- lists as text

static const char letters[] = "FBIW"; // in the order of PipeWhat

// Reads an op at the beginning of text. Returns the op's number of characters, or 0 if text does
// not begin with an op.
static size_t read_op(const char *text, PipeOp *op) {
    const char *letter = strchr(letters, *text);
    char *end = NULL;
    if (!letter || text[1] < '0' || text[1] > '9') return 0;
    *op = (PipeOp){ .what = (PipeWhat)(letter - letters),
                    .micro_batch = strtoul(text + 1, &end, 10) };
    if (*end == 'c' && end[1] >= '0' && end[1] <= '9') op->chunk = strtoul(end + 1, &end, 10);
    bool ends = strchr(" ,/\n", *end); // also true at the end of the text
    return ends && op->micro_batch < 1000 && op->chunk < 100 ? (size_t)(end - text) : 0;
}

Schedule *lists_parse(const char *text, size_t *p) {
    Schedule *stage = host_alloc(sizeof *stage);
    *p = 1;
    for (const char *at = text + strspn(text, " ,\n"); *at; at += strspn(at, " ,\n")) {
        if (*at == '/') {
            stage = realloc(stage, (*p + 1) * sizeof *stage);
            if (!stage) fault("out of memory: lists of %zu stages", *p + 1);
            stage[(*p)++] = (Schedule){ 0 };
            at++;
            continue;
        }
        PipeOp op;
        size_t length = read_op(at, &op);
        REQUIRE(length,
                "--list, stage %zu: '%.12s' does not begin with an op: write F0 B0, I0 W0 "
                "for the halves of a backward, F0c1 for chunk 1, and / between stages",
                *p - 1, at);
        schedule_add_op(&stage[*p - 1], op);
        at += length;
    }
    return stage;
}

typedef struct {
    char text[32];
} OpName;
static OpName name_of(PipeOp op, size_t v) {
    OpName n;
    int length = snprintf(n.text, sizeof n.text, "%c%zu", letters[op.what], op.micro_batch);
    if (v > 1) snprintf(n.text + length, sizeof n.text - (size_t)length, "c%zu", op.chunk);
    return n;
}

static void tell(Judgement *j, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void tell(Judgement *j, const char *format, ...) {
    size_t n = strlen(j->why);
    va_list args;
    va_start(args, format);
    vsnprintf(j->why + n, sizeof j->why - n, format, args);
    va_end(args);
}

// ---------------------------------------------------------------- every op once

static size_t count(const Schedule *s, PipeOp op) {
    size_t n = 0;
    for (size_t e = 0; e < s->n; e++)
        n += s->ops[e].what == op.what && s->ops[e].micro_batch == op.micro_batch &&
             s->ops[e].chunk == op.chunk;
    return n;
}

// Returns whether each micro-batch and chunk has one forward, and either one backward or both
// halves of a backward.
static bool once_each(Judgement *j, const Schedule *stage, size_t p, size_t m, size_t v) {
    for (size_t i = 0; i < p; i++) {
        for (size_t e = 0; e < stage[i].n; e++) {
            PipeOp op = stage[i].ops[e];
            if (op.micro_batch < m && op.chunk < v) continue;
            tell(j, "stage %zu has %s, but there are only %zu micro-batches and %zu chunks\n", i,
                 name_of(op, 2).text, m, v);
            return false;
        }
        for (size_t k = 0; k < m * v; k++) {
            size_t n[UPDATE];
            PipeOp op = { .micro_batch = k % m, .chunk = k / m };
            for (op.what = FORWARD; op.what < UPDATE; op.what++) n[op.what] = count(&stage[i], op);
            bool halves = n[BACKWARD_INPUTS] || n[BACKWARD_WEIGHTS];
            for (op.what = FORWARD; op.what < UPDATE; op.what++) {
                size_t want = op.what == FORWARD ? 1 : (op.what == BACKWARD) != halves;
                if (n[op.what] == want) continue;
                tell(j, "stage %zu runs %s %zu times instead of %zu%s\n", i, name_of(op, v).text,
                     n[op.what], want, halves ? ": it has a half of this backward" : "");
                return false;
            }
        }
    }
    return true;
}

// ---------------------------------------------------------------- the order of messages

// Returns whether each message from stage `from` is for the op of stage `to` that takes this
// message. Messages arrive in the order in which they were sent.
static bool messages_agree(Judgement *j, const Schedule *stage, size_t p, size_t v, size_t from,
                           size_t to) {
    StageOp needs, feeds;
    size_t sent = 0; // the place of the next message in the sender's list
    size_t n = 0;    // the number of this message
    for (size_t e = 0; e < stage[to].n; e++) {
        PipeOp op = stage[to].ops[e];
        if (!steps_needs(op, to, p, v, &needs) || needs.stage != from) continue;
        while (sent < stage[from].n &&
               !(steps_feeds(stage[from].ops[sent], from, p, v, &feeds) && feeds.stage == to))
            sent++;
        if (sent++ >= stage[from].n) return true; // a deadlock, not a wrong message
        if (!steps_op_is(op, feeds.op)) {
            if (op.what == BACKWARD) feeds.op.what = BACKWARD; // the receiver has a whole backward
            tell(j,
                 "message %zu from stage %zu to stage %zu is for %s, but stage %zu takes it for "
                 "%s: messages carry no names\n",
                 n, from, to, name_of(feeds.op, v).text, to, name_of(op, v).text);
            return false;
        }
        n++;
    }
    return true;
}

// ---------------------------------------------------------------- deadlocks and waits

static size_t place_of(const Schedule *s, PipeOp needed) {
    size_t e = 0;
    while (e < s->n && !steps_op_is(s->ops[e], needed)) e++;
    return e;
}

// Tells what each stuck stage waits for. A stage waits for a send buffer, or for an op that has not
// run yet. This op is on another stage, or later in the stage's own list. A buffer is busy until
// the receive of its message is posted.
static void tell_deadlock(Judgement *j, const Schedule *stage, const Timeline *t) {
    for (size_t i = 0; i < t->p; i++) {
        if (t->n[i] == stage[i].n) continue;
        PipeOp op = stage[i].ops[t->n[i]];
        StageOp needs = t->wait[i].needs;
        const Schedule *other = &stage[needs.stage];
        size_t at = place_of(other, needs.op), next = t->n[needs.stage];
        if (at < other->n) needs.op = other->ops[at]; // named as in the list: B or I
        OpName name = name_of(op, t->v), needed = name_of(needs.op, t->v), first = { "" };
        if (next < other->n) first = name_of(other->ops[next], t->v);
        if (t->wait[i].buffer) {
            tell(j,
                 "stage %zu waits before %s for a send buffer: stage %zu, which waits before "
                 "%s, has posted no receive for %s\n",
                 i, name.text, needs.stage, first.text, needed.text);
            continue;
        }
        tell(j, "stage %zu waits before %s for ", i, name.text);
        if (needs.stage == i) tell(j, "its own %s, which its list has later\n", needed.text);
        else if (at == next)
            tell(j, "%s of stage %zu, which waits, too\n", needed.text, needs.stage);
        else
            tell(j, "%s of stage %zu, which has %s to run first\n", needed.text, needs.stage,
                 first.text);
    }
}

static void find_wait(Judgement *j, const Timeline *t) {
    for (size_t i = 0; i < t->p; i++)
        for (size_t e = 1; e < t->n[i]; e++) {
            PipeOp op = t->event[i][e].op;
            size_t units = t->event[i][e].start - t->event[i][e - 1].end;
            StageOp needs;
            if (units <= j->wait.units || !steps_needs(op, i, t->p, t->v, &needs)) continue;
            j->wait.units = units;
            j->wait.stage = i;
            j->wait.from = needs.stage;
            strcpy(j->wait.op, name_of(op, t->v).text);
        }
}

Judgement judge_lists(const Schedule *stage, size_t p, size_t m, size_t v, const OpTimes *times) {
    Judgement j = { .verdict = LISTS_LEGAL };
    if (!once_each(&j, stage, p, m, v)) {
        j.verdict = LISTS_NOT_ONCE;
        return j;
    }
    for (size_t k = 0; k < p * p; k++) {
        size_t to = k / p, from = k % p;
        if (from == to || messages_agree(&j, stage, p, v, from, to)) continue;
        j.verdict = LISTS_WRONG_MESSAGE;
        return j;
    }
    Timeline t = timeline_with_times(stage, p, m, times);
    if (t.stuck) {
        j.verdict = LISTS_DEADLOCK;
        tell_deadlock(&j, stage, &t);
    } else {
        j.end = t.end;
        find_wait(&j, &t);
    }
    timeline_free(&t);
    return j;
}
