// grids.h: what the experiments of lessons 09 to 12 share: measurements of a grid of ranks, their
// costs, and what one rank of a cut model has and receives.
#ifndef GRIDS_H
#define GRIDS_H
#include "03_tensor_parallel/experiments/cube_costs.h"
#include "03_tensor_parallel/experiments/grid_costs.h"
#include "judge/frame/training.h"

// ---- 09, 10: what a rank of a q x q x d grid measured, and the costs that it asserts. ----
typedef struct {
    GridTraffic traffic;
    Picoseconds took;                                      // by this rank's clock
    size_t panels;                                        // bytes: room for others' blocks, at most
    // Bytes: block is of a block's parameters; activations is their peak.
    size_t block, parameters, gradients, optimizer, activations;
} GridMeasured;
void grid_measure_begin(const CommGrid *g, GridMeasured *r);   // resets the ledgers of its groups
void grid_measure_end(const CommGrid *g, GridMeasured *r);
void grid_measure_state(GridMeasured *r, const Model *m);      // before the model is freed
// A training on such a grid. cut: summa() or tesseract(). measured: of the last step.
typedef struct {
    Comm *world;
    const CommGrid *g;
    void (*cut)(Model *m, const CommGrid *g);
    GridMeasured measured;
} GridTraining;
void grid_train(void *grid_training, const Training *t, Trajectory *out);      // a SplitTraining
// Of one axis: calls and bytes, "row.sent". Of what a rank holds, for a step of `sequences`.
void grid_axis_costs(Run *run, const char *axis, const AxisTraffic *want, const AxisTraffic *got);
void grid_memory_costs(Run *run, const GridPlace *at, size_t sequences, const GridMeasured *r);

// ---- 11, 12: what one rank has and receives. ----
// Elements; elements, their peak; bytes per step; ps per step, if no rank waits for another.
typedef struct { double parameters, kept, received, time; } RankShare;
RankShare cube_rank_share(const ModelConfig *c, size_t sequences, size_t q, size_t rank,
                          bool again);
#endif
