// waits.h: who of the processes of a node waits, in what call and for whom, in memory that all of them share, so that
// one that stands still in a call can be seen without its help. Private to comm_mpi.c.
//
// A deadlock, and not a slow rank: every rank of the world is on this node and waits, each for longer than --deadlock
// (and a second for every 10 MB of its call), or some of the node's wait so in a cycle; and all of these have asked MPI
// a thousand times since that was first seen, so nothing was still on its way. A rank that computes, or is stopped,
// does not ask. What waits outside comm_mpi.c (for a GPU, in MPI_Comm_split) counts as computing: --timeout ends that.
#ifndef WAITS_H
#define WAITS_H
#include <mpi.h>
#include "common/comm/transport.h"

void waits_open(MPI_Comm host, double deadlock);               // collective over a node's processes; 0: no looking
void waits_close(void);                                        // collective
void waits_post(const Request *r, int meeting, double since);  // this rank waits there. meeting: its number
void waits_clear(void);                                        // no longer
void waits_look(void);                                         // in the loop of one that waits: a deadlock is a fault
void waits_tell(void);                                         // this rank ends all, and has said why
bool waits_told(size_t rank);                                  // has this one of the node?
void waits_print(void);                                        // the table of the node, if nobody has printed it
#endif
