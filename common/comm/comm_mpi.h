// comm_mpi.h: declares functions of comm_mpi.c, for comm_nccl.c and judge/frame/process.c. Under
// nccl NCCL carries tensors. MPI still carries host values (bytes, doubles), barriers and the side
// channel.
#ifndef COMM_MPI_H
#define COMM_MPI_H
#include <mpi.h>
#include "common/comm/transport.h"

void check_mpi(int error, const char *call); // calls fault() with MPI's text after an error
#define MPI(call) check_mpi(call, #call)
// A loop that has waited for other ranks since the time `since` calls this function in each turn.
// The function lets other transfers progress and yields the core. The function also calls fault()
// if another rank has ended, or after --timeout.
void wait_turn(double since, const char *where);
// Ends all ranks, because a call has waited for `waited` seconds, which is too long.
_Noreturn void too_late(double waited, const char *where);

// A note carries numbers beside the data of a request. The note of a collective has the largest
// `ready` of all members, and shows whether all members make the same call. The note of a message
// has `arrives` and the length in bytes. note[NOTE_CALL] is the length of the message, or the hash
// of a collective's call. note[NOTE_INVERSE] is ~note[NOTE_CALL]. The members make the same call
// only if the largest inverse over all members is the inverse of the largest hash.
enum { NOTE_TIME, NOTE_CALL, NOTE_INVERSE, NOTE_LENGTH };

// MpiLink is the link of a Comm. comm_nccl.c has an MpiLink as the first member of its own link.
typedef struct {
    MPI_Comm comm;
} MpiLink;
// Returns the MPI communicator of these members of the parent, for Wire's split. `me` is this
// rank's number among the members. All ranks of the parent must call this function.
MPI_Comm mpi_split_comm(Comm *parent, const size_t *members, size_t me);

// mpi_start and mpi_finish are Wire's functions for a Request with buffers in host memory. The
// state of the Request is in r->extra.
void mpi_start(Request *r);
void mpi_finish(Request *r);
void mpi_meet(Request *r); // waits for the note of r, and checks it
// Starts the note of r under the simulated clock, or if memory is poisoned.
void mpi_start_note(Request *r);
// Every loop that waits in MPI calls this function, so that transfers of another transport
// continue. `waited` is the number of seconds of the wait so far. NULL means that no other
// transport is in use.
extern void (*mpi_meanwhile)(double waited);

// Prepares the waits in MPI and the watch of waits.h. Call this function after MPI_Init, on all
// processes of the node. `host` is the communicator of these processes.
void mpi_open(MPI_Comm host);
// Returns the side channel, a second Comm over all ranks. Also sets the timeout of all waits in
// MPI.
Comm *mpi_side_channel(const Launch *launch);
#endif
