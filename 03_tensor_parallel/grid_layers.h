// grid_layers.h: declares the functions of grid_layers.c that grid_block.c and grid_model.c call.
// These functions return cuts, and the shapes and dropout masks of a rank's parts. The functions
// also compute norms whose features are spread over a row of the grid.
#ifndef GRID_LAYERS_H
#define GRID_LAYERS_H
#include "03_tensor_parallel/tensor_parallel.h"

const CommGrid *summa_grid(const Layer *l);
// These functions return the cut of one side of the matrices of a Transformer block, between
// features, heads, or hidden columns of the MLP.
SummaCut summa_by_feature(const ModelConfig *c);
SummaCut summa_by_head(const ModelConfig *c);
SummaCut summa_by_hidden(const ModelConfig *c);
Shape summa_features(const Layer *l, const Batch *b); // returns [M/q, C/q]
// Returns the dropout masks of this rank's sequences and features. `own` is the batch of
// summa_batch(). Masks depend on global coordinates, so all ways of cutting a model drop the same
// elements.
Dropout summa_dropout(const Layer *l, const Batch *own, int site);

// These functions compute norms, with the gain p[0] and the bias p[1] on row 0. Forward broadcasts
// 2C/q elements down the column and all-reduces 2M/q elements along the row. Backward broadcasts
// C/q elements down the column, reduces 2C/q elements up the column, and all-reduces 2M/q elements
// along the row.
void summa_norm_forward(const Layer *l, Tensor y, Tensor stats, Tensor x, const Param *p);
void summa_norm_backward(const Layer *l, Tensor dx, Tensor x, Tensor stats, Tensor dy, Param *p);
#endif
