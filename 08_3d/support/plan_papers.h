// plan_papers.h: the plan against published tables.
#ifndef PLAN_PAPERS_H
#define PLAN_PAPERS_H
#include "common/lesson/lesson.h"

void plan_papers(Run *run);
#endif
