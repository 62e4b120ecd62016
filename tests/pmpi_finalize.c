// pmpi_finalize.c: a preloaded library (LD_PRELOAD) that ends MPI_Finalize with SIGSEGV, as Open
// MPI 4.1 sometimes does.
#include <mpi.h>
#include <signal.h>

int MPI_Finalize(void) {
    int status = PMPI_Finalize();
    raise(SIGSEGV);
    return status;
}
