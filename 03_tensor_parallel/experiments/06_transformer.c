// 06_transformer.c: trains a GPT with all matrices but wpe cut, and compares this GPT with the
// unsplit GPT. A training has three steps of SGD or of AdamW, with dropout, unequal token counts
// and clipping. Formulas predict calls, bytes, memory and the time of a step.
// The default parts on 4 ranks:
//     9 heads                   3   2   2   2
//     61 vocabulary entries    16  15  15  15
#include "03_tensor_parallel/experiments/experiments.h"

enum { BATCH = 3 }; // sequences

// ---------------------------------------------------------------- times

// Checks the times. Rank 0 holds the largest part of every tensor, so rank 0 is always the slowest.
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

// Returns a cell of the table: the bytes of a block's parameters on rank 0 of n.
static const char *block(Run *run, const ModelConfig *c, size_t n) {
    const CutSizes z = cut_sizes(c, n, 0);
    return value_cell(run, (double)(elements_block(&z) * weight_bytes(c)), "bytes");
}
static void table(Run *run, const ModelConfig *c, const GptCells *one) {
    const size_t n = run->world->size, M = BATCH * c->context, e = weight_bytes(c);
    const CutSizes first = cut_sizes(c, n, 0);
    const char *sent =
        value_cell(run, 4 * ring_bytes(ALL_REDUCE_PASSES, n, M * c->width, e), "bytes");
    const char *ranks = page_text(run, n == 1 ? "%zu rank" : "each of %zu", n);
    const char *const columns[] = { "one device", ranks, NULL };
    const Result rows[] = {
        { "parameters", "L blocks + V C/t + T C + 2 C", { one->parameters, "parameters" } },
        { "  one block, rank 0", "12 C²/t + 7 C/t + 6 C", { block(run, c, 1), block(run, c, n) } },
        { "activations, peak", "L blocks, embedding, head", { one->kept, "kept" } },
        { "all-reduces per step",
          "4 L; embedding, head: 2; loss: 3; norm: 1 more",
          { "=0", "calls" } },
        { "sent per step", "L blocks + (4 C + 6) M (t-1)/t", { "=0 B", "sent" } },
        { "  one block", "8 M C (t-1)/t", { "=0 B", sent } },
        { clock_config()->simulated ? "time of a step" : NULL,
          "slowest rank + all-reduces",
          { one->time, "step" } },
        { 0 }
    };
    results(run, columns, rows);
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
    trial_say_cost(run, " and one for the gradient norm");
    say_use_when(run, "a model does not fit in one device, and a fast link joins several devices, "
                      "as in a node of 8 GPUs.");
}

static void transformer(Run *run) {
    const ModelConfig c = gpt_options(run, 7, 61);
    Training t = gpt_training(c, BATCH);
    CutGpt tp = { .way = WAY_1D, .world = run->world };
    t.recorded = true;
    training_store(run, &t);
    say(run, "Each rank holds 1/t of each matrix but wpe: whole heads, hidden columns, vocabulary "
             "entries.");
    if (run->world->size > 1)
        say(run, "F0, B0: the work between two sums (#): attention or MLP of one block, or the "
                 "head.\nThe loss's three sums are drawn as one A.");
    training_both(run, "tensor-parallel = unsplit", &t, gpt_train, &tp); // SGD, then AdamW
    gpt_costs_1d(run, &t.model, BATCH, &tp.measured);
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
