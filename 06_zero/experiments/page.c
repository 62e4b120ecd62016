// page.c: prints the pictures and the table of a page that shows a stage of ZeRO beside other
// trainings.
#include "06_zero/experiments/experiments.h"

// A row of the table has a name, the id of its cost without the prefix such as "m3." (m = 3), and a
// unit. Columns with column 0's lesson, and rows without an id, show the number that this rank
// measured.
static const struct {
    const char *name, *cost, *unit;
} rows[ZERO_ROWS] = {
    [ZERO_STATE] = { "state between steps", "state", "bytes" },
    [ZERO_WEIGHTS] = { "  weights", "weights", "bytes" },
    [ZERO_GRADIENTS] = { "  gradients", "gradients", "bytes" },
    [ZERO_MOMENTS] = { "  moments", "moments", "bytes" },
    [ZERO_IN_FLIGHT] = { "in flight, peak", "in-flight", "bytes" },
    [ZERO_SENT] = { "sent per rank", "sent", "bytes" },
    [ZERO_EXPOSED] = { "exposed, mean", NULL, "ps" },
    [ZERO_HIDDEN] = { "hidden, mean", NULL, "ps" },
    [ZERO_STEP] = { "step", NULL, "ps" },
};

const char *zero_text(Run *run, const ZeroMeasured *seen, ZeroRow row) {
    return value_text(run, seen->row[row], rows[row].unit);
}

static ZeroMeasured measure(Run *run, Comm *dp, const ZeroLesson *lesson, const Training *t,
                            bool checked) {
    ZeroTrained trained = zero_train(run, dp, lesson, t);
    StateBytes s = picture_state_now();
    Timing timing = picture_timing(run);
    const double N = (double)dp->size;
    ZeroMeasured seen = { s,
                          timing,
                          { [ZERO_STATE] = (double)(s.bytes[0] + s.bytes[1] + s.bytes[2]),
                            [ZERO_WEIGHTS] = (double)s.bytes[0],
                            [ZERO_GRADIENTS] = (double)s.bytes[1],
                            [ZERO_MOMENTS] = (double)s.bytes[2],
                            [ZERO_IN_FLIGHT] = (double)memory_peak(MEM_COMMUNICATION),
                            [ZERO_SENT] = (double)comm_bytes_sent(dp),
                            [ZERO_EXPOSED] = (double)timing.exposed / N,
                            [ZERO_HIDDEN] = (double)timing.hidden / N,
                            [ZERO_STEP] = (double)timing.step } };
    if (checked) lesson->costs(run, dp, t, lesson->stage, &seen);
    zero_trained_free(lesson, &trained);
    return seen;
}

// Prints the sizes and the meaning of the picture's letters. In stages 2 and 3 a forward or a
// backward contains calls, so the picture shows it in pieces.
static void say_sizes(Run *run, const Training *t, const ZeroPage *page) {
    const ModelConfig *c = &t->model;
    CutSizes z = cut_sizes(c, 1, 0);
    size_t wte = elements_wte(&z), block = elements_block(&z), all = config_parameters(c);
    static const char *const splits[] = { "", "", ". A call in B0 splits B0",
                                          ", which splits F0 or B0" };
    const char *parallel = "";
    if (page->column[0]->stage == 0)
        parallel = page_text(run, "; data parallel: m=%zu", page->m[0]);
    say(run,
        "Psi = %zu parameters: wte (the table of embedding and head) %zu, %zu blocks of %zu, the "
        "rest %zu.\n"
        "N = %zu ranks. The formulas are for fp32: 4 bytes per element.\n"
        "m: the most micro-batches of a rank in a step%s. Ranks with fewer sequences wait.\n"
        "F0: forward of micro-batch 0. On `links` a capital letter begins a call%s.",
        all, wte, c->layers, block, all - wte - c->layers * block, run->world->size, parallel,
        splits[page->column[1]->stage]);
}

// Returns true if the page draws the memory in flight under each rank. In stage 3 the ranks' strips
// differ and take much room, so stage 3 has strips only with --verbose or --svg.
static bool strips(Run *run, size_t stage) {
    return stage == 2 || (stage == 3 && (option_flag(run, "verbose") || option_text(run, "svg")));
}

static void show_table(Run *run, const ZeroPage *page, const char *const *names,
                       const ZeroMeasured *seen) {
    Result result[ZERO_ROWS + 1] = { 0 };
    for (size_t k = 0, n = 0; k < ZERO_ROWS; k++) {
        if (!page->formula[k]) continue;
        Result *r = &result[n++];
        *r = (Result){ .what = rows[k].name, .formula = page->formula[k] };
        for (size_t i = 0; page->column[i]; i++)
            r->cell[i] = rows[k].cost && page->column[i] != page->column[0]
                             ? page_text(run, "m%zu.%s", page->m[i], rows[k].cost)
                             : value_cell(run, seen[i].row[k], rows[k].unit);
    }
    results(run, names, result);
}

void zero_page(Run *run, Comm *dp, const Training *t, const ZeroPage *page,
               ZeroMeasured seen[ZERO_COLUMNS]) {
    const char *names[ZERO_COLUMNS + 1] = { NULL };
    say_sizes(run, t, page);
    say(run, "%s", page->explains);
    for (size_t i = 0; page->column[i]; i++) {
        const ZeroLesson *lesson = page->column[i];
        Training own = zero_adamw(*t, page->m[i]);
        own.recorded = true;
        seen[i] = measure(run, dp, lesson, &own, lesson != page->column[0]);
        names[i] = lesson->name;
        if (lesson->stage > 0) names[i] = page_text(run, "%s, m=%zu", lesson->name, page->m[i]);
        if (page->column[0]->stage == 0 && i < 2) picture_state(run, lesson->name, seen[i].state);
        if (lesson->stage == 0 || i > 1) continue;
        picture_show(run, names[i],
                     PICTURE_ALIKE_ONCE | (strips(run, lesson->stage) ? PICTURE_MEMORY : 0) |
                         (i == 0 ? PICTURE_NO_FILES : PICTURE_SAME_SCALE));
        if (option_flag(run, "verbose")) picture_summary(run, &seen[i].timing);
    }
    say(run, "%s", page->notes);
    show_table(run, page, names, seen);
}
