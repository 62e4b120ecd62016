// test_lesson.c: runs the mode that --mode names. In most modes the program makes a mistake, which
// the frame (judge/frame) must notice.
//
// ranks: 3
// level: core
// question: Does the frame "notice" every kind of mistake?
#include "judge/frame/lesson.h"
#include "common/tensor/random.h"
#include "tests/cost.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 6, COLS = 5, COUNT = ROWS * COLS };
enum { BY_ROWS, BY_COLS, FLAT, INDEXED, REPLICA, MORE }; // tensors, and how they are cut
static const char *const names[] = { "by rows", "by cols", "flat",   "indexed",
                                     "replica", "more 1",  "more 2", "more 3" };

typedef struct {
    real change;
    bool poison;
} Mistake; // the mistake in the last element of a part
static const Mistake none = { 0 };

static real element(size_t tensor, size_t i) {
    return (real)(random_unit(random_key(tensor, i)) - 0.5);
}

// Returns one rank's part of a tensor, from the global indices of the part's elements.
static Tensor part_new(Arena *a, size_t tensor, size_t rows, size_t cols, const size_t *index,
                       Mistake m) {
    real *values = host_alloc(rows * cols * sizeof *values);
    for (size_t i = 0; i < rows * cols; i++) values[i] = element(tensor, index[i]);
    if (rows * cols > 0) {
        values[rows * cols - 1] *= 1 + m.change;
        if (m.poison) values[rows * cols - 1] = NAN;
    }
    Tensor t = tensor_new(a, rows, cols);
    tensor_upload(t, values);
    free(values);
    return t;
}

static void put_one(Snapshot *s, Arena *a, size_t tensor, size_t rank, size_t size, Mistake m) {
    size_t index[COUNT], n = 0;
    Range rows = shard_range(ROWS, size, rank), cols = shard_range(COLS, size, rank);
    Range all = shard_range(COUNT, size, rank);
    const char *name = names[tensor];
    if (tensor == BY_ROWS) {
        for (size_t i = rows.lo * COLS; i < rows.hi * COLS; i++) index[n++] = i;
        snapshot_put(s, name, ROWS, COLS, part_new(a, tensor, range_size(rows), COLS, index, m),
                     rows.lo, 0);
    } else if (tensor == BY_COLS) {
        for (size_t r = 0; r < ROWS; r++)
            for (size_t c = cols.lo; c < cols.hi; c++) index[n++] = r * COLS + c;
        snapshot_put(s, name, ROWS, COLS, part_new(a, tensor, ROWS, range_size(cols), index, m), 0,
                     cols.lo);
    } else if (tensor == FLAT) {
        for (size_t i = all.lo; i < all.hi; i++) index[n++] = i;
        snapshot_put_flat(s, name, ROWS, COLS, part_new(a, tensor, 1, n, index, m), all.lo);
    } else if (tensor == INDEXED) {
        for (size_t i = rank; i < COUNT; i += size) index[n++] = COUNT - 1 - i;
        snapshot_put_indexed(s, name, ROWS, COLS, part_new(a, tensor, 1, n, index, m), index);
    } else {
        for (size_t i = 0; i < COUNT; i++) index[n++] = i;
        snapshot_put(s, name, ROWS, COLS, part_new(a, tensor, ROWS, COLS, index, m), 0, 0);
    }
}

typedef struct {
    Run *run;
    const char *mode;
    bool last;
    Arena arena;
} Test;
static bool mode_is(const Test *t, const char *mode) { return strcmp(t->mode, mode) == 0; }

// Returns the snapshot of all parts. The last rank makes the mistake of the mode. In mode `name`
// all ranks leave out a tensor.
static Snapshot *got_new(Test *t, size_t tensors) {
    Comm *world = t->run->world;
    Snapshot *s = snapshot_new(t->run);
    for (size_t tensor = 0; tensor < tensors; tensor++) {
        Mistake m = { 0 };
        if (mode_is(t, "element") && tensor == BY_ROWS) m.change = (real)1e-3;
        if (mode_is(t, "bit") && tensor == BY_ROWS)
            m.change = (real)(sizeof(real) == 8 ? 1e-15 : 5e-7);
        if (mode_is(t, "replicas") && tensor == REPLICA)
            m.change = (real)(sizeof(real) == 8 ? 1e-15 : 5e-7);
        if (mode_is(t, "many") && tensor == MORE) m.change = (real)1e-3;
        if (t->last && mode_is(t, "missing") && tensor == BY_COLS) continue;
        if (mode_is(t, "name") && tensor == FLAT) continue;
        m.poison = mode_is(t, "nan") && tensor == FLAT;
        put_one(s, &t->arena, tensor, world->rank, world->size, t->last ? m : none);
    }
    return s;
}

static Snapshot *want_new(Test *t, size_t tensors) {
    Snapshot *s = snapshot_new(t->run);
    for (size_t tensor = 0; tensor < tensors && t->run->world->rank == 0; tensor++)
        put_one(s, &t->arena, tensor, 0, 1,
                (Mistake){ 0, mode_is(t, "nan-expected") && tensor == FLAT });
    return s;
}

static void check_tensors(Test *t) {
    size_t tensors = mode_is(t, "many") ? MORE + 3 : mode_is(t, "empty") ? 0 : MORE;
    Snapshot *got = got_new(t, tensors), *want = want_new(t, tensors);
    if (mode_is(t, "bit")) check_equal(t->run, "moved = unsplit", got, want);
    else check_close(t->run, "split = unsplit", got, want, LIMIT_ROUNDING);
    if (mode_is(t, "pass")) {
        check_equal(t->run, "moved = unsplit", got, want);
        if (t->run->is_root && snapshot_values(got, "flat")[7] != element(FLAT, 7))
            fault("snapshot_values is wrong");
    }
    if (mode_is(t, "trap")) check_differs(t->run, "a trap that does nothing", got, want, 0.1);
    snapshot_free(got);
    snapshot_free(want);
}

// In the modes print-* the last rank makes a mistake.
static void check_prints(Test *t) {
    Snapshot *s = snapshot_new_prints(t->run);
    Comm *world = t->run->world;
    for (size_t tensor = 0; tensor < MORE; tensor++) {
        Mistake m = { 0 };
        if (mode_is(t, "print-bit") && tensor == REPLICA)
            m.change = (real)(sizeof(real) == 8 ? 1e-15 : 5e-7);
        m.poison = mode_is(t, "print-nan") && tensor == INDEXED;
        if (t->last && mode_is(t, "print-missing") && tensor == BY_COLS) continue;
        put_one(s, &t->arena, tensor, world->rank, world->size, t->last ? m : none);
    }
    // This part overlaps rank 0's part. Both ranks hold elements 0 and 1, but the two ranks are no
    // replicas, because their parts differ.
    size_t index[COUNT];
    for (size_t i = 0; i < COUNT; i++) index[i] = i;
    if (t->last && mode_is(t, "print-overlap"))
        snapshot_put_flat(s, names[FLAT], ROWS, COLS, part_new(&t->arena, FLAT, 1, 2, index, none),
                          0);
    check_replicas(t->run, "replicas", s);
    snapshot_free(s);
}

static void check_rest(Test *t) {
    double losses[3] = { 3.5, 2.25, 0.1 }, expected[3] = { 3.5, 2.25, 0.1 };
    if (mode_is(t, "number")) losses[1] += 1e-3;
    if (mode_is(t, "number-nan")) losses[2] = NAN;
    if (mode_is(t, "number-rank") && t->last) losses[2] = nextafter(losses[2], 1);
    check_numbers(t->run, "split = unsplit", "losses", losses, t->run->is_root ? expected : NULL, 3,
                  1e-6);
    check_true(t->run, "every rank", "agrees", !(mode_is(t, "false") && t->last));
    if (mode_is(t, "pass")) { // check_differs(): another tensor under the same name
        Snapshot *got = snapshot_new(t->run), *want = snapshot_new(t->run);
        size_t index[COUNT];
        for (size_t i = 0; i < COUNT; i++) index[i] = i;
        snapshot_put(got, "w", ROWS, COLS, part_new(&t->arena, 1, ROWS, COLS, index, none), 0, 0);
        if (t->run->is_root)
            snapshot_put(want, "w", ROWS, COLS, part_new(&t->arena, 2, ROWS, COLS, index, none), 0,
                         0);
        check_differs(t->run, "a trap", got, want, 0.1);
        snapshot_free(got);
        snapshot_free(want);
    }
    double bytes = (double)(4096 + t->run->world->rank);
    cost(t->run, "bytes by rank", "bytes", bytes,
         mode_is(t, "cost") && t->last ? bytes + 4 : bytes);
    cost(t->run, "fraction idle", "", 0.1875, mode_is(t, "cost-nan") ? NAN : 0.1875);
    static const char *const columns[] = { "here", NULL };
    static const Result rows[] = { { "bytes", "4096 + rank", { "bytes by rank" } },
                                   { "idle", NULL, { "fraction idle" } },
                                   { "a text", NULL, { "=as it is" } },
                                   { 0 } };
    if (!option_flag(t->run, "verbose")) results(t->run, columns, rows);
}

// Each rank sets its own default. Afterwards the option must have this value, unless the command
// line gave a value.
static void check_defaults(Run *run) {
    char text[24];
    for (size_t i = 0; i < 2; i++) {
        snprintf(text, sizeof text, "%zu", 100 * (i + 1) + run->world->rank);
        option_default(run, "size", text);
        comm_barrier(run->world); // all ranks have set the default
        size_t want = option_given(run, "size") ? 12 : 100 * (i + 1) + run->world->rank;
        check_true(run, "defaults", "every rank has its own", option_size(run, "size") == want);
    }
}

static void lesson(Run *run) {
    Test t = { run, option_text(run, "mode"), run->world->rank + 1 == run->world->size,
               arena(MEM_PARAMETERS) };
    if (option_flag(run, "loud"))
        say(run, "size %zu rate %g note %s given %d", option_size(run, "size"),
            option_real(run, "rate"), option_text(run, "note"), option_given(run, "size"));
    report_config_number(run, "infinite", INFINITY);
    report_config_text(run, "quoted", "a \"b\"\n\\c");
    for (size_t i = 0; mode_is(&t, "open") && t.last && i < 3; i++)
        TODO("00.01a"); // the last rank meets this exercise three times
    if (mode_is(&t, "leak")) tensor_new(&t.arena, 2, 2);
    if (!mode_is(&t, "nothing")) {
        check_tensors(&t);
        check_prints(&t);
        check_rest(&t);
    }
    if (!mode_is(&t, "leak")) arena_free(&t.arena);
    if (mode_is(&t, "default")) check_defaults(run);
    if (mode_is(&t, "page")) { // the cells of a table, and the lines of claims
        cost(run, "spread", "bytes", 1000 * (double)(run->world->rank + 1),
             1000 * (double)(run->world->rank + 1));
        cost(run, "share", "millionths", 100000, 100000);
        cost(run, "share", "millionths", 272727,
             272727); // a cell shows the last cost of this name
        check_true(run, "SGD: a = b", "x", true);
        check_true(run, "AdamW: a = b, y", "", true);
        results(run, (const char *const[]){ "here", NULL },
                (const Result[]){
                    { "spread", NULL, { "spread" } }, { "share", NULL, { "share" } }, { 0 } });
    }
    if (mode_is(&t, "cost")) say_answer(run, "nothing, because a cost differs");
    if (mode_is(&t, "page")) {
        say_answer(run, "Rank 2 holds %s, at most %.0f bytes.", cost_text(run, "spread"),
                   cost_value(run, "spread"));
        say_cost(run, "one message");
        say_use_when(run, "there is a test.");
    }
    if (mode_is(&t, "slow") && run->is_root) sleep(25); // as if rank 0 wrote a large file
    // The done parts are the milliseconds since --rate, the time when the test began. So the first
    // number on the screen shows the test when the progress appeared.
    const size_t parts = 1000000000;
    for (size_t i = 0; mode_is(&t, "long") && i < 100; i++) {
        progress(run, "part", (size_t)(1000 * (now() - option_real(run, "rate"))), parts);
        if (run->is_root) usleep(30000);
        if (i == 90) say(run, "a line in between\n");
    }
    if (mode_is(&t, "long")) progress(run, "part", parts, parts);
}

static const Option options[] = {
    { "mode",
      "pass|element|bit|nan|nan-expected|missing|name|empty|replicas|many|trap|number|number-nan|"
      "number-rank"
      "|false|cost|cost-nan|nothing|leak|page|default|slow|long|open"
      "|print-bit|print-nan|print-missing|print-overlap",
      "pass", "the mistake that the program makes" },
    { "size", "N", "5", "a whole number" },
    { "rate", "X", "0.5", "a real number" },
    { "note", "TEXT", "none", "a text" },
    { "loud", NULL, NULL, "print the options" },
    { 0 },
};
EXPERIMENT(lesson, options);
