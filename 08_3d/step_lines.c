// step_lines.c decides when a step gets a line, and writes that line.
#include "08_3d/step_lines.h"
#include <math.h>
#include <stdio.h>
#include "08_3d/cores.h"
#include "common/device/device.h"
#include "common/comm/clock.h"
#include "common/model/costs.h"

static const double BETWEEN_LINES = 10; // seconds
// After this many seconds the weight of a step in the moving mean has fallen to 1/e.
static const double REMEMBERED = 30;
static const double PATIENCE = 0.3; // seconds that measure_peak() takes

StepLines step_lines_begin(const TrainerConfig *c, size_t from, size_t steps) {
    StepLines s = { .from = from, .steps = steps, .flops = work_model(&c->model, c->batch).flops };
    s.at_once = ranks_at_once();
    s.begun = now();
    s.shown = s.begun;
    return s;
}

// Returns the FLOP/s of one product of two n x n matrices, or 0 if memory is too small. Neither the
// clock nor the ledger records this product.
static double product_rate(int n) {
    const size_t bytes = (size_t)n * (size_t)n * sizeof(real);
    real *a = device_alloc(bytes);
    real *b = device_alloc(bytes);
    real *c = device_alloc(bytes);
    double rate = 0;
    if (a && b && c) {
        device_fill(a, 0, bytes);
        device_fill(b, 0, bytes);
        device_synchronize();
        double start = now();
        device_gemm(0, 0, n, n, n, a, n, b, n, c, n);
        device_synchronize();
        rate = 2 * pow(n, 3) / (now() - start);
    }
    device_free(a);
    device_free(b);
    device_free(c);
    return rate;
}

// Returns the largest FLOP/s of several products that this rank computes. If a product takes less
// than a millisecond, the next product is larger, up to a limit.
static double measure_peak(void) {
    const double too_short = 1e-3; // seconds
    const int most = device_is_gpu() ? 4096 : 1024;
    double best = 0;
    int n = 1024;
    for (double end = now() + PATIENCE; now() < end;) {
        double rate = product_rate(n);
        if (rate == 0) break;
        best = fmax(best, rate);
        if (2 * pow(n, 3) / rate < too_short && n < most) n *= 2;
    }
    return best;
}

static void time_left(char text[32], double seconds) {
    size_t s = (size_t)seconds;
    if (s >= 3600) snprintf(text, 32, "%zu h %zu min", s / 3600, s / 60 % 60);
    else if (s >= 60) snprintf(text, 32, "%zu min %zu s", s / 60, s % 60);
    else snprintf(text, 32, "%zu s", s);
}

static void write_line(char line[STEP_LINE], const StepLines *s, size_t step, StepResult r,
                       double lr, double scale) {
    double passed = now() - s->begun;
    size_t done = step + 1 - s->from;
    char left[48] = "", share[32] = "", scaled[40] = "", text[32];
    time_left(text, passed / (double)done * (double)(s->steps - step - 1));
    if (done > 1 && step + 1 < s->steps) snprintf(left, sizeof left, ", %s left", text);
    if (scale > 0) snprintf(scaled, sizeof scaled, "   loss scale %.0f", scale);
    if (s->peak > 0)
        snprintf(share, sizeof share, ", MFU %.1f %%",
                 100 * s->flops * s->counted / s->seconds / s->peak / s->at_once);
    const char *real_time = clock_config()->simulated ? " real time" : "";
    snprintf(line, STEP_LINE,
             "step %5zu   loss %7.4f   gradient norm %8.4f   lr %-8.3g %8.0f tokens/s%s%s%s%s",
             step, r.loss, r.norm, lr, s->tokens / s->seconds, real_time, left, share, scaled);
}

bool step_lines_add(StepLines *s, size_t step, StepResult r, double lr, double scale, size_t tokens,
                    double seconds, char line[STEP_LINE]) {
    double remembered = exp(-seconds / REMEMBERED);
    s->counted = s->counted * remembered + 1;
    s->tokens = s->tokens * remembered + (double)tokens;
    s->seconds = s->seconds * remembered + seconds;
    if (this_rank > 0) return false;
    size_t tenth = s->steps > 10 ? s->steps / 10 : 1;
    bool late = now() - s->shown >= BETWEEN_LINES;
    if (!late && step != s->from && step % tenth != 0 && step + 1 != s->steps) return false;
    if (late && s->peak == 0) s->peak = measure_peak();
    write_line(line, s, step, r, lr, scale);
    s->shown = now();
    return true;
}
