// attend.c: compares a kind of context parallelism with one device: attention alone, and the
// training of a GPT.
#include "03_tensor_parallel/experiments/experiments.h"
#include <stdlib.h>
#include "common/comm/record.h"
#include "common/tensor/random.h"

const AttentionKind *const context_kind[CONTEXT_KINDS] = { &ring_attention, &ring_attention_zigzag,
                                                           &ring_self_attention,
                                                           &ulysses_attention };

// ---------------------------------------------------------------- forward and backward

// Copies the positions `own` of each sequence of `whole` to part. If s is not NULL, copies nothing,
// and puts part into s as these positions of `whole`.
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
// Returns the position of each row, if a rank has the positions `own` of each of B sequences.
static int *numbers_of(Arena *a, Positions own, size_t B) {
    const size_t rows = B * positions_count(&own);
    int *position = ints_new(a, rows), *host = host_alloc(rows * sizeof *host);
    for (size_t i = 0, row = 0; i < B * own.n; i++)
        for (size_t t = own.chunk[i % own.n].lo; t < own.chunk[i % own.n].hi; t++)
            host[row++] = (int)t;
    ints_upload(position, host, rows);
    free(host);
    return position;
}

// pass_begins() starts to record one pass. pass_ends() adds the pass's messages to r and returns
// the times. If `alone`, the pass runs on one device and is not recorded.
static void pass_begins(Run *run, bool alone, EventKind pass) {
    if (!alone) {
        ranks_together(run->world);
        comm_ledger_reset(run->world);
        picture_begin(run, MEM_ACTIVATIONS);
    }
    record_enter(pass, NO_NUMBER);
}
static Timing pass_ends(Run *run, bool alone, Attended *r) {
    record_leave();
    if (alone) return (Timing){ 0 };
    picture_end(run);
    r->sent += comm_bytes_sent(run->world);
    for (size_t k = 0; k < COMM_KINDS; k++) r->calls += run->world->ledger[k].calls;
    return picture_timing(run);
}

// Runs forward and backward of attention. If kind is NULL, this rank has all positions. Puts the
// output and the gradients of q, k, v into s.
static Attended run_attention(Run *run, const AttentionKind *kind, ContextSizes z, Snapshot *s,
                              const char *title, int picture) {
    Comm *cp = run->world;
    const size_t A = z.heads * z.D, W = A + 2 * z.key_heads * z.D;
    Positions own = { 1, { { 0, z.T } } };
    if (kind) own = context_positions(z.T, cp->size, cp->rank, kind);
    const size_t rows = z.B * positions_count(&own);
    Arena a = arena(MEM_WORKSPACE);
    const AttentionHeads h = { .B = z.B,
                               .T = positions_count(&own),
                               .D = z.D,
                               .heads = { 0, z.heads },
                               .ratio = z.heads / z.key_heads,
                               .drop = z.drop,
                               .theta = z.theta,
                               .key = run->seed,
                               .kind = kind,
                               .cp = kind ? cp : NULL,
                               .length = z.T,
                               .position = numbers_of(&a, own, z.B) };
    Tensor whole = tensor_new(&a, z.B * z.T, W), whole_dout = tensor_new(&a, z.B * z.T, A);
    tensor_randomize(whole, random_key(run->seed, 1), z.deviation);
    tensor_randomize(whole_dout, random_key(run->seed, 2), 1);
    Saved saved = saved_new();
    saved.storage = z.storage;
    saved_tensor(&saved, S_QKV, rows, W);
    saved_tensor(&saved, S_MIX, rows, A);
    Tensor dqkv = tensor_like(&a, saved.t[S_QKV]), dmix = tensor_like(&a, saved.t[S_MIX]);
    positions_of(saved.t[S_QKV], whole, own, NULL, NULL);
    positions_of(dmix, whole_dout, own, NULL, NULL);

    const size_t without = memory_now(MEM_ACTIVATIONS);
    Attended r = { .flops = -clock_flops() };
    memory_reset_peaks();
    pass_begins(run, !kind, EVENT_FORWARD);
    attention_forward(&h, &saved);
    r.kept = memory_now(MEM_ACTIVATIONS) - without;
    r.forward = pass_ends(run, !kind, &r);
    if (title) picture_show(run, title, picture);
    pass_begins(run, !kind, EVENT_BACKWARD);
    attention_backward(&h, dqkv, dmix, &saved);
    r.buffers = memory_peak(MEM_COMMUNICATION);
    r.backward = pass_ends(run, !kind, &r);
    r.flops += clock_flops();
    positions_of(saved.t[S_MIX], whole, own, s, "out");
    positions_of(dqkv, whole, own, s, "grad q, k, v");
    saved_free(&saved);
    arena_free(&a);
    return r;
}

Snapshot *attend_one_device(Run *run, ContextSizes z) {
    Snapshot *s = snapshot_new(run);
    ledger_pause();
    if (run->is_root) run_attention(run, NULL, z, s, NULL, 0);
    ledger_resume();
    return s;
}

Attended attend(Run *run, int kind, ContextSizes z, Snapshot *want, const char *title,
                int picture) {
    // In fp32 neighbouring numbers near 500 differ by 3e-5. So the exponential of such a score has
    // a relative error of about 3e-5.
    double limit = sizeof(real) == 8 || z.deviation <= 1 ? LIMIT_ROUNDING : 1e-3;
    if (z.storage != REALS) limit = storage_limit(z.storage);
    Snapshot *got = snapshot_new(run);
    const char *name = context_kind[kind]->name;
    comm_connect(run->world, COMM_NEIGHBOURS);
    const Attended r = run_attention(run, context_kind[kind], z, got, title, picture);
    check_close(run,
                page_text(run, "%s = one device, %zu positions, %zu key heads", name, z.T,
                          z.key_heads),
                got, want, limit);
    snapshot_free(got);
    return r;
}
void attend_uneven(Run *run, int kind, ContextSizes z) {
    const size_t n = run->world->size;
    z.B = 2;
    z.T = n * 21 + (n > 1);
    z.key_heads = z.heads / 2;
    z.drop = 0.1;
    z.theta = 100;
    Snapshot *want = attend_one_device(run, z);
    attend(run, kind, z, want, NULL, 0);
    snapshot_free(want);
}

// ---------------------------------------------------------------- a GPT

static const ModelConfig tiny = {
    .layers = 2, .width = 27, .heads = 9, .context = 27, .vocab = 61, .dropout = 0.1
};
void attend_trainings(Run *run, int first, int last) {
    enum { SEQUENCES = 3 };
    ModelConfig c = tiny;
    c.seed = run->seed;
    Training t = gpt_training(c, SEQUENCES);
    training_store(run, &t);
    for (int kind = first; kind <= last; kind++) {
        CutGpt cut = { .way = WAY_RING, .world = run->world, .attention = context_kind[kind] };
        const char *what = page_text(run, "split = unsplit, %s", context_kind[kind]->name);
        training_both(run, what, &t, gpt_train, &cut); // SGD, then AdamW
    }
    data_free(&t.data);
}
