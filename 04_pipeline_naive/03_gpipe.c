// ranks: 4
// level: core
// question: How much less idle are the stages when a batch is cut into micro-batches, and what does that cost?
// vary: SEQUENCES 5..9, layers 7..12, width 18|24, context 7..13, vocab 31..50
//
// Holds: rank i has stage i: neighbouring layers, their gradients and optimizer state. The first
//     and the last stage both have wte. Every stage keeps the activations of all m micro-batches,
//     because the backwards come after the last forward.
// Sends: per micro-batch y [B*T, C] to stage i + 1 and dx [B*T, C] to stage i - 1. Per step one
//     all-reduce of wte's gradient over {first, last}, V*C elements, and sums of 1 and 12L + 4
//     doubles over all stages.
// Saves: idle time. If stages are equal and messages take no time, a step takes (m+p-1)(f+b), and
//     its stages are idle for (p-1)/(m+p-1) of the step. The naive step takes m p (f+b), and its
//     stages are idle for 1 - 1/p of the step. Messages of time d <= f add 2(p-1)d to a step that
//     the executor runs (pipeline_run), because the executor does not wait for sends.
// Costs: memory for the activations of m micro-batches instead of one.
// f, b and d are the times of a stage's forward, of its backward and of a message. x and y are a
// stage's input and output. dx and dy are the gradients of x and y. Stage i receives dy from stage
// i + 1.
// Huang et al. 2018 (GPipe), section 2.3. Here the backwards run in ascending order, as on one
// device that accumulates the gradients of the same micro-batches, so every bit is equal.
// torchgpipe's order is descending.
// Left out: keeping only the stages' inputs, as GPipe does (07_recompute/02_full.c).
#include "04_pipeline_naive/pipeline.h"
#include <stdlib.h>

// Runs all forwards of a step on this stage, then all backwards. A stage starts micro-batch 1 as
// soon as it has sent y of micro-batch 0. So stages work at the same time, on different
// micro-batches. comm_send waits until the neighbour has received the message.
PipelineResult pipeline_gpipe(Comm *pp, Model *m, const Batch *batch, size_t micro_batches) {
    PipelineStage s = pipeline_begin(pp, m, batch, micro_batches);
    // EXERCISE 04.03a (4 points): GPipe's two loops. Run all forwards, then all backwards, in an
    // order that adds the gradients as gradient accumulation does. Each stage receives before it
    // computes and sends afterwards. Use the tensors and calls of pipeline_naive (02_naive.c).
    // Allocate x in &b->input. Free y, dy and dx as soon as they are sent or used, so that only x
    // and the kept activations wait for the backwards.
    for (size_t k = 0; k < micro_batches; k++) {
        PipelineBatch *b = &s.micro[k];
        Arena buffer = arena(MEM_COMMUNICATION);
        if (!s.first) {
            b->x = tensor_shaped(&b->input, b->in);
            comm_recv(pp, b->x, s.before); // B*T*C elements: x
        }
        if (!s.last) b->y = tensor_shaped(&buffer, b->out);
        pipeline_forward(&s, k);
        if (!s.last) comm_send(pp, b->y, s.next); // B*T*C elements: y
        arena_free(&buffer);
    }
    for (size_t k = 0; k < micro_batches; k++) { // micro-batch 0 first, as on one device
        PipelineBatch *b = &s.micro[k];
        Arena buffers = arena(MEM_COMMUNICATION);
        if (!s.last) {
            b->dy = tensor_shaped(&buffers, b->out);
            comm_recv(pp, b->dy, s.next); // B*T*C elements: dy
        }
        if (!s.first) b->dx = tensor_shaped(&buffers, b->in);
        pipeline_backward(&s, k);
        if (!s.first) comm_send(pp, b->dx, s.before); // B*T*C elements: dx
        arena_free(&buffers);
    }
    // END
    return pipeline_end(&s);
}

// ------------------------------------------------------- a schedule becomes data: a list per stage

// Returns the list F0 B0 F1 B1 and so on. F0 is the forward of micro-batch 0, and B0 its backward.
// schedule_gpipe returns first F0 F1 and so on, then B0 B1 and so on.
Schedule schedule_naive(size_t p, size_t m, size_t i) {
    (void)p;
    (void)i; // all stages have the same list
    Schedule s = { 0 };
    for (size_t k = 0; k < m; k++) {
        schedule_add(&s, FORWARD, k);
        schedule_add(&s, BACKWARD, k);
    }
    return s;
}

Schedule schedule_gpipe(size_t p, size_t m, size_t i) {
    (void)p;
    (void)i;
    Schedule s = { 0 };
    for (size_t k = 0; k < m; k++) schedule_add(&s, FORWARD, k);
    for (size_t k = 0; k < m; k++) schedule_add(&s, BACKWARD, k);
    return s;
}

void schedule_add(Schedule *s, PipeWhat what, size_t micro_batch) {
    schedule_add_op(s, (PipeOp){ .what = what, .micro_batch = micro_batch });
}
void schedule_add_op(Schedule *s, PipeOp op) {
    if ((s->n & (s->n - 1)) == 0) { // n is 0 or a power of two, so the memory is full
        s->ops = realloc(s->ops, (s->n ? 2 * s->n : 1) * sizeof *s->ops);
        if (!s->ops) fault("out of memory: a schedule of %zu ops", s->n + 1);
    }
    s->ops[s->n++] = op;
}
void schedule_free(Schedule *s) {
    free(s->ops);
    *s = (Schedule){ 0 };
}

// Runs a list. If an op takes a result of another stage, the op first receives a message. If
// another stage takes the op's result, the op starts a send, and the stage does not wait for this
// send (executor.c).
PipelineResult pipeline_run(Comm *pp, Model *m, const Schedule *list, const Batch *batch,
                            size_t micro_batches) {
    for (size_t at = 0; at < list->n; at++)
        if (list->ops[at].version || list->ops[at].what > BACKWARD)
            fault("pipeline_run() of a list with versions or updates, or with halves of backwards: "
                  "write its loop with executor_receive() and executor_send()");
    PipelineStage s = pipeline_begin(pp, m, batch, micro_batches);
    Executor *e = executor_new(pp, &s, list);
    for (size_t at = 0; at < list->n; at++) {
        size_t k = executor_receive(e, at); // B*T*C elements: x (forward), dy (backward)
        if (list->ops[at].what == FORWARD) pipeline_forward(&s, k);
        else pipeline_backward(&s, k);
        executor_send(e, at); // B*T*C elements: y (forward), dx (backward)
    }
    executor_free(e);
    return pipeline_end(&s);
}

StepResult pipeline_step(PipelineRank *rank, Model *m, Optimizer *o, const Batch *batch,
                         size_t micro_batches) {
    Schedule list = rank->schedule(rank->pp->size, micro_batches, rank->pp->rank);
    model_zero_gradients(m);
    PipelineResult r = pipeline_run(rank->pp, m, &list, batch, micro_batches);
    schedule_free(&list);
    return pipeline_update(rank, m, o, batch, r); // tied sum, loss, norm, update (02_naive.c)
}
