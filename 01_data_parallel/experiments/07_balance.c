// 07_balance.c: runs trainings with equal, static and dynamic shares. Each training is compared
// with one device that takes the whole batch, and with one device that takes the same shares in
// rank order. The times of all steps are compared with a forecast.
#include "01_data_parallel/experiments/experiments.h"
#include <stdlib.h>
#include <string.h>

// Device 0 takes CHANGED times as long as before in step CHANGE and later.
enum { SEQUENCES = 26, STEPS = BALANCE_STEPS, CHANGE = 5, CHANGED = 4 };
static const ModelConfig tiny = {
    .layers = 1, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};

static const char *const policy_name[] = { "equal", "static", "dynamic" };

// ---------------------------------------------------------------- the devices

// Reads one device per rank from an option such as --slow 1,1,2,4. If there are more ranks than
// numbers, the list starts again. The first character of a number must be 1 to 9, because strtoul
// would also accept signs and blanks.
static Devices devices_read(Run *run, const char *option) {
    Devices d = { &tiny, SEQUENCES, CHANGE, CHANGED, run->world->size, { 0 } };
    const char *text = option_text(run, option), *at = text;
    for (size_t r = 0; r < d.n; r++) {
        char *end = (char *)at;
        if (*at >= '1' && *at <= '9') d.slow[r] = strtoul(at, &end, 10);
        REQUIRE(d.slow[r] >= 1 && d.slow[r] <= 1000 && (*end == ',' || *end == 0),
                "--%s %s: expected whole numbers from 1 to 1000, such as 1,1,2,4", option, text);
        at = *end ? end + 1 : text;
    }
    return d;
}

// Returns the factor by which `rank` is slower than a fast device. clock_set_speed() gets 1 / this
// factor.
static size_t slowness(const Devices *d, size_t rank, size_t step) {
    return d->slow[rank] * (rank == 0 && step >= CHANGE ? CHANGED : 1);
}

// ---------------------------------------------------------------- training

// With EQUAL and DYNAMIC the first rates are 0, which means unknown. So shard_range() cuts the
// first shares.
static void first_rates(double *rate, const Devices *d, Policy policy) {
    for (size_t r = 0; r < d->n; r++)
        rate[r] = policy == STATIC ? 1 / (double)slowness(d, r, 0) : 0;
}

static Trajectory train(Run *run, const Training *t, const Devices *d, Policy policy,
                        BalanceRecord *seen) {
    Comm *dp = run->world;
    Trajectory c = trajectory_new(run, t);
    Optimizer o = t->optimizer;
    Model *m = whole_model(&t->model);
    double rate[MOST_DEVICES];
    Speeds known = { .rate = rate, .measured = policy == DYNAMIC };
    optimizer_allocate(&o, m);
    first_rates(rate, d, policy);
    comm_ledger_reset(dp);
    for (size_t step = 0; step < STEPS; step++) {
        memory_reset_peaks();
        clock_set_speed(1 / (double)slowness(d, dp->rank, step));
        Picoseconds begin = clock_now();
        double loss =
            balance_gradients(dp, m, &t->data, step, SEQUENCES, seen->share + step * d->n, &known);
        seen->time[step] = (double)(clock_now() - begin);
        double norm = model_grad_norm(m, NULL);
        optimizer_step(&o, m, 1);
        trajectory_record(&c, step, m, loss, norm);
    }
    seen->costs = measured_now(dp);
    comm_all_reduce_doubles(dp, c.loss, STEPS); // adds the ranks' parts, for the comparison
    model_free(m);
    return c;
}

static void costs(Run *run, const Devices *d, Policy policy, const BalanceRecord *seen) {
    const size_t N = d->n, own = run->world->rank;
    double bytes =
        ring_bytes(ALL_REDUCE_PASSES, N, config_parameters(d->model), gradient_bytes(d->model));
    double time[2] = { 0 }, sequences[2] = { 0 };
    if (policy == DYNAMIC) bytes += ring_bytes(ALL_REDUCE_PASSES, N, N, sizeof(double));
    const BalanceRecord want = balance_forecast(policy, d);
    for (size_t step = 0; step < STEPS; step++) {
        time[0] += want.time[step];
        time[1] += seen->time[step];
        sequences[0] += (double)range_size(want.share[step * N + own]);
        sequences[1] += (double)range_size(seen->share[step * N + own]);
    }
    const CutSizes z = cut_sizes(d->model, 1, 0);
    double kept = (double)activations_bytes(&z, range_size(want.share[(STEPS - 1) * N + own]));
    check_costs(run, page_text(run, "%%s.%s", policy_name[policy]),
                page_text(run, "%s: %%s", policy_name[policy]),
                (CostRow[]){ { "time", "all steps", "ps", BY_PLAY(time[0]), time[1] },
                             { "sequences", "my sequences", "sequences", BY_PLAY(sequences[0]),
                               sequences[1] },
                             { "calls", "all-reduces", "calls",
                               BY_FORMULA(policy == DYNAMIC ? 2 * STEPS : STEPS),
                               seen->costs.reductions },
                             { "sent", "sent by all-reduces", "bytes", BY_FORMULA(STEPS * bytes),
                               seen->costs.reduced },
                             { "peak", "activations, last step", "bytes", BY_PLAY(kept),
                               seen->costs.activations_peak },
                             { 0 } });
    check_numbers(run, policy_name[policy], "time of every step", seen->time, want.time, STEPS, 0);
}

// ---------------------------------------------------------------- what to see

// Prints the answer, which is no if measured shares save more than a hundredth of the time of equal
// shares.
static void answer(Run *run, double ideal) {
    const double equal = cost_value(run, "time.equal"), dynamic = cost_value(run, "time.dynamic");
    const double speeds = (cost_value(run, "sent.dynamic") - cost_value(run, "sent.equal")) / STEPS;
    const bool helps = dynamic < 0.99 * equal;
    say_answer(run,
               "%s. %d steps take %s with equal shares, %s with shares fixed by the first speeds, "
               "%s with measured ones; the ideal is %s.",
               helps ? "No: a slow device takes fewer sequences" : "Here measuring gains nothing",
               STEPS, cost_text(run, "time.equal"), cost_text(run, "time.static"),
               cost_text(run, "time.dynamic"), value_text(run, ideal, "ps"));
    say_cost(run,
             "%s more per rank and step to tell all ranks the measured times, and up to %s of "
             "activations per rank instead of %s. After a change one step has the old shares, and "
             "the next steps have shares between old and new.",
             value_text(run, speeds, "bytes"),
             value_text(run, cost_value(run, "peak.dynamic"), "bytes"),
             value_text(run, cost_value(run, "peak.equal"), "bytes"));
    say_use_when(run, "devices differ in speed or slow down, and each device has so many "
                      "sequences that one more changes its time only a little.");
}

// Returns whether the files of --svg and --trace show the two steps of show_steps(), not the times
// of all steps. --svg writes one picture only, and --trace can only show steps.
static bool steps_in_files(Run *run) {
    return option_given(run, "trace") || strcmp(option_text(run, "picture"), "steps") == 0;
}

static void show_steps(Run *run, const Training *t, const Devices *d) {
    Model *m = whole_model(&t->model);
    double rate[MOST_DEVICES];
    Speeds known = { .rate = rate };
    Range share[MOST_DEVICES];
    clock_set_speed(1 / (double)slowness(d, run->world->rank, 0));
    picture_begin(run, MEM_ACTIVATIONS);
    for (Policy p = EQUAL; p <= STATIC; p++) {
        first_rates(rate, d, p);
        balance_gradients(run->world, m, &t->data, 0, SEQUENCES, share, &known);
    }
    picture_end(run);
    picture_show(
        run, "A step with equal shares, then one with shares in proportion to the speeds (static)",
        steps_in_files(run) ? PICTURE_CHART : PICTURE_NO_FILES);
    model_free(m);
}

static void balance(Run *run) {
    REQUIRE(clock_config()->simulated, "07_balance needs the simulated clock: leave --clock out");
    REQUIRE(run->world->size <= SEQUENCES,
            "there are %d sequences, and each device needs one to be measured: start at most %d "
            "ranks",
            SEQUENCES, SEQUENCES);
    Devices d = devices_read(run, "slow");
    Training t = synthetic_training(run, &tiny, STEPS, SEQUENCES);
    d.model = &t.model;
    BalanceRecord seen[POLICIES];
    double ideal = 0;
    Trajectory whole = training_unsplit(run, &t, 1);
    for (Policy p = EQUAL; p < POLICIES; p++) {
        Trajectory got = train(run, &t, &d, p, &seen[p]);
        Training cut = t; // one device that takes the same shares, one after the other
        cut.shares = seen[p].share;
        Trajectory ordered = training_unsplit(run, &cut, d.n);
        training_compare(run, page_text(run, "%s shares = unsplit", policy_name[p]), &got, &whole,
                         rounding_limit(run));
        training_compare(run, page_text(run, "%s shares = in rank order", policy_name[p]), &got,
                         &ordered, exact_limit(run));
        trajectory_free(&got);
        trajectory_free(&ordered);
    }
    trajectory_free(&whole);
    balance_show_times(run, &d, seen, steps_in_files(run) ? PICTURE_NO_FILES : PICTURE_CHART);
    show_steps(run, &t, &d);
    for (Policy p = EQUAL; p < POLICIES; p++) costs(run, &d, p, &seen[p]);
    for (size_t step = 0; step < STEPS; step++) ideal += balance_ideal(&d, step);
    balance_table(run, &d, seen, ideal);
    answer(run, ideal);
    data_free(&t.data);
}

static const Option options[] = {
    { "slow", "LIST", "1,1,1,4", "rank r takes the r-th number times as long as a fast device" },
    { "picture", "times|steps", "times", "what --svg shows: the times of all steps, or two steps" },
    { "clock", "simulated", "simulated", "the speeds are the simulated clock's" },
    { "link", "NAME[,NAME]", "slow", NULL },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(balance, options);
