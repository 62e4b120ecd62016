// 13_ring_self_attention.c: runs attention alone, on ranks with Ring Self-Attention and on one
// device. Compares bytes, calls, memory, FLOPs and times with formulas and with ring attention.
// 08_ring_attention.c trains a GPT with Ring Self-Attention.
#include "03_tensor_parallel/experiments/experiments.h"

enum { CHUNK = 96, HEADS = 8, D = 4 };

#define EACH(id) \
    { id ".rsa", id ".ring" }

static void ring_self(Run *run) {
    const size_t n = run->world->size;
    const bool simulated = clock_config()->simulated;
    const Element storage = option_storage(run);
    const ContextSizes plain = { 1, n * CHUNK, HEADS, HEADS, D, storage, 1, 0, 0 };
    const ContextSizes uneven = { 2, n * 21 + (n > 1), HEADS, HEADS / 2, D, storage, 1, 0.1, 100 };
    require_one_link(run);
    say(run,
        "Ring Self-Attention (RSA): a rank has a chunk of c = %d of the T positions. Its queries "
        "stay. The\nkeys of all ranks go round the ring, and the rank keeps a whole row of scores "
        "per query. Then\nit computes softmax as one device does, and the values go round. The "
        "scores of later keys are\ncomputed, too, and then masked.\n",
        CHUNK);
    Snapshot *want = attend_one_device(run, plain);
    const Attended rsa =
        attend(run, CONTEXT_RSA, plain, want, "Forward: keys, then values", PICTURE_CHART);
    const Attended ring = attend(run, CONTEXT_RING, plain, want, NULL, 0);
    snapshot_free(want);
    want = attend_one_device(run, uneven);
    attend(run, CONTEXT_RSA, uneven, want, NULL, 0);
    snapshot_free(want);
    attend_costs(run, CONTEXT_RSA, plain, &rsa, "rsa");
    attend_costs(run, CONTEXT_RING, plain, &ring, "ring");
    results(run, (const char *const[]){ "RSA", "ring attention", NULL },
            (const Result[]){
                { "sent per rank", "T C/N times 8(N-1); 6N-4", EACH("sent") },
                { "sends and collectives", "4(N-1) + 2; 3N-2", EACH("calls") },
                { "kept for backward", "c H T: scores; c H", EACH("kept") },
                { "computed per rank", "6 products for all pairs; 7 for unmasked", EACH("flops") },
                { simulated ? "forward" : NULL, "slowest rank", EACH("forward") },
                { "backward", "slowest rank", EACH("backward") },
                { 0 } });
    say(run,
        "  Formulas: RSA; ring attention (03.08, contiguous chunks), which merges partial results, "
        "keeps no\n  scores. T = %zu positions on N = %zu "
        "ranks; C = %d in H = %d heads",
        plain.T, n, HEADS * D, HEADS);
    if (n == 1) say_answer(run, "One rank has all keys and sends nothing. Choose two or more.");
    else
        say_answer(run,
                   "Yes, if it keeps the scores of its queries with all keys. They take %s per "
                   "rank and layer. Ring attention keeps %s and sends %s instead of %s, because "
                   "it merges partial results.",
                   cost_text(run, "kept.rsa"), cost_text(run, "kept.ring"),
                   cost_text(run, "sent.ring"), cost_text(run, "sent.rsa"));
    say_cost(run, "a rank keeps T²/N scores per head: with twice the ranks and twice the "
                  "positions it keeps twice as many. The causal mask saves no work.");
    say_use_when(run, "a function other than softmax needs whole rows of scores. Otherwise use "
                      "zigzag chunks (03.08), which keep no scores.");
}

static const Option options[] = { ONLY_STORAGE_OPTION, { 0 } };
EXPERIMENT(ring_self, options);
