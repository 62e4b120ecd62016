// compression_checks.c: trains with a compressed sum for 06_compression and 08_power_sgd, and
// checks weights and costs. Draws the losses on text, and a step with each sum.
#include "01_data_parallel/experiments/experiments.h"
#include "judge/draw/plot.h"
#include <math.h>
#include <stdlib.h>

static const char *const method_name[METHODS] = { "fp16", "top-k", "1-bit", "PowerSGD" };

// ---------------------------------------------------------------- a training

typedef struct {
    Comm *dp;
    Compression *c; // NULL: the exact sum
} Replica;

// Leaves the sum over ranks in m->g. Returns this rank's part of the loss.
static double replica_gradients(Replica *r, Model *m, const Batch *b) {
    model_zero_gradients(m);
    double loss = model_forward_backward(m, b) * b->token_weight;
    model_fold_tied(m);
    if (r->c) compression_all_reduce(r->c, m->g); // only this line differs from 02_all_reduce
    else data_parallel_all_reduce(r->dp, m);
    return loss;
}

static StepResult replica_step(void *replica, Model *m, Optimizer *o, const Training *t,
                               const Batch *b) {
    double loss = replica_gradients(replica, m, b);
    double norm = model_grad_norm(m, NULL);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss, norm };
}

// Compares the costs of a training that has just ended with the predictions.
static void compare_costs(Run *run, const Training *t, const CompressionPlan *plan,
                          const CompressionSeen *seen) {
    static const char *const id_of[METHODS] = { "fp16", "top-k", "1-bit", "power-sgd" };
    const size_t e = sizeof(real);
    CutSizes whole = cut_sizes(&t->model, 1, 0);
    CompressionCosts want = compression_costs(&whole, plan, run->world->size, run->world->rank);
    const size_t gradients = elements_gradients(&whole) + want.errors; // wte's gradient twice
    check_costs(
        run, page_text(run, "%%s.%s", id_of[plan->method]),
        page_text(run, "%s: %%s", method_name[plan->method]),
        (CostRow[]){
            { "sent", "sent a step", "bytes", BY_FORMULA(want.sent), seen->sent },
            { "calls", "calls a step", "calls", BY_FORMULA((double)want.calls), seen->calls },
            { "gradients", "gradients and errors", "bytes", BY_FORMULA((double)(gradients * e)),
              (double)memory_now(MEM_GRADIENTS) },
            { "kept", "buffers between steps", "bytes", BY_FORMULA((double)(want.factors * e)),
              (double)memory_now(MEM_COMMUNICATION) },
            { "peak", "buffers, peak", "bytes", BY_FORMULA((double)(want.buffers * e)),
              (double)memory_peak(MEM_COMMUNICATION) },
            { 0 } });
}

Trajectory compression_train(Run *run, const Training *t, const CompressionPlan *plan,
                             CompressionSeen *seen) {
    Comm *dp = run->world;
    Trajectory course = trajectory_new(run, t);
    Model *m = whole_model(&t->model);
    Replica r = { .dp = dp, .c = plan ? compression_new(dp, plan, m, run->seed) : NULL };
    comm_ledger_reset(dp);
    Picoseconds begin = clock_now();
    training_run(&course, m, t, dp->size, dp->rank, replica_step, &r);
    if (seen) {
        const double steps = (double)t->steps;
        const Measured all = measured_now(dp);
        *seen = (CompressionSeen){ all.sent / steps, all.calls / steps,
                                   (double)(clock_now() - begin) / steps };
        if (plan) compare_costs(run, t, plan, seen);
    }
    comm_all_reduce_doubles(dp, course.loss, t->steps); // adds the ranks' parts
    if (r.c) compression_free(r.c);
    model_free(m);
    return course;
}

void compression_check_rule(Run *run, const Training *t, const CompressionPlan *plan,
                            CompressionSeen *seen) {
    const char *what = page_text(run, "%s = the rule on one device", method_name[plan->method]);
    // Only PowerSGD adds with all-reduces. If the library chooses the order of additions, rounding
    // differs, and an orthonormalisation may enlarge the difference.
    double limit = plan->method == POWER_SGD && exact_limit(run) > 0 ? 100 * LIMIT_ROUNDING : 0;
    Trajectory got = compression_train(run, t, plan, seen),
               want = one_device_course(run, t, plan, run->world->size);
    training_compare(run, what, &got, &want, limit);
    trajectory_free(&got);
    trajectory_free(&want);
}

// ---------------------------------------------------------------- on text

void compression_curves(Run *run, const Curve *curve, size_t n, double *last) {
    enum { POINTS = 6, EACH = COMPRESSION_LONG / POINTS };
    Training t = text_training(run, COMPRESSION_LONG, 16, option_real(run, "lr"));
    PlotLine lines[MOST_CURVES];
    size_t drawn = 0;
    // Each point is the mean of ten batches, because single batches differ too much.
    double x[POINTS], mean[MOST_CURVES][POINTS] = { { 0 } };
    for (size_t i = 0; i < POINTS; i++) x[i] = (double)((i + 1) * EACH);
    for (size_t i = 0; i < n; i++) {
        double *y = mean[i];
        Trajectory c = curve[i].alone ? one_device_course(run, &t, curve[i].plan, 1)
                                      : compression_train(run, &t, curve[i].plan, NULL);
        for (size_t s = 0; s < COMPRESSION_LONG; s++) y[s / EACH] += c.loss[s] / EACH;
        if (!curve[i].alone) lines[drawn++] = (PlotLine){ curve[i].name, y };
        last[i] = y[POINTS - 1];
        // Rounds the drawn losses to a fiftieth. The signs of numbers near zero depend on the
        // machine's BLAS, so the last digits of a loss do, too.
        for (size_t k = 0; k < POINTS; k++) y[k] = round(50 * y[k]) / 50;
        say_detail(run, "  %-16s loss of the first step %.2f, of the last ten %.2f\n",
                   curve[i].name, c.loss[0], last[i]);
        trajectory_free(&c);
    }
    plot_show(run,
              &(Plot){ .title = "training on compressed gradients",
                       .x_label = "steps",
                       .x = x,
                       .n = POINTS,
                       .y_label = "loss, nats a byte",
                       .lines = lines,
                       .n_lines = drawn },
              PICTURE_DETAIL | (option_given(run, "trace") ? PICTURE_NO_FILES : PICTURE_CHART));
    data_free(&t.data);
}

void compression_show_steps(Run *run, const Training *t, const CompressionPlan *plan,
                            const char *title) {
    Comm *dp = run->world;
    Model *m = whole_model(&t->model);
    Replica exact = { .dp = dp };
    Replica compressed = { .dp = dp, .c = compression_new(dp, plan, m, run->seed) };
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *b = training_batches(t, &tokens, 0, dp->size, dp->rank);
    picture_begin(run, MEM_ACTIVATIONS);
    b->number = 0;
    replica_gradients(&exact, m, b);
    replica_gradients(&compressed, m, b);
    picture_end(run);
    picture_show(run, title, option_given(run, "trace") ? PICTURE_CHART : PICTURE_NO_FILES);
    free(b);
    arena_free(&tokens);
    compression_free(compressed.c);
    model_free(m);
}

const Option compression_options[] = {
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    { "lr", "X", "0.15", "learning rate of the loss curves" },
    { "link", "NAME[,NAME]", "slow", NULL },
    ONLY_STORAGE_OPTION, // no --gradients, because compression needs gradients in reals
    { 0 },
};
