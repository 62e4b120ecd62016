// plan_time.c plays the schedule of a layout, stage by stage, with the times of plan_op.c, and
// counts the bytes in flight.
//
// judge/play does not play these schedules, because judge/play needs the steps of every rank, which
// takes too long for 16,384 ranks. This file plays one rank per stage of one replica, or each rank
// of an unequal ring. The other ranks of the replica take the same time. So a search takes seconds.
//
// tests/plan-time.t compares this file with judge/play on random layouts of up to 64 ranks. The two
// times must be equal to the picosecond, or within 2 % if plan_time.c plays only some of many
// micro-batches. For rings of unequal ranks the test prints the difference and checks no limit,
// because plan_time.c only estimates the waits of these ranks. tests/plan.t compares the plan with
// the trainer on the simulated clock.
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/plan_player.h"

// A full pipeline repeats itself. So if a replica has many micro-batches, the player plays only
// about PLAYED * pp micro-batches. The other micro-batches take the time of the slowest stage. If a
// stage has at most MOST_OPS / pp forwards, the player plays all micro-batches, because unequal
// stages need some time until they repeat. If the ranks of a ring are unequal and the replica needs
// at most MOST_STEPS steps of rings, each rank is played. Otherwise only the slowest rank of each
// op is played.
enum { PLAYED = 3, MOST_OPS = 1000, MOST_STEPS = 20000, FORWARDS = 0, BACKWARDS = 1 };

static size_t sequences_of(const PlanPlayer *p, size_t k) {
    return part_size(p->sequences, p->m, k);
}

// Returns whether a message between stages is cut over tp, and gathered by the receiver. With
// sequence parallelism a rank has only its own rows to send.
static bool is_scattered(const PlanPlayer *p) {
    return p->t->how.scatter && !p->l->sequence && p->l->n.tp > 1;
}
size_t plan_message_bytes(const PlanPlayer *p, size_t B) {
    size_t rows = B * plan_positions(p->t, p->l), width = p->t->model.model.width;
    size_t e = p->t->format.element;
    if (is_scattered(p)) return ceil_div(rows * width, p->l->n.tp) * e;
    return (p->l->sequence ? ceil_div(rows, p->l->n.tp) : rows) * width * e;
}
static PlanOp message_gather(const PlanPlayer *p, const PlanStage *s, size_t B) {
    size_t count = B * plan_positions(p->t, p->l) * p->t->model.model.width;
    size_t e = p->t->format.element;
    if (!is_scattered(p)) return (PlanOp){ 0 };
    return (PlanOp){ .tp = plan_group_time(p->t, s->tp, ONE_PASS, count, e),
                     .tp_bytes = plan_group_bytes(p->t, s->tp, ONE_PASS, count, e) };
}
bool plan_stages_near(const PlanPlayer *p, size_t from, size_t to) {
    const PlanLayout *l = p->l;
    size_t inner = l->n.tp * mesh_cp(l->n);
    bool near = true, all = l->zero >= 2; // under ZeRO 2 and 3 replicas wait for each other
    for (size_t d = all ? 0 : p->d; near && d < (all ? l->n.dp : p->d + 1); d++)
        for (size_t r = 0; near && r < inner; r++)
            near = plan_near(p->t, plan_rank(l, d, r / l->n.tp, r % l->n.tp, from),
                             plan_rank(l, d, r / l->n.tp, r % l->n.tp, to));
    return near;
}

// Returns a new stage i.
// like: a stage whose ops take the same times as those of stage i, and whose times are copied; or
// NULL.
static PlanStageTime stage_new(const PlanPlayer *p, size_t i, const PlanStageTime *like) {
    size_t v = p->l->chunks, n = v * p->m;
    PlanStageTime s = { .chunk = host_alloc(v * sizeof(PlanChunk)),
                        .list = v > 1 ? schedule_interleaved(p->l->n.pp, p->m, v, i)
                                      : schedule_1f1b(p->l->n.pp, p->m, i) };
    s.near[0] = plan_stages_near(p, i, (i + p->l->n.pp - 1) % p->l->n.pp);
    s.near[1] = plan_stages_near(p, i, (i + 1) % p->l->n.pp);
    s.copied = like != NULL;
    if (like) memcpy(s.chunk, like->chunk, v * sizeof *s.chunk);
    for (size_t k = 0; k < v && !like; k++) {
        PlanChunk *c = &s.chunk[k];
        c->stage = plan_chunk(p->t, p->l, p->d, i, k);
        if (p->layered) plan_layer_slices(p, c);
        const size_t sizes = p->sequences % p->m ? 2 : 1; // how many sizes micro-batches have
        for (size_t small = 0; small < sizes && p->large >= small; small++) {
            size_t B = p->large - small;
            for (int what = 0; what < 2; what++) {
                c->op[what][small] = plan_op(p->t, p->l, &c->stage, what == FORWARDS, B);
                if (p->layered || p->ring > 1) plan_layer_times(p, c, what == FORWARDS, small, B);
            }
            c->held[small] = plan_in_flight(p->t, p->l, &c->stage.z, B, false);
            c->working[small] = plan_in_flight(p->t, p->l, &c->stage.z, B, true);
        }
    }
    for (int what = 0; what < 2; what++) {
        s.arrives[what] = host_alloc(n * sizeof(double));
        for (size_t k = 0; k < n; k++) s.arrives[what][k] = -1;
        s.sent_early[what] = host_alloc(n * p->ring * sizeof(double));
    }
    s.early = host_alloc(p->ring * sizeof(double));
    s.at = host_alloc(p->ring * sizeof(double));
    if (p->layered) plan_overlap_begin(p, &s, i);
    return s;
}
static void stage_free(PlanStageTime *s, size_t chunks) {
    schedule_free(&s->list);
    plan_overlap_free(s);
    for (size_t k = 0; k < chunks && !s->copied; k++) plan_layers_free(&s->chunk[k]);
    free(s->early);
    free(s->at);
    free(s->sent_early[0]);
    free(s->sent_early[1]);
    free(s->chunk);
    free(s->arrives[0]);
    free(s->arrives[1]);
}

static void count_memory(PlanStageTime *s, const PlanChunk *c, bool forward, size_t small) {
    double others = s->held - (forward ? 0 : c->held[small]);
    s->peak = fmax(s->peak, others + c->working[small]);
    s->held = others + (forward ? c->held[small] : 0);
}

// Returns the time of an op, from the moment when its last rank can begin until its last rank ends.
// Unequal ranks of cp begin at different times.
// senders[r]: the time by which the message of rank r came before the last message.
static double op_takes(const PlanPlayer *p, PlanStageTime *s, const PlanChunk *c, PipeOp op,
                       double arrival, const double *senders) {
    int what = op.what == FORWARD ? FORWARDS : BACKWARDS;
    size_t B = sequences_of(p, op.micro_batch), small = B != p->large, n = p->ring;
    double begin = fmax(s->now, arrival);
    if (n == 1 && !p->layered) return plan_op_time(&c->op[what][small]);
    double *at = s->at, end = 0;
    for (size_t r = 0; r < n; r++)
        at[r] = fmax(s->now - s->early[r], senders ? arrival - senders[r] : arrival);
    plan_play_layers(p, s, op, small, at);
    for (size_t r = 0; r < n; r++) end = fmax(end, at[r]);
    for (size_t r = 0; r < n; r++)
        s->early[r] = s->sent_early[what][(op.chunk * p->m + op.micro_batch) * n + r] = end - at[r];
    return end - begin;
}

// Plays the next op of stage i. Returns false if the stage has no further op, or if the op's
// message has not been sent.
static bool play_op(PlanPlayer *p, size_t i) {
    PlanStageTime *s = &p->stage[i];
    if (s->done == s->list.n) return false;
    PipeOp op = s->list.ops[s->done];
    size_t pp = p->l->n.pp, B = sequences_of(p, op.micro_batch), small = B != p->large, slot;
    int what = op.what == FORWARD ? FORWARDS : BACKWARDS;
    const PlanChunk *c = &s->chunk[op.chunk];
    StageOp other;
    PlanOp gather = { 0 };
    double arrival = 0, *senders = NULL;
    if (pipe_op_needs(op, i, pp, p->l->chunks, &other) && other.stage != i) {
        slot = other.op.chunk * p->m + op.micro_batch;
        arrival = p->stage[other.stage].arrives[what][slot];
        senders = &p->stage[other.stage].sent_early[what][slot * p->ring];
        gather = message_gather(p, &c->stage, B);
    }
    if (arrival < 0) return false;
    double alone = op_takes(p, s, c, op, arrival, senders), takes = alone + gather.tp;
    slot = op.chunk * p->m + op.micro_batch;
    // EXERCISE 08.02a (4 points): play a pipeline's op. Its input arrives at time `arrival`. The op
    // takes `takes`. Add `takes` to s->busy, and set s->now to the op's end. If pipe_op_feeds says
    // that another stage needs the result, send a message of B sequences (plan_message_bytes) on
    // s->lane[on]; on is 1 to the next stage, 0 to the previous one. The message leaves when the op
    // has ended and the lane is free, and takes plan_message_time on the link near[on]. Set
    // s->arrives[what][slot] to its arrival; without a message, to the end of the op.
    s->now = fmax(s->now, arrival) + takes;
    s->busy += takes;
    s->arrives[what][slot] = s->now;
    if (pipe_op_feeds(op, i, pp, p->l->chunks, &other) && other.stage != i) {
        size_t on = other.stage == (i + 1) % pp;
        double message = plan_message_time(p->t, s->near[on], (double)plan_message_bytes(p, B));
        s->arrives[what][slot] = s->lane[on] = fmax(s->now, s->lane[on]) + message;
    }
    // END
    if (!p->t->how.overlap.pp) s->now = fmax(s->now, s->arrives[what][slot]);
    plan_op_add(&s->sum, gather, 1);
    plan_op_add(&s->sum, c->op[what][small], 1);
    // `alone` minus the sum of the op's parts is the additional time of unequal ranks of cp, minus
    // the time that layers hide. For equal ranks without hidden communication this difference is 0.
    *(p->layered ? &s->sum.dp : &s->sum.cp) += alone - plan_op_time(&c->op[what][small]);
    count_memory(s, c, op.what == FORWARD, small);
    s->done++;
    return true;
}

// Returns an earlier stage whose ops take the same times as those of stage i, or NULL. Two inner
// stages have the same times if they have the same numbers of blocks and begin at the same place in
// a node.
static const PlanStageTime *stage_like(const PlanPlayer *p, size_t i) {
    const PlanLayout *l = p->l;
    size_t pp = l->n.pp, place = plan_rank(l, 0, 0, 0, i), node = p->t->cluster.node;
    if (p->ring > 1 || i + 1 == pp) return NULL;
    for (size_t k = i; k-- > 1;) {
        bool as_many = true;
        for (size_t c = 0; c < l->chunks; c++)
            as_many = as_many && plan_part_blocks(p->t, l, c * pp + i) ==
                                     plan_part_blocks(p->t, l, c * pp + k);
        if (as_many && (plan_alike(p->t, l) || (place - plan_rank(l, 0, 0, 0, k)) % node == 0))
            return &p->stage[k];
    }
    return NULL;
}

static void play(PlanPlayer *p) {
    size_t pp = p->l->n.pp, ring = plan_ring_players(p->t, p->l), layers = p->t->model.model.layers;
    p->layered = plan_is_layered(p->t, p->l);
    if (!p->twin) p->ring = ring * ring * p->m * layers > MOST_STEPS ? 1 : ring;
    p->large = ceil_div(p->sequences, p->m);
    p->stage = host_alloc(pp * sizeof *p->stage);
    for (size_t i = 0; i < pp; i++) {
        p->stage[i] = stage_new(p, i, p->twin ? &p->twin[i] : stage_like(p, i));
        if (p->l->zero == 3) { // the tables are gathered once, before all units
            PlanStage s = plan_stage(p->t, p->l, p->d, i);
            PlanOp table = plan_gather(p->t, p->l, &s);
            p->stage[i].now = p->stage[i].busy = table.dp;
            for (size_t k = 0; k < p->stage[i].dp_lanes; k++)
                p->stage[i].dp_lane[k].free = table.dp;
            plan_op_add(&p->stage[i].sum, table, 1);
        }
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < pp; i++)
            while (play_op(p, i)) moved = true;
    }
}
void plan_player_free(PlanPlayer *p) {
    for (size_t i = 0; i < p->l->n.pp; i++) stage_free(&p->stage[i], p->l->chunks);
    free(p->stage);
}

// If the replica has many equal micro-batches, the function plays the schedule with `few`
// micro-batches and with `few` - pp micro-batches. The difference of the two times is the time of
// pp further micro-batches.
void plan_play_replica(PlanPlayer *p) {
    size_t m = p->m, pp = p->l->n.pp;
    if (m <= (PLAYED + 1) * pp || m * pp * p->l->chunks <= MOST_OPS || p->sequences % m) {
        play(p);
        return;
    }
    size_t each = p->sequences / m, few = PLAYED * pp + m % pp;
    PlanPlayer less = *p;
    p->m = few;
    p->sequences = few * each;
    less.m = few - pp;
    less.sequences = less.m * each;
    play(p);
    less.twin = p->stage;
    less.ring = p->ring;
    play(&less);
    // All stages take the time of the slowest stage. A stage takes at least the time of its own
    // ops.
    double times = (double)((m - few) / pp), pace = 0;
    for (size_t i = 0; i < pp; i++) {
        const PlanStageTime *s = &p->stage[i], *one = &less.stage[i];
        pace = fmax(pace, fmax(s->now - one->now, s->busy - one->busy));
    }
    for (size_t i = 0; i < pp; i++) {
        PlanStageTime *s = &p->stage[i], *one = &less.stage[i];
        PlanOp before = s->sum;
        s->now += times * pace;
        s->busy += times * (s->busy - one->busy);
        for (size_t k = 0; k < s->dp_lanes; k++)
            s->dp_lane[k].free += times * (s->dp_lane[k].free - one->dp_lane[k].free);
        s->reduced += times * (s->reduced - one->reduced);
        plan_op_add(&s->sum, before, times);
        plan_op_add(&s->sum, one->sum, -times);
    }
    plan_player_free(&less);
    p->m = m;
}
