// ranks: 8
// level: extra
// question: What changes in SUMMA when d grids of ranks share the same blocks of weights?
// vary: ranks 4|18, BATCH 3..6
//
// 2.5D tensor parallelism: q x q x d ranks, d layers of a q x q grid. The tokens are cut in d q row blocks, so every
// matrix of activations in d q x q blocks; layer k has row blocks k q to k q + q - 1. Weights are cut in q x q blocks,
// as in SUMMA, and every layer has all of them. Tesseract: Wang et al. 2021 (arXiv 2105.14500), section 3, with d <= q;
// d = 1 is SUMMA, and as nothing crosses the layers before the gradients, d is a data-parallel axis in the grid.
//
// This file has only what differs from 09_summa.
#include "03_tensor_parallel/tensor_parallel.h"
#include "03_tensor_parallel/experiments/10_costs.h"
#include "judge/draw/picture.h"
#include "judge/frame/training.h"

// ================================ the technique ================================
// Forward and dX are SUMMA inside each layer, on 1/d of its tokens (summa_batch takes them): of Y = X A and
// dX = dY A^T, rank (i, j, k) makes the blocks of its own rows, and layers need nothing from each other.
// dA = X^T dY is a sum over ALL tokens:
//
//     dA(l,j) = sum over layers k of  X_k(0,l)^T dY_k(0,j) + X_k(1,l)^T dY_k(1,j) + ...
//                                     SUMMA's reduce, down a column of layer k
//
// So each layer has a partial sum of every gradient of weights and vectors; an all-reduce over depth makes it whole.

TesseractSides tesseract_sides(size_t ranks, size_t depth) {
    size_t q = 0, d = depth ? depth : 1;
    for (; d <= (depth ? depth : ranks); d++) {
        for (q = d; (q + 1) * (q + 1) * d <= ranks;) q++;  // d <= q
        if (q * q * d == ranks) return (TesseractSides){ q, d };
    }
    if (depth)
        usage_error("%zu ranks are no q x q x %zu grid with a q of %zu or more: start %zu or %zu ranks, or choose "
                    "another --depth", ranks, depth, depth, q * q * depth, (q + 1) * (q + 1) * depth);
    usage_error("%zu ranks are no q x q x d grid with d up to q: start 1, 4, 8, 9, 16, 18, 25, 27 or 32 ranks", ranks);
}

CommGrid tesseract_grid(Comm *ranks, size_t depth) {
    TesseractSides n = tesseract_sides(ranks->size, depth);
    return comm_grid(ranks, n.q, n.q, n.depth);
}

void tesseract(Model *m, const CommGrid *g) {
    summa(m, g);                                           // the same blocks in every layer
    // EXERCISE 03.10a (3 points): what the layers share. Every parameter of every unit (m->units[i].params[k]) is held
    // by the g->depth ranks of g->in_depth, and each of them has seen its own layer's tokens only. Say over whom its
    // gradient is a partial sum (Param.partial), and whose copy counts in the gradient norm (Param.in_norm).
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params; k++) {
            m->units[i].params[k].partial = g->in_depth;   // model_partial_sums: an all-reduce of my block over depth
            m->units[i].params[k].in_norm = g->layer == 0; // else the norm would count every element d times
        }
    // END
}

// ================================ the experiment ================================

enum { STEPS = 3, BATCH = 4 };                             // sequences: one for each of 2 x 2 rows of ranks
static const double max_norm = 0.5;                        // small enough that every step is clipped

typedef struct { Comm *world; const CommGrid *g; SummaMeasured r; } Measuring;

static StepResult step(void *measuring, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Measuring *x = measuring;
    model_zero_gradients(m);
    summa_measure_begin(x->g, &x->r);
    double loss = model_forward_backward(m, b) * b->token_weight;  // of my row's sequences in my layer
    model_partial_sums(m);                                         // over depth, a unit at a time
    summa_measure_end(x->g, &x->r);
    model_fold_tied(m);
    if (x->g->col > 0) loss = 0;                                   // the ranks of a row have the same: counted once
    comm_all_reduce_doubles(x->world, &loss, 1);
    double norm = model_grad_norm(m, x->world);
    optimizer_step(o, m, clip_factor(norm, t->clip));              // every layer makes the same update
    return (StepResult){ loss, norm };
}

static void train(void *measuring, const Training *t, Trajectory *c) {
    Measuring *x = measuring;
    Model *m = model_describe(&t->model, model_layers(&t->model));
    tesseract(m, x->g);
    model_allocate(m);
    training_run(c, m, t, 1, 0, step, x);                          // every rank gets all tokens, and takes its own
    summa_measure_state(&x->r, m);
    model_free(m);
}

static void tesseract_lesson(Run *run) {
    require_one_link(run);
    CommGrid g = tesseract_grid(run->world, option_size(run, "depth"));
    ModelConfig c = { .layers = option_size(run, "layers"), .width = option_size(run, "width"),
                      .heads = option_size(run, "heads"), .context = option_size(run, "context"),
                      .vocab = option_size(run, "vocab"), .dropout = option_real(run, "dropout"),
                      .seed = run->seed };
    config_require(&c);
    Training t = { .model = c, .data = data_synthetic(c.vocab, c.context, run->seed), .steps = STEPS,
                   .sequences = option_given(run, "batch") ? option_size(run, "batch") : BATCH, .micro_batches = 1,
                   .clip = max_norm, .recorded = true, .watched = MEM_ACTIVATIONS };
    Measuring measuring = { .world = run->world, .g = &g };
    training_both(run, "Tesseract = unsplit", &t, train, &measuring);  // SGD, then AdamW
    tesseract_costs(run, &g, &c, t.sequences, &measuring.r);
    data_free(&t.data);
    comm_grid_free(&g);
}

static const Option options[] = {
    { "depth", "N", "0", "layers of the grid, at most its width; 0: the fewest that make one of all ranks" },
    { "layers", "N", "2", "blocks" },
    { "width", "N", "16", "columns; a multiple of --heads" },
    { "heads", "N", "4", "attention heads; at least one a column of the grid" },
    { "context", "N", "8", "positions of a sequence" },
    { "vocab", "N", "64", "vocabulary entries" },
    { "batch", "N", NULL, "sequences of a step, 4; a row of the grid may have none" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    {0},
};
EXPERIMENT(tesseract_lesson, options);
