// ranks: 1
// level: core
// question: If a weight matrix is cut, which results lie side by side, and which must be added?
//
// Holds:  if W is cut by columns, each of t shards has N/t columns of W and all of X. If W is cut
//         by rows, a shard has K/t rows of W, and the columns of X that these rows multiply.
// Sends:  by columns, t partial sums of dX [M, K] are added. By rows, t partial sums of Y [M, N]
//         are added.
// Saves:  each shard multiplies by 1/t of W, and updates this part only.
// Costs:  one sum over the shards per step, in backward (columns) or in forward (rows).
// A shard is a rank with its part of W. Shoeybi et al. 2019, section 3. Left out: the bias, and
// real ranks. A loop over i plays all shards.
#include "03_tensor_parallel/by_hand.h"

// Sets dY to Y - target, because the loss is half the squared distance of Y from the target.
static void gradient_of_y(HandLayer *l) {
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) l->dy[m][n] = l->y[m][n] - l->target[m][n];
}

// Makes one step with W cut by columns. Every shard reads all of X and finishes its own columns of
// Y.
void by_hand_columns(HandLayer *l, size_t shards, double rate) {
    // Forward: Y_i = X W_i, where W_i and Y_i are the columns of shard i. The columns of all shards
    // side by side are Y, so nothing is added.
    for (size_t i = 0; i < shards; i++) {
        Range own = shard_range(N, shards, i);
        for (int m = 0; m < M; m++)
            for (size_t n = own.lo; n < own.hi; n++) {
                l->y[m][n] = 0;
                for (int k = 0; k < K; k++) l->y[m][n] += l->x[m][k] * l->w[k][n];
            }
    }
    gradient_of_y(l); // a shard needs only its own columns of dY

    // Backward: dX = dY W^T sums over the columns of W. Shard i holds only some of these columns,
    // so dY_i W_i^T is a partial sum.
    for (size_t i = 0; i < shards; i++) {
        Range own = shard_range(N, shards, i);
        for (int m = 0; m < M; m++)
            for (int k = 0; k < K; k++) {
                l->dx_part[i][m][k] = 0;
                for (size_t n = own.lo; n < own.hi; n++)
                    l->dx_part[i][m][k] += l->dy[m][n] * l->w[k][n];
            }
    }
    // The all-reduce adds the partial sums of all shards, in the order of the shards.
    for (int m = 0; m < M; m++)
        for (int k = 0; k < K; k++) {
            l->dx[m][k] = 0;
            for (size_t i = 0; i < shards; i++) l->dx[m][k] += l->dx_part[i][m][k];
        }
    // dW_i = X^T dY_i is finished, because shard i has all of X. Each shard updates its own
    // columns.
    for (size_t i = 0; i < shards; i++) {
        Range own = shard_range(N, shards, i);
        for (int k = 0; k < K; k++)
            for (size_t n = own.lo; n < own.hi; n++) {
                l->dw[k][n] = 0;
                for (int m = 0; m < M; m++) l->dw[k][n] += l->x[m][k] * l->dy[m][n];
                l->w[k][n] -= rate * l->dw[k][n];
            }
    }
}

// Makes one step with W cut by rows. Shard i reads the columns of X that its rows of W multiply.
void by_hand_rows(HandLayer *l, size_t shards, double rate) {
    // Forward: Y = X W sums over the rows of W. Shard i holds the rows W_i and the columns X_i that
    // these rows multiply. So X_i W_i is a partial sum of all of Y.
    for (size_t i = 0; i < shards; i++) {
        Range own = shard_range(K, shards, i);
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++) {
                l->y_part[i][m][n] = 0;
                for (size_t k = own.lo; k < own.hi; k++)
                    l->y_part[i][m][n] += l->x[m][k] * l->w[k][n];
            }
    }
    // The all-reduce adds the partial sums of Y before backward, because every shard needs all of
    // dY = Y - target.
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            l->y[m][n] = 0;
            for (size_t i = 0; i < shards; i++) l->y[m][n] += l->y_part[i][m][n];
        }
    gradient_of_y(l);

    // Backward: every shard has all of dY. So dX_i = dY W_i^T are finished columns of dX, and
    // dW_i = X_i^T dY are finished rows of dW.
    for (size_t i = 0; i < shards; i++) {
        Range own = shard_range(K, shards, i);
        for (size_t k = own.lo; k < own.hi; k++) {
            for (int m = 0; m < M; m++) {
                l->dx[m][k] = 0;
                for (int n = 0; n < N; n++) l->dx[m][k] += l->dy[m][n] * l->w[k][n];
            }
            for (int n = 0; n < N; n++) {
                l->dw[k][n] = 0;
                for (int m = 0; m < M; m++) l->dw[k][n] += l->x[m][k] * l->dy[m][n];
            }
            for (int n = 0; n < N; n++) l->w[k][n] -= rate * l->dw[k][n];
        }
    }
}
