// waits.h: finds deadlocks among the processes of one node (--deadlock). A process that waits in
// MPI describes its wait in memory that the processes of the node share. Private to comm_mpi.c.
//
// A deadlock is a cycle of ranks, where each rank waits for the next rank of the cycle. Each wait
// must be longer than --deadlock, plus a second for every 10 MB of the call. A slow rank is not a
// deadlock. So each rank of the cycle must also have polled MPI a thousand times since the search
// first saw the cycle. By then no message is still in flight. A rank that computes, or that is
// stopped, does not poll. A rank that waits elsewhere (for a GPU, in MPI_Comm_split) counts as
// computing; --timeout ends such waits.
#ifndef WAITS_H
#define WAITS_H
#include <mpi.h>
#include "common/comm/transport.h"

// Collective over a node's processes. With deadlock 0 no rank searches.
void waits_open(MPI_Comm host, double deadlock);
void waits_close(void); // collective
// records that this rank waits in r. meeting: the collective's number
void waits_post(const Request *r, int meeting, double since);
void waits_clear(void);    // records that the wait is over
void waits_look(void);     // call it while this rank waits: fault() if there is a deadlock
void waits_tell(void);     // records that this rank has printed why it ends all ranks
bool waits_told(size_t i); // has the i-th rank of this node called waits_tell?
void waits_print(void);    // prints the table of waits, once
#endif
