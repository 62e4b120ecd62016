// measured.c: makes the trainings of this chapter's experiments, and reads their costs from the
// ledgers of the Comm and of the memory.
#include "01_data_parallel/experiments/experiments.h"

Training synthetic_training(Run *run, const ModelConfig *model, size_t steps, size_t sequences) {
    Training t = { .model = *model,
                   .data = data_synthetic(model->vocab, model->context, run->seed),
                   .steps = steps,
                   .sequences = sequences,
                   .micro_batches = 1,
                   .optimizer = sgd(0.1) };
    t.model.seed = run->seed;
    training_store(run, &t);
    return t;
}

Model *whole_model(const ModelConfig *model) {
    Model *m = model_describe(model, model_layers(model));
    model_allocate(m);
    return m;
}

Training text_training(Run *run, size_t steps, size_t sequences, double rate) {
    Training t = { .model = { .layers = 1, .width = 32, .heads = 2, .context = 16, .vocab = 256 },
                   .steps = steps,
                   .sequences = sequences,
                   .micro_batches = 1,
                   .optimizer = sgd(rate) };
    t.model.seed = run->seed;
    config_store(run, &t.model);
    t.data = training_text(run, option_text(run, "data"), NULL, t.model.vocab, t.model.context,
                           sequences);
    return t;
}

double text_loss(const Training *t, Model *m) {
    enum { BATCHES = 8 };
    double loss = 0;
    ledger_pause();
    for (size_t step = 0; step < BATCHES; step++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch b = data_batch(&t->data, &tokens, step, 0, t->sequences, t->sequences);
        loss += model_loss(m, &b) * b.token_weight / BATCHES;
        arena_free(&tokens);
    }
    ledger_resume();
    return loss;
}

Measured measured_now(const Comm *c) {
    Measured m = { .reductions = (double)c->ledger[COMM_ALL_REDUCE].calls,
                   .reduced = (double)c->ledger[COMM_ALL_REDUCE].bytes,
                   .broadcasts = (double)c->ledger[COMM_BROADCAST].calls,
                   .broadcast = (double)c->ledger[COMM_BROADCAST].bytes,
                   .sent = (double)comm_bytes_sent(c),
                   .parameters = (double)memory_now(MEM_PARAMETERS),
                   .gradients = (double)memory_now(MEM_GRADIENTS),
                   .optimizer = (double)memory_now(MEM_OPTIMIZER),
                   .buffers = (double)memory_now(MEM_COMMUNICATION),
                   .buffers_peak = (double)memory_peak(MEM_COMMUNICATION),
                   .activations_peak = (double)memory_peak(MEM_ACTIVATIONS) };
    for (size_t k = 0; k < COMM_KINDS; k++) m.calls += (double)c->ledger[k].calls;
    return m;
}

Trajectory replica_train(Run *run, const Training *t, Step *step, size_t capacity, Measured *seen) {
    Comm *dp = run->world;
    Trajectory c = trajectory_new(run, t);
    Model *m = whole_model(&t->model);
    // Gradients of 1 stand for those of an earlier step. If a rank without sequences adds old
    // gradients, the comparison fails.
    for (size_t i = 0; i < m->n_units; i++) tensor_fill(m->units[i].g, 1);
    BucketReplica r = { .dp = dp, .buckets = buckets_new(m, dp, capacity) };
    comm_ledger_reset(dp);
    training_run(&c, m, t, dp->size, dp->rank, step, &r);
    *seen = measured_now(dp);
    seen->last = picture_timing(run);
    comm_all_reduce_doubles(dp, c.loss, t->steps); // adds the ranks' parts, for the comparison
    buckets_free(r.buckets);
    model_free(m);
    return c;
}
