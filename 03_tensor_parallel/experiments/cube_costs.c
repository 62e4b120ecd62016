// cube_costs.c: predicts bytes, work and memory of one rank of a cube, from sizes alone. The
// predictions count the calls of 11_cube.c, cube_layers.c and cube_model.c, and execute none.
#include "03_tensor_parallel/experiments/experiments.h"
#include "03_tensor_parallel/kept.h"
#include "common/model/block.h"

CubePlace cube_place_of(const ModelConfig *c, size_t q, size_t rank, bool gather_again) {
    return (CubePlace){ c, q, rank / q % q, rank % q, rank / (q * q), gather_again };
}
double cube_bytes(const CubeTraffic *t) {
    return t->bytes[CUBE_ROW] + t->bytes[CUBE_COL] + t->bytes[CUBE_DEPTH];
}

// ---------------------------------------------------------------- sizes of one rank

typedef struct {
    size_t B;        // sequences of the rank's layer of the cube
    size_t straight; // sequences of the rank in the layout of a block's input
    size_t swapped;  // sequences of the rank in the swapped layout
    size_t M;        // tokens of `straight`
    size_t N;        // tokens of `swapped`
    size_t C;        // the rank's features
    size_t heads;    // the rank's heads
    size_t A;        // columns of these heads
    size_t F;        // hidden columns
    size_t V;        // vocabulary entries
} Sizes;
static Sizes sizes(const CubePlace *at, size_t sequences) {
    const ModelConfig *c = at->c;
    Sizes z = { .B = part_size(sequences, at->q, at->layer),
                .C = part_size(c->width, at->q, at->col),
                .heads = part_size(c->heads, at->q, at->row),
                .F = part_size(4 * c->width, at->q, at->row),
                .V = part_size(c->vocab, at->q, at->row) };
    z.A = z.heads * (c->width / c->heads);
    z.straight = part_size(z.B, at->q, at->row);
    z.swapped = part_size(z.B, at->q, at->col);
    z.M = z.straight * c->context;
    z.N = z.swapped * c->context;
    return z;
}

// ---------------------------------------------------------------- traffic

// Counts one all-gather or reduce-scatter over q ranks, of n rows (or sequences) of `row` elements
// of `size` bytes.
static void pass(CubeTraffic *s, const CubePlace *at, size_t axis, size_t n, size_t row,
                 size_t size) {
    const size_t padded = ceil_div(n, at->q) * at->q * row;
    s->calls++;
    s->bytes[axis] += ring_bytes(ONE_PASS, at->q, padded, size);
    s->time += ring_time(ONE_PASS, at->q, padded, size);
}
static void all_reduce(CubeTraffic *s, size_t ranks, size_t axis, size_t count, size_t size) {
    s->calls++;
    s->bytes[axis] += ring_bytes(ALL_REDUCE_PASSES, ranks, count, size);
    s->time += ring_time(ALL_REDUCE_PASSES, ranks, count, size);
}
// These functions return the bytes of an element of weights and activations, and of gradients of
// weights. Statistics, logits and the loss are reals in any storage.
static size_t stored(const CubePlace *at) { return weight_bytes(at->c); }
static size_t gradient(const CubePlace *at) { return gradient_bytes(at->c); }

// These functions count the calls of y = x w. operands() counts the all-gathers of x and w, or in
// backward the reduce-scatters of their gradients. sums() counts the reduce-scatter of y, or in
// backward the all-gather of its gradient. The rows of x are cut by the ranks' row numbers, so x is
// gathered along CUBE_COL, the ranks of one column. If swapped, x is gathered along CUBE_ROW. The
// parameter w is the bytes of an element of w, or of its gradient. The parameter y is the bytes of
// an element of y.
static void operands(CubeTraffic *s, const CubePlace *at, size_t B, bool swapped, size_t K,
                     size_t N, size_t w) {
    pass(s, at, swapped ? CUBE_ROW : CUBE_COL, B, at->c->context * K, stored(at));
    pass(s, at, CUBE_DEPTH, K, N, w);
}
static void sums(CubeTraffic *s, const CubePlace *at, size_t B, bool swapped, size_t N, size_t y) {
    pass(s, at, swapped ? CUBE_COL : CUBE_ROW, B, at->c->context * N, y);
}
// Counts the calls of a linear layer. Backward gathers dY, which is as large as y, and scatters dX
// and dW, which are as large as x and w. With gather_again backward also gathers x and w.
static void linear_layer(CubeTraffic *s, const CubePlace *at, bool backward, size_t B, bool swapped,
                         size_t K, size_t N) {
    if (backward) operands(s, at, B, swapped, K, N, gradient(at));
    if (!backward || at->gather_again) operands(s, at, B, swapped, K, N, stored(at));
    sums(s, at, B, swapped, N, stored(at));
}
static void norm(CubeTraffic *s, const CubePlace *at, const Sizes *z) {
    all_reduce(s, at->q, CUBE_ROW, 2 * z->M, sizeof(real));
}
static void block(CubeTraffic *s, const CubePlace *at, bool backward, const Sizes *z) {
    linear_layer(s, at, backward, z->B, false, z->C, 3 * z->A); // q, k, v
    linear_layer(s, at, backward, z->B, true, z->A, z->C);      // projection
    linear_layer(s, at, backward, z->B, false, z->C, z->F);
    linear_layer(s, at, backward, z->B, true, z->F, z->C);
    for (int i = 0; i < 2; i++) norm(s, at, z);
}
CubeTraffic cube_stage(const CubePlace *at, const CutSizes *stage, size_t B, bool again) {
    const Sizes z = sizes(at, B);
    const size_t T = at->c->context;
    CubeTraffic s = { 0 };
    for (int way = 0; way < 2 && stage->first; way++) { // embedding: X = tokens is on all ranks
        pass(&s, at, CUBE_DEPTH, z.V, z.C, way ? gradient(at) : stored(at));
        pass(&s, at, CUBE_COL, z.B, T * z.C, stored(at));
    }
    for (size_t i = 0; i < stage->blocks; i++) {
        for (int times = 0; times < 1 + again; times++) block(&s, at, false, &z);
        block(&s, at, true, &z);
    }
    if (!stage->last) return s;
    for (int times = 0; times < 2 + at->gather_again; times++) { // head: w is wte^T
        pass(&s, at, CUBE_COL, z.B, T * z.C, stored(at));
        pass(&s, at, CUBE_DEPTH, z.V, z.C, times ? stored(at) : gradient(at)); // dW once
    }
    for (int way = 0; way < 2; way++) {
        sums(&s, at, z.B, false, z.V, sizeof(real)); // logits
        norm(&s, at, &z);
    }
    for (int i = 0; i < 3; i++) all_reduce(&s, at->q, CUBE_COL, z.N, sizeof(real)); // loss
    return s;
}

// Counts five all-reduces per block, because neighbouring vectors share an all-reduce. The five are
// for the first norm, the bias of q|k|v, the bias of the projection with the second norm, and the
// two biases of the MLP.
CubeTraffic cube_plane_sums(const CubePlace *at, const CutSizes *stage) {
    const Sizes z = sizes(at, 0);
    const size_t plane = at->q * at->q, together[] = { 2 * z.C, 3 * z.A, 3 * z.C, z.F, z.C };
    CubeTraffic s = { 0 };
    for (size_t i = 0; i < stage->blocks; i++)
        for (size_t k = 0; k < sizeof together / sizeof *together; k++)
            all_reduce(&s, plane, 0, together[k], gradient(at));
    if (stage->first) all_reduce(&s, plane, 0, at->c->context * z.C, gradient(at)); // wpe
    if (stage->last) all_reduce(&s, plane, 0, 2 * z.C, gradient(at));               // the last norm
    return s;
}

Work cube_work(const CubePlace *at, const CutSizes *stage, size_t B) {
    const Sizes z = sizes(at, B);
    const size_t T = at->c->context, M = z.B * T; // gathered rows
    Work scores = work_product(T, T, at->c->width / at->c->heads);
    Work heads = work_times((double)(2 * z.swapped * z.heads), scores);
    Work block = work_sum(work_sum(work_product(M, 3 * z.A, z.C), work_product(M, z.C, z.A)),
                          work_sum(work_product(M, z.F, z.C), work_product(M, z.C, z.F)));
    Work blocks = work_times((double)stage->blocks, work_sum(block, heads));
    return stage->last ? work_sum(blocks, work_product(M, z.V, z.C)) : blocks;
}

// ---------------------------------------------------------------- parameters

static size_t matrix(const CubePlace *at, size_t rows, size_t cols) {
    return part_size(rows, at->q, at->layer) * cols;
}
void cube_elements_tensors(const CubePlace *at, size_t tensor[TENSORS_OF_BLOCK]) {
    const Sizes z = sizes(at, 0);
    for (size_t i = 0; i < TENSORS_OF_BLOCK; i++) tensor[i] = z.C;
    tensor[QKV_W] = matrix(at, z.C, 3 * z.A);
    tensor[QKV_B] = 3 * z.A;
    tensor[PROJ_W] = matrix(at, z.A, z.C);
    tensor[FC_W] = matrix(at, z.C, z.F);
    tensor[FC_B] = z.F;
    tensor[OUT_W] = matrix(at, z.F, z.C);
}
static size_t block_elements(const CubePlace *at) {
    size_t tensor[TENSORS_OF_BLOCK];
    cube_elements_tensors(at, tensor);
    return elements_sum(tensor);
}
size_t cube_elements_wte(const CubePlace *at) {
    const Sizes z = sizes(at, 0);
    return matrix(at, z.V, z.C);
}
size_t cube_elements_unit(const CubePlace *at, const CutSizes *stage, size_t i) {
    const Sizes z = sizes(at, 0);
    if (stage->first && i == 0) return at->c->context * z.C;
    return i < stage->first + stage->blocks ? block_elements(at) : 2 * z.C;
}
size_t cube_elements_stage(const CubePlace *at, const CutSizes *stage) {
    size_t sum = stage->first || stage->last ? cube_elements_wte(at) : 0;
    for (size_t i = 0; i < cut_layers(stage); i++) sum += cube_elements_unit(at, stage, i);
    return sum;
}

// ---------------------------------------------------------------- kept activations

// Returns the kept elements. If backward gathers X and W again, these are the elements that kept.c
// counts. Otherwise the gathered X and W stay, instead of this rank's part of X.
static KeptElements kept(const CubePlace *at, const CutSizes *stage, size_t B) {
    const Sizes z = sizes(at, B);
    const size_t rank = at->col + at->q * (at->row + at->q * at->layer);
    const size_t layer = z.B * at->c->context; // gathered rows
    KeptElements k = cube_kept(at->c, at->q, rank, false, stage, B);
    if (at->gather_again) return k;
    k.block += layer * (2 * z.C + z.A + z.F) - (z.M * 2 * z.C + z.N * (z.A + z.F));
    k.block += z.C * 3 * z.A + z.A * z.C + 2 * z.C * z.F; // weights
    k.head += layer * z.C - z.M * z.C + z.V * z.C;
    return k;
}
size_t cube_kept_reals(const CubePlace *at, const CutSizes *stage, size_t B) {
    const KeptElements k = kept(at, stage, B);
    return stage->blocks * k.block_reals + stage->last * k.head_reals;
}
size_t cube_kept_stage(const CubePlace *at, const CutSizes *stage, size_t B) {
    const KeptElements k = kept(at, stage, B);
    return k.between + stage->blocks * k.block + stage->last * k.head;
}
size_t cube_message(const CubePlace *at, size_t B) {
    const Sizes z = sizes(at, B);
    return z.M * z.C;
}
