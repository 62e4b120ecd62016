// waits.h: finds deadlocks among the processes of one node (--deadlock). A process that waits in
// MPI writes what it waits for into memory that the processes of the node share. Private to
// comm_mpi.c.
//
// A deadlock is a cycle: each of its ranks waits for the next one, for longer than --deadlock and a
// second for every 10 MB of its call. A slow rank is not a deadlock. So each rank of the cycle must
// also have polled MPI a thousand times since the cycle was first seen; by then no message is still
// in flight. A rank that computes, or that is stopped, does not poll. A rank that waits elsewhere
// (for a GPU, in MPI_Comm_split) counts as computing: --timeout ends such waits.
#ifndef WAITS_H
#define WAITS_H
#include <mpi.h>
#include "common/comm/transport.h"

// collective over a node's processes; deadlock 0: never look
void waits_open(MPI_Comm host, double deadlock);
void waits_close(void); // collective
// this rank waits in r. meeting: the collective's number
void waits_post(const Request *r, int meeting, double since);
void waits_clear(void);       // this rank waits no longer
void waits_look(void);        // called while this rank waits: fault() if there is a deadlock
void waits_tell(void);        // records that this rank ends all ranks and has said why
bool waits_told(size_t rank); // has a rank of this node called waits_tell?
void waits_print(void);       // prints the table of waits, once
#endif
