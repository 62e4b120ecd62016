// test_pipeline.c: runs lists in the executor, also lists that occur in no lesson of chapters 04
// and 05. A stage may have several chunks of a model, or split only some backwards. The test uses
// real models of the smallest sizes, on virtual ranks. The gradients must have the bits of gradient
// accumulation on one device. Also tests versions of weights, wrapped layers, functions of chapter
// 05, and the rule of all schedules, pipe_op_needs().
//
// ranks: 1
// level: core
// question: Does the executor run every schedule that the rule of pipelines allows?
#include "04_pipeline_naive/experiments/timeline.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "08_3d/zero_step.h"
#include "07_recompute/recompute.h"
#include "common/device/device.h"
#include "common/model/attention.h"
#include "tap.h"
#include "tests/makespan.h"
#include "common/model/data.h"
#include "judge/frame/lesson.h"
#include "tests/gradients.h"

// ---------------------------------------------------------------- lists

// Returns the list of a text such as "F0c1 B2 I0 W0". F, B and U are a forward, a backward and an
// update. I and W are a backward of inputs and of weights. The number of the micro-batch follows,
// and then c and the chunk. Without c the chunk is 0.
static Schedule list_of(const char *text) {
    Schedule s = { 0 };
    for (char *end; *text; text = end + (*end == ' ')) {
        static const char letters[] = "FBIWU";
        PipeOp op = { .what = (PipeWhat)(strchr(letters, *text) - letters) };
        op.micro_batch = strtoul(text + 1, &end, 10);
        if (*end == 'c') op.chunk = strtoul(end + 1, &end, 10);
        schedule_add_op(&s, op);
    }
    return s;
}

// Checks that the op that takes the result of an op (pipe_op_feeds) needs this op (pipe_op_needs).
// All chunks but one send a result forward, and all chunks but one send a gradient back.
static void test_rule(void) {
    bool inverse = true, counted = true;
    for (size_t p = 1; p <= 5; p++)
        for (size_t v = 1; v <= 4; v++) {
            size_t fed = 0;
            for (size_t i = 0; i < p; i++)
                for (size_t chunk = 0; chunk < v; chunk++)
                    for (int what = FORWARD; what <= UPDATE; what++) {
                        PipeOp op = { .what = (PipeWhat)what, .micro_batch = 3, .chunk = chunk };
                        StageOp feeds, needs;
                        if (!pipe_op_feeds(op, i, p, v, &feeds)) continue;
                        inverse &= pipe_op_needs(feeds.op, feeds.stage, p, v, &needs) &&
                                   needs.stage == i && pipe_op_is(op, needs.op);
                        inverse &= feeds.op.chunk * p + feeds.stage + (what == FORWARD ? 0 : 2) ==
                                   chunk * p + i + 1;
                        fed++;
                    }
            counted &= fed == 3 * (p * v - 1); // forward, backward, backward of inputs
        }
    ok(inverse, "an op that takes a result needs the op that made it, in the neighbouring part, p "
                "= 1..5, v = 1..4");
    ok(counted, "of p v parts all except one send in each direction");
    StageOp needs;
    PipeOp weights = { .what = BACKWARD_WEIGHTS, .micro_batch = 1, .chunk = 1 };
    PipeOp own = { .what = BACKWARD_INPUTS, .micro_batch = 1, .chunk = 1 };
    bool of_own =
        pipe_op_needs(weights, 1, 3, 2, &needs) && needs.stage == 1 && pipe_op_is(own, needs.op);
    ok(of_own && !pipe_op_is(weights, needs.op),
       "a backward of weights needs its own backward of inputs");
    ok(!pipe_op_needs((PipeOp){ .what = UPDATE }, 1, 3, 1, &needs),
       "an update needs only its place in the list");
}

static void test_lists(void) {
    // ZB-H1 (Qi et al. 2023) has 1F1B's order, but stage i delays each backward of weights by i
    // micro-batches.
    Schedule *zero = schedule_all(schedule_zb_h1, 4, 8);
    size_t units = lists_makespan(zero, 4, 8, &(OpTimes){ 1, 1, 1, 0 });
    if (!ok(units == 27,
            "backwards in halves, p = 4, m = 8, each op 1 unit: ZB-H1 takes 27, 1F1B 33"))
        printf("#   %zu units\n", units);
    ok(makespan(schedule_1f1b, 4, 8, 1, 2) == 33, "1F1B: 33");
}

// ---------------------------------------------------------------- the executor on a real model

typedef struct {
    const char *name;
    size_t p, v, m;
    const char *list[4]; // the list of each stage; NULL: interleaved
    size_t in_flight;    // the most forwards on stage 0 with an unfinished backward
} Case;

enum { SEQUENCES = 2 };
static const ModelConfig sizes = {
    .layers = 7, .width = 12, .heads = 3, .context = 5, .vocab = 17, .dropout = 0.1, .seed = 4
};

static Model *part_of(size_t p, size_t v, size_t i) {
    Range chunk[4];
    for (size_t c = 0; c < v; c++) chunk[c] = pipeline_stage_layers(&sizes, NULL, p * v, c * p + i);
    Model *m = model_describe_chunks(&sizes, chunk, v);
    model_allocate(m);
    return m;
}

static void run_case(Comm *world, void *which) {
    const Case *c = which;
    size_t p = world->size, i = world->rank;
    Arena tokens = arena(MEM_WORKSPACE);
    Data d = data_synthetic(sizes.vocab, sizes.context, 1);
    Batch batch[16];
    for (size_t k = 0; k < c->m; k++) {
        // The last micro-batch has one sequence fewer.
        batch[k] = data_batch(&d, &tokens, 0, k * SEQUENCES, SEQUENCES - (k + 1 == c->m),
                              c->m * SEQUENCES - 1);
        batch[k].number = k;
    }
    Model *whole = model_describe(&sizes, model_layers(&sizes)), *local = part_of(p, c->v, i);
    model_allocate(whole);
    double want = 0, want_evaluated = model_loss(whole, &batch[0]);
    for (size_t k = 0; k < c->m; k++) want += model_forward_backward(whole, &batch[k]);

    Schedule list = c->list[0] ? list_of(c->list[i]) : schedule_interleaved(p, c->m, c->v, i);
    PipelineResult got = zero_bubble_run(world, local, &list, batch, c->m);
    double evaluated = interleaved_loss(world, local, &batch[0]);
    double wrong[] = { !same_gradients(local, whole), i + 1 == p && got.loss != want,
                       i + 1 == p ? evaluated != want_evaluated : evaluated != 0,
                       i == 0 && got.in_flight != c->in_flight };
    comm_all_reduce_doubles(world, wrong, 4);
    if (i == 0) {
        ok(wrong[0] == 0, "%s, p = %zu, v = %zu, m = %zu: gradients, every bit", c->name, p, c->v,
           c->m);
        ok(wrong[1] == 0, "%s, p = %zu, v = %zu: loss, every bit", c->name, p, c->v);
        ok(wrong[2] == 0, "%s, p = %zu, v = %zu: evaluation", c->name, p, c->v);
        if (!ok(wrong[3] == 0, "%s, p = %zu, v = %zu: %zu in flight on stage 0", c->name, p, c->v,
                c->in_flight))
            printf("#   %zu\n", got.in_flight);
    }
    schedule_free(&list);
    model_free(local);
    model_free(whole);
    arena_free(&tokens);
    data_free(&d);
}

// Tests pipeline_loss (04.02), which runs forwards only. The stages are even, or all stages but the
// last have one block each and the last stage has the rest.
static void run_evaluation(Comm *world, void *unused) {
    (void)unused;
    size_t p = world->size, uneven[4];
    for (size_t i = 0; i < p; i++) uneven[i] = i + 1 < p ? 1 : sizes.layers - (p - 1);
    Arena tokens = arena(MEM_WORKSPACE);
    Data d = data_synthetic(sizes.vocab, sizes.context, 1);
    Batch b = data_batch(&d, &tokens, 0, 0, SEQUENCES, SEQUENCES);
    Model *whole = model_describe(&sizes, model_layers(&sizes));
    model_allocate(whole);
    double want = model_loss(whole, &b);
    for (size_t k = 0; k < 2; k++) {
        Range layers = pipeline_stage_layers(&sizes, k ? uneven : NULL, p, world->rank);
        Model *m = model_describe(&sizes, layers);
        model_allocate(m);
        double loss = pipeline_loss(world, m, &b); // 0 on all stages but the last
        comm_all_reduce_doubles(world, &loss, 1);
        if (world->rank == 0)
            ok(loss == want, "evaluation on %zu stages, %s: the bits of one device", p,
               k ? "one block each, and the rest" : "even");
        model_free(m);
    }
    model_free(whole);
    arena_free(&tokens);
    data_free(&d);
}

// ------------------------------------------------ versions of weights; updates without a flush

// PipeDream (Harlap et al. 2018) updates after every backward, so the pipeline never runs empty. In
// forward and backward, micro-batch k of stage i reads version max(0, k - (p-1-i)) of the stage's
// weights. The gradient of micro-batch k makes version k+1.
enum { STEPS = 6 };
static const double rate = 0.3;
static size_t version_of(size_t p, size_t i, size_t k) {
    return k < p - 1 - i ? 0 : k - (p - 1 - i);
}

static Schedule pipedream(size_t p, size_t i) {
    Schedule s = { 0 };
    for (size_t forward = 0, back = 0; back < STEPS;) {
        PipeWhat what = forward < STEPS && forward <= back + p - 1 - i ? FORWARD : BACKWARD;
        size_t k = what == FORWARD ? forward++ : back++;
        schedule_add_op(&s,
                        (PipeOp){ .what = what, .micro_batch = k, .version = version_of(p, i, k) });
        if (what == BACKWARD) schedule_add(&s, UPDATE, k);
    }
    return s;
}

typedef struct {
    Arena arena;
    Tensor w[STEPS + 1];
} Versions; // w[k] [1, size]: version k of the weights
static void versions_begin(Versions *v, Model *m) {
    *v = (Versions){ .arena = arena(MEM_PARAMETERS) };
    for (size_t k = 0; k <= STEPS; k++) v->w[k] = tensor_new(&v->arena, 1, m->size);
    tensor_copy(v->w[0], m->w);
}
static void attach(void *versions, Model *m, PipeOp op) {
    Versions *v = versions;
    model_attach_weights(m, v->w[op.version]);
}
static void update(void *versions, Model *m, PipeOp op) {
    Versions *v = versions;
    model_fold_tied(m); // a pipeline of one stage has both uses of wte
    tensor_copy(v->w[op.micro_batch + 1], v->w[op.micro_batch]);
    op_sgd(v->w[op.micro_batch + 1], m->g, 1, (real)rate, 0);
    model_zero_gradients(m);
}

// Computes the recurrence without the executor: one micro-batch at a time, stage after stage.
static void recurrence(size_t p, Model **stage, Versions *v, const Batch *batch) {
    for (size_t k = 0; k < STEPS; k++) {
        Arena outside = arena(MEM_WORKSPACE);
        ActivationStash *f[3];
        size_t M = batch[k].B * batch[k].T;
        Tensor x = { 0 }, dy = tensor_new(&outside, M, 1);
        for (size_t i = 0; i < p; i++) {
            attach(&v[i], stage[i], (PipeOp){ .version = version_of(p, i, k) });
            Tensor y = tensor_new(&outside, M, i + 1 < p ? sizes.width : 1);
            f[i] = walk_forward(stage[i]->layers, stage[i]->n_layers, &batch[k], x, y);
            x = y;
        }
        tensor_fill(dy, (real)batch[k].token_weight);
        for (size_t i = p; i-- > 0;) {
            Tensor dx = i ? tensor_new(&outside, M, sizes.width) : (Tensor){ 0 };
            walk_backward(stage[i]->layers, stage[i]->n_layers, &batch[k], f[i], dy, dx);
            update(&v[i], stage[i], (PipeOp){ .micro_batch = k });
            dy = dx;
        }
        arena_free(&outside);
    }
}

// Runs the list with calls of the executor. Every op reads the version of the weights that the op
// names.
static PipelineResult run_list(Comm *pp, Model *m, const Schedule *list, const Batch *batch,
                               Versions *v, double *loss) {
    PipelineStage s = pipeline_begin(pp, m, batch, STEPS);
    Executor *e = executor_new(pp, &s, list);
    for (size_t at = 0; at < list->n; at++) {
        PipeOp op = list->ops[at];
        if (op.what == UPDATE) {
            update(v, m, op);
            continue;
        }
        size_t k = executor_receive(e, at);
        attach(v, m, op);
        if (op.what == FORWARD) pipeline_forward(&s, k);
        else pipeline_backward(&s, k);
        if (op.what == FORWARD) loss[k] += s.micro[k].loss;
        executor_send(e, at);
    }
    executor_free(e);
    return pipeline_end(&s);
}

static void run_versions(Comm *world, void *unused) {
    (void)unused;
    size_t p = world->size, i = world->rank;
    Arena tokens = arena(MEM_WORKSPACE);
    Data d = data_synthetic(sizes.vocab, sizes.context, 1);
    Batch batch[STEPS];
    for (size_t k = 0; k < STEPS; k++)
        batch[k] = data_batch(&d, &tokens, k, 0, SEQUENCES, SEQUENCES);
    Model *stage[3], *local = part_of(p, 1, i);
    Versions want[3], got;
    for (size_t j = 0; j < p; j++) versions_begin(&want[j], stage[j] = part_of(p, 1, j));
    versions_begin(&got, local);
    recurrence(p, stage, want, batch);

    Schedule list = pipedream(p, i);
    double loss[STEPS] = { 0 }, sum = 0;
    PipelineResult r = run_list(world, local, &list, batch, &got, loss);
    double wrong[4] = { 0, r.in_flight != p - i, 0, 0 };
    for (size_t k = 0; k < STEPS; k++) {
        sum += loss[k];
        wrong[3] += (loss[k] > 0) != (i + 1 == p);
    }
    wrong[3] += sum != r.loss;
    for (size_t k = 0; k <= STEPS; k++) wrong[0] += !tensor_equal(got.w[k], want[i].w[k]);
    for (size_t k = 1; k <= STEPS; k++) wrong[2] += tensor_equal(got.w[k], got.w[k - 1]);
    comm_all_reduce_doubles(world, wrong, 4);
    if (i == 0) {
        ok(wrong[3] == 0, "PipeDream, p = %zu: the last stage has the loss of each micro-batch", p);
        ok(wrong[0] == 0,
           "PipeDream, p = %zu: every version of the weights has the recurrence's bits", p);
        ok(wrong[1] == 0, "PipeDream, p = %zu: p - i in flight, and no flush", p);
        ok(wrong[2] == 0, "PipeDream, p = %zu: every update changes the weights", p);
    }
    for (size_t j = 0; j < p; j++) {
        arena_free(&want[j].arena);
        model_free(stage[j]);
    }
    arena_free(&got.arena);
    schedule_free(&list);
    model_free(local);
    arena_free(&tokens);
    data_free(&d);
}

static void update_by_nobody(Comm *world, void *unused) {
    (void)unused;
    Schedule s = list_of("F0 B0 U0");
    Batch b = { 0 };
    pipeline_run(world, part_of(1, 1, 0), &s, &b, 1);
}

// ---------------------------------------------------------------- wrapped layers

// Wrapping is a way to wrap the layers of a described model. `zero` is the stage of ZeRO.
typedef struct {
    const char *name;
    size_t ranks;
    bool cut, rows, cube; // cut: tensor parallelism; with rows, sequence parallelism; with cube, 3D
    Recompute recompute;
    size_t zero;
} Wrapping;

static void wrap(const Wrapping *w, Model *m, Comm *world, const Cube *cube) {
    if (w->cube) cube_parallel(m, cube);
    else if (w->rows) sequence_parallel(m, world, KEEP_SHARD);
    else if (w->cut) tensor_parallel(m, world);
    recompute(m, w->recompute);
    zero_allocate(m, world, w->zero);
}

// Runs one step of two micro-batches. With `halves` the gradients of all weights come after the
// backwards of inputs of both micro-batches.
static double step_of(const Wrapping *w, Model *m, const Batch *batch, bool halves) {
    ActivationStash *f[2];
    double loss = 0;
    zero_begin(m, w->zero);
    for (size_t k = 0; k < 2; k++) {
        Arena outside = arena(MEM_WORKSPACE);
        Tensor y = tensor_shaped(&outside, layer_output(&m->layers[m->n_layers - 1], &batch[k])),
               none = { 0 };
        f[k] = walk_forward(m->layers, m->n_layers, &batch[k], none, y);
        loss += tensor_sum(y);
        tensor_fill(y, (real)batch[k].token_weight);
        if (halves) walk_backward_inputs(m->layers, m->n_layers, &batch[k], f[k], y, none);
        else walk_backward(m->layers, m->n_layers, &batch[k], f[k], y, none);
        arena_free(&outside);
    }
    for (size_t k = 0; halves && k < 2; k++)
        walk_backward_weights(m->layers, m->n_layers, &batch[k], f[k]);
    model_fold_tied(m);
    if (w->zero || !w->cut) zero_reduce(m, w->zero);
    return loss;
}

static void run_wrapped(Comm *world, void *which) {
    const Wrapping *w = which;
    Arena tokens = arena(MEM_WORKSPACE);
    Data d = data_synthetic(sizes.vocab, sizes.context, 1);
    Batch batch[2];
    for (size_t k = 0; k < 2; k++)
        batch[k] = data_batch(&d, &tokens, 0, (w->cut ? k : 2 * k + world->rank) * 2, 2, 8);
    Model *m[2];
    double loss[2], wrong = 0;
    size_t most[2];
    Cube cube = { 0 };
    if (w->cube) cube = cube_new(world);
    cube.gather_again = true;
    for (size_t i = 0; i < 2; i++) {
        m[i] = model_describe(&sizes, model_layers(&sizes));
        wrap(w, m[i], world, &cube);
        memory_reset_peaks();
        loss[i] = step_of(w, m[i], batch, i == 1);
        most[i] = memory_peak(MEM_ACTIVATIONS);
    }
    for (size_t i = 0; i < m[0]->n_units; i++)
        if (!m[0]->units[i].tied_to)
            wrong += !tensor_equal(m[0]->units[i].own_g, m[1]->units[i].own_g);
    wrong += loss[0] != loss[1];
    comm_all_reduce_doubles(world, &wrong, 1);
    if (world->rank == 0) {
        ok(wrong == 0, "%s: a backward in halves has every bit of a whole backward", w->name);
        ok(most[1] > most[0], "%s: backward in halves keeps more, %zu instead of %zu bytes",
           w->name, most[1], most[0]);
    }
    for (size_t i = 0; i < 2; i++) model_free(m[i]);
    if (w->cube) cube_free(&cube);
    arena_free(&tokens);
    data_free(&d);
}

static const Wrapping wrappings[] = {
    { .name = "plain layers", .ranks = 1 },
    { .name = "recompute full", .ranks = 1, .recompute = RECOMPUTE_FULL },
    { .name = "recompute selective", .ranks = 1, .recompute = RECOMPUTE_SELECTIVE },
    { .name = "tensor-parallel", .ranks = 3, .cut = true },
    { .name = "tensor-parallel, recompute full",
      .ranks = 2,
      .cut = true,
      .recompute = RECOMPUTE_FULL },
    { .name = "sequence-parallel", .ranks = 3, .cut = true, .rows = true },
    { .name = "sequence-parallel, recompute full",
      .ranks = 2,
      .cut = true,
      .rows = true,
      .recompute = RECOMPUTE_FULL },
    { .name = "3D", .ranks = 8, .cut = true, .cube = true },
    { .name = "3D, recompute full",
      .ranks = 8,
      .cut = true,
      .cube = true,
      .recompute = RECOMPUTE_FULL },
    { .name = "data-parallel", .ranks = 2 },
    { .name = "ZeRO-1", .ranks = 2, .zero = 1 },
    { .name = "ZeRO-2", .ranks = 2, .zero = 2 },
    { .name = "ZeRO-3", .ranks = 3, .zero = 3 },
    { .name = "ZeRO-2, recompute selective",
      .ranks = 2,
      .zero = 2,
      .recompute = RECOMPUTE_SELECTIVE },
};

// Tests 3D tensor parallelism with blockwise attention, whose backward reads the attention's output
// again. The output that forward gathered is kept, or gathered again.
static void run_cube_kept(Comm *world, void *unused) {
    (void)unused;
    Arena tokens = arena(MEM_WORKSPACE);
    Data d = data_synthetic(sizes.vocab, sizes.context, 1);
    Batch batch[2];
    for (size_t k = 0; k < 2; k++) batch[k] = data_batch(&d, &tokens, 0, 2 * k, 2, 4);
    static const Wrapping w = { .cut = true, .cube = true };
    Model *m[2];
    Cube cube[2];
    double loss[2], wrong = 0;
    for (size_t i = 0; i < 2; i++) {
        cube[i] = cube_new(world);
        cube[i].gather_again = i == 1;
        m[i] = model_describe(&sizes, model_layers(&sizes));
        wrap(&w, m[i], world, &cube[i]);
        for (size_t k = 0; k < m[i]->n_layers; k++)
            m[i]->layers[k].attention = &attention_blockwise;
        loss[i] = step_of(&w, m[i], batch, false);
    }
    for (size_t i = 0; i < m[0]->n_units; i++)
        if (!m[0]->units[i].tied_to)
            wrong += !tensor_equal(m[0]->units[i].own_g, m[1]->units[i].own_g);
    wrong += loss[0] != loss[1];
    comm_all_reduce_doubles(world, &wrong, 1);
    if (world->rank == 0)
        ok(wrong == 0, "3D, blockwise attention: kept operands give the bits of gathered operands");
    for (size_t i = 0; i < 2; i++) {
        model_free(m[i]);
        cube_free(&cube[i]);
    }
    arena_free(&tokens);
    data_free(&d);
}

static void run_pairs(Comm *world, void *unused) {
    (void)unused;
    static const ModelConfig four = {
        .layers = 4, .width = 12, .heads = 3, .context = 5, .vocab = 17, .dropout = 0.1
    };
    Arena tokens = arena(MEM_WORKSPACE);
    Data d = data_synthetic(four.vocab, four.context, 1);
    Batch b = data_batch(&d, &tokens, 0, 0, 3, 3);
    Tensor g[3] = { { 0 } };
    Model *m[3];
    size_t kept[3], M = b.B * b.T;
    // The models recompute nothing, each block, and pairs of blocks.
    for (size_t i = 0; i < 3; i++) {
        m[i] = model_describe(&four, (Range){ 1, 5 });
        if (i == 1) recompute(m[i], RECOMPUTE_FULL);
        for (size_t k = 0; i == 2 && k < 2; k++) recompute_wrap_range(m[i], k, 2);
        model_allocate(m[i]);
        Arena outside = arena(MEM_REFERENCE);
        Tensor x = tensor_new(&outside, M, 12), y = tensor_new(&outside, M, 12),
               dx = tensor_new(&outside, M, 12);
        tensor_fill(x, (real)0.5);
        ActivationStash *f = walk_forward(m[i]->layers, m[i]->n_layers, &b, x, y);
        kept[i] = memory_now(MEM_ACTIVATIONS);
        walk_backward(m[i]->layers, m[i]->n_layers, &b, f, y, dx);
        g[i] = m[i]->g;
        arena_free(&outside);
    }
    ok(m[2]->n_layers == 2 && m[2]->layers[1].n_units == 2, "4 blocks are 2 layers of 2 units");
    ok(tensor_equal(g[1], g[0]) && tensor_equal(g[2], g[0]),
       "blocks recomputed in pairs: gradients, every bit");
    // The caller holds the first input and the last output: 3 tensors are between 4 blocks, 1
    // between 2 pairs.
    ok(kept[1] == 3 * M * 12 * sizeof(real) && kept[2] == 1 * M * 12 * sizeof(real),
       "pairs keep one input per pair: %zu bytes; one per block would be %zu, all tensors %zu",
       kept[2], kept[1], kept[0]);
    for (size_t i = 0; i < 3; i++) model_free(m[i]);
    arena_free(&tokens);
    data_free(&d);
    (void)world;
}

// ---------------------------------------------------------------- functions of chapter 05

// Checks a message between two stages of t tensor-parallel ranks each, sent in t parts (05.03). The
// next stage must get every bit, and all ranks together must send the message once.
static void run_scattered(Comm *world, void *unused) {
    (void)unused;
    size_t t = world->size / 2, i = world->rank;
    Comm *tp = comm_split(world, i / t, i, "tp"), *pp = comm_split(world, i % t, i, "pp");
    Arena a = arena(MEM_WORKSPACE);
    Tensor y = tensor_new(&a, 3, 7), x = tensor_new(&a, 3, 7);
    tensor_randomize(y, 1, 1); // the same values on every rank, so that each rank can compare
    comm_connect(pp, COMM_NEIGHBOURS);
    if (i < t) pipeline_send_scattered(pp, tp, y, 1);
    else pipeline_recv_gathered(pp, tp, x, 0);
    double sent = pp->ledger[COMM_SEND].bytes,
           part = (double)(range_size(shard_range(21, t, i % t)) * sizeof(real));
    double gathered = tp->ledger[COMM_ALL_GATHER].bytes;
    double wrong[] = { i >= t && !tensor_equal(x, y), sent != (i < t ? part : 0),
                       (gathered > 0) != (i >= t && t > 1) };
    comm_all_reduce_doubles(world, wrong, 3);
    if (i == 0) {
        ok(wrong[0] == 0, "scatter/gather, t = %zu: the next stage has the message, every bit", t);
        ok(wrong[1] == 0, "scatter/gather, t = %zu: each rank sends its part between stages", t);
        ok(wrong[2] == 0, "scatter/gather, t = %zu: only the receivers gather", t);
    }
    comm_free(tp);
    comm_free(pp);
    arena_free(&a);
}

// Checks 2BW (05.05), which adds the tied table's gradient into two buffers in turn. After the
// training every gradient must be in the model's own memory again.
static void run_2bw(Comm *pp, void *unused) {
    (void)unused;
    enum { M = 3 }; // micro-batches of the batch
    Comm *tied = pipeline_tied_group(pp);
    Arena tokens = arena(MEM_WORKSPACE);
    Data d = data_synthetic(sizes.vocab, sizes.context, 1);
    Batch batch[M];
    for (size_t k = 0; k < M; k++) {
        batch[k] = data_batch(&d, &tokens, 0, k * SEQUENCES, SEQUENCES, M * SEQUENCES);
        batch[k].number = k;
    }
    Model *m = part_of(pp->size, 1, pp->rank);
    Optimizer o = sgd(0.1);
    optimizer_allocate(&o, m);
    Schedule list = schedule_2bw(pp->size, M, 1, pp->rank);
    pipeline_2bw(pp, tied, m, &o, &list, batch, M, NULL);
    double elsewhere = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        const Unit *u = &m->units[i];
        bool own = u->tied_to || u->own_g.data == u->g.data;
        elsewhere += !own || !arena_holds(&m->gradients, u->g.data);
    }
    comm_all_reduce_doubles(pp, &elsewhere, 1);
    if (pp->rank == 0)
        ok(elsewhere == 0, "2BW, p = %zu: the model's own gradient buffers", pp->size);
    schedule_free(&list);
    model_free(m);
    if (tied) comm_free(tied);
    arena_free(&tokens);
    data_free(&d);
}

// The halves of a linear layer's backward (05.06) must give the bits of the whole backward.
static void test_halves(void) {
    enum { ROWS = 6, IN = 5, OUT = 7 };
    Arena a = arena(MEM_WORKSPACE);
    Tensor x = tensor_new(&a, ROWS, IN), w = tensor_new(&a, IN, OUT);
    Tensor dy = tensor_new(&a, ROWS, OUT), dw = tensor_new(&a, IN, OUT);
    Tensor dx = tensor_new(&a, ROWS, IN), whole = tensor_new(&a, ROWS, IN);
    Param param = { .w = w, .g = tensor_new(&a, IN, OUT), .gradient_empty = true };
    tensor_randomize(x, 1, 1);
    tensor_randomize(w, 2, 1);
    tensor_randomize(dy, 3, 1);
    linear_backward_inputs(dx, dy, w);
    linear_backward_weights(dw, x, dy);
    op_matmul_nt(whole, dy, w);
    ok(tensor_equal(dx, whole), "B of y = x w is dx of its whole backward, every bit");
    linear_gradients(&param, NULL, x, dy); // as in a layer's whole backward
    ok(tensor_equal(dw, param.g), "W of y = x w is dw of its whole backward, every bit");
    arena_free(&a);
}

static void as_ranks(size_t n, void (*body)(Comm *world, void *arg), const void *arg) {
    Launch launch = { .ranks = n, .timeout = 60 }; // virtual ranks
    comm_run(&launch, body, (void *)arg);
}

static const Case cases[] = {
    { "interleaved",
      2,
      2,
      4,
      { "F0c0 F1c0 F0c1 F1c1 F2c0 B0c1 F3c0 B1c1 F2c1 B0c0 F3c1 B1c0 B2c1 B3c1 B2c0 B3c0",
        "F0c0 F1c0 F0c1 B0c1 F1c1 B1c1 F2c0 B0c0 F3c0 B1c0 F2c1 B2c1 F3c1 B3c1 B2c0 B3c0" },
      5 },
    { "interleaved", 1, 2, 2, { 0 }, 2 },
    { "interleaved", 1, 1, 3, { 0 }, 1 },
    { "interleaved", 2, 3, 2, { 0 }, 6 },
    { "interleaved", 3, 2, 6, { 0 }, 8 },
    { "interleaved", 4, 2, 4, { 0 }, 8 },
    { "backwards in halves",
      2,
      1,
      3,
      { "F0 F1 I0 F2 I1 W0 I2 W1 W2", "F0 I0 F1 I1 W0 F2 I2 W1 W2" },
      3 },
    { "some backwards in halves",
      2,
      1,
      3,
      { "F0 F1 I0 F2 W0 B1 I2 W2", "F0 B0 F1 I1 F2 W1 B2" },
      3 },
    { "chunks and halves",
      2,
      2,
      2,
      { "F0c0 F1c0 F0c1 F1c1 I0c1 I1c1 I0c0 W0c1 I1c0 W1c1 W0c0 W1c0",
        "F0c0 F1c0 F0c1 I0c1 F1c1 I1c1 I0c0 I1c0 W0c1 W1c1 W0c0 W1c0" },
      4 },
    { "halves, one stage", 1, 1, 3, { "F0 I0 F1 I1 F2 I2 W0 W1 W2" }, 3 },
};

static void update_by_nobody_(void) {
    device_init();
    as_ranks(1, update_by_nobody, NULL);
}

int main(void) {
    ends(update_by_nobody_, 3, "a list with versions or updates");
    test_rule();
    test_lists();
    device_init();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        as_ranks(cases[i].p, run_case, &cases[i]);
    for (size_t p = 1; p <= 4; p++) as_ranks(p, run_evaluation, NULL);
    for (size_t i = 0; i < sizeof wrappings / sizeof *wrappings; i++)
        as_ranks(wrappings[i].ranks, run_wrapped, &wrappings[i]);
    for (size_t p = 1; p <= 3; p++) as_ranks(p, run_versions, NULL);
    for (size_t ranks = 2; ranks <= 6; ranks += 2) as_ranks(ranks, run_scattered, NULL);
    for (size_t p = 1; p <= 3; p++) as_ranks(p, run_2bw, NULL);
    test_halves();
    as_ranks(8, run_cube_kept, NULL);
    as_ranks(1, run_pairs, NULL);
    return tap_end();
}
