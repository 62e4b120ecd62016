// schedule_1f1b.h: one forward, one backward (PipeDream-Flush; Narayanan et al. 2021, "Memory-Efficient
// Pipeline-Parallel DNN Training", and PTD-P section 2.2). Same step time as GPipe; at most p - i micro-batches in
// flight on stage i instead of m.
#ifndef SCHEDULE_1F1B_H
#define SCHEDULE_1F1B_H
#include "04_pipeline_naive/pipeline.h"

Schedule schedule_1f1b(size_t p, size_t m, size_t i);
#endif
