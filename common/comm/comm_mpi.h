// comm_mpi.h: what comm_nccl.c uses of comm_mpi.c. Under nccl MPI still carries host values (bytes,
// doubles), barriers and the side channel; NCCL carries tensors.
#ifndef COMM_MPI_H
#define COMM_MPI_H
#include <mpi.h>
#include "common/comm/transport.h"

void check_mpi(int error, const char *call); // fault() with MPI's text
#define MPI(call) check_mpi(call, #call)
void give_core_away(double waited); // one turn of a loop that has waited that long
// fault(): the call has waited longer than timeout
_Noreturn void too_late(double timeout, const char *where);

// The link of a Comm. A transport built on MPI has it as the first member of its own link.
typedef struct {
    MPI_Comm comm;
} MpiLink;
void mpi_link_open(MpiLink *l, MPI_Comm comm);
void mpi_link_close(Comm *c); // frees everything but the MpiLink itself
// as Wire's split
MPI_Comm mpi_split_comm(Comm *parent, const size_t *members, size_t n, size_t me);

// Wire's functions for a Request with buffers in host memory. They use r->extra.
void mpi_start(Request *r);
void mpi_finish(Request *r);
void mpi_meet(Request *r);
// called while MPI waits, so that other transfers move on; NULL: none
extern void (*mpi_meanwhile)(void);

Comm *mpi_side_channel(const LaunchOptions *o);
// called at the end: no process leaves before the others
void mpi_leave_together(const LaunchOptions *o);
#endif
