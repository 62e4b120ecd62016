// ranks: 4
// level: extra
// question: Does a pipeline that never runs empty equal one device with weights just as old?
// vary: SEQUENCES 2..4, STEPS 9..13, layers 8..11, width 18|24, context 7..13, vocab 31..50
//
// PipeDream (Harlap et al. 2018, section 3): 1F1B without its flush. There is no batch of micro-batches: every
// mini-batch ends with an update of its own, on each stage as soon as its backward is done there, and the next ones
// are in the pipeline already. So the weights change between the forward and the backward of a mini-batch. Weight
// stashing: a stage keeps the version that the forward read, and the backward reads it again: p - i versions, because
// p - 1 - i updates of earlier mini-batches come between a stage's forward of k and its backward of k.
//     W_i(k+1) = W_i(k) - eta g_i,  g = gradient of loss k at (W_0(max(0, k-p+1)), ..., W_i(max(0, k-(p-1-i))), ...)
// This is not the unsplit training: the gradient is taken at old weights and subtracted from new ones. It equals, in
// every bit, one device that runs this recurrence (experiments/04_reference.c). Vertical sync: all stages read the version
// max(0, k-p+1), which is the one that stage 0 has to read, and hold p versions each.
// Who holds what: rank i has stage i, its gradients and optimizer state once, its weights p - i times. Communication:
// for each mini-batch [B*T, C] to the next stage and a gradient of that shape back, as ever; no sum over stages at all.
// The table of the embedding is not tied: the first stage would need the last one's gradient in the same update.
// Left out: replicated stages; clipping, whose norm needs all stages at one moment.
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "05_pipeline_1f1b/experiments/04_pipedream.h"
#include <math.h>
#include <stdio.h>

// ================================ the technique ================================

// ---------------------------------------------------------------- the order, and who reads which version

size_t pipedream_older(PipeDreamRule rule, size_t p, size_t i) {
    return rule == WEIGHT_STASHING ? p - 1 - i : rule == VERTICAL_SYNC ? p - 1 : 0;
}

static size_t version(size_t k, size_t updates_old) { return k < updates_old ? 0 : k - updates_old; }

// The executor (04/executor.c) works down this list. A forward receives [B*T, C] elements from the stage before and
// sends as many to the next one, a backward does so the other way. An update sends nothing.
Schedule schedule_pipedream(PipeDreamRule rule, size_t p, size_t n, size_t i) {
    Schedule s = {0};
    size_t ahead = p - 1 - i;
    // EXERCISE 05.04a (5 points): PipeDream's list of stage i. The first `ahead` mini-batches go forward; then a
    // forward, a backward and its update, in turn, until no forward is left; then the last backwards, each with its
    // update. Mini-batches 0, 1, ..., n-1 in this order, both ways. Each op says which version of the weights it reads
    // (see PipeDreamRule in pipeline_1f1b.h). Update k takes the gradient of mini-batch k; its version does not matter.
    // Calls: schedule_add_op, schedule_add, version.
    for (size_t turn = 0; turn < n + ahead; turn++) {
        size_t k = turn, back = turn - ahead, old = rule == VERTICAL_SYNC ? p - 1 : ahead;
        if (k < n) schedule_add_op(&s, (PipeOp){ .what = FORWARD, .micro_batch = k, .version = version(k, old) });
        if (turn < ahead) continue;
        size_t read = rule == NO_STASHING ? back : version(back, old);
        schedule_add_op(&s, (PipeOp){ .what = BACKWARD, .micro_batch = back, .version = read });
        schedule_add(&s, UPDATE, back);
    }
    // END
    return s;
}

// ---------------------------------------------------------------- the versions of a stage's weights

WeightVersions weight_versions_new(const Model *m, size_t older) {
    WeightVersions w = { .arena = arena(MEM_PARAMETERS), .older = older };
    if (older) w.copy = tensor_new(&w.arena, older, m->size);      // m->w itself is the newest: older + 1 in all
    return w;
}
void weight_versions_free(WeightVersions *w) { arena_free(&w->arena); }

static Tensor copy_of(const WeightVersions *w, size_t version) {
    return tensor_row_range(w->copy, version % w->older, version % w->older + 1);
}

void weight_versions_attach(const WeightVersions *w, Model *m, size_t version) {
    if (version > w->newest || version + w->older < w->newest)
        fault("version %zu of the weights is not held: %zu is the newest, and %zu before it", version, w->newest,
              w->older);
    model_attach_weights(m, version == w->newest ? m->w : copy_of(w, version));
}

// The copy that is overwritten is the oldest: versions newest and newest - older have the same row. The mini-batch that
// read the oldest has just had its backward, and all that are in flight read younger ones.
void weight_versions_keep(WeightVersions *w, const Model *m) {
    if (w->older) tensor_copy(copy_of(w, w->newest), m->w);
}

// ---------------------------------------------------------------- what the executor asks of a stage

// notes: for the experiment, which looks at losses, gradients and weights after each update.
typedef struct { WeightVersions weights; Optimizer *optimizer; const PipelineNotes *notes; } Stage;

// Before every forward and backward: my layers read the version that the op names.
static void read_version(void *stage, Model *m, PipeOp op) {
    weight_versions_attach(&((Stage *)stage)->weights, m, op.version);
}

// After the backward of mini-batch k: version k of the weights, not the one that was read, less the gradient. m->w is
// always the newest version; the optimizer changes it, whichever version the layers are attached to.
static void update(void *stage, Model *m, PipeOp op) {
    Stage *s = stage;
    weight_versions_keep(&s->weights, m);
    optimizer_step(s->optimizer, m, 1);                // m->w: version k becomes version k + 1
    s->weights.newest++;
    weight_versions_attach(&s->weights, m, s->weights.newest);
    if (s->notes && s->notes->updated) s->notes->updated(s->notes->who, m, op.micro_batch, NULL);
    model_zero_gradients(m);
}

PipelineResult pipeline_pipedream(Comm *pp, Model *m, Optimizer *o, const Schedule *list, size_t older,
                                  const Batch *batch, size_t n, const PipelineNotes *notes) {
    Stage stage = { weight_versions_new(m, older), o, notes };
    PipelineWeights weights = { read_version, update, &stage, notes ? notes->loss : NULL };
    model_zero_gradients(m);
    // The messages are those of 05.02, in the order of the list. A forward receives x [B*T, C] from stage i-1 and sends
    // y [B*T, C] to stage i+1; a backward receives dy [B*T, C] from i+1 and sends dx [B*T, C] to i-1. The first stage
    // receives no x and sends no dx, the last one sends no y and receives no dy; weights never move.
    PipelineResult r = pipeline_run_versions(pp, m, list, batch, n, &weights);
    weight_versions_free(&stage.weights);
    return r;
}

// Head and embedding become two tables. The marks that go are those by which one optimizer step updates the table once
// (tied_to, tied_use) and a gradient norm counts it once (tied_copy).
void model_untie(Model *m) {
    Unit *first = model_wte(m), *last = model_wte_head(m);
    if (last) {
        snprintf(last->params[0].name, sizeof last->params[0].name, "lm_head.weight");
        last->tied_to = NULL;                          // weights of its own, which begin with the values of tensor 0
        last->tied_copy = false;
    }
    if (first) first->tied_use = NULL;
}

// ================================ the experiment ================================

// Mini-batches of 3 sequences of 5 to 10 counted tokens; 9 blocks on 4 stages: 3, 2, 2, 2.
static const ModelConfig sizes = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1 };
enum { SEQUENCES = 3, STEPS = 12 };

// Trained by a list of this rule; way 0: synchronously, with a flush and an update after every mini-batch.
static PipeDreamSeen train(Run *run, const Training *t, size_t way, Trajectory *got) {
    size_t p = run->world->size, i = run->world->rank;
    PipeDreamRule rule = way ? (PipeDreamRule)(way - 1) : NO_STASHING;
    Schedule list = way ? schedule_pipedream(rule, p, t->steps, i) : schedule_flushed(p, 1, i, t->steps);
    PipeDreamSeen seen = pipedream_train(run, t, &list, pipedream_older(rule, p, i), got);
    schedule_free(&list);
    return seen;
}
enum { SYNCHRONOUS, STASHED, VERTICAL, BARE, WAYS };

// Against the reference whose weights are so old: of p stages, of one (never old), or with vertical sync.
static void equals_recurrence(Run *run, const Training *t, size_t way, const char *what) {
    size_t p = way == SYNCHRONOUS ? 1 : run->world->size;
    Trajectory got = trajectory_new(run, t), want = pipedream_reference(run, t, p, way == VERTICAL);
    PipeDreamSeen seen = train(run, t, way, &got);
    training_compare_tensors(run, what, &got, &want, 0);
    check_numbers(run, what, "loss", got.loss, want.loss, t->steps, 0);
    pipedream_costs(run, t, way, &seen);
    pipedream_seen_free(&seen);
    trajectory_free(&got);
    trajectory_free(&want);
}

// Without stashing. Before the backward of mini-batch 1 nothing differs, so its loss has the same bits; then all stages
// but the last one walk back through weights that its forward never read. Returns how far off that gradient is.
static double is_no_gradient(Run *run, const Training *t) {
    Trajectory wrong = trajectory_new(run, t), right = trajectory_new(run, t);
    PipeDreamSeen bare = train(run, t, BARE, &wrong), stashed = train(run, t, STASHED, &right);
    double off = pipedream_deviation(run, &bare, &stashed);
    pipedream_costs(run, t, BARE, &bare);
    check_numbers(run, "no stashing", "losses 0 and 1", wrong.loss, right.loss, 2, 0);
    if (run->world->size == 1) check_equal(run, "no stashing, one stage", wrong.weights, right.weights);
    check_true(run, "no stashing", "gradient 1 off by 1 % or more", run->world->size == 1 || off > 0.01);
    pipedream_seen_free(&bare);
    pipedream_seen_free(&stashed);
    trajectory_free(&wrong);
    trajectory_free(&right);
    return off;
}

// Mean loss of the last mini-batches of a training on text.
enum { LONG = 160, LAST = 40 };
static void losses_on_text(Run *run, double loss[WAYS]) {
    size_t p = run->world->size;
    Training t = { .model = { .layers = p < 4 ? 4 : p, .width = 16, .heads = 2, .context = 16, .vocab = 256 },
                   .steps = LONG, .sequences = 4, .micro_batches = 1, .optimizer = sgd(0.1) };
    t.model.seed = run->seed;
    t.data = training_text(run, option_text(run, "data"), NULL, t.model.vocab, t.model.context, t.sequences);
    for (size_t way = 0; way < WAYS; way++) {
        PipeDreamSeen seen = train(run, &t, way, NULL);
        loss[way] = 0;
        for (size_t k = LONG - LAST; k < LONG; k++) loss[way] += seen.loss[k] / LAST;
        pipedream_seen_free(&seen);
    }
    data_free(&t.data);
}

static void pipedream(Run *run) {
    require_one_link(run);
    size_t p = run->world->size;
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks", p, sizes.layers);
    Training t = { .model = sizes, .steps = STEPS, .sequences = SEQUENCES, .micro_batches = 1 };
    double loss[WAYS], off;
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    pipedream_equal_stages(run, &t);
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        equals_recurrence(run, &t, SYNCHRONOUS, "flush each time = unsplit");
        equals_recurrence(run, &t, STASHED, "weight stashing = recurrence");
        equals_recurrence(run, &t, VERTICAL, "vertical sync = recurrence");
    }
    t.optimizer = sgd(0.3);
    off = is_no_gradient(run, &t);
    losses_on_text(run, loss);
    pipedream_results(run, off, loss, LONG - LAST, LONG - 1);
    data_free(&t.data);
}
static const Option options[] = {
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    {0},
};
EXPERIMENT(pipedream, options);
