// way_tables.c: computes the table of 12_compare.c at a real size, and the plot of received
// elements, from sizes alone.
#include "03_tensor_parallel/experiments/experiments.h"
#include "judge/draw/picture.h"
#include "judge/draw/plot.h"

const char *const tensor_way_name[TENSOR_WAYS + 1] = { "1D", "1D + SP", "2D", "2.5D",
                                                       "3D", "ring",    NULL };

// ---------------------------------------------------------------- one block of GPT-3's width

// Returns what a second block adds to the share of rank 0: the parameters, and the kept and the
// received elements.
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

// Prints the table, and checks the formulas of compare.h. Returns the way in which rank 0 receives
// the fewest elements.
static TensorWay block_table(Run *run) {
    Result rows[] = { { .what = "parameters" },
                      { .what = "activations" },
                      { .what = "  of these, scores" },
                      { .what = "received per step" },
                      { 0 } };
    const double tokens = (double)(SEQUENCES * wide.context);
    static const double one[TENSOR_WAYS] = { 1, 1, 1, 1, 1, 1 };
    double received[TENSOR_WAYS], ratio[TENSOR_WAYS];
    TensorWay fewest = WAY_1D;
    for (TensorWay way = 0; way < TENSOR_WAYS; way++) {
        const RankShare s = block_share(way, wide, SEQUENCES, RANKS);
        received[way] = s.received;
        if (received[way] < received[fewest]) fewest = way;
        ratio[way] = s.received / tensor_way_received(way, RANKS, tokens, (double)wide.width);
        rows[0].cell[way] = page_text(run, "=%.0f", (double)s.parameters / 1e6);
        rows[1].cell[way] = page_text(run, "=%.0f", (double)s.kept / 1e6);
        rows[2].cell[way] = page_text(run, "=%.0f", way_scores(way, &wide, SEQUENCES, RANKS) / 1e6);
        rows[3].cell[way] = page_text(run, "=%.0f", s.received / 1e6);
    }
    say(run, "%s", "");
    say(run,
        "Computed: one block of GPT-3's width on %d ranks, in millions of elements per rank. "
        "%d sequences",
        RANKS, SEQUENCES);
    say(run,
        "of %zu tokens; %zu heads, because GPT-3's 96 are not a multiple of %d. 2.5D: 4 x 4 x 4.",
        wide.context, wide.heads, RANKS);
    results(run, tensor_way_name, rows);
    // The limit is 2e-3, because the formulas leave out vectors and norms.
    check_numbers(run, "received for a block", "counted / formula", ratio, one, TENSOR_WAYS, 2e-3);
    return fewest;
}

// Draws the received elements of a block, relative to C^2, against the tokens of a micro-batch,
// relative to C.
static void plot(Run *run) {
    enum { POINTS = 9, FIRST = 192 }; // positions; 16 sequences of 192 are C / 4 tokens
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

TensorWay way_tables(Run *run) {
    const TensorWay fewest = block_table(run);
    plot(run);
    return fewest;
}
