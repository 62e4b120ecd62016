// sequence_rows.h: declares functions that find a rank's rows under sequence parallelism, and
// that keep the input of a column-parallel product. 07_sequence_parallel.c (the block) and
// sequence_layers.c (the embedding and the head) call these functions.
#ifndef SEQUENCE_ROWS_H
#define SEQUENCE_ROWS_H
#include "03_tensor_parallel/tensor_parallel.h"

// sequence_rows returns this rank's rows, of the M = B*T rows of a micro-batch. sequence_shape
// returns the shape [M/t, C] of an activation between layers, on each of t ranks.
Range sequence_rows(const Layer *l, const Batch *b);
Shape sequence_shape(const Layer *l, const Batch *b);
// Returns the dropout of this rank's rows. The mask of a row depends on the row's number among all
// M rows.
Dropout sequence_dropout(const Layer *l, const Batch *b, int site);

// The input of a column-parallel product. With KEEP_WHOLE forward keeps `whole` as item `name` of
// s, and `own` is a part of `whole`. With KEEP_SHARD forward keeps `own`, and `whole` is in
// scratch.
typedef struct {
    Tensor own;   // [M/t, C]: this rank's rows, which the norm writes
    Tensor whole; // [M, C]: all rows, which the product and the gradient of its weights read
} SequenceInput;
void sequence_keep(Layer *l, KeptInput keep); // sets the rows that sequence_input() keeps
SequenceInput sequence_input(const Layer *l, const Batch *b, Saved *s, int name, Arena *scratch);
// Returns all rows for backward. Forward has kept these rows, or an all-gather of M*C elements
// fetches these rows again.
Tensor sequence_input_again(const Layer *l, const Batch *b, const Saved *s, int name,
                            Arena *scratch);
#endif
