// unit.h: parameters, and the units in which they lie. A parameter says which part of the whole
// tensor this rank holds; a unit is some parameters one after another.
#ifndef UNIT_H
#define UNIT_H
#include "common/comm/comm.h"

typedef struct {
    char name[40];          // Hugging Face's name, "h.0.attn.c_attn.weight"
    size_t number;          // its place in the whole model's order of tensors
    size_t rows, cols;      // of the whole tensor
    bool vector;            // a bias or a gain: rows is 1, its shape is [cols]
    size_t blocks;          // columns are cut in each of `blocks` equal blocks (q | k | v: 3)
    Range my_rows, my_cols; // the rectangle that this rank holds; my_cols within each block
    double mean, deviation; // of its initial values
    bool decay;             // weight decay applies: matrices, not biases and gains
    bool in_norm;           // my elements enter the gradient norm (false: another rank's do)
    // what backward leaves in g is my part of a sum over these ranks, as each has seen some of the
    // rows only; NULL: it is the sum
    Comm *partial;
    size_t offset;          // of its first local element in its unit
    Tensor w, g;            // my part [my_rows, blocks * my_cols]; data NULL while absent
    bool gradient_empty;    // nothing was added to g since it was zeroed
    struct Saved *deferred; // where contributions to g wait for backward of weights; or NULL
} Param;
// A whole tensor [rows, cols] as every parameter begins; rows 0: a vector [cols]. Number and
// initial values are the model's to say.
Param param_describe(const char *name, size_t rows, size_t cols, size_t blocks);
size_t param_local_rows(const Param *p);
size_t param_local_cols(const Param *p); // of all blocks
bool param_is_whole(const Param *p);     // this rank holds all of it
// p->g += g: a finished contribution of the shape of my part. The first one after zeroing
// overwrites.
void param_add_gradient(Param *p, Tensor g);
// Where local element i stands in the flattened whole tensor. Initial values, comparison and export
// use this one map.
size_t param_global_index(const Param *p, size_t i);

// A unit is what is gathered, reduced and sharded as one piece: an embedding table, a block, the
// last norm.
typedef struct Unit {
    Param *params;
    size_t n_params;
    size_t size;           // local elements
    Tensor w, g;           // [1, size], parameters one after another; data NULL while absent
    struct Unit *tied_use; // its second use on the same rank: same weights, own gradient
    struct Unit *tied_to;  // the reverse of tied_use
    bool tied_copy;        // a second copy on another pipeline stage: the norm skips it
    // who has the same unit: its gradient is reduced over them, and its state sharded; NULL until
    // model_replicas()
    Comm *replicas;
    Range own;               // whose final gradient, update and state are mine; all without ZeRO
    Tensor own_w, own_g;     // [1, own]: views of w and g, or buffers of their own
    bool own_gradient_empty; // nothing was added to an own_g of its own since it was zeroed
    Tensor m, v;             // [1, own]: optimizer state, absent under SGD
} Unit;
// w [1, size], or {0}: sets the views, its tied use's, too
void unit_attach_weights(Unit *u, Tensor w);
void unit_attach_gradients(Unit *u, Tensor g);
void unit_zero_gradients(Unit *u); // marks every gradient fresh: the first contribution overwrites
// After backward, before anything else is done with gradients: those that are partial become sums.
// Collective over Param.partial; parameters that lie side by side and have the same ranks share one
// all-reduce.
void unit_partial_sums(Unit *u);

// What a unit has of each of its elements: the weights, and, of what this rank owns, the final
// gradient and the state.
typedef enum { UNIT_WEIGHTS, UNIT_GRADIENTS, UNIT_M, UNIT_V } UnitTensor;
// [1, own]; fault() where there is none, as m and v under SGD
Tensor unit_own(const Unit *u, UnitTensor what);
// Fills t [1, range], which has these elements of the unit, with values that are asked for by
// parameter and place in the flattened whole tensor. Initial values, loading and migration are this
// one call.
typedef real UnitElement(void *context, const Param *p, size_t global_index);
void unit_fill(const Unit *u, Tensor t, Range range, UnitElement *element, void *context);
// with the initial values
void unit_initialize(const Unit *u, Tensor w, Range range, uint64_t seed);
#endif
