// attend.h: the attention of one layer, without the rest of a model, for 13_ring_self_attention and
// 14_ulysses. One sequence is cut by positions over all ranks, and is also attended to on one
// device.
#ifndef ATTEND_H
#define ATTEND_H
#include "03_tensor_parallel/context_parallel.h"
#include "judge/draw/picture.h"

// B sequences of T positions; heads of D columns; key_heads: heads of key and value, a divisor of
// heads. drop: share of probabilities that dropout removes. theta: base of rotary positions; 0:
// none.
typedef struct {
    size_t B, T, heads, key_heads, D;
    double drop, theta;
} AttendSizes;

// The measurements of a rank in a forward and a backward. calls: sends and collectives. kept: bytes
// for backward, besides q, k, v and the output. buffers: bytes of messages at their peak. flops: of
// this rank.
typedef struct {
    size_t sent, calls, kept, buffers;
    double flops;
    Timing forward, backward;
} Attended;

// Runs attention on all ranks, and compares the output and the gradients of q, k and v with `want`.
// title: also shows a picture of the forward; NULL: none.
Attended attend(Run *run, const AttentionKind *kind, AttendSizes z, Snapshot *want,
                const char *title);
// Runs the attention on one device: rank 0, uncounted.
Snapshot *attend_one_device(Run *run, AttendSizes z);
// Compares bytes, calls, memory and FLOPs with the formulas of the kind. One sequence; N divides T.
// The ids are sent.ID, calls.ID, kept.ID, buffers.ID, flops.ID.
void attend_costs(Run *run, const AttentionKind *kind, AttendSizes z, const Attended *r,
                  const char *id);
#endif
