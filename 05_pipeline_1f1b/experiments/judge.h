// judge.h: judges the lists of all stages. It finds whether they are legal, how long a step takes,
// and which stage waits for which. Lists may have several chunks and backwards in halves.
// 01_by_hand.c explains the same judge for plain lists.
#ifndef JUDGE_H
#define JUDGE_H
#include "04_pipeline_naive/experiments/timeline.h"

// NOT_ONCE: an op occurs twice in a list, or never. WRONG_MESSAGE: a stage takes a message for
// another op's message. This can happen because messages carry no names and arrive in the order in
// which they were sent. DEADLOCK: stages wait for each other, for a result or for a send buffer
// (pipeline.h gives their number). LEGAL lists run in pipeline_run.
typedef enum { LISTS_LEGAL, LISTS_NOT_ONCE, LISTS_WRONG_MESSAGE, LISTS_DEADLOCK } ListsVerdict;
enum { JUDGE_REASON = 2400, JUDGE_WAITS = 3 };
typedef struct {
    ListsVerdict verdict;
    char why[JUDGE_REASON];                        // lines that say what is wrong
    size_t end;                                    // of the last op, if the lists are legal
    // The longest waits of legal lists: stage waits `units` before op, for stage `from`.
    struct { size_t units, stage, from; PipeOp op; } wait[JUDGE_WAITS];
    size_t waits;
} Judgement;
// stage[p], m micro-batches, v chunks. Times are whole units, of one chunk.
Judgement judge_lists(const Schedule *stage, size_t p, size_t m, size_t v, const OpTimes *times);
// Most chunks between their forward and their last backward.
size_t judge_in_flight(const Schedule *s);

// Reads "F0 F1 B0 B1 / F0 B0 F1 B1", the lists of *p stages. F is a forward, B a backward. I and W
// are the two halves of a backward: of inputs and of weights. F0c1 is forward 0 of chunk 1.
// usage_error() if the text is not a list. Free the lists with schedule_all_free.
Schedule *lists_parse(const char *text, size_t *p);
#endif
