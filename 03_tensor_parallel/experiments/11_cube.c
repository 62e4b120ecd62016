// 11_cube.c (experiment): two linear layers (cube_linears.c) and then a GPT are split over a cube
// and compared with the unsplit ones. Backward reads the X and W that forward gathered, or gathers
// them again, with the same bits. Bytes along each axis, memory and time are predicted.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "03_tensor_parallel/experiments/experiments.h"
#include "judge/draw/picture.h"

enum { B = 7, T = 3, K = 13, N = 10 }; // linear layers: q divides no size

// ---------------------------------------------------------------- a GPT, trained

enum { STEPS = 3 };
static const double max_norm = 0.5; // small enough that every step is clipped

typedef struct {
    const Cube *cube;
    Comm *world;
    // Bytes sent per step: in the layers; for gradients of vectors; for the loss and the norm.
    double sent[CUBE_AXES];
    size_t planes, numbers;
    // Bytes on this rank. block: the parameters of a block. activations: their peak.
    size_t block, parameters, gradients, optimizer, activations;
} Measured;

static StepResult step(void *measured, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Measured *r = measured;
    const Cube *c = r->cube;
    double loss = 0;
    cube_ledgers_reset(c);
    comm_ledger_reset(r->world);
    model_zero_gradients(m);
    for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(m, &b[k]);
    loss *= b->token_weight; // over the tokens that this rank counts
    r->activations = memory_peak(MEM_ACTIVATIONS);
    memset(r->sent, 0, sizeof r->sent);
    cube_add_sent(c, r->sent);
    model_partial_sums(m); // biases, gains, positions: over q^2 ranks
    r->planes = comm_bytes_sent(c->same_col) + comm_bytes_sent(c->same_row);
    model_fold_tied(m); // adds both uses of wte; sends nothing
    comm_all_reduce_doubles(r->world, &loss, 1);
    double norm = model_grad_norm(m, r->world);
    r->numbers = comm_bytes_sent(r->world);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss, norm };
}

static Measured train(Run *run, const Cube *c, const Training *t, Trajectory *trajectory) {
    Measured r = { .cube = c, .world = run->world };
    Model *m = model_describe(&t->model, model_layers(&t->model));
    cube_parallel(m, c);
    model_allocate(m);
    training_run(trajectory, m, t, 1, 0, step, &r); // every rank gets all tokens
    r.block = model_unit(m, "h.0.ln_1.weight")->size * sizeof(real);
    r.parameters = memory_now(MEM_PARAMETERS);
    r.gradients = memory_now(MEM_GRADIENTS);
    r.optimizer = memory_now(MEM_OPTIMIZER);
    model_free(m);
    return r;
}

// Where every size divides, the closed forms of grids.md hold to the last element.
static void closed_form(Run *run, bool again, const char *what, double general, double closed) {
    char name[96];
    snprintf(name, sizeof name, "%s: the closed form of a block",
             again ? "gathered again" : "kept");
    say_detail(run, "%s: %.0f %s, by the closed form %.2f", name, general, what, closed);
    check_true(run, name, what, fabs(general - closed) < 1e-6);
}
static void closed_forms(Run *run, const CubePlace *at, size_t sequences) {
    const ModelConfig *c = at->c;
    const size_t q = at->q;
    if (c->heads % q || c->width % (q * q) || sequences % (q * q)) return;
    const double side = (double)q, ranks = side * side * side, C = (double)c->width;
    const double tokens = (double)(sequences * c->context), X = tokens * C, W = C * C;
    const double scores = (c->dropout > 0 ? 2 : 1) * (double)(c->heads * c->context) / C;
    const bool again = at->gather_again;
    const CutSizes block = { .blocks = 1 };
    const CubeTraffic t = cube_stage(at, &block, sequences, false);
    const double products = again ? 39 * X + 36 * W : 32 * X + 24 * W;
    closed_form(run, again, "elements sent", cube_bytes(&t) / sizeof(real),
                (side - 1) / ranks * (products + 16 * tokens));
    closed_form(run, again, "parameters", (double)cube_elements_block(at),
                12 * W / ranks + 13 * C / side);
    const double statistics = 4 * tokens / (side * side);
    const double gathered = (7 * X + 12 * W) / (side * side);
    const double kept = X * ((again ? 16 : 9) + scores) / ranks + statistics;
    closed_form(run, again, "elements kept for backward",
                (double)(cube_kept_block(at, sequences) + cube_message(at, sequences)),
                again ? kept : kept + gathered);
}

static void costs(Run *run, const CommGrid *g, const ModelConfig *c, size_t sequences, bool again,
                  const Measured *r) {
    const size_t q = g->rows, n = run->world->size;
    const double e = sizeof(real);
    const CubePlace at = cube_place_of(c, q, run->world->rank, again);
    const CutSizes z = cut_sizes(c, 1, 0);
    const CubeTraffic layers = cube_stage(&at, &z, sequences, false);
    const CubeTraffic sums = cube_plane_sums(&at, &z);
    const double numbers = ring_bytes(ALL_REDUCE_PASSES, n, 1, sizeof(double)) +
                           ring_bytes(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double));
    const double parameters = (double)cube_elements_stage(&at, &z);
    const double wte = (double)cube_elements_wte(&at);
    const double block = (double)cube_elements_block(&at);
    const double kept = (double)cube_kept_stage(&at, &z, sequences);
    // Rank 0 has the largest part of every tensor, so the other ranks wait for it.
    Timing timing = picture_timing(run);
    const double scalars = ring_time(ALL_REDUCE_PASSES, n, 1, sizeof(double)) +
                           ring_time(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double));
    const double time = cube_rank_share(c, sequences, q, 0, again).time + scalars;
    const double sent = r->sent[CUBE_ROW] + r->sent[CUBE_COL] + r->sent[CUBE_DEPTH];
    const struct {
        const char *id, *what, *unit;
        double formula, measured;
    } line[] = {
        { "sent.row", "sent along the row, a step", "bytes", layers.bytes[CUBE_ROW],
          r->sent[CUBE_ROW] },
        { "sent.column", "sent along the column, a step", "bytes", layers.bytes[CUBE_COL],
          r->sent[CUBE_COL] },
        { "sent.depth", "sent along the depth, a step", "bytes", layers.bytes[CUBE_DEPTH],
          r->sent[CUBE_DEPTH] },
        { "sent", "sent in the layers, a step", "bytes", cube_bytes(&layers), sent },
        { "sent.planes", "sent for gradients of vectors, a step", "bytes", sums.bytes[0],
          (double)r->planes },
        { "sent.numbers", "sent for loss and norm, a step", "bytes", numbers, (double)r->numbers },
        { "block", "parameters of a block", "bytes", block * e, (double)r->block },
        { "parameters", "parameters", "bytes", parameters * e, (double)r->parameters },
        { "gradients", "gradients (wte twice)", "bytes", (parameters + wte) * e,
          (double)r->gradients },
        { "adamw", "AdamW's m and v", "bytes", 2 * parameters * e, (double)r->optimizer },
        { "kept", "activations, peak", "bytes", kept * e, (double)r->activations },
        { "step", "step", "ps", time, (double)timing.step },
    };
    const size_t lines = sizeof line / sizeof *line - !clock_config()->simulated;
    for (size_t i = 0; i < lines; i++) {
        char id[48], name[96];
        snprintf(id, sizeof id, "%s.%s", line[i].id, again ? "again" : "whole");
        snprintf(name, sizeof name, "%s: %s", again ? "gathered again" : "kept", line[i].what);
        check_cost(run, id, name, line[i].unit, formula(line[i].formula), NOT_PREDICTED,
                   line[i].measured);
    }
    closed_forms(run, &at, sequences);
    picture_show(run, again ? "Last step, gathered again" : "Last step, kept",
                 PICTURE_DETAIL | PICTURE_NO_FILES);
}

// ---------------------------------------------------------------- the table, and the run

#define BOTH(alone, id) \
    { alone, id ".whole", id ".again" }
static void table(Run *run, const ModelConfig *c, size_t sequences, size_t q) {
    const CutSizes whole = cut_sizes(c, 1, 0);
    char title[40], block[24], parameters[24], kept[24], time[24];
    page_cell(block, (double)(elements_block(&whole) * sizeof(real)), "bytes");
    page_cell(parameters, (double)(elements_stage(&whole) * sizeof(real)), "bytes");
    page_cell(kept, (double)(sequences * c->context * kept_model(c) * sizeof(real)), "bytes");
    page_cell(time, work_model(c, sequences).time, "ps");
    snprintf(title, sizeof title, "%zu x %zu x %zu: keep", q, q, q);
    const char *const columns[] = { "one device", title, "gather again", NULL };
    const Result rows[] = {
        { "parameters, block", "12 C²/q³ + 13 C/q", BOTH(block, "block") },
        { "parameters, model", "1/q³ of every matrix", BOTH(parameters, "parameters") },
        { "activations, peak", "1/q³; gathered X and W: 1/q²", BOTH(kept, "kept") },
        { "sent along row", "Y (in every second layer X)", BOTH("=0 B", "sent.row") },
        { "sent along column", "X (in every second layer Y)", BOTH("=0 B", "sent.column") },
        { "sent along depth", "W and dW", BOTH("=0 B", "sent.depth") },
        { "sent in the layers", "row + column + depth", BOTH("=0 B", "sent") },
        { clock_config()->simulated ? "time of a step" : NULL, NULL, BOTH(time, "step") },
        { 0 },
    };
    results(run, columns, rows);
    say(run, "  keep: the gathered X and W stay in memory for backward. gather again: they do "
             "not.");
    say(run,
        "  %zu sequences of %zu tokens, width C = %zu, %zu heads, %zu blocks, %zu vocabulary "
        "entries; q = %zu",
        sequences, c->context, c->width, c->heads, c->layers, c->vocab, q);
}

static void ending(Run *run, size_t q) {
    if (q == 1)
        say_answer(run, "Nothing on 1 rank: it holds all of X, W and Y, and sends %s.",
                   cost_text(run, "sent.whole"));
    else
        say_answer(run,
                   "Forward, a rank gathers X and W, and adds Y in parts (reduce-scatter). "
                   "Backward, it gathers dY, and adds dX and dW in parts. It sends %s per "
                   "step and keeps %s of activations.",
                   cost_text(run, "sent.whole"), cost_text(run, "kept.whole"));
    if (clock_config()->simulated)
        say_cost(run,
                 "gathering again keeps %s instead of %s, sends %s, and takes %s instead of "
                 "%s.",
                 cost_text(run, "kept.again"), cost_text(run, "kept.whole"),
                 cost_text(run, "sent.again"), cost_text(run, "step.again"),
                 cost_text(run, "step.whole"));
    else
        say_cost(run, "gathering again keeps %s instead of %s, and sends %s.",
                 cost_text(run, "kept.again"), cost_text(run, "kept.whole"),
                 cost_text(run, "sent.again"));
    say_use_when(run, "there are q³ ranks, at least q² sequences, and many tokens per weight. "
                      "First compare it with 1D and SP inside a node and data or pipeline "
                      "parallelism between nodes (03.12).");
}

static void cube(Run *run) {
    ModelConfig z = { .layers = option_size(run, "layers"),
                      .width = option_size(run, "width"),
                      .heads = option_size(run, "heads"),
                      .context = 7,
                      .vocab = 61,
                      .dropout = option_real(run, "dropout"),
                      .seed = run->seed };
    config_require(&z);
    require_one_link(run);
    Cube c = cube_new(run->world);
    size_t q = c.grid.rows;
    say(run,
        "A rank has a place (layer, row, col) in a cube of %zu x %zu x %zu, and holds 1/%zu "
        "of X, of W and of Y.",
        q, q, q, q * q * q);
    say(run, "Here layer is a place in the cube, not a layer of the model.");
    say(run, "Ranks that differ only in row (a column) share a part of X; ranks that differ only "
             "in layer (a");
    say(run, "depth) share a part of W. A rank gathers both parts and multiplies. Ranks that "
             "differ only in col");
    say(run, "(a row) add their products. In the next linear layer row and col are swapped.");
    say(run, "Below, two linear layers; in the table, a GPT.");
    CubeSizes even = { 2 * q * q, 3, 3 * q * q, 4 * q * q };
    cube_two_linears(run, &c, even, true); // every size divides
    cube_two_linears(run, &c, (CubeSizes){ B, T, K, N }, false);

    Training t = { .model = z,
                   .data = data_synthetic(z.vocab, z.context, run->seed),
                   .steps = STEPS,
                   .sequences = option_size(run, "batch"),
                   .clip = max_norm,
                   .watched = MEM_ACTIVATIONS };
    const bool again = !strcmp(option_text(run, "backward"), "gather");
    // SGD and AdamW as --backward says, then AdamW the other way. two: both trainings by AdamW.
    Trajectory two[2];
    for (size_t i = 0; i < 3; i++) {
        c.gather_again = i < 2 ? again : !again;
        t.optimizer = i ? adamw(0.01) : sgd(0.5);
        t.micro_batches = i ? 1 : 2;
        t.recorded = i > 0;
        Trajectory got = trajectory_new(run, &t);
        Measured r = train(run, &c, &t, &got);
        if (i < 2) {
            Trajectory want = training_unsplit(run, &t, 1);
            training_compare(run, "3D = unsplit", &got, &want, LIMIT_ROUNDING);
            check_true(run, "every step is clipped", i ? "AdamW" : "SGD",
                       trajectory_clipped(&got, max_norm));
            trajectory_free(&want);
        }
        if (i) costs(run, &c.grid, &z, t.sequences, c.gather_again, &r);
        if (i) two[i - 1] = got;
        else trajectory_free(&got);
    }
    training_compare(run, "gathered again = kept", &two[1], &two[0], 0);
    for (size_t i = 0; i < 2; i++) trajectory_free(&two[i]);
    table(run, &z, t.sequences, q);
    ending(run, q);
    data_free(&t.data);
    cube_free(&c);
}

static const Option options[] = {
    { "backward", "keep|gather", "keep",
      "keep the gathered X and W until backward, or gather them "
      "again" },
    { "batch", "N", "6", "sequences" },
    { "layers", "N", "2", "blocks" },
    { "width", "N", "27", "columns; a multiple of --heads" },
    { "heads", "N", "9", "attention heads; at least one per rank" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    { 0 },
};
EXPERIMENT(cube, options);
