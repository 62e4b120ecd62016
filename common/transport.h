// transport.h: what comm.c asks of a transport. Private to the comm_*.c files; chapters include comm.h.
//
// Every operation is a Request: comm.c copies the input to a buffer (in), the transport turns the inputs of all ranks
// into the output (out), comm.c delivers that. Most transports see host memory only, whatever the device. One that is
// on_device has the elements of tensors in device memory: in is filled on this rank's compute stream, start makes its
// own stream wait for that, and after finish the compute stream may use out. Bytes and doubles are always host memory.
// These buffers are kept with the Comm and used again. They are not in the memory ledger, equal on all transports.
#ifndef TRANSPORT_H
#define TRANSPORT_H
#include "comm.h"

typedef enum { DO_ALL_REDUCE, DO_ALL_REDUCE_MAX, DO_REDUCE_SCATTER, DO_ALL_GATHER, DO_BROADCAST, DO_REDUCE, DO_BARRIER,
               DO_SEND, DO_RECV } Action;
typedef enum { REALS, DOUBLES, BYTES } Element;
size_t element_size(Element e);

// Pinned memory is for what is copied to and from a device. Bytes and doubles are not: CUDA may wait for all that a
// GPU does before it gives such memory back.
typedef enum { PLAIN, PINNED, ON_DEVICE } Place;
typedef struct { char *data; size_t capacity; Place place; } Buffer;           // grows, never shrinks
void buffer_reserve(Buffer *b, size_t bytes);
void buffer_free(Buffer *b);

struct Request {
    Comm *comm;
    Action action;
    const char *call;                      // its name in messages, "all-reduce"; equal on all ranks of a meeting
    Element element;
    size_t count;                          // elements of the whole (a message, for send and recv)
    size_t peer;                           // the root, or the other rank; 0 where there is none
    bool buffered;                         // a send that does not wait for its receiver
    bool patient;                          // may wait for as long as it takes
    bool done;                             // out holds the result (kept by the emu transport)
    bool grouped;                          // finished by comm_group_end
    bool here;                             // the message has come, at stamp (asked by comm_arrival)
    size_t in_count, out_count;            // elements of in and out on this rank
    Buffer in, out;
    Buffer scratch;                        // for the transport between start and finish
    bool on_device;                        // the buffers are
    void *extra, *more;                    // the transport's own, freed with the request; more: of one built on another
    Tensor input, output;                  // the caller's
    // Time. stamp: before start, when this rank is ready (a send: when its message arrives); after meet, the latest of
    // all members (a recv: when its message arrives). The transports carry it under the model clock.
    uint64_t stamp;
    Picoseconds issued, end;
    size_t steps, bytes;                   // of the ring that carries it
    uint64_t flow;                         // of a message
    CommKind kind;
    bool booked, timed;                    // an operation of the ledger; not while that is paused
    Request *next_timed;                   // in the list of started collectives whose end is not known yet
    Request *next;                         // in the list of the Comm it is in
};

// out = ((part of rank 0 + part of rank 1) + part of rank 2) + ..., or the maximum. The one place where contributions
// meet, so the bits are the same on every transport.
void combine_in_rank_order(const Request *r, char *out, const char *const parts[], size_t count);
void describe(const Request *r, char text[200]);               // "recv from rank 1 of tp (1024 elements, 4096 bytes)"
Range request_part(const Request *r, size_t rank);             // elements of part `rank` of the whole

typedef struct {
    bool on_device;
    void (*start)(Request *r);             // never waits for another rank
    void (*finish)(Request *r);            // waits; afterwards out is complete and in is free
    void (*meet)(Request *r);              // waits until all members have started it: stamp is the latest of theirs
    // The link of a new Comm over these ranks of the parent, of which I am number me. All of them call it.
    void *(*split)(Comm *parent, const size_t *members, size_t n, size_t me);
    void (*close)(Comm *c);
} Wire;

struct CommState {
    const Wire *wire;
    void *link;                            // the wire's own
    ReduceOrder reduce;
    double timeout;
    size_t meetings;                       // collectives started so far: the same on all ranks
    Request *open;                         // started or grouped, not waited for; oldest first
    Request *idle;                         // finished, kept for their buffers
    bool grouping;                         // between group_start and group_end
    Buffer seen;                           // a piece of an input, to see whether it is still the same
    uint64_t id;                           // equal on all members, different for every Comm
    struct { size_t sent, received; Picoseconds link_free; } *peer;  // messages so far, and the model's link to a peer
};

typedef struct { void (*body)(Comm *world, void *context); void *context; } RankBody;
Comm *comm_new(const char *name, size_t rank, size_t size, const Wire *wire, void *link, ReduceOrder reduce,
               double timeout);
// One rank from its first to its last line; the links are those of world and side channel.
void comm_run_rank(Comm *world, Comm *side, RankBody body);
void emu_run(const LaunchOptions *o, size_t ranks, RankBody body);
void mpi_run(const LaunchOptions *o, RankBody body);           // also staged: all that is staged are its Buffers
size_t mpi_local_rank(void);                                   // this process's number among those of its host
bool mpi_all_different(const char id[32]);                     // no two processes of one host have the same; collective
void nccl_run(const LaunchOptions *o, RankBody body);
const char *nccl_missing(void);                                // why not; NULL: it is built in
#endif
