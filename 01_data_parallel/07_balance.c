// ranks: 4
// level: extra
// question: One device is four times as slow as the others, then a second: must all wait?
// vary: SEQUENCES 20..31, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// As in 02_all_reduce every rank has the whole model and a part of the sequences of every step; but the devices are of
// unequal speed (--slow: of four, the last is four times as slow), and from step 5 on device 0 is four times as slow as
// before. Three ways to cut the batch:
//     equal     as many sequences for each rank
//     static    in proportion to the speeds before the training, which are known
//     dynamic   in proportion to the speeds of the steps before, which every rank measures and sends to all others
// Whatever the shares, a token weighs 1 / (counted tokens of the whole batch), and the gradient is the unsplit one.
// Speeds and times are those of the simulated clock. Left out: devices with too little memory for their share.
#include "01_data_parallel/data_parallel.h"
#include "01_data_parallel/experiments/07_costs.h"
#include "01_data_parallel/experiments/07_devices.h"
#include "01_data_parallel/experiments/07_page.h"
#include "common/comm/clock.h"
#include "judge/frame/training.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 26, STEPS = 12, CHANGE = 5, CHANGED = 4 };          // from step 5 on device 0 takes 4 times as long
static const ModelConfig tiny = { .layers = 1, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

// ================================ the technique ================================

static double local_gradients(Model *m, const Data *d, uint64_t step, Range mine) {
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_batch(d, &tokens, step, mine.lo, range_size(mine), SEQUENCES);
    model_zero_gradients(m);
    double loss = model_forward_backward(m, &b) * b.token_weight;
    model_fold_tied(m);
    arena_free(&tokens);
    return loss;
}

// What is known of the devices. rate[n]: sequences a picosecond of each, 0 as long as nothing is known; the same on
// every rank: only so will all cut the next batch in the same places. took: the picoseconds I computed for my share.
typedef struct { double *rate, took; bool measured; } Speeds;

// After a measured step: the times of all ranks, in one all-reduce of n doubles (2 (n-1)/n of 8 n bytes), and what
// follows for the rates.
static void observe(Comm *dp, const Range *share, double took, double *rate) {
    double *times = host_alloc(dp->size * sizeof *times);  // zeros
    // EXERCISE 01.07a (4 points): learn from the last step. Make the time that each rank took known to all ranks, with
    // ONE call of comm_all_reduce_doubles on times[dp->size]. Then, for each rank r that had sequences, `now` is how
    // many sequences (range_size(share[r])) a picosecond it did; rate[r] becomes `now` if it was 0 (not known yet), and
    // else the mean of what it was and `now`, which smooths the noise that real steps have. A rank that had no
    // sequences keeps its rate.
    times[dp->rank] = took;
    comm_all_reduce_doubles(dp, times, dp->size);          // n doubles, beside a gradient of thousands
    for (size_t r = 0; r < dp->size; r++) {
        if (range_size(share[r]) == 0) continue;
        double now = (double)range_size(share[r]) / times[r];
        rate[r] = rate[r] > 0 ? (rate[r] + now) / 2 : now;
    }
    // END
    free(times);
}

// A device takes (size + 1) / rate with one sequence more. The one that would be done with it first.
static size_t first_done(const Range *share, const double *rate, size_t n) {
    size_t best = 0;
    for (size_t r = 1; r < n; r++)
        if ((double)(range_size(share[r]) + 1) * rate[best] < (double)(range_size(share[best]) + 1) * rate[r]) best = r;
    return best;
}

void balance_shares(Range *share, const double *rate, size_t n, size_t total) {
    double sum = 0;
    size_t given = 0;
    for (size_t r = 0; r < n; r++) sum += rate[r];
    for (size_t r = 0; r < n; r++) {           // the whole part of its exact share: the size here, the place below
        share[r] = sum > 0 ? (Range){ 0, (size_t)((double)total * rate[r] / sum) } : shard_range(total, n, r);
        given += range_size(share[r]);
    }
    // Fewer than n sequences are left, one for each fraction cut off. The largest fraction need not be the right place:
    // it may be the slowest device's, and then everybody waits for its one sequence.
    for (; given < total; given++) share[first_done(share, rate, n)].hi++;
    for (size_t r = 0, lo = 0; r < n; lo = share[r].hi, r++) share[r] = (Range){ lo, lo + range_size(share[r]) };
}

// A step up to its gradient: shares in proportion to the rates, the gradient of mine, the all-reduce of 02_all_reduce.
static double balanced_gradients(Comm *dp, Model *m, const Data *data, size_t step, Range *share, Speeds *known) {
    balance_shares(share, known->rate, dp->size, SEQUENCES);
    Picoseconds begin = clock_now();
    double loss = local_gradients(m, data, step, share[dp->rank]);
    known->took = (double)(clock_now() - begin);           // before the all-reduce, in which all wait for the slowest
    data_parallel_all_reduce(dp, m);                       // the whole gradient, 2 (n-1)/n of its bytes
    if (known->measured) observe(dp, share, known->took, known->rate);
    return loss;
}

// ================================ the experiment ================================

// What a training leaves behind besides its Trajectory: who had which sequences, and how long each step took.
typedef struct {
    Range share[STEPS * SEQUENCES];                        // [STEPS][n]; there are no more devices than sequences
    double time[STEPS];                                    // picoseconds, alike on all ranks
    double took[STEPS];                                    // those of my share
    size_t calls, bytes, activations;                      // all-reduces; what they sent; the last step's peak
} Record;

// What is known before the first step. All 0 is nothing: equal shares.
static void first_rates(double *rate, const Devices *d, Policy policy) {
    for (size_t r = 0; r < d->n; r++) rate[r] = policy == STATIC ? 1 / (double)devices_slowness(d, r, 0) : 0;
}

static Trajectory train(Run *run, const Training *t, const Devices *d, Policy policy, Record *is) {
    Comm *dp = run->world;
    Trajectory c = trajectory_new(run, t);
    Optimizer o = t->optimizer;
    Model *m = model_describe(&t->model, model_layers(&t->model));
    Speeds known = { .rate = host_alloc(d->n * sizeof *known.rate), .measured = policy == DYNAMIC };
    model_allocate(m);
    optimizer_allocate(&o, m);
    first_rates(known.rate, d, policy);
    comm_ledger_reset(dp);
    for (size_t step = 0; step < STEPS; step++) {
        memory_reset_peaks();
        clock_set_speed(1 / (double)devices_slowness(d, dp->rank, step));
        Picoseconds begin = clock_now();
        double loss = balanced_gradients(dp, m, &t->data, step, is->share + step * d->n, &known);
        is->time[step] = (double)(clock_now() - begin);
        is->took[step] = known.took;
        double norm = model_grad_norm(m, NULL);
        optimizer_step(&o, m, 1);
        trajectory_record(&c, step, m, loss, norm);
    }
    is->calls = dp->ledger[COMM_ALL_REDUCE].calls;
    is->bytes = dp->ledger[COMM_ALL_REDUCE].bytes;
    is->activations = memory_peak(MEM_ACTIVATIONS);
    comm_all_reduce_doubles(dp, c.loss, STEPS);            // for the log: every rank's part of it
    model_free(m);
    free(known.rate);
    return c;
}

// ---------------------------------------------------------------- the predictions

// experiments/07_costs.c works out the times, and the bounds on them.
static BalanceSizes sizes_of(Policy policy) {
    return (BalanceSizes){ tiny, SEQUENCES, STEPS, policy == STATIC, policy == DYNAMIC };
}
// The ideal is the time in which all devices together do the batch, each as many sequences a picosecond as it was seen
// to do in the equal shares of this step. But for a hundredth: the products of fast devices last whole picoseconds.
static void check_ideal(Run *run, const Devices *d, const Record *equal) {
    bool right = true;
    for (size_t step = 0; step < STEPS; step++) {
        double rate = (double)range_size(equal->share[step * d->n + run->world->rank]) / equal->took[step];
        ledger_pause();
        comm_all_reduce_doubles(run->world, &rate, 1);     // of all devices together
        ledger_resume();
        right = right && fabs(balance_ideal(sizes_of(EQUAL), d, step) * rate / SEQUENCES - 1) < 0.01;
    }
    check_true(run, "ideal", "the time at the measured speeds", right);
}

static void check_bounds(Run *run, const Devices *d, const Record *is) {
    bool known = true, measured = true;
    for (size_t step = 0; step < STEPS; step++) {
        if (step < CHANGE) known = known && is[STATIC].time[step] <= balance_bound(sizes_of(STATIC), d, step);
        if (step > 0) measured = measured && is[DYNAMIC].time[step] <= balance_bound(sizes_of(DYNAMIC), d, step);
    }
    check_true(run, "static", "no step is longer than whole sequences ask for, until the change", known);
    check_true(run, "dynamic", "nor any after the first, but for what smoothing hides", measured);
}

static void policy_cost(Run *run, Policy policy, const char *what, const char *unit, double predicted,
                        double measured) {
    char name[96];
    snprintf(name, sizeof name, "%s: %s", balance_policy[policy], what);
    cost(run, name, unit, predicted, measured);
}

static void costs(Run *run, const Devices *d, Policy policy, const Record *is) {
    size_t N = d->n, mine = run->world->rank, e = sizeof(real);
    double bytes = ring_bytes(ALL_REDUCE_PASSES, N, config_parameters(&tiny), e), time[2] = {0}, sequences[2] = {0};
    if (policy == DYNAMIC) bytes += ring_bytes(ALL_REDUCE_PASSES, N, N, sizeof(double));
    Record want;
    balance_forecast(sizes_of(policy), d, want.share, want.time);
    for (size_t step = 0; step < STEPS; step++) {
        time[0] += want.time[step], sequences[0] += (double)range_size(want.share[step * N + mine]);
        time[1] += is->time[step], sequences[1] += (double)range_size(is->share[step * N + mine]);
    }
    size_t last = range_size(want.share[(STEPS - 1) * N + mine]);      // what a device keeps goes with its share
    policy_cost(run, policy, "all steps", "ps", time[0], time[1]);
    policy_cost(run, policy, "my sequences", "sequences", sequences[0], sequences[1]);
    policy_cost(run, policy, "all-reduces", "calls", policy == DYNAMIC ? 2 * STEPS : STEPS, (double)is->calls);
    policy_cost(run, policy, "sent by all-reduces", "bytes", STEPS * bytes, (double)is->bytes);
    policy_cost(run, policy, "activations, last step", "bytes", (double)(last * tiny.context * kept_model(&tiny) * e),
                (double)is->activations);
    check_numbers(run, balance_policy[policy], "time of every step", is->time, want.time, STEPS, 0);
}

// ---------------------------------------------------------------- what to see

// --svg takes one picture; a trace is of steps.
static bool steps_in_files(Run *run) {
    return option_given(run, "trace") || strcmp(option_text(run, "picture"), "steps") == 0;
}

// A step with equal shares, and then one with shares in proportion to the speeds.
static void show_steps(Run *run, const Training *t, const Devices *d) {
    Model *m = model_describe(&t->model, model_layers(&t->model));
    Speeds known = { .rate = host_alloc(d->n * sizeof *known.rate) };
    Range *share = host_alloc(d->n * sizeof *share);
    model_allocate(m);
    clock_set_speed(1 / (double)devices_slowness(d, run->world->rank, 0));
    picture_begin(run, MEM_ACTIVATIONS);
    for (Policy p = EQUAL; p <= STATIC; p++) {
        first_rates(known.rate, d, p);
        balanced_gradients(run->world, m, &t->data, 0, share, &known);
    }
    picture_end(run);
    picture_show(run, "a step with equal shares, then one with shares in proportion to the speeds (static)",
                 steps_in_files(run) ? PICTURE_CHART : PICTURE_NO_FILES);
    model_free(m);
    free(known.rate);
    free(share);
}

static void balance(Run *run) {
    REQUIRE(clock_config()->simulated, "07_balance needs the simulated clock: leave --clock out");
    REQUIRE(run->world->size <= SEQUENCES, "there are %d sequences, and each device needs one to be measured: start at "
            "most %d ranks", SEQUENCES, SEQUENCES);
    Devices d = devices_read(run, "slow", CHANGE, CHANGED);
    Training t = { .model = tiny, .data = data_synthetic(tiny.vocab, tiny.context, run->seed), .steps = STEPS,
                   .sequences = SEQUENCES, .micro_batches = 1, .optimizer = sgd(0.1) };
    t.model.seed = run->seed;
    Record is[POLICIES];
    BalanceSeen seen[POLICIES];
    Trajectory whole = training_unsplit(run, &t, 1);
    for (Policy p = EQUAL; p < POLICIES; p++) {
        char line[64];
        Trajectory got = train(run, &t, &d, p, &is[p]);
        Training cut = t;                                  // one device that takes the same shares, one after the other
        cut.shares = is[p].share;
        Trajectory ordered = training_unsplit(run, &cut, d.n);
        snprintf(line, sizeof line, "%s shares = unsplit", balance_policy[p]);
        training_compare(run, line, &got, &whole, LIMIT_ROUNDING);
        snprintf(line, sizeof line, "%s shares = in rank order", balance_policy[p]);
        training_compare(run, line, &got, &ordered, every_bit(run));
        trajectory_free(&got);
        trajectory_free(&ordered);
    }
    trajectory_free(&whole);
    for (Policy p = EQUAL; p < POLICIES; p++) seen[p] = (BalanceSeen){ is[p].share, is[p].time };
    balance_show_times(run, sizes_of(EQUAL), &d, seen, steps_in_files(run) ? PICTURE_NO_FILES : PICTURE_CHART);
    show_steps(run, &t, &d);
    check_ideal(run, &d, &is[EQUAL]);
    balance_check_idle(run, observe);
    check_bounds(run, &d, is);
    for (Policy p = EQUAL; p < POLICIES; p++) costs(run, &d, p, &is[p]);
    balance_results(run, sizes_of(EQUAL), &d, seen);
    data_free(&t.data);
    devices_free(&d);
}

static const Option options[] = {
    { "slow", "LIST", "1,1,1,4", "how many times as long as a device of the full rate each takes" },
    { "picture", "times|steps", "times", "what --svg shows: the times of all steps, or two steps" },
    { "clock", "simulated", "simulated", "the speeds are the simulated clock's" },
    { "link", "NAME[,NAME]", "slow", NULL },
    {0},
};
EXPERIMENT(balance, options);
