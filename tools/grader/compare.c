// compare.c: the judge of a graded run. The judge reads the records (probe.c) of a run with a
// submitted body and of a run with our own body. Then the judge compares the submitted results with
// the expected results of OUR run. So the verdict of the submitted process does not count.
//
//     compare THEIRS OURS [bits]
//
// The program prints these lines:
//   wrong WHAT|NAME|WHY  for each wrong result
//   other TEXT           if the records are not those of this run
//   page TEXT            at last, the page of the submitted run
// With `bits` a check for equal bits demands equal bits; otherwise the check allows rounding.
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *at, *end;
    bool bad; // the record ends too early
} Reader;
typedef struct {
    const char *text;
    size_t length;
} Text;
typedef struct {
    Text name;
    double rows, cols, missing, clash;
    const double *values;
    size_t n;
} Tensor;

// limits of a check for equal bits if the task does not ask for equal bits. AdamW divides by the
// root of a mean of squares, so AdamW amplifies rounding where the gradient is nearly zero.
static const double rounding = 1e-4, rounding_adamw = 1e-3;

static double number(Reader *r) {
    double x = 0;
    if (r->end - r->at < (long)sizeof x) r->bad = true;
    else {
        memcpy(&x, r->at, sizeof x);
        r->at += sizeof x;
    }
    return x;
}
// Returns a count of letters, numbers or tensors that follow in the record. Each takes at least one
// byte, so no count is larger than the rest of the record.
static size_t how_many(Reader *r) {
    double x = number(r);
    if (!(x >= 0) || x > (double)(r->end - r->at)) r->bad = true;
    return r->bad ? 0 : (size_t)x;
}
static Text text(Reader *r) {
    Text t = { 0 };
    t.length = how_many(r);
    t.text = r->at;
    r->at += t.length;
    return t;
}
static bool same(Text a, Text b) {
    return a.length == b.length && memcmp(a.text, b.text, a.length) == 0;
}
static bool mentions(Text a, const char *word) {
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= a.length; i++)
        if (memcmp(a.text + i, word, n) == 0) return true;
    return false;
}
static bool equals(Text a, const char *b) { return same(a, (Text){ b, strlen(b) }); }

static double *numbers(Reader *r, size_t n) {
    double *x = calloc(n + 1, sizeof *x);
    if (x == NULL) exit(3);
    if (n > (size_t)(r->end - r->at) / sizeof *x) r->bad = true;
    else {
        memcpy(x, r->at, n * sizeof *x);
        r->at += n * sizeof *x;
    }
    return x;
}
static Tensor tensor(Reader *r) {
    Tensor t = { .name = text(r), .rows = number(r) };
    t.cols = number(r);
    t.missing = number(r);
    t.clash = number(r);
    double n = t.rows * t.cols;
    if (!(n >= 0 && n <= (double)(r->end - r->at))) r->bad = true;
    t.n = r->bad ? 0 : (size_t)n;
    t.values = numbers(r, t.n);
    return t;
}

// ---- verdicts ----

static void print_text(Text t) {
    for (size_t i = 0; i < t.length; i++)
        putchar(t.text[i] == '\n' || t.text[i] == '|' ? ' ' : t.text[i]);
}
static void wrong(Text what, Text name, const char *why) {
    printf("wrong ");
    print_text(what);
    printf("|");
    print_text(name);
    printf("|%s\n", why);
}
static void other(const char *why) { printf("other %s\n", why); }

static double largest(const Tensor *t) {
    double most = 0;
    for (size_t i = 0; i < t->n; i++) most = fmax(most, fabs(t->values[i]));
    return most;
}

// Prints a line `wrong` if tensor a is not the expected tensor b. `a` is NULL if the submitted run
// has no such tensor. The error is computed as in judge/frame/check.c. *worst keeps the largest
// error of a check's tensors.
static void compare_tensor(Text kind, Text what, const Tensor *a, const Tensor *b, double over_all,
                           double limit, double *worst) {
    char why[160];
    double difference = 0;
    bool bits = true, differs = equals(kind, "differs");
    if (a == NULL || a->rows != b->rows || a->cols != b->cols || a->missing > 0) {
        wrong(what, b->name, a == NULL ? "no rank has this tensor" : "elements are missing");
        return;
    }
    for (size_t i = 0; i < a->n; i++) {
        if (!isfinite(a->values[i])) {
            wrong(what, b->name, "a value is not a number: memory was read before it was written");
            return;
        }
        difference = fmax(difference, fabs(a->values[i] - b->values[i]));
        bits &= a->values[i] == b->values[i];
    }
    double scale = fmax(largest(b), 1e-3 * over_all),
           error = scale > 0 ? difference / scale : difference;
    *worst = fmax(*worst, error);
    if (differs) return;
    if (a->clash > 0) wrong(what, b->name, "ranks that hold the same elements hold different bits");
    if (limit == 0 ? bits : error <= limit) return;
    snprintf(why, sizeof why, "error %.1e, limit %.1e", error, limit);
    wrong(what, b->name, why);
}

static void compare_tensors(Text kind, Text what, Reader *theirs, Reader *ours, double limit) {
    size_t a_count = how_many(theirs), b_count = 0;
    Tensor *a = calloc(a_count + 1, sizeof *a), *b = NULL;
    double over_all = 0, worst = 0;
    if (a == NULL) exit(3);
    for (size_t i = 0; i < a_count && !theirs->bad; i++) a[i] = tensor(theirs);
    // Our record has two lists of tensors. Only the second list, the expected tensors, is used.
    for (int side = 0; side < 2; side++) {
        b_count = how_many(ours);
        b = calloc(b_count + 1, sizeof *b);
        if (b == NULL) exit(3);
        for (size_t i = 0; i < b_count && !ours->bad; i++) b[i] = tensor(ours);
    }
    for (size_t i = 0; i < b_count; i++) over_all = fmax(over_all, largest(&b[i]));
    for (size_t i = 0; i < b_count; i++) {
        const Tensor *found = NULL;
        for (size_t k = 0; k < a_count; k++)
            if (same(a[k].name, b[i].name)) found = &a[k];
        compare_tensor(kind, what, found, &b[i], over_all, limit, &worst);
    }
    if (equals(kind, "differs") && !(worst >= limit))
        wrong(what, kind, "the wrong method gives right results");
}

// Ranks that hold the same part must hold the same bits, and the parts must be those of our run.
static void compare_replicas(Text what, Reader *theirs, Reader *ours) {
    size_t n = how_many(theirs);
    if (how_many(ours) != n) wrong(what, (Text){ "", 0 }, "other tensors than expected");
    for (size_t t = 0; t < n && !theirs->bad && !ours->bad; t++) {
        Text name = text(theirs), our_name = text(ours);
        size_t prints = how_many(theirs), our_prints = how_many(ours);
        const double *p = numbers(theirs, 4 * prints), *q = numbers(ours, 4 * our_prints);
        bool parts = same(name, our_name) && prints == our_prints, differ = false, nan = false;
        for (size_t i = 0; i < prints && parts; i++) {
            parts = p[4 * i] == q[4 * i] && p[4 * i + 2] == q[4 * i + 2];
            nan |= p[4 * i + 3] > 0;
            for (size_t k = 0; k < i; k++)
                differ |= p[4 * i] == p[4 * k] && p[4 * i + 2] == p[4 * k + 2] &&
                          p[4 * i + 1] != p[4 * k + 1];
        }
        if (!parts) wrong(what, our_name, "elements are missing");
        else if (nan)
            wrong(what, name, "a value is not a number: memory was read before it was written");
        else if (differ) wrong(what, name, "ranks that hold the same elements hold different bits");
    }
}

static void compare_numbers(Text what, Reader *theirs, Reader *ours, double limit) {
    Text name = text(theirs);
    char why[160];
    size_t n = how_many(theirs);
    text(ours);
    size_t our_n = how_many(ours);
    const double *a = numbers(theirs, n), *b = numbers(ours, our_n);
    b = numbers(ours, our_n);
    double scale = 0, difference = 0;
    bool bits = true;
    size_t first = 0;
    if (n != our_n) {
        wrong(what, name, "another number of values");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i])) {
            wrong(what, name, "a value is not a number");
            return;
        }
        scale = fmax(scale, fabs(b[i]));
        difference = fmax(difference, fabs(a[i] - b[i]));
        bits &= a[i] == b[i];
    }
    double error = scale > 0 ? difference / scale : difference;
    if (limit == 0 ? bits : error <= limit) return;
    while (first + 1 < n && fabs(a[first] - b[first]) <= limit * scale) first++;
    snprintf(why, sizeof why, "error %.1e, limit %.1e, from number %zu", error, limit, first);
    wrong(what, name, why);
}

// ---- files ----

static Reader read_file(const char *name) {
    FILE *f = fopen(name, "rb");
    if (f == NULL || fseek(f, 0, SEEK_END) != 0) {
        perror(name);
        exit(3);
    }
    long size = ftell(f);
    rewind(f);
    char *data = malloc((size_t)size + 1);
    if (data == NULL || fread(data, 1, (size_t)size, f) != (size_t)size) exit(3);
    fclose(f);
    return (Reader){ data, data + size, false };
}
static Reader record(Reader *file) {
    size_t n = how_many(file);
    Reader r = { file->at, file->at + n, file->bad };
    file->at += n;
    return r;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    bool exact = argc > 3 && strcmp(argv[3], "bits") == 0;
    Reader their_file = read_file(argv[1]), our_file = read_file(argv[2]);
    Text page = { 0 };
    while (our_file.at < our_file.end && !their_file.bad) {
        if (their_file.at == their_file.end) {
            other("the run ended before its last check");
            return 0;
        }
        Reader a = record(&their_file), b = record(&our_file);
        Text kind = text(&a), what = text(&a), our_kind = text(&b), our_what = text(&b);
        number(&a);
        double limit = number(&b);
        if (limit == 0 && !exact) limit = mentions(what, "AdamW") ? rounding_adamw : rounding;
        if (!same(kind, our_kind) || !same(what, our_what)) {
            other("the checks are not those of this run");
            return 0;
        }
        if (equals(kind, "page")) page = text(&a);
        else if (equals(kind, "replicas")) compare_replicas(what, &a, &b);
        else if (equals(kind, "numbers")) compare_numbers(what, &a, &b, limit);
        else if (equals(kind, "holds")) {
            Text name = text(&a);
            if (number(&a) != 1) wrong(what, name, "the statement does not hold on every rank");
        } else compare_tensors(kind, what, &a, &b, limit);
        their_file.bad |= a.bad;
    }
    if (their_file.bad || their_file.at != their_file.end || page.length == 0)
        other("the records are not complete");
    printf("page %.*s\n", (int)page.length, page.length > 0 ? page.text : "");
    return 0;
}
