// executor.c: the rule of all schedules, and what runs any of them. See pipeline.h.
#include "04_pipeline_naive/pipeline.h"

// ---------------------------------------------------------------- what an op needs, and what takes its result

// The same op of the part before (step -1) or behind (step 1), and the stage that has it.
static StageOp neighbour(PipeOp op, size_t i, size_t p, int step) {
    size_t part = op.chunk * p + i + (size_t)step;
    op.chunk = part / p;
    return (StageOp){ part % p, op };
}
static bool is_first(PipeOp op, size_t i) { return op.chunk == 0 && i == 0; }
static bool is_last(PipeOp op, size_t i, size_t p, size_t v) { return op.chunk + 1 == v && i + 1 == p; }

bool pipe_op_needs(PipeOp op, size_t i, size_t p, size_t v, StageOp *needs) {
    *needs = (StageOp){ i, op };
    switch (op.what) {
    case FORWARD:
        if (is_first(op, i)) return false;         // tokens are always there
        *needs = neighbour(op, i, p, -1);
        return true;
    case BACKWARD: case BACKWARD_INPUTS:
        if (!is_last(op, i, p, v)) *needs = neighbour(op, i, p, 1);
        needs->op.what = is_last(op, i, p, v) ? FORWARD : BACKWARD_INPUTS;
        return true;
    case BACKWARD_WEIGHTS:
        needs->op.what = BACKWARD_INPUTS;
        return true;
    case UPDATE: break;                            // its place in the list says which gradients it takes
    }
    return false;
}

bool pipe_op_feeds(PipeOp op, size_t i, size_t p, size_t v, StageOp *feeds) {
    bool forward = op.what == FORWARD;
    if (op.what == BACKWARD_WEIGHTS || op.what == UPDATE) return false;
    if (forward ? is_last(op, i, p, v) : is_first(op, i)) return false;
    *feeds = neighbour(op, i, p, forward ? 1 : -1);
    if (!forward) feeds->op.what = BACKWARD_INPUTS;
    return true;
}

bool pipe_op_is(PipeOp op, PipeOp needed) {
    bool does = op.what == needed.what || (op.what == BACKWARD && needed.what == BACKWARD_INPUTS);
    return does && op.micro_batch == needed.micro_batch && op.chunk == needed.chunk;
}

// ---------------------------------------------------------------- the executor

// Messages move while stages compute. So a receive is posted before it is needed, one message ahead from each
// neighbour; and a send is started and not waited for: it keeps its buffer until its receive is posted, while the next
// micro-batch is computed into another one. pipeline.h says which lists that lets run.
enum { SEND_BUFFERS = 2 };
typedef struct {
    size_t peer, n, turn;                          // n: buffers; turn: the one to be used next
    Tensor buffer[SEND_BUFFERS];                   // [largest B*T, C] each, MEM_COMMUNICATION
    Request *request[SEND_BUFFERS];
} Sends;
typedef struct {
    Tensor t;                                      // [B*T, C] of the next message
    Arena arena;                                   // MEM_COMMUNICATION until it is received
    Request *request;                              // NULL: none is to come
} Receives;
typedef struct {
    Comm *pp;
    const Schedule *schedule;
    PipelineStage stage;
    const PipelineWeights *weights;                // NULL: one version, and no updates
    size_t v;                                      // chunks
    Sends activations, gradients;                  // to the next stage, to the one before
    Receives receive[2];                           // from the stage before, from the next one; one of two is both
} Executor;

static PipelineBatch *batch_of(Executor *e, PipeOp op) {
    return &e->stage.micro[op.chunk * e->stage.micro_batches + op.micro_batch];
}

// Whether op `at` of the list needs a message, and from which stage. Messages between two stages carry no names: the
// lists of both have them in the same order.
static bool receives(const Executor *e, size_t at, size_t *stage) {
    StageOp needs;
    bool any = pipe_op_needs(e->schedule->ops[at], e->pp->rank, e->pp->size, e->v, &needs);
    *stage = needs.stage;
    return any && needs.stage != e->pp->rank;
}

// Posts the receive from this stage that the first op at or after place `at` of the list needs.
static void post_receive(Executor *e, size_t stage, size_t at) {
    Receives *r = &e->receive[stage != e->stage.before];
    size_t from;
    while (at < e->schedule->n && !(receives(e, at, &from) && from == stage)) at++;
    r->request = NULL;
    if (at == e->schedule->n) return;
    r->arena = arena(MEM_COMMUNICATION);
    PipeOp op = e->schedule->ops[at];
    r->t = tensor_shaped(&r->arena, op.what == FORWARD ? batch_of(e, op)->in : batch_of(e, op)->out);
    r->request = comm_start_recv(e->pp, r->t, stage);                              // B*T*C elements
}

// The posted message from this stage, and its memory, which is from now on of this category; the receive after it is
// posted. at: the place in the list of what is about to start.
static Tensor receive(Executor *e, size_t stage, size_t at, Arena *a, MemoryCategory category) {
    Receives *r = &e->receive[stage != e->stage.before];
    Tensor t = r->t;
    comm_wait(r->request);
    *a = r->arena;
    arena_rebook(a, category);
    post_receive(e, stage, at + 1);
    return t;
}

static Tensor send_buffer(Sends *out, size_t rows) {
    comm_wait(out->request[out->turn]);            // the last message but one must have been received
    out->request[out->turn] = NULL;
    return tensor_row_range(out->buffer[out->turn], 0, rows);
}
static void send(Executor *e, Sends *out, Tensor t) {
    out->request[out->turn] = comm_start_send(e->pp, t, out->peer);        // B*T*C elements; nobody waits for it
    out->turn = (out->turn + 1) % out->n;
}
static void sends_done(Sends *out) {
    for (size_t i = 0; i < out->n; i++) comm_wait(out->request[(out->turn + i) % out->n]);
}

// A pipeline of one stage with several chunks: the next one's x, or the dy of the one before, stays on this stage.
static Tensor hand_over(Executor *e, PipeOp to) {
    PipelineBatch *b = batch_of(e, to);
    if (to.what == FORWARD) return b->x = tensor_shaped(&b->input, b->in);
    return b->dy = tensor_shaped(&b->gradient, b->out);
}

// One op of the list: its message in, my layers, its message out.
static void run_op(Executor *e, size_t at) {
    PipelineStage *s = &e->stage;
    PipeOp op = e->schedule->ops[at];
    PipelineBatch *b = batch_of(e, op);
    bool forward = op.what == FORWARD;
    size_t from, k = (size_t)(b - s->micro);
    StageOp feeds;
    if (receives(e, at, &from)) {
        if (forward) b->x = receive(e, from, at, &b->input, MEM_ACTIVATIONS);
        else b->dy = receive(e, from, at, &b->gradient, MEM_WORKSPACE);
    }
    bool gives = pipe_op_feeds(op, e->pp->rank, e->pp->size, e->v, &feeds), sends = gives && e->pp->size > 1;
    Sends *out = forward ? &e->activations : &e->gradients;
    Tensor result = {0};
    if (sends) result = send_buffer(out, forward ? b->out.rows : b->in.rows);
    else if (gives) result = hand_over(e, feeds.op);
    if (forward) b->y = result;
    else b->dx = result;
    if (e->weights && op.what != UPDATE) e->weights->attach(e->weights->who, s->m, op);
    switch (op.what) {
    case FORWARD: pipeline_forward(s, k); break;
    case BACKWARD: pipeline_backward(s, k); break;
    case BACKWARD_INPUTS: pipeline_backward_inputs(s, k); break;
    case BACKWARD_WEIGHTS: pipeline_backward_weights(s, k); break;
    case UPDATE: e->weights->update(e->weights->who, s->m, op); break;
    }
    if (e->weights && e->weights->loss && forward) e->weights->loss[op.micro_batch] += b->loss;    // of a chunk, or 0
    if (sends) send(e, out, result);
    if (!forward) arena_free(&b->gradient);        // dy
}

PipelineResult pipeline_run(Comm *pp, Model *m, const Schedule *schedule, const Batch *batch, size_t micro_batches) {
    for (size_t at = 0; at < schedule->n; at++)
        if (schedule->ops[at].version || schedule->ops[at].what == UPDATE)
            fault("pipeline_run() of a list with versions or updates: it is for pipeline_run_versions()");
    return pipeline_run_versions(pp, m, schedule, batch, micro_batches, NULL);
}

PipelineResult pipeline_run_versions(Comm *pp, Model *m, const Schedule *schedule, const Batch *batch,
                                     size_t micro_batches, const PipelineWeights *weights) {
    Executor e = { .pp = pp, .schedule = schedule, .stage = pipeline_begin(pp, m, batch, micro_batches),
                   .weights = weights, .v = model_chunks(m) };
    PipelineStage *s = &e.stage;
    Arena buffers = arena(MEM_COMMUNICATION);
    size_t messages = e.v * micro_batches, n = messages < SEND_BUFFERS ? messages : SEND_BUFFERS;
    if (schedule_chunks(schedule) > e.v)
        fault("a schedule of %zu chunks for a stage of %zu", schedule_chunks(schedule), e.v);
    const PipelineBatch *largest = &s->micro[0];   // micro-batches differ in rows only; so do a rank's messages
    for (size_t k = 1; k < micro_batches; k++)
        if (s->micro[k].in.rows > largest->in.rows) largest = &s->micro[k];
    bool alone = pp->size == 1;
    e.activations = (Sends){ .peer = s->next, .n = alone || (s->last && e.v == 1) ? 0 : n };
    e.gradients = (Sends){ .peer = s->before, .n = alone || (s->first && e.v == 1) ? 0 : n };
    for (size_t i = 0; i < e.activations.n; i++) e.activations.buffer[i] = tensor_shaped(&buffers, largest->out);
    for (size_t i = 0; i < e.gradients.n; i++) e.gradients.buffer[i] = tensor_shaped(&buffers, largest->in);
    post_receive(&e, s->before, 0);
    if (s->next != s->before) post_receive(&e, s->next, 0);
    for (size_t at = 0; at < schedule->n; at++) run_op(&e, at);
    sends_done(&e.activations);
    sends_done(&e.gradients);
    arena_free(&buffers);
    return pipeline_end(s);
}
