// checkpoint.h: a training that can be taken up again, at the same layout bit for bit, or at any
// other.
//
//     DIR/step-000400/index.json              run, step, options, data, for each file its bytes and
//                                             a sum over them, and a sum over the index itself
//     DIR/step-000400/rank-0003.safetensors   what rank 3 owns: weights "wte.weight", moments "wte.weight.m" and ".v"
//
// Every element is owned by one rank (replicas and copies write nothing), which writes it, and
// no rank ever holds the whole model: a rank that resumes maps the files and picks its elements
// by their place in the whole tensor. A tensor in a file is a rectangle of the whole one, or a
// stretch of a flattened rectangle; "__metadata__" says which. A checkpoint is written as
// DIR/step-000400.part and renamed when all of it is on the disk: it is there whole or not at
// all.
#ifndef CHECKPOINT_H
#define CHECKPOINT_H
#include "08_3d/checkpoint_index.h"
#include "common/comm/comm.h"
#include "common/model/optimizer.h"

// Why something failed; lines for the page.
enum { CHECKPOINT_WHY = 1024, CHECKPOINT_NOTE = 2048 };
extern const char *const checkpoint_suffix[];      // of a tensor's name, by UnitTensor
extern const char checkpoint_rank_state[];         // a RankState's name, a tensor without a note

// What a rank has that no other layout could use, such as what --compress has not sent. layout:
// one text for all ranks, which says what it is of. n 0 for who has none.
typedef struct { char *layout; real *values; size_t n; } RankState;
// The elements of p in the unit that this rank writes. Every element of a model is written by
// one rank.
Range checkpoint_written(const Unit *u, const Param *p);

// Collective. step: how many are done. eval_loss: the held-out loss after them, NAN where it was
// not measured. Changes the best step of *saved. keep: the newest checkpoints that stay, 0: all.
// note: lines for the page, or "". fault() when it cannot be written; the checkpoints that were
// there stay.
struct RunOptions;                                 // resume.h
void checkpoint_save(Comm *world, const struct RunOptions *options, const Model *m,
                     const Optimizer *o, const RankState *state, SavedRun *saved, const char *dir,
                     size_t step, double eval_loss, size_t keep, char note[CHECKPOINT_NOTE]);

typedef struct Checkpoint Checkpoint;
// The checkpoint in the folder dir. NULL: there is none, it is torn, foreign or of another
// version; why says so. Not collective, and looks at the index and at headers only.
Checkpoint *checkpoint_read(const char *dir, char why[CHECKPOINT_WHY]);
void checkpoint_free(Checkpoint *c);
// Reads all of file i. False: its bytes are not what was written.
bool checkpoint_verify(const Checkpoint *c, size_t i, char why[CHECKPOINT_WHY]);
// Collective: the newest checkpoint in dir, or dir itself, read and verified. newest_good: if it
// is torn, the newest one that is not; note [room] says so then. NULL on all ranks: why says
// what is wrong, and names the newest good one.
Checkpoint *checkpoint_open(Comm *world, const char *dir, bool newest_good,
                            char why[CHECKPOINT_WHY], char *note, size_t room);
size_t checkpoint_step(const Checkpoint *c);
const char *checkpoint_folder(const Checkpoint *c);
const CheckpointIndex *checkpoint_index(const Checkpoint *c);
// As it was given or by default; or NULL.
const char *checkpoint_option(const Checkpoint *c, const char *name);
// Fills what this rank holds of m, and, where o has moments, those it owns; o NULL: weights
// only. Moments that the checkpoint does not have stay as they are. usage_error() when the
// checkpoint is of another model.
void checkpoint_load(const Checkpoint *c, Model *m, Optimizer *o);
// What rank `rank` had of its own, where want->n are expected: free() them. NULL: the training
// kept no such thing. usage_error() when it is of another layout than want's.
real *checkpoint_load_state(const Checkpoint *c, size_t rank, const RankState *want);
#endif
