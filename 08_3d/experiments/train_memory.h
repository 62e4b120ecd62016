// train_memory.h: what the ledger says beside what the process had, on the trainer's page.
// Virtual ranks are one process.
#ifndef TRAIN_MEMORY_H
#define TRAIN_MEMORY_H
#include "judge/frame/lesson.h"

void train_show_memory(Run *run);                  // collective
#endif
