// attend.c: the attention of one layer, without the rest of a model, in any kind of context
// parallelism: its comparison with one device, and the closed forms of its costs.
#include "03_tensor_parallel/experiments/attend.h"
#include "common/comm/record.h"
#include "common/model/costs.h"
#include "common/tensor/random.h"
#include "judge/frame/training.h"
#include <stdio.h>
#include <stdlib.h>

// part <- these positions of each sequence of the whole; or, with a snapshot, puts part as these
// positions.
static void positions_of(Tensor part, Tensor whole, Positions own, Snapshot *s, const char *name) {
    const size_t B = part.rows / positions_count(&own), T = whole.rows / B;
    for (size_t i = 0, row = 0; i < B * own.n; i++) {
        const Range chunk = own.chunk[i % own.n];
        const size_t lo = i / own.n * T + chunk.lo;
        Tensor rows = tensor_row_range(part, row, row + range_size(chunk));
        if (s) snapshot_put(s, name, whole.rows, part.cols, rows, lo, 0);
        else tensor_copy(rows, tensor_row_range(whole, lo, lo + range_size(chunk)));
        row += range_size(chunk);
    }
}

// kind NULL: all positions on this rank.
static void run_attention(Run *run, const AttentionKind *kind, AttendSizes z, Snapshot *s,
                          const char *title, Attended *r) {
    Comm *cp = run->world;
    const size_t A = z.heads * z.D, W = A + 2 * z.key_heads * z.D;
    Positions own = { 1, { { 0, z.T } } };
    if (kind) own = context_positions(z.T, cp->size, cp->rank, kind);
    const size_t T = positions_count(&own), rows = z.B * T;
    Arena a = arena(MEM_WORKSPACE);
    AttentionHeads h = { .B = z.B,
                         .T = T,
                         .D = z.D,
                         .heads = { 0, z.heads },
                         .ratio = z.heads / z.key_heads,
                         .drop = z.drop,
                         .theta = z.theta,
                         .key = run->seed,
                         .kind = kind,
                         .cp = kind ? cp : NULL,
                         .length = z.T };
    int *position = ints_new(&a, rows), *host = host_alloc(rows * sizeof *host);
    for (size_t i = 0, row = 0; i < z.B * own.n; i++)
        for (size_t t = own.chunk[i % own.n].lo; t < own.chunk[i % own.n].hi; t++)
            host[row++] = (int)t;
    ints_upload(position, host, rows);
    free(host);
    h.position = position;
    Tensor whole = tensor_new(&a, z.B * z.T, W), whole_dout = tensor_new(&a, z.B * z.T, A);
    tensor_randomize(whole, random_key(run->seed, 1), 1);
    tensor_randomize(whole_dout, random_key(run->seed, 2), 1);
    Saved saved = saved_new();
    saved.storage = option_storage(run);
    saved_tensor(&saved, S_QKV, rows, W);
    saved_tensor(&saved, S_MIX, rows, A);
    Tensor dqkv = tensor_like(&a, saved.t[S_QKV]), dmix = tensor_like(&a, saved.t[S_MIX]);
    positions_of(saved.t[S_QKV], whole, own, NULL, NULL);
    positions_of(dmix, whole_dout, own, NULL, NULL);

    const size_t without = memory_now(MEM_ACTIVATIONS);
    memory_reset_peaks();
    if (kind) {
        double none = 0;
        comm_all_reduce_doubles(cp, &none, 1); // all ranks begin at the same time
        comm_ledger_reset(cp);
        picture_begin(run, MEM_ACTIVATIONS);
    }
    r->flops = -clock_flops();
    record_enter(EVENT_FORWARD, NO_NUMBER);
    attention_forward(&h, &saved);
    record_leave();
    r->kept = memory_now(MEM_ACTIVATIONS) - without;
    if (kind) {
        picture_end(run);
        r->forward = picture_timing(run);
        if (title) picture_show(run, title, PICTURE_CHART);
        picture_begin(run, MEM_ACTIVATIONS);
    }
    record_enter(EVENT_BACKWARD, NO_NUMBER);
    attention_backward(&h, dqkv, dmix, &saved);
    record_leave();
    r->flops += clock_flops();
    r->buffers = memory_peak(MEM_COMMUNICATION);
    if (kind) {
        picture_end(run);
        r->backward = picture_timing(run);
        r->sent = comm_bytes_sent(cp);
        for (size_t k = 0; k < COMM_KINDS; k++) r->calls += cp->ledger[k].calls;
    }
    positions_of(saved.t[S_MIX], whole, own, s, "output");
    positions_of(dqkv, whole, own, s, "gradients of q, k, v");
    saved_free(&saved);
    arena_free(&a);
}

Snapshot *attend_one_device(Run *run, AttendSizes z) {
    Snapshot *s = snapshot_new(run);
    Attended none = { 0 };
    ledger_pause();
    if (run->is_root) run_attention(run, NULL, z, s, NULL, &none);
    ledger_resume();
    return s;
}

Attended attend(Run *run, const AttentionKind *kind, AttendSizes z, Snapshot *want,
                const char *title) {
    Snapshot *got = snapshot_new(run);
    Attended r = { 0 };
    char what[80];
    comm_connect(run->world, COMM_NEIGHBOURS);
    run_attention(run, kind, z, got, title, &r);
    snprintf(what, sizeof what, "%s = one device, %zu positions, %zu key heads", kind->name, z.T,
             z.key_heads);
    check_close(run, what, got, want, rounding_limit(run));
    snapshot_free(got);
    return r;
}

// ---------------------------------------------------------------- the closed forms

void attend_costs(Run *run, const AttentionKind *kind, AttendSizes z, const Attended *r,
                  const char *id) {
    const size_t n = run->world->size, rank = run->world->rank, c = z.T / n;
    const size_t e = element_size(option_storage(run)), real_size = sizeof(real);
    const size_t keys = part_size(z.key_heads, n, rank), ratio = z.heads / z.key_heads;
    // Bytes of k of a chunk, and of its gradient, which is a sum: reals in any storage.
    const double N = (double)n, block = (double)(c * z.key_heads * z.D * e),
                 sums = (double)(c * z.key_heads * z.D * real_size);
    // The rings. A head computes the pairs of a query and a key that the causal mask leaves.
    double sent = n > 1 ? 4 * (N - 1) * block + 2 * N * sums : 0, calls = n > 1 ? 3 * N - 2 : 0;
    // Blocks of k | v: here, and on more than two ranks coming. dk | dv: also leaving.
    double buffers = (n > 2 ? 4 : 2) * block + (n > 1 ? 6 : 2) * sums;
    double kept = (double)(c * z.heads * real_size), products = 7, heads = (double)z.heads;
    size_t pairs = c * (c + 1) / 2 + (kind == &ring_attention ? rank * c * c : (n - 1) * c * c / 2);
    if (kind == &ring_self_attention) {
        sent = 4 * (N - 1) * (block + sums);
        calls = 4 * (N - 1) + 2;
        buffers = N * sums; // dk of all positions
        kept = (double)(z.heads * c * z.T * real_size);
        products = 6;
        pairs = c * z.T;
    } else if (kind == &ulysses_attention) {
        heads = (double)(keys * ratio);
        sent = (double)(4 * (ratio + 1) * (n - 1) * c * ceil_div(z.key_heads, n) * z.D * e);
        calls = 4;
        // Two copies of the larger all-to-all: q, k and v.
        buffers = (double)(2 * (ratio + 2) * n * c * ceil_div(z.key_heads, n) * z.D * e);
        kept = (double)(z.T * (keys * ratio * (2 * z.D * e + real_size) + 2 * keys * z.D * e));
        pairs = z.T * (z.T + 1) / 2;
    }
    const double flops = products * heads * work_product(pairs, 1, z.D).flops;
    char ids[32], names[32];
    snprintf(ids, sizeof ids, "%%s.%s", id);
    snprintf(names, sizeof names, "%s: %%s", id);
    check_costs(
        run, ids, names,
        (const CostRow[]){
            { "sent", "sent in both", "bytes", BY_FORMULA(sent), (double)r->sent },
            { "calls", "sends and collectives", "calls", BY_FORMULA(calls), (double)r->calls },
            { "kept", "kept for backward", "bytes", BY_FORMULA(kept), (double)r->kept },
            { "buffers", "buffers, peak", "bytes", BY_FORMULA(buffers), (double)r->buffers },
            { "flops", "computed", "FLOPs", BY_FORMULA(flops), r->flops },
            { 0 } });
}
