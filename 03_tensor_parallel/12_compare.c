// ranks: 8
// level: extra
// question: Which way of sharing a layer keeps least, receives least and takes least time on the same ranks?
//
// Holds: of a block's 12h^2 weights 1D, SP and 2D 1/p, 2.5D 1/q^2, 3D 1/q^3, the ring all of them.
// Sends: 1D, SP: activations. 2D, 3D: activations and weights. 2.5D: also gradients over its depth.
//     Ring: keys, values and their gradients, and the gradients of all weights.
// Saves: activations of bs tokens: SP, 2D, 2.5D, 3D and the ring 1/p of them; 1D keeps 4 bsh whole.
// Costs: received per block as tensor_way_received() says: p ranks, bs tokens, width h.
// Formulas of lessons 06 to 11, without vectors and norms. Left out: latency, overlap.
//
//     1D        tensor_parallel      06   matrices by columns and rows; every rank has every token
//     1D + SP   sequence_parallel    07   and rows of the regions between; inputs gathered again
//     2D        summa                09   q x q blocks
//     2.5D      tesseract            10   d layers of them
//     3D        cube_parallel        11   q x q x q parts, gathered again in backward
//     ring      context_parallel     08   positions, zigzag; parameters whole, gradients summed
//
// Where only activations move, a rank receives in proportion to the tokens. Where weights move,
// too, a part does not depend on the tokens, and the rest grows more slowly: worth it for many
// tokens.
#include "03_tensor_parallel/compare.h"

static size_t root_of(size_t n, size_t power) {            // q with q^power = n, or 0
    for (size_t q = 1; q <= n; q++)
        if ((power == 2 ? q * q : q * q * q) == n) return q;
    return 0;
}

// 2.5D: the flattest grid that is not 2D. d <= q, so d^3 <= ranks.
TensorWayShape tensor_way_shape(TensorWay way, size_t ranks) {
    if (way == WAY_2D) return (TensorWayShape){ root_of(ranks, 2), 1 };
    if (way == WAY_3D) return (TensorWayShape){ root_of(ranks, 3), root_of(ranks, 3) };
    if (way != WAY_25D) return (TensorWayShape){ ranks, 1 };
    for (size_t d = ranks > 1 ? 2 : 1; d * d * d <= ranks; d++)
        if (ranks % d == 0 && root_of(ranks / d, 2))
            return (TensorWayShape){ root_of(ranks / d, 2), d };
    return (TensorWayShape){ 0, 0 };
}

// X: the inputs of a block's four matrices, bsh + bsh + bsh + 4bsh. A: the matrices, 12h^2. sum(n):
// of what all n ranks of a ring sum and keep, an all-reduce, a rank receives 2(n-1)/n.
static double sum(double n) { return 2 * (n - 1) / n; }
double tensor_way_received(TensorWay way, size_t ranks, double tokens, double width) {
    const TensorWayShape s = tensor_way_shape(way, ranks);
    const double p = (double)ranks, q = (double)s.q, d = (double)s.depth;
    const double bsh = tokens * width, X = 7 * bsh, A = 12 * width * width;
    if (s.q == 0 || ranks == 1) return 0;
    switch (way) {
    case WAY_1D:   return 4 * bsh * sum(p);                // four all-reduces of bsh
    case WAY_SP:   return 10 * bsh * (p - 1) / p;          // ten halves of one
    case WAY_2D:   return 3 * (q - 1) / (q * q) * (X + A); // three products of each
    case WAY_25D:  return 3 * (q - 1) / (q * q) * (X / d + A) + sum(d) * A / (q * q);
    case WAY_3D:   return (q - 1) / p * (39 * bsh + 3 * A);    // X and W three times, Y twice
    case WAY_RING: return (6 * p - 4) * bsh / p + sum(p) * A;  // k, v twice, dk, dv; all gradients
    case WAYS:     break;
    }
    return 0;
}

// Both are straight lines over the tokens, for h = 1: constant at no tokens, and a slope.
double tensor_way_crossover(TensorWay way, TensorWay other, size_t ranks) {
    const double constant = tensor_way_received(way, ranks, 0, 1);
    const double other_constant = tensor_way_received(other, ranks, 0, 1);
    const double slope = tensor_way_received(way, ranks, 1, 1) - constant;
    const double other_slope = tensor_way_received(other, ranks, 1, 1) - other_constant;
    if (other_slope <= slope) return 0;
    return (constant - other_constant) / (other_slope - slope);
}
