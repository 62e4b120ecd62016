// ranks: 1
// level: core
// question: What must the forward pass keep for the backward pass, and what can it forget and compute again?
//
// Recomputation on paper: a chain of four layers, y = (x W) squared element by element, on 2x2 matrices, with plain
// arrays and bare loops. The derivative of x W with respect to W needs x; the derivative of a square needs what was
// squared:
//
//     forward    z = x W         y = z * z
//     backward   dz = 2 z * dy   dW = x^T dz   dx = dz W^T        needs x and z of this layer
//
//     x0 --[1]-- x1 --[2]-- x2 --[3]-- x3 --[4]-- x4      the loss is the sum of x4
//
// Three ways to have x and z when backward comes: keep both of every layer; keep x of every layer; keep x of every
// second layer, and walk two layers forward again before going back through them. All give the same gradients in every
// bit, because the second forward does the same additions in the same order. What differs is counted: numbers kept at
// once, and multiplications.
#include "common/lesson/lesson.h"
#include <stdio.h>
#include <string.h>

enum { LAYERS = 4 };
typedef struct { real a[2][2]; } Matrix;           // 4 numbers

// What a run counts. kept is what is held for backward at the moment, most its maximum.
typedef struct { size_t forward_products, backward_products, kept, most; } Count;
static void keep(Count *c, size_t numbers) {
    c->kept += numbers;
    if (c->most < c->kept) c->most = c->kept;
}

// ---------------------------------------------------------------- one layer

static void forward(Count *c, Matrix *z, Matrix *y, const Matrix *x, const Matrix *w) {
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            z->a[i][j] = 0;
            for (int k = 0; k < 2; k++) z->a[i][j] += x->a[i][k] * w->a[k][j];
            y->a[i][j] = z->a[i][j] * z->a[i][j];
        }
    c->forward_products += 8 + 4;                  // 2*2*2 in the product, 4 squares
}

static void backward(Count *c, Matrix *dx, Matrix *dw, const Matrix *x, const Matrix *z, const Matrix *w, Matrix dy) {
    Matrix dz;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) dz.a[i][j] = 2 * z->a[i][j] * dy.a[i][j];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            dw->a[i][j] = dx->a[i][j] = 0;
            for (int k = 0; k < 2; k++) {
                dw->a[i][j] += x->a[k][i] * dz.a[k][j];
                dx->a[i][j] += dz.a[i][k] * w->a[j][k];
            }
        }
    c->backward_products += 8 + 8 + 8;             // two products, and two factors for each square
}

// ---------------------------------------------------------------- the chain, keeping every n-th input

static const Matrix start = { { { 1, 0.5f }, { -0.5f, 1 } } };
static const Matrix weights[4] = {                 // of layers 1 to 4, and again from the first if there were more
    { { { 1, -0.5f }, { 0.5f, 1 } } }, { { { 0.5f, 1 }, { -1, 0.5f } } }, { { { 1, 0.5f }, { -0.5f, 1 } } },
    { { { 0.5f, -1 }, { 1, 0.5f } } },
};

// every = 0: keep x and z of every layer. Otherwise x of layers 0, every, 2*every, ...
static Count train(size_t every, Matrix dw[LAYERS], real *loss) {
    Count c = {0};
    // an element of x or z is only read where it was kept or computed again
    Matrix x[LAYERS + 1], z[LAYERS], dy;
    const Matrix *w[LAYERS];
    for (size_t l = 0; l < LAYERS; l++) w[l] = &weights[l % 4];
    x[0] = start;
    for (size_t l = 0; l < LAYERS; l++) {
        forward(&c, &z[l], &x[l + 1], &x[l], w[l]);
        if (every == 0) keep(&c, 4 + 4);
        else if (l % every == 0) keep(&c, 4);
    }
    *loss = 0;
    for (int i = 0; i < 4; i++) *loss += x[LAYERS].a[i / 2][i % 2];
    for (int i = 0; i < 4; i++) dy.a[i / 2][i % 2] = 1;
    if (every)                                     // forget: what follows must not be able to read it
        for (size_t l = 0; l < LAYERS; l++) {
            memset(&z[l], 0xff, sizeof z[l]);      // a NaN
            if (l % every) memset(&x[l], 0xff, sizeof x[l]);
        }

    size_t segment = every ? every : 1;
    // segments, last first; wraps below 0
    for (size_t lo = (LAYERS - 1) / segment * segment; lo < LAYERS; lo -= segment) {
        size_t hi = lo + segment < LAYERS ? lo + segment : LAYERS;
        for (size_t l = lo; every && l < hi; l++) {                                        // the second forward
            Matrix y;
            forward(&c, &z[l], &y, &x[l], w[l]);
            if (l + 1 < hi) x[l + 1] = y;
            keep(&c, l + 1 < hi ? 4 + 4 : 4);      // its z, and its y where a layer of the segment needs it
        }
        for (size_t l = hi; l-- > lo;) {
            backward(&c, &dy, &dw[l], &x[l], &z[l], w[l], dy);
            c.kept -= 4 + 4;
        }
    }
    return c;
}

// ---------------------------------------------------------------- three ways, compared

static Snapshot *gradients(Run *run, const Matrix dw[LAYERS], Arena *a) {
    Snapshot *s = snapshot_new(run);
    for (size_t l = 0; l < LAYERS; l++) {
        char name[16];
        snprintf(name, sizeof name, "dW%zu", l + 1);
        Tensor t = tensor_new(a, 2, 2);
        tensor_upload(t, &dw[l].a[0][0]);
        snapshot_put(s, name, 2, 2, t, 0, 0);
    }
    return s;
}

static void print_matrix(Run *run, const char *name, size_t layer, const Matrix *m) {
    say(run, "  %s%zu   %9.5f %9.5f   %9.5f %9.5f", name, layer, (double)m->a[0][0], (double)m->a[0][1],
        (double)m->a[1][0], (double)m->a[1][1]);
}
static void print_chain(Run *run) {
    Matrix x = start, z, y;
    Count unused = {0};
    say(run, "row by row:\n");
    print_matrix(run, "x", 0, &x);
    for (size_t l = 0; l < LAYERS; l++) {
        forward(&unused, &z, &y, &x, &weights[l % 4]);
        print_matrix(run, "W", l + 1, &weights[l % 4]);
        print_matrix(run, "z", l + 1, &z);
        print_matrix(run, "x", l + 1, &y);
        x = y;
    }
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1, "this is one device on paper: start it with one rank (NP=1, or --emulate 1)");
    static const char *const way[3] = { "keep everything", "keep every input", "keep every second input" };
    Matrix dw[3][LAYERS];
    real loss[3];
    Count c[3];
    print_chain(run);
    for (size_t i = 0; i < 3; i++) c[i] = train(i, dw[i], &loss[i]);
    for (size_t l = 0; l < LAYERS; l++) print_matrix(run, "dW", l + 1, &dw[0][l]);
    say(run, "  way                       numbers kept   forward products   backward products");
    for (size_t i = 0; i < 3; i++)
        say(run, "  %-24s %13zu %18zu %19zu", way[i], c[i].most, c[i].forward_products, c[i].backward_products);

    Arena a = arena(MEM_WORKSPACE);
    Snapshot *all = gradients(run, dw[0], &a);
    for (size_t i = 1; i < 3; i++) {
        Snapshot *again = gradients(run, dw[i], &a);
        const char *what = i == 1 ? "keep every input = keep everything" : "keep every second = keep everything";
        check_equal(run, what, again, all);
        double got = (double)loss[i], want = (double)loss[0];
        check_numbers(run, way[i], "loss", &got, &want, 1, 0);
        snapshot_free(again);
    }
    snapshot_free(all);
    arena_free(&a);

    // Segments of k layers: 4 L/k inputs stay; during a segment's backward its k z's and the k-1 inputs inside it come
    // to them. At 4 layers k = 1 and k = 2 cost the same; the longer the chain, the more a k near its square root
    // saves.
    for (size_t k = 0; k < 3; k++) {
        double kept = k ? 4 * (LAYERS / (double)k) + 4 * (double)k + 4 * (double)(k - 1) : 8 * LAYERS;
        cost(run, way[k], "numbers", kept, (double)c[k].most);
    }
    // one forward is 12 products a layer; recomputing is exactly one more
    for (size_t k = 0; k < 3; k++)
        cost(run, way[k], "products", 12 * LAYERS * (k ? 2 : 1) + 24 * LAYERS,
             (double)(c[k].forward_products + c[k].backward_products));
}

LESSON(by_hand, NULL);
