// plan.h declares functions that compute, from sizes alone, the memory, traffic and time of a
// training step in any layout of a model on a cluster. Papers: PTD-P (Narayanan et al. 2021)
// section 3; ZeRO (Rajbhandari et al. 2020) sections 5 and 7; Korthikanti et al. 2022, section 4.
// The sizes come from the cost model (common/model/costs.h), and the order of work from the
// schedules of chapter 05. The time of a product is a roofline, and the time of a message is alpha
// + bytes / beta. The plan shares no code with the simulated clock, so a comparison with the
// trainer's simulated steps tests the plan.
#ifndef PLAN_H
#define PLAN_H
#include "07_recompute/recompute.h"
#include "08_3d/mesh.h"
#include "judge/frame/lesson.h"
#include "common/model/costs.h"

// ---- The task ----
// The vision tower of a model that reads images. The tower runs before the model's first block
// (plan_vision.c).
// model: the sizes of the tower, whose positions are the patches of an image; layers 0: the model
// has no tower.
// images: images per sequence.
// patch: elements of a patch.
// merge: the number of patches that become one position of the sequence.
typedef struct {
    ModelConfig model;
    size_t images, patch, merge;
} PlanVision;
typedef struct {
    const char *name;
    ModelConfig model;
    size_t batch; // sequences per step
    const char *source;
    PlanVision vision;
} PlanModel;
// alpha: seconds per message.
// beta: bytes/s each way, per GPU inside a node, per network card between nodes; 0: messages take
// no time.
typedef struct {
    double alpha, beta;
} PlanLink;
typedef struct {
    const char *name;
    double flops;      // peak FLOP/s
    double efficiency; // share of the peak that large products reach
    double bandwidth;  // bytes/s of memory; 0: access takes no time
    double launch;     // seconds that each kernel takes besides its work
    // 0: small products are as efficient as large ones
    size_t multiprocessors;
    double memory;            // bytes
    size_t node;              // GPUs per node; 0: one node for all
    size_t rails;             // network cards per node; 0: one per GPU
    double reserve;           // bytes that the model must not use (plan_presets.c)
    PlanLink inside, between; // the links inside a node and between nodes
    const char *source;
} PlanCluster;
// Returns the bytes of a GPU that a layout may fill: its memory without the reserve.
static inline double plan_usable(const PlanCluster *c) { return c->memory - c->reserve; }
// A number format. The bytes per parameter: weight, gradient, optimizer state. The bytes per
// element: of an activation, a dropout mask, a statistic of a norm or a softmax, the logits.
typedef struct {
    const char *name;
    size_t weight, gradient, state, element, mask, statistic, logit;
    const char *source;
} PlanFormat;
// The ways in which a training system communicates; reference.md has the sources.
typedef struct {
    // true: this communication runs beside computation.
    // dp: the sum over dp runs beside the backward, and ZeRO's gathers run beside the layers.
    // tp: the sums of a backward run beside the products of the same layer. With sequence
    // parallelism the second gathers of inputs run beside these products, too.
    // pieces: a block's other sums and gathers over tp run beside products, in pieces.
    // pp: a stage that has sent a message computes on. Without pp the stage waits until the message
    // has arrived.
    struct {
        bool dp, tp, pieces, pp;
    } overlap;
    bool scatter;      // each rank of tp sends 1/tp of a message between stages (05.03)
    bool trees;        // an all-reduce takes the faster of a ring and a tree (NCCL)
    bool hierarchical; // collectives have steps inside nodes and steps between nodes (01.03)
} PlanHow;
typedef struct {
    PlanModel model;
    PlanCluster cluster;
    PlanFormat format;
    size_t gpus;
    // true: attention is blockwise, so no scores are kept (common/model/attention.h). With cp above
    // 1 attention is always blockwise.
    bool blockwise;
    PlanHow how;
} PlanTask;

// A former name of a model, which plan.c rejects, and the present name.
typedef struct {
    const char *name, *now;
} PlanOldName;

// Each of these arrays ends with name NULL.
extern const PlanModel plan_models[];
extern const PlanOldName plan_old_names[];
extern const PlanCluster plan_clusters[];
extern const PlanFormat plan_formats[];
// Returns the format of this name. The name must be in plan_formats.
const PlanFormat *plan_format(const char *name);
// Returns the cluster's defaults. The clusters lesson and core have the choices of the book's
// trainer. All other clusters have the choices of today's frameworks.
PlanHow plan_how(const PlanCluster *c);

typedef struct {
    Degrees n;          // dp x tp x pp x cp; cp 0 means 1
    size_t micro_batch; // sequences
    size_t chunks;      // per stage; above 1 the schedule is interleaved
    size_t zero;        // ZeRO stage
    bool sequence;      // sequence parallelism
    Recompute recompute;
    // true: the parts have nearly equal cost, because the head and a vision tower count as blocks
    // (plan_part_blocks). false: if the number of parts does not divide the blocks, the first parts
    // have one block more, as in the trainer.
    bool balanced;
} PlanLayout;
// Returns the number of blocks of a part of the model. Part k pp + i is chunk k of stage i.
size_t plan_part_blocks(const PlanTask *t, const PlanLayout *l, size_t part);
// Returns the number of micro-batches per replica.
size_t plan_micro_batches(const PlanTask *t, const PlanLayout *l);
// Returns whether attention is blockwise.
bool plan_in_blocks(const PlanTask *t, const PlanLayout *l);
// Returns dp x cp: the number of ranks with the same parameters. ZeRO shards over these ranks.
size_t plan_replicas(const PlanLayout *l);

// ---- A layout ----
// Categories of memory.
// PLAN_GATHERED: the weights or gradients that ZeRO 2 and 3 have whole for some time.
// PLAN_RING: keys, values and the gradients of both, in flight over cp.
enum {
    PLAN_WEIGHTS,
    PLAN_GRADIENTS,
    PLAN_OPTIMIZER,
    PLAN_ACTIVATIONS,
    PLAN_GATHERED,
    PLAN_RING,
    PLAN_MEMORY
};
extern const char *const plan_memory_name[PLAN_MEMORY];
typedef struct {
    double bytes[PLAN_MEMORY];
} PlanMemory;
double plan_memory_sum(const PlanMemory *m);

// The times in picoseconds of a forward, of a backward or of communication, and the bytes that a
// rank sends.
// products: time of the matrix products.
// rest: time of all other computation.
// tp: time of the sums and gathers over tp that products do not hide.
// cp: the part of the ring's messages that the products do not hide.
// dp: time of sums and gathers over dp.
typedef struct {
    double products, rest, tp, cp, dp;
    double tp_bytes, cp_bytes, dp_bytes;
} PlanOp;
double plan_op_time(const PlanOp *op);
void plan_op_add(PlanOp *sum, PlanOp op, double times);

typedef struct {
    PlanLayout layout;
    PlanMemory fullest; // memory of the stage that holds most
    PlanMemory largest; // of each category the largest value of any stage
    size_t stage;       // the number of the fullest stage
    // Bytes that a rank sends per step, on the stage that sends most. dp_bytes: over dp x cp.
    double tp_bytes, cp_bytes, pp_bytes, dp_bytes, tied_bytes;
    double step; // picoseconds
    // How the busiest stage spends the step, in picoseconds.
    //     computing  products and other ops
    //     tp         sums over tp
    //     cp         waits for the ring
    //     dp         waits for ZeRO's sums and gathers, before the last backward ends
    //     end        the time after the last backward
    //     idle       the rest of the step
    double computing, tp, cp, dp, end, idle;
    double bubble;   // share of the pipeline's time in which the busiest stage is idle
    double mfu, hfu; // shares of the peak
    bool fits;
} PlanResult;

// ---- One stage (plan_stage.c) ----
// A group of n ranks.
// in_node: the number of the group's ranks in each of its nodes; 0: the numbers are unequal.
// cards: the number of network cards of a node that the group's collectives use (clock.h); 0: the
// group is in one node.
typedef struct {
    size_t n, in_node, cards;
} PlanGroup;
typedef struct {
    CutSizes z;       // sizes of the largest rank of the stage's tp and cp groups
    size_t d, i;      // replica and stage
    PlanGroup tp, dp; // dp: over dp x cp
} PlanStage;
// Returns the group of n ranks of the world: first, first + stride, ...
PlanGroup plan_group(const PlanTask *t, size_t first, size_t n, size_t stride);
// Returns whether ranks `first` and `last` of the world share a node.
bool plan_near(const PlanTask *t, size_t first, size_t last);
size_t plan_rank(const PlanLayout *l, size_t d, size_t cp, size_t tp, size_t stage);
// Returns the positions of rank cp of the ring.
Positions plan_positions_of(const PlanTask *t, const PlanLayout *l, size_t cp);
// Returns the rank of cp that has the most positions.
size_t plan_most_positions(const PlanTask *t, const PlanLayout *l);
// Returns the number of positions of a sequence on the rank of cp that has the most positions.
size_t plan_positions(const PlanTask *t, const PlanLayout *l);
// Returns chunk k of stage i in replica d.
PlanStage plan_chunk(const PlanTask *t, const PlanLayout *l, size_t d, size_t i, size_t k);
// Returns all chunks of stage i together.
PlanStage plan_stage(const PlanTask *t, const PlanLayout *l, size_t d, size_t i);
bool plan_alike(const PlanTask *t, const PlanLayout *l);
PlanStage plan_slice(const PlanTask *t, const PlanLayout *l, const PlanStage *s, size_t slice);
size_t plan_slices(const PlanTask *t, const PlanLayout *l);
double plan_product_time(const PlanTask *t, size_t count, size_t m, size_t n, size_t k,
                         bool accumulates);
// Returns the time of `count` products of blockwise attention. Each product is queries [q, D] times
// keys [k, D], or probabilities times values.
// pairs: the number of scores of one product that the causal mask leaves.
double plan_attention_time(const PlanTask *t, size_t count, double pairs, size_t q, size_t k,
                           size_t D);
double plan_message_time(const PlanTask *t, bool near, double bytes);
// These two functions return the time of a collective of `count` elements of `size` bytes, and the
// bytes that a rank sends in the collective. passes: ONE_PASS or ALL_REDUCE_PASSES.
double plan_group_time(const PlanTask *t, PlanGroup g, size_t passes, size_t count, size_t size);
double plan_group_bytes(const PlanTask *t, PlanGroup g, size_t passes, size_t count, size_t size);
// Returns stage s with the positions of rank cp of the ring, and with the slowest tp group for
// which this rank's forward or backward waits.
PlanStage plan_as_rank(const PlanTask *t, const PlanLayout *l, const PlanStage *s, size_t cp,
                       bool forward);
// Returns the time to read and write `bytes` in `kernels` kernels, for ops other than products.
double plan_memory_time(const PlanTask *t, double bytes, double kernels);

// ---- Forward, backward and the end of a step (plan_op.c) ----
PlanOp plan_op(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward, size_t B);
// Returns the forward or backward of plan_op() without blockwise attention and its ring.
PlanOp plan_op_alone(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward,
                     size_t B);
// Returns the forward or backward of the vision tower, which plan_op() includes.
PlanOp plan_vision_op(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward,
                      size_t B);
// Returns the cost over dp of one all-gather or reduce-scatter of the stage's vocabulary tables.
// The elements have `size` bytes.
PlanOp plan_tables(const PlanTask *t, const PlanStage *s, size_t size);
PlanOp plan_partial_sums(const PlanTask *t, const PlanLayout *l, const PlanStage *s);
// Returns the cost of the sum over dp, after the backwards.
PlanOp plan_reduction(const PlanTask *t, const PlanLayout *l, const PlanStage *s);
// Returns the cost of the gathers outside of forward and backward. ZeRO 1 and 2 gather the weights
// after the update. ZeRO 1 to 3 gather the tables.
PlanOp plan_gather(const PlanTask *t, const PlanLayout *l, const PlanStage *s);
double plan_update_time(const PlanTask *t, const PlanLayout *l, const PlanStage *s);

// ---- Blockwise attention (plan_ring.c) ----
// The attention of B sequences in one block. Over cp the attention is zigzag ring attention
// (03.08).
// time: the time of the slowest rank.
// products: the time of the slowest rank's products alone.
// bytes: the bytes that the rank with the most traffic sends.
typedef struct {
    double time, products, bytes;
} PlanRing;
PlanRing plan_ring(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward,
                   size_t B);
// The forward or backward of a block, with B sequences, on a ring of unequal ranks.
// plan_ring_block() can play the same PlanRings any number of times.
typedef struct PlanRings PlanRings;
PlanRings *plan_rings_new(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward,
                          size_t B);
void plan_rings_free(PlanRings *rings); // NULL is allowed
// Plays one forward or backward of a block.
// takes [cp]: the work of each rank besides attention.
// at [cp]: on entry, the time when each rank begins; on return, the time when each rank ends.
void plan_ring_block(PlanRings *rings, const double *takes, double *at);
// Returns the number of ranks to play: 1 if the ranks of a ring are equal, else cp.
size_t plan_ring_players(const PlanTask *t, const PlanLayout *l);
// Returns the bytes of memory per rank for the ring's blocks: keys, values and their gradients that
// are sent, received or computed at one time.
double plan_ring_room(const PlanTask *t, const PlanLayout *l, const CutSizes *z, size_t B);

// ---- The vision tower (plan_vision.c) ----
// Returns whether the model has a vision tower and the sequences have images. The tower belongs to
// the layer of the embedding. plan_op(), plan_in_flight() and plan_unit() of this layer include the
// tower.
bool plan_has_vision(const PlanTask *t);
// Returns the number of parameters of the model with the tower.
size_t plan_parameters(const PlanTask *t);
size_t plan_vision_parameters(const PlanTask *t); // of the tower alone
// Returns the number of elements of layer i of a stage, without the vocabulary tables.
size_t plan_unit(const PlanTask *t, const CutSizes *z, size_t i);
// Returns the number of elements of all layers and tables of a stage.
size_t plan_elements(const PlanTask *t, const CutSizes *z);
// Returns the FLOPs of the tower's forward for a sequence. blocks: counts only the tower's blocks.
double plan_vision_flops(const PlanTask *t, bool blocks);
// Returns the number of the model's blocks that have as many FLOPs as the tower, rounded.
size_t plan_vision_blocks(const PlanTask *t);
// Returns the sizes of the tower on a rank of a stage with these sizes.
CutSizes plan_tower(const PlanTask *t, const CutSizes *stage);
// Returns the number of columns of the merger's input.
size_t plan_tower_merged(const PlanTask *t);
// Returns the number of images of B sequences on a rank of cp.
size_t plan_tower_images(const PlanTask *t, const PlanLayout *l, size_t B);

// ---- Memory (plan_memory.c) ----
// Returns the bytes per parameter if ZeRO shards over n replicas (ZeRO, figure 1).
double plan_parameter_bytes(const PlanFormat *f, size_t zero, double n);
PlanMemory plan_state(const PlanTask *t, const PlanLayout *l, const PlanStage *s);
// Returns the bytes that one chunk keeps for B sequences.
// working: counts the bytes while a layer computes, with the activations that the layer recomputes.
double plan_in_flight(const PlanTask *t, const PlanLayout *l, const CutSizes *z, size_t B,
                      bool working);
// Returns the bytes that a block keeps for B sequences, without the block's input.
// only_scores: counts only the scores of attention.
double plan_block_bytes(const PlanTask *t, const CutSizes *z, size_t B, bool only_scores);

// ---- The step (plan_step.c) ----
// Returns the memory, traffic and time of a step in this layout.
PlanResult plan_layout(const PlanTask *t, const PlanLayout *l);

// ---- Bounds (plan_bound.c) ----
// Lower bounds of a layout: the time of its step, and the memory of its fullest stage. A call of
// plan_bound() is much faster than a call of plan_layout(). All micro-batches must have the same
// number of sequences.
typedef struct {
    double step, memory;
} PlanBound;
PlanBound plan_bound(const PlanTask *t, const PlanLayout *l);

// ---- All layouts (plan_search.c) ----
// Returns whether this layout is possible. If the result is false, `why` gets the reason as a
// sentence.
bool plan_possible(const PlanTask *t, const PlanLayout *l, char *why, size_t room);
// The choices that a search does not vary. The search varies each size_t that is 0, and each int
// that is -1. All other values are fixed.
typedef struct {
    size_t dp, tp, pp, cp, micro_batch, chunks;
    int zero, sequence, recompute;
} PlanFixed;
// The results of a search. The layouts that fit come first, from the fastest to the slowest.
typedef struct {
    PlanResult *result;
    size_t n, feasible; // layouts in the list, and the number of them that fit
    size_t tried;       // layouts in the list and pruned layouts together
} PlanList;
// The largest tp and cp that a search tries, and the fewest positions of a chunk of the ring if the
// search varies cp.
enum { PLAN_MOST_TP = 64, PLAN_MOST_CP = 16, PLAN_LEAST_CHUNK = 256 };
// Searches the layouts of the task.
// run: the run whose page shows the progress, or NULL.
// prune: the search leaves out each layout that cannot be the fastest of its mesh, by plan_bound().
// If no layout of a mesh fits, the search plays the layouts that can need least memory. On the
// fastest mesh the search also plays the fastest layout with twice the sequences per micro-batch.
PlanList plan_search(Run *run, const PlanTask *t, const PlanFixed *fixed, bool prune);
void plan_list_free(PlanList *list);
// Writes to `why` the reason why a search has found no layout (plan_divide.c).
void plan_why_none(const PlanTask *t, const PlanFixed *fixed, char *why, size_t room);

// ---- Names and reasons (plan_why.c) ----
enum { PLAN_NAME = 100 };
// Writes the name of a layout, such as "dp 2 x tp 2 x pp 2", to `text`, and returns `text`.
const char *plan_layout_name(char text[PLAN_NAME], const PlanLayout *l);
const char *plan_recompute_name(Recompute r);
enum { PLAN_ALTERNATIVES = 14 };
// An alternative to the fastest layout. If tp or cp differs, the alternative is the fastest layout
// with that tp or cp. If pp differs, the alternative is the fastest layout with that pp and the
// same tp. If the number of sequences per micro-batch differs, the alternative is the fastest
// layout with that number on the same mesh. If another choice differs, all else is the same, and
// the alternative may not fit.
// times: the step of the alternative, divided by the step of the fastest layout.
// cause: the part of the step with most of the additional time.
typedef struct {
    char name[48];
    double times;
    const char *cause;
    bool detail; // only --verbose shows this alternative
    PlanResult result;
} PlanAlternative;
size_t plan_alternatives(const PlanTask *t, const PlanList *list,
                         PlanAlternative found[PLAN_ALTERNATIVES]);
enum { PLAN_STRESSES = 3 };
// times: the step of the same layout on a slower cluster, divided by the step on the task's
// cluster.
typedef struct {
    const char *name;
    double times;
} PlanStress;
size_t plan_stresses(const PlanTask *t, const PlanResult *best, PlanStress found[PLAN_STRESSES]);
// Writes the advice of the page if no layout fits. least: the layout that needs least memory.
void plan_try(const PlanTask *t, const PlanResult *least, char *text, size_t room);
// Writes a sentence: the fastest layout, and how many times as long each alternative takes that
// fits (plan_alternatives()). If no layout fits, the sentence says so.
void plan_reason(const PlanTask *t, const PlanList *list, char *text, size_t room);
// For a layout that does not fit, writes the memory that the layout needs, by categories. Gathered
// units and the ring are named only if they are more than 5 % of this memory.
void plan_limits(const PlanResult *r, const PlanTask *t, char *text, size_t room);
// Puts the Pareto front in `on` (plan_show.c), the layout with the least memory first. No other
// layout beats a layout of the front in both memory and time. `on` must have room for list->n
// layouts. Returns the number of layouts of the front.
size_t plan_front(const PlanList *list, const PlanResult **on);

// ---- The page and the files (plan_show.c, plan_explain.c) ----
// Returns the number of rows of plan_table() with --verbose whose step is at most `most` longer
// than the fastest step (0.15: 15 %).
// *spread: how much longer the slowest of these rows takes, as a share of the fastest step.
size_t plan_rows_within(const PlanList *list, double most, double *spread);
void plan_table(Run *run, const PlanTask *t, const PlanList *list);
void plan_svg(const PlanTask *t, const PlanList *list, const char *file);
enum { PLAN_JSON = 1024 }; // bytes of the text of a layout
void plan_layout_json(const PlanTask *t, const PlanResult *r, char *text, size_t room);
// Writes one JSON object per line.
void plan_write_layouts(const PlanTask *t, const PlanList *list, const char *file);
void plan_explain(Run *run, const PlanTask *t, const PlanResult *r);
#endif
