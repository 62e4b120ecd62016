// kept.c: the activations of a stage, op by op through its schedule, and the choice of what its
// blocks recompute.
#include "08_3d/kept.h"
#include <math.h>
#include <stdlib.h>
#include "03_tensor_parallel/context_parallel.h"
#include "03_tensor_parallel/kept.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"

enum { E = sizeof(real) };

// ---------------------------------------------------------------- sizes

CutSizes kept_part_sizes(const TrainerConfig *c, Coordinates at, size_t part) {
    CutSizes all = cut_sizes(&c->model, c->mesh.tp, at.tp);
    if (tensor_is_grid(c)) all = grid_kept_sizes(&c->model, tensor_sides(c), at.tp);
    CutSizes z = cut_stage(all, c->mesh.pp * trainer_chunks(c), part);
    if (c->stage_blocks) z.blocks = c->stage_blocks[part];
    if (mesh_cp(c->mesh) > 1 || c->blockwise) {
        Positions local = { 0 };
        if (mesh_cp(c->mesh) > 1)
            local = context_positions(c->model.context, c->mesh.cp, at.cp, &ring_attention_zigzag);
        z = cut_positions(z, &local, true);
    }
    return c->sequence ? cut_sequence(z, false) : z;
}
CutSizes kept_stage_sizes(const TrainerConfig *c, Coordinates at) {
    size_t last = trainer_chunks(c) - 1;
    CutSizes z = kept_part_sizes(c, at, at.pp),
             end = kept_part_sizes(c, at, last * c->mesh.pp + at.pp);
    z.last = end.last;
    for (size_t k = 1; k <= last; k++)
        z.blocks += kept_part_sizes(c, at, k * c->mesh.pp + at.pp).blocks;
    return z;
}
size_t kept_sequences(const TrainerConfig *c, size_t dp_rank, size_t k) {
    size_t replica = range_size(shard_range(c->batch, c->mesh.dp, dp_rank));
    return range_size(shard_range(replica, trainer_micro_batches(c), k));
}

// ---------------------------------------------------------------- one micro-batch on one part of the model

// A rank's part of the model. choice: of each of its blocks; NULL: c->recompute of all.
typedef struct {
    const TrainerConfig *c;
    Coordinates at;
    CutSizes z;
    const Recompute *choice;
} Part;

// Elements of B sequences that forward keeps until the backward comes.
static KeptElements kept(const Part *part, size_t B) {
    const TrainerConfig *c = part->c;
    const CutSizes *z = &part->z;
    if (c->tensor == TENSOR_3D)
        return cube_kept(&c->model, cube_side(c->mesh.tp), part->at.tp, c->blockwise, z, B);
    if (tensor_is_grid(c)) B = grid_kept_sequences(tensor_sides(c), part->at.tp, B);
    return (KeptElements){ activations_block(z, B), activations_scores(z, B),
                           activations_head(z, B), activations_between(z, B) };
}

// The blocks for 07.04's planner, with B sequences in flight: what the planner calls a token is
// a micro-batch here.
static BudgetStage budget_of(const Part *part, size_t B, BudgetBlock *block) {
    const KeptElements k = kept(part, B);
    const CutSizes *z = &part->z;
    // 0: the embedding alone, where rebalancing tries that
    const size_t inputs = !z->first + cut_layers(z) - 1;
    for (size_t i = 0; i < z->blocks; i++)
        block[i] = (BudgetBlock){ .kept = { k.block, k.block - k.scores, 0 }, .at_work = k.block,
                                  .again = { 0, work_scores(z, B).flops, work_block(z, B).flops } };
    return (BudgetStage){ .block = block,
                          .blocks = z->blocks,
                          .input = inputs ? k.between / inputs : 0,
                          .last = z->last,
                          .head = z->last ? k.head : 0,
                          .in_flight = 1,
                          .one = 1 };
}
static size_t in_flight_as_chosen(const Part *part, size_t B, bool working) {
    BudgetBlock *block = host_alloc(part->z.blocks * sizeof *block);
    BudgetStage s = budget_of(part, B, block);
    size_t peak = budget_peak(&s, part->choice);
    s.in_flight = 2;                               // one more, which waits
    size_t waits = budget_peak(&s, part->choice) - peak;
    free(block);
    return working ? peak : waits;
}
// Elements of one micro-batch of B sequences. working: while its forward or backward runs; else
// while it waits.
static size_t in_flight(const Part *part, size_t B, bool working) {
    if (part->choice) return in_flight_as_chosen(part, B, working);
    bool full = part->c->recompute == RECOMPUTE_FULL,
         selective = part->c->recompute == RECOMPUTE_SELECTIVE;
    const KeptElements k = kept(part, B);
    size_t head = part->z.last ? k.head : 0;
    size_t blocks = full ? 0 : part->z.blocks * (selective ? k.block - k.scores : k.block);
    size_t passing = full ? k.block : selective ? k.scores : 0;
    return k.between + blocks + (working && passing > head ? passing : head);
}
// Of a backward in two halves (05.06): the elements after the first half, and the most while
// that half runs. Layer by layer from the last one, the rank stores what the second half will
// read; then it frees the rest of what forward kept.
typedef struct { size_t highest, after; } Halves;
static Halves in_halves(const Part *part, size_t B) {
    const CutSizes *z = &part->z;
    size_t M = B * z->T, block = activations_block(z, B), scores = activations_scores(z, B);
    size_t now = in_flight(part, B, false), highest = now;
    if (z->last) {
        now += deferred_head(z, B) - M;            // the loss has freed its sums
        highest = now;
        // The gradient of the logits stands in their place.
        now -= activations_head(z, B) - M * z->vocab - M;
    }
    for (size_t i = z->blocks; i-- > 0;) {
        Recompute how = part->choice ? part->choice[i] : part->c->recompute;
        size_t again = how == RECOMPUTE_FULL ? block : how == RECOMPUTE_SELECTIVE ? scores : 0;
        size_t most = now + again + deferred_block(z, B);
        if (most > highest) highest = most;
        now += deferred_block(z, B) - (block - again);
    }
    if (z->first) now += cut_rows(z, B) * z->C;
    return (Halves){ now > highest ? now : highest, now };
}

// ---------------------------------------------------------------- a step

size_t kept_peak(const TrainerConfig *c, Coordinates at, const Recompute *choice) {
    Schedule s = trainer_schedule(c, trainer_micro_batches(c), at.pp);
    size_t held = 0, peak = 0;                     // elements in flight
    for (size_t i = 0; i < s.n; i++) {
        PipeOp op = s.ops[i];
        Part part = { c, at, kept_part_sizes(c, at, op.chunk * c->mesh.pp + at.pp), choice };
        for (size_t k = 0; choice && k < op.chunk; k++) // the choices of the chunks before this one
            part.choice += kept_part_sizes(c, at, k * c->mesh.pp + at.pp).blocks;
        size_t B = kept_sequences(c, at.dp, op.micro_batch), waiting = in_flight(&part, B, false);
        Halves halves = { 0 };
        if (op.what == BACKWARD_INPUTS || op.what == BACKWARD_WEIGHTS) halves = in_halves(&part, B);
        size_t freed = op.what == BACKWARD_WEIGHTS ? halves.after : waiting;
        size_t others = op.what == FORWARD ? held : held - freed, now = held;
        if (op.what == FORWARD || op.what == BACKWARD) now = others + in_flight(&part, B, true);
        if (op.what == BACKWARD_INPUTS) now = others + halves.highest;
        if (now > peak) peak = now;
        held = others;
        if (op.what == FORWARD) held += waiting;
        if (op.what == BACKWARD_INPUTS) held += halves.after;
    }
    schedule_free(&s);
    return peak * E;
}

// ---------------------------------------------------------------- within a budget

// No rank of a stage has more heads, positions or sequences than the one at 0 of the other
// coordinates.
static Part stage_part(const TrainerConfig *c, size_t stage) {
    Coordinates at = { .pp = stage };
    return (Part){ .c = c, .at = at, .z = kept_stage_sizes(c, at) };
}
// A stage for 07.04's planner, with as many micro-batches in flight as its list has at most. The
// caller frees *block.
static BudgetStage stage_budget(const TrainerConfig *c, size_t stage, BudgetBlock **block) {
    Part part = stage_part(c, stage);
    size_t now = 0, most = 0;
    Schedule list = trainer_schedule(c, trainer_micro_batches(c), stage);
    for (size_t i = 0; i < list.n; i++) {
        now += list.ops[i].what == FORWARD ? 1 : -1;
        if (now > most) most = now;
    }
    schedule_free(&list);
    *block = host_alloc(part.z.blocks * sizeof **block);
    BudgetStage s = budget_of(&part, kept_sequences(c, 0, 0), *block);
    s.in_flight = most;
    return s;
}
// 07.04's planner knows stages of one chunk and whole backwards. For other schedules a plan has
// two numbers: the first `full` blocks of the stage, which wait longest for their backward, and
// the `selective` blocks behind them recompute.
static bool one_formula(const TrainerConfig *c) {
    return trainer_chunks(c) == 1 && c->schedule != schedule_zb_h1;
}
static void choose_first(size_t blocks, size_t full, size_t selective, Recompute *choice) {
    for (size_t i = 0; i < blocks; i++)
        choice[i] = i < full               ? RECOMPUTE_FULL
                    : i < full + selective ? RECOMPUTE_SELECTIVE
                                           : RECOMPUTE_NONE;
}
// Of the b^2/2 such plans for b blocks, the cheapest one whose peak is within the budget.
static bool choose_by_peak(const TrainerConfig *c, size_t stage, Recompute *choice) {
    Part part = stage_part(c, stage);
    const CutSizes *z = &part.z;
    size_t best_full = 0, best_selective = 0;
    double best = INFINITY;
    for (size_t full = 0; full <= z->blocks; full++)
        for (size_t selective = 0; full + selective <= z->blocks; selective++) {
            double work = (double)full * work_block(z, 1).flops +
                          (double)selective * work_scores(z, 1).flops;
            choose_first(z->blocks, full, selective, choice);
            if (work >= best || kept_peak(c, part.at, choice) > c->activation_budget) continue;
            best = work;
            best_full = full;
            best_selective = selective;
        }
    choose_first(z->blocks, best_full, best_selective, choice);
    return best < INFINITY;
}

bool kept_choices(const TrainerConfig *c, size_t stage, Recompute *choice) {
    if (!one_formula(c)) return choose_by_peak(c, stage, choice);
    BudgetBlock *block;
    BudgetStage s = stage_budget(c, stage, &block);
    bool found = budget_choose(&s, c->activation_budget / E, choice);
    free(block);
    return found;
}
size_t kept_least(const TrainerConfig *c, size_t stage) {
    BudgetBlock *block;
    BudgetStage s = stage_budget(c, stage, &block);
    Recompute *choice = host_alloc(s.blocks * sizeof *choice);
    choose_first(s.blocks, s.blocks, 0, choice);
    size_t least = one_formula(c) ? budget_peak(&s, choice) * E
                                  : kept_peak(c, (Coordinates){ .pp = stage }, choice);
    free(choice);
    free(block);
    return least;
}
size_t kept_stage_without_plan(const TrainerConfig *c) {
    Recompute *choice = host_alloc(c->model.layers * sizeof *choice);
    size_t i = 0;
    while (i < c->mesh.pp && kept_choices(c, i, choice)) i++;
    free(choice);
    return i;
}
