// pipeline.h: a model cut into stages of neighbouring layers, one rank each. 02_naive.c has the messages, the end of a
// step and what a stage computes; 03_gpipe.c has schedules, which are lists of forwards and backwards; executor.c has
// the rule of what each of them needs, and what runs any list. p stages, m micro-batches; stage i is rank i of pp.
#ifndef PIPELINE_H
#define PIPELINE_H
#include "judge/frame/training.h"

// ---------------------------------------------------------------- 02_naive.c: one stage

// The layers of stage i. Blocks per stage: blocks[] of {3, 4, 3}, or NULL: as equal as possible. The embedding stands
// before stage 0's blocks, head and loss after the last stage's.
Range pipeline_stage_layers(const ModelConfig *c, const size_t *blocks, size_t p, size_t i);

// One micro-batch on this stage. Whoever receives and sends sets the four tensors before they are used.
typedef struct {
    const Batch *batch;                            // its tokens and targets
    Layer *layers;                                 // the stage's [n_layers]: all of them, or one of its chunks
    size_t n_layers;
    Shape in, out;                                 // of x and dx, of y and dy: as the first and the last of them say
    bool end;                                      // the last of them is the model's loss: y is a loss per token
    Tensor x, y;                                   // my layers' input (first stage: none) and output (last: none)
    Tensor dy, dx;                                 // the gradients of y (last stage: none) and of x (first: none)
    Arena input;                                   // holds x until the backward is done
    Arena gradient;                                // holds dy under the executor
    ActivationStash *kept;                                  // what my layers keep from forward to backward
    double loss;                                   // sum of token losses; on the last stage, 0 elsewhere
    bool half;                                     // between the two halves of its backward
} PipelineBatch;
typedef struct {
    double loss;                                   // sum of token losses; on the last stage, 0 elsewhere
    size_t in_flight;                              // most micro-batches between their forward and their backward; of
                                                   // several chunks each counts
} PipelineResult;
typedef struct {
    Model *m;                                      // my layers
    size_t micro_batches;                          // m
    PipelineBatch *micro;                          // [m]; of v chunks [v*m], one chunk's after another's
    bool first, last;                              // the first of its layers is the embedding, the last one the head
    size_t before, next;                           // ranks of the neighbours, in a ring
    size_t in_flight;                              // now
    PipelineResult result;
} PipelineStage;
PipelineStage pipeline_begin(Comm *pp, Model *m, const Batch *batch, size_t micro_batches);
void pipeline_forward(PipelineStage *s, size_t k); // my layers, micro-batch k: y from x; no message
void pipeline_backward(PipelineStage *s, size_t k);        // dx from dy; gradients of my weights are added; frees x
// The same in two halves (see layer_backward_inputs): dx from dy; then, whenever, the weights' gradients.
void pipeline_backward_inputs(PipelineStage *s, size_t k);
void pipeline_backward_weights(PipelineStage *s, size_t k);
PipelineResult pipeline_end(PipelineStage *s);

// All forwards and backwards of a step on this stage, with their messages. Gradients are added to m's.
typedef PipelineResult PipelineLoop(Comm *pp, Model *m, const Batch *batch, size_t micro_batches);
PipelineLoop pipeline_naive, pipeline_gpipe;       // 02_naive.c, 03_gpipe.c

// Sums the gradients of the tied embedding over the two stages that hold a copy of it: {first, last}, a group of its
// own (NULL on other stages). Where first and last are one stage, it adds the two uses. Call on whole local gradients.
void pipeline_tied_sum(Model *m, Comm *tied);
// The group {first, last} of a pipeline: collective over pp. NULL in the middle, and for pipelines of one stage.
Comm *pipeline_tied_group(Comm *pp);

// One micro-batch forward only, as evaluation wants it: nothing is kept, and no stage runs ahead of the next one, which
// must have received the last micro-batch's activations. The sum of token losses on the last stage, 0 elsewhere.
double pipeline_loss(Comm *pp, Model *m, const Batch *b);

// ---------------------------------------------------------------- 03_gpipe.c: schedules; executor.c: what runs them

// What a stage does with a micro-batch. BACKWARD is BACKWARD_INPUTS and BACKWARD_WEIGHTS in one.
typedef enum { FORWARD, BACKWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS, UPDATE } PipeWhat;
// A stage may hold several chunks of the model: chunk c on stage i of p is part c*p + i of all v*p parts, as in
// interleaved 1F1B (Narayanan et al. 2021, section 2.2). version: of the weights that it reads. Both are 0 in most
// lists.
typedef struct { PipeWhat what; size_t micro_batch, chunk, version; } PipeOp;
typedef struct { size_t stage; PipeOp op; } StageOp;
// What an op of one chunk takes, and a message. A whole backward is both halves; an update takes no time.
typedef struct { size_t forward, backward_inputs, backward_weights, message; } OpTimes;
// The rule of every pipeline: which op, on which stage, must be done before this op of stage i of p, with v chunks on
// each stage; false: none. Where the two are on different stages, that op's message is what this one receives.
//     forward k                 forward k of the part before; the first part needs none
//     backward (of inputs) k    backward (of inputs) k of the part behind; the last part: its own forward k
//     backward of weights k     its own backward of inputs k
// Where a backward of inputs is needed, a whole BACKWARD does, too: pipe_op_is says whether an op is the needed one.
bool pipe_op_needs(PipeOp op, size_t i, size_t p, size_t v, StageOp *needs);
// The reverse: which op of another part takes this one's y (forward) or dx (backward).
bool pipe_op_feeds(PipeOp op, size_t i, size_t p, size_t v, StageOp *feeds);
bool pipe_op_is(PipeOp op, PipeOp needed);
typedef struct { PipeOp *ops; size_t n; } Schedule;              // of one stage; free with schedule_free
typedef Schedule (*ScheduleRule)(size_t p, size_t m, size_t i);  // the list of stage i
Schedule schedule_naive(size_t p, size_t m, size_t i);           // a micro-batch there and back, then the next one
Schedule schedule_gpipe(size_t p, size_t m, size_t i);           // all forwards, then all backwards (Huang et al. 2018)
void schedule_add(Schedule *s, PipeWhat what, size_t micro_batch);   // (schedule_1f1b is chapter 05's)
void schedule_add_op(Schedule *s, PipeOp op);
size_t schedule_chunks(const Schedule *s);                       // v: one more than the largest chunk of its ops
void schedule_free(Schedule *s);

// Runs one step's schedule: gradients are added to m's, in the order of the list's backwards. batch[k]: micro-batch k.
//
// Which lists run? A stage starts a send and goes on. But it has only two send buffers for activations and two for
// gradients, and it posts only one receive ahead from each neighbour (with two stages, both neighbours are one):
//     a receive is posted at the start, and the next one when its message is there
//     a send buffer is free again when the other stage has posted the receive of its message
//     an op first receives its message, then waits for a send buffer, then computes, then starts its send
// So a stage runs at most three messages ahead of a neighbour: one for the posted receive, two in the buffers. Before
// the op that makes a fourth one it waits until the neighbour has received another one. If every stage waits, for a
// message or for a send buffer, the lists deadlock. The lists of chapters 04 and 05 never do; judge.h (chapter 05)
// says it of any list.
//
// For each neighbour MEM_COMMUNICATION holds the send buffers, as large as the largest micro-batch's message (one, if
// there is only one micro-batch), and the next message to be received, until it is there.
PipelineResult pipeline_run(Comm *pp, Model *m, const Schedule *s, const Batch *batch, size_t micro_batches);

// A list may go over several steps without the pipeline ever running empty: its ops UPDATE say when a stage updates its
// weights, their versions which weights an op reads (PipeDream, Harlap et al. 2018; 2BW, Narayanan et al. 2021). Both
// are the caller's: attach is called before every op that computes, and lets m read that version
// (model_attach_weights); update stands for an op UPDATE. batch[k] are all micro-batches of all steps.
typedef struct {
    void (*attach)(void *who, Model *m, PipeOp op);
    void (*update)(void *who, Model *m, PipeOp op);
    void *who;
    double *loss;                                  // [micro-batches] of each: see PipelineBatch; NULL: not asked for
} PipelineWeights;
PipelineResult pipeline_run_versions(Comm *pp, Model *m, const Schedule *s, const Batch *batch, size_t micro_batches,
                                     const PipelineWeights *weights);

// ---------------------------------------------------------------- 04_partition.c: which layers a stage has

// Cuts cost [n] into p <= n neighbouring parts whose largest sum is as small as possible: part i is first[i] up to
// first[i+1], first [p+1]. Returns that sum.
double partition_min_max(const double *cost, size_t n, size_t p, size_t *first);
// Measured costs: embedding, blocks, head with loss, L + 2 of them. Called after all other wraps; what the model's
// layers take is added to cost, which must live as long.
size_t partition_items(const ModelConfig *c);
void partition_time_layers(Model *m, double *cost);
// blocks [p v] of each stage, or of each of its v chunks in model order, <- the best cut for the costs that the stages
// have measured; collective, the same on all of them.
void partition_solve(Comm *pp, const ModelConfig *c, size_t v, double *cost, size_t *blocks);
// Weights and moments of all layers, from a model cut as before [p v] says into one cut as after [p v] says, which is
// allocated with its optimizer state. Collective.
void pipeline_migrate(Comm *pp, const Optimizer *o, const Model *from, const size_t *before, Model *to,
                      const size_t *after);

// ---------------------------------------------------------------- the step of a lesson (chapters 04 and 05)

// This rank in a pipeline that is trained: the first argument of a Step.
typedef struct {
    Comm *pp, *tied;                               // all stages; {first, last}, or NULL
    ScheduleRule schedule;                         // which list pipeline_step runs
    size_t in_flight;                              // of the last step
} PipelineRank;
StepResult pipeline_step(void *rank, Model *m, Optimizer *o, const Training *t, const Batch *batch);     // 03_gpipe.c
// What follows the last backward, whatever the schedule was: tied sum, sums of loss and squares, update. 02_naive.c.
StepResult pipeline_update(PipelineRank *rank, Model *m, Optimizer *o, const Training *t, const Batch *batch,
                           PipelineResult r);
#endif
