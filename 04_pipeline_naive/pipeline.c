// pipeline.c: see pipeline.h.
#include "04_pipeline_naive/pipeline.h"
#include <stdlib.h>

// ---------------------------------------------------------------- schedules: lists of small integers

void schedule_add(Schedule *s, int what, size_t micro_batch) {
    if ((s->n & (s->n - 1)) == 0) {                // full: the room doubles whenever n reaches a power of two
        s->ops = realloc(s->ops, (s->n ? 2 * s->n : 1) * sizeof *s->ops);
        if (!s->ops) fault("out of memory: a schedule of %zu forwards and backwards", s->n + 1);
    }
    s->ops[s->n].what = what;
    s->ops[s->n++].micro_batch = micro_batch;
}
void schedule_free(Schedule *s) {
    free(s->ops);
    *s = (Schedule){0};
}

Schedule schedule_naive(size_t p, size_t m, size_t i) {
    (void)p; (void)i;                              // every stage has the same list; receives make it wait for its turn
    Schedule s = {0};
    for (size_t k = 0; k < m; k++) {
        schedule_add(&s, FORWARD, k);
        schedule_add(&s, BACKWARD, k);
    }
    return s;
}

Schedule schedule_gpipe(size_t p, size_t m, size_t i) {
    (void)p; (void)i;
    Schedule s = {0};
    for (size_t k = 0; k < m; k++) schedule_add(&s, FORWARD, k);
    for (size_t k = 0; k < m; k++) schedule_add(&s, BACKWARD, k);
    return s;
}

Range pipeline_stage_layers(const ModelConfig *c, const size_t *blocks, size_t p, size_t i) {
    Range r = shard_range(c->layers, p, i);
    if (blocks) {
        r = (Range){0, 0};
        for (size_t k = 0; k <= i; k++) { r.lo = r.hi; r.hi += blocks[k]; }
    }
    return (Range){ i == 0 ? 0 : r.lo + 1, i + 1 == p ? r.hi + 2 : r.hi + 1 };     // block k is layer k + 1
}

// ---------------------------------------------------------------- the executor

// Messages move while stages compute. So a receive is posted before it is needed, one message ahead in each direction;
// and a send keeps its buffer until it is received, while the next micro-batch is computed into another one.
enum { SEND_BUFFERS = 2 };
typedef struct {
    size_t peer, n, turn;                          // n: buffers; turn: the one to be used next
    Tensor buffer[SEND_BUFFERS];                   // [largest B*T, C] each, MEM_COMMUNICATION
    Request *request[SEND_BUFFERS];
} Sends;
typedef struct {
    size_t peer, micro_batch;
    Tensor t;                                      // [B*T, C] of the next message
    Arena arena;                                   // MEM_COMMUNICATION until it is received
    Request *request;                              // NULL: none is to come
} Receives;

// What one stage holds during a step.
typedef struct {
    Comm *pp;
    Model *m;
    const Schedule *schedule;
    const Batch *batch;
    ActivationStash **stash;                               // [micro-batch]: kept from its forward to its backward
    Arena *input;                                  // [micro-batch]: what was received from the stage before
    Arena buffers;
    Sends activations, gradients;                  // to the next stage, to the one before
    Receives receive[2];                           // [FORWARD] from the stage before, [BACKWARD] from the next one
    bool first, last;
    size_t in_flight;
    PipelineResult result;
} Stage;

static size_t rows_of(const Batch *b) { return b->B * b->T; }

// Posts the receive that the first forward (backward) at or after op i of the list needs.
static void post_receive(Stage *s, int what, size_t i) {
    Receives *r = &s->receive[what];
    while (i < s->schedule->n && (int)s->schedule->ops[i].what != what) i++;
    r->request = NULL;
    if (i == s->schedule->n || (what == FORWARD ? s->first : s->last)) return;
    r->arena = arena(MEM_COMMUNICATION);
    r->t = tensor_new(&r->arena, rows_of(&s->batch[s->schedule->ops[i].micro_batch]), s->m->config.width);
    r->request = comm_start_recv(s->pp, r->t, r->peer);
}

// The posted message, and its memory, which is from now on of this category; the receive after it is posted. i: the op
// that is about to start.
static Tensor receive(Stage *s, size_t i, Arena *a, MemoryCategory category) {
    PipeOp op = s->schedule->ops[i];
    Receives *r = &s->receive[op.what];
    Tensor t = r->t;
    comm_wait(r->request);                         // B*T*C reals
    *a = r->arena;
    arena_rebook(a, category);
    post_receive(s, op.what, i + 1);
    return t;
}

static Sends sends_new(Stage *s, bool used, size_t peer, size_t rows, size_t messages) {
    Sends out = { .peer = peer, .n = !used ? 0 : messages < SEND_BUFFERS ? messages : SEND_BUFFERS };
    for (size_t i = 0; i < out.n; i++) out.buffer[i] = tensor_new(&s->buffers, rows, s->m->config.width);
    return out;
}
static Tensor send_buffer(Sends *out, size_t rows) {
    comm_wait(out->request[out->turn]);            // the last message but one must have been received
    out->request[out->turn] = NULL;
    return tensor_row_range(out->buffer[out->turn], 0, rows);
}
static void send(Stage *s, Sends *out, Tensor t) {
    out->request[out->turn] = comm_start_send(s->pp, t, out->peer);                // B*T*C reals; nobody waits for it
    out->turn = (out->turn + 1) % out->n;
}
static void sends_done(Sends *out) {
    for (size_t i = 0; i < out->n; i++) comm_wait(out->request[(out->turn + i) % out->n]);
}

static void stage_forward(Stage *s, size_t i) {
    size_t k = s->schedule->ops[i].micro_batch, M = rows_of(&s->batch[k]);
    Tensor x = {0}, y;
    Arena losses = arena(MEM_WORKSPACE);
    s->input[k] = arena(MEM_ACTIVATIONS);
    if (!s->first) x = receive(s, i, &s->input[k], MEM_ACTIVATIONS);
    y = s->last ? tensor_new(&losses, M, 1) : send_buffer(&s->activations, M);
    s->stash[k] = walk_forward(s->m->layers, s->m->n_layers, &s->batch[k], x, y);
    if (s->last) s->result.loss += tensor_sum(y);
    else send(s, &s->activations, y);
    arena_free(&losses);
    if (++s->in_flight > s->result.in_flight) s->result.in_flight = s->in_flight;
}

static void stage_backward(Stage *s, size_t i) {
    size_t k = s->schedule->ops[i].micro_batch, M = rows_of(&s->batch[k]);
    Arena incoming = arena(MEM_WORKSPACE);
    Tensor dy, dx = {0};
    if (s->last) tensor_fill(dy = tensor_new(&incoming, M, 1), (real)s->batch[k].token_weight);    // 1 / all tokens
    else dy = receive(s, i, &incoming, MEM_WORKSPACE);
    if (!s->first) dx = send_buffer(&s->gradients, M);
    walk_backward(s->m->layers, s->m->n_layers, &s->batch[k], s->stash[k], dy, dx);
    if (!s->first) send(s, &s->gradients, dx);
    arena_free(&incoming);
    arena_free(&s->input[k]);
    s->in_flight--;
}

PipelineResult pipeline_run(Comm *pp, Model *m, const Schedule *schedule, const Batch *batch, size_t micro_batches) {
    Stage s = { .pp = pp, .m = m, .schedule = schedule, .batch = batch, .buffers = arena(MEM_COMMUNICATION),
                .first = pp->rank == 0, .last = pp->rank + 1 == pp->size };
    size_t rows = 0;
    for (size_t k = 0; k < micro_batches; k++) rows = rows_of(&batch[k]) > rows ? rows_of(&batch[k]) : rows;
    comm_connect(pp, COMM_NEIGHBOURS);
    s.stash = host_alloc(micro_batches * sizeof *s.stash);
    s.input = host_alloc(micro_batches * sizeof *s.input);
    s.activations = sends_new(&s, !s.last, pp->rank + 1, rows, micro_batches);
    s.gradients = sends_new(&s, !s.first, pp->rank - 1, rows, micro_batches);
    s.receive[FORWARD].peer = pp->rank - 1;
    s.receive[BACKWARD].peer = pp->rank + 1;
    post_receive(&s, FORWARD, 0);
    post_receive(&s, BACKWARD, 0);
    for (size_t i = 0; i < schedule->n; i++) {
        if (schedule->ops[i].what == FORWARD) stage_forward(&s, i);
        else stage_backward(&s, i);
    }
    sends_done(&s.activations);
    sends_done(&s.gradients);
    arena_free(&s.buffers);
    free(s.stash);
    free(s.input);
    return s.result;
}

double pipeline_loss(Comm *pp, Model *m, const Batch *b) {
    bool first = pp->rank == 0, last = pp->rank + 1 == pp->size;
    size_t M = b->B * b->T, C = m->config.width;
    Arena input = arena(MEM_ACTIVATIONS), output = arena(last ? MEM_WORKSPACE : MEM_COMMUNICATION);
    Tensor x = {0}, y = tensor_new(&output, M, last ? 1 : C);
    comm_connect(pp, COMM_NEIGHBOURS);
    if (!first) {
        x = tensor_new(&input, M, C);
        comm_recv(pp, x, pp->rank - 1);
    }
    walk_forward_only(m->layers, m->n_layers, b, x, y);
    arena_free(&input);
    double loss = last ? tensor_sum(y) : 0;
    if (!last) comm_send(pp, y, pp->rank + 1);     // returns when it was received
    arena_free(&output);
    return loss;
}

// ---------------------------------------------------------------- tied embedding

Comm *pipeline_tied_group(Comm *pp) {
    bool end = pp->rank == 0 || pp->rank + 1 == pp->size;
    Comm *group = comm_split(pp, end ? 0 : 1, pp->rank, "tied");
    if (end && pp->size > 1) return group;
    comm_free(group);
    return NULL;
}

void pipeline_tied_sum(Model *m, Comm *tied) {
    if (!tied) {
        model_fold_tied(m);
        return;
    }
    Unit *mine = model_wte(m) ? model_wte(m) : model_wte_head(m);
    comm_all_reduce(tied, mine->g);                // V*C/tp reals: embedding's + head's part, the same bits on both
}
