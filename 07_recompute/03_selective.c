// ranks: 4
// level: core
// question: Which items of a block take much of its memory, and little work to compute again?
// vary: SEQUENCES 2..4, STEPS 2..3, layers 2..5, width 27|36|45, context 16..28, vocab 45..70
//
// Holds:  of every block, from forward to backward, everything but the attention probabilities
//         [B*H/tp*T, T] before and after dropout; these of one block while its backward runs.
// Sends:  nothing: every rank has q and k of its own heads.
// Saves:  2HT/tp elements per token and block: the only items that grow with the square of the
//         sequence.
// Costs:  q k^T once more per block, 2TC/tp FLOPs per token: little beside a block's 24C^2 + 4TC.
// Korthikanti et al. 2022, section 5, together with tensor parallelism, as in the paper. Left out:
// attention kernels that never write the probabilities down (they make this unnecessary); sequence
// parallelism.
#include "07_recompute/recompute.h"

//     none        backward finds everything
//     selective   backward computes softmax(q k^T) and its dropout again, not the heads' output
//     full        backward runs the whole forward again, with its two all-reduces (02_full.c)

// ------------------------------------------------ a block that forgets its probabilities

// A selectively recomputed block is a layer around a block, l->inner. What the block keeps for
// backward is in s, and there the [T, T] items of its heads, probabilities before and after
// dropout, [B*H/tp*T, T] each, have an arena of their own: s->attention. shed() frees it.
static void selective_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    layer_forward(l->inner, b, x, y, s);
    l->inner->kind->shed(s);    // 2 B H/tp T T elements less; q, k, v [B*T, C/tp] stay, as all else
}

// rebuild() computes them again, of this block only: q k^T, softmax, dropout with the same masks
// (functions of position). Every rank has q and k of its own heads: nothing is sent.
static void selective_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    // EXERCISE 07.03a (2 points): compute the probabilities again. Do what backward of l->inner
    // does: the gradient of x goes to dx, those of the parameters are added to theirs.
    // layer_backward() reads what the inner layer's forward kept in s, but its [T, T] items were
    // shed. l->inner->kind lists what a layer can do (common/model/layer.h). What backward still
    // finds must not be computed again.
    // B*T*T*C/tp multiplications more; the product with v is not redone
    l->inner->kind->rebuild(l->inner, b, s);
    layer_backward(l->inner, b, x, dy, dx, s);
    // END
}
const LayerKind recompute_selective = {
    .name = "selectively recomputed", .forward = selective_forward, .backward = selective_backward,
    .backward_inputs = layer_defer, .backward_weights = layer_deferred,
};

// ---------------------------------------------------------------- all blocks of a model

// A block inside of a layer that cannot compute it again: to pass over it would drop the technique
// without a message.
static bool hides_a_block(const Layer *l) {
    if (l->kind->rebuild) return false;
    for (size_t i = 0; i < l->n_inner; i++)
        if (l->inner[i].kind->rebuild || hides_a_block(&l->inner[i])) return true;
    return false;
}

// The one call of this chapter, which chapter 08 makes, too: wraps the blocks of a described model,
// whole or tensor-parallel. A block is a layer that has `rebuild`, whatever has cut it: the
// embedding and the head have none.
void recompute(Model *m, Recompute how) {
    static const LayerKind *const wrapper[] = { NULL, &recompute_selective, &recompute_full };
    if (how == RECOMPUTE_NONE) return;
    for (size_t i = 0; i < m->n_layers; i++)
        if (hides_a_block(&m->layers[i]))
            fault("recompute() of layer %zu (%s): blocks are wrapped before anything else wraps "
                  "their layers, "
                  "zero_allocate() for example",
                  m->layers[i].number, m->layers[i].kind->name);
    for (size_t i = 0; i < m->n_layers; i++)
        if (m->layers[i].kind->rebuild) layer_wrap(&m->layers[i], wrapper[how], NULL);
}
