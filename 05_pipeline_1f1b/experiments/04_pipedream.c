// 04_pipedream.c (experiment): PipeDream equals one device that runs its recurrence, in every bit.
// Without stashing its gradient is wrong. Compares versions, memory and time with 1F1B's.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// Mini-batches of 3 sequences of 5 to 10 counted tokens; 9 blocks on 4 stages: 3, 2, 2, 2.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};
enum { SEQUENCES = 3, STEPS = 12 };

// ----------------------------------------- the recurrence on one device, with no pipeline in it

// Returns the stage that has layer n of the model.
static size_t stage_of(const ModelConfig *c, size_t p, size_t n) {
    if (n == 0) return 0;
    if (n > c->layers) return p - 1; // head and loss
    size_t i = 0;
    while (shard_range(c->layers, p, i).hi <= n - 1) i++; // block n - 1
    return i;
}

// Trains the whole model on one device (rank 0, uncounted), one mini-batch after the other. For
// mini-batch k the layers of stage i read the weights after k - age updates: age is p-1-i, or p-1
// with vertical sync. A step of the Trajectory is a mini-batch; its norms stay 0.
static Trajectory reference(Run *run, const Training *t, size_t p, bool vertical) {
    Trajectory out = trajectory_new(run, t);
    if (run->world->rank > 0) return out;
    ledger_pause();
    Model *m = model_describe(&t->model, model_layers(&t->model));
    Optimizer o = t->optimizer;
    Arena a = arena(MEM_REFERENCE);
    model_untie(m);
    model_allocate(m);
    optimizer_allocate(&o, m);
    Tensor past = tensor_new(&a, p, m->size); // version v in row v % p: the last p of them
    for (size_t k = 0; k < t->steps; k++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *b = training_batches(t, &tokens, k, 1, 0);
        tensor_copy(tensor_row_range(past, k % p, k % p + 1), m->w);
        for (size_t n = 0, offset = 0; n < m->n_layers; n++) {
            Layer *l = &m->layers[n];
            size_t age = vertical ? p - 1 : p - 1 - stage_of(&t->model, p, n),
                   row = (k < age ? 0 : k - age) % p;
            Tensor old = tensor_row_range(past, row, row + 1);
            for (size_t u = 0; u < l->n_units; u++) {
                size_t end = offset + l->units[u]->size;
                unit_attach_weights(l->units[u], tensor_flat_range(old, offset, end));
                offset = end;
            }
        }
        model_zero_gradients(m);
        double loss = model_forward_backward(m, b) * b->token_weight; // with the old weights
        model_attach_weights(m, m->w);
        optimizer_step(&o, m, 1); // updates the newest weights
        trajectory_record(&out, k, m, loss, 0);
        free(b);
        arena_free(&tokens);
    }
    arena_free(&a);
    model_free(m);
    ledger_resume();
    return out;
}

// ---------------------------------------------------------------- trainings

enum { SYNCHRONOUS, STASHED, VERTICAL, BARE, WAYS }; // BARE: no stashing
static const char *const way_id[WAYS] = { "flush", "stashing", "vertical", "no-stashing" };
static const char *const way_name[WAYS] = { "flush", "stashing", "vertical sync", "no stashing" };

static void training_costs(Run *run, const Training *t, size_t way, const VersionsSeen *seen) {
    size_t p = run->world->size, i = run->world->rank, n = t->steps, E = sizeof(real);
    size_t neighbours = stage_neighbours(run), all_versions[WAYS] = { 1, p - i, p, 1 };
    size_t versions = all_versions[way], flight = way == SYNCHRONOUS ? 1 : p - i < n ? p - i : n;
    CutSizes z = stage_sizes(&t->model, p, i);
    size_t untied = p == 1 ? elements_wte(&z) : 0; // one stage has both tables
    size_t bytes = (elements_stage(&z) + untied) * E, moments = t->optimizer.kind == ADAMW ? 2 : 0;
    size_t message = message_elements(&z, t->sequences) * E;
    size_t kept = kept_stage(&z) * t->sequences * t->model.context * E;
    CostName ids, names;
    cost_name(&ids, "%s.%s.%%s", moments ? "adamw" : "sgd", way_id[way]);
    cost_name(&names, "%s: %%s", way_name[way]);
    check_costs(run, ids.text, names.text,
                (CostRow[]){
                    { "versions", "versions of the weights", "versions", BY_FORMULA(versions),
                      (double)seen->weights / (double)(seen->size * E) },
                    { "weights", "weights of all versions", "bytes", BY_FORMULA(versions * bytes),
                      seen->weights },
                    { "gradients", "gradients", "bytes", BY_FORMULA(bytes), seen->gradients },
                    { "optimizer", "optimizer state", "bytes", BY_FORMULA(moments * bytes),
                      seen->optimizer },
                    { "flight", "in flight", "mini-batches", BY_FORMULA(flight), seen->in_flight },
                    { "activations", "activations, peak", "bytes", BY_FORMULA(flight * kept),
                      seen->activations },
                    { "buffers", "message buffers, peak", "bytes",
                      BY_FORMULA(neighbours * 3 * message), seen->buffers },
                    { "sent.calls", "messages sent", "calls", BY_FORMULA(n * neighbours),
                      seen->messages },
                    { "sent.bytes", "messages sent", "bytes", BY_FORMULA(n * neighbours * message),
                      seen->message_bytes },
                    { "sums", "sums over stages", "calls", BY_FORMULA(0), seen->sums },
                    { 0 } });
}

// SYNCHRONOUS: a flush and an update after every mini-batch. The other ways: PipeDream's list.
static VersionsSeen train(Run *run, const Training *t, size_t way, Trajectory *got) {
    static const PipeDreamRule rules[WAYS] = {
        [SYNCHRONOUS] = NO_STASHING,
        [STASHED] = WEIGHT_STASHING,
        [VERTICAL] = VERTICAL_SYNC,
        [BARE] = NO_STASHING,
    };
    size_t p = run->world->size, i = run->world->rank;
    PipeDreamRule rule = rules[way];
    Schedule list = way == SYNCHRONOUS ? schedule_flushed(p, 1, i, t->steps)
                                       : schedule_pipedream(rule, p, t->steps, i);
    size_t older = pipedream_older(rule, p, i);
    VersionsSeen seen = versions_train(run, t, &list, &older, got);
    schedule_free(&list);
    return seen;
}

// |a - b| / |b| over all stages, of the gradients of mini-batch 1.
static double deviation(Run *run, const VersionsSeen *a, const VersionsSeen *b) {
    double squares[2] = { 0 };
    for (size_t e = 0; e < a->size; e++) {
        squares[0] += (a->second[e] - b->second[e]) * (a->second[e] - b->second[e]);
        squares[1] += b->second[e] * b->second[e];
    }
    ledger_pause();
    comm_all_reduce_doubles(run->world, squares, 2);
    ledger_resume();
    return sqrt(squares[0] / squares[1]);
}

// The training must equal the recurrence on one device in every bit. SYNCHRONOUS is compared with
// the recurrence for one stage, whose weights are never old.
static void equals_recurrence(Run *run, const Training *t, size_t way, const char *what) {
    size_t p = way == SYNCHRONOUS ? 1 : run->world->size;
    Trajectory got = trajectory_new(run, t), want = reference(run, t, p, way == VERTICAL);
    VersionsSeen seen = train(run, t, way, &got);
    training_compare_tensors(run, what, &got, &want, 0);
    check_numbers(run, what, "loss", got.loss, want.loss, t->steps, 0);
    training_costs(run, t, way, &seen);
    versions_seen_free(&seen);
    trajectory_free(&got);
    trajectory_free(&want);
}

// Without stashing, all stages but the last walk mini-batch 1 back through weights that its forward
// never read. Its loss has the right bits, and its gradient is wrong. Returns the relative error.
static double no_stashing(Run *run, const Training *t) {
    Trajectory wrong = trajectory_new(run, t), right = trajectory_new(run, t);
    VersionsSeen bare = train(run, t, BARE, &wrong), stashed = train(run, t, STASHED, &right);
    double off = deviation(run, &bare, &stashed);
    training_costs(run, t, BARE, &bare);
    check_numbers(run, "no stashing", "losses 0 and 1", wrong.loss, right.loss, 2, 0);
    if (run->world->size == 1)
        check_equal(run, "no stashing, one stage", wrong.weights, right.weights);
    check_true(run, "no stashing", "gradient 1 off by 1 % or more",
               run->world->size == 1 || off > 0.01);
    versions_seen_free(&bare);
    versions_seen_free(&stashed);
    trajectory_free(&wrong);
    trajectory_free(&right);
    return off;
}

// loss[way]: the mean loss of the last mini-batches of a training on text.
enum { LONG = 160, LAST = 40 };
static void losses_on_text(Run *run, double loss[WAYS]) {
    size_t p = run->world->size;
    Training t = {
        .model = { .layers = p < 4 ? 4 : p, .width = 16, .heads = 2, .context = 16, .vocab = 256 },
        .steps = LONG,
        .sequences = 4,
        .micro_batches = 1,
        .optimizer = sgd(0.1)
    };
    t.model.seed = run->seed;
    t.data = training_text(run, option_text(run, "data"), NULL, t.model.vocab, t.model.context,
                           t.sequences);
    for (size_t way = 0; way < WAYS; way++) {
        VersionsSeen seen = train(run, &t, way, NULL);
        loss[way] = 0;
        for (size_t k = LONG - LAST; k < LONG; k++) loss[way] += seen.loss[k] / LAST;
        versions_seen_free(&seen);
    }
    data_free(&t.data);
}

// -------------------------------------------------------------- lists alone: times and versions

// Most versions that a stage must hold at once: the newest, and all back to the oldest that a later
// op reads.
static size_t versions_needed(const Schedule *s) {
    size_t newest = 0, most = 1;
    for (size_t e = 0; e < s->n; e++) {
        newest += s->ops[e].what == UPDATE;
        for (size_t later = e + 1; later < s->n; later++)
            if (s->ops[later].what != UPDATE && newest + 1 > most + s->ops[later].version)
                most = newest + 1 - s->ops[later].version;
    }
    return most;
}

static Schedule vertical(size_t p, size_t n, size_t i) {
    return schedule_pipedream(VERTICAL_SYNC, p, n, i);
}
enum { PIECES = 8, FLUSH = 4 };
static Schedule flushed(size_t p, size_t n, size_t i) {
    return schedule_flushed(p, FLUSH, i, n / FLUSH);
}

enum { MOST_STAGES = 8, MOST_BATCHES = 24, LISTS = MOST_STAGES * MOST_BATCHES };
static void check_lists(Run *run) {
    double end[LISTS], want_end[LISTS], held[2][LISTS * MOST_STAGES], want[2][LISTS * MOST_STAGES];
    size_t lists = 0, stages = 0;
    for (size_t p = 1; p <= MOST_STAGES; p++)
        for (size_t n = 1; n <= MOST_BATCHES; n++, lists++) {
            end[lists] = makespan(schedule_stashing, p, n, 1, 2);
            want_end[lists] = (n + p - 1) * 3;
            for (size_t i = 0; i < p; i++, stages++) {
                Schedule s[2] = { schedule_stashing(p, n, i), vertical(p, n, i) };
                for (size_t r = 0; r < 2; r++) {
                    held[r][stages] = versions_needed(&s[r]);
                    size_t versions = r ? p : p - i;
                    want[r][stages] = versions < n ? versions : n;
                    schedule_free(&s[r]);
                }
            }
        }
    check_numbers(run, "op lists = formulas", "(n+p-1)(t_f+t_b)", end, want_end, lists, 0);
    check_numbers(run, "op lists = formulas", "p-i versions", held[0], want[0], stages, 0);
    check_numbers(run, "op lists = formulas", "p if in sync", held[1], want[1], stages, 0);
}

// ---------------------------------------------------------------- equal stages, on the clock

// Runs n mini-batches by this list. Draws them if there is a title; those with a flush with
// --verbose only.
static Picoseconds play(Run *run, const Stack *stack, ListOf *list, size_t n, const char *title) {
    size_t p = run->world->size, i = run->world->rank;
    bool flush = list == flushed;
    Schedule s = list(p, n, i);
    Played played =
        pipedream_play(run, stack, &s, flush ? 0 : pipedream_older(WEIGHT_STASHING, p, i), n);
    if (title) picture_show(run, title, flush ? PICTURE_NO_FILES | PICTURE_DETAIL : PICTURE_CHART);
    schedule_free(&s);
    return played.timing.step;
}

static void equal_stages(Run *run, const Training *t) {
    static const struct {
        const char *name, *step, *more, *title;
        ListOf *list;
    } ways[] = {
        { "1F1B", "step.1f1b", "more.1f1b", "1F1B, 8 mini-batches, a flush after 4", flushed },
        { "PipeDream", "step.pipedream", "more.pipedream", "PipeDream, 8 mini-batches",
          schedule_stashing },
    };
    size_t p = run->world->size;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    Picoseconds one[2], two[2]; // times of 8 and of 16 mini-batches
    for (size_t k = 0; k < 2; k++) one[k] = play(run, &stack, ways[k].list, PIECES, ways[k].title);
    for (size_t k = 0; k < 2; k++) two[k] = play(run, &stack, ways[k].list, 2 * PIECES, NULL);
    check_lists(run);
    if (!clock_config()->simulated) return;
    for (size_t k = 0; k < 2; k++) {
        Picoseconds first = stack_makespan(&stack, ways[k].list, p, PIECES);
        Picoseconds both = stack_makespan(&stack, ways[k].list, p, 2 * PIECES);
        CostName step, more;
        cost_name(&step, "equal stages, %s: 8 pieces", ways[k].name);
        cost_name(&more, "equal stages, %s: 8 more", ways[k].name);
        check_cost(run, ways[k].step, step.text, "ps", NOT_PREDICTED, played(first), one[k]);
        check_cost(run, ways[k].more, more.text, "ps", NOT_PREDICTED, played(both - first),
                   two[k] - one[k]);
    }
}

// ---------------------------------------------------------------- the table of the page

static void table(Run *run, double off, const double loss[WAYS]) {
    size_t old = run->world->size - 1;
    char text[WAYS][16], age[WAYS][16] = { "=0" }, wrong[16];
    for (size_t way = 0; way < WAYS; way++) snprintf(text[way], sizeof *text, "=%.2f", loss[way]);
    snprintf(age[STASHED], sizeof *age, old ? "=0..%zu" : "=%zu", old);
    snprintf(age[VERTICAL], sizeof *age, "=%zu", old);
    snprintf(age[BARE], sizeof *age, old ? "=mixed" : "=0");
    snprintf(wrong, sizeof wrong, "=%.0f %%", 100 * off);
    const Result rows[] = {
        { "time of 8 more mini-batches", NULL, { "more.1f1b", "more.pipedream", "=-", "=-" } },
        { "weight versions kept",
          NULL,
          { "sgd.flush.versions", "sgd.stashing.versions", "sgd.vertical.versions",
            "sgd.no-stashing.versions" } },
        { "weights of all versions, per rank",
          NULL,
          { "sgd.flush.weights", "sgd.stashing.weights", "sgd.vertical.weights",
            "sgd.no-stashing.weights" } },
        { "updates late", NULL, { age[0], age[1], age[2], age[3] } },
        { "error of the 2nd gradient", NULL, { "=0", "=0", "=0", wrong } },
        { "loss on a text, last 40 updates", NULL, { text[0], text[1], text[2], text[3] } },
        { 0 },
    };
    results(run,
            (const char *const[]){ "1F1B, flush", "stashing", "vertical sync", "no stashing",
                                   NULL },
            clock_config()->simulated ? rows : rows + 1); // no cost is a time in real time
    say(run, "  Updates late: how many updates come between the read of a weight and the use of "
             "its gradient.");
    say(run, "  mixed: the forward reads old weights, the backward new ones. On stage i of p, "
             "stashing keeps p-i");
    say(run, "  versions and is p-1-i updates late. Vertical sync keeps p versions and is p-1 "
             "late. Time: 1F1B");
    say(run,
        "  2(m+p-1)(t_f+t_b), m = %d; stashing 8(t_f+t_b). t_f, t_b: a stage's forward, "
        "backward.",
        FLUSH);
    say(run, "  In the row of losses 1F1B has a flush and an update after every mini-batch.");
}

static void answer(Run *run, double off, const double loss[WAYS]) {
    size_t old = run->world->size - 1;
    char time[160] = "", curve[128] = "";
    say_use_when(run, "the bubble is large, old gradients do no harm, and the versions fit. Large "
                      "language models use a flush instead.");
    if (old == 0) {
        say_answer(run, "Yes, in every bit. But one stage has no bubble and no old weights.");
        return;
    }
    if (clock_config()->simulated && run->is_root)
        snprintf(time, sizeof time,
                 " Once it runs, 8 more mini-batches take %s; 1F1B, which "
                 "runs empty after every %d, takes %s.",
                 cost_text(run, "more.pipedream"), FLUSH, cost_text(run, "more.1f1b"));
    if (loss[BARE] < 1.02 * loss[STASHED])
        snprintf(curve, sizeof curve, ", but the loss, %.2f, does not show the error", loss[BARE]);
    say_answer(run,
               "Yes, in every bit, if each stage stashes weights.%s Without stashing the 2nd "
               "gradient is wrong by %.0f %%%s.",
               time, 100 * off, curve);
    say_cost(run, "%s versions of weights per rank, and old gradients: loss %.2f instead of %.2f.",
             cost_text(run, "sgd.stashing.versions"), loss[STASHED], loss[SYNCHRONOUS]);
}

// ---------------------------------------------------------------- the lesson

static void pipedream(Run *run) {
    require_one_link(run);
    size_t p = run->world->size;
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks",
            p, sizes.layers);
    Training t = { .model = sizes, .steps = STEPS, .sequences = SEQUENCES, .micro_batches = 1 };
    double loss[WAYS];
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    say(run, "1F1B ends each step with a flush: it runs empty and updates. PipeDream updates "
             "after each backward.");
    say(run, "A micro-batch with its own update is a mini-batch. Stashing: a stage keeps the "
             "weights of a forward");
    say(run, "until its backward ends. Vertical sync: a mini-batch reads weights of one age on all "
             "stages.");
    equal_stages(run, &t);
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        equals_recurrence(run, &t, SYNCHRONOUS, "flush each time = unsplit");
        equals_recurrence(run, &t, STASHED, "weight stashing = recurrence");
        equals_recurrence(run, &t, VERTICAL, "vertical sync = recurrence");
    }
    t.optimizer = sgd(0.3);
    double off = no_stashing(run, &t);
    losses_on_text(run, loss);
    table(run, off, loss);
    answer(run, off, loss);
    data_free(&t.data);
}
static const Option options[] = {
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    { 0 },
};
EXPERIMENT(pipedream, options);
