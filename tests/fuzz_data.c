// fuzz_data.c: reads random bytes as the file of --data. Either the file is refused with a reason,
// or every token of its batches is in the vocabulary.
// with: common/model/data.c common/base/input.c
#define _GNU_SOURCE // memfd_create
#include <sys/mman.h>
#include <unistd.h>
#include "common/model/data.h"
#include "tests/fuzz.h"

// These stand-ins replace the tensors and the side channel. There is one rank, and its device is
// the host.
static void *held[16];
static size_t n_held;
int *ints_new(Arena *a, size_t n) {
    (void)a;
    return held[n_held++] = malloc((n ? n : 1) * sizeof(int));
}
void ints_upload(int *device, const int *host, size_t n) { memcpy(device, host, n * sizeof(int)); }
size_t positions_count(const Positions *p) {
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) n += range_size(p->chunk[i]);
    return n;
}

void side_broadcast(void *data, size_t bytes) {
    (void)data;
    (void)bytes;
}
bool side_any(bool local) { return local; }
Range shard_range(size_t n, size_t parts, size_t i) {
    (void)parts;
    (void)i;
    return (Range){ 0, n };
}
void side_gather_each(const void *local, size_t bytes, SideTake *take, void *context) {
    take(context, 0, local, bytes);
}

static void look_at(const Data *d, Batch b) {
    for (size_t i = 0; i < b.B * b.T; i++)
        if (b.tokens[i] < 0 || (size_t)b.tokens[i] >= d->vocab ||
            (b.targets[i] >= 0 && (size_t)b.targets[i] >= d->vocab))
            abort();
    while (n_held) free(held[--n_held]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64], why[DATA_WHY] = "";
    int file = memfd_create("fuzz", 0);
    if (file < 0 || write(file, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    Data d;
    Arena a = { 0 };
    // If the first byte is odd, the file is a text. Otherwise the file is a token file with a
    // vocabulary of 300.
    if (data_open(&d, path, NULL, size && data[0] % 2 ? 0 : 300, 4, 1, why)) {
        d.batch = 2;
        for (uint64_t step = 0; step < 3; step++) look_at(&d, data_batch(&d, &a, step, 0, 2, 2));
        size_t windows = data_eval_windows(&d);
        if (windows) look_at(&d, data_eval_batch(&d, &a, windows - 1, 1, windows));
        data_free(&d);
    } else if (!why[0]) abort();
    close(file);
    return 0;
}
