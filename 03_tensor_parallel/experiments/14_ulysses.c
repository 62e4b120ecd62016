// 14_ulysses.c: compares Ulysses with one device: attention alone, and a GPT that trains with its
// positions cut over all ranks (attend.c). Compares bytes, calls, memory, FLOPs and times with
// predictions. The table compares Ulysses with zigzag ring attention and with RSA.
#include "03_tensor_parallel/experiments/experiments.h"

enum { CHUNK = 96, HEADS = 16, GROUPS = 8, D = 4 };

#define EACH(id) \
    { id ".zigzag", id ".rsa", id ".ulysses", id ".grouped" }
static void table(Run *run, size_t T) {
    const char *half = page_text(run, "=%zu", T / 2), *all = page_text(run, "=%zu", T);
    const char *heads = page_text(run, "=%d", HEADS), *groups = page_text(run, "=%d", GROUPS);
    results(run, (const char *const[]){ "ring", "RSA", "Ulysses", "grouped", NULL },
            (const Result[]){
                { "sent per rank", "forward + backward", EACH("sent") },
                { "  times c C", NULL, { "=6N-4", "=8(N-1)", "=8(N-1)/N", "=6(N-1)/N" } },
                { "sends, collectives", "forward + backward", EACH("calls") },
                { "kept for backward", "RSA: scores c H T", EACH("kept") },
                { "computed per rank", "RSA: masked, too", EACH("flops") },
                { "largest N", "T/2; T; k, v heads", { half, all, heads, groups } },
                { 0 } });
}

static void ulysses(Run *run) {
    const size_t n = run->world->size;
    const Element storage = option_storage(run);
    const ContextSizes plain = { 1, n * CHUNK, HEADS, HEADS, D, storage, 1, 0, 0 };
    const ContextSizes grouped = { 1, n * CHUNK, HEADS, GROUPS, D, storage, 1, 0, 0 };
    REQUIRE(n <= GROUPS,
            "%zu ranks: Ulysses needs a head of key and value per rank; choose %d or fewer", n,
            GROUPS);
    require_one_link(run);
    say(run,
        "Each of N ranks has c = %d of the T positions, with all H = %d heads. Attention works on "
        "one head at\na time. So an all-to-all (each rank sends a part to every other rank) gives "
        "a rank all T positions\nof H/N heads of q, k and v. Attention is then that of one device. "
        "A second all-to-all takes the\noutput back. grouped: k and v have %d heads only, each for "
        "two heads of q.",
        CHUNK, HEADS, GROUPS);
    attend_trainings(run, CONTEXT_ULYSSES, CONTEXT_ULYSSES);
    Snapshot *want = attend_one_device(run, plain);
    for (int kind = CONTEXT_ZIGZAG; kind < CONTEXT_KINDS; kind++) {
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
    attend_uneven(run, CONTEXT_ULYSSES, plain);
    table(run, plain.T);
    say(run,
        "  kept: besides q, k, v and the output. Ulysses keeps these four twice: by positions and "
        "by heads.\n  ring: ring attention with zigzag chunks (03.08). RSA: Ring Self-Attention "
        "(03.13). c = T/N.\n  T = %zu, N = %zu ranks, C = %d columns. Tensor parallelism over tp "
        "ranks (03.06) leaves a rank\n  1/tp of the heads. Ulysses can then use %d/tp ranks, "
        "grouped "
        "%d/tp.",
        plain.T, n, HEADS * D, HEADS, GROUPS);
    if (n == 1) say_answer(run, "One rank has all positions of all heads. Choose two or more.");
    else
        say_answer(run,
                   "Yes, if every rank gets a head of k and v. Each rank sends %s in %s calls, "
                   "with ring attention %s in %s calls. Ranks have equal work without zigzag "
                   "chunks.",
                   cost_text(run, "sent.ulysses"), cost_text(run, "calls.ulysses"),
                   cost_text(run, "sent.zigzag"), cost_text(run, "calls.zigzag"));
    say_cost(run,
             "nothing hides the all-to-alls here. With %d heads of k and v (grouped) Ulysses "
             "sends %s per rank. A ring then sends half of its %s. But Ulysses can then use at "
             "most %d ranks.",
             GROUPS, cost_text(run, "sent.grouped"), cost_text(run, "sent.zigzag"), GROUPS);
    say_use_when(run, "N is at most the heads of k and v, divided by tp. For more ranks use ring "
                      "attention, or Ulysses inside a group and a ring between groups.");
}

static const Option options[] = { STORAGE_OPTION, { 0 } };
EXPERIMENT(ulysses, options);
