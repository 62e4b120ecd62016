// 09_summa.c (experiment): one linear layer (grid_linear.c) and then a GPT are computed in q x q
// blocks and compared with the unsplit ones. Costs per rank: bytes received along its row and its
// column, memory, time.
#include <stdio.h>
#include "03_tensor_parallel/experiments/experiments.h"

enum { E = sizeof(real) };
enum { M = 12, K = 24, N = 36 }; // of one linear layer: every q up to 4 divides them
enum { STEPS = 3 };
static const double max_norm = 0.5; // small enough that every step is clipped

// ---------------------------------------------------------------- the table

// The costs of one device (1 rank) and of 1D (lesson 06, n ranks), from sizes alone.
typedef struct {
    double block, parameters, activations, received, time;
} Computed;
static Computed computed(const ModelConfig *c, size_t n, size_t sequences) {
    const CutSizes z = cut_sizes(c, n, 0);
    const Traffic t = traffic_tensor_parallel(&z, n, sequences, false);
    return (Computed){ (double)(elements_block(&z) * E), (double)(elements_stage(&z) * E),
                       (double)(sequences * c->context * kept_stage(&z) * E), t.bytes,
                       3 * work_stage(&z, sequences).time + t.time };
}
typedef struct {
    char block[24], parameters[24], activations[24], received[24], time[24];
} Column;
static Column column(Computed v, bool possible) {
    Column c = { "=-", "=-", "=-", "=-", "=-" };
    if (!possible) return c;
    page_cell(c.block, v.block, "bytes");
    page_cell(c.parameters, v.parameters, "bytes");
    page_cell(c.activations, v.activations, "bytes");
    page_cell(c.received, v.received, "bytes");
    page_cell(c.time, v.time, "ps");
    return c;
}

static void table(Run *run, const GridPlace *at, size_t sequences, double took) {
    const ModelConfig *c = at->c;
    const size_t n = run->world->size, q = at->q;
    const bool simulated = clock_config()->simulated;
    const Column one = column(computed(c, 1, sequences), true);
    const Column line = column(computed(c, n, sequences), n <= c->heads);
    char title[2][40], time[24];
    snprintf(title[0], 40, "1D on %zu", n);
    snprintf(title[1], 40, "2D on %zu x %zu", q, q);
    page_cell(time, took, "ps");
    const char *const columns[] = { "one device", title[0], title[1], NULL };
    const Result rows[] = {
        { "parameters of a block",
          "12 C²/q²; row 0: also 13 C/q",
          { one.block, line.block, "block" } },
        { "parameters of the model",
          "matrices cut in q² parts",
          { one.parameters, line.parameters, "parameters" } },
        { "activations, peak", "cut in q² parts", { one.activations, line.activations, "kept" } },
        { "received along the row",
          "3(q-1)/q² of X; norms, loss",
          { "=0 B", "=-", "row.received" } },
        { "received along the column",
          "3(q-1)/q² of A, and biases",
          { "=0 B", "=-", "column.received" } },
        { "received per step", "row + column", { one.received, line.received, "received" } },
        { simulated ? "time of the layers" : NULL, NULL, { one.time, line.time, time } },
        { 0 },
    };
    results(run, columns, rows);
    say(run,
        "  %zu sequences of %zu tokens, width C = %zu, %zu heads, %zu blocks, %zu vocabulary "
        "entries; q = %zu",
        sequences, c->context, c->width, c->heads, c->layers, c->vocab, q);
    if (q > 1) {
        say(run, "  1D receives activations only, 2D also weights, which do not grow with the "
                 "tokens. So 2D receives");
        say(run,
            "  less from 36 C/(8q-13) = %.0f tokens on (this step: %zu). Row 0 alone holds "
            "biases and norms.",
            36.0 * (double)c->width / (8.0 * (double)q - 13), sequences * c->context);
    }
}

// Compares the slowest or fullest rank with 1D.
static void ending(Run *run, const GridPlace *at, size_t sequences, double took) {
    const size_t n = run->world->size, q = at->q;
    const Computed line = computed(at->c, n, sequences);
    const bool possible = n > 1 && n <= at->c->heads;
    char compared[80] = "", time[2][24], from[48] = "";
    if (possible)
        snprintf(compared, sizeof compared, ", up to %.1f times as much as 1D tensor parallelism",
                 cost_value(run, "received") / line.received);
    if (q > 1)
        snprintf(from, sizeof from, " (here from %.0f on)",
                 36.0 * (double)at->c->width / (8.0 * (double)q - 13));
    if (n == 1)
        say_answer(run,
                   "Yes, but 1 rank has nothing to cut. It holds %s of parameters and "
                   "receives nothing.",
                   cost_text(run, "parameters"));
    else
        say_answer(run,
                   "Yes. A rank holds %s of parameters and %s of activations. For every "
                   "product it receives blocks of X and of A, or of their gradients. Together "
                   "that is %s per step%s.",
                   cost_text(run, "parameters"), cost_text(run, "kept"), cost_text(run, "received"),
                   compared);
    page_value(time[0], sizeof time[0], took, "ps");
    page_value(time[1], sizeof time[1], line.time, "ps");
    if (possible && clock_config()->simulated)
        say_cost(run,
                 "each product takes %zu turns of 2 broadcasts or reduces, and nothing is "
                 "sent while ranks compute: %s for the layers, %s in 1D.",
                 q, time[0], time[1]);
    else
        say_cost(run,
                 "each product takes %zu turn%s of 2 broadcasts or reduces, and nothing is "
                 "sent while ranks compute.",
                 q, q == 1 ? "" : "s");
    say_use_when(run,
                 "more ranks than a node has must share one layer, and a step has many "
                 "tokens%s. If only 1D's whole activations do not fit, sequence "
                 "parallelism (03.07) cuts them and sends no weights.",
                 from);
}

static void costs(Run *run, const CommGrid *g, const ModelConfig *c, size_t sequences,
                  const GridMeasured *r) {
    const GridPlace at = grid_place(c, g);
    const CutSizes whole = cut_sizes(c, 1, 0);
    const GridTraffic want = grid_stage(&at, &whole, sequences, false), *got = &r->traffic;
    const double took = (double)r->took;
    grid_axis_costs(run, "row", &want.row, &got->row);
    grid_axis_costs(run, "column", &want.col, &got->col);
    check_cost(run, "received", "received a step", "bytes",
               formula(want.row.received + want.col.received), NOT_PREDICTED,
               got->row.received + got->col.received);
    grid_memory_costs(run, &at, sequences, r);
    if (clock_config()->simulated && grid_even(&at, sequences))
        check_cost(run, "time", "the layers, a step", "ps",
                   formula(want.products.time + want.transfers), NOT_PREDICTED, took);
    table(run, &at, sequences, took);
    ending(run, &at, sequences, took);
}

static void summa_lesson(Run *run) {
    require_one_link(run);
    size_t q = summa_side(run->world->size);
    CommGrid g = comm_grid(run->world, q, q, 1);
    ModelConfig c = { .layers = option_size(run, "layers"),
                      .width = option_size(run, "width"),
                      .heads = option_size(run, "heads"),
                      .context = option_size(run, "context"),
                      .vocab = option_size(run, "vocab"),
                      .dropout = option_real(run, "dropout"),
                      .seed = run->seed };
    config_require(&c);
    say(run,
        "A grid of %zu x %zu ranks; each holds one block of X, of A and of Y = X A. In turn k "
        "the ranks of",
        q, q);
    say(run, "column k send X along their rows, and the ranks of row k send A along their "
             "columns. Then all ranks");
    say(run, "multiply. Below, one layer; in the table, a GPT. 1D: tensor parallelism (03.06). 2D: "
             "this grid.");
    grid_linear_compare(run, &g, (GridLinear){ M, K, N });
    Training t = { .model = c,
                   .data = data_synthetic(c.vocab, c.context, run->seed),
                   .steps = STEPS,
                   .sequences = option_size(run, "batch"),
                   .micro_batches = 1,
                   .clip = max_norm,
                   .watched = MEM_ACTIVATIONS };
    GridTraining training = { .world = run->world, .g = &g, .cut = summa };
    training_both(run, "SUMMA = unsplit", &t, grid_train, &training); // SGD, then AdamW
    costs(run, &g, &c, t.sequences, &training.measured);
    data_free(&t.data);
    comm_grid_free(&g);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "20", "columns; a multiple of --heads" },
    { "heads", "N", "5", "attention heads; at least one per column of the grid" },
    { "context", "N", "7", "positions of a sequence" },
    { "vocab", "N", "61", "vocabulary entries" },
    { "batch", "N", "3", "sequences per step; a row of the grid may have none" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    { 0 },
};
EXPERIMENT(summa_lesson, options);
