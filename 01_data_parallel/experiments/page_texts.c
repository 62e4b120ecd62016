// page_texts.c: sentences and table cells that several pages of this chapter share.
#include "01_data_parallel/experiments/experiments.h"

const char *uneven_shares(Run *run, const char *before, size_t sequences) {
    const size_t ranks = run->world->size, most = part_size(sequences, ranks, 0);
    const size_t least = sequences / ranks;
    if (most == least) return "";
    return page_text(run, "%sRanks with %zu of %zu sequences wait for those with %zu.", before,
                     least, sequences, most);
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
