// 11_cube.c (experiment): two linear layers (grids.c) and then a GPT are split over a cube
// and compared with the unsplit ones. Backward reads the X and W that forward gathered, or gathers
// them again, with the same bits. Bytes along each axis, memory and time are predicted.
#include <string.h>
#include "03_tensor_parallel/experiments/experiments.h"
#include "judge/draw/picture.h"

enum { B = 7, T = 3, K = 13, N = 10 }; // sizes of the two linear layers; q need not divide them

// ---------------------------------------------------------------- costs

static void costs(Run *run, const ModelConfig *c, size_t sequences, const CutGpt *x) {
    const bool again = x->cube.gather_again;
    const size_t q = x->cube.grid.rows, n = run->world->size;
    const CubePlace at = cube_place_of(c, q, run->world->rank, again);
    const CubePlace first = cube_place_of(c, q, 0, again);
    const CutSizes z = cut_sizes(c, 1, 0);
    const CubeTraffic layers = cube_stage(&at, &z, sequences, false);
    const RankShare share = cube_share(&at, sequences);
    const GptMeasured *r = &x->measured;
    const double row = r->layers[GPT_ROW].sent, col = r->layers[GPT_COL].sent;
    const double depth = r->layers[GPT_DEPTH].sent;
    // numbers: the time of the all-reduces of the loss and of the gradient norm. Rank 0 has the
    // largest part of every tensor, so the other ranks wait for it.
    const double numbers = ring_time(ALL_REDUCE_PASSES, n, 1, sizeof(double)) +
                           ring_time(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double));
    const double time = cube_share(&first, sequences).time + numbers;
    const char *ids = again ? "%s.again" : "%s.whole";
    const char *names = again ? "gathered again: %s" : "kept: %s";
    gpt_memory_costs(run, ids, names, c, &share, r);
    check_costs(run, ids, names,
                (CostRow[]){ { "sent.row", "sent along the row, a step", "bytes",
                               BY_FORMULA(layers.bytes[CUBE_ROW]), row },
                             { "sent.column", "sent along the column, a step", "bytes",
                               BY_FORMULA(layers.bytes[CUBE_COL]), col },
                             { "sent.depth", "sent along the depth, a step", "bytes",
                               BY_FORMULA(layers.bytes[CUBE_DEPTH]), depth },
                             { "sent", "sent in the layers, a step", "bytes",
                               BY_FORMULA(cube_bytes(&layers)), row + col + depth },
                             { "sent.planes", "sent for gradients of vectors, a step", "bytes",
                               BY_FORMULA(cube_plane_sums(&at, &z).bytes[0]),
                               r->sums[GPT_SAME_COL].sent + r->sums[GPT_SAME_ROW].sent },
                             { clock_config()->simulated ? "step" : NULL, "step", "ps",
                               BY_FORMULA(time), (double)picture_timing(run).step },
                             { 0 } });
}

// ---------------------------------------------------------------- the table, and the run

#define BOTH(alone, id) \
    { alone, id ".whole", id ".again" }
static void table(Run *run, const ModelConfig *c, size_t sequences, size_t q) {
    const GptCells one = gpt_cells_1d(run, c, 1, sequences);
    const char *const columns[] = { "one device", page_text(run, "%zu x %zu x %zu: keep", q, q, q),
                                    "gather again", NULL };
    const Result rows[] = {
        { "parameters", "matrices: 1/q³; vectors: 1/q", BOTH(one.parameters, "parameters") },
        { "activations, peak", "1/q³ of all; gathered X, W: 1/q²", BOTH(one.kept, "kept") },
        { "sent along row", "matrix 1, 3: sums of Y; 2, 4: X", BOTH("=0 B", "sent.row") },
        { "sent along column", "matrix 1, 3: X; 2, 4: sums of Y", BOTH("=0 B", "sent.column") },
        { "sent along depth", "W and dW", BOTH("=0 B", "sent.depth") },
        { "sent in the layers", "row + column + depth", BOTH("=0 B", "sent") },
        { clock_config()->simulated ? "time of a step" : NULL, NULL, BOTH(one.time, "step") },
        { 0 },
    };
    results(run, columns, rows);
    say(run, "  keep: the gathered X and W stay in memory. gather again: backward gathers them.");
    say(run,
        "  %zu sequences of %zu tokens, width C = %zu, %zu heads, %zu blocks, %zu vocabulary "
        "entries; q = %zu",
        sequences, c->context, c->width, c->heads, c->layers, c->vocab, q);
}

static void ending(Run *run) {
    const char *time = "";
    if (clock_config()->simulated)
        time = page_text(run, ", and takes %s instead of %s", cost_text(run, "step.again"),
                         cost_text(run, "step.whole"));
    if (!answer_alone(run))
        say_answer(run,
                   "Forward, a rank gathers a part of X and one of W, and its row adds the "
                   "products (reduce-scatter). Backward, it gathers dY, and lines of ranks add "
                   "dX and dW. It sends %s per step and keeps %s of activations.",
                   cost_text(run, "sent.whole"), cost_text(run, "kept.whole"));
    say_cost(run, "gathering again keeps %s instead of %s, sends %s%s.",
             cost_text(run, "kept.again"), cost_text(run, "kept.whole"),
             cost_text(run, "sent.again"), time);
    say_use_when(run,
                 "there are q³ ranks, at least q² sequences, and many tokens per micro-batch. By "
                 "formula, with q = "
                 "4 (64 ranks) a rank that gathers again receives less than in 1D (03.06) if a "
                 "micro-batch has more than %.1f C tokens. First compare it with 1D + SP (03.12), "
                 "and with data or pipeline parallelism between nodes.",
                 tensor_way_crossover(WAY_3D, WAY_1D, 64));
}

// Prints the ranks of a line of the cube through rank 0, which are multiples of `stride`.
static void say_line(Run *run, const char *axis, size_t stride, size_t q, const char *does) {
    const char *ranks = "";
    for (size_t i = 0; i < q; i++) ranks = page_text(run, "%s %zu", ranks, i * stride);
    say(run, "  %-6s  ranks%s %s", axis, ranks, does);
}

static void cube(Run *run) {
    const ModelConfig z = gpt_options(run, 7, 61);
    require_one_link(run);
    CutGpt x = { .way = WAY_3D, .world = run->world, .cube = cube_new(run->world) };
    const size_t q = x.cube.grid.rows;
    say(run,
        "A rank has a place (layer, row, col) in a cube of %zu x %zu x %zu, and holds 1/%zu "
        "of X, of W and of Y.",
        q, q, q, q * q * q);
    say(run, "Here layer is a place in the cube, not a layer of the model. Rank 0 works in three "
             "lines of ranks:");
    say_line(run, "column", q, q,
             "(row differs) need one part of X; each stores half, and they gather it");
    say_line(run, "depth", q * q, q,
             "(layer differs) need one part of W; each stores half, and they gather it");
    say_line(run, "row", 1, q, "(col differs) multiply, then add their products to a part of Y");
    say(run, "Y is cut as X with row and col swapped, so the next matrix swaps these two lines. "
             "Matrices 1 to 4:\n"
             "of q k v, W_O, A and B (03.06). Picture: two products. Table: a GPT.");
    const LinearSizes even = { 2 * q * q, 3, 3 * q * q, 4 * q * q };
    cube_two_linears(run, &x.cube, even, true); // every size divides
    cube_two_linears(run, &x.cube, (LinearSizes){ B, T, K, N }, false);

    Training t = gpt_training(z, option_size(run, "batch"));
    training_store(run, &t);
    const bool again = !strcmp(option_text(run, "backward"), "gather");
    // SGD and AdamW as --backward says, then AdamW the other way. two: both trainings by AdamW.
    Trajectory two[2];
    for (size_t i = 0; i < 3; i++) {
        x.cube.gather_again = i < 2 ? again : !again;
        t.optimizer = i ? adamw(0.01) : sgd(0.5);
        t.micro_batches = i ? 1 : 2;
        t.recorded = i > 0;
        Trajectory got = trajectory_new(run, &t);
        gpt_train(&x, &t, &got);
        if (i < 2) {
            Trajectory want = training_unsplit(run, &t, 1);
            training_compare(run, "3D = unsplit", &got, &want, training_limit(&t));
            check_true(run, "every step is clipped", i ? "AdamW" : "SGD",
                       trajectory_clipped(&got, t.clip));
            trajectory_free(&want);
        }
        if (i) {
            costs(run, &t.model, t.sequences, &x);
            two[i - 1] = got;
        } else trajectory_free(&got);
    }
    training_compare(run, "gathered again = kept", &two[1], &two[0], 0);
    for (size_t i = 0; i < 2; i++) trajectory_free(&two[i]);
    table(run, &t.model, t.sequences, q);
    ending(run);
    data_free(&t.data);
    cube_free(&x.cube);
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
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(cube, options);
