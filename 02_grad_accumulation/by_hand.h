// by_hand.h: declares functions that compute the gradient of a linear layer from pieces of a batch,
// in plain C arrays.
#ifndef ACCUMULATION_BY_HAND_H
#define ACCUMULATION_BY_HAND_H
#include "01_data_parallel/by_hand.h" // Linear, Samples

enum { MOST_PIECES = 8 };

Range pieces_range(size_t samples, size_t room, size_t k);
double pieces_gradient(Linear *g, const Linear *l, Samples all, Range samples, size_t elements);
void pieces_add(Linear *to, const Linear *from, real scale); // to += scale * from

// Leaves the gradient of the batch in `sum`, and returns the loss. pieces_at_once takes all samples
// at once. The other three functions take pieces of at most `room` samples. pieces_mean_of_means is
// the trap, because its gradient and loss are wrong if the pieces differ in size.
typedef double PiecesGradient(Linear *sum, const Linear *l, Samples all, size_t room);
PiecesGradient pieces_at_once, pieces_accumulated, pieces_mean_of_means, pieces_on_devices;
#endif
