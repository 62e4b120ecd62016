// costs.h: what the lessons of this chapter predict from sizes alone, held against what was measured.
#ifndef TENSOR_PARALLEL_COSTS_H
#define TENSOR_PARALLEL_COSTS_H
#include "03_tensor_parallel/support/trial.h"
#include "03_tensor_parallel/tensor_parallel.h"

// Costs, with the picture of the last step, and the table of both cuts.
void linear_column_costs(Run *run, size_t M, size_t K, size_t N, const TrialResult *r);
void linear_row_costs(Run *run, size_t M, size_t K, size_t N, const TrialResult *r);
void linear_gather_costs(Run *run, size_t M, size_t N, double bytes);
void linear_results(Run *run, size_t M, size_t K, size_t N);

void mlp_costs(Run *run, size_t M, size_t C, size_t F, const TrialResult *r);      // with the picture and its times
void mlp_rows_first_costs(Run *run, size_t M, size_t F, double bytes);
void mlp_results(Run *run, const TrialResult *r);

typedef struct { size_t B, T, H, D; } AttentionSizes;
void attention_costs(Run *run, const AttentionSizes *z, const TrialResult *r);

typedef struct { size_t M, V, C; } VocabularySizes;
void vocabulary_costs(Run *run, const VocabularySizes *z, const TrialResult *r);
// One token's loss: mine: this rank's largest logit, its target's logit or 0, its sum of exponentials.
void vocabulary_token(Run *run, Range words, const double mine[3], double loss);
void vocabulary_results(Run *run, const VocabularySizes *z, double loss, double loss_if_gathered);

// 06: what one rank measured; of the last step, where it says so.
typedef struct {
    size_t calls, bytes, norm_bytes;                       // all-reduces and bytes in the layers; for the norm
    size_t block, parameters, gradients, optimizer;        // bytes on this rank; block: of one block's parameters
    size_t activations;                                    // their peak
} TransformerMeasured;
void transformer_costs(Run *run, const ModelConfig *c, size_t sequences, const TransformerMeasured *r);

// 11: along the axes of a cube: the ranks of my row, of my column, and of my row and column in all layers.
enum { CUBE_ROW, CUBE_COL, CUBE_DEPTH, CUBE_AXES };
typedef struct { size_t B, T, K, N; } CubeSizes;           // Y [B*T, N] = X [B*T, K] V [K, N]; Z [B*T, K] = Y W [N, K]
void cube_linears(Run *run, const Cube *c, CubeSizes z);   // cube_linears.c: compared with the unsplit products
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
void cube_results(Run *run, const ModelConfig *c, size_t sequences, size_t q);
#endif
