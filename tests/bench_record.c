// ranks: 4
// level: core
// question: What do the recorder and the simulated clock cost a training step?
//
// Trains the trainer's model with the recorder off and on, under real time and under the simulated
// clock. These four ways take one step each in turn, so that other load affects all four alike. The
// program measures the processor time of this process, which all virtual ranks share, so the time
// of other programs does not count. A ratio compares two ways: the two steps of each round give a
// quotient, and the ratio is the median of these quotients. make test does not run this program,
// because its times are not reproducible.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "08_3d/trainer.h"
#include "judge/draw/memory_samples.h"
#include "judge/draw/picture.h"
#include "judge/frame/process.h"
#include "judge/frame/training.h"
#include "common/comm/record.h"
#include "judge/frame/training.h"

static const Option options[] = {
    { "rounds", "N", "41", "steps of each kind" },
    { "dp", "N", "1", "data-parallel replicas" },
    { "tp", "N", "2", "tensor-parallel ranks of a stage" },
    { "pp", "N", "2", "pipeline stages" },
    { "width", "N", "128", "features of a token" },
    { "micro-batch", "N", "4", "sequences of a replica and micro-batch; a step has 16" },
    { 0 },
};
typedef enum { WALL_OFF, WALL_ON, MODEL_OFF, MODEL_ON, KINDS } Kind;

static void use_clock(Run *run, bool simulated) {
    ClockConfig c = *clock_config();
    c.simulated = simulated;
    comm_barrier(run->world); // no operation is in flight
    clock_configure(&c);
    comm_barrier(run->world);
}

static double processor_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Returns the processor time of one step of all ranks, in seconds. This time includes the
// preparation and the end of recording.
static double one_step(Run *run, Trainer *t, const Data *d, size_t step, Kind kind,
                       size_t *events) {
    use_clock(run, kind >= MODEL_OFF);
    bool on = kind % 2;
    double start = processor_time();
    if (on) picture_begin(run, MEM_ACTIVATIONS);
    else comm_barrier(run->world);
    trainer_update(t, trainer_gradients(t, d, step));
    if (on) picture_end(run);
    else comm_barrier(run->world);
    double seconds = processor_time() - start;
    size_t samples;
    if (on) {
        record_events(events);
        samples_recorded(&samples);
        *events += samples;
    }
    return seconds;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *x, size_t n) {
    qsort(x, n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}
static double ratio(double *seconds[KINDS], Kind of, Kind to, size_t rounds) {
    double *r = host_alloc(rounds * sizeof *r);
    for (size_t i = 0; i < rounds; i++) r[i] = seconds[of][i] / seconds[to][i];
    double m = median(r, rounds);
    free(r);
    return m;
}

static void bench(Run *run) {
    size_t rounds = option_size(run, "rounds"), step = 0, events = 0;
    size_t process, processes;
    REQUIRE(rounds > 0, "--rounds must be at least 1");
    REQUIRE(!process_launched(&process, &processes),
            "the program measures the time of one process: use --emulate N");
    TrainerConfig c = { .model = { .layers = 4,
                                   .width = option_size(run, "width"),
                                   .heads = 4,
                                   .context = 64,
                                   .vocab = 256,
                                   .seed = run->seed },
                        .mesh = { option_size(run, "dp"), option_size(run, "tp"),
                                  option_size(run, "pp"), 1 },
                        .batch = 16,
                        .micro_batch = option_size(run, "micro-batch"),
                        .schedule = schedule_1f1b,
                        .clip = 1 };
    config_require(&c.model);
    Data d = training_text(run, NULL, NULL, c.model.vocab, c.model.context, c.batch);
    Trainer *t = trainer_new(run->world, &c, sgd(0.01));
    double *seconds[KINDS];
    for (size_t k = 0; k < KINDS; k++) seconds[k] = host_alloc(rounds * sizeof **seconds);
    // The first steps allocate memory, so they are not measured.
    for (size_t k = 0; k < KINDS; k++) one_step(run, t, &d, step++, k, &events);
    for (size_t i = 0; i < rounds; i++)
        for (size_t k = 0; k < KINDS;
             k++) { // each kind is about equally often first, second, third and fourth
            Kind kind = (Kind)((k + i) % KINDS);
            seconds[kind][i] = one_step(run, t, &d, step++, kind, &events);
        }
    double r[] = { ratio(seconds, WALL_ON, WALL_OFF, rounds),
                   ratio(seconds, MODEL_ON, MODEL_OFF, rounds),
                   ratio(seconds, MODEL_OFF, WALL_OFF, rounds),
                   1e3 * median(seconds[WALL_OFF], rounds) };
    side_broadcast(r, sizeof r); // all ranks take the values of rank 0
    say(run, "a step: %.1f ms of processor time; %zu events and samples on the first rank", r[3],
        events);
    say(run, "recorder on / off, real time:       %.4f", r[0]);
    say(run, "recorder on / off, simulated clock:     %.4f", r[1]);
    say(run, "simulated clock / real time:            %.4f", r[2]);
    check_true(run, "a step of 50 ms or more", "the ratios are meaningful", r[3] >= 50);
    check_true(run, "the recorder costs less than 2 %", "under both clocks",
               r[0] < 1.02 && r[1] < 1.02);
    for (size_t k = 0; k < KINDS; k++) free(seconds[k]);
    trainer_free(t);
    data_free(&d);
}

EXPERIMENT(bench, options);
