// trainer.c: see trainer.h.
#include "08_3d/trainer.h"
#include <stdlib.h>
#include <string.h>
#include "03_tensor_parallel/context_parallel.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "08_3d/zero_step.h"
#include "08_3d/predict.h"

// ---------------------------------------------------------------- what is refused, with the reason

enum { MOST_SEQUENCES = 1 << 20 };                 // of a step: beyond that it is a typing error

TesseractSides tensor_sides(const TrainerConfig *c) {
    if (c->tensor == TENSOR_2D) return (TesseractSides){ summa_side(c->mesh.tp), 1 };
    return tesseract_sides(c->mesh.tp, c->depth);
}

static void require_tensor(const TrainerConfig *c) {
    const ModelConfig *m = &c->model;
    REQUIRE(c->tensor != TENSOR_1D || c->mesh.tp <= m->heads,
            "--tp %zu needs as many heads; the model has %zu: choose --tp %zu, or more --heads",
            c->mesh.tp, m->heads, m->heads);
    REQUIRE(c->depth == 0 || c->tensor == TENSOR_25D, "--depth %zu: only --tensor 2.5d has layers; leave it out",
            c->depth);
    if (c->tensor == TENSOR_1D) return;
    REQUIRE(mesh_cp(c->mesh) == 1, "--cp cuts the positions of a sequence, and a grid's rows are whole sequences: "
            "leave --cp out, or choose --tensor 1d");
    REQUIRE(!c->sequence, "--sequence-parallel cuts the rows that --tensor 1d leaves whole, and on a grid all are cut: "
            "leave one of the two out");
    size_t q = c->tensor == TENSOR_3D ? cube_side(c->mesh.tp) : tensor_sides(c).q;
    REQUIRE(q <= m->heads, "--tp %zu has %zu columns of ranks, which need as many heads; the model has %zu: choose "
            "fewer ranks, or more --heads", c->mesh.tp, q, m->heads);
}

// What is sent is no longer the sum over replicas. Who takes a part of that, or takes it early, is refused.
static void require_compression(const TrainerConfig *c) {
    if (!c->compressed) return;
    REQUIRE(c->compression.method != TOP_K || c->compression.one_of > 0, "--keep-one-of must be at least 1");
    REQUIRE(c->compression.method != POWER_SGD || c->compression.rank > 0, "--power-rank must be at least 1");
    REQUIRE(c->mesh.dp > 1, "--compress saves bytes between replicas, and there is one: choose --dp 2 or more, or "
            "leave --compress out");
    REQUIRE(c->zero == 0, "--compress leaves the whole sum on every replica, and --zero %zu reduces it in parts: "
            "choose --zero 0, or leave --compress out", c->zero);
    REQUIRE(!c->overlap, "--compress needs a unit's whole gradient and what was not sent before, and --overlap sends "
            "buckets as they are: leave one of them out");
    REQUIRE(!c->rebalanced, "--rebalance moves layers, and what --compress has not sent of them stays: leave one of "
            "them out");
    REQUIRE(mesh_cp(c->mesh) == 1, "--compress takes a replica's whole gradient, and with --cp a rank has that of some "
            "positions: leave one of them out");
    REQUIRE(c->tensor == TENSOR_1D, "--compress takes matrices as --tensor 1d cuts them: leave it out, or choose that");
    REQUIRE(c->compression.method != TOP_K || c->mesh.tp == 1, "--compress top-k chooses among all elements of a layer"
            ", and the slices of --tp %zu would choose other elements of the norms that each of them has: choose --tp "
            "1, or --compress power-sgd", c->mesh.tp);
}

// The first stage that cannot stay within the budget; pp: all can.
static size_t stage_without_plan(const TrainerConfig *c) {
    Recompute *choice = host_alloc(c->model.layers * sizeof *choice);
    size_t i = 0;
    while (i < c->mesh.pp && predict_choices(c, i, choice)) i++;
    free(choice);
    return i;
}
// After everything else: a plan needs sizes that can work.
static void require_budget(const TrainerConfig *c) {
    if (!c->activation_budget) return;
    REQUIRE(c->recompute == RECOMPUTE_NONE, "--activation-budget chooses for each block: leave --recompute out");
    size_t i = stage_without_plan(c);
    REQUIRE(i == c->mesh.pp, "--activation-budget %zu is not enough for stage %zu even if every block is computed "
            "again: it needs %zu bytes", c->activation_budget, i, predict_least(c, i));
}

void trainer_require(const TrainerConfig *c) {
    const ModelConfig *m = &c->model;
    config_require(m);
    REQUIRE(c->micro_batch > 0, "--micro-batch must be at least 1");
    REQUIRE(c->batch <= MOST_SEQUENCES, "--batch %zu: expected at most %d sequences", c->batch, MOST_SEQUENCES);
    REQUIRE(c->batch >= c->mesh.dp,
            "--batch %zu leaves some of the %zu replicas without a sequence: choose at least --batch %zu",
            c->batch, c->mesh.dp, c->mesh.dp);
    require_tensor(c);
    REQUIRE(c->mesh.pp <= m->layers, "--pp %zu needs as many blocks; the model has %zu: choose --pp %zu, or more "
            "--layers", c->mesh.pp, m->layers, m->layers);
    REQUIRE(mesh_cp(c->mesh) <= m->context, "--cp %zu needs as many positions; a sequence has %zu: choose --cp %zu or "
            "less, or more --context", mesh_cp(c->mesh), m->context, m->context);
    REQUIRE(!c->prefetch || c->zero == 3, "--prefetch gathers weights ahead, and --zero %zu has them whole: choose "
            "--zero 3, or leave --prefetch out", c->zero);
    REQUIRE(!c->overlap || c->zero == 0, "--overlap all-reduces whole gradients, and --zero %zu reduces them in parts: "
            "choose --zero 0, or --zero 3 with --prefetch, or leave --overlap out", c->zero);
    REQUIRE(!c->prefetch || c->schedule != schedule_zb_h1, "--prefetch gathers for whole backwards, and --schedule "
            "zero-bubble cuts them in two: leave --prefetch out, or choose --schedule 1f1b");
    REQUIRE(!c->overlap || c->schedule != schedule_zb_h1, "--overlap reduces what a whole backward has completed, and "
            "--schedule zero-bubble cuts them in two: leave --overlap out, or choose --schedule 1f1b");
    REQUIRE(!c->rebalanced || !(c->prefetch || c->overlap), "--rebalance moves layers, and %s lists those of a stage "
            "when the training begins: leave one of them out", c->prefetch ? "--prefetch" : "--overlap");
    REQUIRE(c->schedule != schedule_zb_h1 || c->tensor == TENSOR_1D, "--schedule zero-bubble puts the gradients of "
            "weights off, and the products of a grid communicate for them: choose --tensor 1d, or --schedule 1f1b");
    require_compression(c);
    size_t blocks = 0, v = trainer_chunks(c), m_each = trainer_micro_batches(c);
    REQUIRE(v * c->mesh.pp <= m->layers, "--chunks %zu on each of %zu stages needs %zu blocks; the model has %zu: "
            "choose --chunks %zu, or more --layers", v, c->mesh.pp, v * c->mesh.pp, m->layers, m->layers / c->mesh.pp);
    REQUIRE(v == 1 || m_each % c->mesh.pp == 0, "--schedule interleaved takes micro-batches in groups of --pp %zu, "
            "each through all chunks, and a replica has %zu: choose --batch and --micro-batch for a multiple of %zu, "
            "or --schedule 1f1b", c->mesh.pp, m_each, c->mesh.pp);
    for (size_t i = 0; c->stage_blocks && i < v * c->mesh.pp; i++) blocks += c->stage_blocks[i];
    REQUIRE(!c->stage_blocks || blocks == m->layers, "--stage-layers add up to %zu, but the model has --layers %zu",
            blocks, m->layers);
    require_budget(c);
}

// ---------------------------------------------------------------- the pipeline's list

size_t trainer_chunks(const TrainerConfig *c) { return c->chunks > 1 ? c->chunks : 1; }
// The batch over replicas, then in micro-batches. Every replica runs the same number of them, because ZeRO reduces in
// each; where sequences do not divide, some are smaller.
size_t trainer_micro_batches(const TrainerConfig *c) {
    return ceil_div(ceil_div(c->batch, c->mesh.dp), c->micro_batch);
}
Schedule trainer_schedule(const TrainerConfig *c, size_t m, size_t stage) {
    if (trainer_chunks(c) == 1) return c->schedule(c->mesh.pp, m, stage);                          // chapters 04, 05
    return schedule_interleaved(c->mesh.pp, m, c->chunks, stage);                                  // 05.03
}

// ---------------------------------------------------------------- composition

// A bucket as large as a block: while one block's gradient is reduced, the backward of the block below runs.
static Buckets *overlapped(Trainer *t) {
    const Model *m = t->model;
    const Layer *block = &m->layers[m->layers[0].number == 0];
    size_t capacity = block->units[0]->size * sizeof(real);
    return buckets_new_pipeline(t->model, t->mesh.replicas, capacity, t->micro_batches);
}

static void cut_tensors(const Trainer *t, Model *m) {
    switch (t->config.tensor) {
    case TENSOR_1D:
        if (t->config.sequence) sequence_parallel(m, t->mesh.tp, KEEP_SHARD);                   // 03.07
        else tensor_parallel(m, t->mesh.tp);
        break;
    case TENSOR_2D: summa(m, &t->grid); break;
    case TENSOR_25D: tesseract(m, &t->grid); break;
    case TENSOR_3D: cube_parallel(m, &t->cube);
    }
}
// Ranks of a tp group that have the loss of the same tokens: one of them counts it. On a cube the others have 0.
static bool counts_loss(const Trainer *t) {
    if (t->config.tensor == TENSOR_3D) return true;
    return tensor_is_grid(&t->config) ? t->grid.col == 0 : t->mesh.at.tp == 0;
}

// 07.04: each block keeps what the stage's plan says.
static void recompute_within(const Trainer *t, Model *m) {
    Recompute *choice = host_alloc(m->n_layers * sizeof *choice);
    if (!predict_choices(&t->config, t->mesh.at.pp, choice)) fault("the plan of stage %zu is gone", t->mesh.at.pp);
    recompute_each(m, choice);
    free(choice);
}

// My stage: a list of layers; each technique changes it.
static Model *stage_new(Trainer *t) {
    const TrainerConfig *c = &t->config;
    const Mesh *mesh = &t->mesh;
    Model *m = interleaved_describe(&c->model, c->stage_blocks, c->mesh.pp, trainer_chunks(c), mesh->at.pp);   // 04, 05
    cut_tensors(t, m);                                                                             // chapter 03
    for (size_t i = 0; c->blockwise && i < m->n_layers; i++)
        m->layers[i].attention = &attention_blockwise;                                             // common/model
    if (mesh->cp) t->positions = context_parallel(m, mesh->cp, &ring_attention_zigzag);            // 03.08
    if (c->activation_budget) recompute_within(t, m);
    else recompute(m, c->recompute);                                                               // chapter 07
    if (c->prefetch) prefetch_allocate(m, mesh->replicas, true);                                   // 06.05
    else zero_allocate(m, mesh->replicas, c->zero);            // chapter 06; stage 0: chapter 01
    if (c->rebalanced) partition_time_layers(m, t->cost);                                          // 04.04
    optimizer_allocate(&t->optimizer, m);
    return m;
}

Trainer *trainer_new(Comm *world, const TrainerConfig *c, Optimizer optimizer) {
    Trainer *t = host_alloc(sizeof *t);
    t->config = *c;
    t->mesh = mesh_new(world, c->mesh);
    t->optimizer = optimizer;
    const Mesh *mesh = &t->mesh;
    if (tensor_is_grid(c)) {
        TesseractSides n = tensor_sides(c);
        t->grid = comm_grid(mesh->tp, n.q, n.q, n.depth);
    }
    if (c->tensor == TENSOR_3D) {
        t->cube = cube_new(mesh->tp);
        t->cube.gather_again = true;                           // X and W are not kept between forward and backward
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
    t->model = stage_new(t);
    t->sequences = shard_range(c->batch, c->mesh.dp, mesh->at.dp);
    t->micro_batches = trainer_micro_batches(c);
    t->schedule = trainer_schedule(c, t->micro_batches, mesh->at.pp);
    if (c->overlap) t->buckets = overlapped(t);                                                    // 01.04
    if (c->compressed) t->compression = compression_new(mesh->dp, &c->compression, t->model, c->model.seed);   // 01.06
    return t;
}

void trainer_free(Trainer *t) {
    if (t->config.prefetch) prefetch_free(t->model);
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

// Gradients are complete on this rank; afterwards they are summed over dp.
static void reduce(Trainer *t) {
    model_partial_sums(t->model);                              // where ranks have seen some of the rows only
    pipeline_tied_sum(t->model, t->mesh.tied);                 // on full local gradients: before any reduction over dp
    t->reduction[0] = clock_now();
    // On gradients that are complete: copies (norms on slices, wte on two stages) are compressed alike, and stay alike.
    if (t->compression) compression_all_reduce(t->compression, t->model->g);
    else zero_reduce(t->model, t->config.zero);                // stage 0: data parallelism's all-reduce
    t->reduction[1] = clock_now();
}
// With --overlap the last backward has started the buckets. Where one stage has both uses of wte, it has added them,
// too; where two stages have a copy each, wte travels over dp after their sum.
static void finish_buckets(Trainer *t) {
    if (t->mesh.tied) pipeline_tied_sum(t->model, t->mesh.tied);
    buckets_start_tied(t->buckets);
    buckets_wait(t->buckets);
    buckets_wait_tied(t->buckets);
}

StepResult trainer_gradients(Trainer *t, const Data *d, uint64_t step) {
    const Mesh *mesh = &t->mesh;
    size_t m = t->micro_batches;
    double weight = 1 / (double)data_count(d, step, 0, t->config.batch);       // of a token: the global batch's mean
    Arena tokens = arena(MEM_WORKSPACE);
    Data mine = *d;
    mine.positions = t->positions;
    Batch *batch = host_alloc(m * sizeof *batch);
    for (size_t k = 0; k < m; k++) {
        Range r = shard_range(range_size(t->sequences), m, k);
        batch[k] = data_micro_batch(&mine, &tokens, step, t->sequences.lo + r.lo, range_size(r), weight);
        batch[k].number = k;
    }

    if (t->cost) memset(t->cost, 0, partition_items(&t->config.model) * sizeof *t->cost);
    zero_begin(t->model, t->config.zero);
    PipelineResult p = zero_bubble_run(mesh->pp, t->model, &t->schedule, batch, m);    // 03, 06, 07: inside the layers
    t->local_loss = p.loss;
    if (t->config.prefetch) prefetch_finish(t->model);
    if (t->buckets) finish_buckets(t);
    else reduce(t);

    // Every replica's last stage holds its part of the loss, of its positions.
    StepResult r = { .loss = counts_loss(t) ? p.loss : 0 };
    comm_all_reduce_doubles(mesh->world, &r.loss, 1);
    r.loss *= weight;
    r.norm = model_grad_norm(t->model, t->config.zero ? mesh->world : mesh->model);    // without ZeRO replicas agree
    free(batch);
    arena_free(&tokens);
    return r;
}

void trainer_update(Trainer *t, StepResult r) {
    optimizer_step(&t->optimizer, t->model, clip_factor(r.norm, t->config.clip));
    zero_end(t->model, t->config.zero);
}

// Every rank still takes part in ZeRO's gather, which sends the weights as they were.
void trainer_skip(Trainer *t) { zero_end(t->model, t->config.zero); }

bool trainer_rebalance(Trainer *t) {
    const Mesh *mesh = &t->mesh;
    size_t n = partition_items(&t->config.model), v = trainer_chunks(&t->config), p = v * t->config.mesh.pp;
    size_t *before = host_alloc(p * sizeof *before);
    memcpy(before, t->blocks, p * sizeof *before);
    // All replicas and parts of a stage wait for its slowest.
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
    // Where the budget would be too small for the new blocks of some stage, all stay.
    if (t->config.activation_budget && stage_without_plan(&t->config) < t->config.mesh.pp)
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

enum { EVAL_ROWS = 1024 };                         // tokens of a micro-batch, but not less than one of the training's

double trainer_evaluate(Trainer *t, const Data *d, size_t windows) {
    const Mesh *mesh = &t->mesh;
    size_t most = EVAL_ROWS / d->context > t->config.micro_batch ? EVAL_ROWS / d->context : t->config.micro_batch;
    size_t m = ceil_div(ceil_div(windows, t->config.mesh.dp), most);           // the same on every replica
    Range mine = shard_range(windows, t->config.mesh.dp, mesh->at.dp);
    Data some = *d;
    some.positions = t->positions;
    double loss = 0;
    zero_evaluation_begin(t->model, t->config.zero);
    for (size_t k = 0; k < m; k++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Range r = shard_range(range_size(mine), m, k);
        Batch b = data_eval_batch(&some, &tokens, mine.lo + r.lo, range_size(r), windows);
        loss += interleaved_loss(mesh->pp, t->model, &b);
        arena_free(&tokens);
    }
    zero_evaluation_end(t->model, t->config.zero);
    if (!counts_loss(t)) loss = 0;
    comm_all_reduce_doubles(mesh->world, &loss, 1);
    return loss / (double)(windows * d->context);
}
