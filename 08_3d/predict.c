// predict.c: see predict.h.
#include "08_3d/predict.h"
#include <stdlib.h>
#include "01_data_parallel/support/04_costs.h"
#include "common/model/costs.h"

enum { E = sizeof(real) };

// What each of n ranks sends in a ring for `count` elements.
static size_t ring_sent(size_t passes, size_t n, size_t count) { return (size_t)ring_bytes(passes, n, count, E); }

// Chunk k of this rank's stage: part k pp + stage of the model.
static CutSizes chunk_sizes(const TrainerConfig *c, Coordinates at, size_t k) {
    size_t parts = c->mesh.pp * trainer_chunks(c), part = k * c->mesh.pp + at.pp;
    CutSizes z = cut_stage(cut_sizes(&c->model, c->mesh.tp, at.tp), parts, part);
    if (c->stage_blocks) z.blocks = c->stage_blocks[part];
    return z;
}
static CutSizes my_sizes(const TrainerConfig *c, Coordinates at) {
    CutSizes z = cut_stage(cut_sizes(&c->model, c->mesh.tp, at.tp), c->mesh.pp, at.pp);
    z.blocks = 0;                                          // of all its chunks; there may be one
    for (size_t k = 0; k < trainer_chunks(c); k++) z.blocks += chunk_sizes(c, at, k).blocks;
    return z;
}

// Adds up f(unit) over the units of a stage; wte is given apart.
typedef struct { size_t wte, others; } PerUnit;
static PerUnit over_units(const CutSizes *z, size_t (*f)(size_t size, size_t n, size_t rank), size_t n, size_t rank) {
    PerUnit sum = { .wte = z->first || z->last ? f(elements_wte(z), n, rank) : 0 };
    for (size_t i = 0; i < cut_layers(z); i++) sum.others += f(elements_unit(z, i), n, rank);
    return sum;
}
static size_t unit_shard(size_t size, size_t n, size_t rank) { return range_size(shard_range(size, n, rank)); }
static size_t unit_ring(size_t size, size_t n, size_t rank) { (void)rank; return ring_sent(ONE_PASS, n, size); }

// ---------------------------------------------------------------- traffic

// Of micro-batch k of this replica.
static size_t predict_sequences(const TrainerConfig *c, size_t dp_rank, size_t m, size_t k) {
    size_t mine = range_size(shard_range(c->batch, c->mesh.dp, dp_rank));
    return range_size(shard_range(mine, m, k));
}

// One all-reduce of the gradient; with overlap one of each bucket, which is as large as a block.
static void reductions(Prediction *out, const TrainerConfig *c, const CutSizes *z) {
    out->dp_calls = 1;
    out->dp_bytes = ring_sent(ALL_REDUCE_PASSES, c->mesh.dp, elements_stage(z));
    if (!c->overlap) return;
    BucketPiece *piece;
    out->dp_calls = bucket_pieces(z, elements_block(z) * E, &piece);
    out->dp_bytes = 0;
    for (size_t i = 0; i < out->dp_calls; i++)
        out->dp_bytes += ring_sent(ALL_REDUCE_PASSES, c->mesh.dp, piece[i].elements);
    free(piece);
}

static void traffic(Prediction *out, const TrainerConfig *c, Coordinates at, const CutSizes *z, size_t m) {
    size_t t = c->mesh.tp, d = c->mesh.dp;
    for (size_t k = 0; k < m; k++) {
        size_t B = predict_sequences(c, at.dp, m, k);
        Traffic layers = traffic_tensor_parallel(z, t, B, c->recompute == RECOMPUTE_FULL);
        out->tp_calls += (size_t)layers.calls;
        out->tp_bytes += (size_t)layers.bytes;
        size_t messages = 2 * trainer_chunks(c) - z->last - z->first;  // activations on, their gradients back
        if (c->mesh.pp > 1) out->pp_bytes += messages * message_elements(z, B) * E;
    }
    PerUnit units = over_units(z, unit_ring, d, at.dp);
    switch (c->zero) {
    case 0: reductions(out, c, z); break;
    case 1: out->dp_bytes = 2 * (units.wte + units.others); break;
    case 2: out->dp_bytes = 2 * units.wte + (m + 1) * units.others; break;
    case 3: out->dp_bytes = 2 * units.wte + 3 * m * units.others; break;
    }
    if (c->mesh.pp > 1 && (z->first || z->last)) out->tied_bytes = ring_sent(ALL_REDUCE_PASSES, 2, elements_wte(z));
    size_t world = d * t * c->mesh.pp, holders = c->zero ? world : t * c->mesh.pp;
    out->scalar_bytes = (size_t)(ring_bytes(ALL_REDUCE_PASSES, world, 1, sizeof(double)) +
                                 ring_bytes(ALL_REDUCE_PASSES, holders, config_tensors(&c->model), sizeof(double)));
}

// ---------------------------------------------------------------- memory

static void state(Prediction *out, const TrainerConfig *c, Coordinates at, const CutSizes *z, bool adamw) {
    PerUnit shard = over_units(z, unit_shard, c->mesh.dp, at.dp);
    size_t all = elements_stage(z) * E, mine = (shard.wte + shard.others) * E;
    out->parameters = c->zero < 3 ? all : mine;
    out->gradients = c->zero < 2 ? elements_gradients(z) * E : mine;
    out->optimizer = adamw ? 2 * (c->zero ? mine : all) : 0;
}

// Elements per token of what forward keeps on one stage: until the backward comes, and at most `passing` for the layer
// that is at work.
typedef struct { size_t kept, passing; } PerToken; // of a chunk: kept with what its head keeps; `passing` in its place
static PerToken chunk_activations(const TrainerConfig *c, const CutSizes *z) {
    bool full = c->recompute == RECOMPUTE_FULL, selective = c->recompute == RECOMPUTE_SELECTIVE;
    size_t block = kept_block(z), scores = kept_scores(z), head = z->last ? kept_head(z) : 0, light = kept_between(z);
    size_t blocks = full ? 0 : z->blocks * (selective ? block - scores : block);
    size_t passing = full ? block : selective ? scores : 0;
    if (passing < head) passing = head;
    return (PerToken){ light + blocks + head, light + blocks + passing };
}
static void activations(Prediction *out, const TrainerConfig *c, Coordinates at, size_t m) {
    Schedule s = trainer_schedule(c, m, at.pp);
    size_t held = 0;                                                             // elements in flight
    for (size_t i = 0; i < s.n; i++) {
        CutSizes z = chunk_sizes(c, at, s.ops[i].chunk);
        PerToken token = chunk_activations(c, &z);
        size_t M = predict_sequences(c, at.dp, m, s.ops[i].micro_batch) * z.T;
        size_t others = s.ops[i].what == FORWARD ? held : held - M * token.kept;
        size_t now = (others + M * token.passing) * E;
        if (now > out->activations) out->activations = now;
        held = s.ops[i].what == FORWARD ? held + M * token.kept : held - M * token.kept;
    }
    schedule_free(&s);
}

Prediction predict_step(const TrainerConfig *c, size_t rank, bool adamw) {
    Coordinates at = mesh_coordinates(c->mesh, rank);
    CutSizes z = my_sizes(c, at);
    size_t m = ceil_div(ceil_div(c->batch, c->mesh.dp), c->micro_batch);
    Prediction out = {0};
    traffic(&out, c, at, &z, m);
    state(&out, c, at, &z, adamw);
    activations(&out, c, at, m);
    return out;
}
