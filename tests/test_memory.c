// test_memory.c: tests the ledger, arenas, tensors as storage (views, copies, values, sums), the
// device's marks, and that a step touches no new memory.
//
// ranks: 1
// level: core
// question: Is every byte counted, every misuse noticed, every element where its view says?
#include <math.h>
#include <pthread.h>
#include <sys/resource.h>
#include "common/model/data.h"
#include "common/device/device.h"
#include "common/model/optimizer.h"
#include "common/tensor/random.h"
#include "common/tensor/tensor.h"
#include "tap.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

// ---- the ledger ----

static void test_ledger(void) {
    memory_rank_begin();
    Arena a = arena(MEM_ACTIVATIONS), g = arena(MEM_GRADIENTS);
    arena_alloc(&a, 100);
    arena_alloc(&g, 50);
    arena_alloc(&a, 7);
    ok(memory_now(MEM_ACTIVATIONS) == 107 && memory_now(MEM_GRADIENTS) == 50,
       "live bytes are the requested bytes");
    ok(arena_bytes(&a) == 107 && arena_bytes(&g) == 50, "arena_bytes() returns an arena's bytes");
    arena_free(&a);
    ok(memory_now(MEM_ACTIVATIONS) == 0 && arena_bytes(&a) == 0, "freed bytes are not live");
    ok(memory_peak(MEM_ACTIVATIONS) == 107 && memory_most() == 157,
       "a peak stays after the memory is freed");
    arena_alloc(&g, 20);
    ok(memory_most() == 157, "the total's peak adds only bytes that were live at the same time");
    memory_reset_peaks();
    ok(memory_peak(MEM_ACTIVATIONS) == 0 && memory_peak(MEM_GRADIENTS) == 70,
       "after a reset the peaks begin with the live bytes");
    Arena r = arena(MEM_REFERENCE);
    arena_alloc(&r, 1000);
    ok(memory_now(MEM_REFERENCE) == 1000 && memory_most() == 157,
       "the reference is not in the total");
    ok(arena_alloc(&a, 0) && memory_now(MEM_ACTIVATIONS) == 0,
       "an allocation of 0 bytes is allowed");
    arena_free(&a);
    arena_free(&g);
    arena_free(&r);
    memory_rank_end();
}

static void test_pause(void) {
    memory_rank_begin();
    Arena a = arena(MEM_PARAMETERS);
    arena_alloc(&a, 10);
    ledger_pause();
    ledger_pause();
    ledger_resume();
    ok(ledger_paused(), "pauses nest");
    arena_alloc(&a, 30);
    ok(memory_now(MEM_PARAMETERS) == 10 && memory_now(MEM_REFERENCE) == 30,
       "while paused, new memory is reference");
    ledger_resume();
    ok(!ledger_paused(), "pauses end");
    arena_alloc(&a, 5);
    ok(memory_now(MEM_PARAMETERS) == 15 && memory_most() == 15,
       "after a pause new memory counts in its category again");
    arena_free(&a);
    ok(memory_now(MEM_PARAMETERS) == 0 && memory_now(MEM_REFERENCE) == 0,
       "a freed block is subtracted from the category that counted it");
    memory_rank_end();
}

static void test_blocks(void) {
    memory_rank_begin();
    Arena a = arena(MEM_WORKSPACE);
    real *first = arena_alloc(&a, 40 * sizeof(real)), seen[40];
    bool all_nan = true;
    device_download(seen, first, sizeof seen);
    for (int i = 0; i < 40; i++) all_nan = all_nan && isnan(seen[i]);
    ok(all_nan, "new memory is NaN");
    ok((uintptr_t)first % 64 == 0, "new memory starts on a cache line");
    device_fill(first, 0, sizeof seen);
    arena_free(&a);
    real *second = arena_alloc(&a, 40 * sizeof(real));
    ok(device_is_gpu() || second == first, "a freed block serves the next request of its size");
    device_download(seen, second, sizeof seen);
    ok(isnan(seen[0]) && isnan(seen[39]), "a freed block is NaN when it is allocated again");
    ok(arena_alloc(&a, 40 * sizeof(real)) != (void *)first,
       "a freed block serves only one request");
    device_fill(second, 0, sizeof *second);
    arena_free(&a);
    memory_set_poison(false);
    real *third = arena_alloc(&a, 40 * sizeof(real)), *fourth = arena_alloc(&a, 40 * sizeof(real));
    device_download(seen, third, sizeof *seen);
    device_download(seen + 1, fourth, sizeof *seen);
    ok(device_is_gpu() || seen[0] == 0 || seen[1] == 0,
       "without poison new memory need not be NaN");
    memory_set_poison(true);
    arena_free(&a);
    memory_rank_end();
}

static size_t seen_by_thread;
static void *other_rank(void *unused) {
    memory_rank_begin();
    seen_by_thread = memory_now(MEM_WORKSPACE);
    Arena a = arena(MEM_WORKSPACE);
    arena_alloc(&a, 11);
    seen_by_thread += memory_now(MEM_WORKSPACE);
    arena_free(&a);
    memory_rank_end();
    return unused;
}
static void test_ranks(void) {
    memory_rank_begin();
    Arena a = arena(MEM_WORKSPACE);
    arena_alloc(&a, 500);
    pthread_t thread;
    if (pthread_create(&thread, NULL, other_rank, NULL) != 0) fault("pthread_create");
    pthread_join(thread, NULL);
    ok(seen_by_thread == 11 && memory_now(MEM_WORKSPACE) == 500, "each rank has its own ledger");
    arena_free(&a);
    memory_rank_end();
}

static void leak(void) {
    Arena a = arena(MEM_OPTIMIZER);
    memory_rank_begin();
    arena_alloc(&a, 123);
    memory_rank_end();
}
static void leak_while_paused(void) {
    Arena a = arena(MEM_OPTIMIZER);
    memory_rank_begin();
    ledger_pause();
    arena_alloc(&a, 9);
    ledger_resume();
    memory_rank_end();
}
static void pause_forever(void) { memory_rank_begin(), ledger_pause(), memory_rank_end(); }
static void resume_first(void) { memory_rank_begin(), ledger_resume(); }
static void free_as(size_t rank) {
    Arena a = arena(MEM_GRADIENTS);
    memory_rank_begin();
    arena_alloc(&a, 64);
    this_rank = rank;
    arena_free(&a);
}
static void foreign_free(void) { free_as(3); }
static void own_free(void) { free_as(this_rank); }
static void foreign_alloc(void) {
    Arena a = arena(MEM_GRADIENTS);
    arena_alloc(&a, 64);
    this_rank = 1;
    arena_alloc(&a, 64);
}
static void write_byte(size_t where) {
    Arena a = arena(MEM_GRADIENTS);
    char *p = arena_alloc(&a, 68);
    device_fill(p + where, 1, 1);
    arena_free(&a);
}
static void write_last(void) { write_byte(67); }
static void write_past(void) { write_byte(68); }
// Allocates two large blocks, with room for only one block.
static void two_large(bool free_the_first) {
    enum { LARGE = 600 << 20 };
    FILE *f = fopen("/proc/self/statm", "r");
    size_t pages = 0;
    if (!f || fscanf(f, "%zu", &pages) != 1) fault("/proc/self/statm cannot be read");
    fclose(f);
    rlim_t most = pages * (size_t)sysconf(_SC_PAGESIZE) + LARGE + LARGE / 2;
    if (setrlimit(RLIMIT_AS, &(struct rlimit){ most, most }) != 0) fault("setrlimit");
    memory_rank_begin();
    memory_set_poison(false); // so that no page of the buffers is touched
    Arena a = arena(MEM_GRADIENTS);
    arena_alloc(&a, LARGE);
    if (free_the_first) arena_free(&a);
    arena_alloc(&a, LARGE + 1000);
    arena_free(&a);
    memory_rank_end();
}
static void one_after_the_other(void) { two_large(true); }
static void both_at_once(void) { two_large(false); }
static void too_much(void) {
    Arena a = arena(MEM_GRADIENTS);
    tensor_new(&a, SIZE_MAX / 8, 16);
}

static void test_misuse(void) {
    ends(leak, 3, "leak: 123 bytes of optimizer");
    ends(leak_while_paused, 3, "leak: 9 bytes of reference");
    ends(pause_forever, 3, "ledger_pause without ledger_resume");
    ends(resume_first, 3, "ledger_resume without a ledger_pause");
    ends(foreign_free, 3, "a buffer of rank 0 (64 bytes of gradients) was given to rank 3");
    ends(foreign_alloc, 3, "an arena belongs to one rank");
    ends(own_free, 0, "");
    ends(write_past, 3, "wrote past the end of a buffer of 68 bytes of gradients");
    ends(write_last, 0, "");
    ends(too_much, 3, "more bytes than a size_t can count");
    // The next two tests limit the address space. Sanitizers need address space themselves, and a
    // GPU's memory is not in the address space.
    if (SANITIZED || device_is_gpu()) return;
    ends(one_after_the_other, 0, "");
    ends(both_at_once, 3,
         "out of memory: 629146600 bytes (600.0 MiB) for one buffer of gradients, beside the 600.0 "
         "MiB");
}

// ---- tensors ----

enum { ROWS = 7, COLS = 13 };
static Arena storage = { .category = MEM_WORKSPACE };

// Returns a tensor whose element (r, c) is 100 r + c.
static Tensor numbered(void) {
    real v[ROWS * COLS];
    for (size_t i = 0; i < ROWS * COLS; i++) v[i] = (real)(100 * (i / COLS) + i % COLS);
    Tensor t = tensor_new(&storage, ROWS, COLS);
    tensor_upload(t, v);
    return t;
}
static bool holds(Tensor t, size_t rows, size_t cols, const double *want) {
    real v[ROWS * COLS];
    if (t.rows != rows || t.cols != cols) return false;
    tensor_download(v, t);
    for (size_t i = 0; i < rows * cols; i++)
        if (!(v[i] == (real)want[i])) return false;
    return true;
}

static void test_views(void) {
    Tensor t = numbered();
    Tensor window = tensor_col_range(tensor_row_range(t, 2, 4), 5, 8);
    ok(holds(window, 2, 3, (double[]){ 205, 206, 207, 305, 306, 307 }),
       "a window on rows and columns");
    ok(holds(tensor_flat_range(t, 12, 15), 1, 3, (double[]){ 12, 100, 101 }),
       "a flat range crosses rows");
    ok(holds(tensor_row_range(tensor_reshape(t, 13, 7), 1, 2), 1, 7,
             (double[]){ 7, 8, 9, 10, 11, 12, 100 }),
       "reshape keeps the order");
    ok(!tensor_contiguous(window) && tensor_contiguous(t) &&
           tensor_contiguous(tensor_row_range(window, 0, 1)),
       "whole rows, or one row, are contiguous");
    ok(tensor_count(tensor_row_range(t, 7, 7)) == 0 && tensor_count(tensor_col_range(t, 0, 0)) == 0,
       "empty views");

    Tensor to = tensor_new(&storage, 4, 5);
    tensor_fill(to, -1);
    tensor_copy(tensor_col_range(tensor_row_range(to, 1, 3), 1, 4), window);
    ok(holds(to, 4, 5, (double[]){ -1, -1,  -1,  -1,  -1, -1, 205, 206, 207, -1,
                                   -1, 305, 306, 307, -1, -1, -1,  -1,  -1,  -1 }),
       "copy and fill keep to their window");
    tensor_fill(window, 5);
    real values[6] = { 1, 2, 3, 4, 5, 6 };
    tensor_upload(window, values);
    ok(holds(tensor_flat_range(t, 2 * 13 + 4, 2 * 13 + 9), 1, 5, (double[]){ 204, 1, 2, 3, 208 }) &&
           holds(tensor_flat_range(t, 3 * 13 + 4, 3 * 13 + 9), 1, 5,
                 (double[]){ 304, 4, 5, 6, 308 }),
       "upload keeps to its window");
    const int ids[3] = { 4, -1, 9 };
    int *on_device = ints_new(&storage, 3), back[3];
    ints_upload(on_device, ids, 3);
    device_download(back, on_device, sizeof back);
    ok(memcmp(ids, back, sizeof ids) == 0, "an upload of ints arrives");
    tensor_fill(tensor_new(&storage, 0, 5), 1);
    tensor_copy(tensor_new(&storage, 5, 0), tensor_new(&storage, 5, 0));
    arena_free(&storage);
}

static void test_randomize(void) {
    enum { N = 20000 };
    Tensor t = tensor_new(&storage, ROWS, COLS), big = tensor_new(&storage, 1, N);
    real v[ROWS * COLS], part[ROWS * 3];
    bool equal = true;
    tensor_randomize(t, 77, 0.5);
    tensor_download(v, t);
    for (size_t i = 0; i < ROWS * COLS; i++)
        equal = equal && v[i] == (real)(0.5 * random_normal(random_key(77, i)));
    ok(equal, "random values are functions of key and index");
    Tensor window = tensor_col_range(t, 4, 7);
    tensor_randomize(window, 5, 1);
    tensor_download(part, window);
    for (size_t i = 0; i < ROWS * 3; i++)
        equal = equal && part[i] == (real)random_normal(random_key(5, i));
    ok(equal, "random values of a window depend on the index in the window");
    tensor_randomize(big, 3, 2);
    const double mean = tensor_sum(big) / N,
                 deviation = sqrt(tensor_sum_of_squares(big) / N - mean * mean);
    ok(fabs(mean) < 0.05 && fabs(deviation - 2) < 0.05, "mean %.3f and deviation %.3f of normals",
       mean, deviation);
    arena_free(&storage);
}

static void test_sums(void) {
    enum { R = 300, C = 1100 }; // C: more terms than one BLOCK (real_math.h)
    Tensor t = tensor_new(&storage, R, C + 3), w = tensor_col_range(t, 2, C + 2);
    real *v = host_alloc(R * C * sizeof *v);
    long double sum = 0, squares = 0;
    tensor_randomize(w, 8, 1);
    tensor_download(v, w);
    for (size_t i = 0; i < R * C; i++) sum += v[i], squares += (long double)v[i] * v[i];
    ok(fabs(tensor_sum(w) - (double)sum) < 1e-10, "sum of a window");
    ok(fabs(tensor_sum_of_squares(w) / (double)squares - 1) < 1e-14, "sum of squares");
    double by_row = 0;
    for (size_t r = 0; r < R; r++) by_row += tensor_sum_of_squares(tensor_row_range(w, r, r + 1));
    ok(by_row == tensor_sum_of_squares(w),
       "sum of squares: each row first, then the rows in order");
    ok(tensor_sum(tensor_row_range(w, 4, 4)) == 0 && tensor_sum(tensor_col_range(w, 4, 4)) == 0,
       "an empty sum is 0");
    tensor_fill(w, (real)0.1);
    ok(fabs(tensor_sum(w) / ((double)(real)0.1 * R * C) - 1) < 1e-14, "a sum is added in double");
    free(v);
    arena_free(&storage);
}

static void rows_outside(void) { tensor_row_range(numbered(), 3, 8); }
static void cols_reversed(void) { tensor_col_range(numbered(), 3, 2); }
static void flat_of_window(void) { tensor_flat_range(tensor_col_range(numbered(), 0, 3), 0, 2); }
static void flat_outside(void) { tensor_flat_range(numbered(), 0, 92); }
static void bad_reshape(void) { tensor_reshape(numbered(), 7, 14); }
static void bad_copy(void) { tensor_copy(numbered(), tensor_reshape(numbered(), 13, 7)); }

// Runs first, because a process that has used a GPU cannot fork a process that uses the GPU.
static void test_faults(void) {
    test_misuse();
    ends(rows_outside, 3, "tensor_row_range: rows 3 to 8 of [7, 13]");
    ends(cols_reversed, 3, "tensor_col_range: columns 3 to 2 of [7, 13]");
    ends(flat_of_window, 3,
         "tensor_flat_range: [7, 3] with 13 elements from row to row is not contiguous");
    ends(flat_outside, 3, "tensor_flat_range: elements 0 to 92 of [7, 13]");
    ends(bad_reshape, 3, "tensor_reshape: [7, 13] to [7, 14]");
    ends(bad_copy, 3, "tensor_copy: [13, 7] to [7, 13]");
}

// On a GPU an op runs after its call has returned. A mark after the op must have the time of the
// op's end, not of the call.
static void test_marks(void) {
    Arena a = arena(MEM_WORKSPACE);
    Tensor t = tensor_new(&a, 2000, 1000);
    bool stays = true, is_new = true, within = true;
    // `share` is the op's time by the mark, divided by the time that the host waited. The largest
    // of five tries counts, because a busy machine may delay the host.
    double share = 0;
    for (int i = 0; i < 5; i++) {
        double begin = now();
        device_mark_start();
        stays = stays && device_mark() == device_mark();
        tensor_randomize(t, 1, 1);
        size_t mark = device_mark();
        is_new = is_new && mark == device_mark() && (mark > 0) == device_is_gpu();
        double took = device_mark_seconds(mark), waited = now() - begin;
        within = within && took <= waited;
        share = fmax(share, took / waited);
    }
    ok(stays, "without queued work the mark stays");
    ok(is_new, "after an op there is a new mark");
    if (device_is_gpu())
        ok(within && share > 0.1, "the mark's time is the end of the op: %g of the wait", share);
    arena_free(&a);
}

// A step must use the memory of the previous step again. The memory must not go back to the system,
// so after some steps almost no page is touched for the first time.
static void test_steady_state(void) {
    enum { STEPS = 10, B = 4, T = 64, MOST = 20 };
    ModelConfig c = {
        .layers = 2, .width = 128, .heads = 4, .context = T, .vocab = 256, .dropout = 0.1, .seed = 1
    };
    Model *m = model_describe(&c, model_layers(&c));
    Optimizer o = adamw(1e-3);
    Data d = data_synthetic(c.vocab, T, 1);
    struct rusage before, after;
    memory_set_poison(false);
    model_allocate(m);
    optimizer_allocate(&o, m);
    for (uint64_t step = 0; step < STEPS; step++) {
        if (step == STEPS / 2) getrusage(RUSAGE_SELF, &before);
        Arena tokens = arena(MEM_WORKSPACE);
        Batch b = data_batch(&d, &tokens, step, 0, B, B);
        model_zero_gradients(m);
        model_forward_backward(m, &b);
        model_fold_tied(m);
        optimizer_step(&o, m, clip_factor(model_grad_norm(m, NULL), 1));
        arena_free(&tokens);
    }
    getrusage(RUSAGE_SELF, &after);
    long pages = after.ru_minflt - before.ru_minflt;
    ok(SANITIZED || device_is_gpu() || pages <= MOST, "a step touches no new page: %ld in %d steps",
       pages, STEPS / 2);
    data_free(&d);
    model_free(m);
    memory_set_poison(true);
}

int main(void) {
    test_faults();
    device_init();
    test_ledger();
    test_pause();
    test_blocks();
    test_ranks();
    memory_rank_begin();
    // This test runs before the tests with large blocks, because glibc keeps more memory after a
    // large block is freed.
    test_steady_state();
    test_views();
    test_randomize();
    test_sums();
    test_marks();
    memory_rank_end();
    return tap_end();
}
