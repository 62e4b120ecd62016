// counted.h: how much does a model really compute? A counting layer around a block, and the two utilisations (MFU and
// HFU), for the lessons of this chapter.
#ifndef COUNTED_H
#define COUNTED_H
#include "common/model/model.h"
#include "judge/draw/picture.h"

// of one block: whole forwards, and attention probabilities alone
typedef struct { size_t forwards, rebuilds; } Counts;
// Wraps the blocks of a described model; call it before recompute(). counts [m->n_layers] is the caller's, one for each
// layer.
void counted_wrap_blocks(Model *m, Counts *counts);

Picoseconds counted_computing(void);               // how long this rank computed in the recorded stretch
// A cost of one way to recompute.
void counted_cost(Run *run, const char *way, const char *name, const char *unit, double predicted, double measured);
// The share of the devices' FLOPs that was used: counting those that the model asks for (MFU), and all that were done
// (HFU). Printed with --verbose; and as two cells of a table of results.
void counted_utilisations(Run *run, const char *way, const Timing *t, double model_flops);
void counted_percent(char mfu[32], char hfu[32], const Timing *t, double model_flops);
#endif
