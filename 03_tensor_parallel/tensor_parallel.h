// tensor_parallel.h: declares the functions of lessons 02 to 07 and 09 to 11, which later lessons
// and chapters call. Each section names the files of its functions. Tensor parallelism (Shoeybi et
// al. 2019, section 3) cuts the weight matrices of every layer over the t ranks of a group, tp:
//
//     tensor                      cut               each rank holds
//     attn.c_attn.weight  [C,3C]  columns of q|k|v  [C, 3C/t]: all columns of its heads
//     attn.c_proj.weight  [C, C]  rows              [C/t, C]: the rows that its heads feed
//     mlp.c_fc.weight     [C,4C]  columns           [C, 4C/t]: GELU works element by element
//     mlp.c_proj.weight   [4C,C]  rows              [4C/t, C]: the rows that its c_fc columns feed
//     c_attn.bias, c_fc.bias      as the weights    3C/t and 4C/t: those of its columns
//     wte                 [V, C]  rows              [V/t, C]: its entries, for embedding and head
//     norms, c_proj biases, wpe   not cut           the whole tensor, and its whole gradient
//
// Under sequence parallelism (07_sequence_parallel.c) the gradients of norms and of the biases of
// c_proj are partial sums.
//
// t need not divide heads, hidden columns or vocabulary entries, because shard_range gives each of
// the first ranks one more.
#ifndef TENSOR_PARALLEL_H
#define TENSOR_PARALLEL_H
#include "common/model/model.h"

// ---- 02_linear.c: y = x w + b. A backward adds to w->g and b->g, and overwrites dx. ----
// Column-parallel: each rank holds w [K, N/t] and b [N/t], all of x [M, K], its columns y [M, N/t].
void column_parallel_cut(Param *p, Range columns); // cuts each of the p->blocks blocks
void column_parallel_forward(Tensor y, Tensor x, const Param *w, const Param *b);
void column_parallel_backward(Comm *tp, Tensor dx, Tensor x, Tensor dy, Param *w, Param *b);
void column_parallel_gather(Comm *tp, Tensor whole, Tensor y);
// Row-parallel: each rank holds w [K/t, N] and all of b, its columns x [M, K/t], all of y [M, N].
void row_parallel_cut(Param *p, Range rows);
void row_parallel_forward(Comm *tp, Tensor y, Tensor x, const Param *w, const Param *b);
void row_parallel_backward(Tensor dx, Tensor x, Tensor dy, Param *w, Param *b);

// ---- 03_mlp.c: p points to the four parameters FC_W, FC_B, OUT_W, OUT_B of a block. x and y
//      [M, C] are whole on every rank. Forward keeps S_FC and S_ACT for backward. ----
enum { MLP_A, MLP_A_BIAS, MLP_B, MLP_B_BIAS, MLP_PARAMS };
void tensor_parallel_mlp_cut(Param *p, Range hidden);
void tensor_parallel_mlp_forward(Comm *tp, Param *p, Tensor y, Tensor x, Saved *s);
void tensor_parallel_mlp_backward(Comm *tp, Param *p, Tensor dx, Tensor x, Tensor dy, Saved *s);

// ---- 04_attention.c: p points to the four parameters QKV_W, QKV_B, PROJ_W, PROJ_B of a block. x
//      and y [B*T, C] are whole on every rank. h->heads are this rank's heads. Forward keeps S_QKV
//      and S_MIX for backward, and in plain attention also S_PROBS and S_DROPPED. ----
enum { ATTENTION_QKV, ATTENTION_QKV_BIAS, ATTENTION_O, ATTENTION_O_BIAS, ATTENTION_PARAMS };
void tensor_parallel_attention_cut(Param *p, Range heads, size_t D);
void tensor_parallel_attention_forward(Comm *tp, const AttentionHeads *h, Param *p, Tensor y,
                                       Tensor x, Saved *s);
void tensor_parallel_attention_backward(Comm *tp, const AttentionHeads *h, Param *p, Tensor dx,
                                        Tensor x, Tensor dy, Saved *s);

// ---- 05_vocab.c: `first` is the first vocabulary entry of this rank. ----
void vocab_parallel_lookup(Comm *tp, Tensor y, Tensor table, const int *tokens, size_t first);
void vocab_parallel_loss(Comm *tp, Tensor loss, Tensor sum, Tensor logits, const int *targets,
                         size_t first);
void vocab_parallel_backward(Comm *tp, Tensor dx, Tensor dlogits, Tensor x, Param *table);

// ---- 06_transformer.c; vocab_layers.c has embedding, head and loss as layers ----
// Cuts the parameters of a described model over tp and replaces the model's layers. Calls
// usage_error() if a rank would have no head of the query, no head of key and value, no hidden
// column of the MLP or no vocabulary entry.
void tensor_parallel(Model *m, Comm *tp);
extern const LayerKind tensor_parallel_embedding, tensor_parallel_block, tensor_parallel_head;
extern const LayerKind tensor_parallel_loss;

// ---- 07_sequence_parallel.c; sequence_layers.c has embedding and head, and cuts the model ----
// In norms, dropout and residual paths each of the t ranks has M/t of the M rows. shard_range cuts
// the rows. `own` and `d_own` [M/t, C] have this rank's rows, which may be none. `whole` and
// `dwhole` [M, C] have all rows. `partial` and `dpartial` [M, C] have all rows, too, but are
// partial sums.
void sequence_enter(Comm *tp, Tensor whole, Tensor own);               // g: all-gather
void sequence_enter_backward(Comm *tp, Tensor d_own, Tensor dpartial); // reduce-scatter
void sequence_leave(Comm *tp, Tensor own, Tensor partial);             // g bar: reduce-scatter
void sequence_leave_backward(Comm *tp, Tensor dwhole, Tensor d_own);   // all-gather
// With KEEP_SHARD a rank keeps only its own rows of a column-parallel product's input, and backward
// gathers all rows again. With KEEP_WHOLE the rank keeps all rows.
typedef enum { KEEP_SHARD, KEEP_WHOLE } KeptInput;
// Does what tensor_parallel() does, but the activations between layers are [M/t, C]; the logits
// and the losses have all rows. Gradients of norms, and of biases that are added after a sum, are
// partial sums. So call model_partial_sums() once per step.
void sequence_parallel(Model *m, Comm *tp, KeptInput keep);
extern const LayerKind sequence_parallel_embedding, sequence_parallel_block, sequence_parallel_head;

// ---- grid_layers.c: a grid of ranks ----
// A grid has `depth` layers, each with rows x cols ranks: rank = col + cols * (row + rows * layer).
// SUMMA's grid has depth 1. Tesseract's grid is q x q x d.
typedef struct {
    size_t rows, cols, depth, row, col, layer; // sizes, and this rank's coordinates
    Comm *in_row;                              // the ranks of this row and layer, ordered by col
    Comm *in_col;                              // the ranks of this column and layer, ordered by row
    Comm *in_depth;                            // the ranks of this row and column, ordered by layer
} CommGrid;
// Makes a grid of c's ranks. All ranks of c must call this function. Calls usage_error() if rows *
// cols * depth is not c's size.
CommGrid comm_grid(Comm *c, size_t rows, size_t cols, size_t depth);
void comm_grid_free(CommGrid *g);

// ---- 09_summa.c: matrices in q x q blocks on a grid of ranks. grid_layers.c has summa_side() and
//      the two functions summa_cut_*(). ----
// Block (i, j) is on the rank of row i and column j. A SummaCut says how one side of a matrix is
// cut in q pieces. The side has n groups of `each` elements. shard_range cuts only between groups.
typedef struct {
    size_t n, each;
} SummaCut;
Range summa_range(SummaCut cut, size_t q, size_t l); // returns piece l, in elements
// Returns q for q x q ranks. Calls usage_error() if the number of ranks is not a square.
size_t summa_side(size_t ranks);
// All ranks of the grid must call these functions. k is the cut of the dimension K. A product
// overwrites its output:
//     summa_product       y [M, N] = x [M, K] w [K, N]
//     summa_product_nt    x [M, K] = y [M, N] w [K, N]^T
//     summa_product_tn    w [K, N] = x [M, K]^T y [M, N]
void summa_product(const CommGrid *g, Tensor y, Tensor x, Tensor w, SummaCut k);
void summa_product_nt(const CommGrid *g, Tensor x, Tensor y, Tensor w, SummaCut k);
void summa_product_tn(const CommGrid *g, Tensor w, Tensor x, Tensor y, SummaCut k);
// Returns `block` itself, without a copy, if is_own. Otherwise returns room [rows, cols] in arena
// a, for another rank's block.
Tensor summa_panel(Arena *a, bool is_own, Tensor block, size_t rows, size_t cols);
// summa_linear_forward() and summa_linear_backward() run a linear layer. p[0] has this rank's block
// of the weights [K, N]. p[1] has the rank's part of the bias [N], on row 0 only. Backward adds to
// the gradients of weights and bias, and overwrites dx.
void summa_linear_forward(const CommGrid *g, SummaCut k, Tensor y, Tensor x, const Param *p);
void summa_linear_backward(const CommGrid *g, SummaCut k, Tensor dx, Tensor x, Tensor dy, Param *p);
void summa_cut_matrix(Param *p, const CommGrid *g, SummaCut rows, SummaCut cols);
void summa_cut_vector(Param *p, const CommGrid *g, SummaCut cols);

// ---- grid_model.c, grid_block.c: GPT's layers in q x q blocks (summa_batch: grid_layers.c) ----
// Cuts the parameters of a described model over g and replaces the model's layers. g must live as
// long as m. All ranks of a row then have the loss of the row's sequences. Calls usage_error() if a
// column of the grid has no head or no vocabulary entry, or if the model is not a GPT-2.
void summa(Model *m, const CommGrid *g);
// Returns the batch with only the sequences of this rank's row in its grid. A row may have no
// sequence.
Batch summa_batch(const CommGrid *g, const Batch *b);
extern const LayerKind summa_embedding, summa_block, summa_head, summa_loss;

// ---- 10_tesseract.c: d grids of q x q ranks hold the same weights and share the sequences. ----
// tesseract_sides() returns the sides of a grid of q x q x depth ranks with depth <= q. If depth is
// 0, the function chooses the smallest depth that fits. Calls usage_error() if the ranks do not
// form such a grid.
typedef struct {
    size_t q, depth;
} TesseractSides;
TesseractSides tesseract_sides(size_t ranks, size_t depth);
CommGrid tesseract_grid(Comm *ranks, size_t depth); // all `ranks` must call this function
// Cuts the model with summa(). Gradients are partial sums over depth until model_partial_sums()
// adds them.
void tesseract(Model *m, const CommGrid *g);

// ---- 11_cube.c: 3D tensor parallelism (Bian et al. 2021). cube_layers.c has cube_side(),
// cube_new() and cube_free(). The q x q x q ranks have places (layer, row, col) in a comm_grid.
//
//     tensor                 rows cut over                cols cut over   rank holds
//     x of linears 0, 2, ..  layer, then row  sequences   col             [M/q^2, K/q]
//     y of these             layer, then col  sequences   row             [M/q^2, N/q]: swapped
//     their w                col, then layer              row             [K/q^2, N/q]
//     x, y, w of linears 1, 3, ..: the same with row and col swapped
//     biases, gains, wpe     not cut                      as activations  same on a plane
//
// q need not divide the sequences, columns, heads and vocabulary entries. A rank may have no
// sequence at all. ----
typedef struct {
    CommGrid grid;
    Comm *same_col;    // the q^2 ranks with this rank's col
    Comm *same_row;    // the q^2 ranks with this rank's row
    bool gather_again; // backward gathers x and w again; if false, gathered x and w are saved
} Cube;
// Returns q for q x q x q ranks. Calls usage_error() if the number of ranks is not a cube.
size_t cube_side(size_t ranks);
// Makes a cube of `ranks`. All of these ranks must call this function. Calls usage_error() if their
// number is not a cube.
Cube cube_new(Comm *ranks);
void cube_free(Cube *c);
// A layout names the ranks over which an activation is cut. A rank's rows are whole sequences.
typedef struct {
    Comm *layers; // the ranks over which the rows are cut first
    Comm *rows;   // the ranks over which the rows of a layer are cut
    Comm *cols;   // the ranks over which the columns are cut
    size_t B;     // sequences of the rank's layer of the cube
    size_t T;     // positions of each sequence
} CubeLayout;
CubeLayout cube_layout(const Cube *c, const Batch *b); // returns the layout of x of linear 0
CubeLayout cube_swapped(CubeLayout l);                 // returns the layout of y, if x has l
Range cube_sequences(CubeLayout l, size_t B);          // returns this rank's part of B sequences
// cube_gather returns n sequences of `positions` rows each, in arena a, from their parts on the
// ranks of axis (shard_range). For the rows of a matrix of weights, positions is 1. cube_scatter
// adds the `sum` of all ranks of axis, and sets part to this rank's part of the result.
Tensor cube_gather(Comm *axis, Arena *a, size_t n, size_t positions, Tensor part);
void cube_scatter(Comm *axis, size_t n, Tensor part, Tensor sum);
typedef struct {
    Tensor x, w;
} CubeOperands; // gathered: x [B*T, K/q] and w [K/q, N/q]; B and T as in CubeLayout
CubeOperands cube_operands(CubeLayout at, Arena *a, Tensor x, Tensor w);
void cube_forward(CubeLayout at, Tensor y, CubeOperands o);
// Sets dx, and adds the gradient of w to w->g.
void cube_backward(CubeLayout at, Tensor dx, Param *w, Tensor dy, CubeOperands o);

// ---- cube_model.c ----
// Cuts the parameters of a described model over the cube and replaces the model's layers. c must
// live as long as m. Calls usage_error() if the model has fewer than q heads or q vocabulary
// entries, or is not a GPT-2. Every rank gets the tokens of all sequences. The loss layer's y is 0
// on ranks whose tokens another rank counts, so the sum over all ranks is the loss. Gradients of
// vectors and of wpe are partial sums until model_partial_sums() adds them.
void cube_parallel(Model *m, const Cube *c);
#endif
