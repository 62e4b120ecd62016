// ranks: 2
// level: core
// question: How long are the stages of a pipeline idle in real time, when its messages are long?
//
// The stages are equal and have real blocks. A message has more than a megabyte by default. The
// closed forms of the idle time hold in real time only if messages move while stages compute. The
// schedules take turns. For each schedule the program prints the median time of a step, share of
// idle time, and exposed communication. Every process needs its own core. `make bench` runs this
// program.
#include <stdio.h>
#include <stdlib.h>
#include "05_pipeline_1f1b/experiments/experiments.h"
#include "common/tensor/memory.h"

static const Option options[] = {
    { "micro-batches", "N", "4", "pieces of a step" },
    { "width", "N", "768", "features of a token" },
    { "context", "N", "128", "tokens of a sequence" },
    { "sequences", "N", "4",
      "sequences per micro-batch; a message has sequences x context x width reals" },
    { "blocks", "N", "1", "blocks per stage; an interleaved stage has two chunks of so many" },
    { "rounds", "N", "5", "number of rounds; the median counts" },
    { "clock", "wall|simulated", "wall", NULL },
    { 0 },
};
enum { MOST = 101 };
static const struct {
    const char *name;
    ScheduleRule rule;
} schedule[] = {
    { "naive", schedule_naive },
    { "GPipe", schedule_gpipe },
    { "1F1B", schedule_1f1b },
    { "interleaved", NULL },
};
enum { SCHEDULES = sizeof schedule / sizeof *schedule };

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *x, size_t n) {
    qsort(x, n, sizeof *x, ascending);
    return x[n / 2];
}

static PipelineResult interleaved(const void *unused, Comm *pp, Model *stage, const Batch *batch,
                                  size_t m) {
    (void)unused;
    return pipeline_way_run(WAY_INTERLEAVED, pp, NULL, stage, NULL, batch, m, 1);
}
// play() runs one step. The interleaved schedule has two chunks per stage, each as large as a stage
// of the other schedules.
enum { CHUNKS = 2 };
static Timing play(Run *run, Stack stack, ScheduleRule rule, size_t m) {
    if (rule) return stack_play(run, &stack, rule, m).timing;
    stack.blocks *= CHUNKS;
    stack.chunks = CHUNKS;
    return stack_play_by(run, &stack, MEM_ACTIVATIONS, interleaved, NULL, m).timing;
}

static void bench(Run *run) {
    size_t p = run->world->size, m = option_size(run, "micro-batches"),
           rounds = option_size(run, "rounds");
    size_t B = option_size(run, "sequences"), T = option_size(run, "context"),
           C = option_size(run, "width");
    REQUIRE(m > 0 && B > 0 && rounds > 0 && rounds <= MOST,
            "--micro-batches, --sequences and --rounds (at most %d) must be more than 0", MOST);
    REQUIRE(m % p == 0,
            "--micro-batches %zu: interleaved stages take groups of %zu: choose a multiple", m, p);
    Stack stack = { .model = { .width = C,
                               .heads = C / 64 ? C / 64 : 1,
                               .context = T,
                               .vocab = 2,
                               .seed = run->seed },
                    .blocks = option_size(run, "blocks"),
                    .sequences = B };
    stack.model.layers = stack.blocks * p;
    config_require(&stack.model);
    memory_set_poison(false);
    double idle[SCHEDULES][MOST], step[SCHEDULES][MOST], exposed[SCHEDULES][MOST];
    // The first steps allocate memory, so they are not measured.
    for (size_t i = 0; i < SCHEDULES; i++) play(run, stack, schedule[i].rule, m);
    for (size_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < SCHEDULES; i++) {
            Timing t = play(run, stack, schedule[i].rule, m);
            idle[i][round] = 100 * t.idle_of_total;
            step[i][round] = 1e-9 * (double)t.step;
            exposed[i][round] = 1e-9 * (double)t.exposed;
        }
    say(run, "%zu stages, %zu micro-batches, messages of %.2f MB", p, m,
        1e-6 * (double)(B * T * C * sizeof(real)));
    for (size_t i = 0; i < SCHEDULES; i++) {
        size_t v = schedule[i].rule ? 1 : CHUNKS;
        double closed =
            i == 0 ? 100 * (1 - 1 / (double)p) : 100 * (double)(p - 1) / (double)(v * m + p - 1);
        double measured = median(idle[i], rounds);
        char name[40];
        say(run,
            "%-11s step %8.2f ms, idle %5.1f %%, closed form %5.1f %%, exposed communication %7.3f "
            "ms (all ranks)",
            schedule[i].name, median(step[i], rounds), measured, closed,
            median(exposed[i], rounds));
        snprintf(name, sizeof name, "idle_%s", schedule[i].name);
        report_config_number(run, name, measured);
        if (i == 0)
            check_true(run, "idle as long as the closed form says", schedule[i].name,
                       measured > closed - 5);
        else
            check_true(run, "idle at most 5 points more than the closed form", schedule[i].name,
                       measured < closed + 5);
    }
}

EXPERIMENT(bench, options);
