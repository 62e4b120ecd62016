// 02_costs.c: what 02_1f1b predicts, from sizes alone; see costs.h.
#include "05_pipeline_1f1b/experiments/costs.h"
#include "04_pipeline_naive/experiments/stack.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"

void pipeline_1f1b_costs(Run *run, const Training *t, const StageCosts *seen, const StageCosts *gpipe) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, E = sizeof(real);
    size_t next = i + 1 < p, before = i > 0, kept = stage_kept(&t->model, p, i) * E;
    size_t flight = p - i < m ? p - i : m, held = 0, all = t->sequences * t->model.context;
    for (size_t k = 0; k < flight; k++) held += stage_tokens(t, k);               // the first ones are the largest
    stage_cost_lines(run, t, seen);                 // messages, sums, state: as with GPipe
    cost(run, "messages sent, GPipe", "bytes", (next + before) * all * t->model.width * E, gpipe->message_bytes);
    cost(run, "in flight, GPipe: m", "micro-batches", m, gpipe->in_flight);
    cost(run, "in flight, 1F1B: min(p-i, m)", "micro-batches", flight, seen->in_flight);
    cost(run, "activations, peak, GPipe", "bytes", kept * all, gpipe->activations);
    cost(run, "activations, peak, 1F1B", "bytes", kept * held, seen->activations);
    cost(run, "message buffers, peak, 1F1B", "bytes", stage_message_buffers(t, p, i), seen->message_buffers);
}

// Tokens of micro-batches k, k + 1, ..., before end.
static size_t tokens_of(const Training *t, size_t k, size_t end) {
    size_t n = 0;
    for (; k < end; k++) n += stage_tokens(t, k);
    return n;
}
static size_t max(size_t a, size_t b) { return a > b ? a : b; }

// The loop of the lesson has a buffer for each output that the next stage has not used yet, and at a time one for what
// it receives and one for the gradient that it sends. Most tokens in them, over all forwards and backwards of stage i.
static size_t buffered_tokens(const Training *t, size_t p, size_t i) {
    size_t m = t->micro_batches, flight = p - i < m ? p - i : m, most = 0;
    bool next = i + 1 < p, before = i > 0;
    for (size_t k = 0; k < m; k++) {
        size_t back = k < flight ? 0 : k + 1 - flight, ahead = k + flight < m ? k + flight : m;
        size_t sending = before && back > 0 ? stage_tokens(t, back - 1) : 0;
        most = max(most, next * tokens_of(t, back, k + 1) + before * stage_tokens(t, k) + sending);    // forward: y, x
        sending = before && k > 0 ? stage_tokens(t, k - 1) : 0;
        most = max(most, next * (tokens_of(t, k, ahead) + stage_tokens(t, k)) + sending);      // backward: y, dy
        most = max(most, next * (tokens_of(t, k + 1, ahead) + stage_tokens(t, k)) + before * stage_tokens(t, k));
    }
    return most;
}

void pipeline_1f1b_loop_costs(Run *run, const Training *t, const StageCosts *loop) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, flight = p - i < m ? p - i : m;
    stage_loop_lines(run, t, loop);
    cost(run, "own loops: in flight, min(p-i, m)", "micro-batches", flight, loop->in_flight);
    cost(run, "own loops: activations, peak", "bytes",
         stage_kept(&t->model, p, i) * tokens_of(t, 0, flight) * sizeof(real), loop->activations);
    cost(run, "own loops: buffers, peak", "bytes", buffered_tokens(t, p, i) * t->model.width * sizeof(real),
         loop->message_buffers);
    if (!clock_config()->simulated) return;                // real time differs from run to run
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    StackTimes d = stack_times(&stack);
    Played seen = stack_play_loop(run, &stack, pipeline_1f1b, m);
    cost(run, "own loops: equal stages, step", "ps",
         makespan_with_link(schedule_1f1b, p, m, d.forward, d.backward, d.message), seen.timing.step);
}

// ---------------------------------------------------------------- equal stages, and the table of the page

void pipeline_1f1b_equal_costs(Run *run, const Stack *stack, size_t m, const EqualStep *gpipe, const EqualStep *seen) {
    size_t p = run->world->size, i = run->world->rank, flight = p - i < m ? p - i : m;
    size_t one = stack_kept(stack, p, i);        // bytes of a micro-batch
    size_t neighbours = (i + 1 < p) + (i > 0);
    cost(run, "equal stages: in flight, GPipe", "micro-batches", m, gpipe->in_flight);
    cost(run, "equal stages: in flight, 1F1B", "micro-batches", flight, seen->in_flight);
    cost(run, "equal stages: activations, peak, GPipe", "bytes", m * one, gpipe->activations);
    cost(run, "equal stages: activations, peak, 1F1B", "bytes", flight * one, seen->activations);
    cost(run, "equal stages: messages sent, GPipe", "calls", m * neighbours, gpipe->messages);
    cost(run, "equal stages: messages sent, 1F1B", "calls", m * neighbours, seen->messages);
    if (!clock_config()->simulated) return;                    // real time differs from run to run
    StackTimes d = stack_times(stack);
    // Where messages take time, too, 1F1B's step has no short formula: the lists, played, say how long it is.
    Picoseconds all_then_all = makespan_with_link(schedule_gpipe, p, m, d.forward, d.backward, d.message);
    Picoseconds one_by_one = makespan_with_link(schedule_1f1b, p, m, d.forward, d.backward, d.message);
    cost(run, "equal stages: step, GPipe", "ps", all_then_all, gpipe->timing.step);
    cost(run, "equal stages: step, 1F1B", "ps", one_by_one, seen->timing.step);
    stack_bubble_costs(run, "equal stages, GPipe", stack, m, all_then_all, &gpipe->timing);
    stack_bubble_costs(run, "equal stages, 1F1B", stack, m, one_by_one, &seen->timing);
    Picoseconds said = seen->timing.exposed + seen->timing.hidden;
    cost(run, "equal stages, 1F1B: exposed and hidden, 2m(p-1) messages", "ps", 2 * m * (p - 1) * d.message, said);
    say_detail(run, "Exposed, per rank: GPipe %.1f us, 1F1B %.1f us", 1e-6 * (double)gpipe->timing.exposed / (double)p,
               1e-6 * (double)seen->timing.exposed / (double)p);
}

void pipeline_1f1b_table(Run *run) {
    static const char *const columns[] = { "GPipe", "1F1B", NULL };
    static const Result rows[] = {
        { "step", "(m+p-1)(t_f+t_b), and messages", { "equal stages: step, GPipe", "equal stages: step, 1F1B" } },
        { "idle, of the step", "(p-1)/(m+p-1), and messages",
          { "equal stages, GPipe: bubble / step", "equal stages, 1F1B: bubble / step" } },
        { "micro-batches in flight", "m; on stage i min(p-i, m)",
          { "equal stages: in flight, GPipe", "equal stages: in flight, 1F1B" } },
        { "activations, peak of a rank", "kept per micro-batch x in flight",
          { "equal stages: activations, peak, GPipe", "equal stages: activations, peak, 1F1B" } },
        { "messages sent by a rank", "m to each neighbour",
          { "equal stages: messages sent, GPipe", "equal stages: messages sent, 1F1B" } }, {0} };
    results(run, columns, clock_config()->simulated ? rows : rows + 2);        // no cost is a time in real time
}
