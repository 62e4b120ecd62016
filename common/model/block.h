// block.h: declares the table of a block's tensors, with their names, sizes, cuts and initial
// values. model.c describes the tensors of every block by this table. So all chapters and
// checkpoints have the same names and sizes.
#ifndef BLOCK_H
#define BLOCK_H
#include "common/model/layer.h"

// A BlockCut says how tensor parallelism cuts a tensor (Shoeybi et al. 2019, section 3).
typedef enum {
    CUT_NOTHING,
    CUT_COLUMNS_BY_HEADS,
    CUT_ROWS_BY_HEADS,
    CUT_COLUMNS_BY_HIDDEN,
    CUT_ROWS_BY_HIDDEN,
} BlockCut;

typedef struct {
    const char *name; // Hugging Face's name in GPT-2, without the block's prefix, such as "h.0."
    // The whole tensor is [rows, cols]. If rows is 0, the tensor is a vector [cols]. If cols is 0,
    // the family has no such tensor.
    size_t rows, cols;
    size_t blocks; // column blocks, cut separately: q | k | v 3, gate | up 2, others 1
    BlockCut cut;
    bool gain; // true: initial values near 1; false: near 0
    // The product of this matrix is added to the residual path, so GPT-2 scales the matrix's
    // initial values by 1 / sqrt(2 L).
    bool into_residual;
    // width of the first column block (q) / width of another column block (k or v); 1 without
    // grouped heads
    size_t ratio;
} BlockTensor;
// Writes the table of one block's tensors, in the order of the block's unit (unit.h).
void block_tensors(const ModelConfig *c, BlockTensor tensor[BLOCK_PARAMS]);
// Returns the number of features between the matrices of the MLP, 4C in GPT-2.
static inline size_t block_hidden(const ModelConfig *c) { return c->ffn ? c->ffn : 4 * c->width; }
// Returns the number of matrices into the MLP's features. SwiGLU has two, gate and up, side by
// side.
static inline size_t block_gates(const ModelConfig *c) {
    return c->activation == ACTIVATION_SWIGLU ? 2 : 1;
}
// Returns the columns of query, key and value together, 3C without grouped heads.
static inline size_t block_qkv(const ModelConfig *c) {
    return c->width + 2 * config_kv_heads(c) * (c->width / c->heads);
}
#endif
