// predict_tensor.c predicts the traffic of a rank over tp and cp, from sizes alone.
#include "08_3d/experiments/rank_stage.h"
#include "03_tensor_parallel/context_parallel.h"
#include "common/model/costs.h"

enum { E = sizeof(real) };

static void add_axis(Prediction *out, const AxisTraffic *a, size_t times) {
    for (size_t kind = 0; kind < COMM_KINDS; kind++)
        out->tp_calls += times * (size_t)a->calls[kind];
    out->tp_bytes += times * (size_t)a->sent;
    out->tp_received += times * (size_t)a->received;
}

// All calls on a cube run in rings, so a rank receives as many bytes as it sends.
static void add_cube(Prediction *out, CubeTraffic t, size_t times) {
    out->tp_calls += times * (size_t)t.calls;
    out->tp_bytes += times * (size_t)cube_bytes(&t);
    out->tp_received += times * (size_t)cube_bytes(&t);
}

void predict_tensor(Prediction *out, const RankStage *own, size_t B, bool again) {
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

void predict_tensor_again(Prediction *out, const RankStage *own, size_t B, size_t blocks) {
    RankStage these = *own;
    these.z.blocks = blocks;
    Prediction with = { 0 }, without = { 0 };
    predict_tensor(&with, &these, B, true);
    predict_tensor(&without, &these, B, false);
    out->tp_calls += with.tp_calls - without.tp_calls;
    out->tp_gathers += with.tp_gathers - without.tp_gathers;
    out->tp_scatters += with.tp_scatters - without.tp_scatters;
    out->tp_bytes += with.tp_bytes - without.tp_bytes;
    out->tp_received += with.tp_received - without.tp_received;
}

size_t predict_ring(const TrainerConfig *c, Coordinates at, const CutSizes *z, size_t B,
                    size_t passes) {
    if (mesh_cp(c->mesh) == 1) return 0;
    size_t n = c->mesh.cp, next = (at.cp + 1) % n;
    Positions others = context_positions(z->Tk, n, next, &ring_attention_zigzag);
    const size_t position = 2 * z->key_heads * z->D; // elements of a position's key and value
    const size_t passed_on = (z->Tk - positions_count(&others)) * element_size(z->storage);
    return (passes * passed_on + z->Tk * E) * B * position;
}

void predict_partial_sums(Prediction *out, const TrainerConfig *c, const RankStage *own, size_t m) {
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
