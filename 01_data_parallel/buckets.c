// buckets.c: the parts of overlap that 04_overlap.c does not teach. The file lists the tensors of
// the gradient and reports wrong use.
#include "01_data_parallel/data_parallel.h"
#include <stdlib.h>

Buckets *buckets_list_tensors(Model *m, Comm *dp) {
    Buckets *b = host_alloc(sizeof *b);
    *b = (Buckets){ .model = m, .dp = dp };
    b->tensor = host_alloc(config_tensors(&m->config) * sizeof *b->tensor);
    const Unit *wte = model_wte(m), *head = model_wte_head(m);
    // `shared` is the tied table, if another stage has the other use of the table.
    const Unit *shared = wte ? wte : head;
    if ((wte && head) || m->config.untied) shared = NULL;
    size_t at = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        const Unit *u = &m->units[i];
        if (u->tied_to) continue; // model_fold_tied() adds this gradient to that of wte
        // A shared table's gradient is final only after the sum over both stages.
        if (u == shared) b->tied = (Range){ at, at + u->size };
        for (size_t k = 0; k < u->n_params && u != shared; k++) {
            if (u->params[k].cols == 0) continue; // the model's family has no such tensor
            b->tensor[b->n_tensors++] =
                (BucketTensor){ .param = &u->params[k], .at = at + u->params[k].offset };
        }
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

// No bucket has a tensor without columns, or a table of which another stage has a copy
// (08_3d/stage_buckets.c).
BucketTensor *buckets_find(Buckets *b, const Param *p) {
    for (size_t i = 0; i < b->n_tensors; i++)
        if (b->tensor[i].param == p) return &b->tensor[i];
    return NULL;
}

void buckets_check_waited(const Buckets *b) {
    if (b->started)
        fault("a forward that shall reduce begins, but the %zu all-reduces of the backward before "
              "were never waited for: call buckets_wait() once per step, and no_sync around "
              "forward AND backward of all micro-batches but the last",
              b->started);
}

void buckets_check_complete(const Buckets *b) {
    size_t ready = 0, missing = 0;
    for (size_t i = 0; i < b->n_tensors; i++) {
        ready += b->tensor[i].ready;
        if (!b->tensor[i].ready) missing = i;
    }
    if (b->armed && ready > 0 && ready < b->n_tensors)
        fault("%s and %zu more tensors never became ready, so their buckets cannot be reduced",
              b->tensor[missing].param->name, b->n_tensors - ready - 1);
}
