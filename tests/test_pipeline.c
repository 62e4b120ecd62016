// test_pipeline.c: what the executor can do that no lesson of chapters 04 and 05 asks of it: several chunks of a model
// on a stage, and backwards in two halves. On real models of the smallest sizes, emulated; every result has the bits of
// gradient accumulation on one device. And the rule of all schedules, pipe_op_needs, on lists alone. tests/pipeline.t
// runs it.
//
// ranks: 1
// level: core
// question: Does the executor run every schedule that the rule of pipelines allows?
#include "04_pipeline_naive/support/timeline.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "common/device/device.h"
#include "tap.h"

// ---------------------------------------------------------------- lists

// "F0c1 B2 I0 W0": forward, backward, backward of inputs, of weights; of micro-batch, of chunk (0: not written).
static Schedule list_of(const char *text) {
    Schedule s = {0};
    for (char *end; *text; text = end + (*end == ' ')) {
        static const char letters[] = "FBIWU";
        PipeOp op = { .what = (PipeWhat)(strchr(letters, *text) - letters) };
        op.micro_batch = strtoul(text + 1, &end, 10);
        if (*end == 'c') op.chunk = strtoul(end + 1, &end, 10);
        schedule_add_op(&s, op);
    }
    return s;
}

// Interleaved 1F1B as in Megatron-LM (Narayanan et al. 2021, section 2.2): groups of p micro-batches walk through all
// chunks. Stage i of p, v chunks, m micro-batches, a multiple of p.
static Schedule interleaved(size_t p, size_t v, size_t m, size_t i) {
    Schedule s = {0};
    size_t ahead = 2 * (p - 1 - i) + (v - 1) * p, all = m * v, warm_up = ahead < all ? ahead : all;
    for (size_t n = 0; n < all + warm_up; n++) {
        for (int back = 0; back < 2; back++) {
            if (back ? n < warm_up : n >= all) continue;
            size_t turn = back ? n - warm_up : n, chunk = turn % (p * v) / p;
            schedule_add_op(&s, (PipeOp){ .what = back ? BACKWARD : FORWARD, .chunk = back ? v - 1 - chunk : chunk,
                                          .micro_batch = turn / (p * v) * p + turn % p });
        }
    }
    return s;
}

static bool equal(Schedule a, Schedule b) {
    bool same = a.n == b.n;
    for (size_t e = 0; same && e < a.n; e++)
        same = pipe_op_is(a.ops[e], b.ops[e]) && a.ops[e].what == b.ops[e].what;
    schedule_free(&a);
    schedule_free(&b);
    return same;
}

// What takes an op's result needs that op; and every need but the first part's is answered by such a result.
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
                        inverse &= pipe_op_needs(feeds.op, feeds.stage, p, v, &needs) && needs.stage == i &&
                                   pipe_op_is(op, needs.op);
                        inverse &= feeds.op.chunk * p + feeds.stage + (what == FORWARD ? 0 : 2) == chunk * p + i + 1;
                        fed++;
                    }
            counted &= fed == 3 * (p * v - 1);             // forward, backward, backward of inputs
        }
    ok(inverse, "what takes an op's result needs that op, and is of the part beside it, p = 1..5, v = 1..4");
    ok(counted, "of p v parts all but one send each way");
    StageOp needs;
    PipeOp weights = { .what = BACKWARD_WEIGHTS, .micro_batch = 1, .chunk = 1 };
    PipeOp own = { .what = BACKWARD_INPUTS, .micro_batch = 1, .chunk = 1 };
    bool of_own = pipe_op_needs(weights, 1, 3, 2, &needs) && needs.stage == 1 && pipe_op_is(own, needs.op);
    ok(of_own && !pipe_op_is(weights, needs.op), "a backward of weights needs its own backward of inputs");
    ok(!pipe_op_needs((PipeOp){ .what = UPDATE }, 1, 3, 1, &needs), "an update needs only its place in the list");
}

static size_t step_time(Schedule *stage, size_t p, size_t m, const OpTimes *times) {
    Timeline t = timeline_with_times(stage, p, m, times);
    size_t end = t.stuck ? SIZE_MAX : t.end;
    timeline_free(&t);
    for (size_t i = 0; i < p; i++) schedule_free(&stage[i]);
    return end;
}

static void test_lists(void) {
    ok(equal(interleaved(2, 2, 4, 0), list_of("F0c0 F1c0 F0c1 F1c1 F2c0 B0c1 F3c0 B1c1 F2c1 B0c0 F3c1 B1c0 B2c1 B3c1 "
                                              "B2c0 B3c0")), "interleaved, p = 2, v = 2, m = 4, rank 0: as published");
    ok(equal(interleaved(2, 2, 4, 1), list_of("F0c0 F1c0 F0c1 B0c1 F1c1 B1c1 F2c0 B0c0 F3c0 B1c0 F2c1 B2c1 F3c1 B3c1 "
                                              "B2c0 B3c0")), "interleaved, p = 2, v = 2, m = 4, rank 1: as published");
    bool exact = true;
    for (size_t p = 1; p <= 4; p++)
        for (size_t v = 1; v <= 4; v++)
            for (size_t m = p; m <= 4 * p; m += p) {
                Schedule stage[4];
                for (size_t i = 0; i < p; i++) stage[i] = interleaved(p, v, m, i);
                // t_f of a stage is v units, of a chunk 1: (m + (p-1)/v) (t_f + t_b)
                exact &= step_time(stage, p, m, &(OpTimes){ 1, 2, 0, 0 }) == (m * v + p - 1) * 3;
            }
    ok(exact, "interleaved: step time (m + (p-1)/v)(t_f + t_b), p = 1..4, v = 1..4, m = p..4p");

    // ZB-H1 (Qi et al. 2023): 1F1B's order, and stage i puts off its gradients of weights by i micro-batches.
    Schedule zero[4] = {0};
    for (size_t i = 0; i < 4; i++) {
        size_t forward = 0, weights = 0, back = 0;
        while (forward < 3 - i) schedule_add(&zero[i], FORWARD, forward++);
        while (back < 8) {
            if (forward < 8) schedule_add(&zero[i], FORWARD, forward++);
            schedule_add(&zero[i], BACKWARD_INPUTS, back++);
            if (back > i) schedule_add(&zero[i], BACKWARD_WEIGHTS, weights++);
        }
        while (weights < 8) schedule_add(&zero[i], BACKWARD_WEIGHTS, weights++);
    }
    size_t units = step_time(zero, 4, 8, &(OpTimes){ 1, 1, 1, 0 });
    if (!ok(units == 27, "backwards in halves, p = 4, m = 8, each op 1 unit: ZB-H1 takes 27, 1F1B 33"))
        printf("#   %zu units\n", units);
    ok(makespan(schedule_1f1b, 4, 8, 1, 2) == 33, "1F1B: 33");
}

// ---------------------------------------------------------------- the executor on a real model

typedef struct {
    const char *name;
    size_t p, v, m;
    const char *list[4];                           // of each stage; NULL: interleaved
    size_t in_flight;                              // most on stage 0
} Case;

enum { SEQUENCES = 2 };
static const ModelConfig sizes = { .layers = 7, .width = 12, .heads = 3, .context = 5, .vocab = 17, .dropout = 0.1,
                                   .seed = 4 };

static Model *part_of(size_t p, size_t v, size_t i) {
    Range chunk[4];
    for (size_t c = 0; c < v; c++) chunk[c] = pipeline_stage_layers(&sizes, NULL, p * v, c * p + i);
    Model *m = model_describe_chunks(&sizes, chunk, v);
    model_allocate(m);
    return m;
}

// The gradients of this stage's tensors have the bits of the whole model's.
static bool same_gradients(Model *part, Model *whole) {
    bool same = true;
    for (size_t i = 0; i < part->n_units; i++) {
        Unit *u = &part->units[i], *w = u == model_wte_head(part) ? model_wte_head(whole)
                                                                  : model_unit(whole, u->params[0].name);
        same &= tensor_equal(u->g, w->g);
    }
    return same;
}

static void run_case(Comm *world, void *which) {
    const Case *c = which;
    size_t p = world->size, i = world->rank;
    Arena tokens = arena(MEM_WORKSPACE);
    Data d = data_synthetic(sizes.vocab, sizes.context, 1);
    Batch batch[16];
    for (size_t k = 0; k < c->m; k++) {
        // the last micro-batch is smaller
        batch[k] = data_batch(&d, &tokens, 0, k * SEQUENCES, SEQUENCES - (k + 1 == c->m), c->m * SEQUENCES - 1);
        batch[k].number = k;
    }
    // One device: forward and backward of one micro-batch after the other.
    Model *whole = model_describe(&sizes, model_layers(&sizes)), *mine = part_of(p, c->v, i);
    model_allocate(whole);
    double want = 0, want_evaluated = model_loss(whole, &batch[0]);
    for (size_t k = 0; k < c->m; k++) want += model_forward_backward(whole, &batch[k]);

    Schedule list = c->list[0] ? list_of(c->list[i]) : interleaved(p, c->v, c->m, i);
    PipelineResult got = pipeline_run(world, mine, &list, batch, c->m);
    double evaluated = pipeline_loss(world, mine, &batch[0]);
    double wrong[] = { !same_gradients(mine, whole), i + 1 == p && got.loss != want,
                       i + 1 == p ? evaluated != want_evaluated : evaluated != 0,
                       i == 0 && got.in_flight != c->in_flight };
    comm_all_reduce_doubles(world, wrong, 4);
    if (i == 0) {
        ok(wrong[0] == 0, "%s, p = %zu, v = %zu, m = %zu: gradients, every bit", c->name, p, c->v, c->m);
        ok(wrong[1] == 0, "%s, p = %zu, v = %zu: loss, every bit", c->name, p, c->v);
        ok(wrong[2] == 0, "%s, p = %zu, v = %zu: evaluation", c->name, p, c->v);
        if (!ok(wrong[3] == 0, "%s, p = %zu, v = %zu: %zu in flight on stage 0", c->name, p, c->v, c->in_flight))
            printf("#   %zu\n", got.in_flight);
    }
    schedule_free(&list);
    model_free(mine);
    model_free(whole);
    arena_free(&tokens);
    data_free(&d);
}

static void as_ranks(size_t n, void (*body)(Comm *world, void *arg), const void *arg) {
    LaunchOptions o = { .emulate = (int)n, .default_ranks = (int)n, .timeout = 60 };
    LaunchChoice choice = comm_choose(&o);
    comm_run(&o, &choice, body, (void *)arg);
}

static const Case cases[] = {
    { "interleaved", 2, 2, 4, {
        "F0c0 F1c0 F0c1 F1c1 F2c0 B0c1 F3c0 B1c1 F2c1 B0c0 F3c1 B1c0 B2c1 B3c1 B2c0 B3c0",
        "F0c0 F1c0 F0c1 B0c1 F1c1 B1c1 F2c0 B0c0 F3c0 B1c0 F2c1 B2c1 F3c1 B3c1 B2c0 B3c0" }, 5 },
    { "interleaved", 1, 2, 2, {0}, 2 },
    { "interleaved", 1, 1, 3, {0}, 1 },
    { "interleaved", 2, 3, 2, {0}, 6 },
    { "interleaved", 3, 2, 6, {0}, 8 },
    { "interleaved", 4, 2, 4, {0}, 8 },
    { "backwards in halves", 2, 1, 3, { "F0 F1 I0 F2 I1 W0 I2 W1 W2", "F0 I0 F1 I1 W0 F2 I2 W1 W2" }, 3 },
    { "some backwards in halves", 2, 1, 3, { "F0 F1 I0 F2 W0 B1 I2 W2", "F0 B0 F1 I1 F2 W1 B2" }, 3 },
    { "chunks and halves", 2, 2, 2, {
        "F0c0 F1c0 F0c1 F1c1 I0c1 I1c1 I0c0 W0c1 I1c0 W1c1 W0c0 W1c0",
        "F0c0 F1c0 F0c1 I0c1 F1c1 I1c1 I0c0 I1c0 W0c1 W1c1 W0c0 W1c0" }, 4 },
    { "halves, one stage", 1, 1, 3, { "F0 I0 F1 I1 F2 I2 W0 W1 W2" }, 3 },
};

int main(void) {
    test_rule();
    test_lists();
    device_init();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) as_ranks(cases[i].p, run_case, &cases[i]);
    return tap_end();
}
