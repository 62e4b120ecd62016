// rank_stage.h declares the sizes of a rank's stage in a training, and the functions of
// predict_tensor.c, which predict_step() calls.
#ifndef RANK_STAGE_H
#define RANK_STAGE_H
#include "03_tensor_parallel/experiments/experiments.h"
#include "08_3d/experiments/experiments.h"

// A rank's stage, and the rank's place if the tp group is a grid or cube.
typedef struct {
    CutSizes z;
    bool is_grid, is_cube;
    GridPlace grid;
    CubePlace cube;
    // Recomputation of each block; NULL: all blocks follow --recompute.
    const Recompute *choice;
} RankStage;

// ---- rank_stage.c ----
RankStage rank_stage_of(const TrainerConfig *c, Coordinates at);
// These two functions return the number of elements that this rank has of a table, and of layer i
// without its table.
size_t rank_stage_wte(const RankStage *own);
size_t rank_stage_unit(const RankStage *own, size_t i);
// Returns the elements of a message between stages, for a micro-batch of B sequences.
size_t rank_stage_message(const RankStage *own, size_t B);
// Returns the number of this rank's blocks that repeat their forward in backward.
size_t rank_stage_again(const TrainerConfig *c, const RankStage *own);

// ---- predict_tensor.c ----
// Adds the tensor-parallel traffic in the layers, for forward and backward of B sequences.
// again: backward repeats the forward of every block.
void predict_tensor(Prediction *out, const RankStage *own, size_t B, bool again);
// Adds the tensor-parallel traffic of the forwards that backward repeats, for B sequences.
// blocks: the number of blocks whose forward backward repeats.
void predict_tensor_again(Prediction *out, const RankStage *own, size_t B, size_t blocks);
// Returns the bytes that a rank sends for ring attention of B sequences in a block. In each of
// `passes` forwards or backwards the rank sends the keys and values of all ranks except the next
// one, in the storage format. The gradients of all keys and values are sent once, as reals, because
// the gradients are sums over ranks.
size_t predict_ring(const TrainerConfig *c, Coordinates at, const CutSizes *z, size_t B,
                    size_t passes);
// Adds the traffic of the sums of partial gradients, which precede ZeRO's reduction. The sums run
// once per step, or in every micro-batch if ZeRO reduces and drops the gradients in every
// micro-batch. The partial gradients of wte are always summed once.
void predict_partial_sums(Prediction *out, const TrainerConfig *c, const RankStage *own, size_t m);
#endif
