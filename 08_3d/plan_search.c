// plan_search.c: tries every layout of a task, finds the fastest that fits, and says why.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/plan.h"

enum { MOST_MICRO_BATCH = 8, ZERO_STAGES = 4 };

typedef struct {
    PlanList list;
    size_t room;
    const PlanTask *t;
    const PlanFixed *fixed;
    bool prune;
    double best; // the shortest step so far that fits in this mesh with this micro-batch
} Search;

static bool may(size_t fixed, size_t value) { return fixed == 0 || fixed == value; }
static bool may_be(int fixed, int value) { return fixed < 0 || fixed == value; }

// A step is at least as long as the last stage computes: no schedule hides a stage's own work.
static double least_step(const PlanTask *t, const PlanLayout *l) {
    double ops = 0;
    for (size_t k = 0; k < l->chunks; k++) {
        PlanStage chunk = plan_chunk(t, l, 0, l->n.pp - 1, k);
        for (int forward = 0; forward < 2; forward++) {
            PlanOp op = plan_op(t, l, &chunk, forward, l->micro_batch);
            ops += plan_op_time(&op);
        }
    }
    return (double)plan_micro_batches(t, l) * ops;
}

static void try_layout(Search *s, PlanLayout l) {
    s->list.tried++;
    if (s->prune && least_step(s->t, &l) > s->best) return;
    if (s->list.n == s->room) {
        s->room = s->room ? 2 * s->room : 1024;
        s->list.result = realloc(s->list.result, s->room * sizeof *s->list.result);
        if (!s->list.result) fault("out of memory for %zu layouts", s->room);
    }
    PlanResult *r = &s->list.result[s->list.n++];
    *r = plan_layout(s->t, &l);
    if (r->fits) s->best = fmin(s->best, r->step);
}
// Tries one mesh, micro-batch and number of chunks with every ZeRO stage, recomputation and
// sequence parallelism that makes a difference.
static void try_memory(Search *s, PlanLayout l) {
    const PlanFixed *f = s->fixed;
    for (size_t zero = 0; zero < ZERO_STAGES; zero++)
        for (int sequence = 0; sequence < 2; sequence++)
            for (size_t r = 0; r < RECOMPUTE_CHOICES; r++) {
                if (!may_be(f->zero, (int)zero) || !may_be(f->sequence, sequence)) continue;
                if (!may_be(f->recompute, (int)r)) continue;
                if ((zero && plan_replicas(&l) == 1 && f->zero < 0) || (sequence && l.n.tp == 1))
                    continue;
                // Attention in blocks keeps no scores, so selective recomputation drops nothing.
                if (plan_in_blocks(s->t, &l) && r == RECOMPUTE_SELECTIVE && f->recompute < 0)
                    continue;
                l.zero = zero;
                l.sequence = sequence;
                l.recompute = (Recompute)r;
                try_layout(s, l);
            }
}
bool plan_possible(const PlanTask *t, const PlanLayout *l, char *why, size_t room) {
    const ModelConfig *m = &t->model.model;
    Degrees n = l->n;
    size_t cp = mesh_cp(n), ranks = n.dp * n.tp * n.pp * cp,
           micro_batches = plan_micro_batches(t, l);
    if (ranks != t->gpus)
        snprintf(why, room, "its product is %zu, and there are %zu GPUs (--gpus)", ranks, t->gpus);
    else if (n.tp > config_kv_heads(m) && config_head_ratio(m) > 1)
        snprintf(why, room,
                 "the model has %zu heads of key and value, so tp is at most %zu: choose less, or "
                 "more --kv-heads",
                 config_kv_heads(m), config_kv_heads(m));
    else if (n.tp > m->heads || n.pp * l->chunks > m->layers || n.dp > t->model.batch)
        snprintf(why, room,
                 "the model has %zu heads and %zu blocks, and a step %zu sequences: choose less",
                 m->heads, m->layers, t->model.batch);
    else if (cp > m->context)
        snprintf(why, room,
                 "a sequence has %zu positions for %zu context-parallel ranks: choose less",
                 m->context, cp);
    else if (l->chunks > 1 && (n.pp == 1 || micro_batches % n.pp))
        snprintf(why, room,
                 "--chunks %zu needs --pp above 1, and micro-batches in groups of pp %zu; there "
                 "are %zu",
                 l->chunks, n.pp, micro_batches);
    else return true;
    return false;
}
// Tries a mesh only if all parts are equal: heads of key and value over tp, positions over 2 cp
// chunks, blocks over the chunks of all stages, sequences over dp and micro-batches. Without --cp,
// cp is 1 with plain attention, because a ring keeps no scores and would win by that alone, and a
// chunk has at least PLAN_LEAST_CHUNK positions.
static void try_mesh(Search *s, Degrees n) {
    const ModelConfig *m = &s->t->model.model;
    size_t batch = s->t->model.batch;
    if (config_kv_heads(m) % n.tp || m->layers % n.pp || batch % n.dp) return;
    size_t chunk = m->context / (2 * n.cp);
    bool may_cut = s->fixed->cp || (s->t->blockwise && chunk >= PLAN_LEAST_CHUNK);
    if (n.cp > 1 && (m->context % (2 * n.cp) || !may_cut)) return;
    for (size_t b = 1; b <= MOST_MICRO_BATCH; b *= 2) {
        s->best = INFINITY;
        for (size_t v = 1; v <= m->layers / n.pp; v++) {
            size_t sequences = batch / n.dp, micro_batches = sequences / b;
            if (!may(s->fixed->micro_batch, b) || !may(s->fixed->chunks, v) || sequences % b)
                continue;
            if (v > 1 && (n.pp == 1 || m->layers % (n.pp * v) || micro_batches % n.pp || v > 4))
                continue;
            try_memory(s, (PlanLayout){ .n = n, .micro_batch = b, .chunks = v });
        }
    }
}

// The order of the list: layouts that fit, by time; then the others, by memory; equal ones in the
// order of the search.
static int searched_first(const PlanLayout *x, const PlanLayout *y) {
    const size_t p[] = { x->n.tp,   x->n.pp, mesh_cp(x->n), x->micro_batch,
                         x->chunks, x->zero, x->sequence,   x->recompute };
    const size_t q[] = { y->n.tp,   y->n.pp, mesh_cp(y->n), y->micro_batch,
                         y->chunks, y->zero, y->sequence,   y->recompute };
    size_t i = 0;
    while (i + 1 < sizeof p / sizeof *p && p[i] == q[i]) i++;
    return (p[i] > q[i]) - (p[i] < q[i]);
}
static int best_first(const void *a, const void *b) {
    const PlanResult *x = a, *y = b;
    if (x->fits != y->fits) return y->fits - x->fits;
    double p = x->fits ? x->step : plan_memory_sum(&x->fullest),
           q = x->fits ? y->step : plan_memory_sum(&y->fullest);
    if (p == q) {
        p = plan_memory_sum(&x->fullest);
        q = plan_memory_sum(&y->fullest);
    }
    return p == q ? searched_first(&x->layout, &y->layout) : (p > q) - (p < q);
}

// The meshes of all GPUs, in the order of the search. Returns their number. n: room for all of
// them, or NULL: they are only counted.
static size_t meshes(const PlanTask *t, const PlanFixed *fixed, Degrees *n) {
    const size_t heads = config_kv_heads(&t->model.model);
    const size_t most = heads < PLAN_MOST_TP ? heads : PLAN_MOST_TP;
    size_t count = 0;
    for (size_t tp = 1; tp <= most; tp++)
        for (size_t pp = 1; pp <= t->model.model.layers && tp * pp <= t->gpus; pp++)
            for (size_t cp = 1; cp <= PLAN_MOST_CP && tp * pp * cp <= t->gpus; cp++) {
                size_t dp = t->gpus / (tp * pp * cp);
                if (t->gpus % (tp * pp * cp) || !may(fixed->dp, dp) || !may(fixed->cp, cp))
                    continue;
                if (!may(fixed->tp, tp) || !may(fixed->pp, pp)) continue;
                if (n) n[count] = (Degrees){ .dp = dp, .tp = tp, .pp = pp, .cp = cp };
                count++;
            }
    return count;
}

PlanList plan_search(Run *run, const PlanTask *t, const PlanFixed *fixed, bool prune) {
    Search s = { .t = t, .fixed = fixed, .prune = prune };
    size_t count = meshes(t, fixed, NULL);
    Degrees *n = host_alloc(count * sizeof *n);
    meshes(t, fixed, n);
    for (size_t i = 0; i < count; i++) {
        if (run) progress(run, "meshes dp x tp x pp x cp:", i, count);
        try_mesh(&s, n[i]);
    }
    if (run) progress(run, "meshes dp x tp x pp x cp:", count, count);
    free(n);
    if (s.list.n) qsort(s.list.result, s.list.n, sizeof *s.list.result, best_first);
    while (s.list.feasible < s.list.n && s.list.result[s.list.feasible].fits) s.list.feasible++;
    return s.list;
}
void plan_list_free(PlanList *list) {
    free(list->result);
    *list = (PlanList){ 0 };
}

// ---------------------------------------------------------------- why

static const PlanResult *best_with(const PlanList *list, size_t tp, size_t pp, size_t cp,
                                   size_t b) {
    for (size_t i = 0; i < list->feasible; i++) {
        const PlanLayout *l = &list->result[i].layout;
        if (may(tp, l->n.tp) && may(pp, l->n.pp) && may(cp, mesh_cp(l->n)) &&
            may(b, l->micro_batch))
            return &list->result[i];
    }
    return NULL;
}
// Where the other layout spends most of its additional time.
static const char *cause(const PlanResult *best, const PlanResult *other) {
    const double more[] = { other->computing - best->computing,
                            other->tp - best->tp,
                            other->cp - best->cp,
                            other->dp - best->dp,
                            other->end - best->end,
                            other->idle - best->idle };
    static const char *const name[] = { "computing",          "tensor-parallel sums",
                                        "waits for the ring", "ZeRO's gathers",
                                        "the sum over dp",    "the bubble" };
    size_t most = 0;
    for (size_t i = 1; i < sizeof more / sizeof *more; i++) most = more[i] > more[most] ? i : most;
    return name[most];
}
size_t plan_alternatives(const PlanList *list, PlanAlternative found[PLAN_ALTERNATIVES]) {
    if (list->feasible == 0) return 0;
    const PlanResult *best = &list->result[0];
    const PlanLayout *l = &best->layout;
    const size_t tp = l->n.tp, pp = l->n.pp, cp = mesh_cp(l->n), b = l->micro_batch;
    const struct {
        const char *name;
        size_t now, value, tp, pp, cp, b;
    } other[PLAN_ALTERNATIVES] = {
        { "tp", tp, tp / 2, tp / 2, 0, 0, 0 },   { "tp", tp, 2 * tp, 2 * tp, 0, 0, 0 },
        { "pp", pp, pp / 2, tp, pp / 2, 0, 0 },  { "pp", pp, 2 * pp, tp, 2 * pp, 0, 0 },
        { "cp", cp, cp / 2, 0, 0, cp / 2, 0 },   { "cp", cp, 2 * cp, 0, 0, 2 * cp, 0 },
        { "seqs", b, 2 * b, tp, pp, cp, 2 * b },
    };
    size_t n = 0;
    for (size_t i = 0; i < PLAN_ALTERNATIVES; i++) {
        if (other[i].value == 0) continue;
        const PlanResult *o = best_with(list, other[i].tp, other[i].pp, other[i].cp, other[i].b);
        if (!o) continue; // no such layout fits
        found[n] = (PlanAlternative){ .times = o->step / best->step,
                                      .cause = cause(best, o),
                                      .result = o };
        snprintf(found[n].name, sizeof found[n].name, "%s %zu instead of %zu%s", other[i].name,
                 other[i].value, other[i].now, other[i].b ? ", same mesh" : "");
        n++;
    }
    return n;
}
void plan_reason(const PlanTask *t, const PlanList *list, char *text, size_t room) {
    PlanAlternative other[PLAN_ALTERNATIVES];
    if (list->feasible == 0) {
        snprintf(text, room,
                 "Nothing fits: even the layout that needs least memory exceeds %.3g GB.",
                 t->cluster.memory * 1e-9);
        return;
    }
    char name[PLAN_NAME];
    const size_t alternatives = plan_alternatives(list, other);
    size_t n = (size_t)snprintf(text, room, "%s is the fastest that fits",
                                plan_layout_name(name, &list->result[0].layout));
    for (size_t i = 0; i < alternatives && n < room; i++)
        n += (size_t)snprintf(text + n, room - n, "%s %s takes %.3g times as long (%s)",
                              i ? "," : ":", other[i].name, other[i].times, other[i].cause);
    if (n < room) snprintf(text + n, room - n, ".");
}
void plan_limits(const PlanResult *r, const PlanTask *t, char *text, size_t room) {
    size_t most = 0;
    for (size_t i = 1; i < PLAN_MEMORY; i++)
        if (r->fullest.bytes[i] > r->fullest.bytes[most]) most = i;
    snprintf(text, room, "%s %.3g GB, of %.3g GB for all", plan_memory_name[most],
             r->fullest.bytes[most] * 1e-9, t->cluster.memory * 1e-9);
}
