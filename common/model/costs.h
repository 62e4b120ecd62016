// costs.h: declares the cost model of the layers, whole or cut. From sizes the cost model computes
// parameters, kept activations, FLOPs and traffic. The times of FLOPs and traffic also depend on
// the chosen device and link. costs.c never reads a Model, a ledger or a measured time, so its
// predictions can be compared with measurements. Experiments make their formulas from these
// functions.
#ifndef COSTS_H
#define COSTS_H
#include "common/model/attention.h"

// Returns the size of part i if n things are cut into `parts` parts. Each of the first n % parts
// parts has one thing more.
size_t part_size(size_t n, size_t parts, size_t i);

// ---- The part of the model on a rank. M is B * T, the tokens of B sequences. ----
typedef struct {
    size_t C, D, T;      // features of a token, columns of a head, local positions of a sequence
    size_t Tk;           // keys that a query may see: all positions of a sequence
    bool online;         // blockwise attention, which keeps only lse per row and head
    Positions positions; // the local positions of each sequence's queries, for blockwise attention
    size_t heads, hidden, vocab; // this rank's heads, columns of the MLP and vocabulary entries
    size_t key_heads;            // this rank's heads of key and value
    size_t gates;                // matrices into the hidden columns: 2 with SwiGLU, else 1
    // These fields describe the family.
    //   norm_bias        1 if norms have biases, else 0
    //   qkv_bias         1 if query, key and value have biases, else 0
    //   bias             1 if the other matrices have biases, else 0
    //   statistics       elements per row of a norm
    //   positions_width  columns of wpe
    //   untied           the head has its own table
    size_t norm_bias, qkv_bias, bias, statistics, positions_width;
    bool untied;
    size_t blocks; // blocks of this rank's stage
    bool first;    // the stage begins with the embedding
    bool last;     // the stage ends with the head
    bool dropout;
    size_t t, rank; // ranks of the tensor-parallel group, and this rank's number in the group
    // sequence: under sequence parallelism norms, dropout, residual paths and messages have
    // cut_rows() rows.
    // whole_inputs: the inputs of products are kept whole in spite of sequence parallelism.
    bool sequence, whole_inputs;
    Element storage, gradient; // element types of weights and activations, and of gradients
} CutSizes;
// Returns the sizes of all layers, as rank i of t holds them. With t = 1 nothing is split.
CutSizes cut_sizes(const ModelConfig *c, size_t t, size_t i);
CutSizes cut_sequence(CutSizes z, bool whole_inputs);
// Returns the sizes of stage i of p. The blocks are divided as equally as possible.
CutSizes cut_stage(CutSizes z, size_t p, size_t i);
// Returns the local rows of B sequences outside of the products: M, or about M/t with sequence
// parallelism.
size_t cut_rows(const CutSizes *z, size_t B);
// Returns z with these positions of each sequence, or with all positions if positions->n is 0. If
// `online` is true, attention is blockwise and keeps no scores.
CutSizes cut_positions(CutSizes z, const Positions *positions, bool online);
// Returns the number of layers of the stage: its blocks, embedding and head.
size_t cut_layers(const CutSizes *z);

// ---- Parameters, in elements ----
// Tensor parallelism cuts W_qkv, b_qkv, W_O, fc and its bias, the MLP's second matrix, wte, and an
// untied head's own table. Every rank holds the other tensors whole: norms, wpe, and the biases of
// the projection and of the MLP's second matrix, which are added after an all-reduce.
enum { TENSORS_OF_BLOCK = 12 };
// Writes the elements of each tensor of a block, in model order.
void elements_tensors(const CutSizes *z, size_t tensor[TENSORS_OF_BLOCK]);
size_t elements_sum(const size_t tensor[TENSORS_OF_BLOCK]);
size_t elements_block(const CutSizes *z); // returns 12 C^2 + 13 C for an unsplit GPT-2
// Returns the elements of the table that embedding and head share, or of one table if untied.
size_t elements_wte(const CutSizes *z);
// stage_tables returns how many tables of the vocabulary have their own weights and state on the
// stage. stage_table_gradients returns how many uses of a table have their own gradient on the
// stage.
size_t stage_tables(const CutSizes *z);
size_t stage_table_gradients(const CutSizes *z);
// Returns whether this stage shares wte with another stage.
bool stage_shares_table(const CutSizes *z);
// Returns the parameters of layer i of the stage without the tables of the vocabulary. These are
// the elements of wpe, of a block, or of the last norm.
size_t elements_unit(const CutSizes *z, size_t i);
// Returns the number of parameters of the stage, with a tied wte once.
size_t elements_stage(const CutSizes *z);
// Returns the elements of all gradients of the stage. With embedding and head in one stage, a tied
// wte has two gradients.
size_t elements_gradients(const CutSizes *z);
// weight_bytes returns the bytes of one weight. gradient_bytes returns the bytes of the weight's
// gradient, and adamw_bytes the bytes of the weight's state under AdamW. The state is m and v, and
// with 16-bit weights a master, all in reals.
size_t weight_bytes(const ModelConfig *c);
size_t gradient_bytes(const ModelConfig *c);
size_t adamw_bytes(const ModelConfig *c);
size_t master_bytes(const ModelConfig *c); // returns 0 if weights are reals

// ---- What forward keeps for backward, in elements per token ----
// The items are those of Korthikanti et al. 2022, section 4.1, and the statistics.
//   KEPT_INPUT       the block's input, which is kept as the output of the previous layer
//   KEPT_SCORES      dropped by selective recomputation
//   KEPT_STATISTICS  statistics of norms and softmax, which the paper leaves out
//   KEPT_DENSE       all other items
// Dropout masks have a byte per element in the paper. In this program, masks are functions of a key
// and the element's coordinates, and are not stored.
typedef enum { KEPT_INPUT, KEPT_DENSE, KEPT_SCORES, KEPT_STATISTICS } KeptKind;
// by_row means that with sequence parallelism only the local rows are kept.
typedef struct {
    const char *name;
    KeptKind kind;
    size_t elements, masks;
    bool by_row;
} KeptItem;
enum { KEPT_ITEMS = 17 };
// Writes the items that a block keeps per token.
void kept_items(const CutSizes *z, KeptItem item[KEPT_ITEMS]);
// Returns the kept elements of the softmax's output, 0 with blockwise attention. With dropout, the
// output after dropout counts, too.
size_t kept_scores(const CutSizes *z);
size_t kept_block(const CutSizes *z); // returns the elements of a block's items without its input
size_t kept_head(const CutSizes *z);
// Returns the elements of the outputs that pass between layers, and of the input that the stage
// received.
size_t kept_between(const CutSizes *z);
size_t kept_stage(const CutSizes *z);    // returns everything that the stage keeps
size_t kept_model(const ModelConfig *c); // returns everything that the whole model keeps
// Each activations_* function returns the kept elements of B sequences. With sequence parallelism a
// rank keeps only some rows of some items.
size_t activations_block(const CutSizes *z, size_t B);
size_t activations_scores(const CutSizes *z, size_t B);
size_t activations_head(const CutSizes *z, size_t B);
size_t activations_between(const CutSizes *z, size_t B);
size_t activations_stage(const CutSizes *z, size_t B);
// activations_block_reals and activations_head_reals return how many elements of a block and of the
// head are reals, even if activations have 16 bits. Such elements are the statistics, and in the
// head also the logits and the sum of their exponentials. activations_bytes returns the bytes of
// activations_stage.
size_t activations_block_reals(const CutSizes *z, size_t B);
size_t activations_head_reals(const CutSizes *z, size_t B);
size_t activations_bytes(const CutSizes *z, size_t B);
// Each kept_*_bytes function returns bytes per token, like kept_*, without sequence parallelism.
size_t kept_block_bytes(const CutSizes *z);
size_t kept_scores_bytes(const CutSizes *z);
size_t kept_head_bytes(const CutSizes *z);
size_t kept_between_bytes(const CutSizes *z);
size_t kept_stage_bytes(const CutSizes *z);
// Each deferred_* function returns the elements, or bytes, that the first half of a backward keeps
// for the second half. For a matrix [K, N] the first half keeps the input [K] and the output's
// gradient [N], per token. For a norm the first half keeps the input, the output's gradient and the
// statistics. A layer's own input does not count, because the walk keeps this input. No function
// counts the embedding, which keeps the gradient of its output [C].
size_t deferred_block(const CutSizes *z, size_t B);
size_t deferred_head(const CutSizes *z, size_t B);
size_t deferred_block_bytes(const CutSizes *z, size_t B);
// Returns the bytes that a block keeps, as Korthikanti et al. count these bytes: with the block's
// input and without statistics. If `scores` is true, the scores count. `element` and `mask` are the
// bytes of an element and of a mask's element.
double kept_bytes(const CutSizes *z, size_t B, size_t element, size_t mask, bool scores);

// ---- Products of matrices ----
// A Work has FLOPs, and picoseconds on the chosen device if the products run one after another.
typedef struct {
    double flops, time;
} Work;
Work work_product(size_t m, size_t n, size_t k); // returns the work of [m, k] times [k, n]
// Returns the picoseconds of a copy of `bytes` bytes, which reads and writes the device's memory
// (clock_charge_copy).
double copy_time(size_t bytes);
Work work_times(double times, Work w);
Work work_sum(Work a, Work b);
// work_scores, work_block, work_head and work_stage return the work of forward for B sequences.
// Backward has two products of the same size for each product of forward, so the work of backward
// is twice as much. In backward, blockwise attention also computes q k^T once more. work_scores
// returns the work of the product q k^T in a block. With blockwise attention, work_scores counts
// only the part of the product that the causal mask leaves.
Work work_scores(const CutSizes *z, size_t B);
Work work_block(const CutSizes *z, size_t B);
Work work_head(const CutSizes *z, size_t B);
// Returns the work of blocks and head. The embedding has no product.
Work work_stage(const CutSizes *z, size_t B);
// Returns the work of forward and backward of the whole model.
Work work_model(const ModelConfig *c, size_t B);

// ---- Traffic: bytes that each of n ranks sends, and picoseconds ----
// `count` is the number of elements of the whole tensor, and `size` the bytes of an element. The n
// ranks of a ring are neighbours, and the first of them is the first rank of a node. With fewer
// than n ranks per node the ring takes the link between nodes. A reduce-scatter or an all-gather is
// one pass, and an all-reduce is two passes.
enum { ONE_PASS = 1, ALL_REDUCE_PASSES = 2 };
double ring_bytes(size_t passes, size_t n, size_t count, size_t size);
double ring_time(size_t passes, size_t n, size_t count, size_t size);
// Returns the time of a broadcast or a reduce over n ranks: (n - 1) alpha + bytes / beta, or 0 if n
// is 1.
double chain_time(size_t n, size_t bytes);
double send_time(size_t bytes); // returns alpha + bytes / beta, inside a node
// Returns the elements of a message between stages, [B*T, C] or its local rows.
size_t message_elements(const CutSizes *z, size_t B);
// traffic_tensor_parallel returns the traffic of the all-reduces of a stage's layers over t ranks,
// for forward and backward of B sequences. A block has four all-reduces of [M, C], or six if
// backward runs the forward again. The embedding's output and the head's dx need one all-reduce of
// [M, C] each. The loss has three all-reduces of [M, 1]. The all-reduces run one after another.
typedef struct {
    double calls, bytes, time;
} Traffic;
Traffic traffic_tensor_parallel(const CutSizes *z, size_t t, size_t B, bool forward_again);
// traffic_sequence_parallel returns the traffic of sequence parallelism, which cuts [M, C] by rows:
//                      all-gathers   reduce-scatters
//     block, forward        2               2
//     block, backward       2               2
//     embedding             1               1
//     head                  1               1
// Unless inputs are kept whole, a block's backward has two more all-gathers, and the head has one
// more. forward_again means that backward repeats a block's forward. The loss keeps its three
// all-reduces.
typedef struct {
    double gathers, scatters, sums, bytes, time;
} SequenceTraffic;
SequenceTraffic traffic_sequence_parallel(const CutSizes *z, size_t B, bool forward_again);
// With sequence parallelism, partial gradients are summed over the tensor-parallel ranks. The table
// has the elements of each sum. The first three sums belong to a block.
//   sum                           GPT-2   Llama
//   norm 1                        2C      C
//   projection's bias and norm 2  3C      C
//   second matrix's bias          C       none
//   last norm                     2C      C
// The sums happen once per step, or once per micro-batch if ZeRO reduces the gradients of each
// micro-batch.
enum { PARTIAL_SUMS = 4 };
// elements_partial_sums writes the elements of each of these sums. traffic_partial_sums returns the
// traffic if the sums happen once.
void elements_partial_sums(const CutSizes *z, size_t elements[PARTIAL_SUMS]);
Traffic traffic_partial_sums(const CutSizes *z);
#endif
