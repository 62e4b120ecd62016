// layout_plan.c compares the plan of plan.h with the layouts of 02_layouts.c.
#include "08_3d/experiments/experiments.h"
#include "08_3d/plan.h"

// Returns the task of plan.h for this training on these links.
static PlanTask plan_task(const TrainerConfig *c, const ClockConfig *clock) {
    const ClockLink *in = &clock->link, *out = &clock->between;
    size_t e = sizeof(real);
    return (PlanTask){
        .model = { .model = c->model, .batch = c->batch },
        .gpus = c->mesh.dp * c->mesh.tp * c->mesh.pp,
        .cluster = { .flops = clock->device.flops,
                     .efficiency = 1,
                     .node = clock->node,
                     .rails = clock->rails,
                     .inside = { in->alpha, in->beta },
                     .between = { out->alpha, out->beta } },
        .format = { .weight = e, .gradient = e, .element = e, .statistic = e, .logit = e },
        .how.overlap.pp = true
    };
}
static PlanResult planned(const TrainerConfig *c, const ClockConfig *clock) {
    PlanTask t = plan_task(c, clock);
    PlanLayout layout = { .n = c->mesh,
                          .micro_batch = c->micro_batch,
                          .chunks = trainer_chunks(c) };
    return plan_layout(&t, &layout);
}

// Compares a layout with the plan, which shares no code with the clock. Memory must match to the
// byte. If all groups of one kind are placed on nodes alike, the step must match to the picosecond.
bool layout_as_planned(const TrainerConfig *c, const Layout *l) {
    PlanResult r = planned(c, clock_config());
    const double *m = r.largest.bytes;
    bool memory =
        m[PLAN_WEIGHTS] + m[PLAN_GRADIENTS] == l->state && m[PLAN_ACTIVATIONS] == l->activations;
    bool timed = clock_config()->simulated && mesh_groups_alike(l->n);
    return memory && (!timed || r.step == l->step);
}

// Compares the plan with the played step if messages wait for each other. On the links of
// 02_layouts.c no message waits for another message. On the slower link of this function a message
// takes eight times as long as the forward of a part of the model. So the messages of an
// interleaved pipeline wait for each other.
bool layout_lanes_as_played(const TrainerConfig *config) {
    enum { STAGES = 4, CHUNKS = 2 };
    TrainerConfig c = *config;
    c.mesh = (Degrees){ .dp = 1, .tp = 1, .pp = STAGES };
    c.chunks = CHUNKS;
    ClockConfig slow = *clock_config();
    CutSizes part = cut_stage(cut_sizes(&c.model, 1, 0), STAGES * CHUNKS, 1);
    double bytes = (double)(c.micro_batch * c.model.context * c.model.width * sizeof(real));
    double takes = 8 * work_stage(&part, c.micro_batch).time * 1e-12; // seconds
    slow.link = slow.between =
        (ClockLink){ .name = "slow", .alpha = takes / 2, .beta = bytes / (takes / 2) };
    return planned(&c, &slow).step == step_time_with(&c, &slow);
}
