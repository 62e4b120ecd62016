// plan_divide.c says why a search has found no layout. In most cases the number of GPUs, heads or
// sequences does not divide into equal parts.
#include <stdio.h>
#include "08_3d/plan.h"

// A quantity that one degree of the mesh cuts into parts.
// fixed 0: the search may choose this degree.
// any: the parts need not be equal, so the degree may be any number up to `count`. Otherwise the
// degree must divide `count`.
typedef struct {
    const char *option, *what;
    size_t fixed, count;
    bool any;
} Cut;
enum { CUTS = 4 };

// Returns the largest power of `prime` that divides n.
static size_t power_in(size_t prime, size_t n) {
    size_t power = 1;
    for (; n > 0 && n % prime == 0; n /= prime) power *= prime;
    return power;
}
// Returns the largest power of `prime` that is at most n.
static size_t power_below(size_t prime, size_t n) {
    size_t power = 1;
    while (power * prime <= n) power *= prime;
    return power;
}
// Returns the largest power of `prime` that all free degrees together can take.
static size_t power_taken(const Cut *cut, size_t prime) {
    size_t taken = 1;
    for (size_t i = 0; i < CUTS; i++)
        if (!cut[i].fixed)
            taken *= cut[i].any ? power_below(prime, cut[i].count) : power_in(prime, cut[i].count);
    return taken;
}
// Returns a prime whose power in n is more than the free degrees can take, or 0.
static size_t missing_prime(const Cut *cut, size_t n) {
    for (size_t prime = 2; n > 1; prime++) {
        size_t power = power_in(prime, n);
        if (power_taken(cut, prime) < power) return prime;
        n /= power;
    }
    return 0;
}

// Returns the least --pp. --pp must take every factor of n that no other free degree can take.
static size_t least_stages(const Cut *cut, size_t n) {
    size_t stages = 1;
    for (size_t prime = 2; n > 1; prime++) {
        const size_t power = power_in(prime, n);
        size_t others = 1;
        for (size_t i = 0; i < CUTS; i++)
            if (!cut[i].fixed && !cut[i].any) others *= power_in(prime, cut[i].count);
        n /= power;
        for (size_t left = power; left > others; left /= prime) stages *= prime;
    }
    return stages;
}

// Writes a reason such as "7 GPUs need the factor 7 in 96 heads (--tp), ...: none of them divides
// by 7".
static void say_missing(const Cut *cut, const PlanTask *t, size_t rest, size_t prime, char *why,
                        size_t room) {
    size_t taken = power_taken(cut, prime);
    const char *given = rest == t->gpus ? "" : ", with the degrees that are given,", *comma = "";
    size_t n = (size_t)snprintf(why, room, "%zu GPUs%s need the factor %zu in ", t->gpus, given,
                                power_in(prime, rest));
    for (size_t i = 0; i < CUTS && n < room; i++) {
        if (cut[i].fixed) continue;
        n += (size_t)snprintf(why + n, room - n, "%s%s%zu %s (--%s)", comma,
                              cut[i].any ? "up to " : "", cut[i].count, cut[i].what, cut[i].option);
        comma = ", ";
    }
    if (n >= room) return;
    if (taken == 1) snprintf(why + n, room - n, ": none of them divides by %zu", prime);
    else snprintf(why + n, room - n, ": together they have the factor %zu", taken);
}

void plan_why_none(const PlanTask *t, const PlanFixed *f, char *why, size_t room) {
    const ModelConfig *m = &t->model.model;
    // Each rank of cp has two chunks.
    size_t pairs = m->context % 2 == 0 ? m->context / 2 : 1;
    const Cut cut[CUTS] = { { "tp", config_head_ratio(m) > 1 ? "heads of key and value" : "heads",
                              f->tp, config_kv_heads(m), false },
                            { "pp", "blocks", f->pp, m->layers, true },
                            { "dp", "sequences", f->dp, t->model.batch, false },
                            { "cp", "pairs of positions", f->cp, f->cp || t->blockwise ? pairs : 1,
                              false } };
    size_t rest = t->gpus;
    for (size_t i = 0; i < CUTS; i++) {
        if (cut[i].fixed == 0) continue;
        if (cut[i].any && cut[i].fixed > cut[i].count) {
            snprintf(why, room, "--%s %zu: there are %zu %s", cut[i].option, cut[i].fixed,
                     cut[i].count, cut[i].what);
            return;
        }
        if (!cut[i].any && cut[i].count % cut[i].fixed) {
            snprintf(why, room, "%zu %s do not divide by --%s %zu", cut[i].count, cut[i].what,
                     cut[i].option, cut[i].fixed);
            return;
        }
        if (rest % cut[i].fixed) {
            snprintf(
                why, room,
                "%zu GPUs do not divide by the degrees that are given, --%s %zu and the previous "
                "ones",
                t->gpus, cut[i].option, cut[i].fixed);
            return;
        }
        rest /= cut[i].fixed;
    }
    size_t prime = missing_prime(cut, rest);
    if (f->tp && f->pp && f->dp && f->cp && rest > 1)
        snprintf(why, room, "--dp x --tp x --pp x --cp is %zu, and there are %zu GPUs",
                 t->gpus / rest, t->gpus);
    else if (prime) say_missing(cut, t, rest, prime, why, room);
    else if (!f->pp && least_stages(cut, rest) > m->layers)
        snprintf(
            why, room,
            "%zu GPUs need --pp %zu, because the other free degrees cannot take its factors, and "
            "there are %zu blocks",
            t->gpus, least_stages(cut, rest), m->layers);
    else if (f->micro_batch)
        snprintf(why, room,
                 "--micro-batch %zu: the search tries 1, 2, 4 and 8, if the number divides a "
                 "replica's sequences",
                 f->micro_batch);
    else if (f->chunks)
        snprintf(
            why, room,
            "--chunks %zu: with --pp above 1 the search tries the numbers that divide the blocks "
            "of the largest stage, if pp divides a replica's micro-batches",
            f->chunks);
    else
        snprintf(why, room,
                 "--tp up to %d is tried, and --cp up to %d where a chunk has %d positions",
                 PLAN_MOST_TP, PLAN_MOST_CP, PLAN_LEAST_CHUNK);
}
