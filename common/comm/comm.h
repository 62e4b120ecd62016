// comm.h: the only way in which ranks communicate. One interface, several transports, chosen at run
// time: emu = virtual ranks in one process; mpi = processes; with GPUs staged = processes whose
// tensors go through host memory, so that they may share a GPU, and nccl = processes with a GPU
// each. A Comm is a group of ranks; every rank of the group must make the same calls in the same
// order.
//
// Every call is booked in the ledger of the Comm: calls, and bytes SENT by this rank. A collective
// books what a ring implementation sends, with chunks c = ceil(count / n): all-reduce 2(n-1)c
// elements, reduce-scatter, all-gather and all-to-all (n-1)c; broadcast S bytes at the root, reduce
// S bytes at every other rank. That factor is a convention; calls and sizes are facts. Beside it
// stands what this rank RECEIVES. In a ring that is what it sends. A message is received by its
// receiver.
//
// A broadcast and a reduce of S bytes are a chain of all n ranks, as in NCCL: a broadcast's begins
// at the root (root, root+1, ...), a reduce's ends there (root+1, ..., root). All but the first
// rank of the chain receive S bytes. A rank passes on each piece as soon as the piece has come. So
// under the simulated clock a chain takes n-1 latencies and the time of S bytes. Of the bytes that
// a broadcast passes on, the ledger books only those of the root.
//
// Tensors given to a Comm are contiguous. Part i of a whole is always shard_range(count, size, i);
// of a call that ends in _rows it is the rows shard_range(rows, size, i), and a chunk is ceil(rows
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
    size_t rank, size; // mine, and how many
    bool one_node;     // do all of them share a node? (clock.h)
    // counted since the last comm_ledger_reset
    struct {
        size_t calls, bytes, received;
    } ledger[COMM_KINDS];
    struct CommState *state; // the transport's
} Comm;

// Ranks of the parent with equal colour form a group, ordered by (key, parent rank). Collective
// over the parent.
Comm *comm_split(Comm *parent, size_t colour, size_t key, const char *name);
void comm_free(Comm *c); // fault() when a started operation was never waited for
// A Comm of rows x cols x depth ranks as layers of a matrix of ranks: rank = col + cols * (row +
// rows * layer). With a depth of 1 it is one matrix, in row-major order (SUMMA); q x q x d is
// Tesseract's grid.
typedef struct {
    size_t rows, cols, depth, row, col, layer; // how many, and mine
    Comm *in_row;                              // [cols] the ranks of my row in my layer, by column
    Comm *in_col;                              // [rows] those of my column in my layer, by row
    Comm *in_depth;                            // [depth] those of my row and column, by layer
} CommGrid;
// Collective over c; usage_error() when rows * cols * depth is not its size.
CommGrid comm_grid(Comm *c, size_t rows, size_t cols, size_t depth);
void comm_grid_free(CommGrid *g);
void comm_ledger_reset(Comm *c);
size_t comm_bytes_sent(const Comm *c); // over all kinds
size_t comm_bytes_received(const Comm *c);

// --- blocking collectives ---
void comm_all_reduce(Comm *c, Tensor t); // t <- sum over ranks; all ranks get the same bits
void comm_all_reduce_max(Comm *c, Tensor t);
// mine <- my part of the sum of the wholes; whole is left as it was, but mine may be my place in
// it.
void comm_reduce_scatter(Comm *c, Tensor mine, Tensor whole);
// whole <- the parts in rank order; mine may be my place in whole.
void comm_all_gather(Comm *c, Tensor whole, Tensor mine);
// The same with whole [M, N] cut between rows: mine [rows of shard_range(M, size, rank), N], which
// may be none. Where size divides M these are the parts of the calls above; elsewhere those cut
// through a row.
void comm_reduce_scatter_rows(Comm *c, Tensor mine, Tensor whole);
void comm_all_gather_rows(Comm *c, Tensor whole, Tensor mine);
// Part i of in goes to rank i. out [size, my part]: row j is what rank j's in has for me. out and
// in do not overlap.
void comm_all_to_all(Comm *c, Tensor out, Tensor in);
void comm_broadcast(Comm *c, Tensor t, size_t root);
// the root's t <- sum; others' t is left as it was
void comm_reduce(Comm *c, Tensor t, size_t root);
// Host values (losses, counts, norms); always in rank order.
void comm_all_reduce_doubles(Comm *c, double *values, size_t n);
void comm_barrier(Comm *c); // books nothing

// --- point to point ---
// Before the first message, on all ranks of c: with whom do its ranks exchange messages? With the
// next and the previous one (a ring), or with everybody. NCCL makes a connection for each such
// pair; others may not be used.
typedef enum { COMM_NOBODY, COMM_NEIGHBOURS, COMM_EVERYBODY } CommPeers;
void comm_connect(Comm *c, CommPeers peers);
// A blocking send returns when it was received (so a wrong order of sends deadlocks at every size,
// not only for big messages).
void comm_send(Comm *c, Tensor t, size_t to);
void comm_recv(Comm *c, Tensor t, size_t from);
// Sends and receives between group_start and group_end make progress together and are all done at
// the end.
void comm_group_start(Comm *c);
void comm_group_end(Comm *c);

// --- started and waited. The input must stay untouched until the wait; the output is there after
// it. Where memory is
//     poisoned (memory.h), the wait checks the one and delivers the other: a forgotten wait is
//     always wrong, never right by luck. A started sum holds communication memory as large as the
//     whole until its wait. ---
typedef struct Request Request;
Request *comm_start_all_reduce(Comm *c, Tensor t);
Request *comm_start_reduce_scatter(Comm *c, Tensor mine, Tensor whole);
Request *comm_start_all_gather(Comm *c, Tensor whole, Tensor mine);
// The sender goes on; its wait returns when the message was received.
Request *comm_start_send(Comm *c, Tensor t, size_t to);
Request *comm_start_recv(Comm *c, Tensor t, size_t from);
// Collectives in the order of their starts, on every rank; sends and receives in any order. NULL is
// allowed.
void comm_wait(Request *r);
// When did, or will, the message of a started receive arrive? Waits until it is there, but this
// rank's clock does not move and the tensor does not change: comm_wait does both. Under the wall
// clock: when this rank found it there.
Picoseconds comm_arrival(Request *r);

// --- side channel: never counted, outside the lesson's own path. For checks, digests and logs.
// Over the whole world.
//     For rank 0, which compares and writes files, the others wait here a hundred times --timeout.
//     ---
// Rank 0: returns the concatenation, and sizes receives the size of each rank's part (both
// malloc'ed). The others get NULL, and sizes stays as it is.
void *side_gather(const void *mine, size_t bytes, size_t **sizes);
// Rank 0: take() is called for every rank in order, and no two ranks' bytes are there at once.
typedef void SideTake(void *context, size_t rank, const void *data, size_t bytes);
void side_gather_each(const void *mine, size_t bytes, SideTake *take, void *context);
void side_broadcast(void *data, size_t bytes); // from rank 0
bool side_any(bool mine);                      // is it true on some rank? The same on all

// --- what the ranks compute on (cores.c) ---
// Cores for each rank: those that it may use, divided by the ranks that share them; the least of
// all ranks. Collective.
size_t side_cores_each(void);
// How many ranks compute at the same time. On GPUs: how many GPUs they have. Processes: all, or as
// many as their cores carry (3 cores and 2 threads per rank: 1.5). Virtual ranks: 1. Collective;
// the number is rank 0's, 0 on the others.
double side_at_once(void);

// --- the launch (called by lesson.c) ---
// Add in rank order on every transport | the library's own algorithm.
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
    Transport transport;  // AUTO: emu, unless a launcher started us
    size_t emulate;       // virtual ranks, 0: not asked for
    size_t default_ranks; // the lesson's own count, used when started bare
    ReduceOrder reduce;
    double timeout;  // seconds a rank may wait in one call
    double deadlock; // seconds after which processes look for one; 0: never
} LaunchOptions;
// Is this process one of several, by its environment? Looked up before options are parsed. *rank is
// 0 when alone.
bool comm_launched_by_mpi(size_t *rank, size_t *size);
void comm_process_begin(int *argc, char ***argv); // MPI_Init when a launcher started us
// Runs body(world, context) on every rank of this process; why[] receives the reason for the choice
// of transport.
typedef struct {
    const char *transport;
    char why[160];
    size_t ranks;
} LaunchChoice;
LaunchChoice comm_choose(const LaunchOptions *o); // usage_error() where the wish is not possible
void comm_run(const LaunchOptions *o, const LaunchChoice *choice,
              void (*body)(Comm *world, void *context), void *context);
void comm_process_end(int status); // with the exit status that main() is about to return
#endif
