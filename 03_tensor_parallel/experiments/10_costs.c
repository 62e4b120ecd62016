// 10_costs.c: see 10_costs.h.
#include "03_tensor_parallel/experiments/10_costs.h"
#include <stdio.h>
#include "judge/draw/picture.h"

// Beside the grid as it ran: one of its layers alone, as 09_summa on q x q ranks with the same batch, computed.
static void table(Run *run, const GridPlace *at, size_t sequences, const SummaMeasured *r) {
    const ModelConfig *c = at->c;
    const CutSizes whole = cut_sizes(c, 1, 0);
    const GridPlace alone = grid_place_of(c, at->q, 1, at->col + at->q * at->row);
    const GridTraffic t = grid_stage(&alone, &whole, sequences, false);
    const CutSizes z = grid_sizes(&alone);
    const double parameters = (double)(grid_elements_stage(&alone, &whole) * sizeof(real));
    const double kept = (double)(grid_sequences(&alone, sequences) * c->context * kept_stage(&z) * sizeof(real));
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
    const char *const columns[] = { title[0], title[1], NULL };
    const Result rows[] = {
        { "parameters", "in q² blocks, in every layer", { cell[0], "parameters" } },
        { "activations, peak", "÷ q² d", { cell[1], "activations, peak" } },
        { "received in the row", "X's part: ÷ d", { cell[2], "row: received a step" } },
        { "received in the column", "A's part: the same", { cell[3], "column: received a step" } },
        { "received over depth", "2(d-1)/d of my gradients", { "=0 kB", "depth: received a step" } },
        { "received per step", "the three", { cell[5], "received a step" } },
        { clock_config()->simulated && grid_even(at, sequences) ? "time, layers and sums" : NULL,
          "products, X's part: ÷ d", { cell[4], took } }, {0} };
    results(run, columns, rows);
    say(run, "  %zu sequences of %zu; width %zu, %zu heads, %zu blocks, %zu vocabulary entries; q = %zu, d = %zu",
        sequences, c->context, c->width, c->heads, c->layers, c->vocab, at->q, at->depth);
    say(run, "  %zu x %zu: lesson 09 with the same batch, computed", at->q, at->q);
}

void tesseract_costs(Run *run, const CommGrid *g, const ModelConfig *c, size_t sequences, const SummaMeasured *r) {
    const GridPlace at = grid_place(c, g);
    const CutSizes whole = cut_sizes(c, 1, 0);
    const GridTraffic want = grid_stage(&at, &whole, sequences, false), tables = grid_table_sums(&at, &whole);
    GridTraffic sums = grid_unit_sums(&at, &whole);
    const GridTraffic *got = &r->traffic;
    sums.depth.calls[COMM_ALL_REDUCE] += tables.depth.calls[COMM_ALL_REDUCE];
    sums.depth.sent += tables.depth.sent;
    sums.depth.received += tables.depth.received;
    sums.transfers += tables.transfers;
    summa_axis_costs(run, "row", &want.row, &got->row);
    summa_axis_costs(run, "column", &want.col, &got->col);
    summa_axis_costs(run, "depth", &sums.depth, &got->depth);
    cost(run, "received a step", "bytes", want.row.received + want.col.received + sums.depth.received,
         got->row.received + got->col.received + got->depth.received);
    summa_memory_costs(run, &at, sequences, r);
    if (clock_config()->simulated && grid_even(&at, sequences))
        cost(run, "the layers and the sums, a step", "ps", want.products.time + want.transfers + sums.transfers,
             (double)r->took);
    picture_show(run, "a step of GPT on the grid", PICTURE_ALIKE_ONCE);
    table(run, &at, sequences, r);
}
