// ranks: 4
// level: extra
// question: Do two versions of the weights suffice for a pipeline that never runs empty, one update late?
// vary: SEQUENCES 9..12, STEPS 5..6, layers 8..11, width 18|24, context 7..13, vocab 31..50
//
// PipeDream-2BW (Narayanan et al. 2021, arXiv 2006.09503, section 3.1), double-buffered weights: m micro-batches make a
// batch, whose gradients are added and whose update comes once; the next batch is in the pipeline already. All stages
// read the same version, one update late:
//     W(t+1) = W(t) - eta grad f_t(W(t-1)),   batch 0 reads W(0)
// Two versions are enough if m >= p: stage 0 runs p - 1 micro-batches ahead, so with m of them only two batches can be
// between their forward and their backward. It is not the unsplit training, but one device with a delay of one update,
// which it equals in every bit (experiments/05_reference.c); moments of AdamW or momentum take the late gradient as it is.
// Who holds what: rank i has stage i, gradients and optimizer state once, weights twice. Communication: per micro-batch
// [B*T, C] to the next stage and a gradient back; per update the first and the last stage send each other their
// gradient of the tied table, V*C elements, and both add the two. Waiting for it at once would stop the last stage
// until the first one comes, p - 1 backwards later. So it is started, and waited for when the new table is needed, most
// of a batch later: the delay pays for it.
// Left out: clipping, whose norm needs all stages at one moment; recomputation.
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "05_pipeline_1f1b/experiments/05_2bw.h"
#include "common/comm/record.h"

// ================================ the technique ================================

static size_t version_of_batch(size_t t) { return t ? t - 1 : 0; }

// A forward receives [B*T, C] elements from the stage before and sends as many on; a backward the other way.
Schedule schedule_2bw(size_t p, size_t m, size_t steps, size_t i) {
    Schedule s = {0};
    size_t ahead = p - 1 - i, n = steps * m;
    // EXERCISE 05.05a (4 points): 2BW's list of stage i. All n micro-batches of all steps: `ahead` forwards first; then
    // a forward and a backward in turn; then the last backwards. Micro-batch k is of batch k / m. After the backward of
    // a batch's last micro-batch comes its UPDATE, whose micro_batch is the number of the batch. Forwards and backwards
    // name the version that they read. Calls: schedule_add_op, schedule_add, version_of_batch.
    for (size_t turn = 0; turn < n + ahead; turn++) {
        size_t k = turn, back = turn - ahead;
        if (k < n) schedule_add_op(&s, (PipeOp){ FORWARD, k, .version = version_of_batch(k / m) });
        if (turn < ahead) continue;
        schedule_add_op(&s, (PipeOp){ BACKWARD, back, .version = version_of_batch(back / m) });
        if ((back + 1) % m == 0) schedule_add(&s, UPDATE, back / m);
    }
    // END
    return s;
}

// ---------------------------------------------------------------- the update, and the tied table after it

// table: on the first and the last of several stages, the unit of the tied table. Its gradient has two buffers, each
// [1, V*C]: backward adds into one (table->g) while the other (table->own_g) is on its way to the pipeline's other end.
typedef struct {
    WeightVersions weights;
    Optimizer *optimizer;
    const PipelineNotes *notes;
    Comm *tied;                                            // {first, last}: ranks 0 and 1 of it
    Unit *table;
    Tensor spare, theirs;                                  // [1, V*C]: the buffer that nobody uses; what arrives
    Request *sends, *receives;                             // under way; NULL: none
} Stage;

static bool is_table(const Unit *u, const Param *p) { (void)u; return p->number == 0; }
static bool is_not_table(const Unit *u, const Param *p) { (void)u; return p->number != 0; }
static void note(Stage *s, Model *m, Which which) {
    weight_versions_attach(&s->weights, m, s->weights.newest);
    if (s->notes && s->notes->updated) s->notes->updated(s->notes->who, m, s->weights.newest - 1, which);
}

// My part of the table's gradient leaves for the other end, and theirs may come; backward goes on with another buffer.
// Two messages and not an all-reduce: they arrive while their receiver computes or waits for something else.
static void table_start(Stage *s) {
    size_t other_end = 1 - s->tied->rank;
    s->table->own_g = s->table->g;
    s->receives = comm_start_recv(s->tied, s->theirs, other_end);                  // V*C elements
    s->sends = comm_start_send(s->tied, s->table->own_g, other_end);               // V*C elements
    unit_attach_gradients(s->table, s->spare);
}
// Waits for both, adds them, and updates the table: the last part of the newest version.
static void table_finish(Stage *s, Model *m) {
    if (!s->sends) return;
    comm_wait(s->receives);
    comm_wait(s->sends);
    s->sends = NULL;
    s->spare = s->table->own_g;
    op_add(s->table->own_g, s->table->own_g, s->theirs);           // a + b = b + a: the same bits on both
    optimizer_step_unit(s->optimizer, s->table, 1);
    note(s, m, is_table);
}

static void read_version(void *stage, Model *m, PipeOp op) {
    Stage *s = stage;
    if (op.version == s->weights.newest) table_finish(s, m);       // its table may still be on its way
    weight_versions_attach(&s->weights, m, op.version);
}

// After the last backward of batch t. m->w, version t, becomes version t + 1 by a gradient that was taken at t - 1. On
// the first and the last stage all but the table: table_finish does that, before anybody reads version t + 1.
static void update(void *stage, Model *m, PipeOp op) {
    Stage *s = stage;
    (void)op;
    table_finish(s, m);                                            // of batch t - 1
    if (!s->table) model_fold_tied(m);                             // one stage has both uses of the table
    weight_versions_keep(&s->weights, m);                          // version t; t - 1 has no reader any more
    record_enter(EVENT_UPDATE, NO_NUMBER);
    s->optimizer->step++;
    for (size_t i = 0; i < m->n_units; i++)
        if (&m->units[i] != s->table && !m->units[i].tied_to) optimizer_step_unit(s->optimizer, &m->units[i], 1);
    record_leave();
    s->weights.newest++;
    note(s, m, s->table ? is_not_table : NULL);
    if (s->table) table_start(s);
    model_zero_gradients(m);
}

PipelineResult pipeline_2bw(Comm *pp, Comm *tied, Model *m, Optimizer *o, const Schedule *list, const Batch *batch,
                            size_t n, const PipelineNotes *notes) {
    Stage s = { .weights = weight_versions_new(m, 1), .optimizer = o, .notes = notes, .tied = tied };
    Arena buffer = arena(MEM_GRADIENTS), incoming = arena(MEM_COMMUNICATION);
    Tensor g = {0};
    if (tied) {
        s.table = model_wte(m) ? model_wte(m) : model_wte_head(m);
        g = s.table->g;
        tensor_fill(s.spare = tensor_new(&buffer, 1, s.table->size), 0);
        s.theirs = tensor_new(&incoming, 1, s.table->size);
        comm_connect(tied, COMM_NEIGHBOURS);
    }
    PipelineWeights weights = { read_version, update, &s, notes ? notes->loss : NULL };
    model_zero_gradients(m);
    PipelineResult r = pipeline_run_versions(pp, m, list, batch, n, &weights);
    table_finish(&s, m);
    if (tied) unit_attach_gradients(s.table, s.table->own_g = g);          // the model is as it was given
    arena_free(&buffer);
    arena_free(&incoming);
    weight_versions_free(&s.weights);
    return r;
}

// ================================ the experiment ================================

// 11 sequences of 5 to 10 counted tokens a batch; 9 blocks on 4 stages: 3, 2, 2, 2.
static const ModelConfig sizes = { .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1 };
enum { SEQUENCES = 11, STEPS = 5 };

// Trained by 2BW's list, or by 1F1B's with a flush after every batch, which reads the newest weights.
static TwoBwSeen train(Run *run, const Training *t, bool flush, bool noted, Trajectory *got) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches;
    Schedule list = flush ? schedule_flushed(p, m, i, t->steps) : schedule_2bw(p, m, t->steps, i);
    TwoBwSeen seen = two_bw_train(run, t, &list, noted, got);
    schedule_free(&list);
    return seen;
}

static void equals_recurrence(Run *run, const Training *t, bool flush, const char *what) {
    Trajectory got = trajectory_new(run, t);
    Trajectory want = flush ? training_unsplit(run, t, 1) : two_bw_reference(run, t);
    TwoBwSeen seen = train(run, t, flush, true, &got);
    training_compare_tensors(run, what, &got, &want, 0);
    check_numbers(run, what, "loss", got.loss, want.loss, t->steps, 0);
    check_true(run, "afterwards", "the model has its own gradient buffers", seen.buffers_back);
    if (!flush) two_bw_costs(run, t, &seen);
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
    t.data = training_text(run, option_text(run, "data"), NULL, t.model.vocab, t.model.context, t.sequences);
    for (size_t way = 0; way < 2; way++) {
        Trajectory got = trajectory_new(run, &t);
        train(run, &t, way == 0, false, &got);
        loss[way] = 0;
        for (size_t step = LONG - LAST; step < LONG; step++) loss[way] += got.loss[step] / LAST;
        trajectory_free(&got);
    }
    data_free(&t.data);
}

static void two_bw(Run *run) {
    require_one_link(run);
    size_t p = run->world->size, m = option_given(run, "micro-batches") ? option_size(run, "micro-batches") : p;
    REQUIRE(p <= sizes.layers, "%zu stages need at least as many blocks: start at most %zu ranks", p, sizes.layers);
    REQUIRE(m >= p, "--micro-batches %zu: 2BW takes at least as many as the %zu stages, so that two versions of the "
            "weights suffice (arXiv 2006.09503, section 3.1)", m, p);
    REQUIRE(m <= SEQUENCES, "--micro-batches %zu: a batch has %d sequences: choose at most that many", m, SEQUENCES);
    Training t = { .model = sizes, .steps = STEPS, .sequences = SEQUENCES, .micro_batches = m };
    double loss[2];
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    two_bw_equal_stages(run, &t);
    t.optimizer = sgd(0.3);
    equals_recurrence(run, &t, true, "with a flush = unsplit");
    equals_recurrence(run, &t, false, "2BW = one update late");
    t.optimizer.momentum = 0.9;
    t.optimizer.lr = 0.03;
    equals_recurrence(run, &t, false, "momentum = one update late");
    t.optimizer = adamw(0.01);
    equals_recurrence(run, &t, false, "2BW = one update late");
    t.micro_batches = m < SEQUENCES ? m + 1 : m;
    t.optimizer = sgd(0.3);
    equals_recurrence(run, &t, false, "m + 1 = one update late");
    losses_on_text(run, loss);
    two_bw_results(run, loss, LAST);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", NULL, "of a batch; default: as many as stages" },
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    {0},
};
EXPERIMENT(two_bw, options);
