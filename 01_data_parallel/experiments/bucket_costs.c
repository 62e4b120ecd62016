// bucket_costs.c: predicts the costs of reducing in buckets from the sizes alone, without a model
// or its buckets.
#include "01_data_parallel/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>

// Returns whether the model's family has this tensor of a block. The number of elements on this
// rank cannot tell. A rank of a tensor-parallel grid may hold no element of a tensor that the
// family has.
static bool family_has(const CutSizes *z, size_t tensor) {
    switch (tensor) {
    case LN1_BIAS:
    case LN2_BIAS: return z->norm_bias;
    case QKV_B: return z->qkv_bias;
    case PROJ_B:
    case FC_B:
    case OUT_B: return z->bias;
    default: return true;
    }
}

// Lists the tensors of the stage in model order, with their layers. Layer 0 is the stage's first
// layer.
static size_t list_tensors(const CutSizes *z, const TensorElements *of, bool with_wte,
                           BucketPiece *tensor) {
    size_t n = 0, layers = cut_layers(z);
    if (z->first && with_wte) tensor[n++] = (BucketPiece){ of->wte, 0 };
    if (z->first && z->positions_width) tensor[n++] = (BucketPiece){ of->wpe, 0 };
    for (size_t i = 0; i < z->blocks * TENSORS_OF_BLOCK; i++) {
        size_t which = i % TENSORS_OF_BLOCK;
        if (family_has(z, which))
            tensor[n++] = (BucketPiece){ of->block[which], z->first + i / TENSORS_OF_BLOCK };
    }
    if (z->last) tensor[n++] = (BucketPiece){ of->norm, layers - 1 };
    if (z->last && z->norm_bias) tensor[n++] = (BucketPiece){ of->norm_bias, layers - 1 };
    if (z->last && z->untied) tensor[n++] = (BucketPiece){ of->wte, layers - 1 };
    return n;
}

size_t bucket_pieces(const CutSizes *z, const TensorElements *of, size_t capacity,
                     BucketPiece **piece) {
    BucketPiece *tensor = host_alloc((2 + z->blocks * TENSORS_OF_BLOCK + 3) * sizeof *tensor);
    size_t n = 0, open = 0, tensors = list_tensors(z, of, !stage_shares_table(z), tensor);
    *piece = host_alloc((tensors + 1) * sizeof **piece);
    for (size_t i = tensors; i-- > 0;) {
        open += tensor[i].elements;
        if (open * element_size(z->gradient) < capacity && i > 0) continue;
        (*piece)[n++] = (BucketPiece){ open, tensor[i].layer };
        open = 0;
    }
    free(tensor);
    if (stage_shares_table(z)) (*piece)[n++] = (BucketPiece){ of->wte, 0 };
    return n;
}

// The last micro-batch of a step on one rank. The rank computes the earlier micro-batches without
// waiting for messages.
typedef struct {
    double begin; // start of its forward, in picoseconds after the start of the step
    size_t sequences;
} LastBatch;
static LastBatch last_batch(const ModelConfig *c, size_t shard, size_t micro_batches) {
    LastBatch b = { 0, part_size(shard, micro_batches, micro_batches - 1) };
    for (size_t k = 0; k + 1 < micro_batches; k++)
        b.begin += work_model(c, part_size(shard, micro_batches, k)).time;
    return b;
}

// Returns the time at which the backward of `layer` is done on a rank. The embedding's backward
// takes no time, because it has no product of matrices.
static double done(const ModelConfig *c, LastBatch b, size_t layer) {
    CutSizes z = cut_sizes(c, 1, 0);
    double block = work_block(&z, b.sequences).time, head = work_head(&z, b.sequences).time;
    size_t L = c->layers, blocks = layer > 0 ? L + 1 - layer : L;
    return b.begin + (double)L * block + head + 2 * (head + (double)blocks * block);
}
static double done_everywhere(const ModelConfig *c, size_t ranks, const LastBatch *batch,
                              size_t layer) {
    double last = 0;
    for (size_t r = 0; r < ranks; r++)
        if (done(c, batch[r], layer) > last) last = done(c, batch[r], layer);
    return last;
}

BucketCosts bucket_costs(const ModelConfig *c, size_t capacity, size_t ranks, size_t sequences,
                         size_t micro_batches) {
    BucketPiece *piece;
    LastBatch *batch = host_alloc(ranks * sizeof *batch);
    for (size_t r = 0; r < ranks; r++)
        batch[r] = last_batch(c, part_size(sequences, ranks, r), micro_batches);
    CutSizes z = cut_sizes(c, 1, 0);
    TensorElements of = { .wte = elements_wte(&z), .wpe = elements_unit(&z, 0), .norm = z.C };
    of.norm_bias = z.norm_bias * z.C;
    elements_tensors(&z, of.block);
    BucketCosts costs = { .buckets = bucket_pieces(&z, &of, capacity, &piece),
                          .step = done_everywhere(c, ranks, batch, 0) };
    const size_t e = element_size(z.gradient);
    double end = 0;
    for (size_t k = 0; k < costs.buckets; k++) {
        double ready = done_everywhere(c, ranks, batch, piece[k].layer),
               begin = ready > end ? ready : end;
        end = begin + ring_time(ALL_REDUCE_PASSES, ranks, piece[k].elements, e);
        if (ranks > 1) costs.scratch += ranks * ceil_div(piece[k].elements, ranks) * e;
        // The bytes of each bucket are rounded up to whole chunks.
        costs.bytes += ring_bytes(ALL_REDUCE_PASSES, ranks, piece[k].elements, e);
        for (size_t r = 0; r < ranks; r++) { // an all-reduce is hidden while rank r computes
            double busy = done(c, batch[r], 0), hidden = 0;
            if (busy > begin) hidden = fmin(busy, end) - begin;
            costs.hidden += hidden;
            if (r + 1 == ranks) costs.hidden_last += hidden;
            costs.exposed += end - begin - hidden;
        }
    }
    if (end > costs.step) costs.step = end;
    free(piece);
    free(batch);
    return costs;
}
