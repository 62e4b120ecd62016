// test_plan_time.c: compares the plan's recurrences (08_3d/plan_time.c, plan_op.c, plan_ring.c)
// with the player of expected steps, on random layouts of up to 64 ranks. The player plays the
// steps of every rank (08_3d/experiments/step_time.c), and the plan plays the steps of one rank per
// stage. The two step times must be equal to the picosecond. With many micro-batches the plan plays
// a part of them, and the step times must differ by less than 2 %. If the ranks of a ring have
// unequal numbers of positions, the plan only estimates their waits. Groups are placed on nodes
// alike; tests/plan.t has other groups. TEST_ALL=1 draws 3,000 layouts. TEST_SEED=N draws other
// layouts.
#include <math.h>
#include <stdlib.h>
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "08_3d/experiments/experiments.h"
#include "common/comm/clock.h"
#include "common/tensor/random.h"
#include "tap.h"

enum { MOST_RANKS = 64, LAYOUTS = 300, ALL_LAYOUTS = 3000, LARGE = 16 };

static const double MOST_ERROR = 0.02;
static uint64_t drawn;
static size_t below(size_t n) {
    drawn = random_key(drawn, 1);
    return drawn % n;
}
static size_t up_to(size_t n) { return 1 + below(n); }
static bool one_in(size_t n) { return below(n) == 0; }

// Case is one drawn layout. With `many` the plan plays only a part of its micro-batches.
typedef struct {
    TrainerConfig config;
    ClockConfig clock;
    bool many;
} Case;
static bool divides(size_t a, size_t b) { return a % b == 0 || b % a == 0; }
// Returns whether all groups of one kind are placed on nodes alike, and all links of a ring are
// equal.
static bool alike(Degrees n, size_t node) {
    const size_t ring = n.tp * n.cp, stage = ring * n.dp;
    const bool links = n.cp == 1 || node % ring == 0 || n.tp % node == 0;
    return links && divides(n.tp, node) && divides(ring, node) && divides(stage, node) &&
           divides(stage * n.pp, node);
}
static Degrees draw_mesh(void) {
    static const size_t degree[] = { 1, 1, 2, 2, 3, 4, 8 };
    enum { DEGREES = sizeof degree / sizeof *degree };
    Degrees n;
    do {
        n = (Degrees){ .dp = degree[below(DEGREES)],
                       .tp = degree[below(DEGREES)],
                       .pp = degree[below(DEGREES)],
                       .cp = one_in(3) ? 2 + 2 * below(2) : 1 };
    } while (n.dp * n.tp * n.pp * n.cp > MOST_RANKS);
    return n;
}
// If `unequal`, draws a ring whose ranks have unequal numbers of positions.
static Case draw(bool unequal) {
    Degrees n = draw_mesh();
    while (unequal && n.cp == 1) n = draw_mesh();
    const bool even = !unequal && !one_in(3), llama = one_in(2);
    const size_t v = n.pp > 1 && one_in(3) ? 2 : 1;
    const size_t key_heads = even ? n.tp * up_to(2) : n.tp + below(4), b = up_to(3);
    // If all stages together run more than 1,000 forwards, the plan plays a part of the
    // micro-batches.
    const bool many = n.pp > 2 && n.cp == 1 && one_in(8);
    const size_t m = many ? n.pp * (400 / n.pp + up_to(20)) : v > 1 ? n.pp * up_to(3) : up_to(20);
    Case c = { .many = many };
    ModelConfig *model = &c.config.model;
    *model =
        (ModelConfig){ .layers = n.pp * v * up_to(2) + (even ? 0 : below(3)),
                       .heads = key_heads * (llama ? up_to(3) : 1),
                       .context = n.cp * 2 * n.tp * up_to(4) + (n.cp > 1 || even ? 0 : below(3)),
                       .vocab = even ? n.tp * 32 : 100 };
    if (unequal) model->context += up_to(2 * n.cp - 1);
    model->width = model->heads * 4 * up_to(3);
    if (llama) {
        config_family(model, FAMILY_LLAMA);
        model->kv_heads = key_heads;
        model->ffn = even ? n.tp * up_to(20) : 10 + up_to(30);
        model->untied = one_in(2);
    }
    c.config.mesh = n;
    c.config.micro_batch = b;
    c.config.batch = n.dp * m * b - (even || v > 1 ? 0 : below(n.dp * b));
    c.config.schedule = schedule_1f1b;
    c.config.chunks = v;
    static const Reduction reductions[] = { REDUCE_AT_END, REDUCE_ZERO_1, REDUCE_ZERO_2,
                                            REDUCE_ZERO_3 };
    c.config.reduction = reductions[below(sizeof reductions / sizeof *reductions)];
    c.config.sequence = n.tp > 1 && one_in(2);
    c.config.blockwise = n.cp > 1 || one_in(2);
    c.config.recompute = (Recompute)below(RECOMPUTE_CHOICES);
    // On a slow link messages between stages wait for each other.
    const double slower = !many && one_in(4) ? 100 : 1;
    c.clock = (ClockConfig){ .simulated = true,
                             .device = { .flops = 1e9 },
                             .link = { .alpha = 50e-9, .beta = 400e6 },
                             .between = { .alpha = 250e-9, .beta = 400e6 / 12 / slower },
                             .node = (size_t)4 << below(3),
                             .rails = below(3) };
    if (!alike(n, c.clock.node)) c.clock.node = 0; // one node
    return c;
}

static double planned(const Case *c) {
    const TrainerConfig *f = &c->config;
    const ClockConfig *clock = &c->clock;
    const size_t e = sizeof(real);
    PlanTask t = {
        .model = { .model = f->model, .batch = f->batch },
        .gpus = f->mesh.dp * f->mesh.tp * f->mesh.pp * f->mesh.cp,
        .blockwise = f->blockwise,
        .cluster = { .flops = clock->device.flops,
                     .efficiency = 1,
                     .node = clock->node,
                     .rails = clock->rails,
                     .inside = { clock->link.alpha, clock->link.beta },
                     .between = { clock->between.alpha, clock->between.beta } },
        .format = { .weight = e, .gradient = e, .element = e, .statistic = e, .logit = e },
        .how.overlap.pp = true,
    };
    PlanLayout l = { .n = f->mesh,
                     .micro_batch = f->micro_batch,
                     .chunks = f->chunks,
                     .zero = trainer_zero(f),
                     .sequence = f->sequence,
                     .recompute = f->recompute };
    return plan_layout(&t, &l).step;
}

typedef struct {
    size_t played, rings, chunks, zero[4], sequence, large, full, uneven, many;
} Seen;
static void see(Seen *s, const TrainerConfig *c) {
    const Degrees d = c->mesh;
    s->rings += d.cp > 1;
    s->chunks += c->chunks > 1;
    s->zero[trainer_zero(c)]++;
    s->sequence += c->sequence;
    s->large += d.dp * d.tp * d.pp * d.cp > LARGE;
    s->full += c->recompute == RECOMPUTE_FULL;
    s->uneven += c->model.layers % (d.pp * c->chunks) || c->batch % (d.dp * c->micro_batch) ||
                 config_kv_heads(&c->model) % d.tp;
}
static void show(const Case *c, double plan, double player) {
    const TrainerConfig *f = &c->config;
    printf(
        "# dp %zu tp %zu pp %zu cp %zu chunks %zu batch %zu by %zu, L %zu T %zu heads %zu zero %zu "
        "sp %d recompute %d blockwise %d node %zu rails %zu: plan %.0f, player %.0f\n",
        f->mesh.dp, f->mesh.tp, f->mesh.pp, f->mesh.cp, f->chunks, f->batch, f->micro_batch,
        f->model.layers, f->model.context, f->model.heads, trainer_zero(f), f->sequence,
        (int)f->recompute, f->blockwise, c->clock.node, c->clock.rails, plan, player);
}

// Prints the plan's error for rings of unequal ranks. No limit is checked.
static void rings_of_unequal_ranks(size_t n) {
    double sum = 0, worst = 0;
    for (size_t i = 0; i < n; i++) {
        Case c = draw(true);
        clock_configure(&c.clock);
        const double error = fabs(planned(&c) / step_time(&c.config) - 1);
        sum += error;
        worst = fmax(worst, error);
    }
    printf("# rings of unequal ranks: %zu layouts, mean error %.1f %%, largest %.1f %%\n", n,
           100 * sum / (double)n, 100 * worst);
}

int main(void) {
    const bool all = getenv("TEST_ALL") && *getenv("TEST_ALL");
    const char *seed = getenv("TEST_SEED");
    const size_t n = all ? ALL_LAYOUTS : LAYOUTS;
    size_t exact = 0, near = 0;
    double worst = 0;
    Seen seen = { 0 };
    drawn = seed ? strtoull(seed, NULL, 10) : 1;
    printf("# TEST_SEED=%llu draws these layouts again\n", (unsigned long long)drawn);
    for (size_t i = 0; i < n; i++) {
        Case c = draw(false);
        clock_configure(&c.clock);
        const double plan = planned(&c), player = step_time(&c.config);
        const double error = fabs(plan / player - 1);
        see(&seen, &c.config);
        if (c.many) {
            seen.many++;
            near += error < MOST_ERROR;
            worst = fmax(worst, error);
        } else {
            seen.played++;
            exact += plan == player;
        }
        if (c.many ? error >= MOST_ERROR : plan != player) show(&c, plan, player);
    }
    ok(exact == seen.played, "the plan's step is the player's to the picosecond (%zu of %zu)",
       exact, seen.played);
    ok(near == seen.many,
       "where the plan plays a part of the micro-batches: within %g %% (%zu of "
       "%zu, worst %.4f %%)",
       100 * MOST_ERROR, near, seen.many, 100 * worst);
    rings_of_unequal_ranks(n / 3);
    const size_t least = n / 40;
    ok(seen.rings >= least && seen.chunks >= least && seen.sequence >= least &&
           seen.large >= least && seen.full >= least && seen.zero[0] >= least &&
           seen.zero[1] >= least && seen.zero[2] >= least && seen.zero[3] >= least &&
           seen.uneven >= least && seen.many >= least / 2,
       "among them rings, chunks, every stage of ZeRO, sequence parallelism, recomputation, "
       "unequal parts, more than %d ranks and more than 400 micro-batches",
       LARGE);
    return tap_end();
}
