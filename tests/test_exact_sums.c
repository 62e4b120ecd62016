// test_exact_sums.c: tests gradients for which a method of compression loses nothing but rounding.
// The method's sum over ranks must equal the sum of an all-reduce. Over several steps the sums and
// the last residuals together must lose nothing.
//
// ranks: 4
// level: core
// question: Is each method of compression exact where it can be?
#include "01_data_parallel/experiments/experiments.h"
#include "common/tensor/random.h"
#include <stdlib.h>

static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};

//   MADE_SMALL  small whole numbers
//   MADE_LARGE  numbers whose sum is too large for fp16
//   MADE_NOISE  random numbers
//   MADE_EVEN   +-1/4, equal on all ranks
//   MADE_FLAT   A B^T, where B has MADE_FLAT_RANK columns and is the same on all ranks
typedef enum { MADE_SMALL, MADE_LARGE, MADE_NOISE, MADE_EVEN, MADE_FLAT } MadeKind;
enum { MADE_FLAT_RANK = 2 };

static void made_gradient(Run *run, const Model *m, MadeKind kind) {
    size_t rank = run->world->rank;
    uint64_t own_key = random_key(random_key(run->seed, 7), rank);
    uint64_t shared_key = random_key(run->seed, 8);
    real *host = host_alloc(m->size * sizeof *host);
    for (size_t i = 0; i < m->size; i++) {
        uint64_t word = random_key(kind == MADE_EVEN ? shared_key : own_key, i);
        host[i] = kind == MADE_SMALL   ? (real)((int)(word % 17) - 8)
                  : kind == MADE_LARGE ? (real)(40000 + word % 20000)
                  : kind == MADE_EVEN  ? (real)(word & 1 ? 0.25 : -0.25)
                                       : (real)random_normal(word);
    }
    tensor_upload(m->g, host);
    for (size_t u = 0; u < m->n_units && kind == MADE_FLAT; u++)
        for (size_t p = 0; p < m->units[u].n_params && !m->units[u].tied_to; p++) {
            Tensor g = m->units[u].params[p].g;
            Arena a = arena(MEM_REFERENCE);
            Tensor left = tensor_new(&a, g.rows, MADE_FLAT_RANK),
                   right = tensor_new(&a, g.cols, MADE_FLAT_RANK);
            tensor_randomize(left, random_key(own_key, p), 1);
            tensor_randomize(right, random_key(shared_key, p), 1);
            op_matmul_nt(g, left, right);
            arena_free(&a);
        }
    free(host);
}

// With limit 0 the plan's sum must equal an all-reduce in every bit.
static void check_exact(Run *run, const CompressionPlan *plan, MadeKind kind, const char *name,
                        double limit) {
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    Model *m = whole_model(&tiny);
    Compression *c = compression_new(run->world, plan, m, run->seed);
    made_gradient(run, m, kind);
    compression_all_reduce(c, m->g);
    model_snapshot(m, got, UNIT_GRADIENTS, NULL);
    made_gradient(run, m, kind);
    comm_all_reduce(run->world, m->g);
    model_snapshot(m, want, UNIT_GRADIENTS, NULL);
    if (limit > 0) check_close(run, name, got, want, limit);
    else check_equal(run, name, got, want);
    compression_free(c);
    model_free(m);
    snapshot_free(got);
    snapshot_free(want);
}

// Runs several steps with error feedback. All sums that the ranks reconstructed, and the last
// residuals of all ranks, must add up to the gradients of all ranks. In 1-bit each rank is also the
// server of a part of each bucket, and the servers' residuals count, too.
static void check_nothing_lost(Run *run, const CompressionPlan *plan, const char *name) {
    enum { STEPS = 3 };
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    Model *m = whole_model(&tiny);
    Compression *c = compression_new(run->world, plan, m, run->seed);
    Arena a = arena(MEM_REFERENCE);
    Tensor gradients = tensor_new(&a, 1, m->size), reconstructed = tensor_new(&a, 1, m->size);
    tensor_fill(gradients, 0);
    tensor_fill(reconstructed, 0);
    for (size_t step = 0; step < STEPS; step++) {
        made_gradient(run, m, MADE_NOISE);
        op_scale(m->g, m->g, (real)(step + 1));
        op_add(gradients, gradients, m->g);
        compression_all_reduce(c, m->g);
        op_add(reconstructed, reconstructed, m->g);
    }
    for (size_t i = 0; i < c->n_buckets && plan->method == ONE_BIT; i++) {
        const CompressedBucket *b = &c->buckets[i];
        Range part = elements_of_part(range_size(b->range), 1, run->world->size, run->world->rank);
        Tensor own = tensor_flat_range(c->error, b->range.lo + part.lo, b->range.lo + part.hi);
        op_add(own, own, b->server_error);
    }
    comm_all_reduce(run->world, c->error);
    comm_all_reduce(run->world, gradients);
    op_add(reconstructed, reconstructed, c->error);
    snapshot_put(got, "all ranks", 1, m->size, reconstructed, 0, 0);
    snapshot_put(want, "all ranks", 1, m->size, gradients, 0, 0);
    check_close(run, name, got, want, LIMIT_ROUNDING);
    arena_free(&a);
    compression_free(c);
    model_free(m);
    snapshot_free(got);
    snapshot_free(want);
}

static void exact_sums(Run *run) {
    const CompressionPlan fp16 = { .method = HALF }, all = { .method = TOP_K, .one_of = 1 };
    const CompressionPlan top_k = { .method = TOP_K, .one_of = 32 },
                          one_bit = { .method = ONE_BIT };
    const CompressionPlan rank_2 = { .method = POWER_SGD, .rank = 2, .min_rate = 2 };
    const CompressionPlan full = { .method = POWER_SGD, .rank = SIZE_MAX };
    const double bits = exact_limit(run);
    check_exact(run, &fp16, MADE_SMALL, "fp16: small whole numbers = all-reduce", bits);
    // A value is rounded twice, each time by at most 2^-11 of its size.
    check_exact(run, &fp16, MADE_LARGE, "fp16: sums beyond 65504 = all-reduce", 0x1p-10);
    check_exact(run, &all, MADE_NOISE, "top-k, k = d = all-reduce", bits);
    check_exact(run, &one_bit, MADE_EVEN, "1-bit: +-1/4 everywhere = all-reduce", bits);
    // The columns of P = A B^T Q are short if B and a random Q are almost at right angles. The
    // rounding of P then grows when P is made orthonormal, so the limit is wider.
    check_exact(run, &rank_2, MADE_FLAT, "PowerSGD: sum of rank 2 = all-reduce",
                100 * LIMIT_ROUNDING);
    check_exact(run, &full, MADE_NOISE, "PowerSGD, full rank = all-reduce", LIMIT_ROUNDING);
    check_nothing_lost(run, &top_k, "top-k: reconstructed + residuals = gradients");
    check_nothing_lost(run, &one_bit, "1-bit: reconstructed + residuals = gradients");
    check_nothing_lost(run, &rank_2, "PowerSGD: reconstructed + residuals = gradients");
}

static const Option options[] = { REALS_ONLY("compression begins with reals"), { 0 } };
EXPERIMENT(exact_sums, options);
