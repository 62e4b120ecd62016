// 14_ulysses.c: runs attention alone, in four ways of context parallelism and on one device,
// Ulysses also with grouped heads. Compares bytes, calls, memory, FLOPs and times with predictions.
// 08_ring_attention.c trains a GPT with Ulysses.
#include "03_tensor_parallel/experiments/experiments.h"

enum { CHUNK = 96, HEADS = 16, GROUPS = 8, D = 4, COLUMNS = CONTEXT_KINDS + 1 };

// Fills a row of cells with the largest values of all ranks, because ring attention and uneven
// heads give the ranks unequal parts.
static void largest(Run *run, const char *cell[COLUMNS], const char *what, const char *unit) {
    for (int k = 0; k < COLUMNS; k++) {
        const char *way = k < CONTEXT_KINDS ? context_id[k] : "grouped";
        cell[k] = value_cell(run, cost_value(run, page_text(run, "%s.%s", what, way)), unit);
    }
}

#define EACH(id) \
    { id ".ring", id ".zigzag", id ".rsa", id ".ulysses", id ".grouped" }

static void table(Run *run) {
    const char *kept[COLUMNS], *flops[COLUMNS];
    largest(run, kept, "kept", "bytes");
    largest(run, flops, "flops", "FLOPs");
    results(
        run, (const char *const[]){ "ring", "zigzag", "RSA", "Ulysses", "grouped", NULL },
        (const Result[]){
            { "sent per rank", "both passes", EACH("sent") },
            { "  in chunks of q",
              "T C/N elements",
              { "=6N-4", "=6N-4", "=8(N-1)", "=8(N-1)/N", "=6(N-1)/N" } },
            { "sends, collectives", "both passes", EACH("calls") },
            { "kept for backward",
              "fullest rank",
              { kept[0], kept[1], kept[2], kept[3], kept[4] } },
            { "computed", "busiest rank", { flops[0], flops[1], flops[2], flops[3], flops[4] } },
            { "largest N", "here tp = 1", { "=T", "=T/2", "=T", "=H/tp", "=H/(2 tp)" } },
            { 0 } });
}

static void ulysses(Run *run) {
    const size_t n = run->world->size;
    const Element storage = option_storage(run);
    const ContextSizes plain = { 1, n * CHUNK, HEADS, HEADS, D, storage, 1, 0, 0 };
    const ContextSizes grouped = { 1, n * CHUNK, HEADS, GROUPS, D, storage, 1, 0, 0 };
    const ContextSizes uneven = { 2, n * 21 + (n > 1), HEADS, GROUPS, D, storage, 1, 0.1, 100 };
    REQUIRE(n <= GROUPS,
            "%zu ranks: Ulysses needs a head of key and value per rank; choose %d or fewer", n,
            GROUPS);
    require_one_link(run);
    say(run,
        "Outside attention a rank has c = %d of the T positions of all H = %d heads. An all-to-all "
        "of q, k\nand v gives the rank all T positions of H/N heads. Then attention is that of one "
        "device. A second\nall-to-all takes the output back. grouped: k and v have %d heads, each "
        "for two heads of q.\n",
        CHUNK, HEADS, GROUPS);
    Snapshot *want = attend_one_device(run, plain);
    for (int kind = 0; kind < CONTEXT_KINDS; kind++) {
        const char *title = "Ulysses, forward: all-to-all, attention, all-to-all";
        if (kind != CONTEXT_ULYSSES) title = NULL;
        const Attended r = attend(run, kind, plain, want, title, PICTURE_CHART);
        attend_costs(run, kind, plain, &r, context_id[kind]);
    }
    snapshot_free(want);
    want = attend_one_device(run, grouped);
    const Attended r = attend(run, CONTEXT_ULYSSES, grouped, want, NULL, 0);
    attend_costs(run, CONTEXT_ULYSSES, grouped, &r, "grouped");
    snapshot_free(want);
    want = attend_one_device(run, uneven);
    attend(run, CONTEXT_ULYSSES, uneven, want, NULL, 0);
    snapshot_free(want);
    table(run);
    say(run,
        "  kept: besides q, k, v and the output; Ulysses keeps these twice. T = %zu, N = %zu "
        "ranks, C = %d.\n  ring, zigzag: ring attention (03.08) with contiguous or zigzag chunks. "
        "RSA: Ring Self-Attention\n  (03.13). tp: the ranks that share the heads by tensor "
        "parallelism (03.06); N does not count them.",
        plain.T, n, HEADS * D);
    if (n == 1) say_answer(run, "One rank has all positions of all heads. Choose two or more.");
    else
        say_answer(
            run,
            "Yes, if there are no more ranks than heads. Each rank sends %s in %s calls. With "
            "ring attention it sends %s in %s calls. Ranks have equal work without zigzag "
            "chunks.",
            cost_text(run, "sent.ulysses"), cost_text(run, "calls.ulysses"),
            cost_text(run, "sent.zigzag"), cost_text(run, "calls.zigzag"));
    say_cost(run,
             "nothing hides the all-to-alls here. With %d heads of k and v (grouped) each rank "
             "sends %s, and a ring half of its %s. But at most %d ranks are possible.",
             GROUPS, cost_text(run, "sent.grouped"), cost_text(run, "sent.ring"), GROUPS);
    say_use_when(run, "every rank gets a head of k and v. For more ranks use ring attention, or "
                      "Ulysses inside a group and a ring between groups.");
}

static const Option options[] = { ONLY_STORAGE_OPTION, { 0 } };
EXPERIMENT(ulysses, options);
