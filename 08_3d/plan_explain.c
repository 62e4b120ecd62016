// plan_explain.c derives the costs of one layout line by line, from sizes to memory and from
// products to the step.
#include <stdio.h>
#include "08_3d/plan.h"
#include "common/model/block.h"

static const double G = 1e-9;             // GB per byte
static const double MS = 1e-9, S = 1e-12; // milliseconds and seconds per picosecond

// In the printed formulas Ckv is the number of columns of all key heads, and also of all value
// heads. F is the number of features between the matrices of the MLP.
static void explain_block(Run *run, const PlanTask *t, const CutSizes *z) {
    const ModelConfig *c = &t->model.model;
    if (config_is_gpt2(c)) {
        say(run, "  %-59s %11.4g million parameters", "a block       (12 C^2 + 7 C)/tp + 6 C",
            1e-6 * (double)elements_block(z));
        return;
    }
    const bool swiglu = z->gates == 2;
    size_t tensor[TENSORS_OF_BLOCK], vectors = 0;
    elements_tensors(z, tensor);
    for (size_t i = 0; i < TENSORS_OF_BLOCK; i++)
        if (i != QKV_W && i != PROJ_W && i != FC_W && i != OUT_W) vectors += tensor[i];
    const struct {
        const char *what, *formula;
        size_t elements;
    } row[] = { { "q, k, v", "(C^2 + 2 C Ckv)/tp", tensor[QKV_W] },
                { "projection", "C^2/tp", tensor[PROJ_W] },
                { swiglu ? "gate and up" : "fc", swiglu ? "2 C F/tp" : "C F/tp", tensor[FC_W] },
                { swiglu ? "down" : "out", "F C/tp", tensor[OUT_W] },
                { z->qkv_bias ? "norms and biases" : "norms",
                  z->bias       ? "(C + 2 Ckv + F)/tp + 6 C"
                  : z->qkv_bias ? "2 C + (C + 2 Ckv)/tp"
                                : "2 C",
                  vectors },
                { "a block", "", elements_block(z) } };
    say(run, "  Ckv = %zu heads of key and value x %zu columns = %zu; F = %zu", config_kv_heads(c),
        z->D, config_kv_heads(c) * z->D, block_hidden(c));
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        say(run, "  %-19s %-22s %31.4g million parameters", row[i].what, row[i].formula,
            1e-6 * (double)row[i].elements);
}

static void explain_memory(Run *run, const PlanTask *t, const PlanResult *r, const PlanStage *s) {
    const PlanLayout *l = &r->layout;
    const PlanFormat *f = &t->format;
    const CutSizes *z = &s->z;
    const double *m = r->fullest.bytes;
    size_t b = l->micro_batch, v = l->chunks;
    double block = plan_block_bytes(t, z, b, false), scores = plan_block_bytes(t, z, b, true);
    double input = (double)(cut_rows(z, b) * z->C * f->element);
    double kept = l->recompute == RECOMPUTE_FULL        ? 0
                  : l->recompute == RECOMPUTE_SELECTIVE ? block - scores
                                                        : block;
    say(run, "Memory of stage %zu, the fullest, in GB", r->stage);
    explain_block(run, t, z);
    say(run, "  the stage     %zu blocks%s%s%s        %11.4g billion parameters", z->blocks,
        z->first ? ", embedding" : "", z->last ? ", last norm" : "",
        stage_tables(z) == 2 ? ", two tables of V/tp C"
        : stage_tables(z)    ? ", a table of V/tp C"
                             : "",
        1e-9 * (double)plan_elements(t, z));
    if (z->first && plan_has_vision(t))
        say(run, "  of it         the vision tower %42.4g billion parameters",
            1e-9 * (double)(plan_elements(t, z) - elements_stage(z)));
    say(run,
        "  state         ZeRO-%zu over %zu: %.3g bytes each: %.2f weights + %.2f gradients + %.2f "
        "optimizer",
        l->zero, plan_replicas(l), plan_parameter_bytes(f, l->zero, (double)plan_replicas(l)),
        m[PLAN_WEIGHTS] * G, m[PLAN_GRADIENTS] * G, m[PLAN_OPTIMIZER] * G);
    say(run,
        "  kept          a block, %zu sequence%s: input %.4g MB, the rest %.4g MB, of which scores "
        "%.4g MB",
        b, b > 1 ? "s" : "", 1e-6 * input, 1e-6 * block, 1e-6 * scores);
    say(run,
        "                recomputation %s keeps input + %.4g MB; x %zu blocks per chunk = %.4g GB",
        plan_recompute_name(l->recompute), 1e-6 * kept, z->blocks / v,
        (input + kept) * (double)z->blocks / (double)v * G);
    say(run,
        "  in flight     on the schedule at most %.3g chunks, with the computing layer: %.2f "
        "activations",
        (m[PLAN_ACTIVATIONS] / ((input + kept) * (double)z->blocks / (double)v)),
        m[PLAN_ACTIVATIONS] * G);
    if (m[PLAN_GATHERED] > 0)
        say(run, "  gathered      ZeRO's largest unit, whole for a moment  %8.2f",
            m[PLAN_GATHERED] * G);
    if (m[PLAN_RING] > 0)
        say(run, "  ring          keys, values and their gradients, under way %5.2f",
            m[PLAN_RING] * G);
    say(run, "  together      %.2f of %.4g usable: %s", plan_memory_sum(&r->fullest) * G,
        plan_usable(&t->cluster) * G, r->fits ? "fits" : "does not fit");
}

static void explain_op(Run *run, const PlanOp *op, const char *name) {
    say(run, "  %-8s products %7.2f + others %6.2f + tp %6.2f + ring %6.2f + ZeRO %6.2f = %8.2f",
        name, op->products * MS, op->rest * MS, op->tp * MS, op->cp * MS, op->dp * MS,
        plan_op_time(op) * MS);
}

static void explain_ring(Run *run, const PlanTask *t, const PlanLayout *l, const PlanStage *s) {
    size_t cp = mesh_cp(l->n), b = l->micro_batch;
    if (cp == 1) return;
    PlanRing f = plan_ring(t, l, s, true, b), r = plan_ring(t, l, s, false, b);
    say(run,
        "Ring attention in a block: %zu of %zu positions; (6 cp - 4) [b T/cp, %s/tp] = %.4g MB are "
        "sent",
        s->z.T, s->z.Tk, config_head_ratio(&t->model.model) > 1 ? "Ckv" : "C",
        1e-6 * (f.bytes + r.bytes));
    say(run, "  forward takes %.3g ms, products %.3g of them; backward %.3g ms, products %.3g",
        f.time * MS, f.products * MS, r.time * MS, r.products * MS);
}

void plan_explain(Run *run, const PlanTask *t, const PlanResult *r) {
    const PlanLayout *l = &r->layout;
    size_t m = plan_micro_batches(t, l), p = l->n.pp, v = l->chunks;
    PlanStage s = plan_stage(t, l, 0, r->stage), first = plan_chunk(t, l, 0, 0, 0);
    PlanOp forward = plan_op(t, l, &first, true, l->micro_batch);
    PlanOp backward = plan_op(t, l, &first, false, l->micro_batch);
    double both = plan_op_time(&forward) + plan_op_time(&backward), ideal = (double)(m * v) * both;
    size_t cp = mesh_cp(l->n);
    say(run, "dp %zu x tp %zu x pp %zu x cp %zu%s; v = %zu", l->n.dp, l->n.tp, p, cp,
        l->sequence ? " with sequence parallelism" : "", v);
    say(run, "  %zu sequences / dp = %zu per replica, in m = %zu micro-batches of %zu",
        t->model.batch, ceil_div(t->model.batch, l->n.dp), m, l->micro_batch);
    explain_memory(run, t, r, &s);
    say(run, "Traffic of the rank that sends most, in GB per step");
    say(run, "  tp %.4g (%s nodes)   cp %.4g   pp %.4g   dp %.4g (%s nodes)   tied embedding %.4g",
        r->tp_bytes * G, s.tp.cards ? "between" : "inside", r->cp_bytes * G, r->pp_bytes * G,
        r->dp_bytes * G, s.dp.cards ? "between" : "inside", r->tied_bytes * G);
    explain_ring(run, t, l, &first);
    say(run, "Time of a micro-batch in the first chunk, in ms");
    explain_op(run, &forward, "forward");
    explain_op(run, &backward, "backward");
    if (plan_has_vision(t)) {
        PlanOp there = plan_vision_op(t, l, &first, true, l->micro_batch);
        PlanOp back = plan_vision_op(t, l, &first, false, l->micro_batch);
        say(run, "  of both, the vision tower, as much as %zu blocks %39.2f", plan_vision_blocks(t),
            (plan_op_time(&there) + plan_op_time(&back)) * MS);
    }
    say(run, "The step, in s");
    say(run, "  m v (f + b) = %zu x %zu x %.4g ms  %42.4g", m, v, both * MS, ideal * S);
    say(run, "  bubble, if stages were equal: (p - 1)/(v m) = %.4g of it  %20.4g",
        (double)(p - 1) / (double)(v * m), ideal * S * (double)(p - 1) / (double)(v * m));
    say(run, "  the schedule, played with its unequal stages and messages  %18.4g   (idle %.1f %%)",
        (r->step - r->end) * S, 100 * r->bubble);
    say(run, "  after the last backward: sums over dp, norm, update, gathers  %15.4g", r->end * S);
    say(run, "  the step  %67.4g", r->step * S);
    say(run,
        "  %.4g FLOPs of the model / (%zu GPUs x %.4g TFLOP/s x step) = MFU %.1f %%; HFU %.1f %%",
        r->mfu * r->step * S * (double)t->gpus * t->cluster.flops, t->gpus,
        t->cluster.flops * 1e-12, 100 * r->mfu, 100 * r->hfu);
}
