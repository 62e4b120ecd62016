// step_time.c: the time of a step, from sizes and the schedule.
#include "08_3d/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>
#include "01_data_parallel/experiments/06_costs.h"
#include "03_tensor_parallel/context_parallel.h"
#include "03_tensor_parallel/experiments/08_costs.h"
#include "common/model/costs.h"

enum { E = sizeof(real) };

// ---------------------------------------------------------------- links

// Do the ranks that differ along these axes only share a node? Of all groups that replica `d`
// has in `stage`: the slowest decides.
static bool one_node(Degrees n, unsigned axes, size_t d, size_t stage) {
    bool one = true;
    for (size_t r = 0; r < n.dp * n.tp * n.pp * mesh_cp(n); r++) {
        Coordinates c = mesh_coordinates(n, r), first = c;
        if ((!(axes & MESH_DP) && c.dp != d) || (!(axes & MESH_PP) && c.pp != stage)) continue;
        if (axes & MESH_TP) first.tp = 0;
        if (axes & MESH_DP) first.dp = 0;
        if (axes & MESH_PP) first.pp = 0;
        if (axes & MESH_CP) first.cp = 0;
        one = one && clock_same_node(mesh_rank(n, first), r);
    }
    return one;
}
// Two stages of replica d: what each of its tp slices sends to its peer.
static bool near_stages(Degrees n, size_t d, size_t from, size_t to) {
    bool one = true;
    for (size_t i = 0; i < n.tp * mesh_cp(n); i++) {
        Coordinates a = { .dp = d, .tp = i % n.tp, .cp = i / n.tp, .pp = from }, b = a;
        b.pp = to;
        one = one && clock_same_node(mesh_rank(n, a), mesh_rank(n, b));
    }
    return one;
}
static double ring(bool near, size_t passes, size_t n, size_t count, size_t size) {
    return (double)clock_transfer(near, passes * (n - 1),
                                  (size_t)ring_bytes(passes, n, count, size));
}

// ---------------------------------------------------------------- one stage

typedef struct {
    // Of the largest rank of its tp group: the others wait for it.
    CutSizes z;
    bool tp_near, dp_near, cp_near;
} Stage;
// Over whom gradients are summed and state is sharded: dp, and cp.
static size_t replicas(const TrainerConfig *c) { return c->mesh.dp * mesh_cp(c->mesh); }

// Chunk k of stage i, one of v: part k pp + i of the model.
static Stage chunk_of(const TrainerConfig *c, size_t d, size_t i, size_t k) {
    size_t parts = c->mesh.pp * trainer_chunks(c), part = k * c->mesh.pp + i;
    Stage s = { .z = cut_stage(cut_sizes(&c->model, c->mesh.tp, 0), parts, part),
                .tp_near = one_node(c->mesh, MESH_TP, d, i),
                .dp_near = one_node(c->mesh, MESH_DP | MESH_CP, d, i),
                .cp_near = one_node(c->mesh, MESH_CP, d, i) };
    Positions mine = { 0 };
    if (mesh_cp(c->mesh) > 1)
        mine = context_positions(c->model.context, c->mesh.cp, 0, &ring_attention_zigzag);
    if (c->stage_blocks) s.z.blocks = c->stage_blocks[part];
    if (c->blockwise || mine.n) s.z = cut_positions(s.z, &mine, true);
    if (c->sequence) s.z = cut_sequence(s.z, false);
    return s;
}
// All that stage i has.
static Stage stage_of(const TrainerConfig *c, size_t d, size_t i) {
    size_t last = trainer_chunks(c) - 1;
    Stage s = chunk_of(c, d, i, 0);
    for (size_t k = 1; k <= last; k++) s.z.blocks += chunk_of(c, d, i, k).z.blocks;
    s.z.last = chunk_of(c, d, i, last).z.last;
    return s;
}

// `passes` passes over dp for each of the stage's units, one after the other; wte apart.
static double units(const TrainerConfig *c, const Stage *s, size_t passes) {
    double time = 0;
    for (size_t i = 0; i < cut_layers(&s->z); i++)
        time += ring(s->dp_near, passes, replicas(c), elements_unit(&s->z, i), E);
    return time;
}
static double table(const TrainerConfig *c, const Stage *s) {
    if (!s->z.first && !s->z.last) return 0;
    return 2 * ring(s->dp_near, ONE_PASS, replicas(c), elements_wte(&s->z), E);
}

// Sums of the partial gradients of sequence parallelism, before ZeRO reduces: costs.h,
// traffic_partial_sums.
static double partial_sums(const TrainerConfig *c, const Stage *s) {
    const size_t together[] = { 2, 3, 1 };
    double time = 0;
    for (size_t i = 0; i < 3; i++)
        time += (double)s->z.blocks *
                ring(s->tp_near, ALL_REDUCE_PASSES, c->mesh.tp, together[i] * s->z.C, E);
    return time + s->z.last * ring(s->tp_near, ALL_REDUCE_PASSES, c->mesh.tp, 2 * s->z.C, E);
}

// How long a block of ring attention waits for its messages, where chunks are equal (03.12).
static double ring_waits(const TrainerConfig *c, const Stage *s, size_t B, bool backward) {
    size_t n = mesh_cp(c->mesh), T = s->z.T, bytes = B * T * 2 * s->z.heads * s->z.D * E;
    double hop = (double)clock_transfer(s->cp_near, 1, bytes), products = backward ? 5 : 2;
    // With others' keys.
    double other = products * (double)(B * s->z.heads) * work_product(T * T / 2, 1, s->z.D).time;
    double own =
            products * (double)(B * s->z.heads) * work_product(T * (T + 1) / 2, 1, s->z.D).time;
    return context_ring_waits(n, own, other, hop, backward);
}

// A forward or backward of B sequences: products, the sums over tp between them, ZeRO's gathers
// and reductions.
static double op_time(const TrainerConfig *c, const Stage *s, PipeWhat what, size_t B) {
    const CutSizes *z = &s->z;
    size_t t = c->mesh.tp, M = B * z->T;
    bool again = c->recompute == RECOMPUTE_FULL;
    double wide = ring(s->tp_near, ALL_REDUCE_PASSES, t, M * z->C, E);
    double half = c->sequence ? ring(s->tp_near, ONE_PASS, t, t * cut_rows(z, B) * z->C, E) : 0;
    if (c->sequence) wide = 2 * half;              // a reduce-scatter and an all-gather
    double narrow = ring(s->tp_near, ALL_REDUCE_PASSES, t, M, E), blocks = (double)z->blocks;
    if (what == FORWARD)
        return work_stage(z, B).time + blocks * ring_waits(c, s, B, false) +
               (2 * blocks + z->first) * wide + (z->last - (double)z->first) * half +
               z->last * 3 * narrow + (trainer_zero(c) == 3 ? units(c, s, 1) : 0);
    // The half of a backward that nothing waits for: the products for the gradients of weights, and
    // the reductions of these.
    double weights = blocks * (work_block(z, B).time - 2 * work_scores(z, B).time) +
                     (z->last ? work_head(z, B).time : 0) +
                     (trainer_zero(c) > 1 ? units(c, s, 1) : 0);
    if (c->sequence && trainer_zero(c) > 1) weights += partial_sums(c, s);
    if (what == BACKWARD_WEIGHTS) return weights;
    double time = 2 * work_stage(z, B).time + z->online * blocks * work_scores(z, B).time +
                  blocks * ring_waits(c, s, B, true) +
                  (2 * blocks + z->last) * wide + (2 * blocks + z->first) * half;
    if (c->sequence && trainer_zero(c) > 1) time += partial_sums(c, s);
    if (again) time += blocks * (work_block(z, B).time + 2 * wide + ring_waits(c, s, B, false));
    if (c->recompute == RECOMPUTE_SELECTIVE && !z->online) time += blocks * work_scores(z, B).time;
    return time + (trainer_zero(c) == 3 ? 2 : trainer_zero(c) == 2) * units(c, s, 1) -
           (what == BACKWARD_INPUTS ? weights : 0);
}

// After its last backward, and after the world's loss and norm.
static double reduction(const TrainerConfig *c, const Stage *s) {
    if (c->reduction == REDUCE_COMPRESSED)
        return compression_time(&s->z, &c->compression, c->mesh.dp, s->dp_near);
    if (trainer_zero(c) == 0)
        return ring(s->dp_near, ALL_REDUCE_PASSES, replicas(c), elements_stage(&s->z), E);
    return trainer_zero(c) == 1 ? units(c, s, 1) + table(c, s) / 2 : table(c, s) / 2;
}
static double gather(const TrainerConfig *c, const Stage *s) {
    return trainer_zero(c) == 1 || trainer_zero(c) == 2 ? units(c, s, 1) + table(c, s) / 2 : 0;
}

// ---------------------------------------------------------------- the pipeline

// forward, backward [chunks * m]: when the message of chunk and micro-batch arrives. lane: to
// the stage before, to the next one; one where these are one.
typedef struct {
    Stage stage, *chunk;
    Schedule list;
    size_t done;
    double now, lane[2], *forward, *backward;
} Player;

static double message(const TrainerConfig *c, size_t d, size_t from, size_t to, size_t B) {
    size_t rows = B * ceil_div(c->model.context, mesh_cp(c->mesh));
    size_t bytes = (c->sequence ? ceil_div(rows, c->mesh.tp) : rows) * c->model.width * E;
    return (double)clock_transfer(near_stages(c->mesh, d, from, to), 1, bytes);
}

// The next op of stage i, if what it needs is there.
static bool play_op(const TrainerConfig *c, Player *player, size_t d, size_t i, size_t m) {
    Player *p = &player[i];
    size_t pp = c->mesh.pp, v = trainer_chunks(c);
    if (p->done == p->list.n) return false;
    PipeOp op = p->list.ops[p->done];
    if (op.what == BACKWARD_WEIGHTS) {             // neither needs a message nor sends one
        size_t mine = part_size(c->batch, c->mesh.dp, d);
        p->now += op_time(c, &p->chunk[op.chunk], op.what, part_size(mine, m, op.micro_batch));
        p->done++;
        return true;
    }
    bool forward = op.what == FORWARD;
    size_t k = op.micro_batch, B = part_size(part_size(c->batch, c->mesh.dp, d), m, k);
    StageOp needs, feeds;
    double there = 0;
    if (pipe_op_needs(op, i, pp, v, &needs) && needs.stage != i) {
        const Player *from = &player[needs.stage];
        there = (forward ? from->forward : from->backward)[needs.op.chunk * m + k];
    }
    if (there < 0) return false;                   // not sent yet
    p->now = fmax(p->now, there) + op_time(c, &p->chunk[op.chunk], op.what, B);
    double arrives = p->now;
    if (pipe_op_feeds(op, i, pp, v, &feeds) && feeds.stage != i) {
        double *lane = &p->lane[feeds.stage == (i + 1) % pp];
        arrives = *lane = fmax(p->now, *lane) + message(c, d, i, feeds.stage, B);
    }
    (forward ? p->forward : p->backward)[op.chunk * m + k] = arrives;
    p->done++;
    return true;
}

// Replica d's stages, until each has summed the tied embedding; now[i]: when stage i is there.
static void play_replica(const TrainerConfig *c, size_t d, size_t m, double *now) {
    Degrees n = c->mesh;
    size_t v = trainer_chunks(c), messages = v * m;
    Player *player = host_alloc(n.pp * sizeof *player);
    for (size_t i = 0; i < n.pp; i++) {
        player[i] = (Player){ .stage = stage_of(c, d, i),
                              .chunk = host_alloc(v * sizeof(Stage)),
                              .list = trainer_schedule(c, m, i),
                              .forward = host_alloc(messages * sizeof(double)),
                              .backward = host_alloc(messages * sizeof(double)) };
        for (size_t k = 0; k < v; k++) player[i].chunk[k] = chunk_of(c, d, i, k);
        for (size_t k = 0; k < messages; k++) player[i].forward[k] = player[i].backward[k] = -1;
        if (trainer_zero(c) == 3) player[i].now = table(c, &player[i].stage) / 2;
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < n.pp; i++)
            while (play_op(c, player, d, i, m)) moved = true;
    }
    for (size_t i = 0; i < n.pp && c->sequence && trainer_zero(c) < 2; i++)
        player[i].now += partial_sums(c, &player[i].stage);
    Player *first = &player[0], *last = &player[n.pp - 1];
    if (n.pp > 1)                                  // they wait for each other
        first->now = last->now = fmax(first->now, last->now) +
                                 ring(near_stages(n, d, 0, n.pp - 1), ALL_REDUCE_PASSES, 2,
                                      elements_wte(&first->stage.z), E);
    for (size_t i = 0; i < n.pp; i++) {
        now[i] = player[i].now;
        schedule_free(&player[i].list);
        free(player[i].chunk);
        free(player[i].forward);
        free(player[i].backward);
    }
    free(player);
}

double step_time(const TrainerConfig *c) {
    Degrees n = c->mesh;
    size_t m = trainer_micro_batches(c), world = replicas(c) * n.tp * n.pp;
    double *now = host_alloc(n.pp * sizeof *now), *ready = host_alloc(n.pp * sizeof *ready),
           done = 0, gathers = 0;
    bool replicas_near = true;
    for (size_t i = 0; i < n.pp; i++) ready[i] = 0;
    for (size_t d = 0; d < n.dp; d++) {
        play_replica(c, d, m, now);
        replicas_near = replicas_near && one_node(n, MESH_TP | MESH_PP, d, 0);
        for (size_t i = 0; i < n.pp; i++) ready[i] = fmax(ready[i], now[i]);
    }
    // A stage's replicas wait for each other, and all for the loss.
    for (size_t i = 0; i < n.pp; i++) {
        Stage s = stage_of(c, 0, i);
        done = fmax(done, ready[i] + reduction(c, &s));
        gathers = fmax(gathers, gather(c, &s));
    }
    free(now);
    free(ready);
    bool world_near = one_node(n, MESH_ALL, 0, 0);
    done += ring(world_near, ALL_REDUCE_PASSES, world, 1, sizeof(double));
    done += ring(trainer_zero(c) ? world_near : replicas_near, ALL_REDUCE_PASSES,
                 trainer_zero(c) ? world : n.tp * n.pp, config_tensors(&c->model), sizeof(double));
    return done + gathers;
}

Degrees step_time_best(const TrainerConfig *c, double *time) {
    size_t world = c->mesh.dp * c->mesh.tp * c->mesh.pp;
    TrainerConfig best = *c, other = *c;
    *time = step_time(c);
    for (size_t tp = 1; tp <= world; tp++)
        for (size_t pp = 1; tp * pp <= world; pp++) {
            other.mesh = (Degrees){ .dp = world / (tp * pp), .tp = tp, .pp = pp, .cp = c->mesh.cp };
            if (world % (tp * pp) || tp > c->model.heads || pp > c->model.layers ||
                other.mesh.dp > c->batch)
                continue;
            if (c->reduction == REDUCE_COMPRESSED &&
                (other.mesh.dp == 1 || (c->compression.method == TOP_K && tp > 1)))
                continue;
            other.stage_blocks = pp == c->mesh.pp ? c->stage_blocks : NULL;
            // Interleaved: where the trainer does not refuse it.
            other.chunks = pp > 1 ? c->chunks : 1;
            size_t m = trainer_micro_batches(&other);
            if (other.chunks > 1 && (other.chunks * pp > c->model.layers || m % pp)) continue;
            double step = step_time(&other);
            if (step < *time) { *time = step; best = other; }
        }
    return best.mesh;
}
