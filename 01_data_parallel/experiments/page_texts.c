// page_texts.c: sentences and table cells that several pages of this chapter share (experiments.h).
#include "01_data_parallel/experiments/experiments.h"
#include <stdio.h>

PageText uneven_shares(const char *before, size_t sequences, size_t ranks) {
    PageText t = { "" };
    const size_t most = part_size(sequences, ranks, 0), least = sequences / ranks;
    if (most > least)
        snprintf(t.text, sizeof t.text,
                 "%sRanks with %zu of %zu sequences wait for those with %zu.", before, least,
                 sequences, most);
    return t;
}

// ---------------------------------------------------------------- 06_compression, 08_power_sgd

double compression_share(const CompressionSeen *seen, const CompressionSeen *exact) {
    return exact->sent > 0 ? 100 * seen->sent / exact->sent : 0;
}

CompressionCells compression_cells(Run *run, const CompressionSeen *seen,
                                   const CompressionSeen *exact, double loss) {
    const char *share = "";
    if (seen != exact && exact->sent > 0)
        share = page_text(run, ", %.0f %%", compression_share(seen, exact));
    return (CompressionCells){ page_text(run, "=%s%s", value_text(run, seen->sent, "bytes"), share),
                               page_text(run, "=%.0f", seen->calls),
                               page_text(run, "=%.2f ms", seen->step * 1e-9),
                               page_text(run, "=%.2f", loss) };
}
