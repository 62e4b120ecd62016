// ranks: 4
// level: extra
// question: A pipeline never runs empty, and its gradients are one update late. Are two versions of the weights enough?
// vary: SEQUENCES 9..12, STEPS 5..6, layers 8..11, width 18|24, context 7..13, vocab 31..50
//
// Holds: rank i has stage i of p, with the blocks shard_range(L, p, i). Gradients and optimizer
//     state exist once, the weights twice (double-buffered). Activations of at most p - i
//     micro-batches are kept. The first and the last rank also hold a second gradient of the tied
//     table.
// Sends: per micro-batch y [B*T, C] to stage i + 1 and dx to i - 1. Per update the first and the
//     last stage exchange their gradients of the tied table, V*C elements, and add the two
//     gradients.
// Saves: 1F1B's bubble. Each further batch of m micro-batches takes m(f+b), with 1F1B (m+p-1)(f+b).
//     f and b are the times of a stage's forward and backward of a micro-batch. 2BW also saves
//     versions of the weights, because a stage has 2 versions, with PipeDream p - i.
// Costs: all stages are one update late: W(t+1) = W(t) - eta grad f_t(W(t-1)). f_t is the loss of
//     batch t. Batch 0 reads W(0), as batch 1 does. Two versions are enough if m >= p, because at
//     most two batches are then in flight.
// Every bit of the weights must equal that of one device that follows this rule.
// Narayanan et al. 2021 (PipeDream-2BW), arXiv 2006.09503, section 3.1.
// Left out: clipping, whose norm needs all stages at one moment; recomputation.
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "common/comm/record.h"

static size_t version_of_batch(size_t t) { return t ? t - 1 : 0; }

// Returns the list of stage i. These are the lists for p = 2, m = 2 and two batches. U1 is the
// update of batch 1. All ops of batch 1 read version 0.
//     stage 0   F0 F1 B0 F2 B1 U0 F3 B2 B3 U1
//     stage 1   F0 B0 F1 B1 U0 F2 B2 F3 B3 U1
Schedule schedule_2bw(size_t p, size_t m, size_t steps, size_t i) {
    Schedule s = { 0 };
    size_t ahead = p - 1 - i, n = steps * m;
    // EXERCISE 05.05a (4 points): write 2BW's list of stage i, with all n micro-batches of all
    // steps. First come `ahead` forwards, then a forward and a backward in turn, then the last
    // backwards. Micro-batch k is of batch k / m. After the backward of a batch's last micro-batch
    // comes the batch's UPDATE, whose micro_batch is the number of the batch. Each forward and each
    // backward names the version that it reads. Calls: schedule_add_op, schedule_add,
    // version_of_batch.
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

// ------------------------------------------------------ the update, and the tied table after it

// Stage holds the weights' versions and the exchange of the tied table's gradient. `table` is the
// unit of the tied table, on the first and the last of several stages, else NULL. The table's
// gradient has two buffers, each [1, V*C]. Backwards add into table->g while table->own_g travels
// to the other end of the pipeline.
typedef struct {
    WeightVersions weights;
    Optimizer *optimizer;
    const TrainingObserver *observer;
    Comm *tied; // {first, last}: ranks 0 and 1 of this group
    Unit *table;
    Tensor spare;              // [1, V*C]: the unused buffer if no exchange is in flight
    Tensor received;           // [1, V*C]: the other end's gradient
    Request *sends, *receives; // sends is NULL if no exchange is in flight
} Stage;

// Lets the layers read the newest version, and calls the observer's updated().
static void notify(Stage *s, Model *m, UpdatedPart part) {
    weight_versions_attach(&s->weights, m, s->weights.newest);
    if (s->observer) s->observer->updated(s->observer->context, m, s->weights.newest - 1, part);
}

// Starts to exchange the gradients of the tied table. The first stage has the embedding's part of
// the table's gradient, the last stage the head's part. Both stages need the sum. The first stage
// finishes its part p - 1 backwards later than the last stage. If the last stage waited here, the
// last stage would be idle for the time of these backwards. So table_finish waits for the exchange
// when an op first reads the new table, or at the next update if that comes first. Before this wait
// the first stage runs m - p + 1 more forwards, the last stage m. Meanwhile backwards add to the
// other buffer.
static void table_start(Stage *s) {
    size_t other_end = 1 - s->tied->rank;
    s->table->own_g = s->table->g;
    s->receives = comm_start_recv(s->tied, s->received, other_end);  // V*C elements
    s->sends = comm_start_send(s->tied, s->table->own_g, other_end); // V*C elements
    unit_attach_gradients(s->table, s->spare);
}
// Waits for both messages, adds the two gradients, and updates the table. Afterwards the newest
// version is complete.
static void table_finish(Stage *s, Model *m) {
    if (!s->sends) return;
    comm_wait(s->receives);
    comm_wait(s->sends);
    s->sends = NULL;
    s->spare = s->table->own_g;
    // One end computes a + b, the other end b + a. The two sums have the same bits.
    op_add(s->table->own_g, s->table->own_g, s->received);
    optimizer_step_unit(s->optimizer, s->table, 1);
    notify(s, m, UPDATED_TABLE);
}

// Updates the weights after the last backward of batch t. m->w, version t, becomes version t + 1
// with a gradient that was computed with version t - 1. On the first and the last stage this
// function leaves the table out, and table_finish updates the table before any op reads version
// t + 1.
static void update(Stage *s, Model *m) {
    table_finish(s, m);                   // for the update of batch t - 1
    if (!s->table) model_fold_tied(m);    // a single stage has both uses of the table
    weight_versions_keep(&s->weights, m); // version t; no op reads t - 1 any more
    record_enter(EVENT_UPDATE, NO_NUMBER);
    s->optimizer->step++;
    for (size_t i = 0; i < m->n_units; i++)
        if (&m->units[i] != s->table && !m->units[i].tied_to)
            optimizer_step_unit(s->optimizer, &m->units[i], 1);
    record_leave();
    s->weights.newest++;
    notify(s, m, s->table ? UPDATED_OTHERS : UPDATED_ALL);
    if (s->table) table_start(s);
    model_zero_gradients(m);
}

// ---------------------------------------------------------- the list, with messages and updates

PipelineResult pipeline_2bw(Comm *pp, Comm *tied, Model *m, Optimizer *o, const Schedule *list,
                            const Batch *batch, size_t n, const TrainingObserver *observer) {
    if (m->config.untied) tied = NULL; // head and embedding have a table each
    Stage u = {
        .weights = weight_versions_new(m, 1), .optimizer = o, .observer = observer, .tied = tied
    };
    Arena buffer = arena(MEM_GRADIENTS), incoming = arena(MEM_COMMUNICATION);
    Tensor g = { 0 };
    if (tied) {
        u.table = model_wte(m) ? model_wte(m) : model_wte_head(m);
        g = u.table->g;
        u.spare = unit_new_gradients(u.table, &buffer, u.table->size);
        tensor_fill(u.spare, 0);
        u.received = unit_new_gradients(u.table, &incoming, u.table->size);
        comm_connect(tied, COMM_NEIGHBOURS);
    }
    model_zero_gradients(m);
    PipelineStage s = pipeline_begin(pp, m, batch, n);
    Executor *e = executor_new(pp, &s, list); // posts receives, keeps messages in flight
    for (size_t at = 0; at < list->n; at++) {
        PipeOp op = list->ops[at];
        if (op.what == UPDATE) {
            // Version t becomes t + 1. The first and the last stage start to send V*C elements.
            update(&u, m);
            continue;
        }
        size_t k = executor_receive(e, at); // B*T*C elements: x from i - 1, or dy from i + 1
        // If the op reads the newest version, this version must include the table's update.
        if (op.version == u.weights.newest) table_finish(&u, m);
        // In the list of schedule_2bw the ops of batch t name version t - 1. The ops of batch 0
        // name version 0.
        weight_versions_attach(&u.weights, m, op.version);
        if (op.what == FORWARD) pipeline_forward(&s, k);
        else pipeline_backward(&s, k);
        if (op.what == FORWARD && observer) observer->loss[k] += s.micro[k].loss;
        executor_send(e, at); // B*T*C elements: y to i + 1, or dx to i - 1
    }
    executor_free(e);
    table_finish(&u, m);
    if (tied) { // gives the model its own gradient buffer again
        u.table->own_g = g;
        unit_attach_gradients(u.table, g);
    }
    arena_free(&buffer);
    arena_free(&incoming);
    weight_versions_free(&u.weights);
    return pipeline_end(&s);
}
