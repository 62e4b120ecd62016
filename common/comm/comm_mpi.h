// comm_mpi.h: the functions of comm_mpi.c that comm_nccl.c uses. Under nccl MPI still carries host
// values (bytes, doubles), barriers and the side channel; NCCL carries tensors.
#ifndef COMM_MPI_H
#define COMM_MPI_H
#include <mpi.h>
#include "common/comm/transport.h"

void check_mpi(int error, const char *call); // fault() with MPI's text
#define MPI(call) check_mpi(call, #call)
void give_core_away(double waited); // called in each turn of a loop; waited: its seconds so far
// Ends all ranks, because a call has waited longer than timeout.
_Noreturn void too_late(double timeout, const char *where);

// The link of a Comm. A transport built on MPI has it as the first member of its own link.
typedef struct {
    MPI_Comm comm;
} MpiLink;
void mpi_link_open(MpiLink *l, MPI_Comm comm);
void mpi_link_close(Comm *c); // closes the MPI_Comm; does not free the MpiLink
// The MPI part of Wire's split.
MPI_Comm mpi_split_comm(Comm *parent, const size_t *members, size_t n, size_t me);

// Wire's functions for a Request with buffers in host memory. They use r->extra.
void mpi_start(Request *r);
void mpi_finish(Request *r);
void mpi_meet(Request *r);
// Waits in MPI call it, so that other transfers move on; NULL: there are none.
extern void (*mpi_meanwhile)(void);

Comm *mpi_side_channel(const LaunchOptions *o);
// Called at the end, so that no process leaves before the other processes have finished.
void mpi_leave_together(const LaunchOptions *o);
#endif
