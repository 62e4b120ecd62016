// plan_papers.h: the plan against published tables. Rank 0 computes; the others wait for its verdict.
#ifndef PLAN_PAPERS_H
#define PLAN_PAPERS_H
#include "08_3d/plan.h"
#include "judge/frame/lesson.h"

void plan_papers(Run *run);
void plan_korthikanti(Run *run);

// A GPT of PTD-P and Korthikanti: 2048 positions, 51200 vocabulary entries. On some kind of a DGX A100.
#define PAPER_GPT(L, h, a) { .layers = L, .width = h, .heads = a, .context = 2048, .vocab = 51200, .dropout = 0.1 }
PlanTask paper_task(PlanModel model, size_t gpus);
bool paper_within(double x, double want, double share);
// Does x, rounded or cut, stand there? "41.3" stands for anything that is less than 0.1 away.
bool paper_printed(double x, const char *text);
#endif
