// 04_costs.c: what 04_pipedream predicts, from sizes alone; see 04_pipedream.h.
#include "05_pipeline_1f1b/support/04_pipedream.h"
#include <stdio.h>

static void line(Run *run, PipeDreamRule rule, const char *what, const char *unit, double predicted, double measured) {
    static const char *const name[] = { "stashing", "vertical sync", "no stashing" };
    char text[96];
    snprintf(text, sizeof text, "%s: %s", name[rule], what);
    cost(run, text, unit, predicted, measured);
}

void pipedream_costs(Run *run, const Training *t, PipeDreamRule rule, const PipeDreamSeen *seen) {
    size_t p = run->world->size, i = run->world->rank, n = t->steps, E = sizeof(real);
    size_t next = i + 1 < p, before = i > 0, flight = p - i < n ? p - i : n;
    size_t versions = rule == WEIGHT_STASHING ? p - i : rule == VERTICAL_SYNC ? p : 1;
    CutSizes z = stage_sizes(&t->model, p, i);
    size_t untied = p == 1 ? elements_wte(&z) : 0;             // one stage has both tables
    size_t mine = elements_stage(&z) + untied, message = message_elements(&z, t->sequences);
    line(run, rule, "weights of all versions", "bytes", versions * mine * E, seen->weights);
    line(run, rule, "gradients", "bytes", mine * E, seen->gradients);
    line(run, rule, "optimizer state", "bytes", (t->optimizer.kind == ADAMW) * 2 * mine * E, seen->optimizer);
    line(run, rule, "in flight: min(p-i, n)", "mini-batches", flight, seen->in_flight);
    line(run, rule, "activations, peak", "bytes", kept_stage(&z) * flight * t->sequences * t->model.context * E,
         seen->activations);
    line(run, rule, "message buffers, peak", "bytes", (next + before) * 3 * message * E, seen->buffers);
    line(run, rule, "messages sent", "calls", n * (next + before), seen->messages);
    line(run, rule, "messages sent", "bytes", n * (next + before) * message * E, seen->message_bytes);
    line(run, rule, "sums over stages", "calls", 0, seen->sums);
}
