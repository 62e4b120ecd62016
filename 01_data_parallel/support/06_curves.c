// 06_curves.c: see 06_curves.h.
#include "01_data_parallel/support/06_curves.h"
#include <math.h>
#include "common/lesson/plot.h"

enum { CURVES = METHODS + 3, LONG = 60, POINTS = 6, EACH = LONG / POINTS };
// Nats a byte: the exact training comes down by 2.5, the others must come within a tenth of that. Forgetful ones stay
// behind by 0.08 and more, in all of 35 runs with 2 to 8 ranks and 15 seeds; by less where there is a single rank.
static const double NEAR = 0.25, BEHIND = 0.02;

void compression_curves(Run *run, const Training *short_one, const CompressionPlan *plans, CompressedTraining *train) {
    static const ModelConfig reader = { .layers = 1, .width = 32, .heads = 2, .context = 16, .vocab = 256 };
    Training t = *short_one;
    t.data = training_text(run, option_text(run, "data"), reader.context);
    t.model = reader;
    t.model.seed = run->seed;
    t.steps = LONG;
    t.sequences = 16;
    t.optimizer = sgd(option_real(run, "lr"));
    const char *names[CURVES] = { "exact", "fp16", "top-k", "1-bit", "PowerSGD", "top-k, forgets", "1-bit, forgets" };
    PlotLine lines[CURVES];
    double x[POINTS], mean[CURVES][POINTS] = {{0}}, end[CURVES];       // of ten batches: single ones differ too much
    for (size_t i = 0; i < POINTS; i++) x[i] = (double)((i + 1) * EACH);
    for (size_t i = 0; i < CURVES; i++) {
        CompressionPlan plan = plans[i == 0 ? 0 : i <= METHODS ? i - 1 : i == METHODS + 1 ? TOP_K : ONE_BIT];
        plan.forgets = i > METHODS;
        Trajectory c = train(run, &t, i ? &plan : NULL, NULL);
        for (size_t s = 0; s < LONG; s++) mean[i][s / EACH] += c.loss[s] / EACH;
        lines[i] = (PlotLine){ names[i], mean[i] };
        end[i] = mean[i][POINTS - 1];
        // Drawn to a fiftieth: signs of numbers near zero depend on the machine's BLAS, and with them the last digits.
        for (size_t k = 0; k < POINTS; k++) mean[i][k] = round(50 * mean[i][k]) / 50;
        say(run, "  %-16s loss of the first step %.2f, of the last ten %.2f\n", names[i], c.loss[0], end[i]);
        trajectory_free(&c);
    }
    for (size_t i = 1; i <= METHODS; i++)
        check_true(run, "trained on text", names[i], end[i] < end[0] + NEAR);
    double margin = run->world->size > 1 ? BEHIND : -BEHIND;
    check_true(run, "trap: no error feedback", "top-k learns less", end[METHODS + 1] > end[1 + TOP_K] + margin);
    check_true(run, "trap: no error feedback", "1-bit learns less", end[METHODS + 2] > end[1 + ONE_BIT] + margin);
    plot_show(run, &(Plot){ .title = "training on compressed gradients", .x_label = "steps", .x = x, .n = POINTS,
                            .y_label = "loss, nats a byte", .lines = lines, .n_lines = CURVES }, PICTURE_CHART);
    data_free(&t.data);
}
