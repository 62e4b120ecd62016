// 09_summa.c (experiment): runs one linear layer (grids.c) and then trains a GPT on a grid of q x q
// ranks. Compares both with the unsplit layer and GPT. The costs per rank are received bytes,
// memory and time.
#include "03_tensor_parallel/experiments/experiments.h"

enum { M = 12, K = 24, N = 36 }; // sizes of one linear layer: every q up to 4 divides them

// Returns the number of tokens from which 2D receives less than 1D.
static double fewest_tokens(const GridPlace *at) {
    return tensor_way_crossover(WAY_2D, WAY_1D, at->q * at->q) * (double)at->c->width;
}

// Returns the tokens per column of the model, BT / C, from which 2D on q x q ranks is faster than
// 1D on as many ranks, without latency (grids.md). A negative result means never.
static double fewest_in_time(double q) { return 36 / (8 * (q - 1 / q) - 21); }

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
          "1/q² matrices; row 0: bias, gain",
          { one.parameters, line.parameters, "parameters" } },
        { "activations, peak", "cut in q² parts", { one.kept, line.kept, "kept" } },
        { "received along the row",
          "3(q-1)/q² of X; norms, loss",
          { "=0 B", "=-", "row.received" } },
        { "received along the column",
          "3(q-1)/q² of W, and biases",
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
        "  The factor 3, a term per product Y, dX, dW. Row: X, sums of dX, X. Column: W, W, sums "
        "of dW.");
    say(run,
        "  Weights do not grow with the tokens, and 1D receives none. So 2D receives less than 1D "
        "only from");
    say(run, "  36 C/(8q-13) = %.0f tokens per micro-batch on (here: %zu). %s", fewest_tokens(at),
        sequences * c->context,
        q == 2 ? "2 x 2 is never faster (grids.md)." : "To be faster 2D needs more.");
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
                   "Yes. A rank holds %s of parameters and %s of activations. For every product it "
                   "receives blocks of X and of W, or of their gradients. Together that is %s per "
                   "step%s.",
                   cost_text(run, "parameters"), cost_text(run, "kept"), cost_text(run, "received"),
                   compared);
    say_cost(run,
             "each product takes %zu turn%s of 2 broadcasts or reduces, and nothing is sent while "
             "ranks compute%s.",
             q, q == 1 ? "" : "s", times);
    say_use_when(run,
                 "more ranks than a node has must share one layer. With 3 x 3 ranks 2D is faster "
                 "than 1D from %.0f C tokens per micro-batch on, with 8 x 8 from %.1f C on, with "
                 "2 x 2 never (grids.md). If only 1D's activations do not fit, use sequence "
                 "parallelism (03.07).",
                 fewest_in_time(3), fewest_in_time(8));
}

static void summa_lesson(Run *run) {
    require_one_link(run);
    size_t q = summa_side(run->world->size);
    CommGrid g = comm_grid(run->world, q, q, 1);
    const ModelConfig c = gpt_options(run, option_size(run, "context"), option_size(run, "vocab"));
    say(run,
        "A grid of q x q ranks, q = %zu. A rank holds one block of X, of W and of Y = X W. There "
        "are q turns.",
        q);
    say(run, "In turn l the ranks of column l send X along rows, and the ranks of row l "
             "send W along columns.");
    say(run, "Then all ranks multiply. Picture: one layer. Table: a GPT. 1D: tensor parallelism "
             "(03.06). 2D: here.");
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
