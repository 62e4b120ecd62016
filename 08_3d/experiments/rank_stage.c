// rank_stage.c computes the sizes of a rank's stage. The ranks of tp may form a line, a grid or a
// cube.
#include "08_3d/experiments/rank_stage.h"
#include "08_3d/kept.h"

static CutSizes stage_sizes(const TrainerConfig *c, Coordinates at) {
    size_t last = trainer_chunks(c) - 1;
    CutSizes z = kept_part_sizes(c, at, at.pp),
             end = kept_part_sizes(c, at, last * c->mesh.pp + at.pp);
    z.last = end.last;
    for (size_t k = 1; k <= last; k++)
        z.blocks += kept_part_sizes(c, at, k * c->mesh.pp + at.pp).blocks;
    return z;
}

RankStage rank_stage_of(const TrainerConfig *c, Coordinates at) {
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
size_t rank_stage_wte(const RankStage *own) {
    return own->is_cube   ? cube_elements_wte(&own->cube)
           : own->is_grid ? grid_elements_wte(&own->grid)
                          : elements_wte(&own->z);
}
size_t rank_stage_unit(const RankStage *own, size_t i) {
    return own->is_cube   ? cube_elements_unit(&own->cube, &own->z, i)
           : own->is_grid ? grid_elements_unit(&own->grid, &own->z, i)
                          : elements_unit(&own->z, i);
}
// Returns how many of a micro-batch's B sequences have activations on this rank. Not for a cube.
static size_t rank_stage_sequences(const RankStage *own, size_t B) {
    return own->is_grid ? grid_sequences(&own->grid, B) : B;
}
size_t rank_stage_message(const RankStage *own, size_t B) {
    return own->is_cube ? cube_message(&own->cube, B)
                        : message_elements(&own->z, rank_stage_sequences(own, B));
}
size_t rank_stage_again(const TrainerConfig *c, const RankStage *own) {
    if (!own->choice) return c->recompute == RECOMPUTE_FULL ? own->z.blocks : 0;
    size_t n = 0;
    for (size_t i = 0; i < own->z.blocks; i++) n += own->choice[i] == RECOMPUTE_FULL;
    return n;
}
