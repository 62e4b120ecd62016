// 10_tesseract.c (experiment): trains a GPT on d grids of ranks, and compares this GPT with the
// unsplit GPT. The table compares the d grids with one grid of q x q ranks, whose costs are
// computed.
#include "03_tensor_parallel/experiments/experiments.h"
#include "judge/draw/picture.h"

enum { BATCH = 4 }; // a sequence for each row, if 2 grids have 2 rows each

static const char *bytes(Run *run, double n) { return value_cell(run, n, "bytes"); }

// `first` is rank 0 of one grid that trains the same batch alone, as in lesson 09.
static void table(Run *run, const GridPlace *at, const GridPlace *first, size_t sequences,
                  double took) {
    const ModelConfig *c = at->c;
    const CutSizes whole = cut_sizes(c, 1, 0);
    const GridTraffic traffic = grid_stage(first, &whole, sequences, false);
    const RankShare alone = grid_share(first, sequences);
    const bool timed = clock_config()->simulated && grid_even(at, sequences);
    const size_t q = at->q, d = at->depth;
    const char *const columns[] = { page_text(run, "one grid, %zu x %zu", q, q),
                                    page_text(run, "d grids, %zu x %zu x %zu", q, q, d), NULL };
    const Result rows[] = {
        { "parameters",
          "the same: 1/q² of the weights",
          { bytes(run, (double)(alone.parameters * weight_bytes(c))), "parameters" } },
        { "activations, peak",
          "1/(q² d) of all activations",
          { bytes(run, share_kept_bytes(c, &alone)), "kept" } },
        { "received along the row",
          "activations: 1/d of one grid's",
          { bytes(run, traffic.row.received), "row.received" } },
        { "received along the column",
          "weights: about one grid's",
          { bytes(run, traffic.col.received), "column.received" } },
        { "received from other grids",
          "2(d-1)/d of gradients, wte twice",
          { "=0 B", "depth.received" } },
        { "received per step",
          "row + column + other grids",
          { bytes(run, alone.received), "received" } },
        { timed ? "time of a step" : NULL,
          "without gradient norm, optimizer",
          { value_cell(run, alone.time, "ps"), value_cell(run, took, "ps") } },
        { 0 },
    };
    results(run, columns, rows);
    say(run,
        "  %zu sequences of %zu tokens, width %zu, %zu heads, %zu blocks, %zu vocabulary "
        "entries; q = %zu, d = %zu",
        sequences, c->context, c->width, c->heads, c->layers, c->vocab, q, d);
    say(run, "  one grid: computed for rank 0 and the same batch, with the formulas of 03.09. "
             "d grids: measured.");
}

static void ending(Run *run, const GridPlace *at, const GridPlace *first, size_t sequences,
                   double took) {
    const RankShare alone = grid_share(first, sequences);
    const char *times = "";
    if (clock_config()->simulated && grid_even(at, sequences))
        times = page_text(run, " A step takes %s instead of %s.", value_text(run, took, "ps"),
                          value_text(run, alone.time, "ps"));
    const size_t d = at->depth, ranks = at->q * at->q;
    if (d == 1)
        say_answer(run,
                   "Nothing: with d = 1 this is SUMMA on %zu x %zu ranks, and each rank "
                   "receives %s per step.",
                   at->q, at->q, cost_text(run, "received"));
    else
        say_answer(run,
                   "Inside a grid nothing changes. One sum is new: the %zu grids add their "
                   "gradients, as in data parallelism. With %zu ranks instead of %zu, a rank "
                   "keeps at most %s of activations instead of %s, and receives at most %s per "
                   "step instead of %s.%s",
                   d, d * ranks, ranks, value_text(run, cost_value(run, "kept"), "bytes"),
                   value_text(run, share_kept_bytes(at->c, &alone), "bytes"),
                   value_text(run, cost_value(run, "received"), "bytes"),
                   value_text(run, alone.received, "bytes"), times);
    say_cost(run,
             "all weights are held d = %zu times, and a rank receives %s per step for the sums of "
             "their gradients.",
             d, cost_text(run, "depth.received"));
    say_use_when(run,
                 "a layer needs 2D (03.09), but there are more than q² ranks. The weights must "
                 "fit in q² ranks, and the batch must have q d sequences or more.");
}

static void tesseract_lesson(Run *run) {
    require_one_link(run);
    CommGrid g = tesseract_grid(run->world, option_size(run, "depth"));
    const ModelConfig c = gpt_options(run, option_size(run, "context"), option_size(run, "vocab"));
    Training t = gpt_training(c, BATCH);
    t.recorded = true;
    if (option_given(run, "batch")) t.sequences = option_size(run, "batch");
    training_store(run, &t);
    CutGpt cut = { .way = WAY_25D, .world = run->world, .grid = g };
    say(run,
        "d grids of q x q ranks, d = %zu, q = %zu. Ranks 0 to %zu are the first grid. All grids "
        "hold the same\nweights, in blocks. Each grid has its own part of the batch, and computes "
        "it as SUMMA does (03.09).",
        g.depth, g.rows, g.rows * g.cols - 1);
    if (run->world->size > 1)
        say(run, "Ranks that do the same at the same time are drawn once. # is a broadcast, a "
                 "reduce or an all-reduce.");
    if (g.depth > 1)
        say(run, "New in the row of links: the calls A at the right end. There the grids add their "
                 "gradients.\n(The all-reduces of the norms are too short to be drawn.)");
    training_both(run, "Tesseract = unsplit", &t, gpt_train, &cut); // SGD, then AdamW
    const GridPlace at = grid_place_of(&t.model, g.rows, g.depth, run->world->rank);
    grid_costs(run, &cut, &at, t.sequences);
    picture_show(run, "A step of GPT on the grid", PICTURE_ALIKE_ONCE);
    const GridPlace first = grid_place_of(&t.model, g.rows, 1, 0);
    table(run, &at, &first, t.sequences, (double)cut.measured.layers_time);
    ending(run, &at, &first, t.sequences, (double)cut.measured.layers_time);
    data_free(&t.data);
    comm_grid_free(&g);
}

static const Option options[] = {
    { "depth", "N", "0",
      "number of grids, at most q; 0: the smallest with which all ranks "
      "form q x q x d" },
    { "layers", "N", "2", "blocks" },
    { "width", "N", "16", "columns; a multiple of --heads" },
    { "heads", "N", "4", "attention heads; at least one per column of a grid" },
    { "context", "N", "8", "positions of a sequence" },
    { "vocab", "N", "64", "vocabulary entries" },
    { "batch", "N", NULL, "sequences per step, 4; a row of a grid may have none" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(tesseract_lesson, options);
