// ranks: 3
// level: extra
// question: Which blocks should each stage have, also when costs change during training?
// vary: MICRO 5..8, layers 10..12, width 18|24, context 7..13, vocab 200..400
//
// Holds: after a new cut stage i has part i of the best cut, with weights, gradients and moments.
//     In the best cut the part that costs most is as cheap as possible (min-max). Every rank knows
//     all L + 2 measured costs.
// Sends: per new cut one all-reduce of L + 2 doubles. For each block that moves, its old stage
//     sends the weights and AdamW's two moments to its new stage, 12C^2 + 13C elements each.
// Saves: idle time. If messages take no time, a step takes sum(f+b) + (m-1)(max f + max b). The
//     best cut has the smallest maximum. m is the number of micro-batches. f and b are the times of
//     a stage's forward and backward.
// Costs: O(L^2 p) comparisons to find a cut, and the bytes of the blocks that move.
//
// Harlap et al. 2018 (PipeDream), section 3.2; moving while training: Wahib et al. 2025 (DynMo).
// No value depends on the number of a rank, so moving layers changes no bit of the training.
// Left out: stages with several replicas (PipeDream's planner: reference.md).
#include "04_pipeline_naive/pipeline.h"
#include <math.h>
#include <stdlib.h>

// Cuts n layers into p stages, none empty. cost [n] has the costs of the layers. Stage i has layers
// first[i], ..., first[i+1] - 1. Returns the cost of the most expensive stage, which is as small as
// possible. best[k][j] is the cost of the most expensive stage in the best cut of the first j
// layers into k stages. The k-th stage begins at some layer i:
//     best[k][j] = min over i of max(best[k-1][i], cost of layers i, ..., j-1)
double partition_min_max(const double *cost, size_t n, size_t p, size_t *first) {
    double *best = host_alloc((p + 1) * (n + 1) * sizeof *best);
    size_t *from = host_alloc((p + 1) * (n + 1) * sizeof *from); // the i of best[k][j]
    // Begins with stages as equal as possible. The best cut then replaces first[0], ...,
    // first[p-1], and first[p] stays n.
    for (size_t i = 0; i <= p; i++) first[i] = i < p ? shard_range(n, p, i).lo : n;
    // EXERCISE 04.04a (4 points): the best cut. best[k * (n+1) + j] is the cost of the largest
    // stage of the first j layers on k stages. from[k * (n+1) + j] is the first layer of the last
    // of these stages. No layers on 0 stages cost 0. best is INFINITY where there is no cut,
    // because k = 0 or j < k. At the end read first[p-1], ..., first[0] off backwards. The last
    // stage ends at n. Among equal cuts take the one whose last stage begins earliest.
    for (size_t k = 0; k <= p; k++)
        for (size_t j = 0; j <= n; j++) {
            double last = 0, *here = &best[k * (n + 1) + j];
            *here = k == 0 && j == 0 ? 0 : INFINITY;
            for (size_t i = j; k > 0 && i-- > k - 1;) { // the k-th stage: i, ..., j-1
                double before = best[(k - 1) * (n + 1) + i];
                last += cost[i];
                if ((before > last ? before : last) > *here) continue;
                *here = before > last ? before : last;
                from[k * (n + 1) + j] = i;
            }
        }
    for (size_t k = p; k > 0; k--) first[k - 1] = from[k * (n + 1) + first[k]];
    // END
    double most = best[p * (n + 1) + n];
    free(best);
    free(from);
    return most;
}

// ---- the best cut for the costs that layer_times.c has measured ----

size_t partition_items(const ModelConfig *c) { return c->layers + 2; }

void partition_solve(Comm *pp, const ModelConfig *c, size_t v, double *cost, size_t *blocks) {
    size_t n = partition_items(c), p = pp->size * v, *first = host_alloc((p + 1) * sizeof *first);
    // Sums L + 2 doubles. For each cost one stage adds the measured time, and the other stages add
    // zeros.
    comm_all_reduce_doubles(pp, cost, n);
    partition_min_max(cost, n, p, first);
    for (size_t i = 0; i < p; i++) blocks[i] = first[i + 1] - first[i] - (i == 0) - (i + 1 == p);
    free(first);
}

// ---- layers move ----

static size_t stage_of_block(const Comm *pp, const size_t *blocks, size_t k) {
    size_t i = 0;
    for (; k >= blocks[i]; i++) k -= blocks[i];
    return i % pp->size; // with several chunks part i is on stage i % p (05.03)
}
// Returns the unit of block k, or NULL if another stage has the block.
static Unit *block_of(const Model *m, size_t k) {
    for (size_t i = 0; i < m->n_layers; i++)
        if (m->layers[i].number == k + 1) return m->layers[i].units[0];
    return NULL;
}
// Returns the whole weights, or this replica's shard if ZeRO-3 keeps only the shard.
static Tensor weights_of(const Unit *u) { return u->w.data ? u->w : u->own_w; }
// Copies the weights and the optimizer state of a unit. A unit of 16-bit weights also has a master,
// a copy of the weights in reals (06.06). The optimizer fills the master in its first step.
static void copy_state(Unit *to, const Unit *from, const Optimizer *o) {
    tensor_copy(weights_of(to), weights_of(from));
    if (from->master.data) tensor_copy(to->master, from->master);
    to->master_made = from->master_made;
    if (o->kind != ADAMW) return;
    tensor_copy(to->m, from->m);
    tensor_copy(to->v, from->v);
}

// Moves each layer's weights and state to the layer's new stage. Call this function between two
// steps. All stages go through the blocks in the same order, so their sends and receives cannot
// deadlock. `from` has before[i] blocks in part i, `to` has after[i]. `to` is allocated and has its
// optimizer state. The optimizer must be AdamW, or SGD without momentum, which has no state.
void pipeline_migrate(Comm *pp, const Optimizer *o, const Model *from, const size_t *before,
                      Model *to, const size_t *after) {
    comm_connect(pp, COMM_EVERYBODY);
    for (size_t k = 0; k < to->config.layers; k++) {
        size_t old = stage_of_block(pp, before, k), new = stage_of_block(pp, after, k);
        Unit *old_unit = block_of(from, k), *new_unit = block_of(to, k);
        // EXERCISE 04.04b (3 points): a block moves. Block k goes from stage `old` to stage `new`
        // of pp. The two may be the same stage. old_unit is the block's unit on this stage before
        // the move, and new_unit is its unit afterwards. A unit is NULL where this stage does not
        // have the block. Copy or send the weights, weights_of(old_unit), and with AdamW (o->kind)
        // the moments m and v. If the master has data, copy or send the master, too, and set
        // master_made in the new unit. Calls: comm_send, comm_recv, copy_state.
        if (old == new) {
            if (old_unit) copy_state(new_unit, old_unit, o);
        } else if (pp->rank == old) {
            // Sends 12C^2 + 13C elements, with AdamW three times as many.
            comm_send(pp, weights_of(old_unit), new);
            if (o->kind == ADAMW) comm_send(pp, old_unit->m, new);
            if (o->kind == ADAMW) comm_send(pp, old_unit->v, new);
            if (old_unit->master.data) comm_send(pp, old_unit->master, new);
        } else if (pp->rank == new) {
            comm_recv(pp, weights_of(new_unit), old);
            if (o->kind == ADAMW) comm_recv(pp, new_unit->m, old);
            if (o->kind == ADAMW) comm_recv(pp, new_unit->v, old);
            if (new_unit->master.data) comm_recv(pp, new_unit->master, old);
            new_unit->master_made = true;
        }
        // END
    }
    // Embedding and head stay on the first and the last stage, and are copied into the model `to`.
    for (size_t i = 0; i < from->n_layers; i++) {
        const Layer *l = &from->layers[i];
        if (l->number > 0 && l->number <= to->config.layers) continue;
        for (size_t k = 0; k < to->n_layers; k++)
            for (size_t u = 0; u < l->n_units && to->layers[k].number == l->number; u++)
                if (!l->units[u]->tied_to) copy_state(to->layers[k].units[u], l->units[u], o);
    }
}
