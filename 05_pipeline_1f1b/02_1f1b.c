// ranks: 4
// level: core
// question: Can a pipeline give GPipe's bits in GPipe's time with fewer micro-batches in memory?
// vary: SEQUENCES 8..12, layers 7..12, width 18|24, context 7..13, vocab 31..50
//
// Holds: stage i has shard_range(L, p, i) of the L blocks. The first stage also has the embedding,
//     the last stage also has the last norm and the head. Both stages have wte. Stage i keeps the
//     activations of at most min(p-i, m) micro-batches, because a backward runs as early as
//     possible and frees the activations of its forward.
// Sends: the messages of GPipe. Per micro-batch a stage sends y [B*T, C] to stage i + 1 and dx
//     [B*T, C] to stage i - 1. Per step the first and the last stage all-reduce wte's gradient, V*C
//     elements. All stages sum the loss (1 double) and the tensors' squares (12L + 4 doubles).
// Saves: activations of m - min(p-i, m) micro-batches on stage i.
// Costs: if stages are equal and messages take no time, a step takes (m+p-1)(f+b), as with GPipe. f
//     and b are the times of a stage's forward and backward of a micro-batch. Messages of time d
//     add 2(p-1)d to GPipe's step. In 1F1B messages add about 2(p-1)d for every p micro-batches,
//     because a stage waits for the next stage's gradient.
//
// Every bit must equal that of GPipe and of one device, because each stage runs the backwards in
// the same order, micro-batch 0 first.
// PipeDream-Flush: Narayanan et al. 2021, arXiv 2006.09503, section 3.2; PTD-P, section 2.2.1. The
// end of a step is pipeline_update in 04_pipeline_naive/02_naive.c.
// Left out: several chunks of layers per stage (03_interleaved.c); no flush (04_pipedream.c).
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include <stdlib.h>

// Returns the number of forwards before the steady state of stage i, at most m. Each of the
// p - 1 - i later stages gets one forward, so that each of these stages has an op to run.
static size_t warm_up(size_t p, size_t m, size_t i) { return p - 1 - i < m ? p - 1 - i : m; }

// A send must not wait here. In the steady state a stage sends activations to the next stage while
// the next stage sends a gradient back. If both stages waited until their messages are received,
// neither stage would receive. So a send is only started, and its tensor stays until the message
// has been received.
typedef struct {
    Arena arena;
    Request *request;
} Sending;
static Tensor output_buffer(Sending *s, Shape shape) {
    s->arena = arena(MEM_COMMUNICATION);
    return tensor_shaped(&s->arena, shape);
}
// Waits until the message is received. Returns at once if nothing was sent.
static void wait_received(Sending *s) {
    comm_wait(s->request);
    arena_free(&s->arena);
    s->request = NULL;
}

// forward_step and backward_step run one op of micro-batch k with its messages. pipeline_forward (y
// from x) and pipeline_backward (dx from dy) are in 04_pipeline_naive/stage.c.
static void forward_step(Comm *pp, PipelineStage *s, size_t k, Sending *activations) {
    PipelineBatch *b = &s->micro[k];
    if (!s->first) {
        b->x = tensor_shaped(&b->input, b->in);
        comm_recv(pp, b->x, s->before); // B*T*C elements: x
    }
    if (!s->last) b->y = output_buffer(&activations[k], b->out);
    pipeline_forward(s, k);
    if (!s->last) activations[k].request = comm_start_send(pp, b->y, s->next); // B*T*C elements: y
}
static void backward_step(Comm *pp, PipelineStage *s, size_t k, Sending *activations,
                          Sending *gradient) {
    PipelineBatch *b = &s->micro[k];
    Arena incoming = arena(MEM_COMMUNICATION);
    if (!s->last) {
        b->dy = tensor_shaped(&incoming, b->out);
        comm_recv(pp, b->dy, s->next); // B*T*C elements: dy
        // Returns at once. dy of k has arrived, so the next stage has received y of k.
        wait_received(&activations[k]);
    }
    if (!s->first) {
        // Waits until the previous dx has been received. Returns at once in the first backward.
        wait_received(gradient);
        b->dx = output_buffer(gradient, b->in);
    }
    pipeline_backward(s, k); // frees the activations that the forward of k kept
    if (!s->first) gradient->request = comm_start_send(pp, b->dx, s->before); // B*T*C elements: dx
    arena_free(&incoming);
}

PipelineResult pipeline_1f1b(Comm *pp, Model *m, const Batch *batch, size_t micro_batches) {
    PipelineStage s = pipeline_begin(pp, m, batch, micro_batches);
    size_t ahead = warm_up(pp->size, micro_batches, pp->rank);
    Sending *activations = host_alloc(micro_batches * sizeof *activations), gradient = { 0 };
    // EXERCISE 05.02a (5 points): write warm-up, steady state and cool-down. First run `ahead`
    // forwards. Then run a forward and a backward in turn, until no forward is left. Then run the
    // last backwards. forward_step and backward_step receive, compute and start to send. The
    // backwards come in ascending order. At the end the last gradient must have been received
    // (wait_received). Calls: these three functions.
    // Warm-up: receives activations from the stage before, sends activations to the next stage.
    for (size_t k = 0; k < ahead; k++) forward_step(pp, &s, k, activations);
    // Steady state: does the same for micro-batch k. Then receives the gradient of micro-batch
    // k - ahead from the next stage, and sends a gradient to the stage before. At most
    // ahead + 1 = min(p - i, m) micro-batches are in flight.
    for (size_t k = ahead; k < micro_batches; k++) {
        forward_step(pp, &s, k, activations);
        backward_step(pp, &s, k - ahead, activations, &gradient);
    }
    // Cool-down: receives the gradients of the last `ahead` micro-batches and sends gradients.
    for (size_t k = micro_batches - ahead; k < micro_batches; k++)
        backward_step(pp, &s, k, activations, &gradient);
    wait_received(&gradient);
    // END
    free(activations);
    return pipeline_end(&s);
}

// Returns the order of pipeline_1f1b as a list of ops. pipeline_run (04_pipeline_naive/03_gpipe.c)
// runs any such list and starts each receive one message early.
Schedule schedule_1f1b(size_t p, size_t m, size_t i) {
    size_t ahead = warm_up(p, m, i);
    Schedule s = { 0 };
    // EXERCISE 05.02b (2 points): write 1F1B as a list, in the order of pipeline_1f1b. First add
    // `ahead` forwards, then a forward and a backward in turn, then the last backwards. Call:
    // schedule_add(&s, what, micro_batch), where `what` is FORWARD or BACKWARD.
    for (size_t k = 0; k < ahead; k++) schedule_add(&s, FORWARD, k);
    for (size_t k = ahead; k < m; k++) {
        schedule_add(&s, FORWARD, k);
        schedule_add(&s, BACKWARD, k - ahead);
    }
    for (size_t k = m - ahead; k < m; k++) schedule_add(&s, BACKWARD, k);
    // END
    return s;
}
