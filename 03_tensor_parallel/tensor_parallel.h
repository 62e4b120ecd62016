// tensor_parallel.h: Transformer layers whose matrices are cut over the ranks of a group (Shoeybi et al. 2019,
// section 3).
//
// The layers have the interface of common/model/layer.h and the mathematics of their twins in common/model/layer.c.
// What differs is who holds what, and four all-reduces of [B*T, C] a block and micro-batch: two forward (after the
// row-cut products), two backward (the gradients of the inputs of the column-cut products).
//
//     tensor                      cut              rank holds
//     attn.c_attn.weight  [C,3C]  columns of q|k|v   [C, 3C/tp]: whole heads, so attention needs no word
//     attn.c_proj.weight  [C, C]  rows               [C/tp, C]: the rows that its heads feed
//     mlp.c_fc.weight     [C,4C]  columns            [C, 4C/tp]: GELU works element by element
//     mlp.c_proj.weight   [4C,C]  rows               [4C/tp, C]
//     wte                 [V, C]  rows               [V/tp, C]: its words, in the embedding and in the head
//     norms, row-cut biases, wpe  whole              the same on every rank, with the same gradient: never summed
#ifndef TENSOR_PARALLEL_H
#define TENSOR_PARALLEL_H
#include "common/model/model.h"

// Cuts the parameters of a described model over tp and replaces its layers. usage_error() when a rank would have no
// head.
void tensor_parallel(Model *m, Comm *tp);
extern const LayerKind tensor_parallel_embedding, tensor_parallel_block, tensor_parallel_head;

// Heads, columns of the MLP and words need not divide: shard_range gives the first ranks one more.
void cut_columns(Param *p, Range part);            // part: columns within each of p->blocks blocks
void cut_rows(Param *p, Range part);
#endif
