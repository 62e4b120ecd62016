// bucket_costs.c: see bucket_costs.h.
#include "01_data_parallel/bucket_costs.h"
#include <stdlib.h>
#include "common/model/formulas.h"

// What the rule of buckets.h makes of the sizes of all tensors. A bucket is complete after the backward of the layer of
// its first tensor: 0 is the embedding, then come the blocks, then the head. piece[2 + 12 L + 2].
typedef struct { size_t elements, layer; } Piece;
static size_t cut(const ModelConfig *c, size_t capacity, Piece *piece) {
    size_t V = c->vocab, T = c->context, C = c->width, L = c->layers, n = 0, open = 0;
    size_t block[12] = { C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C, 4 * C, 4 * C * C, C };
    for (size_t i = 2 + 12 * L + 2; i-- > 0;) {
        size_t layer = i < 2 ? 0 : 1 + (i - 2) / 12;
        open += i == 0 ? V * C : i == 1 ? T * C : layer == L + 1 ? C : block[(i - 2) % 12];
        if (open * sizeof(real) < capacity && i > 0) continue;
        piece[n++] = (Piece){ open, layer };
        open = 0;
    }
    return n;
}

// When the backward of `layer` is done on a rank. The embedding's costs nothing: it has no product of matrices.
static double done(const ModelConfig *c, LastBatch b, size_t layer) {
    double block = work_block(c, b.sequences, c->heads, 4 * c->width).time;
    double head = work_head(c, b.sequences, c->vocab).time;
    size_t L = c->layers, blocks = layer > 0 ? L + 1 - layer : L;
    return b.begin + (double)L * block + head + 2 * (head + (double)blocks * block);
}
static double done_everywhere(const ModelConfig *c, size_t ranks, const LastBatch *batch, size_t layer) {
    double last = 0;
    for (size_t r = 0; r < ranks; r++)
        if (done(c, batch[r], layer) > last) last = done(c, batch[r], layer);
    return last;
}

// Bucket k begins when it is complete on the last rank and bucket k - 1 has ended.
BucketCosts bucket_costs(const ModelConfig *c, size_t capacity, size_t ranks, const LastBatch *batch) {
    Piece *piece = host_alloc((2 + 12 * c->layers + 2) * sizeof *piece);
    BucketCosts costs = { .buckets = cut(c, capacity, piece), .step = done_everywhere(c, ranks, batch, 0) };
    double end = 0;
    for (size_t k = 0; k < costs.buckets; k++) {
        double ready = done_everywhere(c, ranks, batch, piece[k].layer), begin = ready > end ? ready : end;
        end = begin + ring_time(ALL_REDUCE_PASSES, ranks, piece[k].elements, sizeof(real));
        if (ranks > 1) costs.scratch += ranks * ceil_div(piece[k].elements, ranks) * sizeof(real);
        costs.bytes += ring_bytes(ALL_REDUCE_PASSES, ranks, piece[k].elements, sizeof(real));  // each rounded up
        for (size_t r = 0; r < ranks; r++) {               // hidden as long as this rank computes
            double busy = done(c, batch[r], 0), hidden = busy < begin ? 0 : busy < end ? busy - begin : end - begin;
            costs.hidden += hidden;
            costs.exposed += end - begin - hidden;
        }
    }
    if (end > costs.step) costs.step = end;
    free(piece);
    return costs;
}
