// player.c: what player.html calculates, with the C of the chapters compiled to WebAssembly. The schedules are those of
// 04/03_gpipe.c and 05/02_1f1b.c, 04/experiments/pipeline_steps.c writes down what the executor does with the lists,
// judge/play/play.c plays these steps, and common/model/costs.c has the sizes. Here they only get a door of plain ints
// and doubles.
//
// These files have more in them than a page can link: communicators, models, lessons. The linker drops what nothing
// below reaches (wasm.h).
// size_t has 32 bits in wasm: sums over all layers are doubles here, and the sliders keep a layer below 2^32 elements.
#include "04_pipeline_naive/experiments/pipeline_steps.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "common/model/costs.h"
#include "docs/book/wasm.h"

// ---------------------------------------------------------------- a schedule, shown

static Timeline shown;                            // p = 0: none yet

// schedule: 0 naive, 1 GPipe, 2 1F1B. Times in whole units. The makespan; -1 if the lists deadlock.
int EXPORT(player_play)(int schedule, int p, int m, int t_f, int t_b, int message) {
    static const ScheduleRule rules[] = { schedule_naive, schedule_gpipe, schedule_1f1b };
    if (shown.p) timeline_free(&shown);
    Schedule *stage = schedule_all(rules[schedule], (size_t)p, (size_t)m);
    shown = timeline_with_link(stage, (size_t)p, (size_t)m, (size_t)t_f, (size_t)t_b, (size_t)message);
    schedule_all_free(stage, (size_t)p);
    return shown.stuck ? -1 : (int)shown.end;
}
int EXPORT(player_busy)(void) { return (int)timeline_busy(&shown); }
int EXPORT(player_ops)(int stage) { return (int)shown.n[stage]; }

// Op k of a stage. what: 0 forward, 1 backward. to: the stage that its message goes to; -1: none.
int EXPORT(player_op_what)(int stage, int k) { return (int)shown.event[stage][k].op.what; }
int EXPORT(player_op_micro_batch)(int stage, int k) { return (int)shown.event[stage][k].op.micro_batch; }
int EXPORT(player_op_start)(int stage, int k) { return (int)shown.event[stage][k].start; }
int EXPORT(player_op_end)(int stage, int k) { return (int)shown.event[stage][k].end; }
int EXPORT(player_op_arrives)(int stage, int k) { return (int)shown.event[stage][k].arrives; }
int EXPORT(player_op_to)(int stage, int k) {
    StageOp feeds;
    bool sends = steps_feeds(shown.event[stage][k].op, (size_t)stage, shown.p, shown.v, &feeds);
    return sends ? (int)feeds.stage : -1;
}

// Micro-batches that a stage keeps at a time: those whose forward has begun and whose backward has not ended.
int EXPORT(player_in_flight)(int stage, int time) {
    int n = 0;
    for (size_t e = 0; e < shown.n[stage]; e++) {
        const Event *v = &shown.event[stage][e];
        if (v->op.what == FORWARD) n += v->start <= (size_t)time;
        else n -= v->end <= (size_t)time;
    }
    return n;
}

// ---------------------------------------------------------------- a model's memory

static ModelConfig model;

void EXPORT(player_model)(int layers, int width, int heads, int context, int vocab, int dropout) {
    model = (ModelConfig){ .layers = (size_t)layers, .width = (size_t)width, .heads = (size_t)heads,
                           .context = (size_t)context, .vocab = (size_t)vocab, .dropout = dropout ? 0.1 : 0 };
}

// Elements of the whole model's parameters that one of n ranks has, each unit cut in n: rank 0 has most.
static double part_of_model(size_t n) {
    CutSizes z = cut_sizes(&model, 1, 0);
    double sum = (double)part_size(elements_wte(&z), n, 0);
    for (size_t i = 0; i < cut_layers(&z); i++) sum += (double)part_size(elements_unit(&z, i), n, 0);
    return sum;
}
double EXPORT(player_parameters)(void) { return part_of_model(1); }

// Bytes of state on rank 0 of n, as in the table of 06/zero.h: what is 0 weights, 1 gradients (wte's once), 2 moments
// and, in mixed precision, an fp32 copy of the weights. Stage 1 cuts the last, stage 2 gradients too, stage 3 all.
double EXPORT(player_state)(int stage, int n, int what, int mixed) {
    static const double bytes[2][3] = { { 4, 4, 8 }, { 2, 2, 12 } };
    return bytes[mixed != 0][what] * part_of_model(stage + what >= 3 ? (size_t)n : 1);
}

// Elements per token that rank 0 of t keeps at most, one micro-batch, all layers: the formula of 07_recompute/experiments/03_selective.c.
// how: 0 nothing is computed again, 1 attention probabilities (selective), 2 blocks (full). what: 0 what layers hand to
// each other, 1 the blocks' other items, 2 their attention probabilities, 3 the head's items. Of what backward computes
// again there is one block's at a time; the head's items are gone by then: the larger of the two counts.
double EXPORT(player_kept)(int how, int what, int t) {
    CutSizes z = cut_sizes(&model, (size_t)t, 0);
    double scores = (double)kept_scores(&z), others = (double)kept_block(&z) - scores, head = (double)kept_head(&z);
    double L = (double)z.blocks, again = how == 0 ? 0 : how == 1 ? scores : scores + others;
    bool block_now = again > head;
    switch (what) {
    case 0:  return (double)kept_between(&z);
    case 1:  return how < 2 ? L * others : block_now ? others : 0;
    case 2:  return how == 0 ? L * scores : block_now ? scores : 0;
    default: return block_now ? 0 : head;
    }
}
// Elements per token that a micro-batch keeps on stage i of p; nothing is computed again.
double EXPORT(player_stage_kept)(int p, int i) {
    CutSizes z = cut_stage(cut_sizes(&model, 1, 0), (size_t)p, (size_t)i);
    return (double)kept_stage(&z);
}
