// stack.h: a stack of equal blocks, the model for which the closed forms of pipelines are exact. No
// embedding and no head: the first stage starts from values drawn for each token, and the last one
// takes a token's first feature as its loss. Backward's GEMMs have exactly twice the FLOPs of
// forward's, so t_b = 2 t_f.
#ifndef STACK_H
#define STACK_H
#include "04_pipeline_naive/pipeline.h"
#include "judge/draw/picture.h"
#include "judge/frame/lesson.h"

typedef struct {
    ModelConfig model;
    size_t blocks, sequences;                      // of a stage; of a micro-batch
    size_t chunks;  // in which a stage has its blocks, of equal size; 0: one (05.03)
} Stack;
Model *stack_new(const Stack *s, size_t p, size_t i);  // stage i's part, allocated

// One step of m micro-batches, by the executor or by a lesson's own loop; stage i is rank i of the
// world. Its events stand until the next recording. activations: peak bytes
typedef struct { PipelineResult result; Timing timing; size_t activations; } Played;
Played stack_play(Run *run, const Stack *s, ScheduleRule rule, size_t m);
Played stack_play_loop(Run *run, const Stack *s, PipelineLoop *loop, size_t m);
// The list is this rank's.
Played stack_play_list(Run *run, const Stack *s, const Schedule *list, size_t m);
// By whatever runs m micro-batches through a stage; how: its own. The picture shows memory of
// category `watched`.
typedef PipelineResult StackRunner(const void *how, Comm *pp, Model *stage, const Batch *batch,
                                   size_t m);
Played stack_play_by(Run *run, const Stack *s, MemoryCategory watched, StackRunner *runner,
                     const void *how, size_t m);

// The times of a stage's forward and backward of a micro-batch under the simulated clock, and a
// message: from sizes.
typedef struct { Picoseconds forward, backward, message; } StackTimes;
StackTimes stack_times(const Stack *s);
// Bytes of activations that a micro-batch keeps.
size_t stack_kept(const Stack *s, size_t p, size_t i);
// Two costs: how long a stage is idle in a step, as a share of the step and of the ideal, m (t_f +
// t_b). by_formula, by_play: how long the step takes; at least one is given. Ids: idle.<id>,
// idle-of-ideal.<id>.
void stack_check_bubble(Run *run, const char *id, const char *name, const Stack *s, size_t m,
                        Predicted by_formula, Predicted by_play, const Timing *seen);
#endif
