// test_schedule.c: compares the op lists of chapters 04 and 05 with their closed forms, for p =
// 1..8 and m = 1..24. Interleaved lists have v = 1..4, and for v > 1 p divides m. Also tests
// published orders and figures, wrong lists, the judges of lists, and the layers of a stage. The
// test uses lists only, no ranks.
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/by_hand.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "05_pipeline_1f1b/experiments/experiments.h"
#include "common/tensor/random.h"
#include "tap.h"
#include "tests/makespan.h"
#include <math.h>

// Checks that each forward and each backward occurs once, and each forward before its backward.
// Forwards ascend, and so do backwards, so neighbours agree on the order of messages.
static bool well_formed(const Schedule *s, size_t m) {
    size_t next[2] = { 0 };
    if (s->n != 2 * m) return false;
    for (size_t e = 0; e < s->n; e++) {
        PipeOp op = s->ops[e];
        if (op.micro_batch != next[op.what]++) return false;
        if (next[BACKWARD] > next[FORWARD]) return false;
    }
    return true;
}

static size_t most_in_flight(const Schedule *s) {
    size_t now = 0, most = 0;
    for (size_t e = 0; e < s->n; e++) {
        now += s->ops[e].what == FORWARD ? 1 : (size_t)-1;
        if (now > most) most = now;
    }
    return most;
}

static const Event *find(const Timeline *t, size_t i, int what, size_t k) {
    for (size_t e = 0; e < t->n[i]; e++)
        if ((int)t->event[i][e].op.what == what && t->event[i][e].op.micro_batch == k)
            return &t->event[i][e];
    return NULL;
}

// Checks that each op starts after the ops that it needs, and lasts as long as it should. No stage
// runs two ops at once.
static bool happens_before(const Timeline *t, size_t t_f, size_t t_b) {
    for (size_t i = 0; i < t->p; i++)
        for (size_t e = 0; e < t->n[i]; e++) {
            const Event *v = &t->event[i][e], *need = NULL;
            size_t k = v->op.micro_batch;
            if (v->op.what == FORWARD && i > 0) need = find(t, i - 1, FORWARD, k);
            if (v->op.what == BACKWARD)
                need = i + 1 < t->p ? find(t, i + 1, BACKWARD, k) : find(t, i, FORWARD, k);
            if (!need && !(v->op.what == FORWARD && i == 0)) return false;
            if (need && need->end > v->start) return false;
            if (v->end - v->start != (v->op.what == FORWARD ? t_f : t_b)) return false;
            if (e && t->event[i][e - 1].end > v->start) return false;
        }
    return true;
}

// ---- the messages between each pair of stages ----

// Returns whether an op of stage i sends to another stage. *to receives the op that takes the
// message, and its stage.
static bool feeds_other(PipeOp op, size_t i, size_t p, size_t v, StageOp *to) {
    return pipe_op_feeds(op, i, p, v, to) && to->stage != i;
}
static bool needs_other(PipeOp op, size_t i, size_t p, size_t v, StageOp *from) {
    return pipe_op_needs(op, i, p, v, from) && from->stage != i;
}

// Returns whether stage `to` receives in the order in which stage `from` sends. Messages carry no
// names, so both orders must agree.
static bool same_order(const Schedule *stage, size_t p, size_t v, size_t from, size_t to,
                       size_t *messages) {
    StageOp other;
    size_t r = 0;
    for (size_t s = 0; s < stage[from].n; s++) {
        if (!feeds_other(stage[from].ops[s], from, p, v, &other) || other.stage != to) continue;
        PipeOp sent = other.op; // the op that takes the message
        while (r < stage[to].n &&
               !(needs_other(stage[to].ops[r], to, p, v, &other) && other.stage == from))
            r++;
        if (r == stage[to].n || !pipe_op_is(stage[to].ops[r++], sent)) return false;
        ++*messages;
    }
    for (; r < stage[to].n; r++) // no stage may wait for a message that is never sent
        if (needs_other(stage[to].ops[r], to, p, v, &other) && other.stage == from) return false;
    return true;
}
static bool all_pairs_agree(const Schedule *stage, size_t p, size_t v, size_t m) {
    size_t messages = 0;
    for (size_t from = 0; from < p; from++)
        for (size_t to = 0; to < p; to++)
            if (from != to && !same_order(stage, p, v, from, to, &messages)) return false;
    return messages == (p == 1 ? 0 : 2 * m * (p * v - 1));
}

typedef struct {
    const char *name;
    ScheduleRule rule;
    bool naive, early;
} Kind;
static const Kind kinds[] = {
    { "naive", schedule_naive, true, false },
    { "GPipe", schedule_gpipe, false, false },
    { "1F1B", schedule_1f1b, false, true },
};

// NEED notes m and the text of the first condition that does not hold. Functions that use NEED have
// the variables m, wrong, wrong_m and what.
#define NEED(condition, text) \
    do { \
        if (!(condition) && !wrong++) { \
            wrong_m = m; \
            what = text; \
        } \
    } while (0)

static void closed_forms(const Kind *kind, size_t p, size_t t_f, size_t t_b) {
    size_t wrong = 0, wrong_m = 0;
    const char *what = "";
    for (size_t m = 1; m <= MOST_MICRO; m++) {
        Schedule *stage = schedule_all(kind->rule, p, m);
        Timeline t = timeline_with_times(stage, p, m, &(OpTimes){ t_f, t_b, 0, 0 });
        size_t units = (kind->naive ? m * p : m + p - 1) * (t_f + t_b);
        NEED(!t.stuck, "deadlock");
        NEED(happens_before(&t, t_f, t_b), "an op before an op that it needs");
        NEED(t.end == units && makespan(kind->rule, p, m, t_f, t_b) == units, "step time");
        NEED(timeline_busy(&t) == p * m * (t_f + t_b), "busy time");
        Judgement j = judge_lists(stage, p, m, 1, &(OpTimes){ t_f, t_b, 0, 0 });
        NEED(j.verdict == LISTS_LEGAL && j.end == units, "the judge");
        Outcome by_hand = by_hand_judge(stage, p, m); // its F and B take 1 and 2 units
        NEED(by_hand.verdict == LEGAL && (t_f != T_FORWARD || by_hand.end == units),
             "the judge of 05.01");
        NEED(all_pairs_agree(stage, p, 1, m), "order of messages");
        for (size_t i = 0; i < p; i++) {
            NEED(well_formed(&stage[i], m), "the list");
            NEED(t.n[i] == 2 * m, "ops that ran");
            NEED(most_in_flight(&stage[i]) == (kind->naive                ? 1
                                               : kind->early && p - i < m ? p - i
                                                                          : m),
                 "in flight");
        }
        // With messages, the step of naive waits for 2 (p - 1) messages per micro-batch. The step
        // of GPipe waits for 2 (p - 1) messages in all. If a message takes longer than an op, the
        // links set the pace.
        for (size_t d = 1; d <= t_f + t_b && !kind->early; d++) {
            size_t f = p > 1 && d > t_f ? d : t_f, b = p > 1 && d > t_b ? d : t_b;
            size_t once = p * (t_f + t_b) + 2 * (p - 1) * d,
                   all = kind->naive ? m * once : once + (m - 1) * (f + b);
            Schedule *lists = schedule_all(kind->rule, p, m);
            NEED(lists_makespan(lists, p, m, &(OpTimes){ t_f, t_b, 0, d }) == all,
                 "step time with messages");
        }
        timeline_free(&t);
        schedule_all_free(stage, p);
    }
    if (!ok(!wrong, "%s, p = %zu, m = 1..%d, t_f = %zu, t_b = %zu", kind->name, p, MOST_MICRO, t_f,
            t_b))
        printf("#   m = %zu: %s\n", wrong_m, what);
}

// ---- several chunks on a stage ----

// Checks that each forward and each backward of every chunk occurs once. A chunk's forwards and
// backwards ascend, and each forward comes before its backward.
static bool once_each(const Schedule *s, size_t m, size_t v) {
    bool seen[2][4][MOST_MICRO] = { { { 0 } } };
    if (s->n != 2 * m * v) return false;
    for (size_t e = 0; e < s->n; e++) {
        PipeOp op = s->ops[e];
        if (op.what > BACKWARD || op.chunk >= v || op.micro_batch >= m) return false;
        if (seen[op.what][op.chunk][op.micro_batch]) return false;
        if (op.micro_batch && !seen[op.what][op.chunk][op.micro_batch - 1]) return false;
        if (op.what == BACKWARD && !seen[FORWARD][op.chunk][op.micro_batch]) return false;
        seen[op.what][op.chunk][op.micro_batch] = true;
    }
    return true;
}

// Tests the lists of p stages with v chunks, over all m that p divides (with v = 1 over all m). t_f
// and t_b are the times of a chunk.
static void interleaved_forms(size_t p, size_t v, size_t t_f, size_t t_b) {
    size_t wrong = 0, wrong_m = 0;
    const char *what = "";
    for (size_t m = v == 1 ? 1 : p; m <= MOST_MICRO; m += v == 1 ? 1 : p) {
        Schedule stage[MOST_STAGES];
        for (size_t i = 0; i < p; i++) stage[i] = schedule_interleaved(p, m, v, i);
        Timeline t = timeline_with_times(stage, p, m, &(OpTimes){ t_f, t_b, 0, 0 });
        NEED(!t.stuck, "deadlock");
        NEED(t.end == (m * v + p - 1) * (t_f + t_b), "step time (m + (p-1)/v)(t_f + t_b)");
        Judgement j = judge_lists(stage, p, m, v, &(OpTimes){ t_f, t_b, 0, 0 });
        NEED(j.verdict == LISTS_LEGAL && j.end == t.end, "the judge");
        NEED(timeline_busy(&t) == p * m * v * (t_f + t_b), "busy time");
        NEED(all_pairs_agree(stage, p, v, m), "order of messages");
        for (size_t i = 0; i < p; i++) {
            size_t most = v == 1 ? p - i : 2 * (p - 1 - i) + (v - 1) * p + 1;
            NEED(once_each(&stage[i], m, v), "the list");
            NEED(most_in_flight(&stage[i]) == (most < m * v ? most : m * v), "in flight");
        }
        timeline_free(&t);
        for (size_t i = 0; i < p; i++) schedule_free(&stage[i]);
    }
    if (!ok(!wrong, "interleaved, p = %zu, v = %zu, m up to %d, t_f = %zu, t_b = %zu", p, v,
            MOST_MICRO, t_f, t_b))
        printf("#   m = %zu: %s\n", wrong_m, what);
}

static bool reads(ScheduleRule rule, size_t p, size_t m, size_t i, const char *order) {
    Schedule s = rule(p, m, i);
    char text[400] = "";
    for (size_t e = 0; e < s.n; e++)
        sprintf(text + strlen(text), "%s%c%zu", e ? " " : "", "FB"[s.ops[e].what == BACKWARD],
                s.ops[e].micro_batch);
    schedule_free(&s);
    return !strcmp(text, order);
}

static bool reads_interleaved(size_t p, size_t m, size_t v, size_t i, const char *order) {
    Schedule s = schedule_interleaved(p, m, v, i);
    char *text = schedule_text(&s);
    bool same = !strcmp(text, order);
    free(text);
    schedule_free(&s);
    return same;
}

static void by_hand_lists(void) {
    bool same = true;
    for (size_t p = 1; p <= MOST_STAGES; p++)
        for (size_t m = 1; m <= MOST_MICRO; m++)
            for (size_t i = 0; i < p; i++) {
                Schedule by_hand = by_hand_1f1b(p, m, i);
                char *order = schedule_text(&by_hand);
                same &= reads(schedule_1f1b, p, m, i, order);
                free(order);
                schedule_free(&by_hand);
            }
    ok(same, "1F1B's lists by hand are those of 02_1f1b.c, p = 1..8, m = 1..24");
}

// Changes lists in small ways and checks the verdicts of the judge of 05.01. The first four lists
// are 1F1B for p = 3 and m = 4 with one change on stage 1. The list of stage 1 is F0 F1 B0 F2 B1 F3
// B2 B3.
static void by_hand_refuses(void) {
    Schedule *s = schedule_all(by_hand_1f1b, 3, 4);
    PipeOp *op = s[1].ops, keep[8];
    memcpy(keep, op, sizeof keep);
    op[0] = keep[2];
    op[2] = keep[0];
    ok(by_hand_judge(s, 3, 4).verdict == DEADLOCK, "05.01: B0 before F0 is a deadlock");
    memcpy(op, keep, sizeof keep);
    op[7].micro_batch = 2;
    ok(by_hand_judge(s, 3, 4).verdict == NOT_ONCE, "05.01: B2 twice, B3 never");
    memcpy(op, keep, sizeof keep);
    op[0] = keep[1];
    op[1] = keep[0];
    ok(by_hand_judge(s, 3, 4).verdict == WRONG_MESSAGE,
       "05.01: F1 before F0 on one stage is the wrong message");
    memcpy(op, keep, sizeof keep);
    op[1] = keep[2];
    op[2] = keep[1];
    Outcome slow = by_hand_judge(s, 3, 4);
    ok(slow.verdict == LEGAL && slow.end > (4 + 3 - 1) * (T_FORWARD + T_BACKWARD),
       "05.01: B0 before F1 is legal, but the step is longer");
    schedule_all_free(s, 3);
    // F5 and F6 of stage 0, and B1 and B2 of stage 1, are sent but not received. Neither stage has
    // a free buffer for its next message, F7 or B3, so neither stage goes on to receive.
    Schedule unlike[] = { schedule_gpipe(2, 8, 0), by_hand_1f1b(2, 8, 1) };
    ok(by_hand_judge(unlike, 2, 8).verdict == DEADLOCK,
       "05.01: GPipe on stage 0, 1F1B on stage 1: a deadlock, because the buffers are full");
    schedule_free(&unlike[0]);
    schedule_free(&unlike[1]);
}

static void known_orders(void) {
    ok(reads_interleaved(
           2, 4, 2, 0,
           "F0c0 F1c0 F0c1 F1c1 F2c0 B0c1 F3c0 B1c1 F2c1 B0c0 F3c1 B1c0 B2c1 B3c1 B2c0 B3c0"),
       "interleaved, p = 2, v = 2, m = 4, stage 0: as published");
    ok(reads_interleaved(
           2, 4, 2, 1,
           "F0c0 F1c0 F0c1 B0c1 F1c1 B1c1 F2c0 B0c0 F3c0 B1c0 F2c1 B2c1 F3c1 B3c1 B2c0 B3c0"),
       "interleaved, p = 2, v = 2, m = 4, stage 1: as published");
    ok(reads_interleaved(4, 7, 1, 1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 B5 B6"),
       "interleaved, v = 1: 1F1B");
    ok(reads(schedule_1f1b, 4, 8, 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"),
       "1F1B, p = 4, m = 8, stage 0");
    ok(reads(schedule_1f1b, 4, 8, 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"),
       "1F1B, p = 4, m = 8, stage 3");
    ok(reads(schedule_1f1b, 4, 2, 0, "F0 F1 B0 B1"), "1F1B with fewer micro-batches than stages");
    ok(reads(schedule_gpipe, 3, 3, 1, "F0 F1 F2 B0 B1 B2"), "GPipe: backwards ascending");
    ok(reads(schedule_naive, 3, 2, 1, "F0 B0 F1 B1"), "naive");
    Schedule many = schedule_gpipe(1, 1 << 20, 0);
    ok(many.n == 2 << 20 && many.ops[(2 << 20) - 1].micro_batch == (1 << 20) - 1,
       "a million micro-batches");
    schedule_free(&many);
}

// ---- stages of unequal times ----

// A stage's bound for 1F1B is its own work plus one forward and backward of each stage before it.
static void unequal_stages(void) {
    size_t exact = 0, bound = 0, faster = 0, met = 0;
    enum { CASES = 2000 };
    for (size_t k = 0; k < CASES; k++) {
        size_t p = 1 + random_key(1, k) % 8, m = 1 + random_key(2, k) % 24, sum = 0, most = 0,
               least = 0, before = 0;
        OpTimes t[8];
        for (size_t i = 0; i < p; i++) {
            size_t f = 1 + random_key(random_key(3, k), i) % 20;
            t[i] = (OpTimes){ .forward = f, .backward_inputs = 2 * f };
            least = least > 3 * m * f + before ? least : 3 * m * f + before;
            before += 3 * f;
            sum += 3 * f;
            most = most > f ? most : f;
        }
        Schedule *gpipe = schedule_all(schedule_gpipe, p, m),
                 *one_f_one_b = schedule_all(schedule_1f1b, p, m);
        Timeline all = timeline_of_stages(gpipe, p, m, t),
                 of_1f1b = timeline_of_stages(one_f_one_b, p, m, t);
        exact += all.end == sum + (m - 1) * 3 * most;
        bound += of_1f1b.end >= least;
        faster += of_1f1b.end <= all.end;
        met += of_1f1b.end == least;
        timeline_free(&all);
        timeline_free(&of_1f1b);
        schedule_all_free(gpipe, p);
        schedule_all_free(one_f_one_b, p);
    }
    ok(exact == CASES, "unequal stages, GPipe: sum(f+b) + (m-1)(max f + max b), 2000 random costs");
    ok(faster == CASES, "unequal stages: 1F1B is never slower");
    ok(bound == CASES,
       "unequal stages, 1F1B: at least max over j of m(f+b) of j and f+b of the stages before");
    if (!ok(met == 1031, "unequal stages, 1F1B: 1031 of 2000 are equal to this bound"))
        printf("#   in %zu of 2000\n", met);
    printf("# 1F1B meets its bound in %zu of %d\n", met, CASES);
}

// ---- the timeline on lists that go wrong ----

static Schedule backward_first(size_t p, size_t m, size_t i) {
    Schedule s = schedule_naive(p, m, i);
    if (i == 1) {
        s.ops[0].what = BACKWARD;
        s.ops[1].what = FORWARD;
    }
    return s;
}
static Schedule one_missing(size_t p, size_t m, size_t i) {
    Schedule s = schedule_gpipe(p, m, i);
    if (i == 0) s.n = m - 1;
    return s;
}
// Returns GPipe's list with two ops of stage 0 exchanged, so two neighbours wait for each other.
static Schedule crossed(size_t p, size_t m, size_t i) {
    Schedule s = schedule_gpipe(p, m, i);
    if (i == 0) {
        s.ops[m - 1] = (PipeOp){ .what = BACKWARD, .micro_batch = 0 };
        s.ops[m] = (PipeOp){ .what = FORWARD, .micro_batch = m - 1 };
    }
    return s;
}

static void lists_that_deadlock(void) {
    ok(makespan(backward_first, 2, 3, 1, 2) == SIZE_MAX,
       "a backward before its forward is a deadlock");
    ok(makespan(one_missing, 2, 3, 1, 2) == SIZE_MAX, "a forward that never comes is a deadlock");
    ok(makespan(crossed, 2, 3, 1, 2) == SIZE_MAX, "a ring of waiting stages is a deadlock");
}

// ---- backwards in halves ----

// F = B = W = 1. The cap of schedule_zb_auto() is the most micro-batches in flight on a stage. With
// cap p a step takes at most 2 units more than with cap 2p - 1. This holds for p = 1, 2, 4, 8 and m
// = p, 2p, 4p.
static void zero_bubble_forms(size_t p) {
    size_t wrong = 0, wrong_m = 0;
    const char *what = "";
    static const OpTimes unit = { 1, 1, 1, 0 };
    for (size_t m = 1; m <= MOST_MICRO; m++) {
        Schedule *h1 = schedule_all(schedule_zb_h1, p, m), *cap_p = host_alloc(p * sizeof *cap_p);
        Schedule *wide = host_alloc(p * sizeof *wide);
        for (size_t i = 0; i < p; i++) {
            cap_p[i] = schedule_zb_auto(p, m, i, p, unit);
            wide[i] = schedule_zb_auto(p, m, i, 2 * p - 1, unit);
        }
        Judgement a = judge_lists(h1, p, m, 1, &unit), b = judge_lists(cap_p, p, m, 1, &unit);
        Judgement c = judge_lists(wide, p, m, 1, &unit);
        NEED(a.verdict == LISTS_LEGAL && b.verdict == LISTS_LEGAL && c.verdict == LISTS_LEGAL,
             "the judge");
        NEED(m < p || a.end == 3 * m + p - 1, "ZB-H1: m(F+B+W) + (p-1)(F+B-W)");
        NEED(m < p || c.end == 3 * m + p - 1, "automatic, cap 2p-1: 3m + p - 1");
        bool bounded = (p & (p - 1)) == 0 && (m == p || m == 2 * p || m == 4 * p);
        NEED(!bounded || b.end <= 3 * m + p + 1, "automatic, cap p: at most 2 more");
        NEED(all_pairs_agree(h1, p, 1, m) && all_pairs_agree(cap_p, p, 1, m) &&
                 all_pairs_agree(wide, p, 1, m),
             "order of messages");
        for (size_t i = 0; i < p; i++) {
            NEED(list_in_flight(&h1[i]) == (p < m ? p : m), "ZB-H1: min(p, m) in flight");
            NEED(list_in_flight(&cap_p[i]) <= p && list_in_flight(&wide[i]) <= 2 * p - 1,
                 "in flight: the cap");
        }
        schedule_all_free(h1, p);
        schedule_all_free(cap_p, p);
        schedule_all_free(wide, p);
    }
    if (!ok(!wrong, "zero bubble, p = %zu, m = 1..%d", p, MOST_MICRO))
        printf("#   m = %zu: %s\n", wrong_m, what);
}

// ---- lists that never flush ----

// Returns the list without its updates, because an update takes no time here.
static Schedule without_updates(Schedule s) {
    size_t n = 0;
    for (size_t e = 0; e < s.n; e++)
        if (s.ops[e].what != UPDATE) s.ops[n++] = s.ops[e];
    s.n = n;
    return s;
}
enum { LATE_RULES = 4, BATCHES = 3 };
static Schedule late_list(int rule, size_t p, size_t m, size_t i) {
    return rule < LATE_RULES - 1 ? schedule_pipedream((PipeDreamRule)rule, p, m, i)
                                 : schedule_2bw(p, m, BATCHES, i);
}
// Returns whether every op reads the newest version or the version before.
static bool two_are_enough(const Schedule *s) {
    size_t newest = 0;
    bool enough = true;
    for (size_t e = 0; e < s->n; e++)
        if (s->ops[e].what == UPDATE) newest++;
        else enough &= s->ops[e].version <= newest && newest <= s->ops[e].version + 1;
    return enough;
}
// The forwards and backwards of PipeDream and 2BW are those of 1F1B without a flush, whatever
// version of the weights an op reads. n counts the micro-batches of all steps.
static void no_flush_forms(size_t p) {
    static const OpTimes times = { 1, 2, 0, 0 };
    size_t wrong = 0, wrong_m = 0;
    const char *what = "";
    for (size_t m = 1; m <= MOST_MICRO; m++)
        for (int rule = 0; rule < LATE_RULES; rule++) {
            const bool batches = rule == LATE_RULES - 1;
            const size_t n = batches ? BATCHES * m : m;
            Schedule stage[MOST_STAGES];
            bool two = true; // whether two versions of the weights are enough on every stage
            for (size_t i = 0; i < p; i++) {
                stage[i] = late_list(rule, p, m, i);
                NEED(stage[i].n == 2 * n + (batches ? BATCHES : n), "an update of each batch");
                NEED(stage[i].ops[stage[i].n - 1].what == UPDATE, "the last update at the end");
                two &= two_are_enough(&stage[i]);
                stage[i] = without_updates(stage[i]);
                NEED(well_formed(&stage[i], n), "the list");
                NEED(most_in_flight(&stage[i]) == (p - i < n ? p - i : n), "in flight");
            }
            NEED(!batches || m < p || two, "2BW: two versions suffice for m >= p");
            // With m = p - 1 an update comes just before its first reader, so two versions suffice,
            // too.
            NEED(!batches || m + 2 > p || !two, "2BW: two versions do not suffice for m < p - 1");
            Timeline t = timeline_with_times(stage, p, n, &(OpTimes){ 1, 2, 0, 0 });
            NEED(!t.stuck && t.end == 3 * (n + p - 1), "step time (n+p-1)(t_f+t_b)");
            NEED(happens_before(&t, 1, 2), "an op before an op that it needs");
            Judgement j = judge_lists(stage, p, n, 1, &times);
            NEED(j.verdict == LISTS_LEGAL && j.end == t.end, "the judge");
            NEED(all_pairs_agree(stage, p, 1, n), "order of messages");
            timeline_free(&t);
            for (size_t i = 0; i < p; i++) schedule_free(&stage[i]);
        }
    if (!ok(!wrong, "PipeDream and 2BW, p = %zu, m = 1..%d", p, MOST_MICRO))
        printf("#   m = %zu: %s\n", wrong_m, what);
}

// ---- figures of papers (05.07) ----

// Returns the makespan of the rule's lists with p = 4, m = 8 and F = B = W = 1. A backward that is
// not split takes B + W.
static size_t units_of_halves(ScheduleRule rule) {
    return lists_makespan(schedule_all(rule, 4, 8), 4, 8, &(OpTimes){ 1, 1, 1, 0 });
}
// t_f and t_b are the times of one chunk.
static size_t interleaved_makespan(size_t p, size_t m, size_t v, size_t t_f, size_t t_b,
                                   size_t message) {
    Schedule *stage = host_alloc(p * sizeof *stage);
    for (size_t i = 0; i < p; i++) stage[i] = schedule_interleaved(p, m, v, i);
    return lists_makespan(stage, p, m, &(OpTimes){ t_f, t_b, 0, message });
}
static void published_figures(void) {
    // PTD-P's bubbles are (p-1)/m and (p-1)/(vm), with t_f = 1 and t_b = 2 of a stage. In the paper
    // a chunk takes 1/v of these times. Here a chunk takes 1 and 2 units, so a makespan with v
    // chunks is v times as large.
    ok(makespan(schedule_naive, 4, 8, 1, 2) == 96 && makespan(schedule_gpipe, 4, 8, 1, 2) == 33 &&
           makespan(schedule_1f1b, 4, 8, 1, 2) == 33 && makespan(schedule_1f1b, 8, 32, 1, 2) == 117,
       "PTD-P: naive 96, GPipe and 1F1B 33 units for p = 4, m = 8; 1F1B 117 for p = 8, m = 32");
    ok(interleaved_makespan(4, 8, 2, 1, 2, 0) == 2 * 28.5 &&
           interleaved_makespan(4, 8, 4, 1, 2, 0) == 4 * 26.25 &&
           interleaved_makespan(8, 32, 4, 1, 2, 0) == 4 * 101.25,
       "PTD-P: interleaved 28.5 and 26.25 units for v = 2 and 4; 101.25 for p = 8, m = 32");
    ok(interleaved_makespan(4, 8, 2, 1, 2, 8) >= interleaved_makespan(4, 8, 1, 2, 4, 8),
       "where a message takes 4 t_f, interleaved is no faster than 1F1B");
    // Table 2 of GPipe has Transformer-48 with M = 32. Each entry is the throughput on K stages,
    // divided by the throughput for K = 2, M = 1. A stage does 1/(K M) of a batch's work per
    // micro-batch.
    static const double table[] = { 1.8, 3.4, 6.3 };
    bool formula_holds = true, close = true;
    for (size_t n = 0; n < 3; n++) {
        const size_t K = (size_t)2 << n, M = 32;
        // `share` is the time of one forward and one backward of a stage.
        double share = (double)makespan(schedule_gpipe, 2, 1, 1, 2) / 2;
        double ideal = (double)(K * M) * share / (double)makespan(schedule_gpipe, K, M, 1, 2);
        double speed_up = (double)(K * M) / (double)(M + K - 1);
        formula_holds &= fabs(ideal / speed_up - 1) < 1e-12;
        close &= table[n] <= ideal && table[n] >= 0.92 * ideal;
    }
    ok(formula_holds, "GPipe: the lists are K M/(M+K-1) times as fast");
    ok(close, "GPipe: its table 2 is within 8 %% of the lists");
    ok(3 * (units_of_halves(schedule_zb_h1) - 24) == units_of_halves(schedule_1f1b) - 24,
       "zero bubble: ZB-H1's bubble is a third of 1F1B's");
}

static bool list_reads(Schedule s, const char *order) {
    char *text = schedule_text(&s);
    bool same = !strcmp(text, order);
    if (!same) printf("#   %s\n", text);
    free(text);
    schedule_free(&s);
    return same;
}
static void known_late_orders(void) {
    ok(list_reads(schedule_pipedream(WEIGHT_STASHING, 4, 5, 0),
                  "F0 F1 F2 F3 B0 U0 F4 B1 U1 B2 U2 B3 U3 B4 U4") &&
           list_reads(schedule_pipedream(WEIGHT_STASHING, 4, 3, 3), "F0 B0 U0 F1 B1 U1 F2 B2 U2"),
       "PipeDream, p = 4: stages 0 and 3");
    ok(list_reads(schedule_2bw(2, 2, 2, 0), "F0 F1 B0 F2 B1 U0 F3 B2 B3 U1") &&
           list_reads(schedule_2bw(2, 2, 2, 1), "F0 B0 F1 B1 U0 F2 B2 F3 B3 U1"),
       "2BW, p = 2, m = 2, two steps");
    ok(list_reads(schedule_zb_h1(4, 5, 0), "F0 F1 F2 F3 I0 W0 F4 I1 W1 I2 W2 I3 W3 I4 W4") &&
           list_reads(schedule_zb_h1(4, 5, 3), "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 W2 W3 W4"),
       "ZB-H1, p = 4, m = 5: stage i delays i backwards of weights");
}

// ---- the judge on lists that a user has typed ----

static void judged(const char *text, ListsVerdict verdict, const char *why) {
    size_t p, m = 0, v = 0;
    Schedule *stage = lists_parse(text, &p);
    for (size_t i = 0; i < p; i++)
        for (size_t e = 0; e < stage[i].n; e++) {
            if (stage[i].ops[e].micro_batch >= m) m = stage[i].ops[e].micro_batch + 1;
            if (stage[i].ops[e].chunk >= v) v = stage[i].ops[e].chunk + 1;
        }
    Judgement j = judge_lists(stage, p, m, v, &(OpTimes){ 1, 1, 1, 0 });
    if (!ok(j.verdict == verdict && strstr(j.why, why), "%s: %s", text, *why ? why : "legal"))
        printf("#   verdict %d: %s\n", j.verdict, j.why);
    schedule_all_free(stage, p);
}

static void typed_lists(void) {
    judged("F0 F1 B0 B1 / F0 B0 F1 B1", LISTS_LEGAL, "");
    judged("F0 B0 F1 B1/F0 I0 W0 F1 I1 W1", LISTS_LEGAL, "");
    judged("F0c0 F0c1 B0c1 B0c0 / F0 F0c1 B0c1 B0", LISTS_LEGAL, "");
    judged("F0 B0 F1 B1 / F0 F1 B0 B1", LISTS_DEADLOCK,
           "stage 0 waits before B0 for B0 of stage 1, which has F1 to");
    judged("F0 B0 F1 B1 / F0 F1 B0 B1", LISTS_DEADLOCK,
           "stage 1 waits before F1 for F1 of stage 0, which has B0 to");
    judged("W0 I0 F0", LISTS_DEADLOCK,
           "stage 0 waits before W0 for its own I0, which its list has later");
    judged("F0 B0 / F0 B0 / B0 F0", LISTS_DEADLOCK,
           "stage 2 waits before B0 for its own F0, which its list has later");
    judged("F0 B0 / B0 F0 / F0 B0", LISTS_DEADLOCK,
           "stage 1 waits before B0 for B0 of stage 2, which has F0 to run first");
    judged("F0 B0 / F0 B0 / B0 F0", LISTS_DEADLOCK,
           "stage 0 waits before B0 for B0 of stage 1, which waits, too");
    judged("F0 F1 F2 F3 F4 F5 F6 B0 B1 B2 B3 B4 B5 B6 / F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6",
           LISTS_LEGAL, "");
    static const char full[] = "F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7 / "
                               "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7";
    judged(full, LISTS_DEADLOCK,
           "stage 0 waits before F7 for a send buffer: stage 1, which waits before "
           "B3, has posted no receive for F5");
    judged(full, LISTS_DEADLOCK,
           "stage 1 waits before B3 for a send buffer: stage 0, which waits before "
           "F7, has posted no receive for B1");
    judged("F0 F1 B0 B1 / F1 B1 F0 B0", LISTS_WRONG_MESSAGE,
           "message 0 from stage 1 to stage 0 is for B1");
    judged("F0 F1 B0 B1 / F0 B0 F1", LISTS_NOT_ONCE, "stage 1 runs B1 0 times instead of 1");
    judged("F0 F0 B0", LISTS_NOT_ONCE, "stage 0 runs F0 2 times instead of 1");
    judged("F0 B0 I0 W0", LISTS_NOT_ONCE, "stage 0 runs B0 1 times instead of 0: it has a half");
    judged("F0 I0", LISTS_NOT_ONCE, "stage 0 runs W0 0 times instead of 1");
    size_t p;
    Schedule *slow = lists_parse("F0 B0 F1 B1 / F0 B0 F1 B1", &p);
    Judgement j = judge_lists(slow, p, 2, 1, &(OpTimes){ 1, 1, 1, 0 });
    ok(j.end == 12 && j.wait.units == 3 && !strcmp(j.wait.op, "B0") && j.wait.from == 1,
       "the longest wait of a slow list: 3 units, stage 0 before B0, for stage 1");
    schedule_all_free(slow, p);
}

static void long_lists(void) {
    double begun = now();
    Schedule s = schedule_gpipe(2, 100000, 0);
    ok(s.n == 200000 && s.ops[199999].micro_batch == 99999 && now() - begun < 2,
       "a list of 200000 operations, and soon");
    schedule_free(&s);
}

// ---- layers of a stage ----

static void stage_layers(void) {
    bool covered = true, even = true, ends = true;
    for (size_t L = 1; L <= 24; L++)
        for (size_t p = 1; p <= MOST_STAGES && p <= L; p++) {
            ModelConfig c = { .layers = L };
            size_t next = 0, least = L, most = 0;
            for (size_t i = 0; i < p; i++) {
                Range r = pipeline_stage_layers(&c, NULL, p, i);
                size_t blocks = range_size(r) - (i == 0) - (i + 1 == p);
                covered &= r.lo == next && r.hi > r.lo;
                next = r.hi;
                if (blocks < least) least = blocks;
                if (blocks > most) most = blocks;
            }
            ends &= next == L + 3;
            even &= most - least <= 1;
        }
    ok(covered && ends, "stages cover the layers 0 .. L+2 once, in order, L = 1..24, p = 1..8");
    ok(even, "stages differ by at most one block");
    ModelConfig ten = { .layers = 10 };
    const size_t blocks[] = { 3, 4, 3 };
    const Range want[] = { { 0, 4 }, { 4, 8 }, { 8, 13 } };
    bool as_asked = true;
    for (size_t i = 0; i < 3; i++) {
        Range r = pipeline_stage_layers(&ten, blocks, 3, i);
        as_asked &= r.lo == want[i].lo && r.hi == want[i].hi;
    }
    ok(as_asked, "stages of 3, 4 and 3 blocks");
}

int main(void) {
    for (size_t k = 0; k < 3; k++)
        for (size_t p = 1; p <= MOST_STAGES; p++) {
            closed_forms(&kinds[k], p, 1, 2);
            closed_forms(&kinds[k], p, 3, 5);
        }
    for (size_t v = 1; v <= 4; v++)
        for (size_t p = 1; p <= MOST_STAGES; p++) {
            interleaved_forms(p, v, 1, 2);
            interleaved_forms(p, v, 3, 5);
        }
    for (size_t p = 1; p <= MOST_STAGES; p++) zero_bubble_forms(p);
    for (size_t p = 1; p <= MOST_STAGES; p++) no_flush_forms(p);
    published_figures();
    known_late_orders();
    typed_lists();
    known_orders();
    by_hand_lists();
    by_hand_refuses();
    unequal_stages();
    lists_that_deadlock();
    long_lists();
    stage_layers();
    return tap_end();
}
