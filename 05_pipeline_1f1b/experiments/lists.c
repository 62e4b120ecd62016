// lists.c: times and memory of op lists, from sizes alone (experiments.h). F, B, W: the times of a
// forward and of the two halves of a backward, of inputs and of weights.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdlib.h>

Picoseconds lists_makespan(Schedule *stage, size_t p, size_t m, const OpTimes *times) {
    Timeline t = timeline_with_times(stage, p, m, times);
    Picoseconds end = t.stuck ? UINT64_MAX : t.end;
    timeline_free(&t);
    schedule_all_free(stage, p);
    return end;
}
Picoseconds interleaved_makespan(size_t p, size_t m, size_t v, size_t t_f, size_t t_b,
                                 size_t message) {
    Schedule *stage = host_alloc(p * sizeof *stage);
    for (size_t i = 0; i < p; i++) stage[i] = schedule_interleaved(p, m, v, i);
    return lists_makespan(stage, p, m, &(OpTimes){ t_f, t_b, 0, message });
}
Picoseconds stack_makespan(const Stack *stack, ListOf *list, size_t p, size_t n) {
    StackTimes d = stack_times(stack);
    return lists_makespan(schedule_all(list, p, n), p, n,
                          &(OpTimes){ d.forward, d.backward, 0, d.message });
}

Schedule schedule_flushed(size_t p, size_t m, size_t i, size_t times) {
    Schedule all = { 0 }, one = schedule_1f1b(p, m, i);
    for (size_t step = 0; step < times; step++) {
        for (size_t e = 0; e < one.n; e++) {
            PipeOp op = one.ops[e];
            op.micro_batch += step * m;
            op.version = step;
            schedule_add_op(&all, op);
        }
        schedule_add(&all, UPDATE, step);
    }
    schedule_free(&one);
    return all;
}

Schedule schedule_stashing(size_t p, size_t n, size_t i) {
    return schedule_pipedream(WEIGHT_STASHING, p, n, i);
}

// For each product y = x W of a forward, B has the product for dx and W the product for dW. The
// attention's two products have no weights, so both of their backward's products are in B.
OpTimes zb_times(const Stack *s) {
    CutSizes z = cut_sizes(&s->model, 1, 0);
    double forward = work_block(&z, s->sequences).time,
           scores = 2 * work_scores(&z, s->sequences).time;
    return (OpTimes){ .forward = (size_t)(s->blocks * forward),
                      .backward_inputs = (size_t)(s->blocks * (forward + scores)),
                      .backward_weights = (size_t)(s->blocks * (forward - scores)),
                      .message = stage_message_time(&s->model, s->sequences) };
}

size_t list_in_flight(const Schedule *s) {
    size_t now = 0, most = 0;
    for (size_t n = 0; n < s->n; n++) {
        if (s->ops[n].what == FORWARD) now++;
        else if (s->ops[n].what != BACKWARD_INPUTS && now) now--; // until W, the last reader
        if (now > most) most = now;
    }
    return most;
}

// ---------------------------------------------------------------- memory

// Elements per token that a micro-batch keeps on a stage. forward: after its forward. inputs: after
// B. highest: the most during B. B copies the items that W will read, and frees the rest layer by
// layer.
typedef struct {
    size_t forward, highest, inputs;
} Kept;

static Kept kept_of(const CutSizes *z, size_t blocks, bool head, bool embedding,
                    size_t after_forward) {
    Kept k = { .forward = after_forward, .inputs = after_forward, .highest = after_forward };
    if (head) {
        k.inputs -= 1; // the loss: its sums
        k.inputs += deferred_head(z, 1) / z->T;
        k.highest = k.inputs;
        // its norm's output and statistics; W still reads the logits
        k.inputs -= z->C + z->statistics;
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

// Most bytes on a stage that works down this list. tokens[k]: the tokens of micro-batch k.
static size_t peak(const Schedule *s, Kept kept, const size_t *tokens) {
    size_t now = 0, most = 0;
    for (size_t n = 0; n < s->n; n++) {
        size_t M = tokens[s->ops[n].micro_batch], high = now;
        switch (s->ops[n].what) {
        case FORWARD:
            now += M * kept.forward;
            high = now;
            break;
        case BACKWARD: now -= M * kept.forward; break;
        case BACKWARD_INPUTS:
            high = now - M * kept.forward + M * kept.highest;
            now = now - M * kept.forward + M * kept.inputs;
            break;
        case BACKWARD_WEIGHTS: now -= M * kept.inputs; break;
        case UPDATE: break;
        }
        if (high > most) most = high;
    }
    return most * sizeof(real);
}

size_t zb_peak(const Training *t, const Schedule *list, size_t p, size_t i) {
    size_t *tokens = host_alloc(t->micro_batches * sizeof *tokens);
    CutSizes z = stage_sizes(&t->model, p, i);
    for (size_t k = 0; k < t->micro_batches; k++) tokens[k] = stage_tokens(t, k);
    size_t most = peak(list, kept_of(&z, z.blocks, z.last, z.first, kept_stage(&z)), tokens);
    free(tokens);
    return most;
}

// The chunks of a stage may keep different amounts. They have whole backwards.
static size_t chunked_peak(const Stack *stack, const Schedule *list, size_t p, size_t i) {
    size_t v = stack->chunks, now = 0, most = 0;
    Stack part = *stack;
    part.blocks /= v;
    for (size_t n = 0; n < list->n; n++) {
        PipeOp op = list->ops[n];
        size_t kept = stack_kept(&part, v * p, op.chunk * p + i);
        if (op.what == FORWARD) now += kept;
        if (op.what == BACKWARD) now -= kept;
        if (now > most) most = now;
    }
    return most;
}

size_t stack_peak(const Stack *stack, const Schedule *list, size_t p, size_t i) {
    if (stack->chunks > 1) return chunked_peak(stack, list, p, i);
    size_t M = stack->sequences * stack->model.context,
           *tokens = host_alloc(list->n * sizeof *tokens);
    CutSizes z = cut_sizes(&stack->model, 1, 0);
    for (size_t k = 0; k < list->n; k++) tokens[k] = M;
    Kept kept =
        kept_of(&z, stack->blocks, false, false, stack_kept(stack, p, i) / (M * sizeof(real)));
    size_t most = peak(list, kept, tokens);
    free(tokens);
    return most;
}
