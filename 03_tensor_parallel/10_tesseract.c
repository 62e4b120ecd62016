// ranks: 8
// level: extra
// question: What changes in SUMMA when d grids of ranks hold the same weights?
// vary: ranks 4|18, BATCH 3..6
//
// Holds: t = q x q x d ranks form d grids of q x q. Every grid holds all weights in q x q blocks,
//     as in SUMMA, and 1/d of the sequences. Row i of grid k has part i + q k of q d parts.
// Sends: each grid sends SUMMA's messages inside the grid. Per step the grids add their gradients
//     (all-reduces over depth).
// Saves: activations are divided by q^2 d, and so are the blocks of X that SUMMA sends.
// Costs: per product a rank receives (q-1)/q^2 (|X|/d + |W|) elements, where |X| is the number of
//     elements of X. Per step a rank also receives 2(d-1)/d of the elements of its own gradients.
//     Weights, gradients and optimizer state take as much memory as on q^2 ranks.
// Tesseract: Wang et al. 2021 (arXiv 2105.14500), section 3, with d <= q. d = 1 is SUMMA. Until the
// sum of the gradients no layer sends from one grid to another, so depth is data parallelism over
// the grids.
//
// Y = X W and dX = dY W^T are SUMMA inside each grid: rank (i, j, k) computes blocks of its own
// rows, and summa_batch() gives each rank the sequences of these rows. dW = X^T dY is a sum over
// ALL tokens, but a grid has only its own tokens:
//
//     dW(l,j) = sum over grids k of  X_k(0,l)^T dY_k(0,j) + X_k(1,l)^T dY_k(1,j) + ...
//                                    SUMMA's reduce, along a column of grid k
#include "03_tensor_parallel/tensor_parallel.h"

TesseractSides tesseract_sides(size_t ranks, size_t depth) {
    size_t q = 0, d = depth ? depth : 1;
    for (; d <= (depth ? depth : ranks); d++) {
        for (q = d; (q + 1) * (q + 1) * d <= ranks;) q++; // d <= q
        if (q * q * d == ranks) return (TesseractSides){ q, d };
    }
    if (depth)
        usage_error("%zu ranks are no q x q x %zu grid with a q of %zu or more: start %zu or %zu "
                    "ranks, or choose another --depth",
                    ranks, depth, depth, q * q * depth, (q + 1) * (q + 1) * depth);
    usage_error("%zu ranks are no q x q x d grid with d up to q: start 1, 4, 8, 9, 16, 18, 25, 27 "
                "or 32 ranks",
                ranks);
}

CommGrid tesseract_grid(Comm *ranks, size_t depth) {
    TesseractSides n = tesseract_sides(ranks->size, depth);
    return comm_grid(ranks, n.q, n.q, n.depth);
}

void tesseract(Model *m, const CommGrid *g) {
    summa(m, g); // every grid cuts the model alike
    // EXERCISE 03.10a (3 points): mark the parameters that all grids share. The g->depth ranks of
    // g->in_depth hold the same block of every parameter of every unit (m->units[i].params[k]).
    // Each of these ranks has seen only the tokens of its grid. Set the group over which the
    // gradient is a partial sum (Param.partial), and whether this rank's copy counts in the
    // gradient norm (Param.in_norm).
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params; k++) {
            // model_partial_sums() all-reduces this block over depth, once per step.
            m->units[i].params[k].partial = g->in_depth;
            // All d grids then hold the sum. The norm counts one of the copies.
            m->units[i].params[k].in_norm = g->layer == 0;
        }
    // END
}
