// cube_layers.h: what the block of 11_cube.c takes from cube_layers.c: where activations stand,
// norms whose rows are spread over ranks, and what of a linear layer is kept.
#ifndef CUBE_LAYERS_H
#define CUBE_LAYERS_H
#include "03_tensor_parallel/tensor_parallel.h"

// In Saved, behind a block's items: what its linear layers gathered, where backward does not gather
// it again.
enum { CUBE_QKV, CUBE_PROJ, CUBE_FC, CUBE_OUT, CUBE_LINEARS };
enum { CUBE_HEAD };
enum { CUBE_WHOLE_X = BLOCK_ITEMS, CUBE_WHOLE_W = CUBE_WHOLE_X + CUBE_LINEARS,
       CUBE_ITEMS = CUBE_WHOLE_W + CUBE_LINEARS };
_Static_assert((int)CUBE_ITEMS <= (int)SAVED_TENSORS,
               "Saved has no room for what the linear layers have gathered");

const Cube *cube_of(const Layer *l);
CubeLayout cube_stream(const Layer *l, const Batch *b);    // where the residual stream stands
Shape cube_stream_shape(const Layer *l, const Batch *b);   // [M/q^2, C/q]
Batch cube_rows(const Batch *b, CubeLayout at);            // the tokens of this rank's rows there
Dropout cube_dropout(const Layer *l, const Batch *b, CubeLayout at, int site);

// C: columns of the whole row. Forward and backward all-reduce 2 elements a row over at.cols. The
// gradients of gain and bias are partial: of this rank's rows.
void cube_norm_forward(CubeLayout at, size_t C, Tensor y, Tensor stats, Tensor x, const Param *gain,
                       const Param *bias);
void cube_norm_backward(CubeLayout at, size_t C, Tensor dx, Tensor x, Tensor stats, Param *gain,
                        Param *bias, Tensor dy);

// Room for x [M/q^2, K/q] of a linear layer. Where the gathered X is kept, x is needed until it is
// gathered only, because X has its rows: cube_own_rows() finds them.
Tensor cube_new_x(const Layer *l, Saved *s, Arena *scratch, size_t rows, size_t cols);
Tensor cube_own_rows(CubeLayout at, Tensor X);
extern const LayerKind cube_block;                         // of 11_cube.c
#endif
