// unit.h: describes parameters and the units that hold them. A Param stores which part of the whole
// tensor this rank holds. A unit is several parameters one after another.
#ifndef UNIT_H
#define UNIT_H
#include "common/comm/comm.h"

typedef struct {
    char name[40];          // Hugging Face's name in GPT-2, such as "h.0.attn.c_attn.weight"
    size_t number;          // number in the whole model's order of tensors
    size_t rows, cols;      // size of the whole tensor
    bool vector;            // a bias or a gain: rows is 1, its shape is [cols]
    size_t blocks;          // column blocks, each cut by itself (q | k | v: 3)
    size_t ratio;           // the first column block is as wide as `ratio` others (narrow blocks)
    Range own_rows;         // the local rows
    Range own_cols;         // local columns of a narrow block; block 0 has `ratio` times as many
    double mean, deviation; // mean and deviation of the initial values
    bool decay;             // weight decay applies: matrices, not biases and gains
    bool in_norm; // the local elements enter the gradient norm (false: another rank's copy does)
    // The gradient g must still be summed over these ranks, because each rank has computed g from
    // only some of the tokens. NULL means that g needs no such sum.
    Comm *partial;
    size_t offset;          // place of the parameter's first local element in the unit
    Tensor w, g;            // the local part [local rows, local cols]; data NULL while absent
    bool gradient_empty;    // no contribution was added to g since it was zeroed
    struct Saved *deferred; // contributions to g wait here for the second half of backward; or NULL
} Param;
// Returns a parameter with the whole tensor [rows, cols], or with a vector [cols] if rows is 0. The
// model sets number and initial values.
Param param_describe(const char *name, size_t rows, size_t cols, size_t blocks);
// Returns a parameter whose first block is `ratio` times as wide as each other block. A cut of
// columns [lo, hi) of a narrow block takes columns [ratio lo, ratio hi) of the first block. With
// grouped heads these are the queries that belong to the keys.
Param param_describe_grouped(const char *name, size_t rows, size_t cols, size_t blocks,
                             size_t ratio);
// Returns how many narrow blocks a row has. The first block counts as `ratio` narrow blocks.
static inline size_t param_narrow_blocks(const Param *p) { return p->ratio + p->blocks - 1; }
size_t param_local_rows(const Param *p);
size_t param_local_cols(const Param *p); // returns the local columns of all blocks
bool param_is_whole(const Param *p);     // returns whether this rank holds the whole tensor
// Adds g, a finished contribution with the shape of the local part, to p->g. The first contribution
// after zeroing overwrites p->g.
void param_add_gradient(Param *p, Tensor g);
// Returns the place of local element i in the flattened whole tensor. Initial values, comparison
// and export use this map.
size_t param_global_index(const Param *p, size_t i);

// ZeRO gathers, reduces and shards a unit as one piece. A unit is a table (wte, wpe, or the head's
// own table), a block, or the last norm.
typedef struct Unit {
    Param *params;
    size_t n_params;
    size_t size;                  // local elements
    Element w_element, g_element; // the element types of w and own_w, and of g and own_g
    Tensor w, g;                  // [1, size], parameters one after another; data NULL while absent
    bool table;                   // a table of the vocabulary: the embedding's, or the head's
    struct Unit *tied_use;        // a second use on the same rank: same weights, own gradient
    struct Unit *tied_to;         // in the second use: the unit of the first use
    bool tied_copy;               // a copy of another stage's wte; no norm counts the copy
    // `replicas` has the ranks that have the same unit. These ranks reduce the unit's gradient, and
    // under ZeRO each rank owns a part of the unit's state. NULL until model_replicas().
    Comm *replicas;
    // This rank owns the final gradient, the update and the state of these elements. Without ZeRO
    // the rank owns all elements.
    Range own;
    Tensor own_w, own_g;     // [1, own]: views of w and g, or separate buffers
    bool own_gradient_empty; // no contribution was added to a separate own_g since it was zeroed
    Tensor m, v;             // [1, own]: optimizer state; SGD has only m, or neither
    // The weights in reals [1, own], if w has 16 bits. The optimizer updates the master, then
    // rounds the master into own_w. The optimizer makes the master from own_w in its first step,
    // after any broadcast of weights.
    Tensor master;
    bool master_made;
} Unit;
// Returns memory [1, n] for n weights of the unit, in their element type. unit_new_gradients() does
// the same for gradients.
Tensor unit_new_weights(const Unit *u, Arena *a, size_t n);
Tensor unit_new_gradients(const Unit *u, Arena *a, size_t n);
// Sets the unit's weights or gradients, a tensor [1, size] or {0}, and the views of the parameters.
// unit_attach_weights also sets the weights of the tied use.
void unit_attach_weights(Unit *u, Tensor w);
void unit_attach_gradients(Unit *u, Tensor g);
// Marks every gradient as empty, so that the first contribution overwrites it.
void unit_zero_gradients(Unit *u);
// Sums the partial gradients, after backward and before any other use of gradients. All ranks of
// Param.partial must call this function. Adjacent parameters with the same ranks share one
// all-reduce.
void unit_partial_sums(Unit *u);

// A UnitTensor names a tensor of the unit's owned elements: weights, final gradient, or state.
typedef enum { UNIT_WEIGHTS, UNIT_GRADIENTS, UNIT_M, UNIT_V, UNIT_MASTER } UnitTensor;
// Returns a tensor [1, own]. Calls fault() if the tensor is absent, such as v under SGD, or the
// master of weights in reals.
Tensor unit_own(const Unit *u, UnitTensor what);
// Fills t with elements `range` of the unit. `element` returns the value of a parameter at a place
// in the flattened whole tensor. Initial values and loading use this function.
typedef real UnitElement(void *context, const Param *p, size_t global_index);
void unit_fill(const Unit *u, Tensor t, Range range, UnitElement *element, void *context);
// Fills w with the initial values of elements `range`.
void unit_initialize(const Unit *u, Tensor w, Range range, uint64_t seed);
#endif
