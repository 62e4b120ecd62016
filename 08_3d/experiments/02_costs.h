// 02_costs.h: what a layout must send inside its nodes and between them, from the sizes and the order of ranks alone.
#ifndef LAYOUT_COSTS_H
#define LAYOUT_COSTS_H
#include "08_3d/predict.h"

// The process, a rank of the world, that is rank r of the mesh. NULL stands for r itself.
typedef size_t LayoutOrder(Degrees n, size_t r);
typedef struct { double inside, between; } LayoutTraffic;      // bytes sent by one rank in one step
// node: ranks of a node; 0: all share one.
LayoutTraffic layout_traffic(const TrainerConfig *c, const Prediction *p, size_t rank, size_t node,
                             LayoutOrder *order);
#endif
