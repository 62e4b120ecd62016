// refused.c rejects options that exclude each other or cannot work, before the training. Most
// messages give the reason and a choice that works.
#include "08_3d/kept.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include <stdlib.h>
#include "common/model/block.h"

enum { MOST_SEQUENCES = 1 << 20 }; // sequences of a step; more are a typing error

static void require_tensor(const TrainerConfig *c) {
    const ModelConfig *m = &c->model;
    REQUIRE(c->tensor != TENSOR_1D || c->mesh.tp <= m->heads,
            "--tp %zu needs as many heads; the model has %zu: choose --tp %zu, or more --heads",
            c->mesh.tp, m->heads, m->heads);
    REQUIRE(c->tensor != TENSOR_1D || c->mesh.tp <= config_kv_heads(m),
            "--tp %zu needs as many heads of key and value; the model has %zu: choose --tp %zu, or "
            "more --kv-heads",
            c->mesh.tp, config_kv_heads(m), config_kv_heads(m));
    REQUIRE(c->tensor != TENSOR_1D || c->mesh.tp <= block_hidden(m),
            "--tp %zu needs as many features of the MLP; the model has %zu: choose --tp %zu, or a "
            "larger --ffn",
            c->mesh.tp, block_hidden(m), block_hidden(m));
    REQUIRE(c->depth == 0 || c->tensor == TENSOR_25D,
            "--depth %zu: only --tensor 2.5d has layers: leave --depth out", c->depth);
    if (c->tensor == TENSOR_1D) return;
    REQUIRE(config_is_gpt2(m),
            "a grid cuts layer norms, learned positions and three blocks of equal width, which "
            "only --family gpt2 has: leave --family, --kv-heads, --ffn and --untied out, or choose "
            "--tensor 1d");
    REQUIRE(mesh_cp(c->mesh) == 1,
            "--cp cuts the positions of a sequence, and a grid's rows are whole sequences: leave "
            "--cp out, or choose --tensor 1d");
    REQUIRE(
        !c->sequence,
        "--sequence-parallel cuts the rows that --tensor 1d leaves whole, and a grid has cut all "
        "rows: leave --sequence-parallel out, or choose --tensor 1d");
    size_t q = c->tensor == TENSOR_3D ? cube_side(c->mesh.tp) : tensor_sides(c).q;
    REQUIRE(q <= m->heads,
            "--tp %zu has %zu columns of ranks, which need as many heads; the model has %zu: "
            "choose fewer ranks, or more --heads",
            c->mesh.tp, q, m->heads);
}

// Rejects options that exclude --compress. trainer_reduction() rejects --zero and --overlap with
// --compress.
static void require_compression(const TrainerConfig *c) {
    if (c->reduction != REDUCE_COMPRESSED) return;
    REQUIRE(c->compression.method != TOP_K || c->compression.one_of > 0,
            "--keep-one-of must be at least 1");
    REQUIRE(c->compression.method != POWER_SGD || c->compression.rank > 0,
            "--power-rank must be at least 1");
    REQUIRE(c->mesh.dp > 1,
            "--compress saves bytes between replicas, and there is one: choose --dp 2 or more, or "
            "leave --compress out");
    REQUIRE(!c->rebalanced,
            "--rebalance moves layers, but the residuals of --compress stay on their ranks: leave "
            "--rebalance or --compress out");
    REQUIRE(mesh_cp(c->mesh) == 1,
            "--compress takes a replica's whole gradient, and with --cp a rank has the gradient of "
            "some positions only: leave --compress or --cp out");
    REQUIRE(c->tensor == TENSOR_1D,
            "--compress takes matrices as --tensor 1d cuts them: leave --compress out, or choose "
            "--tensor 1d");
    REQUIRE(config_gradient_element(&c->model) == REALS,
            "--compress shortens gradients itself, and keeps its residuals in reals: choose "
            "--gradients main, or leave --compress out");
    REQUIRE(
        c->loss_scale.patience == 0,
        "--compress adds the residual of a step to the next gradient, so an overflow would stay "
        "in the residual: choose --loss-scale N, which is fixed, or --storage bf16");
    REQUIRE(c->compression.method != TOP_K || c->mesh.tp == 1,
            "--compress top-k chooses among all elements of a layer, and the slices of --tp %zu "
            "would choose different elements of their common norms: choose --tp 1, or --compress "
            "power-sgd",
            c->mesh.tp);
}

// Rejects options that exclude --activation-budget. trainer_require() calls this function last,
// because a plan needs sizes that trainer_require() has accepted.
static void require_budget(const TrainerConfig *c) {
    if (!c->activation_budget) return;
    REQUIRE(c->recompute == RECOMPUTE_NONE,
            "--activation-budget chooses the recomputation of each block: leave --recompute out");
    size_t i = kept_stage_without_plan(c);
    REQUIRE(i == c->mesh.pp,
            "--activation-budget %zu is not enough for stage %zu even if every block recomputes "
            "fully: the stage needs %zu bytes",
            c->activation_budget, i, kept_least(c, i));
}

Reduction trainer_reduction(size_t zero, bool prefetch, bool overlap, bool compressed) {
    REQUIRE(!prefetch || zero == 3,
            "--prefetch gathers weights ahead, and with --zero %zu every rank has all weights: "
            "choose --zero 3, or leave --prefetch out",
            zero);
    REQUIRE(!overlap || zero == 0,
            "--overlap all-reduces whole gradients, and --zero %zu reduces them in parts: choose "
            "--zero 0, or --zero 3 with --prefetch, or leave --overlap out",
            zero);
    REQUIRE(!compressed || zero == 0,
            "--compress leaves the whole sum on every replica, and --zero %zu leaves a part of it: "
            "choose --zero 0, or leave --compress out",
            zero);
    REQUIRE(!compressed || !overlap,
            "--compress needs a unit's whole gradient and its residual, and --overlap sends "
            "uncompressed buckets: leave --compress or --overlap out");
    if (prefetch) return REDUCE_PREFETCH;
    if (overlap) return REDUCE_IN_BUCKETS;
    if (compressed) return REDUCE_COMPRESSED;
    static const Reduction stage[] = { REDUCE_AT_END, REDUCE_ZERO_1, REDUCE_ZERO_2, REDUCE_ZERO_3 };
    return stage[zero];
}

void trainer_require(const TrainerConfig *c) {
    const ModelConfig *m = &c->model;
    bool prefetch = c->reduction == REDUCE_PREFETCH, overlap = c->reduction == REDUCE_IN_BUCKETS;
    config_require(m);
    REQUIRE(c->micro_batch > 0, "--micro-batch must be at least 1");
    REQUIRE(c->batch <= MOST_SEQUENCES, "--batch %zu: expected at most %d sequences", c->batch,
            MOST_SEQUENCES);
    REQUIRE(c->batch >= c->mesh.dp,
            "--batch %zu leaves some of the %zu replicas without a sequence: choose at least "
            "--batch %zu",
            c->batch, c->mesh.dp, c->mesh.dp);
    require_tensor(c);
    REQUIRE(c->mesh.pp <= m->layers,
            "--pp %zu needs as many blocks; the model has %zu: choose --pp %zu, or more --layers",
            c->mesh.pp, m->layers, m->layers);
    REQUIRE(mesh_cp(c->mesh) <= m->context,
            "--cp %zu needs as many positions; a sequence has %zu: choose --cp %zu or less, or "
            "more --context",
            mesh_cp(c->mesh), m->context, m->context);
    REQUIRE(!prefetch || c->schedule != schedule_zb_h1,
            "--prefetch gathers for whole backwards, and --schedule zero-bubble cuts backwards in "
            "two: leave --prefetch out, or choose --schedule 1f1b");
    REQUIRE(!overlap || c->schedule != schedule_zb_h1,
            "--overlap reduces the gradients that a whole backward has completed, and --schedule "
            "zero-bubble cuts backwards in two: leave --overlap out, or choose --schedule 1f1b");
    REQUIRE(!c->rebalanced || !(prefetch || overlap),
            "--rebalance moves layers, and %s lists the layers of a stage only once, when the "
            "training begins: leave --rebalance or %s out",
            prefetch ? "--prefetch" : "--overlap", prefetch ? "--prefetch" : "--overlap");
    REQUIRE(c->schedule != schedule_zb_h1 || c->tensor == TENSOR_1D,
            "--schedule zero-bubble delays the gradients of weights, and on a grid their products "
            "communicate: choose --tensor 1d, or --schedule 1f1b");
    require_compression(c);
    size_t blocks = 0, v = trainer_chunks(c), m_each = trainer_micro_batches(c);
    REQUIRE(v * c->mesh.pp <= m->layers,
            "--chunks %zu on each of %zu stages needs %zu blocks; the model has %zu: choose "
            "--chunks %zu, or more --layers",
            v, c->mesh.pp, v * c->mesh.pp, m->layers, m->layers / c->mesh.pp);
    REQUIRE(v == 1 || m_each % c->mesh.pp == 0,
            "--schedule interleaved takes micro-batches in groups of --pp %zu, each through all "
            "chunks, and a replica has %zu: choose --batch and --micro-batch for a multiple of "
            "%zu, or --schedule 1f1b",
            c->mesh.pp, m_each, c->mesh.pp);
    for (size_t i = 0; c->stage_blocks && i < v * c->mesh.pp; i++) blocks += c->stage_blocks[i];
    REQUIRE(!c->stage_blocks || blocks == m->layers,
            "--stage-layers add up to %zu, but the model has --layers %zu", blocks, m->layers);
    require_budget(c);
}
