// way_tables.c: tables of 12_compare.c with a column for each of the six ways to cut a block. Two
// tables and the plot of received elements follow from sizes alone; no rank trains for them.
#include "03_tensor_parallel/experiments/experiments.h"
#include "judge/draw/picture.h"
#include "judge/draw/plot.h"

const char *const tensor_way_name[TENSOR_WAYS] = { "1D", "1D + SP", "2D", "2.5D", "3D", "ring" };
const char *const tensor_way_id[TENSOR_WAYS] = { "1d", "sp", "2d", "25d", "3d", "ring" };
static const char *const columns[TENSOR_WAYS + 1] = { "1D", "1D + SP",   "2D", "2.5D",
                                                      "3D", "ring attn", NULL };

Result way_row(const char *what, const WayCells cell) {
    Result r = { .what = what };
    for (size_t i = 0; i < TENSOR_WAYS; i++) r.cell[i] = cell[i];
    return r;
}
void way_results(Run *run, size_t n, const Result *rows) {
    enum { ROWS = 8 };
    const char *names[TENSOR_WAYS + 1] = { NULL };
    Result some[ROWS] = { { 0 } };
    for (size_t i = 0; rows[i].what && i + 1 < ROWS; i++) {
        some[i] = (Result){ .what = rows[i].what };
        size_t column = 0;
        for (TensorWay way = 0; way < TENSOR_WAYS; way++) {
            if (tensor_way_shape(way, n).q == 0) continue;
            names[column] = columns[way];
            some[i].cell[column++] = rows[i].cell[way];
        }
    }
    results(run, names, some);
}

// ---------------------------------------------------------------- one block of GPT-3's width

// Returns the share of one more block.
static RankShare block_share(TensorWay way, ModelConfig c, size_t B, size_t n) {
    c.layers = 1;
    RankShare one = way_share(way, &c, B, n, 0);
    c.layers = 2;
    RankShare two = way_share(way, &c, B, n, 0);
    return (RankShare){ .parameters = two.parameters - one.parameters,
                        .kept = two.kept - one.kept,
                        .received = (two.received - one.received) / sizeof(real) };
}

static const ModelConfig wide = {
    .layers = 1, .width = 12288, .heads = 128, .context = 2048, .vocab = 51200, .dropout = 0.1
};
enum { RANKS = 64, SEQUENCES = 16 };

TensorWay way_block_quiet(void) {
    TensorWay fewest = WAY_1D;
    for (TensorWay way = 0; way < TENSOR_WAYS; way++)
        if (block_share(way, wide, SEQUENCES, RANKS).received <
            block_share(fewest, wide, SEQUENCES, RANKS).received)
            fewest = way;
    return fewest;
}
void way_block_table(Run *run) {
    WayCells parameters, kept, received;
    const double tokens = (double)(SEQUENCES * wide.context);
    double ratio[TENSOR_WAYS], one[TENSOR_WAYS];
    for (TensorWay way = 0; way < TENSOR_WAYS; way++) {
        const RankShare s = block_share(way, wide, SEQUENCES, RANKS);
        ratio[way] = s.received / tensor_way_received(way, RANKS, tokens, (double)wide.width);
        one[way] = 1;
        parameters[way] = page_text(run, "=%.0f", s.parameters / 1e6);
        kept[way] = page_text(run, "=%.0f", s.kept / 1e6);
        received[way] = page_text(run, "=%.0f", s.received / 1e6);
    }
    const Result rows[] = { way_row("parameters", parameters),
                            way_row("activations", kept),
                            way_row("received per step", received),
                            { 0 } };
    say(run, "%s", "");
    say(run,
        "Computed: one block of GPT-3's width on %d ranks, in millions of elements per rank. "
        "%d sequences",
        RANKS, SEQUENCES);
    say(run,
        "of %zu tokens; %zu heads, as %d ranks cannot share GPT-3's 96. 2.5D: 4 x 4 x 4. %s "
        "receives least.",
        wide.context, wide.heads, RANKS, tensor_way_name[way_block_quiet()]);
    results(run, columns, rows);
    // 2e-3: the formulas leave out vectors and norms.
    check_numbers(run, "received for a block", "counted / formula", ratio, one, TENSOR_WAYS, 2e-3);
}

// Draws the received elements of a block against the tokens of a step, both relative to the width.
void way_plot(Run *run) {
    enum { POINTS = 9, FIRST = 192 }; // positions: 16 sequences of 192 are C / 4 tokens
    double x[POINTS], y[TENSOR_WAYS][POINTS];
    PlotLine lines[TENSOR_WAYS];
    for (TensorWay way = 0; way < TENSOR_WAYS; way++) {
        for (size_t i = 0; i < POINTS; i++) {
            ModelConfig c = wide;
            c.context = (size_t)FIRST << i;
            const double C = (double)c.width;
            x[i] = (double)(SEQUENCES * c.context) / C;
            y[way][i] = block_share(way, c, SEQUENCES, RANKS).received / (C * C);
        }
        lines[way] = (PlotLine){ tensor_way_name[way], y[way] };
    }
    plot_show(run,
              &(Plot){ "received by a rank for a block, forward and backward, 64 ranks",
                       "tokens / C", "elements / C^2", x, POINTS, lines, TENSOR_WAYS, true, true },
              PICTURE_DETAIL);
}

// Prints the table. A broadcast of S bytes lasts S / bandwidth for all q ranks, although the root
// of the broadcast receives nothing. So 2D's turns take q/(q-1) of the time of the received bytes.
void way_crossover_table(Run *run) {
    enum { CASES = 4 };
    static const double side[CASES] = { 2, 3, 4, 8 };
    double tokens[CASES], want[CASES];
    const char *cell[2][CASES];
    for (size_t i = 0; i < CASES; i++) {
        const double q = side[i], slower = 8 * (q - 1 / q) - 21; // 1D's slope over 2D's, times q
        tokens[i] = tensor_way_crossover(WAY_2D, WAY_1D, (size_t)(q * q));
        want[i] = 36 / (8 * q - 13);
        const double time = 36 / slower;
        cell[0][i] = page_text(run, "=%.*f C", tokens[i] < 9.95, tokens[i]);
        cell[1][i] = slower > 0 ? page_text(run, "=%.*f C", time < 9.95, time) : "=never";
    }
    check_numbers(run, "crossover of 1D and 2D", "36/(8q-13)", tokens, want, CASES, 1e-9);
    const Result rows[] = {
        { "in bytes received", "36 C/(8q-13)", { cell[0][0], cell[0][1], cell[0][2], cell[0][3] } },
        { "in time (latency ignored)",
          "36 C/(8(q-1/q)-21)",
          { cell[1][0], cell[1][1], cell[1][2], cell[1][3] } },
        { 0 },
    };
    say(run, "%s", "");
    say(run, "2D costs less than 1D if a step has at least this many tokens (C is the width):");
    results(run, (const char *const[]){ "2 x 2 ranks", "3 x 3", "4 x 4", "8 x 8", NULL }, rows);
}
