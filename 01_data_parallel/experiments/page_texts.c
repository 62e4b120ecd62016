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

CompressionCells compression_cells(const CompressionSeen *seen, const CompressionSeen *exact,
                                   double loss) {
    CompressionCells c;
    char bytes[24], share[16] = "";
    page_value(bytes, sizeof bytes, seen->sent, "bytes");
    if (seen != exact && exact->sent > 0)
        snprintf(share, sizeof share, ", %.0f %%", compression_share(seen, exact));
    snprintf(c.sent, sizeof c.sent, "=%s%s", bytes, share);
    snprintf(c.calls, sizeof c.calls, "=%.0f", seen->calls);
    snprintf(c.step, sizeof c.step, "=%.2f ms", seen->step * 1e-9);
    snprintf(c.loss, sizeof c.loss, "=%.2f", loss);
    return c;
}

PageText compression_residual(const ModelConfig *model) {
    PageText t;
    const size_t bytes = config_parameters(model) * sizeof(real);
    page_value(t.text, sizeof t.text, (double)bytes, "bytes");
    return t;
}
