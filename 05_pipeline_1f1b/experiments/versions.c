// versions.c: trains with lists that have updates (PipeDream and 2BW), and trains one device by the
// recurrence that such lists must equal. Compares the bytes that stages hold and send with
// predictions.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdlib.h>

// Returns the micro-batches of all steps. The caller calls free() on the list and arena_free() on
// the tokens.
static Batch *all_batches(const Training *t, Arena *tokens) {
    size_t m = t->micro_batches;
    Batch *all = host_alloc(t->steps * m * sizeof *all);
    for (size_t k = 0; k < t->steps; k++) {
        Batch *b = training_batches(t, tokens, k, 1, 0);
        for (size_t n = 0; n < m; n++) {
            all[k * m + n] = b[n];
            all[k * m + n].number = k * m + n;
        }
        free(b);
    }
    return all;
}

static Schedule list_of(const VersionsWay *way, const Training *t, size_t p, size_t i) {
    size_t m = t->micro_batches;
    switch (way->order) {
    case VERSIONS_FLUSH: return schedule_repeated(schedule_1f1b(p, m, i), m, t->steps, true);
    case VERSIONS_PIPEDREAM: return schedule_pipedream(way->rule, p, m * t->steps, i);
    case VERSIONS_2BW: return schedule_2bw(p, m, t->steps, i);
    }
    fault("there is no order %d", (int)way->order);
}
// Stage i reads weights that are some updates old. This function returns that number of updates. A
// stage of PipeDream keeps as many versions besides the newest. Without stashing a stage keeps no
// older version, and this function returns 0.
static size_t age(const VersionsWay *way, size_t p, size_t i) {
    if (way->order == VERSIONS_2BW) return 1;
    if (way->order == VERSIONS_FLUSH || way->rule == NO_STASHING) return 0;
    return way->rule == WEIGHT_STASHING ? p - 1 - i : p - 1;
}

static bool is_table(const Unit *u, const Param *p) {
    (void)u;
    return p->number == 0;
}
static bool is_not_table(const Unit *u, const Param *p) { return !is_table(u, p); }

// Records the gradients and weights of the tensors that an update has changed. This function is
// updated() of the trainings' observer.
static void record(void *records, Model *m, size_t update, UpdatedPart part) {
    static const Which of_part[] = {
        [UPDATED_ALL] = NULL, [UPDATED_TABLE] = is_table, [UPDATED_OTHERS] = is_not_table
    };
    const VersionsRecords *r = records;
    Trajectory *got = r->got;
    if (!got) return;
    ledger_pause();
    const char *label = page_text(got->run, " of step %zu", update);
    snapshot_label(got->gradients, label);
    snapshot_label(got->weights, label);
    if (update == 0) model_snapshot(m, got->first, UNIT_GRADIENTS, of_part[part]);
    model_snapshot(m, got->gradients, UNIT_GRADIENTS, of_part[part]);
    model_snapshot(m, got->weights, UNIT_WEIGHTS, of_part[part]);
    if (update == 1 && r->second) tensor_download(r->second, m->g);
    ledger_resume();
}

// Checks the costs of this rank in a training. Held bytes are peaks. Messages and sums are counted
// over all steps.
static void check_training(Run *run, const Training *t, const VersionsWay *way, const Comm *tied,
                           size_t in_flight) {
    const Comm *pp = run->world;
    size_t p = pp->size, i = pp->rank, m = t->micro_batches;
    size_t E = weight_bytes(&t->model), G = gradient_bytes(&t->model);
    CutSizes z = stage_sizes(&t->model, p, i);
    size_t versions = way->two_buffers ? 2 : 1 + age(way, p, i);
    // Stage i keeps at most p - i micro-batches. With a flush these micro-batches are all of one
    // batch. The first micro-batches of a batch are the largest.
    size_t flight = way->order == VERSIONS_FLUSH ? m : t->steps * m, tokens = 0;
    if (p - i < flight) flight = p - i;
    for (size_t k = 0; k < flight; k++) tokens += stage_tokens(t, k % m);
    // `table` is the number of elements of the tied table, on the first and the last of several
    // stages. With PipeDream embedding and head have a table each, and each table has a gradient.
    size_t table = way->two_buffers && stage_shares_table(&z) ? elements_wte(&z) : 0;
    size_t elements = way->two_buffers ? elements_stage(&z) : elements_gradients(&z);
    size_t moments = master_bytes(&t->model);
    if (t->optimizer.kind == ADAMW) moments = adamw_bytes(&t->model);
    size_t messages = t->steps * stage_neighbours(run) * message_elements(&z, t->sequences);
    check_costs(run, page_text(run, "%%s.%s", way->id), page_text(run, "%s: %%s", way->name),
                (CostRow[]){
                    { "versions", "versions of the weights", "versions", BY_FORMULA(versions),
                      (double)memory_peak(MEM_PARAMETERS) / (double)(elements * E) },
                    { "weights", "weights of all versions", "bytes",
                      BY_FORMULA(versions * elements * E), memory_peak(MEM_PARAMETERS) },
                    { "gradients", "gradients, 2BW's tied table twice", "bytes",
                      BY_FORMULA((elements_gradients(&z) + table) * G),
                      memory_peak(MEM_GRADIENTS) },
                    { "optimizer", "optimizer state", "bytes", BY_FORMULA(moments * elements),
                      memory_peak(MEM_OPTIMIZER) },
                    { "flight", "in flight", "micro-batches", BY_FORMULA(flight), in_flight },
                    { "activations", "activations, peak", "bytes",
                      BY_FORMULA(kept_stage_bytes(&z) * tokens), memory_peak(MEM_ACTIVATIONS) },
                    { "sent", "messages sent", "bytes", BY_FORMULA(messages * E),
                      pp->ledger[COMM_SEND].bytes },
                    { "table", "gradients of the tied table sent", "bytes",
                      BY_FORMULA(t->steps * table * G), tied ? tied->ledger[COMM_SEND].bytes : 0 },
                    { "sums", "sums over stages", "calls", BY_FORMULA(0),
                      pp->ledger[COMM_ALL_REDUCE].calls },
                    { 0 } });
}

void versions_train(Run *run, const Training *t, const VersionsWay *way, VersionsRecords records) {
    Comm *pp = run->world, *tied = way->two_buffers ? pipeline_tied_group(pp) : NULL;
    size_t m = t->micro_batches, n = t->steps * m, older = age(way, pp->size, pp->rank);
    Schedule list = list_of(way, t, pp->size, pp->rank);
    Model *stage =
        model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, pp->size, pp->rank));
    Optimizer o = t->optimizer;
    if (!way->two_buffers) model_untie(stage);
    model_allocate(stage);
    optimizer_allocate(&o, stage);
    double *loss = host_alloc(n * sizeof *loss);
    TrainingObserver observer = { loss, record, &records };
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = all_batches(t, &tokens);
    comm_ledger_reset(pp);
    memory_reset_peaks();
    PipelineResult r = way->two_buffers
                           ? pipeline_2bw(pp, tied, stage, &o, &list, batch, n, &observer)
                           : pipeline_pipedream(pp, stage, &o, &list, older, batch, n, &observer);
    schedule_free(&list);
    if (records.costs) check_training(run, t, way, tied, r.in_flight);
    ledger_pause();
    comm_all_reduce_doubles(pp, loss, n); // all stages but the last add zeros
    ledger_resume();
    for (size_t k = 0; k < n; k++) records.loss[k / m] += loss[k];
    for (size_t k = 0; k < t->steps; k++) records.loss[k] *= batch[k * m].token_weight;
    free(batch);
    free(loss);
    arena_free(&tokens);
    model_free(stage);
    if (tied) comm_free(tied);
}

Training versions_text(Run *run, size_t steps, size_t sequences, size_t micro_batches) {
    const size_t p = run->world->size;
    Training t = {
        .model = { .layers = p < 4 ? 4 : p, .width = 16, .heads = 2, .context = 16, .vocab = 256 },
        .steps = steps,
        .sequences = sequences,
        .micro_batches = micro_batches,
        .optimizer = sgd(0.1)
    };
    t.model.seed = run->seed;
    config_store(run, &t.model);
    t.data = training_text(run, option_text(run, "data"), NULL, t.model.vocab, t.model.context,
                           sequences);
    return t;
}

double versions_last_loss(Run *run, const Training *t, const VersionsWay *way, size_t last) {
    double *loss = host_alloc(t->steps * sizeof *loss), mean = 0;
    versions_train(run, t, way, (VersionsRecords){ .loss = loss });
    for (size_t k = t->steps - last; k < t->steps; k++) mean += loss[k] / (double)last;
    free(loss);
    return mean;
}

// ----------------------------------------- the recurrence on one device, with no pipeline in it

static size_t stage_of(const ModelConfig *c, size_t p, size_t n) {
    if (n == 0) return 0;
    if (n > c->layers) return p - 1; // head and loss
    size_t i = 0;
    while (shard_range(c->layers, p, i).hi <= n - 1) i++; // layer n is block n - 1
    return i;
}

// Lets the layers of each stage read the weights after max(0, k - age) updates. Row v % past.rows
// of `past` has version v of the weights.
static void read_past(Model *m, Tensor past, size_t k, size_t p, const VersionsWay *way) {
    size_t offset = 0;
    for (size_t n = 0; n < m->n_layers; n++) {
        size_t late = age(way, p, stage_of(&m->config, p, n));
        size_t row = (k < late ? 0 : k - late) % past.rows;
        Tensor old = tensor_row_range(past, row, row + 1);
        for (size_t u = 0; u < m->layers[n].n_units; u++) {
            Unit *unit = m->layers[n].units[u];
            if (unit->tied_to) continue; // set together with the embedding's unit
            unit_attach_weights(unit, tensor_flat_range(old, offset, offset + unit->size));
            offset += unit->size;
        }
    }
}

// Trains the whole model on rank 0, one batch after the other. The ledgers do not count this
// training. The norms of the Trajectory stay 0.
static Trajectory recurrence(Run *run, const Training *t, const VersionsWay *way) {
    Trajectory out = trajectory_new(run, t);
    size_t p = run->world->size;
    if (run->world->rank > 0) return out;
    ledger_pause();
    Model *m = model_describe(&t->model, model_layers(&t->model));
    Optimizer o = t->optimizer;
    Arena a = arena(MEM_REFERENCE);
    if (!way->two_buffers) model_untie(m);
    model_allocate(m);
    optimizer_allocate(&o, m);
    // No layer is more than p updates late, so p + 1 versions are enough.
    Tensor past = tensor_shaped(&a, tensor_shape(p + 1, m->size, m->w.element));
    for (size_t k = 0; k < t->steps; k++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *b = training_batches(t, &tokens, k, 1, 0);
        tensor_copy(tensor_row_range(past, k % past.rows, k % past.rows + 1), m->w);
        read_past(m, past, k, p, way);
        model_zero_gradients(m);
        double loss = 0;
        for (size_t n = 0; n < t->micro_batches; n++) loss += model_forward_backward(m, &b[n]);
        model_fold_tied(m);
        model_attach_weights(m, m->w);
        optimizer_step(&o, m, 1); // updates the newest weights
        trajectory_record(&out, k, m, loss * b->token_weight, 0);
        free(b);
        arena_free(&tokens);
    }
    arena_free(&a);
    model_free(m);
    ledger_resume();
    return out;
}

void versions_compare(Run *run, const Training *t, const char *what, const VersionsWay *way) {
    Trajectory got = trajectory_new(run, t), want = recurrence(run, t, way);
    versions_train(run, t, way,
                   (VersionsRecords){
                       .got = &got, .loss = got.loss, .costs = t->optimizer.kind == ADAMW });
    training_compare_tensors(run, what, &got, &want, 0);
    check_numbers(run, what, "loss", got.loss, want.loss, t->steps, 0);
    trajectory_free(&got);
    trajectory_free(&want);
}
