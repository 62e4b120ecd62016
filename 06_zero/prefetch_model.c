// prefetch_model.c: makes the state that 05_prefetch.c keeps for each layer: the layer's unit and
// the layer's neighbours.
#include "06_zero/zero.h"
#include <stdlib.h>

// Call tensor_parallel() and recompute() before this function, because the layers that these
// functions make must be inside prefetch_layer.
void prefetch_allocate(Model *m, Comm *dp, bool reshard) {
    if (m->size)
        fault(
            "prefetch_allocate() of a model that is allocated: it takes model_allocate()'s place");
    zero3_allocate_parts(m, dp);
    size_t n = m->n_layers, k = 0;
    Prefetch *all = host_alloc(sizeof *all + n * sizeof *all->layer);
    all->reshard = reshard;
    for (size_t i = 0; i < n; i++) {
        Layer *l = &m->layers[i];
        if (l->n_units == 0) continue; // the loss has nothing to gather
        // Embedding and head have two units each. zero3_begin() gathers wte, so only the other unit
        // is gathered for the layer.
        Unit *gathered = l->units[0];
        if (zero2_stays_whole(gathered)) gathered = l->units[1];
        bool neighbours = k && m->layers[i - 1].chunk == l->chunk;
        all->layer[k] = (Prefetched){ .unit = gathered, .model = all };
        if (neighbours) all->layer[k].previous = &all->layer[k - 1];
        if (neighbours) all->layer[k - 1].next = &all->layer[k];
        layer_wrap(l, &prefetch_layer, dp);
        l->technique = &all->layer[k++];
    }
}

void prefetch_free(Model *m) {
    const Prefetched *first = m->layers[0].technique;
    free(first->model);
}
