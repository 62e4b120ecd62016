// 12_compare.c (experiment): trains one model in up to six ways on the same ranks, and compares
// each training with the unsplit training. A training has one step over each of the two links of
// --link. A way that the number of ranks does not allow is left out; 64 ranks allow all six ways. A
// second table and a plot are computed from sizes alone (way_tables.c).
#include "03_tensor_parallel/experiments/experiments.h"

static const char *const way_id[TENSOR_WAYS] = { "1d", "sp", "2d", "25d", "3d", "ring" };

static const ClockLink *link_of(int i) {
    return i ? &clock_config()->between : &clock_config()->link;
}

// ---------------------------------------------------------------- one training in one of the ways

static void begin_step(CutGpt *x) { // one step over each link
    clock_set_link(link_of((int)x->measured.steps));
    ranks_together(x->world);
}
static CutGpt cut_new(Comm *world, TensorWay way) {
    const TensorWayShape shape = tensor_way_shape(way, world->size);
    CutGpt x = { .way = way,
                 .world = world,
                 .input = KEEP_SHARD,
                 .attention = &ring_attention_zigzag,
                 .begin_step = begin_step };
    if (way == WAY_2D) x.grid = comm_grid(world, shape.q, shape.q, 1);
    if (way == WAY_25D) x.grid = tesseract_grid(world, shape.depth);
    if (way == WAY_3D) x.cube = cube_new(world);
    x.cube.gather_again = true;
    return x;
}
static void cut_free(CutGpt *x) {
    if (x->way == WAY_3D) cube_free(&x->cube);
    if (x->grid.in_row) comm_grid_free(&x->grid);
}

// ---------------------------------------------------------------- costs

// Returns whether a formula predicts the time. There is no formula if unequal blocks of a grid, or
// unequal chunks of a ring, make ranks wait.
static bool time_predicted(TensorWay way, const Training *t, size_t n) {
    const TensorWayShape s = tensor_way_shape(way, n);
    const GridPlace at = grid_place_of(&t->model, s.q, s.depth, 0);
    if (way == WAY_2D || way == WAY_25D) return grid_even(&at, t->sequences);
    return way != WAY_RING || t->model.context % (2 * n) == 0;
}
static void costs(Run *run, const Training *t, TensorWay way, const GptMeasured *r) {
    const size_t n = run->world->size;
    const RankShare s = way_share(way, &t->model, t->sequences, n, run->world->rank);
    const char *ids = page_text(run, "%%s.%s", way_id[way]);
    const char *names = page_text(run, "%s: %%s", tensor_way_name[way]);
    gpt_memory_costs(run, ids, names, &t->model, &s, r);
    check_costs(run, ids, names,
                (CostRow[]){ { "received", "received a step", "bytes", BY_FORMULA(s.received),
                               gpt_received(r) },
                             { 0 } });
    if (!clock_config()->simulated || !time_predicted(way, t, n)) return;
    for (int i = 0; i < 2; i++) {
        clock_set_link(link_of(i));
        const double loss = ring_time(ALL_REDUCE_PASSES, n, 1, sizeof(double));
        const double time = way_share(way, &t->model, t->sequences, n, 0).time + loss;
        check_costs(run, ids, names,
                    (CostRow[]){ { i ? "step.second" : "step.first",
                                   page_text(run, "step, link %s", link_of(i)->name), "ps",
                                   BY_FORMULA(time), (double)r->step_time[i] },
                                 { 0 } });
    }
    clock_set_link(NULL);
}

// ---------------------------------------------------------------- the table of this run

static void table(Run *run, const Training *t, const GptMeasured measured[TENSOR_WAYS]) {
    const size_t n = run->world->size;
    const char *columns[TENSOR_WAYS + 1] = { NULL };
    Result rows[] = { { .what = "ranks" },
                      { .what = "parameters" },
                      { .what = "activations, peak" },
                      { .what = "  of these, scores" },
                      { .what = "received per step" },
                      { 0 },
                      { 0 },
                      { 0 } };
    size_t column = 0;
    for (TensorWay way = 0; way < TENSOR_WAYS; way++) {
        const TensorWayShape s = tensor_way_shape(way, n);
        const double scores = way_scores(way, &t->model, t->sequences, n);
        const char *shape = page_text(run, "=%zu", n);
        if (s.q == 0) continue;
        if (way == WAY_2D) shape = page_text(run, "=%zu x %zu", s.q, s.q);
        if (way == WAY_25D || way == WAY_3D)
            shape = page_text(run, "=%zu x %zu x %zu", s.q, s.q, s.depth);
        columns[column] = tensor_way_name[way];
        rows[0].cell[column] = shape;
        rows[1].cell[column] = page_text(run, "parameters.%s", way_id[way]);
        rows[2].cell[column] = page_text(run, "kept.%s", way_id[way]);
        rows[3].cell[column] = value_cell(run, scores * (double)weight_bytes(&t->model), "bytes");
        rows[4].cell[column] = page_text(run, "received.%s", way_id[way]);
        for (int i = 0; i < 2 && clock_config()->simulated; i++) {
            rows[5 + i].what = page_text(run, "step, link %s", link_of(i)->name);
            rows[5 + i].cell[column] =
                page_text(run, "=%.2f ms", (double)measured[way].step_time[i] / 1e9);
        }
        column++;
    }
    results(run, columns, rows);
    const char *left_out = "2D needs q² ranks, 2.5D q² d, 3D q³.";
    if (column == TENSOR_WAYS - 1 && tensor_way_shape(WAY_2D, n).q == 0)
        left_out = page_text(run, "2D is left out: %zu is not a square.", n);
    say(run, "  %zu blocks, width %zu; %zu sequences of %zu tokens. %s", t->model.layers,
        t->model.width, t->sequences, t->model.context, left_out);
    say(run, "  scores: mean of the ranks. The ring stores none. With FlashAttention no way stores "
             "scores.");
}

// ---------------------------------------------------------------- the answer

// Returns the way with the smallest value among the ways that n ranks allow.
static TensorWay least(const double value[TENSOR_WAYS], size_t n) {
    TensorWay best = WAY_1D;
    for (TensorWay way = WAY_SP; way < TENSOR_WAYS; way++)
        if (tensor_way_shape(way, n).q > 0 && value[way] < value[best]) best = way;
    return best;
}

static void ending(Run *run, const GptMeasured measured[TENSOR_WAYS], TensorWay wide) {
    const size_t n = run->world->size;
    double memory[TENSOR_WAYS], bytes[TENSOR_WAYS], time[2][TENSOR_WAYS];
    for (TensorWay way = 0; way < TENSOR_WAYS; way++) {
        memory[way] = (double)(measured[way].activations + measured[way].parameters);
        bytes[way] = gpt_received(&measured[way]);
        for (int i = 0; i < 2; i++) time[i][way] = (double)measured[way].step_time[i];
    }
    const TensorWay smallest = least(memory, n), fewest = least(bytes, n);
    const char *speed = "", *with_sp = "";
    if (smallest != WAY_SP)
        with_sp = page_text(run, "; %s keeps %s", tensor_way_name[WAY_SP],
                            value_text(run, memory[WAY_SP], "bytes"));
    if (clock_config()->simulated) {
        const TensorWay first = least(time[0], n), second = least(time[1], n);
        speed =
            page_text(run, " %s is fastest over link %s, %s over link %s.", tensor_way_name[first],
                      link_of(0)->name, tensor_way_name[second], link_of(1)->name);
        if (first == second)
            speed = page_text(run, " %s is fastest over both links.", tensor_way_name[first]);
    }
    if (!answer_alone(run))
        say_answer(run,
                   "%s keeps least, %s of parameters and activations%s. %s receives least, %s per "
                   "step.%s At GPT-3's width on 64 ranks %s receives least.",
                   tensor_way_name[smallest], value_text(run, memory[smallest], "bytes"), with_sp,
                   tensor_way_name[fewest], value_text(run, bytes[fewest], "bytes"), speed,
                   tensor_way_name[wide]);
    say_cost(run,
             "2D, 2.5D and 3D send weights, too, in every micro-batch. The ring holds all weights "
             "on each rank: %s, in 1D %s.",
             cost_text(run, "parameters.ring"), cost_text(run, "parameters.1d"));
    say_use_when(
        run,
        "in a node: 1D + SP, because it works with one sequence and with any number of ranks "
        "up to the heads. Between nodes: pipelines (04), else 2D to 3D. Long sequences: ring.");
}

// ---------------------------------------------------------------- the run

static void compare(Run *run) {
    const ModelConfig c = gpt_options(run, option_size(run, "context"), option_size(run, "vocab"));
    require_one_link(run);
    const size_t n = run->world->size;
    REQUIRE(n <= c.heads && n <= c.context && n <= c.vocab,
            "%zu ranks need as many heads, positions and vocabulary entries: choose fewer ranks, "
            "or more --heads, --context and --vocab",
            n);
    Training t = gpt_training(c, option_size(run, "batch"));
    t.steps = 2;
    t.clip = 0;
    t.optimizer = adamw(0.01);
    training_store(run, &t);
    say(run,
        "One GPT, trained in each way on the same %zu ranks. 1D (03.06): each weight matrix is cut "
        "along one\nside. SP (03.07): the rows in norms and residual paths are cut, too. 2D, 2.5D, "
        "3D (03.09 to\n03.11): weights and activations in blocks, on a grid or cube of ranks. ring "
        "(03.08): positions are\ncut, weights are whole. SP and 3D gather inputs again in "
        "backward.",
        n);
    Trajectory want = training_unsplit(run, &t, 1);
    GptMeasured measured[TENSOR_WAYS] = { { 0 } };
    for (TensorWay way = 0; way < TENSOR_WAYS; way++) {
        if (tensor_way_shape(way, n).q == 0) continue;
        Trajectory got = trajectory_new(run, &t);
        const char *what = page_text(run, "split = unsplit, %s", tensor_way_name[way]);
        CutGpt cut = cut_new(run->world, way);
        gpt_train(&cut, &t, &got);
        clock_set_link(NULL);
        measured[way] = cut.measured;
        training_compare(run, what, &got, &want, training_limit(&t));
        costs(run, &t, way, &measured[way]);
        trajectory_free(&got);
        cut_free(&cut);
    }
    trajectory_free(&want);
    table(run, &t, measured);
    ending(run, measured, way_tables(run));
    data_free(&t.data);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "32", "columns; a multiple of --heads" },
    { "heads", "N", "8", "attention heads; at least one per rank" },
    { "context", "N", "16", "positions of a sequence; at least one per rank" },
    { "vocab", "N", "64", "vocabulary entries; at least one per rank" },
    { "batch", "N", "8", "sequences per step" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    { "link", "NAME[,NAME]", "fast,slow",
      "the two links that are compared; alpha and beta of each" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(compare, options);
