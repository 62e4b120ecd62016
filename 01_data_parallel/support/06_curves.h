// 06_curves.h: trainings on text under every method of 06_compression, and without error feedback.
#ifndef COMPRESSION_CURVES_H
#define COMPRESSION_CURVES_H
#include "01_data_parallel/support/06_costs.h"
#include "common/lesson/training.h"

// The lesson's: plan NULL is the exact sum, seen NULL asks for nothing.
typedef Trajectory CompressedTraining(Run *run, const Training *t, const CompressionPlan *plan, CompressionSeen *seen);
// Draws the losses, and checks that all methods learn, and that those which forget their residual learn less.
void compression_curves(Run *run, const Training *short_one, const CompressionPlan *plans, CompressedTraining *train);
#endif
