// waits.h: watches the processes of one node. A process that waits in MPI checks whether another
// process has ended, and under mpi and staged whether ranks wait for each other (--deadlock). So
// each process describes its wait in memory that the processes of the node share. comm_mpi.c and
// judge/frame/process.c use this file.
//
// A killed rank sends nothing, and mpirun ends the other ranks a second later at the earliest. So a
// rank that waits for long checks whether all processes of the node still exist. If one of these
// processes is stopped by a signal, the waiting rank ends after --timeout.
//
// A set of ranks is blocked if each rank of the set waits for a rank of the set. Then some ranks of
// the set form a cycle, which is a deadlock. Each wait must be longer than --deadlock, plus a
// second for every 10 MB of the awaited operation. A slow rank is not a deadlock. So each blocked
// rank must also have polled MPI a thousand times since the search first saw these waits. The
// search assumes that after so many polls no message is still in flight. A rank that computes, or
// that is stopped, does not poll. A rank that waits for a GPU or in MPI_Comm_split counts as
// computing.
#ifndef WAITS_H
#define WAITS_H
#include <mpi.h>
#include "common/comm/transport.h"

// waits_open() starts the watch, and waits_close() ends it. All processes of the node must call
// these functions.
void waits_open(MPI_Comm host);
void waits_close(void);
// waits_look() searches once this rank's wait is longer than `deadlock` seconds, plus a second per
// 10 MB. If `deadlock` is 0, waits_look() never searches.
void waits_search(double deadlock);
// Returns whether all ranks are on this node, and this process can see whether each of them has
// ended.
bool waits_see_all(void);
// Calls fault() if a process of the node has ended without waits_tell(), or if a process is stopped
// and this rank has waited for more than `timeout` seconds. Call this function while this rank
// waits; `waited` is the number of seconds of the wait so far.
void waits_require_alive(double waited, double timeout);
// Records that this rank has waited for r since the time `since`.
void waits_post(const Request *r, double since);
void waits_clear(void); // records that the wait is over
// Searches for a deadlock. If the search finds a deadlock, reports the deadlock and ends all ranks.
// Call this function while this rank waits.
void waits_look(void);
void waits_tell(void); // records that this rank has printed why it ends all ranks
// Prints the table of waits, unless a process of the node has printed the table, or waits_search()
// has not set a time.
void waits_print(void);
#endif
