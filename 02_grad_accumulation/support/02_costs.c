// 02_costs.c: see 02_costs.h.
#include "02_grad_accumulation/support/02_costs.h"
#include "common/model/formulas.h"

// What forward keeps until backward, for B sequences: elements per row (a token), item by item. Only B changes with m.
static double activation_bytes(const ModelConfig *c, size_t B) {
    size_t L = c->layers, C = c->width, H = c->heads, T = c->context, V = c->vocab;
    size_t outputs = C + L * C;                        // of the embedding and of every block; the head's is the loss
    size_t dropped = c->dropout > 0 ? H * T : 0;       // masks are not kept: they are functions of a key
    size_t block = C + 2 + 3 * C                       // first norm, its mean and deviation; q, k, v
                 + H * T + dropped + C                 // probabilities before and after dropout; heads side by side
                 + C + C + 2 + 4 * C + 4 * C;          // middle; second norm, its two; wide layer before and after GELU
    size_t head = C + 2 + V + 1;                       // last norm, its two; logits; sum of exponentials
    return (double)(B * T * (outputs + L * block + head) * sizeof(real));
}

void accumulation_costs(Run *run, const Training *t, const AccumulationBytes *got, const AccumulationBytes *whole,
                        const Timing *both) {
    const ModelConfig *c = &t->model;
    size_t V = c->vocab, C = c->width, e = sizeof(real), m = t->micro_batches, Psi = config_parameters(c);
    cost(run, "activations, at once", "bytes", activation_bytes(c, t->sequences), (double)whole->activations);
    cost(run, "activations, m micro-batches", "bytes", activation_bytes(c, ceil_div(t->sequences, m)),
         (double)got->activations);
    cost(run, "parameters", "bytes", (double)(Psi * e), (double)got->parameters);
    cost(run, "gradients (wte twice): no m", "bytes", (double)((Psi + V * C) * e), (double)got->gradients);
    cost(run, "AdamW's m and v", "bytes", (double)(2 * Psi * e), (double)got->optimizer);
    if (!clock_config()->simulated) return;
    double pieces = 0;                                 // as long as at once: the same rows
    for (size_t k = 0; k < m; k++) pieces += work_model(c, part_size(t->sequences, m, k)).time;
    cost(run, "time, at once and then in pieces", "ps", work_model(c, t->sequences).time + pieces, (double)both->step);
}
