// ranks: 4
// level: core
// question: Which items of a block take much of its memory, and little work to compute again?
// vary: SEQUENCES 2..4, STEPS 2..3, layers 2..5, width 27|36|45, context 16..28, vocab 45..70
//
// Selective recomputation (Korthikanti et al. 2022, section 5), together with tensor parallelism as in the paper. Of
// all that a block keeps, only the attention probabilities grow with the square of the sequence: T elements per head
// and token, before dropout and after. They are dropped after the forward pass and computed again from the kept q and
// k. Everything else stays.
//
//     none        backward finds everything
//     selective   backward computes softmax(q k^T) and its dropout again; the heads' output is still there
//     full        backward runs the whole forward again, and with it two more all-reduces per block (chapter 03)
//
// Rank i holds its heads, hidden columns and vocabulary entries. 9 heads on 4 ranks: 3, 2, 2, 2. Left out: attention
// kernels that never write the probabilities down (they make this unnecessary), sequence parallelism.
#include "03_tensor_parallel/tensor_parallel.h"
#include "07_recompute/recompute.h"
#include "07_recompute/experiments/03_costs.h"
#include "judge/frame/training.h"
#include "judge/draw/picture.h"
#include <stdio.h>
#include <string.h>

// ================================ the technique ================================

// A selectively recomputed block is a layer around a block, l->inner. What the block keeps for backward is in s, and
// there the [T, T] items of its heads, probabilities before and after dropout, [B*H/tp*T, T] each, have an arena of
// their own: s->attention. shed() frees it.
static void selective_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    layer_forward(l->inner, b, x, y, s);
    l->inner->kind->shed(s);                       // 2 B H/tp T T elements less; q, k, v [B*T, C/tp] stay, as all else
}

// rebuild() computes them again, of this block only: q k^T, softmax, dropout with the same masks (functions of
// position). Every rank has q and k of its own heads: nothing is sent.
static void selective_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    // EXERCISE 07.03a (2 points): compute the probabilities again. Do what backward of l->inner does: the gradient of x
    // goes to dx, those of the parameters are added to theirs. layer_backward() reads what the inner layer's forward
    // kept in s, but its [T, T] items were shed. l->inner->kind lists what a layer can do (common/model/layer.h). What
    // backward still finds must not be computed again.
    l->inner->kind->rebuild(l->inner, b, s);       // B*T*T*C/tp multiplications more; the product with v is not redone
    layer_backward(l->inner, b, x, dy, dx, s);
    // END
}
const LayerKind recompute_selective = {
    .name = "selectively recomputed", .forward = selective_forward, .backward = selective_backward,
    .backward_inputs = layer_defer, .backward_weights = layer_deferred,
};

// The one call of this chapter: chapter 08 makes it, too. recompute_wrap_blocks() and full are in 02_full.c.
void recompute(Model *m, Recompute how) {
    if (how != RECOMPUTE_NONE)
        recompute_wrap_blocks(m, how == RECOMPUTE_FULL ? &recompute_full : &recompute_selective);
}

// ================================ the experiment ================================

static const ModelConfig tiny = { .layers = 3, .width = 27, .heads = 9, .context = 24, .vocab = 53, .dropout = 0.1 };
enum { SEQUENCES = 3, STEPS = 3, WAYS = RECOMPUTE_FULL + 1 };

// ---------------------------------------------------------------- training, the same for every way

typedef struct { Comm *tp; SelectiveMeasured seen; } Trained;

static StepResult step(void *trained, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Trained *r = trained;
    for (size_t i = 0; i < m->n_layers; i++) r->seen.counts[i] = (Counts){0};
    comm_ledger_reset(r->tp);
    model_zero_gradients(m);
    double loss = model_forward_backward(m, b) * b->token_weight;
    model_fold_tied(m);
    r->seen.calls = r->tp->ledger[COMM_ALL_REDUCE].calls;          // of the layers only: the norm's comes after
    r->seen.bytes = r->tp->ledger[COMM_ALL_REDUCE].bytes;
    double norm = model_grad_norm(m, r->tp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss, norm };
}

static SelectiveMeasured train(Comm *tp, Recompute how, const Training *t, Trajectory *c) {
    Trained r = { .tp = tp };
    SelectiveMeasured *seen = &r.seen;
    Model *m = model_describe(&t->model, model_layers(&t->model));
    tensor_parallel(m, tp);                        // chapter 03: cuts parameters, replaces layers
    counted_wrap_blocks(m, seen->counts);
    recompute(m, how);                             // wraps the blocks, whatever they are by now
    model_allocate(m);
    training_run(c, m, t, 1, 0, step, &r);         // the same tokens on every rank
    seen->timing = picture_timing(c->run);
    seen->computing = counted_computing();
    seen->parameters = memory_now(MEM_PARAMETERS);
    seen->gradients = memory_now(MEM_GRADIENTS);
    seen->optimizer = memory_now(MEM_OPTIMIZER);
    seen->peak = memory_peak(MEM_ACTIVATIONS);
    model_free(m);
    return r.seen;
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, Recompute how, const SelectiveMeasured *seen, Trajectory *got, Trajectory *none,
                    Trajectory *unsplit) {
    static const char *const claim[WAYS] = { "one forward a block", "attention once more, nothing else",
                                             "one forward more a block" };
    bool counted = true;
    for (size_t i = 1; i <= tiny.layers; i++) {
        counted &= seen->counts[i].forwards == (how == RECOMPUTE_FULL ? 2 : 1);
        counted &= seen->counts[i].rebuilds == (how == RECOMPUTE_SELECTIVE ? 1 : 0);
    }
    check_true(run, selective_way_name[how], claim[how], counted);
    char what[64];
    snprintf(what, sizeof what, "%s = none", selective_way_name[how]);
    // Tensor parallelism adds partial sums: a tolerance, as in chapter 03. Recomputation does the same operations on
    // the same elements: every bit.
    if (how == RECOMPUTE_NONE) training_compare(run, "none = unsplit", got, unsplit, LIMIT_ROUNDING);
    else training_compare(run, what, got, none, 0);
}

static void selective(Run *run) {
    Comm *tp = comm_split(run->world, 0, run->world->rank, "tp");
    Training t = { .model = tiny, .data = data_synthetic(tiny.vocab, tiny.context, run->seed), .steps = STEPS,
                   .sequences = SEQUENCES, .micro_batches = 1, .optimizer = sgd(0.1),
                   .recorded = true, .watched = MEM_ACTIVATIONS };
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    config_require(&t.model);
    say(run, "%zu blocks, C = %zu, H = %zu, T = %zu, V = %zu; one micro-batch of %d sequences; %zu ranks",
        tiny.layers, tiny.width, tiny.heads, tiny.context, tiny.vocab, SEQUENCES, tp->size);
    Trajectory got[WAYS], unsplit = training_unsplit(run, &t, 1);
    SelectiveMeasured seen[WAYS];
    for (Recompute how = RECOMPUTE_NONE; how <= RECOMPUTE_FULL; how++) {
        got[how] = trajectory_new(run, &t);
        seen[how] = train(tp, how, &t, &got[how]);
        char title[64];
        snprintf(title, sizeof title, "recompute %s", selective_way_name[how]);
        bool drawn = !strcmp(option_text(run, "draw"), selective_way_name[how]);
        picture_show(run, title,
                     PICTURE_MEMORY | PICTURE_SAME_SCALE | (drawn ? 0 : PICTURE_NO_FILES | PICTURE_DETAIL));
        if (option_flag(run, "verbose")) picture_summary(run, &seen[how].timing);
        selective_costs(run, &t, how, &seen[how]);
        compare(run, how, &seen[how], &got[how], &got[RECOMPUTE_NONE], &unsplit);
    }
    selective_results(run, &t, seen);
    selective_published(run, &tiny);
    for (size_t w = 0; w < WAYS; w++) trajectory_free(&got[w]);
    trajectory_free(&unsplit);
    data_free(&t.data);
    comm_free(tp);
}

static const Option options[] = {
    { "dropout", "X", "0.1", "probability of dropping an element" },
    { "draw", "none|selective|full", "selective", "the way whose step is drawn, here and in files" },
    {0},
};
EXPERIMENT(selective, options);
