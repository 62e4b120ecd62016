// compression_reference.c: the rules of compression.h on ONE device that has the gradients of all N
// shards, without messages and packed bits. The device rounds, drops or projects the numbers in
// place and adds in shard order. N ranks must get the same bits.
#include "01_data_parallel/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>
#include "01_data_parallel/compression_items.h"

// One bucket on the host. x [N, n] is gradient plus residual of every shard (for HALF: the
// gradient).
typedef struct {
    size_t N, n;
    real *x, *sum;
} Shards;

static double rounded(double x) { return half_value(half_from(x)); }

static void half(const Shards *s) {
    double largest = 0;
    for (size_t i = 0; i < s->N * s->n; i++) largest = fmax(largest, fabs((double)s->x[i]));
    const double scale = half_scale(largest, s->N);
    for (size_t i = 0; i < s->n; i++) {
        for (size_t r = 0; r < s->N; r++)
            s->sum[i] += (real)rounded((double)s->x[r * s->n + i] * scale);
        s->sum[i] = (real)(rounded((double)s->sum[i]) / scale);
    }
}

static int larger_first(const void *a, const void *b) { // for equal |x|, the left one first
    const real *const x = *(real *const *)a, *const y = *(real *const *)b;
    const double difference = fabs((double)*y) - fabs((double)*x);
    return difference > 0 ? 1 : difference < 0 ? -1 : (x > y) - (x < y);
}

// Adds the k largest elements of each shard to the sum and sets them to 0 in x. So x becomes the
// residual.
static void top_k(const Shards *s, size_t k) {
    real **order = host_alloc(s->n * sizeof *order);
    for (size_t r = 0; r < s->N; r++) {
        real *x = s->x + r * s->n;
        for (size_t i = 0; i < s->n; i++) order[i] = x + i;
        qsort(order, s->n, sizeof *order, larger_first);
        for (size_t i = 0; i < k; i++) {
            s->sum[order[i] - x] += *order[i];
            *order[i] = 0;
        }
    }
    free(order);
}

// Replaces v by scale times the signs of v. `error`, another array, gets the residual.
static void to_signs(real *v, real *error, size_t n) {
    Arena a = arena(MEM_WORKSPACE);
    Tensor t = tensor_new(&a, 1, n);
    tensor_upload(t, v);
    const real scale = sign_scale(t);
    for (size_t i = 0; i < n; i++) {
        const real x = v[i], said = x < 0 ? -scale : scale;
        v[i] = said;
        error[i] = x - said;
    }
    arena_free(&a);
}

// Sets s->sum to the sum that the ranks reconstruct from signs. Afterwards x holds the shards'
// residuals, and `server` holds the servers' residuals.
static void one_bit(const Shards *s, real *server) {
    real *said = host_alloc(s->n * sizeof *said);
    for (size_t i = 0; i < s->n; i++) s->sum[i] = server[i];
    for (size_t r = 0; r < s->N; r++) {
        real *x = s->x + r * s->n;
        for (size_t i = 0; i < s->n; i++) said[i] = x[i];
        to_signs(said, x, s->n);
        for (size_t i = 0; i < s->n; i++) s->sum[i] += said[i];
    }
    for (size_t r = 0; r < s->N; r++) { // every part has a scale of its own
        Range part = elements_of_part(s->n, 1, s->N, r);
        to_signs(s->sum + part.lo, server + part.lo, range_size(part));
    }
    free(said);
}

// ---- PowerSGD, on tensors, with the same products as the ranks ----

static Tensor of_shard(Tensor all, size_t shard, const Matrix *m) {
    Tensor row = tensor_row_range(all, shard, shard + 1);
    return tensor_reshape(tensor_flat_range(row, m->offset, m->offset + m->rows * m->cols), m->rows,
                          m->cols);
}

// Runs a round of PowerSGD for one matrix. Before the call, x [N, n] has gradients plus residuals
// of the bucket. Afterwards sum [1, n] has the matrix's part of the reconstructed sum of the
// shards, and x has the residuals.
static void low_rank(Matrix *m, Tensor sum, Tensor x) {
    Arena a = arena(MEM_WORKSPACE);
    const size_t N = x.rows, r = m->rank;
    Tensor p = tensor_new(&a, m->rows, r), p_one = tensor_new(&a, m->rows, r),
           q_one = tensor_new(&a, m->cols, r);
    Tensor whole = tensor_new(&a, m->rows, m->cols);
    orthonormalise(m->q);
    for (size_t s = 0; s < N; s++) {
        op_matmul(s ? p_one : p, of_shard(x, s, m), m->q);
        if (s) op_add(p, p, p_one);
    }
    orthonormalise(p);
    for (size_t s = 0; s < N; s++) {
        op_matmul_tn(s ? q_one : m->q, of_shard(x, s, m), p);
        if (s) op_add(m->q, m->q, q_one);
    }
    op_matmul_nt(whole, p, m->q);
    tensor_copy(of_shard(sum, 0, m), whole);
    op_scale(whole, whole, (real)-1 / (real)N);
    for (size_t s = 0; s < N; s++) op_add(of_shard(x, s, m), of_shard(x, s, m), whole);
    arena_free(&a);
}

static void as_it_is(const Matrix *m, Tensor sum, Tensor x) {
    tensor_copy(of_shard(sum, 0, m), of_shard(x, 0, m));
    for (size_t s = 1; s < x.rows; s++)
        op_add(of_shard(sum, 0, m), of_shard(sum, 0, m), of_shard(x, s, m));
    for (size_t s = 0; s < x.rows; s++) tensor_fill(of_shard(x, s, m), 0);
}

// ---- a bucket, a step ----

static void on_the_host(OneDevice *o, Tensor sum, Tensor x, Tensor server) {
    Shards s = { .N = x.rows,
                 .n = x.cols,
                 .x = host_alloc(x.rows * x.cols * sizeof(real)),
                 .sum = host_alloc(x.cols * sizeof(real)) };
    real *kept = host_alloc(x.cols * sizeof *kept);
    tensor_download(s.x, x);
    tensor_download(kept, server);
    switch (o->plan.method) {
    case HALF: half(&s); break;
    case TOP_K: top_k(&s, kept_of(s.n, o->plan.one_of)); break;
    default: one_bit(&s, kept); break;
    }
    tensor_upload(sum, s.sum);
    tensor_upload(x, s.x);
    tensor_upload(server, kept);
    free(s.x);
    free(s.sum);
    free(kept);
}

void one_device_sum(OneDevice *o, Tensor sum, Tensor g) {
    if (o->plan.method == HALF) tensor_copy(o->error, g);
    else op_add(o->error, o->error, g);
    for (size_t i = 0; i < o->n_buckets; i++) {
        const CompressedBucket *b = &o->buckets[i];
        Tensor x = tensor_col_range(o->error, b->range.lo, b->range.hi);
        Tensor part = tensor_col_range(sum, b->range.lo, b->range.hi);
        if (o->plan.method != POWER_SGD)
            on_the_host(o, part, x, tensor_col_range(o->server_error, b->range.lo, b->range.hi));
        for (size_t k = 0; k < b->n_params && o->plan.method == POWER_SGD; k++) {
            if (b->params[k].low_rank) low_rank(&b->params[k], part, x);
            else as_it_is(&b->params[k], part, x);
        }
    }
}

OneDevice one_device_new(const CompressionPlan *plan, const Model *m, size_t shards,
                         uint64_t seed) {
    OneDevice o = { .plan = *plan, .arena = arena(MEM_REFERENCE) };
    o.buckets = compressed_buckets_new(&o.arena, plan, m, seed, &o.n_buckets);
    o.error = tensor_new(&o.arena, shards, m->size);
    o.server_error = tensor_new(&o.arena, 1, m->size);
    tensor_fill(o.error, 0);
    tensor_fill(o.server_error, 0);
    return o;
}

void one_device_free(OneDevice *o) {
    compressed_buckets_free(o->buckets, o->n_buckets);
    arena_free(&o->arena);
}

// ---- a training ----

// Computes the gradients of the N shards one after the other, and applies the rule to these
// gradients.
Trajectory one_device_course(Run *run, const Training *t, const CompressionPlan *plan, size_t N) {
    Trajectory course = trajectory_new(run, t);
    if (run->world->rank > 0) return course;
    ledger_pause();
    Model *m = whole_model(&t->model);
    Optimizer o = t->optimizer;
    optimizer_allocate(&o, m);
    OneDevice rule = one_device_new(plan, m, N, run->seed);
    Arena a = arena(MEM_REFERENCE);
    Tensor g = tensor_new(&a, N, m->size);
    for (size_t step = 0; step < t->steps; step++) {
        double loss = 0;
        for (size_t k = 0; k < N; k++) {
            loss += worker_gradient(m, &t->data, t->sequences, N, k, step);
            tensor_copy(tensor_row_range(g, k, k + 1), m->g);
        }
        one_device_sum(&rule, m->g, g);
        double norm = model_grad_norm(m, NULL);
        optimizer_step(&o, m, clip_factor(norm, t->clip));
        trajectory_record(&course, step, m, loss, norm);
    }
    one_device_free(&rule);
    arena_free(&a);
    model_free(m);
    ledger_resume();
    return course;
}
