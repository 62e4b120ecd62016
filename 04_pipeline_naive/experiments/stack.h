// stack.h: a stack of equal blocks, for which the closed forms of pipelines are exact. It has no
// embedding and no head: the first stage starts from random values for each token, and the last
// stage takes a token's first feature as its loss. A backward's GEMMs have exactly twice the FLOPs
// of a forward's, so b = 2f.
#ifndef STACK_H
#define STACK_H
#include "04_pipeline_naive/pipeline.h"
#include "judge/draw/picture.h"
#include "judge/frame/lesson.h"

typedef struct {
    ModelConfig model;
    size_t blocks, sequences;                      // of a stage; of a micro-batch
    size_t chunks;                                 // equal chunks of a stage (05.03); 0: one
} Stack;
Model *stack_new(const Stack *s, size_t p, size_t i);  // stage i's part, allocated

// One step of m micro-batches, by the executor or by a lesson's own loop; stage i is rank i of the
// world. The recorded events last until the next recording. activations: peak bytes.
typedef struct { PipelineResult result; Timing timing; size_t activations; } Played;
Played stack_play(Run *run, const Stack *s, ScheduleRule rule, size_t m);
Played stack_play_loop(Run *run, const Stack *s, PipelineLoop *loop, size_t m);
// The list is this rank's.
Played stack_play_list(Run *run, const Stack *s, const Schedule *list, size_t m);
// The step is run by `runner`, which also gets `how`. The picture shows memory of category
// `watched`.
typedef PipelineResult StackRunner(const void *how, Comm *pp, Model *stage, const Batch *batch,
                                   size_t m);
Played stack_play_by(Run *run, const Stack *s, MemoryCategory watched, StackRunner *runner,
                     const void *how, size_t m);

// The times of a stage's forward, of its backward and of a message for one micro-batch under the
// simulated clock, computed from sizes.
typedef struct { Picoseconds forward, backward, message; } StackTimes;
StackTimes stack_times(const Stack *s);
// Bytes of activations that a micro-batch keeps.
size_t stack_kept(const Stack *s, size_t p, size_t i);
// Checks two costs: the idle time of a stage as a share of the step, and of the ideal step m (f +
// b). by_formula, by_play: the predicted time of the step; at least one is given. Ids: idle.<id>,
// idle-of-ideal.<id>.
void stack_check_bubble(Run *run, const char *id, const char *name, const Stack *s, size_t m,
                        Predicted by_formula, Predicted by_play, const Timing *seen);
#endif
