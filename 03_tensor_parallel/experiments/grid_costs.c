// grid_costs.c: predicts calls, bytes, work and parameters of one rank of a grid, from sizes alone.
// The predictions count the calls of 09_summa.c, grid_layers.c and grid_model.c turn by turn, and
// execute none.
#include "03_tensor_parallel/experiments/experiments.h"
#include "03_tensor_parallel/grid_layers.h"

enum { E = sizeof(real) };

// ---------------------------------------------------------------- the part of a rank

GridPlace grid_place_of(const ModelConfig *c, size_t q, size_t depth, size_t rank) {
    return (GridPlace){ c, q, depth, rank / q % q, rank % q, rank / (q * q) };
}
size_t grid_sequences(const GridPlace *at, size_t B) {
    return part_size(B, at->q * at->depth, at->row + at->q * at->layer);
}
bool grid_even(const GridPlace *at, size_t B) {
    const ModelConfig *c = at->c;
    return B % (at->q * at->depth) == 0 && c->heads % at->q == 0 && c->width % at->q == 0 &&
           c->vocab % at->q == 0 && c->context % at->q == 0;
}

// Returns the number of elements of piece l of one side of a matrix.
static size_t piece(const GridPlace *at, SummaCut cut, size_t l) {
    return part_size(cut.n, at->q, l) * cut.each;
}
static SummaCut entries(const GridPlace *at) { return (SummaCut){ at->c->vocab, 1 }; }
static SummaCut positions(const GridPlace *at) { return (SummaCut){ at->c->context, 1 }; }

CutSizes grid_sizes(const GridPlace *at) {
    CutSizes z = cut_sizes(at->c, at->q, at->col);
    z.C = piece(at, summa_by_feature(at->c), at->col);
    return z;
}

static size_t matrix(const GridPlace *at, SummaCut rows, SummaCut cols) {
    return piece(at, rows, at->row) * piece(at, cols, at->col);
}
static size_t vector(const GridPlace *at, SummaCut cols) {
    return at->row == 0 ? piece(at, cols, at->col) : 0;
}

void grid_elements_tensors(const GridPlace *at, size_t tensor[TENSORS_OF_BLOCK]) {
    const SummaCut C = summa_by_feature(at->c), A = summa_by_head(at->c),
                   F = summa_by_hidden(at->c);
    for (size_t i = 0; i < TENSORS_OF_BLOCK; i++) tensor[i] = vector(at, C);
    tensor[QKV_W] = 3 * matrix(at, C, A);
    tensor[QKV_B] = 3 * vector(at, A);
    tensor[PROJ_W] = matrix(at, A, C);
    tensor[FC_W] = matrix(at, C, F);
    tensor[FC_B] = vector(at, F);
    tensor[OUT_W] = matrix(at, F, C);
}
static size_t block_elements(const GridPlace *at) {
    size_t tensor[TENSORS_OF_BLOCK];
    grid_elements_tensors(at, tensor);
    return elements_sum(tensor);
}
size_t grid_elements_wte(const GridPlace *at) {
    return matrix(at, entries(at), summa_by_feature(at->c));
}
size_t grid_elements_unit(const GridPlace *at, const CutSizes *stage, size_t i) {
    if (stage->first && i == 0) return matrix(at, positions(at), summa_by_feature(at->c));
    if (i < stage->first + stage->blocks) return block_elements(at);
    return 2 * vector(at, summa_by_feature(at->c));
}
size_t grid_elements_stage(const GridPlace *at, const CutSizes *stage) {
    size_t sum = stage->first || stage->last ? grid_elements_wte(at) : 0;
    for (size_t i = 0; i < cut_layers(stage); i++) sum += grid_elements_unit(at, stage, i);
    return sum;
}

// ---------------------------------------------------------------- calls

// The count of a rank. Statistics, logits and the loss are reals in any storage.
typedef struct {
    const GridPlace *at;
    size_t stored;   // bytes of an element of weights and activations
    size_t gradient; // bytes of an element of gradients of weights
    GridTraffic t;   // counted so far
} Count;
typedef enum { ROW, COLUMN } Axis;

// Counts a broadcast or reduce along a chain of ranks. A reduce runs from `first` to the root.
// size is the bytes of an element.
static void chain(Count *c, Axis axis, CommKind kind, size_t root, size_t elements, size_t size) {
    AxisTraffic *a = axis == ROW ? &c->t.row : &c->t.col;
    size_t q = c->at->q, place = axis == ROW ? c->at->col : c->at->row, first = (root + 1) % q;
    double bytes = q > 1 ? (double)(elements * size) : 0;
    bool sends = kind == COMM_BROADCAST ? place == root : place != root;
    bool receives = kind == COMM_BROADCAST ? place != root : place != first;
    a->calls[kind]++;
    a->sent += sends * bytes;
    a->received += receives * bytes;
    c->t.transfers += chain_time(q, (size_t)bytes);
}
static void all_reduce(GridTraffic *t, AxisTraffic *axis, size_t n, size_t elements, size_t size) {
    double bytes = ring_bytes(ALL_REDUCE_PASSES, n, elements, size);
    axis->calls[COMM_ALL_REDUCE]++;
    axis->sent += bytes;
    axis->received += bytes;
    t->transfers += ring_time(ALL_REDUCE_PASSES, n, elements, size);
}

// Counts one product in q turns, Y = X W, dX = dY W^T or dW = X^T dY. M counts the tokens of the
// rank's row, and N the outputs of the rank's column. A turn moves a block of X (or dX) along the
// row and a block of W (or dW) along the column. x is the bytes of an element along the row. In the
// head these elements are logits or their gradients.
typedef enum { OF_Y, OF_DX, OF_DW } Product;
static void product(Count *c, Product of, size_t M, SummaCut k, size_t N, size_t x) {
    for (size_t l = 0; l < c->at->q; l++) {
        size_t K = piece(c->at, k, l);
        chain(c, ROW, of == OF_DX ? COMM_REDUCE : COMM_BROADCAST, l, M * K, x);
        if (of == OF_DW) chain(c, COLUMN, COMM_REDUCE, l, K * N, c->gradient);
        else chain(c, COLUMN, COMM_BROADCAST, l, K * N, c->stored);
        c->t.products = work_sum(c->t.products, work_product(M, N, K));
    }
}
static void linear_layer(Count *c, bool backward, size_t M, SummaCut k, size_t N) {
    if (backward) {
        product(c, OF_DW, M, k, N, c->stored);
        product(c, OF_DX, M, k, N, c->stored);
        chain(c, COLUMN, COMM_REDUCE, 0, N, c->gradient); // the bias
    } else {
        product(c, OF_Y, M, k, N, c->stored);
        chain(c, COLUMN, COMM_BROADCAST, 0, N, c->stored);
    }
}
static void norm(Count *c, bool backward, size_t M, size_t C) {
    // Forward broadcasts gain and bias. Backward broadcasts the gain.
    chain(c, COLUMN, COMM_BROADCAST, 0, backward ? C : 2 * C, c->stored);
    if (backward) chain(c, COLUMN, COMM_REDUCE, 0, 2 * C, c->gradient);
    all_reduce(&c->t, &c->t.row, c->at->q, 2 * M, E);
}
static void table(Count *c, bool backward, SummaCut rows, size_t C) {
    for (size_t l = 0; l < c->at->q; l++)
        chain(c, COLUMN, backward ? COMM_REDUCE : COMM_BROADCAST, l, piece(c->at, rows, l) * C,
              backward ? c->gradient : c->stored);
}
static void block(Count *c, bool backward, const CutSizes *z, size_t sequences) {
    const GridPlace *at = c->at;
    const size_t M = sequences * z->T;
    const Work scores = work_scores(z, sequences); // q k^T; p v has as many FLOPs
    linear_layer(c, backward, M, summa_by_feature(at->c), 3 * z->heads * z->D);
    linear_layer(c, backward, M, summa_by_head(at->c), z->C);
    linear_layer(c, backward, M, summa_by_feature(at->c), z->hidden);
    linear_layer(c, backward, M, summa_by_hidden(at->c), z->C);
    for (size_t i = 0; i < 2; i++) norm(c, backward, M, z->C);
    c->t.products = work_sum(c->t.products, work_times(backward ? 4 : 2, scores));
}

GridTraffic grid_stage(const GridPlace *at, const CutSizes *stage, size_t B, bool again) {
    Count c = { .at = at, .stored = weight_bytes(at->c), .gradient = gradient_bytes(at->c) };
    const CutSizes z = grid_sizes(at);
    const size_t sequences = grid_sequences(at, B), M = sequences * z.T;
    for (int backward = 0; backward < 2 && stage->first; backward++) {
        table(&c, backward, entries(at), z.C);
        table(&c, backward, positions(at), z.C);
    }
    for (size_t i = 0; i < stage->blocks; i++) {
        for (int times = 0; times < 1 + again; times++) block(&c, false, &z, sequences);
        block(&c, true, &z, sequences);
    }
    if (!stage->last) return c.t;
    product(&c, OF_DX, M, entries(at), z.C, E); // logits: wte is transposed
    product(&c, OF_DW, M, entries(at), z.C, E);
    product(&c, OF_Y, M, entries(at), z.C, E);
    for (int backward = 0; backward < 2; backward++) norm(&c, backward, M, z.C);
    for (int i = 0; i < 3; i++) all_reduce(&c.t, &c.t.row, at->q, M, E); // the loss
    return c.t;
}

// ---------------------------------------------------------------- sums over depth

static void add_sum(GridTraffic *t, const GridPlace *at, size_t elements) {
    all_reduce(t, &t->depth, at->depth, elements, gradient_bytes(at->c));
}
GridTraffic grid_table_sums(const GridPlace *at, const CutSizes *stage) {
    GridTraffic t = { 0 };
    for (int uses = stage->first + stage->last; uses > 0; uses--)
        add_sum(&t, at, grid_elements_wte(at));
    return t;
}
static void add_units(GridTraffic *t, const GridPlace *at, const CutSizes *stage) {
    for (size_t i = 0; i < cut_layers(stage); i++) add_sum(t, at, grid_elements_unit(at, stage, i));
}
GridTraffic grid_unit_sums(const GridPlace *at, const CutSizes *stage) {
    GridTraffic t = { 0 };
    add_units(&t, at, stage);
    return t;
}
GridTraffic grid_sums(const GridPlace *at, const CutSizes *stage) {
    GridTraffic t = grid_table_sums(at, stage);
    add_units(&t, at, stage);
    return t;
}
