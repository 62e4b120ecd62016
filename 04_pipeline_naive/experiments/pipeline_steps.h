// pipeline_steps.h: what the executor is expected to do with a schedule list, as steps for the
// player (judge/play). The rules of pipelines stand here a second time: nothing of executor.c is
// called, because these steps judge it. tests/test_lists.c and tests/test_play.c compare both.
#ifndef PIPELINE_STEPS_H
#define PIPELINE_STEPS_H
#include "04_pipeline_naive/pipeline.h"
#include "judge/play/play.h"

// The rules of pipe_op_needs, pipe_op_feeds and pipe_op_is: the op whose result this op of stage i
// of p takes, with v chunks on each stage; the op of another part that takes its result; whether an
// op is the needed one. false: none.
bool steps_needs(PipeOp op, size_t i, size_t p, size_t v, StageOp *needs);
bool steps_feeds(PipeOp op, size_t i, size_t p, size_t v, StageOp *feeds);
bool steps_op_is(PipeOp op, PipeOp needed);

// The places of an op's steps in its rank's list, in their order. PLAY_NEVER: the op has no such
// step.
typedef struct {
    size_t input;                                  // waits for the message that the op takes
    size_t buffer;                                 // waits for a send buffer
    size_t begin, end;                             // what the op computes: steps [begin, end)
    size_t send;
} OpPlaces;

typedef struct {
    size_t p, v, i;                                // stage i of p, each with v chunks
    size_t group; // the pipeline's ranks in the player: stage i is member i
    const Schedule *list;                          // of stage i
    // Appends what an op computes. After the op that ends a micro-batch it also drops x from
    // MEM_ACTIVATIONS.
    void (*compute)(Play *play, size_t rank, PipeOp op, const void *context);
    const void *context;
    // bytes[k]: of a message of micro-batch k of m, over the play's links. NULL: messages take this
    // time, and no memory.
    const size_t *bytes;
    size_t m;
    Picoseconds message;
} PipelineSteps;
// Appends the list to the steps of this rank. place [list->n], or NULL.
void pipeline_steps(Play *play, size_t rank, const PipelineSteps *s, OpPlaces *place);
#endif
