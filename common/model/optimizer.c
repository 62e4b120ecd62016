// optimizer.c: applies the update rules, element by element.
#include "common/model/optimizer.h"
#include <math.h>
#include "common/comm/record.h"

Optimizer sgd(double lr) { return (Optimizer){ .kind = SGD, .lr = lr }; }
Optimizer adamw(double lr) {
    return (Optimizer){ .kind = ADAMW, .lr = lr, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-5 };
}

void optimizer_allocate(const Optimizer *o, Model *m) {
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to || u->w_element == REALS || o->no_master) continue;
        u->master = tensor_new(&m->optimizer, 1, range_size(u->own));
        u->master_made = false;
    }
    if (o->kind == SGD && o->momentum == 0) return;
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;
        u->m = tensor_new(&m->optimizer, 1, range_size(u->own));
        tensor_fill(u->m, 0);
        if (o->kind == SGD) continue;
        u->v = tensor_new(&m->optimizer, 1, range_size(u->own));
        tensor_fill(u->v, 0);
    }
}

// Updates elements [lo, hi) of the unit, which belong to one parameter. The rule treats each
// element alone, so the result does not depend on where a unit is cut.
static void update(const Optimizer *o, Unit *u, size_t lo, size_t hi, bool decay, double scale) {
    lo -= u->own.lo;
    hi -= u->own.lo;
    Tensor w = tensor_flat_range(u->master.data ? u->master : u->own_w, lo, hi);
    Tensor g = tensor_flat_range(u->own_g, lo, hi);
    double weight_decay = decay ? o->weight_decay : 0;
    if (o->kind == SGD && o->momentum > 0) {
        Tensor m = tensor_flat_range(u->m, lo, hi);
        op_scale(m, m, (real)o->momentum);
        op_sgd(m, g, (real)scale, -1, 0);        // m += scale g
        op_sgd(m, w, (real)weight_decay, -1, 0); // m += weight_decay w
        op_sgd(w, m, 1, (real)o->lr, 0);
        return;
    }
    if (o->kind == SGD) {
        op_sgd(w, g, (real)scale, (real)o->lr, (real)weight_decay);
        return;
    }
    AdamW a = { .lr = (real)o->lr,
                .beta1 = (real)o->beta1,
                .beta2 = (real)o->beta2,
                .epsilon = (real)o->epsilon,
                .weight_decay = (real)weight_decay,
                .correction1 = (real)(1 - pow(o->beta1, (double)o->step)),
                .correction2 = (real)(1 - pow(o->beta2, (double)o->step)) };
    op_adamw(w, g, tensor_flat_range(u->m, lo, hi), tensor_flat_range(u->v, lo, hi), (real)scale,
             a);
}

void optimizer_step_unit(const Optimizer *o, Unit *u, double scale) {
    if (u->w_element != REALS && !u->master.data && !o->no_master)
        fault("the unit of %s is stored in %s and has no master: call optimizer_allocate first",
              u->params[0].name, element_name(u->w_element));
    if (u->master.data && !u->master_made) tensor_copy(u->master, u->own_w);
    u->master_made = true;
    for (size_t k = 0; k < u->n_params; k++) {
        Param *p = &u->params[k];
        size_t lo = p->offset, hi = lo + param_local_rows(p) * param_local_cols(p);
        if (lo < u->own.lo) lo = u->own.lo;
        if (hi > u->own.hi) hi = u->own.hi;
        if (lo < hi) update(o, u, lo, hi, p->decay, scale);
    }
    if (u->master.data) tensor_copy(u->own_w, u->master); // rounds each master to its weight
}

void optimizer_step(Optimizer *o, Model *m, double scale) {
    record_enter(EVENT_UPDATE, NO_NUMBER);
    o->step++;
    for (size_t i = 0; i < m->n_units; i++)
        // a tied use shares the weights of the embedding's unit
        if (!m->units[i].tied_to) optimizer_step_unit(o, &m->units[i], scale);
    record_leave();
}
