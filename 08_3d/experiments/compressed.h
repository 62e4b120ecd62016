// compressed.h: what a training with --compress is compared with: the unsplit model, whose gradient is taken of each
// replica's sequences apart, as that replica takes them, and added by the same rule on one device (01.06). The rule is
// applied to what each slice of each stage has, because that is what it compresses.
#ifndef COMPRESSED_H
#define COMPRESSED_H
#include "08_3d/trainer.h"

typedef struct Compressed Compressed;
Compressed *compressed_new(const Trainer *t);      // collective; NULL on all ranks but 0
void compressed_free(Compressed *c);               // NULL is allowed
// One step's gradient of the unsplit model m, on rank 0: unsplit_gradients, but for the sum over replicas. Uncounted.
StepResult compressed_gradients(Compressed *c, Model *m, const TrainerConfig *config, const Data *d, uint64_t step);
// What rank `rank` of the mesh has not sent, and its factors, [compressed_count] as compression_state_read() orders
// them: for a training that is taken up. Each replica of a slice gives its factors; they are alike.
size_t compressed_count(const Compressed *c, size_t rank);
void compressed_resume(Compressed *c, size_t rank, const real *state);
#endif
