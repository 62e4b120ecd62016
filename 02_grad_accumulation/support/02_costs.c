// 02_costs.c: see 02_costs.h.
#include "02_grad_accumulation/support/02_costs.h"
#include "common/model/costs.h"

// What forward keeps until backward, for B sequences. Only B changes with m.
static double activation_bytes(const ModelConfig *c, size_t B) {
    return (double)(B * c->context * kept_model(c) * sizeof(real));
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
