// 08_ring_attention.c: compares ring attention, with contiguous and with zigzag chunks, with one
// device. A GPT trains with its positions cut over all ranks. Attention alone runs on longer
// sequences (attend.c). context_costs.c predicts bytes, memory and times.
#include "03_tensor_parallel/experiments/experiments.h"
#include <string.h>

// The sizes of attention alone, on one sequence. A deviation of 16 makes scores of several hundred.
// A 32-bit float cannot hold the exponential of such a score.
enum { CHUNK = 192, HEADS = 8, D = 4, DEVIATION = 16 };

// Runs attention alone with both kinds of chunks, and checks the costs. The page shows both
// forwards. --picture chooses the forward that --svg and --trace write.
static void attention_alone(Run *run) {
    static const char *const title[] = { "Contiguous chunks, forward",
                                         "Zigzag chunks, forward (own scale)" };
    const size_t T = run->world->size * CHUNK;
    const ContextSizes z = { 1, T, HEADS, HEADS, D, option_storage(run), DEVIATION, 0, 0 };
    const bool zigzag = !strcmp(option_text(run, "picture"), "zigzag");
    Snapshot *want = attend_one_device(run, z);
    for (int kind = CONTEXT_RING; kind <= CONTEXT_ZIGZAG; kind++) {
        int picture = PICTURE_NO_LINKS;
        if (kind == CONTEXT_ZIGZAG) picture |= PICTURE_ALIKE_ONCE;
        if (kind != (zigzag ? CONTEXT_ZIGZAG : CONTEXT_RING)) picture |= PICTURE_NO_FILES;
        const Attended r = attend(run, kind, z, want, title[kind], picture);
        attend_costs(run, kind, z, &r, context_id[kind]);
    }
    snapshot_free(want);
}

// ---------------------------------------------------------------- the page

#define BOTH(id) \
    { id ".ring", id ".zigzag" }
static void table(Run *run) {
    const size_t n = run->world->size;
    const char *busy =
        page_text(run, "contiguous: N/(2N-1) = %.1f %%", 100 * (double)n / (2 * (double)n - 1));
    const char *const columns[] = { "contiguous", "zigzag", NULL };
    const Result rows[] = {
        { "kept for backward", "c H, besides q, k, v and the output", BOTH("kept") },
        { "buffers while it runs", "at most 5 blocks of 2 c C", BOTH("buffers") },
        { "sent per rank", "c C times 6N-4: k, v 4(N-1); dk, dv 2N", BOTH("sent") },
        { clock_config()->simulated ? "forward" : NULL, // with a real clock the table ends here
          "2 products; slowest rank", BOTH("forward") },
        { "  computing, mean of ranks", busy, BOTH("busy") },
        { "backward", "5 products; slowest rank", BOTH("backward") },
        { 0 }
    };
    results(run, columns, rows);
    say(run,
        "  Attention alone: one sequence of T = %zu positions, N = %zu ranks, c = T/N = %d; C = %d "
        "columns in\n  H = %d heads. Formulas count elements. c H: one number per query and head, "
        "the logarithm of its\n  sum of exponentials (for backward). p = softmax(q k^T). Products: "
        "q k^T and p v forward; q k^T\n  once more, dv, dp, dq and dk backward.",
        n * CHUNK, n, CHUNK, HEADS * D, HEADS);
}

static void ending(Run *run) {
    const char *time = "";
    if (clock_config()->simulated)
        time = page_text(run, " Forward takes %s with zigzag chunks, %s with contiguous ones.",
                         cost_text(run, "forward.zigzag"), cost_text(run, "forward.ring"));
    if (!answer_alone(run))
        say_answer(run,
                   "Each rank keeps the queries of its 1/%zu of the positions, and keys and "
                   "values travel from rank to rank. No rank keeps scores, only %s besides q, "
                   "k, v and the output.%s",
                   run->world->size, cost_text(run, "kept.zigzag"), time);
    const ClockConfig *k = clock_config();
    const char *enough = "chunks are long enough";
    if (k->simulated && k->link.beta > 0)
        enough =
            page_text(run,
                      "c is at least e P/beta = %.0f (without latency; P: FLOP/s, beta: bytes/s)",
                      (double)element_size(option_storage(run)) * k->device.flops / k->link.beta);
    say_cost(run,
             "%s sent per rank. All messages but the last dk and dv are hidden if %s; q k^T is "
             "computed twice.",
             cost_text(run, "sent.zigzag"), enough);
    say_use_when(run,
                 "one sequence is too long for a device. Take zigzag chunks if attention is "
                 "causal. Ulysses (03.14) sends less if k and v have as many heads as q, at least "
                 "one per rank.");
}

static void ring(Run *run) {
    require_one_link(run);
    const size_t n = run->world->size;
    const char *shares = ".\n"; // the shares of the work, if they fit in the line
    if (n > 1 && n <= 4) {
        shares = "\n(about 1";
        for (size_t i = 1; i < n; i++) shares = page_text(run, "%s : %zu", shares, 2 * i + 1);
        shares = page_text(run, "%s). ", shares);
    }
    say(run,
        "Each of N ranks has T/N of the T positions of a sequence: their queries, keys and "
        "values. Queries\nstay. Blocks of keys and values go from rank to rank round a ring, while "
        "the ranks compute (messages\nare not drawn). A rank merges the results block by block. "
        "Attention is causal: a position attends to\nitself and to earlier ones. contiguous: rank "
        "i has chunk i of N, so later ranks have more work%szigzag: rank i has chunks i and "
        "2N-1-i of 2N, so all ranks have equal work.",
        shares);
    attend_trainings(run, CONTEXT_RING, CONTEXT_ZIGZAG);
    attention_alone(run);
    table(run);
    ending(run);
}

static const Option options[] = {
    { "picture", "contiguous|zigzag", "contiguous", "the picture that --svg and --trace write" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(ring, options);
