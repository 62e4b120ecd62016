// ranks: 8
// level: extra
// question: What changes in SUMMA when d grids of ranks share the same blocks of weights?
// vary: ranks 4|18, BATCH 3..6
//
// Holds: of q x q x d ranks, d layers of a q x q grid, every layer has all weights in q x q blocks,
//     as in SUMMA, and 1/d of the tokens: activations in d q x q blocks, layer k row blocks kq to
//     kq+q-1.
// Sends: SUMMA's messages inside each layer; per step one all-reduce over depth of the gradients.
// Saves: activations divided by q^2 d; the X part of SUMMA's traffic divided by d.
// Costs: received per product (q-1)/q^2 (MK/d + KN) elements, and per step 2(d-1)/d of a rank's
//     gradients. Weights, gradients and optimizer state as on q^2 ranks.
// Tesseract: Wang et al. 2021 (arXiv 2105.14500), section 3, with d <= q. d = 1 is SUMMA. Nothing
// crosses the layers before the gradients, so d is a data-parallel axis inside the grid.
//
// Forward and dX are SUMMA inside each layer (summa_batch takes its tokens): of Y = X A and
// dX = dY A^T, rank (i, j, k) makes the blocks of its own rows, and layers need nothing from each
// other. dA = X^T dY is a sum over ALL tokens, and a layer has seen its own:
//
//     dA(l,j) = sum over layers k of  X_k(0,l)^T dY_k(0,j) + X_k(1,l)^T dY_k(1,j) + ...
//                                     SUMMA's reduce, down a column of layer k
#include "03_tensor_parallel/tensor_parallel.h"

// Of so many ranks; depth 0: the least with which they are one grid.
TesseractSides tesseract_sides(size_t ranks, size_t depth) {
    size_t q = 0, d = depth ? depth : 1;
    for (; d <= (depth ? depth : ranks); d++) {
        for (q = d; (q + 1) * (q + 1) * d <= ranks;) q++;  // d <= q
        if (q * q * d == ranks) return (TesseractSides){ q, d };
    }
    if (depth)
        usage_error("%zu ranks are no q x q x %zu grid with a q of %zu or more: start %zu or %zu "
                    "ranks, or choose another --depth", ranks, depth, depth, q * q * depth,
                    (q + 1) * (q + 1) * depth);
    usage_error("%zu ranks are no q x q x d grid with d up to q: start 1, 4, 8, 9, 16, 18, 25, 27 "
                "or 32 ranks", ranks);
}

CommGrid tesseract_grid(Comm *ranks, size_t depth) {
    TesseractSides n = tesseract_sides(ranks->size, depth);
    return comm_grid(ranks, n.q, n.q, n.depth);
}

void tesseract(Model *m, const CommGrid *g) {
    summa(m, g);                                           // the same blocks in every layer
    // EXERCISE 03.10a (3 points): what the layers share. Every parameter of every unit
    // (m->units[i].params[k]) is held by the g->depth ranks of g->in_depth, and each of them has
    // seen its own layer's tokens only. Say over whom its gradient is a partial sum
    // (Param.partial), and whose copy counts in the gradient norm (Param.in_norm).
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params; k++) {
            // model_partial_sums() all-reduces this block over depth, once per step.
            m->units[i].params[k].partial = g->in_depth;
            // Every layer has the sum then: else the norm would count every element d times.
            m->units[i].params[k].in_norm = g->layer == 0;
        }
    // END
}
