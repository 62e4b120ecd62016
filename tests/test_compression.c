// test_compression.c: tests fp16 for every bit pattern and for values between two patterns. Also
// tests the choice of the largest elements, the orthogonal columns of Gram and Schmidt, and which
// matrices PowerSGD compresses.
//
// ranks: 1
// level: core
// question: Are the numbers of compression what their formats say?
#include "01_data_parallel/compression.h"
#include "01_data_parallel/compression_items.h"
#include "common/tensor/random.h"
#include "tap.h"

static void halves(void) {
    size_t round_trips = 0, ties = 0, below = 0, above = 0;
    for (unsigned h = 0; h < 0x8000; h++) { // positive numbers; the sign is a separate bit
        const double x = half_value((uint16_t)h);
        const bool nan = h > 0x7c00;
        round_trips +=
            nan ? half_from(x) == 0x7e00 : half_from(x) == h && half_from(-x) == (h | 0x8000);
        if (h >= 0x7c00) continue;
        // `middle` is the value halfway to the next number. After the largest fp16 number the next
        // number would be 65536, with one more exponent.
        const double next = h == 0x7bff ? 65536 : half_value((uint16_t)(h + 1)),
                     middle = (x + next) / 2;
        ties += half_from(middle) == (h + 1) / 2 * 2;
        below += half_from(nextafter(middle, 0)) == h;
        above += half_from(nextafter(middle, INFINITY)) == h + 1;
    }
    ok(round_trips == 0x8000, "every fp16 number is read as itself, with either sign");
    ok(ties == 0x7c00, "a value halfway between two numbers is rounded to the even number");
    ok(below == 0x7c00 && above == 0x7c00,
       "a value beside the middle is rounded to the nearer number");
    ok(half_value(0x3c00) == 1 && half_value(0x7bff) == 65504 && half_value(1) == 0x1p-24 &&
           half_value(0x400) == 0x1p-14,
       "fp16: 1, the largest, the least and the least normal number");
    ok(half_from(1e300) == 0x7c00 && half_from(-1e300) == 0xfc00 && half_from(1e-300) == 0,
       "far outside");
    bool good = true;
    for (size_t n = 1; n < 10; n++)
        for (double largest = 1e-20; largest < 1e20; largest *= 7) {
            const double sum = largest * (double)n * half_scale(largest, n);
            good = good && sum <= 0x1p15 && sum > 0x1p13;
        }
    ok(good && half_scale(0, 3) == 1,
       "scaled sums stay below 2^15, with the largest possible scale");
}

static void largest(void) {
    real x[97];
    bool right = true;
    for (uint64_t round = 0; round < 200; round++) {
        const size_t n = 1 + random_key(round, 1) % 97, k = 1 + random_key(round, 2) % n;
        uint32_t places[97];
        bool chosen[97] = { 0 };
        for (size_t i = 0; i < n; i++)
            x[i] = (real)((int)(random_key(round, 3 + i) % 9) - 4); // many ties
        largest_places(x, n, k, places);
        for (size_t i = 0; i < k; i++) {
            right = right && places[i] < n && (i == 0 || places[i] > places[i - 1]);
            if (places[i] < n) chosen[places[i]] = true;
        }
        for (size_t i = 0; i < n; i++) // larger elements first; of equal elements the first
            for (size_t j = 0; j < n; j++) {
                const double a = fabs((double)x[i]), b = fabs((double)x[j]);
                if (chosen[j] && !chosen[i]) right = right && (b > a || (b == a && j < i));
            }
    }
    ok(right, "top-k chooses the k largest elements, of equal elements the first, in order");
}

static void columns(void) {
    Arena a = arena(MEM_WORKSPACE);
    enum { ROWS = 11, COLS = 5 };
    Tensor p = tensor_new(&a, ROWS, COLS), product = tensor_new(&a, COLS, COLS);
    real x[ROWS * COLS], dot[COLS * COLS];
    double worst = 0;
    for (size_t i = 0; i < ROWS; i++)
        for (size_t c = 0; c < COLS; c++) x[i * COLS + c] = (real)random_normal(random_key(i, c));
    for (size_t i = 0; i < ROWS; i++) {
        // Column 2 is almost in the span of columns 0 and 1.
        x[i * COLS + 2] = x[i * COLS] + x[i * COLS + 1] * (real)(1 + (i == 4) * 1e-3);
        x[i * COLS + 3] = 0;
    }
    tensor_upload(p, x);
    orthonormalise(p);
    op_matmul_tn(product, p, p);
    tensor_download(dot, product);
    for (size_t i = 0; i < COLS; i++)
        for (size_t j = 0; j < COLS; j++)
            worst = fmax(worst, fabs((double)dot[i * COLS + j] - (i == j && i != 3)));
    ok(worst < (sizeof(real) == 8 ? 1e-14 : 1e-6),
       "columns are orthonormal, and a column of zeros stays: error %.1e", worst);
    arena_free(&a);
}

// PowerSGD of rank r = 2 compresses a matrix [n, k] if (n + k) r min_rate < n k. For wpe, [12, 24],
// this is 72 min_rate < 288.
static void worth_it(void) {
    const ModelConfig c = { .layers = 1, .width = 24, .heads = 3, .context = 12, .vocab = 61 };
    Model *m = model_describe(&c, model_layers(&c));
    bool right = true;
    model_measure(m);
    for (size_t rate = 3; rate <= 5; rate++) {
        const CompressionPlan plan = { .method = POWER_SGD, .rank = 2, .min_rate = rate };
        Arena a = arena(MEM_WORKSPACE);
        size_t n;
        CompressedBucket *b = compressed_buckets_new(&a, &plan, m, 1, &n);
        right = right && n == 4 && b[0].params[0].low_rank && b[1].params[0].low_rank == (rate < 4);
        for (size_t i = 0; i < b[2].n_params; i++)
            right = right && b[2].params[i].low_rank == (b[2].params[i].rows > 1);
        for (size_t i = 0; i < b[3].n_params; i++) right = right && !b[3].params[i].low_rank;
        compressed_buckets_free(b, n);
        arena_free(&a);
    }
    model_free(m);
    ok(right, "PowerSGD compresses the matrices that become smaller, and no vector");
}

int main(void) {
    memory_rank_begin();
    halves();
    largest();
    columns();
    worth_it();
    memory_rank_end();
    return tap_end();
}
