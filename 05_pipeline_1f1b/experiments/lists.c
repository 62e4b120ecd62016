// lists.c: computes times and memory of op lists from sizes alone, and prints lists.
// B, W: the two halves of a backward, of inputs and of weights.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Schedule schedule_repeated(Schedule one, size_t m, size_t steps, bool updates) {
    Schedule all = { 0 };
    for (size_t step = 0; step < steps; step++) {
        for (size_t e = 0; e < one.n; e++) {
            PipeOp op = one.ops[e];
            op.micro_batch += step * m;
            op.version = updates ? step : 0;
            schedule_add_op(&all, op);
        }
        if (updates) schedule_add(&all, UPDATE, step);
    }
    schedule_free(&one);
    return all;
}

// A forward has products y = x w. For each such product the first half of the backward has the
// product for dx, and the second half the product for dw. The attention's two products have no
// weights, so all products of their backwards are in the first half.
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
        PipeWhat what = s->ops[n].what;
        if (what == FORWARD) now++;
        else if ((what == BACKWARD || what == BACKWARD_WEIGHTS) && now)
            now--; // W is the last op that reads x, so a micro-batch is in flight until W
        if (now > most) most = now;
    }
    return most;
}

const char *flight_cell(Run *run, const Schedule *stage, size_t p) {
    const char *all = "=";
    size_t least = SIZE_MAX, most = 0;
    for (size_t i = 0; i < p; i++) {
        size_t n = list_in_flight(&stage[i]);
        if (n < least) least = n;
        if (n > most) most = n;
        all = page_text(run, "%s%s%zu", all, i ? " " : "", n);
    }
    if (p <= 4) return all;
    return least == most ? page_text(run, "=%zu", most) : page_text(run, "=%zu..%zu", least, most);
}

static const char *trimmed(char *row) {
    size_t n = strlen(row);
    while (n && row[n - 1] == ' ') n--;
    row[n] = 0;
    return row;
}

void say_versions(Run *run, const Schedule *s, size_t ops) {
    enum { WIDTH = 84 };
    size_t cell = 3; // the columns of an op and the space after it
    if (ops > s->n) ops = s->n;
    for (size_t n = 0; n < ops; n++)
        if (s->ops[n].micro_batch >= 10) cell = 4;
    size_t lo = ops > WIDTH / cell ? ops - WIDTH / cell : 0;
    char op[WIDTH + 24] = "", version[WIDTH + 24] = ""; // a cell may have a number of 20 digits
    for (size_t n = lo; n < ops; n++) {
        const PipeOp *own = &s->ops[n];
        size_t column = (n - lo) * cell;
        snprintf(op + column, 24, "%c%-*zu", "FBIWU"[own->what], (int)cell - 1, own->micro_batch);
        if (own->what == UPDATE) snprintf(version + column, 24, "%*s", (int)cell, "");
        else snprintf(version + column, 24, "%-*zu", (int)cell, own->version);
    }
    say(run, "  op       %s%s", lo ? "... " : "", trimmed(op));
    say(run, "  version  %s%s", lo ? "    " : "", trimmed(version));
}

// ---------------------------------------------------------------- memory

size_t stack_peak(const Stack *stack, const Schedule *list, size_t p, size_t i) {
    size_t v = stack->chunks ? stack->chunks : 1, now = 0, most = 0;
    CutSizes z = cut_sizes(&stack->model, 1, 0);
    Stack part = *stack;
    part.blocks /= v;
    // In B a block copies the tensors that W reads. Then the block frees the tensors that its
    // forward kept.
    size_t copied = deferred_block_bytes(&z, stack->sequences);
    size_t freed = kept_block_bytes(&z) * stack->sequences * stack->model.context;
    for (size_t n = 0; n < list->n; n++) {
        PipeOp op = list->ops[n];
        // the bytes that a forward of this chunk keeps for its backward
        size_t kept = stack_kept(&part, v * p, op.chunk * p + i);
        switch (op.what) {
        case FORWARD: now += kept; break;
        case BACKWARD: now -= kept; break;
        case BACKWARD_INPUTS:
            for (size_t block = 0; block < part.blocks; block++) {
                now += copied;
                if (now > most) most = now;
                now -= freed;
            }
            break;
        case BACKWARD_WEIGHTS: now -= kept + part.blocks * copied - part.blocks * freed; break;
        case UPDATE: break;
        }
        if (now > most) most = now;
    }
    return most;
}
