// predict.c predicts the costs of a trainer's step on one rank, from sizes alone.
#include <stdlib.h>
#include "01_data_parallel/experiments/experiments.h"
#include "08_3d/experiments/rank_stage.h"
#include "08_3d/kept.h"
#include "common/comm/clock.h"
#include "common/model/costs.h"

enum { E = sizeof(real) };

// Returns the bytes that each of n ranks sends in a ring for `count` elements of `size` bytes.
static size_t ring_sent(size_t passes, size_t n, size_t count, size_t size) {
    return (size_t)ring_bytes(passes, n, count, size);
}

// Returns the place of the rank at these coordinates in its group over dp and cp.
static size_t replica(const TrainerConfig *c, Coordinates at) {
    return at.cp + mesh_cp(c->mesh) * at.dp;
}

// The sums of a function's values over the units of a stage, in elements. wte: over the tables (wte
// and an untied head's table). others: over all other units.
typedef struct {
    size_t wte, others;
} PerUnit;
static PerUnit over_units(const RankStage *own, size_t (*f)(size_t size, size_t n, size_t rank),
                          size_t n, size_t rank) {
    PerUnit sum = { .wte = stage_tables(&own->z) * f(rank_stage_wte(own), n, rank) };
    for (size_t i = 0; i < cut_layers(&own->z); i++)
        sum.others += f(rank_stage_unit(own, i), n, rank);
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

// Predicts one all-reduce of the gradient, or with --overlap of each bucket. A bucket is closed
// when the bucket is at least as large as a block.
static void reductions(Prediction *out, const TrainerConfig *c, const RankStage *own) {
    const CutSizes *z = &own->z;
    const size_t norm = z->first + z->blocks; // the layer whose unit is the last norm
    out->dp_calls = 1;
    const size_t e = gradient_bytes(&c->model);
    out->dp_bytes = ring_sent(ALL_REDUCE_PASSES, trainer_replicas(c), stage_elements(own), e);
    if (c->reduction != REDUCE_IN_BUCKETS) return;
    BucketPiece *piece;
    TensorElements of = { .wte = rank_stage_wte(own),
                          .wpe = rank_stage_unit(own, 0),
                          .norm = rank_stage_unit(own, norm) / (1 + z->norm_bias) };
    of.norm_bias = z->norm_bias * of.norm;
    if (own->is_cube) cube_elements_tensors(&own->cube, of.block);
    else if (own->is_grid) grid_elements_tensors(&own->grid, of.block);
    else elements_tensors(z, of.block);
    out->dp_calls = bucket_pieces(z, &of, rank_stage_unit(own, z->first) * E, &piece);
    out->dp_bytes = 0;
    for (size_t i = 0; i < out->dp_calls; i++)
        out->dp_bytes += ring_sent(ALL_REDUCE_PASSES, trainer_replicas(c), piece[i].elements, e);
    free(piece);
}

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

static void traffic(Prediction *out, const TrainerConfig *c, Coordinates at, const RankStage *own,
                    size_t m) {
    const CutSizes *z = &own->z;
    size_t t = c->mesh.tp, d = trainer_replicas(c), again = rank_stage_again(c, own);
    const size_t w = weight_bytes(&c->model), g = gradient_bytes(&c->model); // bytes of an element
    for (size_t k = 0; k < m; k++) {
        size_t B = kept_sequences(c, at.dp, k);
        predict_tensor(out, own, B, false);
        if (again) predict_tensor_again(out, own, B, again);
        out->cp_bytes += z->blocks * predict_ring(c, at, z, B, 2) +
                         again * predict_ring(c, at, z, B, 1) -
                         again * predict_ring(c, at, z, B, 0);
        // Activations go to the next stage, and their gradients go to the previous stage.
        size_t messages = 2 * trainer_chunks(c) - z->last - z->first;
        if (c->mesh.pp > 1)
            out->pp_bytes += messages * rank_stage_message(own, B) * element_size(c->model.storage);
    }
    predict_partial_sums(out, c, own, m);
    PerUnit units = over_units(own, unit_ring, d, replica(c, at));
    switch (trainer_zero(c)) {
    case 0:
        c->reduction == REDUCE_COMPRESSED ? compressed_reductions(out, c, at, own)
                                          : reductions(out, c, own);
        break;
    // g: the gradients are reduced. w: the weights are gathered. ZeRO 3 gathers wte once, and all
    // other weights for each forward and each backward.
    case 1: out->dp_bytes = (g + w) * (units.wte + units.others); break;
    case 2: out->dp_bytes = (g + w) * units.wte + (m * g + w) * units.others; break;
    case 3: out->dp_bytes = (g + w) * units.wte + m * (g + 2 * w) * units.others; break;
    }
    if (c->mesh.pp > 1 && stage_shares_table(z))
        out->tied_bytes = ring_sent(ALL_REDUCE_PASSES, 2, rank_stage_wte(own), g);
    size_t world = d * t * c->mesh.pp, holders = trainer_zero(c) ? world : t * c->mesh.pp;
    out->scalar_bytes =
        (size_t)(ring_bytes(ALL_REDUCE_PASSES, world, 1, sizeof(double)) +
                 ring_bytes(ALL_REDUCE_PASSES, holders, config_tensors(&c->model), sizeof(double)));
}

// ---------------------------------------------------------------- memory

static void state(Prediction *out, const TrainerConfig *c, Coordinates at, const RankStage *own,
                  bool adamw) {
    PerUnit shard = over_units(own, unit_shard, trainer_replicas(c), replica(c, at));
    size_t all = stage_elements(own), part = shard.wte + shard.others;
    size_t twice = (stage_table_gradients(&own->z) - stage_tables(&own->z)) * rank_stage_wte(own);
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
