// pipeline_1f1b.h: one forward, one backward (PipeDream-Flush; Narayanan et al. 2021, "Memory-Efficient
// Pipeline-Parallel DNN Training", and PTD-P section 2.2). Same step time as GPipe; at most p - i micro-batches in
// flight on stage i instead of m. Both stand in 02_1f1b.c.
#ifndef PIPELINE_1F1B_H
#define PIPELINE_1F1B_H
#include "04_pipeline_naive/pipeline.h"

PipelineLoop pipeline_1f1b;                                      // a step's forwards, backwards and messages, as loops
Schedule schedule_1f1b(size_t p, size_t m, size_t i);            // the same order as a list, for pipeline_run

// Zero bubble (Qi et al. 2023, "Zero Bubble Pipeline Parallelism"): backwards in two halves. 06_zero_bubble.c.
Schedule schedule_zb_h1(size_t p, size_t m, size_t i);           // min(p, m) in flight, counted until W
// Made from the times of the ops and of a message; at most cap (1 or more) micro-batches in flight on each stage.
Schedule schedule_zb_auto(size_t p, size_t m, size_t i, size_t cap, OpTimes times);
#endif
