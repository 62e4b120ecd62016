// Trains the chain of 01_by_hand.c in five ways, which keep different inputs. Checks that the
// gradients are equal in every bit, and that the elements kept and the multiplications match the
// formulas.
#include "07_recompute/by_hand.h"
#include "judge/frame/lesson.h"

enum { WAYS = 5, LOSS = 4 * LAYERS, NUMBERS = LOSS + 1 };

static const char *const way[WAYS] = { "keep everything", "keep every second", "keep every 4th",
                                       "keep every 8th", "keep every 16th" };

static void print_matrix(Run *run, const char *name, size_t layer, const Matrix *m) {
    say(run, "  %s%-2zu  [%8.5f %8.5f; %8.5f %8.5f]", name, layer, (double)m->a[0][0],
        (double)m->a[0][1], (double)m->a[1][0], (double)m->a[1][1]);
}
static void print_chain(Run *run, const Matrix dw[LAYERS]) {
    Matrix x = chain_start, y;
    Count unused = { 0 };
    say(run,
        "%d layers y = x W. Backward needs each layer's x: dW = x^T dy, dx = dy W^T. Layers 0 and "
        "1:",
        LAYERS);
    print_matrix(run, " x", 0, &x);
    for (size_t l = 0; l < 2; l++) {
        chain_forward(&unused, &y, &x, &chain_weights[l]);
        print_matrix(run, " W", l, &chain_weights[l]);
        print_matrix(run, " x", l + 1, &y);
        x = y;
    }
    say(run,
        "Gradients of W1 and W0 in the chain of %d layers. The loss is the sum of x%d's elements:",
        LAYERS, LAYERS);
    for (size_t l = 2; l-- > 0;) print_matrix(run, "dW", l, &dw[l]);
}

static void show(Run *run) {
    static const char *const columns[] = { "elements, peak", "multiplications", NULL };
    static const char *const formula[WAYS] = {
        "4 L elements; 24 L multiplications", "4(L/k + k - 1) elements; 8(L - L/k) more",
        "the same; fewest at k = sqrt(L)", "the same; longer segments", "the same; only x0 is kept"
    };
    Result rows[WAYS + 1] = { [WAYS] = { 0 } };
    for (size_t i = 0; i < WAYS; i++)
        rows[i] = (Result){ way[i],
                            formula[i],
                            { page_text(run, "every%zu.kept", (size_t)1 << i),
                              page_text(run, "every%zu.products", (size_t)1 << i) } };
    say(run,
        "L = %d layers; each input has 4 elements. Keeping every k-th input makes L/k "
        "segments.",
        LAYERS);
    results(run, columns, rows);
}

static void conclude(Run *run, const Count c[WAYS]) {
    size_t best = 0;
    for (size_t i = 1; i < WAYS; i++)
        if (c[i].most < c[best].most) best = i;
    double all = (double)(c[0].forward_products + c[0].backward_products);
    double more = (double)(c[best].forward_products + c[best].backward_products) / all - 1;
    say(run,
        "If a layer's items take n times its input, the peak is about L/k + k n inputs, least "
        "at\nk = sqrt(L/n). A Transformer block has n = 16 or more, so k = 1 is best up to L = 32 "
        "blocks.");
    say_answer(run,
               "Backward needs every layer's input, kept or computed again. Of %d inputs it "
               "is best to keep every %zuth: %zu elements at the peak instead of %zu.",
               LAYERS, (size_t)1 << best, c[best].most, c[0].most);
    say_cost(run, "%.0f %% more multiplications; the gradients are equal in every bit.",
             100 * more);
    say_use_when(run, "the inputs of all layers do not fit in memory together.");
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1,
            "this is one device on paper: start it with one rank (NP=1, or --emulate 1)");
    Matrix dw[WAYS][LAYERS];
    double result[WAYS][NUMBERS];
    Count c[WAYS];
    for (size_t i = 0; i < WAYS; i++) {
        real loss;
        c[i] = by_hand_chain_train((size_t)1 << i, dw[i], &loss);
        for (size_t k = 0; k < LOSS; k++) result[i][k] = dw[i][k / 4].a[k / 2 % 2][k % 2];
        result[i][LOSS] = loss;
    }
    print_chain(run, dw[0]);
    for (size_t i = 1; i < WAYS; i++)
        check_numbers(run, page_text(run, "%s = keep everything", way[i]), "all dW, and the loss",
                      result[i], result[0], NUMBERS, 0);

    // With segments of k layers, L/k inputs are held when backward begins. Backward begins with the
    // last segment, whose other k - 1 inputs are then held, too. So the peak is L/k + k - 1 inputs,
    // which is least near k = square root of L.
    for (size_t i = 0; i < WAYS; i++) {
        double L = LAYERS, k = (double)((size_t)1 << i);
        // All layers but the last of each segment run forward a second time.
        check_costs(run, page_text(run, "every%zu.%%s", (size_t)1 << i),
                    page_text(run, "%s: %%s", way[i]),
                    (CostRow[]){ { "kept", "kept", "elements", BY_FORMULA(4 * (L / k + k - 1)),
                                   (double)c[i].most },
                                 { "products", "products", "multiplications",
                                   BY_FORMULA(8 * L + 8 * (L - L / k) + 16 * L),
                                   (double)(c[i].forward_products + c[i].backward_products) },
                                 { 0 } });
    }
    show(run);
    conclude(run, c);
}

static const Option options[] = {
    REALS_ONLY("this lesson computes with plain C arrays, whose elements are reals"),
    { 0 },
};
EXPERIMENT(by_hand, options);
