// way_tables.h: tables with a column for each of the six ways of 12_compare.c.
#ifndef WAY_TABLES_H
#define WAY_TABLES_H
#include "03_tensor_parallel/compare.h"
#include "judge/frame/lesson.h"

extern const char *const tensor_way_name[WAYS];        // "1D + SP"
extern const char *const tensor_way_id[WAYS];          // "sp", in the ids of costs
typedef char WayCells[WAYS][40];                       // the cells of a row
Result way_row(const char *what, WayCells cell);
// A table with the columns of the ways that n ranks allow.
void way_results(Run *run, size_t n, const Result *rows);

// From sizes alone. One block of GPT-3's width on 64 ranks: parameters, activations, and elements
// that a rank receives per step.
void way_block_table(Run *run);
// The figure of the received elements of this block, over the tokens of a step.
void way_plot(Run *run);
// The number of tokens from which 2D costs less than 1D. Checks it against tensor_way_crossover().
void way_crossover_table(Run *run);
#endif
