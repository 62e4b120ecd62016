// ranks: 4
// level: core
// question: Which items of a block take much of its memory, and little work to compute again?
// vary: SEQUENCES 2..4, STEPS 2..3, layers 2..5, width 27|36|45, context 16..28, vocab 45..70
//
// Holds:  the ranks are a tensor-parallel group (chapter 03), each with H/tp heads. For every
//         block, from forward to backward, a rank holds all items but the attention probabilities
//         [B*H/tp*T, T] before and after dropout. While a block's backward runs, the rank holds
//         that block's probabilities.
// Sends:  no more messages, because every rank has q and k of its own heads.
// Saves:  2HT/tp elements per token and block. No other item grows with T^2.
// Costs:  q k^T once more per block, 2TC/tp FLOPs per token and rank. A block's forward takes
//         (24C^2 + 4TC)/tp FLOPs per token and rank.
// The training must equal the training without recomputation in every bit.
// Korthikanti et al. 2022, section 5, together with tensor parallelism, as in the paper. The lesson
// leaves out sequence parallelism, and attention kernels that never store the probabilities. With
// these kernels selective recomputation saves nothing.
#include "07_recompute/recompute.h"

//     none        backward finds all items in memory
//     selective   backward computes softmax(q k^T) and its dropout again, not the heads' output
//     full        backward runs the whole forward again, with its two all-reduces (02_full.c)

// ------------------------------------------------ a block that forgets its probabilities

// Runs the inner block's forward, then drops the attention probabilities. s holds the items that
// the block keeps for backward. The probabilities before and after dropout, [B*H/tp*T, T] each, are
// in an arena of their own, s->attention. shed() frees this arena.
static void selective_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    layer_forward(l->inner, b, x, y, s);
    // Frees 2 B H/tp T T elements, without dropout half as many. q, k, v [B*T, C/tp] and the other
    // items stay.
    l->inner->kind->shed(s);
}

// Computes the probabilities again, then runs the block's backward. rebuild() repeats q k^T,
// softmax, and dropout with the same masks, which are functions of position. rebuild() takes
// B*T*T*C/tp multiplications, and does not repeat the product with v.
static void selective_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    // EXERCISE 07.03a (2 points): compute the probabilities again. Write the gradient of x to dx
    // and add the gradients of the parameters to theirs, as backward of l->inner does.
    // layer_backward() reads the items of the inner layer's forward in s, but its [T, T] items were
    // shed. The functions of a layer are in l->inner->kind (common/model/layer.h). Do not compute
    // other items again, because they are still there.
    l->inner->kind->rebuild(l->inner, b, s);
    layer_backward(l->inner, b, x, dy, dx, s);
    // END
}
const LayerKind recompute_selective = {
    .name = "selectively recomputed",
    .forward = selective_forward,
    .backward = selective_backward,
    .backward_inputs = layer_defer,
    .backward_weights = layer_deferred,
};

// ---------------------------------------------------------------- all blocks of a model

// Returns true if l wraps a block but has no rebuild(). Then recompute() calls fault(). If
// recompute() skipped the block instead, the block would not be recomputed, and no error message
// would say so.
static bool hides_a_block(const Layer *l) {
    if (l->kind->rebuild) return false;
    for (size_t i = 0; i < l->n_inner; i++)
        if (l->inner[i].kind->rebuild || hides_a_block(&l->inner[i])) return true;
    return false;
}

// A block is a layer with a function `rebuild`, which embedding and head do not have.
void recompute(Model *m, Recompute how) {
    static const LayerKind *const wrapper[] = { NULL, &recompute_selective, &recompute_full };
    if (how == RECOMPUTE_NONE) return;
    for (size_t i = 0; i < m->n_layers; i++)
        if (hides_a_block(&m->layers[i]))
            fault("recompute() of layer %zu (%s): call it before other wrappers, such as "
                  "zero_allocate()",
                  m->layers[i].number, m->layers[i].kind->name);
    for (size_t i = 0; i < m->n_layers; i++)
        if (m->layers[i].kind->rebuild) layer_wrap(&m->layers[i], wrapper[how], NULL);
}
