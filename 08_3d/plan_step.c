// plan_step.c computes the whole step of a layout. plan_layout() plays the replicas' schedules and
// adds the work after the last backward.
#include "08_3d/plan_player.h"
#include <math.h>
#include <stdlib.h>

// Returns the number of replicas to play. If all groups are placed on nodes alike, no replica takes
// longer than replica 0, so one replica is enough. With ZeRO 2 and 3 one replica is enough, too,
// because the replicas wait for each other in every micro-batch. Otherwise at most MOST_REPLICAS
// replicas are played.
enum { MOST_REPLICAS = 8 };
static size_t replicas_to_play(const PlanTask *t, const PlanLayout *l) {
    size_t dp = l->n.dp;
    return plan_alike(t, l) || l->zero >= 2 ? 1 : dp < MOST_REPLICAS ? dp : MOST_REPLICAS;
}

// Returns whether an earlier replica takes the same time as replica d. Two replicas take the same
// time if they have as many sequences, and if their first ranks have the same place in a node.
static bool played_before(const PlanTask *t, const PlanLayout *l, size_t d) {
    size_t node = t->cluster.node, batch = t->model.batch;
    for (size_t before = 0; before < d; before++)
        if (plan_rank(l, before, 0, 0, 0) % node == plan_rank(l, d, 0, 0, 0) % node &&
            part_size(batch, l->n.dp, before) == part_size(batch, l->n.dp, d))
            return true;
    return false;
}

static void take_memory(PlanResult *r, const PlanStage *s, const PlanTask *t, double activations,
                        size_t i) {
    PlanMemory m = plan_state(t, &r->layout, s);
    m.bytes[PLAN_ACTIVATIONS] = activations;
    if (i == 0 || plan_memory_sum(&m) > plan_memory_sum(&r->fullest)) {
        r->fullest = m;
        r->stage = i;
    }
    for (size_t k = 0; k < PLAN_MEMORY; k++)
        r->largest.bytes[k] = fmax(r->largest.bytes[k], m.bytes[k]);
}

// Returns the bytes that a rank of stage i sends to the previous and the next stage, together.
static double sent_on(const PlanPlayer *p, size_t i) {
    size_t ends = (i == 0) + (i + 1 == p->l->n.pp), full = p->sequences / p->m,
           more = p->sequences % p->m;
    double all = (double)((p->m - more) * plan_message_bytes(p, full) +
                          more * plan_message_bytes(p, full + 1));
    return p->l->n.pp == 1 ? 0 : (double)(2 * p->l->chunks - ends) * all;
}

// r->mfu is the FLOPs of forward and backward, divided by the FLOPs that all GPUs could compute in
// the step. r->hfu also counts the FLOPs of recomputation.
static void utilisation(const PlanTask *t, PlanResult *r) {
    const ModelConfig *m = &t->model.model;
    size_t batch = t->model.batch;
    CutSizes z = cut_sizes(m, 1, 0);
    double model = (double)batch * 3 * (work_stage(&z, 1).flops + plan_vision_flops(t, false)),
           blocks = (double)(batch * m->layers), again = 0;
    if (r->layout.recompute == RECOMPUTE_FULL)
        again = blocks * work_block(&z, 1).flops + (double)batch * plan_vision_flops(t, true);
    if (r->layout.recompute == RECOMPUTE_SELECTIVE) again = blocks * work_scores(&z, 1).flops;
    double could = (double)t->gpus * t->cluster.flops * r->step * 1e-12;
    r->mfu = model / could;
    r->hfu = (model + again) / could;
}

// The times of the work after the last backward.
// done: the time at which the slowest stage has ended its reductions.
// gathers: the longest time of a stage's gather and update.
typedef struct {
    double done, gathers;
} Ending;
// Updates *e, and the memory and traffic of r, with the values of stage i. Each is the largest
// value over the stages. ready: the time at which all replicas of stage i have ended.
static void ending(Ending *e, PlanResult *r, const PlanPlayer *p, size_t i, double ready) {
    PlanStage s = plan_stage(p->t, p->l, 0, i);
    PlanOp reduce = plan_reduction(p->t, p->l, &s), gather = plan_gather(p->t, p->l, &s);
    double dp_bytes =
        p->stage[i].sum.dp_bytes + reduce.dp_bytes + (p->l->zero == 3 ? 0 : gather.dp_bytes);
    if (p->layered && p->l->zero == 0) dp_bytes = plan_bucket_bytes(p, &p->stage[i], &s);
    double update = plan_update_time(p->t, p->l, &s);
    for (size_t slice = 0; slice < plan_slices(p->t, p->l); slice++) {
        PlanStage one = plan_slice(p->t, p->l, &s, slice);
        PlanOp sum = plan_reduction(p->t, p->l, &one), after = plan_gather(p->t, p->l, &one);
        double done =
            p->layered ? plan_overlap_end(p, &p->stage[i], &one, slice, ready) : ready + sum.dp;
        e->done = fmax(e->done, done);
        // With overlap the gather belongs to the next step, whose first forward waits for the
        // gather.
        bool gathers = p->l->zero < 3 && !p->layered;
        e->gathers = fmax(e->gathers, (gathers ? after.dp : 0) + update);
    }
    r->tp_bytes = fmax(r->tp_bytes, p->stage[i].sum.tp_bytes);
    r->cp_bytes = fmax(r->cp_bytes, p->stage[i].sum.cp_bytes);
    r->dp_bytes = fmax(r->dp_bytes, dp_bytes);
    r->pp_bytes = fmax(r->pp_bytes, sent_on(p, i));
    take_memory(r, &s, p->t, p->stage[i].peak, i);
}
static void shares(PlanResult *r, const PlanPlayer *p, double pipeline) {
    const PlanStageTime *busiest = &p->stage[0];
    for (size_t i = 1; i < p->l->n.pp; i++)
        if (p->stage[i].busy > busiest->busy) busiest = &p->stage[i];
    r->computing = busiest->sum.products + busiest->sum.rest;
    r->tp = busiest->sum.tp;
    r->cp = busiest->sum.cp;
    r->dp = busiest->sum.dp;
    r->end = r->step - pipeline;
    r->idle = pipeline - busiest->busy;
    r->bubble = r->idle / pipeline;
}

// Returns the slower of two groups that add up the norm. One group is `model`, the slowest group so
// far. The other group has the ranks of tp and pp of replica d and rank cp, which hold one
// replica's parameters. The ranks of a stage are neighbours.
static PlanGroup slower_model(const PlanTask *t, const PlanLayout *l, size_t d, size_t cp,
                              PlanGroup model) {
    size_t node = t->cluster.node, rails = t->cluster.rails, n = l->n.tp * l->n.pp;
    size_t least = n, here = 0, last = plan_rank(l, d, cp, l->n.tp - 1, l->n.pp - 1);
    if (plan_near(t, plan_rank(l, d, cp, 0, 0), last)) return model;
    for (size_t i = 0; i < n; i++) {
        size_t rank = plan_rank(l, d, cp, i % l->n.tp, i / l->n.tp);
        here++;
        if (i + 1 < n &&
            plan_rank(l, d, cp, (i + 1) % l->n.tp, (i + 1) / l->n.tp) / node == rank / node)
            continue;
        least = here < least ? here : least;
        here = 0;
    }
    least = rails && rails < least ? rails : least;
    if (model.cards == 0 || least < model.cards) model.cards = least;
    return model;
}

PlanResult plan_layout(const PlanTask *t, const PlanLayout *l) {
    PlanResult r = { .layout = *l };
    Degrees n = l->n;
    size_t cp = mesh_cp(n), world = n.dp * n.tp * n.pp * cp, replicas = replicas_to_play(t, l);
    size_t m = plan_micro_batches(t, l);
    double *ready = host_alloc(n.pp * sizeof *ready), pipeline = 0;
    PlanPlayer first = { 0 };
    PlanGroup model = { .n = n.tp * n.pp }; // the slowest group so far
    for (size_t d = 0; d < replicas; d++) {
        if (played_before(t, l, d)) continue;
        PlanPlayer p = {
            .t = t, .l = l, .d = d, .m = m, .sequences = part_size(t->model.batch, n.dp, d)
        };
        plan_play_replica(&p);
        PlanStage s = plan_stage(t, l, d, 0), e = plan_stage(t, l, d, n.pp - 1);
        for (size_t i = 0; i < n.pp; i++) {
            PlanStage each = plan_stage(t, l, d, i);
            PlanOp sums = plan_partial_sums(t, l, &each);
            pipeline = fmax(pipeline, p.stage[i].now);
            p.stage[i].now = fmax(p.stage[i].now, l->zero > 1 ? p.stage[i].reduced : 0);
            if (l->zero < 2) {
                p.stage[i].now += p.layered ? 0 : sums.tp;
                p.stage[i].sum.tp_bytes += sums.tp_bytes;
            }
        }
        // The two stages of the tied embedding wait for each other.
        if (n.pp > 1 && !t->model.model.untied) {
            size_t table = elements_wte(&s.z), g = t->format.gradient;
            PlanGroup pair = { .n = 2, .cards = !plan_stages_near(&p, 0, n.pp - 1) };
            double both = fmax(p.stage[0].now, p.stage[n.pp - 1].now) +
                          plan_group_time(t, pair, ALL_REDUCE_PASSES, table, g);
            p.stage[0].now = p.stage[n.pp - 1].now = both;
            r.tied_bytes = ring_bytes(ALL_REDUCE_PASSES, 2, e.z.last ? table : 0, g);
        }
        for (size_t i = 0; i < n.pp; i++) ready[i] = fmax(ready[i], p.stage[i].now);
        for (size_t c = 0; c < cp; c++) model = slower_model(t, l, d, c, model);
        if (d == 0) {
            first = p;
            continue;
        }
        // A bucket's reduction starts when the slowest replica has filled the bucket.
        for (size_t i = 0; i < n.pp; i++)
            for (size_t k = 0; k < p.stage[i].dp_lanes; k++) {
                PlanLane *lane = &first.stage[i].dp_lane[k];
                lane->free = fmax(lane->free, p.stage[i].dp_lane[k].free);
            }
        plan_player_free(&p);
    }
    Ending e = { 0 };
    first.sequences = part_size(t->model.batch, n.dp, 0);
    first.m = m;
    for (size_t i = 0; i < n.pp; i++) ending(&e, &r, &first, i, ready[i]);
    PlanGroup all = plan_group(t, 0, world, 1), holders = l->zero ? all : model;
    r.step = e.done + e.gathers + plan_group_time(t, all, ALL_REDUCE_PASSES, 1, sizeof(double)) +
             plan_group_time(t, holders, ALL_REDUCE_PASSES, config_tensors(&t->model.model),
                             sizeof(double));
    shares(&r, &first, pipeline);
    utilisation(t, &r);
    r.fits = plan_memory_sum(&r.fullest) <= plan_usable(&t->cluster);
    plan_player_free(&first);
    free(ready);
    return r;
}
