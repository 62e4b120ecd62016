// coordinator.h: a coordinator, with which ranks agree on the order of their all-reduces while
// backward runs.
#ifndef COORDINATOR_H
#define COORDINATOR_H
#include "common/comm/comm.h"

// An all-reduce of the tensors Coordinator.list[first, end), side by side in the buffer. The buffer
// of a single tensor is the tensor's part of g.
typedef struct {
    size_t first, end;
    Tensor buffer;
    Request *request;
} Fused;

typedef struct {
    // Two Comms of the same ranks. `control` carries questions and answers, `data` gradients.
    Comm *control, *data;
    Tensor g;             // [1, Psi]: the gradient
    size_t n;             // number of tensors
    const Range *part;    // [n] the part of g of each tensor
    size_t threshold;     // largest size in bytes of a fused all-reduce of several tensors
    bool cached;          // true after the first step, when all ranks know all tensors
    bool *ready;          // [n] the tensor's gradient is final on this rank
    bool *agreed;         // [n] all ranks know that the gradient is final on all ranks
    bool *named;          // [n] this rank has given the tensor's name to rank 0
    size_t *votes;        // [n] on rank 0: the number of ranks that have named the tensor
    size_t *list, listed; // [n] the agreed tensors of this step, in the order of their all-reduces
    Fused *fused;         // [n] the all-reduces of this step
    size_t n_fused;
    // After the first step the question has a field for each tensor. A field is 1 if the tensor's
    // gradient is final on this rank and not yet agreed. The sum over ranks counts the ranks.
    // Several fields share an element.
    Tensor question;
    Request *asked; // the question's sum over ranks, in flight
    Arena state, buffers;
} Coordinator;

Coordinator coordinator_new(Comm *control, Comm *data, Tensor g, const Range *part, size_t n,
                            size_t threshold);
void coordinator_free(Coordinator *c);
// Records that the gradient of this tensor is final on this rank.
void coordinator_ready(Coordinator *c, size_t tensor);
// Runs a cycle, which starts the all-reduces of the newly agreed tensors. All ranks must call this
// function equally often. Returns true if this step has started the all-reduces of all tensors.
bool coordinator_cycle(Coordinator *c);
// Ends a step, after which g is the sum over ranks. In the next step all names are cached.
void coordinator_wait(Coordinator *c);

// ---- coordinator.c: functions that 09_coordinator.c calls ----
// Sends, receives or broadcasts n numbers over `control`, as a tensor [1, n]. For n = 0 no message
// is sent. `peer` is the other rank, or the root of a broadcast.
typedef enum { TO, FROM, BROADCAST } ControlWay;
void coordinator_pass(Comm *control, real *number, size_t n, ControlWay way, size_t peer);
// If names are cached, per_element tensors share an element of the question. Each tensor has `bits`
// bits, enough to count all ranks. A sum of such elements is exact, because a float holds integers
// of 24 bits exactly.
typedef struct {
    size_t bits, per_element;
} CountFields;
CountFields coordinator_fields(const Comm *c);
// coordinator_fill sets f->buffer [1, elements]. Several tensors are copied from g into new memory.
// A single tensor stays in g, because an all-reduce can run on this part of g. coordinator_empty
// copies the sums of several tensors back to g. A copy takes the time of its bytes in the device's
// memory, and the rank computes nothing meanwhile.
void coordinator_fill(Coordinator *c, Fused *f, size_t elements);
void coordinator_empty(const Coordinator *c, const Fused *f);
#endif
