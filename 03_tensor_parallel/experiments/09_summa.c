// 09_summa.c (experiment): runs one linear layer (grids.c) and then trains a GPT on a grid of q x q
// ranks. Compares both with the unsplit layer and GPT. The costs per rank are received bytes,
// memory and time.
#include "03_tensor_parallel/experiments/experiments.h"

enum { M = 12, K = 24, N = 36 }; // sizes of one linear layer: every q up to 4 divides them

// Returns the number of tokens from which 2D receives less than 1D.
static double fewest_tokens(const GridPlace *at) {
    return tensor_way_crossover(WAY_2D, WAY_1D, at->q * at->q) * (double)at->c->width;
}

static void table(Run *run, const GridPlace *at, size_t sequences, double took) {
    const ModelConfig *c = at->c;
    const size_t n = run->world->size, q = at->q;
    const GptCells none = { "=-", "=-", "=-", "=-" }; // 1D needs a head per rank
    const GptCells one = gpt_cells_1d(run, c, 1, sequences);
    const GptCells line = n <= c->heads ? gpt_cells_1d(run, c, n, sequences) : none;
    const char *const columns[] = { "one device", page_text(run, "1D on %zu", n),
                                    page_text(run, "2D on %zu x %zu", q, q), NULL };
    const Result rows[] = {
        { "parameters",
          "matrices: 1/q²; vectors: in row 0",
          { one.parameters, line.parameters, "parameters" } },
        { "activations, peak", "1/q² of all", { one.kept, line.kept, "kept" } },
        { "received along the row",
          "3(q-1)/q² of X; sums of norms, loss",
          { "=0 B", "=-", "row.received" } },
        { "received along the column",
          "3(q-1)/q² of W; biases",
          { "=0 B", "=-", "column.received" } },
        { "received per step", "row + column", { one.received, line.received, "received" } },
        { clock_config()->simulated ? "time of the layers" : NULL,
          NULL,
          { one.time, line.time, value_cell(run, took, "ps") } },
        { 0 },
    };
    results(run, columns, rows);
    say(run,
        "  %zu sequences of %zu tokens, width C = %zu, %zu heads, %zu blocks, %zu vocabulary "
        "entries; q = %zu",
        sequences, c->context, c->width, c->heads, c->layers, c->vocab, q);
    if (q == 1) return;
    gpt_say_uneven(run, c, sequences, q, q);
    say(run,
        "  1D: 03.06. vectors: biases, gains. Factor 3: for each product (Y, dX, dW) a rank "
        "receives X or dX\n  along the row, W or dW along the column. 1D receives no weights, so "
        "only many tokens favour 2D:\n  2D receives less than 1D from %.0f tokens per micro-batch "
        "on (here: %zu).",
        fewest_tokens(at), sequences * c->context);
}

// Prints the end of the page. If 1D has a head for each rank, the text compares received bytes and
// times with 1D.
static void ending(Run *run, const GridPlace *at, size_t sequences, double took) {
    const size_t n = run->world->size, q = at->q;
    const char *times = "", *compared = "";
    if (n > 1 && n <= at->c->heads) { // 1D needs a head per rank
        const CutSizes z = cut_sizes(at->c, n, 0);
        const double line = line_share(&z, sequences).received;
        compared = page_text(run, ", up to %.1f times as much as 1D tensor parallelism",
                             cost_value(run, "received") / line);
        if (clock_config()->simulated)
            times = page_text(run, ": %s for the layers, %s in 1D", value_text(run, took, "ps"),
                              gpt_cells_1d(run, at->c, n, sequences).time + 1);
    }
    if (!answer_alone(run))
        say_answer(run,
                   "Yes. A rank holds %s of parameters and %s of activations. For every product a "
                   "rank receives blocks of X and W, or of their gradients: %s per step%s.",
                   cost_text(run, "parameters"), cost_text(run, "kept"), cost_text(run, "received"),
                   compared);
    say_cost(run,
             "each product takes %zu turn%s of 2 broadcasts or reduces, and nothing is sent while "
             "ranks compute%s.",
             q, q == 1 ? "" : "s", times);
    // The tokens per column, BT / C, from which 2D is faster on 8 x 8 ranks: 36 / (8 (q - 1/q) -
    // 21), with q = 8 (grids.md).
    const double in_time = 36 / (8 * (8 - 1.0 / 8) - 21);
    say_use_when(
        run,
        "one layer needs more ranks than a node has, and a micro-batch has many tokens. With "
        "equal links and no latency 2D is faster than 1D on 8 x 8 ranks from %.1f C tokens on. On "
        "2 x 2 ranks 2D can receive less than 1D, but is never faster (why: grids.md). If only "
        "1D's activations do not fit, use sequence parallelism (03.07).",
        in_time);
}

static void summa_lesson(Run *run) {
    require_one_link(run);
    size_t q = summa_side(run->world->size);
    CommGrid g = comm_grid(run->world, q, q, 1);
    const ModelConfig c = gpt_options(run, option_size(run, "context"), option_size(run, "vocab"));
    say(run,
        "A grid of q x q ranks, q = %zu. A rank holds one block of X, of W and of Y = X W. A "
        "product takes q\nturns. In turn l, column l of the grid sends X along the rows, row l "
        "sends W along the columns, and\nall ranks multiply. Backward also reduces partial "
        "sums (dX, dW). Picture: one layer. Table: a GPT.",
        q);
    grid_linear_compare(run, &g, (LinearSizes){ M, 1, K, N });
    Training t = gpt_training(c, option_size(run, "batch"));
    training_store(run, &t);
    CutGpt cut = { .way = WAY_2D, .world = run->world, .grid = g };
    training_both(run, "SUMMA = unsplit", &t, gpt_train, &cut); // SGD, then AdamW
    const GridPlace at = grid_place_of(&t.model, q, 1, run->world->rank);
    const double took = (double)cut.measured.layers_time;
    grid_costs(run, &cut, &at, t.sequences);
    table(run, &at, t.sequences, took);
    ending(run, &at, t.sequences, took);
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
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(summa_lesson, options);
