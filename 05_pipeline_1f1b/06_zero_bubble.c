// ranks: 4
// level: extra
// question: Can a stage fill its bubble with the half of a backward that no other stage waits for?
// vary: SEQUENCES 8..12, layers 8..12, width 18|24, context 7..13, vocab 31..50
//
// Zero bubble (Qi et al. 2023, sections 2, 3). The backward of y = x w has two products. B, the gradient of the input,
// dx = dy w^T: the stage before waits for it. W, the gradient of the weights, dw = x^T dy: nothing waits for it but the
// update at the end of the step. So the two become ops of their own (pipeline_backward_inputs and _weights in
// 04/02_naive.c compute them for all layers of a stage); W runs when a stage would be idle. Rank i is stage i. Stages,
// messages and sums are those of 1F1B: a forward sends y [B*T, C] to the next stage, a B sends dx [B*T, C] to the one
// before, as soon as it is done; a W sends nothing. W's run in the order of their micro-batches, so every bit is that
// of 1F1B. In flight: a micro-batch counts until its W, because W reads x and dy of every layer.
// F, B, W are also the times of the three. Here are two ways to make the lists: ZB-H1, by a rule, and an automatic one
// that is told the times, and how many micro-batches may be in flight. 04/executor.c runs both.
// Left out: updates that do not wait for the norm of all stages' gradients, and are taken back if it was too large.
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "04_pipeline_naive/experiments/stack.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/experiments/06_costs.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ================================ the technique ================================

// ZB-H1: 1F1B's order, and stage i puts each W off by i micro-batches. So a gradient passes a stage in B, not in B + W,
// and what was put off fills the end of the step. Stage i has p - i micro-batches between F and B, and i between B and
// W: p in flight on every stage, as on stage 0 of 1F1B. For m >= p, and W no longer than F and than B, a step takes
//     (p-1)F + (mF + mB + (m-p)W) + (p-1)B + W = m(F+B+W) + (p-1)(F+B-W):
// the last stage begins after (p-1)F; all its F's and B's and m - p of its W's later, its last gradient is there, which
// then needs a B on each stage before; stage 0 ends with a W. No stage waits for anything else on this way.
Schedule schedule_zb_h1(size_t p, size_t m, size_t i) {
    Schedule s = {0};
    size_t ahead = p - 1 - i < m ? p - 1 - i : m, forwards = 0, inputs = 0, weights = 0;
    // EXERCISE 05.06a (4 points): ZB-H1. `ahead` forwards; then, until all m backwards of inputs are in the list, a
    // forward, if one is left, a backward of inputs, and the backward of weights of the micro-batch i before it, if
    // there is one; then the backwards of weights that are left. Each kind comes in ascending order. Call:
    // schedule_add(&s, what, micro_batch), what being FORWARD, BACKWARD_INPUTS or BACKWARD_WEIGHTS.
    while (forwards < ahead) schedule_add(&s, FORWARD, forwards++);
    while (inputs < m) {
        if (forwards < m) schedule_add(&s, FORWARD, forwards++);
        schedule_add(&s, BACKWARD_INPUTS, inputs++);
        if (inputs > i) schedule_add(&s, BACKWARD_WEIGHTS, weights++);
    }
    while (weights < m) schedule_add(&s, BACKWARD_WEIGHTS, weights++);
    // END
    return s;
}

// ---- the automatic list: the times of all stages are played, and a free stage takes the most urgent op ----

typedef struct {
    Schedule list;                                 // what this stage does, as far as it is planned
    size_t free_at;                                // when the last of these ops ends
    size_t n[4], *end[4];                          // n[what]: ops of this kind in the list; end[what][k]: when it ends
} Planned;

// When the next op of this kind could start on stage i; SIZE_MAX: there is none, memory is full, or what it needs is
// not planned yet. pipe_op_needs (04/executor.c): the op that it waits for, of the stage beside or of its own. And no
// stage runs more than AHEAD messages ahead of the one that takes them: the executor would wait for a send buffer.
enum { AHEAD = 3 };
static size_t ready_at(const Planned *stage, size_t p, size_t m, size_t i, PipeWhat what, size_t cap, size_t message) {
    const Planned *me = &stage[i];
    size_t k = me->n[what];
    PipeOp op = { .what = what, .micro_batch = k };
    StageOp needs, feeds;
    if (k == m) return SIZE_MAX;
    if (what == FORWARD && k - me->n[BACKWARD_WEIGHTS] == cap) return SIZE_MAX;        // a W must free memory first
    if (pipe_op_feeds(op, i, p, 1, &feeds) && k >= stage[feeds.stage].n[what] + AHEAD) return SIZE_MAX;
    if (!pipe_op_needs(op, i, p, 1, &needs)) return me->free_at;
    const Planned *from = &stage[needs.stage];
    if (k >= from->n[needs.op.what]) return SIZE_MAX;
    size_t there = from->end[needs.op.what][k] + (needs.stage == i ? 0 : message);
    return there > me->free_at ? there : me->free_at;
}

// Of the ops that could start first, B goes before F, because stages wait for it, and F before W. cap: most
// micro-batches in flight on a stage. The first gradient is back on stage 0 after p F's and p - 1 B's: with 2p - 1 and
// F = B = W it runs forwards until then, and no stage is idle between its first op and its last. Every stage plans all
// stages, and keeps its own list.
Schedule schedule_zb_auto(size_t p, size_t m, size_t i, size_t cap, OpTimes t) {
    static const PipeWhat by_urgency[] = { BACKWARD_INPUTS, FORWARD, BACKWARD_WEIGHTS };
    const size_t takes[4] = { [FORWARD] = t.forward, [BACKWARD_INPUTS] = t.backward_inputs,
                              [BACKWARD_WEIGHTS] = t.backward_weights };
    Planned *stage = host_alloc(p * sizeof *stage);
    for (size_t k = 0; k < p; k++)
        for (size_t n = 0; n < 3; n++) stage[k].end[by_urgency[n]] = host_alloc(m * sizeof(size_t));
    for (size_t left = 3 * m * p; left > 0; left--) {
        size_t who = 0, first = SIZE_MAX;
        PipeWhat what = FORWARD;
        for (size_t k = 0; k < p; k++)
            for (size_t n = 0; n < 3; n++) {
                size_t at = ready_at(stage, p, m, k, by_urgency[n], cap, t.message);
                if (at < first) { first = at; who = k; what = by_urgency[n]; }
            }
        Planned *s = &stage[who];
        s->end[what][s->n[what]] = s->free_at = first + takes[what];
        schedule_add(&s->list, what, s->n[what]++);
    }
    Schedule mine = stage[i].list;
    for (size_t k = 0; k < p; k++) {
        for (size_t n = 0; n < 3; n++) free(stage[k].end[by_urgency[n]]);
        if (k != i) schedule_free(&stage[k].list);
    }
    free(stage);
    return mine;
}

// The step is pipeline_step (04/03_gpipe.c) with one of these lists. Its end is a barrier: clipping needs the norm of
// all gradients (pipeline_update), so no stage updates before the last W of all stages is done.

// ================================ the experiment ================================

// 11 sequences of 5 to 10 counted tokens in 7 micro-batches: 2, 2, 2, 2, 1, 1, 1; 9 blocks on 4 stages: 3, 2, 2, 2.
static const ModelConfig sizes = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1 };
enum { SEQUENCES = 11, MICRO = 8 };                        // MICRO: on equal stages
static const double clip = 0.25;
static Stack equal_stages(void) { return (Stack){ .model = sizes, .blocks = 2, .sequences = 1 }; }

// The automatic lists for the times of the equal stages, and for F = B = W = 1.
static OpTimes equal_times(void) { Stack s = equal_stages(); return zb_times(&s); }
static Schedule auto_p(size_t p, size_t m, size_t i) { return schedule_zb_auto(p, m, i, p, equal_times()); }
static Schedule auto_2p(size_t p, size_t m, size_t i) { return schedule_zb_auto(p, m, i, 2 * p - 1, equal_times()); }
static const OpTimes units = { 1, 1, 1, 0 };
static Schedule units_p(size_t p, size_t m, size_t i) { return schedule_zb_auto(p, m, i, p, units); }
static Schedule units_2p(size_t p, size_t m, size_t i) { return schedule_zb_auto(p, m, i, 2 * p - 1, units); }

static const OpTimes slow = { 12, 14, 10, 3 };            // as of a block, with messages that take a quarter of F
static Schedule slow_p(size_t p, size_t m, size_t i) { return schedule_zb_auto(p, m, i, p, slow); }

// Two steps of which the second one waits for no norm: m micro-batches, then another m.
static Schedule twice(ScheduleRule rule, size_t p, size_t m, size_t i) {
    Schedule one = rule(p, m / 2, i), s = {0};
    for (size_t at = 0; at < 2 * one.n; at++) {
        PipeOp op = one.ops[at % one.n];
        op.micro_batch += at < one.n ? 0 : m / 2;
        schedule_add_op(&s, op);
    }
    schedule_free(&one);
    return s;
}
static Schedule one_by_one_twice(size_t p, size_t m, size_t i) { return twice(schedule_1f1b, p, m, i); }
static Schedule h1_twice(size_t p, size_t m, size_t i) { return twice(schedule_zb_h1, p, m, i); }
static Schedule auto_p_twice(size_t p, size_t m, size_t i) { return twice(auto_p, p, m, i); }
static Schedule auto_2p_twice(size_t p, size_t m, size_t i) { return twice(auto_2p, p, m, i); }
static Schedule units_2p_twice(size_t p, size_t m, size_t i) { return twice(units_2p, p, m, i); }
static const ZeroBubbleWay ways[ZB_WAYS] = {
    { "1F1B", "1f1b", schedule_1f1b, one_by_one_twice, schedule_1f1b },
    { "ZB-H1", "zb-h1", schedule_zb_h1, h1_twice, schedule_zb_h1 },
    { "auto, p", "auto-p", auto_p, auto_p_twice, units_p },
    { "auto, 2p-1", "auto-2p-1", auto_2p, auto_2p_twice, units_2p },
};

// ---------------------------------------------------------------- lists alone

static void lists(Run *run) {
    // (p-1)(F+B-W) = 3 idle units for ZB-H1, a third of 1F1B's 9.
    double got[4], want[] = { 33, 27, 29, 27 };
    for (size_t k = 0; k < 4; k++) got[k] = (double)zb_judge(ways[k].units, 4, 8, &units).step;
    check_numbers(run, "lists", "p = 4, m = 8, F = B = W = 1: 33, 27, 29, 27", got, want, 4, 0);
    // The next step is as long, or m(F+B+W) = 24, where each stage begins and ends one unit after the one before.
    double two[] = { (double)zb_judge(h1_twice, 4, 16, &units).step,
                     (double)zb_judge(units_2p_twice, 4, 16, &units).step }, no_barrier[] = { 27 + 27, 27 + 24 };
    check_numbers(run, "lists", "two steps without a barrier: 54, 51", two, no_barrier, 2, 0);
    // Told the time of a message, too; a list made without it takes 398.
    double told = (double)zb_judge(slow_p, 4, 8, &slow).step, known = 384;
    check_numbers(run, "lists", "auto, p, F 12, B 14, W 10, a message 3: 384", &told, &known, 1, 0);
    // Every p = 1..8, m = 1..24. t: B longer than F, W shorter, as in a block. Where m < p, W's are late at the end.
    enum { CASES = 8 * 24 };
    static const OpTimes t = { 12, 14, 10, 0 };
    double step[2 * CASES], formula[2 * CASES], flight[CASES], most[CASES], legal = 0, all = 3 * CASES;
    for (size_t n = 0; n < CASES; n++) {
        size_t p = n / 24 + 1, m = n % 24 + 1, late = p > m ? p - m : 0;
        JudgedLists h1 = zb_judge(schedule_zb_h1, p, m, &units), as_of_block = zb_judge(schedule_zb_h1, p, m, &t);
        JudgedLists few = zb_judge(units_p, p, m, &units), many = zb_judge(auto_2p, p, m, &units);
        step[n] = (double)h1.step;
        formula[n] = (double)(3 * m + p - 1 + late);
        step[CASES + n] = (double)as_of_block.step;
        formula[CASES + n] = (double)(36 * m + 16 * (p - 1) + 10 * late);
        flight[n] = (double)h1.in_flight;
        most[n] = (double)(p < m ? p : m);
        legal += h1.legal + (few.legal && few.in_flight <= p) + (many.legal && many.in_flight <= 2 * p - 1);
    }
    check_numbers(run, "lists", "legal, and in flight at most the cap; p = 1..8, m = 1..24", &legal, &all, 1, 0);
    check_numbers(run, "lists", "ZB-H1: step m(F+B+W) + (p-1)(F+B-W)", step, formula, 2 * CASES, 0);
    check_numbers(run, "lists", "ZB-H1: in flight min(p, m)", flight, most, CASES, 0);
    double greedy[9], ideal[9];
    bool two_more = true;
    for (size_t n = 0; n < 9; n++) {
        size_t p = (size_t)2 << n / 3, m = p << n % 3;             // p = 2, 4, 8; m = p, 2p, 4p
        greedy[n] = (double)zb_judge(units_2p, p, m, &units).step;
        ideal[n] = (double)(3 * m + p - 1);
        two_more &= zb_judge(units_p, p, m, &units).step <= 3 * m + p + 1;
    }
    check_numbers(run, "lists", "auto, 2p-1, F = B = W = 1: step 3m + p - 1", greedy, ideal, 9, 0);
    check_true(run, "lists", "auto, p, F = B = W = 1: at most 2 more", two_more);
}

// ---------------------------------------------------------------- equal stages

// The order of events on each stage is that of its list.
static void same_order(Run *run, const char *what, ScheduleRule rule) {
    bool same = true;
    for (size_t i = 0; i < run->world->size; i++) {
        Schedule list = rule(run->world->size, MICRO, i);
        char *order = picture_order(run, i), *at = order;
        for (size_t n = 0; order && n < list.n; n++) {
            char op[8];
            int length = sprintf(op, "%s%c%zu", n ? " " : "", "FBBW"[list.ops[n].what], list.ops[n].micro_batch);
            same &= !strncmp(at, op, (size_t)length);
            at += same ? length : 0;
        }
        if (order) say_detail(run, "  %s, stage %zu: %s", what, i, order);
        same &= !order || !*at;
        free(order);
        schedule_free(&list);
    }
    check_true(run, "events = list", what, same);
}

static void measure(Run *run, const Stack *stack) {
    ZeroBubbleStep seen[ZB_WAYS];
    for (size_t k = 0; k < ZB_WAYS; k++) {
        char title[64];
        comm_ledger_reset(run->world);
        Played one = stack_play(run, stack, ways[k].rule, MICRO);
        seen[k] = (ZeroBubbleStep){ .one = one, .messages = run->world->ledger[COMM_SEND].calls };
        snprintf(title, sizeof title, "%s, m = %d", ways[k].name, MICRO);
        bool strips = option_flag(run, "verbose") || option_text(run, "svg") || option_text(run, "trace");
        picture_show(run, title, (k == 1 ? 0 : PICTURE_DETAIL) | (k ? PICTURE_SAME_SCALE : 0) |
                                 (strips ? PICTURE_MEMORY : 0) |
                                 (strcmp(option_text(run, "draw"), ways[k].draw) ? PICTURE_NO_FILES : 0));
        same_order(run, ways[k].name, ways[k].rule);
        seen[k].two = stack_play(run, stack, ways[k].twice, 2 * MICRO).timing.step;
    }
    zb_equal_costs(run, stack, MICRO, ways, seen);
    zb_table(run, ways, stack, MICRO);
}

// ---------------------------------------------------------------- training, on stages of unequal size

static void zero_bubble(Run *run) {
    require_one_link(run);
    size_t p = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks", p, sizes.layers);
    REQUIRE(m >= 1 && m <= SEQUENCES, "--micro-batches %zu: the batch has %d sequences: choose 1 to %d", m, SEQUENCES,
            SEQUENCES);
    Training t = { .model = sizes, .steps = 3, .sequences = SEQUENCES, .micro_batches = m, .clip = clip };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    lists(run);
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        Trajectory want = training_unsplit(run, &t, 1);
        for (size_t k = 1; k < ZB_WAYS; k++) {
            Trajectory got = trajectory_new(run, &t);
            StageCosts seen = stages_train(run, &t, pipeline_step, ways[k].rule, &got);
            char what[48];
            snprintf(what, sizeof what, "%s = accumulation", ways[k].name);
            training_compare(run, what, &got, &want, 0);
            check_true(run, "clipping", "is at work in every step", trajectory_clipped(&got, clip));
            if (i) zb_costs(run, &t, &ways[k], &seen);
            trajectory_free(&got);
        }
        trajectory_free(&want);
    }
    Stack stack = equal_stages();
    stack.model.seed = run->seed;
    measure(run, &stack);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "7", "pieces the batch is cut into" },
    { "draw", "1f1b|zb-h1|auto-p|auto-2p-1", "zb-h1", "the schedule whose picture --svg and --trace write" },
    {0},
};
EXPERIMENT(zero_bubble, options);
