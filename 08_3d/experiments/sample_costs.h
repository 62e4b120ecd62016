// sample_costs.h: what a rank sends and keeps while it writes, from sizes alone.
#ifndef SAMPLE_COSTS_H
#define SAMPLE_COSTS_H
#include "judge/frame/lesson.h"
#include "common/model/model.h"

typedef struct { size_t tp, pp, tp_rank, pp_rank, top_k, prompt, tokens; } SampleSizes;
typedef struct { double rows, tp_bytes, pp_bytes, cache, seconds; } SampleMeasured;        // seconds: real time
void sample_costs(Run *run, const ModelConfig *c, const SampleSizes *z, const SampleMeasured *got);
#endif
