// page.c: prints the page of a stage of ZeRO beside data parallelism: pictures, a table, the
// answer.
#include "06_zero/experiments/experiments.h"

ZeroMeasured zero_measure(Run *run, Comm *dp, const ZeroLesson *lesson, Training t) {
    t.steps = 1;
    t.recorded = true;
    ZeroTrained trained = zero_train(run, dp, lesson, &t);
    StateBytes s = picture_state_now();
    ZeroMeasured measured = {
        .state = s,
        .bytes = { [ZERO_STATE] = (double)(s.bytes[0] + s.bytes[1] + s.bytes[2]),
                   [ZERO_WEIGHTS] = (double)s.bytes[0],
                   [ZERO_GRADIENTS] = (double)s.bytes[1],
                   [ZERO_MOMENTS] = (double)s.bytes[2],
                   [ZERO_IN_FLIGHT] = (double)memory_peak(MEM_COMMUNICATION),
                   [ZERO_SENT] = (double)comm_bytes_sent(dp) },
        .timing = picture_timing(run),
    };
    zero_trained_free(lesson, &trained);
    return measured;
}
const char *zero_bytes(Run *run, const ZeroMeasured *seen, size_t line) {
    return value_text(run, seen->bytes[line], "bytes");
}
const char *zero_time(Run *run, const ZeroMeasured *seen) {
    return value_text(run, (double)seen->timing.step, "ps");
}

bool zero_strips(Run *run) { return option_flag(run, "verbose") || option_text(run, "svg"); }

// ---------------------------------------------------------------- data parallelism

static void allocate_replica(Model *m, Comm *dp) {
    model_replicas(m, dp);
    model_allocate(m);
}
// A factor of 1 changes no bit.
static StepResult data_parallel_step(Model *model, Comm *dp, const Batch *batch, size_t m,
                                     Optimizer *o, double clip) {
    return mixed_step(model, dp, &(LossScale){ .factor = 1 }, batch, m, o, clip);
}
const ZeroLesson zero_data_parallel = {
    .name = "data parallel",
    .allocate = allocate_replica,
    .step = data_parallel_step,
};

// ---------------------------------------------------------------- the table

static const char *const what[ZERO_LINES] = { "state between steps", "  weights",
                                              "  gradients",         "  moments",
                                              "in flight, at most",  "sent per rank" };

// The table has a column for data parallelism, which is measured and has no checks, and a column
// each for the stage with m[0] and m[1] micro-batches.
enum { COLUMNS = 3 };
static void show_results(Run *run, const ZeroLesson *lesson, size_t columns, const size_t *m,
                         const ZeroMeasured *seen) {
    const char *names[COLUMNS + 1] = { "data parallel" };
    Result row[ZERO_LINES + 3] = { 0 };
    size_t n = 0;
    for (size_t k = 0; k < ZERO_LINES; k++) {
        const ZeroLine *l = &lesson->lines[k];
        if (!l->cost) continue;
        row[n] = (Result){ .what = what[k], .formula = l->formula };
        row[n].cell[0] = page_text(run, "=%s", zero_bytes(run, seen, k));
        for (size_t i = 1; i < columns; i++)
            row[n].cell[i] = page_text(run, "m%zu.%s", m[i - 1], l->cost);
        n++;
    }
    row[n] = (Result){ .what = "exposed, per rank", .formula = "a rank waits in every call" };
    row[n + 1] = (Result){ .what = "step", .formula = "computing + all calls" };
    for (size_t i = 0; i < columns; i++) {
        double exposed = (double)seen[i].timing.exposed / (double)run->world->size;
        row[n].cell[i] = value_cell(run, exposed, "ps");
        row[n + 1].cell[i] = page_text(run, "=%s", zero_time(run, &seen[i]));
        if (i > 0) names[i] = page_text(run, "%s, m = %zu", lesson->name, m[i - 1]);
    }
    results(run, names, row);
}

// ---------------------------------------------------------------- the page

void zero_say_sizes(Run *run, const Comm *dp, const Training *t, bool in_flight) {
    const ModelConfig *c = &t->model;
    CutSizes z = cut_sizes(c, 1, 0);
    size_t wte = elements_wte(&z), block = elements_block(&z), all = config_parameters(c);
    size_t rest = all - wte - c->layers * block;
    if (!in_flight) {
        say(run,
            "Psi = %zu parameters: wte (embedding and head) %zu, %zu blocks of %zu, the rest %zu.\n"
            "N = %zu ranks. The formulas are for fp32: 4 bytes per element.\n"
            "Each rank runs up to m micro-batches per step; ranks with fewer sequences wait.\n"
            "On `links` small letters continue a call.",
            all, wte, c->layers, block, rest, dp->size);
        return;
    }
    say(run,
        "Psi = %zu parameters: wte %zu, %zu blocks of %zu, the rest %zu. N = %zu ranks. "
        "Formulas: fp32.\n"
        "Embedding and head share wte. So wte is whole for the step: 1 gather, 1 reduction, "
        "2 gradients.\n"
        "In flight: held only while in use. A rank has up to m micro-batches; ranks with fewer "
        "wait.\n"
        "After each call the rest of F0 or B0 has a new box. On `links` small letters "
        "continue a call.",
        all, wte, c->layers, block, rest, dp->size);
}

void zero_page(Run *run, Comm *dp, const ZeroLesson *lesson, Training t) {
    size_t last = t.micro_batches, columns = lesson->stage >= 2 && last > 1 ? 3 : 2;
    size_t m[COLUMNS] = { columns == 3 ? 1 : last, last };
    ZeroMeasured seen[COLUMNS] = { zero_measure(run, dp, &zero_data_parallel, t) };
    for (size_t i = columns; --i > 0;) { // m[0] runs last, because the picture shows it
        t.micro_batches = m[i - 1];
        seen[i] = zero_measure(run, dp, lesson, t);
    }
    const char *title = page_text(run, "%s, m = %zu", lesson->name, m[0]);
    zero_say_sizes(run, dp, &t, lesson->stage > 1);
    say(run, "%s", lesson->explains);
    picture_state(run, "data parallel", seen[0].state);
    picture_state(run, lesson->name, seen[1].state);
    bool strips = lesson->stage == 2 || (lesson->stage == 3 && zero_strips(run));
    picture_show(run, title, PICTURE_ALIKE_ONCE | (strips ? PICTURE_MEMORY : PICTURE_CHART));
    if (option_flag(run, "verbose")) picture_summary(run, &seen[1].timing);
    if (lesson->stage > 1)
        say(run, "The formulas are those of %s. A term in [ ] counts only if m > 1.", lesson->name);
    show_results(run, lesson, columns, m, seen);
    lesson->conclude(run, last, &seen[0], &seen[columns - 1]);
}
