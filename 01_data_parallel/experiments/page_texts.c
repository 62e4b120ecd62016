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

const char *compression_sent(Run *run, const CompressionSeen *seen, const CompressionSeen *exact) {
    const char *sent = value_cell(run, seen->sent, "bytes");
    if (seen == exact || exact->sent == 0) return sent;
    return page_text(run, "%s, %.0f %%", sent, compression_share(seen, exact));
}
