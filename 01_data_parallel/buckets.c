// buckets.c: see buckets.h.
#include "01_data_parallel/buckets.h"
#include <stdlib.h>

// ---------------------------------------------------------------- cutting

static void list_tensors(Buckets *b) {
    Model *m = b->model;
    b->tensor = host_alloc(config_tensors(&m->config) * sizeof *b->tensor);
    size_t at = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        const Unit *u = &m->units[i];
        if (u->tied_to) continue;                  // its gradient is added to the other use's
        for (size_t k = 0; k < u->n_params; k++)
            b->tensor[b->n_tensors++] = (BucketTensor){ .param = &u->params[k], .at = at + u->params[k].offset };
        at += u->size;
    }
}

static void cut(Buckets *b, size_t capacity) {
    size_t hi = b->model->size;                    // where the open bucket ends in m->g
    b->bucket = host_alloc(b->n_tensors * sizeof *b->bucket);
    // EXERCISE 01.04b (3 points): cut from the end. Cut m->g into buckets, from its end to its beginning.
    // b->tensor[i].at is the number of the element of m->g with which tensor i begins. Write into tensor[i].bucket in
    // which bucket it is, and into b->bucket[k] its part of m->g and how many tensors lie in it; b->n counts the
    // buckets. Begin with the last tensor; b->n and all of b->bucket are zero now. A bucket is closed by the tensor
    // with which it reaches `capacity` bytes, and tensor 0 closes the last bucket.
    for (size_t i = b->n_tensors; i-- > 0;) {
        Bucket *open = &b->bucket[b->n];
        b->tensor[i].bucket = b->n;
        open->part = (Range){ b->tensor[i].at, hi };
        open->tensors++;
        if (range_size(open->part) * sizeof(real) < capacity && i > 0) continue;
        hi = open->part.lo;
        b->n++;
    }
    // END
}

// ---------------------------------------------------------------- one backward

static void arm(Buckets *b) {
    b->armed = b->sync;
    if (!b->armed) return;
    if (b->started)
        fault("a forward that shall reduce begins, but the %zu all-reduces of the backward before were never waited "
              "for: buckets_wait() once a step, and no_sync around forward AND backward of all micro-batches but the "
              "last", b->started);
    for (size_t k = 0; k < b->n; k++) b->bucket[k].pending = b->bucket[k].tensors;
    for (size_t i = 0; i < b->n_tensors; i++) b->tensor[i].ready = false;
}

static void tensor_is_ready(Buckets *b, const Param *p) {
    size_t i = 0;
    while (b->tensor[i].param != p) i++;
    if (b->tensor[i].ready) fault("%s is ready for the second time in one backward", p->name);
    b->tensor[i].ready = true;
    b->bucket[b->tensor[i].bucket].pending--;
}

static void start(Buckets *b, Bucket *k) {
    k->request = comm_start_all_reduce(b->dp, tensor_flat_range(b->model->g, k->part.lo, k->part.hi));
}

// The backward of layer l is done.
static void layer_is_ready(Buckets *b, const Layer *l) {
    // EXERCISE 01.04a (8 points): what is ready may go. Say of every tensor of l's units that it is ready, if it is
    // (tensor_is_ready): wte has two uses (Unit.tied_use, tied_to), and its gradient is final only when both parts are
    // there and are added (model_fold_tied). Then start() every bucket that has become complete, and count it in
    // b->started. All ranks must start the same buckets in the same order, whatever the order in which they become
    // complete: in that of their numbers.
    for (size_t i = 0; i < l->n_units; i++) {
        const Unit *u = l->units[i];
        if (u->tied_to) continue;                  // the head's part of wte's gradient waits for the embedding's
        if (u->tied_use) model_fold_tied(b->model);
        for (size_t k = 0; k < u->n_params; k++) tensor_is_ready(b, &u->params[k]);
    }
    while (b->started < b->n && b->bucket[b->started].pending == 0) start(b, &b->bucket[b->started++]);
    // END
}

// ---------------------------------------------------------------- the layers

static void forward(Layer *l, const Batch *batch, Tensor x, Tensor y, Saved *s) {
    Buckets *b = l->technique;
    if (l == &b->model->layers[0]) arm(b);
    layer_forward(l->inner, batch, x, y, s);
}
static void backward(Layer *l, const Batch *batch, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Buckets *b = l->technique;
    layer_backward(l->inner, batch, x, dy, dx, s);
    if (b->armed) layer_is_ready(b, l);
}
static const LayerKind reducing = { "reducing layer", forward, backward, NULL, NULL };

Buckets *buckets_new(Model *m, Comm *dp, size_t capacity) {
    Buckets *b = host_alloc(sizeof *b);
    *b = (Buckets){ .model = m, .dp = dp };
    list_tensors(b);
    cut(b, capacity);
    for (size_t i = 0; i < m->n_layers; i++) {
        layer_wrap(&m->layers[i], &reducing, dp);
        m->layers[i].technique = b;
    }
    return b;
}

void buckets_free(Buckets *b) {
    free(b->bucket);
    free(b->tensor);
    free(b);
}

// As DDP does with parameters that a forward did not use. They are found in model order, so here the last bucket is
// complete first: without the rule of layer_is_ready this rank would start it while the others start the first.
void buckets_no_work(Buckets *b) {
    Unit *wte = model_wte(b->model);
    tensor_fill(b->model->g, 0);
    if (wte && wte->tied_use) tensor_fill(wte->tied_use->g, 0);
    arm(b);
    for (size_t i = 0; b->armed && i < b->model->n_layers; i++) layer_is_ready(b, &b->model->layers[i]);
}

void buckets_wait(Buckets *b) {
    size_t ready = 0, missing = 0;
    for (size_t i = 0; i < b->n_tensors; i++) {
        ready += b->tensor[i].ready;
        if (!b->tensor[i].ready) missing = i;
    }
    if (b->armed && ready > 0 && ready < b->n_tensors)
        fault("%s and %zu more tensors never became ready: their buckets cannot be reduced",
              b->tensor[missing].param->name, b->n_tensors - ready - 1);
    for (size_t k = 0; k < b->started; k++) comm_wait(b->bucket[k].request);
    b->started = 0;
    b->armed = false;
}
