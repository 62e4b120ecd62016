// predict_activations.c predicts the peak of a rank's activations in a step of the trainer. This
// file walks through the schedule with its own code. The planner of --activation-budget uses other
// code (07_recompute/budget_schedule.c), so the prediction does not repeat an error of the planner.
#include "08_3d/experiments/experiments.h"
#include "08_3d/kept.h"
#include "common/model/costs.h"

// A rank's part of the model: a stage, or a chunk of a stage.
typedef struct {
    const TrainerConfig *c;
    Coordinates at;
    CutSizes z;
    const Recompute *choice; // the choice of each block; NULL: all blocks follow --recompute
} Part;

// choice: the recomputation of each block of the whole stage, or NULL.
static Part part_of(const TrainerConfig *c, Coordinates at, size_t chunk, const Recompute *choice) {
    for (size_t k = 0; choice && k < chunk; k++) // skips the choices of the earlier chunks
        choice += kept_part_sizes(c, at, k * c->mesh.pp + at.pp).blocks;
    CutSizes z = kept_part_sizes(c, at, chunk * c->mesh.pp + at.pp);
    return (Part){ c, at, z, choice };
}
// Returns the bytes of block i that forward drops and backward recomputes.
static size_t dropped(const Part *part, const KeptBytes *k, size_t i) {
    switch (part->choice ? part->choice[i] : part->c->recompute) {
    case RECOMPUTE_FULL: return k->block;
    case RECOMPUTE_SELECTIVE: return k->scores;
    default: return 0;
    }
}

// The bytes of one micro-batch of B sequences.
// waiting: the bytes while the micro-batch waits for its backward.
// working: the peak during a whole forward or backward.
typedef struct {
    size_t waiting, working;
} InFlight;
static InFlight in_flight(const Part *part, size_t B) {
    const CutSizes *z = &part->z;
    const KeptBytes k = kept_bytes_of(part->c, part->at, z, B);
    const size_t inputs = z->blocks + z->last; // inputs of the blocks and of the head
    const size_t input = inputs ? k.between / inputs : 0;
    size_t now = input, highest = 0;
    for (size_t i = 0; i < z->blocks; i++) {
        if (i + 1 < inputs) now += input; // the output of block i
        if (now + k.block > highest) highest = now + k.block;
        now += k.block - dropped(part, &k, i);
    }
    if (z->last) now += k.head;
    return (InFlight){ now, now > highest ? now : highest };
}

// The bytes of a backward in two halves (05.06). From the last layer to the first, the rank stores
// the inputs of the second half, then frees the other tensors that forward has kept.
// highest: the peak during the first half.
// after: the bytes after the first half.
typedef struct {
    size_t highest, after;
} Halves;
static Halves in_halves(const Part *part, size_t B) {
    const CutSizes *z = &part->z;
    const KeptBytes k = kept_bytes_of(part->c, part->at, z, B);
    const DeferredBytes deferred = kept_deferred(z, B, k.head);
    size_t now = in_flight(part, B).waiting, highest = now;
    if (z->last) {
        now += deferred.head_added;
        highest = now;
        now -= deferred.head_freed;
    }
    for (size_t i = z->blocks; i-- > 0;) {
        size_t again = dropped(part, &k, i);
        size_t most = now + again + deferred.block;
        if (most > highest) highest = most;
        now += deferred.block;
        now -= k.block - again;
    }
    if (z->first) now += deferred.embedding;
    return (Halves){ now > highest ? now : highest, now };
}

size_t predict_activations(const TrainerConfig *c, Coordinates at, const Recompute *choice) {
    Schedule s = trainer_schedule(c, trainer_micro_batches(c), at.pp);
    size_t held = 0, peak = 0; // bytes in flight
    for (size_t i = 0; i < s.n; i++) {
        PipeOp op = s.ops[i];
        const Part part = part_of(c, at, op.chunk, choice);
        size_t B = kept_sequences(c, at.dp, op.micro_batch), most = held;
        InFlight whole = in_flight(&part, B);
        Halves halves = { 0 };
        if (op.what == BACKWARD_INPUTS || op.what == BACKWARD_WEIGHTS) halves = in_halves(&part, B);
        if (op.what == BACKWARD || op.what == BACKWARD_INPUTS) held -= whole.waiting;
        if (op.what == BACKWARD_WEIGHTS) held -= halves.after;
        if (op.what == FORWARD || op.what == BACKWARD) most = held + whole.working;
        if (op.what == BACKWARD_INPUTS) most = held + halves.highest;
        if (most > peak) peak = most;
        if (op.what == FORWARD) held += whole.waiting;
        if (op.what == BACKWARD_INPUTS) held += halves.after;
    }
    schedule_free(&s);
    return peak;
}
