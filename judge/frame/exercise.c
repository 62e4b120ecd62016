// exercise.c: collects and prints the open exercises of a student's tree. TODO (util.h) marks an
// open exercise.
#include "judge/frame/frame.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPEN = 16 };
typedef struct {
    char id[16], place[112];
} OpenExercise;
// The list is thread-local, because a virtual rank is a thread.
static _Thread_local OpenExercise met[MOST_OPEN];
static _Thread_local size_t met_count;

void exercise_open(const char *id, const char *file, int line) {
    for (size_t i = 0; i < met_count; i++)
        if (strcmp(met[i].id, id) == 0) return;
    if (met_count == MOST_OPEN) return;
    OpenExercise *e = &met[met_count++];
    snprintf(e->id, sizeof e->id, "%s", id);
    snprintf(e->place, sizeof e->place, "%s:%d", file, line);
}

// Gathers the lists of all ranks, because not every rank meets every exercise. For example, only
// the last stage of a pipeline computes the loss.
size_t exercises_report(Comm *world) {
    size_t *sizes = NULL, bytes = 0, count = 0;
    void *all = side_gather(met, met_count * sizeof met[0], &sizes);
    for (size_t i = 0; world->rank == 0 && i < world->size; i++) bytes += sizes[i];
    const OpenExercise *e = all;
    for (size_t i = 0; i < bytes / sizeof *e; i++) {
        bool told = false;
        for (size_t k = 0; k < i; k++) told |= strcmp(e[k].id, e[i].id) == 0;
        if (told) continue;
        printf("exercise %s is open: %s\n", e[i].id, e[i].place);
        count++;
    }
    free(all);
    free(sizes);
    return count;
}
