// experiments.h: declares functions that train stages, run stacks of equal stages, and predict
// costs from sizes.
#ifndef PIPELINE_EXPERIMENTS_H
#define PIPELINE_EXPERIMENTS_H
#include "04_pipeline_naive/experiments/timeline.h"
#include "04_pipeline_naive/pipeline.h"
#include "common/comm/clock.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include "judge/frame/lesson.h"
#include "judge/frame/training.h"

// ---- stages.c ----

// The costs of this rank. Messages and sums are averages per step.
typedef struct {
    double messages, message_bytes, tied_calls, tied_bytes, scalar_calls, scalar_bytes;
    size_t in_flight;                        // most micro-batches in flight in the last step
    size_t parameters, gradients, optimizer; // live bytes after the last step
    size_t activations, message_buffers;     // peak bytes of the last step
    Timing timing;                           // times of the last step, if that step was recorded
    double loss, unsplit_loss;               // of the last step; unsplit: on one device
} StageCosts;

// Returns a training of three steps. A step has `sequences` synthetic sequences in --micro-batches
// micro-batches. Calls usage_error() if the run has more ranks than blocks, or more micro-batches
// than sequences. The caller calls data_free() on the data.
Training stages_training(Run *run, const ModelConfig *model, size_t sequences);

// StagesWay is a way to train. The training calls `step` with a PipelineRank that has this
// `schedule`. If `step` is NULL, the training calls `loop` and then pipeline_update.
typedef Model *StageModel(Run *run, const Training *t);
typedef struct {
    const char *what;  // the name of the comparison with one device
    const char *title; // the title of the recorded step's picture, which needs --verbose
    PipelineStep *step;
    ScheduleRule schedule;
    PipelineLoop *loop; // a loop of forwards and backwards, used if `step` is NULL
    StageModel *stage;  // makes this rank's model; NULL: a stage of one chunk
} StagesWay;
// Trains m, which the caller has allocated and frees, and does not call way->stage. Compares and
// draws nothing.
StageCosts stages_train_model(Run *run, const Training *t, Model *m, const StagesWay *way,
                              Trajectory *out);
// Trains by each of n ways with SGD, then with AdamW. Checks that each training equals gradient
// accumulation on one device in every bit. If t->clip is given, also checks that each step was
// clipped. costs [n] are the costs of the trainings with AdamW.
void stages_compare(Run *run, const Training *t, const StagesWay *way, size_t n, StageCosts *costs);

// ---- stack.c ----
// A stack of equal blocks, for which the closed forms of pipelines are exact. The stack has no
// embedding and no head. The first stage makes random features for each token. The last stage takes
// a token's first feature as the token's loss. A backward's GEMMs have exactly twice the FLOPs of a
// forward's, so b = 2f.

typedef struct {
    ModelConfig model;
    size_t blocks;    // blocks of a stage
    size_t sequences; // sequences of a micro-batch
    size_t chunks;    // equal chunks of a stage (05.03); 0: one
} Stack;

// The results of one step of m micro-batches, run by the executor or by a lesson's own loop. Stage
// i is rank i of the world. picture_show can draw the step until the next recording.
typedef struct {
    PipelineResult result;
    Timing timing;
    size_t activations; // peak bytes
    size_t messages;    // number of messages that this rank sent
} Played;
Played stack_play(Run *run, const Stack *s, ScheduleRule rule, size_t m);
Played stack_play_loop(Run *run, const Stack *s, PipelineLoop *loop, size_t m);
// Runs the step by `runner`, which gets `how` as its first argument. The picture shows memory of
// category `watched`.
typedef PipelineResult StackRunner(const void *how, Comm *pp, Model *stage, const Batch *batch,
                                   size_t m);
Played stack_play_by(Run *run, const Stack *s, MemoryCategory watched, StackRunner *runner,
                     const void *how, size_t m);

// Returns the time of a message with B sequences to a neighbour, under the simulated clock.
Picoseconds stage_message_time(const ModelConfig *c, size_t B);
// The times of a stage's forward, of its backward and of a message, for one micro-batch under the
// simulated clock. The times are computed from sizes.
typedef struct {
    Picoseconds forward, backward, message;
} StackTimes;
StackTimes stack_times(const Stack *s);
// Returns the bytes of activations that stage i of p keeps per micro-batch.
size_t stack_kept(const Stack *s, size_t p, size_t i);
// Returns the idle share, in millionths, of a step of m micro-batches that takes `step`
// picoseconds.
double stack_idle(const Stack *s, size_t m, double step);

// ---- stage_costs.c ----
// Predicts the costs of stage i of p from sizes alone.

CutSizes stage_sizes(const ModelConfig *c, size_t p, size_t i);
size_t stage_tokens(const Training *t, size_t k); // returns the tokens of micro-batch k
size_t stage_neighbours(const Run *run);          // returns how many neighbours this stage has
// Returns the peak bytes of message buffers under the executor.
size_t stage_message_buffers(const Training *t, size_t p, size_t i);
// Returns the time of the sums at the end of a step: of a tied wte's gradient, of the loss and of
// the squares.
double stage_sums_time(const ModelConfig *c, size_t p);
// Checks the costs of a training: messages, sums, state, and memory. The memory is predicted with
// `flight` micro-batches in flight and `buffers` bytes of message buffers. Stage i is rank i. `way`
// is the prefix of the costs' names and ids, as in "gpipe: messages sent" and "gpipe.sent.calls".
// If `way` is NULL, there is no prefix.
void stage_check_costs(Run *run, const Training *t, const char *way, size_t flight, size_t buffers,
                       const StageCosts *seen);

// Checks messages and memory of a training by a lesson's own loop. The loop runs the ops in the
// order of `rule`, with `flight` micro-batches in flight. Under the simulated clock also runs the
// loop on equal stages, and checks the time of the step.
void stage_check_loop(Run *run, const Training *t, PipelineLoop *loop, ScheduleRule rule,
                      size_t flight, const StageCosts *seen);

// Returns the sum over the ranks. The ledgers do not count this sum.
double sum_of_ranks(Run *run, double of_this_rank);

// ---- partition_costs.c ----

enum { PARTITION_STAGES = 16 }; // the largest number of stages
// The first GROWN_BLOCKS blocks cost GROWTH times as much in step GROWN and later, because the
// clock then counts their FLOPs GROWTH times. Steps are counted from 0, and blocks may move before
// steps MOVE_EVERY, 2 MOVE_EVERY, ...
enum { PARTITION_STEPS = 6, MOVE_EVERY = 2, GROWN = 3, GROWN_BLOCKS = 3, GROWTH = 3 };

// The measurements of a training on this rank.
typedef struct {
    size_t blocks[PARTITION_STEPS][PARTITION_STAGES]; // blocks of each stage, in each step
    Timing timing[PARTITION_STEPS];
    double moved_bytes[PARTITION_STEPS]; // sent before each step to move blocks
} Rebalanced;

// Checks step times, slowest stages, and the bytes of the blocks that move. `stays` is the training
// with the fixed cut, and `moved` the training with the moving cut.
void partition_check_costs(Run *run, const Training *t, const Rebalanced *stays,
                           const Rebalanced *moved);

// ---- cuts.c ----
void partition_cuts(Run *run); // checks that partition_min_max finds the best of all cuts
// Tries all cuts of cost [n] into p parts. Returns the smallest value that the largest part can
// have. *last becomes the first layer of the last part of such a cut, as early as possible.
double partition_exhaustive(const double *cost, size_t n, size_t p, size_t *last);
#endif
