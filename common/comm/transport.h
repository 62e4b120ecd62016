// transport.h: declares the requests that comm.c gives to a transport, and the functions of a
// transport. The files of common/comm share this header. Chapters include comm.h instead.
//
// Every operation is a Request. The transport reads this rank's contribution at `in` and writes the
// result at `out`. `in` and `out` point to the caller's tensors, so nothing is copied. comm.c
// provides other memory in three cases:
//   staged   MPI moves the tensors of a GPU, so `in` and `out` are pinned host memory.
//   shadow   A started operation has a shadow if memory is poisoned (lessons, --check). `in` is a
//            copy of the input, and the wait compares the input with the copy. The wait copies
//            `out` to the output tensor. So a forgotten wait gives a wrong result. A shadow counts
//            as MEM_REFERENCE.
//   scratch  A started sum has a scratch as large as the whole tensor, for the contributions of
//            all ranks. A scratch counts as MEM_COMMUNICATION on every transport.
#ifndef TRANSPORT_H
#define TRANSPORT_H
#include "common/comm/comm.h"

typedef enum {
    DO_ALL_REDUCE,
    DO_ALL_REDUCE_MAX,
    DO_REDUCE_SCATTER,
    DO_ALL_GATHER,
    DO_ALL_TO_ALL,
    DO_BROADCAST,
    DO_REDUCE,
    DO_BARRIER,
    DO_SEND,
    DO_RECV
} Action;
// Returns whether e is the element type of a tensor. Tensors may be in device memory. DOUBLES and
// BYTES are always in host memory.
static inline bool element_of_tensor(Element e) { return e == REALS || element_is_half(e); }

struct Request {
    Comm *comm;
    Action action;
    const char *call; // the operation's name in messages, such as "all-reduce"
    Element element;
    size_t count; // elements of the whole tensor, or of the message
    size_t row;   // parts begin at multiples of this many elements: a row, or 1
    size_t peer;  // the root, or the other rank; 0 if there is none
    bool patient; // may wait a hundred times as long as --timeout, unless a process is stopped
    bool done;    // out holds the result (emu only)
    bool found;   // comm_arrival has found the message
    // The operation's number is equal on all ranks that take part, and different for every
    // operation.
    uint64_t flow;
    // In an all-gather `in` may be a window of `out`. In a reduce-scatter `out` may be a window of
    // `in`.
    const char *in;
    char *out;
    char *scratch;        // a started sum: comm->size * request_longest_part() elements; else NULL
    Tensor input, output; // the caller's tensors
    // The arena `held` owns scratch. The arena `shadow` owns `seen`, a copy of the input, and
    // `result`, which the wait copies to the output.
    Arena held, shadow;
    Tensor seen, result;
    char *pinned; // host memory of a staged operation: in, out and scratch; kept for reuse
    size_t pinned_bytes;
    void *extra;  // comm_mpi.c's state, kept for reuse and freed with the request
    void *flight; // comm_nccl.c's state, from nccl_start() to nccl_finish()
    // The transports carry these times between ranks. The times are valid only if
    // request_simulated(). After comm_arrival() `arrives` is valid under the wall clock, too.
    Picoseconds ready;     // collective: when this rank can begin; set before start
    Picoseconds all_ready; // collective: when its last member can begin; set by meet
    // message: when the message reaches its receiver. The sender knows this time before the send
    // starts, the receiver after the receive finishes.
    Picoseconds arrives;
    // issued: when this rank started r. waited: when this rank began to wait. end: when a simulated
    // collective ends.
    Picoseconds issued, waited, end;
    bool met;            // simulated collective: its end is known
    size_t steps, bytes; // steps and bytes of the ring, the chain or the message
    // counted: the ledger counts the operation, unless the ledger is paused.
    // timed: counted, and the ledger was not paused when the operation started.
    bool counted, timed;
    Request *next; // the next request in the Comm's list `open` or `idle`
};

// Writes ((part of rank 0 + part of rank 1) + part of rank 2) + ..., or the maximum, to out. parts
// and out are in host memory, and out may be one of the parts. With --reduce ordered every
// transport adds in this order, so all transports give the same bits. Elements of 16 bits are added
// in real, and the sum is rounded once.
void combine_in_rank_order(const Request *r, char *out, const char *const parts[], size_t count);
size_t request_bytes(const Request *r); // returns bytes of the whole tensor, or of the message
// Returns the rank in the world of the member that has the rank `member` in r's Comm.
size_t request_world_rank(const Request *r, size_t member);
// Copies `count` elements of r's type. Does nothing if to == from.
void request_copy(const Request *r, void *to, const void *from, size_t count);
// Writes a description of r, such as "recv from rank 1 of tp (1024 elements, 4096 bytes)".
void describe(const Request *r, char text[200]);
bool request_is_message(const Request *r); // returns whether r is a send or a receive
bool request_adds(const Request *r);       // returns whether r is a sum, or a maximum, over ranks
// Returns whether the transport carries the times of r. All ranks get the same answer.
bool request_simulated(const Request *r);
// Returns a rank's part of the whole tensor. The rank gives this part to an all-gather, gets this
// part of every rank's tensor in an all-to-all, and adds this part in a sum. In a reduce the root
// adds the whole tensor.
Range request_part(const Request *r, size_t rank);
size_t request_longest_part(const Request *r);
// comm_mpi.c and comm_nccl.c compute a sum in pieces. A piece is elements [offset, offset + most)
// of every rank's part, or fewer if the part ends earlier. In the first round every rank sends its
// contributions. In the receiver's scratch the contributions begin `most` elements apart. An
// all-reduce has a second round, in which every rank sends the sum of its own piece.
typedef struct {
    size_t offset, most;
    char *scratch;
    const char *sum; // NULL in the first round
} Piece;
// Returns the place of a rank's piece in the whole tensor. If piece is NULL, returns the place of
// the rank's part.
Range request_piece(const Request *r, size_t rank, const Piece *piece);

// A Parcel describes what this rank sends to rank `other`, and receives from `other`, in one round.
// An all-gather and an all-to-all have one round, with piece = NULL. If `other` is this rank, the
// transport copies the elements. In the first round of a sum this rank's own parcel is empty,
// because the transport takes the own elements from `in`.
typedef struct {
    const char *send;
    char *receive;
    size_t sends, receives; // elements
} Parcel;
Parcel request_parcel(const Request *r, size_t other, const Piece *piece);

typedef struct {
    void (*start)(Request *r);  // never waits for another rank
    void (*finish)(Request *r); // waits; then later ops may read out and overwrite in
    void (*meet)(Request *r);   // waits until all members have started r; sets r->all_ready
    // All ranks of c call connect. NULL means that messages need no preparation.
    void (*connect)(Comm *c, CommPeers peers);
    // Returns the link of a new Comm of the n ranks members[] of the parent. This rank is number
    // `me` of the new Comm. All ranks of the parent call split. split and close are NULL if a Comm
    // has no link.
    void *(*split)(Comm *parent, const size_t *members, size_t n, size_t me);
    void (*close)(Comm *c);
} Wire;

// A PeerLane counts the messages to and from a peer so far. lane_free is the time when the next
// message to the peer can leave.
typedef struct {
    size_t sent, received;
    Picoseconds lane_free;
} PeerLane;

struct CommState {
    const Wire *wire;
    void *link;            // the transport's state of this Comm, or NULL
    const Launch *launch;  // the settings of the run
    size_t meetings;       // collectives started so far, equal on all members
    Request *open;         // started operations that no wait has finished, oldest first
    Request *idle;         // finished requests, kept for reuse
    CommPeers connected;   // the pairs that may exchange messages
    uint64_t id;           // equal on all members, different for every Comm
    size_t *world_rank;    // [members] each member's number in the world
    Picoseconds lane_free; // simulated clock: when the next collective can begin
    PeerLane *peer;        // [members]
};

typedef struct {
    void (*body)(Comm *world, void *context);
    void *context;
} RankBody;
// Returns a new Comm of all ranks of the world.
Comm *comm_of_world(const char *name, const Wire *wire, void *link, const Launch *launch);
// Runs one rank from its beginning to its end, and frees the Comms of the world and of the side
// channel.
void comm_run_rank(Comm *world, Comm *side, RankBody body);
void emu_run(const Launch *l, RankBody body);
void mpi_run(const Launch *l, RankBody body); // for mpi and staged
void nccl_run(const Launch *l, RankBody body);
#endif
