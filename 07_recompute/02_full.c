// ranks: 4
// level: core
// question: How much memory does it save to keep only a block's input, and what does the second forward cost?
// vary: layers 7..11, width 12|18|24, context 8..13, vocab 31..50
//
// Holds:  recomputation splits no tensor. The ranks are pipeline stages or a tensor-parallel group.
//         For each of m micro-batches in flight a rank holds the input of every block
//         (recompute_blocks) or of the stage (recompute_wrap_range). While a backward runs, the
//         rank holds all items of one block, or of the stage.
// Sends:  in backward, the messages of the layers' forward once more: two all-reduces of [B*T, C]
//         for a tensor-parallel block, none for a plain block. A stage receives and sends no
//         activation again.
// Saves:  15C + 4 + 2HT elements per token and block; the input, C, stays. With tensor parallelism
//         a rank saves less, because the block's items are cut.
// Costs:  one more forward of every recomputed layer. If all layers are recomputed, the work of a
//         step is 4F instead of 3F. F is the work of the model's forward.
// The training must equal the training without recomputation in every bit.
// Chen et al. 2016; Huang et al. 2018 (GPipe), section 2.3, keeps a stage's inputs.
// The lesson leaves out segments of unequal length, and plans that recompute only the micro-batches
// whose items do not fit.
#include "07_recompute/recompute.h"

// ------------------------------------------------ a block that keeps only its input

// Runs the inner layer's forward and keeps no item. l->inner is the wrapped block. x, y, dy and dx
// are [B*T, C]. The walk over the layers (walk_forward) keeps x, the output of the layer below,
// until backward. So the block keeps nothing itself.
static void full_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)s; // stays empty
    Saved forgotten = saved_new();
    layer_forward(l->inner, b, x, y, &forgotten); // keeps all items of the block
    saved_free(&forgotten);                       // drops these items
}

// Runs the same forward once more, now into s, and then the backward, which reads s. The walk frees
// s afterwards. The dropout is the same, because a mask is a function of (seed, step, layer,
// position). The second forward sends the first forward's messages again, because a rank needs the
// same sums for the same items. In forward a tensor-parallel block (chapter 03) has two all-reduces
// of [B*T, C]. After the products with W_O and W_2 each rank has a partial sum over its heads or
// hidden columns. The backward also has two. So a block has 2 + 2 + 2 = 6 all-reduces, not 4. Every
// rank of the group must recompute the same blocks.
static void full_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    // EXERCISE 07.02a (3 points): compute again. Write the gradient of x to dx and add the
    // gradients of the parameters to theirs, as backward of l->inner does. layer_backward() reads
    // the items of the inner layer's forward in s, but s is empty. layer_forward() fills s.
    // layer_forward() also writes the layer's output, which is not needed. Give it a tensor of
    // MEM_WORKSPACE, of dy's shape, and free the tensor before backward begins.
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor y = tensor_like(&scratch, dy);
    // Under tensor parallelism this forward has two all-reduces of [B*T, C], again.
    layer_forward(l->inner, b, x, y, s);
    arena_free(&scratch);
    // Under tensor parallelism this backward has the two all-reduces of [B*T, C] of every backward,
    // because each rank has a partial sum of the gradient of a product's input.
    layer_backward(l->inner, b, x, dy, dx, s);
    // END
}
const LayerKind recompute_full = {
    .name = "recomputed",
    .forward = full_forward,
    .backward = full_backward,
    .backward_inputs = layer_defer,
    .backward_weights = layer_deferred,
};

// Wraps the blocks of a described model, layers 1 to L of the whole model. The embedding is not
// wrapped, because an embedding keeps nothing. The head is not wrapped, because the product with
// the whole vocabulary is expensive to compute again.
void recompute_blocks(Model *m) {
    for (size_t i = 0; i < m->n_layers; i++) {
        size_t number = m->layers[i].number;
        if (number >= 1 && number <= m->config.layers)
            layer_wrap(&m->layers[i], &recompute_full, NULL);
    }
}

// ---------------------------------------------------------------- a whole stage, as GPipe does it

// Runs the forward of several neighbouring layers that are recomputed together, for example all
// layers of a stage. The layer l wraps the neighbouring layers, l->inner. range_forward walks
// through the inner layers and keeps nothing. range_backward walks forward again and then backward.
// The executor of the pipeline (chapter 04) keeps x [B*T, C], which the stage received in its
// forward, so the second walk receives nothing. The second walk sends nothing either, because the
// next stage has the output.
static void range_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)s;
    // Frees the stash, which holds all kept items, at once.
    activation_stash_free(walk_forward(l->inner, l->n_inner, b, x, y));
}
static void range_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)s;
    // EXERCISE 07.02b (2 points): compute a range again. The l->n_inner layers at l->inner have
    // kept nothing. walk_forward() runs them once more and returns what they keep. Its output, of
    // the shape layer_output(l, b), is not needed, so free it before the backward. Then
    // walk_backward() of these layers writes the gradient of x to dx.
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor y = tensor_shaped(&scratch, layer_output(l, b)); // the output is not needed
    ActivationStash *f = walk_forward(l->inner, l->n_inner, b, x, y);
    arena_free(&scratch);
    walk_backward(l->inner, l->n_inner, b, f, dy, dx);
    // END
}
static const LayerKind recomputed_range = {
    .name = "recomputed range",
    .forward = range_forward,
    .backward = range_backward,
};

void recompute_wrap_range(Model *m, size_t lo, size_t n) {
    model_wrap_range(m, lo, n, &recomputed_range, NULL);
}
