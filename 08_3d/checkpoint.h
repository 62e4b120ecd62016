// checkpoint.h: a training that can be taken up again, at the same layout bit for bit, or at any other.
//
//     DIR/step-000400/index.json              step, options, optimizer, and of each file its bytes and a sum over them
//     DIR/step-000400/rank-0003.safetensors   what rank 3 owns: weights "wte.weight", moments "wte.weight.m" and ".v"
//
// Every element is owned by one rank (replicas and copies write nothing), which writes it, and nobody ever holds the
// whole model: who resumes maps the files and picks its elements by their place in the whole tensor. A tensor in a file
// is a rectangle of the whole one, or a stretch of a flattened rectangle; "__metadata__" says which. A checkpoint is
// written as DIR/step-000400.part and renamed when all of it is on the disk: it is there whole or not at all.
#ifndef CHECKPOINT_H
#define CHECKPOINT_H
#include "common/lesson/lesson.h"
#include "common/model/optimizer.h"

enum { CHECKPOINT_WHY = 1024 };

// usage_error() when nothing can be written in DIR, which is made if it is not there: asked before the training.
void checkpoint_require(Run *run, const char *dir);
// What a rank has that no other layout could use, such as what --compress has not sent. layout: one text for all ranks,
// which says what it is of. n 0 for who has none.
typedef struct { char *layout; real *values; size_t n; } RankState;
// Collective. step: how many are done. fault() when it cannot be written; what was there before stays.
void checkpoint_save(Run *run, const Model *m, const Optimizer *o, const RankState *state, const char *dir,
                     size_t step);

typedef struct Checkpoint Checkpoint;
// DIR: the newest checkpoint in it, or itself one. NULL: there is none, it is torn, foreign or from the future; why
// says so. Not collective, and looks at headers only.
Checkpoint *checkpoint_read(const char *dir, char why[CHECKPOINT_WHY]);
void checkpoint_free(Checkpoint *c);
size_t checkpoint_step(const Checkpoint *c);
const char *checkpoint_option(const Checkpoint *c, const char *name);      // as it was given or by default; or NULL
// Collective: every file's bytes are read once, by one of the ranks, and their sum compared. usage_error() when they
// are not what was written.
void checkpoint_verify(Run *run, const Checkpoint *c);
// Fills what this rank holds of m, and, where o has moments, those it owns; o NULL: weights only. usage_error() when
// the checkpoint is of another model or optimizer.
void checkpoint_load(const Checkpoint *c, Model *m, Optimizer *o);
// What rank `rank` had of its own, where want->n are expected: free() them. NULL: the training kept no such thing.
// usage_error() when it is of another layout than want's.
real *checkpoint_load_state(const Checkpoint *c, size_t rank, const RankState *want);

// Collective: what a run that resumes does. Opens DIR, verifies it, and takes the options from it that define the
// training and were not given on the command line; usage_error() with the reason.
Checkpoint *checkpoint_resume(Run *run, const char *dir);
#endif
