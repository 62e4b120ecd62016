// ranks: 1
// level: core
// question: What must forward keep for backward, what can it forget and compute again, and how often should it keep?
//
// Recomputation on paper: a chain of 16 equal layers, y = x W on 2x2 matrices, with plain arrays and bare loops. The
// derivative with respect to W needs the x that forward had:
//
//     forward    y = x W
//     backward   dW = x^T dy   dx = dy W^T         needs x of this layer
//
//     x0 --[0]-- x1 --[1]-- x2 -- ... --[15]-- x16      the loss is the sum of x16
//
// Keep the input of every layer, or only of every k-th: then, before backward goes through a segment of k layers, they
// walk forward again from the input that was kept. All give the same gradients in every bit, because the second forward
// does the same additions in the same order. What differs is counted: elements kept at once, and multiplications.
// Chen et al. 2016: with k near the square root of the number of layers the memory is lowest.
// Left out: what a layer keeps besides its input, which is most of it in a Transformer (the next lesson).
#include "judge/frame/lesson.h"
#include <stdio.h>
#include <string.h>

enum { LAYERS = 16, WAYS = 5 };
typedef struct { real a[2][2]; } Matrix;           // 4 elements

// What a run counts. kept is what is held for backward at the moment, most its maximum.
typedef struct { size_t forward_products, backward_products, kept, most; } Count;
static void keep(Count *c, size_t elements) {
    c->kept += elements;
    if (c->most < c->kept) c->most = c->kept;
}

// ---------------------------------------------------------------- one layer

static void forward(Count *c, Matrix *y, const Matrix *x, const Matrix *w) {
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            y->a[i][j] = 0;
            for (int k = 0; k < 2; k++) y->a[i][j] += x->a[i][k] * w->a[k][j];
        }
    c->forward_products += 8;                      // 2*2*2
}

static void backward(Count *c, Matrix *dx, Matrix *dw, const Matrix *x, const Matrix *w, Matrix dy) {
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            dw->a[i][j] = dx->a[i][j] = 0;
            for (int k = 0; k < 2; k++) {
                dw->a[i][j] += x->a[k][i] * dy.a[k][j];
                dx->a[i][j] += dy.a[i][k] * w->a[j][k];
            }
        }
    c->backward_products += 8 + 8;                 // two products
}

// ---------------------------------------------------------------- the chain, keeping every n-th input

static const Matrix start = { { { 1, 0.5f }, { -0.5f, 1 } } };
static const Matrix weights[4] = {                 // of layers 0 to 3, and again from the first
    { { { 1, -0.5f }, { 0.5f, 1 } } }, { { { 0.5f, 1 }, { -1, 0.5f } } }, { { { 1, 0.25f }, { -0.5f, 1 } } },
    { { { 0.5f, -1 }, { 1, 0.25f } } },
};

// Keeps the inputs of layers 0, every, 2*every, ...; every = 1: of all, so that nothing is computed again.
static Count train(size_t every, Matrix dw[LAYERS], real *loss) {
    Count c = {0};
    Matrix x[LAYERS + 1], dy;                      // an element of x is only read where it was kept or computed again
    const Matrix *w[LAYERS];
    for (size_t l = 0; l < LAYERS; l++) w[l] = &weights[l % 4];
    x[0] = start;
    for (size_t l = 0; l < LAYERS; l++) {
        forward(&c, &x[l + 1], &x[l], w[l]);
        if (l % every == 0) keep(&c, 4);
    }
    *loss = 0;
    for (int i = 0; i < 4; i++) *loss += x[LAYERS].a[i / 2][i % 2];
    for (int i = 0; i < 4; i++) dy.a[i / 2][i % 2] = 1;
    // forget: what follows must not be able to read it
    for (size_t l = 0; l <= LAYERS; l++)
        if (l % every || l == LAYERS) memset(&x[l], 0xff, sizeof x[l]);    // a NaN

    // segments, last first; wraps below 0
    for (size_t lo = (LAYERS - 1) / every * every; lo < LAYERS; lo -= every) {
        size_t hi = lo + every < LAYERS ? lo + every : LAYERS;
        for (size_t l = lo; l + 1 < hi; l++) {     // the second forward; nobody needs the segment's output
            forward(&c, &x[l + 1], &x[l], w[l]);
            keep(&c, 4);
        }
        for (size_t l = hi; l-- > lo;) {
            backward(&c, &dy, &dw[l], &x[l], w[l], dy);
            c.kept -= 4;
        }
    }
    return c;
}

// ---------------------------------------------------------------- five ways, compared

static const char *const way[WAYS] = { "keep everything", "keep every second", "keep every 4th", "keep every 8th",
                                       "keep every 16th" };

static Snapshot *gradients(Run *run, const Matrix dw[LAYERS], Arena *a) {
    Snapshot *s = snapshot_new(run);
    for (size_t l = 0; l < LAYERS; l++) {
        char name[16];
        snprintf(name, sizeof name, "dW%zu", l);
        Tensor t = tensor_new(a, 2, 2);
        tensor_upload(t, &dw[l].a[0][0]);
        snapshot_put(s, name, 2, 2, t, 0, 0);
    }
    return s;
}

static void print_matrix(Run *run, const char *name, size_t layer, const Matrix *m) {
    say(run, "  %s%-2zu  [%8.5f %8.5f; %8.5f %8.5f]", name, layer, (double)m->a[0][0], (double)m->a[0][1],
        (double)m->a[1][0], (double)m->a[1][1]);
}
// The first two layers: forward, and what backward of the whole chain leaves them.
static void print_chain(Run *run, const Matrix dw[LAYERS]) {
    Matrix x = start, y;
    Count unused = {0};
    say(run, "%d layers y = x W. Backward, dW = x^T dy and dx = dy W^T, needs each layer's x. Of layers 0 and 1:",
        LAYERS);
    print_matrix(run, " x", 0, &x);
    for (size_t l = 0; l < 2; l++) {
        forward(&unused, &y, &x, &weights[l]);
        print_matrix(run, " W", l, &weights[l]);
        print_matrix(run, " x", l + 1, &y);
        x = y;
    }
    say(run, "The gradients of the two, after all %d layers; the loss is the sum of x%d:", LAYERS, LAYERS);
    for (size_t l = 2; l-- > 0;) print_matrix(run, "dW", l, &dw[l]);
}

// The page's table.
static void show(Run *run) {
    static const char *const columns[] = { "elements kept", "multiplications", NULL };
    static const char *const formula[WAYS] = { "4 L; 8 L forward + 16 L backward",
                                               "4 (L/k + k - 1); 8 (L - L/k) more",
                                               "k = sqrt(L): the minimum", NULL, "one segment: all inputs again" };
    char kept[WAYS][40], products[WAYS][40];
    Result rows[WAYS + 1] = { [WAYS] = {0} };
    for (size_t i = 0; i < WAYS; i++) {
        snprintf(kept[i], sizeof kept[i], "%s: kept", way[i]);
        snprintf(products[i], sizeof products[i], "%s: products", way[i]);
        rows[i] = (Result){ way[i], formula[i], { kept[i], products[i] } };
    }
    results(run, columns, rows);
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1, "this is one device on paper: start it with one rank (NP=1, or --emulate 1)");
    Matrix dw[WAYS][LAYERS];
    real loss[WAYS];
    Count c[WAYS];
    for (size_t i = 0; i < WAYS; i++) c[i] = train((size_t)1 << i, dw[i], &loss[i]);
    print_chain(run, dw[0]);

    Arena a = arena(MEM_WORKSPACE);
    Snapshot *all = gradients(run, dw[0], &a);
    for (size_t i = 1; i < WAYS; i++) {
        Snapshot *again = gradients(run, dw[i], &a);
        char what[64];
        snprintf(what, sizeof what, "%s = keep everything", way[i]);
        check_equal(run, what, again, all);
        double got = (double)loss[i], want = (double)loss[0];
        check_numbers(run, what, "loss", &got, &want, 1, 0);
        snapshot_free(again);
    }
    snapshot_free(all);
    arena_free(&a);

    // Segments of k layers: L/k inputs stay, and while backward goes through a segment the k-1 inputs inside it come to
    // them. The sum is lowest where both are equally large: k near the square root of L. A layer that keeps n times its
    // input while backward is in it makes the inside k n: then L/k, the segments, are best near the square root of L n.
    for (size_t i = 0; i < WAYS; i++) {
        double L = LAYERS, k = (double)((size_t)1 << i);
        char name[48];
        snprintf(name, sizeof name, "%s: kept", way[i]);
        cost(run, name, "elements", 4 * (L / k + k - 1), (double)c[i].most);
        snprintf(name, sizeof name, "%s: products", way[i]);
        // all layers but the last of each segment walk forward a second time
        cost(run, name, "multiplications", 8 * L + 8 * (L - L / k) + 16 * L,
             (double)(c[i].forward_products + c[i].backward_products));
    }
    show(run);
    say(run, "\nHere a layer keeps its input only. Where it keeps n times its input, sqrt(L n) segments are best.\n"
             "A Transformer block keeps about 16 times its input (07.02): of 16 blocks, each is a segment.");
}

EXPERIMENT(by_hand, NULL);
