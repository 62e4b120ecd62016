// trainer_config.c computes values that follow from the trainer's options alone: the numbers of
// chunks and micro-batches, the list of a stage's ops, and the sides of a grid.
#include "08_3d/trainer.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"

size_t trainer_chunks(const TrainerConfig *c) { return c->chunks > 1 ? c->chunks : 1; }
// The batch is cut over replicas, then into micro-batches. Every replica runs the same number of
// micro-batches, because ZeRO-2 and ZeRO-3 reduce in each micro-batch. If the parts cannot be
// equal, some micro-batches have one sequence less.
size_t trainer_micro_batches(const TrainerConfig *c) {
    return ceil_div(ceil_div(c->batch, c->mesh.dp), c->micro_batch);
}
Schedule trainer_schedule(const TrainerConfig *c, size_t m, size_t stage) {
    if (trainer_chunks(c) == 1) return c->schedule(c->mesh.pp, m, stage); // chapters 04, 05
    return schedule_interleaved(c->mesh.pp, m, c->chunks, stage);         // 05.03
}

TesseractSides tensor_sides(const TrainerConfig *c) {
    if (c->tensor == TENSOR_2D) return (TesseractSides){ summa_side(c->mesh.tp), 1 };
    return tesseract_sides(c->mesh.tp, c->depth);
}
