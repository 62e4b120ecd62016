// kept.c: counts the elements that a rank of a grid or a cube keeps between forward and backward.
#include "03_tensor_parallel/kept.h"
#include "common/model/block.h"

// A rank keeps only the features of its column of the grid.
CutSizes grid_kept_sizes(const ModelConfig *c, TesseractSides n, size_t rank) {
    size_t col = rank % n.q;
    CutSizes z = cut_sizes(c, n.q, col);
    z.C = part_size(c->width, n.q, col);
    return z;
}
size_t grid_kept_sequences(TesseractSides n, size_t rank, size_t B) {
    size_t row = rank / n.q % n.q, layer = rank / (n.q * n.q);
    return part_size(B, n.q * n.depth, row + n.q * layer);
}

// Counts rows in two layouts, because each product swaps row and col. If the sequences of a
// product's input are cut over layer and row, the sequences of its output are cut over layer and
// col.
KeptElements cube_kept(const ModelConfig *c, size_t q, size_t rank, bool blockwise,
                       const CutSizes *stage, size_t B) {
    size_t row = rank / q % q, col = rank % q, layer = rank / (q * q), T = c->context;
    size_t C = part_size(c->width, q, col), heads = part_size(c->heads, q, row);
    size_t A = heads * (c->width / c->heads); // columns of this rank's heads
    size_t F = part_size(block_hidden(c), q, row), V = part_size(c->vocab, q, row);
    size_t sequences = part_size(B, q, layer);          // sequences of this layer of the cube
    size_t straight = part_size(sequences, q, row) * T; // tokens of a block's input and output
    size_t swapped = part_size(sequences, q, col) * T; // tokens inside attention and inside the MLP

    size_t operands = straight * 2 * C + swapped * (A + F); // this rank's X of each product
    size_t norms = straight * (C + 4); // the input of the second norm, the statistics of both norms
    size_t outputs = swapped * (3 * A + F); // q, k, v; the MLP before its activation
    // A rank keeps the probabilities, and with dropout also the probabilities after dropout.
    size_t probabilities = swapped * heads * T * (c->dropout > 0 ? 2 : 1);
    KeptElements kept = { .scores = blockwise ? 0 : probabilities };
    kept.block = operands + norms + outputs + (blockwise ? swapped * heads : probabilities);
    kept.block_reals = straight * 4 + (blockwise ? swapped * heads : 0);
    kept.head_reals = 2 * straight + swapped * (V + 1);
    kept.head = straight * C + kept.head_reals;
    kept.between = (!stage->first + cut_layers(stage) - 1) * straight * C;
    return kept;
}
