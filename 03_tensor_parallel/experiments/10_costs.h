// 10_costs.h: what 10_tesseract measures on a rank, held against the closed forms; and its page.
#ifndef TESSERACT_COSTS_H
#define TESSERACT_COSTS_H
#include "03_tensor_parallel/experiments/09_costs.h"

void tesseract_costs(Run *run, const CommGrid *g, const ModelConfig *c, size_t sequences, const SummaMeasured *r);
#endif
