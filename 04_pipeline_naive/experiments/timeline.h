// timeline.h: computes the times of a step from the op lists alone, without model, ranks or clock.
//
// A stage runs the ops of its list in order. An op starts as soon as the previous op is done and
// the op's input is there. An op that sends a message also waits for a free send buffer. This wait
// adds no time, as on the simulated clock, but lists can deadlock because of this wait. The
// executor has the same rules (pipeline.h). Times are whole units. A message leaves when it is sent
// and the previous message of the same link and direction has arrived. The message takes `message`
// units, which may be 0. The sender does not wait.
#ifndef TIMELINE_H
#define TIMELINE_H
#include "04_pipeline_naive/pipeline.h"
#include "judge/play/play.h"

typedef struct {
    PipeOp op;
    size_t start, end;
    size_t arrives; // when the op's message is at the neighbour
} Event;
// The reason why a stage stopped. If `buffer` is false, the next op of the stage waits for the
// result of `needs`. If `buffer` is true, the op waits for a send buffer, which becomes free when
// the receive for `needs` is posted.
typedef struct {
    bool buffer;
    StageOp needs;
} StageWait;
typedef struct {
    size_t p, v, m;
    Event **event;   // [stage][place in the list]
    size_t *n;       // [stage]: number of ops that have run
    StageWait *wait; // [stage]: set for stages that have ops left
    size_t end;      // the end of the last op, called makespan
    bool stuck;      // the lists deadlock
} Timeline;
Timeline timeline_with_times(const Schedule *stage, size_t p, size_t m, const OpTimes *times);
Timeline timeline_of_stages(const Schedule *stage, size_t p, size_t m,
                            const OpTimes *times); // times[p]
void timeline_free(Timeline *t);
size_t timeline_busy(const Timeline *t); // returns the units of work of all stages

// Returns the list as a text, such as "F0 F1 B0". With several chunks each op names its chunk, as
// in "F0c1". The caller calls free() on the text.
char *schedule_text(const Schedule *s);
Schedule *schedule_all(ScheduleRule rule, size_t p, size_t m); // returns the lists of all stages
void schedule_all_free(Schedule *stage, size_t p);
// Returns the time at which the last op of these lists ends, in the units of `times`, or SIZE_MAX
// if the lists deadlock. Frees the lists.
size_t lists_makespan(Schedule *stage, size_t p, size_t m, const OpTimes *times);

// ---- pipeline_steps.c ----
// These functions write the steps that the executor must make for a schedule list, for the player
// (judge/play). pipeline_steps.c has the rules of pipelines a second time and calls nothing of
// executor.c, because these steps judge the executor.

// steps_needs, steps_feeds and steps_op_is return what pipe_op_needs, pipe_op_feeds and pipe_op_is
// return (pipeline.h).
bool steps_needs(PipeOp op, size_t i, size_t p, size_t v, StageOp *needs);
bool steps_feeds(PipeOp op, size_t i, size_t p, size_t v, StageOp *feeds);
bool steps_op_is(PipeOp op, PipeOp needed);

// The places of an op's steps among the steps of its rank. PLAY_NEVER means that the op has no such
// step.
typedef struct {
    size_t input;      // the wait for the result that the op takes
    size_t buffer;     // the wait for a send buffer
    size_t begin, end; // the op computes in steps [begin, end)
    size_t send;       // the send of the op's message
} OpPlaces;

typedef struct {
    size_t p, v, i;       // stage i of p, each with v chunks
    size_t group;         // the pipeline's ranks in the player: stage i is member i
    const Schedule *list; // the list of stage i
    // Appends the work and the collectives of an op. pipeline_steps() never drops a received x from
    // MEM_ACTIVATIONS. So `compute` must drop x if the peak of MEM_ACTIVATIONS is wanted.
    void (*compute)(Play *play, size_t rank, PipeOp op, const void *context);
    const void *context;
    // bytes[k] is the size of a message of micro-batch k of m. Messages then take the time of the
    // play's links. If bytes is NULL, messages take the time `message` and no memory.
    const size_t *bytes;
    size_t m;
    Picoseconds message;
} PipelineSteps;
// Appends the list to the steps of this rank. `place` has list->n elements, or is NULL.
void pipeline_steps(Play *play, size_t rank, const PipelineSteps *s, OpPlaces *place);
#endif
