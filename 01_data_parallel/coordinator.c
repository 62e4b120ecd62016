// coordinator.c: the memory of a coordinator, the messages with which ranks agree, the fields of a
// question, and copies to and from the buffer of a fused all-reduce. The copies take time on the
// simulated clock.
#include "01_data_parallel/coordinator.h"
#include <stdlib.h>

Coordinator coordinator_new(Comm *control, Comm *data, Tensor g, const Range *part, size_t n,
                            size_t threshold) {
    Coordinator c = { control,
                      data,
                      g,
                      n,
                      part,
                      threshold,
                      .state = arena(MEM_WORKSPACE),
                      .buffers = arena(MEM_COMMUNICATION) };
    c.ready = host_alloc(n * sizeof *c.ready);
    c.agreed = host_alloc(n * sizeof *c.agreed);
    c.named = host_alloc(n * sizeof *c.named);
    c.votes = host_alloc(n * sizeof *c.votes);
    c.list = host_alloc(n * sizeof *c.list);
    c.fused = host_alloc(n * sizeof *c.fused);
    c.question = tensor_new(&c.state, 1, ceil_div(n, coordinator_fields(control).per_element));
    comm_connect(control, COMM_EVERYBODY);
    return c;
}
void coordinator_free(Coordinator *c) {
    free(c->ready);
    free(c->agreed);
    free(c->named);
    free(c->votes);
    free(c->list);
    free(c->fused);
    arena_free(&c->state);
    arena_free(&c->buffers);
}

void coordinator_pass(Comm *control, real *number, size_t n, ControlWay way, size_t peer) {
    if (n == 0) return;
    Arena a = arena(MEM_COMMUNICATION);
    Tensor t = tensor_new(&a, 1, n);
    tensor_upload(t, number);
    if (way == TO) comm_send(control, t, peer);
    if (way == FROM) comm_recv(control, t, peer);
    if (way == BROADCAST) comm_broadcast(control, t, peer);
    tensor_download(number, t);
    arena_free(&a);
}

CountFields coordinator_fields(const Comm *c) {
    CountFields f = { 1, 0 };
    while ((size_t)1 << f.bits <= c->size) f.bits++;
    f.per_element = 24 / f.bits;
    return f;
}

// Copies the tensors of f from g to the buffer, or back.
static void copy(const Coordinator *c, const Fused *f, bool to_buffer) {
    size_t at = 0;
    for (size_t i = f->first; i < f->end; i++) {
        const Range part = c->part[c->list[i]];
        Tensor in_g = tensor_flat_range(c->g, part.lo, part.hi);
        Tensor in_buffer = tensor_flat_range(f->buffer, at, at + range_size(part));
        tensor_copy(to_buffer ? in_buffer : in_g, to_buffer ? in_g : in_buffer);
        clock_charge_copy(range_size(part) * element_size(c->g.element));
        at += range_size(part);
    }
}
void coordinator_fill(Coordinator *c, Fused *f, size_t elements) {
    const Range part = c->part[c->list[f->first]];
    if (f->end - f->first == 1) {
        f->buffer = tensor_flat_range(c->g, part.lo, part.hi);
        return;
    }
    f->buffer = tensor_shaped(&c->buffers, tensor_shape(1, elements, c->g.element));
    copy(c, f, true);
}
void coordinator_empty(const Coordinator *c, const Fused *f) {
    if (f->end - f->first > 1) copy(c, f, false);
}
