// grids.h: functions of the experiments of lessons 09 to 12: measurements of a grid of ranks,
// checks of their costs, and the share of one rank of a cut model.
#ifndef GRIDS_H
#define GRIDS_H
#include "03_tensor_parallel/experiments/cube_costs.h"
#include "03_tensor_parallel/experiments/grid_costs.h"
#include "judge/frame/training.h"

// ---- 09, 10: measurements and costs of a rank of a q x q x d grid. ----
typedef struct {
    GridTraffic traffic;
    Picoseconds took;                                      // by this rank's clock
    size_t panels;                                         // bytes, peak: blocks of other ranks
    // Bytes. block: the parameters of a block. activations: their peak.
    size_t block, parameters, gradients, optimizer, activations;
} GridMeasured;
void grid_measure_begin(const CommGrid *g, GridMeasured *r);   // resets the ledgers of its groups
void grid_measure_end(const CommGrid *g, GridMeasured *r);
void grid_measure_state(GridMeasured *r, const Model *m);      // before the model is freed
// A training on such a grid. cut: summa() or tesseract(). measured: the last step.
typedef struct {
    Comm *world;
    const CommGrid *g;
    void (*cut)(Model *m, const CommGrid *g);
    GridMeasured measured;
} GridTraining;
void grid_train(void *grid_training, const Training *t, Trajectory *out);      // a SplitTraining
// Check the calls and bytes of one axis (ids "row.sent" and so on), and the memory of a rank.
void grid_axis_costs(Run *run, const char *axis, const AxisTraffic *want, const AxisTraffic *got);
void grid_memory_costs(Run *run, const GridPlace *at, size_t sequences, const GridMeasured *r);

// ---- 11: bytes along the axes of a cube. ----
void cube_ledgers_reset(const Cube *c);
void cube_add_sent(const Cube *c, double bytes[CUBE_AXES]);    // adds the bytes since the reset

// ---- 11, 12: the share of one rank. ----
// parameters, kept: elements. received: bytes per step. time: ps per step, if no rank waits.
typedef struct { double parameters, kept, received, time; } RankShare;
RankShare cube_rank_share(const ModelConfig *c, size_t sequences, size_t q, size_t rank,
                          bool again);
#endif
