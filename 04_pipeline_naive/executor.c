// executor.c: finds the op that another op needs, and communicates for any list of ops. The
// executor sends and receives while the stage computes. pipeline.h states the executor's rules.
#include "04_pipeline_naive/pipeline.h"
#include <stdlib.h>

// ----------------------------------- the rule: which op an op needs, and which op takes its result

// Returns the op of the same kind and micro-batch on a neighbour part, and the stage of this part.
// The neighbour is the previous part if step is -1, the next part if step is 1. The parts are the
// chunks of all stages, in model order.
static StageOp neighbour(PipeOp op, size_t i, size_t p, int step) {
    size_t part = op.chunk * p + i + (size_t)step;
    op.chunk = part / p;
    return (StageOp){ part % p, op };
}
static bool is_first(PipeOp op, size_t i) { return op.chunk == 0 && i == 0; }
static bool is_last(PipeOp op, size_t i, size_t p, size_t v) {
    return op.chunk + 1 == v && i + 1 == p;
}

bool pipe_op_needs(PipeOp op, size_t i, size_t p, size_t v, StageOp *needs) {
    *needs = (StageOp){ i, op };
    switch (op.what) {
    case FORWARD:
        if (is_first(op, i)) return false; // the first part reads tokens
        *needs = neighbour(op, i, p, -1);
        return true;
    case BACKWARD:
    case BACKWARD_INPUTS:
        if (!is_last(op, i, p, v)) *needs = neighbour(op, i, p, 1);
        needs->op.what = is_last(op, i, p, v) ? FORWARD : BACKWARD_INPUTS;
        return true;
    case BACKWARD_WEIGHTS: needs->op.what = BACKWARD_INPUTS; return true;
    case UPDATE: break; // an update takes no single op's result
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

// Messages move while stages compute, because the executor posts each receive one message ahead,
// and goes on when a send has started. A message keeps its buffer until the receiver has posted the
// receive. Meanwhile the stage computes the next micro-batch into the other buffer.
enum { SEND_BUFFERS = 2 };
typedef struct {
    size_t peer;                 // the stage that receives
    size_t n;                    // number of buffers
    size_t turn;                 // the number of the buffer that the next message uses
    Tensor buffer[SEND_BUFFERS]; // [largest B*T, C] each, MEM_COMMUNICATION
    Request *request[SEND_BUFFERS];
} Sends;
typedef struct {
    Tensor t;         // the memory of the next message, [B*T, C]
    Arena arena;      // MEM_COMMUNICATION until the message is received
    Request *request; // NULL: no message is expected
} Receives;
struct Executor {
    Comm *pp;
    const Schedule *list;
    PipelineStage *stage;
    Arena buffers;
    Sends activations;   // to the next stage
    Sends gradients;     // to the stage before
    Receives receive[2]; // [0] from the stage before, [1] from the next; with p = 2 [0] serves both
};

static PipelineBatch *batch_of(const Executor *e, PipeOp op) {
    return &e->stage->micro[op.chunk * e->stage->micro_batches + op.micro_batch];
}

// Returns whether op `at` of the list takes a message. *stage becomes the stage that sends the
// message. Messages need no names, because the lists of the two stages have the messages in the
// same order.
static bool receives(const Executor *e, size_t at, size_t *stage) {
    StageOp needs;
    bool any = pipe_op_needs(e->list->ops[at], e->pp->rank, e->pp->size, e->stage->chunks, &needs);
    *stage = needs.stage;
    return any && needs.stage != e->pp->rank;
}

// Posts the receive from `stage` for the first op at or after place `at` that takes a message from
// `stage`. Posts nothing if the list has no such op.
static void post_receive(Executor *e, size_t stage, size_t at) {
    Receives *r = &e->receive[stage != e->stage->before];
    size_t from;
    while (at < e->list->n && !(receives(e, at, &from) && from == stage)) at++;
    r->request = NULL;
    if (at == e->list->n) return;
    PipeOp op = e->list->ops[at];
    PipelineBatch *b = batch_of(e, op);
    r->arena = arena(MEM_COMMUNICATION);
    r->t = tensor_shaped(&r->arena, op.what == FORWARD ? b->in : b->out);
    r->request = comm_start_recv(e->pp, r->t, stage); // B*T*C elements
}

// Waits for the posted message from `stage`, posts the next receive, and returns the message. The
// message's memory belongs to `category` from now on. `at` is the place in the list of the op that
// takes the message.
static Tensor receive(Executor *e, size_t stage, size_t at, Arena *a, MemoryCategory category) {
    Receives *r = &e->receive[stage != e->stage->before];
    Tensor t = r->t;
    comm_wait(r->request);
    *a = r->arena;
    arena_set_category(a, category);
    post_receive(e, stage, at + 1);
    return t;
}

static Tensor send_buffer(Sends *out, size_t rows) {
    comm_wait(out->request[out->turn]); // until the buffer's last message is received
    out->request[out->turn] = NULL;
    return tensor_row_range(out->buffer[out->turn], 0, rows);
}
static void sends_done(Sends *out) {
    for (size_t i = 0; i < out->n; i++) comm_wait(out->request[(out->turn + i) % out->n]);
}

// Allocates and returns the input of op `to`, which is x of the next chunk or dy of the chunk
// before. A pipeline of one stage with several chunks needs no message for this tensor.
static Tensor hand_over(const Executor *e, PipeOp to) {
    PipelineBatch *b = batch_of(e, to);
    if (to.what == FORWARD) return b->x = tensor_shaped(&b->input, b->in);
    return b->dy = tensor_shaped(&b->gradient, b->out);
}

size_t executor_receive(Executor *e, size_t at) {
    PipeOp op = e->list->ops[at];
    PipelineBatch *b = batch_of(e, op);
    bool forward = op.what == FORWARD;
    size_t from;
    StageOp feeds;
    if (receives(e, at, &from)) {
        if (forward) b->x = receive(e, from, at, &b->input, MEM_ACTIVATIONS);
        else b->dy = receive(e, from, at, &b->gradient, MEM_WORKSPACE);
    }
    Tensor result = { 0 };
    if (pipe_op_feeds(op, e->pp->rank, e->pp->size, e->stage->chunks, &feeds)) {
        Sends *out = forward ? &e->activations : &e->gradients;
        if (e->pp->size == 1) result = hand_over(e, feeds.op);
        else result = send_buffer(out, forward ? b->out.rows : b->in.rows);
    }
    if (forward) b->y = result;
    else b->dx = result;
    return (size_t)(b - e->stage->micro);
}

void executor_send(Executor *e, size_t at) {
    PipeOp op = e->list->ops[at];
    PipelineBatch *b = batch_of(e, op);
    bool forward = op.what == FORWARD;
    StageOp feeds;
    bool gives = pipe_op_feeds(op, e->pp->rank, e->pp->size, e->stage->chunks, &feeds);
    if (gives && e->pp->size > 1) {
        Sends *out = forward ? &e->activations : &e->gradients;
        // Sends B*T*C elements; the stage does not wait.
        out->request[out->turn] = comm_start_send(e->pp, forward ? b->y : b->dx, out->peer);
        out->turn = (out->turn + 1) % out->n;
    }
    if (!forward) arena_free(&b->gradient); // dy
}

size_t schedule_chunks(const Schedule *s) {
    size_t v = 1;
    for (size_t e = 0; e < s->n; e++) v = s->ops[e].chunk < v ? v : s->ops[e].chunk + 1;
    return v;
}

Executor *executor_new(Comm *pp, PipelineStage *s, const Schedule *list) {
    Executor *e = host_alloc(sizeof *e);
    *e = (Executor){ .pp = pp, .list = list, .stage = s, .buffers = arena(MEM_COMMUNICATION) };
    size_t v = s->chunks, messages = v * s->micro_batches;
    size_t n = messages < SEND_BUFFERS ? messages : SEND_BUFFERS;
    if (schedule_chunks(list) > v)
        fault("a schedule of %zu chunks for a stage of %zu", schedule_chunks(list), v);
    for (size_t at = 0; at < list->n; at++) {
        size_t k = list->ops[at].micro_batch;
        if (list->ops[at].what != UPDATE && k >= s->micro_batches)
            fault(
                "op %zu of the list of stage %zu has micro-batch %zu, but there are %zu, and they "
                "count from 0",
                at, pp->rank, k, s->micro_batches);
    }
    const PipelineBatch *largest = &s->micro[0]; // messages differ in rows only
    for (size_t k = 1; k < s->micro_batches; k++)
        if (s->micro[k].in.rows > largest->in.rows) largest = &s->micro[k];
    bool alone = pp->size == 1;
    e->activations = (Sends){ .peer = s->next, .n = alone || (s->last && v == 1) ? 0 : n };
    e->gradients = (Sends){ .peer = s->before, .n = alone || (s->first && v == 1) ? 0 : n };
    for (size_t i = 0; i < e->activations.n; i++)
        e->activations.buffer[i] = tensor_shaped(&e->buffers, largest->out);
    for (size_t i = 0; i < e->gradients.n; i++)
        e->gradients.buffer[i] = tensor_shaped(&e->buffers, largest->in);
    post_receive(e, s->before, 0);
    if (s->next != s->before) post_receive(e, s->next, 0);
    return e;
}

void executor_free(Executor *e) {
    sends_done(&e->activations);
    sends_done(&e->gradients);
    arena_free(&e->buffers);
    free(e);
}
