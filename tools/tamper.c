// tamper.c: tools/grade links it into the programs that it runs. It stands between a program and
// MPI, through MPI's profiling interface, and can alter the contents of messages. An honest program
// then fails its checks. A program that still passes has sent its messages only for show and has
// its result from elsewhere.
//
// UNSPLIT_TAMPER=01.02a: alters the messages that start while the body of this exercise runs;
// tools/grade puts grade_enter around the body. UNSPLIT_TAMPER=all: alters every message of reals.
// Messages of bytes (checks, digests) and the simulated clock's times are never altered. Without
// the variable no message is altered.
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

// active bodies of that exercise; a process is one rank with one communicating thread
static int inside;

int grade_enter(const char *id);
void grade_leave(const int *entered);
int grade_enter(const char *id) {
    const char *wanted = getenv("UNSPLIT_TAMPER");
    int entered = wanted != NULL && strcmp(wanted, id) == 0;
    inside += entered;
    return entered;
}
void grade_leave(const int *entered) { inside -= *entered; }

// The buffers belong to Comm, which has copied the caller's tensor into them.
static void alter(const void *data, int n, MPI_Datatype type) {
    const char *wanted = getenv("UNSPLIT_TAMPER");
    int all = wanted != NULL && strcmp(wanted, "all") == 0;
    if (data == MPI_IN_PLACE) return;
    for (int i = 0; (inside || all) && type == MPI_FLOAT && i < n; i++) {
        float *x = (float *)data + i;
        *x = 1.5f * *x + 0.25f;
    }
    for (int i = 0; inside && type == MPI_DOUBLE && i < n; i++) {
        double *x = (double *)data + i;
        *x = 1.5 * *x + 0.25;
    }
}

int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    alter(data, n, type);
    return PMPI_Isend(data, n, type, to, tag, comm, request);
}
int MPI_Issend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    alter(data, n, type);
    return PMPI_Issend(data, n, type, to, tag, comm, request);
}
int MPI_Ibcast(void *data, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request) {
    int rank;
    MPI_Comm_rank(comm, &rank);
    if (rank == root) alter(data, n, type);
    return PMPI_Ibcast(data, n, type, root, comm, request);
}
int MPI_Iallreduce(const void *in, void *out, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request *request) {
    alter(in, n, type);
    return PMPI_Iallreduce(in, out, n, type, op, comm, request);
}
int MPI_Igather(const void *in, int n, MPI_Datatype in_type, void *out, int out_n, MPI_Datatype out_type, int root,
                MPI_Comm comm, MPI_Request *request) {
    alter(in, n, in_type);
    return PMPI_Igather(in, n, in_type, out, out_n, out_type, root, comm, request);
}
int MPI_Iallgatherv(const void *in, int n, MPI_Datatype in_type, void *out, const int *counts, const int *starts,
                    MPI_Datatype out_type, MPI_Comm comm, MPI_Request *request) {
    alter(in, n, in_type);
    return PMPI_Iallgatherv(in, n, in_type, out, counts, starts, out_type, comm, request);
}
int MPI_Ialltoallv(const void *in, const int *in_counts, const int *in_starts, MPI_Datatype in_type, void *out,
                   const int *out_counts, const int *out_starts, MPI_Datatype out_type, MPI_Comm comm,
                   MPI_Request *request) {
    int size, bytes;
    MPI_Comm_size(comm, &size);
    MPI_Type_size(in_type, &bytes);
    for (int i = 0; i < size; i++) alter((const char *)in + (long)in_starts[i] * bytes, in_counts[i], in_type);
    return PMPI_Ialltoallv(in, in_counts, in_starts, in_type, out, out_counts, out_starts, out_type, comm, request);
}
