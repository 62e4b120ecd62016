// wire.h: the frames between a graded rank (mpi.c) and the broker (broker.c). A frame is a head and
// `bytes` bytes of data, on a stream socket.
#ifndef WIRE_H
#define WIRE_H
#include <stdint.h>

enum { SOCKET = 3, MOST_RANKS = 64 }; // SOCKET: the rank's file descriptor for the broker
typedef enum {
    FRAME_SEND,   // peer, tag, type; sync: the broker answers when a receive takes the message
    FRAME_RECV,   // peer, tag
    FRAME_MEET,   // a collective: call, root in peer, type, op
    FRAME_WAIT,   // the rank waits, and has taken `id` frames of the broker so far
    FRAME_MARK,   // tag K: the graded body K begins on this rank; tag -K: body K ends
    FRAME_RESULT, // a record for the judge
    FRAME_BYE,    // this rank has finished; the broker answers after reading the rank's counts
    FRAME_DONE    // from the broker: operation `id` is complete; peer and tag belong to the message
} FrameKind;
typedef enum { MEET_BARRIER, MEET_BCAST, MEET_SUM, MEET_GATHER, MEET_SPLIT } Meet;
typedef struct {
    uint64_t id, bytes;
    int32_t kind, comm, peer, tag, type, op, call, sync;
} Frame;
typedef struct {
    int32_t colour, key; // MEET_SPLIT sends these
} SplitWish;
typedef struct {
    int32_t comm, rank, size; // a rank gets these in the answer to MEET_SPLIT
} SplitResult;
#endif
