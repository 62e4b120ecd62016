// 14_ulysses.c: attention alone, in four ways of context parallelism and on one device. Ulysses
// also with grouped heads. Bytes, calls, memory and FLOPs of all, and the times of Ulysses, are
// compared with formulas. 08_ring_attention.c trains a GPT with it.
#include "03_tensor_parallel/experiments/attend.h"
#include "common/model/costs.h"
#include <stdio.h>

enum { CHUNK = 96, HEADS = 16, GROUPS = 8, D = 4 };

// The time of one product of a head with all pairs that the causal mask leaves. The clock rounds
// each product: one per tile, and one per row of a tile on the diagonal.
static double causal_time(size_t T, size_t columns) {
    double time = 0;
    for (size_t i = 0; i < T; i += ATTENTION_TILE) {
        const size_t rows = T - i < ATTENTION_TILE ? T - i : ATTENTION_TILE;
        for (size_t j = 0; j < i; j += ATTENTION_TILE)
            time += work_product(rows, ATTENTION_TILE, columns).time;
        for (size_t row = 0; row < rows; row++) time += work_product(row + 1, 1, columns).time;
    }
    return time;
}

// An all-to-all of q, k and v; the attention of some heads as on one device; one of the output.
static void check_times(Run *run, AttendSizes z, const Attended *r, const char *names) {
    const size_t n = run->world->size, e = element_size(option_storage(run)),
                 ratio = z.heads / z.key_heads;
    const size_t keys = ceil_div(z.key_heads, n), part = z.T * keys * z.D;
    const double product = (double)(keys * ratio) * causal_time(z.T, z.D);
    const double messages =
        ring_time(ONE_PASS, n, (ratio + 2) * part, e) + ring_time(ONE_PASS, n, ratio * part, e);
    check_costs(run, ratio > 1 ? "%s.grouped" : "%s.ulysses", names,
                (const CostRow[]){ { "forward", "forward", "ps", BY_FORMULA(messages + 2 * product),
                                     (double)r->forward.step },
                                   { "backward", "backward", "ps",
                                     BY_FORMULA(messages + 5 * product), (double)r->backward.step },
                                   { 0 } });
}

#define EACH(id) \
    { id ".ring", id ".zigzag", id ".rsa", id ".ulysses", id ".grouped" }

static void ulysses(Run *run) {
    enum { WAYS = 4, COLUMNS = 5 };
    static const AttentionKind *const kind[WAYS] = { &ring_attention, &ring_attention_zigzag,
                                                     &ring_self_attention, &ulysses_attention };
    static const char *const id[COLUMNS] = { "ring", "zigzag", "rsa", "ulysses", "grouped" };
    const size_t n = run->world->size;
    const AttendSizes plain = { 1, n * CHUNK, HEADS, HEADS, D, 0, 0 };
    const AttendSizes grouped = { 1, n * CHUNK, HEADS, GROUPS, D, 0, 0 };
    const AttendSizes uneven = { 2, n * 21 + (n > 1), HEADS, GROUPS, D, 0.1, 100 };
    REQUIRE(n <= GROUPS,
            "%zu ranks: Ulysses needs a head of key and value per rank; choose %d or fewer", n,
            GROUPS);
    require_one_link(run);
    say(run,
        "Outside attention a rank has c = %d of the T positions of all H = %d heads. An all-to-all "
        "of q, k\nand v gives it all positions of H/N heads; then attention is that of one device. "
        "Another one takes\nthe output back. grouped: k and v have %d heads, each for two heads of "
        "q.\n",
        CHUNK, HEADS, GROUPS);
    Snapshot *want = attend_one_device(run, plain);
    for (size_t k = 0; k < WAYS; k++) {
        const bool last = k + 1 == WAYS;
        Attended r = attend(run, kind[k], plain, want,
                            last ? "Ulysses, forward: all-to-all, attention, all-to-all" : NULL);
        attend_costs(run, kind[k], plain, &r, id[k]);
        if (last && clock_config()->simulated) check_times(run, plain, &r, "ulysses: %s");
    }
    snapshot_free(want);
    want = attend_one_device(run, grouped);
    Attended r = attend(run, &ulysses_attention, grouped, want, NULL);
    attend_costs(run, &ulysses_attention, grouped, &r, "grouped");
    if (clock_config()->simulated) check_times(run, grouped, &r, "grouped: %s");
    snapshot_free(want);
    want = attend_one_device(run, uneven);
    attend(run, &ulysses_attention, uneven, want, NULL);
    snapshot_free(want);

    // The largest value of all ranks: ring attention and uneven heads give the ranks unequal parts.
    char kept[COLUMNS][24], flops[COLUMNS][24];
    for (size_t k = 0; k < COLUMNS; k++) {
        char cost[24];
        snprintf(cost, sizeof cost, "kept.%s", id[k]);
        page_cell(kept[k], cost_value(run, cost), "bytes");
        snprintf(cost, sizeof cost, "flops.%s", id[k]);
        page_cell(flops[k], cost_value(run, cost), "FLOPs");
    }
    results(run, (const char *const[]){ "ring", "zigzag", "RSA", "Ulysses", "grouped", NULL },
            (const Result[]){ { "sent per rank", "both passes", EACH("sent") },
                              { "  in T C/N elements",
                                "a chunk of q",
                                { "=6N-4", "=6N-4", "=8(N-1)", "=8(N-1)/N", "=6(N-1)/N" } },
                              { "sends, collectives", "both passes", EACH("calls") },
                              { "kept, largest",
                                "besides q, k, v",
                                { kept[0], kept[1], kept[2], kept[3], kept[4] } },
                              { "computed, busiest",
                                "both passes",
                                { flops[0], flops[1], flops[2], flops[3], flops[4] } },
                              { "largest N", "ranks", { "=T", "=T/2", "=T", "=H", "=H/2" } },
                              { 0 } });
    say(run,
        "  T = %zu positions on N = %zu ranks; C = %d. ring and zigzag: ring attention (03.08). "
        "RSA: 03.13.",
        plain.T, n, HEADS * D);
    if (n == 1) say_answer(run, "One rank has all positions of all heads. Choose two or more.");
    else
        say_answer(run,
                   "Yes, on at most as many ranks as heads: each sends %s in %s calls, where "
                   "ring attention sends %s in %s. Ranks have equal work without zigzag chunks.",
                   cost_text(run, "sent.ulysses"), cost_text(run, "calls.ulysses"),
                   cost_text(run, "sent.zigzag"), cost_text(run, "calls.zigzag"));
    say_cost(run,
             "nothing hides the all-to-alls. With %d heads of k and v at most %d ranks, and %s "
             "sent.",
             GROUPS, GROUPS, cost_text(run, "sent.grouped"));
    say_use_when(run,
                 "every rank gets a head of k and v. For more ranks use ring attention, or rings "
                 "of groups with Ulysses inside.");
}

static const Option options[] = { ONLY_STORAGE_OPTION, { 0 } };
EXPERIMENT(ulysses, options);
