// buckets.c: the bookkeeping of 04_overlap: which tensors lie in the gradient, and which of them are final.
#include "01_data_parallel/data_parallel.h"
#include <stdlib.h>

Buckets *buckets_list_tensors(Model *m, Comm *dp) {
    Buckets *b = host_alloc(sizeof *b);
    *b = (Buckets){ .model = m, .dp = dp };
    b->tensor = host_alloc(config_tensors(&m->config) * sizeof *b->tensor);
    const Unit *wte = model_wte(m), *head = model_wte_head(m);
    const Unit *shared = wte && head ? NULL : wte ? wte : head;    // whose other use is on another stage
    size_t at = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        const Unit *u = &m->units[i];
        if (u->tied_to) continue;                  // its gradient is added to the other use's
        if (u == shared) b->tied = (Range){ at, at + u->size };    // final only after the sum over both stages
        for (size_t k = 0; k < u->n_params && u != shared; k++)
            b->tensor[b->n_tensors++] = (BucketTensor){ .param = &u->params[k], .at = at + u->params[k].offset };
        at += u->size;
        if (u != shared) b->end = at;
    }
    b->bucket = host_alloc(b->n_tensors * sizeof *b->bucket);
    return b;
}

void buckets_free(Buckets *b) {
    free(b->bucket);
    free(b->tensor);
    free(b);
}

void buckets_arm(Buckets *b) {
    b->armed = b->sync;
    if (!b->armed) return;
    if (b->started)
        fault("a forward that shall reduce begins, but the %zu all-reduces of the backward before were never waited "
              "for: buckets_wait() once a step, and no_sync around forward AND backward of all micro-batches but the "
              "last", b->started);
    for (size_t k = 0; k < b->n; k++) b->bucket[k].pending = b->bucket[k].tensors;
    for (size_t i = 0; i < b->n_tensors; i++) b->tensor[i].ready = false;
}

void buckets_tensor_ready(Buckets *b, const Param *p) {
    size_t i = 0;
    while (i < b->n_tensors && b->tensor[i].param != p) i++;
    if (i == b->n_tensors) return;                 // the table that another stage has, too: buckets_start_tied()
    if (b->tensor[i].ready) fault("%s is ready for the second time in one backward", p->name);
    b->tensor[i].ready = true;
    b->bucket[b->tensor[i].bucket].pending--;
}

void buckets_check_complete(const Buckets *b) {
    size_t ready = 0, missing = 0;
    for (size_t i = 0; i < b->n_tensors; i++) {
        ready += b->tensor[i].ready;
        if (!b->tensor[i].ready) missing = i;
    }
    if (b->armed && ready > 0 && ready < b->n_tensors)
        fault("%s and %zu more tensors never became ready: their buckets cannot be reduced",
              b->tensor[missing].param->name, b->n_tensors - ready - 1);
}
