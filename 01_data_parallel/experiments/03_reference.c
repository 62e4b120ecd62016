// 03_reference.c: see 03_reference.h.
#include "01_data_parallel/experiments/03_reference.h"
#include "common/tensor/ops.h"
#include "common/tensor/random.h"
#include <stdlib.h>

void ring_fill(Tensor t, uint64_t seed, size_t rank, bool whole) {
    size_t n = tensor_count(t);
    real *value = host_alloc(n * sizeof *value);
    for (size_t i = 0; i < n; i++)
        value[i] = whole ? (real)((7 * rank + 3 * i) % 17) - 8
                         : (real)random_unit(random_key(random_key(seed, rank), i));
    tensor_upload(t, value);
    free(value);
}

void ring_unsplit(Run *run, Snapshot *s, const char *name, size_t count) {
    size_t N = run->world->size;
    if (!run->is_root) return;
    ledger_pause();
    Arena memory = arena(MEM_REFERENCE);
    Tensor sum = tensor_new(&memory, 1, count), term = tensor_new(&memory, 1, count);
    tensor_fill(sum, 0);
    for (size_t step = 0; step < N; step++)
        for (size_t k = 0; k < N; k++) {
            Range r = shard_range(count, N, k);
            Tensor chunk = tensor_flat_range(sum, r.lo, r.hi);
            ring_fill(term, run->seed, (k + step) % N, false);
            op_add(chunk, chunk, tensor_flat_range(term, r.lo, r.hi));
        }
    snapshot_put(s, name, 1, count, sum, 0, 0);
    arena_free(&memory);
    ledger_resume();
}
