// published.c: figures of Korthikanti et al. 2022, computed again, in the paper's letters: b
// sequences, s tokens each, width h, a heads, t tensor-parallel ranks.
#include "07_recompute/experiments/experiments.h"

// A block keeps sum[0] * s*b*h + sum[1] * s*b*h * a*s/h bytes. Without dropout there are no masks,
// and dropout's output is its input. The paper leaves the norms' statistics out.
static void items(Run *run, const ModelConfig *c) {
    // 16 bit and fp32, with dropout and without
    static const double published[4][2] = { { 34, 5 }, { 32, 2 }, { 66, 9 }, { 64, 4 } };
    static const char *const name[4] = { "16 bit, dropout: 34, 5", "16 bit, no dropout: 32, 2",
                                         "fp32, dropout: 66, 9", "fp32, no dropout: 64, 4" };
    double s = (double)c->context, h = (double)c->width, as = (double)(c->heads * c->context);
    CutSizes z = cut_sizes(c, 1, 0);
    for (size_t i = 0; i < 4; i++) {
        size_t element = i < 2 ? 2 : 4;
        z.dropout = i % 2 == 0;
        double all = kept_bytes(&z, 1, element, 1, true);
        double dense = kept_bytes(&z, 1, element, 1, false);
        double sum[2] = { dense / (s * h), (all - dense) / (s * as) };
        check_numbers(run, "paper: bytes, h and as", name[i], sum, published[i], 2, 0);
    }
    // kept_block() leaves out the block's input, which the layer below keeps, and counts 4
    // statistics per token.
    z.dropout = true;
    double listed = 64 * h + 8 * as, predicted = 4 * (double)(kept_block(&z) + c->width - 4);
    check_numbers(run, "ours: bytes, h and as", "fp32, dropout: 64, 8", &listed, &predicted, 1, 0);
}

// Figure 7 of the paper: activations in percent of those with tensor parallelism alone, t = 8, s =
// 2048: sequence parallel, selective, both, full.
static void figure7(Run *run) {
    static const struct {
        const char *name;
        double a, h, published[4];
    } model[4] = {
        { "22B", 64, 6144, { 66.8, 49.4, 16.1, 7.6 } },
        { "175B", 96, 12288, { 62.0, 56.5, 18.5, 8.7 } },
        { "530B", 128, 20480, { 58.3, 61.9, 20.2, 9.5 } },
        { "1T", 160, 25600, { 58.3, 61.9, 20.2, 9.5 } },
    };
    const double t = 8, s = 2048;
    for (size_t i = 0; i < 4; i++) {
        double as_h = model[i].a * s / model[i].h, base = 10 + 24 / t + 5 * as_h / t;
        double percent[4] = { 100 * (34 + 5 * as_h) / t / base, 100 * (10 + 24 / t) / base,
                              100 * 34 / t / base, 100 * 2 / base };
        // printed to 0.1 percent
        check_numbers(run, "Korthikanti, figure 7", model[i].name, percent, model[i].published, 4,
                      1e-3);
    }
}

// The extra work. A block's forward has 24 b s h^2 + 4 b s^2 h operations. Half of the second term
// is q k^T, half is the product with v. The paper computes both again (4 b s^2 h). This tree keeps
// the heads' output and computes only q k^T again (2 b s^2 h).
static void overhead(Run *run) {
    static const double width[2] = { 12288, 20480 }; // 175B and 530B
    // percent of the forward pass, from the paper's text
    static const double published[2] = { 2.7, 1.6 };
    const double s = 2048, limit = 0.05 / 2.7; // printed to 0.1 percent
    double of_forward[2];
    for (size_t i = 0; i < 2; i++) {
        double h = width[i], extra = 4 * s * s * h;
        of_forward[i] = 100 * extra / (24 * s * h * h + 4 * s * s * h);
    }
    check_numbers(run, "paper: 2.7, 1.6 % more", "175B and 530B, of the forward pass", of_forward,
                  published, 2, limit);
    say(run,
        "Checks against percentages of Korthikanti et al. (2022), which have one decimal, allow "
        "%.1e.",
        limit);
}

void published_figures(Run *run, const ModelConfig *c) {
    items(run, c);
    figure7(run);
    overhead(run);
}
