// 08_ring_attention.c: the experiment of the ring, also with the attention of 03.13 and 03.14.
// Trains a GPT in four ways, with the sequences cut over all ranks, and compares with the unsplit
// training. Then runs attention alone on longer sequences (attend.c). context_costs.c predicts
// bytes, memory and times.
#include <string.h>
#include "03_tensor_parallel/experiments/experiments.h"

enum { SEQUENCES = 3 };
static const ModelConfig tiny = {
    .layers = 2, .width = 27, .heads = 9, .context = 27, .vocab = 61, .dropout = 0.1
};
// Attention alone, of one sequence. A deviation of 16 makes scores of several hundred, whose
// exponential no float can hold.
enum { CHUNK = 192, HEADS = 8, D = 4, DEVIATION = 16 };

static void trainings(Run *run) {
    ModelConfig c = tiny;
    c.seed = run->seed;
    Training t = gpt_training(c, SEQUENCES);
    training_store(run, &t);
    for (int i = 0; i < CONTEXT_KINDS; i++) { // SGD, then AdamW
        CutGpt cut = { .way = WAY_RING, .world = run->world, .attention = context_kind[i] };
        const char *what = page_text(run, "split = unsplit, %s", context_kind[i]->name);
        training_both(run, what, &t, gpt_train, &cut);
    }
    data_free(&t.data);
}

// Runs attention alone in all kinds, and checks the costs. Shows the forward of both cuts of the
// ring, and writes the files of one cut.
static void attention_alone(Run *run) {
    static const char *const title[CONTEXT_KINDS] = { "Contiguous chunks, forward",
                                                      "Zigzag chunks, forward" };
    const size_t T = run->world->size * CHUNK;
    const ContextSizes z = { 1, T, HEADS, HEADS, D, option_storage(run), DEVIATION, 0, 0 };
    const bool zigzag = !strcmp(option_text(run, "picture"), "zigzag");
    Snapshot *want = attend_one_device(run, z);
    for (int kind = 0; kind < CONTEXT_KINDS; kind++) {
        int picture = PICTURE_NO_LINKS;
        if (kind == CONTEXT_ZIGZAG) picture |= PICTURE_ALIKE_ONCE;
        if (kind != (zigzag ? CONTEXT_ZIGZAG : CONTEXT_RING)) picture |= PICTURE_NO_FILES;
        const Attended r = attend(run, kind, z, want, title[kind], picture);
        attend_costs(run, kind, z, &r, context_id[kind]);
    }
    snapshot_free(want);
}

// ---------------------------------------------------------------- the page

static void introduction(Run *run) {
    say(run, "Causal: a position attends to itself and to earlier ones, so later chunks need more "
             "work. N ranks.\n"
             "contiguous: each rank has one chunk. Keys and values go from rank to rank round a "
             "ring while the\n"
             "ranks compute (messages are not drawn). A rank merges the results block by block. "
             "zigzag: the same,\n"
             "but of 2N pieces rank i has pieces i and 2N-1-i, so ranks have equal work. RSA "
             "(03.13): the ring\n"
             "without merging, so a rank keeps whole rows of scores. Ulysses (03.14): in attention "
             "a rank has all\n"
             "positions of some heads, elsewhere some positions of all heads.");
}

#define EACH(id) \
    { id ".ring", id ".zigzag", id ".rsa", id ".ulysses" }
static void table(Run *run) {
    const size_t n = run->world->size;
    const char *busy =
        page_text(run, "ring: N/(2N-1) = %.1f %%", 100 * (double)n / (2 * (double)n - 1));
    const char *const columns[] = { "contiguous", "zigzag", "RSA", "Ulysses", NULL };
    const Result rows[] = {
        { "forward", "2 products; slowest rank", EACH("forward") },
        { "  computing, mean of ranks", busy, { "busy.ring", "busy.zigzag", "=-", "=-" } },
        { "backward", "5 products; RSA: 4", EACH("backward") },
        { "sent per rank", "forward and backward", EACH("sent") },
        { "  in chunks",
          "ring: k, v 4(N-1); dk, dv 2N",
          { "=6N-4", "=6N-4", "=8(N-1)", "=8(N-1)/N" } },
        { "kept for backward", "besides q, k, v, output", EACH("kept") },
        { "  in elements", "Ulysses: q, k, v, output", { "=c H", "=c H", "=c H T", "=c (4C+H)" } },
        { "buffers while it runs", "k, v, dk, dv on their way", EACH("buffers") },
        { 0 }
    };
    enum { TIMES = 3 }; // rows that only the simulated clock has
    results(run, columns, clock_config()->simulated ? rows : rows + TIMES);
    say(run,
        "  attention alone: B = 1, T = %zu positions, c = T/N = %d, N = %zu; C = %d in H = %d "
        "heads\n  products: q k^T and p v forward; q k^T, dV, dP, dQ and dK backward (RSA keeps q "
        "k^T)",
        n * CHUNK, CHUNK, n, HEADS * D, HEADS);
}

static void ending(Run *run) {
    const char *time = "";
    if (clock_config()->simulated)
        time = page_text(run, " Forward takes %s with zigzag chunks, %s with contiguous ones.",
                         cost_text(run, "forward.zigzag"), cost_text(run, "forward.ring"));
    if (!answer_alone(run))
        say_answer(run,
                   "Each rank keeps the queries of its 1/%zu of the positions, and keys and "
                   "values travel from rank to rank.%s",
                   run->world->size, time);
    say_cost(run, "%s sent per rank, and all scores computed twice. Ulysses sends %s.",
             cost_text(run, "sent.zigzag"), cost_text(run, "sent.ulysses"));
    say_use_when(run,
                 "one sequence is too long for a device. Ulysses (03.14) cannot use more ranks "
                 "than k and v have heads. Within this limit Ulysses sends less, but here it keeps "
                 "q, k and v twice. Use Ulysses where the ring's messages do not hide.");
}

static void ring(Run *run) {
    REQUIRE(run->world->size <= tiny.heads,
            "%zu ranks: Ulysses needs a head per rank, and the model has %zu; choose %zu or fewer",
            run->world->size, tiny.heads, tiny.heads);
    require_one_link(run);
    introduction(run);
    trainings(run);
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
