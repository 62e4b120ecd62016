// pipeline.h: declares the functions of pipelines. A pipeline cuts a model into stages of
// neighbouring layers, one stage per rank. Stage i of p is rank i of the group pp. A step has m
// micro-batches. The files are:
//     stage.c        forward and backward of a stage, without messages
//     02_naive.c     the naive loop with its messages, the end of a step, and evaluation
//     03_gpipe.c     GPipe's loops; schedules, which are lists of ops
//     executor.c     the rule that says which op needs which other op; the executor, which sends
//                    and receives the messages of any list
//     04_partition.c the cut: the layers of each stage
//     layer_times.c  the time of each layer, which the cut needs
#ifndef PIPELINE_H
#define PIPELINE_H
#include "common/model/optimizer.h"

// ---------------------------------------------------------------- stage.c: one stage computes

// Returns the layers of stage i. blocks [p] has the number of blocks of each stage. If blocks is
// NULL, the numbers of blocks differ by at most 1. Stage 0 also has the embedding, and the last
// stage also has the head and the loss.
Range pipeline_stage_layers(const ModelConfig *c, const size_t *blocks, size_t p, size_t i);

// One micro-batch on this stage, or on one chunk of the stage. The code that communicates sets x
// and dy to received messages, and y and dx to the memory of messages that it will send.
typedef struct {
    const Batch *batch; // the micro-batch's tokens and targets
    Layer *layers;      // [n_layers] of the stage, or of one chunk of the stage
    size_t n_layers;
    Shape in;              // the shape of x and dx
    Shape out;             // the shape of y and dy
    bool end;              // the layers end with the loss, so y is a loss per token
    Tensor x;              // the layers' input; none if the layers begin with the embedding
    Tensor y;              // the layers' output; unused if `end`
    Tensor dy;             // the gradient of y; if `end`, the backward itself makes dy
    Tensor dx;             // the gradient of x; none if there is no x
    Arena input;           // holds x until the last op of the micro-batch that reads x
    Arena gradient;        // holds dy under the executor
    ActivationStash *kept; // the layers' activations between forward and backward, else NULL
    double loss;           // sum of token losses on the last stage, 0 elsewhere
    bool half;             // dx is computed, but the weights' gradients are not (05.06)
} PipelineBatch;
typedef struct {
    double loss; // sum of token losses on the last stage, 0 elsewhere
    // The largest number of micro-batches between their forward and the end of their backward at
    // one time. A micro-batch counts once per chunk.
    size_t in_flight;
} PipelineResult;
typedef struct {
    Model *m;             // this stage's layers
    size_t micro_batches; // number of micro-batches m of the step
    size_t chunks;        // parts of the model on this stage; 1 in this chapter
    PipelineBatch *micro; // [chunks * m]: all micro-batches of one chunk, then of the next
    bool first;           // this stage is stage 0
    bool last;            // this stage is stage p - 1
    size_t before, next;  // ranks of the neighbours, in a ring
    size_t in_flight;     // micro-batches between forward and backward at present
    PipelineResult result;
} PipelineStage;
PipelineStage pipeline_begin(Comm *pp, Model *m, const Batch *batch, size_t micro_batches);
PipelineBatch pipeline_batch(const Batch *b, Layer *layers, size_t n_layers, bool end);
// Computes y from x for micro-batch k.
void pipeline_forward(PipelineStage *s, size_t k);
// Computes dx from dy for micro-batch k, adds to the weights' gradients, and frees x.
void pipeline_backward(PipelineStage *s, size_t k);
// Calls fault() unless this stage has run the forward of micro-batch k and not yet the backward.
void pipeline_require_forward(const PipelineStage *s, size_t k);
PipelineResult pipeline_end(PipelineStage *s);

// --------------------------------------------------------------- 02_naive.c, 03_gpipe.c: a step

// Runs all forwards and backwards of a step on this stage, and sends and receives their messages.
// Adds to the model's gradients.
typedef PipelineResult PipelineLoop(Comm *pp, Model *m, const Batch *batch, size_t micro_batches);
PipelineLoop pipeline_naive, pipeline_gpipe;

// Sums the gradients of the tied table wte over the two stages that hold a copy of wte. `tied` is
// the result of pipeline_tied_group(). In a pipeline of one stage the function adds the gradients
// of the two uses. If head and embedding have a table each, the function does nothing. Call this
// function after the last backward.
void pipeline_tied_sum(Model *m, Comm *tied);
// Returns the group {first, last} of the pipeline pp, or NULL on middle stages and in a pipeline of
// one stage. All ranks of pp must call this function.
Comm *pipeline_tied_group(Comm *pp);

// Runs the forward of one micro-batch for evaluation, and keeps no activations. Each stage but the
// last waits until the next stage has received y. Returns the sum of token losses on the last
// stage, 0 elsewhere.
double pipeline_loss(Comm *pp, Model *m, const Batch *b);

// --------------------------------------------------------- 03_gpipe.c: a schedule is a list of ops

// The ops of a stage. BACKWARD_INPUTS computes dx, and BACKWARD_WEIGHTS the weights' gradients
// (05.06). BACKWARD does both. UPDATE updates the weights (05.04).
typedef enum { FORWARD, BACKWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS, UPDATE } PipeWhat;
// An op of a list. A stage may hold v chunks of the model (05.03). Chunk c on stage i of p is part
// c*p + i of all v*p parts. In the lists of this chapter chunk and version are 0.
typedef struct {
    PipeWhat what;
    size_t micro_batch, chunk;
    size_t version; // the version of the weights that the op reads (05.04)
} PipeOp;
typedef struct {
    size_t stage;
    PipeOp op;
} StageOp;
// The times of the ops of one chunk, and of a message. A BACKWARD takes backward_inputs +
// backward_weights. An UPDATE takes no time.
typedef struct {
    size_t forward, backward_inputs, backward_weights, message;
} OpTimes;
typedef struct {
    PipeOp *ops;
    size_t n;
} Schedule; // the list of one stage; free with schedule_free
typedef Schedule (*ScheduleRule)(size_t p, size_t m, size_t i); // returns the list of stage i
// Returns the list that runs forward and backward of one micro-batch, then those of the next
// micro-batch.
Schedule schedule_naive(size_t p, size_t m, size_t i);
// Returns the list of all forwards, then all backwards (Huang et al. 2018).
Schedule schedule_gpipe(size_t p, size_t m, size_t i);
void schedule_add(Schedule *s, PipeWhat what, size_t micro_batch);
void schedule_add_op(Schedule *s, PipeOp op);
size_t schedule_chunks(const Schedule *s); // returns v, the list's largest chunk number + 1
void schedule_free(Schedule *s);

// This rank's groups and settings in the training of a pipeline.
typedef struct {
    Comm *pp;              // all stages
    Comm *tied;            // the result of pipeline_tied_group()
    double clip;           // the gradient is clipped to this norm; 0: no clipping
    ScheduleRule schedule; // writes the list that pipeline_step runs
    size_t in_flight;      // most micro-batches in flight in the last step
} PipelineRank;
typedef StepResult PipelineStep(PipelineRank *rank, Model *m, Optimizer *o, const Batch *batch,
                                size_t micro_batches);
PipelineStep naive_step;    // 02_naive.c: runs a step by pipeline_naive
PipelineStep pipeline_step; // 03_gpipe.c: runs a step by the list of rank->schedule
// Ends a step of any schedule whose only update comes after all backwards (02_naive.c). Sums the
// tied gradient, the loss and the gradient's squares, then updates the weights.
StepResult pipeline_update(PipelineRank *rank, Model *m, Optimizer *o, const Batch *batch,
                           PipelineResult r);

// ---------------------------------------------------------------- executor.c

// Finds the op whose result `op` takes. `op` is on stage i of p, and each stage has v chunks.
// *needs becomes the found op and its stage. Returns false if `op` takes no result. If the two ops
// are on different stages, `op` receives a message from needs->stage.
//     forward k                 forward k of the previous part; the first part needs none
//     backward (of inputs) k    backward (of inputs) k of the next part; the last part: its own
//                               forward k
//     backward of weights k     its own backward of inputs k
bool pipe_op_needs(PipeOp op, size_t i, size_t p, size_t v, StageOp *needs);
// Finds the op of another part that takes this op's y (forward) or dx (backward). *feeds becomes
// that op and its stage. Returns false if no other part takes a result of `op`.
bool pipe_op_feeds(PipeOp op, size_t i, size_t p, size_t v, StageOp *feeds);
// Returns whether `op` is the needed op. A whole BACKWARD also serves as a backward of inputs.
bool pipe_op_is(PipeOp op, PipeOp needed);

// The executor sends and receives the messages of any list. The loop of a lesson calls the executor
// and computes. The executor has two send buffers for activations, if the stage sends activations,
// and two for gradients, if the stage sends gradients. These are the executor's rules:
//     the first receive from each neighbour is posted at the start, the next receive when an op has
//         taken the message of the previous receive
//     a send buffer is free again when the receiver has posted the receive for its message
//     an op receives its message, waits for a send buffer, computes, then starts its send
// So a stage runs at most three messages ahead of a neighbour: one in the posted receive, two in
// the buffers. The op that makes a fourth message waits until the neighbour has received one more
// message. Lists deadlock if stages wait for each other. The lists of chapters 04 and 05 never
// deadlock. 05_pipeline_1f1b/experiments/judge.c finds out whether given lists deadlock.
//
// MEM_COMMUNICATION holds the send buffers, each as large as the largest message, and for each
// neighbour the next message to be received. With one chunk and one micro-batch there is one send
// buffer in place of two.
typedef struct Executor Executor;
// Makes an executor for this list. `s` comes from pipeline_begin or, with several chunks, from
// interleaved_begin (05.03). `s` and `list` must outlive the executor.
Executor *executor_new(Comm *pp, PipelineStage *s, const Schedule *list);
// Call this function before op `at` of the list computes. The function receives x (forward) or dy
// (backward) if another stage computes this tensor. If the op sends a message, the function then
// waits for a free send buffer. The function returns k, and s->micro[k] is the op's micro-batch.
size_t executor_receive(Executor *e, size_t at);
// Call this function after op `at` has computed. The function starts to send y (forward) or dx
// (backward) if another stage takes this tensor, and frees dy after a backward.
void executor_send(Executor *e, size_t at);
void executor_free(Executor *e); // first waits until the neighbours have received all messages
// Runs one step's list of forwards and backwards by the executor (03_gpipe.c). Adds to the model's
// gradients in the order of the list's backwards.
PipelineResult pipeline_run(Comm *pp, Model *m, const Schedule *list, const Batch *batch,
                            size_t micro_batches);

// ----------------------------------------------------- 04_partition.c: the layers that a stage has

// Cuts the list cost [n] into p <= n parts of neighbouring elements, so that the largest sum of a
// part is as small as possible. Part i has elements first[i], ..., first[i+1] - 1, and first has
// p + 1 elements. Returns the largest sum.
double partition_min_max(const double *cost, size_t n, size_t p, size_t *first);
// Returns the number of measured costs, L + 2: one for the embedding, one for each block, and one
// for the head with the loss.
size_t partition_items(const ModelConfig *c);
// Wraps m's layers, so that every step adds the layers' times to cost [L+2], in picoseconds
// (layer_times.c). Call this function after all other wraps. `cost` must live as long as the model.
void partition_time_layers(Model *m, double *cost);
// Finds the best cut for the costs that the stages have measured. Afterwards `cost` has the costs
// of all layers. Fills blocks [p v] with the number of blocks of each stage, or of each chunk, in
// model order. All stages must call this function, and all get the same result.
void partition_solve(Comm *pp, const ModelConfig *c, size_t v, double *cost, size_t *blocks);
// Moves the weights and the optimizer state of all layers from the model `from` to the model `to`.
// before [p v] is the cut of `from`, and after [p v] the cut of `to`, for v chunks per stage. `to`
// is allocated and has its optimizer state. All stages must call this function.
void pipeline_migrate(Comm *pp, const Optimizer *o, const Model *from, const size_t *before,
                      Model *to, const size_t *after);
#endif
