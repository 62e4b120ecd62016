// plan_why.c compares the fastest layout of a search with alternatives, and computes how much
// slower products or links lengthen the step of this layout. If no layout fits, plan_why.c says
// what to try.
#include <math.h>
#include <stdio.h>
#include "08_3d/plan.h"

const char *plan_recompute_name(Recompute r) {
    return r == RECOMPUTE_FULL ? "full" : r == RECOMPUTE_SELECTIVE ? "selective" : "none";
}
const char *plan_layout_name(char text[PLAN_NAME], const PlanLayout *l) {
    char ring[30] = "";
    if (mesh_cp(l->n) > 1) snprintf(ring, sizeof ring, " x cp %zu", l->n.cp);
    snprintf(text, PLAN_NAME, "dp %zu x tp %zu x pp %zu%s", l->n.dp, l->n.tp, l->n.pp, ring);
    return text;
}

static bool may(size_t fixed, size_t value) { return fixed == 0 || fixed == value; }
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
// Returns the name of the part of the step whose time grows most from `best` to `other`.
static const char *cause(const PlanResult *best, const PlanResult *other) {
    const double more[] = { other->computing - best->computing,
                            other->tp - best->tp,
                            other->cp - best->cp,
                            other->dp - best->dp,
                            other->end - best->end,
                            other->idle - best->idle };
    static const char *const name[] = { "computing, busiest stage", "tensor-parallel sums",
                                        "waits for the ring",       "ZeRO's gathers",
                                        "the sum over dp",          "the bubble" };
    size_t most = 0;
    for (size_t i = 1; i < sizeof more / sizeof *more; i++) most = more[i] > more[most] ? i : most;
    return name[most];
}
// Adds the fastest layouts with half and twice the tp, the cp, and, at the same tp, the pp. Also
// adds the fastest layout of the same mesh with twice the sequences per micro-batch. Returns the
// number of added layouts.
static size_t add_degrees(const PlanList *list, PlanAlternative *found) {
    const PlanResult *best = &list->result[0];
    const PlanLayout *l = &best->layout;
    const size_t tp = l->n.tp, pp = l->n.pp, cp = mesh_cp(l->n), b = l->micro_batch;
    const struct {
        const char *name;
        size_t now, value, tp, pp, cp, b;
    } other[] = {
        { "tp", tp, tp / 2, tp / 2, 0, 0, 0 },   { "tp", tp, 2 * tp, 2 * tp, 0, 0, 0 },
        { "pp", pp, pp / 2, tp, pp / 2, 0, 0 },  { "pp", pp, 2 * pp, tp, 2 * pp, 0, 0 },
        { "cp", cp, cp / 2, 0, 0, cp / 2, 0 },   { "cp", cp, 2 * cp, 0, 0, 2 * cp, 0 },
        { "seqs", b, 2 * b, tp, pp, cp, 2 * b },
    };
    size_t n = 0;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        if (other[i].value == 0) continue;
        const PlanResult *o = best_with(list, other[i].tp, other[i].pp, other[i].cp, other[i].b);
        if (!o) continue; // no such layout fits
        const char *same = other[i].b                   ? ", same mesh"
                           : other[i].pp && other[i].tp ? ", same tp"
                                                        : "";
        found[n] = (PlanAlternative){ .times = o->step / best->step,
                                      .cause = cause(best, o),
                                      .detail = other[i].b || other[i].cp > cp,
                                      .result = *o };
        snprintf(found[n].name, sizeof found[n].name, "%s %zu instead of %zu%s", other[i].name,
                 other[i].value, other[i].now, same);
        n++;
    }
    return n;
}
// Adds layout l, the best layout with one choice replaced, if l is possible. Returns the number of
// added layouts.
static size_t add_choice(const PlanTask *t, const PlanResult *best, const PlanLayout *l,
                         PlanAlternative *found, const char *name, bool detail) {
    char why[80];
    if (!plan_possible(t, l, why, sizeof why)) return 0;
    PlanResult o = plan_layout(t, l);
    *found = (PlanAlternative){
        .times = o.step / best->step, .cause = cause(best, &o), .detail = detail, .result = o
    };
    snprintf(found->name, sizeof found->name, "%s", name);
    return 1;
}
size_t plan_alternatives(const PlanTask *t, const PlanList *list,
                         PlanAlternative found[PLAN_ALTERNATIVES]) {
    if (list->feasible == 0) return 0;
    const PlanResult *best = &list->result[0];
    const PlanLayout *l = &best->layout;
    char name[48];
    size_t n = add_degrees(list, found);
    for (size_t zero = 0; zero < 4 && plan_replicas(l) > 1; zero++) {
        PlanLayout o = *l;
        o.zero = zero;
        snprintf(name, sizeof name, "ZeRO %zu, all else as it is", zero);
        if (zero + 1 == l->zero || zero == l->zero + 1)
            n += add_choice(t, best, &o, &found[n], name, zero > l->zero);
    }
    for (size_t i = 0; i < RECOMPUTE_CHOICES; i++) {
        Recompute r = (Recompute)i;
        PlanLayout o = *l;
        o.recompute = r;
        if (r == l->recompute || (r == RECOMPUTE_SELECTIVE && plan_in_blocks(t, l))) continue;
        snprintf(name, sizeof name, "recompute %s, all else as it is", plan_recompute_name(r));
        n += add_choice(t, best, &o, &found[n], name, false);
    }
    if (l->chunks > 1) {
        PlanLayout o = *l;
        o.chunks = 1;
        n += add_choice(t, best, &o, &found[n], "1 chunk, all else as it is", false);
    }
    if (l->n.tp > 1) {
        PlanLayout o = *l;
        o.sequence = !l->sequence;
        n += add_choice(t, best, &o, &found[n],
                        l->sequence ? "no sp, all else as it is" : "sp, all else as it is", false);
    }
    return n;
}
void plan_reason(const PlanTask *t, const PlanList *list, char *text, size_t room) {
    PlanAlternative other[PLAN_ALTERNATIVES];
    if (list->feasible == 0) {
        snprintf(
            text, room,
            "Nothing fits: even the layout that needs least memory exceeds the %.3g usable GB.",
            plan_usable(&t->cluster) * 1e-9);
        return;
    }
    char name[PLAN_NAME];
    const size_t alternatives = plan_alternatives(t, list, other);
    size_t n = (size_t)snprintf(text, room, "%s is the fastest that fits",
                                plan_layout_name(name, &list->result[0].layout));
    for (size_t i = 0, said = 0; i < alternatives && n < room; i++)
        if (other[i].result.fits)
            n +=
                (size_t)snprintf(text + n, room - n, "%s %s takes %.3g times as long (%s)",
                                 said++ ? "," : ":", other[i].name, other[i].times, other[i].cause);
    if (n < room) snprintf(text + n, room - n, ".");
}
void plan_limits(const PlanResult *r, const PlanTask *t, char *text, size_t room) {
    const double *m = r->fullest.bytes, G = 1e-9;
    const double state = m[PLAN_WEIGHTS] + m[PLAN_GRADIENTS] + m[PLAN_OPTIMIZER];
    size_t n = (size_t)snprintf(text, room, "needs %.4g GB, has %.3g: state %.3g, act %.3g",
                                plan_memory_sum(&r->fullest) * G, plan_usable(&t->cluster) * G,
                                state * G, m[PLAN_ACTIVATIONS] * G);
    for (size_t i = PLAN_GATHERED; i < PLAN_MEMORY; i++)
        if (n < room && m[i] > 0.05 * plan_memory_sum(&r->fullest))
            n += (size_t)snprintf(text + n, room - n, ", %s %.3g", plan_memory_name[i], m[i] * G);
    if (n < room) snprintf(text + n, room - n, " GB");
}

// ---------------------------------------------------------------- what slows the layout most

size_t plan_stresses(const PlanTask *t, const PlanResult *best, PlanStress found[PLAN_STRESSES]) {
    const char *name[PLAN_STRESSES] = { "products at 0.9 of their speed",
                                        "links between nodes at half their rate",
                                        "links inside a node at half their rate" };
    for (size_t i = 0; i < PLAN_STRESSES; i++) {
        PlanTask other = *t;
        PlanCluster *c = &other.cluster;
        if (i == 0) c->efficiency *= 0.9;
        if (i == 1) c->between.beta /= 2;
        if (i == 2) c->inside.beta /= 2;
        PlanResult r = plan_layout(&other, &best->layout);
        found[i] = (PlanStress){ name[i], r.step / best->step };
    }
    return PLAN_STRESSES;
}

// Advises more memory, and two changes of the layout that needs least memory. These changes are the
// fewest replicas that fit under ZeRO 3 (2, 4, ... 64 times as many), and the longest sequences
// that fit (1/2, 1/4, ... of the context). The advice changes neither recomputation nor the other
// degrees, because the search has tried these choices.
void plan_try(const PlanTask *t, const PlanResult *least, char *text, size_t room) {
    char name[PLAN_NAME];
    double need = plan_memory_sum(&least->fullest) + t->cluster.reserve;
    size_t n = (size_t)snprintf(text, room, "Try: --memory %.0f,", ceil(need * 1e-9));
    for (size_t times = 2; times <= 64 && n < room; times *= 2) {
        PlanTask more = *t;
        PlanLayout l = least->layout;
        more.gpus *= times;
        l.n.dp *= times;
        l.zero = 3;
        if (l.n.dp > t->model.batch || t->model.batch % l.n.dp) break;
        if (!plan_layout(&more, &l).fits) continue;
        n += (size_t)snprintf(text + n, room - n, " --gpus %zu (%s, ZeRO 3),", more.gpus,
                              plan_layout_name(name, &l));
        break;
    }
    for (size_t T = t->model.model.context / 2; T >= 256 && n < room; T /= 2) {
        PlanTask less = *t;
        less.model.model.context = T;
        if (T % (2 * mesh_cp(least->layout.n)) || !plan_layout(&less, &least->layout).fits)
            continue;
        n += (size_t)snprintf(text + n, room - n, " --context %zu,", T);
        break;
    }
    if (n < room) snprintf(text + n, room - n, " or a smaller model.");
}
