// 06_zero_bubble.c (experiment): ZB-H1 and two automatic lists equal gradient accumulation in every
// bit; steps, bubbles and memory beside 1F1B; lists of all sizes have the published step times.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// 11 sequences of 5 to 10 counted tokens in 7 micro-batches: 2, 2, 2, 2, 1, 1, 1; 9 blocks on 4
// stages: 3, 2, 2, 2.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};
enum { SEQUENCES = 11, MICRO = 8 };                        // MICRO: on equal stages
static const double clip = 0.25;
static Stack equal_stages(void) { return (Stack){ .model = sizes, .blocks = 2, .sequences = 1 }; }

// The automatic lists for the times of the equal stages, and for F = B = W = 1.
static OpTimes equal_times(void) { Stack s = equal_stages(); return zb_times(&s); }
static Schedule auto_p(size_t p, size_t m, size_t i) {
    return schedule_zb_auto(p, m, i, p, equal_times());
}
static Schedule auto_2p(size_t p, size_t m, size_t i) {
    return schedule_zb_auto(p, m, i, 2 * p - 1, equal_times());
}
static const OpTimes units = { 1, 1, 1, 0 };
static Schedule units_p(size_t p, size_t m, size_t i) {
    return schedule_zb_auto(p, m, i, p, units);
}
static Schedule units_2p(size_t p, size_t m, size_t i) {
    return schedule_zb_auto(p, m, i, 2 * p - 1, units);
}

// As of a block, with messages that take a quarter of F.
static const OpTimes slow = { 12, 14, 10, 3 };
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
static Schedule one_by_one_twice(size_t p, size_t m, size_t i) {
    return twice(schedule_1f1b, p, m, i);
}
static Schedule h1_twice(size_t p, size_t m, size_t i) { return twice(schedule_zb_h1, p, m, i); }
static Schedule auto_p_twice(size_t p, size_t m, size_t i) { return twice(auto_p, p, m, i); }
static Schedule auto_2p_twice(size_t p, size_t m, size_t i) { return twice(auto_2p, p, m, i); }
static Schedule units_2p_twice(size_t p, size_t m, size_t i) { return twice(units_2p, p, m, i); }

// A way to make the lists; twice: of two steps without a barrier in between, m the micro-batches of
// both; units: made for F = B = W = 1; draw: what --draw calls it.
enum { ZB_WAYS = 4 };
typedef struct { const char *name, *draw; ScheduleRule rule, twice, units; } ZeroBubbleWay;
// This rank's measurements.
typedef struct { Played one; Picoseconds two; size_t messages; } ZeroBubbleStep;

static const ZeroBubbleWay ways[ZB_WAYS] = {
    { "1F1B", "1f1b", schedule_1f1b, one_by_one_twice, schedule_1f1b },
    { "ZB-H1", "zb-h1", schedule_zb_h1, h1_twice, schedule_zb_h1 },
    { "auto, p", "auto-p", auto_p, auto_p_twice, units_p },
    { "auto, 2p-1", "auto-2p-1", auto_2p, auto_2p_twice, units_2p },
};

// ---------------------------------------------------------------- lists alone

// The two halves of one linear layer give the bits of its whole backward.
static void check_halves(Run *run) {
    enum { ROWS = 6, IN = 5, OUT = 7 };
    Arena a = arena(MEM_WORKSPACE);
    Tensor x = tensor_new(&a, ROWS, IN), w = tensor_new(&a, IN, OUT),
           dy = tensor_new(&a, ROWS, OUT);
    Tensor dx = tensor_new(&a, ROWS, IN), dw = tensor_new(&a, IN, OUT),
           whole = tensor_new(&a, IN, OUT);
    Param param = { .w = w, .g = whole, .gradient_empty = true };
    tensor_randomize(x, run->seed, 1);
    tensor_randomize(w, run->seed + 1, 1);
    tensor_randomize(dy, run->seed + 2, 1);
    linear_backward_inputs(dx, dy, w);             // B
    linear_backward_weights(dw, x, dy);            // W, any time later
    linear_gradients(&param, NULL, x, dy);         // as a layer's whole backward has it
    check_true(run, "halves", "W of y = x w is dw of its whole backward, every bit",
               tensor_equal(dw, whole));
    arena_free(&a);
}

static void lists(Run *run) {
    // (p-1)(F+B-W) = 3 idle units for ZB-H1, a third of 1F1B's 9.
    double got[4], want[] = { 33, 27, 29, 27 };
    for (size_t k = 0; k < 4; k++) got[k] = (double)zb_judge(ways[k].units, 4, 8, &units).step;
    check_numbers(run, "lists", "p = 4, m = 8, F = B = W = 1: 33, 27, 29, 27", got, want, 4, 0);
    // The next step is as long, or m(F+B+W) = 24, where each stage begins and ends one unit after
    // the one before.
    double two[] = { (double)zb_judge(h1_twice, 4, 16, &units).step,
                     (double)zb_judge(units_2p_twice, 4, 16, &units).step },
           no_barrier[] = { 27 + 27, 27 + 24 };
    check_numbers(run, "lists", "two steps without a barrier: 54, 51", two, no_barrier, 2, 0);
    // Told the time of a message, too; a list made without it takes 398.
    double told = (double)zb_judge(slow_p, 4, 8, &slow).step, known = 384;
    check_numbers(run, "lists", "auto, p, F 12, B 14, W 10, a message 3: 384", &told, &known, 1, 0);
    // Every p = 1..8, m = 1..24. t: B longer than F, W shorter, as in a block. Where m < p, W's are
    // late at the end.
    enum { CASES = 8 * 24 };
    static const OpTimes t = { 12, 14, 10, 0 };
    double step[2 * CASES], formula[2 * CASES], flight[CASES], most[CASES], legal = 0,
                                                                            all = 3 * CASES;
    for (size_t n = 0; n < CASES; n++) {
        size_t p = n / 24 + 1, m = n % 24 + 1, late = p > m ? p - m : 0;
        JudgedLists h1 = zb_judge(schedule_zb_h1, p, m, &units),
                    as_of_block = zb_judge(schedule_zb_h1, p, m, &t);
        JudgedLists few = zb_judge(units_p, p, m, &units), many = zb_judge(auto_2p, p, m, &units);
        step[n] = (double)h1.step;
        formula[n] = (double)(3 * m + p - 1 + late);
        step[CASES + n] = (double)as_of_block.step;
        formula[CASES + n] = (double)(36 * m + 16 * (p - 1) + 10 * late);
        flight[n] = (double)h1.in_flight;
        most[n] = (double)(p < m ? p : m);
        legal += h1.legal + (few.legal && few.in_flight <= p) +
                 (many.legal && many.in_flight <= 2 * p - 1);
    }
    check_numbers(run, "lists", "legal, and in flight at most the cap; p = 1..8, m = 1..24", &legal,
                  &all, 1, 0);
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
            int length = sprintf(op, "%s%c%zu", n ? " " : "", "FBBW"[list.ops[n].what],
                                 list.ops[n].micro_batch);
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

static Played play_rule(Run *run, const Stack *stack, ScheduleRule rule, size_t m) {
    Schedule list = rule(run->world->size, m, run->world->rank);
    Played played = play_list(run, stack, &list, m);
    schedule_free(&list);
    return played;
}

// The rules of 1F1B and ZB-H1 say how many are in flight; of an automatic list only the list.
static Predicted flight_formula(const ZeroBubbleWay *way, size_t p, size_t m, size_t i) {
    size_t most = way->rule == schedule_1f1b ? p - i : p;
    if (way->rule != schedule_1f1b && way->rule != schedule_zb_h1) return NOT_PREDICTED;
    return formula(most < m ? most : m);
}

static void equal_costs(Run *run, const Stack *stack, size_t m, const ZeroBubbleWay *ways,
                        const ZeroBubbleStep *seen) {
    size_t p = run->world->size, i = run->world->rank;
    OpTimes t = zb_times(stack);
    for (size_t k = 0; k < ZB_WAYS; k++) {
        CostName id, name;
        Schedule list = ways[k].rule(p, m, i);
        check_cost(run, cost_name(&id, "equal.flight.%s", ways[k].draw),
                   cost_name(&name, "equal stages, %s: in flight", ways[k].name), "micro-batches",
                   flight_formula(&ways[k], p, m, i), played(list_in_flight(&list)),
                   seen[k].one.result.in_flight);
        check_cost(run, cost_name(&id, "equal.activations.%s", ways[k].draw),
                   cost_name(&name, "equal stages, %s: activations, peak", ways[k].name), "bytes",
                   NOT_PREDICTED, played(zb_stack_peak(stack, &list, p, i)),
                   seen[k].one.activations);
        check_cost(run, cost_name(&id, "equal.sent.%s", ways[k].draw),
                   cost_name(&name, "equal stages, %s: messages sent", ways[k].name), "calls",
                   formula(m * ((i + 1 < p) + (i > 0))), NOT_PREDICTED, seen[k].messages);
        schedule_free(&list);
        if (!clock_config()->simulated) continue;          // real time differs from run to run
        size_t step = zb_judge(ways[k].rule, p, m, &t).step,
               two = zb_judge(ways[k].twice, p, 2 * m, &t).step;
        check_cost(run, cost_name(&id, "equal.step.%s", ways[k].draw),
                   cost_name(&name, "equal stages, %s: step", ways[k].name), "ps", NOT_PREDICTED,
                   played(step), seen[k].one.timing.step);
        stack_check_bubble(run, ways[k].draw, cost_name(&name, "equal stages, %s", ways[k].name),
                           stack, m, NOT_PREDICTED, played(step), &seen[k].one.timing);
        check_cost(run, cost_name(&id, "equal.next.%s", ways[k].draw),
                   cost_name(&name, "equal stages, %s: the next step, no barrier", ways[k].name),
                   "ps", NOT_PREDICTED, played((double)two - (double)step),
                   (double)seen[k].two - (double)seen[k].one.timing.step);
    }
}

static void table(Run *run, const ZeroBubbleWay *ways, const Stack *stack, size_t m) {
    const OpTimes units = { 1, 1, 1, 0 }, t = zb_times(stack);
    static const struct { const char *what, *id; bool time;
    } row[] = { { "step", "equal.step.%s", true },
                { "  idle", "idle.%s", true },
                { "next step, no barrier", "equal.next.%s", true },
                { "in flight, until W", "equal.flight.%s", false },
                { "activations, peak", "equal.activations.%s", false },
                { "messages sent", "equal.sent.%s", false } };
    enum { ROWS = sizeof row / sizeof *row };
    char cell[ROWS][ZB_WAYS][80], plain[ZB_WAYS][16];
    Result rows[ROWS + 2] = { {0} };
    const char *columns[ZB_WAYS + 1] = { NULL };
    size_t n = 0;
    for (size_t k = 0; k < ZB_WAYS; k++) {
        columns[k] = ways[k].name;
        snprintf(plain[k], sizeof plain[k], "=%zu",
                 zb_judge(ways[k].units, run->world->size, m, &units).step);
    }
    for (size_t r = 0; r < ROWS; r++) {
        if (row[r].time && !clock_config()->simulated) continue;  // no cost is a time in real time
        rows[n] = (Result){ .what = row[r].what };
        for (size_t k = 0; k < ZB_WAYS; k++) {
            snprintf(cell[n][k], sizeof cell[n][k], row[r].id, ways[k].draw);
            rows[n].cell[k] = cell[n][k];
        }
        n++;
    }
    rows[n] =
        (Result){ .what = "F = B = W: step", .cell = { plain[0], plain[1], plain[2], plain[3] } };
    results(run, columns, rows);
    say(run, "  Without messages: 1F1B (m+p-1)(F+B+W), ZB-H1 m(F+B+W) + (p-1)(F+B-W), m >= p. A "
             "stage of");
    say(run,
        "  two blocks has F, B, W = %.3g, %.3g, %.3g us, m(F+B+W) = %.3g ms; message %.3g us. p, "
        "2p-1: cap.",
        (double)t.forward / 1e6, (double)t.backward_inputs / 1e6, (double)t.backward_weights / 1e6,
        (double)(m * (t.forward + t.backward_inputs + t.backward_weights)) / 1e9,
        (double)t.message / 1e6);
}

static void measure(Run *run, const Stack *stack) {
    ZeroBubbleStep seen[ZB_WAYS];
    for (size_t k = 0; k < ZB_WAYS; k++) {
        char title[64];
        comm_ledger_reset(run->world);
        Played one = play_rule(run, stack, ways[k].rule, MICRO);
        seen[k] = (ZeroBubbleStep){ .one = one, .messages = run->world->ledger[COMM_SEND].calls };
        snprintf(title, sizeof title, "%s, m = %d", ways[k].name, MICRO);
        bool strips =
            option_flag(run, "verbose") || option_text(run, "svg") || option_text(run, "trace");
        picture_show(run, title,
                     (k == 1 ? 0 : PICTURE_DETAIL) | (k ? PICTURE_SAME_SCALE : 0) |
                         (strips ? PICTURE_MEMORY : 0) |
                         (strcmp(option_text(run, "draw"), ways[k].draw) ? PICTURE_NO_FILES : 0));
        same_order(run, ways[k].name, ways[k].rule);
        seen[k].two = play_rule(run, stack, ways[k].twice, 2 * MICRO).timing.step;
    }
    equal_costs(run, stack, MICRO, ways, seen);
    table(run, ways, stack, MICRO);
}

// ---------------------------------------------------------- training, on stages of unequal size

static StepResult zero_bubble_step(PipelineRank *rank, Model *m, Optimizer *o, const Batch *batch,
                                   size_t micro_batches) {
    Schedule list = rank->schedule(rank->pp->size, micro_batches, rank->pp->rank);
    model_zero_gradients(m);
    PipelineResult r = zero_bubble_run(rank->pp, m, &list, batch, micro_batches);
    schedule_free(&list);
    return pipeline_update(rank, m, o, batch, r);
}

static void training_costs(Run *run, const Training *t, const ZeroBubbleWay *way,
                           const StageCosts *seen) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches;
    Schedule list = way->rule(p, m, i);
    CostName id, name;
    say_detail(run, "%s:", way->name);
    stage_check_costs(run, t, way->draw, seen);            // messages, sums, state: as with 1F1B
    check_cost(run, cost_name(&id, "%s.flight", way->draw),
               cost_name(&name, "%s: in flight until W", way->name), "micro-batches",
               flight_formula(way, p, m, i), played(list_in_flight(&list)), seen->in_flight);
    check_cost(run, cost_name(&id, "%s.activations", way->draw),
               cost_name(&name, "%s: activations, peak", way->name), "bytes", NOT_PREDICTED,
               played(zb_peak(t, &list, p, i)), seen->activations);
    check_cost(run, cost_name(&id, "%s.buffers", way->draw),
               cost_name(&name, "%s: message buffers, peak", way->name), "bytes",
               formula(stage_message_buffers(t, p, i)), NOT_PREDICTED, seen->message_buffers);
    schedule_free(&list);
}

static void zero_bubble(Run *run) {
    Training t = stages_training(run, &sizes, SEQUENCES);
    t.clip = clip;
    check_halves(run);
    lists(run);
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        Trajectory want = training_unsplit(run, &t, 1);
        for (size_t k = 1; k < ZB_WAYS; k++) {
            Trajectory got = trajectory_new(run, &t);
            StageCosts seen = stages_train(run, &t, NULL, zero_bubble_step, ways[k].rule, &got);
            char what[48];
            snprintf(what, sizeof what, "%s = accumulation", ways[k].name);
            training_compare(run, what, &got, &want, 0);
            check_true(run, "clipping", "is at work in every step", trajectory_clipped(&got, clip));
            if (i) training_costs(run, &t, &ways[k], &seen);
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
    { "draw", "1f1b|zb-h1|auto-p|auto-2p-1", "zb-h1",
      "the schedule whose picture --svg and --trace write" },
    {0},
};
EXPERIMENT(zero_bubble, options);
