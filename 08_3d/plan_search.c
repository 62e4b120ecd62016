// plan_search.c tries the layouts of a task and finds the fastest that fits.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/plan.h"

enum { MOST_MICRO_BATCH = 8, ZERO_STAGES = 4 };
// A bound adds the same times in another order than the player. So rounding may make the bound a
// little larger than the played time.
static const double ROUNDING = 1 - 1e-9;

// A layout of the present mesh, with its bounds.
typedef struct {
    PlanLayout layout;
    PlanBound bound;
    bool played;
} Candidate;
typedef struct {
    PlanList list;
    size_t room;
    const PlanTask *t;
    const PlanFixed *fixed;
    bool prune;
    Candidate *candidate; // layouts of the present mesh; only if `prune`
    size_t candidates, candidates_room;
} Search;

static bool may(size_t fixed, size_t value) { return fixed == 0 || fixed == value; }
static bool may_be(int fixed, int value) { return fixed < 0 || fixed == value; }

static void *grow(void *list, size_t n, size_t *room, size_t size) {
    if (n < *room) return list;
    *room = *room ? 2 * *room : 1024;
    list = realloc(list, *room * size);
    if (!list) fault("out of memory for %zu layouts", *room);
    return list;
}
static const PlanResult *play_layout(Search *s, const PlanLayout *l) {
    PlanList *list = &s->list;
    list->result = grow(list->result, list->n, &s->room, sizeof *list->result);
    list->result[list->n] = plan_layout(s->t, l);
    return &list->result[list->n++];
}
static void try_layout(Search *s, PlanLayout l) {
    s->list.tried++;
    if (!s->prune) {
        play_layout(s, &l);
        return;
    }
    s->candidate = grow(s->candidate, s->candidates, &s->candidates_room, sizeof *s->candidate);
    s->candidate[s->candidates++] = (Candidate){ l, plan_bound(s->t, &l), false };
}
// Tries one mesh, micro-batch size and number of chunks with every ZeRO stage, with every
// recomputation, and with and without sequence parallelism. Choices that change nothing are left
// out.
static void try_memory(Search *s, PlanLayout l) {
    const PlanFixed *f = s->fixed;
    for (size_t zero = 0; zero < ZERO_STAGES; zero++)
        for (int sequence = 0; sequence < 2; sequence++)
            for (size_t r = 0; r < RECOMPUTE_CHOICES; r++) {
                if (!may_be(f->zero, (int)zero) || !may_be(f->sequence, sequence)) continue;
                if (!may_be(f->recompute, (int)r)) continue;
                // In a pipeline ZeRO 2 and 3 reduce after each micro-batch. DeepSpeed rejects
                // pipelines with ZeRO 2 or 3, so the search tries them only with --zero.
                if (zero > 1 && l.n.pp > 1 && f->zero < 0) continue;
                if ((zero && plan_replicas(&l) == 1 && f->zero < 0) || (sequence && l.n.tp == 1))
                    continue;
                // Blockwise attention keeps no scores, so selective recomputation drops nothing.
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
    else if (n.tp > m->heads || n.pp > m->layers ||
             n.pp * l->chunks > m->layers + (l->balanced ? 2 : 0) || n.dp > t->model.batch)
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
// Returns whether parts of equal cost have other numbers of blocks than the parts of layout l.
static bool differs(const PlanTask *t, PlanLayout l) {
    size_t last = l.n.pp * l.chunks - 1;
    PlanLayout equal = l;
    l.balanced = true;
    return plan_part_blocks(t, &l, last) != plan_part_blocks(t, &equal, last) ||
           plan_part_blocks(t, &l, 0) != plan_part_blocks(t, &equal, 0);
}
// Tries v chunks per stage. If the number of parts divides the blocks, the function tries parts of
// equal blocks. In a pipeline whose largest stage has a multiple of v blocks, the function also
// tries parts of equal cost, if these parts differ.
static void try_chunks(Search *s, Degrees n, size_t b, size_t v) {
    size_t layers = s->t->model.model.layers, micro_batches = s->t->model.batch / n.dp / b;
    PlanLayout l = { .n = n, .micro_batch = b, .chunks = v };
    if (!may(s->fixed->chunks, v) || n.pp * v > layers + 2) return;
    if (v > 1 && (n.pp == 1 || micro_batches % n.pp)) return;
    const bool equal = layers % (n.pp * v) == 0;
    if (equal) try_memory(s, l);
    if (n.pp == 1 || ceil_div(layers, n.pp) % v || (equal && !differs(s->t, l))) return;
    l.balanced = true;
    try_memory(s, l);
}
// Tries a mesh only if the parts are equal: key and value heads over tp, positions over 2 cp
// chunks, sequences over dp and micro-batches. The parts of the blocks may be unequal. If --cp is
// not given, plain attention has only cp 1, because a ring keeps no scores and would win by its
// memory alone. If --cp is not given, a chunk has at least PLAN_LEAST_CHUNK positions.
static void try_mesh(Search *s, Degrees n) {
    const ModelConfig *m = &s->t->model.model;
    size_t batch = s->t->model.batch;
    if (config_kv_heads(m) % n.tp || batch % n.dp) return;
    size_t chunk = m->context / (2 * n.cp);
    bool may_cut = s->fixed->cp || (s->t->blockwise && chunk >= PLAN_LEAST_CHUNK);
    if (n.cp > 1 && (m->context % (2 * n.cp) || !may_cut)) return;
    for (size_t b = 1; b <= MOST_MICRO_BATCH; b *= 2) {
        if (!may(s->fixed->micro_batch, b) || batch / n.dp % b) continue;
        for (size_t v = 1; v <= ceil_div(m->layers, n.pp); v++) try_chunks(s, n, b, v);
    }
}

static int searched_first(const PlanLayout *x, const PlanLayout *y) {
    const size_t p[] = { x->n.tp,     x->n.pp, mesh_cp(x->n), x->micro_batch, x->chunks,
                         x->balanced, x->zero, x->sequence,   x->recompute };
    const size_t q[] = { y->n.tp,     y->n.pp, mesh_cp(y->n), y->micro_batch, y->chunks,
                         y->balanced, y->zero, y->sequence,   y->recompute };
    size_t i = 0;
    while (i + 1 < sizeof p / sizeof *p && p[i] == q[i]) i++;
    return (p[i] > q[i]) - (p[i] < q[i]);
}
// Compares two results by the order of the list. Layouts that fit come first, by time; then layouts
// that do not fit, by memory. If two layouts fit and take equal time, the one with less memory is
// first. Layouts that are equal in this order keep the order of the search.
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

// Writes the meshes of all GPUs to n, in the order of the search. Returns the number of meshes.
// n NULL: the function only counts.
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

static int shortest_first(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    return (x->bound.step > y->bound.step) - (x->bound.step < y->bound.step);
}
static int smallest_first(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    return (x->bound.memory > y->bound.memory) - (x->bound.memory < y->bound.memory);
}
static const PlanResult *play_candidate(Search *s, Candidate *c) {
    c->played = true;
    return play_layout(s, &c->layout);
}
// Plays the candidates with the shortest bounds, until no other candidate can be as fast as the
// fastest layout that fits. If no layout fits, plays the candidates with the least memory, until no
// other candidate can need as little memory.
// fastest: the shortest known step of a layout that fits and competes with the candidates;
// INFINITY: no such step is known.
static void play_candidates(Search *s, double fastest) {
    const double room = plan_usable(&s->t->cluster);
    const size_t n = s->candidates;
    Candidate *c = s->candidate;
    double least = INFINITY;
    s->candidates = 0;
    if (n) qsort(c, n, sizeof *c, shortest_first);
    for (size_t i = 0; i < n && ROUNDING * c[i].bound.step <= fastest; i++) {
        if (ROUNDING * c[i].bound.memory > room) continue;
        const PlanResult *r = play_candidate(s, &c[i]);
        if (r->fits) fastest = fmin(fastest, r->step);
    }
    if (fastest < INFINITY || n == 0) return;
    qsort(c, n, sizeof *c, smallest_first);
    for (size_t i = 0; i < n && ROUNDING * c[i].bound.memory <= least; i++)
        if (!c[i].played) least = fmin(least, plan_memory_sum(&play_candidate(s, &c[i])->fullest));
}
static const PlanResult *listed(const PlanList *list, const PlanLayout *l) {
    for (size_t i = 0; i < list->n; i++)
        if (searched_first(&list->result[i].layout, l) == 0) return &list->result[i];
    return NULL;
}
// On the fastest mesh, plays layouts with twice the sequences per micro-batch, until the fastest of
// these layouts is known. The page compares this layout with the fastest layout of all.
static void play_twice_the_sequences(Search *s) {
    const PlanResult *best = NULL;
    for (size_t i = 0; i < s->list.n; i++)
        if (s->list.result[i].fits && (!best || best_first(&s->list.result[i], best) < 0))
            best = &s->list.result[i];
    if (!best || !may(s->fixed->micro_batch, 2 * best->layout.micro_batch)) return;
    const PlanFixed *fixed = s->fixed;
    PlanFixed twice = *fixed;
    const size_t tried = s->list.tried;
    double fastest = INFINITY;
    size_t left = 0;
    twice.micro_batch = 2 * best->layout.micro_batch;
    s->fixed = &twice;
    try_mesh(s, best->layout.n);
    s->fixed = fixed;
    s->list.tried = tried; // the search has counted these layouts
    for (size_t i = 0; i < s->candidates; i++) {
        const PlanResult *r = listed(&s->list, &s->candidate[i].layout);
        if (!r) s->candidate[left++] = s->candidate[i];
        else if (r->fits) fastest = fmin(fastest, r->step);
    }
    s->candidates = left;
    play_candidates(s, fastest);
}

PlanList plan_search(Run *run, const PlanTask *t, const PlanFixed *fixed, bool prune) {
    Search s = { .t = t, .fixed = fixed, .prune = prune };
    size_t count = meshes(t, fixed, NULL);
    Degrees *n = host_alloc(count * sizeof *n);
    meshes(t, fixed, n);
    for (size_t i = 0; i < count; i++) {
        if (run) progress(run, "meshes dp x tp x pp x cp:", i, count);
        try_mesh(&s, n[i]);
        play_candidates(&s, INFINITY);
    }
    if (run) progress(run, "meshes dp x tp x pp x cp:", count, count);
    free(n);
    if (prune) play_twice_the_sequences(&s);
    if (s.list.n) qsort(s.list.result, s.list.n, sizeof *s.list.result, best_first);
    while (s.list.feasible < s.list.n && s.list.result[s.list.feasible].fits) s.list.feasible++;
    free(s.candidate);
    return s.list;
}
void plan_list_free(PlanList *list) {
    free(list->result);
    *list = (PlanList){ 0 };
}
