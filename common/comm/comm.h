// comm.h: declares the communication of ranks. The interface has several transports, and a program
// chooses its transport at run time:
//   emu      virtual ranks in one process
//   mpi      processes
//   staged   processes that copy tensors through host memory, so the processes may share a GPU
//   nccl     processes with a GPU each
// A Comm is a group of ranks. All ranks of the group must call the same collectives in the same
// order.
//
// The ledger of the Comm counts this rank's calls, sent bytes and received bytes. A message counts
// as a call of its sender. A barrier does not count. A collective of S bytes on n ranks counts as
// a ring or a chain. A ring sends chunks of c = ceil(count / n) elements, where count is the number
// of elements of the whole tensor. The ledger counts these sent bytes per rank:
//   all-reduce       ring: 2(n-1)c elements
//   reduce-scatter, all-gather, all-to-all   ring: (n-1)c elements
//   broadcast        chain: S bytes at the root, 0 at the other ranks
//   reduce           chain: S bytes at every rank but the root
// These sizes are a convention, because a transport may use another algorithm. Calls and tensor
// sizes are measured. In a ring a rank receives as many bytes as it sends.
//
// A chain goes through all n ranks, one after the other, as in NCCL. A broadcast's chain begins at
// the root (root, root+1, ...). A reduce's chain ends at the root (root+1, ..., root). Every rank
// except the first of the chain receives S bytes. A rank passes each piece on when the piece has
// arrived. So under the simulated clock a chain takes n-1 latencies and the time of S bytes. In a
// broadcast the other ranks pass the bytes on, but the ledger counts sent bytes only at the root.
//
// A Comm moves elements as the tensors store them, and the ledger counts stored bytes. Input and
// output must have the same element type. A sum of 16-bit elements is computed in reals, in rank
// order, and rounded once.
//
// Tensors given to a Comm must be contiguous. Part i of a whole tensor is the elements
// shard_range(count, n, i). In a function whose name ends in _rows, part i is the rows
// shard_range(rows, n, i), and a chunk is ceil(rows / n) rows.
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
    const char *name;  // such as "world", "dp", "tp" or "pp"; error texts and traces show the name
    size_t rank, size; // this rank's number in the group, and the group's number of ranks
    bool one_node;     // all ranks share a node (clock.h)
    size_t cards;      // network cards per node for collectives; 0 if all ranks share a node
    // The counts since the last comm_ledger_reset(). `bytes` counts sent bytes, and `received`
    // counts received bytes.
    struct {
        size_t calls, bytes, received;
    } ledger[COMM_KINDS];
    struct CommState *state; // state that comm.c and the transport keep (transport.h)
} Comm;

// Divides the parent's ranks into groups and returns the group of this rank. Ranks with equal
// colour form a group, ordered by key, then by rank in the parent. All ranks of the parent must
// call this function. The caller frees the result with comm_free(). `name` is not copied.
Comm *comm_split(Comm *parent, size_t colour, size_t key, const char *name);
// Frees c. All ranks of c must call this function, because MPI frees a communicator on all ranks.
// Calls fault() if a started operation was never waited for.
void comm_free(Comm *c);
void comm_ledger_reset(Comm *c);
size_t comm_bytes_sent(const Comm *c); // returns the sum over all kinds
size_t comm_bytes_received(const Comm *c);

// --- blocking collectives ---
// Replaces t by the sum over the ranks, or (_max) by the maximum. All ranks get the same bits.
void comm_all_reduce(Comm *c, Tensor t);
void comm_all_reduce_max(Comm *c, Tensor t);
// Adds `whole` over the ranks and writes this rank's part of the sum to `local`. `whole` stays
// unchanged, unless `local` is a window of `whole`.
void comm_reduce_scatter(Comm *c, Tensor local, Tensor whole);
// Writes the `local` of every rank to `whole`, in rank order. `local` may be this rank's window of
// `whole`.
void comm_all_gather(Comm *c, Tensor whole, Tensor local);
// comm_reduce_scatter_rows() and comm_all_gather_rows() cut `whole` [M, N] between rows. `local` is
// [rows of shard_range(M, size, rank), N], possibly with no rows. If size divides M, the parts are
// the same as without _rows. Otherwise comm_reduce_scatter() and comm_all_gather() may cut through
// a row.
void comm_reduce_scatter_rows(Comm *c, Tensor local, Tensor whole);
void comm_all_gather_rows(Comm *c, Tensor whole, Tensor local);
// Sends part i of `in` to rank i. Row j of out [size, elements of this rank's part] receives this
// rank's part of rank j's `in`. out and `in` must not overlap.
void comm_all_to_all(Comm *c, Tensor out, Tensor in);
// Replaces the t of every rank by the root's t.
void comm_broadcast(Comm *c, Tensor t, size_t root);
// Replaces the root's t by the sum over the ranks. The t of other ranks is unchanged.
void comm_reduce(Comm *c, Tensor t, size_t root);
// Replaces each of n values in host memory by its sum over the ranks, always in rank order. Such
// values are losses, counts and norms.
void comm_all_reduce_doubles(Comm *c, double *values, size_t n);
void comm_barrier(Comm *c); // waits for all ranks of c; the ledger counts nothing

// --- point to point ---
// Declares which ranks exchange messages. COMM_NEIGHBOURS means each rank with the next and the
// previous rank of a ring. COMM_EVERYBODY means all pairs. All ranks of c must call this function
// before the first message, because NCCL makes a connection for each pair.
typedef enum { COMM_NOBODY, COMM_NEIGHBOURS, COMM_EVERYBODY } CommPeers;
void comm_connect(Comm *c, CommPeers peers);
// A blocking send returns only when the receiver has begun to receive. So a wrong order of sends
// deadlocks even if the messages are small. NCCL buffers small messages. So under nccl a small send
// waits for its receiver only if memory is poisoned (memory.h) or the clock is simulated.
void comm_send(Comm *c, Tensor t, size_t to);
void comm_recv(Comm *c, Tensor t, size_t from);

// --- started operations ---
// A started operation runs until its comm_wait(). Until then the input must stay unchanged, and the
// output may not be read. If memory is poisoned (memory.h), comm_wait() checks that the input is
// unchanged, and copies the result to the output tensor. So a forgotten wait gives a wrong output.
// Until its wait, a started sum holds MEM_COMMUNICATION memory as large as the whole tensor.
typedef struct Request Request;
Request *comm_start_all_reduce(Comm *c, Tensor t);
Request *comm_start_reduce_scatter(Comm *c, Tensor local, Tensor whole);
Request *comm_start_all_gather(Comm *c, Tensor whole, Tensor local);
// The sender continues. comm_wait() of a send returns only when the receiver has begun to receive.
Request *comm_start_send(Comm *c, Tensor t, size_t to);
Request *comm_start_recv(Comm *c, Tensor t, size_t from);
// Waits until the operation r is complete, and frees r. A rank must wait for the collectives of a
// Comm in the order of their starts. Sends and receives may be waited for in any order. If r is
// NULL, the function does nothing.
void comm_wait(Request *r);
// Returns the time when the message of a started receive arrives. The call waits until the message
// has arrived, but only comm_wait() moves the simulated clock. The tensor may be read only after
// comm_wait(). Under the wall clock the result is the time when this rank found the message.
Picoseconds comm_arrival(Request *r);

// --- the side channel, whose messages the ledger never counts ---
// Checks, digests and logs use the side channel, which has all ranks of the world. The other ranks
// may wait for rank 0 a hundred times as long as --timeout, because rank 0 compares results and
// writes files.

// Returns on rank 0 the bytes of all ranks in one block, and sets *sizes to an array with the
// number of bytes of each rank. Rank 0 must free() the block and the array. The other ranks get
// NULL, and *sizes stays unchanged.
void *side_gather(const void *local, size_t bytes, size_t **sizes);
// side_gather_each() calls `take` on rank 0 for every rank in order, with the bytes of that rank.
// The bytes are valid only during the call.
typedef void SideTake(void *context, size_t rank, const void *data, size_t bytes);
void side_gather_each(const void *local, size_t bytes, SideTake *take, void *context);
void side_broadcast(void *data, size_t bytes); // copies rank 0's bytes to all ranks
// Returns true on all ranks if `local` is true on some rank.
bool side_any(bool local);

// --- the launch ---
// REDUCE_ORDERED adds in rank order on every transport. REDUCE_FAST lets MPI or NCCL add in the
// library's own order.
typedef enum { REDUCE_ORDERED, REDUCE_FAST } ReduceOrder;
typedef enum { TRANSPORT_EMU, TRANSPORT_MPI, TRANSPORT_STAGED, TRANSPORT_NCCL } Transport;
typedef struct {
    Transport transport;
    size_t ranks; // the number of virtual ranks, or of processes
    ReduceOrder reduce;
    double timeout; // seconds that a rank may wait in one call; longer on the side channel
    // Under mpi and staged, processes look for a deadlock after this many seconds; 0: never. emu
    // sees a deadlock at once. Under nccl only `timeout` ends a deadlock.
    double deadlock;
} Launch;
// Returns why NCCL cannot be used, or NULL if NCCL is built in.
const char *nccl_missing(void);
// Runs body(world, context) on every rank of this process, and returns when all these ranks have
// finished.
void comm_run(const Launch *l, void (*body)(Comm *world, void *context), void *context);
#endif
