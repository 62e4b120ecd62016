// grid_costs.c: predicts calls, bytes, work and memory of one rank of a grid, from sizes alone. It
// counts the calls of grid_layers.c turn by turn and executes none.
#include "03_tensor_parallel/experiments/experiments.h"
#include "common/model/block.h"

enum { E = sizeof(real) };

// ---------------------------------------------------------------- the part of a rank

GridPlace grid_place_of(const ModelConfig *c, size_t q, size_t depth, size_t rank) {
    return (GridPlace){ c, q, depth, rank / q % q, rank % q, rank / (q * q) };
}
GridPlace grid_place(const ModelConfig *c, const CommGrid *g) {
    return (GridPlace){ c, g->rows, g->depth, g->row, g->col, g->layer };
}
size_t grid_sequences(const GridPlace *at, size_t B) {
    return part_size(B, at->q * at->depth, at->row + at->q * at->layer);
}

// Elements of piece l of one side of a matrix.
static size_t piece(const GridPlace *at, SummaCut cut, size_t l) {
    return part_size(cut.n, at->q, l) * cut.each;
}
static SummaCut features(const GridPlace *at) { return (SummaCut){ at->c->width, 1 }; }
static SummaCut heads(const GridPlace *at) {
    return (SummaCut){ at->c->heads, at->c->width / at->c->heads };
}
static SummaCut hidden(const GridPlace *at) { return (SummaCut){ block_hidden(at->c), 1 }; }
static SummaCut entries(const GridPlace *at) { return (SummaCut){ at->c->vocab, 1 }; }
static SummaCut positions(const GridPlace *at) { return (SummaCut){ at->c->context, 1 }; }

bool grid_even(const GridPlace *at, size_t B) {
    const ModelConfig *c = at->c;
    return B % (at->q * at->depth) == 0 && c->heads % at->q == 0 && c->width % at->q == 0 &&
           c->vocab % at->q == 0 && c->context % at->q == 0;
}

CutSizes grid_sizes(const GridPlace *at) {
    CutSizes z = cut_sizes(at->c, at->q, at->col);
    z.C = piece(at, features(at), at->col);
    return z;
}

static size_t matrix(const GridPlace *at, SummaCut rows, SummaCut cols) {
    return piece(at, rows, at->row) * piece(at, cols, at->col);
}
static size_t vector(const GridPlace *at, SummaCut cols) {
    return at->row == 0 ? piece(at, cols, at->col) : 0;
}

void grid_elements_tensors(const GridPlace *at, size_t tensor[TENSORS_OF_BLOCK]) {
    const SummaCut C = features(at), A = heads(at), F = hidden(at);
    const size_t c = vector(at, C), elements[TENSORS_OF_BLOCK] = { c,
                                                                   c,
                                                                   3 * matrix(at, C, A),
                                                                   3 * vector(at, A), // norm, q|k|v
                                                                   matrix(at, A, C),
                                                                   c, // projection
                                                                   c,
                                                                   c,
                                                                   matrix(at, C, F),
                                                                   vector(at, F), // norm, fc
                                                                   matrix(at, F, C),
                                                                   c }; // out
    for (size_t i = 0; i < TENSORS_OF_BLOCK; i++) tensor[i] = elements[i];
}
size_t grid_elements_block(const GridPlace *at) {
    size_t tensor[TENSORS_OF_BLOCK];
    grid_elements_tensors(at, tensor);
    return elements_sum(tensor);
}
size_t grid_elements_wte(const GridPlace *at) { return matrix(at, entries(at), features(at)); }
size_t grid_elements_unit(const GridPlace *at, const CutSizes *stage, size_t i) {
    if (stage->first && i == 0) return matrix(at, positions(at), features(at));
    if (i < stage->first + stage->blocks) return grid_elements_block(at);
    return 2 * vector(at, features(at));
}
size_t grid_elements_stage(const GridPlace *at, const CutSizes *stage) {
    size_t sum = stage->first || stage->last ? grid_elements_wte(at) : 0;
    for (size_t i = 0; i < cut_layers(stage); i++) sum += grid_elements_unit(at, stage, i);
    return sum;
}

// ---------------------------------------------------------------- calls

// Bytes of an element: of weights and activations, and of gradients of weights. Statistics, logits
// and the loss are reals in any storage.
typedef struct {
    const GridPlace *at;
    size_t stored, gradient;
    GridTraffic t;
} Count;
static Count count_at(const GridPlace *at) {
    return (Count){ .at = at, .stored = weight_bytes(at->c), .gradient = gradient_bytes(at->c) };
}
typedef enum { ROW, COLUMN } Axis;

// A broadcast or reduce along a chain of ranks. A reduce runs from `first` to the root. size: bytes
// of an element.
static void chain(Count *c, Axis axis, CommKind kind, size_t root, size_t elements, size_t size) {
    AxisTraffic *a = axis == ROW ? &c->t.row : &c->t.col;
    size_t q = c->at->q, me = axis == ROW ? c->at->col : c->at->row, first = (root + 1) % q;
    double bytes = q > 1 ? (double)(elements * size) : 0;
    bool sends = kind == COMM_BROADCAST ? me == root : me != root;
    bool receives = kind == COMM_BROADCAST ? me != root : me != first;
    a->calls[kind]++;
    a->sent += sends * bytes;
    a->received += receives * bytes;
    c->t.transfers += chain_time(q, (size_t)bytes);
}
static void all_reduce(Count *c, size_t elements) { // of reals, over the rank's row
    double bytes = ring_bytes(ALL_REDUCE_PASSES, c->at->q, elements, E);
    c->t.row.calls[COMM_ALL_REDUCE]++;
    c->t.row.sent += bytes;
    c->t.row.received += bytes;
    c->t.transfers += ring_time(ALL_REDUCE_PASSES, c->at->q, elements, E);
}
static void multiply(Count *c, size_t m, size_t n, size_t k) {
    c->t.products = work_sum(c->t.products, work_product(m, n, k));
}

// M: tokens of the rank's row. N: outputs of its column. x: bytes of an element along the row; the
// head's are logits or their gradients.
static void product(Count *c, size_t M, SummaCut k, size_t N, size_t x) {
    for (size_t l = 0; l < c->at->q; l++) {
        size_t K = piece(c->at, k, l);
        chain(c, ROW, COMM_BROADCAST, l, M * K, x);
        chain(c, COLUMN, COMM_BROADCAST, l, K * N, c->stored);
        multiply(c, M, N, K);
    }
}
static void product_nt(Count *c, size_t M, SummaCut k, size_t N, size_t x) {
    for (size_t l = 0; l < c->at->q; l++) {
        size_t K = piece(c->at, k, l);
        chain(c, COLUMN, COMM_BROADCAST, l, K * N, c->stored);
        multiply(c, M, K, N);
        chain(c, ROW, COMM_REDUCE, l, M * K, x);
    }
}
static void product_tn(Count *c, size_t M, SummaCut k, size_t N, size_t x) {
    for (size_t l = 0; l < c->at->q; l++) {
        size_t K = piece(c->at, k, l);
        chain(c, ROW, COMM_BROADCAST, l, M * K, x);
        multiply(c, K, N, M);
        chain(c, COLUMN, COMM_REDUCE, l, K * N, c->gradient);
    }
}
static void linear_forward(Count *c, size_t M, SummaCut k, size_t N) {
    product(c, M, k, N, c->stored);
    chain(c, COLUMN, COMM_BROADCAST, 0, N, c->stored); // the bias
}
static void linear_backward(Count *c, size_t M, SummaCut k, size_t N) {
    product_tn(c, M, k, N, c->stored);
    chain(c, COLUMN, COMM_REDUCE, 0, N, c->gradient);
    product_nt(c, M, k, N, c->stored);
}
static void norm_forward(Count *c, size_t M, size_t C) {
    chain(c, COLUMN, COMM_BROADCAST, 0, 2 * C, c->stored);
    all_reduce(c, 2 * M);
}
static void norm_backward(Count *c, size_t M, size_t C) {
    chain(c, COLUMN, COMM_REDUCE, 0, 2 * C, c->gradient);
    chain(c, COLUMN, COMM_BROADCAST, 0, C, c->stored);
    all_reduce(c, 2 * M);
}
static void table(Count *c, CommKind kind, SummaCut rows, size_t C) {
    const size_t size = kind == COMM_REDUCE ? c->gradient : c->stored;
    for (size_t l = 0; l < c->at->q; l++)
        chain(c, COLUMN, kind, l, piece(c->at, rows, l) * C, size);
}

GridTraffic grid_linear_forward(const GridPlace *at, size_t M, size_t K, size_t N) {
    Count c = count_at(at);
    linear_forward(&c, M / at->q, (SummaCut){ K, 1 }, N / at->q);
    return c.t;
}
GridTraffic grid_linear_backward(const GridPlace *at, size_t M, size_t K, size_t N) {
    Count c = count_at(at);
    linear_backward(&c, M / at->q, (SummaCut){ K, 1 }, N / at->q);
    return c.t;
}

static void scores(Count *c, const CutSizes *z, size_t sequences, double times) {
    c->t.products = work_sum(c->t.products, work_times(times, work_scores(z, sequences)));
}
static void block_forward(Count *c, const CutSizes *z, size_t sequences) {
    const GridPlace *at = c->at;
    size_t M = sequences * z->T, A = z->heads * z->D;
    norm_forward(c, M, z->C);
    linear_forward(c, M, features(at), 3 * A);
    scores(c, z, sequences, 2); // q k^T, and its product with v
    linear_forward(c, M, heads(at), z->C);
    norm_forward(c, M, z->C);
    linear_forward(c, M, features(at), z->hidden);
    linear_forward(c, M, hidden(at), z->C);
}
static void block_backward(Count *c, const CutSizes *z, size_t sequences) {
    const GridPlace *at = c->at;
    size_t M = sequences * z->T, A = z->heads * z->D;
    linear_backward(c, M, hidden(at), z->C);
    linear_backward(c, M, features(at), z->hidden);
    norm_backward(c, M, z->C);
    linear_backward(c, M, heads(at), z->C);
    scores(c, z, sequences, 4);
    linear_backward(c, M, features(at), 3 * A);
    norm_backward(c, M, z->C);
}

GridTraffic grid_stage(const GridPlace *at, const CutSizes *stage, size_t B, bool again) {
    Count c = count_at(at);
    const CutSizes z = grid_sizes(at);
    size_t sequences = grid_sequences(at, B), M = sequences * z.T;
    if (stage->first)
        for (size_t i = 0; i < 2; i++) {
            table(&c, i ? COMM_REDUCE : COMM_BROADCAST, entries(at), z.C);
            table(&c, i ? COMM_REDUCE : COMM_BROADCAST, positions(at), z.C);
        }
    for (size_t i = 0; i < stage->blocks; i++) {
        block_forward(&c, &z, sequences);
        if (again) block_forward(&c, &z, sequences);
        block_backward(&c, &z, sequences);
    }
    if (stage->last) {
        norm_forward(&c, M, z.C);
        product_nt(&c, M, entries(at), z.C, E);           // logits
        for (size_t i = 0; i < 3; i++) all_reduce(&c, M); // the loss
        product_tn(&c, M, entries(at), z.C, E);
        product(&c, M, entries(at), z.C, E);
        norm_backward(&c, M, z.C);
    }
    return c.t;
}

static void partial_sum(GridTraffic *t, const GridPlace *at, size_t elements) {
    const size_t e = gradient_bytes(at->c);
    double bytes = ring_bytes(ALL_REDUCE_PASSES, at->depth, elements, e);
    t->depth.calls[COMM_ALL_REDUCE]++;
    t->depth.sent += bytes;
    t->depth.received += bytes;
    t->transfers += ring_time(ALL_REDUCE_PASSES, at->depth, elements, e);
}
static void table_sums(GridTraffic *t, const GridPlace *at, const CutSizes *stage) {
    if (stage->first) partial_sum(t, at, grid_elements_wte(at));
    if (stage->last) partial_sum(t, at, grid_elements_wte(at));
}
static void unit_sums(GridTraffic *t, const GridPlace *at, const CutSizes *stage) {
    for (size_t i = 0; i < cut_layers(stage); i++)
        partial_sum(t, at, grid_elements_unit(at, stage, i));
}
GridTraffic grid_table_sums(const GridPlace *at, const CutSizes *stage) {
    GridTraffic t = { 0 };
    table_sums(&t, at, stage);
    return t;
}
GridTraffic grid_unit_sums(const GridPlace *at, const CutSizes *stage) {
    GridTraffic t = { 0 };
    unit_sums(&t, at, stage);
    return t;
}
GridTraffic grid_sums(const GridPlace *at, const CutSizes *stage) {
    GridTraffic t = { 0 };
    table_sums(&t, at, stage);
    unit_sums(&t, at, stage);
    return t;
}
