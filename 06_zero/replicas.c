// replicas.c: see replicas.h.
#include "06_zero/replicas.h"
#include <stdio.h>
#include <stdlib.h>
#include "01_data_parallel/data_parallel.h"

// Rank r of N takes shard r of the global batch, cut in as many micro-batches as everybody else's. Some may be empty.
static Batch *my_batches(const Training *t, Arena *tokens, size_t step, size_t N, size_t rank) {
    Range mine = shard_range(t->batch, N, rank);
    Batch *batch = host_alloc(t->micro_batches * sizeof *batch);
    for (size_t k = 0; k < t->micro_batches; k++) {
        Range r = shard_range(range_size(mine), t->micro_batches, k);
        batch[k] = data_batch(&t->data, tokens, step, mine.lo + r.lo, range_size(r), t->batch);
    }
    return batch;
}

Trained train(Run *run, Comm *dp, Model *m, const Training *t, Step step) {
    Trained done = { .steps = t->steps, .gradients = snapshot_new(run), .weights = snapshot_new(run) };
    done.loss = host_alloc(t->steps * sizeof(double));
    done.norm = host_alloc(t->steps * sizeof(double));
    Optimizer o = t->optimizer;
    optimizer_allocate(&o, m);
    for (size_t s = 0; s < t->steps; s++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *mine = my_batches(t, &tokens, s, dp ? dp->size : 1, dp ? dp->rank : 0);
        if (!ledger_paused()) {                    // a reference leaves the peaks that are to be looked at alone
            comm_ledger_reset(dp);
            memory_reset_peaks();
        }
        StepResult r = step(dp, m, &o, t, mine);
        done.loss[s] = r.loss / (double)data_count(&t->data, s, 0, t->batch);
        done.norm[s] = r.norm;
        free(mine);
        arena_free(&tokens);
    }
    model_snapshot_gradients(m, done.gradients);
    model_snapshot_weights(m, done.weights);
    return done;
}

// ---------------------------------------------------------------- the two references

static StepResult replica_step(Comm *dp, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    StepResult r = {0};
    double *squares = host_alloc(config_tensors(&t->model) * sizeof *squares);
    model_zero_gradients(m);
    for (size_t k = 0; k < t->micro_batches; k++) r.loss += model_forward_backward(m, &mine[k]);
    model_fold_tied(m);
    if (dp) {
        data_parallel_all_reduce(dp, m);           // chapter 01
        comm_all_reduce_doubles(dp, &r.loss, 1);
    }
    model_grad_squares(m, squares);
    r.norm = norm_of_squares(squares, config_tensors(&t->model));
    optimizer_step(o, m, clip_factor(r.norm, t->clip));
    free(squares);
    return r;
}

static Trained train_whole_model(Run *run, Comm *dp, const Training *t) {
    Model *m = model_describe(&t->model, model_layers(&t->model));
    model_allocate(m);
    Trained done = train(run, dp, m, t, replica_step);
    model_free(m);
    return done;
}

static Trained nothing_trained(Run *run, size_t steps) {
    return (Trained){ .steps = steps, .gradients = snapshot_new(run), .weights = snapshot_new(run),
                      .loss = host_alloc(steps * sizeof(double)), .norm = host_alloc(steps * sizeof(double)) };
}

Trained train_replicas(Run *run, const Training *t) {
    ledger_pause();
    Comm *dp = comm_split(run->world, 0, run->world->rank, "replicas");
    Trained done = train_whole_model(run, dp, t);
    comm_free(dp);
    ledger_resume();
    return done;
}

Trained train_unsplit(Run *run, const Training *t) {
    if (run->world->rank > 0) return nothing_trained(run, t->steps);
    Training whole = *t;
    whole.micro_batches = 1;
    ledger_pause();
    Trained done = train_whole_model(run, NULL, &whole);
    ledger_resume();
    return done;
}

void trained_free(Trained *t) {
    snapshot_free(t->gradients);
    snapshot_free(t->weights);
    free(t->loss);
    free(t->norm);
}

// ---------------------------------------------------------------- the verdict

static void judge_tensors(Run *run, const char *what, const char *which, Snapshot *got, Snapshot *want, double limit) {
    char line[96];
    snprintf(line, sizeof line, "%s, %s", what, which);
    if (limit > 0) check_close(run, line, got, want, limit);
    else check_equal(run, line, got, want);
}

void judge(Run *run, const char *what, Trained *got, Trained *want, double limit, bool weights_too) {
    // Numbers are sums over ranks in double; one device adds the same terms in another order.
    check_numbers(run, what, "loss of each step", got->loss, want->loss, got->steps, LIMIT_ROUNDING);
    check_numbers(run, what, "gradient norm of each step", got->norm, want->norm, got->steps, LIMIT_ROUNDING);
    if (!weights_too) return;
    judge_tensors(run, what, "gradients", got->gradients, want->gradients, limit);
    judge_tensors(run, what, "weights", got->weights, want->weights, limit);
}

double every_bit(const Run *run) { return run->reduce == REDUCE_ORDERED ? 0 : LIMIT_ROUNDING; }
