// pmpi_count.c: a preloaded library (LD_PRELOAD) that counts the messages and bytes given to MPI's
// point-to-point sends, through MPI's profiling interface. The counts do not come from the ledger,
// because a test compares the ledger with these counts.
//
// The library counts messages of tensors. The times of the simulated clock have their own tag, and
// the messages of the side channel (checks, digests) have the type of bytes. These two kinds of
// messages are not counted. At the end every rank prints one line on stderr. "sums" has the bytes
// of the messages of fp32 numbers inside collectives (sums and all-to-alls). "calls" and "bytes"
// count the rank's other messages. A stretch lies between two collectives, so a pipeline's step is
// one stretch:
//     pmpi rank R calls N bytes N sums N stretches CALLS:BYTES CALLS:BYTES ...
#include <mpi.h>
#include <stdio.h>

enum { DATA_TAG = 0, COLLECTIVE_TAGS = 16, MOST = 4096 }; // the tags are those of comm_mpi.c
typedef struct {
    unsigned long long calls, bytes;
} Sent;
static Sent all, stretch[MOST]; // no locks: only one thread of a process communicates
static unsigned long long sums;
static int stretches; // number of closed stretches; stretch[stretches] is still open

static void close_stretch(void) {
    if (stretch[stretches].calls > 0 && stretches + 1 < MOST) stretches++;
}
static void count(int n, MPI_Datatype type, int tag) {
    int size;
    MPI_Type_size(type, &size);
    unsigned long long more = (unsigned long long)n * (unsigned long long)size;
    if (tag >= COLLECTIVE_TAGS) close_stretch();
    if (tag >= COLLECTIVE_TAGS && type == MPI_FLOAT) sums += more;
    if (tag != DATA_TAG || type == MPI_BYTE) return;
    all.calls++;
    all.bytes += more;
    stretch[stretches].calls++;
    stretch[stretches].bytes += more;
}
int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    count(n, type, tag);
    return PMPI_Isend(data, n, type, to, tag, comm, request);
}
int MPI_Issend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
               MPI_Request *request) {
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

int MPI_Ibarrier(MPI_Comm comm, MPI_Request *request) {
    close_stretch();
    return PMPI_Ibarrier(comm, request);
}
int MPI_Ibcast(void *data, int n, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request *request) {
    close_stretch();
    return PMPI_Ibcast(data, n, type, root, comm, request);
}
int MPI_Iallgatherv(const void *in, int n, MPI_Datatype in_type, void *out, const int *counts,
                    const int *starts, MPI_Datatype out_type, MPI_Comm comm, MPI_Request *request) {
    close_stretch();
    return PMPI_Iallgatherv(in, n, in_type, out, counts, starts, out_type, comm, request);
}
// Prints the line in one write, so that lines of several ranks do not mix.
int MPI_Finalize(void) {
    static char line[64 + 44 * MOST];
    int rank, n;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    close_stretch();
    n = sprintf(line, "pmpi rank %d calls %llu bytes %llu sums %llu stretches", rank, all.calls,
                all.bytes, sums);
    for (int i = 0; i < stretches; i++)
        n += sprintf(line + n, " %llu:%llu", stretch[i].calls, stretch[i].bytes);
    fprintf(stderr, "%s\n", line);
    return PMPI_Finalize();
}
