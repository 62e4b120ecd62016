// 05_pipedream_2bw.c (experiment): 2BW equals one device whose gradients are one update late, in
// every bit; two versions suffice for m >= p. Time and memory of GPipe, 1F1B, PipeDream and 2BW.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>

// 11 sequences of 5 to 10 counted tokens a batch; 9 blocks on 4 stages: 3, 2, 2, 2.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};
enum { SEQUENCES = 11, STEPS = 5 };

// One device (rank 0, uncounted) with two buffers of weights, W(t+1) = W(t) - eta grad f_t(W(t-1)),
// its m micro-batches one after the other. The norms of the Trajectory stay 0.
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
        tensor_copy(m->w, before);  // the whole batch reads the version before the newest
        model_zero_gradients(m);
        for (size_t k = 0; k < t->micro_batches; k++)
            out.loss[step] += model_forward_backward(m, &b[k]);
        out.loss[step] *= b->token_weight;
        model_fold_tied(m);
        tensor_copy(before, newest);
        tensor_copy(m->w, newest);
        optimizer_step(&o, m, 1);                              // and the newest is updated
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
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, n = t->steps * m,
           E = sizeof(real);
    size_t next = i + 1 < p, before = i > 0, tied = p > 1 && !(next && before), flight = p - i;
    CutSizes z = stage_sizes(&t->model, p, i);
    CostName id;
#define ID(what) cost_name(&id, "%s.%s", run_id, what)
    size_t mine = elements_stage(&z), table = elements_wte(&z), held = 0;
    // The most tokens of so many neighbouring micro-batches: of the last ones of a batch and the
    // first of the next.
    for (size_t k = 0; k < flight; k++) held += stage_tokens(t, k);
    check_cost(run, ID("versions"), "2BW: versions of the weights", "versions", formula(2),
               NOT_PREDICTED, (double)seen->weights / (double)(seen->size * E));
    check_cost(run, ID("weights"), "2BW: weights of both versions", "bytes", formula(2 * mine * E),
               NOT_PREDICTED, seen->weights);
    check_cost(run, ID("gradients"), "2BW: gradients, the tied table's twice", "bytes",
               formula((elements_gradients(&z) + tied * table) * E), NOT_PREDICTED,
               seen->gradients);
    check_cost(run, ID("optimizer"), "2BW: optimizer state", "bytes",
               formula((t->optimizer.kind == ADAMW ? 2 : t->optimizer.momentum > 0) * mine * E),
               NOT_PREDICTED, seen->optimizer);
    check_cost(run, ID("flight"), "2BW: in flight: p-i", "micro-batches", formula(flight),
               NOT_PREDICTED, seen->in_flight);
    check_cost(run, ID("activations"), "2BW: activations, peak", "bytes",
               formula(kept_stage(&z) * held * E), NOT_PREDICTED, seen->activations);
    check_cost(run, ID("sent.calls"), "2BW: messages sent", "calls", formula(n * (next + before)),
               NOT_PREDICTED, seen->messages);
    check_cost(run, ID("sent.bytes"), "2BW: messages sent", "bytes",
               formula(t->steps * (next + before) * message_elements(&z, t->sequences) * E),
               NOT_PREDICTED, seen->message_bytes);
    check_cost(run, ID("buffers"), "2BW: message buffers, peak", "bytes",
               formula(stage_message_buffers(t, p, i) + tied * table * E), NOT_PREDICTED,
               seen->buffers);
    check_cost(run, ID("table.calls"), "2BW: gradients of the tied table sent", "calls",
               formula(tied * t->steps), NOT_PREDICTED, seen->table_calls);
    check_cost(run, ID("table.bytes"), "2BW: gradients of the tied table sent", "bytes",
               formula(tied * t->steps * table * E), NOT_PREDICTED, seen->table_bytes);
    check_cost(run, ID("sums"), "2BW: sums over stages", "calls", formula(0), NOT_PREDICTED,
               seen->sums);
#undef ID
}

// Trained by 2BW's list, or by 1F1B's with a flush after every batch, which reads the newest
// weights.
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

// Mean loss of the last batches of a training on text: with a flush, and with 2BW.
enum { LONG = 80, LAST = 20 };
static void losses_on_text(Run *run, double loss[2]) {
    size_t p = run->world->size, m = p < 4 ? 4 : p;
    Training t = { .model = { .layers = m, .width = 16, .heads = 2, .context = 16, .vocab = 256 },
                   .steps = LONG, .sequences = m, .micro_batches = m, .optimizer = sgd(0.1) };
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

// Two versions are enough for a list if every op reads the newest or the one before it, as they are
// at its place.
static bool two_are_enough(const Schedule *s) {
    size_t newest = 0;
    bool enough = true;
    for (size_t e = 0; e < s->n; e++)
        if (s->ops[e].what == UPDATE) newest++;
        else enough = enough && s->ops[e].version <= newest && newest <= s->ops[e].version + 1;
    return enough;
}

enum { MOST_STAGES = 8, MOST_MICRO = 24, BATCHES = 3 };
static void all_lists(Run *run) {
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
            // m = p - 1 is the limit: an update just before its reader.
            if (m + 2 <= p) too_few = too_few && !all;
        }
    check_true(run, "op lists", "two versions suffice for m >= p", enough);
    check_true(run, "op lists", "not for m < p - 1", too_few);
}

// -------------------------------------------------------- equal stages, on the clock: four ways

enum { WAYS = 4, GPIPE = 0, ONE_F_ONE_B, PIPEDREAM, TWO_BW };
static const char *const way_id[WAYS] = { "gpipe", "1f1b", "pipedream", "2bw" };
static const char *const way_name[WAYS] = { "GPipe", "1F1B", "PipeDream", "2BW" };
typedef struct { size_t in_flight, weights, activations; Picoseconds batch, predicted; } Way;

static Schedule stashing(size_t p, size_t n, size_t i) {
    return schedule_pipedream(WEIGHT_STASHING, p, n, i);
}
static Schedule as_one_batch(size_t p, size_t n, size_t i) { return schedule_2bw(p, n, 1, i); }

static Way measured(const Played *played, Picoseconds batch, Picoseconds predicted) {
    return (Way){ played->result.in_flight, memory_peak(MEM_PARAMETERS), played->activations, batch,
                  predicted };
}
static Way synchronous(Run *run, const Stack *stack, ScheduleRule rule, size_t m) {
    StackTimes d = stack_times(stack);
    Played seen = stack_play(run, stack, rule, m);
    return measured(
        &seen, seen.timing.step,
        makespan_with_link(rule, run->world->size, m, d.forward, d.backward, d.message));
}
static Way pipedream(Run *run, const Stack *stack, size_t m) {
    size_t p = run->world->size, i = run->world->rank;
    Played seen[2];
    for (size_t k = 0; k < 2; k++) {
        Schedule list = stashing(p, (k + 2) * m, i);
        seen[k] =
            pipedream_play(run, stack, &list, pipedream_older(WEIGHT_STASHING, p, i), (k + 2) * m);
        schedule_free(&list);
    }
    return measured(&seen[1], seen[1].timing.step - seen[0].timing.step,
                    stack_makespan(stack, stashing, p, 3 * m) -
                        stack_makespan(stack, stashing, p, 2 * m));
}

// Predicted without the messages of the table, measured with them: but for the last one, which
// comes after all work, they must be hidden.
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
    return measured(&three, three.timing.step - two.timing.step,
                    stack_makespan(stack, as_one_batch, p, 3 * m) - work);
}

static void equal_stages(Run *run, const Training *t) {
    size_t p = run->world->size, i = run->world->rank, m = p < 4 ? 4 : p;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    ModelConfig whole = t->model;
    whole.layers = stack.blocks * p;
    CutSizes z = cut_stage(cut_sizes(&whole, 1, 0), p, i);
    size_t stage = elements_stage(&z) * sizeof(real), one = stack_kept(&stack, p, i);
    all_lists(run);
    Way way[WAYS] = { synchronous(run, &stack, schedule_gpipe, m),
                      synchronous(run, &stack, schedule_1f1b, m), pipedream(run, &stack, m),
                      double_buffered(run, &stack, m) };
    for (size_t k = 0; k < WAYS; k++) {
        size_t versions[] = { 1, 1, p - i, 2 }, flight = k == GPIPE ? m : p - i;
        CostName id, name;
        check_cost(run, cost_name(&id, "versions.%s", way_id[k]),
                   cost_name(&name, "equal stages, %s: versions", way_name[k]), "versions",
                   formula(versions[k]), NOT_PREDICTED, (double)way[k].weights / (double)stage);
        check_cost(run, cost_name(&id, "weights.%s", way_id[k]),
                   cost_name(&name, "equal stages, %s: weights", way_name[k]), "bytes",
                   formula(versions[k] * stage), NOT_PREDICTED, way[k].weights);
        check_cost(run, cost_name(&id, "flight.%s", way_id[k]),
                   cost_name(&name, "equal stages, %s: in flight", way_name[k]), "micro-batches",
                   formula(flight), NOT_PREDICTED, way[k].in_flight);
        check_cost(run, cost_name(&id, "activations.%s", way_id[k]),
                   cost_name(&name, "equal stages, %s: activations", way_name[k]), "bytes",
                   formula(flight * one), NOT_PREDICTED, way[k].activations);
        check_cost(run, cost_name(&id, "both.%s", way_id[k]),
                   cost_name(&name, "equal stages, %s: weights and activations", way_name[k]),
                   "bytes", formula(versions[k] * stage + flight * one), NOT_PREDICTED,
                   way[k].weights + way[k].activations);
        if (clock_config()->simulated)
            check_cost(run, cost_name(&id, "more.%s", way_id[k]),
                       cost_name(&name, "equal stages, %s: a batch more", way_name[k]), "ps",
                       NOT_PREDICTED, played(way[k].predicted), way[k].batch);
    }
}

static void table(Run *run, const double loss[2], size_t last) {
    static const char *const of[] = { "more", "versions", "weights", "activations", "both" };
    char cell[5][WAYS][64], text[2][16], old[16], what[32];
    for (size_t q = 0; q < 5; q++)
        for (size_t k = 0; k < WAYS; k++)
            snprintf(cell[q][k], sizeof cell[q][k], "%s.%s", of[q], way_id[k]);
    for (size_t k = 0; k < 2; k++) snprintf(text[k], sizeof *text, "=%.2f", loss[k]);
    snprintf(old, sizeof old, run->world->size > 1 ? "=0..%zu" : "=%zu", run->world->size - 1);
    snprintf(what, sizeof what, "loss, last %zu", last);
#define CELLS(q) { cell[q][0], cell[q][1], cell[q][2], cell[q][3] }
    const Result rows[] = {
        { "a batch more", "m+p-1, m: t_f+t_b", CELLS(0) },
        { "versions held", "1, 1, p-i, 2", CELLS(1) },
        { "weights", "versions x stage", CELLS(2) },
        { "activations", "m, p-i in flight", CELLS(3) },
        { "both", "weights, kept", CELLS(4) },
        { "updates missed", "0, 0, p-1-i, 1", { "=0", "=0", old, "=1" } },
        { what, NULL, { text[0], text[0], NULL, text[1] } }, {0} };
#undef CELLS
    results(run, (const char *const[]){ "GPipe", "1F1B", "PipeDream", "2BW", NULL },
            clock_config()->simulated ? rows : rows + 1);      // no cost is a time in real time
}

// ---------------------------------------------------------------- the lesson

static void two_bw(Run *run) {
    require_one_link(run);
    size_t p = run->world->size,
           m = option_given(run, "micro-batches") ? option_size(run, "micro-batches") : p;
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks",
            p, sizes.layers);
    REQUIRE(m >= p,
            "--micro-batches %zu: 2BW takes at least as many as the %zu stages, so that two "
            "versions of the "
            "weights suffice (arXiv 2006.09503, section 3.1)",
            m, p);
    REQUIRE(m <= SEQUENCES,
            "--micro-batches %zu: a batch has %d sequences: choose at most that many", m,
            SEQUENCES);
    Training t = { .model = sizes, .steps = STEPS, .sequences = SEQUENCES, .micro_batches = m };
    double loss[2];
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
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
    table(run, loss, LAST);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", NULL, "of a batch; default: as many as stages" },
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    {0},
};
EXPERIMENT(two_bw, options);
