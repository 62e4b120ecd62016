// cube_layers.h: declares the functions of cube_layers.c that cube_block.c and cube_model.c call.
// The functions return layouts of activations, compute norms whose features are spread over ranks,
// and return room for the operands that a layer saves.
#ifndef CUBE_LAYERS_H
#define CUBE_LAYERS_H
#include "03_tensor_parallel/tensor_parallel.h"

// Items of Saved that come after a block's own items: the operands that the linear layers have
// gathered. If backward gathers operands again, forward does not save these items.
enum { CUBE_QKV, CUBE_PROJ, CUBE_FC, CUBE_OUT, CUBE_LINEARS };
enum { CUBE_HEAD };
enum {
    CUBE_WHOLE_X = BLOCK_ITEMS,
    CUBE_WHOLE_W = CUBE_WHOLE_X + CUBE_LINEARS,
    CUBE_ITEMS = CUBE_WHOLE_W + CUBE_LINEARS
};
_Static_assert((int)CUBE_ITEMS <= (int)SAVED_TENSORS,
               "Saved has no room for the gathered operands of the linear layers");

const Cube *cube_of(const Layer *l);
CubeLayout cube_stream(const Layer *l, const Batch *b);  // layout of the residual stream
Shape cube_stream_shape(const Layer *l, const Batch *b); // [M/q^2, C/q]
Batch cube_rows(const Batch *b, CubeLayout at);          // this rank's sequences in the layout `at`
Dropout cube_dropout(const Layer *l, const Batch *b, CubeLayout at, int site);

// These functions compute norms. C counts the features of a whole token. Forward and backward
// all-reduce 2 elements per row over at.cols. The gradients of gain and bias are partial sums over
// this rank's rows.
void cube_norm_forward(CubeLayout at, size_t C, Tensor y, Tensor stats, Tensor x, const Param *gain,
                       const Param *bias);
void cube_norm_backward(CubeLayout at, size_t C, Tensor dx, Tensor x, Tensor stats, Param *gain,
                        Param *bias, Tensor dy);

// Returns room for x [M/q^2, K/q] of a linear layer. If the gathered X is saved, x is scratch,
// because cube_own_rows() finds the rows of x in X.
Tensor cube_new_x(const Layer *l, Saved *s, Arena *scratch, size_t rows, size_t cols);
Tensor cube_own_rows(CubeLayout at, Tensor X);
extern const LayerKind cube_block; // in cube_block.c
#endif
