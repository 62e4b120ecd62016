// kept.c computes the sizes of a stage's activations, from which budget_within()
// (07_recompute/budget_schedule.c) chooses what each block recomputes.
#include "08_3d/kept.h"
#include <stdlib.h>
#include "03_tensor_parallel/context_parallel.h"

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
size_t kept_sequences(const TrainerConfig *c, size_t dp_rank, size_t k) {
    size_t replica = range_size(shard_range(c->batch, c->mesh.dp, dp_rank));
    return range_size(shard_range(replica, trainer_micro_batches(c), k));
}
static KeptElements kept_elements(const TrainerConfig *c, Coordinates at, const CutSizes *z,
                                  size_t B) {
    if (c->tensor == TENSOR_3D)
        return cube_kept(&c->model, cube_side(c->mesh.tp), at.tp, c->blockwise, z, B);
    if (tensor_is_grid(c)) B = grid_kept_sequences(tensor_sides(c), at.tp, B);
    return (KeptElements){ .block = activations_block(z, B),
                           .scores = activations_scores(z, B),
                           .head = activations_head(z, B),
                           .between = activations_between(z, B),
                           .block_reals = activations_block_reals(z, B),
                           .head_reals = activations_head_reals(z, B) };
}

// Returns the bytes of `all` elements. `reals` of these elements are reals in any storage.
static size_t bytes_of(const CutSizes *z, size_t all, size_t reals) {
    return reals * E + (all - reals) * element_size(z->storage);
}
KeptBytes kept_bytes_of(const TrainerConfig *c, Coordinates at, const CutSizes *z, size_t B) {
    const KeptElements k = kept_elements(c, at, z, B);
    return (KeptBytes){ bytes_of(z, k.block, k.block_reals), bytes_of(z, k.scores, 0),
                        bytes_of(z, k.head, k.head_reals), bytes_of(z, k.between, 0) };
}
DeferredBytes kept_deferred(const CutSizes *z, size_t B, size_t kept_head) {
    const size_t tokens = B * z->T, statistics = cut_rows(z, B) * z->statistics;
    const size_t logits = tokens * z->vocab, sums = tokens; // the loss has freed its sums
    return (DeferredBytes){
        .block = bytes_of(z, deferred_block(z, B), 2 * statistics),
        .embedding = bytes_of(z, cut_rows(z, B) * z->C, 0),
        .head_added = bytes_of(z, deferred_head(z, B), logits + statistics) - sums * E,
        .head_freed = kept_head - (logits + sums) * E,
    };
}

// ---------------------------------------------------------------- a stage for the planner

// Returns the bytes of micro-batch k of this rank in one part of the model. The caller frees
// .block.
static BudgetStage budget_part(const TrainerConfig *c, Coordinates at, size_t part, size_t k) {
    const CutSizes z = kept_part_sizes(c, at, part);
    const size_t B = kept_sequences(c, at.dp, k);
    const KeptBytes kept = kept_bytes_of(c, at, &z, B);
    const DeferredBytes deferred = kept_deferred(&z, B, kept.head);
    // A part has one input for each block, and one for the head if the part has the head. `inputs`
    // is 0 if the part has only the embedding. trainer_rebalance() may try such a cut.
    const size_t inputs = z.blocks + z.last;
    BudgetBlock *block = host_alloc((z.blocks + 1) * sizeof *block);
    for (size_t i = 0; i < z.blocks; i++)
        block[i] = (BudgetBlock){ .kept = { kept.block, kept.block - kept.scores, 0 },
                                  .at_work = kept.block,
                                  .again = { 0, work_scores(&z, B).flops, work_block(&z, B).flops },
                                  .deferred = deferred.block };
    BudgetStage s = { .block = block,
                      .blocks = z.blocks,
                      .input = inputs ? kept.between / inputs : 0,
                      .last = z.last,
                      .in_flight = 1,
                      .one = 1 };
    if (z.last) {
        s.head = kept.head;
        s.head_added = deferred.head_added;
        s.head_freed = deferred.head_freed;
    }
    if (z.first) s.first_deferred = deferred.embedding;
    return s;
}

// Returns the context-parallel rank with the most positions. The chunks of ring attention are in
// zigzag order, so the rank need not be rank 0. For example, of 7 positions on 2 ranks, rank 0 has
// 3.
static size_t rank_of_most_positions(const TrainerConfig *c) {
    const size_t n = mesh_cp(c->mesh);
    size_t rank = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        const Positions own = context_positions(c->model.context, n, i, &ring_attention_zigzag);
        if (positions_count(&own) <= most) continue;
        most = positions_count(&own);
        rank = i;
    }
    return rank;
}

// Returns the schedule of a stage for the plan of a budget. The plan is for one rank: rank 0 of tp
// and dp, and the rank of cp with the most positions. No other rank of the stage has more heads,
// sequences or positions. The caller calls stage_schedule_free().
static BudgetSchedule stage_schedule(const TrainerConfig *c, size_t stage, Schedule *list) {
    const size_t chunks = trainer_chunks(c), m = trainer_micro_batches(c);
    const Coordinates at = { .pp = stage, .cp = rank_of_most_positions(c) };
    *list = trainer_schedule(c, m, stage);
    BudgetStage *part = host_alloc(chunks * m * sizeof *part);
    for (size_t chunk = 0; chunk < chunks; chunk++)
        for (size_t k = 0; k < m; k++)
            part[chunk * m + k] = budget_part(c, at, chunk * c->mesh.pp + stage, k);
    return (BudgetSchedule){ list, part, chunks, m };
}
static void stage_schedule_free(const BudgetSchedule *s, Schedule *list) {
    for (size_t i = 0; i < s->chunks * s->micro_batches; i++) free((void *)s->part[i].block);
    free((void *)s->part);
    schedule_free(list);
}

// ---------------------------------------------------------------- within a budget

bool kept_choices(const TrainerConfig *c, size_t stage, Recompute *choice) {
    Schedule list;
    BudgetSchedule s = stage_schedule(c, stage, &list);
    bool found = budget_within(&s, c->activation_budget, choice);
    stage_schedule_free(&s, &list);
    return found;
}
size_t kept_least(const TrainerConfig *c, size_t stage) {
    Schedule list;
    BudgetSchedule s = stage_schedule(c, stage, &list);
    size_t least = budget_least(&s);
    stage_schedule_free(&s, &list);
    return least;
}
size_t kept_stage_without_plan(const TrainerConfig *c) {
    Recompute *choice = host_alloc(c->model.layers * sizeof *choice);
    size_t i = 0;
    while (i < c->mesh.pp && kept_choices(c, i, choice)) i++;
    free(choice);
    return i;
}
