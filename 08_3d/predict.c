// predict.c: see predict.h.
#include "08_3d/predict.h"
#include <stdlib.h>
#include "01_data_parallel/support/04_costs.h"
#include "common/model/costs.h"

enum { E = sizeof(real) };

// What each of n ranks sends in a ring for `count` elements.
static size_t ring_sent(size_t passes, size_t n, size_t count) { return (size_t)ring_bytes(passes, n, count, E); }

static CutSizes my_sizes(const TrainerConfig *c, Coordinates at) {
    CutSizes z = cut_stage(cut_sizes(&c->model, c->mesh.tp, at.tp), c->mesh.pp, at.pp);
    if (c->stage_blocks) z.blocks = c->stage_blocks[at.pp];
    return c->sequence ? cut_sequence(z, false) : z;
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

// In the layers, for forward and backward of B sequences.
static void tensor_traffic(Prediction *out, const CutSizes *z, size_t B, bool again) {
    Traffic sums = traffic_tensor_parallel(z, z->t, B, again);
    SequenceTraffic s = { .sums = sums.calls, .bytes = sums.bytes };
    if (z->sequence) s = traffic_sequence_parallel(z, B, again);
    out->tp_calls += (size_t)s.sums;
    out->tp_gathers += (size_t)s.gathers;
    out->tp_scatters += (size_t)s.scatters;
    out->tp_bytes += (size_t)s.bytes;
}

static void traffic(Prediction *out, const TrainerConfig *c, Coordinates at, const CutSizes *z, size_t m) {
    size_t t = c->mesh.tp, d = c->mesh.dp;
    for (size_t k = 0; k < m; k++) {
        size_t B = predict_sequences(c, at.dp, m, k);
        tensor_traffic(out, z, B, c->recompute == RECOMPUTE_FULL);
        out->pp_bytes += (!z->last + !z->first) * message_elements(z, B) * E;    // activations on, their gradients back
    }
    if (z->sequence) {                             // summed before ZeRO reduces them: once, or for each micro-batch
        Traffic partial = traffic_partial_sums(z);
        size_t times = c->zero < 2 ? 1 : m;
        out->tp_calls += times * (size_t)partial.calls;
        out->tp_bytes += times * (size_t)partial.bytes;
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

// Elements of B sequences that forward keeps on one stage until the backward comes: light items, blocks, and the head's
// or, while a layer is at work, what that one brings.
static size_t in_flight(const TrainerConfig *c, const CutSizes *z, size_t B, bool working) {
    bool full = c->recompute == RECOMPUTE_FULL, selective = c->recompute == RECOMPUTE_SELECTIVE;
    size_t block = activations_block(z, B), scores = activations_scores(z, B);
    size_t head = z->last ? activations_head(z, B) : 0;
    size_t blocks = full ? 0 : z->blocks * (selective ? block - scores : block);
    size_t passing = full ? block : selective ? scores : 0;
    return activations_between(z, B) + blocks + (working && passing > head ? passing : head);
}
// Where a backward is in two halves (05.06): after the first one, and the most while it runs. Layer by layer from the
// last one, what the second half will read comes, and then what else was kept goes.
typedef struct { size_t highest, after; } Halves;
static Halves in_halves(const TrainerConfig *c, const CutSizes *z, size_t B) {
    bool full = c->recompute == RECOMPUTE_FULL, selective = c->recompute == RECOMPUTE_SELECTIVE;
    size_t M = B * z->T, block = activations_block(z, B), scores = activations_scores(z, B);
    size_t again = full ? block : selective ? scores : 0, kept = full ? 0 : selective ? block - scores : block;
    size_t now = in_flight(c, z, B, false), highest = now;
    if (z->last) {
        highest = now += deferred_head(z, B) - M;          // the loss has freed its sums
        now -= activations_head(z, B) - M * z->vocab - M;  // the gradient of the logits stands in their place
    }
    for (size_t i = 0; i < z->blocks; i++) {
        size_t most = now + again + deferred_block(z, B);
        if (most > highest) highest = most;
        now += deferred_block(z, B) - kept;
    }
    if (z->first) now += cut_rows(z, B) * z->C;
    return (Halves){ now > highest ? now : highest, now };
}
static void activations(Prediction *out, const TrainerConfig *c, Coordinates at, const CutSizes *z, size_t m) {
    Schedule s = c->schedule(c->mesh.pp, m, at.pp);
    size_t held = 0;                                                             // elements in flight
    for (size_t i = 0; i < s.n; i++) {
        size_t B = predict_sequences(c, at.dp, m, s.ops[i].micro_batch), its = in_flight(c, z, B, false);
        Halves halves = in_halves(c, z, B);
        PipeWhat what = s.ops[i].what;
        size_t others = what == FORWARD ? held : held - (what == BACKWARD_WEIGHTS ? halves.after : its);
        size_t now = what == BACKWARD_WEIGHTS ? held : others + (what == BACKWARD_INPUTS ? halves.highest
                                                                                         : in_flight(c, z, B, true));
        if (now * E > out->activations) out->activations = now * E;
        held = others + (what == FORWARD ? its : what == BACKWARD_INPUTS ? halves.after : 0);
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
    activations(&out, c, at, &z, m);
    return out;
}
