// compression.c: see compression.h. In the common subset of C and C++.
#include "01_data_parallel/compression.h"
#include <stdlib.h>
#include "01_data_parallel/compression_items.h"
#include "common/tensor/random.h"

// ---------------------------------------------------------------- words

Range numbers_of_part(size_t n, size_t bits, size_t parts, size_t part) {
    const size_t per = 8 * sizeof(real) / bits;
    Range r = shard_range(words_of(n, bits), parts, part);
    r.lo = r.lo * per < n ? r.lo * per : n;
    r.hi = r.hi * per < n ? r.hi * per : n;
    return r;
}

static Tensor row(Tensor t, size_t r) { return tensor_row_range(t, r, r + 1); }

// All-to-all: everybody cuts its words in N parts and sends part r to rank r. What came for me is [N, my part], row r
// from rank r.
static Tensor exchange(Comm *dp, Arena *a, Tensor words) {
    const size_t n = tensor_count(words);
    Range mine = shard_range(n, dp->size, dp->rank);
    Tensor in = tensor_new(a, dp->size, range_size(mine));
    comm_connect(dp, COMM_EVERYBODY);
    comm_group_start(dp);
    for (size_t r = 0; r < dp->size; r++) {
        Range part = shard_range(n, dp->size, r);
        if (r == dp->rank) {
            tensor_copy(row(in, r), tensor_flat_range(words, mine.lo, mine.hi));
            continue;
        }
        comm_send(dp, tensor_flat_range(words, part.lo, part.hi), r);
        comm_recv(dp, row(in, r), r);
    }
    comm_group_end(dp);
    return in;
}

// ---------------------------------------------------------------- error feedback, the same for all

static void subtract(Tensor y, Tensor x) {
    const size_t n = tensor_count(y);
    FOR_EACH(i, n, { y.data[i] -= x.data[i]; });
}

// e was x, what this rank wanted to say; `sent` is what the others understand. The rest is for later.
static void keep_the_rest(const Compression *c, Tensor e, Tensor sent) {
    if (c->plan.forgets) tensor_fill(e, 0);
    else subtract(e, sent);
}

// For the checks alone: all that was ever sent, added up.
static void note_sent(Compression *c, const CompressedBucket *b, Tensor sent) {
    if (!c->sent.data) return;
    Tensor sum = tensor_flat_range(c->sent, b->range.lo, b->range.hi);
    op_add(sum, sum, sent);
}

// ---------------------------------------------------------------- 16 bits

double half_scale(double largest, size_t n) {
    if (!(largest > 0) || isinf(largest)) return 1;
    int exponent;
    frexp(largest * (double)n, &exponent);     // largest n < 2^exponent
    return ldexp(1, 15 - exponent);
}

// The largest number of any rank. A maximum of one number: the price of knowing that no sum overflows.
static double largest_of_all(Comm *dp, Arena *a, Tensor g) {
    Tensor size = tensor_new(a, 1, tensor_count(g)), most = tensor_new(a, 1, 1);
    FOR_EACH(i, tensor_count(g), { size.data[i] = g.data[i] < 0 ? -g.data[i] : g.data[i]; });
    op_row_max(most, size);
    comm_all_reduce_max(dp, most);
    real largest;
    tensor_download(&largest, most);
    return (double)largest;
}

// An all-reduce in its two halves, each with half the bytes. Between them the sum is a real's: only what travels is
// short.
static void half(Compression *c, CompressedBucket *b, Tensor g, Tensor e) {
    Comm *dp = c->dp;
    Arena a = arena(MEM_COMMUNICATION);
    const size_t n = tensor_count(g);
    Tensor words = tensor_new(&a, 1, words_of(n, 16));
    const double scale = half_scale(largest_of_all(dp, &a, g), dp->size);
    tensor_fill(words, 0);
    FOR_EACH(i, n, { write_half(words.data, i, (double)g.data[i] * scale); });

    Tensor in = exchange(dp, &a, words);
    Range mine = numbers_of_part(n, 16, dp->size, dp->rank);
    Tensor sum = tensor_new(&a, 1, range_size(mine)), out = tensor_new(&a, 1, in.cols);
    tensor_fill(sum, 0);
    for (size_t r = 0; r < dp->size; r++) {                // in rank order
        const Tensor from = row(in, r);
        FOR_EACH(i, sum.cols, { sum.data[i] += (real)read_half(from.data, i); });
    }
    tensor_fill(out, 0);
    FOR_EACH(i, sum.cols, { write_half(out.data, i, (double)sum.data[i]); });

    comm_all_gather(dp, words, out);
    FOR_EACH(i, n, { g.data[i] = (real)(read_half(words.data, i) / scale); });
    arena_free(&a);
    (void)b, (void)e;
}

// ---------------------------------------------------------------- top-k

// Reorders v so that v[k] has the place it would have were v sorted, largest first (Hoare 1961).
static real select_largest(real *v, size_t n, size_t k) {
    size_t lo = 0, hi = n - 1;
    while (lo < hi) {
        const real pivot = v[lo + (hi - lo) / 2];
        size_t i = lo, j = hi;
        for (;;) {
            while (v[i] > pivot) i++;
            while (v[j] < pivot) j--;
            if (i >= j) break;
            const real swap = v[i];
            v[i++] = v[j];
            v[j--] = swap;
        }
        if (k <= j) hi = j;
        else lo = j + 1;
    }
    return v[k];
}

void largest_places(const real *x, size_t n, size_t k, uint32_t *places) {
    real *size = (real *)host_alloc(n * sizeof *size);
    for (size_t i = 0; i < n; i++) size[i] = x[i] < 0 ? -x[i] : x[i];
    const real least = select_largest(size, n, k - 1);
    size_t above = 0, found = 0;
    for (size_t i = 0; i < n; i++) above += x[i] > least || -x[i] > least;
    size_t equal = k - above;                  // so many of those that are as large as the k-th
    for (size_t i = 0; i < n && found < k; i++) {
        const real s = x[i] < 0 ? -x[i] : x[i];
        if (s > least || (s == least && equal > 0)) places[found++] = (uint32_t)i;
        if (s == least && equal > 0) equal--;
    }
    free(size);
}

// The message of x: k indices, k values. A few numbers are chosen on the host, where a selection is a few lines; a GPU
// would do it where x is.
static void write_largest(Tensor message, Tensor x, size_t k) {
    const size_t n = tensor_count(x), words = words_of(k, 32);
    real *host = (real *)host_alloc(n * sizeof *host);
    real *out = (real *)host_alloc(tensor_count(message) * sizeof *out);
    uint32_t *places = (uint32_t *)host_alloc(k * sizeof *places);
    tensor_download(host, x);
    largest_places(host, n, k, places);
    memcpy(out, places, k * sizeof *places);
    for (size_t i = 0; i < k; i++) out[words + i] = host[places[i]];
    tensor_upload(message, out);
    free(host);
    free(out);
    free(places);
}

static void add_message(Tensor y, Tensor message, size_t k) {
    const real *values = message.data + words_of(k, 32);
    FOR_EACH(i, k, { add_pair(y.data, message.data, values, i); });        // places differ: items do not meet
}

static void top_k(Compression *c, CompressedBucket *b, Tensor g, Tensor e) {
    Comm *dp = c->dp;
    Arena a = arena(MEM_COMMUNICATION);
    const size_t n = tensor_count(g), k = kept_of(n, c->plan.one_of), length = words_of(k, 32) + k;
    Tensor all = tensor_new(&a, dp->size, length), sent = tensor_new(&a, 1, n), mine = row(all, dp->rank);
    tensor_fill(sent, 0);
    tensor_fill(mine, 0);
    // EXERCISE 01.06a (4 points): error feedback. g [1, n] is my gradient, e [1, n] what I have not said yet. Make e
    // what I would like to say now, write its k largest numbers into `mine` (write_largest), and unpack them again
    // into `sent` (add_message), which is zero. Leave in e what is still unsaid (keep_the_rest). Nobody talks here.
    op_add(e, e, g);
    write_largest(mine, e, k);
    add_message(sent, mine, k);
    keep_the_rest(c, e, sent);
    // END
    note_sent(c, b, sent);
    comm_all_gather(dp, tensor_reshape(all, 1, dp->size * length), mine);
    tensor_fill(g, 0);
    for (size_t r = 0; r < dp->size; r++) add_message(g, row(all, r), k);  // in rank order
    arena_free(&a);
}

// ---------------------------------------------------------------- one bit

real sign_scale(Tensor x) {
    const size_t d = tensor_count(x);
    return d ? (real)sqrt(tensor_sum_of_squares(x) / (double)d) : 0;
}

// Signs of x, and into `scale` its scale; returns what they say, scale * sign. Padding bits are zero.
static Tensor write_one_bit(Arena *a, Tensor words, Tensor scale, Tensor x) {
    const size_t n = tensor_count(x), of_32 = tensor_count(words) * sizeof(real) / sizeof(uint32_t);
    const real s = sign_scale(x);
    Tensor said = tensor_new(a, 1, n);
    tensor_upload(scale, &s);
    FOR_EACH(i, of_32, { write_signs(words.data, x.data, n, i); });
    FOR_EACH(i, n, { said.data[i] = s * read_sign(words.data, i); });
    return said;
}

// To every rank its part of the signs; it adds them up as this part's server, and answers with signs, too. Both
// directions lose something, so both keep it: e is the worker's error, b->server_error the server's.
static void one_bit(Compression *c, CompressedBucket *b, Tensor g, Tensor e) {
    Comm *dp = c->dp;
    Arena a = arena(MEM_COMMUNICATION);
    const size_t n = tensor_count(g), N = dp->size;
    Tensor words = tensor_new(&a, 1, words_of(n, 1)), scales = tensor_new(&a, 1, N);
    Tensor my_scale = tensor_flat_range(scales, dp->rank, dp->rank + 1);

    op_add(e, e, g);                                       // as a worker
    Tensor sent = write_one_bit(&a, words, my_scale, e);
    keep_the_rest(c, e, sent);
    note_sent(c, b, sent);
    Tensor in = exchange(dp, &a, words);
    comm_all_gather(dp, scales, my_scale);

    Tensor sum = b->server_error;                          // as a server: of this part, what I did not say, and the sum
    for (size_t r = 0; r < N; r++) {
        const Tensor from = row(in, r);
        FOR_EACH(i, sum.cols, { sum.data[i] += scales.data[r] * read_sign(from.data, i); });
    }
    Tensor answer = tensor_new(&a, 1, in.cols);
    Tensor said = write_one_bit(&a, answer, my_scale, sum);
    keep_the_rest(c, sum, said);
    comm_all_gather(dp, words, answer);
    comm_all_gather(dp, scales, my_scale);

    for (size_t r = 0; r < N; r++) {                       // everybody unpacks every answer
        Range part = numbers_of_part(n, 1, N, r);
        FOR_EACH(i, range_size(part), {
            g.data[part.lo + i] = scales.data[r] * read_sign(words.data, part.lo + i);
        });
    }
    arena_free(&a);
}

// ---------------------------------------------------------------- PowerSGD

void orthonormalise(Tensor p) {
    FOR_EACH(one, 1, { orthonormal_columns(p.data, p.rows, p.cols); });
}

static Tensor matrix_of(Tensor flat, const Matrix *m) {
    return tensor_reshape(tensor_flat_range(flat, m->offset, m->offset + m->rows * m->cols), m->rows, m->cols);
}

// What PowerSGD sends of a bucket: vectors and small matrices as they are, one after another; every P; every Q. Each
// kind is one all-reduce.
typedef struct { size_t rest, p, q; } Lengths;
static Lengths lengths_of(const CompressedBucket *b) {
    Lengths l = { 0, 0, 0 };
    for (size_t i = 0; i < b->n_params; i++) {
        const Matrix *m = &b->params[i];
        if (!m->low_rank) l.rest += m->rows * m->cols;
        else {
            l.p += m->rows * m->rank;
            l.q += m->cols * m->rank;
        }
    }
    return l;
}

// The next matrix [rows, cols] of a list of such.
static Tensor next(Tensor list, size_t *at, size_t rows, size_t cols) {
    Tensor t = tensor_reshape(tensor_flat_range(list, *at, *at + rows * cols), rows, cols);
    *at += rows * cols;
    return t;
}

static void power_sgd_rest(Compression *c, CompressedBucket *b, Tensor g, Tensor rest) {
    size_t at = 0;
    for (size_t i = 0; i < b->n_params; i++) {
        const Matrix *m = &b->params[i];
        if (!m->low_rank) tensor_copy(next(rest, &at, m->rows, m->cols), matrix_of(g, m));
    }
    if (at) comm_all_reduce(c->dp, rest);
    at = 0;
    for (size_t i = 0; i < b->n_params; i++) {
        const Matrix *m = &b->params[i];
        if (!m->low_rank) tensor_copy(matrix_of(g, m), next(rest, &at, m->rows, m->cols));
    }
}

// M of a rank is its gradient and its error; the matrix that counts is their sum over ranks. Q points where that sum
// was large before; P = M Q is where it is large now; projected on P's columns, P P^T M is the best that r columns
// can say once they are orthonormal. M is never sent: P and Q are linear in it, so they can be added over ranks.
static void power_sgd(Compression *c, CompressedBucket *b, Tensor g, Tensor e) {
    Comm *dp = c->dp;
    Arena a = arena(MEM_COMMUNICATION);
    const Lengths length = lengths_of(b);
    Tensor rest = tensor_new(&a, 1, length.rest), ps = tensor_new(&a, 1, length.p), qs = tensor_new(&a, 1, length.q);
    Tensor sent = tensor_new(&a, 1, tensor_count(g));
    size_t at = 0, at_q = 0;
    op_add(e, e, g);
    tensor_copy(sent, e);                                  // so it stays for what is sent as it is
    power_sgd_rest(c, b, g, rest);
    tensor_fill(ps, 0);
    tensor_fill(qs, 0);

    // EXERCISE 01.06b (8 points): a round of PowerSGD. For every matrix m of b->params that is low_rank: M =
    // matrix_of(e, m) [rows, cols] is my part of the matrix to send, m->q [cols, rank] is Q of the last round.
    // Orthonormalise Q (orthonormalise), P = M Q (op_matmul), where P is next(ps, &at, m->rows, m->rank); then ONE
    // all-reduce of all P's. Orthonormalise every P, Q = M^T P (op_matmul_tn), where Q is
    // next(qs, &at_q, m->cols, m->rank); ONE all-reduce of all Q's. Copy each Q to m->q for the next round; the sum
    // over ranks is P Q^T (op_matmul_nt), to be left in matrix_of(g, m), and its N-th part in matrix_of(sent, m)
    // (op_scale). Without such a matrix (length.p is 0) there is no call.
    for (size_t i = 0; i < b->n_params; i++) {
        Matrix *m = &b->params[i];
        if (!m->low_rank) continue;
        orthonormalise(m->q);
        op_matmul(next(ps, &at, m->rows, m->rank), matrix_of(e, m), m->q);                // [n, r] = [n, k] [k, r]
    }
    if (length.p) comm_all_reduce(dp, ps);
    at = 0;
    for (size_t i = 0; i < b->n_params; i++) {
        Matrix *m = &b->params[i];
        if (!m->low_rank) continue;
        Tensor p = next(ps, &at, m->rows, m->rank);
        orthonormalise(p);
        op_matmul_tn(next(qs, &at_q, m->cols, m->rank), matrix_of(e, m), p);              // [k, r] = [n, k]^T [n, r]
    }
    if (length.q) comm_all_reduce(dp, qs);
    at = at_q = 0;
    for (size_t i = 0; i < b->n_params; i++) {
        Matrix *m = &b->params[i];
        if (!m->low_rank) continue;
        tensor_copy(m->q, next(qs, &at_q, m->cols, m->rank));
        op_matmul_nt(matrix_of(g, m), next(ps, &at, m->rows, m->rank), m->q);             // [n, k] = [n, r] [k, r]^T
        op_scale(matrix_of(sent, m), matrix_of(g, m), (real)1 / (real)dp->size);
    }
    // END

    note_sent(c, b, sent);
    keep_the_rest(c, e, sent);
    arena_free(&a);
}

// ---------------------------------------------------------------- buckets

static Matrix *matrices_of(Arena *a, const CompressionPlan *plan, const Unit *u, uint64_t seed) {
    Matrix *list = (Matrix *)host_alloc(u->n_params * sizeof *list);
    for (size_t i = 0; i < u->n_params; i++) {
        const Param *p = &u->params[i];
        Matrix *m = &list[i];
        m->offset = p->offset;
        m->rows = param_local_rows(p);
        m->cols = param_local_cols(p);
        const size_t full = m->rows < m->cols ? m->rows : m->cols;
        m->rank = plan->rank < full ? plan->rank : full;
        m->low_rank = plan->method == POWER_SGD && !p->vector
                   && (m->rows + m->cols) * m->rank * plan->min_rate < m->rows * m->cols;
        if (!m->low_rank) continue;
        m->q = tensor_new(a, m->cols, m->rank);
        tensor_randomize(m->q, random_key(random_key(seed, 0x51), p->number), 1);  // no rank in the key
    }
    return list;
}

CompressedBucket *compressed_buckets_new(Arena *a, const CompressionPlan *plan, const Model *m, uint64_t seed,
                                         size_t *n) {
    CompressedBucket *list = (CompressedBucket *)host_alloc(m->n_units * sizeof *list);
    size_t at = 0;
    *n = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        const Unit *u = &m->units[i];
        if (u->tied_to) continue;              // the head's use of wte: folded into wte's gradient already
        CompressedBucket *b = &list[(*n)++];
        b->range.lo = at;
        b->range.hi = at += u->size;
        b->params = matrices_of(a, plan, u, seed);
        b->n_params = u->n_params;
    }
    return list;
}

void compressed_buckets_free(CompressedBucket *b, size_t n) {
    for (size_t i = 0; i < n; i++) free(b[i].params);
    free(b);
}

Compression *compression_new(Comm *dp, const CompressionPlan *plan, const Model *m, uint64_t seed) {
    Compression *c = (Compression *)host_alloc(sizeof *c);
    c->dp = dp;
    c->plan = *plan;
    c->gradients = arena(MEM_GRADIENTS);
    c->state = arena(MEM_COMMUNICATION);
    c->buckets = compressed_buckets_new(&c->state, plan, m, seed, &c->n_buckets);
    if (plan->method == HALF) return c;
    c->error = tensor_new(&c->gradients, 1, m->size);
    tensor_fill(c->error, 0);
    for (size_t i = 0; i < c->n_buckets && plan->method == ONE_BIT; i++) {
        CompressedBucket *b = &c->buckets[i];
        Range mine = numbers_of_part(range_size(b->range), 1, dp->size, dp->rank);
        b->server_error = tensor_new(&c->gradients, 1, range_size(mine));
        tensor_fill(b->server_error, 0);
    }
    return c;
}

void compression_free(Compression *c) {
    compressed_buckets_free(c->buckets, c->n_buckets);
    arena_free(&c->gradients);
    arena_free(&c->state);
    free(c);
}

// ---------------------------------------------------------------- a step's gradient, bucket by bucket

typedef void (*Compress)(Compression *c, CompressedBucket *b, Tensor g, Tensor e);
void compression_all_reduce(Compression *c, Tensor g) {
    static const Compress compress[METHODS] = { half, top_k, one_bit, power_sgd };
    for (size_t i = c->n_buckets; i-- > 0;) {  // the last layers' gradients are finished first
        CompressedBucket *b = &c->buckets[i];
        Tensor e = c->error;
        if (e.data) e = tensor_flat_range(c->error, b->range.lo, b->range.hi);
        compress[c->plan.method](c, b, tensor_flat_range(g, b->range.lo, b->range.hi), e);
    }
}
