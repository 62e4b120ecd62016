// linear.h: printed gradients, samples, first weights and snapshots of the linear layers of 01.01
// and 02.01.
#ifndef DATA_PARALLEL_EXPERIMENTS_LINEAR_H
#define DATA_PARALLEL_EXPERIMENTS_LINEAR_H
#include "01_data_parallel/by_hand.h"
#include "judge/frame/lesson.h"

// Prints dW of a 2x2 example, row by row.
void linear_say_gradient(Run *run, const char *what, const Linear *g, const char *remark);
// Fills x [samples, in] and target [samples, out] with noise, as from torch.randn. A linear layer
// fits only a little of this noise. The weights and biases of `start` are uniform in +-1/sqrt(in),
// as in PyTorch's nn.Linear.
void linear_random(const Run *run, Linear *start, real *x, real *target, size_t samples);
// Puts l's weights into s under the name w, and its biases under the name b, unless b is NULL.
void linear_put(Snapshot *s, const Linear *l, const char *w, const char *b);
#endif
