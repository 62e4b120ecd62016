// way_costs.c: predicts, from sizes alone, what one rank holds, keeps, receives and computes in
// each of the six ways to cut a GPT. grid_costs() checks the costs of a GPT on a grid.
#include "03_tensor_parallel/experiments/experiments.h"

// ---------------------------------------------------------------- the share of one rank

RankShare grid_share(const GridPlace *at, size_t B) {
    const CutSizes whole = cut_sizes(at->c, 1, 0), z = grid_sizes(at);
    const GridTraffic layers = grid_stage(at, &whole, B, false);
    const GridTraffic sums = grid_sums(at, &whole); // over depth; a single grid sends nothing
    const size_t own = grid_sequences(at, B), parameters = grid_elements_stage(at, &whole);
    return (RankShare){
        .parameters = parameters,
        .gradients = parameters + grid_elements_wte(at),
        .kept = own * at->c->context * kept_stage(&z),
        .kept_reals = z.blocks * activations_block_reals(&z, own) + activations_head_reals(&z, own),
        .received = layers.row.received + layers.col.received + sums.depth.received,
        .time = layers.products.time + layers.transfers + sums.transfers,
    };
}
RankShare cube_share(const CubePlace *at, size_t B) {
    const CutSizes z = cut_sizes(at->c, 1, 0);
    const CubeTraffic layers = cube_stage(at, &z, B, false), sums = cube_plane_sums(at, &z);
    const size_t parameters = cube_elements_stage(at, &z);
    return (RankShare){ .parameters = parameters,
                        .gradients = parameters + cube_elements_wte(at),
                        .kept = cube_kept_stage(at, &z, B),
                        .kept_reals = cube_kept_reals(at, &z, B),
                        .received = cube_bytes(&layers) + sums.bytes[0],
                        .time = 3 * cube_work(at, &z, B).time + layers.time + sums.time };
}

// Returns the time of a block's attention on the ring, in picoseconds. The heads of all sequences
// count as the heads of one sequence. 2n must divide the context, so that zigzag gives every rank
// the same work.
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
static RankShare ring_share(const ModelConfig *c, size_t B, size_t n, size_t rank) {
    const CutSizes whole = cut_sizes(c, 1, 0);
    CutSizes z = whole;
    z.T = part_size(c->context, 2 * n, rank) + part_size(c->context, 2 * n, 2 * n - 1 - rank);
    z.online = true;
    const size_t position =
        4 * (c->context - z.T) * weight_bytes(c) + 2 * c->context * sizeof(real);
    const size_t bytes = n > 1 ? position * B * c->width * c->layers : 0;
    RankShare share = line_share(&z, B);
    share.received =
        (double)bytes + ring_bytes(ALL_REDUCE_PASSES, n, elements_stage(&whole), gradient_bytes(c));
    share.time = ring_step_time(c, &whole, B, n);
    return share;
}

RankShare way_share(TensorWay way, const ModelConfig *c, size_t B, size_t n, size_t rank) {
    const TensorWayShape s = tensor_way_shape(way, n);
    if (way == WAY_RING) return ring_share(c, B, n, rank);
    if (way == WAY_3D) {
        const CubePlace at = cube_place_of(c, s.q, rank, true);
        return cube_share(&at, B);
    }
    if (way == WAY_2D || way == WAY_25D) {
        const GridPlace at = grid_place_of(c, s.q, s.depth, rank);
        return grid_share(&at, B);
    }
    const CutSizes z = cut_sizes(c, n, rank), rows = cut_sequence(z, false);
    return line_share(way == WAY_SP ? &rows : &z, B);
}

double way_scores(TensorWay way, const ModelConfig *c, size_t B, size_t n) {
    const CutSizes whole = cut_sizes(c, 1, 0);
    if (way == WAY_RING) return 0;
    return (double)(c->layers * B * c->context * kept_scores(&whole)) / (double)n;
}

// ---------------------------------------------------------------- costs of a GPT on a grid

static void axis_costs(Run *run, const char *axis, const AxisTraffic *want,
                       const AxisTraffic *got) {
    const char *ids = page_text(run, "%s.%%s", axis),
               *names = page_text(run, "%s: %%s a step", axis);
    for (size_t kind = 0; kind < COMM_KINDS; kind++) {
        if (want->calls[kind] == 0 && got->calls[kind] == 0) continue;
        check_costs(run, ids, names,
                    (CostRow[]){ { comm_kind_name[kind],
                                   page_text(run, "%ss", comm_kind_name[kind]), "calls",
                                   BY_FORMULA(want->calls[kind]), got->calls[kind] },
                                 { 0 } });
    }
    check_costs(run, ids, names,
                (CostRow[]){
                    { "sent", "sent", "bytes", BY_FORMULA(want->sent), got->sent },
                    { "received", "received", "bytes", BY_FORMULA(want->received), got->received },
                    { 0 } });
}
void grid_costs(Run *run, const CutGpt *x, const GridPlace *at, size_t sequences) {
    const GptMeasured *r = &x->measured;
    const CutSizes whole = cut_sizes(at->c, 1, 0);
    const GridTraffic layers = grid_stage(at, &whole, sequences, false);
    const GridTraffic sums = grid_sums(at, &whole);
    const RankShare share = grid_share(at, sequences);
    axis_costs(run, "row", &layers.row, &r->layers[GPT_ROW]);
    axis_costs(run, "column", &layers.col, &r->layers[GPT_COL]);
    if (x->way == WAY_25D) axis_costs(run, "depth", &sums.depth, &r->sums[GPT_DEPTH]);
    gpt_memory_costs(run, "%s", "%s", at->c, &share, r);
    // The time has no formula if unequal blocks of a matrix make ranks wait.
    const bool timed = clock_config()->simulated && grid_even(at, sequences);
    check_costs(run, "%s", "%s",
                (CostRow[]){ { "received", "received a step", "bytes", BY_FORMULA(share.received),
                               gpt_received(r) },
                             { timed ? "time" : NULL, "the layers and the sums, a step", "ps",
                               BY_FORMULA(share.time), (double)r->layers_time },
                             { 0 } });
}
