// 02_costs.c: see 02_costs.h.
#include "07_recompute/experiments/02_costs.h"

const char *const full_way_name[WAYS] = { "keep everything", "recompute blocks", "recompute stages" };

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

// Elements that stage i keeps, at most: of all m micro-batches, and of the first one, while backward is in it.
static size_t kept(const Training *t, size_t p, size_t i, Way way) {
    CutSizes z = cut_stage(cut_sizes(&t->model, 1, 0), p, i);
    size_t block = kept_block(&z), head = z.last ? kept_head(&z) : 0, stage = kept_stage(&z);
    size_t input = z.first ? 0 : z.C;              // tokens are no activation
    size_t all = t->sequences * z.T, one = ceil_div(t->sequences, t->micro_batches) * z.T;
    switch (way) {
    case RECOMPUTE_BLOCKS: return all * kept_between(&z) + (all - one) * head + one * most(block, head);
    case RECOMPUTE_STAGES: return all * input + one * (stage - input);
    default:               return all * stage;
    }
}

void full_costs(Run *run, const Training *t, Way way, const FullMeasured *got) {
    const ModelConfig *c = &t->model;
    const char *name = full_way_name[way];
    size_t p = run->world->size, i = run->world->rank, first = i == 0, last = i + 1 == p, m = t->micro_batches;
    CutSizes z = cut_stage(cut_sizes(c, 1, 0), p, i);
    size_t wte = elements_wte(&z), mine = elements_stage(&z), e = sizeof(real);
    counted_cost(run, name, "weights of my stage", "bytes", (double)(mine * e), (double)got->parameters);
    counted_cost(run, name, "gradients, two uses of wte", "bytes", (double)(elements_gradients(&z) * e),
                 (double)got->gradients);
    counted_cost(run, name, "optimizer state: SGD has none", "bytes", 0, (double)got->optimizer);
    counted_cost(run, name, "activation peak", "bytes", (double)(kept(t, p, i, way) * e), (double)got->peak);
    size_t forwards = 0, rebuilds = 0;
    for (size_t k = 0; k < sizeof got->counts / sizeof *got->counts; k++) {
        forwards += got->counts[k].forwards;
        rebuilds += got->counts[k].rebuilds;
    }
    size_t times = way == KEEP_EVERYTHING ? 1 : 2;
    counted_cost(run, name, "forwards of my blocks", "calls", (double)(z.blocks * m * times),
                 (double)(forwards + rebuilds));
    // a second forward communicates with nobody
    size_t neighbours = !first + !last;
    counted_cost(run, name, "sent to neighbours", "calls", (double)(neighbours * m), (double)got->sends);
    counted_cost(run, name, "sent to neighbours", "bytes",
                 (double)(neighbours * message_elements(&z, t->sequences) * e), (double)got->send_bytes);
    double tied = p > 1 && (first || last) ? ring_bytes(ALL_REDUCE_PASSES, 2, wte, e) : 0;
    double scalars = ring_bytes(ALL_REDUCE_PASSES, p, 1, sizeof(double)) +
                     ring_bytes(ALL_REDUCE_PASSES, p, config_tensors(c), sizeof(double));
    counted_cost(run, name, "tied sum, loss and norm", "bytes", tied + scalars, (double)got->other_bytes);

    double hardware = 0, model = 0;
    for (size_t k = 0; k < p; k++) hardware += gpipe_time_work(t, p, k, way).flops;
    for (size_t k = 0; k < p; k++) model += gpipe_time_work(t, p, k, KEEP_EVERYTHING).flops;
    counted_cost(run, name, "hardware FLOPs, all stages", "FLOPs", hardware, got->timing.flops);
    counted_utilisations(run, name, &got->timing, model);
    if (!clock_config()->simulated) return;            // real time is as it is
    counted_cost(run, name, "my stage computes", "ps", gpipe_time_work(t, p, i, way).time, (double)got->computing);
    counted_cost(run, name, "step", "ps", gpipe_time_step(t, p, way), (double)got->timing.step);
}

#define EACH_WAY(name) { "keep everything: " name, "recompute blocks: " name, "recompute stages: " name }
void full_results(Run *run, const FullMeasured got[WAYS]) {
    static const char *const columns[] = { "keep all", "blocks", "stages", NULL };
    char mfu[WAYS][32], hfu[WAYS][32];
    for (Way w = 0; w < WAYS; w++) counted_percent(mfu[w], hfu[w], &got[w].timing, got[KEEP_EVERYTHING].timing.flops);
    bool simulated = clock_config()->simulated;
    const Result rows[] = {
        { "activations, peak", "all; inputs and one block/stage", EACH_WAY("activation peak") },
        { "forwards of blocks", "m per block; 2m", EACH_WAY("forwards of my blocks") },
        { "sent to neighbours", "nothing is sent again", EACH_WAY("sent to neighbours") },
        { "FLOPs, all stages", "3F; 3F + F of the blocks; 4F", EACH_WAY("hardware FLOPs, all stages") },
        { simulated ? "step" : NULL, "GPipe's order", EACH_WAY("step") },
        { "MFU", "3F / (p x rate x step)", { mfu[0], mfu[1], mfu[2] } },
        { "HFU", "all FLOPs / the same", { hfu[0], hfu[1], hfu[2] } },
        {0}
    };
    results(run, columns, rows);
}
