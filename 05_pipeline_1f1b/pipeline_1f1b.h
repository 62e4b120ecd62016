// pipeline_1f1b.h: one forward, one backward (PipeDream-Flush; Narayanan et al. 2021, "Memory-Efficient
// Pipeline-Parallel DNN Training", and PTD-P section 2.2). Same step time as GPipe; at most p - i micro-batches in
// flight on stage i instead of m. And interleaved 1F1B (PTD-P section 2.2): a stage has v chunks of the model, the
// bubble is 1/v of 1F1B's, and messages are about v times as many.
#ifndef PIPELINE_1F1B_H
#define PIPELINE_1F1B_H
#include "04_pipeline_naive/pipeline.h"

// 02_1f1b.c
PipelineLoop pipeline_1f1b;                                      // a step's forwards, backwards and messages, as loops
Schedule schedule_1f1b(size_t p, size_t m, size_t i);            // the same order as a list, for pipeline_run

// 03_interleaved.c. v > 1: m is a multiple of p; v = 1: the list of schedule_1f1b.
Schedule schedule_interleaved(size_t p, size_t m, size_t v, size_t i);
// Stage i's chunks: parts i, p + i, ... of v p. blocks: of each part [v p], or NULL: as equal as possible.
Model *interleaved_describe(const ModelConfig *c, const size_t *blocks, size_t p, size_t v, size_t i);
PipelineLoop pipeline_interleaved;                               // v = model_chunks(); 1 where pp has one rank
// A message between two stages of t tensor-parallel ranks each (PTD-P section 4.1): y, alike on the t ranks of a stage,
// travels in t parts over pp and is put together over tp. to, from: ranks of pp.
void pipeline_send_scattered(Comm *pp, Comm *tp, Tensor y, size_t to);
void pipeline_recv_gathered(Comm *pp, Comm *tp, Tensor x, size_t from);
#endif
