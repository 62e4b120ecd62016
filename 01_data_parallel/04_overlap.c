// ranks: 4
// level: core
// question: Why wait for the whole gradient before its first byte is sent?
// vary: SEQUENCES 5..11, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Holds:  every rank a replica, as in 02_all_reduce. The gradient is cut in buckets: views of m->g,
//         nothing is copied.
// Sends:  an all-reduce per bucket of n elements, 2 (N-1)/N of n elements per rank, started as soon
//         as the bucket's last tensor is final; the buckets go from the end of m->g to its
//         beginning, as backward does.
// Saves:  the communication time of all buckets but the last, which is hidden behind backward. The
//         bits stay those of one all-reduce.
// Costs:  2(N-1) latencies per bucket. The last bucket is exposed, because no backward is left to
//         hide it. Up to Psi elements of communication memory are in flight.
// Li et al. 2020 (arXiv 2006.15704), section 3.2: PyTorch's DistributedDataParallel, reducer.cpp.
// Left out: gradients that become ready in the middle of a layer's backward, and a reduction that
// slows the products down.
#include "01_data_parallel/data_parallel.h"

// b->bucket <- the parts of m->g [Psi] that travel together, cut at the borders of tensors:
//     m->g      wte | wpe | h.0 ...           | h.1 ...           | ln_f
//     buckets   <-- 3 --> | <------ 2 ------> | <-- 1 --> <------ 0 ---->   backward runs leftwards
// A bucket is a view of m->g (DDP's gradient_as_bucket_view): nothing is copied.
static void cut(Buckets *b, size_t capacity) {
    size_t hi = b->end;                            // where the open bucket ends in m->g
    // EXERCISE 01.04b (3 points): cut from the end. Cut m->g into buckets, from its end to its
    // beginning. b->tensor[i].at is the number of the element of m->g with which tensor i begins.
    // Write into tensor[i].bucket in which bucket it is, and into b->bucket[k] its part of m->g and
    // how many tensors lie in it; b->n counts the buckets. Begin with the last tensor; b->n and all
    // of b->bucket are zero now. A bucket is closed by the tensor with which it reaches `capacity`
    // bytes, and tensor 0 closes the last bucket.
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

// One message per bucket: the sum over dp of its part of m->g [bucket], 2 (N-1)/N of the bucket's
// bytes sent per rank. Each rank has its own tokens' part of the gradient, and the sum of the parts
// is the whole batch's. The all-reduce is under way from here until buckets_wait(); backward goes
// on meanwhile, and must not write into the bucket.
static void start(Buckets *b, Bucket *k) {
    k->request =
        comm_start_all_reduce(b->dp, tensor_flat_range(b->model->g, k->part.lo, k->part.hi));
}

// A forward begins whose backward shall reduce, if b->sync: every bucket waits for all of its
// tensors.
void buckets_arm(Buckets *b) {
    b->armed = b->sync;
    if (!b->armed) return;
    buckets_check_waited(b);
    for (size_t k = 0; k < b->n; k++) b->bucket[k].pending = b->bucket[k].tensors;
    for (size_t i = 0; i < b->n_tensors; i++) b->tensor[i].ready = false;
}

// The gradient of p is final: its bucket waits for one tensor less. At 0 the bucket is complete.
static void tensor_ready(Buckets *b, const Param *p) {
    BucketTensor *t = buckets_find(b, p);
    if (!t) return;
    if (t->ready) fault("%s is ready for the second time in one backward", p->name);
    t->ready = true;
    b->bucket[t->bucket].pending--;
}

// The backward of layer l is done.
void buckets_layer_ready(Buckets *b, const Layer *l) {
    // EXERCISE 01.04a (8 points): what is ready may go. Say of every tensor of l's units that it is
    // ready, if it is (tensor_ready): wte has two uses (Unit.tied_use, tied_to), and its gradient
    // is final only when both parts are there and are added (model_fold_tied). Then start() every
    // bucket that has become complete, and count it in b->started. All ranks must start the same
    // buckets in the same order, whatever the order in which they become complete: in that of their
    // numbers.
    for (size_t i = 0; i < l->n_units; i++) {
        const Unit *u = l->units[i];
        if (u->tied_to) continue;  // the head's part of wte's gradient waits for the embedding's
        if (u->tied_use) model_fold_tied(b->model);
        for (size_t k = 0; k < u->n_params; k++) tensor_ready(b, &u->params[k]);
    }
    while (b->started < b->n && b->bucket[b->started].pending == 0)
        start(b, &b->bucket[b->started++]);
    // END
}

// The hook: every layer of the model is wrapped in these two, so they run where its forward and
// backward would.
static void hooked_forward(Layer *l, const Batch *batch, Tensor x, Tensor y, Saved *s) {
    Buckets *b = l->technique;
    if (l == &b->model->layers[0]) buckets_arm(b);
    layer_forward(l->inner, batch, x, y, s);
}
static void hooked_backward(Layer *l, const Batch *batch, Tensor x, Tensor dy, Tensor dx,
                            Saved *s) {
    Buckets *b = l->technique;
    layer_backward(l->inner, batch, x, dy, dx, s);
    if (b->armed) buckets_layer_ready(b, l);       // may start all-reduces, and waits for none
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

// As DDP does with parameters that a forward did not use. They are found in model order, so here
// the last bucket is complete first: without the rule of buckets_layer_ready() this rank would
// start it while the others start the first.
void buckets_no_work(Buckets *b) {
    Unit *wte = model_wte(b->model);
    tensor_fill(b->model->g, 0);  // model_zero_gradients() leaves that to the first backward
    if (wte && wte->tied_use) tensor_fill(wte->tied_use->g, 0);
    buckets_arm(b);
    for (size_t i = 0; b->armed && i < b->model->n_layers; i++)
        buckets_layer_ready(b, &b->model->layers[i]);
}

void buckets_wait(Buckets *b) {
    buckets_check_complete(b);
    for (size_t k = 0; k < b->started; k++) comm_wait(b->bucket[k].request);  // the sum is in m->g
    b->started = 0;
    b->armed = false;
}

// The order of a step: zero, forward and backward, which start, then wait; the caller's norm and
// update come after that.
double buckets_gradients(Buckets *b, const Batch *batch) {
    double loss = 0;
    b->sync = true;                                // before the forward
    model_zero_gradients(b->model);
    // starts the all-reduces on its way
    if (batch->B > 0) loss = model_forward_backward(b->model, batch);
    else buckets_no_work(b);  // zeros: the others wait for my part of every bucket
    buckets_wait(b);  // nobody may use a gradient before: not norm, not optimizer
    return loss * batch->token_weight;
}
