// costs.h: what lessons 07, 11 and 12 predict from sizes alone, held against what was measured.
#ifndef TENSOR_PARALLEL_COSTS_H
#define TENSOR_PARALLEL_COSTS_H
#include "03_tensor_parallel/experiments/cube_costs.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "judge/frame/training.h"

// 07: three ways: lesson 06; sequence parallelism that keeps inputs whole, and that gathers them again in backward.
typedef enum { TENSOR_ONLY, SEQUENCE_WHOLE, SEQUENCE_SHARD, SEQUENCE_WAYS } SequenceWay;
extern const char *const sequence_way_name[SEQUENCE_WAYS];
typedef struct { size_t gathers, scatters, sums, bytes; } SequenceSent;          // calls of three kinds; bytes of all
SequenceSent sequence_sent(const Comm *tp);                // since the last comm_ledger_reset
typedef struct {
    Comm *tp;
    SequenceSent layers, partial;                          // per step: in the layers; sums of partial gradients
    size_t parameters, gradients, optimizer, activations;  // bytes on this rank; the last is their peak
    size_t message;                                        // bytes from a block to the next stage, largest micro-batch
} SequenceMeasured;
void sequence_held(SequenceMeasured *r, const Model *m, const Training *t);      // all but what was sent
void sequence_costs(Run *run, const Training *t, SequenceWay way, const SequenceMeasured *r);    // and the picture
void sequence_results(Run *run, const Training *t);
// 11
typedef struct { size_t B, T, K, N; } CubeSizes;           // Y [B*T, N] = X [B*T, K] V [K, N]; Z [B*T, K] = Y W [N, K]
void cube_linears(Run *run, const Cube *c, CubeSizes z, bool shown);   // compared with the unsplit products
void cube_places(Run *run, size_t q, CubeSizes z);         // prints who holds what of them
void cube_ledgers_reset(const Cube *c);
void cube_sent(const Cube *c, double bytes[CUBE_AXES]);    // since then
void cube_linear_costs(Run *run, const CommGrid *g, CubeSizes z, const double first[CUBE_AXES],
                       const double second[CUBE_AXES]);    // forward and backward of each
typedef struct {
    double sent[CUBE_AXES];                                // in the layers, a step
    size_t planes, numbers;                                // for gradients of vectors; for loss and norm
    size_t block, parameters, gradients, optimizer;        // bytes on this rank; block: of one block's parameters
    size_t activations;                                    // their peak
} CubeMeasured;
void cube_costs(Run *run, const CommGrid *g, const ModelConfig *c, size_t sequences, bool again,
                const CubeMeasured *r);
// 12: what one rank has and receives under one of the ways of this chapter.
// Elements; elements, their peak; bytes per step; ps per step, if nobody is waited for.
typedef struct { double parameters, kept, received, time; } TensorShare;
TensorShare cube_share(const ModelConfig *c, size_t sequences, size_t q, size_t rank, bool again);
void cube_results(Run *run, const ModelConfig *c, size_t sequences, size_t q);
#endif
