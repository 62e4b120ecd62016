// ranks: 4
// level: core
// question: Why wait for the whole gradient before its first byte is sent?
// vary: SEQUENCES 5..11, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Holds:  every rank has a replica and B/N of the sequences, as in 02_all_reduce. The gradient is
//         cut in buckets, which are views of m->g, not copies.
// Sends:  one all-reduce per bucket. Each rank sends 2 (N-1)/N times the bytes of a bucket. The
//         all-reduce starts as soon as all gradients of the bucket are final and the all-reduce of
//         the bucket before has started. Bucket 0 is at the end of m->g, because backward begins
//         there.
// Saves:  time, because the all-reduce of a bucket that is complete early hides behind the rest of
//         backward. A step is shorter than with one all-reduce if backward hides more time than the
//         latencies add. With sums in rank order (--reduce ordered, the default) the bits are those
//         of one all-reduce. With --reduce fast the gradient is the same within rounding.
// Costs:  2(N-1) latencies per bucket. At least the last bucket is exposed, because no backward is
//         left to hide it. The sums in flight take up to about Psi elements of communication
//         memory.
// Li et al. 2020 (arXiv 2006.15704), section 3.2: PyTorch's DistributedDataParallel, reducer.cpp.
// Left out: gradients that become ready in the middle of a layer's backward, and a reduction that
// slows the products down.
#include "01_data_parallel/data_parallel.h"

// Sets b->bucket to the parts of m->g [Psi] that are sent together, cut at the borders of tensors:
//     m->g      wte | wpe | h.0 ...           | h.1 ...           | ln_f
//     buckets   <-- 3 --> | <------ 2 ------> | <-- 1 --> <------ 0 ---->   backward runs leftwards
// A bucket is a view of m->g (DDP's gradient_as_bucket_view), so nothing is copied.
static void cut(Buckets *b, size_t capacity) {
    size_t hi = b->end; // end of the open bucket in m->g
    // EXERCISE 01.04b (3 points): cut the gradient into buckets. Cut m->g into buckets, from its
    // end to its beginning. Tensor i begins at element b->tensor[i].at of m->g. Write the number of
    // its bucket into tensor[i].bucket. Write into b->bucket[k] its part of m->g and the number of
    // its tensors. b->n counts the buckets. Begin with the last tensor. b->n and all of b->bucket
    // are zero now. The tensor with which a bucket reaches `capacity` bytes closes it, and tensor 0
    // closes the last bucket.
    for (size_t i = b->n_tensors; i-- > 0;) {
        Bucket *open = &b->bucket[b->n];
        b->tensor[i].bucket = b->n;
        open->part = (Range){ b->tensor[i].at, hi };
        open->tensors++;
        if (range_size(open->part) * element_size(b->model->g.element) < capacity && i > 0)
            continue;
        hi = open->part.lo;
        b->n++;
    }
    // END
}

// Starts the all-reduce over dp of the bucket's part of m->g. Each rank sends 2 (N-1)/N of the
// bucket's bytes. Each rank has the part of the gradient that comes from its own tokens, so the
// whole batch's gradient is the sum. The all-reduce is in flight until buckets_wait(). Until then
// backward goes on, and must not write into the bucket.
static void start(Buckets *b, Bucket *k) {
    k->request =
        comm_start_all_reduce(b->dp, tensor_flat_range(b->model->g, k->part.lo, k->part.hi));
}

// Prepares the buckets when a forward begins. If b->sync is set, every bucket waits for all its
// tensors. Otherwise the backward that follows reduces nothing.
void buckets_arm(Buckets *b) {
    b->armed = b->sync;
    if (!b->armed) return;
    buckets_check_waited(b);
    for (size_t k = 0; k < b->n; k++) b->bucket[k].pending = b->bucket[k].tensors;
    for (size_t i = 0; i < b->n_tensors; i++) b->tensor[i].ready = false;
}

// Marks p as ready, because its gradient is final. So the bucket of p waits for one tensor less. A
// bucket that waits for no tensor is complete.
static void tensor_ready(Buckets *b, const Param *p) {
    BucketTensor *t = buckets_find(b, p);
    if (!t) return;
    if (t->ready) fault("%s is ready for the second time in one backward", p->name);
    t->ready = true;
    b->bucket[t->bucket].pending--;
}

// Marks the final gradients of layer l as ready. The backward of l is done before this call. Then
// starts the complete buckets in the order of their numbers, up to the first incomplete bucket.
void buckets_layer_ready(Buckets *b, const Layer *l) {
    // EXERCISE 01.04a (8 points): start the all-reduce of each complete bucket. Call tensor_ready()
    // for each tensor of l's units whose gradient is final. wte has two uses (Unit.tied_use,
    // tied_to). The gradient of wte is final only when both parts are there and model_fold_tied()
    // has added these parts. Then start() every bucket that has become complete, and count it in
    // b->started. All ranks must start the same buckets in the same order. So start them in the
    // order of their numbers, in whatever order they become complete.
    for (size_t i = 0; i < l->n_units; i++) {
        const Unit *u = l->units[i];
        if (u->tied_to) continue; // the head's part of wte's gradient waits for the other part
        if (u->tied_use) model_fold_tied(b->model);
        for (size_t k = 0; k < u->n_params; k++) tensor_ready(b, &u->params[k]);
    }
    while (b->started < b->n && b->bucket[b->started].pending == 0)
        start(b, &b->bucket[b->started++]);
    // END
}

// hooked_forward and hooked_backward run in place of a layer's forward and backward, because every
// layer of the model is wrapped.
static void hooked_forward(Layer *l, const Batch *batch, Tensor x, Tensor y, Saved *s) {
    Buckets *b = l->technique;
    if (l == &b->model->layers[0]) buckets_arm(b);
    layer_forward(l->inner, batch, x, y, s);
}
static void hooked_backward(Layer *l, const Batch *batch, Tensor x, Tensor dy, Tensor dx,
                            Saved *s) {
    Buckets *b = l->technique;
    layer_backward(l->inner, batch, x, dy, dx, s);
    if (b->armed) buckets_layer_ready(b, l); // may start all-reduces, and waits for none
}
static const LayerKind hooked = { .name = "reducing layer",
                                  .forward = hooked_forward,
                                  .backward = hooked_backward };

Buckets *buckets_cut(Model *m, Comm *dp, size_t capacity) {
    Buckets *b = buckets_list_tensors(m, dp);
    cut(b, capacity);
    return b;
}

Buckets *buckets_new(Model *m, Comm *dp, size_t capacity) {
    Buckets *b = buckets_cut(m, dp, capacity);
    for (size_t i = 0; i < m->n_layers; i++) {
        layer_wrap(&m->layers[i], &hooked, dp);
        m->layers[i].technique = b;
    }
    return b;
}

// Zeroes the gradient of a rank without sequences, and marks all layers as ready. With
// find_unused_parameters DDP also marks parameters that a forward did not use. The layers become
// ready in model order, so the last bucket is complete first. buckets_layer_ready() still starts
// bucket 0 first, because the other ranks start bucket 0 first.
void buckets_no_work(Buckets *b) {
    Unit *wte = model_wte(b->model);
    tensor_fill(b->model->g, 0); // model_zero_gradients() leaves the zeroing to the next backward
    if (wte && wte->tied_use) tensor_fill(wte->tied_use->g, 0);
    buckets_arm(b);
    for (size_t i = 0; b->armed && i < b->model->n_layers; i++)
        buckets_layer_ready(b, &b->model->layers[i]);
}

void buckets_wait(Buckets *b) {
    buckets_check_complete(b);
    for (size_t k = 0; k < b->started; k++) comm_wait(b->bucket[k].request); // the sum is in m->g
    b->started = 0;
    b->armed = false;
}

// Makes a step up to the gradient. Zeroes the gradient, runs forward and backward, and waits for
// all buckets. The caller then computes norm and update.
double buckets_gradients(Buckets *b, const Batch *batch) {
    double loss = 0;
    b->sync = true;
    model_zero_gradients(b->model);
    // The layers' hooks start the all-reduces while backward runs.
    if (batch->B > 0) loss = model_forward_backward(b->model, batch);
    else buckets_no_work(b); // adds zeros, because the other ranks wait for every bucket
    buckets_wait(b);         // norm and optimizer may read the gradient only after this wait
    return loss * batch->token_weight;
}
