// compression.h: the sum of the replicas' gradients, sent in fewer bytes. The result is not exact,
// because every method rounds, drops or projects. All methods but HALF have error feedback. A rank
// keeps the residual e, which is the part that it has not sent, and adds e to its next gradient:
//     x <- g + e
//     send C(x), the compressed x
//     e <- x - C(x)
// After T steps sent_1 + ... + sent_T + e_T = g_1 + ... + g_T. Nothing is lost, because the part
// that a step does not send is sent later.
//
// Each unit of the model (a table, a block, the last norm) is compressed by itself, as a bucket.
// One tensor with the layout of the gradient holds the residuals e of all buckets, so a residual
// has the place of its gradient. (PyTorch's PowerSGD hook keeps residuals by bucket number. DDP
// rebuilds its buckets after the first step, and then these residuals do not fit. So the hook sends
// whole gradients in the first steps.)
#ifndef COMPRESSION_H
#define COMPRESSION_H
#include "common/model/model.h"

typedef enum {
    HALF,      // fp16 on the wire
    TOP_K,     // the elements with the largest absolute values (Aji and Heafield 2017)
    ONE_BIT,   // signs and a scale (Seide et al. 2014; Tang et al. 2021, 1-bit Adam)
    POWER_SGD, // matrices of low rank (Vogels et al. 2019)
    METHODS
} Method;

typedef struct {
    Method method;
    size_t one_of; // TOP_K sends 1 / one_of of a bucket's elements, rounded up
    size_t rank;   // r of POWER_SGD, the number of columns of P and Q
    // POWER_SGD compresses a matrix if (rows + cols) r min_rate < rows cols.
    size_t min_rate;
    bool forgets; // whether every step drops the residual, a trap in the lessons
} CompressionPlan;

// A tensor of a bucket. If low_rank is set, POWER_SGD keeps q [cols, rank] between steps.
typedef struct {
    size_t offset, rows, cols, rank;
    bool low_rank;
    Tensor q;
} Matrix;
typedef struct {
    Range range;    // the bucket's elements of the flat gradient
    Matrix *params; // the bucket's tensors; a vector has one row
    size_t n_params;
    Tensor server_error; // ONE_BIT: residual of the part of the sum that this rank adds up
} CompressedBucket;

typedef struct {
    Comm *dp;
    CompressionPlan plan;
    CompressedBucket *buckets;
    size_t n_buckets;
    Tensor error;           // the residuals e of all buckets (HALF has none)
    Arena gradients, state; // memory of the residuals, memory of every q
} Compression;

// Makes a compression for the gradient of m, which must be allocated. `seed` gives every q its
// first values, so all ranks must give the same seed.
Compression *compression_new(Comm *dp, const CompressionPlan *plan, const Model *m, uint64_t seed);
void compression_free(Compression *c);
// Replaces the whole gradient g by the sum that the ranks reconstruct, in the same bits on every
// rank. All ranks must call this function.
void compression_all_reduce(Compression *c, Tensor g);
// Compresses one bucket. g [1, n] becomes the sum that all ranks reconstruct. e [1, n] becomes the
// residual, the part that this rank has not sent yet; compress_half does not use e. 08_power_sgd.c
// has compress_power_sgd, 06_compression.c has the other three functions.
typedef void Compress(Compression *c, CompressedBucket *b, Tensor g, Tensor e);
Compress compress_half, compress_top_k, compress_one_bit, compress_power_sgd;
// Count, read and write the state kept between steps, for checkpoints. `state` is host memory for
// compression_state_count(c) elements: e, then every server_error, then every q.
size_t compression_state_count(const Compression *c);
void compression_state_read(const Compression *c, real *state);
void compression_state_write(Compression *c, const real *state);

// ---- functions that send nothing; references on one device and tests use most of them, too ----
// Returns the k of top-k for n elements.
static inline size_t kept_of(size_t n, size_t one_of) { return ceil_div(n, one_of); }
// Writes to places [k] the places, in ascending order, of the k elements of x [n] with the largest
// absolute values. Of elements with equal absolute values the first ones are taken.
void largest_places(const real *x, size_t n, size_t k, uint32_t *places);
// Returns the factor by which elements are multiplied before rounding to fp16. The factor is a
// power of two, so dividing by the factor is exact. If `largest` is positive and finite, the scaled
// sum of n elements, none larger than `largest`, is at most 2^15. So this sum does not overflow.
double half_scale(double largest, size_t n);
// Returns |x|_2 / sqrt(d) for the d elements of x. This scale times the signs of x has the norm of
// x.
real sign_scale(Tensor x);
void orthonormalise(Tensor p); // makes p's columns orthonormal
CompressedBucket *compressed_buckets_new(Arena *a, const CompressionPlan *plan, const Model *m,
                                         uint64_t seed, size_t *n);
void compressed_buckets_free(CompressedBucket *b, size_t n);
// compressed_factors calls what(q, place of q in host) for every q of the buckets, unless `what` is
// NULL. Returns the number of elements of all q.
typedef void (*EachState)(Tensor t, real *host);
size_t compressed_factors(const CompressedBucket *b, size_t n, EachState what, real *host);
// Returns the number of reals that hold n elements of `bits` bits each.
static inline size_t packed_count(size_t n, size_t bits) {
    return ceil_div(n, 8 * sizeof(real) / bits);
}
// Returns the range of elements in one part. n elements of `bits` bits each are packed, and the
// packed reals are cut in `parts` parts. A part begins at a whole real.
Range elements_of_part(size_t n, size_t bits, size_t parts, size_t part);

// ---- functions that send nothing; only the methods use them ----
// Sets e to e - sent, the new residual, or to 0 if the plan forgets. Before the call e holds the
// tensor that this rank wanted to send. `sent` is the tensor that the receivers reconstruct.
void compression_keep_rest(const Compression *c, Tensor e, Tensor sent);
// half_largest returns a tensor of one element, the largest |g|. half_write packs scale * g as
// fp16. half_add adds the packed elements to sum. half_read sets g to the packed elements, divided
// by scale.
Tensor half_largest(Arena *a, Tensor g);
void half_write(Tensor packed, Tensor g, double scale);
void half_add(Tensor sum, Tensor packed);
void half_read(Tensor g, Tensor packed, double scale);
// top_k_write fills message [packed_count(k, 32) + k] with the places and values of the k elements
// of x that have the largest absolute values. top_k_add adds the elements of a message to y.
void top_k_write(Tensor message, Tensor x, size_t k);
void top_k_add(Tensor y, Tensor message, size_t k);
// one_bit_write packs the signs of x (padding bits are zero), sets scale [1] to sign_scale(x), and
// returns the tensor scale * signs. one_bit_add adds scale * signs to sum. one_bit_read sets x to
// scale * signs, from sign `first` on.
Tensor one_bit_write(Arena *a, Tensor packed, Tensor scale, Tensor x);
void one_bit_add(Tensor sum, Tensor packed, Tensor scale);
void one_bit_read(Tensor x, Tensor packed, size_t first, Tensor scale);
#endif
