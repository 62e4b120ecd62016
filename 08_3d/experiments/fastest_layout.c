// fastest_layout.c: finds the layout dp x tp x pp of the same ranks whose step takes the least time
// by step_time(), and says for which layouts step_time() is exact.
#include "08_3d/experiments/experiments.h"

// Groups of neighbouring ranks lie alike in the nodes if their size divides a node or is a multiple
// of one.
static bool divides(size_t ranks, size_t node) { return ranks % node == 0 || node % ranks == 0; }

bool mesh_groups_alike(Degrees n) {
    size_t node = clock_config()->node, near = n.tp * mesh_cp(n), stage = near * n.dp;
    size_t world = stage * n.pp;
    return node == 0 || world <= node || (divides(n.tp, node) && divides(near, node) &&
                                          divides(stage, node) && divides(world, node));
}

Degrees step_time_best(const TrainerConfig *c, double *present, double *best) {
    size_t world = c->mesh.dp * c->mesh.tp * c->mesh.pp;
    TrainerConfig fastest = *c, other = *c;
    *present = step_time(c);
    *best = *present;
    for (size_t tp = 1; tp <= world; tp++)
        for (size_t pp = 1; tp * pp <= world; pp++) {
            other.mesh = (Degrees){ .dp = world / (tp * pp), .tp = tp, .pp = pp, .cp = c->mesh.cp };
            if (world % (tp * pp) || tp > c->model.heads || pp > c->model.layers ||
                other.mesh.dp > c->batch)
                continue;
            if (c->reduction == REDUCE_COMPRESSED &&
                (other.mesh.dp == 1 || (c->compression.method == TOP_K && tp > 1)))
                continue;
            other.stage_blocks = pp == c->mesh.pp ? c->stage_blocks : NULL;
            other.chunks =
                pp > 1 ? c->chunks : 1; // interleaved: where the trainer does not refuse it
            size_t m = trainer_micro_batches(&other);
            if (other.chunks > 1 && (other.chunks * pp > c->model.layers || m % pp)) continue;
            double step = step_time(&other);
            if (step >= *best) continue;
            *best = step;
            fastest = other;
        }
    return fastest.mesh;
}
