// ranks: 4
// level: extra
// question: Can a stage fill its bubble with the half of a backward that no other stage waits for?
// vary: SEQUENCES 8..12, layers 8..12, width 18|24, context 7..13, vocab 31..50
//
// Holds: rank i has stage i, some neighbouring layers. x and dy of every product with weights stay
//     until W, because W reads x and dy. ZB-H1 keeps at most p micro-batches until their W, a
//     planner's list at most cap.
// Sends: an F sends y [B*T, C] to stage i + 1 at its end. A B sends dx [B*T, C] to stage i - 1 at
//     its end. A W sends nothing. Per step the stages make the sums of 1F1B: V*C elements over
//     {first, last}, 1 and 12L + 4 doubles over all stages.
// Saves: idle time. Take equal stages, messages that take no time, m >= p, W <= F and W <= B. Then
//     a step of ZB-H1 takes m(F+B+W) + (p-1)(F+B-W), and a step of 1F1B (m+p-1)(F+B+W).
// Costs: activations. Every stage keeps as many micro-batches as stage 0 of 1F1B. With cap 2p-1 the
//     planner keeps about twice as many.
// F: a forward, or its time.
// B (of inputs), W (of weights): halves of a backward, or their times.
// Qi et al. 2023, sections 2 and 3.
// Left out: updates that do not wait for the norm of all stages.
#include "05_pipeline_1f1b/pipeline_1f1b.h"

// ---------------------------------------------------------------- one backward, two halves

// The backward of y = x w has two products. B computes dx, for which the previous stage waits. W
// computes dw, which only the update at the end of the step needs.
void linear_backward_inputs(Tensor dx, Tensor dy, Tensor w) { op_matmul_nt(dx, dy, w); }  // dy w^T
void linear_backward_weights(Tensor dw, Tensor x, Tensor dy) { op_matmul_tn(dw, x, dy); } // x^T dy

// Runs B of all layers of a stage. Each layer computes its dx, and copies the tensors that its W
// reads, except the layer's input, which the stage keeps. Then the layer frees the tensors that its
// forward saved (layer_defer in common/model/layer.c).
void pipeline_backward_inputs(PipelineStage *s, size_t k) {
    PipelineBatch *b = &s->micro[k];
    pipeline_require_forward(s, k);
    Arena losses = arena(MEM_WORKSPACE);
    if (b->end) {
        b->dy = tensor_shaped(&losses, b->out);
        tensor_fill(b->dy, (real)b->batch->token_weight);
    }
    walk_backward_inputs(b->layers, b->n_layers, b->batch, b->kept, b->dy, b->dx);
    b->half = true;
    arena_free(&losses);
}
// Runs W of all layers. Frees x, because W is the last reader of x.
void pipeline_backward_weights(PipelineStage *s, size_t k) {
    PipelineBatch *b = &s->micro[k];
    if (!b->half) fault("backward of weights %zu without its backward of inputs before it", k);
    b->half = false;
    walk_backward_weights(b->layers, b->n_layers, b->batch, b->kept);
    b->kept = NULL;
    arena_free(&b->input); // x
    s->in_flight--;
}

// ---------------------------------------------------------------- the list, with its messages

// Runs any list of forwards and backwards, in halves or whole. Stages may have several chunks
// (03_interleaved.c).
PipelineResult zero_bubble_run(Comm *pp, Model *m, const Schedule *list, const Batch *batch,
                               size_t micro_batches) {
    PipelineStage s = interleaved_begin(pp, m, batch, micro_batches);
    Executor *e = executor_new(pp, &s, list); // posts receives, keeps messages in flight
    for (size_t at = 0; at < list->n; at++) {
        size_t k = executor_receive(e, at); // F: x, B: dy, B*T*C elements; W: nothing
        switch (list->ops[at].what) {
        case FORWARD: pipeline_forward(&s, k); break;
        case BACKWARD_INPUTS: pipeline_backward_inputs(&s, k); break;
        case BACKWARD_WEIGHTS: pipeline_backward_weights(&s, k); break;
        case BACKWARD: pipeline_backward(&s, k); break;
        case UPDATE: fault("a list with versions or updates is for a loop that has versions");
        }
        executor_send(e, at); // F: y, B: dx, B*T*C elements; W: nothing
    }
    executor_free(e);
    return pipeline_end(&s);
}
// pipeline_update (04_pipeline_naive/02_naive.c) ends the step. Because clipping needs the norm of
// all gradients, no stage updates before the last W of all stages.

// ---------------------------------------------------------------- ZB-H1: a rule

// Returns 1F1B's order, but stage i delays each W by i micro-batches. So a gradient passes a stage
// in the time B, not in B + W, and the late W's fill the end of the step. Stage i has p - i
// micro-batches between F and B, and i between B and W. So p micro-batches are in flight on every
// stage, as on stage 0 of 1F1B.
// If m >= p, and W is no longer than F and no longer than B, a step takes
//     (p-1)F + (mF + mB + (m-p)W) + (p-1)B + W = m(F+B+W) + (p-1)(F+B-W).
// The last stage starts after (p-1)F. The last stage runs all its F's and B's and m - p of its W's.
// Then its last gradient needs a B on each of the p - 1 other stages. Stage 0 ends with a W. The
// W's run in the order of their micro-batches, so every bit is the same as with 1F1B.
Schedule schedule_zb_h1(size_t p, size_t m, size_t i) {
    Schedule s = { 0 };
    size_t ahead = p - 1 - i < m ? p - 1 - i : m, forwards = 0, inputs = 0, weights = 0;
    // EXERCISE 05.06a (4 points): write the list of ZB-H1. First add `ahead` forwards. Then add all
    // backwards of inputs. Before each backward of inputs add a forward, if a forward is left.
    // After it add the backward of weights of the micro-batch that is i earlier, if there is one.
    // Last add the remaining backwards of weights. Each kind comes in ascending order. Call:
    // schedule_add(&s, what, micro_batch), where `what` is FORWARD, BACKWARD_INPUTS or
    // BACKWARD_WEIGHTS.
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

// zb_auto.c plans such lists for any op times. A free stage runs a B if a B can start, otherwise an
// F, and a W only if nothing else can start. With messages that take no time, stage 0 gets its
// first gradient after p F's and p - 1 B's. Suppose that at most 2p - 1 micro-batches may be in
// flight, F = B = W and m >= 2p - 1. Then no stage is idle between its first op and its last op.
