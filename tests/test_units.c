// test_units.c: tests over which ranks a unit's gradient is summed. Six ranks are two rows of
// three. A parameter may be partial over a row, a unit may have its own replicas, and the shards of
// ZeRO are gathered again. If rank 0 cannot read a text, every rank must get the reason and
// continue.
// ranks: 6
// level: core
// question: Is each gradient summed over the ranks that its unit names, once, and found whole again?
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/zero_step.h"
#include "judge/frame/training.h"

enum {
    ROW = 3,
    ROWS = 2,
    SHARDS = ROW * ROWS,
    BATCH = 17,
    MICRO = 2,
    STEPS = 3
};                     // rank = column + ROW * row
enum { PREFETCH = 4 }; // a fifth way, after ZeRO's stages 0 to 3
static const char *const stage_name[] = { "data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3",
                                          "prefetch" };
static const ModelConfig sizes = {
    .layers = 2, .width = 10, .heads = 2, .context = 7, .vocab = 23, .dropout = 0.1
};
static const double rate = 0.1;

typedef struct {
    Run *run;
    Comm *world, *row, *column;
    const Training *t;
} Test;

// ---- the model under a stage of ZeRO ----

static void allocate(Model *m, Comm *dp, size_t stage) {
    if (stage == PREFETCH) prefetch_allocate(m, dp, true);
    else zero_allocate(m, dp, stage);
}
static void gradients(Test *t, Model *m, size_t stage, size_t step) {
    size_t zero = stage == PREFETCH ? 3 : stage;
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = training_batches(t->t, &tokens, step, SHARDS, t->world->rank);
    zero_begin(m, zero);
    for (size_t k = 0; k < t->t->micro_batches; k++) model_forward_backward(m, &batch[k]);
    if (stage == PREFETCH) prefetch_finish(m);
    model_partial_sums(m);
    model_fold_tied(m);
    zero_reduce(m, zero);
    free(batch);
    arena_free(&tokens);
}
static void release(Model *m, size_t stage) {
    if (stage == PREFETCH) prefetch_free(m);
    model_free(m);
}

// ---- the expected sums, computed with loops on rank 0 ----

// Returns the gradient that one shard of the batch alone leaves in a whole model.
static real *of_shard(const Test *t, Model *m, size_t step, size_t shard) {
    real *g = host_alloc(m->size * sizeof *g);
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = training_batches(t->t, &tokens, step, SHARDS, shard);
    model_zero_gradients(m);
    for (size_t k = 0; k < t->t->micro_batches; k++) model_forward_backward(m, &batch[k]);
    model_fold_tied(m);
    tensor_download(g, m->g);
    free(batch);
    arena_free(&tokens);
    return g;
}

// A Sum describes the shards that a parameter's sum adds. In each of `rows` rows of ranks the sum
// adds `size` neighbouring shards. `first` is the number of the first shard in the first of these
// rows.
typedef struct {
    size_t first, size, rows;
} Sum;
// A Case marks parameters of a described model. The parameters of `by_place` then have a different
// sum in each place, a row or a column of ranks. All other parameters have one sum on all ranks.
typedef struct {
    const char *name, *label;
    size_t places;
    void (*mark)(const Test *t, Model *m);
    Which by_place, everywhere;
    Sum (*sum)(size_t place); // the sum of the parameters that differ by place
} Case;

static void set_label(const Case *c, size_t place, Snapshot *g, Snapshot *w) {
    char text[40] = "";
    if (place < c->places) snprintf(text, sizeof text, c->label, place);
    snapshot_label(g, text);
    snapshot_label(w, text);
}

// Puts the expected gradients into g, and the expected weights after a step of SGD into w.
static void put_expected(const Test *t, const Case *c, Snapshot *g, Snapshot *w) {
    Model *m = model_describe(&t->t->model, model_layers(&t->t->model));
    Arena scratch = arena(MEM_REFERENCE);
    real *shard[SHARDS];
    model_allocate(m);
    for (size_t i = 0; i < SHARDS; i++) shard[i] = of_shard(t, m, 0, i);
    // The last turn handles the parameters with one sum on all ranks.
    for (size_t place = 0; place <= c->places; place++) {
        set_label(c, place, g, w);
        for (size_t i = 0, at = 0; i < m->n_units && !m->units[i].tied_to; at += m->units[i++].size)
            for (size_t k = 0; k < m->units[i].n_params; k++) {
                const Param *p = &m->units[i].params[k];
                if (c->by_place(&m->units[i], p) != (place < c->places)) continue;
                Sum sum = place < c->places ? c->sum(place) : (Sum){ 0, ROW, ROWS };
                size_t n = tensor_count(p->w), first = at + p->offset;
                real *values = host_alloc(n * sizeof *values);
                for (size_t s = 0; s < sum.size * sum.rows; s++)
                    for (size_t e = 0; e < n; e++)
                        values[e] +=
                            shard[sum.first + s % sum.size + s / sum.size * ROW][first + e];
                Tensor part = tensor_new(&scratch, p->rows, p->cols);
                tensor_upload(part, values);
                snapshot_put_flat(g, p->name, p->rows, p->cols, part, 0);
                op_scale(part, part, (real)-rate);
                op_add(part, p->w, part);
                snapshot_put_flat(w, p->name, p->rows, p->cols, part, 0);
                free(values);
            }
    }
    for (size_t i = 0; i < SHARDS; i++) free(shard[i]);
    arena_free(&scratch);
    model_free(m);
}

static void compare(Test *t, const Case *c, Comm *dp, size_t place) {
    for (size_t stage = 0; stage <= PREFETCH; stage++) {
        char line[96];
        Snapshot *g = snapshot_new(t->run), *w = snapshot_new(t->run);
        Snapshot *want_g = snapshot_new(t->run), *want_w = snapshot_new(t->run);
        Model *m = model_describe(&t->t->model, model_layers(&t->t->model));
        Optimizer o = sgd(rate);
        c->mark(t, m);
        allocate(m, dp, stage);
        gradients(t, m, stage, 0);
        set_label(c, place, g, w);
        model_snapshot(m, g, UNIT_GRADIENTS, c->by_place);
        optimizer_step(&o, m, 1);
        zero_end(m, stage == PREFETCH ? 3 : stage);
        model_snapshot(m, w, UNIT_WEIGHTS, c->by_place);
        set_label(c, c->places, g, w);
        model_snapshot(m, g, UNIT_GRADIENTS, c->everywhere);
        model_snapshot(m, w, UNIT_WEIGHTS, c->everywhere);
        release(m, stage);
        if (t->run->is_root) put_expected(t, c, want_g, want_w);
        snprintf(line, sizeof line, "%s, %s: gradients", c->name, stage_name[stage]);
        check_close(t->run, line, g, want_g, LIMIT_ROUNDING);
        snprintf(line, sizeof line, "%s, %s: weights", c->name, stage_name[stage]);
        check_close(t->run, line, w, want_w, LIMIT_ROUNDING);
        snapshot_free(g);
        snapshot_free(w);
        snapshot_free(want_g);
        snapshot_free(want_w);
    }
}

// ---- partial gradients: the ranks of a row split the tokens, as in sequence parallelism ----

// Returns whether this parameter is partial. The vectors (norms and biases) and both uses of the
// table are partial. All other gradients are left as they are, so each column of ranks has its own
// sum.
static bool partial(const Unit *u, const Param *p) {
    (void)u;
    return p->vector || p->number == 0;
}
static bool not_partial(const Unit *u, const Param *p) { return !partial(u, p); }
static void mark_partial(const Test *t, Model *m) {
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params; k++)
            if (partial(&m->units[i], &m->units[i].params[k]))
                m->units[i].params[k].partial = t->row;
}
static Sum of_column(size_t column) { return (Sum){ column, 1, ROWS }; }

// ---- replicas: one block is replicated within a row only, as experts are ----
// All other units are replicated on all ranks.

static bool expert(const Unit *u, const Param *p) {
    (void)u;
    return strncmp(p->name, "h.1.", 4) == 0;
}
static bool not_expert(const Unit *u, const Param *p) { return !expert(u, p); }
static void mark_expert(const Test *t, Model *m) {
    model_unit(m, "h.1.ln_1.weight")->replicas = t->row;
}
static Sum of_row(size_t row) { return (Sum){ ROW * row, ROW, 1 }; }

// ---- snapshots of weights, m and v are whole, whichever rank has which part ----

static void put_state(const Model *m, Snapshot *s[3]) {
    static const UnitTensor what[] = { UNIT_WEIGHTS, UNIT_M, UNIT_V };
    for (size_t i = 0; i < 3; i++) model_snapshot(m, s[i], what[i], NULL);
}
static void unsplit_state(const Test *t, Snapshot *s[3]) {
    Model *m = model_describe(&t->t->model, model_layers(&t->t->model));
    Optimizer o = adamw(0.01);
    model_allocate(m);
    optimizer_allocate(&o, m);
    for (size_t step = 0; step < STEPS; step++) {
        real *sum = of_shard(t, m, step, 0);
        for (size_t i = 1; i < SHARDS; i++) {
            real *g = of_shard(t, m, step, i);
            for (size_t e = 0; e < m->size; e++) sum[e] += g[e]; // in rank order, as the ranks add
            free(g);
        }
        tensor_upload(m->g, sum);
        free(sum);
        optimizer_step(&o, m, 1);
    }
    put_state(m, s);
    model_free(m);
}
static void compare_state(Test *t) {
    static const char *const name[] = { "weights", "m", "v" };
    for (size_t stage = 0; stage <= PREFETCH; stage++) {
        Snapshot *got[3], *want[3];
        for (size_t i = 0; i < 3; i++)
            got[i] = snapshot_new(t->run), want[i] = snapshot_new(t->run);
        Model *m = model_describe(&t->t->model, model_layers(&t->t->model));
        Optimizer o = adamw(0.01);
        allocate(m, t->world, stage);
        optimizer_allocate(&o, m);
        for (size_t step = 0; step < STEPS; step++) {
            gradients(t, m, stage, step);
            optimizer_step(&o, m, 1);
            zero_end(m, stage == PREFETCH ? 3 : stage);
        }
        put_state(m, got);
        release(m, stage);
        if (t->run->is_root) unsplit_state(t, want);
        for (size_t i = 0; i < 3; i++) {
            char line[96];
            snprintf(line, sizeof line, "AdamW, %s = unsplit: %s", stage_name[stage], name[i]);
            check_equal(t->run, line, got[i], want[i]);
            snapshot_free(got[i]);
            snapshot_free(want[i]);
        }
    }
}

// ---- forwards without a backward ----
// After a step of SGD every stage of ZeRO must have the loss of data parallelism.

static double loss_after_a_step(Test *t, size_t stage) {
    size_t zero = stage == PREFETCH ? 3 : stage;
    Model *m = model_describe(&t->t->model, model_layers(&t->t->model));
    Optimizer o = sgd(rate);
    allocate(m, t->world, stage);
    gradients(t, m, stage, 0);
    optimizer_step(&o, m, 1);
    zero_end(m, zero);
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = training_batches(t->t, &tokens, 1, SHARDS, t->world->rank);
    double loss = 0;
    zero_evaluation_begin(m, zero);
    for (size_t k = 0; k < t->t->micro_batches; k++) {
        batch[k].training = false;
        loss += model_loss(m, &batch[k]) * batch[k].token_weight;
    }
    zero_evaluation_end(m, zero);
    comm_all_reduce_doubles(t->world, &loss, 1);
    free(batch);
    arena_free(&tokens);
    release(m, stage);
    return loss;
}
static void compare_evaluation(Test *t) {
    double want = loss_after_a_step(t, 0);
    for (size_t stage = 1; stage <= PREFETCH; stage++) {
        char line[96];
        double got = loss_after_a_step(t, stage);
        snprintf(line, sizeof line, "evaluation, %s = data parallel", stage_name[stage]);
        check_numbers(t->run, line, "loss after a step", &got, &want, 1, LIMIT_ROUNDING);
    }
}

// ---- stage 3: how long the tied embedding is whole ----
// wte has whole weights until zero3_drop_wte, and whole gradients until zero2_reduce.

static void keep_wte(Test *t) {
    Model *m = model_describe(&t->t->model, model_layers(&t->t->model));
    zero_allocate(m, t->world, 3);
    zero3_begin(m);
    const Unit *wte = &m->units[0];
    size_t weights = wte->size * sizeof(real), gradients = 2 * weights;
    bool begun = memory_now(MEM_COMMUNICATION) == weights + gradients;
    zero2_reduce(m);
    bool held = memory_now(MEM_COMMUNICATION) == weights &&
                arena_holds(&m->gathered, wte->w.data) &&
                tensor_equal(tensor_flat_range(wte->w, wte->own.lo, wte->own.hi), wte->own_w);
    zero3_drop_wte(m);
    bool dropped = memory_now(MEM_COMMUNICATION) == 0 && !wte->w.data;
    check_true(t->run, "ZeRO-3", "wte's weights are held until they are dropped",
               begun && held && dropped);
    model_free(m);
}

static bool cannot_open(const char *path) {
    Data d;
    char why[DATA_WHY];
    return !data_open(&d, path, NULL, 0, 8, 1, why) && strstr(why, "cannot read the text") &&
           !d.files;
}

static void units(Run *run) {
    Comm *world = run->world;
    REQUIRE(world->size == SHARDS, "these are %d rows of %d ranks: start %d", ROWS, ROW, SHARDS);
    size_t row = world->rank / ROW, column = world->rank % ROW;
    Training training = { .model = sizes,
                          .data = data_synthetic(sizes.vocab, sizes.context, run->seed),
                          .sequences = BATCH,
                          .micro_batches = MICRO };
    Test t = { run, world, comm_split(world, row, column, "row"),
               comm_split(world, column, row, "column"), &training };
    training.model.seed = run->seed;
    const Case sequences = { "partial over a row", " of column %zu", ROW,      mark_partial,
                             not_partial,          partial,          of_column };
    const Case experts = { "replicas of a row", " of row %zu", ROWS, mark_expert, expert,
                           not_expert,          of_row };
    compare(&t, &sequences, t.column, column);
    compare(&t, &experts, world, row);
    compare_evaluation(&t);
    training.micro_batches = 1;
    compare_state(&t);
    keep_wte(&t);
    data_free(&training.data);
    check_true(run, "no text", "every rank gets the reason, and continues",
               cannot_open("/no/such/text") && cannot_open("/"));
    comm_free(t.row);
    comm_free(t.column);
}

EXPERIMENT(units, NULL);
