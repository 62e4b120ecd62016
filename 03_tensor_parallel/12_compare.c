// ranks: 8
// level: extra
// question: Which way of cutting a layer over the same ranks keeps least, receives least and is fastest?
//
// Holds: a rank holds 1/t of a block's 12 C^2 weights in 1D, SP, 2D and 3D, 1/q^2 in 2.5D, and all
//     weights on the ring.
// Sends: 1D and SP send activations and their gradients. 2D and 3D also send weights and gradients
//     of weights. 2.5D sends what 2D sends, with 1/d of the activations, and then sums the
//     gradients of weights over the depth.
//     The ring sends keys, values and their gradients, and the gradients of all weights.
// Saves: activations are divided by t, but 1D keeps 4 BTC elements of each block whole.
// Costs: tensor_way_received() returns the elements that a rank receives per block, for t ranks, BT
//     tokens and width C.
// The formulas are those of lessons 06 to 11 without vectors and norms. Left out: latency, overlap.
//
//     way       function             lesson   cuts
//     1D        tensor_parallel      06       matrices by columns and rows; no token
//     1D + SP   sequence_parallel    07       also the rows in norms and residual paths
//     2D        summa                09       q x q blocks
//     2.5D      tesseract            10       q x q blocks in d layers
//     3D        cube_parallel        11       q x q x q parts; backward gathers again
//     ring      context_parallel     08       positions, zigzag; no parameter
//
// In 1D and SP all bytes are proportional to the tokens. In 2D, 2.5D, 3D and the ring the bytes of
// weights and of their gradients do not depend on the tokens. On more than 2 ranks the bytes of
// activations grow more slowly than in 1D. So these ways receive less than 1D when a micro-batch
// has many tokens.
#include "03_tensor_parallel/compare.h"

static size_t root_of(size_t n, size_t power) { // returns q with q^power = n, or 0
    for (size_t q = 1; q <= n; q++)
        if ((power == 2 ? q * q : q * q * q) == n) return q;
    return 0;
}

// Returns the sides of a way's grid. 2.5D takes the smallest d from 2 on, or d = 1 on one rank.
// d <= q, so d^3 <= ranks.
TensorWayShape tensor_way_shape(TensorWay way, size_t ranks) {
    if (way == WAY_2D) return (TensorWayShape){ root_of(ranks, 2), 1 };
    if (way == WAY_3D) return (TensorWayShape){ root_of(ranks, 3), root_of(ranks, 3) };
    if (way != WAY_25D) return (TensorWayShape){ ranks, 1 };
    for (size_t d = ranks > 1 ? 2 : 1; d * d * d <= ranks; d++)
        if (ranks % d == 0 && root_of(ranks / d, 2))
            return (TensorWayShape){ root_of(ranks / d, 2), d };
    return (TensorWayShape){ 0, 0 };
}

// Returns the elements that a rank receives in an all-reduce over n ranks, per element of the
// tensor.
static double all_reduce(double n) { return 2 * (n - 1) / n; }
// X counts the inputs of the block's four matrices, BTC (1 + 1 + 1 + 4). W counts the elements of
// these matrices, 12 C^2.
double tensor_way_received(TensorWay way, size_t ranks, double tokens, double width) {
    const TensorWayShape s = tensor_way_shape(way, ranks);
    const double t = (double)ranks, q = (double)s.q, d = (double)s.depth;
    const double BTC = tokens * width, X = 7 * BTC, W = 12 * width * width;
    if (s.q == 0 || ranks == 1) return 0;
    switch (way) {
    case WAY_1D: return 4 * BTC * all_reduce(t);         // four all-reduces of BTC
    case WAY_SP: return 10 * BTC * (t - 1) / t;          // ten all-gathers or reduce-scatters
    case WAY_2D: return 3 * (q - 1) / (q * q) * (X + W); // three products per matrix
    case WAY_25D: return 3 * (q - 1) / (q * q) * (X / d + W) + all_reduce(d) * W / (q * q);
    case WAY_3D: return (q - 1) / t * (39 * BTC + 3 * W);            // X and W three times, Y twice
    case WAY_RING: return (6 * t - 4) * BTC / t + all_reduce(t) * W; // k, v twice, dk, dv; dW
    case TENSOR_WAYS: break;
    }
    return 0;
}

// A way receives constant + slope * tokens elements. With width 1 the tokens are in units of the
// width. The straight lines of both ways cross at the result.
double tensor_way_crossover(TensorWay way, TensorWay other, size_t ranks) {
    const double constant = tensor_way_received(way, ranks, 0, 1);
    const double other_constant = tensor_way_received(other, ranks, 0, 1);
    const double slope = tensor_way_received(way, ranks, 1, 1) - constant;
    const double other_slope = tensor_way_received(other, ranks, 1, 1) - other_constant;
    if (other_slope <= slope) return 0;
    return (constant - other_constant) / (other_slope - slope);
}
