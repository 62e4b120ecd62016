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

// A send on its way, and the buffer it leaves from.
typedef struct { Request *request; Arena arena; } Outgoing;

static Tensor outgoing_buffer(Outgoing *o, size_t rows, size_t cols) {
    comm_wait(o->request);                         // the message before it in this direction is copied
    o->request = NULL;
    arena_free(&o->arena);
    return tensor_new(&o->arena, rows, cols);
}
static void outgoing_done(Outgoing *o) {
    comm_wait(o->request);
    arena_free(&o->arena);
}

// What one stage holds during a step.
typedef struct {
    Comm *pp;
    Model *m;
    const Batch *batch;
    Flight **flight;                               // [micro-batch]: kept from its forward to its backward
    Arena *input;                                  // [micro-batch]: what was received from the stage before
    Outgoing next, previous;
    bool first, last;
    size_t in_flight;
    PipelineResult result;
} Stage;

static void stage_forward(Stage *s, size_t k) {
    const Batch *b = &s->batch[k];
    size_t M = b->B * b->T;
    Tensor x = {0}, y;
    Arena losses = arena(MEM_WORKSPACE);
    s->input[k] = arena(MEM_ACTIVATIONS);
    if (!s->first) {
        x = tensor_new(&s->input[k], M, s->m->config.width);
        comm_recv(s->pp, x, s->pp->rank - 1);                                      // B*T*C reals from the stage before
    }
    y = s->last ? tensor_new(&losses, M, 1) : outgoing_buffer(&s->next, M, s->m->config.width);
    s->flight[k] = walk_forward(s->m->layers, s->m->n_layers, b, x, y);
    if (s->last) s->result.loss += tensor_sum(y);
    else s->next.request = comm_start_send(s->pp, y, s->pp->rank + 1);             // B*T*C reals to the next stage
    arena_free(&losses);
    if (++s->in_flight > s->result.in_flight) s->result.in_flight = s->in_flight;
}

static void stage_backward(Stage *s, size_t k) {
    const Batch *b = &s->batch[k];
    size_t M = b->B * b->T, C = s->m->config.width;
    Arena incoming = arena(MEM_WORKSPACE);
    Tensor dy = tensor_new(&incoming, M, s->last ? 1 : C), dx = {0};
    if (s->last) tensor_fill(dy, (real)b->token_weight);                           // 1 / tokens of the global batch
    else comm_recv(s->pp, dy, s->pp->rank + 1);                                    // B*T*C reals come back
    if (!s->first) dx = outgoing_buffer(&s->previous, M, C);
    walk_backward(s->m->layers, s->m->n_layers, b, s->flight[k], dy, dx);
    if (!s->first) s->previous.request = comm_start_send(s->pp, dx, s->pp->rank - 1);
    arena_free(&incoming);
    arena_free(&s->input[k]);
    s->in_flight--;
}

PipelineResult pipeline_run(Comm *pp, Model *m, const Schedule *schedule, const Batch *batch, size_t micro_batches) {
    Stage s = { .pp = pp, .m = m, .batch = batch, .first = pp->rank == 0, .last = pp->rank + 1 == pp->size };
    s.flight = host_alloc(micro_batches * sizeof *s.flight);
    s.input = host_alloc(micro_batches * sizeof *s.input);
    s.next.arena = s.previous.arena = arena(MEM_COMMUNICATION);
    for (size_t i = 0; i < schedule->n; i++) {
        PipeOp op = schedule->ops[i];
        if (op.what == FORWARD) stage_forward(&s, op.micro_batch);
        else stage_backward(&s, op.micro_batch);
    }
    outgoing_done(&s.next);
    outgoing_done(&s.previous);
    free(s.flight);
    free(s.input);
    return s.result;
}

double pipeline_loss(Comm *pp, Model *m, const Batch *b) {
    bool first = pp->rank == 0, last = pp->rank + 1 == pp->size;
    size_t M = b->B * b->T, C = m->config.width;
    Arena input = arena(MEM_ACTIVATIONS), output = arena(last ? MEM_WORKSPACE : MEM_COMMUNICATION);
    Tensor x = {0}, y = tensor_new(&output, M, last ? 1 : C);
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
