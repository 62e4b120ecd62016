// local_sgd.h: replicas that make local steps, and average their weights at the end of each round.
#ifndef LOCAL_SGD_H
#define LOCAL_SGD_H
#include "common/model/data.h"
#include "common/model/model.h"
#include "common/model/optimizer.h"

typedef struct {
    size_t every; // k, the number of local steps in a round, at least 1
    size_t exact; // number of steps before the first round; these steps average gradients
    // DiLoCo's outer step at the end of a round. With rate 0 a round ends with the plain average.
    double outer_lr, outer_momentum;
} LocalPlan;

typedef struct {
    Comm *dp;
    LocalPlan plan;
    // Only the outer step needs start and velocity, [Psi] each.
    Tensor start;    // the weights at the round's start
    Tensor velocity; // <- outer_momentum velocity + mean over ranks of (start - weights)
    Tensor weights;  // [Psi] the weights that a round averages: m->w, or copies of the masters
    Arena state;
} LocalSgd;

// Makes the state of rounds for m, which must be allocated. The weights of m must be the same on
// all ranks (data_parallel_broadcast). If m stores weights in 16 bits, its gradients must be reals,
// and its optimizer must have masters.
LocalSgd local_sgd_new(Comm *dp, const Model *m, LocalPlan plan);
void local_sgd_free(LocalSgd *l);
// Returns whether a round ends with this step. No round ends in the first `exact` steps.
bool local_sgd_round_ends(const LocalPlan *plan, uint64_t step);
// Makes one step of this rank, and ends the round if this step is the last of a round. Returns the
// part of the batch's mean loss that comes from this rank's shard.
double local_sgd_step(LocalSgd *l, Model *m, Optimizer *o, const Data *d, uint64_t step,
                      size_t sequences);
// Ends a round with a plain average or an outer step. Afterwards the weights and masters of m are
// the same on all ranks. Call this function also before you read the weights in the middle of a
// round.
void local_sgd_end_round(LocalSgd *l, Model *m);
#endif
