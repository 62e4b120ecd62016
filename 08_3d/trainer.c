// trainer.c combines the techniques of chapters 01 to 07 in one step. train_step_plain() is this
// step without options. trainer_gradients() and trainer_update() are the same step with every
// option.
#include "08_3d/trainer.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "03_tensor_parallel/context_parallel.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "06_zero/zero.h"
#include "08_3d/kept.h"
#include "08_3d/stage_buckets.h"
#include "08_3d/zero_step.h"

// ---------------------------------------------------------------- the idea: dp x tp x pp, 1F1B

// Returns the m micro-batches of a replica's sequences, numbered from 0. weight: the weight of each
// token in the loss.
static Batch *micro_batches(const Data *d, Arena *tokens, uint64_t step, Range sequences, size_t m,
                            double weight) {
    Batch *batch = host_alloc(m * sizeof *batch);
    for (size_t k = 0; k < m; k++) {
        Range r = shard_range(range_size(sequences), m, k);
        batch[k] = data_micro_batch(d, tokens, step, sequences.lo + r.lo, range_size(r), weight);
        batch[k].number = k;
    }
    return batch;
}

StepResult train_step_plain(const Mesh *mesh, Model *stage, Optimizer *o, const TrainerConfig *c,
                            const Data *d, uint64_t step) {
    size_t m = trainer_micro_batches(c);
    Range sequences =
        shard_range(c->batch, mesh->n.dp, mesh->at.dp);           // the sequences of this replica
    double weight = 1 / (double)data_count(d, step, 0, c->batch); // of a token
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = micro_batches(d, &tokens, step, sequences, m, weight);
    Schedule order = schedule_1f1b(mesh->n.pp, m, mesh->at.pp);

    model_zero_gradients(stage);
    // The stages send activations and the gradients of activations over pp. Inside a stage the
    // layers all-reduce over tp.
    PipelineResult p = pipeline_run(mesh->pp, stage, &order, batch, m);
    // The first and the last stage each have a part of wte's gradient.
    pipeline_tied_sum(stage, mesh->tied);
    // Each replica has the gradient of its own sequences only.
    data_parallel_all_reduce(mesh->dp, stage);
    // All tp ranks of a last stage have the same loss, so one of these ranks counts the loss.
    StepResult r = { .loss = mesh->at.tp == 0 ? p.loss : 0 };
    comm_all_reduce_doubles(mesh->world, &r.loss, 1);
    r.loss *= weight;
    // Each rank of a replica has a part of the tensors, so the norm is a sum over these ranks.
    r.norm = model_grad_norm(stage, mesh->model);
    optimizer_step(o, stage, clip_factor(r.norm, c->clip));

    schedule_free(&order);
    free(batch);
    arena_free(&tokens);
    return r;
}

// ---------------------------------------------------------------- composition

// Returns buckets that are at least as large as a block. So the gradient of a block is reduced
// while the backward of the model's earlier layers runs.
static Buckets *overlapped(const Trainer *t, Model *m) {
    const Layer *block = &m->layers[m->layers[0].number == 0];
    size_t capacity = block->units[0]->size * sizeof(real);
    return buckets_new_pipeline(m, t->mesh.replicas, capacity, t->micro_batches);
}

static void cut_tensors(const Trainer *t, Model *m) {
    switch (t->config.tensor) {
    case TENSOR_1D:
        if (t->config.sequence) sequence_parallel(m, t->mesh.tp, KEEP_SHARD); // 03.07
        else tensor_parallel(m, t->mesh.tp);                                  // 03.06
        break;
    case TENSOR_2D: summa(m, &t->grid); break;      // 03.09
    case TENSOR_25D: tesseract(m, &t->grid); break; // 03.10
    case TENSOR_3D: cube_parallel(m, &t->cube);     // 03.11
    }
}
// Returns whether this rank counts its loss. Several ranks of a tp group have the loss of the same
// tokens, and only one of these ranks may count the loss. On a cube the loss of the other ranks is
// 0 already.
static bool counts_loss(const Trainer *t) {
    if (t->config.tensor == TENSOR_3D) return true;
    return tensor_is_grid(&t->config) ? t->grid.col == 0 : t->mesh.at.tp == 0;
}

// Applies the stage's plan of recomputation to each block (07.04).
static void recompute_within(const Trainer *t, Model *m) {
    Recompute *choice = host_alloc(m->n_layers * sizeof *choice);
    if (!kept_choices(&t->config, t->mesh.at.pp, choice))
        fault("no recomputation fits --activation-budget on stage %zu any more", t->mesh.at.pp);
    recompute_each(m, choice);
    free(choice);
}

// Returns this stage's layers. Each technique wraps the layers that earlier techniques have made:
//
//     timed( ZeRO( recompute( TP block ) ) )
//     buckets( recompute( TP block ) )               in place of ZeRO
//
static Model *stage_new(Trainer *t) {
    const TrainerConfig *c = &t->config;
    const Mesh *mesh = &t->mesh;
    size_t v = trainer_chunks(c), p = c->mesh.pp, i = mesh->at.pp;
    const size_t *blocks = c->stage_blocks;
    Model *m = v > 1 ? interleaved_describe(&c->model, blocks, p, v, i) // 05.03
                     : model_describe(&c->model, pipeline_stage_layers(&c->model, blocks, p, i));
    // The cut comes first. The techniques below walk layers, and need not know which part of a
    // tensor a layer holds.
    cut_tensors(t, m);
    for (size_t k = 0; c->blockwise && k < m->n_layers; k++)
        m->layers[k].attention = &attention_blockwise;
    // The ring comes after the cut, because the ring passes the keys and values of this rank's
    // heads.
    if (mesh->cp) t->positions = context_parallel(m, mesh->cp, &ring_attention_zigzag); // 03.08
    // Recomputation is inside ZeRO, because a block's second forward runs in its backward, where
    // ZeRO has gathered the block's weights.
    if (c->activation_budget) recompute_within(t, m); // 07.04
    else recompute(m, c->recompute);                  // 07.02, 07.03
    // ZeRO allocates the tensors, so ZeRO comes after all techniques that change tensors.
    if (c->reduction == REDUCE_PREFETCH) prefetch_allocate(m, mesh->replicas, true); // 06.05
    else zero_allocate(m, mesh->replicas, trainer_zero(c)); // chapter 06; for stage 0 chapter 01
    // Buckets are outside of recomputation, because a bucket starts when a layer's whole backward
    // has ended.
    if (c->reduction == REDUCE_IN_BUCKETS) t->buckets = overlapped(t, m); // 01.04
    // Timing is outside of all other wrappers, because a layer's time includes the work of its
    // techniques.
    if (c->rebalanced) partition_time_layers(m, t->cost); // 04.04
    // The optimizer keeps moments only of the elements that this rank owns.
    optimizer_allocate(&t->optimizer, m);
    return m;
}

Trainer *trainer_new(Comm *world, const TrainerConfig *c, Optimizer optimizer) {
    Trainer *t = host_alloc(sizeof *t);
    t->config = *c;
    t->mesh = mesh_new(world, c->mesh);
    t->optimizer = optimizer;
    t->loss_scale = c->loss_scale;
    if (t->loss_scale.factor == 0) t->loss_scale.factor = 1;
    const Mesh *mesh = &t->mesh;
    if (tensor_is_grid(c)) {
        TesseractSides n = tensor_sides(c);
        t->grid = comm_grid(mesh->tp, n.q, n.q, n.depth);
    }
    if (c->tensor == TENSOR_3D) {
        t->cube = cube_new(mesh->tp);
        t->cube.gather_again = true; // keeps no gathered input or weight until backward
    }
    if (c->rebalanced) {
        t->cost = host_alloc(partition_items(&c->model) * sizeof *t->cost);
        size_t parts = c->mesh.pp * trainer_chunks(c);
        t->blocks = host_alloc(parts * sizeof *t->blocks);
        for (size_t i = 0; i < parts; i++) {
            size_t even = range_size(shard_range(c->model.layers, parts, i));
            t->blocks[i] = c->stage_blocks ? c->stage_blocks[i] : even;
        }
        t->config.stage_blocks = t->blocks;
    }
    t->micro_batches = trainer_micro_batches(c);
    t->model = stage_new(t);
    t->sequences = shard_range(c->batch, c->mesh.dp, mesh->at.dp);
    t->schedule = trainer_schedule(c, t->micro_batches, mesh->at.pp);
    if (c->reduction == REDUCE_COMPRESSED) // 01.06
        t->compression = compression_new(mesh->dp, &c->compression, t->model, c->model.seed);
    return t;
}

void trainer_free(Trainer *t) {
    if (t->config.reduction == REDUCE_PREFETCH) prefetch_free(t->model);
    if (t->buckets) buckets_free(t->buckets);
    if (t->compression) compression_free(t->compression);
    model_free(t->model);
    if (tensor_is_grid(&t->config)) comm_grid_free(&t->grid);
    if (t->config.tensor == TENSOR_3D) cube_free(&t->cube);
    mesh_free(&t->mesh);
    schedule_free(&t->schedule);
    free(t->blocks);
    free(t->cost);
    free(t);
}

// ---------------------------------------------------------------- one step

// Sums the gradients with compression. The residual is added to a later step's gradient, which has
// another loss scale if a resumed run has one. So compression gets the gradients without the
// factor. The factor is a power of two, so no bit of a fraction changes.
static void compress(Trainer *t) {
    const Tensor g = t->model->g;
    const double factor = t->loss_scale.factor;
    if (factor != 1) op_scale(g, g, (real)(1 / factor));
    compression_all_reduce(t->compression, g);
    if (factor != 1) op_scale(g, g, (real)factor);
}

// Completes the gradients of this replica, then sums them over the replicas.
static void reduce(Trainer *t) {
    // Adds up gradients that are partial sums. For example, under sequence parallelism each rank
    // has the gradient of a norm from only some rows.
    model_partial_sums(t->model);
    // The tied sum comes before any reduction over the replicas, because the reduction needs full
    // local gradients.
    pipeline_tied_sum(t->model, t->mesh.tied);
    t->reduction[0] = clock_now();
    // Compression comes after both sums, because copies (norms on slices, wte on two stages) stay
    // equal only if they are compressed alike.
    if (t->compression) compress(t);
    else zero_reduce(t->model, trainer_zero(&t->config)); // stage 0: an all-reduce
    t->reduction[1] = clock_now();
}
// Waits for the buckets, which the last backward has started (--overlap). A single stage has both
// uses of wte, and has added their gradients in that backward. If the first and the last stage have
// a copy of wte each, these stages first sum their gradients of wte, then the replicas do.
static void finish_buckets(Trainer *t) {
    if (t->mesh.tied) pipeline_tied_sum(t->model, t->mesh.tied);
    buckets_start_tied(t->buckets);
    buckets_wait(t->buckets);
    buckets_wait_tied(t->buckets);
}

StepResult trainer_gradients(Trainer *t, const Data *d, uint64_t step) {
    const Mesh *mesh = &t->mesh;
    size_t m = t->micro_batches;
    double weight = 1 / (double)data_count(d, step, 0, t->config.batch); // of a token
    Arena tokens = arena(MEM_WORKSPACE);
    Data local = *d;
    local.positions = t->positions;
    // The weight of a token multiplies the token's loss, so every gradient contains the factor of
    // the loss scale.
    const double scaled = weight * t->loss_scale.factor;
    Batch *batch = micro_batches(&local, &tokens, step, t->sequences, m, scaled);

    if (t->cost) memset(t->cost, 0, partition_items(&t->config.model) * sizeof *t->cost);
    zero_begin(t->model, trainer_zero(&t->config));
    // The techniques of chapters 03, 06 and 07 run inside the layers.
    PipelineResult p = zero_bubble_run(mesh->pp, t->model, &t->schedule, batch, m);
    t->local_loss = p.loss;
    if (t->config.reduction == REDUCE_PREFETCH) prefetch_finish(t->model);
    if (t->buckets) finish_buckets(t);
    else reduce(t);

    // The last stage of every replica has the loss of its sequences, or of its positions of these
    // sequences.
    StepResult r = { .loss = counts_loss(t) ? p.loss : 0 };
    comm_all_reduce_doubles(mesh->world, &r.loss, 1);
    r.loss *= weight;
    // Under ZeRO each rank of the world owns another part of the gradient. Otherwise every replica
    // has the whole gradient, so the sum is over the ranks of one replica.
    r.norm = model_grad_norm(t->model, trainer_zero(&t->config) ? mesh->world : mesh->model);
    r.norm /= t->loss_scale.factor;
    free(batch);
    arena_free(&tokens);
    return r;
}

bool trainer_overflowed(const Trainer *t, StepResult r) {
    const LossScale *s = &t->loss_scale;
    return s->patience > 0 && s->factor > 1 && isfinite(r.loss) && !isfinite(r.norm);
}

void trainer_update(Trainer *t, StepResult r) {
    const double clip = clip_factor(r.norm, t->config.clip);
    optimizer_step(&t->optimizer, t->model, clip / t->loss_scale.factor);
    loss_scale_next(&t->loss_scale, true);
    zero_end(t->model, trainer_zero(&t->config));
}

// Under ZeRO-1 and ZeRO-2 zero_end() gathers the unchanged weights.
void trainer_skip(Trainer *t, StepResult r) {
    if (trainer_overflowed(t, r)) loss_scale_next(&t->loss_scale, false);
    zero_end(t->model, trainer_zero(&t->config));
}

bool trainer_rebalance(Trainer *t) {
    const Mesh *mesh = &t->mesh;
    size_t n = partition_items(&t->config.model), v = trainer_chunks(&t->config);
    size_t p = v * t->config.mesh.pp;
    size_t *before = host_alloc(p * sizeof *before);
    memcpy(before, t->blocks, p * sizeof *before);
    // All ranks of a stage wait for the slowest rank, so its times count.
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor slowest = tensor_new(&scratch, 1, n);
    real *ms = host_alloc(n * sizeof *ms);
    for (size_t i = 0; i < n; i++) ms[i] = (real)(t->cost[i] / 1e9);
    tensor_upload(slowest, ms);
    comm_all_reduce_max(mesh->replicas, slowest);
    comm_all_reduce_max(mesh->tp, slowest);
    tensor_download(ms, slowest);
    for (size_t i = 0; i < n; i++) t->cost[i] = (double)ms[i];
    partition_solve(mesh->pp, &t->config.model, v, t->cost, t->blocks);
    // If --activation-budget is too small for the new blocks of some stage, all blocks stay.
    if (t->config.activation_budget && kept_stage_without_plan(&t->config) < t->config.mesh.pp)
        memcpy(t->blocks, before, p * sizeof *before);
    bool moves = memcmp(before, t->blocks, p * sizeof *before);
    if (moves) {
        Model *next = stage_new(t);
        pipeline_migrate(mesh->pp, &t->optimizer, t->model, before, next, t->blocks);
        model_free(t->model);
        t->model = next;
    }
    arena_free(&scratch);
    free(ms);
    free(before);
    return moves;
}

// ---------------------------------------------------------------- evaluation

enum { EVAL_ROWS = 1024 }; // tokens of a micro-batch, but at least --micro-batch sequences

double trainer_evaluate(Trainer *t, const Data *d, size_t windows) {
    const Mesh *mesh = &t->mesh;
    size_t most = EVAL_ROWS / d->context;
    if (most < t->config.micro_batch) most = t->config.micro_batch;
    size_t m = ceil_div(ceil_div(windows, t->config.mesh.dp), most); // on every replica
    Range replica = shard_range(windows, t->config.mesh.dp, mesh->at.dp);
    Data local = *d;
    local.positions = t->positions;
    double loss = 0;
    zero_evaluation_begin(t->model, trainer_zero(&t->config));
    for (size_t k = 0; k < m; k++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Range r = shard_range(range_size(replica), m, k);
        Batch b = data_eval_batch(&local, &tokens, replica.lo + r.lo, range_size(r), windows);
        loss += interleaved_loss(mesh->pp, t->model, &b);
        arena_free(&tokens);
    }
    zero_evaluation_end(t->model, trainer_zero(&t->config));
    if (!counts_loss(t)) loss = 0;
    comm_all_reduce_doubles(mesh->world, &loss, 1);
    return loss / (double)(windows * d->context);
}
