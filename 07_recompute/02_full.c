// ranks: 4
// level: core
// question: How much memory does it save to keep only a layer's input, and what does the second forward cost?
// vary: layers 7..11, width 12|18|24, context 8..13, vocab 31..50
//
// Full recomputation (Chen et al. 2016) where it is needed most: in a GPipe pipeline, where stage i must hold m
// micro-batches at once, from their forward to their backward. One rank is a pipeline of one stage: the plain case.
// Three ways on the same ranks:
//
//     way                  kept for m micro-batches                   and, for one, while backward is in it
//     keep everything      every item that backward reads             -
//     recompute blocks     the input of every block                   everything of one block
//     recompute stages     the input of the stage (as GPipe does)     everything of the stage
//
// Who holds what: rank i holds the blocks of stage i. Left out: keeping as many micro-batches as fit and recomputing
// the rest.
#include "04_pipeline_naive/pipeline.h"
#include "07_recompute/recompute.h"
#include "07_recompute/experiments/02_costs.h"
#include "judge/draw/picture.h"
#include <stdio.h>
#include <string.h>

// ================================ the technique ================================

// ---------------------------------------------------------------- a block that keeps only its input

// A recomputed block is a layer around a layer, l->inner. x, y, dy and dx are [B*T, C]. x is the output of the layer
// below, which whoever walks the list keeps until backward: so the block itself need not keep anything.
static void full_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)s;                                       // stays empty
    Saved forgotten = saved_new();
    layer_forward(l->inner, b, x, y, &forgotten);  // its items: B*T (15C + 4 + 2HT) elements,
    saved_free(&forgotten);                        // and they are gone
}

// The same forward once more, now into s, and then the backward that reads s. The walker frees s when this returns. The
// dropout is the same, too: a mask is a function of (seed, step, layer, position), not of how often it was asked for.
// What the inner layer sends in its forward it sends again: a tensor-parallel block its two all-reduces of [B*T, C]
// (chapter 03), a plain one nothing.
static void full_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    // EXERCISE 07.02a (3 points): compute again. Do what backward of l->inner does: the gradient of x goes to dx, those
    // of the parameters are added to theirs. layer_backward() reads the items of the inner layer's forward in s, and s
    // is empty; layer_forward() puts them there. It writes the layer's output, too, which nobody needs: a tensor of
    // MEM_WORKSPACE, of dy's shape, that is freed before backward begins.
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor y = tensor_new(&scratch, dy.rows, dy.cols);
    layer_forward(l->inner, b, x, y, s);
    arena_free(&scratch);
    layer_backward(l->inner, b, x, dy, dx, s);
    // END
}
const LayerKind recompute_full = {
    .name = "recomputed", .forward = full_forward, .backward = full_backward,
    .backward_inputs = layer_defer, .backward_weights = layer_deferred,
};

// ---------------------------------------------------------------- all blocks of a model

// A block inside of a layer that cannot compute it again: to pass over it would drop the technique without a message.
static bool hides_a_block(const Layer *l) {
    if (l->kind->rebuild) return false;
    for (size_t i = 0; i < l->n_inner; i++)
        if (l->inner[i].kind->rebuild || hides_a_block(&l->inner[i])) return true;
    return false;
}

// A block is known by its `rebuild` (what 03_selective calls; a kind of layer has it as its last member), which the
// embedding and the head do not have. layer_wrap() makes the layer a `wrapper`, and what it was becomes its inner
// layer.
void recompute_wrap_blocks(Model *m, const LayerKind *wrapper) {
    for (size_t i = 0; i < m->n_layers; i++)
        if (hides_a_block(&m->layers[i]))
            fault("recompute() of layer %zu (%s): blocks are wrapped before anything else wraps their layers, "
                  "zero_allocate() for example", m->layers[i].number, m->layers[i].kind->name);
    for (size_t i = 0; i < m->n_layers; i++)
        if (m->layers[i].kind->rebuild) layer_wrap(&m->layers[i], wrapper, NULL);
}

// ---------------------------------------------------------------- a whole stage, as GPipe does it

// The same idea once more, around several neighbouring layers, here all of a stage: one layer whose forward walks the
// inner ones and forgets, and whose backward walks them forward again and then back. The stage received x [B*T, C] in
// its forward and the executor keeps it, so the second walk receives nothing, and its output, which the next stage has
// had, is not sent again.
static void range_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)s;
    activation_stash_free(walk_forward(l->inner, l->n_inner, b, x, y));      // what the layers keep is forgotten
}
static ActivationStash *forward_again(Layer *l, const Batch *b, Tensor x) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor y = tensor_shaped(&scratch, layer_output(l, b));        // computed again, and not needed
    ActivationStash *f = walk_forward(l->inner, l->n_inner, b, x, y);
    arena_free(&scratch);
    return f;
}
static void range_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)s;
    walk_backward(l->inner, l->n_inner, b, forward_again(l, b, x), dy, dx);
}
// Its halves, for pipelines that take them apart: the second walk's items stay from one to the other.
static void range_backward_inputs(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    s->inner = forward_again(l, b, x);
    walk_backward_inputs(l->inner, l->n_inner, b, s->inner, dy, dx);
}
static void range_backward_weights(Layer *l, const Batch *b, Tensor x, Saved *s) {
    (void)x;
    walk_backward_weights(l->inner, l->n_inner, b, s->inner);
}
static const LayerKind recomputed_range = {
    .name = "recomputed range", .forward = range_forward, .backward = range_backward,
    .backward_inputs = range_backward_inputs, .backward_weights = range_backward_weights,
};

// One recomputed layer in place of layers [lo, lo + n) of a described model.
void recompute_wrap_range(Model *m, size_t lo, size_t n) { model_wrap_range(m, lo, n, &recomputed_range, NULL); }

// ================================ the experiment ================================

static const ModelConfig tiny = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1 };
static const char *const way_option[WAYS] = { "keep", "blocks", "stages" };

// ---------------------------------------------------------------- training, the same for every way

typedef struct { Comm *pp, *tied; Way way; FullMeasured seen; } Pipeline;      // all stages; {first, last}, or NULL

// One step of my stage: m forwards, m backwards (pipeline_run is chapter 04's executor, and sends their messages), the
// tied sum, SGD. The norm adds squares over the stages.
static StepResult step(void *pipeline, Model *m, Optimizer *o, const Training *t, const Batch *batch) {
    Pipeline *p = pipeline;
    memset(p->seen.counts, 0, sizeof p->seen.counts);
    comm_ledger_reset(p->pp);
    if (p->tied) comm_ledger_reset(p->tied);
    model_zero_gradients(m);
    Schedule s = schedule_gpipe(p->pp->size, t->micro_batches, p->pp->rank);
    // sends [B*T, C] per micro-batch: an activation to the next stage, its gradient to the one before
    double loss = pipeline_run(p->pp, m, &s, batch, t->micro_batches).loss;
    schedule_free(&s);
    pipeline_tied_sum(m, p->tied);                 // first and last stage: all-reduce of wte's gradient, V*C*e bytes
    comm_all_reduce_doubles(p->pp, &loss, 1);      // zero on all stages but the last
    double norm = model_grad_norm(m, p->pp);       // an all-reduce of one double per tensor of the model
    optimizer_step(o, m, 1);
    return (StepResult){ loss * batch[0].token_weight, norm };
}

static FullMeasured train(Comm *pp, Way way, const Training *t, Trajectory *c) {
    Pipeline p = { .pp = pp, .tied = pipeline_tied_group(pp), .way = way };
    Model *m = model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, pp->size, pp->rank));
    counted_wrap_blocks(m, p.seen.counts);
    if (way == RECOMPUTE_BLOCKS) recompute_wrap_blocks(m, &recompute_full);
    if (way == RECOMPUTE_STAGES) recompute_wrap_range(m, 0, m->n_layers);
    model_allocate(m);
    training_run(c, m, t, 1, 0, step, &p);
    FullMeasured *seen = &p.seen;
    seen->timing = picture_timing(c->run);
    seen->computing = counted_computing();
    seen->parameters = memory_now(MEM_PARAMETERS);
    seen->gradients = memory_now(MEM_GRADIENTS);
    seen->optimizer = memory_now(MEM_OPTIMIZER);
    seen->peak = memory_peak(MEM_ACTIVATIONS);
    seen->sends = pp->ledger[COMM_SEND].calls;
    seen->send_bytes = pp->ledger[COMM_SEND].bytes;
    seen->other_bytes = pp->ledger[COMM_ALL_REDUCE].bytes + (p.tied ? comm_bytes_sent(p.tied) : 0);
    model_free(m);
    comm_free(p.tied);
    return p.seen;
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, const Training *t, Way way, const FullMeasured *seen, Trajectory *got, Trajectory *want) {
    char what[64];
    snprintf(what, sizeof what, "%s = unsplit", full_way_name[way]);
    // The same layers with the same inputs and the same dropout, in the same order: equal in every bit.
    training_compare(run, what, got, want, 0);
    size_t p = run->world->size, rank = run->world->rank;
    size_t blocks = range_size(shard_range(t->model.layers, p, rank)), first = rank == 0;
    size_t times = way == KEEP_EVERYTHING ? 1 : 2;
    bool each = true;
    for (size_t i = 0; i < blocks; i++) each &= seen->counts[first + i].forwards == t->micro_batches * times;
    const char *claim = times == 1 ? "each block: one forward" : "each block: exactly one forward more";
    check_true(run, full_way_name[way], claim, each);
}

static void full(Run *run) {
    require_one_link(run);
    Comm *pp = comm_split(run->world, 0, run->world->rank, "pp");
    Training t = { .model = tiny, .steps = option_size(run, "steps"), .sequences = option_size(run, "batch"),
                   .micro_batches = option_size(run, "micro-batches"), .optimizer = sgd(0.1),
                   .recorded = true, .watched = MEM_ACTIVATIONS };
    REQUIRE(pp->size <= tiny.layers, "%zu stages need as many blocks; the model has %zu: start at most %zu ranks",
            pp->size, tiny.layers, tiny.layers);
    REQUIRE(t.steps > 0 && t.micro_batches > 0, "--steps and --micro-batches must be at least 1");
    REQUIRE(t.sequences >= t.micro_batches, "--batch %zu leaves some of the %zu micro-batches empty: choose at least "
            "%zu", t.sequences, t.micro_batches, t.micro_batches);
    t.data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    config_require(&t.model);

    say(run, "%zu blocks on %zu stages, C = %zu, H = %zu, T = %zu, V = %zu; %zu sequences in %zu micro-batches",
        tiny.layers, pp->size, tiny.width, tiny.heads, tiny.context, tiny.vocab, t.sequences, t.micro_batches);
    // One device that keeps everything, and takes the same micro-batches, one by one.
    Trajectory unsplit = training_unsplit(run, &t, 1);
    FullMeasured seen[WAYS];
    for (Way way = 0; way < WAYS; way++) {
        Trajectory got = trajectory_new(run, &t);
        seen[way] = train(pp, way, &t, &got);
        bool drawn = !strcmp(option_text(run, "draw"), way_option[way]);
        picture_show(run, full_way_name[way],
                     PICTURE_MEMORY | PICTURE_SAME_SCALE | (drawn ? 0 : PICTURE_NO_FILES | PICTURE_DETAIL));
        if (option_flag(run, "verbose")) picture_summary(run, &seen[way].timing);
        full_costs(run, &t, way, &seen[way]);
        compare(run, &t, way, &seen[way], &got, &unsplit);
        trajectory_free(&got);
    }
    full_results(run, seen);
    say(run, "One step of one way is drawn; of another: --draw keep, blocks or stages.");
    say_detail(run, "%zu steps, loss %.4f -> %.4f", t.steps, unsplit.loss[0], unsplit.loss[t.steps - 1]);
    trajectory_free(&unsplit);
    data_free(&t.data);
    comm_free(pp);
}

static const Option options[] = {
    { "batch", "N", "7", "sequences in a step" },
    { "micro-batches", "N", "3", "micro-batches of a step" },
    { "steps", "N", "3", "training steps" },
    { "dropout", "X", "0.1", "probability of dropping an element" },
    { "draw", "keep|blocks|stages", "blocks", "the way whose step is drawn, here and in files" },
    {0},
};
EXPERIMENT(full, options);
