// sequence_figure.c: checks the cost model of lesson 07 by figure 7 of Korthikanti et al. 2022.
#include "03_tensor_parallel/experiments/experiments.h"

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
