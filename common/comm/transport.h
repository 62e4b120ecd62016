// transport.h: what comm.c asks of a transport. Private to the comm_*.c files; chapters include
// comm.h.
//
// Every operation is a Request. The transport finds what this rank gives at `in` and puts what it
// gets at `out`: the memory of the caller's tensors, so nothing is copied on the way. Three
// exceptions, all made by comm.c:
//   staged      MPI moves the tensors of a GPU: in and out are pinned host memory
//   a shadow    of a started operation, where memory is poisoned (lessons, --check): in is a copy
//   with which the tensor
//               is compared at the wait, and out is delivered there, so a forgotten wait is always
//               wrong. MEM_REFERENCE
//   scratch     of a started sum, as large as the whole: where contributions meet until the wait.
//   MEM_COMMUNICATION,
//               the same on every transport
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
typedef enum { REALS, DOUBLES, BYTES } Element; // doubles and bytes are always in host memory
size_t element_size(Element e);

// host memory of a staged operation: grows, is kept
typedef struct {
    char *data;
    size_t capacity;
} Pinned;

struct Request {
    Comm *comm;
    Action action;
    const char *call; // its name in messages, "all-reduce"; equal on all ranks of a meeting
    Element element;
    size_t count;               // elements of the whole (a message, for send and recv)
    size_t row;                 // elements that no cut divides: of a row, or 1
    size_t peer;                // the root, or the other rank; 0 where there is none
    bool later;                 // others may run between its start and its finish
    bool patient;               // may wait for as long as it takes
    bool done;                  // out holds the result (kept by the emu transport)
    bool grouped;               // finished by comm_group_end
    bool here;                  // comm_arrival found the message: it has come
    size_t in_count, out_count; // elements of in and out on this rank
    const char *in; // of a whole and its part, out may be in, or each other's place in the whole
    char *out;
    char *scratch;        // of a started sum: size * request_longest_part; NULL: a blocking one
    Tensor input, output; // the caller's
    Arena held, shadow;   // of scratch; of the shadow's two tensors:
    Tensor seen, result;
    Pinned staged, staged_scratch;
    // the transport's own, freed with the request; more: of one built on another
    void *extra, *more;
    Request *queued; // emu: the next message in the queue of its pair
    // Time that the transports carry, only where request_simulated() holds.
    Picoseconds ready;     // collective: this rank can begin; before start
    Picoseconds all_ready; // collective: its last member can begin; after meet
    // message: at its receiver. A send knows it before start, a recv after finish
    Picoseconds arrives;
    Picoseconds issued, waited, end; // waited: this rank began to wait for it
    bool met;                        // simulated collective: end is known
    size_t steps, bytes;             // of the ring or the chain that carries it
    uint64_t flow;                   // equal on all ranks that take part
    CommKind kind;
    bool booked, timed; // an operation of the ledger; not while that is paused
    Request *next;      // in the list of the Comm it is in
};

// out = ((part of rank 0 + part of rank 1) + part of rank 2) + ..., or the maximum, in host memory.
// The order is the same on every transport, so the bits are. out may be one of the parts.
void combine_in_rank_order(const Request *r, char *out, const char *const parts[], size_t count);
// "recv from rank 1 of tp (1024 elements, 4096 bytes)"
void describe(const Request *r, char text[200]);
bool request_is_message(const Request *r); // a send or a recv, no collective
bool request_adds(const Request *r);       // contributions of several ranks become one
bool request_simulated(const Request *r);  // the transport carries its time; equal on all ranks
// Elements of the whole that a rank gets or adds up: its part. The root of a reduce adds up all of
// it.
Range request_part(const Request *r, size_t rank);
size_t request_longest_part(const Request *r);
// Elements [offset, offset + most) of that part, as far as the part has them.
Range request_piece(const Request *r, size_t rank, size_t offset, size_t most);

// What this rank sends to another rank and receives from that rank in one round of a collective.
// Counts of elements.
typedef struct {
    const char *send;
    char *receive;
    size_t sends, receives;
} Parcel;
// They fill parcel[size], by rank; a rank's parcel to itself is empty. Of a sum the two rounds of a
// piece: every rank sends its contributions, which meet in the receiver's scratch, `most` elements
// apart;
void parcels_of_contributions(const Request *r, char *scratch, size_t offset, size_t most,
                              Parcel parcel[]);
// every rank sends the sum of its own piece. An all-gather is this round with the parts themselves.
void parcels_of_sums(const Request *r, const char *sum, size_t offset, size_t most,
                     Parcel parcel[]);
void parcels_to_all(const Request *r, Parcel parcel[]); // all-to-all

typedef struct {
    bool device_memory;         // takes tensors where they are; else from host memory
    void (*start)(Request *r);  // never waits for another rank
    void (*finish)(Request *r); // waits; afterwards out is complete and in is free
    void (*meet)(Request *r);   // waits until all members have started it; sets all_ready
    void (*connect)(Comm *c, CommPeers peers); // collective; NULL: messages need no preparation
    // The link of a new Comm over these ranks of the parent, of which I am number me. All of them
    // call it.
    void *(*split)(Comm *parent, const size_t *members, size_t n, size_t me);
    void (*close)(Comm *c);
} Wire;

struct CommState {
    const Wire *wire;
    void *link; // the wire's own
    ReduceOrder reduce;
    double timeout;
    size_t meetings;       // collectives started so far: the same on all ranks
    Request *open;         // started or grouped, not waited for; oldest first
    Request *idle;         // finished, kept for the next ones
    bool grouping;         // between group_start and group_end
    CommPeers connected;   // with whom messages may be exchanged
    uint64_t id;           // equal on all members, different for every Comm
    size_t *world_rank;    // of every member
    Picoseconds lane_free; // simulated clock: the next collective can begin
    // messages so far; when the next can leave
    struct {
        size_t sent, received;
        Picoseconds lane_free;
    } * peer;
};

typedef struct {
    void (*body)(Comm *world, void *context);
    void *context;
} RankBody;
// world_rank: of every member; NULL: these are the ranks of the world.
Comm *comm_new(const char *name, size_t rank, size_t size, const size_t *world_rank,
               const Wire *wire, void *link, ReduceOrder reduce, double timeout);
// One rank from its first to its last line; the links are those of world and side channel.
void comm_run_rank(Comm *world, Comm *side, RankBody body);
void emu_run(const LaunchOptions *o, size_t ranks, RankBody body);
void mpi_run(const LaunchOptions *o, RankBody body); // also staged
size_t mpi_local_rank(void);               // this process's number among those of its host
bool mpi_all_different(const char id[32]); // no two processes of one host have the same; collective
void nccl_run(const LaunchOptions *o, RankBody body);
const char *nccl_missing(void); // why not; NULL: it is built in
#endif
