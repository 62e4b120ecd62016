// ranks: 4
// level: extra
// question: Which all-reduce comes next, if ranks finish gradients in different orders?
// vary: LAYERS 5..9, BATCH 6..8, ROWS 4|5
//
// Holds:  every rank has a replica, as in 02_all_reduce, and copies of the fused tensors in flight.
//         Each tensor has the flags `ready` (on this rank) and `agreed` (by all ranks).
// Sends:  in each cycle of the first step every rank but rank 0 sends new names to rank 0, and rank
//         0 broadcasts an answer. In each cycle of later steps the ranks all-reduce a few elements,
//         which count the ranks per tensor. The agreed tensors follow in fused all-reduces,
//         2(N-1)/N of Psi elements per step and rank.
// Saves:  the ranks need no common order, and the tensors of a fused all-reduce share its 2(N-1)
//         latencies.
// Costs:  a tensor waits for the end of the cycle in which the last rank finishes this tensor, and
//         for the answer. A fused tensor is copied into a buffer and back.
// A cycle is one call of coordinator_cycle(), in which the ranks agree on the tensors that all
// ranks have finished. Sergeev and Del Balso 2018 (arXiv 1802.05799), section 7, has tensor fusion.
// The coordinator is that of Horovod's controller.cc and response cache. Left out: a thread for the
// coordinator, names as text, tensors of several types, a rank that leaves.
#include "01_data_parallel/coordinator.h"
#include <stdlib.h>

// A request of the first step is two numbers: the tensor's number, which stands for its name, and
// its size.
enum { REQUEST = 2 };

void coordinator_ready(Coordinator *c, size_t tensor) { c->ready[tensor] = true; }

static void agree(Coordinator *c, size_t tensor) {
    c->agreed[tensor] = true;
    c->list[c->listed++] = tensor;
}

// Counts one vote for each tensor in the n requests of a rank. Only rank 0 counts.
static void count_votes(Coordinator *c, const real *request, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const size_t tensor = (size_t)request[i * REQUEST];
        const size_t size = (size_t)request[i * REQUEST + 1];
        if (tensor >= c->n || size != range_size(c->part[tensor]))
            fault("tensor %zu has %zu elements on another rank, which rank 0 does not expect",
                  tensor, size);
        c->votes[tensor]++;
    }
}

// Makes the ranks agree in the first step. Every rank but rank 0 sends rank 0 the number of its new
// requests, then the requests. Rank 0 broadcasts the number of tensors that are newly ready on all
// ranks, then the numbers of these tensors.
static void negotiate_names(Coordinator *c) {
    Comm *control = c->control;
    real *request = host_alloc(c->n * REQUEST * sizeof(real)), count = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (!c->ready[i] || c->named[i]) continue;
        c->named[i] = true;
        request[(size_t)count * REQUEST] = (real)i;
        request[(size_t)count * REQUEST + 1] = (real)range_size(c->part[i]);
        count++;
    }
    if (control->rank > 0) {
        coordinator_pass(control, &count, 1, TO, 0);
        coordinator_pass(control, request, (size_t)count * REQUEST, TO, 0);
    } else count_votes(c, request, (size_t)count);
    for (size_t rank = 1; control->rank == 0 && rank < control->size; rank++) {
        coordinator_pass(control, &count, 1, FROM, rank);
        coordinator_pass(control, request, (size_t)count * REQUEST, FROM, rank);
        count_votes(c, request, (size_t)count);
    }
    count = 0;
    for (size_t i = 0; control->rank == 0 && i < c->n; i++)
        if (c->votes[i] == control->size && !c->agreed[i]) request[(size_t)count++] = (real)i;
    coordinator_pass(control, &count, 1, BROADCAST, 0);
    coordinator_pass(control, request, (size_t)count, BROADCAST, 0);
    for (size_t i = 0; i < (size_t)count; i++) agree(c, (size_t)request[i]);
    free(request);
}

// Makes the ranks agree, in later steps, on the tensors that are ready on all ranks. A rank's
// question has a field per tensor, which is 1 if the tensor is ready on this rank and not yet
// agreed. The all-reduce that the previous cycle started adds the questions. If a field's sum is
// the number of ranks, all ranks have the tensor. Every rank reads the same sum, so no rank has a
// special role. If tensors are left, starts the all-reduce of a new question, for which the next
// cycle waits.
static void negotiate_counts(Coordinator *c) {
    const CountFields f = coordinator_fields(c->control);
    const size_t elements = tensor_count(c->question);
    real *field = host_alloc(elements * sizeof(real));
    if (c->asked) {
        comm_wait(c->asked);
        c->asked = NULL;
        tensor_download(field, c->question);
        for (size_t i = 0; i < c->n; i++) {
            const size_t shift = f.bits * (i % f.per_element);
            const size_t count =
                (size_t)field[i / f.per_element] >> shift & (((size_t)1 << f.bits) - 1);
            if (count == c->control->size && !c->agreed[i]) agree(c, i);
        }
    }
    for (size_t k = 0; k < elements; k++) field[k] = 0;
    for (size_t i = 0; i < c->n; i++)
        if (c->ready[i] && !c->agreed[i])
            field[i / f.per_element] += (real)((size_t)1 << (f.bits * (i % f.per_element)));
    tensor_upload(c->question, field);
    if (c->listed < c->n) c->asked = comm_start_all_reduce(c->control, c->question);
    free(field);
}

// Starts the all-reduces of list[started, listed). All ranks have the same list, so they start the
// same all-reduces in the same order.
static void start_fused(Coordinator *c, size_t started) {
    // EXERCISE 01.09a (5 points): fuse. Start all-reduces until all of c->list[0, c->listed) are
    // started. `started` of them are started already. Each all-reduce is the next entry f of
    // c->fused, which c->n_fused counts. An all-reduce adds the tensors c->list[f->first, f->end):
    // one tensor, and as many of the next tensors as fit in c->threshold bytes together with this
    // tensor. Tensor i is range_size(c->part[i]) elements. Fill f->buffer (coordinator_fill), and
    // start its all-reduce over c->data in f->request at once, so that it is in flight while the
    // next buffer is filled. Do not wait for the all-reduce, because coordinator_wait() waits.
    while (started < c->listed) {
        Fused *f = &c->fused[c->n_fused++];
        size_t elements = 0;
        f->first = started;
        do elements += range_size(c->part[c->list[started++]]);
        while (started < c->listed &&
               (elements + range_size(c->part[c->list[started]])) * element_size(c->g.element) <=
                   c->threshold);
        f->end = started;
        coordinator_fill(c, f, elements);
        f->request = comm_start_all_reduce(c->data, f->buffer); // 2 (N-1)/N of the buffer's bytes
    }
    // END
}

bool coordinator_cycle(Coordinator *c) {
    const size_t started = c->listed;
    if (c->cached) negotiate_counts(c);
    else negotiate_names(c);
    start_fused(c, started);
    return c->listed == c->n;
}

void coordinator_wait(Coordinator *c) {
    for (size_t k = 0; k < c->n_fused; k++) {
        comm_wait(c->fused[k].request);
        coordinator_empty(c, &c->fused[k]);
    }
    arena_free(&c->buffers);
    for (size_t i = 0; i < c->n; i++) {
        c->ready[i] = false;
        c->agreed[i] = false;
    }
    c->listed = 0;
    c->n_fused = 0;
    c->cached = true;
}
