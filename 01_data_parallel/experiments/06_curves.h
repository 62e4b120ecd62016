// 06_curves.h: trainings on text under every method of 06_compression, and without error feedback.
#ifndef COMPRESSION_CURVES_H
#define COMPRESSION_CURVES_H
#include "01_data_parallel/experiments/06_costs.h"
#include "judge/frame/training.h"

// The lesson's: plan NULL is the exact sum, seen NULL asks for nothing.
typedef Trajectory CompressedTraining(Run *run, const Training *t, const CompressionPlan *plan, CompressionSeen *seen);
// Draws the losses, and checks that all methods learn, and that those which forget their residual learn less. loss
// [CURVES]: of the last ten steps; the exact sum's, each method's, and those of top-k and 1-bit without their residual.
enum { CURVES = METHODS + 3 };
void compression_curves(Run *run, const Training *short_one, const CompressionPlan *plans, CompressedTraining *train,
                        double *loss);
// A step with the exact all-reduce, then one with a compressed one, in one picture.
void compression_show_steps(Run *run, const Training *t, const CompressionPlan *plan);
// The table of results, after the costs. seen[METHODS], and what the exact all-reduce was seen to do.
void compression_results(Run *run, const char *const *names, size_t steps, const CompressionSeen *seen,
                         const CompressionSeen *exact, const double *loss);
#endif
