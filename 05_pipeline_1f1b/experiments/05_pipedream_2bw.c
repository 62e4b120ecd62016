// 05_pipedream_2bw.c (experiment): 2BW equals one device whose gradients are one update late, in
// every bit. Two versions suffice for m >= p. Compares GPipe, 1F1B, PipeDream and 2BW.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>

// 11 sequences of 5 to 10 counted tokens a batch; 9 blocks on 4 stages: 3, 2, 2, 2.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};
enum { SEQUENCES = 11, STEPS = 5 };

// Trains on one device (rank 0, uncounted) with two buffers of weights:
//     W(t+1) = W(t) - eta grad f_t(W(t-1)).
// The norms of the Trajectory stay 0.
static Trajectory reference(Run *run, const Training *t) {
    Trajectory out = trajectory_new(run, t);
    if (run->world->rank > 0) return out;
    ledger_pause();
    Model *m = model_describe(&t->model, model_layers(&t->model));
    Optimizer o = t->optimizer;
    Arena a = arena(MEM_REFERENCE);
    model_allocate(m);
    optimizer_allocate(&o, m);
    Tensor newest = tensor_new(&a, 1, m->size), before = tensor_new(&a, 1, m->size);
    tensor_copy(before, m->w);
    for (size_t step = 0; step < t->steps; step++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *b = training_batches(t, &tokens, step, 1, 0);
        tensor_copy(newest, m->w);
        tensor_copy(m->w, before); // the batch reads the version before the newest
        model_zero_gradients(m);
        for (size_t k = 0; k < t->micro_batches; k++)
            out.loss[step] += model_forward_backward(m, &b[k]);
        out.loss[step] *= b->token_weight;
        model_fold_tied(m);
        tensor_copy(before, newest);
        tensor_copy(m->w, newest);
        optimizer_step(&o, m, 1); // updates the newest version
        trajectory_record(&out, step, m, out.loss[step], 0);
        free(b);
        arena_free(&tokens);
    }
    arena_free(&a);
    model_free(m);
    ledger_resume();
    return out;
}

// run_id names the training in the ids.
static void training_costs(Run *run, const Training *t, const char *run_id,
                           const VersionsSeen *seen) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, n = t->steps * m;
    size_t E = sizeof(real), neighbours = stage_neighbours(run), flight = p - i, tokens = 0;
    bool has_table = p > 1 && (i == 0 || i + 1 == p); // the tied table, on both ends
    CutSizes z = stage_sizes(&t->model, p, i);
    size_t elements = elements_stage(&z), table = has_table ? elements_wte(&z) : 0;
    size_t moments = t->optimizer.kind == ADAMW ? 2 : t->optimizer.momentum > 0;
    size_t sent = t->steps * neighbours * message_elements(&z, t->sequences) * E;
    // Most tokens of p-i neighbouring micro-batches: of the last ones of a batch and the first ones
    // of the next.
    for (size_t k = 0; k < flight; k++) tokens += stage_tokens(t, k);
    CostName ids;
    cost_name(&ids, "%s.%%s", run_id);
    check_costs(
        run, ids.text, "2BW: %s",
        (CostRow[]){
            { "versions", "versions of the weights", "versions", BY_FORMULA(2),
              (double)seen->weights / (double)(seen->size * E) },
            { "weights", "weights of both versions", "bytes", BY_FORMULA(2 * elements * E),
              seen->weights },
            { "gradients", "gradients, the tied table's twice", "bytes",
              BY_FORMULA((elements_gradients(&z) + table) * E), seen->gradients },
            { "optimizer", "optimizer state", "bytes", BY_FORMULA(moments * elements * E),
              seen->optimizer },
            { "flight", "in flight: p-i", "micro-batches", BY_FORMULA(flight), seen->in_flight },
            { "activations", "activations, peak", "bytes", BY_FORMULA(kept_stage(&z) * tokens * E),
              seen->activations },
            { "sent.calls", "messages sent", "calls", BY_FORMULA(n * neighbours), seen->messages },
            { "sent.bytes", "messages sent", "bytes", BY_FORMULA(sent), seen->message_bytes },
            { "buffers", "message buffers, peak", "bytes",
              BY_FORMULA(stage_message_buffers(t, p, i) + table * E), seen->buffers },
            { "table.calls", "gradients of the tied table sent", "calls",
              BY_FORMULA(has_table * t->steps), seen->table_calls },
            { "table.bytes", "gradients of the tied table sent", "bytes",
              BY_FORMULA(t->steps * table * E), seen->table_bytes },
            { "sums", "sums over stages", "calls", BY_FORMULA(0), seen->sums },
            { 0 } });
}

// Trains by 2BW's list; flush: by 1F1B's, with a flush after every batch. Then every op reads the
// newest weights.
static VersionsSeen train(Run *run, const Training *t, bool flush, Trajectory *got) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches;
    Schedule list = flush ? schedule_flushed(p, m, i, t->steps) : schedule_2bw(p, m, t->steps, i);
    VersionsSeen seen = versions_train(run, t, &list, NULL, got);
    schedule_free(&list);
    return seen;
}

static void equals_recurrence(Run *run, const Training *t, bool flush, const char *run_id,
                              const char *what) {
    Trajectory got = trajectory_new(run, t);
    Trajectory want = flush ? training_unsplit(run, t, 1) : reference(run, t);
    VersionsSeen seen = train(run, t, flush, &got);
    training_compare_tensors(run, what, &got, &want, 0);
    check_numbers(run, what, "loss", got.loss, want.loss, t->steps, 0);
    check_true(run, "afterwards", "the model has its own gradient buffers", seen.buffers_back);
    if (!flush) training_costs(run, t, run_id, &seen);
    versions_seen_free(&seen);
    trajectory_free(&got);
    trajectory_free(&want);
}

// The mean loss of the last batches of a training on text: [0] with a flush, [1] with 2BW.
enum { LONG = 80, LAST = 20 };
static void losses_on_text(Run *run, double loss[2]) {
    size_t p = run->world->size, m = p < 4 ? 4 : p;
    Training t = { .model = { .layers = m, .width = 16, .heads = 2, .context = 16, .vocab = 256 },
                   .steps = LONG,
                   .sequences = m,
                   .micro_batches = m,
                   .optimizer = sgd(0.1) };
    t.model.seed = run->seed;
    t.data = training_text(run, option_text(run, "data"), NULL, t.model.vocab, t.model.context,
                           t.sequences);
    for (size_t way = 0; way < 2; way++) {
        VersionsSeen seen = train(run, &t, way == 0, NULL);
        loss[way] = 0;
        for (size_t step = LONG - LAST; step < LONG; step++) loss[way] += seen.loss[step] / LAST;
        versions_seen_free(&seen);
    }
    data_free(&t.data);
}

// ---------------------------------------------------------------- lists alone

// Two versions are enough for a list if every op reads the newest version or the one before it.
static bool two_are_enough(const Schedule *s) {
    size_t newest = 0;
    bool enough = true;
    for (size_t e = 0; e < s->n; e++)
        if (s->ops[e].what == UPDATE) newest++;
        else enough = enough && s->ops[e].version <= newest && newest <= s->ops[e].version + 1;
    return enough;
}

enum { MOST_STAGES = 8, MOST_MICRO = 24, BATCHES = 3 };
static void check_lists(Run *run) {
    bool enough = true, too_few = true;
    for (size_t p = 1; p <= MOST_STAGES; p++)
        for (size_t m = 1; m <= MOST_MICRO; m++) {
            bool all = true;
            for (size_t i = 0; i < p; i++) {
                Schedule s = schedule_2bw(p, m, BATCHES, i);
                all = all && two_are_enough(&s);
                schedule_free(&s);
            }
            if (m >= p) enough = enough && all;
            // With m = p - 1 an update comes just before its first reader: two are enough, too.
            if (m + 2 <= p) too_few = too_few && !all;
        }
    check_true(run, "op lists", "two versions suffice for m >= p", enough);
    check_true(run, "op lists", "not for m < p - 1", too_few);
}

// -------------------------------------------------------- equal stages, on the clock: four ways

enum { WAYS = 4, GPIPE = 0, ONE_F_ONE_B, PIPEDREAM, TWO_BW };
static const char *const way_id[WAYS] = { "gpipe", "1f1b", "pipedream", "2bw" };
static const char *const way_columns[WAYS + 1] = { "GPipe", "1F1B", "PipeDream", "2BW", NULL };
// The measurements of one way on this rank. batch: the time of one more batch. predicted: the same
// from the played lists.
typedef struct {
    size_t in_flight, weights, activations;
    Picoseconds batch, predicted;
} Way;

static Schedule as_one_batch(size_t p, size_t n, size_t i) { return schedule_2bw(p, n, 1, i); }

static Way way_of(const Played *played, Picoseconds batch, Picoseconds predicted) {
    return (Way){ played->result.in_flight, memory_peak(MEM_PARAMETERS), played->activations, batch,
                  predicted };
}
static Way synchronous(Run *run, const Stack *stack, ScheduleRule rule, size_t m) {
    StackTimes d = stack_times(stack);
    size_t p = run->world->size;
    Played seen = stack_play(run, stack, rule, m);
    return way_of(&seen, seen.timing.step,
                  makespan_with_link(rule, p, m, d.forward, d.backward, d.message));
}
static Way pipedream(Run *run, const Stack *stack, size_t m) {
    size_t p = run->world->size, i = run->world->rank;
    size_t older = pipedream_older(WEIGHT_STASHING, p, i);
    Played seen[2];
    for (size_t k = 0; k < 2; k++) {
        Schedule list = schedule_stashing(p, (k + 2) * m, i);
        seen[k] = pipedream_play(run, stack, &list, older, (k + 2) * m);
        schedule_free(&list);
    }
    return way_of(&seen[1], seen[1].timing.step - seen[0].timing.step,
                  stack_makespan(stack, schedule_stashing, p, 3 * m) -
                      stack_makespan(stack, schedule_stashing, p, 2 * m));
}

// The prediction leaves out the messages of the table, because computation must hide them. Only the
// last message comes after all computation.
static Way double_buffered(Run *run, const Stack *stack, size_t m) {
    size_t p = run->world->size;
    Played two = two_bw_play(run, stack, m, 2);
    picture_show(run, "2BW, two batches", PICTURE_CHART);
    Played three = two_bw_play(run, stack, m, 3);
    Picoseconds work = stack_makespan(stack, as_one_batch, p, 2 * m);
    double table = p > 1 ? send_time(stack->model.vocab * stack->model.width * sizeof(real)) : 0;
    if (clock_config()->simulated)
        check_cost(run, "step.2bw", "equal stages, 2BW: two batches, and the table", "ps",
                   NOT_PREDICTED, played((double)work + table), two.timing.step);
    return way_of(&three, three.timing.step - two.timing.step,
                  stack_makespan(stack, as_one_batch, p, 3 * m) - work);
}

static void equal_stages(Run *run, const Training *t) {
    size_t p = run->world->size, i = run->world->rank, m = p < 4 ? 4 : p;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    ModelConfig whole = t->model;
    whole.layers = stack.blocks * p;
    CutSizes z = cut_stage(cut_sizes(&whole, 1, 0), p, i);
    size_t stage = elements_stage(&z) * sizeof(real), one = stack_kept(&stack, p, i);
    check_lists(run);
    Way ways[WAYS] = { synchronous(run, &stack, schedule_gpipe, m),
                       synchronous(run, &stack, schedule_1f1b, m), pipedream(run, &stack, m),
                       double_buffered(run, &stack, m) };
    const size_t versions_of[WAYS] = { 1, 1, p - i, 2 };
    for (size_t k = 0; k < WAYS; k++) {
        const Way *way = &ways[k];
        size_t versions = versions_of[k], flight = k == GPIPE ? m : p - i;
        size_t weights = versions * stage, activations = flight * one;
        CostName ids, names;
        cost_name(&ids, "%%s.%s", way_id[k]);
        cost_name(&names, "equal stages, %s: %%s", way_columns[k]);
        check_costs(run, ids.text, names.text,
                    (CostRow[]){
                        { "versions", "versions", "versions", BY_FORMULA(versions),
                          (double)way->weights / (double)stage },
                        { "weights", "weights", "bytes", BY_FORMULA(weights), way->weights },
                        { "flight", "in flight", "micro-batches", BY_FORMULA(flight),
                          way->in_flight },
                        { "activations", "activations", "bytes", BY_FORMULA(activations),
                          way->activations },
                        { "both", "weights and activations", "bytes",
                          BY_FORMULA(weights + activations), way->weights + way->activations },
                        { 0 } });
        if (!clock_config()->simulated) continue;
        check_costs(run, ids.text, names.text,
                    (CostRow[]){
                        { "more", "a batch more", "ps", BY_PLAY(way->predicted), way->batch },
                        { 0 } });
    }
}

// ---------------------------------------------------------------- the page

static void table(Run *run, const double loss[2]) {
    static const char *const of[] = { "more", "versions", "weights", "activations", "both" };
    char cell[5][WAYS][64], text[2][16], old[16];
    for (size_t q = 0; q < 5; q++)
        for (size_t k = 0; k < WAYS; k++)
            snprintf(cell[q][k], sizeof cell[q][k], "%s.%s", of[q], way_id[k]);
    for (size_t k = 0; k < 2; k++) snprintf(text[k], sizeof *text, "=%.2f", loss[k]);
    snprintf(old, sizeof old, run->world->size > 1 ? "=0..%zu" : "=%zu", run->world->size - 1);
#define CELLS(q) \
    { cell[q][0], cell[q][1], cell[q][2], cell[q][3] }
    const Result rows[] = {
        { "each further batch", NULL, CELLS(0) },
        { "weight versions kept", NULL, CELLS(1) },
        { "weights of all versions", NULL, CELLS(2) },
        { "activations, peak", NULL, CELLS(3) },
        { "weights + activations", NULL, CELLS(4) },
        { "updates late", NULL, { "=0", "=0", old, "=1" } },
        { "loss on a text, last 20 batches", NULL, { text[0], text[0], "=-", text[1] } },
        { 0 },
    };
#undef CELLS
    results(run, way_columns, clock_config()->simulated ? rows : rows + 1);
    say(run, "  Time: GPipe, 1F1B (m+p-1)(t_f+t_b), others m(t_f+t_b); t_f, t_b: a stage's "
             "forward, backward.");
    say(run, "  Stage i of p: GPipe keeps activations of m micro-batches, the others of p-i. "
             "PipeDream keeps p-i");
    say(run, "  versions and is p-1-i updates late; it updates after each micro-batch, so its "
             "loss is left out.");
}

static void answer(Run *run, const double loss[2]) {
    char time[160] = "";
    size_t p = run->world->size;
    if (clock_config()->simulated && run->is_root) {
        Comparison batch = compare_times(cost_value(run, "more.2bw"), cost_value(run, "more.1f1b"));
        snprintf(time, sizeof time, "%s%zu a further batch takes %s, %s with 1F1B.",
                 p < 4 ? " With m = " : " The gain is largest if m = p: for p = ",
                 p < 4 ? (size_t)4 : p, cost_text(run, "more.2bw"), batch.text);
    }
    say_answer(run,
               "Yes, with at least as many micro-batches as stages. The result equals, in "
               "every bit, one device whose gradients are one update late.%s",
               time);
    say_cost(run,
             "one more version, so weights of %s per rank instead of %s; and late gradients: "
             "on a text the loss is %.2f instead of %.2f.",
             cost_text(run, "weights.2bw"), cost_text(run, "weights.1f1b"), loss[1], loss[0]);
    say_use_when(run, "a batch has only a few times as many micro-batches as stages, never fewer "
                      "than stages, and an update that is one batch late is acceptable.");
}

// ---------------------------------------------------------------- the lesson

static void two_bw(Run *run) {
    require_one_link(run);
    size_t p = run->world->size,
           m = option_given(run, "micro-batches") ? option_size(run, "micro-batches") : p;
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks",
            p, sizes.layers);
    REQUIRE(m >= p,
            "--micro-batches %zu: 2BW takes at least as many as the %zu stages, because two "
            "versions of the weights then suffice (arXiv 2006.09503, section 3.1)",
            m, p);
    REQUIRE(m <= SEQUENCES,
            "--micro-batches %zu: a batch has %d sequences: choose at most that many", m,
            SEQUENCES);
    Training t = { .model = sizes, .steps = STEPS, .sequences = SEQUENCES, .micro_batches = m };
    double loss[2];
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    say(run,
        "2BW (double-buffered weights) updates once per batch of m = %zu micro-batches, "
        "and keeps two versions.",
        p < 4 ? (size_t)4 : p);
    say(run, "A batch does not wait for the update before it. It reads the older version. With "
             "m >= p all");
    say(run, "backwards of that version end before a third version is needed, so two are enough "
             "without a flush.");
    equal_stages(run, &t);
    t.optimizer = sgd(0.3);
    equals_recurrence(run, &t, true, NULL, "with a flush = unsplit");
    equals_recurrence(run, &t, false, "sgd", "2BW = one update late");
    t.optimizer.momentum = 0.9;
    t.optimizer.lr = 0.03;
    equals_recurrence(run, &t, false, "momentum", "momentum = one update late");
    t.optimizer = adamw(0.01);
    equals_recurrence(run, &t, false, "adamw", "2BW = one update late");
    t.micro_batches = m < SEQUENCES ? m + 1 : m;
    t.optimizer = sgd(0.3);
    equals_recurrence(run, &t, false, "more-pieces", "m + 1 = one update late");
    losses_on_text(run, loss);
    table(run, loss);
    answer(run, loss);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", NULL, "of a batch; default: as many as stages" },
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    { 0 },
};
EXPERIMENT(two_bw, options);
