// page.c: the page of a stage of ZeRO beside data parallelism: pictures, a table, the answer.
#include "06_zero/experiments/experiments.h"
#include <stdio.h>

ZeroMeasured zero_measure(Run *run, Comm *dp, const ZeroLesson *lesson, Training t) {
    t.steps = 1;
    t.recorded = true;
    ZeroTrained trained = zero_train(run, dp, lesson, &t);
    ZeroMeasured measured = { picture_state_now(), (double)memory_peak(MEM_COMMUNICATION),
                              (double)comm_bytes_sent(dp), picture_timing(run) };
    zero_trained_free(lesson, &trained);
    return measured;
}

static ZeroTexts texts_of(const ZeroMeasured *seen) {
    const size_t *state = seen->state.bytes;
    double value[ZERO_LINES] = { (double)(state[0] + state[1] + state[2]),
                                 (double)state[0],
                                 (double)state[1],
                                 (double)state[2],
                                 seen->in_flight,
                                 seen->sent };
    ZeroTexts t;
    for (size_t k = 0; k < ZERO_LINES; k++)
        page_value(t.bytes[k], sizeof t.bytes[k], value[k], "bytes");
    page_value(t.step, sizeof t.step, (double)seen->timing.step, "ps");
    return t;
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
    .name = "data parallel",
    .allocate = allocate_replica,
    .step = data_parallel_step,
};

// ---------------------------------------------------------------- the table

static const char *const what[ZERO_LINES] = { "state between steps", "  weights",
                                              "  gradients",         "  moments",
                                              "in flight, at most",  "sent per rank" };

// Columns of the table: data parallelism, and the stage with m[0] and m[1] micro-batches.
enum { COLUMNS = 3 };
static void show_results(Run *run, const ZeroLesson *lesson, size_t columns, const size_t *m,
                         const ZeroMeasured *seen) {
    char text[ZERO_LINES][COLUMNS][48], times[2][COLUMNS][24], heads[COLUMNS][48];
    const char *names[COLUMNS + 1] = { "data parallel" };
    Result row[ZERO_LINES + 3] = { 0 };
    ZeroTexts dp = texts_of(seen);
    size_t n = 0;
    for (size_t k = 0; k < ZERO_LINES; k++) {
        const ZeroLine *l = &lesson->lines[k];
        if (!l->cost) continue;
        row[n] = (Result){ .what = what[k], .formula = l->formula, .cell = { text[k][0] } };
        // The column of data parallelism is measured and has no check of its own.
        snprintf(text[k][0], sizeof text[k][0], "=%s", dp.bytes[k]);
        for (size_t i = 1; i < columns; i++) {
            snprintf(text[k][i], sizeof text[k][i], "m%zu.%s", m[i - 1], l->cost);
            row[n].cell[i] = text[k][i];
        }
        n++;
    }
    row[n] = (Result){ .what = "exposed, per rank", .formula = "a rank waits in every call" };
    row[n + 1] = (Result){ .what = "step", .formula = "computing + all calls" };
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

// ---------------------------------------------------------------- the page

void zero_say_sizes(Run *run, const Comm *dp, const Training *t, bool in_flight) {
    const ModelConfig *c = &t->model;
    CutSizes z = cut_sizes(c, 1, 0);
    size_t wte = elements_wte(&z), block = elements_block(&z), all = config_parameters(c);
    say(run, "Psi = %zu parameters: wte (embedding and head) %zu, %zu blocks of %zu, the rest %zu.",
        all, wte, c->layers, block, all - wte - c->layers * block);
    say(run, "N = %zu ranks, 4 bytes per element.%s", dp->size,
        in_flight ? " In flight: held only while it is used." : "");
    say(run, "Each rank runs up to m micro-batches per step; ranks with fewer sequences wait.");
}

static void conclude_one_rank(Run *run, const ZeroLesson *lesson, const ZeroTexts *dp,
                              const ZeroTexts *own) {
    say_answer(run,
               "With one rank there is nothing to divide: its state is %s with %s and %s "
               "with data parallelism.",
               own->bytes[ZERO_STATE], lesson->name, dp->bytes[ZERO_STATE]);
    say_cost(run, "nothing is sent, because there is no other rank.");
    say_use_when(run, "training has at least two ranks: start this lesson with --emulate 4.");
}

void zero_page(Run *run, Comm *dp, const ZeroLesson *lesson, Training t) {
    size_t last = t.micro_batches, columns = lesson->stage >= 2 && last > 1 ? 3 : 2;
    size_t m[COLUMNS] = { columns == 3 ? 1 : last, last };
    ZeroMeasured seen[COLUMNS] = { zero_measure(run, dp, &data_parallel, t) };
    for (size_t i = columns; --i > 0;) { // m[0] runs last, because the picture shows it
        t.micro_batches = m[i - 1];
        seen[i] = zero_measure(run, dp, lesson, t);
    }
    char title[64];
    snprintf(title, sizeof title, "%s, m = %zu", lesson->name, m[0]);
    zero_say_sizes(run, dp, &t, lesson->stage > 1);
    say(run, "%s", lesson->explains);
    picture_state(run, "data parallel", seen[0].state);
    picture_state(run, lesson->name, seen[1].state);
    bool strips = lesson->stage == 2 || (lesson->stage == 3 && zero_strips(run));
    picture_show(run, title, PICTURE_ALIKE_ONCE | (strips ? PICTURE_MEMORY : PICTURE_CHART));
    if (option_flag(run, "verbose")) picture_summary(run, &seen[1].timing);
    if (columns == 3)
        say(run, "Held in flight: %s.\nThe part in [ ] in the table below is held only if m > 1.",
            lesson->stage == 2 ? "the two gradients of wte, and a block's gradient"
                               : "wte and its two gradients, a block's weights and its gradient");
    show_results(run, lesson, columns, m, seen);
    ZeroTexts replica = texts_of(&seen[0]), own = texts_of(&seen[columns - 1]);
    if (dp->size > 1) lesson->conclude(run, last, &replica, &own);
    else conclude_one_rank(run, lesson, &replica, &own);
}
