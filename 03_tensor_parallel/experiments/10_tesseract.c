// Experiment of 10_tesseract.c: a GPT is trained on d grids of ranks against the unsplit one. The
// table has one of these grids alone beside it, as lesson 09 with the same batch, computed.
#include <stdio.h>
#include "03_tensor_parallel/experiments/grids.h"
#include "judge/draw/picture.h"

enum { STEPS = 3, BATCH = 4 };                     // sequences: one for each of 2 x 2 rows of ranks
static const double max_norm = 0.5;                       // small enough that every step is clipped

static void table(Run *run, const GridPlace *at, size_t sequences, const GridMeasured *r) {
    const ModelConfig *c = at->c;
    const CutSizes whole = cut_sizes(c, 1, 0);
    const GridPlace alone = grid_place_of(c, at->q, 1, at->col + at->q * at->row);
    const GridTraffic t = grid_stage(&alone, &whole, sequences, false);
    const CutSizes z = grid_sizes(&alone);
    const double parameters = (double)(grid_elements_stage(&alone, &whole) * sizeof(real));
    const size_t tokens = grid_sequences(&alone, sequences) * c->context;
    const double kept = (double)(tokens * kept_stage(&z) * sizeof(real));
    char title[2][40], cell[6][40], took[40];
    snprintf(title[0], 40, "%zu x %zu: rank 0", at->q, at->q);
    snprintf(title[1], 40, "%zu x %zu x %zu: each", at->q, at->q, at->depth);
    snprintf(cell[0], 40, "=%.1f kB", parameters / 1e3);
    snprintf(cell[1], 40, "=%.1f kB", kept / 1e3);
    snprintf(cell[2], 40, "=%.1f kB", t.row.received / 1e3);
    snprintf(cell[3], 40, "=%.1f kB", t.col.received / 1e3);
    snprintf(cell[4], 40, "=%.2f ms", (t.products.time + t.transfers) / 1e9);
    snprintf(cell[5], 40, "=%.1f kB", (t.row.received + t.col.received) / 1e3);
    snprintf(took, 40, "=%.2f ms", (double)r->took / 1e9);
    const bool timed = clock_config()->simulated && grid_even(at, sequences);
    const char *const columns[] = { title[0], title[1], NULL };
    const Result rows[] = {
        { "parameters", "in q² blocks, in every layer", { cell[0], "parameters" } },
        { "activations, peak", "÷ q² d", { cell[1], "kept" } },
        { "received in the row", "X's part: ÷ d", { cell[2], "row.received" } },
        { "received in the column", "A's part: the same", { cell[3], "column.received" } },
        { "received over depth", "2(d-1)/d of my gradients", { "=0 kB", "depth.received" } },
        { "received per step", "the three", { cell[5], "received" } },
        { timed ? "time, layers and sums" : NULL, "products, X's part: ÷ d", { cell[4], took } },
            {0} };
    results(run, columns, rows);
    say(run, "  %zu sequences of %zu; width %zu, %zu heads, %zu blocks, %zu vocabulary entries; q "
             "= %zu, d = %zu",
        sequences, c->context, c->width, c->heads, c->layers, c->vocab, at->q, at->depth);
    say(run, "  %zu x %zu: lesson 09 with the same batch, computed", at->q, at->q);
}

static void costs(Run *run, const CommGrid *g, const ModelConfig *c, size_t sequences,
                  const GridMeasured *r) {
    const GridPlace at = grid_place(c, g);
    const CutSizes whole = cut_sizes(c, 1, 0);
    const GridTraffic want = grid_stage(&at, &whole, sequences, false), *got = &r->traffic;
    const GridTraffic tables = grid_table_sums(&at, &whole);
    GridTraffic sums = grid_unit_sums(&at, &whole);
    sums.depth.calls[COMM_ALL_REDUCE] += tables.depth.calls[COMM_ALL_REDUCE];
    sums.depth.sent += tables.depth.sent;
    sums.depth.received += tables.depth.received;
    sums.transfers += tables.transfers;
    grid_axis_costs(run, "row", &want.row, &got->row);
    grid_axis_costs(run, "column", &want.col, &got->col);
    grid_axis_costs(run, "depth", &sums.depth, &got->depth);
    const double received = want.row.received + want.col.received + sums.depth.received;
    check_cost(run, "received", "received a step", "bytes", formula(received), NOT_PREDICTED,
               got->row.received + got->col.received + got->depth.received);
    grid_memory_costs(run, &at, sequences, r);
    if (clock_config()->simulated && grid_even(&at, sequences))
        check_cost(run, "time", "the layers and the sums, a step", "ps",
                   formula(want.products.time + want.transfers + sums.transfers), NOT_PREDICTED,
                   (double)r->took);
    picture_show(run, "a step of GPT on the grid", PICTURE_ALIKE_ONCE);
    table(run, &at, sequences, r);
}

static void tesseract_lesson(Run *run) {
    require_one_link(run);
    CommGrid g = tesseract_grid(run->world, option_size(run, "depth"));
    ModelConfig c = { .layers = option_size(run, "layers"), .width = option_size(run, "width"),
                      .heads = option_size(run, "heads"), .context = option_size(run, "context"),
                      .vocab = option_size(run, "vocab"), .dropout = option_real(run, "dropout"),
                      .seed = run->seed };
    config_require(&c);
    Training t = { .model = c, .data = data_synthetic(c.vocab, c.context, run->seed),
                   .steps = STEPS,
                   .sequences = BATCH, .micro_batches = 1, .clip = max_norm, .recorded = true,
                   .watched = MEM_ACTIVATIONS };
    if (option_given(run, "batch")) t.sequences = option_size(run, "batch");
    GridTraining training = { .world = run->world, .g = &g, .cut = tesseract };
    training_both(run, "Tesseract = unsplit", &t, grid_train, &training);  // SGD, then AdamW
    costs(run, &g, &c, t.sequences, &training.measured);
    data_free(&t.data);
    comm_grid_free(&g);
}

static const Option options[] = {
    { "depth", "N", "0", "layers of the grid, at most its width; 0: the fewest that make one of "
                         "all ranks" },
    { "layers", "N", "2", "blocks" },
    { "width", "N", "16", "columns; a multiple of --heads" },
    { "heads", "N", "4", "attention heads; at least one a column of the grid" },
    { "context", "N", "8", "positions of a sequence" },
    { "vocab", "N", "64", "vocabulary entries" },
    { "batch", "N", NULL, "sequences of a step, 4; a row of the grid may have none" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    {0},
};
EXPERIMENT(tesseract_lesson, options);
