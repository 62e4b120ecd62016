// step_time.c: lists the expected operations of a trainer's step, rank by rank, from sizes alone.
// judge/play plays the lists.
#include "08_3d/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>
#include "03_tensor_parallel/context_parallel.h"
#include "03_tensor_parallel/experiments/experiments.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include "common/model/costs.h"

enum { E = sizeof(real) };

// ---------------------------------------------------------------- what a rank has

// The numbers under which the player knows a rank's groups.
typedef struct {
    size_t world, tp, replicas, model, pp, tied;
} Groups;
// All ranks of a tensor-parallel group get the sizes of the largest one, because the other ranks
// wait for that rank.
typedef struct {
    const TrainerConfig *c;
    size_t rank, m, B; // micro-batches, and sequences of this replica
    Coordinates at;
    Groups group;
    bool cp_near;
    CutSizes stage, *chunk; // sizes of the whole stage, and of each chunk
} RankSteps;

// Returns dp x cp: the number of ranks over which gradients are summed and state is sharded.
static size_t replicas(const TrainerConfig *c) { return c->mesh.dp * mesh_cp(c->mesh); }
static size_t sequences(const RankSteps *r, size_t k) { return part_size(r->B, r->m, k); }

// Returns the sizes of chunk k of stage i: part k pp + i of the model.
static CutSizes chunk_of(const TrainerConfig *c, size_t i, size_t k) {
    size_t parts = c->mesh.pp * trainer_chunks(c), part = k * c->mesh.pp + i;
    CutSizes z = cut_stage(cut_sizes(&c->model, c->mesh.tp, 0), parts, part);
    Positions own = { 0 };
    if (mesh_cp(c->mesh) > 1)
        own = context_positions(c->model.context, c->mesh.cp, 0, &ring_attention_zigzag);
    if (c->stage_blocks) z.blocks = c->stage_blocks[part];
    if (c->blockwise || own.n) z = cut_positions(z, &own, true);
    if (c->sequence) z = cut_sequence(z, false);
    return z;
}

// ---------------------------------------------------------------- a forward, a backward

// Lists `times` calls of `count` elements on a group. size: bytes of an element.
static void calls(Play *play, const RankSteps *r, size_t group, CommKind kind, size_t times,
                  size_t count, size_t size) {
    for (size_t i = 0; i < times; i++) play_call(play, r->rank, group, kind, count, size);
}
// These three functions return the bytes of an element: of activations, of gradients, and of the
// tensors that a call moves. Weights are gathered, gradients are reduced.
static size_t stored(const RankSteps *r) { return element_size(r->c->model.storage); }
static size_t gradient(const RankSteps *r) { return gradient_bytes(&r->c->model); }
static size_t moved(const RankSteps *r, CommKind kind) {
    return kind == COMM_ALL_GATHER ? weight_bytes(&r->c->model) : gradient(r);
}
// Lists one call over the replicas for each unit of z except tables. table() lists the calls for
// wte and for an untied head's table.
static void units(Play *play, const RankSteps *r, const CutSizes *z, CommKind kind) {
    for (size_t i = 0; i < cut_layers(z); i++)
        play_call(play, r->rank, r->group.replicas, kind, elements_unit(z, i), moved(r, kind));
}
static void table(Play *play, const RankSteps *r, CommKind kind) {
    for (size_t i = 0; i < stage_tables(&r->stage); i++)
        play_call(play, r->rank, r->group.replicas, kind, elements_wte(&r->stage), moved(r, kind));
}

// Lists the sums of the partial gradients of sequence parallelism, before ZeRO reduces
// (traffic_partial_sums in costs.h).
static void partial_sums(Play *play, const RankSteps *r, const CutSizes *z) {
    size_t elements[PARTIAL_SUMS];
    elements_partial_sums(z, elements);
    for (size_t i = 0; i < PARTIAL_SUMS; i++)
        if (elements[i])
            calls(play, r, r->group.tp, COMM_ALL_REDUCE,
                  i + 1 < PARTIAL_SUMS ? z->blocks : (size_t)z->last, elements[i], gradient(r));
}

// Returns the time that a block of ring attention waits for its messages, beyond the time of its
// products, if all chunks are equal. own: the products of step 0. other: the products of each of
// the other n-1 steps. hop: one message of k | v. sum_hop: one message of dk | dv. Forward, which
// sends nothing in the last step, takes
//     max(own, hop) + (n-2) max(other, hop) + other
// Backward sends dk | dv after the products, on the same lane behind the next k | v. The last hop
// is never hidden, so backward takes
//     max(own, hop) + (n-2) max(other, hop + sum_hop) + max(other, sum_hop) + sum_hop
static double ring_waits(const RankSteps *r, const CutSizes *z, size_t B, bool backward) {
    const size_t n = mesh_cp(r->c->mesh), T = z->T, elements = B * T * 2 * z->key_heads * z->D;
    const size_t link = r->cp_near ? CLOCK_INSIDE : CLOCK_ONE_CARD;
    const double hop = (double)clock_transfer(link, 1, elements * stored(r));
    const double sum_hop = backward ? (double)clock_transfer(link, 1, elements * E) : 0;
    const double products = backward ? 5 : 2;
    double other = products * (double)(B * z->heads) *
                   work_product(T * T / 2, 1, z->D).time; // with keys of other ranks
    double own = products * (double)(B * z->heads) * work_product(T * (T + 1) / 2, 1, z->D).time;
    if (n == 1) return 0;
    const double wait = fmax(0, hop - own) + (double)(n - 2) * fmax(0, hop + sum_hop - other);
    return backward ? wait + fmax(0, sum_hop - other) + sum_hop : wait;
}

// Lists `whole` sums over tp of [tokens, C], and `half` half sums. Under sequence parallelism a sum
// is a reduce-scatter and an all-gather; half a sum is one of them. Without sequence parallelism
// `half` is 0.
static void sums_over_tp(Play *play, const RankSteps *r, const CutSizes *z, size_t B, size_t whole,
                         size_t half) {
    if (r->c->mesh.tp == 1) return;
    size_t tokens = B * z->T, rows = r->c->mesh.tp * cut_rows(z, B);
    if (r->c->sequence)
        calls(play, r, r->group.tp, COMM_ALL_GATHER, 2 * whole + half, rows * z->C, stored(r));
    else calls(play, r, r->group.tp, COMM_ALL_REDUCE, whole, tokens * z->C, stored(r));
}

static void forward(Play *play, const RankSteps *r, const CutSizes *z, size_t B) {
    bool zero3 = trainer_zero(r->c) == 3;
    if (zero3) units(play, r, z, COMM_ALL_GATHER);
    double time = work_stage(z, B).time + (double)z->blocks * ring_waits(r, z, B, false);
    play_work(play, r->rank, (Picoseconds)time);
    // The embedding's sum is a reduce-scatter, and the head begins with a gather.
    bool sequence = r->c->sequence;
    sums_over_tp(play, r, z, B, 2 * z->blocks + (sequence ? 0 : z->first),
                 sequence ? (size_t)z->first + (size_t)z->last : 0);
    if (r->c->mesh.tp > 1)
        calls(play, r, r->group.tp, COMM_ALL_REDUCE, 3 * (size_t)z->last, B * z->T, E);
}

// Lists the work and calls of a backward. inputs: lists the first half. weights: lists the second.
// The second half has the products for the gradients of weights, and the reduction of these
// gradients. No other stage waits for the second half.
static void backward(Play *play, const RankSteps *r, const CutSizes *z, size_t B, bool inputs,
                     bool weights) {
    const TrainerConfig *c = r->c;
    double blocks = (double)z->blocks, scores = blocks * work_scores(z, B).time;
    double second =
        blocks * work_block(z, B).time - 2 * scores + (z->last ? work_head(z, B).time : 0);
    double all =
        2 * work_stage(z, B).time + z->online * scores + blocks * ring_waits(r, z, B, true);
    bool again = c->recompute == RECOMPUTE_FULL;
    if (again) all += blocks * (work_block(z, B).time + ring_waits(r, z, B, false));
    if (c->recompute == RECOMPUTE_SELECTIVE && !z->online) all += scores;
    if (inputs && trainer_zero(c) == 3) units(play, r, z, COMM_ALL_GATHER);
    double time = (inputs ? all - second : 0) + (weights ? second : 0);
    play_work(play, r->rank, (Picoseconds)time);
    if (inputs)
        sums_over_tp(play, r, z, B, 2 * z->blocks + z->last + (again ? 2 * z->blocks : 0),
                     2 * z->blocks + z->first);
    if (weights && c->sequence && trainer_zero(c) > 1) partial_sums(play, r, z);
    if (weights && trainer_zero(c) > 1) units(play, r, z, COMM_REDUCE_SCATTER);
}

static void op_steps(Play *play, size_t rank, PipeOp op, const void *context) {
    const RankSteps *r = context;
    (void)rank;
    const CutSizes *z = &r->chunk[op.chunk];
    size_t B = sequences(r, op.micro_batch);
    if (op.what == FORWARD) forward(play, r, z, B);
    else backward(play, r, z, B, op.what != BACKWARD_WEIGHTS, op.what != BACKWARD_INPUTS);
}

// ---------------------------------------------------------------- a step

static void list_of_ops(Play *play, const RankSteps *r) {
    const TrainerConfig *c = r->c;
    size_t *bytes = host_alloc(r->m * sizeof *bytes);
    for (size_t k = 0; k < r->m; k++) {
        size_t rows = sequences(r, k) * ceil_div(c->model.context, mesh_cp(c->mesh));
        bytes[k] = (c->sequence ? ceil_div(rows, c->mesh.tp) : rows) * c->model.width * stored(r);
    }
    Schedule list = trainer_schedule(c, r->m, r->at.pp);
    PipelineSteps s = { .p = c->mesh.pp,
                        .v = trainer_chunks(c),
                        .i = r->at.pp,
                        .group = r->group.pp,
                        .list = &list,
                        .compute = op_steps,
                        .context = r,
                        .bytes = bytes,
                        .m = r->m };
    pipeline_steps(play, r->rank, &s, NULL);
    schedule_free(&list);
    free(bytes);
}

static void rank_steps(Play *play, const RankSteps *r) {
    const TrainerConfig *c = r->c;
    const CutSizes *z = &r->stage;
    bool ends = r->at.pp == 0 || r->at.pp + 1 == c->mesh.pp;
    if (trainer_zero(c) == 3) table(play, r, COMM_ALL_GATHER);
    list_of_ops(play, r);
    if (c->sequence && trainer_zero(c) < 2) partial_sums(play, r, z);
    if (c->mesh.pp > 1 && ends && !c->model.untied)
        play_call(play, r->rank, r->group.tied, COMM_ALL_REDUCE, elements_wte(z), gradient(r));
    // The sum over the replicas.
    if (trainer_zero(c) == 0)
        play_call(play, r->rank, r->group.replicas, COMM_ALL_REDUCE, elements_stage(z),
                  gradient(r));
    if (trainer_zero(c) == 1) units(play, r, z, COMM_REDUCE_SCATTER);
    if (trainer_zero(c) > 0) table(play, r, COMM_REDUCE_SCATTER);
    // Loss and norm; then the shards are gathered.
    play_call(play, r->rank, r->group.world, COMM_ALL_REDUCE, 1, sizeof(double));
    play_call(play, r->rank, trainer_zero(c) ? r->group.world : r->group.model, COMM_ALL_REDUCE,
              config_tensors(&c->model), sizeof(double));
    if (trainer_zero(c) == 1 || trainer_zero(c) == 2) {
        units(play, r, z, COMM_ALL_GATHER);
        table(play, r, COMM_ALL_GATHER);
    }
}

double step_time(const TrainerConfig *c) { return step_time_with(c, clock_config()); }
double step_time_with(const TrainerConfig *c, const ClockConfig *clock) {
    enum { KINDS = 5 };
    static const unsigned axes[KINDS] = { MESH_ALL, MESH_TP, MESH_DP | MESH_CP, MESH_TP | MESH_PP,
                                          MESH_PP };
    static const char *const name[KINDS] = { "world", "tp", "replicas", "model", "pp" };
    Degrees n = c->mesh;
    size_t world = replicas(c) * n.tp * n.pp, v = trainer_chunks(c), *group[KINDS];
    Play *play = play_new(world, clock);
    CutSizes *chunk = host_alloc(v * sizeof *chunk);
    for (size_t k = 0; k < KINDS; k++) {
        group[k] = host_alloc(world * sizeof **group);
        step_groups(play, n, axes[k], name[k], group[k]);
    }
    size_t *tied = host_alloc(world * sizeof *tied), inner = world / n.pp;
    for (size_t r = 0; r < inner && n.pp > 1; r++) {
        tied[r] = play_group(play, "tied", r, 2, (n.pp - 1) * inner);
        tied[r + (n.pp - 1) * inner] = tied[r];
    }
    for (size_t rank = 0; rank < world; rank++) {
        Coordinates at = mesh_coordinates(n, rank);
        RankSteps r = { .c = c,
                        .rank = rank,
                        .at = at,
                        .m = trainer_micro_batches(c),
                        .B = part_size(c->batch, n.dp, at.dp),
                        .cp_near = step_cp_near(n, at),
                        .chunk = chunk,
                        .group = { group[0][rank], group[1][rank], group[2][rank], group[3][rank],
                                   group[4][rank], tied[rank] } };
        for (size_t k = 0; k < v; k++) chunk[k] = chunk_of(c, at.pp, k);
        r.stage = chunk[0];
        for (size_t k = 1; k < v; k++) r.stage.blocks += chunk[k].blocks;
        r.stage.last = chunk[v - 1].last;
        rank_steps(play, &r);
    }
    if (!play_run(play)) fault("the expected steps of a trainer's step deadlock");
    Picoseconds end = 0;
    for (size_t r = 0; r < world; r++) end = play_end(play, r) > end ? play_end(play, r) : end;
    for (size_t k = 0; k < KINDS; k++) free(group[k]);
    free(tied);
    free(chunk);
    play_free(play);
    return (double)end;
}

Degrees step_time_best(const TrainerConfig *c, double *present, double *best) {
    size_t world = c->mesh.dp * c->mesh.tp * c->mesh.pp;
    TrainerConfig fastest = *c, other = *c;
    *present = step_time(c);
    *best = *present;
    for (size_t tp = 1; tp <= world; tp++)
        for (size_t pp = 1; tp * pp <= world; pp++) {
            other.mesh = (Degrees){ .dp = world / (tp * pp), .tp = tp, .pp = pp, .cp = c->mesh.cp };
            if (world % (tp * pp) || tp > config_kv_heads(&c->model) || pp > c->model.layers ||
                other.mesh.dp > c->batch)
                continue;
            other.stage_blocks = pp == c->mesh.pp ? c->stage_blocks : NULL;
            other.chunks = pp > 1 ? c->chunks : 1; // without a pipeline there are no chunks
            size_t m = trainer_micro_batches(&other);
            if (other.chunks > 1 && (other.chunks * pp > c->model.layers || m % pp)) continue;
            double step = step_time(&other);
            if (step >= *best) continue;
            *best = step;
            fastest = other;
        }
    return fastest.mesh;
}
