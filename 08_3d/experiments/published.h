// published.h declares the published times of training steps with which plan_anchors.c compares the
// plan.
#ifndef PUBLISHED_H
#define PUBLISHED_H
#include "08_3d/experiments/experiments.h"

// The quantities that papers print.
// STEP: seconds of a step.
// HARDWARE: TFLOP/s per GPU, which count the repeated forwards, too.
// MODEL_SHARE: MFU in percent.
// CAUSAL_SHARE: MFU in percent, which counts only the part of attention that the causal mask
// leaves.
// BLOCK: ms of the forward and backward of a block.
typedef enum { STEP, HARDWARE, MODEL_SHARE, CAUSAL_SHARE, BLOCK } Printed;
// The systems differ in the communication that they overlap.
// MEGATRON_2021: PTD-P's Megatron-LM waits for every message and sum.
// TORCH_DDP: the same, but PyTorch's DDP overlaps the sum over dp.
// KORTHIKANTI: the sums over tp of a backward run beside products. Section 6.3 of the paper says
// that the sum over dp does not overlap.
// MEGATRON_2024: all communication overlaps.
// LLAMA3: all communication overlaps, but sums over tp do not run in pieces.
// FSDP: ZeRO 3 of PyTorch, which gathers one layer ahead.
// FLASH: ZeRO 1 on PyTorch's DDP.
// ZERO3_2021: DeepSpeed in PTD-P's table 2. These six steps take as long as if a node had one
// network card and nothing overlapped. The cause is not known, so these rows are not counted.
// The first three systems scatter and gather messages between stages (PTD-P section 4.1).
typedef enum {
    MEGATRON_2021,
    TORCH_DDP,
    KORTHIKANTI,
    MEGATRON_2024,
    LLAMA3,
    FSDP,
    FLASH,
    ZERO3_2021
} System;
// The communication, attention and number format of a system.
typedef struct {
    const char *format;
    bool blockwise;
    size_t rails; // network cards per node; 0: one per GPU
    PlanHow how;
} PublishedSystem;
extern const PublishedSystem published_systems[]; // by System
// FIT, HELD_OUT: of every two rows of Megatron-LM and Llama 3, one row is in the fit, and one row
// is held out.
// OTHER: rows of other systems, to which nothing is fitted.
// NOT_COUNTED: rows whose errors no check reads. A check compares only which of these rows and of
// PTD-P's own layouts is faster.
typedef enum { FIT, HELD_OUT, OTHER, NOT_COUNTED, USES } Use;
typedef struct {
    const char *source, *name;
    ModelConfig model;
    size_t gpus, batch, tp, pp, cp, b, v;
    size_t zero;
    bool sequence;
    Recompute recompute;
    double value;
    Printed printed;
    System system;
} PublishedRow;

// A table of rows on one kind of GPU.
// use: the use of all rows. If use is FIT, the rows alternate between FIT and HELD_OUT, beginning
// with FIT.
typedef struct {
    const char *cluster, *gpu;
    const PublishedRow *row;
    size_t n;
    Use use;
} PublishedTable;
// The first two tables are of Megatron-LM and Llama 3.
enum {
    PUBLISHED_A100,
    PUBLISHED_H100,
    PUBLISHED_OTHER_A100,
    PUBLISHED_OTHER_A100_40,
    PUBLISHED_OTHER_H100,
    PUBLISHED_ZERO3,
    PUBLISHED_TABLES
};
extern const PublishedTable published[PUBLISHED_TABLES];
// Returns the planned time of a row's step or block on this cluster, divided by the published time,
// minus 1.
double published_error(const PublishedRow *r, const PlanCluster *cluster);
#endif
