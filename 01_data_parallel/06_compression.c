// ranks: 4
// level: extra
// question: Can ranks send a fraction of their gradients' bytes and still train the model?
// vary: SEQUENCES 5..11, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Holds:  every rank has all weights and gradients, B/N of the sequences, and its own residual e,
//         one element per parameter (16 bits: none). Each unit of the model is a bucket of the
//         gradient. One bit: each rank is the server of 1/N of every bucket, and keeps a second
//         residual for this part.
// Sends:  the counts are per rank, step and bucket of n elements. 16 bits: 2(N-1)/N of 2n bytes,
//         and an all-reduce of one element. Top-k: (N-1) k places and values, k = n/32. One bit:
//         2(N-1)/N of n/8 bytes, and 2(N-1) scales.
// Saves:  in fp32 an all-reduce sends 2(N-1)/N of 4n bytes. 16 bits save half of these bytes, one
//         bit saves 31/32 of them. Top-k sends 8 (N-1) k bytes, which for k = n/32 are N/32 of the
//         all-reduce's bytes.
// Costs:  the result is not the exact sum. Top-k keeps Psi elements of residual per rank, one bit
//         about (1 + 1/N) Psi. 16 bits and one bit make more calls per bucket. From N = 32 on top-k
//         with k = n/32 saves nothing.
// Top-k and one bit have error feedback. A rank computes x <- g + e, and sends C(x), the compressed
// x. The rank keeps e <- x - C(x). Nothing is lost, because the part that a step does not send is
// sent later. The training must have the bits of one device that applies the rule to N gradients.
// Seide et al. 2014; Aji and Heafield 2017; Tang et al. 2021 (1-bit Adam). Left out: exact steps at
// first, and overlapping with backward.
#include "01_data_parallel/compression.h"

static Tensor row(Tensor t, size_t r) { return tensor_row_range(t, r, r + 1); }

// Runs an all-to-all. Every rank cuts its packed elements in N parts and sends part r to rank r.
// Returns the parts that this rank received, [N, part], row r from rank r.
static Tensor exchange(Comm *dp, Arena *a, Tensor packed) {
    const size_t n = tensor_count(packed);
    Range own = shard_range(n, dp->size, dp->rank);
    Tensor in = tensor_new(a, dp->size, range_size(own));
    comm_connect(dp, COMM_EVERYBODY);
    Request *sent[dp->size];
    for (size_t r = 0; r < dp->size; r++) {
        Range part = shard_range(n, dp->size, r);
        Tensor out = tensor_flat_range(packed, part.lo, part.hi);
        sent[r] = r == dp->rank ? NULL : comm_start_send(dp, out, r);
    }
    for (size_t r = 0; r < dp->size; r++)
        if (r != dp->rank) comm_recv(dp, row(in, r), r);
    tensor_copy(row(in, dp->rank), tensor_flat_range(packed, own.lo, own.hi));
    for (size_t r = 0; r < dp->size; r++) comm_wait(sent[r]); // returns at once for NULL
    return in;
}

// Sums g over the ranks with elements of 16 bits. exchange() and half_add() make a reduce-scatter,
// and an all-gather follows. Both send half as many bytes as in fp32. Between the two the sum is a
// real. No residual is kept, because a rounding changes an element by at most 2^-11 of itself. An
// element below 2^-14 after scaling changes by at most 2^-25.
void compress_half(Compression *c, CompressedBucket *b, Tensor g, Tensor e) {
    Comm *dp = c->dp;
    Arena a = arena(MEM_COMMUNICATION);
    const size_t n = tensor_count(g);
    Tensor packed = tensor_new(&a, 1, packed_count(n, 16)), most = half_largest(&a, g);
    real largest;
    // Sends 2(N-1) elements, for the all-reduce of one. All ranks need the same scale, because the
    // scaled elements are added. The largest absolute value on any rank gives a scale with which no
    // sum overflows.
    comm_all_reduce_max(dp, most);
    tensor_download(&largest, most);
    const double scale = half_scale((double)largest, dp->size);
    half_write(packed, g, scale);
    Tensor in = exchange(dp, &a, packed); // sends (N-1)/N of 2 n bytes

    Range own = elements_of_part(n, 16, dp->size, dp->rank);
    Tensor sum = tensor_new(&a, 1, range_size(own)), out = tensor_new(&a, 1, in.cols);
    tensor_fill(sum, 0);
    for (size_t r = 0; r < dp->size; r++) half_add(sum, row(in, r)); // in rank order
    half_write(out, sum, 1);
    // Gathers the sums, because each rank has the sum of its own part only. Sends (N-1)/N of 2 n
    // bytes.
    comm_all_gather(dp, packed, out);
    half_read(g, packed, scale);
    arena_free(&a);
    (void)b;
    (void)e;
}

// Sends the k elements of gradient plus residual with the largest absolute values, each with 4
// bytes of place and sizeof(real) bytes of value. All other elements stay in the residual.
void compress_top_k(Compression *c, CompressedBucket *b, Tensor g, Tensor e) {
    Comm *dp = c->dp;
    Arena a = arena(MEM_COMMUNICATION);
    const size_t n = tensor_count(g), k = kept_of(n, c->plan.one_of);
    const size_t length = packed_count(k, 32) + k; // elements of a message: places, then values
    Tensor all = tensor_new(&a, dp->size, length), sent = tensor_new(&a, 1, n);
    Tensor message = row(all, dp->rank);
    tensor_fill(sent, 0);
    tensor_fill(message, 0);
    // EXERCISE 01.06a (4 points): error feedback. g [1, n] is this rank's gradient, and e [1, n] is
    // the part that it has not sent yet. Make e the sum of both, which the rank wants to send now.
    // Write its k largest elements into `message` (top_k_write), and unpack them again into `sent`
    // (top_k_add), which is zero. Leave in e the part that the other ranks do not receive
    // (compression_keep_rest). Nothing is sent here.
    op_add(e, e, g);
    top_k_write(message, e, k);
    top_k_add(sent, message, k);
    compression_keep_rest(c, e, sent);
    // END
    // The ranks choose different places, so the messages cannot be added on the way. Every rank
    // gets all messages. Sends (N-1) k (4 + sizeof(real)) bytes.
    comm_all_gather(dp, tensor_reshape(all, 1, dp->size * length), message);
    tensor_fill(g, 0);
    for (size_t r = 0; r < dp->size; r++) top_k_add(g, row(all, r), k); // in rank order
    arena_free(&a);
    (void)b;
}

// Sends rank r the signs of part r, and gathers the scales, because a sign has no size. Rank r is
// the server of part r. A server adds up its part, and answers with signs and a scale. Compression
// loses something in the parts and in the answers. The residual of the parts is e, the residual of
// the answers is b->server_error. A server has the sum of its part only, so every rank gathers all
// answers and their scales.
void compress_one_bit(Compression *c, CompressedBucket *b, Tensor g, Tensor e) {
    Comm *dp = c->dp;
    Arena a = arena(MEM_COMMUNICATION);
    const size_t n = tensor_count(g), N = dp->size;
    Tensor packed = tensor_new(&a, 1, packed_count(n, 1)), scales = tensor_new(&a, 1, N);
    Tensor own_scale = tensor_flat_range(scales, dp->rank, dp->rank + 1);

    op_add(e, e, g); // as the sender: gradient plus residual
    Tensor sent = one_bit_write(&a, packed, own_scale, e);
    compression_keep_rest(c, e, sent);
    Tensor in = exchange(dp, &a, packed);   // sends (N-1)/N of n/8 bytes
    comm_all_gather(dp, scales, own_scale); // sends N-1 scales, a real each

    Tensor sum = b->server_error; // as the server of a part: begins with its residual
    for (size_t r = 0; r < N; r++)
        one_bit_add(sum, row(in, r), tensor_flat_range(scales, r, r + 1));
    Tensor answer = tensor_new(&a, 1, in.cols);
    Tensor answered = one_bit_write(&a, answer, own_scale, sum);
    compression_keep_rest(c, sum, answered);
    comm_all_gather(dp, packed, answer);    // sends (N-1)/N of n/8 bytes
    comm_all_gather(dp, scales, own_scale); // sends N-1 scales, a real each

    for (size_t r = 0; r < N; r++) { // every rank unpacks every answer
        Range part = elements_of_part(n, 1, N, r);
        one_bit_read(tensor_flat_range(g, part.lo, part.hi), packed, part.lo,
                     tensor_flat_range(scales, r, r + 1));
    }
    arena_free(&a);
}
