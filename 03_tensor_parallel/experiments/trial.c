// trial.c: trains a few layers alone, split or unsplit, and compares the two trainings.
#include "03_tensor_parallel/experiments/experiments.h"
#include <stdlib.h>
#include "common/comm/record.h"
#include "common/tensor/random.h"

// ---------------------------------------------------------------- data and parts

Trial trial_new(Run *run, Comm *tp, size_t M, size_t K, size_t N) {
    return (Trial){ .run = run,
                    .tp = tp,
                    .M = M,
                    .K = K,
                    .N = N,
                    .x_cols = { 0, K },
                    .y_cols = { 0, N },
                    .storage = option_storage(run) };
}

typedef enum { X = 101, TARGET, WEIGHTS, MASK } TrialData; // the random numbers of a trial
// Returns the key of these random numbers. `i` is the step, or the number of the parameter.
static uint64_t key_of(const Trial *t, TrialData what, size_t i) {
    return random_key(random_key(t->run->seed, what), i);
}

// Drops elements of y. The mask of an element depends on the step, the row and the column in the
// whole layer, never on a rank. So a cut Y has the mask of its own columns, and a whole Y the same
// mask on every rank.
static void drop(const Trial *t, Tensor y) {
    const uint64_t mask = key_of(t, MASK, t->step);
    op_dropout(y, y, (Dropout){ .key = mask, .p = t->dropout, .col0 = t->y_cols.lo });
}

// Returns the columns `own` of X, or of the target, in this step.
static Tensor drawn(const Trial *t, Arena *a, TrialData what, size_t cols, Range own) {
    Tensor whole = tensor_new(a, t->M, cols);
    tensor_randomize(whole, key_of(t, what, t->step), 1);
    return tensor_col_range(whole, own.lo, own.hi);
}

static void parameters_new(Trial *t, Arena *parameters, Arena *gradients) {
    for (size_t i = 0; i < t->n_params; i++) {
        Param *p = &t->params[i];
        const size_t rows = param_local_rows(p), cols = param_local_cols(p);
        const uint64_t key = key_of(t, WEIGHTS, i);
        real *value = host_alloc(rows * cols * sizeof *value);
        for (size_t e = 0; e < rows * cols; e++)
            value[e] =
                (real)(random_normal(random_key(key, param_global_index(p, e))) * t->deviation);
        p->w = tensor_shaped(parameters, tensor_shape(rows, cols, t->storage));
        p->g = tensor_new(gradients, rows, cols);
        tensor_upload(p->w, value);
        free(value);
    }
}

static void put_param(Snapshot *s, const char *name, const Param *p, Tensor part) {
    const size_t n = tensor_count(part);
    size_t *place = host_alloc(n * sizeof *place);
    for (size_t e = 0; e < n; e++) place[e] = param_global_index(p, e);
    snapshot_put_indexed(s, name, p->rows, p->cols, part, place);
    free(place);
}

// Runs a collective, because a collective ends on all ranks at the same time.
void ranks_together(Comm *ranks) {
    double none = 0;
    comm_all_reduce_doubles(ranks, &none, 1);
}

// ---------------------------------------------------------------- three steps

static void train_step(Trial *t, TrialResult *r) {
    const size_t M = t->M;
    const bool recorded = t->tp && t->step + 1 == TRIAL_STEPS;
    if (recorded) ranks_together(t->tp);
    snapshot_label(r->seen, page_text(t->run, ", step %zu", t->step + 1)); // "Y, step 1"
    memory_reset_peaks();
    if (t->tp) comm_ledger_reset(t->tp);
    Arena buffers = arena(MEM_WORKSPACE);
    Arena kept = arena(MEM_ACTIVATIONS);
    t->saved = saved_new();
    t->saved.storage = t->storage;
    Tensor x = tensor_shaped(&kept, tensor_shape(M, range_size(t->x_cols), t->storage));
    tensor_copy(x, drawn(t, &buffers, X, t->K, t->x_cols));
    Tensor target = drawn(t, &buffers, TARGET, t->N, t->y_cols);
    Tensor y = tensor_shaped(&buffers, tensor_shape(M, target.cols, t->storage));
    Tensor dy = tensor_like(&buffers, y);
    Tensor dx = tensor_like(&buffers, x);
    for (size_t i = 0; i < t->n_params; i++)
        t->params[i].gradient_empty = true; // so backward overwrites the gradient

    if (recorded) picture_begin(t->run, MEM_ACTIVATIONS);
    record_enter(EVENT_FORWARD, NO_NUMBER);
    t->forward(t, y, x);
    drop(t, y);
    record_leave();
    op_scale(dy, target, -1);
    op_add(dy, y, dy); // Y - target; the loss is the sum of squares / (2 M)
    r->loss[t->step] = tensor_sum_of_squares(dy) / (double)(2 * M);
    op_scale(dy, dy, (real)(1.0 / (double)M));
    record_enter(EVENT_BACKWARD, NO_NUMBER);
    drop(t, dy);
    t->backward(t, dx, x, dy);
    record_leave();
    if (recorded) picture_end(t->run);

    snapshot_put(r->seen, "Y", M, t->N, y, 0, t->y_cols.lo);
    snapshot_put(r->seen, "grad X", M, t->K, dx, 0, t->x_cols.lo);
    for (size_t i = 0; i < t->n_params; i++) {
        Param *p = &t->params[i];
        put_param(r->seen, page_text(t->run, "grad %s", p->name), p, p->g);
        op_sgd(p->w, p->g, 1, (real)t->rate, 0);
    }
    r->parameters = memory_now(MEM_PARAMETERS);
    r->gradients = memory_now(MEM_GRADIENTS);
    r->activations = memory_peak(MEM_ACTIVATIONS); // the most since the step began
    if (t->tp) {
        r->calls = t->tp->ledger[COMM_ALL_REDUCE].calls;
        r->sent = comm_bytes_sent(t->tp);
    }
    saved_free(&t->saved);
    arena_free(&buffers);
    arena_free(&kept);
}

void trial_train(Trial *t, TrialResult *r) {
    Arena parameters = arena(MEM_PARAMETERS);
    Arena gradients = arena(MEM_GRADIENTS);
    while (t->n_params < TRIAL_PARAMS && t->params[t->n_params].cols) t->n_params++;
    parameters_new(t, &parameters, &gradients);
    for (t->step = 0; t->step < TRIAL_STEPS; t->step++) train_step(t, r);
    for (size_t i = 0; i < t->n_params; i++) {
        const Param *p = &t->params[i];
        put_param(r->weights, page_text(t->run, "updated %s", p->name), p, p->w);
    }
    arena_free(&parameters);
    arena_free(&gradients);
    ledger_pause();
    // A rank that has some columns of Y has computed the loss of these columns only.
    if (range_size(t->y_cols) != t->N) comm_all_reduce_doubles(t->tp, r->loss, TRIAL_STEPS);
    ledger_resume();
}

// ---------------------------------------------------------------- split and unsplit

TrialResult trial_compare(Run *run, const char *what, TrialTrain *train) {
    Comm *tp = run->world;
    TrialResult got = { .seen = snapshot_new(run), .weights = snapshot_new(run) };
    TrialResult want = { .seen = snapshot_new(run), .weights = snapshot_new(run) };
    train(run, tp, &got);
    ledger_pause();
    if (tp->rank == 0) train(run, NULL, &want);
    ledger_resume();
    check_numbers(run, what, "loss, 3 steps", got.loss, want.loss, TRIAL_STEPS, numbers_limit(run));
    check_close(run, what, got.seen, want.seen, rounding_limit(run));
    check_close(run, what, got.weights, want.weights, rounding_limit(run));
    snapshot_free(got.seen);
    snapshot_free(got.weights);
    snapshot_free(want.seen);
    snapshot_free(want.weights);
    return got;
}

// ---------------------------------------------------------------- costs

void trial_costs(Run *run, const char *ids, const char *names, const TrialCosts *c,
                 const TrialResult *r) {
    const size_t e = element_size(option_storage(run));
    check_costs(
        run, ids, names,
        (CostRow[]){
            { "parameters", "parameters", "bytes", BY_FORMULA(c->parameters * e), r->parameters },
            { "gradients", "gradients", "bytes", BY_FORMULA(c->parameters * sizeof(real)),
              r->gradients },
            { "kept", "kept for backward", "bytes", BY_FORMULA(c->kept * e), r->activations },
            { "calls", "all-reduces a step", "calls", BY_FORMULA(c->calls), r->calls },
            { "sent", "sent a step", "bytes", BY_FORMULA(c->sent), r->sent },
            { 0 } });
}

void trial_times(Run *run, const char *title, double slowest, double communication) {
    const Timing t = picture_timing(run);
    const double ranks = (double)run->world->size;
    if (clock_config()->simulated)
        check_costs(run, "%s", "%s",
                    (CostRow[]){ { "step", "step", "ps", BY_FORMULA(slowest + communication),
                                   (double)t.step },
                                 { "exposed", "exposed communication of all ranks", "ps",
                                   BY_FORMULA(ranks * communication), (double)t.exposed },
                                 { 0 } });
    picture_show(run, title, PICTURE_CHART);
    picture_summary(run, &t);
}

void trial_say_cost(Run *run, const char *more) {
    const char *time = "";
    if (clock_config()->simulated)
        time =
            page_text(run, ": %s of a step of %s on this link",
                      value_text(run, cost_value(run, "exposed") / (double)run->world->size, "ps"),
                      cost_text(run, "step"));
    say_cost(run, "%s all-reduces per step%s, all exposed%s.", cost_text(run, "calls"), more, time);
}

bool answer_alone(Run *run) {
    if (run->world->size > 1) return false;
    say_answer(run, "With one rank nothing is cut and nothing is sent: choose two or more ranks.");
    return true;
}
