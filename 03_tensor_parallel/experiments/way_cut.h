// way_cut.h: a model cut in one of the six ways of 12_compare.c.
#ifndef WAY_CUT_H
#define WAY_CUT_H
#include "03_tensor_parallel/compare.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/model/data.h"

enum { WAY_GROUPS = 6 };                                   // at most
// The groups of a way.
typedef struct {
    TensorWay way;
    Comm *world;
    CommGrid grid;                                         // of 2D, 2.5D
    Cube cube;                                             // of 3D
} WayCut;
// Cuts a described model, and for the ring its data. All else of a way is inside its layers.
void way_cut(WayCut *w, Model *m, Data *d);
void way_free(WayCut *w);                                  // the groups; not the model
// Lists the communicators whose bytes are counted. Returns their number.
size_t way_groups(const WayCut *w, Comm *group[WAY_GROUPS]);
// Whether this rank's loss enters the sum over all ranks.
bool way_loss_counts(const WayCut *w);
#endif
