// ranks: 1
// level: core
// question: How must a model be split over a cluster's GPUs so that it fits and trains fastest?
//
// The program computes a training step, without training, in many layouts dp x tp x pp x cp. The
// layouts also differ in micro-batch size, interleaved chunks, ZeRO stage, recomputation and
// sequence parallelism. Memory, traffic and time follow from sizes alone, by the cost model that
// the lessons check. The presets have the sizes of published models, and the devices and links of
// published clusters and of the book's simulated cluster.
//
// For a stage, plan_stage.c computes sizes and groups, plan_memory.c the memory, plan_op.c the time
// of a forward or backward, and plan_ring.c the time of ring attention. plan_time.c plays the
// schedule, and plan_step.c adds the rest of the step. plan_bound.c computes bounds without
// playing. plan_search.c tries the layouts.
//
// The plan does not model ranks of unequal speed, or groups that slow each other down on one link.
//
// Papers: PTD-P (Narayanan et al. 2021) sections 3 and 5; ZeRO (Rajbhandari et al. 2020) sections 5
// and 7; Korthikanti et al. 2022, section 4.
#include <stdio.h>
#include <string.h>
#include "08_3d/plan.h"
#include "08_3d/experiments/experiments.h"
#include "common/base/output.h"
#include "common/model/block.h"

// Returns the preset of this name. Calls usage_error() with a list of the names if the name is
// unknown. first: the first element of an array of presets. A preset begins with its name, and the
// array ends with name NULL.
static const void *preset(const char *option, const char *name, const void *first, size_t size) {
    char names[400] = "";
    for (const char *p = first; *(const char *const *)(const void *)p; p += size) {
        const char *this = *(const char *const *)(const void *)p;
        if (!strcmp(this, name)) return p;
        if (strlen(names) + strlen(this) + 3 < sizeof names) {
            strcat(names, " ");
            strcat(names, this);
        }
    }
    usage_error("--%s %s: expected one of%s", option, name, names);
}
// Returns the model of this name. For a model's former name, calls usage_error() with the present
// name.
static const PlanModel *model(const char *name) {
    for (const PlanOldName *old = plan_old_names; old->name; old++)
        REQUIRE(strcmp(old->name, name) != 0, "--model %s: choose --model %s, with its own block",
                name, old->now);
    return preset("model", name, plan_models, sizeof *plan_models);
}
static size_t own(Run *run, const char *option, size_t preset_value) {
    size_t value = option_given(run, option) ? option_size(run, option) : preset_value;
    REQUIRE(value > 0 && value < (size_t)1 << 31, "--%s must be at least 1, and below 2^31",
            option);
    return value;
}

// Applies --family, which replaces the preset's family, number of key and value heads, MLP width
// and untied head. Then applies --kv-heads, --ffn and --untied.
static void take_family(Run *run, ModelConfig *m) {
    if (option_given(run, "family")) {
        bool llama = !strcmp(option_text(run, "family"), "llama");
        config_family(m, llama ? FAMILY_LLAMA : FAMILY_GPT2);
        m->kv_heads = 0;
        m->ffn = 0;
        m->untied = false;
    }
    if (option_given(run, "kv-heads")) m->kv_heads = own(run, "kv-heads", 0);
    if (option_given(run, "ffn")) m->ffn = own(run, "ffn", 0);
    if (option_flag(run, "untied")) m->untied = true;
}

// Reads --overlap: "dp,tp,pieces,pp" in any order, or "none". pieces implies tp.
static void overlap(PlanHow *h, const char *text) {
    enum { KINDS = 4 };
    static const char *const name[KINDS] = { "dp", "tp", "pieces", "pp" };
    bool *const kind[KINDS] = { &h->overlap.dp, &h->overlap.tp, &h->overlap.pieces,
                                &h->overlap.pp };
    for (size_t i = 0; i < KINDS; i++) *kind[i] = false;
    for (const char *p = text; strcmp(text, "none") != 0;) {
        size_t length = strcspn(p, ","), i = 0;
        while (i < KINDS && (strlen(name[i]) != length || strncmp(p, name[i], length) != 0)) i++;
        REQUIRE(i < KINDS, "--overlap %s: expected none, or some of dp,tp,pieces,pp", text);
        *kind[i] = true;
        p += length;
        if (!*p++) break;
    }
    h->overlap.tp = h->overlap.tp || h->overlap.pieces;
}
static PlanHow how(Run *run, const PlanCluster *c) {
    PlanHow h = plan_how(c);
    if (option_given(run, "overlap")) overlap(&h, option_text(run, "overlap"));
    h.scatter = option_flag(run, "scatter-gather");
    h.hierarchical = !strcmp(option_text(run, "collectives"), "hierarchical");
    return h;
}

static PlanTask task(Run *run) {
    PlanTask t = {
        .model = *model(option_text(run, "model")),
        .cluster = *(const PlanCluster *)preset("cluster", option_text(run, "cluster"),
                                                plan_clusters, sizeof *plan_clusters),
        .format = *(const PlanFormat *)preset("precision", option_text(run, "precision"),
                                              plan_formats, sizeof *plan_formats),
        .gpus = own(run, "gpus", option_size(run, "gpus")),
    };
    t.how = how(run, &t.cluster);
    ModelConfig *m = &t.model.model;
    take_family(run, m);
    m->layers = own(run, "layers", m->layers);
    m->width = own(run, "width", m->width);
    m->heads = own(run, "heads", m->heads);
    m->context = own(run, "context", m->context);
    m->vocab = own(run, "vocab", m->vocab);
    if (option_given(run, "dropout")) m->dropout = option_real(run, "dropout");
    if (option_given(run, "images")) {
        REQUIRE(t.model.vision.model.layers > 0,
                "--images %s: %s has no vision tower; choose --model qwen2vl-7b",
                option_text(run, "images"), t.model.name);
        t.model.vision.images = option_size(run, "images");
        REQUIRE(t.model.vision.images < 1 << 16, "--images %s: at most 65535 per sequence",
                option_text(run, "images"));
    }
    t.model.batch = own(run, "batch", t.model.batch);
    t.blockwise = !strcmp(option_text(run, "attention"), "blockwise");
    config_require(m);
    PlanCluster *c = &t.cluster;
    double preset_efficiency = c->efficiency;
    if (option_given(run, "node")) c->node = option_size(run, "node");
    if (option_given(run, "rails")) c->rails = own(run, "rails", 0);
    if (option_given(run, "margin")) c->reserve = 1e9 * option_real(run, "margin");
    if (option_given(run, "memory")) c->memory = 1e9 * option_real(run, "memory");
    if (option_given(run, "peak")) c->flops = 1e12 * option_real(run, "peak");
    if (option_given(run, "efficiency")) c->efficiency = option_real(run, "efficiency");
    if (option_given(run, "bandwidth")) c->bandwidth = 1e9 * option_real(run, "bandwidth");
    if (option_given(run, "inside")) c->inside.beta = 1e9 * option_real(run, "inside");
    if (option_given(run, "between")) c->between.beta = 1e9 * option_real(run, "between");
    REQUIRE(c->efficiency <= 1,
            "--efficiency %g: a share of the peak is above 0 and at most 1; without the option "
            "%g",
            c->efficiency, preset_efficiency);
    REQUIRE(c->bandwidth >= 0, "--bandwidth must be 0 (memory takes no time) or more");
    REQUIRE(c->memory > 0 && c->flops > 0 && c->efficiency > 0 && c->inside.beta > 0 &&
                c->between.beta > 0,
            "--memory, --peak, --efficiency, --inside and --between must be above 0");
    return t;
}
static int one_of(Run *run, const char *option, const char *const *names) {
    int i = 0;
    if (!option_given(run, option)) return -1;
    // options.c accepts only these names, so the loop ends.
    while (strcmp(names[i], option_text(run, option))) i++;
    return i;
}
static PlanFixed fixed(Run *run) {
    static const char *const zero[] = { "0", "1", "2", "3" }, *const recompute[] = { "none",
                                                                                     "selective",
                                                                                     "full" };
    static const char *const sequence[] = { "no", "yes" };
    PlanFixed f = { .zero = one_of(run, "zero", zero),
                    .recompute = one_of(run, "recompute", recompute),
                    .sequence = one_of(run, "sequence-parallel", sequence) };
    const struct {
        const char *option;
        size_t *value;
    } number[] = { { "dp", &f.dp },
                   { "tp", &f.tp },
                   { "pp", &f.pp },
                   { "cp", &f.cp },
                   { "micro-batch", &f.micro_batch },
                   { "chunks", &f.chunks } };
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        if (option_given(run, number[i].option)) *number[i].value = own(run, number[i].option, 0);
    return f;
}

// Reads the layout of --explain, "16,8,8" or "8,8,8,2". Settings without an option get their
// simplest value. Returns false without --explain.
static bool explained(Run *run, const PlanTask *t, const PlanFixed *f, PlanLayout *l) {
    if (!option_given(run, "explain")) return false;
    Degrees n = { 0 };
    char rest;
    const char *text = option_text(run, "explain");
    bool three = sscanf(text, "%zu,%zu,%zu%c", &n.dp, &n.tp, &n.pp, &rest) == 3;
    if (three) n.cp = f->cp ? f->cp : 1;
    REQUIRE((three || sscanf(text, "%zu,%zu,%zu,%zu%c", &n.dp, &n.tp, &n.pp, &n.cp, &rest) == 4) &&
                n.dp && n.tp && n.pp && n.cp,
            "--explain %s: expected dp,tp,pp or dp,tp,pp,cp, such as 16,8,8 or 8,8,8,2", text);
    *l = (PlanLayout){ .n = n,
                       .micro_batch = f->micro_batch ? f->micro_batch : 1,
                       .chunks = f->chunks ? f->chunks : 1,
                       .zero = f->zero > 0 ? (size_t)f->zero : 0,
                       .sequence = f->sequence == 1,
                       .recompute = f->recompute > 0 ? (Recompute)f->recompute : RECOMPUTE_NONE,
                       .balanced = !strcmp(option_text(run, "balance"), "cost") };
    char why[200];
    REQUIRE(plan_possible(t, l, why, sizeof why), "--explain %s: %s", text, why);
    return true;
}

// Records the layout's numbers in the JSON. Memory and the step have two names each. The name
// without a unit is in bytes or picoseconds, like the costs of the trainer.
static void record(Run *run, const PlanResult *r) {
    static const char *const name[PLAN_MEMORY][2] = {
        { "parameters", "weights_bytes" },        { "gradients", "gradients_bytes" },
        { "optimizer state", "optimizer_bytes" }, { "activations, peak", "activations_peak_bytes" },
        { "gathered", "gathered_bytes" },         { "ring", "ring_bytes" }
    };
    for (size_t i = 0; i < PLAN_MEMORY; i++)
        for (size_t k = 0; k < 2; k++) report_config_number(run, name[i][k], r->largest.bytes[i]);
    report_config_number(run, "tp_bytes", r->tp_bytes);
    report_config_number(run, "cp_bytes", r->cp_bytes);
    report_config_number(run, "pp_bytes", r->pp_bytes);
    report_config_number(run, "dp_bytes", r->dp_bytes);
    report_config_number(run, "tied_bytes", r->tied_bytes);
    report_config_number(run, "memory", plan_memory_sum(&r->fullest));
    report_config_number(run, "memory_bytes", plan_memory_sum(&r->fullest));
    report_config_number(run, "step", r->step);
    report_config_number(run, "step_s", r->step * 1e-12);
    report_config_number(run, "bubble", r->bubble);
    report_config_number(run, "mfu", r->mfu);
    report_config_number(run, "best_dp", (double)r->layout.n.dp);
    report_config_number(run, "best_tp", (double)r->layout.n.tp);
    report_config_number(run, "best_pp", (double)r->layout.n.pp);
    report_config_number(run, "best_cp", (double)mesh_cp(r->layout.n));
    report_config_text(run, "fits", r->fits ? "yes" : "no");
}

// Prints the page's answer, cost and advice. Records the tokens per day and, with
// --price-per-gpu-hour, the prices.
// list: the results of a search, with r as the first; NULL: there was no search.
// anchors: the errors of the plan for published steps.
static void answer(Run *run, const PlanTask *t, const PlanResult *r, const PlanList *list,
                   const Anchors *anchors) {
    const double G = 1e-9, held = plan_memory_sum(&r->fullest) * G;
    const double room = plan_usable(&t->cluster) * G;
    const PlanLayout *l = &r->layout;
    char name[PLAN_NAME], step[32];
    plan_layout_name(name, l);
    page_value(step, sizeof step, r->step, "ps");
    char near[96] = "", error[120];
    double spread = 0;
    size_t rows = list ? plan_rows_within(list, anchors->held_out.worst, &spread) : 0;
    if (rows > 1)
        snprintf(near, sizeof near,
                 " The %zu fastest meshes lie within %.1f %%: measure all of them (--verbose).",
                 rows, 100 * spread);
    const AnchorErrors *held_out = &anchors->held_out, *others = &anchors->others;
    snprintf(error, sizeof error,
             " Expect a longer step: of %zu published steps of other systems %zu took longer than "
             "planned, by up to %.0f %%.",
             others->n, others->fast, 100 * others->longest);
    say_detail(
        run,
        "  Published steps of Megatron-LM and Llama 3 differ from the plan by %.1f %% on "
        "average (%zu steps, worst %.1f %%), those of other systems by %.1f %% (%zu steps, worst "
        "%.1f %%; %zu took longer than planned).",
        100 * held_out->mean, held_out->n, 100 * held_out->worst, 100 * others->mean, others->n,
        100 * others->worst, others->fast);
    if (r->fits)
        say_answer(run,
                   "%s%s%s: %s per step, %.1f %% of the peak (MFU), %.1f of %.3g usable GB per "
                   "GPU.%s%s",
                   list ? "By this plan " : "", name, list ? " is the fastest that fits" : " fits",
                   step, 100 * r->mfu, held, room, near, error);
    else
        say_answer(run, "%s. %s needs %.1f GB per GPU, and %.3g GB are usable.",
                   list ? "No layout fits" : "The layout does not fit", name, held, room);
    double price = option_given(run, "price-per-gpu-hour")
                       ? option_real(run, "price-per-gpu-hour") * 24 * (double)t->gpus
                       : 0,
           tokens = 86400 / (r->step * 1e-12) * (double)(t->model.batch * t->model.model.context);
    char cost[120] = "";
    if (price > 0) {
        snprintf(cost, sizeof cost,
                 " A day costs %.0f and trains %.3g billion tokens: %.0f per "
                 "billion.",
                 price, tokens * 1e-9, price / tokens * 1e9);
        report_config_number(run, "price_per_day", price);
        report_config_number(run, "price_per_billion_tokens", price / tokens * 1e9);
    }
    report_config_number(run, "tokens_per_day", tokens);
    enum { SENT = 4 };
    char sent[SENT][32], ring[48] = "";
    const double bytes[SENT] = { r->tp_bytes, r->pp_bytes, r->dp_bytes + r->tied_bytes,
                                 r->cp_bytes };
    for (size_t i = 0; i < SENT; i++) page_value(sent[i], sizeof sent[i], bytes[i], "bytes");
    if (mesh_cp(l->n) > 1) snprintf(ring, sizeof ring, " %s over cp,", sent[3]);
    say_cost(run, "a GPU sends up to %s per step over tp,%s %s over pp and %s over dp.%s", sent[0],
             ring, sent[1], sent[2], cost);
    say_use_when(run, "you choose a layout before you reserve a cluster. Then measure the best "
                      "few layouts.");
}

static const char *bias_words(const ModelConfig *m) {
    return m->biases == BIASES_ALL ? "everywhere" : m->biases == BIASES_QKV ? "of q, k, v" : "none";
}

static void say_vision(Run *run, const PlanTask *t) {
    const PlanVision *v = &t->model.vision;
    const CutSizes z = cut_sizes(&v->model, 1, 0);
    const size_t blocks = plan_vision_blocks(t);
    say(run,
        "Before the first block: a vision tower of %zu blocks, C %zu, %.4g billion parameters.",
        z.blocks, z.C, 1e-9 * (double)plan_vision_parameters(t));
    say(run,
        "A sequence has %zu image%s of %zu patches, %zu of its positions. The tower has the FLOPs "
        "of %zu block%s.",
        v->images, v->images == 1 ? "" : "s", z.T, v->images * z.T / v->merge, blocks,
        blocks == 1 ? "" : "s");
    report_config_number(run, "vision_parameters", (double)plan_vision_parameters(t));
    report_config_number(run, "vision_blocks", (double)blocks);
}

static void plan(Run *run) {
    PlanTask t = task(run);
    PlanFixed f = fixed(run);
    PlanLayout l;
    const ModelConfig *m = &t.model.model;
    say(run,
        "%s: L %zu blocks, C %zu columns, %zu heads, T %zu positions, V %zu entries:", t.model.name,
        m->layers, m->width, m->heads, m->context, m->vocab);
    if (!config_is_gpt2(m))
        say(run, "%s, %zu heads of key and value, %zu features in the MLP, biases %s, head %s",
            m->activation == ACTIVATION_SWIGLU ? "Llama's block" : "GPT-2's block",
            config_kv_heads(m), block_hidden(m), bias_words(m), m->untied ? "untied" : "tied");
    say(run,
        "%.4g billion parameters; bytes of each: weight %zu, gradient %zu, optimizer %zu (%s)"
        "; batch %zu",
        1e-9 * (double)plan_parameters(&t), t.format.weight, t.format.gradient, t.format.state,
        t.format.name, t.model.batch);
    if (plan_has_vision(&t)) say_vision(run, &t);
    say(run,
        "%zu GPUs, %s: %.4g TFLOP/s, %.3g GB (%.3g usable), nodes of %zu, %.3g GB/s inside, %.3g "
        "GB/s between",
        t.gpus, t.cluster.name, 1e-12 * t.cluster.flops, 1e-9 * t.cluster.memory,
        1e-9 * plan_usable(&t.cluster), t.cluster.node, 1e-9 * t.cluster.inside.beta,
        1e-9 * t.cluster.between.beta);
    say_detail(run, "model: %s; cluster: %s", t.model.source, t.cluster.source);
    const Anchors anchors = plan_anchors(run, option_flag(run, "papers"));
    bool one = explained(run, &t, &f, &l);
    if (one && run->is_root) {
        PlanResult r = plan_layout(&t, &l);
        plan_explain(run, &t, &r);
        record(run, &r);
        answer(run, &t, &r, NULL, &anchors);
    }
    // Only rank 0 searches, because every rank would find the same layouts.
    if (!one && run->is_root) {
        if (option_given(run, "layouts")) output_require("layouts", option_text(run, "layouts"));
        bool prune = !option_given(run, "layouts") && !option_given(run, "svg");
        PlanList list = plan_search(run, &t, &f, prune);
        char why[600];
        if (list.n == 0) plan_why_none(&t, &f, why, sizeof why);
        REQUIRE(list.n > 0,
                "no layout has equal parts: %s; choose other --gpus or --batch, or fix fewer of "
                "--dp, --tp, --pp, ...",
                why);
        plan_reason(&t, &list, why, sizeof why);
        plan_table(run, &t, &list);
        if (list.feasible == 0) {
            say(run, "%s", why);
            char advice[600];
            plan_try(&t, &list.result[0], advice, sizeof advice);
            say(run, "%s", advice);
        }
        answer(run, &t, &list.result[0], &list, &anchors);
        record(run, &list.result[0]);
        report_config_text(run, "reason", why);
        if (option_given(run, "layouts"))
            plan_write_layouts(&t, &list, option_text(run, "layouts"));
        if (option_given(run, "svg")) plan_svg(&t, &list, option_text(run, "svg"));
        plan_list_free(&list);
    }
    if (!one) report_picture(run);
    plan_papers(run);
}

static const Option options[] = {
    { "model", "NAME", "gpt3-175b",
      "gpt3-175b, ptdp-1.7b 3.6b 7.5b 18b 39b 76b 145b 310b 530b 1t, zero-100b, llama2-7b 13b 70b, "
      "llama3-8b 70b 405b, qwen2-7b 72b, qwen2vl-7b 72b" },
    { "cluster", "NAME", "dgx-a100", "dgx-a100, dgx-a100-40, dgx-h100, core, lesson" },
    { "gpus", "N", "1024", "number of GPUs" },
    { "precision", "NAME", "bf16",
      "bf16: 2 + 4 + 12 bytes per parameter (Megatron-LM); mixed: 2 + 2 + 12 (ZeRO); fp32: 4 + 4 + "
      "8" },
    { "attention", "plain|blockwise", "blockwise",
      "plain keeps all scores, blockwise none; with --cp always blockwise" },
    { "layers", "N", NULL, "blocks; this and the next options replace the model's values" },
    { "width", "N", NULL, "features of a token" },
    { "heads", "N", NULL, "attention heads" },
    { "family", "gpt2|llama", NULL,
      "the model's sizes in a block of this family, with its --kv-heads, --ffn and --untied" },
    { "kv-heads", "N", NULL, "heads of key and value, which groups of heads share" },
    { "ffn", "N", NULL, "features between the matrices of the MLP" },
    { "untied", NULL, NULL, "the head has a table of its own" },
    { "context", "N", NULL, "tokens of a sequence" },
    { "vocab", "N", NULL, "vocabulary entries" },
    { "dropout", "X", NULL, "probability of dropping an element" },
    { "images", "N", NULL, "images per sequence, for a model with a vision tower" },
    { "batch", "N", NULL, "sequences per step" },
    { "memory", "X", NULL, "GB per GPU; this and the next options replace the cluster's values" },
    { "peak", "X", NULL, "TFLOP/s per GPU" },
    { "efficiency", "X", NULL, "share of the peak that large products reach" },
    { "bandwidth", "X", NULL, "GB/s of a GPU's memory, which norms, dropout and the update take" },
    { "inside", "X", NULL, "GB/s of a GPU's link inside a node, each way" },
    { "between", "X", NULL, "GB/s of a GPU's link between nodes, each way" },
    { "node", "N", NULL, "GPUs per node" },
    { "rails", "N", NULL,
      "network cards of a node, which the ranks of a collective share; without it one per GPU" },
    { "collectives", "ring|hierarchical", "ring",
      "between nodes: a ring on each card, or first inside the nodes" },
    { "overlap", "LIST", NULL,
      "communication that runs beside computation: none, or some of dp,tp,pieces,pp; without it "
      "dp,tp,pp, with --cluster core and lesson pp" },
    { "scatter-gather", NULL, NULL, "each rank of tp sends a part of a message between stages" },
    { "price-per-gpu-hour", "X", NULL, "what a day and a billion tokens cost" },
    { "margin", "X", NULL, "GB per GPU that are not for the model: CUDA, NCCL, fragments" },
    { "dp", "N", NULL, "search only layouts with N replicas; the next options fix other numbers" },
    { "tp", "N", NULL, "tensor-parallel ranks" },
    { "pp", "N", NULL, "pipeline stages" },
    { "cp", "N", NULL, "context-parallel ranks (ring attention, zigzag)" },
    { "micro-batch", "N", NULL, "sequences per micro-batch" },
    { "chunks", "N", NULL, "chunks per stage, interleaved" },
    { "balance", "blocks|cost", "blocks",
      "with --explain, parts of equal blocks, or parts of equal cost with embedding and head" },
    { "zero", "0|1|2|3", NULL, "stage of ZeRO" },
    { "sequence-parallel", "no|yes", NULL,
      "norms, dropout and residual paths on 1/tp of the rows" },
    { "recompute", "none|selective|full", NULL, "activations that backward recomputes" },
    { "explain", "LAYOUT", NULL,
      "dp,tp,pp or dp,tp,pp,cp: derive this layout line by line, with the options above" },
    { "papers", NULL, NULL, "print the plan's values beside published ones" },
    REALS_ONLY("the planner computes from sizes; --precision has the bytes per parameter"),
    { "layouts", "FILE", NULL, "write all layouts, one JSON object per line" },
    { 0 },
};
EXPERIMENT(plan, options);
