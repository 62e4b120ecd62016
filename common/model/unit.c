// unit.c: describes parameters, gives them memory and initial values, and adds up gradients.
#include "common/model/unit.h"
#include <stdio.h>
#include <stdlib.h>
#include "common/tensor/ops.h"
#include "common/tensor/random.h"

enum { KEY_WEIGHTS = 1 }; // the first coordinate of a random number is its purpose

Param param_describe(const char *name, size_t rows, size_t cols, size_t blocks) {
    return param_describe_grouped(name, rows, cols, blocks, 1);
}
Param param_describe_grouped(const char *name, size_t rows, size_t cols, size_t blocks,
                             size_t ratio) {
    Param p = { .rows = rows ? rows : 1,
                .cols = cols,
                .vector = rows == 0,
                .blocks = blocks,
                .ratio = ratio,
                .decay = rows > 0,
                .in_norm = true };
    snprintf(p.name, sizeof p.name, "%s", name);
    p.own_rows = (Range){ 0, p.rows };
    p.own_cols = (Range){ 0, cols / param_narrow_blocks(&p) };
    return p;
}

size_t param_local_rows(const Param *p) { return range_size(p->own_rows); }
size_t param_local_cols(const Param *p) {
    // If p->cols is 0, the family has no such tensor.
    return p->cols ? param_narrow_blocks(p) * range_size(p->own_cols) : 0;
}
bool param_is_whole(const Param *p) {
    return param_local_rows(p) == p->rows && param_local_cols(p) == p->cols;
}

void param_add_gradient(Param *p, Tensor g) {
    if (p->gradient_empty) tensor_copy(p->g, g);
    else op_add(p->g, p->g, g);
    p->gradient_empty = false;
}

size_t param_global_index(const Param *p, size_t i) {
    size_t width = range_size(p->own_cols), local = param_local_cols(p);
    size_t row = i / local, col = i % local, whole = p->cols / param_narrow_blocks(p);
    size_t place = (p->own_rows.lo + row) * p->cols;
    // The condition is true if element i is in the first block.
    if (col < p->ratio * width) return place + p->ratio * p->own_cols.lo + col;
    return place + col / width * whole + p->own_cols.lo + col % width;
}

static Tensor param_view(const Param *p, Tensor unit) {
    if (!unit.data) return (Tensor){ 0 };
    size_t rows = param_local_rows(p), cols = param_local_cols(p);
    return tensor_reshape(tensor_flat_range(unit, p->offset, p->offset + rows * cols), rows, cols);
}

Tensor unit_new_weights(const Unit *u, Arena *a, size_t n) {
    return tensor_shaped(a, tensor_shape(1, n, u->w_element));
}
Tensor unit_new_gradients(const Unit *u, Arena *a, size_t n) {
    return tensor_shaped(a, tensor_shape(1, n, u->g_element));
}

void unit_attach_weights(Unit *u, Tensor w) {
    u->w = w;
    for (size_t i = 0; i < u->n_params; i++) u->params[i].w = param_view(&u->params[i], w);
    if (u->tied_use) unit_attach_weights(u->tied_use, w);
}

void unit_attach_gradients(Unit *u, Tensor g) {
    u->g = g;
    for (size_t i = 0; i < u->n_params; i++) u->params[i].g = param_view(&u->params[i], g);
}

void unit_zero_gradients(Unit *u) {
    u->own_gradient_empty = true;
    for (size_t i = 0; i < u->n_params; i++) u->params[i].gradient_empty = true;
}

void unit_partial_sums(Unit *u) {
    for (size_t i = 0, end; i < u->n_params; i = end) {
        Comm *ranks = u->params[i].partial;
        size_t columns = 0; // stays 0 if the family has none of these tensors
        for (end = i; end < u->n_params && u->params[end].partial == ranks; end++)
            columns += u->params[end].cols;
        size_t hi = end < u->n_params ? u->params[end].offset : u->size;
        if (ranks && columns)
            comm_all_reduce(ranks, tensor_flat_range(u->g, u->params[i].offset, hi));
    }
}

Tensor unit_own(const Unit *u, UnitTensor what) {
    static const char *const name[] = { "weights", "gradient", "m", "v", "master" };
    Tensor t = what == UNIT_WEIGHTS     ? u->own_w
               : what == UNIT_GRADIENTS ? u->own_g
               : what == UNIT_M         ? u->m
               : what == UNIT_V         ? u->v
                                        : u->master;
    if (tensor_count(t) != range_size(u->own))
        fault("the unit of %s has no %s: allocate them first (SGD has no v, and without momentum "
              "no m)",
              u->params[0].name, name[what]);
    return t;
}

void unit_fill(const Unit *u, Tensor t, Range range, UnitElement *element, void *context) {
    real *values = host_alloc(range_size(range) * sizeof(real));
    for (size_t k = 0; k < u->n_params; k++) {
        const Param *p = &u->params[k];
        size_t end = p->offset + param_local_rows(p) * param_local_cols(p);
        size_t lo = range.lo > p->offset ? range.lo : p->offset,
               hi = range.hi < end ? range.hi : end;
        for (size_t i = lo; i < hi; i++)
            values[i - range.lo] = element(context, p, param_global_index(p, i - p->offset));
    }
    tensor_upload(t, values);
    free(values);
}

static real initial_value(void *weights_key, const Param *p, size_t global_index) {
    uint64_t key = random_key(random_key(*(uint64_t *)weights_key, p->number), global_index);
    return (real)(p->mean + p->deviation * random_normal(key));
}
void unit_initialize(const Unit *u, Tensor w, Range range, uint64_t seed) {
    uint64_t key = random_key(seed, KEY_WEIGHTS);
    unit_fill(u, w, range, initial_value, &key);
}
