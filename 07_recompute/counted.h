// counted.h: how often does a block really compute? A counting layer around a block, for the lessons of this chapter.
#ifndef COUNTED_H
#define COUNTED_H
#include "common/model.h"

// of one block: whole forwards, and attention probabilities alone
typedef struct { size_t forwards, rebuilds; } Counts;
// Wraps the blocks of a described model; call it before recompute(). counts [m->n_layers] is the caller's, one for each
// layer.
void count_blocks(Model *m, Counts *counts);
#endif
