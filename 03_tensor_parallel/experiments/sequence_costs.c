// sequence_costs.c: predicts the messages of a step with sequence parallelism, and checks the cost
// model by the closed forms and figure 7 of Korthikanti et al. 2022.
#include "03_tensor_parallel/experiments/experiments.h"
#include <math.h>

size_t sequence_micro_batch(const Training *t, size_t k) {
    return range_size(training_micro_batch(t, 1, 0, k));
}

SequenceTraffic sequence_step_traffic(const CutSizes *z, const Training *t) {
    SequenceTraffic all = { 0 };
    for (size_t k = 0; k < t->micro_batches; k++) {
        size_t B = sequence_micro_batch(t, k);
        Traffic reduce = traffic_tensor_parallel(z, z->t, B, false);
        SequenceTraffic s = { .sums = reduce.calls, .bytes = reduce.bytes, .time = reduce.time };
        if (z->sequence) s = traffic_sequence_parallel(z, B, false);
        all.gathers += s.gathers;
        all.scatters += s.scatters;
        all.sums += s.sums;
        all.bytes += s.bytes;
        all.time += s.time;
    }
    return all;
}

void sequence_closed_forms(Run *run, const Training *t, const char *name, bool kept_whole,
                           const CutSizes *z) {
    const size_t n = z->t, B = sequence_micro_batch(t, 0);
    const double MC = (double)(B * z->T * z->C), ranks = (double)n, C = (double)z->C;
    const double probabilities = t->model.dropout > 0 ? 2 : 1; // before and after dropout
    const double scores = probabilities * (double)(t->model.heads * z->T) / C;
    if (B * z->T % n) return;
    double rows = kept_whole ? 2 + 2 / ranks : 4 / ranks;
    double kept = MC * (rows + (12 + scores + 4 / C) / ranks);
    double block = (double)(activations_block(z, B) + message_elements(z, B));
    if (t->model.heads % n == 0)
        check_true(run, name, "closed form: kept by a block", fabs(block - kept) < 1e-6);
    CutSizes one = *z;
    one.blocks = 1;
    one.first = false;
    one.last = false;
    double sent = (kept_whole ? 8 : 10) * MC * (ranks - 1) / ranks;
    double bytes = traffic_sequence_parallel(&one, B, false).bytes;
    check_true(run, name, "closed form: sent by a block", fabs(bytes / sizeof(real) - sent) < 1e-6);
}

// ---------------------------------------------------------------- the paper's figure 7

// Activations in per cent of tensor parallelism alone, by the cost model, for t = 8, 2 bytes per
// element and 1 byte per mask. "full" is full recomputation, which keeps a block's whole input.
void sequence_figure7(Run *run) {
    enum { PAPER_VOCAB = 51200 };
    static const struct {
        const char *name;
        size_t heads, width;
        double published[4];
    } model[4] = {
        { "22B", 64, 6144, { 66.8, 49.4, 16.1, 7.6 } },
        { "175B", 96, 12288, { 62.0, 56.5, 18.5, 8.7 } },
        { "530B", 128, 20480, { 58.3, 61.9, 20.2, 9.5 } },
        { "1T", 160, 25600, { 58.3, 61.9, 20.2, 9.5 } },
    };
    say_detail(run, "per cent of tensor parallelism: sequence parallel, "
                    "selective recomputation, both, full");
    for (size_t i = 0; i < 4; i++) {
        ModelConfig c = { .layers = 1,
                          .width = model[i].width,
                          .heads = model[i].heads,
                          .context = 2048,
                          .vocab = PAPER_VOCAB,
                          .dropout = 0.1 };
        CutSizes tensor = cut_sizes(&c, 8, 0), rows = cut_sequence(tensor, false);
        double all = kept_bytes(&tensor, 1, 2, 1, true) / 100;
        double input = 2.0 * (double)(c.context * c.width);
        double percent[4] = { kept_bytes(&rows, 1, 2, 1, true) / all,
                              kept_bytes(&tensor, 1, 2, 1, false) / all,
                              kept_bytes(&rows, 1, 2, 1, false) / all, input / all };
        say_detail(run, "  %-5s %6.1f %6.1f %6.1f %6.1f", model[i].name, percent[0], percent[1],
                   percent[2], percent[3]);
        // The paper prints 0.1 per cent.
        check_numbers(run, "Korthikanti, figure 7", model[i].name, percent, model[i].published, 4,
                      1e-3);
    }
}
