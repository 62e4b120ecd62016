// check.c: compares results with expected results. Rank 0 compares copies that it receives over the
// side channel, and sends the verdict to every rank. A check of tensors fails if there is no
// tensor, if a name is missing on one side, or if a shape differs. The check also fails if an
// element is missing or NaN. Replicas that differ fail every check of tensors except check_differs.
// An infinite value fails check_close and check_differs.
#include "judge/frame/frame.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { CLOSE, EQUAL, DIFFERS } Mode;
// A comparison of more than LINES_EACH tensors prints one line for all tensors; check_differs
// always does. At most LINES_EACH failed tensors are described, and the other failed tensors are
// counted.
enum { LINES_EACH = 6 };

typedef struct {
    const char *name;
    double error;
    bool pass;
    char trouble[360];
} Finding;

#define DIGITS (sizeof(real) == 8 ? 17 : 9) // enough digits to distinguish any two reals

static void __attribute__((format(printf, 2, 3))) trouble(Finding *f, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(f->trouble, sizeof f->trouble, format, args);
    va_end(args);
}

// ---- one tensor ----

// Returns whether w has a missing element, or a value that cannot be compared. Only EQUAL allows
// infinities.
static bool unfit(Finding *f, const Whole *w, const char *side, Mode mode) {
    for (size_t i = 0; i < w->rows * w->cols; i++) {
        size_t row = i / w->cols, col = i % w->cols;
        if (w->owner[i] == 0) {
            trouble(f, "%s: element (%zu, %zu) of [%zu, %zu] was put by no rank (%s)", w->name, row,
                    col, w->rows, w->cols, side);
            return true;
        }
        if (isnan(w->values[i]) || (mode != EQUAL && !isfinite(w->values[i]))) {
            const char *kind = isnan(w->values[i]) ? "NaN" : "infinity";
            trouble(f, "%s: %s at (%zu, %zu), put by rank %u (%s)", w->name, kind, row, col,
                    w->owner[i] - 1, side);
            return true;
        }
    }
    return false;
}

static bool clashes(Finding *f, const Whole *w) {
    if (!w->clash) return false;
    trouble(f, "%s: ranks %zu and %zu hold different bits at (%zu, %zu): %.*g and %.*g", w->name,
            w->clash_rank[0], w->clash_rank[1], w->clash_at / w->cols, w->clash_at % w->cols,
            DIGITS, (double)w->clash_value[0], DIGITS, (double)w->clash_value[1]);
    return true;
}

// difference: the largest difference of two elements.
// at: the first element with this difference and with different bits.
// different: the number of elements with different bits.
typedef struct {
    double difference;
    size_t at, different;
} Worst;
static Worst worst_of(const Whole *got, const Whole *want) {
    Worst w = { 0 };
    for (size_t i = 0; i < got->rows * got->cols; i++) {
        if (real_bits(got->values[i]) == real_bits(want->values[i])) continue;
        double d = fabs((double)got->values[i] - (double)want->values[i]);
        if (w.different++ == 0 || d > w.difference) {
            w.difference = d;
            w.at = i;
        }
    }
    return w;
}

static void compare_tensor(Finding *f, const Whole *got, const Whole *want, double over_all,
                           double limit, Mode mode) {
    f->name = got != NULL ? got->name : want->name;
    f->error = NAN;
    if (got == NULL || want == NULL) {
        trouble(f, "%s: %s", f->name,
                got == NULL ? "no rank put this tensor" : "the expected result has no such name");
        return;
    }
    if (got->rows != want->rows || got->cols != want->cols) {
        trouble(f, "%s: shape [%zu, %zu], expected [%zu, %zu]", f->name, got->rows, got->cols,
                want->rows, want->cols);
        return;
    }
    if (unfit(f, got, "got", mode) || unfit(f, want, "expected", mode)) return;
    Worst w = worst_of(got, want);
    double scale = fmax(whole_largest(want), 1e-3 * over_all);
    // Only one replica was compared, so a larger difference between the replicas replaces the
    // error.
    if (got->clash && mode != DIFFERS)
        w.difference =
            fmax(w.difference, fabs((double)got->clash_value[0] - (double)got->clash_value[1]));
    f->error = scale > 0 && isfinite(scale) ? w.difference / scale : w.difference;
    // A check that expects a difference ignores replicas that differ, because only the worst tensor
    // decides.
    if (mode != DIFFERS && (clashes(f, got) || clashes(f, want))) return;
    f->pass = mode == EQUAL ? w.different == 0 : f->error <= limit;
    if (mode == DIFFERS) f->pass = true;
    if (f->pass) return;
    trouble(f,
            "%s: worst element (%zu, %zu) of [%zu, %zu]: got %.*g from rank %u, expected %.*g; %zu "
            "of %zu differ",
            f->name, w.at / got->cols, w.at % got->cols, got->rows, got->cols, DIGITS,
            (double)got->values[w.at], got->owner[w.at] - 1, DIGITS, (double)want->values[w.at],
            w.different, got->rows * got->cols);
}

// ---- a set of tensors ----

static uint64_t digest_of(const Snapshot *s) {
    uint64_t sum = 0;
    for (size_t t = 0; t < s->count; t++) {
        const Whole *w = &s->wholes[t];
        uint64_t key = text_hash(w->name);
        for (size_t i = 0; i < w->rows * w->cols; i++)
            if (w->owner[i] != 0) sum += element_digest(key, i, w->values[i]);
    }
    return sum;
}

// Compares the expected tensors in their order, then the tensors that only `got` has. Returns the
// number of findings, which is at least one.
static size_t compare_all(Finding *findings, Snapshot *got, Snapshot *want, double limit,
                          Mode mode) {
    size_t count = 0;
    double over_all = 0;
    for (size_t i = 0; i < want->count; i++)
        over_all = fmax(over_all, whole_largest(&want->wholes[i]));
    for (size_t i = 0; i < want->count; i++) {
        const Whole *w = &want->wholes[i];
        compare_tensor(&findings[count++], snapshot_find(got, w->name), w, over_all, limit, mode);
    }
    for (size_t i = 0; i < got->count; i++)
        if (snapshot_find(want, got->wholes[i].name) == NULL)
            compare_tensor(&findings[count++], &got->wholes[i], NULL, over_all, limit, mode);
    if (count == 0) {
        findings[count] = (Finding){ .name = "no tensor", .error = NAN };
        trouble(&findings[count++], "nothing was put: there is nothing to compare");
    }
    return count;
}

// Returns whether a is worse than b. Findings without an error come first, then failed findings,
// then larger errors.
static bool worse(const Finding *a, const Finding *b) {
    if (isnan(a->error) || isnan(b->error)) return isnan(a->error) && !isnan(b->error);
    if (a->pass != b->pass) return !a->pass;
    return a->error > b->error;
}

static void print_line(Run *run, const char *what, const char *name, const Finding *f, double limit,
                       Mode mode) {
    char error[24], bound[24];
    snprintf(error, sizeof error, mode == EQUAL && f->pass ? "every bit" : "max %.1e", f->error);
    snprintf(bound, sizeof bound,
             limit == 0        ? "limit 0"
             : mode == DIFFERS ? "least %.1e"
                               : "limit %.1e",
             limit);
    CheckKind kind = mode == EQUAL ? CHECK_BITS : CHECK_CLOSE;
    if (mode == DIFFERS) kind = CHECK_DIFFERS;
    report_check(run, (CheckRecord){ (char *)what, (char *)name, f->error, limit, f->pass, kind },
                 error, bound);
}

static bool print_findings(Run *run, const char *what, const Finding *findings, size_t count,
                           double limit, Mode mode) {
    size_t failed = 0, worst = 0, told = 0;
    for (size_t i = 0; i < count; i++) {
        failed += !findings[i].pass;
        if (worse(&findings[i], &findings[worst])) worst = i;
    }
    bool shared = count > LINES_EACH || mode == DIFFERS;
    if (shared) {
        char name[160];
        Finding all = findings[worst];
        if (mode == DIFFERS) failed += !(all.error >= limit);
        all.pass = failed == 0;
        if (count > 1) snprintf(name, sizeof name, "%zu tensors, worst %s", count, all.name);
        else snprintf(name, sizeof name, "%s", all.name);
        print_line(run, what, name, &all, limit, mode);
    }
    for (size_t i = 0; i < count; i++) {
        if (!shared) print_line(run, what, findings[i].name, &findings[i], limit, mode);
        if (!findings[i].pass && told++ < LINES_EACH) report_detail(findings[i].trouble);
    }
    if (told > LINES_EACH) printf("    and %zu more tensors\n", told - LINES_EACH);
    return failed == 0;
}

static bool check(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit,
                  Mode mode) {
    bool pass = false;
    ledger_pause();
    snapshot_join(got);
    snapshot_join(want);
    if (run->world->rank == 0) {
        Finding *findings = host_alloc((got->count + want->count + 1) * sizeof *findings);
        size_t count = compare_all(findings, got, want, limit, mode);
        pass = print_findings(run, what, findings, count, limit, mode);
        if (mode != DIFFERS) run->state->digest += digest_of(got);
        if (!pass && mode != DIFFERS) diagnose_tensors(run, what, got, want, limit);
        free(findings);
    }
    side_broadcast(&pass, sizeof pass);
    ledger_resume();
    return pass;
}

bool check_close(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit) {
    return check(run, what, got, want, limit, CLOSE);
}
bool check_equal(Run *run, const char *what, Snapshot *got, Snapshot *want) {
    return check(run, what, got, want, 0, EQUAL);
}
bool check_differs(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit) {
    return check(run, what, got, want, limit, DIFFERS);
}

// ---- fingerprints ----

// Compares the fingerprints of a tensor's parts. Adds the digests of distinct parts to *digest.
static void compare_prints(Finding *f, const Whole *w, uint64_t *digest) {
    uint64_t places = 0, all = 0, key = text_hash(w->name);
    size_t count = 0, n = w->rows * w->cols;
    f->name = w->name;
    f->error = NAN;
    for (size_t i = 0; i < w->print_count; i++) {
        const PartPrint *p = &w->prints[i];
        size_t first = 0; // the first fingerprint of this part
        while (w->prints[first].places != p->places || w->prints[first].count != p->count) first++;
        if (p->nans > 0) trouble(f, "%s: %zu NaN, put by rank %zu", w->name, p->nans, p->rank);
        if (p->digest != w->prints[first].digest)
            trouble(f, "%s: ranks %zu and %zu hold different bits of the same %zu elements",
                    w->name, w->prints[first].rank, p->rank, p->count);
        if (f->trouble[0] != 0) return;
        if (first < i) continue;
        places += p->places;
        count += p->count;
        *digest += p->digest;
    }
    for (size_t i = 0; i < n; i++) all += random_key(key, i);
    if (count != n || places != all)
        trouble(f, "%s: the ranks' parts have %zu elements of [%zu, %zu], or overlap", w->name,
                count, w->rows, w->cols);
    else f->error = 0;
    f->pass = f->error == 0;
}

bool check_replicas(Run *run, const char *what, Snapshot *got) {
    bool pass = false;
    ledger_pause();
    snapshot_join(got);
    if (run->world->rank == 0) {
        Finding *findings = host_alloc((got->count + 1) * sizeof *findings);
        for (size_t i = 0; i < got->count; i++)
            compare_prints(&findings[i], &got->wholes[i], &run->state->digest);
        if (got->count == 0) trouble(&findings[0], "nothing was put: there is nothing to compare");
        pass = print_findings(run, what, findings, got->count > 0 ? got->count : 1, 0, EQUAL);
        free(findings);
    }
    side_broadcast(&pass, sizeof pass);
    ledger_resume();
    return pass;
}

// ---- numbers that are the same on every rank ----

static uint64_t double_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

// Returns whether any rank holds other numbers than rank 0. `all` has n numbers of each rank, in
// rank order.
static bool ranks_differ(Finding *f, const double *all, const size_t *sizes, size_t ranks,
                         size_t n) {
    for (size_t r = 1; r < ranks; r++) {
        if (sizes[r] != n * sizeof *all) {
            trouble(f, "%s: rank %zu has %zu numbers and rank 0 %zu", f->name, r,
                    sizes[r] / sizeof *all, n);
            return true;
        }
        for (size_t i = 0; i < n; i++) {
            if (double_bits(all[i]) == double_bits(all[r * n + i])) continue;
            trouble(f, "%s: ranks 0 and %zu hold different bits at number %zu: %.17g and %.17g",
                    f->name, r, i, all[i], all[r * n + i]);
            return true;
        }
    }
    return false;
}

static void compare_numbers(Finding *f, const double *got, const double *want, size_t n,
                            double limit) {
    double scale = 0, difference = 0;
    size_t at = 0;
    bool bits = true;
    f->error = NAN;
    if (n == 0) {
        trouble(f, "%s: there is no number to compare", f->name);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(got[i]) || !isfinite(want[i])) {
            trouble(f, "%s: number %zu is %g, expected %g", f->name, i, got[i], want[i]);
            return;
        }
        scale = fmax(scale, fabs(want[i]));
        bits &= double_bits(got[i]) == double_bits(want[i]);
        if (fabs(got[i] - want[i]) > difference) {
            difference = fabs(got[i] - want[i]);
            at = i;
        }
    }
    f->error = scale > 0 ? difference / scale : difference;
    f->pass = limit > 0 ? f->error <= limit : bits;
    if (!f->pass)
        trouble(f,
                "%s: worst is number %zu (from 0) of %zu: got %.17g, expected %.17g (from rank 0)",
                f->name, at, n, got[at], want[at]);
}

bool check_numbers(Run *run, const char *what, const char *name, const double *got,
                   const double *want, size_t n, double limit) {
    bool pass = false;
    size_t *sizes = NULL;
    ledger_pause();
    void *all = side_gather(got, n * sizeof *got, &sizes);
    if (run->world->rank == 0) {
        Finding f = { .name = name };
        compare_numbers(&f, got, want, n, limit);
        if (ranks_differ(&f, all, sizes, run->world->size, n)) f.pass = false;
        pass = f.pass;
        print_line(run, what, name, &f, limit, limit > 0 ? CLOSE : EQUAL);
        if (!pass) {
            report_detail(f.trouble);
            diagnose_numbers(run, what, name, got, want, n, limit);
        }
        uint64_t key = text_hash(name);
        for (size_t i = 0; i < n; i++)
            run->state->digest += random_key(random_key(key, i), double_bits(got[i]));
    }
    side_broadcast(&pass, sizeof pass);
    ledger_resume();
    free(all);
    free(sizes);
    return pass;
}

bool check_true(Run *run, const char *what, const char *name, bool holds) {
    unsigned char local = holds;
    size_t missing = 0, first = 0, *sizes = NULL;
    ledger_pause();
    void *all = side_gather(&local, sizeof local, &sizes);
    if (run->world->rank == 0) {
        for (size_t r = run->world->size; r-- > 0;)
            if (!((unsigned char *)all)[r]) {
                missing++;
                first = r;
            }
        CheckRecord record = { (char *)what, (char *)name, (double)missing, 0,
                               missing == 0, CHECK_HOLDS };
        report_check(run, record, missing == 0 ? "holds" : "does not", "on every rank");
        Finding f = { .name = name };
        trouble(&f, "%s: does not hold on %zu of %zu ranks, first on rank %zu", name, missing,
                run->world->size, first);
        if (missing > 0) {
            report_detail(f.trouble);
            diagnose_statement(run, what, name, missing);
        }
    }
    side_broadcast(&missing, sizeof missing);
    ledger_resume();
    free(all);
    free(sizes);
    return missing == 0;
}
