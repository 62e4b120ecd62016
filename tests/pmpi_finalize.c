// pmpi_finalize.c: put before a program (LD_PRELOAD), it ends MPI_Finalize with a fault, as Open MPI
// 4.1 does now and then.
#include <mpi.h>
#include <signal.h>

int MPI_Finalize(void) {
    int status = PMPI_Finalize();
    raise(SIGSEGV);
    return status;
}
