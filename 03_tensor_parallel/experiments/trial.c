// trial.c: trains a few layers alone, split or unsplit, and compares the two trainings.
#include "03_tensor_parallel/experiments/experiments.h"
#include <stdio.h>
#include "common/comm/record.h"
#include "common/tensor/random.h"
#include "judge/draw/picture.h"

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

static uint64_t key_of(const Trial *t, TrialData what, size_t i) {
    if (t->key) return t->key(t->run->seed, what, i);
    return random_key(random_key(t->run->seed, t->keys[what]), i);
}
// The mask of an element depends on the step, the row and the column in the whole layer, never on a
// rank. So a cut Y has the mask of its own columns, and a whole Y the same mask on every rank.
static void drop(const Trial *t, Tensor y) {
    const uint64_t mask = random_key(random_key(t->run->seed, t->keys[TRIAL_MASK]), t->step);
    op_dropout(y, y, (Dropout){ .key = mask, .p = t->dropout, .col0 = t->y_cols.lo });
}

// The weights, inputs or targets of the whole layer.
Tensor trial_drawn(const Trial *t, Arena *a, TrialData what, size_t i) {
    const bool weights = what == TRIAL_WEIGHTS;
    size_t rows = weights ? t->params[i].rows : t->M;
    size_t cols = weights ? t->params[i].cols : what == TRIAL_X ? t->K : t->N;
    Tensor whole = tensor_new(a, rows, cols);
    tensor_randomize(whole, key_of(t, what, i), weights ? t->deviation : 1);
    return whole;
}

// The columns of a block that this rank has, in its part of the parameter. *first: the first of
// them in the whole parameter. With grouped heads the first block is p->ratio times as wide.
static Range block_columns(const Param *p, size_t block, size_t *first) {
    const size_t width = range_size(p->my_cols);
    const size_t times = block ? 1 : p->ratio;
    const size_t before = block ? p->ratio + block - 1 : 0; // narrow blocks before this one
    *first = before * (p->cols / param_narrow_blocks(p)) + times * p->my_cols.lo;
    return (Range){ before * width, (before + times) * width };
}

// Each parameter is drawn whole. This rank takes its rows and, in each block, its columns.
static void parameters_new(Trial *t, Arena *parameters, Arena *gradients) {
    for (size_t i = 0; i < TRIAL_PARAMS && t->params[i].cols; i++) {
        Param *p = &t->params[i];
        p->w = tensor_shaped(parameters,
                             tensor_shape(param_local_rows(p), param_local_cols(p), t->storage));
        p->g = tensor_new(gradients, param_local_rows(p), param_local_cols(p));
        ledger_pause(); // not counted: the whole tensor is freed at once
        Arena scratch = arena(MEM_REFERENCE);
        Tensor whole = trial_drawn(t, &scratch, TRIAL_WEIGHTS, i);
        Tensor rows = tensor_row_range(whole, p->my_rows.lo, p->my_rows.hi);
        for (size_t block = 0; block < p->blocks; block++) {
            size_t first;
            Range own = block_columns(p, block, &first);
            tensor_copy(tensor_col_range(p->w, own.lo, own.hi),
                        tensor_col_range(rows, first, first + range_size(own)));
        }
        arena_free(&scratch);
        ledger_resume();
    }
}

static void put_param(Snapshot *s, const char *name, const Param *p, Tensor t) {
    for (size_t block = 0; block < p->blocks; block++) {
        size_t first;
        Range own = block_columns(p, block, &first);
        Tensor columns = tensor_col_range(t, own.lo, own.hi);
        snapshot_put(s, name, p->rows, p->cols, columns, p->my_rows.lo, first);
    }
}

void trial_put(Snapshot *s, const char *name, size_t step, size_t rows, size_t cols, Tensor part,
               size_t row0, size_t col0) {
    char label[40];
    snprintf(label, sizeof label, "%s, step %zu", name, step + 1);
    snapshot_put(s, label, rows, cols, part, row0, col0);
}

// A collective ends on all ranks at the same time.
void ranks_together(Comm *ranks) {
    double none = 0;
    comm_all_reduce_doubles(ranks, &none, 1);
}

void trial_step_begin(Comm *tp) {
    memory_reset_peaks();
    if (tp) comm_ledger_reset(tp);
}
void trial_step_end(Comm *tp, TrialResult *r) {
    r->parameters = memory_now(MEM_PARAMETERS);
    r->gradients = memory_now(MEM_GRADIENTS);
    r->optimizer = memory_now(MEM_OPTIMIZER);
    r->activations = memory_peak(MEM_ACTIVATIONS); // the most since the step began
    if (!tp) return;
    r->calls = tp->ledger[COMM_ALL_REDUCE].calls;
    r->sent = comm_bytes_sent(tp);
}

// ---------------------------------------------------------------- three steps

static size_t parameter_count(const Trial *t) {
    size_t n = 0;
    while (n < TRIAL_PARAMS && t->params[n].cols) n++;
    return n;
}

static void run_forward(Trial *t, Tensor y, Tensor x, Saved *s) {
    if (t->tp) record_enter(EVENT_FORWARD, NO_NUMBER); // for the picture
    t->forward(t, y, x, s);
    drop(t, y);
    if (t->tp) record_leave();
}
static void run_backward(Trial *t, Tensor dx, Tensor x, Tensor dy, Saved *s) {
    if (t->tp) record_enter(EVENT_BACKWARD, NO_NUMBER);
    drop(t, dy);
    t->backward(t, dx, x, dy, s);
    if (t->tp) record_leave();
}

static void train_step(Trial *t, TrialResult *r) {
    const size_t M = t->M;
    const size_t n = parameter_count(t);
    const bool recorded = t->tp && t->step + 1 == TRIAL_STEPS;
    char name[40];
    if (recorded) ranks_together(t->tp);
    trial_step_begin(t->tp);
    Arena buffers = arena(MEM_WORKSPACE);
    Arena kept = arena(MEM_ACTIVATIONS);
    Saved saved = saved_new();
    saved.storage = t->storage;
    Tensor whole = trial_drawn(t, &buffers, TRIAL_X, t->step);
    Tensor target = trial_drawn(t, &buffers, TRIAL_TARGET, t->step);
    Tensor x = tensor_shaped(&kept, tensor_shape(M, range_size(t->x_cols), t->storage));
    tensor_copy(x, tensor_col_range(whole, t->x_cols.lo, t->x_cols.hi));
    target = tensor_col_range(target, t->y_cols.lo, t->y_cols.hi);
    Tensor y = tensor_shaped(&buffers, tensor_shape(M, target.cols, t->storage));
    Tensor dy = tensor_like(&buffers, y);
    Tensor dx = tensor_like(&buffers, x);
    for (size_t i = 0; i < n; i++) t->params[i].gradient_empty = true; // so backward overwrites it

    if (recorded) picture_begin(t->run, MEM_ACTIVATIONS);
    run_forward(t, y, x, &saved);
    op_scale(dy, target, -1);
    op_add(dy, y, dy); // Y - target; the loss is half its square, per row
    r->loss[t->step] = tensor_sum_of_squares(dy) / (double)(2 * M);
    op_scale(dy, dy, (real)(1.0 / (double)M));
    run_backward(t, dx, x, dy, &saved);
    if (recorded) picture_end(t->run);

    trial_put(r->seen, "Y", t->step, M, t->N, y, 0, t->y_cols.lo);
    trial_put(r->seen, "grad X", t->step, M, t->K, dx, 0, t->x_cols.lo);
    for (size_t i = 0; i < n; i++) {
        Param *p = &t->params[i];
        snprintf(name, sizeof name, "grad %.20s, step %zu", p->name, t->step + 1);
        put_param(r->seen, name, p, p->g);
        op_sgd(p->w, p->g, 1, (real)t->rate, 0);
    }
    trial_step_end(t->tp, r);
    saved_free(&saved);
    arena_free(&buffers);
    arena_free(&kept);
}

void trial_train(Trial *t, TrialResult *r) {
    Arena parameters = arena(MEM_PARAMETERS);
    Arena gradients = arena(MEM_GRADIENTS);
    char name[40];
    parameters_new(t, &parameters, &gradients);
    for (t->step = 0; t->step < TRIAL_STEPS; t->step++) train_step(t, r);
    for (size_t i = 0; i < parameter_count(t); i++) {
        snprintf(name, sizeof name, t->long_names ? "updated %.20s, step 3" : "%.20s",
                 t->params[i].name);
        put_param(r->weights, name, &t->params[i], t->params[i].w);
    }
    arena_free(&parameters);
    arena_free(&gradients);
    ledger_pause();
    // A rank that has some columns of Y has computed their part of the loss only.
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
    got.seen = NULL;
    got.weights = NULL;
    return got;
}

// ---------------------------------------------------------------- costs

void trial_costs(Run *run, const char *ids, const char *names, const TrialCosts *c,
                 const TrialResult *r) {
    const size_t e = element_size(option_storage(run));
    check_costs(run, ids, names,
                (CostRow[]){
                    { "parameters", "parameters", "bytes", BY_FORMULA(c->parameters * e),
                      r->parameters },
                    { "gradients", "gradients", "bytes", BY_FORMULA(c->gradients * sizeof(real)),
                      r->gradients },
                    { "optimizer", "SGD's state", "bytes", BY_FORMULA(0), r->optimizer },
                    { "kept", "kept for backward", "bytes",
                      BY_FORMULA((c->kept - c->kept_reals) * e + c->kept_reals * sizeof(real)),
                      r->activations },
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

void trial_say_cost(Run *run, const char *calls) {
    if (!clock_config()->simulated) {
        say_cost(run, "%s all-reduces per step, all exposed.", cost_text(run, calls));
        return;
    }
    say_cost(run, "%s all-reduces per step, all exposed: %s of a step of %s on this link.",
             cost_text(run, calls),
             value_text(run, cost_value(run, "exposed") / (double)run->world->size, "ps"),
             cost_text(run, "step"));
}

bool answer_alone(Run *run) {
    if (run->world->size > 1) return false;
    say_answer(run, "With one rank nothing is cut and nothing is sent: choose two or more ranks.");
    return true;
}
