// ranks: 1
// level: core
// question: How much memory does a batch need when it comes in m micro-batches, and are its gradients the same?
// vary: SEQUENCES 5..11, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Holds:  one device has the weights, a gradient per use of a tensor, and the activations of one
//         micro-batch at a time. The table wte has two uses.
// Sends:  nothing.
// Saves:  memory for activations, because at most ceil(B / m) sequences have activations at a time,
//         not B.
// Costs:  scratch memory for the new gradients of one operation at a time, because all
//         micro-batches add to the same gradients. Each matrix product becomes m smaller products,
//         which can take longer.
// The gradient must equal the gradient of the whole batch within rounding, not in every bit,
// because a sum over tokens is added in m parts.
// Huang et al. 2018 (GPipe), section 2.2. PyTorch users call the method gradient accumulation.
// Left out: several devices (03_no_sync.c), and overlapping micro-batches, which is a pipeline
// (chapter 04).
#include "02_grad_accumulation/accumulation.h"

// Leaves the gradient of the whole batch's mean loss in model->g [Psi]. The gradients are zeroed
// once, m micro-batches add to the gradients, and the two gradients of the tied table are added
// once. Every counted token weighs 1 / (counted tokens of the whole batch). The caller sets each
// batch[k].token_weight to this weight.
double accumulate_gradients(Model *model, const Batch *batch, size_t m) {
    double loss = 0;
    // EXERCISE 02.02a (4 points): accumulate. Leave the gradient of the whole batch's mean loss in
    // the model's gradients, and that loss in `loss`. The batch comes in micro-batches batch[0] to
    // batch[m - 1]. model_forward_backward() runs one micro-batch forward and backward. This
    // function ADDS to the gradients, in which a token weighs batch[k].token_weight, and returns
    // the sum of the tokens' losses without that weight. The gradients may hold any values when you
    // begin. The table wte is used twice and has two gradients. model_fold_tied() adds one gradient
    // to the other, after the last micro-batch.
    model_zero_gradients(model);
    for (size_t k = 0; k < m; k++) // allocates and frees activations
        loss += model_forward_backward(model, &batch[k]) * batch[k].token_weight;
    model_fold_tied(model);
    // END
    return loss;
}

// Makes one step. Runs m micro-batches, then computes the norm once and updates the weights once.
StepResult accumulate_step(Model *model, Optimizer *o, const Batch *batch, size_t m) {
    double loss = accumulate_gradients(model, batch, m);
    double norm = model_grad_norm(model, NULL);
    optimizer_step(o, model, 1);
    return (StepResult){ loss, norm };
}
