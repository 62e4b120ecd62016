// zero_page.c: see zero_page.h.
#include "06_zero/experiments/zero_page.h"
#include "06_zero/zero.h"
#include "common/model/costs.h"
#include <stdio.h>

ZeroMeasured zero_measure(Run *run, Comm *dp, const ZeroLesson *lesson, Training t) {
    t.steps = 1;
    t.recorded = true;
    Model *m = model_describe(&t.model, model_layers(&t.model));
    lesson->allocate(m, dp);
    Trajectory c = trajectory_new(run, &t);
    comm_ledger_reset(dp);
    training_run(&c, m, &t, dp->size, dp->rank, lesson->step, dp);
    ZeroMeasured is = { picture_state_now(), (double)memory_peak(MEM_COMMUNICATION), (double)comm_bytes_sent(dp),
                        picture_timing(run) };
    trajectory_free(&c);
    if (lesson->free) lesson->free(m);
    model_free(m);
    return is;
}

bool zero_strips(Run *run) { return option_flag(run, "verbose") || option_text(run, "svg"); }

// ---------------------------------------------------------------- data parallelism: stage 0

static void allocate_replica(Model *m, Comm *dp) { zero_allocate(m, dp, 0); }
static StepResult data_parallel_step(void *comm, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    Comm *dp = comm;
    double loss = 0;
    zero_begin(m, 0);
    for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(m, &mine[k]);
    model_fold_tied(m);
    zero_reduce(m, 0);                             // one all-reduce of all gradients
    double norm = model_grad_norm(m, NULL);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * mine[0].token_weight, norm };
}
static const ZeroLesson data_parallel = { "data parallel", 0, allocate_replica, data_parallel_step, NULL, NULL };

// ---------------------------------------------------------------- the table

static double sum(StateBytes s) { return (double)(s.bytes[0] + s.bytes[1] + s.bytes[2]); }

// The rows of a stage: the name of its cost (NULL: no row), and the formula, in fp32.
enum { STATE, WEIGHTS, GRADIENTS, MOMENTS, IN_FLIGHT, SENT, LINES };
static const char *const what[LINES] = { "state between steps", "  weights", "  gradients", "  m and v",
                                         "in flight, at most", "sent per rank" };
typedef struct { const char *cost, *formula; } Line;
static const Line line[4][LINES] = {
    [1] = { [STATE] = { "all state: 8 + 8 / N (and that use of wte)", "(8 + 8/N) Psi + 4 wte; was 16 Psi + 4 wte" },
            [WEIGHTS] = { "weights: 4 bytes a parameter in fp32", "4 Psi" },
            [GRADIENTS] = { "gradients: 4 (and the head's use of wte)", "4 Psi + 4 wte" },
            [MOMENTS] = { "m and v: 8 / N", "8/N Psi; was 8 Psi" },
            [SENT] = { "all traffic: 2 units, loss and norm", "2 (N-1)/N x 4 Psi, loss and norm" } },
    [2] = { [STATE] = { "all state between steps: 4 + 12 / N", "(4 + 12/N) Psi" },
            [IN_FLIGHT] = { "in flight: 2 wte + the largest unit", "4 (2 wte + block [+ block/N])" },
            [SENT] = { "all traffic: m + 1 units (wte 2), loss and norm", "4(N-1)/N ((m+1)(Psi-wte)+2 wte)" } },
    [3] = { [STATE] = { "all state between steps: 16 / N", "16/N Psi" },
            [IN_FLIGHT] = { "in flight: 3 wte + twice the largest unit", "4 (3 wte+2 blocks [+ block/N])" },
            [SENT] = { "all traffic: 3m units (wte 2), loss and norm", "4(N-1)/N (3m(Psi-wte)+2 wte)" } },
};

// Columns of the table: data parallelism, and the stage with m[0] and m[1] micro-batches.
enum { COLUMNS = 3 };
static void show_results(Run *run, const ZeroLesson *lesson, size_t columns, const size_t *m, const ZeroMeasured *is) {
    char text[LINES][COLUMNS][96], times[2][COLUMNS][24], heads[COLUMNS][48];
    const char *names[COLUMNS + 1] = { "data parallel" };
    Result row[LINES + 3] = {0};
    size_t n = 0;
    for (size_t k = 0; k < LINES; k++) {
        const Line *l = &line[lesson->stage][k];
        if (!l->cost) continue;
        double was[LINES] = { sum(is->state), (double)is->state.bytes[0], (double)is->state.bytes[1],
                              (double)is->state.bytes[2], is->in_flight, is->sent };
        row[n] = (Result){ .what = what[k], .formula = l->formula, .cell = { text[k][0] } };
        page_cell(text[k][0], was[k], "bytes");
        for (size_t i = 1; i < columns; i++) {
            snprintf(text[k][i], sizeof text[k][i], "m = %zu: %s", m[i - 1], l->cost);
            row[n].cell[i] = text[k][i];
        }
        n++;
    }
    row[n] = (Result){ .what = "exposed, per rank", .formula = "all rings, one by one" };
    row[n + 1] = (Result){ .what = "step", .formula = "computing + all rings" };
    for (size_t i = 0; i < columns; i++) {
        page_cell(times[0][i], (double)is[i].timing.exposed / (double)run->world->size, "ps");
        page_cell(times[1][i], (double)is[i].timing.step, "ps");
        row[n].cell[i] = times[0][i];
        row[n + 1].cell[i] = times[1][i];
        if (i == 0) continue;
        snprintf(heads[i], sizeof heads[i], "%s, m = %zu", lesson->name, m[i - 1]);
        names[i] = heads[i];
    }
    results(run, names, row);
}

// The answer in words, and what stands in the formulas.
static void explain(Run *run, const Comm *dp, const ModelConfig *c, size_t stage) {
    static const char *const answer[4] = {
        [1] = "They need not: each rank updates its part, 1/N, and gets the other parts by an all-gather.",
        [2] = "A rank keeps its part of each gradient for the step; a whole one only for its layer's backward.",
        [3] = "G before each F and B gathers the layer's weights from all ranks; they are dropped after it.",
    };
    CutSizes z = cut_sizes(c, 1, 0);
    say(run, "%s", answer[stage]);
    say(run, "Psi = %zu: wte %zu, %zu blocks of %zu, wpe and last norm %zu. N = %zu. %sLoss, norm: %.1f kB.",
        config_parameters(c), elements_wte(&z), c->layers, elements_block(&z),
        config_parameters(c) - elements_wte(&z) - c->layers * elements_block(&z), dp->size,
        stage >= 2 ? "[ ]: m > 1. " : "", 1e-3 * zero_scalars_bytes(c, dp->size));
}

void zero_page(Run *run, Comm *dp, const ZeroLesson *lesson, Training t) {
    size_t last = t.micro_batches, columns = lesson->stage >= 2 && last > 1 ? 3 : 2;
    size_t m[COLUMNS] = { columns == 3 ? 1 : last, last };
    ZeroMeasured is[COLUMNS] = { zero_measure(run, dp, &data_parallel, t) };
    for (size_t i = columns; --i > 0;) {           // the picture is of the one measured last
        t.micro_batches = m[i - 1];
        is[i] = zero_measure(run, dp, lesson, t);
    }
    char title[64];
    snprintf(title, sizeof title, "%s, m = %zu", lesson->name, m[0]);
    picture_state(run, "data parallel", is[0].state);
    picture_state(run, lesson->name, is[1].state);
    bool strips = lesson->stage == 2 || (lesson->stage == 3 && zero_strips(run));
    picture_show(run, title, strips ? PICTURE_MEMORY : PICTURE_CHART);
    if (option_flag(run, "verbose")) picture_summary(run, &is[1].timing);
    explain(run, dp, &t.model, lesson->stage);
    show_results(run, lesson, columns, m, is);
}
