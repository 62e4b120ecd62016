// plan.h: what a training step of a model takes on a cluster, in every layout, from sizes alone:
// memory, traffic and time (PTD-P section 3; ZeRO sections 5 and 7; Korthikanti section 4). The
// sizes are those of the cost model (common/model/costs.h), the order of work that of the schedules
// (05). The time of a product is a roofline, that of a message alpha + bytes / beta: nothing here
// calls the simulated clock, so that the trainer can be held against it.
#ifndef PLAN_H
#define PLAN_H
#include "07_recompute/recompute.h"
#include "08_3d/mesh.h"
#include "judge/frame/lesson.h"
#include "common/model/costs.h"

// ---- The task ----
// batch: sequences of a step
typedef struct {
    const char *name;
    ModelConfig model;
    size_t batch;
    const char *source;
} PlanModel;
// seconds of a message; bytes/s of a GPU, each way
typedef struct {
    double alpha, beta;
} PlanLink;
typedef struct {
    const char *name;
    // peak FLOP/s; the share of it that large products reach
    double flops, efficiency;
    // bytes/s of memory, 0: no time; seconds a kernel
    double bandwidth, launch;
    // 0: the size of a product does not matter
    size_t multiprocessors;
    double memory; // bytes
    size_t node; // GPUs of a node; 0: all share one
    PlanLink inside, between;
    const char *source;
} PlanCluster;
// Bytes of a parameter's weight, gradient and optimizer state; of a kept element, dropout mask,
// statistic and logit.
typedef struct {
    const char *name;
    size_t weight, gradient, state, element, mask, statistic, logit;
} PlanFormat;
// blockwise: attention in blocks, which keeps no scores (common/model/attention.h); with cp above 1
// it always is.
typedef struct {
    PlanModel model;
    PlanCluster cluster;
    PlanFormat format;
    size_t gpus;
    bool blockwise;
} PlanTask;

extern const PlanModel plan_models[]; // these three end with name NULL
extern const PlanCluster plan_clusters[];
extern const PlanFormat plan_formats[];

typedef struct {
    Degrees n; // dp x tp x pp x cp; cp 0 is 1
    // chunks: v, of the model on each stage; above 1 interleaved
    size_t micro_batch, chunks, zero;
    bool sequence;
    Recompute recompute;
} PlanLayout;
size_t plan_micro_batches(const PlanTask *t, const PlanLayout *l); // of a replica
bool plan_in_blocks(const PlanTask *t, const PlanLayout *l); // attention
// dp x cp: they have the same parameters, or ZeRO's shards
size_t plan_replicas(const PlanLayout *l);

// ---- A layout ----
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
// gathered: ZeRO's largest unit while it is whole. ring: keys, values and their gradients that
// travel over cp.
typedef struct {
    double bytes[PLAN_MEMORY];
} PlanMemory;
double plan_memory_sum(const PlanMemory *m);

// Picoseconds of one forward or backward of a chunk, and the bytes that its rank sends. cp: what
// the ring takes longer than the products under which its messages travel.
typedef struct {
    double products, rest, tp, cp, dp, tp_bytes, cp_bytes, dp_bytes;
} PlanOp;
double plan_op_time(const PlanOp *op);

typedef struct {
    PlanLayout layout;
    // of the stage that holds most; the most of each category
    PlanMemory fullest, largest;
    size_t stage; // the fullest one
    // sent in a step by a rank of the stage that sends
    double tp_bytes, cp_bytes, pp_bytes, dp_bytes, tied_bytes;
    // most; dp_bytes over all replicas, dp x cp
    double step; // picoseconds
    // of the busiest stage: products and the rest, sums over tp,
    double computing, tp, cp, dp, end, idle;
    // waits for the ring, ZeRO's units; after its last
    // backward; what is left
    // of the pipeline's time; shares of the peak
    double bubble, mfu, hfu;
    bool fits;
} PlanResult;

// plan_stage.c: what one stage holds and does.
typedef struct {
    // of the largest rank of its tp and cp groups
    CutSizes z;
    size_t d, i; // its replica and number
    bool tp_near, dp_near; // do these groups share a node?
} PlanStage;
// these ranks of the world, and all between
bool plan_near(const PlanTask *t, size_t first, size_t last);
size_t plan_rank(const PlanLayout *l, size_t d, size_t cp, size_t tp, size_t stage);
// of a sequence on the rank that has most
size_t plan_positions(const PlanTask *t, const PlanLayout *l);
PlanStage plan_chunk(const PlanTask *t, const PlanLayout *l, size_t d, size_t i, size_t k);
// all chunks of stage i
PlanStage plan_stage(const PlanTask *t, const PlanLayout *l, size_t d, size_t i);
bool plan_alike(const PlanTask *t, const PlanLayout *l);
PlanStage plan_slice(const PlanTask *t, const PlanLayout *l, const PlanStage *s, size_t slice);
size_t plan_slices(const PlanTask *t, const PlanLayout *l);
double plan_product_time(const PlanTask *t, size_t count, size_t m, size_t n, size_t k,
                         bool accumulates);
// The same of scores or their product with values, of which the causal mask leaves `pairs`; queries
// [q, D], keys [k, D].
double plan_attention_time(const PlanTask *t, size_t count, double pairs, size_t q, size_t k,
                           size_t D);
double plan_link_time(const PlanTask *t, bool near, size_t messages, double bytes);
double plan_ring_time(const PlanTask *t, bool near, size_t passes, size_t n, size_t count,
                      size_t size);
// as it has it
PlanStage plan_as_rank(const PlanTask *t, const PlanLayout *l, const PlanStage *s, size_t cp);
PlanOp plan_op(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward, size_t B);
// no ring
PlanOp plan_op_alone(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward,
                     size_t B);
PlanOp plan_partial_sums(const PlanTask *t, const PlanLayout *l, const PlanStage *s);
// over dp, after the backwards
PlanOp plan_reduction(const PlanTask *t, const PlanLayout *l, const PlanStage *s);
// after the update
PlanOp plan_gather(const PlanTask *t, const PlanLayout *l, const PlanStage *s);
double plan_update_time(const PlanTask *t, const PlanLayout *l, const PlanStage *s);
// plan_ring.c: attention in blocks, of B sequences in one transformer block; over cp ring
// attention, zigzag (03.08). products: of time, on the busiest rank
typedef struct {
    double time, products, bytes;
} PlanRing;
PlanRing plan_ring(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward,
                   size_t B);
// Of ranks that are not alike, [cp] of each: at, when they begin and end a chunk's forward or
// backward of B sequences, in which they take `each` beside attention. plan_ring_players: 1 where
// they are alike, else cp.
void plan_ring_op(const PlanTask *t, const PlanLayout *l, const PlanStage *s, const PlanOp *each,
                  bool forward, size_t B, double *at);
size_t plan_ring_players(const PlanTask *t, const PlanLayout *l);
// bytes, under way
double plan_ring_room(const PlanTask *t, const PlanLayout *l, const CutSizes *z, size_t B);
Positions plan_positions_of(const PlanTask *t, const PlanLayout *l, size_t cp);
// the rank of cp that has most
size_t plan_most_positions(const PlanTask *t, const PlanLayout *l);
// plan_memory.c
// over n replicas: ZeRO figure 1
double plan_parameter_bytes(const PlanFormat *f, size_t zero, double n);
PlanMemory plan_state(const PlanTask *t, const PlanLayout *l, const PlanStage *s);
// bytes
double plan_in_flight(const PlanTask *t, const PlanLayout *l, const CutSizes *z, size_t B,
                      bool working);
double plan_block_bytes(const PlanTask *t, const CutSizes *z, size_t B, bool only_scores);
// plan_time.c
PlanResult plan_layout(const PlanTask *t, const PlanLayout *l);

// ---- All layouts (plan_search.c) ----
// if not: why, in a sentence
bool plan_possible(const PlanTask *t, const PlanLayout *l, char *why, size_t room);
// What may vary is 0 or -1; anything else is fixed.
typedef struct {
    size_t dp, tp, pp, cp, micro_batch, chunks;
    int zero, sequence, recompute;
} PlanFixed;
// the feasible ones first, the fastest of them
typedef struct {
    PlanResult *result;
    size_t n, feasible;
} PlanList;
// that a search tries; of positions
enum { PLAN_MOST_TP = 64, PLAN_MOST_CP = 16, PLAN_LEAST_CHUNK = 256 };
// run: whose progress is shown, or NULL
PlanList plan_search(Run *run, const PlanTask *t, const PlanFixed *fixed);
void plan_list_free(PlanList *list);
// Which number does not divide, where a search has found no layout (plan_divide.c).
void plan_why_none(const PlanTask *t, const PlanFixed *fixed, char *why, size_t room);
// why the first one is the best
void plan_reason(const PlanTask *t, const PlanList *list, char *text, size_t room);
// why this one cannot be
void plan_limits(const PlanResult *r, const PlanTask *t, char *text, size_t room);
// The Pareto front: layouts that no other one beats in memory and in time.
size_t plan_front(const PlanList *list, const PlanResult **on);

// ---- What is shown (plan_show.c, plan_explain.c) ----
const char *plan_recompute_name(Recompute r);
void plan_table(Run *run, const PlanTask *t, const PlanList *list);
void plan_svg(const PlanTask *t, const PlanList *list, const char *file);
enum { PLAN_JSON = 1024 }; // room for a layout
void plan_layout_json(const PlanTask *t, const PlanResult *r, char *text, size_t room);
// a JSON object a line
void plan_write_layouts(const PlanTask *t, const PlanList *list, const char *file);
void plan_explain(Run *run, const PlanTask *t, const PlanResult *r);
#endif
