// 08_attend.c: attention alone, forward and backward, on all ranks or on one: what it computes, sends, keeps and takes.
#include "03_tensor_parallel/experiments/08_costs.h"
#include <stdlib.h>
#include <string.h>
#include "common/comm/record.h"
#include "common/tensor/random.h"

// A collective ends everywhere at once: the recording starts with equal clocks.
static void begin_together(Run *run) {
    double none = 0;
    comm_all_reduce_doubles(run->world, &none, 1);
    comm_ledger_reset(run->world);
    picture_begin(run, MEM_ACTIVATIONS);
}

// The deviation makes scores of several hundreds.
ContextMeasured context_attend(Run *run, const ContextSizes *z, const AttentionKind *kind, Snapshot *s) {
    const size_t T = z->chunk * run->world->size, A = z->heads * z->D;
    AttentionHeads h = { .B = 1, .T = kind ? z->chunk : T, .D = z->D, .heads = {0, z->heads}, .kind = kind,
                         .cp = run->world, .length = T };
    Positions mine = kind ? context_positions_of(&h, run->world->rank) : (Positions){ 1, { {0, T} } };
    Arena a = arena(MEM_WORKSPACE);
    Tensor whole = tensor_new(&a, T, 3 * A), whole_dout = tensor_new(&a, T, A);
    tensor_randomize(whole, random_key(run->seed, 1), 16);
    tensor_randomize(whole_dout, random_key(run->seed, 2), 1);
    Saved saved = saved_new();
    saved_tensor(&saved, S_QKV, h.T, 3 * A); saved_tensor(&saved, S_MIX, h.T, A);
    Tensor dqkv = tensor_new(&a, h.T, 3 * A), dmix = tensor_new(&a, h.T, A);
    int *position = ints_new(&a, h.T), *host = host_alloc(h.T * sizeof *host);
    for (size_t i = 0, row = 0; i < mine.n; i++)
        for (size_t t = mine.chunk[i].lo; t < mine.chunk[i].hi; t++, row++) {
            tensor_copy(tensor_row_range(saved.t[S_QKV], row, row + 1), tensor_row_range(whole, t, t + 1));
            tensor_copy(tensor_row_range(dmix, row, row + 1), tensor_row_range(whole_dout, t, t + 1));
            host[row] = (int)t;
        }
    ints_upload(position, host, h.T);
    h.position = position;
    free(host);

    ContextMeasured r = {0};
    size_t without = memory_now(MEM_ACTIVATIONS);
    memory_reset_peaks();
    if (kind) begin_together(run);
    record_enter(EVENT_FORWARD, NO_NUMBER);
    attention_forward(&h, &saved);
    record_leave();
    r.kept = memory_now(MEM_ACTIVATIONS) - without;
    if (kind) {
        r.sent = comm_bytes_sent(run->world);
        picture_end(run);
        r.forward = picture_timing(run);
        bool zigzag = kind == &ring_attention_zigzag;
        bool written = zigzag == !strcmp(option_text(run, "picture"), "zigzag");
        if (zigzag || kind == &ring_attention)
            picture_show(run, zigzag ? "zigzag chunks, forward" : "contiguous chunks, forward",
                         written ? PICTURE_CHART : PICTURE_NO_FILES);
        begin_together(run);
    }
    record_enter(EVENT_BACKWARD, NO_NUMBER);
    attention_backward(&h, dqkv, dmix, &saved);
    record_leave();
    if (kind) {
        picture_end(run);
        r.backward = picture_timing(run);
        r.sent += comm_bytes_sent(run->world);
    }
    r.buffers = memory_peak(MEM_COMMUNICATION);
    for (size_t i = 0, row = 0; i < mine.n; row += range_size(mine.chunk[i++])) {
        size_t end = row + range_size(mine.chunk[i]);
        snapshot_put(s, "out", T, A, tensor_row_range(saved.t[S_MIX], row, end), mine.chunk[i].lo, 0);
        snapshot_put(s, "grad q, k, v", T, 3 * A, tensor_row_range(dqkv, row, end), mine.chunk[i].lo, 0);
    }
    saved_free(&saved);
    arena_free(&a);
    return r;
}

