// checkpoint.h declares functions that save and resume a training. With the same layout a resumed
// training continues bit for bit. A training may also resume in another layout, unless the
// checkpoint has residuals of --compress.
//
//     DIR/step-000400/index.json              run, step, options, data, the size of each file and
//                                             a sum over its bytes, and a sum over the index
//     DIR/step-000400/rank-0003.safetensors   the elements of rank 3: weights "wte.weight",
//                                             moments "wte.weight.m" and ".v"
//
// With 16-bit storage a weight in the file is the master, in reals. The 16-bit weight is not saved,
// because checkpoint_load() rounds the master again. So a checkpoint has the same form for every
// --storage, and a run with another --storage can resume. The index also has the factor of a
// dynamic loss scale.
//
// Each element is written by the one rank that owns the element; replicas and copies write nothing.
// No rank needs memory for the whole model. A resuming rank maps the files and picks its elements
// by their place in the whole tensor. A tensor in a file is a rectangle of the whole tensor, or a
// range of a flattened rectangle. "__metadata__" gives the rectangle and the range. A checkpoint is
// written as DIR/step-000400.part, and renamed when all its files are on the disk. So a checkpoint
// is complete or does not exist.
#ifndef CHECKPOINT_H
#define CHECKPOINT_H
#include "08_3d/checkpoint_index.h"
#include "common/comm/comm.h"
#include "common/model/optimizer.h"

// Bytes of a text: the reason of a failure, and the lines for the page.
enum { CHECKPOINT_WHY = 1024, CHECKPOINT_NOTE = 2048 };
extern const char *const checkpoint_suffix[]; // [UnitTensor]: "", ".m", ".v" behind the name
// the name of two things: the tensor with the numbers of a RankState, and the index's member with
// the layout of the RankState
extern const char checkpoint_rank_state[];

// The numbers of one rank that no other layout can use, such as the residuals of --compress.
// layout: a text that describes the layout of the run, the same on all ranks.
// n 0: the rank has no such numbers.
typedef struct {
    char *layout;
    real *values;
    size_t n;
} RankState;
// Returns the weights [1, own]: the masters, if the unit has 16-bit weights and the masters exist;
// else the weights as they are stored.
Tensor checkpoint_weights(const Unit *u);
// Returns the elements of p that this rank writes, as a range of the unit's elements. Exactly one
// rank writes each element of a model.
Range checkpoint_written(const Unit *u, const Param *p);

// Collective. Writes the checkpoint of a step. Calls fault() if the checkpoint cannot be written;
// older checkpoints stay.
// saved: the run; its best step may change.
// step: the number of steps done.
// eval_loss: the held-out loss after these steps; NAN: not measured.
// keep: the number of newest checkpoints that stay; 0: all stay. The best checkpoint always stays.
// note: lines for the page, or "".
struct RunOptions; // resume.h
void checkpoint_save(Comm *world, const struct RunOptions *options, const Model *m,
                     const Optimizer *o, const RankState *state, SavedRun *saved, const char *dir,
                     size_t step, double eval_loss, size_t keep, char note[CHECKPOINT_NOTE]);

typedef struct Checkpoint Checkpoint;
// Opens the checkpoint in the folder dir, and reads only the index and the headers. Not collective.
// Returns NULL if dir has no checkpoint, or if the checkpoint is torn, or of another program or
// version; `why` gives the reason.
Checkpoint *checkpoint_read(const char *dir, char why[CHECKPOINT_WHY]);
void checkpoint_free(Checkpoint *c);
// Reads all bytes of file i. Returns false if the sum over the bytes differs from the index.
bool checkpoint_verify(const Checkpoint *c, size_t i, char why[CHECKPOINT_WHY]);
// Collective. Reads and verifies the newest checkpoint in dir, or dir itself if dir is a
// checkpoint.
// newest_good: if the newest checkpoint is torn, the function takes the newest good checkpoint and
// writes a line to note [room].
// Returns NULL on all ranks if no checkpoint is taken; `why` gives the reason. If an older
// checkpoint is good, `why` also names the newest good checkpoint.
Checkpoint *checkpoint_open(Comm *world, const char *dir, bool newest_good,
                            char why[CHECKPOINT_WHY], char *note, size_t room);
size_t checkpoint_step(const Checkpoint *c);
const char *checkpoint_folder(const Checkpoint *c);
const CheckpointIndex *checkpoint_index(const Checkpoint *c);
// Returns the value, given or by default, of an option that defines the training, or NULL if the
// checkpoint does not have the option (checkpoint_index_option()).
const char *checkpoint_option(const Checkpoint *c, const char *name);
// Fills this rank's part of m's weights and masters. If o and the checkpoint have moments, also
// fills the moments of the elements that this rank owns. Sets o->step to the checkpoint's number of
// updates, or to 0 if o has moments and the checkpoint has none. o NULL: fills only weights and
// masters. Calls usage_error() if the checkpoint has another model.
void checkpoint_load(const Checkpoint *c, Model *m, Optimizer *o);
// Returns the want->n numbers of the RankState of rank `rank`, or NULL if the training had none.
// The caller frees the numbers. Calls usage_error() if the numbers belong to another layout than
// want's.
real *checkpoint_load_state(const Checkpoint *c, size_t rank, const RankState *want);
#endif
