// makespan.h: computes the time of a step from the lists of ops that a schedule rule returns.
// Messages take no time.
#ifndef MAKESPAN_H
#define MAKESPAN_H
#include "04_pipeline_naive/experiments/timeline.h"

// Returns the time from the first forward to the last backward, or SIZE_MAX if the lists deadlock.
static inline size_t makespan(ScheduleRule rule, size_t p, size_t m, size_t t_f, size_t t_b) {
    return lists_makespan(schedule_all(rule, p, m), p, m, &(OpTimes){ t_f, t_b, 0, 0 });
}
#endif
