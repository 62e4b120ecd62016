// ranks: 4
// level: core
// question: Can the bubble shrink without more micro-batches, and what does that cost?
// vary: layers 17..20, width 18|24, context 7..13, vocab 31..50
//
// Holds: stage i has v chunks of the model. The model has v p parts, as equal as possible, and the
//     chunks of stage i are parts i, p + i, ..., (v-1)p + i. Part 0 also has the embedding. The
//     last part also has the last norm and the head. Both parts have wte.
// Sends: per micro-batch y [B*T, C] forward and dx [B*T, C] back over each of the pv - 1
//     boundaries. The link from the last stage to the first stage is new. Per step the first and
//     the last stage all-reduce wte's gradient, V*C elements. All stages sum 1 and 12L + 4 doubles.
// Saves: idle time. If parts are equal and messages take no time, a step takes (m + (p-1)/v)(f+b),
//     because the pipeline fills and drains in chunks. f and b are the times of a stage's forward
//     and backward of a micro-batch through all v chunks.
// Costs: about v times as many messages. For v > 1 stage i has at most (v-1)p + 2(p-1-i) + 1 chunks
//     in flight, and a chunk is 1/v of a stage. With 1F1B at most p-i micro-batches are in flight,
//     each through the whole stage.
// Every bit must equal that of one device that accumulates the same micro-batches, because each
// chunk runs its backwards in the same order, micro-batch 0 first.
// Narayanan et al. 2021 (PTD-P), section 2.2.2; scatter/gather: section 4.1. v = 1 is 1F1B.
// Left out: a number of micro-batches that p does not divide, because the order takes groups of p.
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include <stdlib.h>

// Returns the n-th forward or backward in the order of Megatron-LM, which is the same for all
// stages. p micro-batches go through chunk 0, then the same p micro-batches go through chunk 1, and
// so on to chunk v - 1. Then the next p micro-batches follow. The backwards have the same order,
// but begin with the last chunk.
static PipeOp turn(PipeWhat what, size_t n, size_t p, size_t v) {
    size_t group = n / (p * v), chunk = n % (p * v) / p;
    return (PipeOp){ .what = what,
                     .micro_batch = group * p + n % p,
                     .chunk = what == FORWARD ? chunk : v - 1 - chunk };
}

// Returns the list of stage i. These are the lists for p = 2, v = 2, m = 4. F1c0 is the forward of
// micro-batch 1 through chunk 0. A micro-batch visits stages 0, 1, 0, 1.
//     stage 0   F0c0 F1c0 F0c1 F1c1 F2c0 B0c1 F3c0 B1c1 F2c1 B0c0 F3c1 B1c0 B2c1 B3c1 B2c0 B3c0
//     stage 1   F0c0 F1c0 F0c1 B0c1 F1c1 B1c1 F2c0 B0c0 F3c0 B1c0 F2c1 B2c1 F3c1 B3c1 B2c0 B3c0
Schedule schedule_interleaved(size_t p, size_t m, size_t v, size_t i) {
    Schedule s = { 0 };
    // EXERCISE 05.03a (5 points): write the list of stage i for p stages, v chunks and m
    // micro-batches. First comes the warm-up, then a forward and a backward in turn, then the last
    // backwards. turn() returns the n-th forward and the n-th backward. In its warm-up the last
    // stage runs the first group through all chunks but the last one. Each other stage runs 2
    // forwards more than its next stage. If v = 1, each other stage runs 1 forward more, because
    // the list is 1F1B's. No stage has more than m v forwards. Calls: turn, schedule_add_op.
    size_t all = m * v, ahead = v == 1 ? p - 1 - i : 2 * (p - 1 - i) + (v - 1) * p;
    if (ahead > all) ahead = all;
    for (size_t n = 0; n < all + ahead; n++) {
        if (n < all) schedule_add_op(&s, turn(FORWARD, n, p, v));
        if (n >= ahead) schedule_add_op(&s, turn(BACKWARD, n - ahead, p, v));
    }
    // END
    return s;
}
// The number of forwards in the warm-up contains 2 (p-1-i) and not p-1-i, for two reasons. The
// first reason is the time of messages. With p-1-i the next stage needs a chunk's output as soon as
// this stage has computed the output. With 2 (p-1-i) the next stage has another op to run while the
// message travels. If messages take no time, both warm-ups are equally fast. The second reason is
// that two ranks match their messages by the order alone. If p = 2 and v > 1, the next and the
// previous stage are the same rank. With p-1-i stage 0 would run F1c1 B0c1 F2c0, so stage 0 would
// send dx of micro-batch 0 before y of micro-batch 2. But stage 1 runs F2c0 before B0c0, so stage 1
// would take dx of micro-batch 0 for x of micro-batch 2. If v = 1, all messages from one rank to
// another are of one kind, so p-1-i is enough.

// Runs the list with its messages. The messages go round a ring, y to the next stage and dx to the
// previous stage. pipeline_begin() has set s.next = (i + 1) % p and s.before = (i + p - 1) % p. So
// y of the last stage is x of the FIRST stage, a chunk later. Only part 0 receives no x, and only
// part v p - 1 sends no y. No stage waits for its sends before the end of the list, because in the
// warm-up all stages send y round the ring. If each stage waited until its y is received, no stage
// would receive. For simplicity each message keeps its own buffer to the end of the step. The
// executor (04_pipeline_naive/executor.c) has only two send buffers for activations and two for
// gradients.
PipelineResult pipeline_interleaved(Comm *pp, Model *model, const Batch *batch, size_t m) {
    PipelineStage s = interleaved_begin(pp, model, batch, m);
    size_t p = pp->size, i = pp->rank, v = s.chunks;
    Schedule list = schedule_interleaved(p, m, v, i);
    Arena sent = arena(MEM_COMMUNICATION);
    Request **request = host_alloc(list.n * sizeof *request);
    for (size_t n = 0; n < list.n; n++) {
        PipeOp op = list.ops[n];
        // s.micro has chunk 0's micro-batches, then those of chunk 1, and so on.
        size_t k = op.chunk * m + op.micro_batch;
        PipelineBatch *b = &s.micro[k];
        bool first = op.chunk == 0 && i == 0, last = op.chunk + 1 == v && i + 1 == p;
        Arena incoming = arena(MEM_COMMUNICATION);
        if (op.what == FORWARD) {
            if (!first) b->x = tensor_shaped(&b->input, b->in);
            if (!first) comm_recv(pp, b->x, s.before); // B*T*C elements: x
            if (!last) b->y = tensor_shaped(&sent, b->out);
            pipeline_forward(&s, k);                                   // the layers of this chunk
            if (!last) request[n] = comm_start_send(pp, b->y, s.next); // B*T*C elements: y
        } else {
            if (!last) b->dy = tensor_shaped(&incoming, b->out);
            if (!last) comm_recv(pp, b->dy, s.next); // B*T*C elements: dy
            if (!first) b->dx = tensor_shaped(&sent, b->in);
            pipeline_backward(&s, k);
            if (!first) request[n] = comm_start_send(pp, b->dx, s.before); // B*T*C elements: dx
        }
        arena_free(&incoming);
    }
    for (size_t n = 0; n < list.n; n++) comm_wait(request[n]);
    free(request);
    arena_free(&sent);
    schedule_free(&list);
    return pipeline_end(&s);
}

// Sends y by scatter/gather. The t tensor-parallel ranks of a stage all have the same y [B*T, C],
// and all t ranks of the receiving stage need y. So each rank sends 1/t of y over the link between
// nodes. The receiver is the rank of the receiving stage with the same number in tp. On that stage
// an all-gather over the link inside the node puts y together. pp has the ranks of all stages with
// this number in tp.
void pipeline_send_scattered(Comm *pp, Comm *tp, Tensor y, size_t to) {
    Range r = shard_range(tensor_count(y), tp->size, tp->rank);
    comm_send(pp, tensor_flat_range(y, r.lo, r.hi), to); // B*T*C/t elements, in place of B*T*C
}
void pipeline_recv_gathered(Comm *pp, Comm *tp, Tensor x, size_t from) {
    Range r = shard_range(tensor_count(x), tp->size, tp->rank);
    Tensor part = tensor_flat_range(x, r.lo, r.hi);
    comm_recv(pp, part, from);
    comm_all_gather(tp, x, part); // (t-1) B*T*C/t elements inside the node; each rank has 1/t
}
