// gradients.h: compares the gradients of a model's part, bit for bit, with those of the whole
// model.
#ifndef GRADIENTS_H
#define GRADIENTS_H
#include "common/model/model.h"

static inline bool same_gradients(Model *part, Model *whole) {
    bool same = true;
    for (size_t i = 0; i < part->n_units; i++) {
        Unit *u = &part->units[i], *w = u == model_wte_head(part)
                                            ? model_wte_head(whole)
                                            : model_unit(whole, u->params[0].name);
        same &= tensor_equal(u->g, w->g);
    }
    return same;
}
#endif
