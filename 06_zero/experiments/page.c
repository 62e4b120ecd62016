// page.c: a stage of ZeRO beside data parallelism, in pictures and in a table.
#include "06_zero/experiments/experiments.h"
#include <stdio.h>

typedef struct { const ZeroLesson *lesson; Comm *dp; } Stepped;
static StepResult lesson_step(void *stepped, Model *m, Optimizer *o, const Training *t,
                              const Batch *batch) {
    const Stepped *s = stepped;
    return s->lesson->step(m, s->dp, batch, t->micro_batches, o, t->clip);
}

ZeroMeasured zero_measure(Run *run, Comm *dp, const ZeroLesson *lesson, Training t) {
    t.steps = 1;
    t.recorded = true;
    Model *m = model_describe(&t.model, model_layers(&t.model));
    lesson->allocate(m, dp);
    Trajectory c = trajectory_new(run, &t);
    comm_ledger_reset(dp);
    Stepped stepped = { lesson, dp };
    training_run(&c, m, &t, dp->size, dp->rank, lesson_step, &stepped);
    ZeroMeasured measured = { picture_state_now(), (double)memory_peak(MEM_COMMUNICATION),
                              (double)comm_bytes_sent(dp), picture_timing(run) };
    trajectory_free(&c);
    if (lesson->free) lesson->free(m);
    model_free(m);
    return measured;
}

bool zero_strips(Run *run) { return option_flag(run, "verbose") || option_text(run, "svg"); }

// ---------------------------------------------------------------- data parallelism

static void allocate_replica(Model *m, Comm *dp) {
    model_replicas(m, dp);
    model_allocate(m);
}
static StepResult data_parallel_step(Model *model, Comm *dp, const Batch *batch, size_t m,
                                     Optimizer *o, double clip) {
    double loss = 0;
    model_zero_gradients(model);
    for (size_t k = 0; k < m; k++) loss += model_forward_backward(model, &batch[k]);
    model_fold_tied(model);
    comm_all_reduce(dp, model->g);
    double norm = model_grad_norm(model, NULL);
    optimizer_step(o, model, clip_factor(norm, clip));
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * batch[0].token_weight, norm };
}
static const ZeroLesson data_parallel = {
    .name = "data parallel", .allocate = allocate_replica, .step = data_parallel_step,
};

// ---------------------------------------------------------------- the table

static double sum(StateBytes s) { return (double)(s.bytes[0] + s.bytes[1] + s.bytes[2]); }

static const char *const what[ZERO_LINES] = { "state between steps", "  weights",
                                              "  gradients",         "  m and v",
                                              "in flight, at most",  "sent per rank" };

// Columns of the table: data parallelism, and the stage with m[0] and m[1] micro-batches.
enum { COLUMNS = 3 };
static void show_results(Run *run, const ZeroLesson *lesson, size_t columns, const size_t *m,
                         const ZeroMeasured *seen) {
    char text[ZERO_LINES][COLUMNS][48], times[2][COLUMNS][24], heads[COLUMNS][48];
    const char *names[COLUMNS + 1] = { "data parallel" };
    Result row[ZERO_LINES + 3] = {0};
    size_t n = 0;
    for (size_t k = 0; k < ZERO_LINES; k++) {
        const ZeroLine *l = &lesson->lines[k];
        if (!l->cost) continue;
        // Data parallelism's column: measured, without a check of its own.
        double first[ZERO_LINES] = { sum(seen->state),
                                     (double)seen->state.bytes[0],
                                     (double)seen->state.bytes[1],
                                     (double)seen->state.bytes[2],
                                     seen->in_flight,
                                     seen->sent };
        row[n] = (Result){ .what = what[k], .formula = l->formula, .cell = { text[k][0] } };
        page_cell(text[k][0], first[k], "bytes");
        for (size_t i = 1; i < columns; i++) {
            snprintf(text[k][i], sizeof text[k][i], "m%zu.%s", m[i - 1], l->cost);
            row[n].cell[i] = text[k][i];
        }
        n++;
    }
    row[n] = (Result){ .what = "exposed, per rank", .formula = "all rings, one by one" };
    row[n + 1] = (Result){ .what = "step", .formula = "computing + all rings" };
    for (size_t i = 0; i < columns; i++) {
        page_cell(times[0][i], (double)seen[i].timing.exposed / (double)run->world->size, "ps");
        page_cell(times[1][i], (double)seen[i].timing.step, "ps");
        row[n].cell[i] = times[0][i];
        row[n + 1].cell[i] = times[1][i];
        if (i == 0) continue;
        snprintf(heads[i], sizeof heads[i], "%s, m = %zu", lesson->name, m[i - 1]);
        names[i] = heads[i];
    }
    results(run, names, row);
}

void zero_say_sizes(Run *run, const Comm *dp, const ModelConfig *c, const char *more) {
    CutSizes z = cut_sizes(c, 1, 0);
    say(run, "Psi = %zu: wte %zu, %zu blocks of %zu, wpe and last norm %zu. N = %zu.%s",
        config_parameters(c), elements_wte(&z), c->layers, elements_block(&z),
        config_parameters(c) - elements_wte(&z) - c->layers * elements_block(&z), dp->size, more);
}

void zero_page(Run *run, Comm *dp, const ZeroLesson *lesson, Training t) {
    size_t last = t.micro_batches, columns = lesson->stage >= 2 && last > 1 ? 3 : 2;
    size_t m[COLUMNS] = { columns == 3 ? 1 : last, last };
    ZeroMeasured seen[COLUMNS] = { zero_measure(run, dp, &data_parallel, t) };
    for (size_t i = columns; --i > 0;) {           // the picture is of the one measured last
        t.micro_batches = m[i - 1];
        seen[i] = zero_measure(run, dp, lesson, t);
    }
    char title[64], more[64];
    snprintf(title, sizeof title, "%s, m = %zu", lesson->name, m[0]);
    picture_state(run, "data parallel", seen[0].state);
    picture_state(run, lesson->name, seen[1].state);
    bool strips = lesson->stage == 2 || (lesson->stage == 3 && zero_strips(run));
    picture_show(run, title, strips ? PICTURE_MEMORY : PICTURE_CHART);
    if (option_flag(run, "verbose")) picture_summary(run, &seen[1].timing);
    say(run, "%s", lesson->answer);
    snprintf(more, sizeof more, "%s Loss, norm: %.1f kB.", lesson->stage >= 2 ? " [ ]: m > 1." : "",
             1e-3 * zero_scalars_bytes(&t.model, dp->size));
    zero_say_sizes(run, dp, &t.model, more);
    show_results(run, lesson, columns, m, seen);
}
