// predict.c: predicts the costs of a trainer's step on one rank, from sizes alone.
#include <stdlib.h>
#include "01_data_parallel/experiments/experiments.h"
#include "03_tensor_parallel/context_parallel.h"
#include "03_tensor_parallel/experiments/experiments.h"
#include "08_3d/experiments/experiments.h"
#include "08_3d/kept.h"
#include "common/comm/clock.h"
#include "common/model/costs.h"

enum { E = sizeof(real) };

// Returns the bytes that each of n ranks sends in a ring for `count` elements of `size` bytes.
static size_t ring_sent(size_t passes, size_t n, size_t count, size_t size) {
    return (size_t)ring_bytes(passes, n, count, size);
}

// Returns the number of ranks with the same parameters. These ranks sum gradients, and ZeRO shards
// over them.
static size_t replicas(const TrainerConfig *c) { return c->mesh.dp * mesh_cp(c->mesh); }
static size_t replica(const TrainerConfig *c, Coordinates at) {
    return at.cp + mesh_cp(c->mesh) * at.dp;
}

// Returns the sizes of all chunks of a rank's stage together.
static CutSizes stage_sizes(const TrainerConfig *c, Coordinates at) {
    size_t last = trainer_chunks(c) - 1;
    CutSizes z = kept_part_sizes(c, at, at.pp),
             end = kept_part_sizes(c, at, last * c->mesh.pp + at.pp);
    z.last = end.last;
    for (size_t k = 1; k <= last; k++)
        z.blocks += kept_part_sizes(c, at, k * c->mesh.pp + at.pp).blocks;
    return z;
}

// A rank's stage, and the rank's place on its grid or cube, if the tp group is a grid or cube.
typedef struct {
    CutSizes z;
    bool is_grid, is_cube;
    GridPlace grid;
    CubePlace cube;
    // Recomputation of each block; NULL: all blocks follow --recompute.
    const Recompute *choice;
} RankStage;
static RankStage rank_stage_of(const TrainerConfig *c, Coordinates at) {
    RankStage own = { .z = stage_sizes(c, at),
                      .is_grid = tensor_is_grid(c),
                      .is_cube = c->tensor == TENSOR_3D };
    if (own.is_grid) {
        const TesseractSides n = tensor_sides(c);
        own.grid = grid_place_of(&c->model, n.q, n.depth, at.tp);
    }
    if (own.is_cube) own.cube = cube_place_of(&c->model, cube_side(c->mesh.tp), at.tp, true);
    return own;
}
static size_t wte_elements(const RankStage *own) {
    return own->is_cube   ? cube_elements_wte(&own->cube)
           : own->is_grid ? grid_elements_wte(&own->grid)
                          : elements_wte(&own->z);
}
static size_t unit_elements(const RankStage *own, size_t i) {
    return own->is_cube   ? cube_elements_unit(&own->cube, &own->z, i)
           : own->is_grid ? grid_elements_unit(&own->grid, &own->z, i)
                          : elements_unit(&own->z, i);
}
// Returns the number of a micro-batch's B sequences whose activations are on this rank.
static size_t own_sequences(const RankStage *own, size_t B) {
    return own->is_grid ? grid_sequences(&own->grid, B) : B;
}
static size_t own_message(const RankStage *own, size_t B) {
    return own->is_cube ? cube_message(&own->cube, B)
                        : message_elements(&own->z, own_sequences(own, B));
}

// The sum of f(unit), in elements, over the units of a stage. wte: the sum over the tables, which
// are wte and an untied head's table. others: the sum over all other units.
typedef struct {
    size_t wte, others;
} PerUnit;
static PerUnit over_units(const RankStage *own, size_t (*f)(size_t size, size_t n, size_t rank),
                          size_t n, size_t rank) {
    PerUnit sum = { .wte = stage_tables(&own->z) * f(wte_elements(own), n, rank) };
    for (size_t i = 0; i < cut_layers(&own->z); i++)
        sum.others += f(unit_elements(own, i), n, rank);
    return sum;
}
static size_t unit_shard(size_t size, size_t n, size_t rank) {
    return range_size(shard_range(size, n, rank));
}
static size_t stage_elements(const RankStage *own) {
    PerUnit whole = over_units(own, unit_shard, 1, 0);
    return whole.wte + whole.others;
}
static size_t unit_ring(size_t size, size_t n, size_t rank) {
    (void)rank;
    return ring_sent(ONE_PASS, n, size, 1);
}

// ---------------------------------------------------------------- traffic

// Adds one all-reduce of the gradient; with overlap one all-reduce of each bucket, which is as
// large as a block.
static void reductions(Prediction *out, const TrainerConfig *c, const RankStage *own) {
    const CutSizes *z = &own->z;
    const size_t norm = z->first + z->blocks; // the unit of the last norm, gain and bias
    out->dp_calls = 1;
    const size_t e = gradient_bytes(&c->model);
    out->dp_bytes = ring_sent(ALL_REDUCE_PASSES, replicas(c), stage_elements(own), e);
    if (c->reduction != REDUCE_IN_BUCKETS) return;
    BucketPiece *piece;
    TensorElements of = { .wte = wte_elements(own),
                          .wpe = unit_elements(own, 0),
                          .norm = unit_elements(own, norm) / (1 + z->norm_bias) };
    of.norm_bias = z->norm_bias * of.norm;
    if (own->is_cube) cube_elements_tensors(&own->cube, of.block);
    else if (own->is_grid) grid_elements_tensors(&own->grid, of.block);
    else elements_tensors(z, of.block);
    out->dp_calls = bucket_pieces(z, &of, unit_elements(own, z->first) * E, &piece);
    out->dp_bytes = 0;
    for (size_t i = 0; i < out->dp_calls; i++)
        out->dp_bytes += ring_sent(ALL_REDUCE_PASSES, replicas(c), piece[i].elements, e);
    free(piece);
}

// Adds the compressed sum, unit by unit (01.06).
static void compressed_reductions(Prediction *out, const TrainerConfig *c, Coordinates at,
                                  const RankStage *own) {
    const CompressionCosts costs = compression_costs(&own->z, &c->compression, c->mesh.dp, at.dp);
    size_t *rank = host_alloc(c->mesh.dp * sizeof *rank);
    for (at.dp = 0; at.dp < c->mesh.dp; at.dp++) rank[at.dp] = mesh_rank(c->mesh, at);
    out->dp_calls = costs.calls;
    out->dp_bytes = (size_t)costs.sent;
    out->dp_time =
        compression_time(&own->z, &c->compression, c->mesh.dp, clock_cards(c->mesh.dp, rank));
    free(rank);
    out->gradients += costs.errors * E;
    out->compression = costs.factors * E;
    out->compression_peak = costs.buffers * E;
}

// Adds the calls and bytes on one axis of a grid: rows, columns or depth.
static void add_axis(Prediction *out, const AxisTraffic *a, size_t times) {
    for (size_t kind = 0; kind < COMM_KINDS; kind++)
        out->tp_calls += times * (size_t)a->calls[kind];
    out->tp_bytes += times * (size_t)a->sent;
    out->tp_received += times * (size_t)a->received;
}

// Adds the calls and bytes on a cube. All calls on a cube run in rings, so a rank receives as many
// bytes as it sends.
static void add_cube(Prediction *out, CubeTraffic t, size_t times) {
    out->tp_calls += times * (size_t)t.calls;
    out->tp_bytes += times * (size_t)cube_bytes(&t);
    out->tp_received += times * (size_t)cube_bytes(&t);
}

// Adds the tensor-parallel traffic in the layers, for forward and backward of B sequences.
static void tensor_traffic(Prediction *out, const RankStage *own, size_t B, bool again) {
    const CutSizes *z = &own->z;
    if (own->is_cube) {
        add_cube(out, cube_stage(&own->cube, z, B, again), 1);
        return;
    }
    if (own->is_grid) {
        GridTraffic g = grid_stage(&own->grid, z, B, again);
        add_axis(out, &g.row, 1);
        add_axis(out, &g.col, 1);
        return;
    }
    Traffic sums = traffic_tensor_parallel(z, z->t, B, again);
    SequenceTraffic s = { .sums = sums.calls, .bytes = sums.bytes };
    if (z->sequence) s = traffic_sequence_parallel(z, B, again);
    out->tp_calls += (size_t)s.sums;
    out->tp_gathers += (size_t)s.gathers;
    out->tp_scatters += (size_t)s.scatters;
    out->tp_bytes += (size_t)s.bytes;
}

// Returns the number of this rank's blocks that repeat their forward in backward.
static size_t forwards_again(const TrainerConfig *c, const RankStage *own) {
    if (!own->choice) return c->recompute == RECOMPUTE_FULL ? own->z.blocks : 0;
    size_t n = 0;
    for (size_t i = 0; i < own->z.blocks; i++) n += own->choice[i] == RECOMPUTE_FULL;
    return n;
}
static void tensor_traffic_again(Prediction *out, const RankStage *own, size_t B, size_t blocks) {
    RankStage these = *own;
    these.z.blocks = blocks;
    Prediction with = { 0 }, without = { 0 };
    tensor_traffic(&with, &these, B, true);
    tensor_traffic(&without, &these, B, false);
    out->tp_calls += with.tp_calls - without.tp_calls;
    out->tp_gathers += with.tp_gathers - without.tp_gathers;
    out->tp_scatters += with.tp_scatters - without.tp_scatters;
    out->tp_bytes += with.tp_bytes - without.tp_bytes;
    out->tp_received += with.tp_received - without.tp_received;
}

// Returns the bytes that a rank sends for ring attention of B sequences in a block. In each of
// `forwards` passes, a forward or a backward, the rank sends the keys and values of all ranks
// except the next one. The gradients of all keys and values are sent once. Keys and values travel
// as they are stored. The gradients are sums over ranks, so they travel as reals.
static size_t ring_traffic(const TrainerConfig *c, Coordinates at, const CutSizes *z, size_t B,
                           size_t forwards) {
    if (mesh_cp(c->mesh) == 1) return 0;
    size_t n = c->mesh.cp, next = (at.cp + 1) % n;
    Positions others = context_positions(z->Tk, n, next, &ring_attention_zigzag);
    const size_t position = 2 * z->key_heads * z->D; // elements of key and value
    const size_t passed_on = (z->Tk - positions_count(&others)) * element_size(z->storage);
    return (forwards * passed_on + z->Tk * E) * B * position;
}

// Adds the sums of partial gradients, which precede ZeRO's reduction. They run once per step, or in
// every micro-batch if ZeRO reduces and drops the gradients there. The partial gradients of wte are
// always summed once.
static void partial_sums(Prediction *out, const TrainerConfig *c, const RankStage *own, size_t m) {
    const size_t times = trainer_zero(c) < 2 ? 1 : m;
    if (own->z.sequence) {
        Traffic partial = traffic_partial_sums(&own->z);
        out->tp_calls += times * (size_t)partial.calls;
        out->tp_bytes += times * (size_t)partial.bytes;
    }
    if (own->is_cube) add_cube(out, cube_plane_sums(&own->cube, &own->z), times);
    if (c->tensor != TENSOR_25D) return;
    GridTraffic tables = grid_table_sums(&own->grid, &own->z),
                others = grid_unit_sums(&own->grid, &own->z);
    add_axis(out, &tables.depth, 1);
    add_axis(out, &others.depth, times);
}

static void traffic(Prediction *out, const TrainerConfig *c, Coordinates at, const RankStage *own,
                    size_t m) {
    const CutSizes *z = &own->z;
    size_t t = c->mesh.tp, d = replicas(c), again = forwards_again(c, own);
    const size_t w = weight_bytes(&c->model), g = gradient_bytes(&c->model); // bytes of an element
    for (size_t k = 0; k < m; k++) {
        size_t B = kept_sequences(c, at.dp, k);
        tensor_traffic(out, own, B, false);
        if (again) tensor_traffic_again(out, own, B, again);
        out->cp_bytes += z->blocks * ring_traffic(c, at, z, B, 2) +
                         again * ring_traffic(c, at, z, B, 1) -
                         again * ring_traffic(c, at, z, B, 0);
        // Activations go forward, their gradients back.
        size_t messages = 2 * trainer_chunks(c) - z->last - z->first;
        if (c->mesh.pp > 1)
            out->pp_bytes += messages * own_message(own, B) * element_size(c->model.storage);
    }
    partial_sums(out, c, own, m);
    PerUnit units = over_units(own, unit_ring, d, replica(c, at));
    switch (trainer_zero(c)) {
    case 0:
        c->reduction == REDUCE_COMPRESSED ? compressed_reductions(out, c, at, own)
                                          : reductions(out, c, own);
        break;
    // Gradients are reduced, weights are gathered. ZeRO 3 gathers the weights, except wte, for
    // forward and for backward.
    case 1: out->dp_bytes = (g + w) * (units.wte + units.others); break;
    case 2: out->dp_bytes = (g + w) * units.wte + (m * g + w) * units.others; break;
    case 3: out->dp_bytes = (g + w) * units.wte + m * (g + 2 * w) * units.others; break;
    }
    if (c->mesh.pp > 1 && stage_shares_table(z))
        out->tied_bytes = ring_sent(ALL_REDUCE_PASSES, 2, wte_elements(own), g);
    size_t world = d * t * c->mesh.pp, holders = trainer_zero(c) ? world : t * c->mesh.pp;
    out->scalar_bytes =
        (size_t)(ring_bytes(ALL_REDUCE_PASSES, world, 1, sizeof(double)) +
                 ring_bytes(ALL_REDUCE_PASSES, holders, config_tensors(&c->model), sizeof(double)));
}

// ---------------------------------------------------------------- memory

static void state(Prediction *out, const TrainerConfig *c, Coordinates at, const RankStage *own,
                  bool adamw) {
    PerUnit shard = over_units(own, unit_shard, replicas(c), replica(c, at));
    size_t all = stage_elements(own), part = shard.wte + shard.others;
    size_t twice = (stage_table_gradients(&own->z) - stage_tables(&own->z)) * wte_elements(own);
    const ModelConfig *m = &c->model;
    out->parameters = (trainer_zero(c) < 3 ? all : part) * weight_bytes(m);
    out->gradients += (trainer_zero(c) < 2 ? all + twice : part) * gradient_bytes(m);
    // SGD has no moments, but 16-bit weights have a master.
    out->optimizer = (trainer_zero(c) ? part : all) * (adamw ? adamw_bytes(m) : master_bytes(m));
}

Prediction predict_step(const TrainerConfig *c, size_t rank, bool adamw) {
    Coordinates at = mesh_coordinates(c->mesh, rank);
    RankStage own = rank_stage_of(c, at);
    size_t m = trainer_micro_batches(c);
    Recompute *choice = c->activation_budget ? host_alloc(own.z.blocks * sizeof *choice) : NULL;
    if (choice && kept_choices(c, at.pp, choice)) own.choice = choice;
    Prediction out = { 0 };
    traffic(&out, c, at, &own, m);
    state(&out, c, at, &own, adamw);
    out.activations = predict_activations(c, at, own.choice);
    free(choice);
    return out;
}
