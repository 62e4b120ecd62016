// player.c: defines the functions that player.html calls, compiled to WebAssembly together with the
// C of the chapters. Chapters 04 and 05 have the schedules.
// 04_pipeline_naive/experiments/pipeline_steps.c lists the executor's steps for a schedule.
// judge/play/play.c plays these steps, and common/model/costs.c has the sizes. The page passes only
// ints, and gets ints and doubles.
//
// The chapters' files also call communicators, models and lessons, which a page cannot link. The
// linker drops all functions that player.c does not reach. size_t has 32 bits here, so sums over
// all layers are doubles, and the sliders keep a layer below 2^32 elements.
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "common/model/costs.h"
#include "docs/book/wasm.h"

// ---------------------------------------------------------------- schedules

// Times are in halves of the page's unit of time. So an op of one of two chunks, and half a
// backward, take a whole number of half units.
enum { SCHEDULES = 8, SHOWN = 2, CHUNKS = 2, BATCHES_2BW = 2 };
static Timeline shown[SHOWN]; // p = 0: no timeline

static Schedule interleaved(size_t p, size_t m, size_t i) {
    return schedule_interleaved(p, m, CHUNKS, i);
}
static Schedule pipedream(size_t p, size_t m, size_t i) {
    return schedule_pipedream(WEIGHT_STASHING, p, m, i);
}
static Schedule two_versions(size_t p, size_t m, size_t i) {
    return schedule_2bw(p, m, BATCHES_2BW, i);
}
static const ScheduleRule rules[SCHEDULES] = { schedule_naive, schedule_gpipe, schedule_1f1b,
                                               interleaved,    schedule_zb_h1, NULL,
                                               pipedream,      two_versions };
enum { INTERLEAVED = 3, ZB_AUTO = 5, TWO_VERSIONS = 7 };

// Plays a schedule, and keeps its timeline in shown[slot]. t_f, t_b and message are in whole units.
// Returns the time of the step in half units, or -1 if the stages' lists of ops deadlock. Schedule
// 3 returns -2 if m is no multiple of p, and schedule 7 returns -3 if m is less than p. The
// schedules are
//   0 naive, 1 GPipe, 2 1F1B, 3 interleaved with two chunks, 4 ZB-H1
//   5 a zero-bubble list for these times with at most 2p micro-batches in flight
//   6 PipeDream, whose micro-batches are mini-batches
//   7 2BW with two batches
int EXPORT(player_play)(int slot, int schedule, int p, int m, int t_f, int t_b, int message) {
    Timeline *t = &shown[slot];
    size_t forward = 2 * (size_t)t_f, half = (size_t)t_b;
    OpTimes times = { forward, half, half, 2 * (size_t)message };
    if (t->p) timeline_free(t);
    *t = (Timeline){ 0 };
    if (schedule == INTERLEAVED && m % p) return -2;
    if (schedule == TWO_VERSIONS && m < p) return -3;
    if (schedule == INTERLEAVED && p > 1) times = (OpTimes){ forward / 2, half, 0, times.message };
    Schedule *stage = host_alloc((size_t)p * sizeof *stage);
    for (size_t i = 0; i < (size_t)p; i++) {
        if (schedule == ZB_AUTO)
            stage[i] = schedule_zb_auto((size_t)p, (size_t)m, i, 2 * (size_t)p, times);
        else if (schedule == INTERLEAVED && p == 1) stage[i] = schedule_1f1b(1, (size_t)m, 0);
        else stage[i] = rules[schedule]((size_t)p, (size_t)m, i);
    }
    *t = timeline_with_times(stage, (size_t)p, (size_t)m, &times);
    schedule_all_free(stage, (size_t)p);
    return t->stuck ? -1 : (int)t->end;
}
int EXPORT(player_busy)(int slot) { return (int)timeline_busy(&shown[slot]); }
int EXPORT(player_chunks)(int slot) { return (int)shown[slot].v; }
int EXPORT(player_ops)(int slot, int stage) { return (int)shown[slot].n[stage]; }

// Returns the kind of op k of a stage: 0 forward, 1 backward, 2 backward of the inputs, 3 backward
// of the weights, 4 update. The functions below return the other fields. player_op_to() returns the
// stage that receives the op's message, or -1 without a message.
int EXPORT(player_op_what)(int slot, int stage, int k) {
    return (int)shown[slot].event[stage][k].op.what;
}
int EXPORT(player_op_micro_batch)(int slot, int stage, int k) {
    return (int)shown[slot].event[stage][k].op.micro_batch;
}
int EXPORT(player_op_chunk)(int slot, int stage, int k) {
    return (int)shown[slot].event[stage][k].op.chunk;
}
int EXPORT(player_op_start)(int slot, int stage, int k) {
    return (int)shown[slot].event[stage][k].start;
}
int EXPORT(player_op_end)(int slot, int stage, int k) {
    return (int)shown[slot].event[stage][k].end;
}
int EXPORT(player_op_arrives)(int slot, int stage, int k) {
    return (int)shown[slot].event[stage][k].arrives;
}
int EXPORT(player_op_to)(int slot, int stage, int k) {
    StageOp feeds;
    const Timeline *t = &shown[slot];
    bool sends = steps_feeds(t->event[stage][k].op, (size_t)stage, t->p, t->v, &feeds);
    return sends && feeds.stage != (size_t)stage ? (int)feeds.stage : -1;
}

// Returns the number of micro-batches that a stage keeps at `time`. A micro-batch counts once for
// each chunk whose forward has begun and whose backward, or the half for the weights, has not
// ended.
int EXPORT(player_in_flight)(int slot, int stage, int time) {
    int n = 0;
    const Timeline *t = &shown[slot];
    for (size_t e = 0; e < t->n[stage]; e++) {
        const Event *v = &t->event[stage][e];
        if (v->op.what == FORWARD) n += v->start <= (size_t)time;
        if (v->op.what == BACKWARD || v->op.what == BACKWARD_WEIGHTS) n -= v->end <= (size_t)time;
    }
    return n;
}

// ---------------------------------------------------------------- a model's memory

static ModelConfig model;

void EXPORT(player_model)(int layers, int width, int heads, int context, int vocab, int dropout) {
    model = (ModelConfig){ .layers = (size_t)layers,
                           .width = (size_t)width,
                           .heads = (size_t)heads,
                           .context = (size_t)context,
                           .vocab = (size_t)vocab,
                           .dropout = dropout ? 0.1 : 0 };
}

// Returns the elements of the model's parameters on rank 0 if each unit is cut in n parts. Rank 0
// has the most.
static double part_of_model(size_t n) {
    CutSizes z = cut_sizes(&model, 1, 0);
    double sum = (double)part_size(elements_wte(&z), n, 0);
    for (size_t i = 0; i < cut_layers(&z); i++)
        sum += (double)part_size(elements_unit(&z, i), n, 0);
    return sum;
}
double EXPORT(player_parameters)(void) { return part_of_model(1); }

// Returns the bytes of state on rank 0 of n, as in the table of 06_zero/zero.h. Here `stage` is the
// stage of ZeRO. `what` is 0 for weights, 1 for gradients (wte's once), and 2 for moments. In mixed
// precision 2 includes an fp32 copy of the weights. Stage 0 cuts nothing, ZeRO-1 cuts only the
// moments and the copy, ZeRO-2 also cuts the gradients, and ZeRO-3 cuts all.
double EXPORT(player_state)(int stage, int n, int what, int mixed) {
    static const double bytes[2][3] = { { 4, 4, 8 }, { 2, 2, 12 } };
    return bytes[mixed != 0][what] * part_of_model(stage + what >= 3 ? (size_t)n : 1);
}

// Returns the elements per token that rank 0 of t tensor-parallel ranks keeps for one micro-batch
// of all layers, when it keeps the most.
//   how   0 no recomputation, 1 attention probabilities (selective), 2 blocks (full)
//   what  0 inputs of layers, 1 other items of the blocks, 2 attention probabilities, 3 the head's
//   items
// Backward recomputes one block at a time, after the head's items are freed. So only the larger of
// the block's and the head's items counts.
double EXPORT(player_kept)(int how, int what, int t) {
    CutSizes z = cut_sizes(&model, (size_t)t, 0);
    double scores = (double)kept_scores(&z), others = (double)kept_block(&z) - scores,
           head = (double)kept_head(&z);
    double L = (double)z.blocks, again = how == 0 ? 0 : how == 1 ? scores : scores + others;
    bool block_now = again > head;
    switch (what) {
    case 0: return (double)kept_between(&z);
    case 1: return how < 2 ? L * others : block_now ? others : 0;
    case 2: return how == 0 ? L * scores : block_now ? scores : 0;
    default: return block_now ? 0 : head;
    }
}
// Returns the elements per token that a micro-batch keeps on stage i of p, without recomputation.
double EXPORT(player_stage_kept)(int p, int i) {
    CutSizes z = cut_stage(cut_sizes(&model, 1, 0), (size_t)p, (size_t)i);
    return (double)kept_stage(&z);
}
