// costs.h: the cost lines of 02_1f1b: what chapter 04 predicts of a stage, and what 1F1B changes.
#ifndef PIPELINE_1F1B_COSTS_H
#define PIPELINE_1F1B_COSTS_H
#include "04_pipeline_naive/support/costs.h"

void pipeline_1f1b_costs(Run *run, const Training *t, const StageCosts *seen, const StageCosts *gpipe);
void pipeline_1f1b_loop_costs(Run *run, const Training *t, const StageCosts *loop);        // of pipeline_1f1b itself
#endif
