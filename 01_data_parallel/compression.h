// compression.h: the sum of the replicas' gradients, sent in fewer bytes. It is no longer the sum:
// every method rounds, drops or projects. What keeps the training on course is error feedback: a
// rank notes what it wanted to say and did not, and says it later,
//     x <- g + e;    send C(x), the compressed x;    e <- x - C(x)
// so that after T steps sent_1 + ... + sent_T + e_T = g_1 + ... + g_T: nothing is lost, only late.
//
// A model's units (embedding tables, blocks, last norm) are compressed one by one, as the buckets
// of 04_overlap are. The errors e lie in one tensor laid out as the gradient is: the key of an
// error is the place of its gradient. (PyTorch's hook had them in a dictionary by bucket number,
// and buckets are rebuilt after the first step: issues 48670, 51427.)
#ifndef COMPRESSION_H
#define COMPRESSION_H
#include "common/model/model.h"

typedef enum {
    HALF,          // fp16 on the wire
    TOP_K,  // the largest elements and their places (Aji and Heafield 2017; Stich et al. 2018)
    ONE_BIT,       // signs and a scale, both ways (Seide et al. 2014; Tang et al. 2021, 1-bit Adam)
    POWER_SGD,     // matrices of low rank (Vogels et al. 2019)
    METHODS
} Method;

typedef struct {
    Method method;
    size_t one_of;                                 // TOP_K: of so many elements one is sent
    size_t rank, min_rate;  // POWER_SGD: r; used if (rows + cols) r min_rate < rows cols
    bool forgets;                                  // without error feedback: the trap
} CompressionPlan;

// q [cols, rank]: kept
typedef struct { size_t offset, rows, cols, rank; bool low_rank; Tensor q; } Matrix;
typedef struct {
    Range range;                                   // of the flat gradient
    Matrix *params;                                // its tensors; vectors have one row
    size_t n_params;
    Tensor server_error;  // ONE_BIT: of the part of the sum that I compress
} CompressedBucket;

typedef struct {
    Comm *dp;
    CompressionPlan plan;
    CompressedBucket *buckets;
    size_t n_buckets;
    Tensor error;  // [1, size] e, beside the gradient; none for HALF
    Tensor sent;  // [1, size] all that was ever sent, added up; data NULL: not wanted
    Arena gradients, state;                        // what outlives a step: errors; every q
} Compression;

// q's first values are functions of seed, the same on every rank. m: allocated.
Compression *compression_new(Comm *dp, const CompressionPlan *plan, const Model *m, uint64_t seed);
void compression_free(Compression *c);
// g [1, size], this rank's gradient, becomes the sum over ranks as all ranks reconstruct it, the same
// bits on each. Collective.
void compression_all_reduce(Compression *c, Tensor g);
// Compresses one bucket: g [1, n] becomes the sum as all ranks reconstruct it; e [1, n] becomes the
// residual, the part that this rank has not sent yet. In 06_compression.c, and the last one in 08_power_sgd.c.
typedef void Compress(Compression *c, CompressedBucket *b, Tensor g, Tensor e);
Compress compress_half, compress_top_k, compress_one_bit, compress_power_sgd;
// For checkpoints: the state that outlives a step, on the host, [compression_state_count(c)]
// elements: e, then the error of every server, then every q.
size_t compression_state_count(const Compression *c);
void compression_state_read(const Compression *c, real *state);
void compression_state_write(Compression *c, const real *state);

// ---- pieces that the reference on one device has in common ----
// k of n elements
static inline size_t kept_of(size_t n, size_t one_of) { return ceil_div(n, one_of); }
// The places of the k largest of x [n] by size, ascending; of equals the first.
void largest_places(const real *x, size_t n, size_t k, uint32_t *places);
// What fp16 numbers are multiplied with: a power of two with which the sum of n elements, none
// larger than `largest`, is not above 2^15; so it can be undone without a rounding and nothing
// becomes infinite.
double half_scale(double largest, size_t n);
real sign_scale(Tensor x);                                          // |x|_2 / sqrt(d): as long as x
void orthonormalise(Tensor p);  // the columns, by Gram and Schmidt
CompressedBucket *compressed_buckets_new(Arena *a, const CompressionPlan *plan, const Model *m,
                                         uint64_t seed, size_t *n);
void compressed_buckets_free(CompressedBucket *b, size_t n);
// Calls what(q, its place in host), unless what is NULL, for every q of the buckets; returns how
// many elements they have.
typedef void (*EachState)(Tensor t, real *host);
size_t compressed_factors(const CompressedBucket *b, size_t n, EachState what, real *host);
// Packed elements: how many reals hold n elements of `bits` bits each.
static inline size_t packed_count(size_t n, size_t bits) {
    return ceil_div(n, 8 * sizeof(real) / bits);
}
// The elements in a part of them: parts are cut between reals.
Range elements_of_part(size_t n, size_t bits, size_t parts, size_t part);

// ---- helpers: nothing is sent in them ----
// e was what this rank wanted to send; `sent` is what the receivers reconstruct. e <- the rest, for
// later.
void compression_keep_rest(const Compression *c, Tensor e, Tensor sent);
// adds to c->sent, if wanted
void compression_note(Compression *c, const CompressedBucket *b, Tensor sent);
// HALF. Returns the largest |g|, one element. Then: packed <- fp16 of scale g; sum += the packed
// elements; g <- the packed elements, divided by scale.
Tensor half_largest(Arena *a, Tensor g);
void half_write(Tensor packed, Tensor g, double scale);
void half_add(Tensor sum, Tensor packed);
void half_read(Tensor g, Tensor packed, double scale);
// TOP_K. message [packed_count(k, 32) + k] <- places and values of the k largest elements of x; y
// += the elements of a message.
void top_k_write(Tensor message, Tensor x, size_t k);
void top_k_add(Tensor y, Tensor message, size_t k);
// ONE_BIT. packed <- the signs of x, scale [1] <- its scale; returns scale * sign (padding bits are
// zero). Then: sum += scale * sign; x <- scale * sign, from sign `first` on.
Tensor one_bit_write(Arena *a, Tensor packed, Tensor scale, Tensor x);
void one_bit_add(Tensor sum, Tensor packed, Tensor scale);
void one_bit_read(Tensor x, Tensor packed, size_t first, Tensor scale);
#endif
