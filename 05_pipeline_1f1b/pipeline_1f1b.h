// pipeline_1f1b.h: declares the schedules of this chapter: 1F1B, interleaved 1F1B, PipeDream, 2BW
// and zero bubble. A pipeline has p stages, numbered i from 0, and a step has m micro-batches.
#ifndef PIPELINE_1F1B_H
#define PIPELINE_1F1B_H
#include "04_pipeline_naive/pipeline.h"

// --------------------------------------------------------- 02_1f1b.c: one forward, one backward

PipelineLoop pipeline_1f1b; // runs a step's forwards, backwards and messages in loops
// Returns the ops of stage i, in the order in which pipeline_1f1b runs them.
Schedule schedule_1f1b(size_t p, size_t m, size_t i);

// --------------------------------------------------------- 03_interleaved.c: v chunks per stage

// Returns the ops of stage i, in the order in which the stage runs them. If v > 1, m must be a
// multiple of p. If v = 1, the ops are those of schedule_1f1b.
Schedule schedule_interleaved(size_t p, size_t m, size_t v, size_t i);
// Describes the chunks of stage i, which are parts i, p + i, ... of v p parts. blocks [v p] has the
// number of blocks of each part. If blocks is NULL, the parts are as equal as possible. This
// function and the next two are in chunks.c.
Model *interleaved_describe(const ModelConfig *c, const size_t *blocks, size_t p, size_t v,
                            size_t i);
// interleaved_begin and interleaved_loss do what pipeline_begin and pipeline_loss do, for stages
// with one or several chunks.
PipelineStage interleaved_begin(Comm *pp, Model *m, const Batch *batch, size_t micro_batches);
double interleaved_loss(Comm *pp, Model *m, const Batch *b);
PipelineLoop pipeline_interleaved; // if pp has one rank, the model must have one chunk
// These two functions send and receive y [B*T, C] between two stages of t tensor-parallel ranks
// each. The t ranks of a stage have the same y. Each rank sends 1/t of y over pp, and an all-gather
// over tp puts y together. `to` and `from` are ranks of pp.
void pipeline_send_scattered(Comm *pp, Comm *tp, Tensor y, size_t to);
void pipeline_recv_gathered(Comm *pp, Comm *tp, Tensor x, size_t from);

// ------------------------------------------------------ 04_pipedream.c: updates without a flush

// WeightVersions holds the older versions of a stage's weights, in `older` copies. Version v is the
// result of v updates. The w of the stage's model is always the newest version. A new copy
// overwrites the oldest copy.
typedef struct {
    Arena arena; // MEM_PARAMETERS
    Tensor copy; // [older, elements of the stage]: version v in row v % older
    size_t newest, older;
} WeightVersions;
WeightVersions weight_versions_new(const Model *m, size_t older);
void weight_versions_free(WeightVersions *w);
// Lets the model's layers read this version from now on. Calls fault() if the version is neither
// the newest nor in a copy. The optimizer still updates m->w.
void weight_versions_attach(const WeightVersions *w, Model *m, size_t version);
// Copies the newest version, because the optimizer is going to change m->w. Call this function
// before an update.
void weight_versions_keep(WeightVersions *w, const Model *m);

// The rule says which version of the weights mini-batch k reads on stage i of p. A mini-batch is
// the sequences of one update. The update of mini-batch k makes version k + 1 on every stage.
//     WEIGHT_STASHING   forward and backward max(0, k - (p-1-i)), the newest when forward k ran
//     VERTICAL_SYNC     forward and backward max(0, k - (p-1)), on all stages
//     NO_STASHING       always the newest: forward max(0, k - (p-1-i)), backward k. This rule is
//                       wrong, because forward and backward read different weights.
typedef enum { WEIGHT_STASHING, VERTICAL_SYNC, NO_STASHING } PipeDreamRule;
// Returns the number of versions that stage i keeps besides the newest version.
size_t pipedream_older(PipeDreamRule rule, size_t p, size_t i);
// Returns the list of stage i for n mini-batches.
Schedule schedule_pipedream(PipeDreamRule rule, size_t p, size_t n, size_t i);

// A TrainingObserver follows a training. The training adds the loss of micro-batch k to loss[k],
// which is 0 at first. Only the last stage has a loss other than 0. After each update the training
// calls updated() with the context and the number of the update, counted from 0. At that moment the
// model reads the newest weights and still has the gradients. 2BW updates the tied table (tensor 0)
// later than all other tensors, so `part` says which tensors were updated.
typedef enum { UPDATED_ALL, UPDATED_TABLE, UPDATED_OTHERS } UpdatedPart;
typedef struct {
    double *loss;
    void (*updated)(void *context, Model *m, size_t update, UpdatedPart part);
    void *context;
} TrainingObserver;
// Runs a list with an update after every mini-batch. n is the number of mini-batches, and `older`
// the number of older versions to keep. The observer may be NULL.
PipelineResult pipeline_pipedream(Comm *pp, Model *m, Optimizer *o, const Schedule *s, size_t older,
                                  const Batch *batch, size_t n, const TrainingObserver *observer);
// Gives embedding and head a table each, with equal values at first. The head's table is called
// lm_head.weight. Call model_untie before model_allocate.
void model_untie(Model *m);

// ------------------------------------------------------- 05_pipedream_2bw.c: two versions (2BW)

// Returns the list of stage i for steps * m micro-batches. m must be at least p. Forwards and
// backwards of batch t read version max(0, t - 1) on every stage. The micro_batch of an UPDATE is
// the number of the batch.
Schedule schedule_2bw(size_t p, size_t m, size_t steps, size_t i);
// Runs a list whose batches end with an UPDATE, such as that of schedule_2bw. n is the number of
// micro-batches of all batches. `tied` is the result of pipeline_tied_group(). The two ranks of
// `tied` add their gradients of the tied table before they update the table.
PipelineResult pipeline_2bw(Comm *pp, Comm *tied, Model *m, Optimizer *o, const Schedule *s,
                            const Batch *batch, size_t n, const TrainingObserver *observer);

// ---------------------------------------------------- 06_zero_bubble.c: backwards in two halves

// linear_backward_inputs and linear_backward_weights are the two halves of the backward of y = x w.
// pipeline_backward_inputs and pipeline_backward_weights are the two halves of a stage's backward.
void linear_backward_inputs(Tensor dx, Tensor dy, Tensor w);
void linear_backward_weights(Tensor dw, Tensor x, Tensor dy);
void pipeline_backward_inputs(PipelineStage *s, size_t k); // computes dx from dy
// Adds the weights' gradients and frees x. This half may run at any later time.
void pipeline_backward_weights(PipelineStage *s, size_t k);
// Returns the list of ZB-H1. At most min(p, m) micro-batches are in flight on each stage. A
// micro-batch is in flight until its backward of weights.
Schedule schedule_zb_h1(size_t p, size_t m, size_t i);
// Returns the list that a planner (zb_auto.c) computes from the times of the ops and of a message.
// At most cap (1 or more) micro-batches are in flight on each stage.
Schedule schedule_zb_auto(size_t p, size_t m, size_t i, size_t cap, OpTimes times);
// Runs any list without updates. Backwards may be whole or in halves, and stages may have several
// chunks.
PipelineResult zero_bubble_run(Comm *pp, Model *m, const Schedule *list, const Batch *batch,
                               size_t micro_batches);

// ---------------------------------------------------------------- 07_compare.c: seven ways

// In the ways before WAY_PIPEDREAM the pipeline runs empty after every batch (a flush). These ways
// give the bits of one device.
typedef enum {
    WAY_NAIVE,
    WAY_GPIPE,
    WAY_1F1B,
    WAY_INTERLEAVED,
    WAY_ZB_H1,
    WAY_PIPEDREAM,
    WAY_2BW,
    PIPELINE_WAYS
} PipelineWay;
// Returns the list of stage i. v is the number of chunks per stage, for WAY_INTERLEAVED. In a way
// without a flush the list has `batches` batches. In a way with a flush the list has one batch.
Schedule pipeline_way_list(PipelineWay way, size_t p, size_t m, size_t v, size_t batches, size_t i);
// Runs `batches` batches of m micro-batches. A way with a flush runs one batch. Only WAY_PIPEDREAM
// and WAY_2BW use `o`, and only WAY_2BW uses `tied`.
PipelineResult pipeline_way_run(PipelineWay way, Comm *pp, Comm *tied, Model *model, Optimizer *o,
                                const Batch *batch, size_t m, size_t batches);
#endif
