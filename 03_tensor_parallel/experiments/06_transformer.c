// 06_transformer.c: trains a GPT with all matrices cut, and compares this GPT with the unsplit GPT.
// A training has three steps of SGD or of AdamW, with dropout, unequal token counts and clipping.
// Formulas predict calls, bytes, memory and the time of a step. The default parts on 4 ranks:
//     9 heads                   3   2   2   2
//     61 vocabulary entries    16  15  15  15
#include <string.h>
#include "03_tensor_parallel/experiments/experiments.h"
#include "judge/frame/presets.h"

enum { BATCH = 3 }; // sequences

// ---------------------------------------------------------------- costs

// Checks the costs. All-reduces of [M, C]: four per block, one in the embedding, one of the head's
// dx. Of [M, 1]: three in the loss. costs.h has the elements that each layer holds and keeps.
static void costs(Run *run, const ModelConfig *c, const GptMeasured *r) {
    const CutSizes z = cut_sizes(c, run->world->size, run->world->rank);
    const RankShare share = line_share(&z, BATCH);
    const Traffic layers = traffic_tensor_parallel(&z, z.t, BATCH, false);
    const GroupTraffic *tp = &r->layers[GPT_WORLD];
    gpt_memory_costs(run, "%s", "%s", c, &share, r);
    check_cost(run, "calls", "all-reduces in the layers, a step", "calls", formula(layers.calls),
               NOT_PREDICTED, tp->calls[COMM_ALL_REDUCE]);
    check_cost(run, "sent", "sent in the layers, a step", "bytes", formula(layers.bytes),
               NOT_PREDICTED, tp->sent);
}

// Checks the times. Rank 0 holds the largest part of everything, so rank 0 is always the slowest.
// Backward has two products for each product of forward.
static void times(Run *run, const ModelConfig *c) {
    const size_t n = run->world->size;
    const CutSizes first = cut_sizes(c, n, 0);
    const double norm = ring_time(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double));
    const double communication = traffic_tensor_parallel(&first, n, BATCH, false).time + norm;
    trial_times(run, "Tensor parallelism, last step", 3 * work_stage(&first, BATCH).time,
                communication);
}

// ---------------------------------------------------------------- the table

static const ClockLink *link_named(const char *name) {
    const ClockLink *l = clock_links;
    while (l->name && strcmp(l->name, name)) l++;
    return l;
}
// Returns the time of the two all-reduces of a block's forward on this link, relative to the
// block's products.
static const char *sending(Run *run, const char *link, const CutSizes *z, size_t e) {
    clock_set_link(link_named(link));
    const double sum = ring_time(ALL_REDUCE_PASSES, z->t, BATCH * z->T * z->C, e);
    clock_set_link(NULL);
    return page_text(run, "=%.2f", 2 * sum / work_block(z, BATCH).time);
}
// Returns the bytes of a block's parameters on rank 0 of n.
static const char *block(Run *run, const ModelConfig *c, size_t n) {
    const CutSizes z = cut_sizes(c, n, 0);
    return value_cell(run, (double)(elements_block(&z) * weight_bytes(c)), "bytes");
}
static void table(Run *run, const ModelConfig *c, const GptCells *one) {
    const size_t n = run->world->size, M = BATCH * c->context, e = weight_bytes(c);
    const CutSizes first = cut_sizes(c, n, 0);
    const char *sent =
        value_cell(run, 4 * ring_bytes(ALL_REDUCE_PASSES, n, M * c->width, e), "bytes");
    const char *fast = sending(run, "fast", &first, e), *slow = sending(run, "slow", &first, e);
    const char *ranks = page_text(run, n == 1 ? "%zu rank" : "each of %zu", n);
    const char *const columns[] = { "one device", ranks, NULL };
    const Result rows[] = {
        { "parameters", "L blocks + V C/t + T C + 2 C", { one->parameters, "parameters" } },
        { "  one block", "12 C²/t + 7 C/t + 6 C", { block(run, c, 1), block(run, c, n) } },
        { "activations, peak", "L blocks, embedding, head", { one->kept, "kept" } },
        { "all-reduces per step", "4 L; embedding, head: 2; loss: 3", { "=0", "calls" } },
        { "sent per step", "L blocks + (4 C + 6) M (t-1)/t", { "=0 B", "sent" } },
        { "  one block", "8 M C (t-1)/t", { "=0 B", sent } },
        { clock_config()->simulated ? "time of a step" : NULL,
          "slowest rank + all-reduces",
          { one->time, "step" } },
        { "sending / computing, forward", "link fast: (t-1) e P/(6 C beta)", { "=0", fast } },
        { "  on link slow", "the same, with its beta", { "=0", slow } },
        { 0 }
    };
    results(run, columns, rows);
    say(run,
        "  sending / computing: values also count latency and attention's products; the formulas "
        "do not.\n  Device: P = %.3g GFLOP/s; links: beta = %.3g, %.3g MB/s",
        clock_config()->device.flops / 1e9, link_named("fast")->beta / 1e6,
        link_named("slow")->beta / 1e6);
    say(run, "  a block keeps M C (4 + 12/t + %s/(C t) + 4/C) elements for backward",
        c->dropout > 0 ? "2 H T" : "H T");
    say(run,
        "  B = %d sequences of T = %zu, M = B T; C = %zu, H = %zu heads, L = %zu blocks, "
        "V = %zu; t = %zu; e = %zu bytes",
        BATCH, c->context, c->width, c->heads, c->layers, c->vocab, n, e);
    if (c->heads % n)
        say(run,
            "  The formulas are exact where t divides all sizes. Here rank 0 has %zu of %zu heads "
            "and sets the times.",
            first.heads, c->heads);
}

static void ending(Run *run, const char *whole) {
    if (!answer_alone(run))
        say_answer(run,
                   "Yes, its training is the same up to rounding. Each rank holds %s of %s of "
                   "parameters, and sends %s per step.",
                   cost_text(run, "parameters"), whole, cost_text(run, "sent"));
    trial_say_cost(run, "calls");
    say_use_when(run, "a model does not fit in one device, and a fast link joins several, as in a "
                      "node of 8 GPUs.");
}

static void transformer(Run *run) {
    const ModelConfig c = gpt_options(run, 7, 61);
    Training t = gpt_training(c, BATCH);
    CutGpt tp = { .way = WAY_1D, .world = run->world };
    t.recorded = true;
    training_store(run, &t);
    say(run, "Each rank holds 1/t of each matrix: whole heads, hidden columns, vocabulary "
             "entries.");
    if (run->world->size > 1)
        say(run, "F0, B0: the work between two sums (#): attention or MLP of one block, or the "
                 "head.");
    training_both(run, "tensor-parallel = unsplit", &t, gpt_train, &tp); // SGD, then AdamW
    costs(run, &t.model, &tp.measured);
    times(run, &t.model);
    const GptCells one = gpt_cells_1d(run, &t.model, 1, BATCH);
    table(run, &t.model, &one);
    ending(run, one.parameters + 1); // skips the cell's '='
    data_free(&t.data);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "27", "columns; a multiple of --heads" },
    { "heads", "N", "9", "attention heads; at least one a rank" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(transformer, options);
