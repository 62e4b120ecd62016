// judge.h: whether the lists of all stages make a pipeline, how long a step of them takes, and, if it takes long or
// never ends, who waits for whom. For any list: several chunks, backwards in halves. 01_by_hand.c has the same for
// plain ones, where it is explained.
#ifndef JUDGE_H
#define JUDGE_H
#include "04_pipeline_naive/experiments/timeline.h"

// NOT_ONCE: an op stands twice in a list, or never. WRONG_MESSAGE: a stage takes a message for another one's (they come
// in the order in which they were sent, and carry no names). DEADLOCK: stages wait for each other, for a result or a
// send buffer (pipeline.h says how many there are). A LEGAL list runs in pipeline_run.
typedef enum { LISTS_LEGAL, LISTS_NOT_ONCE, LISTS_WRONG_MESSAGE, LISTS_DEADLOCK } ListsVerdict;
enum { JUDGE_REASON = 2400, JUDGE_WAITS = 3 };
typedef struct {
    ListsVerdict verdict;
    char why[JUDGE_REASON];                        // what is wrong, in lines: who waits for whom
    size_t end;                                    // of the last op, where the lists are legal
    // The longest waits of legal lists: so long this stage waits before this op, for that one.
    struct { size_t units, stage, from; PipeOp op; } wait[JUDGE_WAITS];
    size_t waits;
} Judgement;
// stage[p], m micro-batches; v: chunks, one more than the largest in any list. Times in whole units, of one chunk.
Judgement judge_lists(const Schedule *stage, size_t p, size_t m, size_t v, const OpTimes *times);
size_t judge_in_flight(const Schedule *s);         // most chunks between their forward and their last backward

// "F0 F1 B0 B1 / F0 B0 F1 B1": the stages' lists. F forward, B backward, I and W its halves, of inputs and of weights;
// F0c1: of chunk 1. *p: how many. free with schedule_all_free. usage_error() where it is no list.
Schedule *lists_parse(const char *text, size_t *p);
#endif
