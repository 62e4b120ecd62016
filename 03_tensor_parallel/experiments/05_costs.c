// 05_costs.c: embedding and cross entropy, cut by vocabulary entries.
#include "03_tensor_parallel/experiments/costs.h"
#include "common/model/costs.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Two of [M, C] (x forward, dx backward) and the three elements per token. Gathering the logits would be [M, V] in
// place of 3 M.
void vocabulary_costs(Run *run, const VocabularySizes *z, const TrialResult *r) {
    const size_t n = run->world->size, entries = range_size(shard_range(z->V, n, run->world->rank)), e = sizeof(real);
    const size_t M = z->M, C = z->C;
    const double wide = ring_bytes(ALL_REDUCE_PASSES, n, M * C, e), narrow = ring_bytes(ALL_REDUCE_PASSES, n, M, e);
    cost(run, "E", "bytes", (double)(entries * C * e), (double)r->parameters);
    cost(run, "gradients, of both uses of E", "bytes", (double)(2 * entries * C * e), (double)r->gradients);
    cost(run, "SGD's state", "bytes", 0, (double)r->optimizer);
    cost(run, "kept: x, my logits, a sum a token", "bytes", (double)(M * (C + entries + 1) * e),
         (double)r->activations);
    cost(run, "all-reduces a step", "calls", 2 + 3, r->calls);
    cost(run, "sent a step", "bytes", 2 * wide + 3 * narrow, r->bytes);
}

void vocabulary_token(Run *run, Range words, const double mine[3], double loss) {
    enum { FIELDS = 5 };
    const size_t n = run->world->size;
    double *all = host_alloc(n * FIELDS * sizeof *all), max = -INFINITY, picked = 0, sum = 0;
    memset(all, 0, n * FIELDS * sizeof *all);
    double *my = all + run->world->rank * FIELDS;
    my[0] = (double)words.lo; my[1] = (double)words.hi;
    memcpy(my + 2, mine, 3 * sizeof *mine);
    ledger_pause();
    comm_all_reduce_doubles(run->world, all, n * FIELDS);
    ledger_resume();
    say(run, "the loss of token 0   largest logit   logit of the target   sum of exp(logit - largest of all)");
    for (size_t r = 0; r < n; r++) {
        const double *of = all + r * FIELDS;
        say(run, "rank %zu: entries %2.0f-%-2.0f  %13.3f  %20.3f  %35.3f", r, of[0], of[1] - 1, of[2], of[3], of[4]);
        max = of[2] > max ? of[2] : max;
        picked += of[3];
        sum += of[4];
    }
    say(run, "all-reduce             max %9.3f  sum %16.3f  sum %31.3f", max, picked, sum);
    say(run, "loss = log %.3f + %.3f - (%.3f) = %.3f on every rank", sum, max, picked, loss);
    free(all);
}

void vocabulary_results(Run *run, const VocabularySizes *z, double loss, double loss_if_gathered) {
    static const char *const columns[] = { "logits cut", "gathered", NULL };
    const size_t n = run->world->size, e = sizeof(real);
    char narrow[40], wide[40], kept[40], right[40], wrong[40];
    snprintf(narrow, sizeof narrow, "=%.0f B", 3 * ring_bytes(ALL_REDUCE_PASSES, n, z->M, e));
    snprintf(wide, sizeof wide, "=%.2f kB", ring_bytes(ONE_PASS, n, z->M * z->V, e) / 1000);
    snprintf(kept, sizeof kept, "=%.2f kB", (double)(z->M * (z->C + z->V + 1) * e) / 1000);
    snprintf(right, sizeof right, "=%.4f", loss);
    snprintf(wrong, sizeof wrong, "=%.4f", loss_if_gathered);
    const Result rows[] = {
        { "sent for the loss, per rank", "3 · 2 (t-1) ceil(M/t); (t-1) ceil(MV/t)", { narrow, wide } },
        { "kept: x, logits, sums", "M (C + V/t + 1); M (C + V + 1)", { "kept: x, my logits, a sum a token", kept } },
        { "E, per rank", "V/t C", { "E" } },
        { "all-reduces per step", "lookup, 3 of the loss, dX", { "all-reduces a step" } },
        { "sent per rank and step", "and 2 · 2 (t-1) ceil(MC/t)", { "sent a step" } },
        { "loss of step 0", "log t more where each rank sums all", { right, wrong } }, {0} };
    results(run, columns, rows);
    say(run, "  M = %zu tokens, V = %zu vocabulary entries, width C = %zu; t = %zu ranks, %zu bytes per element", z->M,
        z->V, z->C, n, e);
    say(run, "  gathered: predicted, and not run, but for the loss");
}
