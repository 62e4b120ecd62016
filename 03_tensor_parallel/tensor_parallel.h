// tensor_parallel.h: tensor parallelism (Shoeybi et al. 2019, section 3): matrices are cut over the ranks of a
// group, tp. Every function stands in the lesson that teaches it.
//
//     tensor                      cut              rank holds
//     attn.c_attn.weight  [C,3C]  columns of q|k|v   [C, 3C/tp]: whole heads, no communication between
//     attn.c_proj.weight  [C, C]  rows               [C/tp, C]: the rows that its heads feed
//     mlp.c_fc.weight     [C,4C]  columns            [C, 4C/tp]: GELU works element by element
//     mlp.c_proj.weight   [4C,C]  rows               [4C/tp, C]
//     wte                 [V, C]  rows               [V/tp, C]: its vocabulary entries, in embedding and head
//     norms, row-cut biases, wpe  whole              the same on every rank, with the same gradient: never summed
//                                                    (but under sequence parallelism, lesson 07: partial gradients)
//
// Heads, hidden columns and vocabulary entries need not divide by tp: shard_range gives the first ranks one more.
#ifndef TENSOR_PARALLEL_H
#define TENSOR_PARALLEL_H
#include "common/model/model.h"

// ---- 02_linear.c: y = x w + b. Backward adds to w->g and b->g, and overwrites dx. ----
// Rank holds w [K, N/tp] and b [N/tp]; x [M, K] is whole on every rank, y [M, N/tp] is cut by columns.
void column_parallel_cut(Param *p, Range columns);             // within each of p->blocks equal blocks
void column_parallel_forward(Tensor y, Tensor x, const Param *w, const Param *b);
void column_parallel_backward(Comm *tp, Tensor dx, Tensor x, Tensor dy, Param *w, Param *b);
void column_parallel_gather(Comm *tp, Tensor whole, Tensor y);
// Rank holds w [K/tp, N] and all of b; x [M, K/tp] is cut by columns, y [M, N] is whole on every rank.
void row_parallel_cut(Param *p, Range rows);
void row_parallel_forward(Comm *tp, Tensor y, Tensor x, const Param *w, const Param *b);
void row_parallel_backward(Tensor dx, Tensor x, Tensor dy, Param *w, Param *b);

// ---- 03_mlp.c: p[4] are FC_W, FC_B, OUT_W, OUT_B of a block; x and y [M, C] are whole. Keeps S_FC and S_ACT. ----
enum { MLP_A, MLP_A_BIAS, MLP_B, MLP_B_BIAS, MLP_PARAMS };
void tensor_parallel_mlp_cut(Param *p, Range hidden);
void tensor_parallel_mlp_forward(Comm *tp, Param *p, Tensor y, Tensor x, Saved *s);
void tensor_parallel_mlp_backward(Comm *tp, Param *p, Tensor dx, Tensor x, Tensor dy, Saved *s);

// ---- 04_attention.c: p[4] are QKV_W, QKV_B, PROJ_W, PROJ_B of a block; x and y [B*T, C] are whole. Keeps S_QKV,
//      S_PROBS, S_DROPPED and S_MIX. ----
enum { ATTENTION_QKV, ATTENTION_QKV_BIAS, ATTENTION_O, ATTENTION_O_BIAS, ATTENTION_PARAMS };
typedef struct {
    size_t B, T, D;                                            // sequences, positions, columns of one head
    Range heads;                                               // of this rank, numbered in the whole layer
    uint64_t key;                                              // dropout of the attention probabilities
    double drop;
    size_t first_sequence;
    const int *position;                                       // [B*T], as in Batch; NULL: 0, 1, 2, ...
} TensorParallelHeads;
void tensor_parallel_attention_cut(Param *p, Range heads, size_t D);
void tensor_parallel_attention_forward(Comm *tp, const TensorParallelHeads *h, Param *p, Tensor y, Tensor x, Saved *s);
void tensor_parallel_attention_backward(Comm *tp, const TensorParallelHeads *h, Param *p, Tensor dx, Tensor x,
                                        Tensor dy, Saved *s);
// What lies between the two matrices, for the heads of this rank, without communication.
void tensor_parallel_probabilities(const TensorParallelHeads *h, Saved *s);      // S_PROBS and S_DROPPED from S_QKV
void tensor_parallel_heads_forward(const TensorParallelHeads *h, Saved *s);      // S_MIX from S_QKV
void tensor_parallel_heads_backward(const TensorParallelHeads *h, Tensor dqkv, Tensor dmix, const Saved *s);

// ---- 05_vocab.c: `first` is the first vocabulary entry of this rank. ----
void vocab_parallel_lookup(Comm *tp, Tensor y, Tensor table, const int *tokens, size_t first);
void vocab_parallel_loss(Comm *tp, Tensor loss, Tensor sum, Tensor logits, const int *targets, size_t first);
void vocab_parallel_backward(Comm *tp, Tensor dx, Tensor dlogits, Tensor x, Param *table);
extern const LayerKind tensor_parallel_embedding, tensor_parallel_head, tensor_parallel_loss;

// ---- 06_transformer.c ----
// Cuts the parameters of a described model over tp and replaces its layers. usage_error() when a rank would have no
// head.
void tensor_parallel(Model *m, Comm *tp);
TensorParallelHeads tensor_parallel_heads(const Layer *l, const Batch *b);       // of a block that is cut
void tensor_parallel_rebuild(Layer *l, const Batch *b, Saved *s);                // its probabilities
extern const LayerKind tensor_parallel_block;

// ---- 07_sequence_parallel.c: between the regions where rows are whole, rank holds rows shard_range(M, tp, rank) ----
// whole [M, C], mine [M/tp, C]: the rows of this rank; there may be none.
void sequence_enter(Comm *tp, Tensor whole, Tensor mine);                  // Megatron's g: all-gather
void sequence_enter_backward(Comm *tp, Tensor dmine, Tensor dpartial);     // reduce-scatter
void sequence_leave(Comm *tp, Tensor mine, Tensor partial);                // Megatron's g with a bar: reduce-scatter
void sequence_leave_backward(Comm *tp, Tensor dwhole, Tensor dmine);       // all-gather
// What is kept of a column-parallel layer's input: my rows, gathered again in backward, or all rows.
typedef enum { KEEP_SHARD, KEEP_WHOLE } KeptInput;
// tensor_parallel(), and layers whose x and y are [M/tp, C]. Gradients of norms and of biases that are added after a
// sum are partial: model_partial_sums() once per step. usage_error() as tensor_parallel().
void sequence_parallel(Model *m, Comm *tp, KeptInput keep);
extern const LayerKind sequence_parallel_embedding, sequence_parallel_block, sequence_parallel_block_whole,
    sequence_parallel_head, sequence_parallel_head_whole;
#endif
