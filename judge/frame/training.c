// training.c: runs short trainings, and compares two trainings.
#include "judge/frame/training.h"
#include "judge/draw/picture.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Data training_text(Run *run, const char *path, const char *eval, size_t vocab, size_t context,
                   size_t sequences) {
    Data d;
    char why[DATA_WHY];
    REQUIRE(data_open(&d, path, eval, vocab, context, run->seed, why), "%s", why);
    d.batch = sequences;
    return d;
}

static Range micro_batch(const Training *t, Range local, size_t k) {
    Range r = shard_range(range_size(local), t->micro_batches, k);
    return (Range){ local.lo + r.lo, local.lo + r.hi };
}
Range training_micro_batch(const Training *t, size_t shards, size_t shard, size_t k) {
    return micro_batch(t, shard_range(t->sequences, shards, shard), k);
}

Batch *training_batches(const Training *t, Arena *tokens, size_t step, size_t shards,
                        size_t shard) {
    Batch *batch = host_alloc(t->micro_batches * sizeof *batch);
    Range local =
        t->shares ? t->shares[step * shards + shard] : shard_range(t->sequences, shards, shard);
    for (size_t k = 0; k < t->micro_batches; k++) {
        Range r = micro_batch(t, local, k);
        batch[k] = data_batch(&t->data, tokens, step, r.lo, range_size(r), t->sequences);
        batch[k].number = k;
    }
    return batch;
}

// ---- snapshots of a model ----

void param_snapshot(const Unit *u, const Param *p, Snapshot *s, UnitTensor what) {
    size_t all = param_local_rows(p) * param_local_cols(p);
    // Under ZeRO-1 and 2 a rank holds more weights than it owns.
    bool whole = what == UNIT_WEIGHTS && p->w.data;
    Range r = whole ? (Range){ p->offset, p->offset + all } : param_owned(u, p);
    size_t n = range_size(r), first = r.lo - p->offset;
    Tensor part = { 0 };
    if (whole) part = p->w;
    else if (n) part = param_owned_part(u, unit_own(u, what), r);
    if (param_local_cols(p) == p->cols) { // then the part is also contiguous in the whole tensor
        snapshot_put_flat(s, p->name, p->rows, p->cols, part, n ? param_global_index(p, first) : 0);
        return;
    }
    size_t *index = host_alloc((n + 1) * sizeof *index);
    for (size_t e = 0; e < n; e++) index[e] = param_global_index(p, first + e);
    snapshot_put_indexed(s, p->name, p->rows, p->cols, part, index);
    free(index);
}

void model_snapshot(const Model *m, Snapshot *s, UnitTensor what, Which which) {
    for (size_t i = 0; i < m->n_units; i++) {
        const Unit *u = &m->units[i];
        for (size_t k = 0; k < u->n_params && !u->tied_to; k++)
            if (!which || which(u, &u->params[k])) param_snapshot(u, &u->params[k], s, what);
    }
}

// ---- the record ----

Trajectory trajectory_new(Run *run, const Training *t) {
    return (Trajectory){ .run = run,
                         .steps = t->steps,
                         .adamw = t->optimizer.kind == ADAMW,
                         .storage = t->model.storage,
                         .loss = host_alloc(t->steps * sizeof(double)),
                         .norm = host_alloc(t->steps * sizeof(double)),
                         .first = snapshot_new(run),
                         .gradients = snapshot_new(run),
                         .weights = snapshot_new(run) };
}

void trajectory_free(Trajectory *c) {
    free(c->loss);
    free(c->norm);
    snapshot_free(c->first);
    snapshot_free(c->gradients);
    snapshot_free(c->weights);
}

void trajectory_record(Trajectory *c, size_t step, const Model *m, double loss, double norm) {
    char label[32];
    snprintf(label, sizeof label, " of step %zu", step);
    snapshot_label(c->gradients, label);
    snapshot_label(c->weights, label);
    c->loss[step] = loss;
    c->norm[step] = norm;
    if (step == 0) model_snapshot(m, c->first, UNIT_GRADIENTS, NULL);
    model_snapshot(m, c->gradients, UNIT_GRADIENTS, NULL);
    model_snapshot(m, c->weights, UNIT_WEIGHTS, NULL);
}

void training_run(Trajectory *c, Model *m, const Training *t, size_t shards, size_t shard,
                  Step *step, void *lesson) {
    Optimizer o = t->optimizer;
    optimizer_allocate(&o, m);
    for (size_t s = 0; s < t->steps; s++) {
        progress(c->run, "step", s, t->steps);
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *batch = training_batches(t, &tokens, s, shards, shard);
        bool recorded = t->recorded && s + 1 == t->steps;
        memory_reset_peaks();
        if (recorded) picture_begin(c->run, t->watched);
        StepResult r = step(lesson, m, &o, t, batch);
        if (recorded) picture_end(c->run);
        trajectory_record(c, s, m, r.loss, r.norm);
        free(batch);
        arena_free(&tokens);
    }
    progress(c->run, "step", t->steps, t->steps);
}

// ---- the unsplit training ----

static double shard_gradients(Model *m, const Training *t, size_t step, size_t shards,
                              size_t shard) {
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = training_batches(t, &tokens, step, shards, shard);
    double loss = 0, weight = batch[0].token_weight; // 1 / counted tokens of the whole batch
    model_zero_gradients(m);
    for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(m, &batch[k]);
    model_fold_tied(m);
    free(batch);
    arena_free(&tokens);
    return loss * weight;
}

static double whole_gradients(Model *m, const Training *t, size_t step, size_t shards) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor sum = tensor_new(&scratch, 1, m->size);
    double loss = shard_gradients(m, t, step, shards, 0);
    tensor_copy(sum, m->g);
    for (size_t k = 1; k < shards; k++) {
        loss += shard_gradients(m, t, step, shards, k);
        op_add(sum, sum, m->g);
    }
    tensor_copy(m->g, sum);
    arena_free(&scratch);
    return loss;
}

Trajectory training_unsplit(Run *run, const Training *t, size_t shards) {
    Trajectory c = trajectory_new(run, t);
    if (run->world->rank > 0) return c;
    ledger_pause();
    Model *m = model_describe(&t->model, model_layers(&t->model));
    Optimizer o = t->optimizer;
    model_allocate(m);
    optimizer_allocate(&o, m);
    for (size_t s = 0; s < t->steps; s++) {
        progress(run, "unsplit, step", s, t->steps);
        double loss = whole_gradients(m, t, s, shards), norm = model_grad_norm(m, NULL);
        optimizer_step(&o, m, clip_factor(norm, t->clip));
        trajectory_record(&c, s, m, loss, norm);
    }
    progress(run, "unsplit, step", t->steps, t->steps);
    model_free(m);
    ledger_resume();
    return c;
}

// ---- the comparison ----

double training_limit(const Training *t) { return storage_limit(t->model.storage); }
double training_exact(const Run *run, const Training *t) {
    return exact_limit(run) > 0 ? training_limit(t) : 0;
}
void config_store(Run *run, ModelConfig *c) {
    c->storage = option_storage(run);
    c->main_gradients = c->storage != REALS && option_main_gradients(run);
}
void training_store(Run *run, Training *t) {
    config_store(run, &t->model);
    if (t->model.storage == REALS) return;
    say(run,
        "Weights and activations are stored in %s, gradients of weights in %s. Masters, moments, "
        "statistics, logits and losses are %s.",
        element_name(t->model.storage), element_name(config_gradient_element(&t->model)),
        element_name(REALS));
}

static void compare(Run *run, const char *what, const char *which, Snapshot *got, Snapshot *want,
                    double limit) {
    char line[96];
    snprintf(line, sizeof line, "%s, %s", what, which);
    if (limit > 0) check_close(run, line, got, want, limit);
    else check_equal(run, line, got, want);
}

void training_compare_tensors(Run *run, const char *what, Trajectory *got, Trajectory *want,
                              double limit) {
    char line[96];
    snprintf(line, sizeof line, "%s: %s", got->adamw ? "AdamW" : "SGD", what);
    const bool rough = sizeof(real) == 4 || got->storage != REALS;
    if (limit > 0 && got->adamw && rough) {
        compare(run, line, "gradients of step 0", got->first, want->first, limit);
    } else {
        compare(run, line, "gradients", got->gradients, want->gradients, limit);
        compare(run, line, "weights", got->weights, want->weights, limit);
    }
}

void training_compare_numbers(Run *run, const char *what, Trajectory *got, Trajectory *want,
                              double limit) {
    char line[96];
    snprintf(line, sizeof line, "%s: %s", got->adamw ? "AdamW" : "SGD", what);
    const bool reals = got->storage == REALS;
    check_numbers(run, line, "loss of every step", got->loss, want->loss, got->steps,
                  reals ? limit : limit / 8);
    check_numbers(run, line, "gradient norm of every step", got->norm, want->norm, got->steps,
                  reals ? limit : limit / 4);
}

void training_compare(Run *run, const char *what, Trajectory *got, Trajectory *want, double limit) {
    training_compare_tensors(run, what, got, want, limit);
    training_compare_numbers(run, what, got, want, limit);
}

bool trajectory_clipped(const Trajectory *c, double clip) {
    bool clipped = true;
    for (size_t s = 0; s < c->steps; s++) clipped &= c->norm[s] > clip;
    return clipped;
}

void training_both(Run *run, const char *what, const Training *t, SplitTraining *split,
                   void *lesson) {
    for (size_t i = 0; i < 2; i++) {
        Training variant = *t;
        variant.optimizer = i ? adamw(0.01) : sgd(0.5);
        variant.recorded = t->recorded && i;
        Trajectory got = trajectory_new(run, &variant), want = training_unsplit(run, &variant, 1);
        split(lesson, &variant, &got);
        training_compare(run, what, &got, &want, training_limit(t));
        check_true(run, i ? "AdamW" : "SGD", "every step is clipped",
                   trajectory_clipped(&got, t->clip));
        trajectory_free(&got);
        trajectory_free(&want);
    }
}
