// 13_ring_self_attention.c: attention alone, on ranks with Ring Self-Attention and on one device.
// Bytes, calls, memory, FLOPs and times are compared with formulas, and with those of ring
// attention. 08_ring_attention.c trains a GPT with it.
#include "03_tensor_parallel/experiments/attend.h"
#include "common/model/costs.h"
#include <math.h>
#include <stdio.h>

enum { CHUNK = 96, HEADS = 8, D = 4 };

// One pass round the ring: a block of scores per hop, all of them, and N - 1 hops of a chunk.
static void check_times(Run *run, AttendSizes z, const Attended *r) {
    const size_t n = run->world->size, c = z.T / n, A = z.heads * z.D;
    const size_t e = element_size(option_storage(run));
    const double block = (double)z.heads * work_product(c, c, z.D).time;
    const double pass = block + (double)(n - 1) * fmax(block, send_time(c * A * e));
    const double sum = (double)z.heads * work_product(z.T, c, z.D).time +
                       ring_time(ALL_REDUCE_PASSES, n, z.T * A, sizeof(real));
    check_costs(run, "time.%s", "RSA: %s",
                (const CostRow[]){
                    { "forward", "forward", "ps", BY_FORMULA(2 * pass), (double)r->forward.step },
                    { "backward", "backward", "ps", BY_FORMULA(2 * pass + 2 * sum),
                      (double)r->backward.step },
                    { 0 } });
}

static void ring_self(Run *run) {
    const size_t n = run->world->size;
    const bool simulated = clock_config()->simulated;
    const AttendSizes plain = { 1, n * CHUNK, HEADS, HEADS, D, 0, 0 };
    const AttendSizes uneven = { 2, n * 21 + (n > 1), HEADS, HEADS / 2, D, 0.1, 100 };
    require_one_link(run);
    say(run,
        "Ring Self-Attention (RSA): a rank has a chunk of c = %d of the T positions. Its queries "
        "stay. The\nkeys of all ranks go round the ring, and the rank keeps a whole row of scores "
        "per query. Then\nsoftmax is that of one device, and the values go round. Keys that come "
        "later than the query are\nmasked after their score is computed.\n",
        CHUNK);
    Snapshot *want = attend_one_device(run, plain);
    Attended rsa = attend(run, &ring_self_attention, plain, want, "Forward: keys, then values");
    Attended ring = attend(run, &ring_attention, plain, want, NULL);
    snapshot_free(want);
    want = attend_one_device(run, uneven);
    attend(run, &ring_self_attention, uneven, want, NULL);
    snapshot_free(want);
    attend_costs(run, &ring_self_attention, plain, &rsa, "rsa");
    attend_costs(run, &ring_attention, plain, &ring, "ring");
    if (simulated) check_times(run, plain, &rsa);
    char forward[24], backward[24];
    page_cell(forward, (double)ring.forward.step, "ps");
    page_cell(backward, (double)ring.backward.step, "ps");
    results(
        run, (const char *const[]){ "RSA", "ring attention", NULL },
        (const Result[]){
            { "sent per rank", "8(N-1); 6N-4, of T C/N elements", { "sent.rsa", "sent.ring" } },
            { "sends and collectives", "4(N-1) + 2; 3N-2", { "calls.rsa", "calls.ring" } },
            { "kept for backward", "c H T: scores; c H", { "kept.rsa", "kept.ring" } },
            { "computed per rank", "6 products of all pairs; 7", { "flops.rsa", "flops.ring" } },
            { simulated ? "forward" : NULL, "slowest rank", { "time.forward", forward } },
            { "backward", "slowest rank", { "time.backward", backward } },
            { 0 } });
    say(run, "  T = %zu positions on N = %zu ranks; C = %d in H = %d heads", plain.T, n, HEADS * D,
        HEADS);
    if (n == 1) say_answer(run, "One rank has all keys and sends nothing. Choose two or more.");
    else
        say_answer(run,
                   "Yes: if it keeps the scores of its queries with all keys, %s per rank and "
                   "layer. Ring attention keeps %s and sends %s instead of %s, because it "
                   "merges partial results.",
                   cost_text(run, "kept.rsa"), cost_text(run, "kept.ring"),
                   cost_text(run, "sent.ring"), cost_text(run, "sent.rsa"));
    say_cost(run, "scores grow with T T/N, so N times the ranks do not hold a sequence N times as "
                  "long. The mask saves no work.");
    say_use_when(run, "attention has no mask and T is small. Otherwise use ring attention with "
                      "zigzag chunks (03.08).");
}

static const Option options[] = { ONLY_STORAGE_OPTION, { 0 } };
EXPERIMENT(ring_self, options);
