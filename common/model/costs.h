// costs.h: the one cost model: parameters, kept activations, FLOPs and traffic of the layers as
// they are cut, and how long the chosen device and link take for them, from sizes alone. It never
// looks at a Model, a ledger or the measured time, so that what it predicts can be held against
// them. A lesson's experiment makes its formula of these.
#ifndef COSTS_H
#define COSTS_H
#include "common/model/attention.h"

// n things cut in `parts` parts, as everything is cut: the first n % parts have one more than the
// others.
size_t part_size(size_t n, size_t parts, size_t i);

// ---- What a rank has of the model. M is B * T: the tokens of B sequences. ----
typedef struct {
    size_t C, D, T;              // features of a token, columns of a head, positions of a sequence
    size_t Tk;                   // keys that a query may see: positions of whole sequences
    bool online;                 // attention in blocks: no scores are kept, but a softmax's lse
    Positions mine;              // of that attention's queries, of a sequence
    size_t heads, hidden, vocab; // this rank's heads, columns of the MLP and vocabulary entries
    size_t blocks;               // of its stage
    bool first, last;            // the embedding stands before them; the head stands after them
    bool dropout;
    size_t t, rank; // of the tensor-parallel group
    // sequence parallelism: norms, dropout, residual paths and messages have cut_rows; are the
    // products' inputs kept whole all the same?
    bool sequence, whole_inputs;
} CutSizes;
// all layers, as rank i of t holds them; t = 1: whole
CutSizes cut_sizes(const ModelConfig *c, size_t t, size_t i);
CutSizes cut_sequence(CutSizes z, bool whole_inputs); // the same with sequence parallelism
// of these layers stage i of p, as equal as possible
CutSizes cut_stage(CutSizes z, size_t p, size_t i);
size_t cut_rows(const CutSizes *z, size_t B); // of B sequences, outside of the products: M, or M/t
// The same where a rank has these positions of each sequence only (n 0: all), or its attention
// keeps no scores.
CutSizes cut_positions(CutSizes z, const Positions *mine, bool online);
size_t cut_layers(const CutSizes *z); // of the stage: its blocks, embedding and head

// ---- Parameters, in elements. Cut: W_qkv and b_qkv, W_O, fc and its bias, the MLP's second
// matrix, wte. Whole on
//      every rank: norms, wpe, the two biases that are added after a sum. ----
enum { TENSORS_OF_BLOCK = 12 };
// of a block, in model order
void elements_tensors(const CutSizes *z, size_t tensor[TENSORS_OF_BLOCK]);
size_t elements_sum(const size_t tensor[TENSORS_OF_BLOCK]); // of all of them
size_t elements_block(const CutSizes *z);                   // 12 C^2 + 13 C, if it is whole
size_t elements_wte(const CutSizes *z); // the table, which embedding and head both use
// what layer i of the stage has besides: wpe, a block, the last norm
size_t elements_unit(const CutSizes *z, size_t i);
size_t elements_stage(const CutSizes *z);     // parameters; wte once
size_t elements_gradients(const CutSizes *z); // where embedding and head are both here, wte has two

// ---- What forward keeps for backward, in elements per token (Korthikanti et al. 2022,
// section 4.1). ---- One item of a block. KEPT_INPUT: the block's input, which the layer below
// keeps, as its output. KEPT_SCORES: what selective recomputation sheds. KEPT_STATISTICS: mean and
// deviation of a norm; the paper leaves them out. Dropout masks, of a byte in the paper, are not
// stored here: they are functions of a counter.
typedef enum { KEPT_INPUT, KEPT_DENSE, KEPT_SCORES, KEPT_STATISTICS } KeptKind;
// of my rows only
typedef struct {
    const char *name;
    KeptKind kind;
    size_t elements, masks;
    bool by_row;
} KeptItem;
enum { KEPT_ITEMS = 17 };
void kept_items(const CutSizes *z, KeptItem item[KEPT_ITEMS]);
size_t kept_scores(const CutSizes *z); // softmax, and what dropout left of it
size_t kept_block(const CutSizes *z);  // all items of a block but its input
size_t kept_head(const CutSizes *z);
// what layers hand to each other, and what the stage has received
size_t kept_between(const CutSizes *z);
size_t kept_stage(const CutSizes *z);    // all of it
size_t kept_model(const ModelConfig *c); // of the whole model
// The same in elements of B sequences; with sequence parallelism, too, where a rank has some rows
// of some items.
size_t activations_block(const CutSizes *z, size_t B);
size_t activations_scores(const CutSizes *z, size_t B);
size_t activations_head(const CutSizes *z, size_t B);
size_t activations_between(const CutSizes *z, size_t B);
size_t activations_stage(const CutSizes *z, size_t B);
// And where a backward is in two halves: what waits for the second one, in the place of what
// forward kept. Of a matrix its input and the gradient that came to it, [K] and [N] per token; of a
// norm the same and the statistics. A layer's own input its walker keeps. The embedding keeps its
// gradient, C.
size_t deferred_block(const CutSizes *z, size_t B);
size_t deferred_head(const CutSizes *z, size_t B);
// The paper's count, in bytes: a block's items, its input among them, without the norms'
// statistics.
double kept_bytes(const CutSizes *z, size_t B, size_t element, size_t mask, bool scores);

// ---- Products of matrices: FLOPs, and the picoseconds of the chosen device, one product after the
// other. ----
typedef struct {
    double flops, time;
} Work;
Work work_product(size_t m, size_t n, size_t k); // [m, k] times [k, n]
Work work_times(double times, Work w);
Work work_sum(Work a, Work b);
// Forward for B sequences. Backward has two products of the same size for each of forward's: twice
// the work; attention in blocks has q k^T once more. q k^T of a block; in blocks: of what the
// causal mask leaves of it
Work work_scores(const CutSizes *z, size_t B);
Work work_block(const CutSizes *z, size_t B);
Work work_head(const CutSizes *z, size_t B);
Work work_stage(const CutSizes *z, size_t B);    // blocks and head; the embedding has no product
Work work_model(const ModelConfig *c, size_t B); // forward and backward of the whole model

// ---- Traffic: what each of n ranks sends in a ring for `count` elements of `size` bytes, and how
// many picoseconds
//      that takes; and how long one message takes. The ring is of neighbouring ranks from the first
//      one of a node on: it takes the link between nodes where a node has fewer than n. The message
//      stays in its node. ----
// a reduce-scatter or an all-gather is one pass, an all-reduce is both
enum { ONE_PASS = 1, ALL_REDUCE_PASSES = 2 };
double ring_bytes(size_t passes, size_t n, size_t count, size_t size);
double ring_time(size_t passes, size_t n, size_t count, size_t size);
// a broadcast or a reduce: n - 1 times alpha, and bytes / beta
double chain_time(size_t n, size_t bytes);
double send_time(size_t bytes); // alpha + bytes / beta
// between stages, one way: [B*T, C], or my rows of it
size_t message_elements(const CutSizes *z, size_t B);
// The all-reduces of the layers of a stage over t ranks, for forward and backward of B sequences:
// of [M, C] four in a block (six where backward runs the forward again), one for the embedding's
// output, one for the head's dx; of [M, 1] three for the loss. All follow one another.
typedef struct {
    double calls, bytes, time;
} Traffic;
Traffic traffic_tensor_parallel(const CutSizes *z, size_t t, size_t B, bool forward_again);
// With sequence parallelism, of [M, C] by rows: in a block two all-gathers and two reduce-scatters
// forward, as many backward, and two more gathers there unless inputs are kept whole; one of each
// for the embedding and one for the head, and one more gather there; the loss's three all-reduces
// stay. forward_again: a block's forward once more.
typedef struct {
    double gathers, scatters, sums, bytes, time;
} SequenceTraffic;
SequenceTraffic traffic_sequence_parallel(const CutSizes *z, size_t B, bool forward_again);
// Once per step, or where ZeRO reduces per micro-batch: the sums of partial gradients, of 2C, 3C
// and C elements of each block, and of 2C of the last norm.
Traffic traffic_partial_sums(const CutSizes *z);
#endif
