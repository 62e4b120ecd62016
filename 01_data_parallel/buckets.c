// buckets.c: the parts of overlap that 04_overlap.c does not teach. The file lists the tensors of
// the gradient, reports wrong use, and reduces on a pipeline's stage. On such a stage several
// micro-batches are in flight, and two stages may share the tied table.
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
        if (u->tied_to) continue; // model_fold_tied() adds its gradient to that of the other use
        // A shared table's gradient is final only after the sum over both stages.
        if (u == shared) b->tied = (Range){ at, at + u->size };
        for (size_t k = 0; k < u->n_params && u != shared; k++) {
            if (u->params[k].cols == 0) continue; // a family without this tensor: nothing to send
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

// Returns NULL for a tensor that is in no bucket: a table of which another stage has a copy
// (buckets_start_tied), or a tensor without columns.
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

// ---------------------------------------------------------------- in a pipeline

// Returns whether this micro-batch is the last one of the step. In a pipeline b->sync holds for a
// whole step, and only the last micro-batch's backward completes the gradients.
static bool is_last(const Buckets *b, const Batch *batch) {
    return batch->number + 1 == b->micro_batches;
}

static void stage_forward(Layer *l, const Batch *batch, Tensor x, Tensor y, Saved *s) {
    Buckets *b = l->technique;
    if (l == &b->model->layers[0] && is_last(b, batch)) buckets_arm(b);
    layer_forward(l->inner, batch, x, y, s);
}
static void stage_backward(Layer *l, const Batch *batch, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Buckets *b = l->technique;
    layer_backward(l->inner, batch, x, dy, dx, s);
    if (!b->armed || !is_last(b, batch)) return;
    // With sequence parallelism (03.07) some gradients are partial sums over the tensor group.
    // unit_partial_sums() completes these sums before the all-reduce.
    for (size_t i = 0; i < l->n_units; i++) unit_partial_sums(l->units[i]);
    buckets_layer_ready(b, l);
}
static const LayerKind of_stage = { .name = "reducing layer",
                                    .forward = stage_forward,
                                    .backward = stage_backward };

Buckets *buckets_new_pipeline(Model *m, Comm *dp, size_t capacity, size_t micro_batches) {
    Buckets *b = buckets_cut(m, dp, capacity);
    b->micro_batches = micro_batches;
    b->sync = true;
    for (size_t i = 0; i < m->n_layers; i++) {
        layer_wrap(&m->layers[i], &of_stage, dp);
        m->layers[i].technique = b;
    }
    return b;
}

void buckets_start_tied(Buckets *b) {
    if (range_size(b->tied) == 0) return;
    b->tied_request =
        comm_start_all_reduce(b->dp, tensor_flat_range(b->model->g, b->tied.lo, b->tied.hi));
}

void buckets_wait_tied(Buckets *b) {
    comm_wait(b->tied_request);
    b->tied_request = NULL;
}
