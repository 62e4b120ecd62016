// comm.h: the only way in which ranks communicate. One interface, several transports, chosen at run
// time. emu: virtual ranks in one process. mpi: processes. With GPUs, staged: processes whose
// tensors go through host memory, so they may share a GPU; nccl: processes with a GPU each. A Comm
// is a group of ranks. Every rank of the group must make the same calls in the same order.
//
// The ledger of the Comm books every call: the number of calls, and the bytes that this rank SENDS.
// A collective books what a ring sends, with chunks c = ceil(count / n): all-reduce 2(n-1)c
// elements; reduce-scatter, all-gather and all-to-all (n-1)c; broadcast S bytes at the root; reduce
// S bytes at every other rank. This factor is a convention; calls and sizes are measured. The
// ledger also books received bytes. In a ring they equal the sent bytes. A message is booked as
// received by its receiver.
//
// A broadcast and a reduce of S bytes are a chain of all n ranks, as in NCCL. A broadcast's chain
// begins at the root (root, root+1, ...); a reduce's chain ends there (root+1, ..., root). All
// ranks but the first of the chain receive S bytes. A rank passes each piece on as soon as the
// piece has come, so under the simulated clock a chain takes n-1 latencies and the time of S bytes.
// The ledger books a broadcast's sent bytes at the root only.
//
// Tensors given to a Comm are contiguous. Part i of a whole is always shard_range(count, size, i).
// In a call that ends in _rows it is the rows shard_range(rows, size, i), and a chunk is ceil(rows
// / n) rows.
#ifndef COMM_H
#define COMM_H
#include "common/comm/clock.h"
#include "common/tensor/tensor.h"
#include "common/base/util.h"

typedef enum {
    COMM_ALL_REDUCE,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_ALL_TO_ALL,
    COMM_BROADCAST,
    COMM_REDUCE,
    COMM_SEND,
    COMM_KINDS
} CommKind;
extern const char *const comm_kind_name[COMM_KINDS]; // "all-reduce", ...

typedef struct Comm {
    const char *name;  // "world", "dp", "tp", "pp": for messages and the ledger
    size_t rank, size; // this rank's number, and the number of ranks
    bool one_node;     // do all ranks share a node? (clock.h)
    // counts since the last comm_ledger_reset
    struct {
        size_t calls, bytes, received;
    } ledger[COMM_KINDS];
    struct CommState *state; // state of the transport
} Comm;

// Ranks of the parent with equal colour form a group, ordered by (key, parent rank). Collective
// over the parent.
Comm *comm_split(Comm *parent, size_t colour, size_t key, const char *name);
void comm_free(Comm *c); // fault() if a started operation was never waited for
// Ranks as a matrix of rows x cols in `depth` layers: rank = col + cols * (row + rows * layer).
// depth 1 is one matrix in row-major order (SUMMA); q x q x d is Tesseract's grid.
typedef struct {
    size_t rows, cols, depth, row, col, layer; // sizes, and this rank's coordinates
    Comm *in_row;                              // [cols] ranks with my row and layer, by column
    Comm *in_col;                              // [rows] ranks with my column and layer, by row
    Comm *in_depth;                            // [depth] ranks with my row and column, by layer
} CommGrid;
// Collective over c; usage_error() if rows * cols * depth is not its size.
CommGrid comm_grid(Comm *c, size_t rows, size_t cols, size_t depth);
void comm_grid_free(CommGrid *g);
void comm_ledger_reset(Comm *c);
size_t comm_bytes_sent(const Comm *c); // sum over all kinds
size_t comm_bytes_received(const Comm *c);

// --- blocking collectives ---
void comm_all_reduce(Comm *c, Tensor t); // t <- sum over ranks; all ranks get the same bits
void comm_all_reduce_max(Comm *c, Tensor t);
// local <- this rank's part of the sum of the wholes. whole stays unchanged, unless local is a
// window of it.
void comm_reduce_scatter(Comm *c, Tensor local, Tensor whole);
// whole <- the parts in rank order. local may be its window of whole.
void comm_all_gather(Comm *c, Tensor whole, Tensor local);
// The same with whole [M, N] cut between rows: local [rows of shard_range(M, size, rank), N],
// possibly no rows. If size divides M these are the parts of the calls above; otherwise the calls
// above cut through a row.
void comm_reduce_scatter_rows(Comm *c, Tensor local, Tensor whole);
void comm_all_gather_rows(Comm *c, Tensor whole, Tensor local);
// Part i of `in` goes to rank i. In out [size, part], row j is the part for this rank of rank j's
// `in`. out and `in` must not overlap.
void comm_all_to_all(Comm *c, Tensor out, Tensor in);
void comm_broadcast(Comm *c, Tensor t, size_t root);
// the root's t <- sum; the others' t is unchanged
void comm_reduce(Comm *c, Tensor t, size_t root);
// Host values (losses, counts, norms); always in rank order.
void comm_all_reduce_doubles(Comm *c, double *values, size_t n);
void comm_barrier(Comm *c); // books nothing

// --- point to point ---
// Declares the pairs of ranks that exchange messages: the next and the previous rank (a ring), or
// all pairs. Call it before the first message, on all ranks of c, because NCCL makes a connection
// for each pair. Other pairs may not be used.
typedef enum { COMM_NOBODY, COMM_NEIGHBOURS, COMM_EVERYBODY } CommPeers;
void comm_connect(Comm *c, CommPeers peers);
// A blocking send returns when the message was received. So a wrong order of sends deadlocks at
// every size.
void comm_send(Comm *c, Tensor t, size_t to);
void comm_recv(Comm *c, Tensor t, size_t from);
// Sends and receives between group_start and group_end progress together and are done at the end.
void comm_group_start(Comm *c);
void comm_group_end(Comm *c);

// --- started operations ---
// The input must stay unchanged until the wait, and the output is ready after it. If memory is
// poisoned (memory.h), the wait checks the input and delivers the output. So a forgotten wait is
// always wrong. A started sum holds communication memory as large as the whole until its wait.
typedef struct Request Request;
Request *comm_start_all_reduce(Comm *c, Tensor t);
Request *comm_start_reduce_scatter(Comm *c, Tensor local, Tensor whole);
Request *comm_start_all_gather(Comm *c, Tensor whole, Tensor local);
// The sender goes on. The wait returns when the message was received.
Request *comm_start_send(Comm *c, Tensor t, size_t to);
Request *comm_start_recv(Comm *c, Tensor t, size_t from);
// Collectives are waited for in the order of their starts on every rank; sends and receives in any
// order. NULL is allowed.
void comm_wait(Request *r);
// The time when the message of a started receive arrives. Waits until the message is there, but
// this rank's clock does not move and the tensor does not change; comm_wait does both. Under the
// wall clock: the time when this rank found the message.
Picoseconds comm_arrival(Request *r);

// --- side channel: never counted, apart from the lesson's communication ---
// For checks, digests and logs, over the whole world. Rank 0 compares and writes files, so the
// others wait for it up to a hundred times --timeout.
// Rank 0 gets the concatenation, and in sizes the size of each rank's part (both malloc'ed). The
// others get NULL, and sizes stays unchanged.
void *side_gather(const void *local, size_t bytes, size_t **sizes);
// Rank 0: calls take() for every rank in order, with the bytes of one rank at a time.
typedef void SideTake(void *context, size_t rank, const void *data, size_t bytes);
void side_gather_each(const void *local, size_t bytes, SideTake *take, void *context);
void side_broadcast(void *data, size_t bytes); // from rank 0
bool side_any(bool local); // true if `local` is true on some rank; the same on all

// --- what the ranks compute on (cores.c) ---
// Cores per rank: the cores it may use, divided by the ranks that share them; the minimum over all
// ranks. Collective.
size_t side_cores_each(void);
// The number of ranks that compute at the same time. GPUs: the number of GPUs. Processes: all, or
// as many as their cores carry (3 cores and 2 threads per rank: 1.5). Virtual ranks: 1. Collective;
// the value is valid on rank 0, and 0 on the others.
double side_at_once(void);

// --- the launch (called by lesson.c) ---
// Add in rank order on every transport, or by the library's own algorithm.
typedef enum { REDUCE_ORDERED, REDUCE_FAST } ReduceOrder;
typedef enum {
    TRANSPORT_AUTO,
    TRANSPORT_EMU,
    TRANSPORT_MPI,
    TRANSPORT_STAGED,
    TRANSPORT_NCCL
} Transport;
extern const char *const transport_name[]; // NULL, "emu", ...
typedef struct {
    Transport transport;  // AUTO: emu, unless a launcher started this process
    size_t emulate;       // number of virtual ranks; 0: not asked for
    size_t default_ranks; // the lesson's own rank count, used without a launcher
    ReduceOrder reduce;
    double timeout;  // the longest time in seconds that a rank may wait in one call
    double deadlock; // processes look for a deadlock after that many seconds; 0: never
} LaunchOptions;
// Is this process one of several, by its environment? Called before options are parsed. *rank is 0
// if it is alone.
bool comm_launched_by_mpi(size_t *rank, size_t *size);
void comm_process_begin(int *argc, char ***argv); // MPI_Init if a launcher started this process
// Runs body(world, context) on every rank of this process. why[] holds the reason for the choice of
// transport.
typedef struct {
    const char *transport;
    char why[160];
    size_t ranks;
} LaunchChoice;
// usage_error() if the requested transport is impossible
LaunchChoice comm_choose(const LaunchOptions *o);
void comm_run(const LaunchOptions *o, const LaunchChoice *choice,
              void (*body)(Comm *world, void *context), void *context);
void comm_process_end(int status); // called with the exit status that main() is about to return
#endif
