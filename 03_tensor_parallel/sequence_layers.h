// sequence_layers.h: what the block of 07_sequence_parallel.c and the layers of sequence_layers.c
// share: which rows a rank has, and how a layer keeps the input of a column-parallel product.
#ifndef SEQUENCE_LAYERS_H
#define SEQUENCE_LAYERS_H
#include "03_tensor_parallel/tensor_parallel.h"

// Rows of this rank, of the M = B*T rows of a micro-batch; the shape [M/tp, C] of an activation.
Range sequence_rows(const Layer *l, const Batch *b);
Shape sequence_shape(const Layer *l, const Batch *b);
// The dropout of this rank's rows: an element's mask follows from its row among all M.
Dropout sequence_dropout(const Layer *l, const Batch *b, int site);

// The input of a column-parallel product. own [M/tp, C]: this rank's rows, which the norm writes.
// whole [M, C]: all rows, which the product and the gradient of its weights read. Forward keeps
// one of the two as item `name` of s; the other is in scratch.
typedef struct { Tensor own, whole; } SequenceInput;
SequenceInput sequence_input(const Layer *l, const Batch *b, Saved *s, int name, Arena *scratch);
// All rows for backward: as forward kept them, or by one more all-gather of M*C elements.
Tensor sequence_input_again(const Layer *l, const Batch *b, const Saved *s, int name,
                            Arena *scratch);
#endif
