// plan_time.c: see plan.h. A step of a layout: the schedule's lists played through, stage by stage, by the times of
// plan_stage.c; what is in flight is counted at the same time.
#include <math.h>
#include <stdlib.h>
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "08_3d/plan.h"

// A pipeline repeats itself once it is full: of many micro-batches PLAYED times pp are played, and the others add their
// time. With unequal stages that takes a while, so small pipelines are played whole.
enum { PLAYED = 3, MOST_OPS = 1000, FORWARDS = 0, BACKWARDS = 1 };

typedef struct {
    PlanStage stage;                               // forwards and backwards of a chunk: of the larger micro-batches
    PlanOp op[2][2];                               // [forward or backward][the larger or the smaller]
    double held[2], working[2];                    // bytes of one micro-batch
} Chunk;
typedef struct {
    Chunk *chunk;
    Schedule list;
    size_t done;
    double now, busy, lane[2], *arrives[2];        // lane: to the stage before, to the next one
    bool near[2];                                  // are these in this node?
    double held, peak;                             // bytes in flight
    PlanOp sum;
} Stage;
typedef struct {
    const PlanTask *t;
    const PlanLayout *l;
    size_t d, m, sequences, large;                 // micro-batches that are played, of a replica's; the largest one
    Stage *stage;
} Player;

static size_t sequences_of(const Player *p, size_t k) { return part_size(p->sequences, p->m, k); }

static void add(PlanOp *sum, const PlanOp *op, double times) {
    sum->products += times * op->products;
    sum->rest += times * op->rest;
    sum->tp += times * op->tp;
    sum->cp += times * op->cp;
    sum->dp += times * op->dp;
    sum->tp_bytes += times * op->tp_bytes;
    sum->cp_bytes += times * op->cp_bytes;
    sum->dp_bytes += times * op->dp_bytes;
}

static size_t message_bytes(const Player *p, size_t B) {
    size_t rows = B * plan_positions(p->t, p->l);
    return (p->l->sequence ? ceil_div(rows, p->l->n.tp) : rows) * p->t->model.model.width * p->t->format.element;
}
static bool stages_near(const Player *p, size_t from, size_t to) {
    const PlanLayout *l = p->l;
    size_t inner = l->n.tp * mesh_cp(l->n);
    bool near = true, all = l->zero >= 2;          // replicas that go in step
    for (size_t d = all ? 0 : p->d; d < (all ? l->n.dp : p->d + 1); d++)
        for (size_t r = 0; r < inner; r++)
            near = near && plan_near(p->t, plan_rank(l, d, r / l->n.tp, r % l->n.tp, from),
                                     plan_rank(l, d, r / l->n.tp, r % l->n.tp, to));
    return near;
}

static Stage stage_new(const Player *p, size_t i) {
    size_t v = p->l->chunks, n = v * p->m;
    Stage s = { .chunk = host_alloc(v * sizeof(Chunk)),
                .list = v > 1 ? schedule_interleaved(p->l->n.pp, p->m, v, i) : schedule_1f1b(p->l->n.pp, p->m, i) };
    s.near[0] = stages_near(p, i, (i + p->l->n.pp - 1) % p->l->n.pp);
    s.near[1] = stages_near(p, i, (i + 1) % p->l->n.pp);
    for (size_t k = 0; k < v; k++) {
        Chunk *c = &s.chunk[k];
        c->stage = plan_chunk(p->t, p->l, p->d, i, k);
        for (size_t small = 0; small < 2 && p->large > small; small++) {
            size_t B = p->large - small;
            for (int what = 0; what < 2; what++)
                c->op[what][small] = plan_op(p->t, p->l, &c->stage, what == FORWARDS, B);
            c->held[small] = plan_in_flight(p->t, p->l, &c->stage.z, B, false);
            c->working[small] = plan_in_flight(p->t, p->l, &c->stage.z, B, true);
        }
    }
    for (int what = 0; what < 2; what++) {
        s.arrives[what] = host_alloc(n * sizeof(double));
        for (size_t k = 0; k < n; k++) s.arrives[what][k] = -1;
    }
    return s;
}
static void stage_free(Stage *s) {
    schedule_free(&s->list);
    free(s->chunk);
    free(s->arrives[0]);
    free(s->arrives[1]);
}

static void count_memory(Stage *s, const Chunk *c, bool forward, size_t small) {
    double others = s->held - (forward ? 0 : c->held[small]);
    s->peak = fmax(s->peak, others + c->working[small]);
    s->held = others + (forward ? c->held[small] : 0);
}

// The next op of stage i, if what it needs has been sent.
static bool play_op(Player *p, size_t i) {
    Stage *s = &p->stage[i];
    if (s->done == s->list.n) return false;
    PipeOp op = s->list.ops[s->done];
    size_t pp = p->l->n.pp, B = sequences_of(p, op.micro_batch), small = B != p->large, slot;
    int what = op.what == FORWARD ? FORWARDS : BACKWARDS;
    const Chunk *c = &s->chunk[op.chunk];
    StageOp other;
    double there = 0;
    if (pipe_op_needs(op, i, pp, p->l->chunks, &other) && other.stage != i)
        there = p->stage[other.stage].arrives[what][other.op.chunk * p->m + op.micro_batch];
    if (there < 0) return false;
    slot = op.chunk * p->m + op.micro_batch;
    // EXERCISE 08.02a (4 points): play a pipeline's op. there: when what it needs has come. It takes the time of
    // c->op[what][small]; add that to s->busy, and let s->now be its end. Its message, if pipe_op_feeds says that
    // another stage takes one, has B sequences (message_bytes), goes on s->lane[on] (on: 1 to the next stage, 0 to the
    // one before), leaves when the op has ended and the lane is free, and takes plan_link_time on the link near[on].
    // s->arrives[what][slot]: when it is there; without one, when the op has ended.
    double takes = plan_op_time(&c->op[what][small]);
    s->now = fmax(s->now, there) + takes;
    s->busy += takes;
    s->arrives[what][slot] = s->now;
    if (pipe_op_feeds(op, i, pp, p->l->chunks, &other) && other.stage != i) {
        size_t on = other.stage == (i + 1) % pp;
        double message = plan_link_time(p->t, s->near[on], 1, (double)message_bytes(p, B));
        s->arrives[what][slot] = s->lane[on] = fmax(s->now, s->lane[on]) + message;
    }
    // END
    add(&s->sum, &c->op[what][small], 1);
    count_memory(s, c, op.what == FORWARD, small);
    s->done++;
    return true;
}

static void play(Player *p) {
    size_t pp = p->l->n.pp;
    p->large = ceil_div(p->sequences, p->m);
    p->stage = host_alloc(pp * sizeof *p->stage);
    for (size_t i = 0; i < pp; i++) {
        p->stage[i] = stage_new(p, i);
        if (p->l->zero == 3) {                     // wte is gathered once, before all others
            PlanStage s = plan_stage(p->t, p->l, p->d, i);
            PlanOp table = plan_gather(p->t, p->l, &s);
            p->stage[i].now = p->stage[i].busy = table.dp;
            add(&p->stage[i].sum, &table, 1);
        }
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < pp; i++)
            while (play_op(p, i)) moved = true;
    }
}
static void player_free(Player *p) {
    for (size_t i = 0; i < p->l->n.pp; i++) stage_free(&p->stage[i]);
    free(p->stage);
}

// Replica d from the first forward to the last backward. Where its micro-batches are alike and many, some are played,
// and pp fewer of them: their difference is the time of pp more.
static void play_replica(Player *p) {
    size_t m = p->m, pp = p->l->n.pp;
    if (m <= (PLAYED + 1) * pp || m * pp * p->l->chunks <= MOST_OPS || p->sequences % m) { play(p); return; }
    size_t each = p->sequences / m, few = PLAYED * pp + m % pp;
    Player less = *p;
    p->m = few;
    p->sequences = few * each;
    less.m = few - pp;
    less.sequences = less.m * each;
    play(p);
    play(&less);
    double times = (double)((m - few) / pp);
    for (size_t i = 0; i < pp; i++) {
        Stage *s = &p->stage[i], *one = &less.stage[i];
        PlanOp before = s->sum;
        s->now += times * (s->now - one->now);
        s->busy += times * (s->busy - one->busy);
        add(&s->sum, &before, times);
        add(&s->sum, &one->sum, -times);
    }
    player_free(&less);
    p->m = m;
}

// Where groups lie alike in the nodes all replicas take the same time; elsewhere each is played, or the first ones.
enum { MOST_REPLICAS = 8 };
static size_t replicas_to_play(const PlanTask *t, const PlanLayout *l) {
    size_t dp = l->n.dp;
    return plan_alike(t, l) || l->zero >= 2 ? 1 : dp < MOST_REPLICAS ? dp : MOST_REPLICAS;
}

// ---------------------------------------------------------------- the whole step

static void take_memory(PlanResult *r, const PlanStage *s, const PlanTask *t, double activations, size_t i) {
    PlanMemory m = plan_state(t, &r->layout, s);
    m.bytes[PLAN_ACTIVATIONS] = activations;
    if (i == 0 || plan_memory_sum(&m) > plan_memory_sum(&r->fullest)) { r->fullest = m; r->stage = i; }
    for (size_t k = 0; k < PLAN_MEMORY; k++) r->largest.bytes[k] = fmax(r->largest.bytes[k], m.bytes[k]);
}

// Between stages, both ways: of stage i.
static double sent_on(const Player *p, size_t i) {
    size_t ends = (i == 0) + (i + 1 == p->l->n.pp), full = p->sequences / p->m, more = p->sequences % p->m;
    double all = (double)((p->m - more) * message_bytes(p, full) + more * message_bytes(p, full + 1));
    return p->l->n.pp == 1 ? 0 : (double)(2 * p->l->chunks - ends) * all;
}

// Forward and backward of the whole model, and what the ranks do beyond it.
static void utilisation(const PlanTask *t, PlanResult *r) {
    const ModelConfig *m = &t->model.model;
    size_t batch = t->model.batch;
    CutSizes z = cut_sizes(m, 1, 0);
    double model = (double)batch * 3 * work_stage(&z, 1).flops, blocks = (double)(batch * m->layers), again = 0;
    if (r->layout.recompute == RECOMPUTE_FULL) again = blocks * work_block(&z, 1).flops;
    if (r->layout.recompute == RECOMPUTE_SELECTIVE) again = blocks * work_scores(&z, 1).flops;
    double could = (double)t->gpus * t->cluster.flops * r->step * 1e-12;
    r->mfu = model / could;
    r->hfu = (model + again) / could;
}

// After the last backward of stage i; ready: all its replicas are there.
typedef struct { double done, gathers; } Ending;
static void ending(Ending *e, PlanResult *r, const Player *p, size_t i, double ready) {
    PlanStage s = plan_stage(p->t, p->l, 0, i);
    PlanOp reduce = plan_reduction(p->t, p->l, &s), gather = plan_gather(p->t, p->l, &s);
    double dp_bytes = p->stage[i].sum.dp_bytes + reduce.dp_bytes + (p->l->zero == 3 ? 0 : gather.dp_bytes);
    double update = plan_update_time(p->t, p->l, &s);
    for (size_t slice = 0; slice < plan_slices(p->t, p->l); slice++) {
        PlanStage one = plan_slice(p->t, p->l, &s, slice);
        PlanOp sum = plan_reduction(p->t, p->l, &one), after = plan_gather(p->t, p->l, &one);
        e->done = fmax(e->done, ready + sum.dp);
        e->gathers = fmax(e->gathers, (p->l->zero < 3 ? after.dp : 0) + update);
    }
    r->tp_bytes = fmax(r->tp_bytes, p->stage[i].sum.tp_bytes);
    r->cp_bytes = fmax(r->cp_bytes, p->stage[i].sum.cp_bytes);
    r->dp_bytes = fmax(r->dp_bytes, dp_bytes);
    r->pp_bytes = fmax(r->pp_bytes, sent_on(p, i));
    take_memory(r, &s, p->t, p->stage[i].peak, i);
}
static void shares(PlanResult *r, const Player *p, double pipeline) {
    const Stage *busiest = &p->stage[0];
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

PlanResult plan_layout(const PlanTask *t, const PlanLayout *l) {
    PlanResult r = { .layout = *l };
    Degrees n = l->n;
    size_t cp = mesh_cp(n), world = n.dp * n.tp * n.pp * cp, replicas = replicas_to_play(t, l), m = plan_micro_batches(t, l);
    double *ready = host_alloc(n.pp * sizeof *ready), pipeline = 0;
    Player first = {0};
    bool model_near = true;
    for (size_t d = 0; d < replicas; d++) {
        Player p = { .t = t, .l = l, .d = d, .m = m, .sequences = part_size(t->model.batch, n.dp, d) };
        play_replica(&p);
        PlanStage s = plan_stage(t, l, d, 0), e = plan_stage(t, l, d, n.pp - 1);
        for (size_t i = 0; i < n.pp; i++) {
            PlanStage each = plan_stage(t, l, d, i);
            PlanOp sums = plan_partial_sums(t, l, &each);
            pipeline = fmax(pipeline, p.stage[i].now);
            if (l->zero < 2) { p.stage[i].now += sums.tp; p.stage[i].sum.tp_bytes += sums.tp_bytes; }
        }
        if (n.pp > 1) {                            // the tied embedding: its two stages wait for each other
            size_t table = elements_wte(&s.z), g = t->format.gradient;
            double both = fmax(p.stage[0].now, p.stage[n.pp - 1].now) +
                plan_ring_time(t, stages_near(&p, 0, n.pp - 1), ALL_REDUCE_PASSES, 2, table, g);
            p.stage[0].now = p.stage[n.pp - 1].now = both;
            r.tied_bytes = ring_bytes(ALL_REDUCE_PASSES, 2, e.z.last ? table : 0, g);
        }
        for (size_t i = 0; i < n.pp; i++) ready[i] = fmax(ready[i], p.stage[i].now);
        for (size_t c = 0; c < cp; c++)
            model_near = model_near && plan_near(t, plan_rank(l, d, c, 0, 0), plan_rank(l, d, c, n.tp - 1, n.pp - 1));
        if (d == 0) first = p;
        else player_free(&p);
    }
    Ending e = {0};
    first.sequences = part_size(t->model.batch, n.dp, 0);
    first.m = m;
    for (size_t i = 0; i < n.pp; i++) ending(&e, &r, &first, i, ready[i]);
    bool world_near = plan_near(t, 0, world - 1);
    size_t tensors = config_tensors(&t->model.model), holders = l->zero ? world : n.tp * n.pp;
    r.step = e.done + e.gathers + plan_ring_time(t, world_near, ALL_REDUCE_PASSES, world, 1, sizeof(double)) +
        plan_ring_time(t, l->zero ? world_near : model_near, ALL_REDUCE_PASSES, holders, tensors, sizeof(double));
    shares(&r, &first, pipeline);
    utilisation(t, &r);
    r.fits = plan_memory_sum(&r.fullest) <= t->cluster.memory;
    player_free(&first);
    free(ready);
    return r;
}
