// train_memory.h: the line of the trainer's page about the memory of its processes.
#ifndef TRAIN_MEMORY_H
#define TRAIN_MEMORY_H
#include "common/lesson/lesson.h"

void train_show_memory(Run *run);                  // collective
#endif
