// grids.c: measures and trains a model on a grid of ranks, and checks the costs of lessons 09 to
// 12.
#include "03_tensor_parallel/experiments/experiments.h"
#include <stdio.h>

enum { E = sizeof(real) };

// ---------------------------------------------------------------- measurements

void grid_measure_begin(const CommGrid *g, GridMeasured *r) {
    comm_ledger_reset(g->in_row);
    comm_ledger_reset(g->in_col);
    comm_ledger_reset(g->in_depth);
    r->took = clock_now();
    memory_reset_peaks();
}
void grid_measure_end(const CommGrid *g, GridMeasured *r) {
    r->traffic = grid_measured(g);
    r->took = clock_now() - r->took;
    r->panels = memory_peak(MEM_COMMUNICATION);
}
void grid_measure_state(GridMeasured *r, const Model *m) {
    for (size_t i = 0; i < m->n_units; i++)
        if (m->units[i].n_params == BLOCK_PARAMS) r->block = m->units[i].size * E;
    r->parameters = memory_now(MEM_PARAMETERS);
    r->gradients = memory_now(MEM_GRADIENTS);
    r->optimizer = memory_now(MEM_OPTIMIZER);
    r->activations = memory_peak(MEM_ACTIVATIONS);
}

// ---------------------------------------------------------------- a GPT, trained

static StepResult step(void *grid_training, Model *m, Optimizer *o, const Training *t,
                       const Batch *b) {
    GridTraining *x = grid_training;
    model_zero_gradients(m);
    grid_measure_begin(x->g, &x->measured);
    double loss = model_forward_backward(m, b) * b->token_weight; // this row's sequences
    model_partial_sums(m); // over depth; a single grid sends nothing
    grid_measure_end(x->g, &x->measured);
    model_fold_tied(m);          // adds both uses of wte; sends nothing
    if (x->g->col > 0) loss = 0; // a row's ranks have the same loss
    comm_all_reduce_doubles(x->world, &loss, 1);
    double norm = model_grad_norm(m, x->world);       // every element has one owner
    optimizer_step(o, m, clip_factor(norm, t->clip)); // of what this rank holds
    return (StepResult){ loss, norm };
}

void grid_train(void *grid_training, const Training *t, Trajectory *out) {
    GridTraining *x = grid_training;
    Model *m = model_describe(&t->model, model_layers(&t->model));
    x->cut(m, x->g); // cuts the parameters, replaces the layers
    model_allocate(m);
    training_run(out, m, t, 1, 0, step, x); // every rank gets all tokens
    grid_measure_state(&x->measured, m);
    model_free(m);
}

// ---------------------------------------------------------------- costs

static void axis_cost(Run *run, const char *axis, const char *id, const char *what,
                      const char *unit, double predicted, double measured) {
    char text[48], name[64];
    snprintf(text, sizeof text, "%s.%s", axis, id);
    snprintf(name, sizeof name, "%s: %s", axis, what);
    check_cost(run, text, name, unit, formula(predicted), NOT_PREDICTED, measured);
}
void grid_axis_costs(Run *run, const char *axis, const AxisTraffic *want, const AxisTraffic *got) {
    char what[48];
    for (size_t kind = 0; kind < COMM_KINDS; kind++) {
        if (want->calls[kind] == 0 && got->calls[kind] == 0) continue;
        snprintf(what, sizeof what, "%ss a step", comm_kind_name[kind]);
        axis_cost(run, axis, comm_kind_name[kind], what, "calls", want->calls[kind],
                  got->calls[kind]);
    }
    axis_cost(run, axis, "sent", "sent a step", "bytes", want->sent, got->sent);
    axis_cost(run, axis, "received", "received a step", "bytes", want->received, got->received);
}

void grid_memory_costs(Run *run, const GridPlace *at, size_t sequences, const GridMeasured *r) {
    const CutSizes whole = cut_sizes(at->c, 1, 0), z = grid_sizes(at);
    const size_t parameters = grid_elements_stage(at, &whole), block = grid_elements_block(at);
    const size_t kept = grid_sequences(at, sequences) * at->c->context * kept_stage(&z);
    check_costs(
        run, "%s", "%s",
        (CostRow[]){
            { "block", "parameters of a block", "bytes", BY_FORMULA(block * E), r->block },
            { "parameters", "parameters", "bytes", BY_FORMULA(parameters * E), r->parameters },
            { "gradients", "gradients (wte twice)", "bytes",
              BY_FORMULA((parameters + grid_elements_wte(at)) * E), r->gradients },
            { "adamw", "AdamW's m and v", "bytes", BY_FORMULA(2 * parameters * E), r->optimizer },
            { "kept", "activations, peak", "bytes", BY_FORMULA(kept * E), r->activations },
            { 0 } });
}

// ---------------------------------------------------------------- a cube

void cube_ledgers_reset(const Cube *c) {
    Comm *all[] = { c->grid.in_row, c->grid.in_col, c->grid.in_depth, c->same_col, c->same_row };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) comm_ledger_reset(all[i]);
}
void cube_add_sent(const Cube *c, double bytes[CUBE_AXES]) {
    Comm *axis[CUBE_AXES] = { c->grid.in_row, c->grid.in_col, c->grid.in_depth };
    for (size_t i = 0; i < CUBE_AXES; i++) bytes[i] += (double)comm_bytes_sent(axis[i]);
}

RankShare cube_rank_share(const ModelConfig *c, size_t sequences, size_t q, size_t rank,
                          bool again) {
    const CubePlace at = cube_place_of(c, q, rank, again);
    const CutSizes z = cut_sizes(c, 1, 0);
    const CubeTraffic s = cube_stage(&at, &z, sequences, false), sums = cube_plane_sums(&at, &z);
    return (RankShare){ (double)cube_elements_stage(&at, &z),
                        (double)cube_kept_stage(&at, &z, sequences), cube_bytes(&s) + sums.bytes[0],
                        3 * cube_work(&at, &z, sequences).time + s.time + sums.time };
}
