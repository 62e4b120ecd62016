// ranks: 4
// level: core
// question: Where do the sixteen bytes per parameter come from, and can all of them be 16-bit numbers?
//
// Holds:  each of N ranks has B/N of the sequences, and all Psi parameters. Weights have 16 bits,
//         gradients 16 or 32 bits, and master, m and v 32 bits. A parameter then takes 2 + 2 + 12
//         or 2 + 4 + 12 bytes. In fp32 a parameter takes 4 + 4 + 8 bytes.
// Sends:  per step one all-reduce of the gradients. A rank sends 2 (N-1)/N of 2 Psi bytes if
//         gradients have 16 bits, or of 4 Psi bytes if gradients have 32 bits.
// Saves:  no state, but half of the activations, and half of the traffic if gradients travel in 16
//         bits. A GPU also multiplies 16-bit matrices several times as fast as fp32 ones.
// Costs:  a master (a copy of the weights in fp32), 4 bytes per parameter. fp16 also needs a loss
//         scale, and skips some steps.
// The losses must stay close to the losses in fp32. Without the master the losses must be worse.
// Micikevicius et al. 2018; 2 + 2 + 12: Rajbhandari et al. 2020, section 3.1; fp32 gradients:
// Megatron-LM's main_grad. ZeRO divides the same state (01_by_hand to 04_zero3).
#include <math.h>
#include "01_data_parallel/data_parallel.h"
#include "06_zero/zero.h"

// ---------------------------------------------------------------- the master

// Allocates weights, gradients and optimizer state, and copies rank 0's weights to all ranks.
// Without a master, small updates would be lost. bf16 has 8 significant bits, so near w the next
// bf16 number is w/256 to w/128 away. If an update is smaller than half of this distance, rounding
// w - update gives w again. So a master in fp32 collects the updates, and the weights are a rounded
// copy of the master:
//
//     forward, backward   w, activations [16 bits]; each product is added in fp32, rounded once
//     update              master -= lr m / sqrt(v)                                  [fp32]
//     copy                w = round(master)                                         [16 bits]
//
// optimizer_allocate() allocates the master. optimizer_step() updates the master and rounds the
// master into the weights. The first optimizer_step() fills the master with the broadcast weights.
void mixed_allocate(Model *m, Comm *dp, Optimizer *o) {
    model_replicas(m, dp);
    model_allocate(m);
    data_parallel_broadcast(dp, m);
    optimizer_allocate(o, m);
}

// ---------------------------------------------------------------- the loss scale

// Chooses the factor of the next step. fp16 has no number between 0 and 6e-8, and none above 65504.
// If a batch has 1 million tokens, each token's gradient is multiplied by 1e-6, and many elements
// of the gradient become 0. So the loss, and with it every gradient, is multiplied by a power of
// two, which changes only the exponents. If a gradient overflows, the factor is too large. Then
// this step is skipped and the factor is halved. After `patience` steps in a row without an
// overflow the factor is doubled. bf16 has the range of fp32 and needs only the factor 1.
void loss_scale_next(LossScale *s, bool finite) {
    // EXERCISE 06.06a (3 points): the next loss scale. `finite` means that the step had no
    // overflow. Halve s->factor after an overflow. Double it after s->patience steps in a row
    // without one, and count these steps in s->good. A fixed scale has patience 0 and never
    // changes. Count skipped steps in s->skipped, also with a fixed scale.
    if (!finite) s->skipped++;
    if (s->patience == 0) return;
    s->good = finite ? s->good + 1 : 0;
    if (!finite) s->factor /= 2;
    if (s->good == s->patience) {
        s->factor *= 2;
        s->good = 0;
    }
    // END
}

StepResult mixed_step(Model *model, Comm *dp, LossScale *scale, const Batch *batch, size_t m,
                      Optimizer *o, double clip) {
    double loss = 0;
    model_zero_gradients(model);
    for (size_t k = 0; k < m; k++) {
        Batch scaled = batch[k];
        // The loss scale multiplies the head's dy, and so it multiplies every gradient.
        scaled.token_weight *= scale->factor;
        loss += model_forward_backward(model, &scaled);
    }
    model_fold_tied(model);
    // Sends 2 (N-1)/N Psi elements, in the element type of the gradients. All ranks get the same
    // sum, also where the sum is infinite or NaN.
    data_parallel_all_reduce(dp, model);

    // The norm is computed after the sum, so every rank has the same norm and makes the same
    // decision. If each rank checked its own gradient before the sum, a single rank could skip the
    // step. The weights of that rank would then differ from the weights of the other ranks.
    double norm = model_grad_norm(model, NULL) / scale->factor;
    bool finite = isfinite(norm);
    if (finite) optimizer_step(o, model, clip_factor(norm, clip) / scale->factor);
    loss_scale_next(scale, finite);
    comm_all_reduce_doubles(dp, &loss, 1); // for the comparison: each rank has its own loss
    return (StepResult){ loss * batch[0].token_weight, norm };
}
