// judge.h: judges the lists of all stages: are they legal, how long does a step take, and which
// stage waits for which. Lists may have several chunks and backwards in halves. 01_by_hand.c
// explains the same judge for plain lists.
#ifndef JUDGE_H
#define JUDGE_H
#include "04_pipeline_naive/experiments/timeline.h"

// NOT_ONCE: an op stands twice in a list, or never. WRONG_MESSAGE: a stage takes a message for
// another op's: messages come in the order in which they were sent, and carry no names. DEADLOCK:
// stages wait for each other, for a result or a send buffer (pipeline.h says how many there are).
// LEGAL lists run in pipeline_run.
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

// Reads "F0 F1 B0 B1 / F0 B0 F1 B1", the lists of *p stages. F is a forward, B a backward; I and W
// are its halves, of inputs and of weights; F0c1 is of chunk 1. usage_error() if the text is no
// list. Free the lists with schedule_all_free.
Schedule *lists_parse(const char *text, size_t *p);
#endif
