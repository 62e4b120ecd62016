// train_checks.c compares a training with the unsplit model, and the replicas with each other.
#include "08_3d/experiments/experiments.h"
#include <math.h>
#include <stdio.h>
#include "common/model/block.h"

// Returns whether this tensor is the original, which the norm counts. A replica holds some tensors
// more than once. Every slice has the norms, the positions and the biases of matrices that are cut
// by rows. The first and the last stage have wte. When sums are added in rank order, all copies
// must have the same bits. Under --reduce fast the order of the terms may depend on a tensor's
// place in its message, and copies have different places. Then copies within a replica are only
// close, and ranks with the same coordinates in different replicas have the same bits.
static bool original(const Unit *u, const Param *p) { return p->in_norm && !u->tied_copy; }
static bool whole(const Unit *u, const Param *p) {
    (void)u;
    return param_is_whole(p);
}
static bool table(const Unit *u, const Param *p) {
    (void)u;
    return p->number == 0;
}
Which train_originals(const Run *run) { return run->reduce == REDUCE_ORDERED ? NULL : original; }

// Puts the tensors of which this rank holds copy number `copy` into the snapshot. All layers of a
// 2.5D grid hold the same tensors. A 2D grid has one layer, so there are no copies. On a cube a
// vector's gradient is summed over q^2 ranks, and each of these ranks has a copy.
static void put_copy(const Trainer *t, size_t copy, Snapshot *s) {
    bool grid = tensor_is_grid(&t->config), holds = copy == (grid ? t->grid.layer : t->mesh.at.tp);
    if (t->config.tensor != TENSOR_3D) {
        if (holds) model_snapshot(t->model, s, UNIT_WEIGHTS, grid ? NULL : whole);
        return;
    }
    for (size_t i = 0; i < t->model->n_units; i++) {
        const Unit *u = &t->model->units[i];
        for (size_t k = 0; k < u->n_params; k++)
            if (u->params[k].partial && u->params[k].partial->rank == copy)
                param_snapshot(u, &u->params[k], s, UNIT_WEIGHTS);
    }
}
static size_t copies_of(const Trainer *t) {
    if (t->config.tensor == TENSOR_3D) return t->cube.same_col->size;
    return tensor_is_grid(&t->config) ? t->grid.depth : t->mesh.n.tp;
}

static void compare_copies(Run *run, const Trainer *t, double limit) {
    const Mesh *mesh = &t->mesh;
    const size_t copies = copies_of(t);
    const bool tied = mesh->tied && !t->config.model.untied; // two stages have wte
    if (copies == 1 && (mesh->n.pp == 1 || t->config.model.untied)) return;
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    for (size_t copy = 1; copy < copies; copy++) {
        char label[40];
        snprintf(label, sizeof label, " of slice %zu", copy);
        snapshot_label(got, label);
        snapshot_label(want, label);
        put_copy(t, copy, got);
        put_copy(t, 0, want);
    }
    snapshot_label(got, " of the last stage");
    snapshot_label(want, " of the last stage");
    if (tied) model_snapshot(t->model, mesh->at.pp ? got : want, UNIT_WEIGHTS, table);
    check_close(run, "copies within a replica are alike", got, want, limit);
    snapshot_free(got);
    snapshot_free(want);
}

// Returns the limit for the difference between the split and the unsplit model. The norm of a row
// of C features divides by the features' deviation. A small deviation magnifies rounding, at most 1
// / sqrt(1e-5) times. In double, rounding stays below the limit all the same. If dropout empties a
// row, the row has no deviation. The share of such rows is dropout^C. By chance all features of a
// row may be close to their mean. The share of rows that deviate k times less than usual is about
// k^-(C-1). A few hundred checks have about a million rows. The row that deviates least deviates k
// = 1e6^(1 / (C-1)) times less than usual. LIMIT_ROUNDING is ten times the usual error, so k
// matters if k is above 10, which means fewer than 7 features. Ranks of a grid or cube know only
// the sums of a row and of its squares. The rounding error of the difference of these sums grows
// with k^2, so k^2 matters if there are fewer than 13 features. PowerSGD makes columns orthonormal.
// A column that is short beside earlier columns is then mostly rounding, so PowerSGD needs the
// limit of 01.08.
//
// With 16-bit storage the limit is training_limit(), in the builds for fp32 and for fp64.
static double split_limit(const TrainerConfig *c) {
    if (c->model.storage != REALS) return training_limit(&(Training){ .model = c->model });
    const double most = 1 / sqrt(1e-5), C = (double)c->model.width;
    double emptied = pow(c->model.dropout, C) * most,
           k = C > 1 ? fmin(pow(1e6, 1 / (C - 1)), most) : 0;
    double near = (c->tensor == TENSOR_1D ? k : k * k) / 10;
    double magnified = sizeof(real) == 4 ? fmax(1, fmax(emptied, near)) : 1;
    double power =
        c->reduction == REDUCE_COMPRESSED && c->compression.method == POWER_SGD ? 100 : 1;
    return power * LIMIT_ROUNDING * magnified;
}

// Rejects models that --check cannot judge. The gradient that passes a norm has no part along the
// mean and no part along the row itself. With 2 columns only a difference of nearly equal terms
// remains. The difference is 1e-5 / variance times as large as the terms, so most of the difference
// is rounding.
void train_checks_require(Run *run, const TrainerConfig *c) {
    enum { LEAST_ON_A_GRID = 8 };
    if (!option_flag(run, "check")) return;
    REQUIRE(sizeof(real) == 8 || pow(c->model.dropout, (double)c->model.width) <= 0.6,
            "--check: --dropout %g empties most rows of --width %zu, and a norm makes rounding "
            "large in an empty row: choose a smaller --dropout, more --width, or PRECISION=fp64",
            c->model.dropout, c->model.width);
    REQUIRE(c->model.width != 2,
            "--check: the gradient that a norm of --width 2 lets through is mostly rounding: "
            "choose --width 3 or more");
    REQUIRE(c->tensor == TENSOR_1D || c->model.width >= LEAST_ON_A_GRID,
            "--check: with --tensor %s the norm of --width %zu adds too much rounding to judge: "
            "choose --width %d or more",
            option_text(run, "tensor"), c->model.width, LEAST_ON_A_GRID);
}

void train_check_first(Run *run, const Trainer *t, const Model *unsplit) {
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    model_snapshot(t->model, got, UNIT_GRADIENTS, train_originals(run));
    if (unsplit) model_snapshot(unsplit, want, UNIT_GRADIENTS, NULL);
    check_close(run, "3D = unsplit, first step's gradients", got, want, split_limit(&t->config));
    snapshot_free(got);
    snapshot_free(want);
}

// Returns whether ZeRO's shards cut the copies of a tensor at different elements. If a cube's side
// does not divide the sizes, the ranks with copies of a vector have units of different sizes.
static bool copies_cut_apart(const TrainerConfig *c) {
    if (c->tensor != TENSOR_3D || trainer_zero(c) == 0) return false;
    const size_t side = cube_side(c->mesh.tp);
    return c->model.width % side || c->model.heads % side || c->model.vocab % side ||
           block_hidden(&c->model) % side;
}

void train_checks(Run *run, const Trainer *t, const Model *unsplit, Range done, LossCurve got,
                  LossCurve want) {
    size_t steps = range_size(done), from = done.lo;
    double limit = split_limit(&t->config);
    const bool reals = t->config.model.storage == REALS;
    // training_compare_numbers() uses the same limits.
    const double of_losses = reals ? limit : limit / 8, of_norms = reals ? limit : limit / 4;
    bool exact = (reals && sizeof(real) == 8) || t->optimizer.kind == SGD,
         check = option_flag(run, "check");
    Snapshot *weights = check ? snapshot_new(run) : snapshot_new_prints(run),
             *wanted = snapshot_new(run);
    // Copies that are cut at different elements are compared as a whole, by compare_copies().
    const bool cut_apart = copies_cut_apart(&t->config), ordered = run->reduce == REDUCE_ORDERED;
    model_snapshot(t->model, weights, UNIT_WEIGHTS, cut_apart ? original : train_originals(run));
    if (unsplit) model_snapshot(unsplit, wanted, UNIT_WEIGHTS, NULL);
    // Weights are compared only under SGD or in double. With fp32 or 16 bits under AdamW, rounding
    // in a gradient that is nearly zero changes the weight by a whole learning rate. So single
    // weights drift apart. Losses and norms change little.
    if (check) {
        check_numbers(run, "3D = unsplit", "loss of every step", got.loss + from, want.loss + from,
                      steps, of_losses);
        check_numbers(run, "3D = unsplit", "gradient norm of every step", got.norm + from,
                      want.norm + from, steps, of_norms);
        if (exact)
            check_close(run, "3D = unsplit, weights after the last step", weights, wanted, limit);
    } else {
        // Also checks that no element is missing.
        check_replicas(run, "replicas hold the same weights", weights);
    }
    if ((!ordered || cut_apart) && t->mesh.model->size > 1)
        compare_copies(run, t, ordered ? 0 : !reals ? limit : exact ? LIMIT_ROUNDING : 1e-3);
    snapshot_free(weights);
    snapshot_free(wanted);
}
