// grid_linear.c: one linear layer Y = X W + b in q x q blocks, by 09_summa.c, compared with the
// unsplit layer. Costs per rank: received bytes, room for blocks of other ranks, time.
#include "03_tensor_parallel/experiments/experiments.h"
#include "common/comm/record.h"
#include "common/tensor/random.h"
#include "judge/draw/picture.h"

enum { E = sizeof(real) };
enum { KEY_X = 1, KEY_W, KEY_B, KEY_DY };

typedef struct {
    GridLinear z;
    Range m, k, n; // this rank's part of each side
    Tensor x, dx, y, dy;
    Param p[2]; // W and b
} Linear;

// Draws the whole tensor and returns a copy of one block, so every rank can draw its block alone.
static Tensor drawn(Arena *a, Element e, uint64_t key, size_t rows, size_t cols, Range r, Range c) {
    Arena scratch = arena(MEM_REFERENCE);
    Tensor whole = tensor_new(&scratch, rows, cols);
    Tensor block = tensor_shaped(a, tensor_shape(range_size(r), range_size(c), e));
    tensor_randomize(whole, key, 1);
    tensor_copy(block, tensor_col_range(tensor_row_range(whole, r.lo, r.hi), c.lo, c.hi));
    arena_free(&scratch);
    return block;
}
// Returns the blocks of this rank. g NULL: whole tensors.
static Linear linear_new(Run *run, Arena *a, const CommGrid *g, GridLinear z) {
    const SummaCut inner = { z.K, 1 }, outer = { z.N, 1 };
    const Element e = option_storage(run);
    Linear l = { .z = z,
                 .m = { 0, z.M },
                 .k = { 0, z.K },
                 .n = { 0, z.N },
                 .p = { param_describe("W", z.K, z.N, 1), param_describe("b", 0, z.N, 1) } };
    if (g) {
        l.m = summa_range((SummaCut){ z.M, 1 }, g->rows, g->row);
        l.k = summa_range(inner, g->cols, g->col);
        l.n = summa_range(outer, g->cols, g->col);
        summa_cut_matrix(&l.p[0], g, inner, outer);
        summa_cut_vector(&l.p[1], g, outer);
    }
    l.x = drawn(a, e, random_key(run->seed, KEY_X), z.M, z.K, l.m, l.k);
    l.dx = tensor_like(a, l.x);
    l.y = tensor_shaped(a, tensor_shape(range_size(l.m), range_size(l.n), e));
    l.dy = drawn(a, e, random_key(run->seed, KEY_DY), z.M, z.N, l.m, l.n);
    for (size_t i = 0; i < 2; i++) {
        Param *p = &l.p[i];
        uint64_t key = random_key(run->seed, i ? KEY_B : KEY_W);
        p->w = drawn(a, e, key, p->rows, p->cols, p->my_rows, p->my_cols);
        p->g = tensor_new(a, p->w.rows, p->w.cols); // main gradients
        p->gradient_empty = true;
    }
    return l;
}
static void put(Snapshot *s, const Linear *l) {
    const size_t M = l->z.M, K = l->z.K, N = l->z.N;
    snapshot_put(s, "Y", M, N, l->y, l->m.lo, l->n.lo);
    snapshot_put(s, "grad X", M, K, l->dx, l->m.lo, l->k.lo);
    snapshot_put(s, "grad W", K, N, l->p[0].g, l->p[0].my_rows.lo, l->n.lo);
    if (l->p[1].g.rows) snapshot_put(s, "grad b", 1, N, l->p[1].g, 0, l->n.lo);
}
static void unsplit_layer(Run *run, GridLinear z, Snapshot *want) {
    Arena held = arena(MEM_ACTIVATIONS);
    Linear l = linear_new(run, &held, NULL, z);
    linear(l.y, l.x, &l.p[0]);
    op_add_bias(l.y, l.y, l.p[1].w);
    linear_gradients(&l.p[0], &l.p[1], l.x, l.dy);
    op_matmul_nt(l.dx, l.dy, l.p[0].w);
    put(want, &l);
    arena_free(&held);
}

// Measured in one pass on this rank: received bytes, bytes of other ranks' blocks at most, ps.
typedef struct {
    size_t received, panels;
    Picoseconds took;
} Measured;
static void begin(const CommGrid *g, EventKind pass, Measured *r) {
    record_enter(pass, NO_NUMBER);
    comm_ledger_reset(g->in_row);
    comm_ledger_reset(g->in_col);
    memory_reset_peaks();
    r->took = clock_now();
}
static void end(const CommGrid *g, Measured *r) {
    r->took = clock_now() - r->took;
    r->received = comm_bytes_received(g->in_row) + comm_bytes_received(g->in_col);
    r->panels = memory_peak(MEM_COMMUNICATION);
    record_leave();
}

// Checks the costs with closed forms of equal blocks. Per product a rank receives q-1 of its row's
// q blocks of X, and q-1 of its column's q blocks of W. A turn needs room for one block of each,
// unless the rank owns it.
static void layer_costs(Run *run, const CommGrid *g, GridLinear z, const Measured r[2]) {
    const size_t q = g->cols, M = z.M, K = z.K, N = z.N;
    const size_t x = M * K / (q * q), w = K * N / (q * q);
    const size_t e = element_size(option_storage(run)); // gradients of weights are reals
    const size_t back_w = (q - 1) * w * (e + E);
    // Row 0 holds the bias. The reduce of its gradient starts at row 1.
    const size_t bias = q > 1 && g->row != 0 ? N / q * e : 0;
    const size_t back_bias = q > 1 && g->row != 1 ? N / q * E : 0;
    size_t most = 0;
    for (size_t l = 0; l < q; l++) {
        size_t room = (g->col != l ? x : 0) + (g->row != l ? w : 0);
        if (room > most) most = room;
    }
    const double product = work_product(M / q, N / q, K / q).time, times = (double)q;
    const double turns = times * (chain_time(q, x * e) + chain_time(q, w * e) + product);
    const double gradient = times * (chain_time(q, x * e) + chain_time(q, w * E) + product);
    const double all[] = { turns + chain_time(q, N / q * e),
                           turns + gradient + chain_time(q, N / q * E) };
    check_costs(run, "layer.%s", "one layer: %s",
                (CostRow[]){ { "forward.received", "received in forward", "bytes",
                               BY_FORMULA((q - 1) * (x + w) * e + bias), r[0].received },
                             { "backward.received", "received in backward", "bytes",
                               BY_FORMULA((q - 1) * 2 * x * e + back_w + back_bias),
                               r[1].received },
                             { "panels", "panels", "bytes", BY_FORMULA(most * e), r[0].panels },
                             { clock_config()->simulated ? "forward.time" : NULL,
                               "forward, q turns", "ps", BY_FORMULA(all[0]), (double)r[0].took },
                             { "backward.time", "backward, 2q turns", "ps", BY_FORMULA(all[1]),
                               (double)r[1].took },
                             { 0 } });
    if (clock_config()->simulated)
        picture_show(run, "One linear layer, blocks on a grid", PICTURE_CHART);
}

void grid_linear_compare(Run *run, const CommGrid *g, GridLinear z) {
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    Arena held = arena(MEM_ACTIVATIONS);
    const SummaCut inner = { z.K, 1 };
    Measured r[2]; // forward, backward
    Linear l = linear_new(run, &held, g, z);
    picture_begin(run, MEM_COMMUNICATION);
    begin(g, EVENT_FORWARD, &r[0]);
    summa_linear_forward(g, inner, l.y, l.x, l.p);
    end(g, &r[0]);
    begin(g, EVENT_BACKWARD, &r[1]);
    summa_linear_backward(g, inner, l.dx, l.x, l.dy, l.p);
    end(g, &r[1]);
    picture_end(run);
    put(got, &l);
    arena_free(&held);
    ledger_pause();
    if (run->is_root) unsplit_layer(run, z, want);
    ledger_resume();
    check_close(run, "one linear layer = unsplit", got, want, rounding_limit(run));
    if (z.M % g->rows == 0 && z.K % g->rows == 0 && z.N % g->rows == 0) layer_costs(run, g, z, r);
    snapshot_free(got);
    snapshot_free(want);
}
