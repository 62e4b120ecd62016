// pipeline_steps.h: the steps that the executor must make for a schedule list, for the player
// (judge/play). The rules of pipelines are written here a second time and call nothing of
// executor.c, because these steps judge it. tests/test_lists.c and tests/test_play.c compare the
// two.
#ifndef PIPELINE_STEPS_H
#define PIPELINE_STEPS_H
#include "04_pipeline_naive/pipeline.h"
#include "judge/play/play.h"

// The rules of pipe_op_needs, pipe_op_feeds and pipe_op_is, for op of stage i of p with v chunks on
// each stage. needs: the op whose result it takes. feeds: the op of another part that takes its
// result. Both return false if there is no such op. is: whether op is the needed op.
bool steps_needs(PipeOp op, size_t i, size_t p, size_t v, StageOp *needs);
bool steps_feeds(PipeOp op, size_t i, size_t p, size_t v, StageOp *feeds);
bool steps_op_is(PipeOp op, PipeOp needed);

// The places of an op's steps in its rank's list. PLAY_NEVER: the op has no such step.
typedef struct {
    size_t input;                                  // waits for the message that the op takes
    size_t buffer;                                 // waits for a send buffer
    size_t begin, end;                             // computes: steps [begin, end)
    size_t send;
} OpPlaces;

typedef struct {
    size_t p, v, i;                                // stage i of p, each with v chunks
    size_t group; // the pipeline's ranks in the player: stage i is member i
    const Schedule *list;                          // of stage i
    // Appends the work of an op. After the last op of a micro-batch it also drops x from
    // MEM_ACTIVATIONS.
    void (*compute)(Play *play, size_t rank, PipeOp op, const void *context);
    const void *context;
    // bytes[k]: of a message of micro-batch k of m, sent over the play's links. NULL: messages take
    // the time `message`, and no memory.
    const size_t *bytes;
    size_t m;
    Picoseconds message;
} PipelineSteps;
// Appends the list to the steps of this rank. place [list->n], or NULL.
void pipeline_steps(Play *play, size_t rank, const PipelineSteps *s, OpPlaces *place);
#endif
