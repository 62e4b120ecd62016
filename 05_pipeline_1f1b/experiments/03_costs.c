// 03_costs.c: what 03_interleaved predicts, from sizes alone; see costs.h. Part j of v p is chunk j / p of stage j % p.
#include "05_pipeline_1f1b/experiments/costs.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include <stdio.h>
#include <stdlib.h>

// Most chunks between their forward and their backward, as published: Megatron's order, and 1F1B's.
static size_t in_flight(size_t p, size_t m, size_t v, size_t i) {
    size_t most = v == 1 ? p - i : 2 * (p - 1 - i) + (v - 1) * p + 1;
    return most < m * v ? most : m * v;
}

static size_t step_of_lists(size_t p, size_t m, size_t v, size_t t_f, size_t t_b, size_t message) {
    Schedule *stage = host_alloc(p * sizeof *stage);
    for (size_t i = 0; i < p; i++) stage[i] = schedule_interleaved(p, m, v, i);
    Timeline t = timeline_with_link(stage, p, m, t_f, t_b, message);           // t_f, t_b: of a chunk
    size_t end = t.stuck ? SIZE_MAX : t.end;
    timeline_free(&t);
    schedule_all_free(stage, p);
    return end;
}

void interleaved_list_checks(Run *run, size_t p, size_t m, size_t v) {
    size_t T_F = v, T_B = 2 * v;                           // of a stage: a chunk takes 1 and 2 units
    double units = (double)step_of_lists(p, m, v, T_F / v, T_B / v, 0);
    double want = (double)m * (double)(T_F + T_B) + (double)((p - 1) * (T_F + T_B)) / (double)v;
    check_numbers(run, "op lists = formula", "(m+(p-1)/v)(t_f+t_b)", &units, &want, 1, 0);
}

// ---------------------------------------------------------------- equal stages

static const char *column_of(size_t v) { return v == 1 ? "1F1B" : "interleaved"; }

static void equal_cost(Run *run, const Stack *stack, size_t v, size_t m, const EqualStep *seen) {
    size_t p = run->world->size, i = run->world->rank, flight = in_flight(p, m, v, i), bytes = 0, most = 0;
    char name[80];
#define LINE(what) (snprintf(name, sizeof name, "equal stages: %s, %s", what, column_of(v)), name)
    cost(run, LINE("in flight"), "chunks", flight, seen->in_flight);
    Stack part = *stack;
    part.blocks /= v;
    Schedule list = schedule_interleaved(p, m, v, i);      // which chunks are in flight at once, says the list
    for (size_t n = 0; n < list.n; n++) {
        size_t kept = stack_kept(&part, v * p, list.ops[n].chunk * p + i);
        bytes = list.ops[n].what == FORWARD ? bytes + kept : bytes - kept;
        if (bytes > most) most = bytes;
    }
    schedule_free(&list);
    cost(run, LINE("activations, peak"), "bytes", most, seen->activations);
    // y of every chunk but the last part's, dx of every chunk but the first part's.
    size_t messages = p == 1 ? 0 : m * (v - (i + 1 == p)) + m * (v - (i == 0));
    cost(run, LINE("messages sent"), "calls", messages, seen->messages);
    if (!clock_config()->simulated) return;                // real time differs from run to run
    StackTimes d = stack_times(&part);
    size_t step = step_of_lists(p, m, v, d.forward, d.backward, d.message);
    if (d.message == 0) step = (m * v + p - 1) * (d.forward + d.backward);         // (m + (p-1)/v)(t_f + t_b)
    cost(run, LINE("step"), "ps", step, seen->timing.step);
    snprintf(name, sizeof name, "equal stages, %s", column_of(v));
    stack_bubble_costs(run, name, stack, m, step, &seen->timing);
#undef LINE
}

void interleaved_equal_costs(Run *run, const Stack *stack, size_t m, const EqualStep *one, const EqualStep *seen) {
    equal_cost(run, stack, 1, m, one);
    if (stack->chunks > 1) equal_cost(run, stack, stack->chunks, m, seen);
}

// ---------------------------------------------------------------- training: parts and micro-batches of unequal size

static CutSizes part_sizes(const ModelConfig *c, size_t p, size_t v, size_t i, size_t chunk) {
    return stage_sizes(c, v * p, chunk * p + i);
}

void interleaved_costs(Run *run, const Training *t, size_t v, const StageCosts *seen, const StageCosts *loop) {
    const ModelConfig *c = &t->model;
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, E = sizeof(real);
    size_t forwards = p == 1 ? 0 : v - (i + 1 == p), backwards = p == 1 ? 0 : v - (i == 0);    // messages of each
    size_t message = t->sequences * c->context * c->width * E;                     // of all micro-batches together
    cost(run, "messages sent", "calls", m * (forwards + backwards), seen->messages);
    cost(run, "messages sent", "bytes", (forwards + backwards) * message, seen->message_bytes);
    double all = seen->messages;
    ledger_pause();
    comm_all_reduce_doubles(run->world, &all, 1);
    ledger_resume();
    cost(run, "messages of all ranks: 2m(pv-1)", "calls", p == 1 ? 0 : 2 * m * (p * v - 1), all);
    cost(run, "in flight: min(2(p-1-i)+(v-1)p+1, mv)", "chunks", in_flight(p, m, v, i), seen->in_flight);

    size_t held = 0, most = 0, sent = 0, buffers = 0;
    Schedule list = schedule_interleaved(p, m, v, i);
    for (size_t n = 0; n < list.n; n++) {
        PipeOp op = list.ops[n];
        bool forward = op.what == FORWARD;
        size_t part = op.chunk * p + i, tokens = stage_tokens(t, op.micro_batch);
        CutSizes z = part_sizes(c, p, v, i, op.chunk);
        size_t kept = kept_stage(&z) * tokens * E, one = tokens * c->width * E;
        held = forward ? held + kept : held - kept;
        if (held > most) most = held;
        // The loop of the lesson: all that it has sent so far, and one that it receives.
        bool receives = forward ? part > 0 : part + 1 < v * p, sends = forward ? part + 1 < v * p : part > 0;
        sent += sends * one;
        if (sent + receives * one > buffers) buffers = sent + receives * one;
    }
    schedule_free(&list);
    cost(run, "activations, peak", "bytes", most, seen->activations);
    cost(run, "own loop: in flight", "chunks", in_flight(p, m, v, i), loop->in_flight);
    cost(run, "own loop: activations, peak", "bytes", most, loop->activations);
    cost(run, "own loop: buffers, peak", "bytes", buffers, loop->message_buffers);
    // The executor: to each side two messages on their way out; one expected from each neighbour. Of two stages both
    // neighbours are one.
    size_t largest = stage_tokens(t, 0) * c->width * E, two = m * v < 2 ? 1 : 2;
    size_t neighbours = p > 2 && v > 1 ? 2 : p == 1 ? 0 : v > 1 ? 1 : (i > 0) + (i + 1 < p);
    cost(run, "message buffers, peak", "bytes", ((forwards > 0) + (backwards > 0)) * two * largest +
         neighbours * largest, seen->message_buffers);

    size_t mine = 0, gradients = 0;
    for (size_t chunk = 0; chunk < v; chunk++) {
        CutSizes z = part_sizes(c, p, v, i, chunk);
        mine += elements_stage(&z);
        gradients += elements_gradients(&z);
    }
    cost(run, "parameters of my chunks", "bytes", mine * E, seen->parameters);
    cost(run, "gradients of my chunks", "bytes", gradients * E, seen->gradients);
    cost(run, "optimizer state of my chunks", "bytes", (t->optimizer.kind == ADAMW) * 2 * mine * E, seen->optimizer);
    CutSizes z = cut_sizes(c, 1, 0);
    bool shares = p > 1 && (i == 0 || i + 1 == p);
    double tied = ring_bytes(ALL_REDUCE_PASSES, 2, elements_wte(&z), E);
    cost(run, "tied sum of wte", "bytes", shares ? tied : 0, seen->tied_bytes);
}

// ---------------------------------------------------------------- scatter/gather

void interleaved_scatter_costs(Run *run, size_t count, bool in, size_t t, size_t stage, const Comm *pp,
                               const Comm *tp) {
    size_t E = sizeof(real);
    bool sends = in && stage == 0, gathers = in && stage == 1;
    cost(run, "scatter/gather: bytes between stages", "bytes", sends ? part_size(count, t, tp->rank) * E : 0,
         pp->ledger[COMM_SEND].bytes);
    cost(run, "scatter/gather: bytes inside a stage", "bytes", gathers ? ring_bytes(ONE_PASS, t, count, E) : 0,
         tp->ledger[COMM_ALL_GATHER].bytes);
    double all = (double)pp->ledger[COMM_SEND].bytes;
    ledger_pause();
    comm_all_reduce_doubles(run->world, &all, 1);
    ledger_resume();
    cost(run, "scatter/gather: bytes between stages, all ranks", "bytes", t ? count * E : 0, all);
}

// ---------------------------------------------------------------- the table of the page

// By lists: the steps of one chunk and of v, where a message takes share * t_f. Do v chunks win?
static bool row(Run *run, char cell[2][40], const Stack *stack, size_t m, double share) {
    size_t p = run->world->size, v[2] = { 1, stack->chunks }, step[2];
    Picoseconds t_f = stack_times(stack).forward, message = (Picoseconds)((double)t_f * share);
    for (size_t k = 0; k < 2; k++) {
        step[k] = step_of_lists(p, m, v[k], t_f / v[k], 2 * t_f / v[k], message);
        cell[k][0] = '=';
        page_value(cell[k] + 1, 39, (double)step[k], "ps");
    }
    return step[1] < step[0];
}

void interleaved_table(Run *run, const Stack *stack, size_t m) {
    size_t v = stack->chunks;
    char name[32], cell[3][2][40];
    static const double share[] = { 0, 0.5, 4 };
    if (v == 1) return;                                    // nothing to compare
    bool wins[3];
    for (size_t k = 0; k < 3; k++) wins[k] = row(run, cell[k], stack, m, share[k]);
    check_true(run, "both sides of the trade", "without message times v chunks are faster", wins[0]);
    check_true(run, "both sides of the trade", "where a message takes 4 t_f they are slower", !wins[2]);
    snprintf(name, sizeof name, "v = %zu", v);
    const char *const columns[] = { "1F1B", name, NULL };
    const Result rows[] = {
        { "step", "(m+(p-1)/v)(t_f+t_b), and messages",
          { "equal stages: step, 1F1B", "equal stages: step, interleaved" } },
        { "idle, of the step", "(p-1)/(vm+p-1), and messages",
          { "equal stages, 1F1B: bubble / step", "equal stages, interleaved: bubble / step" } },
        { "chunks in flight", "p-i; min(2(p-1-i)+(v-1)p+1, mv)",
          { "equal stages: in flight, 1F1B", "equal stages: in flight, interleaved" } },
        { "activations, peak of a rank", "kept per chunk x in flight",
          { "equal stages: activations, peak, 1F1B", "equal stages: activations, peak, interleaved" } },
        { "messages sent by a rank", "v m each side; ends: v m and (v-1) m",
          { "equal stages: messages sent, 1F1B", "equal stages: messages sent, interleaved" } },
        { "step, a message takes 0", "the lists, played", { cell[0][0], cell[0][1] } },
        { "step, it takes t_f / 2", "the same", { cell[1][0], cell[1][1] } },
        { "step, it takes 4 t_f", "the same: the links set the pace", { cell[2][0], cell[2][1] } }, {0} };
    results(run, columns, clock_config()->simulated ? rows : rows + 2);
}
