// gpt.c: trains a GPT that is cut in one of the six ways of compare.h, and measures what a rank
// holds, sends and receives in a step.
#include "03_tensor_parallel/experiments/experiments.h"

RankShare line_share(const CutSizes *z, size_t B) {
    const size_t reals = z->blocks * activations_block_reals(z, B) + activations_head_reals(z, B);
    RankShare share = { .parameters = elements_stage(z),
                        .gradients = elements_gradients(z),
                        .kept = activations_stage(z, B),
                        .kept_reals = reals,
                        .time = 3 * work_stage(z, B).time };
    if (z->sequence) {
        const SequenceTraffic rows = traffic_sequence_parallel(z, B, false);
        const Traffic sums = traffic_partial_sums(z);
        share.received = rows.bytes + sums.bytes;
        share.time += rows.time + sums.time;
    } else {
        const Traffic whole = traffic_tensor_parallel(z, z->t, B, false);
        share.received = whole.bytes;
        share.time += whole.time;
    }
    return share;
}

// ---------------------------------------------------------------- what is trained

ModelConfig gpt_options(Run *run, size_t context, size_t vocab) {
    const ModelConfig c = { .layers = option_size(run, "layers"),
                            .width = option_size(run, "width"),
                            .heads = option_size(run, "heads"),
                            .context = context,
                            .vocab = vocab,
                            .dropout = option_real(run, "dropout"),
                            .seed = run->seed };
    config_require(&c);
    return c;
}
Training gpt_training(ModelConfig c, size_t sequences) {
    return (Training){ .model = c,
                       .data = data_synthetic(c.vocab, c.context, c.seed),
                       .steps = GPT_STEPS,
                       .sequences = sequences,
                       .micro_batches = 1,
                       .clip = 0.5, // small enough that every step is clipped
                       .watched = MEM_ACTIVATIONS };
}

void gpt_say_uneven(Run *run, const ModelConfig *c, size_t sequences, size_t batch_parts,
                    size_t q) {
    const struct {
        size_t count, parts;
        const char *name;
    } cut[] = { { sequences, batch_parts, "sequences" },
                { c->width, q, "columns" },
                { c->heads, q, "heads" },
                { c->vocab, q, "entries" } };
    const char *list = "";
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        if (cut[i].count % cut[i].parts == 0) continue;
        list = page_text(run, "%s%s %zu %s in %zu", list, *list ? "," : "", cut[i].count,
                         cut[i].name, cut[i].parts);
    }
    if (*list) say(run, "  Uneven cuts, so ranks differ:%s.", list);
}

// ---------------------------------------------------------------- groups and their traffic

// Sets group to the communicators of this way. An entry is NULL where the way has no such group.
static void groups_of(const CutGpt *x, Comm *group[GPT_GROUPS]) {
    const CommGrid *g = x->way == WAY_3D ? &x->cube.grid : &x->grid;
    Comm *all[GPT_GROUPS] = { x->world,    g->in_row,        g->in_col,
                              g->in_depth, x->cube.same_col, x->cube.same_row };
    for (size_t i = 0; i < GPT_GROUPS; i++) group[i] = all[i];
}
// Reads this rank's traffic since the last call, and resets the ledgers.
static void count_traffic(const CutGpt *x, GroupTraffic traffic[GPT_GROUPS]) {
    Comm *group[GPT_GROUPS];
    groups_of(x, group);
    for (size_t i = 0; i < GPT_GROUPS; i++) {
        if (!group[i]) continue;
        for (size_t kind = 0; kind < COMM_KINDS; kind++)
            traffic[i].calls[kind] = (double)group[i]->ledger[kind].calls;
        traffic[i].sent = (double)comm_bytes_sent(group[i]);
        traffic[i].received = (double)comm_bytes_received(group[i]);
        comm_ledger_reset(group[i]);
    }
}

// ---------------------------------------------------------------- a step, and the training

// Returns the loss of the whole batch. In 1D and SP all ranks have the same loss. On a grid the
// ranks of a row have the loss of the row's sequences. In 3D the loss layer sets copies to 0. On
// the ring each rank has tokens of its own.
static double loss_of_all(const CutGpt *x, double loss) {
    const bool on_every_rank = x->way == WAY_1D || x->way == WAY_SP;
    if (on_every_rank && !x->begin_step) return loss;
    if (on_every_rank ? x->world->rank > 0 : x->grid.in_row && x->grid.col > 0) loss = 0;
    comm_all_reduce_doubles(x->world, &loss, 1);
    return loss;
}

static StepResult step(void *cut_gpt, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    CutGpt *x = cut_gpt;
    GptMeasured *r = &x->measured;
    double loss = 0;
    if (x->begin_step) x->begin_step(x);
    count_traffic(x, r->layers); // resets the ledgers
    const Picoseconds begin = clock_now();
    model_zero_gradients(m);
    for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(m, &b[k]);
    loss *= b->token_weight; // 1 / counted tokens of all ranks
    count_traffic(x, r->layers);
    model_partial_sums(m); // once per step, after all micro-batches
    model_fold_tied(m);    // adds the gradients of both uses of wte; sends nothing
    if (x->way == WAY_RING) comm_all_reduce(x->world, m->g); // each rank had its own tokens
    count_traffic(x, r->sums);
    r->layers_time = clock_now() - begin;
    loss = loss_of_all(x, loss);
    if (r->steps < GPT_STEPS) r->step_time[r->steps] = clock_now() - begin;
    r->steps++;
    // On the ring every rank has the whole gradient. In the other ways each element of the gradient
    // counts on one rank.
    const double norm = model_grad_norm(m, x->way == WAY_RING ? NULL : x->world);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss, norm };
}

static void cut(CutGpt *x, Model *m, Data *d) {
    switch (x->way) {
    case WAY_1D: tensor_parallel(m, x->world); break;
    case WAY_SP: sequence_parallel(m, x->world, x->input); break;
    case WAY_2D: summa(m, &x->grid); break;
    case WAY_25D: tesseract(m, &x->grid); break;
    case WAY_3D: cube_parallel(m, &x->cube); break;
    case WAY_RING: d->positions = context_parallel(m, x->world, x->attention); break;
    case TENSOR_WAYS: break;
    }
}

// The unsplit training makes its model with the same calls, but without cut(). An element's initial
// value depends on its place in the whole tensor, so both trainings begin with the same weights.
void gpt_train(void *cut_gpt, const Training *unsplit, Trajectory *out) {
    CutGpt *x = cut_gpt;
    GptMeasured *r = &x->measured;
    Training t = *unsplit;
    Model *m = model_describe(&t.model, model_layers(&t.model));
    cut(x, m, &t.data);
    model_allocate(m);
    *r = (GptMeasured){ 0 };
    // Every rank gets all sequences of the batch. With WAY_RING a rank gets only the tokens of its
    // own positions.
    training_run(out, m, &t, 1, 0, step, x);
    r->parameters = memory_now(MEM_PARAMETERS);
    r->gradients = memory_now(MEM_GRADIENTS);
    r->optimizer = memory_now(MEM_OPTIMIZER);
    r->activations = memory_peak(MEM_ACTIVATIONS);
    model_free(m);
}

// ---------------------------------------------------------------- costs

double gpt_received(const GptMeasured *r) {
    double bytes = 0;
    for (size_t i = 0; i < GPT_GROUPS; i++) bytes += r->layers[i].received + r->sums[i].received;
    return bytes;
}
double share_kept_bytes(const ModelConfig *c, const RankShare *s) {
    return (double)((s->kept - s->kept_reals) * weight_bytes(c) + s->kept_reals * sizeof(real));
}
void gpt_memory_costs(Run *run, const char *ids, const char *names, const ModelConfig *c,
                      const RankShare *s, const GptMeasured *r) {
    check_costs(run, ids, names,
                (CostRow[]){ { "parameters", "parameters", "bytes",
                               BY_FORMULA(s->parameters * weight_bytes(c)), r->parameters },
                             { "gradients", "gradients (wte twice)", "bytes",
                               BY_FORMULA(s->gradients * gradient_bytes(c)), r->gradients },
                             { "adamw",
                               c->storage == REALS ? "AdamW's m and v" : "m, v and masters",
                               "bytes", BY_FORMULA(s->parameters * adamw_bytes(c)), r->optimizer },
                             { "kept", "activations, peak", "bytes",
                               BY_FORMULA(share_kept_bytes(c, s)), r->activations },
                             { 0 } });
}
void gpt_costs_1d(Run *run, const ModelConfig *c, size_t sequences, const GptMeasured *r) {
    const CutSizes z = cut_sizes(c, run->world->size, run->world->rank);
    const RankShare share = line_share(&z, sequences);
    const Traffic layers = traffic_tensor_parallel(&z, z.t, sequences, false);
    const GroupTraffic *tp = &r->layers[GPT_WORLD];
    gpt_memory_costs(run, "%s", "%s", c, &share, r);
    check_costs(run, "%s", "%s in the layers, a step",
                (CostRow[]){ { "calls", "all-reduces", "calls", BY_FORMULA(layers.calls),
                               tp->calls[COMM_ALL_REDUCE] },
                             { "sent", "sent", "bytes", BY_FORMULA(layers.bytes), tp->sent },
                             { 0 } });
}
GptCells gpt_cells_1d(Run *run, const ModelConfig *c, size_t n, size_t sequences) {
    const CutSizes z = cut_sizes(c, n, 0);
    const RankShare s = line_share(&z, sequences);
    return (GptCells){
        .parameters = value_cell(run, (double)(s.parameters * weight_bytes(c)), "bytes"),
        .kept = value_cell(run, share_kept_bytes(c, &s), "bytes"),
        .received = value_cell(run, s.received, "bytes"),
        .time = value_cell(run, s.time, "ps"),
    };
}
