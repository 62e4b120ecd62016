// grid_layers.h: what the block of 09_summa.c takes from grid_layers.c: how a model is cut into q x
// q blocks, and norms whose rows are spread over a row of the grid.
#ifndef GRID_LAYERS_H
#define GRID_LAYERS_H
#include "03_tensor_parallel/tensor_parallel.h"

const CommGrid *summa_grid(const Layer *l);
// How the sides of a block's matrices are cut: between features, heads, columns of the MLP.
SummaCut summa_by_feature(const ModelConfig *c);
SummaCut summa_by_head(const ModelConfig *c);
SummaCut summa_by_hidden(const ModelConfig *c);
Shape summa_features(const Layer *l, const Batch *b);              // [M/q, C/q]
// Of this rank's sequences (summa_batch) and features: a mask follows from global coordinates.
Dropout summa_dropout(const Layer *l, const Batch *own, int site);

// p[0] is the gain and p[1] the bias, on row 0. Forward broadcasts 2C/q elements down the column
// and all-reduces 2M/q in the row, backward the same, and reduces 2C/q up the column.
void summa_norm_forward(const Layer *l, Tensor y, Tensor stats, Tensor x, const Param *p);
void summa_norm_backward(const Layer *l, Tensor dx, Tensor x, Tensor stats, Tensor dy, Param *p);
#endif
