// pipeline.h: a model is cut into stages of neighbouring layers, one stage per rank. Stage i of p
// is rank i of pp; a step has m micro-batches.
//     stage.c        a stage computes: layers, forward, backward; no message
//     02_naive.c     the naive loop with its messages, and the end of a step
//     03_gpipe.c     GPipe's loops; schedules, which are lists of ops
//     executor.c     which op needs which; what runs any list
//     04_partition.c which layers a stage has
#ifndef PIPELINE_H
#define PIPELINE_H
#include "common/model/optimizer.h"

// ---------------------------------------------------------------- stage.c: one stage computes

// The layers of stage i. blocks[p] is the number of blocks of each stage, such as {3, 4, 3}; NULL:
// as equal as possible. The embedding stands before stage 0's blocks, head and loss after the last
// stage's.
Range pipeline_stage_layers(const ModelConfig *c, const size_t *blocks, size_t p, size_t i);

// One micro-batch on this stage. The code that receives and sends sets the four tensors before they
// are used.
typedef struct {
    const Batch *batch;                            // its tokens and targets
    Layer *layers;                                 // the stage's [n_layers]
    size_t n_layers;
    Shape in, out;                                 // of x and dx; of y and dy
    bool end;  // the last layer is the model's loss: y is a loss per token
    Tensor x, y;  // the layers' input (first stage: none) and output (last: none)
    Tensor dy, dx;  // the gradients of y (last stage: none) and of x (first: none)
    Arena input;                                   // holds x until the backward is done
    Arena gradient;                                // holds dy under the executor
    ActivationStash *kept;                         // what the layers keep from forward to backward
    double loss;  // sum of token losses; on the last stage, 0 elsewhere
    bool half;  // dx is computed, the weights' gradients are not (05.06)
} PipelineBatch;
typedef struct {
    double loss;  // sum of token losses; on the last stage, 0 elsewhere
    size_t in_flight;  // most micro-batches between their forward and their backward
} PipelineResult;
typedef struct {
    Model *m;                                      // my layers
    size_t micro_batches, chunks;  // m; parts of the model on this stage (1 in this chapter)
    PipelineBatch *micro;  // [chunks * m]: all micro-batches of one chunk, then of the next
    bool first, last;                              // is this stage 0, stage p - 1?
    size_t before, next;                           // ranks of the neighbours, in a ring
    size_t in_flight;                              // now
    PipelineResult result;
} PipelineStage;
PipelineStage pipeline_begin(Comm *pp, Model *m, const Batch *batch, size_t micro_batches);
PipelineBatch pipeline_batch(const Batch *b, Layer *layers, size_t n_layers, bool end);
// My layers, micro-batch k: y from x. Sends nothing.
void pipeline_forward(PipelineStage *s, size_t k);
// dx from dy. Adds the weights' gradients, frees x, sends nothing.
void pipeline_backward(PipelineStage *s, size_t k);
PipelineResult pipeline_end(PipelineStage *s);

// --------------------------------------------------------------- 02_naive.c, 03_gpipe.c: a step

// All forwards and backwards of a step on this stage, with their messages. Gradients are added to
// m's.
typedef PipelineResult PipelineLoop(Comm *pp, Model *m, const Batch *batch, size_t micro_batches);
PipelineLoop pipeline_naive, pipeline_gpipe;

// Sums the gradients of the tied embedding over the two stages that hold a copy of it: {first,
// last}, a group of its own (NULL on other stages). A pipeline of one stage adds the two uses. Call
// it on whole local gradients.
void pipeline_tied_sum(Model *m, Comm *tied);
// The group {first, last} of a pipeline: collective over pp. NULL in the middle, and for pipelines
// of one stage.
Comm *pipeline_tied_group(Comm *pp);

// Forward of one micro-batch, as evaluation wants it; nothing is kept. A stage waits until the next
// one has received. Returns the sum of token losses on the last stage, 0 elsewhere.
double pipeline_loss(Comm *pp, Model *m, const Batch *b);

// --------------------------------------------------------- 03_gpipe.c: a schedule is a list of ops

// The ops of a stage. BACKWARD is BACKWARD_INPUTS and BACKWARD_WEIGHTS in one.
typedef enum { FORWARD, BACKWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS, UPDATE } PipeWhat;
// chunk: a stage may hold several chunks of the model; chunk c on stage i of p is part c*p + i of
// all v*p parts (05.03). version: of the weights that the op reads (05.04). Both are 0 in the lists
// of this chapter.
typedef struct { PipeWhat what; size_t micro_batch, chunk, version; } PipeOp;
typedef struct { size_t stage; PipeOp op; } StageOp;
// How long the ops of one chunk take, and a message. A whole backward is both halves; an update
// takes no time.
typedef struct { size_t forward, backward_inputs, backward_weights, message; } OpTimes;
typedef struct { PipeOp *ops; size_t n; } Schedule;  // of one stage; free with schedule_free
typedef Schedule (*ScheduleRule)(size_t p, size_t m, size_t i);  // the list of stage i
// Forward and backward of one micro-batch, then of the next.
Schedule schedule_naive(size_t p, size_t m, size_t i);
// All forwards, then all backwards (Huang et al. 2018).
Schedule schedule_gpipe(size_t p, size_t m, size_t i);
void schedule_add(Schedule *s, PipeWhat what, size_t micro_batch);
void schedule_add_op(Schedule *s, PipeOp op);
size_t schedule_chunks(const Schedule *s);  // v: one more than the largest chunk of its ops
void schedule_free(Schedule *s);

// This rank in a pipeline that is trained, and its step.
typedef struct {
    Comm *pp, *tied;                               // all stages; {first, last}, or NULL
    double clip;                                   // largest norm of the gradient; 0: no clipping
    ScheduleRule schedule;                         // which list pipeline_step runs
    size_t in_flight;                              // of the last step
} PipelineRank;
typedef StepResult PipelineStep(PipelineRank *rank, Model *m, Optimizer *o, const Batch *batch,
                                size_t micro_batches);
PipelineStep naive_step, pipeline_step;  // 02_naive.c by its own loop; 03_gpipe.c by any list
// Runs after the last backward of any schedule: tied sum, sums of loss and squares, update.
// 02_naive.c.
StepResult pipeline_update(PipelineRank *rank, Model *m, Optimizer *o, const Batch *batch,
                           PipelineResult r);

// ---------------------------------------------------------------- executor.c

// The rule of every pipeline: which op, on which stage, must be done before this op of stage i of
// p, with v chunks on each stage; false: none. Where the two are on different stages, the op
// receives that op's message.
//     forward k                 forward k of the part before; the first part needs none
//     backward (of inputs) k    backward (of inputs) k of the part behind; the last part: its own
//                               forward k
//     backward of weights k     its own backward of inputs k
// A whole BACKWARD serves where a backward of inputs is needed: pipe_op_is says whether an op is
// the needed one.
bool pipe_op_needs(PipeOp op, size_t i, size_t p, size_t v, StageOp *needs);
// The reverse: which op of another part takes this one's y (forward) or dx (backward).
bool pipe_op_feeds(PipeOp op, size_t i, size_t p, size_t v, StageOp *feeds);
bool pipe_op_is(PipeOp op, PipeOp needed);

// The executor sends and receives the messages of any list; the lesson's loop computes. It starts a
// send and goes on, and it posts each receive one message ahead. It has only two send buffers for
// activations and two for gradients:
//     a receive is posted at the start, and the next one when its message is there
//     a send buffer is free again when the other stage has posted the receive of its message
//     an op receives its message, then waits for a send buffer, then computes, then starts its send
// So a stage runs at most three messages ahead of a neighbour: one for the posted receive, two in
// the buffers. Before the op that makes a fourth message the stage waits until the neighbour has
// received another one. If every stage waits, the lists deadlock. The lists of chapters 04 and 05
// never do; 05's judge.h finds it for any list.
//
// For each neighbour MEM_COMMUNICATION holds the send buffers, as large as the largest
// micro-batch's message (one, if there is only one micro-batch), and the next message to be
// received, until it is there.
typedef struct Executor Executor;
// s comes from pipeline_begin. s and list outlive the executor.
Executor *executor_new(Comm *pp, PipelineStage *s, const Schedule *list);
// Before op `at` of the list computes: receives x (forward) or dy (backward) and waits for a free
// send buffer. Returns k: s->micro[k] is the op's.
size_t executor_receive(Executor *e, size_t at);
// After op `at` has computed: starts to send y (forward) or dx (backward).
void executor_send(Executor *e, size_t at);
void executor_free(Executor *e);                   // waits until all messages are received
// Runs one step's list of forwards and backwards. Gradients are added to m's, in the order of the
// list's backwards.
PipelineResult pipeline_run(Comm *pp, Model *m, const Schedule *list, const Batch *batch,
                            size_t micro_batches);

// -------------------------------------------------------- 04_partition.c: which layers a stage has

// Cuts cost [n] into p <= n neighbouring parts whose largest sum is as small as possible: part i is
// first[i] up to first[i+1], first [p+1]. Returns that sum.
double partition_min_max(const double *cost, size_t n, size_t p, size_t *first);
// Measured costs: embedding, blocks, head with loss, L + 2 of them. Call partition_time_layers
// after all other wraps. It adds what the model's layers take to cost, which must live as long as
// the model.
size_t partition_items(const ModelConfig *c);
void partition_time_layers(Model *m, double *cost);
// blocks [p v] of each stage, or of each of its v chunks in model order, <- the best cut for the
// costs that the stages have measured; collective, the same on all of them.
void partition_solve(Comm *pp, const ModelConfig *c, size_t v, double *cost, size_t *blocks);
// Weights and moments of all layers, from a model cut as before [p v] says into one cut as after [p
// v] says, which is allocated with its optimizer state. Collective.
void pipeline_migrate(Comm *pp, const Optimizer *o, const Model *from, const size_t *before,
                      Model *to, const size_t *after);
#endif
