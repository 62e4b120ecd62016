// ranks: 1
// level: core
// question: What must forward keep for backward, what can it forget and compute again, and how many layer inputs should it keep?
//
// Holds:  plain arrays on one device. The chain has L = 16 layers y = x W with 2x2 matrices. The
//         inputs of layers 0, k, 2k, ... stay until the backward of their layer. While backward is
//         in a segment of k layers, the other k - 1 inputs of the segment are held, too.
// Sends:  nothing, because the lesson has one device.
// Saves:  memory. At the peak 4 (L/k + k - 1) elements are held, not 4 L. The peak is lowest near
//         k = square root of L.
// Costs:  8 (L - L/k) more multiplications, because all layers but the last of each segment run
//         forward a second time.
// Chen et al. 2016. The lesson leaves out the items that a layer keeps besides its input. In a
// Transformer these other items are most of the memory (02_full.c).
#include "07_recompute/by_hand.h"
#include <string.h>

// The derivative with respect to W needs the x of the forward pass:
//
//     forward    y = x W
//     backward   dW = x^T dy   dx = dy W^T         needs x of this layer
//
//     x0 --[0]-- x1 --[1]-- x2 -- ... --[15]-- x16      the loss is the sum of x16
//
// Forward keeps the input of every k-th layer; k = 1 keeps the input of every layer. Before
// backward enters a segment of k layers, all but the last of these layers run forward again from
// the kept input. Every k gives the same gradients in every bit, because the second forward does
// the same additions in the same order. Only the peak of kept elements and the number of
// multiplications depend on k.

static void keep(Count *c, size_t elements) {
    c->kept += elements;
    if (c->most < c->kept) c->most = c->kept;
}

// ---------------------------------------------------------------- one layer

void chain_forward(Count *c, Matrix *y, const Matrix *x, const Matrix *w) {
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            y->a[i][j] = 0;
            for (int k = 0; k < 2; k++) y->a[i][j] += x->a[i][k] * w->a[k][j];
        }
    c->forward_products += 8; // 2*2*2 multiplications
}

static void backward(Count *c, Matrix *dx, Matrix *dw, const Matrix *x, const Matrix *w,
                     Matrix dy) {
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            dw->a[i][j] = dx->a[i][j] = 0;
            for (int k = 0; k < 2; k++) {
                dw->a[i][j] += x->a[k][i] * dy.a[k][j];
                dx->a[i][j] += dy.a[i][k] * w->a[j][k];
            }
        }
    c->backward_products += 8 + 8; // 8 multiplications for dW, 8 for dx
}

// ------------------------------------------------ the chain, keeping every k-th input

const Matrix chain_start = { { { 1, 0.5f }, { -0.5f, 1 } } };
const Matrix chain_weights[4] = {
    { { { 1, -0.5f }, { 0.5f, 1 } } },
    { { { 0.5f, 1 }, { -1, 0.5f } } },
    { { { 1, 0.25f }, { -0.5f, 1 } } },
    { { { 0.5f, -1 }, { 1, 0.25f } } },
};

Count by_hand_chain_train(size_t every, Matrix dw[LAYERS], real *loss) {
    Count c = { 0 };
    Matrix x[LAYERS + 1], dy; // x[l] is valid only where kept or computed again
    const Matrix *w[LAYERS];
    for (size_t l = 0; l < LAYERS; l++) w[l] = &chain_weights[l % 4];
    x[0] = chain_start;
    for (size_t l = 0; l < LAYERS; l++) {
        chain_forward(&c, &x[l + 1], &x[l], w[l]);
        if (l % every == 0) keep(&c, 4);
    }
    *loss = 0;
    for (int i = 0; i < 4; i++) *loss += x[LAYERS].a[i / 2][i % 2];
    for (int i = 0; i < 4; i++) dy.a[i / 2][i % 2] = 1;
    // Overwrites forgotten inputs with NaN, so that a wrong read shows in the gradients.
    for (size_t l = 0; l <= LAYERS; l++)
        if (l % every || l == LAYERS) memset(&x[l], 0xff, sizeof x[l]);

    // The loop goes through the segments, last first. After segment 0 the unsigned lo wraps around
    // to a large number, which ends the loop.
    for (size_t lo = (LAYERS - 1) / every * every; lo < LAYERS; lo -= every) {
        size_t hi = lo + every < LAYERS ? lo + every : LAYERS;
        // The second forward leaves out the segment's last layer, because no backward needs the
        // output of this layer.
        for (size_t l = lo; l + 1 < hi; l++) {
            chain_forward(&c, &x[l + 1], &x[l], w[l]);
            keep(&c, 4);
        }
        for (size_t l = hi; l-- > lo;) {
            backward(&c, &dy, &dw[l], &x[l], w[l], dy);
            c.kept -= 4;
        }
    }
    return c;
}
