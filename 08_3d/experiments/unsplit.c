// unsplit.c makes the model on one device, and computes the gradients of one step.
#include "08_3d/experiments/experiments.h"

Model *unsplit_model(const TrainerConfig *c) {
    ledger_pause();
    Model *m = model_describe(&c->model, model_layers(&c->model));
    // Attention must add in the same order as the split model's attention, because the last bit may
    // decide which element top-k sends.
    for (size_t i = 0; c->reduction == REDUCE_COMPRESSED && c->blockwise && i < m->n_layers; i++)
        m->layers[i].attention = &attention_blockwise;
    model_allocate(m);
    ledger_resume();
    return m;
}

StepResult unsplit_gradients(Model *m, const TrainerConfig *c, const Data *d, uint64_t step,
                             double factor) {
    ledger_pause();
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_batch(d, &tokens, step, 0, c->batch, c->batch);
    const double weight = b.token_weight;
    b.token_weight = weight * factor;
    model_zero_gradients(m);
    StepResult r = { .loss = model_forward_backward(m, &b) * weight };
    model_fold_tied(m);
    r.norm = model_grad_norm(m, NULL) / factor;
    arena_free(&tokens);
    ledger_resume();
    return r;
}
