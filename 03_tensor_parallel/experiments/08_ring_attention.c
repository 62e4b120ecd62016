// 08_ring_attention.c: the experiment of the ring, also with the attention of 03.13 and 03.14.
// Trains a GPT with its sequences cut over all ranks in four ways, and compares with the unsplit
// training. Then runs attention alone on longer sequences (attend.c). context_costs.c predicts
// bytes, memory and times.
#include <string.h>
#include "03_tensor_parallel/experiments/experiments.h"

// ---------------------------------------------------------------- training a GPT

enum { SEQUENCES = 3 };
static const ModelConfig tiny = {
    .layers = 2, .width = 27, .heads = 9, .context = 27, .vocab = 61, .dropout = 0.1
};
// Attention alone, of one sequence. A deviation of 16 makes scores of several hundred, whose
// exponential no float can hold.
enum { CHUNK = 192, HEADS = 8, D = 4 };
static ContextSizes alone(const Run *run) {
    const size_t T = run->world->size * CHUNK;
    return (ContextSizes){ 1, T, HEADS, HEADS, D, option_storage(run), 16, 0, 0 };
}

// Costs of the training on the ring. 13_ring_self_attention.c and 14_ulysses.c have the costs of
// the other two ways, for attention alone.
static void trained_costs(Run *run, const Training *t, int kind, const GptMeasured *r) {
    const ModelConfig *c = &t->model;
    const size_t n = run->world->size, b = t->sequences;
    const ContextSizes layer = { .B = b,
                                 .T = c->context,
                                 .heads = c->heads,
                                 .key_heads = config_kv_heads(c),
                                 .D = c->width / c->heads,
                                 .storage = c->storage };
    const char *ids = page_text(run, "gpt.%%s.%s", context_id[kind]);
    const char *names = page_text(run, "%s: %%s", context_kind[kind]->name);
    const CutSizes whole = cut_sizes(c, 1, 0);
    CutSizes z = whole;
    z.T = context_chunk(kind, c->context, n, run->world->rank); // this rank's queries
    z.online = true;
    const GptElements elements = gpt_elements(&z, b); // parameters and gradients are whole
    const double sums = ring_bytes(ALL_REDUCE_PASSES, n, elements_stage(&whole), gradient_bytes(c));
    gpt_memory_costs(run, ids, names, c, &elements, r);
    check_costs(run, ids, names,
                (CostRow[]){
                    { "sent", "sent in the layers, a step", "bytes",
                      BY_FORMULA((double)c->layers * context_layer_bytes(run->world, kind, layer)),
                      r->layers[GPT_WORLD].sent },
                    { "sums", "sent for the sum of gradients", "bytes", BY_FORMULA(sums),
                      r->sums[GPT_WORLD].sent },
                    { 0 } });
}

static void trainings(Run *run) {
    ModelConfig c = tiny;
    c.seed = run->seed;
    Training t = gpt_training(c, SEQUENCES);
    training_store(run, &t);
    for (int adam = 0; adam < 2; adam++) { // SGD, then AdamW
        t.optimizer = adam ? adamw(0.01) : sgd(0.5);
        Trajectory want = training_unsplit(run, &t, 1);
        for (int i = 0; i < CONTEXT_KINDS; i++) {
            const char *what = page_text(run, "split = unsplit, %s", context_kind[i]->name);
            CutGpt cut = { .way = WAY_RING, .world = run->world, .attention = context_kind[i] };
            Trajectory got = trajectory_new(run, &t);
            gpt_train(&cut, &t, &got);
            training_compare(run, what, &got, &want, rounding_limit(run));
            check_true(run, "clipping", "is at work in every step",
                       trajectory_clipped(&got, t.clip));
            if (adam && i <= CONTEXT_ZIGZAG) trained_costs(run, &t, i, &cut.measured);
            trajectory_free(&got);
        }
        trajectory_free(&want);
    }
    data_free(&t.data);
}

// ---------------------------------------------------------------- attention alone

// Shows the forward of the two cuts of the ring, and of one of them writes the files.
static void attention_alone(Run *run) {
    const ContextSizes z = alone(run);
    Snapshot *want = attend_one_device(run, z);
    for (int kind = 0; kind < CONTEXT_KINDS; kind++) {
        const bool zigzag = kind == CONTEXT_ZIGZAG;
        const bool written = zigzag == !strcmp(option_text(run, "picture"), "zigzag");
        const int picture = (written ? PICTURE_NO_LINKS : PICTURE_NO_FILES | PICTURE_NO_LINKS) |
                            (zigzag ? PICTURE_ALIKE_ONCE : 0);
        const char *title = zigzag ? "Zigzag chunks, forward" : "Contiguous chunks, forward";
        if (kind == CONTEXT_RSA || kind == CONTEXT_ULYSSES) title = NULL;
        const Attended r = attend(run, kind, z, want, title, picture);
        attend_costs(run, kind, z, &r, context_id[kind]);
    }
    snapshot_free(want);
}

// ---------------------------------------------------------------- the table, and the run

#define EACH(id) \
    { id ".ring", id ".zigzag", id ".rsa", id ".ulysses" }
static void table(Run *run) {
    enum { MEGABYTE = 1000000, MANY = 64 };
    const size_t n = run->world->size;
    const char *longest[CONTEXT_KINDS];
    for (int k = 0; k < CONTEXT_KINDS; k++)
        longest[k] = page_text(run, "=%zu", context_longest_chunk(k, alone(run), MANY, MEGABYTE));
    const char *busy =
        page_text(run, "ring: N/(2N-1) = %.1f %%", 100 * (double)n / (2 * (double)n - 1));
    const char *more = page_text(run, "%d ranks; Ulysses: at most H", MANY);
    const char *const columns[] = { "contiguous", "zigzag", "RSA", "Ulysses", NULL };
    const Result rows[] = {
        { "forward", "2 products; slowest rank", EACH("forward") },
        { "  computing, mean of ranks", busy, { "busy.ring", "busy.zigzag", "=-", "=-" } },
        { "backward", "5 products; RSA: 4", EACH("backward") },
        { "sent per rank", "forward and backward", EACH("sent") },
        { "  in chunks",
          "a chunk: B T C/N elements",
          { "=6N-4", "=6N-4", "=8(N-1)", "=8(N-1)/N" } },
        { "kept for backward", "besides q, k, v, output", EACH("kept") },
        { "  in elements", "Ulysses: q, k, v, output", { "=c H", "=c H", "=c H T", "=c (4C+H)" } },
        { "buffers while it runs", "k, v, dk, dv on their way", EACH("buffers") },
        { "longest chunk c in 1 MB",
          more,
          { longest[CONTEXT_RING], longest[CONTEXT_ZIGZAG], longest[CONTEXT_RSA], "=impossible" } },
        { 0 }
    };
    enum { TIMES = 3 }; // rows that only the simulated clock has
    results(run, columns, clock_config()->simulated ? rows : rows + TIMES);
    say(run,
        "  attention alone: B = 1, T = %zu positions, c = T/N = %zu, N = %zu; C = %zu in "
        "H = %zu heads",
        n * CHUNK, (size_t)CHUNK, n, (size_t)HEADS * D, (size_t)HEADS);
    say(run, "  products: q k^T and p v forward; q k^T, dV, dP, dQ and dK backward (RSA keeps q "
             "k^T)");
}

static void ending(Run *run) {
    const size_t n = run->world->size;
    const char *time = "";
    if (clock_config()->simulated)
        time = page_text(run, " Forward takes %s with zigzag chunks, %s with contiguous ones.",
                         cost_text(run, "forward.zigzag"), cost_text(run, "forward.ring"));
    if (!answer_alone(run))
        say_answer(run,
                   "Each rank keeps the queries of its 1/%zu of the positions, and keys and "
                   "values travel from rank to rank.%s",
                   n, time);
    say_cost(run, "%s sent per rank, and all scores computed twice. Ulysses sends %s.",
             cost_text(run, "sent.zigzag"), cost_text(run, "sent.ulysses"));
    say_use_when(
        run, "one sequence is too long for a device, and there are more ranks than heads of keys "
             "and values. With fewer ranks use Ulysses (03.14).");
}

static void introduction(Run *run) {
    say(run, "Causal: a position attends to itself and to earlier ones, so later chunks need more "
             "work. N ranks.");
    say(run, "contiguous: each rank has one chunk. Keys and values go from rank to rank round a "
             "ring while the");
    say(run, "ranks compute (messages are not drawn). A rank merges the results block by block. "
             "zigzag: the same,");
    say(run, "but of 2N pieces rank i has pieces i and 2N-1-i, so ranks have equal work. RSA "
             "(03.13): the ring");
    say(run, "without merging, so a rank keeps whole rows of scores. Ulysses (03.14): in attention "
             "a rank has all");
    say(run, "positions of some heads, elsewhere some positions of all heads.");
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
