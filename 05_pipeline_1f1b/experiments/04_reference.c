// 04_reference.c: PipeDream's recurrence on one device, with no pipeline in it; see 04_pipedream.h.
#include "05_pipeline_1f1b/experiments/04_pipedream.h"
#include <stdlib.h>

// The stage that has layer n of the model.
static size_t stage_of(const ModelConfig *c, size_t p, size_t n) {
    if (n == 0) return 0;
    if (n > c->layers) return p - 1;                           // head and loss
    size_t i = 0;
    while (shard_range(c->layers, p, i).hi <= n - 1) i++;      // block n - 1
    return i;
}

Trajectory pipedream_reference(Run *run, const Training *t, size_t p, bool vertical) {
    Trajectory out = trajectory_new(run, t);
    if (run->world->rank > 0) return out;
    ledger_pause();
    Model *m = model_describe(&t->model, model_layers(&t->model));
    Optimizer o = t->optimizer;
    Arena a = arena(MEM_REFERENCE);
    model_untie(m);
    model_allocate(m);
    optimizer_allocate(&o, m);
    Tensor past = tensor_new(&a, p, m->size);                  // version v in row v % p: the last p of them
    for (size_t k = 0; k < t->steps; k++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *b = training_batches(t, &tokens, k, 1, 0);
        tensor_copy(tensor_row_range(past, k % p, k % p + 1), m->w);
        for (size_t n = 0, offset = 0; n < m->n_layers; n++) {
            Layer *l = &m->layers[n];
            size_t age = vertical ? p - 1 : p - 1 - stage_of(&t->model, p, n), row = (k < age ? 0 : k - age) % p;
            for (size_t u = 0; u < l->n_units; offset += l->units[u++]->size)
                unit_attach_weights(l->units[u], tensor_flat_range(tensor_row_range(past, row, row + 1), offset,
                                                                   offset + l->units[u]->size));
        }
        model_zero_gradients(m);
        double loss = model_forward_backward(m, b) * b->token_weight;          // all layers at their old weights
        model_attach_weights(m, m->w);
        optimizer_step(&o, m, 1);                                              // the newest ones are updated
        trajectory_record(&out, k, m, loss, 0);
        free(b);
        arena_free(&tokens);
    }
    arena_free(&a);
    model_free(m);
    ledger_resume();
    return out;
}
