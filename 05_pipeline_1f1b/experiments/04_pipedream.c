// 04_pipedream.c (experiment): PipeDream equals one device that runs its recurrence, in every bit;
// without stashing its gradient is none. Versions, memory, time beside 1F1B with a flush.
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

// The stage that has layer n of the model.
static size_t stage_of(const ModelConfig *c, size_t p, size_t n) {
    if (n == 0) return 0;
    if (n > c->layers) return p - 1;                           // head and loss
    size_t i = 0;
    while (shard_range(c->layers, p, i).hi <= n - 1) i++;      // block n - 1
    return i;
}

// One device (rank 0, uncounted), the whole model, one mini-batch after the other. Mini-batch k
// reads of stage i's layers the weights that there were after k - age(i) updates, age(i) being
// p-1-i, or p-1 with vertical sync. A step of the Trajectory is a mini-batch; its norms stay 0.
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
    Tensor past = tensor_new(&a, p, m->size);  // version v in row v % p: the last p of them
    for (size_t k = 0; k < t->steps; k++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *b = training_batches(t, &tokens, k, 1, 0);
        tensor_copy(tensor_row_range(past, k % p, k % p + 1), m->w);
        for (size_t n = 0, offset = 0; n < m->n_layers; n++) {
            Layer *l = &m->layers[n];
            size_t age = vertical ? p - 1 : p - 1 - stage_of(&t->model, p, n),
                   row = (k < age ? 0 : k - age) % p;
            for (size_t u = 0; u < l->n_units; offset += l->units[u++]->size)
                unit_attach_weights(l->units[u],
                                    tensor_flat_range(tensor_row_range(past, row, row + 1), offset,
                                                      offset + l->units[u]->size));
        }
        model_zero_gradients(m);
        // All layers read their old weights.
        double loss = model_forward_backward(m, b) * b->token_weight;
        model_attach_weights(m, m->w);
        optimizer_step(&o, m, 1);  // the newest ones are updated
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

// The id's first part, and that of the name.
static const char *const way_id[] = { "flush", "stashing", "vertical", "no-stashing" };
static const char *const way_name[] = { "flush", "stashing", "vertical sync", "no stashing" };

static void training_costs(Run *run, const Training *t, size_t way, const VersionsSeen *seen) {
    size_t p = run->world->size, i = run->world->rank, n = t->steps, E = sizeof(real);
    size_t neighbours = stage_neighbours(run), versions[] = { 1, p - i, p, 1 };
    size_t flight = way == 0 ? 1 : p - i < n ? p - i : n;
    const char *optimizer = t->optimizer.kind == ADAMW ? "adamw" : "sgd";
    CutSizes z = stage_sizes(&t->model, p, i);
    CostName id, name;
    size_t untied = p == 1 ? elements_wte(&z) : 0;             // one stage has both tables
    size_t mine = elements_stage(&z) + untied, message = message_elements(&z, t->sequences);
#define ID(what) cost_name(&id, "%s.%s.%s", optimizer, way_id[way], what)
#define NAME(what) cost_name(&name, "%s: %s", way_name[way], what)
    check_cost(run, ID("versions"), NAME("versions of the weights"), "versions",
               formula(versions[way]), NOT_PREDICTED,
               (double)seen->weights / (double)(seen->size * E));
    check_cost(run, ID("weights"), NAME("weights of all versions"), "bytes",
               formula(versions[way] * mine * E), NOT_PREDICTED, seen->weights);
    check_cost(run, ID("gradients"), NAME("gradients"), "bytes", formula(mine * E), NOT_PREDICTED,
               seen->gradients);
    check_cost(run, ID("optimizer"), NAME("optimizer state"), "bytes",
               formula((t->optimizer.kind == ADAMW) * 2 * mine * E), NOT_PREDICTED,
               seen->optimizer);
    check_cost(run, ID("flight"), NAME("in flight"), "mini-batches", formula(flight), NOT_PREDICTED,
               seen->in_flight);
    check_cost(run, ID("activations"), NAME("activations, peak"), "bytes",
               formula(kept_stage(&z) * flight * t->sequences * t->model.context * E),
               NOT_PREDICTED, seen->activations);
    check_cost(run, ID("buffers"), NAME("message buffers, peak"), "bytes",
               formula(neighbours * 3 * message * E), NOT_PREDICTED, seen->buffers);
    check_cost(run, ID("sent.calls"), NAME("messages sent"), "calls", formula(n * neighbours),
               NOT_PREDICTED, seen->messages);
    check_cost(run, ID("sent.bytes"), NAME("messages sent"), "bytes",
               formula(n * neighbours * message * E), NOT_PREDICTED, seen->message_bytes);
    check_cost(run, ID("sums"), NAME("sums over stages"), "calls", formula(0), NOT_PREDICTED,
               seen->sums);
#undef ID
#undef NAME
}

// Trained by a list of this rule; way 0: synchronously, with a flush and an update after every
// mini-batch.
static VersionsSeen train(Run *run, const Training *t, size_t way, Trajectory *got) {
    size_t p = run->world->size, i = run->world->rank;
    PipeDreamRule rule = way ? (PipeDreamRule)(way - 1) : NO_STASHING;
    Schedule list =
        way ? schedule_pipedream(rule, p, t->steps, i) : schedule_flushed(p, 1, i, t->steps);
    size_t older = pipedream_older(rule, p, i);
    VersionsSeen seen = versions_train(run, t, &list, &older, got);
    schedule_free(&list);
    return seen;
}
enum { SYNCHRONOUS, STASHED, VERTICAL, BARE, WAYS };

// |a - b| / |b| over all stages, of the gradients of mini-batch 1.
static double deviation(Run *run, const VersionsSeen *a, const VersionsSeen *b) {
    double squares[2] = {0};
    for (size_t e = 0; e < a->size; e++) {
        squares[0] += (a->second[e] - b->second[e]) * (a->second[e] - b->second[e]);
        squares[1] += b->second[e] * b->second[e];
    }
    ledger_pause();
    comm_all_reduce_doubles(run->world, squares, 2);
    ledger_resume();
    return sqrt(squares[0] / squares[1]);
}

// Against the reference whose weights are so old: of p stages, of one (never old), or with vertical
// sync.
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

// Without stashing. Before the backward of mini-batch 1 nothing differs, so its loss has the same
// bits; then all stages but the last one walk back through weights that its forward never read.
// Returns how far off that gradient is.
static double is_no_gradient(Run *run, const Training *t) {
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

// Mean loss of the last mini-batches of a training on text.
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

// Versions that a stage must hold at once: from the oldest that an op still to come reads to the
// newest.
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

static Schedule stashing(size_t p, size_t n, size_t i) {
    return schedule_pipedream(WEIGHT_STASHING, p, n, i);
}
static Schedule vertical(size_t p, size_t n, size_t i) {
    return schedule_pipedream(VERTICAL_SYNC, p, n, i);
}
enum { PIECES = 8, FLUSH = 4 };
static Schedule flushed(size_t p, size_t n, size_t i) {
    return schedule_flushed(p, FLUSH, i, n / FLUSH);
}

enum { MOST_STAGES = 8, MOST_BATCHES = 24, LISTS = MOST_STAGES * MOST_BATCHES };
static void all_lists(Run *run) {
    double end[LISTS], want_end[LISTS], held[2][LISTS * MOST_STAGES], want[2][LISTS * MOST_STAGES];
    size_t lists = 0, stages = 0;
    for (size_t p = 1; p <= MOST_STAGES; p++)
        for (size_t n = 1; n <= MOST_BATCHES; n++, lists++) {
            end[lists] = makespan(stashing, p, n, 1, 2);
            want_end[lists] = (n + p - 1) * 3;
            for (size_t i = 0; i < p; i++, stages++) {
                Schedule s[2] = { stashing(p, n, i), vertical(p, n, i) };
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

static Timing play(Run *run, const Stack *stack, ListOf *list, size_t older, size_t n,
                   const char *title) {
    Schedule s = list(run->world->size, n, run->world->rank);
    Played played = pipedream_play(run, stack, &s, older, n);
    // Two pictures are too long for a page.
    int flush = PICTURE_NO_FILES | (run->world->size > 4 ? PICTURE_DETAIL : 0);
    if (title) picture_show(run, title, list == flushed ? flush : PICTURE_CHART);
    schedule_free(&s);
    return played.timing;
}

static void equal_stages(Run *run, const Training *t) {
    size_t p = run->world->size, older = p - 1 - run->world->rank;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    Timing flush = play(run, &stack, flushed, 0, PIECES, "1F1B, 8 pieces, flush after 4");
    Timing dream = play(run, &stack, stashing, older, PIECES, "PipeDream, 8 mini-batches");
    Timing flush_long = play(run, &stack, flushed, 0, 2 * PIECES, NULL);
    Timing dream_long = play(run, &stack, stashing, older, 2 * PIECES, NULL);
    all_lists(run);
    if (!clock_config()->simulated) return;
    Picoseconds one[2] = { stack_makespan(&stack, flushed, p, PIECES),
                           stack_makespan(&stack, stashing, p, PIECES) };
    Picoseconds two[2] = { stack_makespan(&stack, flushed, p, 2 * PIECES),
                           stack_makespan(&stack, stashing, p, 2 * PIECES) };
    check_cost(run, "step.1f1b", "equal stages, 1F1B: 8 pieces", "ps", NOT_PREDICTED,
               played(one[0]), flush.step);
    check_cost(run, "step.pipedream", "equal stages, PipeDream: 8 pieces", "ps", NOT_PREDICTED,
               played(one[1]), dream.step);
    check_cost(run, "more.1f1b", "equal stages, 1F1B: 8 more", "ps", NOT_PREDICTED,
               played(two[0] - one[0]), flush_long.step - flush.step);
    check_cost(run, "more.pipedream", "equal stages, PipeDream: 8 more", "ps", NOT_PREDICTED,
               played(two[1] - one[1]), dream_long.step - dream.step);
}

// ---------------------------------------------------------------- the table of the page

static void table(Run *run, double off, const double loss[4], size_t first, size_t last) {
    size_t old = run->world->size - 1;
    char text[4][16], age[3][16], deviation[16], what[64];
    for (size_t way = 0; way < 4; way++) snprintf(text[way], sizeof *text, "=%.2f", loss[way]);
    snprintf(age[0], sizeof *age, old ? "=0..%zu" : "=%zu", old);
    snprintf(age[1], sizeof *age, "=%zu", old);
    snprintf(age[2], sizeof *age, old ? "=both" : "=0");
    snprintf(deviation, sizeof deviation, "=%.0f %%", 100 * off);
    snprintf(what, sizeof what, "loss, %zu..%zu", first, last);
    const Result rows[] = {
        { "8 pieces more", "2(m+p-1), 8: t_f+t_b",
          { "more.1f1b", "more.pipedream" } },
        { "versions held", "1, p-i, p, 1",
          { "sgd.flush.versions", "sgd.stashing.versions",
            "sgd.vertical.versions", "sgd.no-stashing.versions" } },
        { "weights per rank", "versions x stage",
          { "sgd.flush.weights", "sgd.stashing.weights",
            "sgd.vertical.weights", "sgd.no-stashing.weights" } },
        { "updates missed", "0, p-1-i, p-1", { "=0", age[0], age[1], age[2] } },
        { "gradient 1 error", "|g'-g| / |g|", { "=0", "=0", "=0", deviation } },
        { what, NULL, { text[0], text[1], text[2], text[3] } }, {0} };
    results(run, (const char *const[]){ "1F1B", "stashing", "vertical sync", "no stashing", NULL },
            clock_config()->simulated ? rows : rows + 1);      // no cost is a time in real time
}

// ---------------------------------------------------------------- the lesson

static void pipedream(Run *run) {
    require_one_link(run);
    size_t p = run->world->size;
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks",
            p, sizes.layers);
    Training t = { .model = sizes, .steps = STEPS, .sequences = SEQUENCES, .micro_batches = 1 };
    double loss[WAYS], off;
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    equal_stages(run, &t);
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        equals_recurrence(run, &t, SYNCHRONOUS, "flush each time = unsplit");
        equals_recurrence(run, &t, STASHED, "weight stashing = recurrence");
        equals_recurrence(run, &t, VERTICAL, "vertical sync = recurrence");
    }
    t.optimizer = sgd(0.3);
    off = is_no_gradient(run, &t);
    losses_on_text(run, loss);
    table(run, off, loss, LONG - LAST, LONG - 1);
    data_free(&t.data);
}
static const Option options[] = {
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    {0},
};
EXPERIMENT(pipedream, options);
