// comm_mpi.h: what comm_nccl.c takes from comm_mpi.c. There, too, MPI carries host values (bytes,
// doubles), barriers and the side channel; NCCL carries tensors.
#ifndef COMM_MPI_H
#define COMM_MPI_H
#include <mpi.h>
#include "common/comm/transport.h"

void check_mpi(int error, const char *call); // fault() with its text
#define MPI(call) check_mpi(call, #call)
void give_core_away(double waited); // a turn of a loop that has waited so many seconds
// fault(): so many seconds were waited there
_Noreturn void too_late(double timeout, const char *where);

// The link of a Comm: a transport built on this one has it as the first member of its own.
typedef struct {
    MPI_Comm comm;
} MpiLink;
void mpi_link_open(MpiLink *l, MPI_Comm comm);
void mpi_link_close(Comm *c); // frees all but the MpiLink itself
// as Wire's split
MPI_Comm mpi_split_comm(Comm *parent, const size_t *members, size_t n, size_t me);

// Wire's, for a Request whose buffers are host memory. They use r->extra.
void mpi_start(Request *r);
void mpi_finish(Request *r);
void mpi_meet(Request *r);
extern void (*mpi_meanwhile)(void); // what else is to be moved on while MPI waits; NULL: nothing

Comm *mpi_side_channel(const LaunchOptions *o);
void mpi_leave_together(const LaunchOptions *o); // at the end: no process leaves before the others
#endif
