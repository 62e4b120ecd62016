// 06_costs.c: see 06_costs.h. F, B, W: the times of a forward, and of the two halves of a backward.
#include "05_pipeline_1f1b/experiments/06_costs.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include <stdio.h>
#include <stdlib.h>

// ---------------------------------------------------------------- times, and lists

// Every product y = x W of a forward has one for dx in B and one for dW in W. The scores q k^T, and what the heads mix,
// have no weights: both of their backward's products are in B.
OpTimes zb_times(const Stack *s) {
    CutSizes z = cut_sizes(&s->model, 1, 0);
    double forward = work_block(&z, s->sequences).time, scores = 2 * work_scores(&z, s->sequences).time;
    return (OpTimes){ .forward = (size_t)(s->blocks * forward),
                      .backward_inputs = (size_t)(s->blocks * (forward + scores)),
                      .backward_weights = (size_t)(s->blocks * (forward - scores)),
                      .message = stage_message_time(&s->model, s->sequences) };
}

static size_t in_flight(const Schedule *s) {
    size_t now = 0, most = 0;
    for (size_t n = 0; n < s->n; n++) {
        if (s->ops[n].what == FORWARD) now++;
        else if (s->ops[n].what != BACKWARD_INPUTS) now--;
        if (now > most) most = now;
    }
    return most;
}

JudgedLists zb_judge(ScheduleRule rule, size_t p, size_t m, const OpTimes *times) {
    Schedule *stage = schedule_all(rule, p, m);
    Timeline t = timeline_with_times(stage, p, m, times);
    JudgedLists j = { .step = t.stuck ? SIZE_MAX : t.end, .legal = !t.stuck };
    for (size_t i = 0; i < p; i++) {
        size_t next[UPDATE] = {0}, mine = in_flight(&stage[i]);
        for (size_t n = 0; n < stage[i].n; n++) {
            PipeOp op = stage[i].ops[n];
            j.legal &= op.micro_batch == next[op.what]++;
        }
        j.legal &= next[FORWARD] == m && next[BACKWARD_INPUTS] == m && next[BACKWARD_WEIGHTS] == m;
        if (mine > j.in_flight) j.in_flight = mine;
    }
    timeline_free(&t);
    schedule_all_free(stage, p);
    return j;
}

// ---------------------------------------------------------------- memory

// Elements per token that a micro-batch keeps on a stage: after its forward; after B; and the most while B runs, which
// copies what W will read and frees the rest layer by layer.
typedef struct { size_t forward, highest, inputs; } Kept;

static Kept kept_of(const CutSizes *z, size_t blocks, bool head, bool embedding, size_t after_forward) {
    Kept k = { .forward = after_forward, .inputs = after_forward, .highest = after_forward };
    if (head) {
        k.inputs -= 1;                                     // the loss: its sums
        k.inputs += deferred_head(z, 1) / z->T;
        k.highest = k.inputs;
        k.inputs -= z->C + 2;                              // its norm's output and statistics; W still reads the logits
    }
    for (size_t n = 0; n < blocks; n++) {
        k.inputs += deferred_block(z, 1) / z->T;
        if (k.inputs > k.highest) k.highest = k.inputs;
        k.inputs -= kept_block(z);
    }
    if (embedding) k.inputs += z->C;
    if (k.inputs > k.highest) k.highest = k.inputs;
    return k;
}

// Most bytes on a stage that works down this list. tokens[k]: of micro-batch k.
static size_t peak(const Schedule *s, Kept kept, const size_t *tokens) {
    size_t now = 0, most = 0;
    for (size_t n = 0; n < s->n; n++) {
        size_t M = tokens[s->ops[n].micro_batch], high = now;
        switch (s->ops[n].what) {
        case FORWARD: high = now += M * kept.forward; break;
        case BACKWARD: now -= M * kept.forward; break;
        case BACKWARD_INPUTS: high = now - M * kept.forward + M * kept.highest;
                              now = now - M * kept.forward + M * kept.inputs; break;
        case BACKWARD_WEIGHTS: now -= M * kept.inputs; break;
        case UPDATE: break;
        }
        if (high > most) most = high;
    }
    return most * sizeof(real);
}

// ---------------------------------------------------------------- the cost lines

// The rules of 1F1B and ZB-H1 say it; of an automatic list only the list.
static size_t predicted_in_flight(const ZeroBubbleWay *way, const Schedule *list, size_t p, size_t m, size_t i) {
    size_t most = way->rule == schedule_1f1b ? p - i : p;
    if (way->rule != schedule_1f1b && way->rule != schedule_zb_h1) return in_flight(list);
    return most < m ? most : m;
}

void zb_costs(Run *run, const Training *t, const ZeroBubbleWay *way, const StageCosts *seen) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches;
    CutSizes z = stage_sizes(&t->model, p, i);
    Schedule list = way->rule(p, m, i);
    size_t *tokens = host_alloc(m * sizeof *tokens);
    char line[64];
    for (size_t k = 0; k < m; k++) tokens[k] = stage_tokens(t, k);
    say_detail(run, "%s:", way->name);
    stage_cost_lines(run, t, seen);                        // messages, sums, state: as with 1F1B
    snprintf(line, sizeof line, "%s: in flight until W", way->name);
    cost(run, line, "micro-batches", predicted_in_flight(way, &list, p, m, i), seen->in_flight);
    snprintf(line, sizeof line, "%s: activations, peak", way->name);
    cost(run, line, "bytes", peak(&list, kept_of(&z, z.blocks, z.last, z.first, kept_stage(&z)), tokens),
         seen->activations);
    snprintf(line, sizeof line, "%s: message buffers, peak", way->name);
    cost(run, line, "bytes", stage_message_buffers(t, p, i), seen->message_buffers);
    free(tokens);
    schedule_free(&list);
}

size_t zb_stack_peak(const Stack *stack, const Schedule *list, size_t p, size_t i) {
    size_t M = stack->sequences * stack->model.context, *tokens = host_alloc(list->n * sizeof *tokens);
    CutSizes z = cut_sizes(&stack->model, 1, 0);
    for (size_t k = 0; k < list->n; k++) tokens[k] = M;
    size_t most = peak(list, kept_of(&z, stack->blocks, false, false, stack_kept(stack, p, i) / (M * sizeof(real))),
                       tokens);
    free(tokens);
    return most;
}

void zb_equal_costs(Run *run, const Stack *stack, size_t m, const ZeroBubbleWay *ways, const ZeroBubbleStep *seen) {
    size_t p = run->world->size, i = run->world->rank;
    OpTimes t = zb_times(stack);
    for (size_t k = 0; k < ZB_WAYS; k++) {
        char line[96];
        Schedule list = ways[k].rule(p, m, i);
        snprintf(line, sizeof line, "equal stages, %s: in flight", ways[k].name);
        cost(run, line, "micro-batches", predicted_in_flight(&ways[k], &list, p, m, i),
             seen[k].one.result.in_flight);
        snprintf(line, sizeof line, "equal stages, %s: activations, peak", ways[k].name);
        cost(run, line, "bytes", zb_stack_peak(stack, &list, p, i), seen[k].one.activations);
        snprintf(line, sizeof line, "equal stages, %s: messages sent", ways[k].name);
        cost(run, line, "calls", m * ((i + 1 < p) + (i > 0)), seen[k].messages);
        schedule_free(&list);
        if (!clock_config()->simulated) continue;          // real time differs from run to run
        size_t step = zb_judge(ways[k].rule, p, m, &t).step, two = zb_judge(ways[k].twice, p, 2 * m, &t).step;
        snprintf(line, sizeof line, "equal stages, %s: step", ways[k].name);
        cost(run, line, "ps", step, seen[k].one.timing.step);
        snprintf(line, sizeof line, "equal stages, %s", ways[k].name);
        stack_bubble_costs(run, line, stack, m, step, &seen[k].one.timing);
        snprintf(line, sizeof line, "equal stages, %s: the next step, no barrier", ways[k].name);
        cost(run, line, "ps", (double)two - (double)step, (double)seen[k].two - (double)seen[k].one.timing.step);
    }
}

void zb_table(Run *run, const ZeroBubbleWay *ways, const Stack *stack, size_t m) {
    const OpTimes units = { 1, 1, 1, 0 }, t = zb_times(stack);
    static const struct { const char *what, *line; bool time; } row[] = {
        { "step", "step", true }, { "  idle", "bubble / step", true },
        { "next step, no barrier", "the next step, no barrier", true },
        { "in flight, until W", "in flight", false }, { "activations, peak", "activations, peak", false },
        { "messages sent", "messages sent", false } };
    enum { ROWS = sizeof row / sizeof *row };
    char cell[ROWS][ZB_WAYS][80], plain[ZB_WAYS][16];
    Result rows[ROWS + 2] = { {0} };
    const char *columns[ZB_WAYS + 1] = { NULL };
    size_t n = 0;
    for (size_t k = 0; k < ZB_WAYS; k++) {
        columns[k] = ways[k].name;
        snprintf(plain[k], sizeof plain[k], "=%zu", zb_judge(ways[k].units, run->world->size, m, &units).step);
    }
    for (size_t r = 0; r < ROWS; r++) {
        if (row[r].time && !clock_config()->simulated) continue;       // no cost is a time in real time
        rows[n] = (Result){ .what = row[r].what };
        for (size_t k = 0; k < ZB_WAYS; k++) {
            snprintf(cell[n][k], sizeof cell[n][k], "equal stages, %s: %s", ways[k].name, row[r].line);
            rows[n].cell[k] = cell[n][k];
        }
        n++;
    }
    rows[n] = (Result){ .what = "F = B = W: step", .cell = { plain[0], plain[1], plain[2], plain[3] } };
    results(run, columns, rows);
    say(run, "  Without messages: 1F1B (m+p-1)(F+B+W), ZB-H1 m(F+B+W) + (p-1)(F+B-W), m >= p. A stage of");
    say(run, "  two blocks has F, B, W = %.3g, %.3g, %.3g us, m(F+B+W) = %.3g ms; message %.3g us. p, 2p-1: cap.",
        (double)t.forward / 1e6, (double)t.backward_inputs / 1e6, (double)t.backward_weights / 1e6,
        (double)(m * (t.forward + t.backward_inputs + t.backward_weights)) / 1e9, (double)t.message / 1e6);
}
