// test_search.c: compares the bounds of plan_bound.c with the steps and the memory of the layouts
// that the player plays. Also compares a search that prunes by these bounds with a search of all
// layouts.
#include <string.h>
#include "08_3d/plan.h"
#include "tap.h"

// The fields of a case:
//   zero   the stage of ZeRO; with -1 the search chooses the stage
//   tight  on average the bound of a step must be at least this part of the step
//   exact  in at least this part of the layouts the bound of the memory must equal the memory
// With a vision tower the first chunk of stage 0 keeps more than its other chunks. The peak then
// may come later than plan_bound.c assumes, so `exact` is smaller.
static const struct {
    const char *model, *cluster, *format;
    size_t gpus, batch, node;
    double memory;
    bool plain, waits; // plain: attention keeps scores; waits: only messages of pp overlap
    int zero;
    double tight, exact;
} tasks[] = {
    { "llama2-7b", "dgx-a100", "bf16", 16, 0, 8, 80e9, false, false, -1, 0.95, 0.9 },
    { "ptdp-3.6b", "dgx-a100", "bf16", 24, 0, 3, 80e9, false, false, -1, 0.8, 0.9 },
    { "ptdp-1.7b", "dgx-a100", "bf16", 48, 96, 5, 80e9, false, true, 3, 0.5, 0.9 },
    { "llama3-8b", "dgx-h100", "bf16", 32, 128, 8, 80e9, false, false, -1, 0.95, 0.9 },
    { "ptdp-1.7b", "dgx-a100", "mixed", 32, 128, 8, 40e9, false, false, 3, 0.85, 0.9 },
    { "ptdp-1.7b", "dgx-a100", "mixed", 24, 48, 6, 40e9, false, true, 2, 0.8, 0.9 },
    { "llama2-7b", "dgx-a100-40", "fp32", 32, 0, 8, 40e9, true, false, -1, 0.95, 0.9 },
    { "llama2-13b", "dgx-a100", "bf16", 4, 64, 8, 30e9, false, false, -1, 0.95, 0.9 },
    { "qwen2vl-7b", "dgx-a100", "bf16", 16, 64, 8, 80e9, false, false, -1, 0.9, 0.5 },
};
enum { TASKS = sizeof tasks / sizeof *tasks };

static const void *named(const void *first, size_t size, const char *name) {
    const char *p = first;
    while (strcmp(*(const char *const *)(const void *)p, name) != 0) p += size;
    return p;
}
static PlanTask task(size_t i) {
    PlanTask t = {
        .model = *(const PlanModel *)named(plan_models, sizeof *plan_models, tasks[i].model),
        .cluster =
            *(const PlanCluster *)named(plan_clusters, sizeof *plan_clusters, tasks[i].cluster),
        .format = *plan_format(tasks[i].format),
        .gpus = tasks[i].gpus,
        .blockwise = !tasks[i].plain,
    };
    if (tasks[i].batch) t.model.batch = tasks[i].batch;
    t.cluster.node = tasks[i].node;
    t.cluster.memory = tasks[i].memory;
    t.how = plan_how(&t.cluster);
    if (tasks[i].waits) t.how = (PlanHow){ .overlap = { .pp = true } };
    return t;
}

// ---------------------------------------------------------------- the bounds

static double memory_of(const PlanResult *r) { return plan_memory_sum(&r->fullest); }
static void bounds(const PlanTask *t, const PlanList *all, double tight, double exact,
                   const char *name) {
    const double rounding = 1 + 1e-9;
    size_t short_steps = 0, small = 0, equal = 0;
    double sum = 0;
    for (size_t i = 0; i < all->n; i++) {
        const PlanResult *r = &all->result[i];
        const PlanBound b = plan_bound(t, &r->layout);
        short_steps += b.step <= rounding * r->step;
        small += b.memory <= rounding * memory_of(r);
        equal += b.memory * rounding >= memory_of(r);
        sum += b.step / r->step;
    }
    ok(short_steps == all->n, "%s: no bound of the step is longer than the step (%zu of %zu)", name,
       short_steps, all->n);
    ok(small == all->n, "%s: no bound of the memory is larger than the memory (%zu of %zu)", name,
       small, all->n);
    double mean = sum / (double)all->n;
    ok(mean >= tight, "%s: a bound is on average %.3f of the step, at least %g", name, mean, tight);
    ok((double)equal >= exact * (double)all->n, "%s: the bound is the memory in %zu of %zu layouts",
       name, equal, all->n);
}

// ---------------------------------------------------------------- the search

static bool same_mesh(const PlanLayout *a, const PlanLayout *b) {
    return a->n.tp == b->n.tp && a->n.pp == b->n.pp && mesh_cp(a->n) == mesh_cp(b->n);
}
static bool same_layout(const PlanLayout *a, const PlanLayout *b) {
    return same_mesh(a, b) && a->micro_batch == b->micro_batch && a->chunks == b->chunks &&
           a->zero == b->zero && a->sequence == b->sequence && a->recompute == b->recompute &&
           a->balanced == b->balanced;
}
// Returns the first result with this mesh and with b sequences per micro-batch, or with any number
// if b = 0.
static const PlanResult *first_of(const PlanList *list, const PlanLayout *mesh, size_t b) {
    for (size_t i = 0; i < list->n; i++) {
        const PlanLayout *l = &list->result[i].layout;
        if (same_mesh(l, mesh) && (b == 0 || l->micro_batch == b)) return &list->result[i];
    }
    return NULL;
}
static bool same_result(const PlanResult *a, const PlanResult *b) {
    return a && b && same_layout(&a->layout, &b->layout) && a->step == b->step &&
           memory_of(a) == memory_of(b) && a->fits == b->fits;
}
static void searches(const PlanTask *t, const PlanList *all, const PlanFixed *fixed,
                     const char *name) {
    PlanList pruned = plan_search(NULL, t, fixed, true);
    size_t meshes = 0, same = 0;
    for (size_t i = 0; i < all->n; i++) {
        const PlanResult *r = &all->result[i];
        if (first_of(all, &r->layout, 0) != r) continue;
        meshes++;
        same += same_result(r, first_of(&pruned, &r->layout, 0));
    }
    ok(meshes > 2 && same == meshes, "%s: the same best layout of a mesh (%zu of %zu)", name, same,
       meshes);
    const PlanLayout *best = &all->result[0].layout;
    const PlanResult *twice = first_of(all, best, 2 * best->micro_batch);
    ok(!all->result[0].fits || !twice || !twice->fits ||
           same_result(twice, first_of(&pruned, best, 2 * best->micro_batch)),
       "%s: the same best layout with twice the sequences", name);
    ok(pruned.tried == all->n && pruned.n < all->n / 3 * 2, "%s: of %zu layouts %zu are played",
       name, all->n, pruned.n);
    plan_list_free(&pruned);
}

int main(void) {
    bool some_fit = false, none_fits = false;
    for (size_t i = 0; i < TASKS; i++) {
        const PlanTask t = task(i);
        const PlanFixed fixed = { .zero = tasks[i].zero, .sequence = -1, .recompute = -1 };
        PlanList all = plan_search(NULL, &t, &fixed, false);
        char name[100];
        snprintf(name, sizeof name, "%s on %zu GPUs", tasks[i].model, t.gpus);
        some_fit |= all.feasible > 0;
        none_fits |= all.feasible == 0;
        bounds(&t, &all, tasks[i].tight, tasks[i].exact, name);
        searches(&t, &all, &fixed, name);
        plan_list_free(&all);
    }
    ok(some_fit && none_fits, "in some searches layouts fit, in one search none fits");
    return tap_end();
}
