// by_hand.h: declares the lists of 1F1B and the judge of 01_by_hand.c.
#ifndef PIPELINE_1F1B_BY_HAND_H
#define PIPELINE_1F1B_BY_HAND_H
#include "04_pipeline_naive/pipeline.h"

enum { MOST_STAGES = 8, MOST_MICRO = 24, T_FORWARD = 1, T_BACKWARD = 2 };
Schedule by_hand_1f1b(size_t p, size_t m, size_t i); // returns the list of stage i
typedef enum { LEGAL, NOT_ONCE, WRONG_MESSAGE, DEADLOCK } Verdict;
// `start` has the time at which each op of each stage starts, in list order. `end` is the time at
// which the last op of all stages ends.
typedef struct {
    Verdict verdict;
    size_t end, start[MOST_STAGES][2 * MOST_MICRO];
} Outcome;
Outcome by_hand_judge(const Schedule *stage, size_t p, size_t m); // plays the lists stage[p]
size_t by_hand_duration(PipeOp op);                               // in units of time
#endif
