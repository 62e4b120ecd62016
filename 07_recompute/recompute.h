// recompute.h: forget in the forward pass, compute again in the backward pass.
//
// Full (Chen et al. 2016): of a block only its input is kept, which the walker holds anyway; backward runs the block's
// forward again. Selective (Korthikanti et al. 2022, section 5): only the attention probabilities [B*H*T, T] are
// dropped and computed again from q and k: most of the memory for little work, when T is long.
//
// The same layers run with the same inputs, and dropout masks are functions of position, so gradients are equal in
// every bit.
#ifndef RECOMPUTE_H
#define RECOMPUTE_H
#include "common/model/model.h"

typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } Recompute;
// Wraps the blocks of a described model. The embedding keeps nothing, and the head's product with the whole vocabulary
// would be dear to run twice: they stay.
void recompute(Model *m, Recompute how);
#endif
