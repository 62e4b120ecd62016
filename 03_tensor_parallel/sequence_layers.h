// sequence_layers.h: declares the rows of a rank under sequence parallelism, and the input of a
// column-parallel product as a layer keeps it. 07_sequence_parallel.c (the block) and
// sequence_layers.c (the embedding and the head) call the functions that this file declares.
#ifndef SEQUENCE_LAYERS_H
#define SEQUENCE_LAYERS_H
#include "03_tensor_parallel/tensor_parallel.h"

// sequence_rows returns this rank's rows, of the M = B*T rows of a micro-batch. sequence_shape
// returns the shape [M/tp, C] of an activation.
Range sequence_rows(const Layer *l, const Batch *b);
Shape sequence_shape(const Layer *l, const Batch *b);
// Returns the dropout of this rank's rows. An element's mask depends on its row among all M rows.
Dropout sequence_dropout(const Layer *l, const Batch *b, int site);

// The input of a column-parallel product. Forward keeps one of the two tensors as item `name` of s,
// and makes the other in scratch.
typedef struct {
    Tensor own;   // [M/tp, C]: this rank's rows, which the norm writes
    Tensor whole; // [M, C]: all rows, which the product and the gradient of its weights read
} SequenceInput;
SequenceInput sequence_input(const Layer *l, const Batch *b, Saved *s, int name, Arena *scratch);
// Returns all rows for backward. Forward has kept these rows, or an all-gather of M*C elements
// collects them again.
Tensor sequence_input_again(const Layer *l, const Batch *b, const Saved *s, int name,
                            Arena *scratch);
#endif
