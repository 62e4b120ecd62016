// predict.c: see predict.h.
#include "08_3d/predict.h"
#include <math.h>
#include <stdlib.h>
#include "01_data_parallel/experiments/experiments.h"
#include "03_tensor_parallel/context_parallel.h"
#include "03_tensor_parallel/experiments/cube_costs.h"
#include "03_tensor_parallel/experiments/grid_costs.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "common/comm/clock.h"
#include "common/model/costs.h"

enum { E = sizeof(real) };

// What each of n ranks sends in a ring for `count` elements.
static size_t ring_sent(size_t passes, size_t n, size_t count) { return (size_t)ring_bytes(passes, n, count, E); }

static GridPlace grid_place_in(const TrainerConfig *c, Coordinates at) {
    TesseractSides n = tensor_sides(c);
    return grid_place_of(&c->model, n.q, n.depth, at.tp);
}

// Part `part` of the model: a stage, or a chunk of one.
static CutSizes part_sizes(const TrainerConfig *c, Coordinates at, size_t part) {
    CutSizes all = cut_sizes(&c->model, c->mesh.tp, at.tp);
    if (tensor_is_grid(c)) {
        GridPlace place = grid_place_in(c, at);
        all = grid_sizes(&place);
    }
    CutSizes z = cut_stage(all, c->mesh.pp * trainer_chunks(c), part);
    if (c->stage_blocks) z.blocks = c->stage_blocks[part];
    if (mesh_cp(c->mesh) > 1 || c->blockwise) {
        Positions mine = { 0 };
        if (mesh_cp(c->mesh) > 1)
            mine = context_positions(c->model.context, c->mesh.cp, at.cp, &ring_attention_zigzag);
        z = cut_positions(z, &mine, true);
    }
    return c->sequence ? cut_sequence(z, false) : z;
}
// All of this rank's stage: chunk k is part k pp + stage.
static CutSizes my_sizes(const TrainerConfig *c, Coordinates at) {
    size_t last = trainer_chunks(c) - 1;
    CutSizes z = part_sizes(c, at, at.pp), end = part_sizes(c, at, last * c->mesh.pp + at.pp);
    z.last = end.last;
    for (size_t k = 1; k <= last; k++) z.blocks += part_sizes(c, at, k * c->mesh.pp + at.pp).blocks;
    return z;
}
// Who has the same parameters: over them gradients are summed, and ZeRO shards.
static size_t replicas(const TrainerConfig *c) { return c->mesh.dp * mesh_cp(c->mesh); }
static size_t replica(const TrainerConfig *c, Coordinates at) { return at.cp + mesh_cp(c->mesh) * at.dp; }

// The same, and where this rank stands on its grid or cube, if its tp group is one.
typedef struct {
    CutSizes z;
    bool is_grid, is_cube;
    GridPlace grid;
    CubePlace cube;
    const Recompute *choice;                       // of each block; NULL: all of them as --recompute says
} Mine;
static Mine mine_of(const TrainerConfig *c, Coordinates at) {
    Mine my = { .z = my_sizes(c, at), .is_grid = tensor_is_grid(c), .is_cube = c->tensor == TENSOR_3D };
    if (my.is_grid) my.grid = grid_place_in(c, at);
    if (my.is_cube) my.cube = cube_place_of(&c->model, cube_side(c->mesh.tp), at.tp, true);
    my.cube.blockwise = c->blockwise;
    return my;
}
static size_t wte_elements(const Mine *my) {
    return my->is_cube ? cube_elements_wte(&my->cube) : my->is_grid ? grid_elements_wte(&my->grid)
                                                                    : elements_wte(&my->z);
}
static size_t unit_elements(const Mine *my, size_t i) {
    return my->is_cube ? cube_elements_unit(&my->cube, &my->z, i) :
           my->is_grid ? grid_elements_unit(&my->grid, &my->z, i) : elements_unit(&my->z, i);
}
// Of B sequences of a micro-batch those whose activations are here.
static size_t my_sequences(const Mine *my, size_t B) { return my->is_grid ? grid_sequences(&my->grid, B) : B; }
static size_t my_message(const Mine *my, size_t B) {
    return my->is_cube ? cube_message(&my->cube, B) : message_elements(&my->z, my_sequences(my, B));
}

// Adds up f(unit) over the units of a stage; wte is given apart.
typedef struct { size_t wte, others; } PerUnit;
static PerUnit over_units(const Mine *my, size_t (*f)(size_t size, size_t n, size_t rank), size_t n, size_t rank) {
    PerUnit sum = { .wte = my->z.first || my->z.last ? f(wte_elements(my), n, rank) : 0 };
    for (size_t i = 0; i < cut_layers(&my->z); i++) sum.others += f(unit_elements(my, i), n, rank);
    return sum;
}
static size_t unit_whole(size_t size, size_t n, size_t rank) { (void)n; (void)rank; return size; }
static size_t stage_elements(const Mine *my) {
    PerUnit whole = over_units(my, unit_whole, 1, 0);
    return whole.wte + whole.others;
}
static size_t unit_shard(size_t size, size_t n, size_t rank) { return range_size(shard_range(size, n, rank)); }
static size_t unit_ring(size_t size, size_t n, size_t rank) { (void)rank; return ring_sent(ONE_PASS, n, size); }

// ---------------------------------------------------------------- traffic

// Of micro-batch k of this replica.
static size_t predict_sequences(const TrainerConfig *c, size_t dp_rank, size_t m, size_t k) {
    size_t mine = range_size(shard_range(c->batch, c->mesh.dp, dp_rank));
    return range_size(shard_range(mine, m, k));
}

// One all-reduce of the gradient; with overlap one of each bucket, which is as large as a block.
static void reductions(Prediction *out, const TrainerConfig *c, const Mine *my) {
    const CutSizes *z = &my->z;
    const size_t norm = z->first + z->blocks;      // the unit of the last norm, gain and bias
    out->dp_calls = 1;
    out->dp_bytes = ring_sent(ALL_REDUCE_PASSES, replicas(c), stage_elements(my));
    if (!c->overlap) return;
    BucketPiece *piece;
    TensorElements of = { .wte = wte_elements(my), .wpe = unit_elements(my, 0), .norm = unit_elements(my, norm) / 2 };
    if (my->is_cube) cube_elements_tensors(&my->cube, of.block);
    else if (my->is_grid) grid_elements_tensors(&my->grid, of.block);
    else elements_tensors(z, of.block);
    out->dp_calls = bucket_pieces(z, &of, unit_elements(my, z->first) * E, &piece);
    out->dp_bytes = 0;
    for (size_t i = 0; i < out->dp_calls; i++)
        out->dp_bytes += ring_sent(ALL_REDUCE_PASSES, replicas(c), piece[i].elements);
    free(piece);
}

// The same compressed, unit by unit (01.06).
static void compressed_reductions(Prediction *out, const TrainerConfig *c, Coordinates at, const Mine *my) {
    const size_t rank = mesh_rank(c->mesh, at);
    const CompressionCosts costs = compression_costs(&my->z, &c->compression, c->mesh.dp, at.dp);
    bool near = true;
    for (at.dp = 0; at.dp < c->mesh.dp; at.dp++) near = near && clock_same_node(mesh_rank(c->mesh, at), rank);
    out->dp_calls = costs.calls;
    out->dp_bytes = (size_t)costs.sent;
    out->dp_time = compression_time(&my->z, &c->compression, c->mesh.dp, near);
    out->gradients += costs.errors * E;
    out->compression = costs.factors * E;
    out->compression_peak = costs.buffers * E;
}

// On the rows, columns and depth of a grid: all kinds of calls.
static void add_axis(Prediction *out, const AxisTraffic *a, size_t times) {
    for (size_t kind = 0; kind < COMM_KINDS; kind++) out->tp_calls += times * (size_t)a->calls[kind];
    out->tp_bytes += times * (size_t)a->sent;
    out->tp_received += times * (size_t)a->received;
}

// On a cube everything is a ring: a rank receives what it sends.
static void add_cube(Prediction *out, CubeTraffic t, size_t times) {
    out->tp_calls += times * (size_t)t.calls;
    out->tp_bytes += times * (size_t)cube_bytes(&t);
    out->tp_received += times * (size_t)cube_bytes(&t);
}

// In the layers, for forward and backward of B sequences.
static void tensor_traffic(Prediction *out, const Mine *my, size_t B, bool again) {
    const CutSizes *z = &my->z;
    if (my->is_cube) {
        add_cube(out, cube_stage(&my->cube, z, B, again), 1);
        return;
    }
    if (my->is_grid) {
        GridTraffic g = grid_stage(&my->grid, z, B, again);
        add_axis(out, &g.row, 1);
        add_axis(out, &g.col, 1);
        return;
    }
    Traffic sums = traffic_tensor_parallel(z, z->t, B, again);
    SequenceTraffic s = { .sums = sums.calls, .bytes = sums.bytes };
    if (z->sequence) s = traffic_sequence_parallel(z, B, again);
    out->tp_calls += (size_t)s.sums;
    out->tp_gathers += (size_t)s.gathers;
    out->tp_scatters += (size_t)s.scatters;
    out->tp_bytes += (size_t)s.bytes;
}

// How many of my blocks run their forward again in backward; and what these send for that.
static size_t forwards_again(const TrainerConfig *c, const Mine *my) {
    if (!my->choice) return c->recompute == RECOMPUTE_FULL ? my->z.blocks : 0;
    size_t n = 0;
    for (size_t i = 0; i < my->z.blocks; i++) n += my->choice[i] == RECOMPUTE_FULL;
    return n;
}
static void tensor_traffic_again(Prediction *out, const Mine *my, size_t B, size_t blocks) {
    Mine these = *my;
    these.z.blocks = blocks;
    Prediction with = {0}, without = {0};
    tensor_traffic(&with, &these, B, true);
    tensor_traffic(&without, &these, B, false);
    out->tp_calls += with.tp_calls - without.tp_calls;
    out->tp_gathers += with.tp_gathers - without.tp_gathers;
    out->tp_scatters += with.tp_scatters - without.tp_scatters;
    out->tp_bytes += with.tp_bytes - without.tp_bytes;
    out->tp_received += with.tp_received - without.tp_received;
}

// Ring attention of B sequences, in a block: k and v of every other rank, but those of the next one, go on from here
// forward, and again backward (`forwards`); then the gradients of all.
static size_t ring_traffic(const TrainerConfig *c, Coordinates at, const CutSizes *z, size_t B, size_t forwards) {
    if (mesh_cp(c->mesh) == 1) return 0;
    size_t n = c->mesh.cp, next = (at.cp + 1) % n;
    Positions others = context_positions(z->Tk, n, next, &ring_attention_zigzag);
    return (forwards * (z->Tk - positions_count(&others)) + z->Tk) * B * 2 * z->heads * z->D * E;
}

// Partial gradients are summed before ZeRO reduces them: once, or, where each micro-batch reduces and drops them, each
// time; wte's always once.
static void partial_sums(Prediction *out, const TrainerConfig *c, const Mine *my, size_t m) {
    const size_t times = c->zero < 2 ? 1 : m;
    if (my->z.sequence) {
        Traffic partial = traffic_partial_sums(&my->z);
        out->tp_calls += times * (size_t)partial.calls;
        out->tp_bytes += times * (size_t)partial.bytes;
    }
    if (my->is_cube) add_cube(out, cube_plane_sums(&my->cube, &my->z), times);
    if (c->tensor != TENSOR_25D) return;
    GridTraffic tables = grid_table_sums(&my->grid, &my->z), others = grid_unit_sums(&my->grid, &my->z);
    add_axis(out, &tables.depth, 1);
    add_axis(out, &others.depth, times);
}

static void traffic(Prediction *out, const TrainerConfig *c, Coordinates at, const Mine *my, size_t m) {
    const CutSizes *z = &my->z;
    size_t t = c->mesh.tp, d = replicas(c), again = forwards_again(c, my);
    for (size_t k = 0; k < m; k++) {
        size_t B = predict_sequences(c, at.dp, m, k);
        tensor_traffic(out, my, B, false);
        if (again) tensor_traffic_again(out, my, B, again);
        out->cp_bytes += z->blocks * ring_traffic(c, at, z, B, 2) + again * ring_traffic(c, at, z, B, 1) -
                         again * ring_traffic(c, at, z, B, 0);
        size_t messages = 2 * trainer_chunks(c) - z->last - z->first;  // activations on, their gradients back
        if (c->mesh.pp > 1) out->pp_bytes += messages * my_message(my, B) * E;
    }
    partial_sums(out, c, my, m);
    PerUnit units = over_units(my, unit_ring, d, replica(c, at));
    switch (c->zero) {
    case 0: c->compressed ? compressed_reductions(out, c, at, my) : reductions(out, c, my); break;
    case 1: out->dp_bytes = 2 * (units.wte + units.others); break;
    case 2: out->dp_bytes = 2 * units.wte + (m + 1) * units.others; break;
    case 3: out->dp_bytes = 2 * units.wte + 3 * m * units.others; break;
    }
    if (c->mesh.pp > 1 && (z->first || z->last)) out->tied_bytes = ring_sent(ALL_REDUCE_PASSES, 2, wte_elements(my));
    size_t world = d * t * c->mesh.pp, holders = c->zero ? world : t * c->mesh.pp;
    out->scalar_bytes = (size_t)(ring_bytes(ALL_REDUCE_PASSES, world, 1, sizeof(double)) +
                                 ring_bytes(ALL_REDUCE_PASSES, holders, config_tensors(&c->model), sizeof(double)));
}

// ---------------------------------------------------------------- memory

static void state(Prediction *out, const TrainerConfig *c, Coordinates at, const Mine *my, bool adamw) {
    PerUnit shard = over_units(my, unit_shard, replicas(c), replica(c, at));
    size_t all = stage_elements(my) * E, twice = my->z.first && my->z.last ? wte_elements(my) * E : 0;
    size_t mine = (shard.wte + shard.others) * E;
    out->parameters = c->zero < 3 ? all : mine;
    out->gradients += c->zero < 2 ? all + twice : mine;
    out->optimizer = adamw ? 2 * (c->zero ? mine : all) : 0;
}

// Elements of B sequences that forward keeps on one stage until the backward comes: light items, blocks, and the head's
// or, while a layer is at work, what that one brings.
typedef struct { size_t block, scores, head, between; } Kept;
static Kept kept(const Mine *my, size_t sequences) {
    const CutSizes *z = &my->z;
    const CubePlace *q = &my->cube;
    const size_t B = my_sequences(my, sequences);
    if (my->is_cube)
        return (Kept){ cube_kept_block(q, B), cube_kept_scores(q, B), cube_kept_head(q, B),
                       cube_kept_between(q, z, B) };
    return (Kept){ activations_block(z, B), activations_scores(z, B), activations_head(z, B),
                   activations_between(z, B) };
}
// My blocks for 07.04's planner, of B sequences in flight: its tokens are micro-batches here.
static BudgetStage budget_of(const Mine *my, size_t B, BudgetBlock *block) {
    const Kept k = kept(my, B);
    const CutSizes *z = &my->z;
    const size_t inputs = !z->first + cut_layers(z) - 1;       // 0: the embedding alone, where rebalancing tries that
    for (size_t i = 0; i < z->blocks; i++)
        block[i] = (BudgetBlock){ .kept = { k.block, k.block - k.scores, 0 }, .at_work = k.block,
                                  .again = { 0, work_scores(z, B).flops, work_block(z, B).flops } };
    return (BudgetStage){ .block = block, .blocks = z->blocks, .input = inputs ? k.between / inputs : 0,
                          .last = z->last, .head = z->last ? k.head : 0, .in_flight = 1, .one = 1 };
}
static size_t in_flight_as_chosen(const Mine *my, size_t B, bool working) {
    BudgetBlock *block = host_alloc(my->z.blocks * sizeof *block);
    BudgetStage s = budget_of(my, B, block);
    size_t peak = budget_peak(&s, my->choice);
    s.in_flight = 2;                               // one more, which waits
    size_t waits = budget_peak(&s, my->choice) - peak;
    free(block);
    return working ? peak : waits;
}
static size_t in_flight(const TrainerConfig *c, const Mine *my, size_t B, bool working) {
    if (my->choice) return in_flight_as_chosen(my, B, working);
    bool full = c->recompute == RECOMPUTE_FULL, selective = c->recompute == RECOMPUTE_SELECTIVE;
    const Kept k = kept(my, B);
    size_t head = my->z.last ? k.head : 0;
    size_t blocks = full ? 0 : my->z.blocks * (selective ? k.block - k.scores : k.block);
    size_t passing = full ? k.block : selective ? k.scores : 0;
    return k.between + blocks + (working && passing > head ? passing : head);
}
// Where a backward is in two halves (05.06): after the first one, and the most while it runs. Layer by layer from the
// last one, what the second half will read comes, and then what else was kept goes.
typedef struct { size_t highest, after; } Halves;
static Halves in_halves(const TrainerConfig *c, const Mine *my, size_t B) {
    const CutSizes *z = &my->z;
    size_t M = B * z->T, block = activations_block(z, B), scores = activations_scores(z, B);
    size_t now = in_flight(c, my, B, false), highest = now;
    if (z->last) {
        highest = now += deferred_head(z, B) - M;          // the loss has freed its sums
        now -= activations_head(z, B) - M * z->vocab - M;  // the gradient of the logits stands in their place
    }
    for (size_t i = z->blocks; i-- > 0;) {
        Recompute how = my->choice ? my->choice[i] : c->recompute;
        size_t again = how == RECOMPUTE_FULL ? block : how == RECOMPUTE_SELECTIVE ? scores : 0;
        size_t most = now + again + deferred_block(z, B);
        if (most > highest) highest = most;
        now += deferred_block(z, B) - (block - again);
    }
    if (z->first) now += cut_rows(z, B) * z->C;
    return (Halves){ now > highest ? now : highest, now };
}
static void activations(Prediction *out, const TrainerConfig *c, Coordinates at, const Mine *my, size_t m) {
    Schedule s = trainer_schedule(c, m, at.pp);
    size_t held = 0;                                                             // elements in flight
    for (size_t i = 0; i < s.n; i++) {
        Mine part = *my;
        part.z = part_sizes(c, at, s.ops[i].chunk * c->mesh.pp + at.pp);
        for (size_t k = 0; my->choice && k < s.ops[i].chunk; k++)
            part.choice += part_sizes(c, at, k * c->mesh.pp + at.pp).blocks;
        size_t B = predict_sequences(c, at.dp, m, s.ops[i].micro_batch), its = in_flight(c, &part, B, false);
        PipeWhat what = s.ops[i].what;
        Halves halves = { 0 };
        if (what == BACKWARD_INPUTS || what == BACKWARD_WEIGHTS) halves = in_halves(c, &part, B);
        size_t gone = what == BACKWARD_WEIGHTS ? halves.after : its;
        size_t others = what == FORWARD ? held : held - gone, now = held;
        if (what == FORWARD || what == BACKWARD) now = others + in_flight(c, &part, B, true);
        if (what == BACKWARD_INPUTS) now = others + halves.highest;
        if (now * E > out->activations) out->activations = now * E;
        held = others + (what == FORWARD ? its : what == BACKWARD_INPUTS ? halves.after : 0);
    }
    schedule_free(&s);
}

// A stage for 07.04's planner, with as many micro-batches in flight as its list has at most. block is the caller's.
static BudgetStage stage_budget(const TrainerConfig *c, size_t stage, BudgetBlock **block) {
    Coordinates at = { .pp = stage };              // nobody of the stage has more heads, positions or sequences
    Mine my = mine_of(c, at);
    size_t m = trainer_micro_batches(c), now = 0, most = 0;
    Schedule list = trainer_schedule(c, m, stage);
    for (size_t i = 0; i < list.n; i++) {
        now += list.ops[i].what == FORWARD ? 1 : -1;
        if (now > most) most = now;
    }
    schedule_free(&list);
    *block = host_alloc(my.z.blocks * sizeof **block);
    BudgetStage s = budget_of(&my, predict_sequences(c, 0, m, 0), *block);
    s.in_flight = most;
    return s;
}
// It knows stages of one chunk and whole backwards. Elsewhere the plans are: the first `full` blocks of the stage,
// which wait longest for their backward, and the `selective` ones behind them compute again.
static bool one_formula(const TrainerConfig *c) { return trainer_chunks(c) == 1 && c->schedule != schedule_zb_h1; }
static void choose_first(size_t blocks, size_t full, size_t selective, Recompute *choice) {
    for (size_t i = 0; i < blocks; i++)
        choice[i] = i < full ? RECOMPUTE_FULL : i < full + selective ? RECOMPUTE_SELECTIVE : RECOMPUTE_NONE;
}
static size_t peak_as_chosen(const TrainerConfig *c, size_t stage, const Recompute *choice) {
    Coordinates at = { .pp = stage };
    Mine my = mine_of(c, at);
    my.choice = choice;
    Prediction out = {0};
    activations(&out, c, at, &my, trainer_micro_batches(c));
    return out.activations;
}
// The cheapest of them, b^2/2 for b blocks, whose peak is within the budget.
static bool choose_by_peak(const TrainerConfig *c, size_t stage, Recompute *choice) {
    CutSizes z = my_sizes(c, (Coordinates){ .pp = stage });
    size_t best_full = 0, best_selective = 0;
    double best = INFINITY;
    for (size_t full = 0; full <= z.blocks; full++)
        for (size_t selective = 0; full + selective <= z.blocks; selective++) {
            double work = (double)full * work_block(&z, 1).flops + (double)selective * work_scores(&z, 1).flops;
            choose_first(z.blocks, full, selective, choice);
            if (work >= best || peak_as_chosen(c, stage, choice) > c->activation_budget) continue;
            best = work;
            best_full = full;
            best_selective = selective;
        }
    choose_first(z.blocks, best_full, best_selective, choice);
    return best < INFINITY;
}

bool predict_choices(const TrainerConfig *c, size_t stage, Recompute *choice) {
    if (!one_formula(c)) return choose_by_peak(c, stage, choice);
    BudgetBlock *block;
    BudgetStage s = stage_budget(c, stage, &block);
    bool found = budget_choose(&s, c->activation_budget / E, choice);
    free(block);
    return found;
}
size_t predict_least(const TrainerConfig *c, size_t stage) {
    BudgetBlock *block;
    BudgetStage s = stage_budget(c, stage, &block);
    Recompute *choice = host_alloc(s.blocks * sizeof *choice);
    choose_first(s.blocks, s.blocks, 0, choice);
    size_t least = one_formula(c) ? budget_peak(&s, choice) * E : peak_as_chosen(c, stage, choice);
    free(choice);
    free(block);
    return least;
}

Prediction predict_step(const TrainerConfig *c, size_t rank, bool adamw) {
    Coordinates at = mesh_coordinates(c->mesh, rank);
    Mine my = mine_of(c, at);
    size_t m = trainer_micro_batches(c);
    Recompute *choice = c->activation_budget ? host_alloc(my.z.blocks * sizeof *choice) : NULL;
    if (choice && predict_choices(c, at.pp, choice)) my.choice = choice;
    Prediction out = {0};
    traffic(&out, c, at, &my, m);
    state(&out, c, at, &my, adamw);
    activations(&out, c, at, &my, m);
    free(choice);
    return out;
}
