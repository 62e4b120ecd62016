// diagnose.c: writes one sentence about a failed check or cost, on rank 0. For a check of tensors
// the sentence has the wrong tensor or the number of wrong tensors, the factor if one factor fits,
// and the ranks. The page shows the sentence of the first check or cost that failed.
#include "judge/frame/frame.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void wrong(Run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void wrong(Run *run, const char *format, ...) {
    char text[512];
    va_list args;
    if (run->state->wrong != NULL) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    run->state->wrong = text_copy(text);
}

// ---- one factor ----

// fits is true if got = factor * want, up to a small relative difference, and factor is not near 1.
typedef struct {
    double factor;
    bool fits;
} Factor;
enum { TRUSTED_DIGITS = 1000 }; // got may differ from factor * want by 1/1000 of the largest value

static const char *factor_text(char text[48], double factor) {
    if (fabs(factor) < 1e-9) snprintf(text, 48, "all zero");
    else if (fabs(factor + 1) < 1e-3) snprintf(text, 48, "of the wrong sign");
    else if (factor < 0) snprintf(text, 48, "%.4g times the expected values", factor);
    else if (factor < 1) snprintf(text, 48, "%.4g times too small", 1 / factor);
    else snprintf(text, 48, "%.4g times too large", factor);
    return text;
}

static Factor fit(const double *got, const double *want, size_t n) {
    double products = 0, squares = 0, largest = 0, residual = 0;
    for (size_t i = 0; i < n; i++) {
        products += got[i] * want[i];
        squares += want[i] * want[i];
        largest = fmax(largest, fabs(want[i]));
    }
    if (!(squares > 0) || !isfinite(products) || !isfinite(squares)) return (Factor){ 0 };
    double factor = products / squares;
    for (size_t i = 0; i < n; i++) residual = fmax(residual, fabs(got[i] - factor * want[i]));
    double scale = largest * fmax(fabs(factor), 1e-3);
    return (Factor){ factor,
                     residual * TRUSTED_DIGITS <= scale && fabs(factor - 1) * TRUSTED_DIGITS > 1 };
}

static Factor fit_whole(const Whole *got, const Whole *want) {
    size_t n = got->rows * got->cols;
    double *a = host_alloc(2 * n * sizeof *a), *b = a + n;
    for (size_t i = 0; i < n; i++) {
        a[i] = (double)got->values[i];
        b[i] = (double)want->values[i];
    }
    Factor result = fit(a, b, n);
    free(a);
    return result;
}

// ---- one factor on average, and the wrong elements ----

// Sums over the elements of all wrong tensors. The factor that fits these tensors best is products
// / squares.
typedef struct {
    double products, squares;
} Average;
static void average_add(Average *sum, const Whole *got, const Whole *want) {
    for (size_t i = 0; i < want->rows * want->cols; i++) {
        sum->products += (double)got->values[i] * (double)want->values[i];
        sum->squares += (double)want->values[i] * (double)want->values[i];
    }
}

// Returns ", on average 1.75 times too small", or "" if the best factor is nearly 1, nearly 0, or
// does not exist.
static const char *average_text(char text[64], Average sum) {
    double factor = sum.squares > 0 ? sum.products / sum.squares : NAN;
    text[0] = 0;
    if (!isfinite(factor) || fabs(factor) < 1e-3 || fabs(factor - 1) < 0.02) return text;
    if (factor < 0) snprintf(text, 64, ", on average of the wrong sign");
    else if (factor < 1) snprintf(text, 64, ", on average %.3g times too small", 1 / factor);
    else snprintf(text, 64, ", on average %.3g times too large", factor);
    return text;
}

// Returns " (elements 0 to 11 of 48)" if the wrong elements are one range without a gap, but not
// the whole tensor. Otherwise returns "".
static const char *elements_text(char text[80], const Whole *got, const Whole *want, double limit) {
    size_t n = want->rows * want->cols, first = n, last = 0, count = 0;
    for (size_t i = 0; i < n; i++) {
        if (fabs((double)got->values[i] - (double)want->values[i]) <= limit) continue;
        if (count++ == 0) first = i;
        last = i;
    }
    text[0] = 0;
    if (count > 0 && count < n && count == last - first + 1)
        snprintf(text, 80, " (elements %zu to %zu of %zu)", first, last, n);
    return text;
}

// ---- ranks ----

// Names the ranks whose elements differ, such as "on every rank", "on rank 2", "on ranks 1, 3" or
// "on 5 of 8 ranks". Writes "" if only one rank has elements.
static void ranks_text(char text[64], const bool *differs, const bool *holds, size_t ranks) {
    size_t differing = 0, holding = 0, n = 0;
    for (size_t r = 0; r < ranks; r++) {
        differing += differs[r];
        holding += holds[r];
    }
    if (differing == holding) {
        snprintf(text, 64, "%s", holding == 1 ? "" : " on every rank");
        return;
    }
    if (differing > 4) {
        snprintf(text, 64, " on %zu of %zu ranks", differing, holding);
        return;
    }
    n = (size_t)snprintf(text, 64, " on rank%s", differing == 1 ? "" : "s");
    const char *comma = "";
    for (size_t r = 0; r < ranks; r++) {
        if (!differs[r]) continue;
        n += (size_t)snprintf(text + n, 64 - n, "%s %zu", comma, r);
        comma = ",";
    }
}

// ---- what failed ----

static bool comparable(const Whole *got, const Whole *want) {
    return got != NULL && got->values != NULL && got->rows == want->rows && got->cols == want->cols;
}

// Returns the end " of step 0" of a name such as "h.0.mlp.c_fc.weight of step 0". Returns "" if the
// name has no step.
static const char *step_of(const char *name) {
    const char *step = strstr(name, " of step ");
    return step != NULL ? step : "";
}

// Describes the first step that differs. Later steps contain the same error, so the sentence leaves
// them out. A tensor whose elements are all below 1e-3 of the largest element of all tensors does
// not count. Such a tensor may be mathematically zero, so that only rounding remains.
void diagnose_tensors(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit) {
    size_t ranks = run->world->size, differing = 0, same_factor = 0;
    bool *differs = host_alloc(2 * ranks * sizeof *differs), *holds = differs + ranks;
    char which[64] = "", how[48];
    const char *first = NULL;
    size_t tensors = 0;
    double over_all = 0;
    Factor all = { 0 };
    Average average = { 0 };
    char elements[80] = "", mean[64];
    for (size_t t = 0; t < want->count; t++)
        over_all = fmax(over_all, whole_largest(&want->wholes[t]));
    memset(differs, 0, 2 * ranks * sizeof *differs);
    for (size_t t = 0; t < want->count; t++) {
        const Whole *b = &want->wholes[t], *a = snapshot_find(got, b->name);
        double largest = whole_largest(b);
        if (first != NULL && strcmp(step_of(b->name), step_of(first)) != 0) continue;
        if (!comparable(a, b) || largest < 1e-3 * over_all) continue;
        size_t n = a->rows * a->cols;
        bool wrong_tensor = false;
        tensors++;
        for (size_t i = 0; i < n; i++) {
            if (a->owner[i] == 0 || a->owner[i] > ranks) continue;
            bool off = fabs((double)a->values[i] - (double)b->values[i]) > limit * largest;
            holds[a->owner[i] - 1] = true;
            differs[a->owner[i] - 1] |= off;
            wrong_tensor |= off;
        }
        if (!wrong_tensor) continue;
        Factor f = fit_whole(a, b);
        if (first == NULL) {
            first = b->name;
            all = f;
            elements_text(elements, a, b, limit * largest);
            if (t > 0 && strcmp(step_of(b->name), step_of(want->wholes[t - 1].name)) != 0)
                tensors = 1;
        }
        differing++;
        average_add(&average, a, b);
        same_factor +=
            f.fits && all.fits && fabs(f.factor - all.factor) * TRUSTED_DIGITS <= fabs(all.factor);
    }
    ranks_text(which, differs, holds, ranks);
    free(differs);
    if (differing == 0) return;
    const char *step = step_of(first);
    if (same_factor == differing && differing == 1)
        wrong(run, "%s: %s is %s%s.", what, first, factor_text(how, all.factor), which);
    else if (same_factor == differing)
        wrong(run, "%s: %zu of %zu tensors%s are %s%s.", what, differing, tensors, step,
              factor_text(how, all.factor), which);
    else
        wrong(run,
              "%s: %zu of %zu tensors%s differ%s, first %.*s%s; no single factor explains them%s.",
              what, differing, tensors, step, which, (int)(strlen(first) - strlen(step)), first,
              elements, average_text(mean, average));
}

void diagnose_numbers(Run *run, const char *what, const char *name, const double *got,
                      const double *want, size_t n, double limit) {
    Factor f = fit(got, want, n);
    char how[48], mean[64];
    double largest = 0;
    size_t first = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs(want[i]));
    while (first + 1 < n && fabs(got[first] - want[first]) <= limit * largest) first++;
    if (f.fits) {
        wrong(run, "%s: %s is %s.", what, name, factor_text(how, f.factor));
        return;
    }
    average_text(mean, (Average){ f.factor, n > 1 });
    wrong(run,
          "%s: %s differs; no single factor explains it%s. Number %zu of %zu is %.6g instead of "
          "%.6g.",
          what, name, mean, first, n, got[first], want[first]);
}

void diagnose_statement(Run *run, const char *what, const char *name, size_t missing) {
    wrong(run, "%s: \"%s\" does not hold on %zu of %zu ranks.", what, name, missing,
          run->world->size);
}

void diagnose_cost(Run *run, const CostRecord *cost) {
    double factor = cost->wrong.measured / cost->wrong.predicted;
    char measured[32], predicted[32], times[48] = "";
    page_value(measured, sizeof measured, cost->wrong.measured, cost->unit);
    page_value(predicted, sizeof predicted, cost->wrong.predicted, cost->unit);
    if (isfinite(factor) && factor > 0)
        snprintf(times, sizeof times, ", %.4g times as much", factor);
    wrong(run, "%s: measured %s on rank %zu, predicted %s%s.", cost->name, measured,
          cost->wrong_rank, predicted, times);
}
