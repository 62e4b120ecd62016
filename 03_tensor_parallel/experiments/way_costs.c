// way_costs.c: the share of one rank in each of the six ways of 12_compare.c, from sizes alone.
#include "03_tensor_parallel/experiments/experiments.h"

static double kept_reals(const CutSizes *z, size_t B) {
    return (double)(z->blocks * activations_block_reals(z, B) + activations_head_reals(z, B));
}
static RankShare columns_and_rows(const ModelConfig *c, size_t B, size_t n, size_t rank,
                                  bool sequence) {
    CutSizes z = cut_sizes(c, n, rank);
    if (sequence) z = cut_sequence(z, false);
    RankShare share = { .parameters = (double)elements_stage(&z),
                        .kept = (double)activations_stage(&z, B),
                        .kept_reals = kept_reals(&z, B),
                        .time = 3 * work_stage(&z, B).time };
    if (sequence) {
        const SequenceTraffic rows = traffic_sequence_parallel(&z, B, false);
        const Traffic sums = traffic_partial_sums(&z);
        share.received = rows.bytes + sums.bytes;
        share.time += rows.time + sums.time;
    } else {
        const Traffic whole = traffic_tensor_parallel(&z, n, B, false);
        share.received = whole.bytes;
        share.time += whole.time;
    }
    return share;
}
static RankShare grid(const ModelConfig *c, size_t B, TensorWayShape s, size_t rank) {
    const GridPlace at = grid_place_of(c, s.q, s.depth, rank);
    const CutSizes whole = cut_sizes(c, 1, 0), z = grid_sizes(&at);
    const GridTraffic layers = grid_stage(&at, &whole, B, false);
    const GridTraffic sums = grid_sums(&at, &whole);
    const size_t own = grid_sequences(&at, B);
    return (RankShare){
        .parameters = (double)grid_elements_stage(&at, &whole),
        .kept = (double)(own * c->context * kept_stage(&z)),
        .kept_reals = kept_reals(&z, own),
        .received = layers.row.received + layers.col.received + sums.depth.received,
        .time = layers.products.time + layers.transfers + sums.transfers,
    };
}
// Returns the time of a block's attention on the ring, in picoseconds. A head of each sequence is
// one head of a longer list. 2n must divide the context, so that zigzag gives every rank the same
// work.
static double ring_attention_time(const ModelConfig *c, size_t B, size_t n) {
    const size_t heads = B * c->heads;
    const ContextSizes z = {
        1, c->context, heads, heads, c->width / c->heads, c->storage, 1, 0, 0
    };
    return context_ring_time(CONTEXT_ZIGZAG, z, n, false).step +
           context_ring_time(CONTEXT_ZIGZAG, z, n, true).step;
}
// Returns the time of a step. A step has attention, all other products on a rank's positions
// (forward once, backward twice), and after the last backward the all-reduce of all gradients.
static double ring_step_time(const ModelConfig *c, const CutSizes *whole, size_t B, size_t n) {
    const size_t M = B * c->context / n, h = c->width;
    const double block = work_product(M, 3 * h, h).time + work_product(M, h, h).time +
                         work_product(M, 4 * h, h).time + work_product(M, h, 4 * h).time;
    return 3 * ((double)c->layers * block + work_product(M, c->vocab, h).time) +
           (double)c->layers * ring_attention_time(c, B, n) +
           ring_time(ALL_REDUCE_PASSES, n, elements_stage(whole), gradient_bytes(c));
}
// Returns the share of a rank of the ring. In forward and in backward the rank receives keys and
// values of all other positions, as stored. The rank also receives the gradients of the keys and
// values of all positions, which are reals, and the sums of the parameters' gradients.
static RankShare ring(const ModelConfig *c, size_t B, size_t n, size_t rank) {
    const CutSizes whole = cut_sizes(c, 1, 0);
    CutSizes z = whole;
    z.T = part_size(c->context, 2 * n, rank) + part_size(c->context, 2 * n, 2 * n - 1 - rank);
    z.online = true;
    const size_t position =
        4 * (c->context - z.T) * weight_bytes(c) + 2 * c->context * sizeof(real);
    const size_t bytes = n > 1 ? position * B * c->width * c->layers : 0;
    const double sums = ring_bytes(ALL_REDUCE_PASSES, n, elements_stage(&whole), gradient_bytes(c));
    return (RankShare){ .parameters = (double)elements_stage(&whole),
                        .kept = (double)(B * z.T * kept_stage(&z)),
                        .kept_reals = kept_reals(&z, B),
                        .received = (double)bytes + sums,
                        .time = ring_step_time(c, &whole, B, n) };
}
RankShare way_share(TensorWay way, const ModelConfig *c, size_t B, size_t n, size_t rank) {
    const TensorWayShape s = tensor_way_shape(way, n);
    if (way == WAY_1D || way == WAY_SP) return columns_and_rows(c, B, n, rank, way == WAY_SP);
    if (way == WAY_RING) return ring(c, B, n, rank);
    return way == WAY_3D ? cube_rank_share(c, B, s.q, rank, true) : grid(c, B, s, rank);
}
