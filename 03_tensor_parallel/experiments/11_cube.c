// 11_cube.c (experiment): splits two linear layers (grids.c), and then a GPT, over a cube, and
// compares both with the unsplit layers and GPT. Backward reads the X and W that forward gathered,
// or gathers X and W again, with the same bits. Bytes along each axis, memory and time are
// predicted.
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
    // `numbers` is the time of the all-reduces of the loss and of the gradient norm. Rank 0 has the
    // largest part of every tensor, so the other ranks wait for rank 0.
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
        { "sent along row", "X, Y: 24 M C (q-1)/q³; norms", BOTH("=0 B", "sent.row") },
        { "sent along column", "X, Y: 8 M C (q-1)/q³", BOTH("=0 B", "sent.column") },
        { "sent along depth", "W: 24 C² (q-1)/q³", BOTH("=0 B", "sent.depth") },
        { "sent in the layers", "row + column + depth", BOTH("=0 B", "sent") },
        { clock_config()->simulated ? "time of a step" : NULL, NULL, BOTH(one.time, "step") },
        { 0 },
    };
    results(run, columns, rows);
    say(run, "  keep: gathered X, W stay. gather again: backward gathers them again. vectors: "
             "biases, gains, wpe.\n  Formulas of bytes: elements of one block, with keep, for M "
             "tokens. X, Y, W with their gradients.");
    say(run,
        "  GPT: %zu sequences of %zu tokens, width C = %zu, %zu heads, %zu blocks, %zu vocabulary "
        "entries; q = %zu",
        sequences, c->context, c->width, c->heads, c->layers, c->vocab, q);
    gpt_say_uneven(run, c, sequences, q * q, q);
}

static void ending(Run *run) {
    const char *time = "";
    if (clock_config()->simulated)
        time = page_text(run, ", and takes %s instead of %s", cost_text(run, "step.again"),
                         cost_text(run, "step.whole"));
    if (!answer_alone(run))
        say_answer(
            run,
            "A rank sends (q-1)/q³ of each matrix: X along its column, W along its depth, "
            "partial sums of Y along its row. With keep, backward sends as much of dX, dW and "
            "dY. In a step a rank then sends %s and keeps %s of activations.",
            cost_text(run, "sent.whole"), cost_text(run, "kept.whole"));
    say_cost(run, "gathering again keeps %s instead of %s, sends %s%s.",
             cost_text(run, "kept.again"), cost_text(run, "kept.whole"),
             cost_text(run, "sent.again"), time);
    say_use_when(run,
                 "there are q³ ranks, at least q² sequences, and many tokens. 64 ranks that gather "
                 "again receive less than in 1D (03.06) from %.1f C tokens per micro-batch on. "
                 "First compare 3D with 1D + SP inside nodes (03.12).",
                 tensor_way_crossover(WAY_3D, WAY_1D, 64));
}

// Prints the ranks of a line of the cube through rank 0, which are multiples of `stride`.
static void say_line(Run *run, const char *axis, size_t stride, size_t q, const char *does) {
    const char *ranks = "";
    for (size_t i = 0; i < q; i++) ranks = page_text(run, "%s %zu", ranks, i * stride);
    say(run, "  %-6s  ranks%s %s", axis, ranks, does);
}
static void introduction(Run *run, size_t q) {
    const char *stores = "need the same part of %s. Each stores 1/%zu of it, and they gather it";
    say(run,
        "A rank has a place (layer, row, col) in a cube of %zu x %zu x %zu, and holds 1/%zu of X, "
        "of W and of Y.\n(This layer is a place, not a layer of the model.) Rank 0 works in three "
        "lines of ranks:",
        q, q, q, q * q * q);
    say_line(run, "column", q, q, page_text(run, stores, "X", q));
    say_line(run, "depth", q * q, q, page_text(run, stores, "W", q));
    say_line(run, "row", 1, q, "multiply, add their products, and each keeps a part of the sum Y");
    say(run, "Y is cut as X is, with row and col swapped. So the model's next layer gathers its X "
             "along the row,\nand adds its products along the column.");
}

// Trains both ways with one optimizer: backward reads the gathered X and W that forward kept, or
// gathers X and W again. Both ways must agree in every bit.
static void both_ways(void *cut_gpt, const Training *t, Trajectory *kept) {
    CutGpt *x = cut_gpt;
    Run *run = kept->run;
    Trajectory again = trajectory_new(run, t);
    for (int i = 0; i < 2; i++) {
        x->cube.gather_again = i;
        gpt_train(x, t, i ? &again : kept);
        if (t->recorded) costs(run, &t->model, t->sequences, x);
    }
    training_compare(run, "gathered again = kept", &again, kept, 0);
    trajectory_free(&again);
}

static void cube(Run *run) {
    const ModelConfig c = gpt_options(run, 7, 61);
    require_one_link(run);
    CutGpt x = { .way = WAY_3D, .world = run->world, .cube = cube_new(run->world) };
    const size_t q = x.cube.grid.rows;
    introduction(run, q);
    const LinearSizes even = { 2 * q * q, 3, 3 * q * q, 4 * q * q };
    cube_two_linears(run, &x.cube, even, true); // q^2 divides B, K and N
    cube_two_linears(run, &x.cube, (LinearSizes){ B, T, K, N }, false);

    Training t = gpt_training(c, option_size(run, "batch"));
    training_store(run, &t);
    t.recorded = true; // training_both() records the last step under AdamW
    training_both(run, "3D = unsplit", &t, both_ways, &x); // SGD, then AdamW
    table(run, &t.model, t.sequences, q);
    ending(run);
    data_free(&t.data);
    cube_free(&x.cube);
}

static const Option options[] = {
    { "batch", "N", "6", "sequences" },
    { "layers", "N", "2", "blocks" },
    { "width", "N", "27", "columns; a multiple of --heads" },
    { "heads", "N", "9", "attention heads; at least one per rank" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(cube, options);
