// ranks: 4
// level: core
// question: How much memory does it save to keep only a layer's input, and what does the second forward cost?
// vary: layers 7..11, width 12|18|24, context 8..13, vocab 31..50
//
// Holds:  no tensor is split; the ranks are stages, or a tp group, as the caller says. A rank has
//         of each of m micro-batches in flight the input of every block (recompute_blocks) or of
//         the stage (recompute_wrap_range), and while a backward runs, everything of one block, or
//         of the stage.
// Sends:  in backward the messages of the layers' forward once more: of a tensor-parallel block two
//         all-reduces of [B*T, C]; of a plain block none. A stage receives and sends nothing again.
// Saves:  15C + 4 + 2HT elements per token and block; the input, C, stays.
// Costs:  one forward more of every recomputed layer: 4F instead of 3F where all layers are.
// Chen et al. 2016; Huang et al. 2018 (GPipe), section 2.3, keeps a stage's inputs. Left out:
// keeping as many micro-batches as fit and recomputing the rest; segments of blocks of unequal
// length.
#include "07_recompute/recompute.h"

// ------------------------------------------------ a block that keeps only its input

// A recomputed block is a layer around a layer, l->inner. x, y, dy and dx are [B*T, C]. x is the
// output of the layer below, which the walker keeps until backward: so the block itself need not
// keep anything.
static void full_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)s;                                       // stays empty
    Saved forgotten = saved_new();
    layer_forward(l->inner, b, x, y, &forgotten);  // its items: B*T (15C + 4 + 2HT) elements,
    saved_free(&forgotten);                        // and they are gone
}

// The same forward once more, now into s, and then the backward that reads s. The walker frees s
// when this returns. The dropout is the same, too: a mask is a function of (seed, step, layer,
// position), not of how often it was asked for. The inner layer sends in its second forward what it
// sends in every forward, because a rank needs the same sums for the same items. A tensor-parallel
// block (chapter 03) has two all-reduces of [B*T, C] in forward, after the product with W_O and
// after the product with W_2, where each rank has a partial sum over its heads or hidden columns:
// both run again. With its two of backward that is 6 per block, not 4. Every rank of the group must
// recompute the same blocks.
static void full_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    // EXERCISE 07.02a (3 points): compute again. Do what backward of l->inner does: the gradient of
    // x goes to dx, those of the parameters are added to theirs. layer_backward() reads the items
    // of the inner layer's forward in s, and s is empty; layer_forward() puts them there. It writes
    // the layer's output, too, which nobody needs: a tensor of MEM_WORKSPACE, of dy's shape, that
    // is freed before backward begins.
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor y = tensor_new(&scratch, dy.rows, dy.cols);
    layer_forward(l->inner, b, x, y, s);    // tensor parallel: two all-reduces of [B*T, C], again
    arena_free(&scratch);
    // tensor parallel: two all-reduces of [B*T, C], as ever
    layer_backward(l->inner, b, x, dy, dx, s);
    // END
}
const LayerKind recompute_full = {
    .name = "recomputed", .forward = full_forward, .backward = full_backward,
    .backward_inputs = layer_defer, .backward_weights = layer_deferred,
};

// Wraps the blocks of a described model, layers 1 to L of the whole one. The embedding keeps
// nothing, and the head's product with the whole vocabulary would be expensive to run twice: they
// stay as they are.
void recompute_blocks(Model *m) {
    for (size_t i = 0; i < m->n_layers; i++) {
        size_t number = m->layers[i].number;
        if (number >= 1 && number <= m->config.layers)
            layer_wrap(&m->layers[i], &recompute_full, NULL);
    }
}

// ---------------------------------------------------------------- a whole stage, as GPipe does it

// The same idea around several neighbouring layers, for example all of a stage: one layer whose
// forward walks the inner ones and forgets, and whose backward walks them forward again and then
// back. The stage received x [B*T, C] in its forward and the executor keeps x, so the second walk
// receives nothing; its output, which the next stage has had, is not sent again.
static void range_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)s;
    // what the layers keep is forgotten
    activation_stash_free(walk_forward(l->inner, l->n_inner, b, x, y));
}
static void range_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)s;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor y = tensor_shaped(&scratch, layer_output(l, b));        // computed again, and not needed
    ActivationStash *f = walk_forward(l->inner, l->n_inner, b, x, y);
    arena_free(&scratch);
    walk_backward(l->inner, l->n_inner, b, f, dy, dx);
}
static const LayerKind recomputed_range = {
    .name = "recomputed range", .forward = range_forward, .backward = range_backward,
};

// One recomputed layer in place of layers [lo, lo + n) of a described model.
void recompute_wrap_range(Model *m, size_t lo, size_t n) {
    model_wrap_range(m, lo, n, &recomputed_range, NULL);
}
