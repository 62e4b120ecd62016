// 02_costs.c: see 02_costs.h.
#include "02_grad_accumulation/experiments/02_costs.h"
#include "common/model/costs.h"
#include <stdio.h>

// What forward keeps until backward, for B sequences. Only B changes with m.
static double activation_bytes(const ModelConfig *c, size_t B) {
    return (double)(B * c->context * kept_model(c) * sizeof(real));
}

// The page's table.
static void show(Run *run, const Training *t, double whole_time, double pieces_time) {
    char heading[48], sizes[2][32], times[2][32], kept[96];
    size_t m = t->micro_batches;
    snprintf(heading, sizeof heading, "%zu micro-batches", m);
    snprintf(sizes[0], sizeof sizes[0], "=%zu", t->sequences);
    snprintf(sizes[1], sizeof sizes[1], "=%zu", ceil_div(t->sequences, m));
    snprintf(times[0], sizeof times[0], "=%.2f ms", whole_time / 1e9);
    snprintf(times[1], sizeof times[1], "=%.2f ms", pieces_time / 1e9);
    snprintf(kept, sizeof kept, "sequences x %zu tokens x %zu elements x %zu B", t->model.context,
             kept_model(&t->model), sizeof(real));
    const char *const columns[] = { "at once", heading, NULL };
    const Result rows[] = {
        { "sequences on the device", "ceil(B / m)", { sizes[0], sizes[1] } },
        { "activations, peak", kept, { "activations, at once", "activations, m micro-batches" } },
        { "weights", "Psi, whatever m is", { "parameters", "parameters" } },
        { "gradients", "Psi, and wte once more", { "gradients (wte twice): no m", "gradients (wte twice): no m" } },
        { "AdamW's moments", "2 Psi", { "AdamW's m and v", "AdamW's m and v" } },
        { pieces_time > 0 ? "forward and backward" : NULL, "3F: F grows with the sequences", { times[0], times[1] } },
        {0}
    };
    results(run, columns, rows);
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
    double whole_time = 0, pieces = 0;                 // as long as at once: the same rows
    if (clock_config()->simulated) {
        whole_time = work_model(c, t->sequences).time;
        for (size_t k = 0; k < m; k++) pieces += work_model(c, part_size(t->sequences, m, k)).time;
        cost(run, "time, at once and then in pieces", "ps", whole_time + pieces, (double)both->step);
    }
    show(run, t, whole_time, pieces);
}
