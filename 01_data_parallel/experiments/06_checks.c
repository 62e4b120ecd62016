// 06_checks.c: see 06_checks.h.
#include "01_data_parallel/experiments/06_checks.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "judge/frame/training.h"
#include "common/tensor/random.h"

// ---------------------------------------------------------------- the books

static Tensor zeros(Arena *a, size_t n) {
    Tensor t = tensor_new(a, 1, n);
    tensor_fill(t, 0);
    return t;
}

Books books_new(Compression *c, size_t size) {
    Books b = { .arena = arena(MEM_REFERENCE) };
    b.mine = zeros(&b.arena, size);
    b.believed = zeros(&b.arena, size);
    c->sent = zeros(&b.arena, size);
    return b;
}

void books_note(Tensor sum, Tensor g) {
    if (sum.data) op_add(sum, sum, g);
}

void books_free(Books *b) { arena_free(&b->arena); }

// On every rank: all it ever sent + what it still keeps back = all its gradients.
static void check_workers(Run *run, const char *what, const Books *b, const Compression *c) {
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    Arena a = arena(MEM_REFERENCE);
    Tensor sum = tensor_new(&a, 1, b->mine.cols);
    char name[32];
    snprintf(name, sizeof name, "rank %zu", c->dp->rank);
    op_add(sum, c->sent, c->error);
    snapshot_put(got, name, 1, sum.cols, sum, 0, 0);
    snapshot_put(want, name, 1, sum.cols, b->mine, 0, 0);
    check_close(run, what, got, want, LIMIT_ROUNDING);
    arena_free(&a);
    snapshot_free(got);
    snapshot_free(want);
}

// All that was believed + what the servers keep back = all that was sent, over all ranks.
static void check_servers(Run *run, const char *what, const Books *b, const Compression *c) {
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run), *parts = snapshot_new(run);
    Arena a = arena(MEM_REFERENCE);
    size_t size = b->believed.cols, N = c->dp->size;
    char name[32];
    snprintf(name, sizeof name, "rank %zu", c->dp->rank);
    snapshot_put(parts, name, 1, size, c->sent, 0, 0);
    snapshot_put(parts, "believed", 1, size, b->believed, 0, 0);       // by every rank: they must agree in every bit
    for (size_t i = 0; i < c->n_buckets && c->plan.method == ONE_BIT; i++) {
        const CompressedBucket *bucket = &c->buckets[i];
        Range part = elements_of_part(range_size(bucket->range), 1, N, c->dp->rank);
        snapshot_put_flat(parts, "servers", 1, size, bucket->server_error, bucket->range.lo + part.lo);
    }
    snapshot_join(parts);
    if (c->dp->rank == 0) {
        Tensor sum = zeros(&a, size), left = zeros(&a, size), t = tensor_new(&a, 1, size);
        for (size_t k = 0; k < N; k++) {
            snprintf(name, sizeof name, "rank %zu", k);
            tensor_upload(t, snapshot_values(parts, name));
            op_add(sum, sum, t);
        }
        if (c->plan.method == ONE_BIT) tensor_upload(left, snapshot_values(parts, "servers"));
        op_add(left, left, b->believed);
        snapshot_put(got, "all ranks", 1, size, left, 0, 0);
        snapshot_put(want, "all ranks", 1, size, sum, 0, 0);
    }
    check_close(run, what, got, want, LIMIT_ROUNDING);
    arena_free(&a);
    snapshot_free(got);
    snapshot_free(want);
    snapshot_free(parts);
}

void books_check(Run *run, const Books *b, const Compression *c, const char *method) {
    char what[64];
    snprintf(what, sizeof what, "%s: sent + kept back = gradients", method);
    check_workers(run, what, b, c);
    snprintf(what, sizeof what, "%s: believed + kept back = sent", method);
    check_servers(run, what, b, c);
}

// ---------------------------------------------------------------- made gradients

void made_gradient(Run *run, const Model *m, Kind kind) {
    size_t rank = run->world->rank;
    uint64_t mine = random_key(random_key(run->seed, 7), rank), all = random_key(run->seed, 8);
    real *host = host_alloc(m->size * sizeof *host);
    for (size_t i = 0; i < m->size; i++) {
        uint64_t word = random_key(kind == EVEN ? all : mine, i);
        host[i] = kind == SMALL ? (real)((int)(word % 17) - 8) : kind == LARGE ? (real)(40000 + word % 20000)
                : kind == EVEN ? (real)(word & 1 ? 0.25 : -0.25) : (real)random_normal(word);
    }
    tensor_upload(m->g, host);
    for (size_t u = 0; u < m->n_units && kind == FLAT; u++)
        for (size_t p = 0; p < m->units[u].n_params && !m->units[u].tied_to; p++) {
            Tensor g = m->units[u].params[p].g;
            Arena a = arena(MEM_REFERENCE);
            Tensor left = tensor_new(&a, g.rows, FLAT_RANK), right = tensor_new(&a, g.cols, FLAT_RANK);
            tensor_randomize(left, random_key(mine, p), 1);
            tensor_randomize(right, random_key(all, p), 1);
            op_matmul_nt(g, left, right);
            arena_free(&a);
        }
    free(host);
}

// ---------------------------------------------------------------- where compression loses nothing

static void check_exact(Run *run, const ModelConfig *model, const CompressionPlan *plan, Kind kind, const char *name,
                        double limit) {
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    Model *m = model_describe(model, model_layers(model));
    model_allocate(m);
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

// Is place i among the chosen where, and only where, fewer than k elements come before it: larger ones, and equal ones
// on its left?
enum { CHOICE = 12 };
static bool right_places(const real *x, size_t k) {
    uint32_t places[CHOICE];
    size_t found = 0;
    largest_places(x, CHOICE, k, places);
    for (size_t i = 0; i < CHOICE; i++) {
        size_t before = 0;
        for (size_t j = 0; j < CHOICE; j++) {
            double difference = fabs((double)x[j]) - fabs((double)x[i]);
            before += difference > 0 || (difference == 0 && j < i);
        }
        if (before < k && (found == k || places[found++] != i)) return false;
    }
    return found == k;
}

// Of 12 elements between -2 and 2 many are equal, and the last one is often among the chosen.
void compression_check_choice(Run *run) {
    bool right = true;
    for (uint64_t v = 0; v < 64; v++)
        for (size_t k = 1; k <= CHOICE; k++) {
            real x[CHOICE];
            for (size_t i = 0; i < CHOICE; i++)
                x[i] = (real)((int)(random_key(random_key(run->seed, 9 + v), i) % 5) - 2);
            right = right && right_places(x, k);
        }
    check_true(run, "top-k: of equal elements", "the first ones are sent", right);
}

void compression_check_exact(Run *run, const ModelConfig *model, const CompressionPlan *plans) {
    CompressionPlan all = { .method = TOP_K, .one_of = 1 }, full = { .method = POWER_SGD, .rank = SIZE_MAX };
    check_exact(run, model, &plans[HALF], SMALL, "fp16: small whole numbers = all-reduce", every_bit(run));
    // Two roundings of 2^-11.
    check_exact(run, model, &plans[HALF], LARGE, "fp16: sums beyond 65504 = all-reduce", 0x1p-10);
    check_exact(run, model, &all, NOISE, "top-k, k = d = all-reduce", every_bit(run));
    check_exact(run, model, &plans[ONE_BIT], EVEN, "1-bit: +-1/4 everywhere = all-reduce", every_bit(run));
    // P = A B^T Q: where the directions of B and of a random Q happen to be almost at right angles, P is short, and its
    // rounding is that much longer once it is orthonormal.
    check_exact(run, model, &plans[POWER_SGD], FLAT, "PowerSGD: sum of rank 2 = all-reduce", 100 * LIMIT_ROUNDING);
    check_exact(run, model, &full, NOISE, "PowerSGD, full rank = all-reduce", LIMIT_ROUNDING);
}
