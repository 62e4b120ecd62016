// context_alone.c: attention alone in the four kinds of context parallelism, compared with
// attention on one device: results, bytes, memory, and the time of the slowest rank.
#include "03_tensor_parallel/experiments/experiments.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "common/comm/record.h"
#include "common/tensor/random.h"
#include "judge/draw/picture.h"

const AttentionKind *const context_kind[CONTEXT_KINDS] = { &ring_attention, &ring_attention_zigzag,
                                                           &ring_self_attention,
                                                           &ulysses_attention };

const char *const context_name[CONTEXT_KINDS] = { "ring: %s", "zigzag: %s", "RSA: %s",
                                                  "Ulysses: %s" };
static const char *const context_id[] = { "%s.ring", "%s.zigzag", "%s.rsa", "%s.ulysses" };

// ---------------------------------------------------------------- forward and backward

typedef struct {
    size_t sent, kept, buffers; // bytes; buffers: their peak
    Timing forward, backward;
} Attended;

static void begin_together(Run *run) {
    ranks_together(run->world);
    comm_ledger_reset(run->world);
    picture_begin(run, MEM_ACTIVATIONS);
}
static Timing end_together(Run *run, Attended *r) {
    picture_end(run);
    r->sent += comm_bytes_sent(run->world);
    return picture_timing(run);
}

// Runs the forward, and records it for the picture of the two cuts of the ring. kind NULL: on one
// device.
static void forward(Run *run, const AttentionKind *kind, const AttentionHeads *h, Saved *saved,
                    Attended *r) {
    const size_t without = memory_now(MEM_ACTIVATIONS);
    memory_reset_peaks();
    if (kind) begin_together(run);
    record_enter(EVENT_FORWARD, NO_NUMBER);
    attention_forward(h, saved);
    record_leave();
    r->kept = memory_now(MEM_ACTIVATIONS) - without;
    if (!kind) return;
    r->forward = end_together(run, r);
    const bool zigzag = kind == &ring_attention_zigzag;
    const bool written = zigzag == !strcmp(option_text(run, "picture"), "zigzag");
    const int files = written ? PICTURE_NO_LINKS : PICTURE_NO_FILES | PICTURE_NO_LINKS;
    if (zigzag || kind == &ring_attention)
        picture_show(run, zigzag ? "Zigzag chunks, forward" : "Contiguous chunks, forward",
                     files | (zigzag ? PICTURE_ALIKE_ONCE : 0));
}
static void backward(Run *run, const AttentionKind *kind, const AttentionHeads *h, Tensor dqkv,
                     Tensor dmix, Saved *saved, Attended *r) {
    if (kind) begin_together(run);
    record_enter(EVENT_BACKWARD, NO_NUMBER);
    attention_backward(h, dqkv, dmix, saved);
    record_leave();
    if (kind) r->backward = end_together(run, r);
    r->buffers = memory_peak(MEM_COMMUNICATION);
}

// part <- the rows of these positions.
static void take_positions(Tensor part, Tensor whole, Positions own) {
    size_t row = 0;
    for (size_t i = 0; i < own.n; i++) {
        const Range chunk = own.chunk[i];
        tensor_copy(tensor_row_range(part, row, row + range_size(chunk)),
                    tensor_row_range(whole, chunk.lo, chunk.hi));
        row += range_size(chunk);
    }
}
static void put_positions(Snapshot *s, const char *name, size_t T, Tensor part, Positions own) {
    size_t row = 0;
    for (size_t i = 0; i < own.n; i++) {
        const size_t end = row + range_size(own.chunk[i]);
        snapshot_put(s, name, T, part.cols, tensor_row_range(part, row, end), own.chunk[i].lo, 0);
        row = end;
    }
}
// Runs attention of the whole sequence on one device (kind NULL), or of this rank's positions. Puts
// out and the gradients of q, k and v into s. A deviation of 16 makes scores of several hundred,
// whose exponential no float can hold.
static Attended attend(Run *run, const AttentionKind *kind, ContextSizes z, Snapshot *s) {
    const size_t T = z.chunk * run->world->size, A = z.heads * z.D;
    AttentionHeads h = { .B = 1,
                         .T = kind ? z.chunk : T,
                         .D = z.D,
                         .heads = { 0, z.heads },
                         .kind = kind,
                         .cp = run->world,
                         .length = T };
    Positions own = { 1, { { 0, T } } };
    if (kind) own = context_positions_of(&h, run->world->rank);
    Arena a = arena(MEM_WORKSPACE);
    Tensor whole = tensor_new(&a, T, 3 * A), whole_dout = tensor_new(&a, T, A);
    tensor_randomize(whole, random_key(run->seed, 1), 16);
    tensor_randomize(whole_dout, random_key(run->seed, 2), 1);
    Saved saved = saved_new();
    saved.storage = z.storage;
    saved_tensor(&saved, S_QKV, h.T, 3 * A);
    saved_tensor(&saved, S_MIX, h.T, A);
    Tensor dqkv = tensor_like(&a, saved.t[S_QKV]), dmix = tensor_like(&a, saved.t[S_MIX]);
    take_positions(saved.t[S_QKV], whole, own);
    take_positions(dmix, whole_dout, own);
    Data data = data_synthetic(2, T, run->seed); // its batches have the numbers of the positions
    data.positions = own;
    h.position = data_batch(&data, &a, 0, 0, 1, 1).position;
    data_free(&data);

    Attended r = { 0 };
    forward(run, kind, &h, &saved, &r);
    backward(run, kind, &h, dqkv, dmix, &saved, &r);
    put_positions(s, "out", T, saved.t[S_MIX], own);
    put_positions(s, "grad q, k, v", T, dqkv, own);
    saved_free(&saved);
    arena_free(&a);
    return r;
}

// ---------------------------------------------------------------- costs

// The rings have no formula for their times: their steps are played. busy: the mean of the ranks.
static void times(Run *run, int kind, ContextSizes z, const Attended *r) {
    const size_t n = run->world->size;
    const double forward = (double)r->forward.step, backward = (double)r->backward.step;
    if (kind == CONTEXT_RSA || kind == CONTEXT_ULYSSES) {
        check_costs(run, context_id[kind], context_name[kind],
                    (CostRow[]){ { "forward", "forward", "ps",
                                   BY_FORMULA(context_pass_time(kind, z, n, false)), forward },
                                 { "backward", "backward", "ps",
                                   BY_FORMULA(context_pass_time(kind, z, n, true)), backward },
                                 { 0 } });
        return;
    }
    const RingTime ring = context_ring_time(kind, z, n, false);
    const double busy = ring.busy / ((double)n * ring.step);
    check_costs(run, context_id[kind], context_name[kind],
                (CostRow[]){ { "forward", "forward", "ps", BY_PLAY(ring.step), forward },
                             { "busy", "busy in forward", "millionths", BY_PLAY(round(1e6 * busy)),
                               round(1e6 * (1 - r->forward.idle_of_total)) },
                             { "backward", "backward", "ps",
                               BY_PLAY(context_ring_time(kind, z, n, true).step), backward },
                             { 0 } });
}

static void costs(Run *run, int kind, ContextSizes z, const Attended *r) {
    const size_t n = run->world->size;
    const ContextLayer layer = { 1, n * z.chunk, z.heads, z.heads, z.D, z.storage };
    check_costs(run, context_id[kind], context_name[kind],
                (CostRow[]){ { "sent", "sent in both", "bytes",
                               BY_FORMULA(context_layer_bytes(run->world, kind, layer)), r->sent },
                             { "kept", "kept by attention", "bytes",
                               BY_FORMULA(context_kept(kind, z, n, run->world->rank)), r->kept },
                             { "buffers", "buffers, peak", "bytes",
                               BY_FORMULA(context_buffers(kind, z, n)), r->buffers },
                             { 0 } });
    if (clock_config()->simulated) times(run, kind, z, r);
}

// ---------------------------------------------------------------- the four kinds

void context_alone(Run *run, ContextSizes z) {
    // In fp32 a score of 500 is rounded by 3e-5, and so is its exponential, relatively.
    const double limit = z.storage != REALS  ? storage_limit(z.storage)
                         : sizeof(real) == 8 ? 1e-10
                                             : 1e-3;
    comm_connect(run->world, COMM_NEIGHBOURS);
    Snapshot *want = snapshot_new(run);
    ledger_pause();
    if (run->is_root) attend(run, NULL, z, want);
    ledger_resume();
    for (int i = 0; i < CONTEXT_KINDS; i++) {
        Snapshot *got = snapshot_new(run);
        Attended r = attend(run, context_kind[i], z, got);
        char what[48];
        snprintf(what, sizeof what, "split = plain, %s", context_kind[i]->name);
        check_close(run, what, got, want, limit);
        costs(run, i, z, &r);
        snapshot_free(got);
    }
    snapshot_free(want);
}
