// step_time.c lists the expected operations of a trainer's step, rank by rank, from sizes alone.
// judge/play plays the lists.
#include "08_3d/experiments/step_ops.h"
#include <stdlib.h>
#include "04_pipeline_naive/experiments/timeline.h"
#include "08_3d/kept.h"
#include "common/model/costs.h"

static void list_of_ops(Play *play, const RankSteps *r) {
    const TrainerConfig *c = r->c;
    size_t *bytes = host_alloc(r->m * sizeof *bytes);
    for (size_t k = 0; k < r->m; k++) {
        size_t rows = step_sequences(r, k) * ceil_div(c->model.context, mesh_cp(c->mesh));
        bytes[k] =
            (c->sequence ? ceil_div(rows, c->mesh.tp) : rows) * c->model.width * step_stored(r);
    }
    Schedule list = trainer_schedule(c, r->m, r->at.pp);
    PipelineSteps s = { .p = c->mesh.pp,
                        .v = trainer_chunks(c),
                        .i = r->at.pp,
                        .group = r->group.pp,
                        .list = &list,
                        .compute = step_op,
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
    if (trainer_zero(c) == 3) step_table(play, r, COMM_ALL_GATHER);
    list_of_ops(play, r);
    if (c->sequence && trainer_zero(c) < 2) step_partial_sums(play, r, z);
    if (c->mesh.pp > 1 && ends && !c->model.untied)
        play_call(play, r->rank, r->group.tied, COMM_ALL_REDUCE, elements_wte(z), step_gradient(r));
    if (trainer_zero(c) == 0)
        play_call(play, r->rank, r->group.replicas, COMM_ALL_REDUCE, elements_stage(z),
                  step_gradient(r));
    if (trainer_zero(c) == 1) step_units(play, r, z, COMM_REDUCE_SCATTER);
    if (trainer_zero(c) > 0) step_table(play, r, COMM_REDUCE_SCATTER);
    // The ranks sum the loss and the squares of the norm, then gather the shards of ZeRO-1 and
    // ZeRO-2.
    play_call(play, r->rank, r->group.world, COMM_ALL_REDUCE, 1, sizeof(double));
    play_call(play, r->rank, trainer_zero(c) ? r->group.world : r->group.model, COMM_ALL_REDUCE,
              config_tensors(&c->model), sizeof(double));
    if (trainer_zero(c) == 1 || trainer_zero(c) == 2) {
        step_units(play, r, z, COMM_ALL_GATHER);
        step_table(play, r, COMM_ALL_GATHER);
    }
}

double step_time(const TrainerConfig *c) { return step_time_with(c, clock_config()); }
double step_time_with(const TrainerConfig *c, const ClockConfig *clock) {
    enum { KINDS = 5 };
    static const unsigned axes[KINDS] = { MESH_ALL, MESH_TP, MESH_DP | MESH_CP, MESH_TP | MESH_PP,
                                          MESH_PP };
    static const char *const name[KINDS] = { "world", "tp", "replicas", "model", "pp" };
    Degrees n = c->mesh;
    size_t world = trainer_replicas(c) * n.tp * n.pp, v = trainer_chunks(c), *group[KINDS];
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
        for (size_t k = 0; k < v; k++)
            chunk[k] = kept_part_sizes(c, (Coordinates){ 0 }, k * n.pp + at.pp);
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
