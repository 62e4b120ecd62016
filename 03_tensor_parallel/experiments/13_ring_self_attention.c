// 13_ring_self_attention.c: compares Ring Self-Attention with one device: attention alone, and a
// GPT that trains with its positions cut over all ranks (attend.c). Compares bytes, calls, memory,
// FLOPs and times with predictions. The table compares Ring Self-Attention with ring attention.
#include "03_tensor_parallel/experiments/experiments.h"

enum { CHUNK = 96, HEADS = 8, D = 4 };

#define EACH(id) \
    { id ".rsa", id ".ring" }

static void ring_self(Run *run) {
    const size_t n = run->world->size;
    const bool simulated = clock_config()->simulated;
    const ContextSizes plain = { 1, n * CHUNK, HEADS, HEADS, D, option_storage(run), 1, 0, 0 };
    require_one_link(run);
    say(run,
        "Ring Self-Attention (RSA): each of N ranks has c = %d of the T positions: their queries, "
        "keys and\nvalues. The queries stay. The keys go from rank to rank round a ring, and a "
        "rank keeps the whole row\nof scores of each of its queries. Then it computes softmax as "
        "one device does, and the values go\nround. A causal query needs no later keys. RSA "
        "computes their scores, too, and masks them.",
        CHUNK);
    attend_trainings(run, CONTEXT_RSA, CONTEXT_RSA);
    Snapshot *want = attend_one_device(run, plain);
    const Attended rsa =
        attend(run, CONTEXT_RSA, plain, want, "Forward: keys, then values", PICTURE_CHART);
    const Attended ring = attend(run, CONTEXT_RING, plain, want, NULL, 0);
    snapshot_free(want);
    attend_uneven(run, CONTEXT_RSA, plain);
    attend_costs(run, CONTEXT_RSA, plain, &rsa, "rsa");
    attend_costs(run, CONTEXT_RING, plain, &ring, "ring");
    results(run, (const char *const[]){ "RSA", "ring attention", NULL },
            (const Result[]){
                { "sent per rank", "c C times 8(N-1); ring: 6N-4", EACH("sent") },
                { "sends and collectives", "4(N-1) + 2; ring: 3N-2", EACH("calls") },
                { "kept for backward", "scores c H T; ring: c H", EACH("kept") },
                { "computed per rank", "6 products; ring: 7, no masked pairs", EACH("flops") },
                { simulated ? "forward" : NULL, "slowest rank", EACH("forward") },
                { "backward", "slowest rank", EACH("backward") },
                { 0 } });
    say(run,
        "  ring attention (03.08, contiguous chunks) merges results of blocks and leaves out "
        "masked pairs.\n  kept: besides q, k, v and the output. T = %zu, N = %zu ranks; C = %d "
        "columns in H = %d heads",
        plain.T, n, HEADS * D, HEADS);
    if (n == 1) say_answer(run, "One rank has all keys and sends nothing. Choose two or more.");
    else
        say_answer(run,
                   "Yes: all keys visit every rank, and a rank keeps the rows of its own queries, "
                   "%s per layer. Ring attention needs no rows, keeps %s and sends %s. RSA sends "
                   "%s, because it all-reduces dk and dv. Reduce-scatters would save a quarter.",
                   cost_text(run, "kept.rsa"), cost_text(run, "kept.ring"),
                   cost_text(run, "sent.ring"), cost_text(run, "sent.rsa"));
    say_cost(run, "a rank keeps T²/N scores per head: with twice the ranks and twice the "
                  "positions it keeps twice as many. The causal mask saves no work.");
    say_use_when(run, "a function other than softmax needs whole rows of scores. Otherwise use "
                      "ring attention with zigzag chunks (03.08), which keeps no scores.");
}

static const Option options[] = { STORAGE_OPTION, { 0 } };
EXPERIMENT(ring_self, options);
