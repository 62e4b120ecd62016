// experiments.h: declares the functions that several experiments of this chapter and of chapter 08
// share. The functions train a few layers or a GPT, and predict the costs of context parallelism,
// of grids and cubes, and of all ways to cut a model.
#ifndef TENSOR_PARALLEL_EXPERIMENTS_H
#define TENSOR_PARALLEL_EXPERIMENTS_H
#include "03_tensor_parallel/compare.h"
#include "03_tensor_parallel/context_parallel.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/comm/comm.h"
#include "common/model/costs.h"
#include "common/model/data.h"
#include "common/model/layer.h"
#include "judge/draw/picture.h"
#include "judge/frame/lesson.h"
#include "judge/frame/training.h"
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

// ---- trial.c ----
// Lessons 02 to 04 train a few layers alone, for three steps of SGD: split on all ranks, and
// unsplit on rank 0. An element's value depends on its place in the whole tensor, so both trainings
// use the same values. The loss of trial_train is half the squared distance of Y from a target,
// divided by the M rows.

enum { TRIAL_STEPS = 3, TRIAL_PARAMS = 4 };

// The results of the split or of the unsplit training.
typedef struct {
    Snapshot *seen;    // outputs and gradients of every step
    Snapshot *weights; // final weights
    double loss[TRIAL_STEPS];
    // The numbers of the last step, on this rank:
    size_t parameters, gradients; // bytes
    size_t activations;           // bytes at their peak
    size_t calls;                 // all-reduces
    size_t sent;                  // bytes
} TrialResult;

// A TrialTrain fills *r. tp is NULL for the unsplit training. trial_compare runs both trainings,
// compares the results and frees all snapshots. trial_compare returns the losses and the other
// numbers of the split training.
typedef void TrialTrain(Run *run, Comm *tp, TrialResult *r);
TrialResult trial_compare(Run *run, const char *what, TrialTrain *train);

// ---- The costs that the lessons share. ----
// The predictions for one rank and one step of a trial.
typedef struct {
    size_t parameters, kept; // elements
    size_t calls;            // all-reduces
    double sent;             // bytes
} TrialCosts;
// Compares the predictions with r. ids and names are those of check_costs().
void trial_costs(Run *run, const char *ids, const char *names, const TrialCosts *c,
                 const TrialResult *r);
// Shows a picture and a summary of the recorded step. With a simulated clock, also checks the times
// of this step. `slowest` is the computing time of the slowest rank, and `communication` is the
// time of all all-reduces, both in ps. In every all-reduce all ranks wait for the slowest rank, and
// nothing is computed meanwhile.
void trial_times(Run *run, const char *title, double slowest, double communication);
// Prints the cost on the page: the number of all-reduces, which is the cost "calls", and the text
// `more`. With a simulated clock, also prints how much of a step these all-reduces take, from the
// costs "step" and "exposed".
void trial_say_cost(Run *run, const char *more);

// Makes the simulated clocks of all ranks equal, so that a recording shows one whole step.
void ranks_together(Comm *ranks);
// On one rank, prints the answer that nothing is cut and nothing is sent, and returns true. On more
// ranks returns false.
bool answer_alone(Run *run);

// ---- A training of layers with X [M, K] and Y [M, N]. ----
typedef struct Trial Trial;
struct Trial {
    Run *run;
    Comm *tp; // NULL: unsplit
    size_t M, K, N, step;
    Range x_cols, y_cols;       // columns of X and Y on this rank
    Param params[TRIAL_PARAMS]; // described and cut; a Param without columns ends the list
    size_t n_params;            // counted by trial_train
    double deviation;           // deviation of the initial weights
    double rate;                // learning rate of SGD
    double dropout;             // the probability that an element of Y is dropped
    Element storage;            // element type of X, Y, their gradients and the weights
    Saved saved;                // kept from forward to backward
    void (*forward)(Trial *t, Tensor y, Tensor x);
    void (*backward)(Trial *t, Tensor dx, Tensor x, Tensor dy);
};
Trial trial_new(Run *run, Comm *tp, size_t M, size_t K, size_t N); // X and Y whole
void trial_train(Trial *t, TrialResult *r); // the last step of a split training is recorded

// ---- gpt.c ----
// Lessons 05 to 14 train a GPT that is split in a way of compare.h, and compare this GPT with the
// unsplit GPT.

// Returns the model of the options --layers, --width, --heads and --dropout. Calls usage_error() if
// this model is impossible.
ModelConfig gpt_options(Run *run, size_t context, size_t vocab);
// Returns a training of three clipped steps on synthetic tokens, with one micro-batch per step.
Training gpt_training(ModelConfig c, size_t sequences);
// Prints which cuts are uneven, if any: of the sequences in `batch_parts` parts, and of columns,
// heads and vocabulary entries in q parts.
void gpt_say_uneven(Run *run, const ModelConfig *c, size_t sequences, size_t batch_parts, size_t q);

// The communicators of a way. Every way has the world. Grids and cubes have three axes. A cube also
// has two planes: the ranks with this rank's column, and the ranks with this rank's row.
enum { GPT_WORLD, GPT_ROW, GPT_COL, GPT_DEPTH, GPT_SAME_COL, GPT_SAME_ROW, GPT_GROUPS };
typedef struct {
    double calls[COMM_KINDS], sent, received; // calls, and bytes of this rank
} GroupTraffic;
typedef GroupTraffic AxisTraffic; // along an axis of a grid
enum { GPT_STEPS = 3 };
// The measurements of one rank. The traffic, layers_time and `activations` are of the last step.
typedef struct {
    size_t steps;                            // number of finished steps
    GroupTraffic layers[GPT_GROUPS];         // in the layers
    GroupTraffic sums[GPT_GROUPS];           // after the layers, for the sums of partial gradients
    Picoseconds layers_time;                 // the time of layers and sums
    Picoseconds step_time[GPT_STEPS];        // of each step, with the loss, without the norm
    size_t parameters, gradients, optimizer; // bytes
    size_t activations;                      // bytes at their peak
} GptMeasured;
double gpt_received(const GptMeasured *r); // returns the received bytes of all groups
typedef struct CutGpt CutGpt;
struct CutGpt {
    TensorWay way;
    Comm *world;
    KeptInput input;                // for SP
    const AttentionKind *attention; // for ring attention
    CommGrid grid;                  // for 2D and 2.5D
    Cube cube;                      // for 3D
    // If begin_step is not NULL, gpt_train() calls begin_step before each step. Then gpt_train()
    // also all-reduces the loss in every way before it reads step_time, so that all ranks read the
    // same time.
    void (*begin_step)(CutGpt *x);
    GptMeasured measured;
};
void gpt_train(void *cut_gpt, const Training *t, Trajectory *out); // a SplitTraining

// The predictions for one rank.
typedef struct {
    size_t parameters, gradients, kept; // elements
    size_t kept_reals;                  // the kept elements that are reals in any storage
    double received;                    // bytes per step
    double time;                        // ps per step, if no rank waits for another rank
} RankShare;
double share_kept_bytes(const ModelConfig *c, const RankShare *s);
// gpt_memory_costs() checks the memory of a rank: ids "parameters", "gradients", "adamw", "kept".
// gpt_costs_1d() checks this memory in 1D, and also the traffic: ids "calls" and "sent".
void gpt_memory_costs(Run *run, const char *ids, const char *names, const ModelConfig *c,
                      const RankShare *s, const GptMeasured *r);
void gpt_costs_1d(Run *run, const ModelConfig *c, size_t sequences, const GptMeasured *r);
// The cells of a table with the costs of rank 0 of n ranks in 1D (lesson 06), from sizes alone.
typedef struct {
    const char *parameters, *kept, *received, *time;
} GptCells;
GptCells gpt_cells_1d(Run *run, const ModelConfig *c, size_t n, size_t sequences);

// ---- attend.c ----
// Lessons 08, 13 and 14 compare context parallelism with one device: attention alone, and a GPT.

enum { CONTEXT_RING, CONTEXT_ZIGZAG, CONTEXT_RSA, CONTEXT_ULYSSES, CONTEXT_KINDS };
extern const AttentionKind *const context_kind[CONTEXT_KINDS];

// The sizes of attention alone.
typedef struct {
    size_t B;         // sequences
    size_t T;         // positions of each sequence
    size_t heads;     // heads of the query
    size_t key_heads; // heads of key and of value, a divisor of `heads`
    size_t D;         // columns of one head
    Element storage;
    double deviation; // standard deviation of the elements of q, k and v
    double drop;      // share of probabilities that dropout removes
    double theta;     // base of rotary positions; 0: none
} ContextSizes;
// The measurements of a rank over one forward and one backward.
typedef struct {
    size_t sent;    // bytes
    size_t calls;   // sends and collectives
    size_t kept;    // bytes for backward, besides q, k, v and the output
    size_t buffers; // bytes of communication memory at their peak
    double flops;   // computed by this rank
    Timing forward, backward;
} Attended;
// Runs attention on all ranks, and compares the output and the gradients of q, k and v with `want`.
// title and picture are those of picture_show(), for the forward. If title is NULL, nothing is
// drawn.
Attended attend(Run *run, int kind, ContextSizes z, Snapshot *want, const char *title, int picture);
// Runs attention on one device, rank 0, and returns the output and the gradients.
Snapshot *attend_one_device(Run *run, ContextSizes z);
// Compares attention as attend() does, on two sequences with grouped heads, dropout and rotary
// positions. If there are several ranks, their number does not divide the positions. The other
// sizes are those of z.
void attend_uneven(Run *run, int kind, ContextSizes z);
// Trains a GPT with its positions cut over all ranks, with each context_kind from `first` to
// `last`. Compares each training with the unsplit training.
void attend_trainings(Run *run, int first, int last);

// ---- context_costs.c ----
// The predictions are for attention alone on one sequence of T positions. The number of ranks, n,
// divides T.

extern const char *const context_id[CONTEXT_KINDS];
// Compares bytes, calls, memory, FLOPs and times with the predictions. ID stands for the parameter
// id: the costs have the ids sent.ID, calls.ID, kept.ID, buffers.ID and flops.ID. With a simulated
// clock there are also forward.ID and backward.ID, and for CONTEXT_RING and CONTEXT_ZIGZAG busy.ID.
void attend_costs(Run *run, int kind, ContextSizes z, const Attended *r, const char *id);
// Returns the bytes that a rank sends, forward and backward.
double context_bytes_sent(int kind, ContextSizes z, size_t n);
// The times of CONTEXT_RING and CONTEXT_ZIGZAG, played step by step.
typedef struct {
    double step; // the time at which the last rank ends, in ps
    double busy; // the sum of the computing times of all ranks, in ps
} RingTime;
RingTime context_ring_time(int kind, ContextSizes z, size_t n, bool backward);

// ---- grid_costs.c ----
// These functions predict the costs of a GPT's layers (grid_block.c, grid_model.c) for one rank of
// a q x q x depth grid, from sizes alone.

typedef struct {
    AxisTraffic row, col, depth; // along the three axes of the grid
    Work products;               // this rank's products
    // The sum of the times of all broadcasts, reduces and all-reduces, in ps. The sum is right only
    // if each matrix is cut in equal blocks.
    double transfers;
} GridTraffic;

typedef struct {
    const ModelConfig *c;
    size_t q, depth, row, col, layer;
} GridPlace;
GridPlace grid_place_of(const ModelConfig *c, size_t q, size_t depth, size_t rank);
// Returns how many of B sequences the rank has.
size_t grid_sequences(const GridPlace *at, size_t B);
bool grid_even(const GridPlace *at, size_t B); // returns whether matrices have equal blocks

// Predicts forward and backward of a stage with B sequences. `again` means that backward runs the
// forward of each block again (recomputation).
GridTraffic grid_stage(const GridPlace *at, const CutSizes *stage, size_t B, bool again);
// These functions predict the sums of a stage's gradients over depth: one all-reduce per use of
// wte, and one per other unit.
GridTraffic grid_table_sums(const GridPlace *at, const CutSizes *stage);
GridTraffic grid_unit_sums(const GridPlace *at, const CutSizes *stage);
GridTraffic grid_sums(const GridPlace *at, const CutSizes *stage); // returns all of these sums

// Returns the sizes of all layers on this rank, with this rank's columns. With these sizes
// kept_block() and similar functions count per token of the rank's own sequences.
CutSizes grid_sizes(const GridPlace *at);
// Writes the elements of each tensor of a block to `tensor`, in model order.
void grid_elements_tensors(const GridPlace *at, size_t tensor[TENSORS_OF_BLOCK]);
size_t grid_elements_wte(const GridPlace *at);
// These functions count as elements_unit() and elements_stage() of costs.h do. A stage counts wte
// once.
size_t grid_elements_unit(const GridPlace *at, const CutSizes *stage, size_t i);
size_t grid_elements_stage(const GridPlace *at, const CutSizes *stage);

// ---- cube_costs.c ----
// These functions predict the costs of a GPT's layers (cube_block.c, cube_model.c) for one rank of
// a q x q x q cube, from sizes alone.

// The axes of a cube: a rank's row, its column, and the ranks at its place in all layers.
enum { CUBE_ROW, CUBE_COL, CUBE_DEPTH, CUBE_AXES };
// The traffic of a rank. A rank receives as many bytes as it sends, because every call is a ring.
typedef struct {
    double calls;
    double bytes[CUBE_AXES]; // sent along each axis
    double time;             // ps, one call after another, if no rank waits
} CubeTraffic;
double cube_bytes(const CubeTraffic *t); // returns the sum over all axes

typedef struct {
    const ModelConfig *c;
    size_t q, row, col, layer;
    bool gather_again; // backward gathers X and W again
} CubePlace;
CubePlace cube_place_of(const ModelConfig *c, size_t q, size_t rank, bool gather_again);

// Predicts forward and backward of a stage with B sequences. `again` means that backward runs the
// forward of each block again (recomputation).
CubeTraffic cube_stage(const CubePlace *at, const CutSizes *stage, size_t B, bool again);
// Predicts a stage's sums of the gradients of vectors and wpe over the q^2 ranks of a plane. The
// bytes are in bytes[0].
CubeTraffic cube_plane_sums(const CubePlace *at, const CutSizes *stage);
Work cube_work(const CubePlace *at, const CutSizes *stage, size_t B); // returns forward's work

// Writes the elements of each tensor of a block to `tensor`, in model order.
void cube_elements_tensors(const CubePlace *at, size_t tensor[TENSORS_OF_BLOCK]);
size_t cube_elements_wte(const CubePlace *at);
// These functions count as elements_unit() and elements_stage() of costs.h do. A stage counts wte
// once.
size_t cube_elements_unit(const CubePlace *at, const CutSizes *stage, size_t i);
size_t cube_elements_stage(const CubePlace *at, const CutSizes *stage);

// cube_kept_stage() returns the elements that the forward of a stage keeps of B sequences, as
// activations_stage() of costs.h does. cube_kept_reals() returns how many of these elements are
// reals in any storage.
size_t cube_kept_stage(const CubePlace *at, const CutSizes *stage, size_t B);
size_t cube_kept_reals(const CubePlace *at, const CutSizes *stage, size_t B);
size_t cube_message(const CubePlace *at, size_t B); // returns the elements of a stage's message

// ---- way_costs.c; gpt.c has line_share() ----
// These functions return the share of one rank in a step of B sequences: in 1D or SP (line_share),
// on a grid, on a cube, or in any of the six ways. tensor_way_shape() must allow the way on n
// ranks.
RankShare line_share(const CutSizes *z, size_t B);
RankShare grid_share(const GridPlace *at, size_t B);
RankShare cube_share(const CubePlace *at, size_t B);
RankShare way_share(TensorWay way, const ModelConfig *c, size_t B, size_t n, size_t rank);
// Returns how many of the kept elements are scores of attention, as the mean of n ranks.
double way_scores(TensorWay way, const ModelConfig *c, size_t B, size_t n);
// Checks the costs of x, which has trained on a grid: the memory of a rank, and calls and bytes
// along each axis (ids "row.sent" and so on). The received bytes of all axes have the id
// "received". If matrices have equal blocks and the clock is simulated, also checks the time of the
// layers and of the sums over depth.
void grid_costs(Run *run, const CutGpt *x, const GridPlace *at, size_t sequences);

// ---- grids.c ----
// These functions run linear layers alone, for lessons 09 and 11.

typedef struct {
    size_t B, T, K, N;
} LinearSizes; // X [B*T, K] and W [K, N] on a grid; X, V [K, N] and W [N, K] on a cube
// Compares Y = X W + b and its gradients with the unsplit layer. With a simulated clock, shows a
// picture. If q divides all sizes, checks the bytes that a rank receives in forward, and the memory
// of the received blocks.
void grid_linear_compare(Run *run, const CommGrid *g, LinearSizes z);
// Compares Y = X V and Z = Y W and their gradients with the unsplit layers. If `shown`, shows the
// picture and checks the bytes sent. For this check q^2 must divide B, K and N.
void cube_two_linears(Run *run, const Cube *c, LinearSizes z, bool shown);

// ---- way_tables.c ----

extern const char *const tensor_way_name[TENSOR_WAYS + 1]; // "1D + SP"; ends with NULL
// Prints the costs of one block of GPT-3's width on 64 ranks, from sizes alone. Draws the elements
// that a rank receives for this block over the tokens of a micro-batch. Checks the formulas of
// compare.h. Returns the way in which a rank receives the fewest elements for this block.
TensorWay way_tables(Run *run);
#endif
