// pmpi_count.c: a preloaded library that counts what really leaves: messages and bytes given to MPI's point-to-point sends, through
// MPI's profiling interface. It knows nothing of the ledger it is held against.
//
// Counted are messages of reals. Not counted: the model clock's stamps, which travel beside them under a tag of their own, and bytes
// as such, which are the side channel's (checks, digests). At the end every rank prints one line on stderr:
//     pmpi rank R calls N bytes N
#include <mpi.h>
#include <stdio.h>

enum { DATA_TAG = 0 };
static unsigned long long calls, bytes;            // one process is one rank, with one thread that talks

static void count(int n, MPI_Datatype type, int tag) {
    int size;
    if (tag != DATA_TAG || type == MPI_BYTE) return;
    MPI_Type_size(type, &size);
    calls++;
    bytes += (unsigned long long)n * (unsigned long long)size;
}

int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    count(n, type, tag);
    return PMPI_Isend(data, n, type, to, tag, comm, request);
}
int MPI_Issend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    count(n, type, tag);
    return PMPI_Issend(data, n, type, to, tag, comm, request);
}
int MPI_Send(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
    count(n, type, tag);
    return PMPI_Send(data, n, type, to, tag, comm);
}
int MPI_Ssend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
    count(n, type, tag);
    return PMPI_Ssend(data, n, type, to, tag, comm);
}

int MPI_Finalize(void) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(stderr, "pmpi rank %d calls %llu bytes %llu\n", rank, calls, bytes);
    return PMPI_Finalize();
}
