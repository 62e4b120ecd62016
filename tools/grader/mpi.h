// mpi.h: the part of MPI that common/comm uses, for graded programs. mpi.c implements this part
// with messages to tools/grader/broker.c, so a graded rank needs no MPI library, no shared memory
// and no network. Every message between two ranks passes through the broker, whose memory no rank
// can reach.
#ifndef MPI_H
#define MPI_H
#include <stddef.h>
#include <stdint.h>

typedef int MPI_Comm, MPI_Datatype, MPI_Op, MPI_Info, MPI_Win, MPI_Errhandler;
typedef struct Pending *MPI_Request;
typedef intptr_t MPI_Aint;
typedef int MPI_Status; // no function of mpi.c fills a status

enum { MPI_BYTE = 1, MPI_CHAR, MPI_INT, MPI_FLOAT, MPI_DOUBLE, MPI_UINT16_T, MPI_UINT64_T };
enum { MPI_SUM = 1, MPI_MAX, MPI_MIN };
enum { MPI_SUCCESS, MPI_ERR_TRUNCATE, MPI_ERR_OTHER };
enum { MPI_COMM_WORLD = 0, MPI_ANY_SOURCE = -1, MPI_ANY_TAG = -1, MPI_WIN_NULL = -1 };
enum {
    MPI_COMM_TYPE_SHARED = 1,
    MPI_INFO_NULL = 0,
    MPI_ERRORS_RETURN = 0,
    MPI_THREAD_FUNNELED = 1
};
enum { MPI_MAX_ERROR_STRING = 64 };
#define MPI_IN_PLACE ((void *)1)
#define MPI_REQUEST_NULL ((MPI_Request)0)
#define MPI_STATUS_IGNORE ((MPI_Status *)0)

int MPI_Init_thread(int *argc, char ***argv, int wanted, int *provided);
int MPI_Initialized(int *flag);
int MPI_Finalize(void);
int MPI_Abort(MPI_Comm c, int status);
int MPI_Comm_rank(MPI_Comm c, int *rank);
int MPI_Comm_size(MPI_Comm c, int *size);
int MPI_Comm_dup(MPI_Comm c, MPI_Comm *copy);
int MPI_Comm_split(MPI_Comm c, int colour, int key, MPI_Comm *part);
int MPI_Comm_split_type(MPI_Comm c, int type, int key, MPI_Info info, MPI_Comm *part);
int MPI_Comm_free(MPI_Comm *c);
int MPI_Comm_set_errhandler(MPI_Comm c, MPI_Errhandler handler);
int MPI_Error_string(int error, char *text, int *length);
int MPI_Isend(const void *data, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r);
int MPI_Issend(const void *data, int n, MPI_Datatype t, int to, int tag, MPI_Comm c,
               MPI_Request *r);
int MPI_Irecv(void *data, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *r);
int MPI_Iprobe(int from, int tag, MPI_Comm c, int *flag, MPI_Status *status);
int MPI_Test(MPI_Request *r, int *flag, MPI_Status *status);
int MPI_Barrier(MPI_Comm c);
int MPI_Ibarrier(MPI_Comm c, MPI_Request *r);
int MPI_Bcast(void *data, int n, MPI_Datatype t, int root, MPI_Comm c);
int MPI_Ibcast(void *data, int n, MPI_Datatype t, int root, MPI_Comm c, MPI_Request *r);
int MPI_Allreduce(const void *in, void *out, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c);
int MPI_Iallreduce(const void *in, void *out, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c,
                   MPI_Request *r);
int MPI_Allgather(const void *in, int n, MPI_Datatype t, void *out, int out_n, MPI_Datatype out_t,
                  MPI_Comm c);
int MPI_Win_allocate_shared(MPI_Aint bytes, int unit, MPI_Info info, MPI_Comm c, void *memory,
                            MPI_Win *w);
int MPI_Win_shared_query(MPI_Win w, int rank, MPI_Aint *bytes, int *unit, void *memory);
int MPI_Win_free(MPI_Win *w);
#endif
