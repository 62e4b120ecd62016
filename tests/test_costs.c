// test_costs.c: compares the cost model (common/model/costs.h) with a model that allocates, keeps,
// computes and sends, and with the closed forms of papers. All ranks are one tensor-parallel group.
//
// ranks: 3
// level: core
// question: Does a model hold, keep, compute and send what its sizes say?
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "03_tensor_parallel/experiments/experiments.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "04_pipeline_naive/pipeline.h"
#include "judge/frame/lesson.h"
#include "judge/frame/presets.h"
#include "common/model/costs.h"
#include "common/model/data.h"
#include "tests/cost.h"

enum { SEQUENCES = 3 };
// 2 and 3 divide no size of `uneven`. 2 and 3 divide every size of `even`, except that 3 does not
// divide the context.
static const ModelConfig uneven = {
    .layers = 5, .width = 35, .heads = 5, .context = 7, .vocab = 37, .dropout = 0.1
};
static const ModelConfig even = { .layers = 6, .width = 24, .heads = 6, .context = 8, .vocab = 42 };

// `llama` has five heads of key and value, each for two heads of the query. The number of layers is
// the only size that 3 divides.
static const ModelConfig llama = { .layers = 3,
                                   .width = 40,
                                   .heads = 10,
                                   .context = 7,
                                   .vocab = 37,
                                   .dropout = 0.1,
                                   .norm = NORM_RMS,
                                   .positions = POSITIONS_ROTARY,
                                   .activation = ACTIVATION_SWIGLU,
                                   .biases = BIASES_QKV,
                                   .kv_heads = 5,
                                   .ffn = 22,
                                   .untied = true };

static void line(Run *run, const char *model, const char *name, const char *unit, double predicted,
                 double measured) {
    char text[96];
    snprintf(text, sizeof text, "%s: %s", model, name);
    cost(run, text, unit, predicted, measured);
}

static Model *allocated(const ModelConfig *c, Range layers, Comm *tp) {
    Model *m = model_describe(c, layers);
    tensor_parallel(m, tp);
    model_allocate(m);
    return m;
}

static void parameters(Run *run, const char *name, const ModelConfig *c) {
    for (size_t p = 1; p <= 3; p++)
        for (size_t i = 0; i < p; i++) {
            char what[2][48];
            CutSizes z = cut_stage(cut_sizes(c, run->world->size, run->world->rank), p, i);
            Model *m = allocated(c, pipeline_stage_layers(c, NULL, p, i), run->world);
            snprintf(what[0], sizeof *what, "parameters, stage %zu of %zu", i, p);
            snprintf(what[1], sizeof *what, "gradients, stage %zu of %zu", i, p);
            line(run, name, what[0], "bytes", (double)(elements_stage(&z) * sizeof(real)),
                 (double)memory_now(MEM_PARAMETERS));
            line(run, name, what[1], "bytes", (double)(elements_gradients(&z) * sizeof(real)),
                 (double)memory_now(MEM_GRADIENTS));
            bool units = true;
            for (size_t k = 0; k < m->n_layers; k++) {
                // The embedding's first unit is wte, so its second unit is compared. In all other
                // layers the first unit is compared.
                const Layer *l = &m->layers[k];
                if (l->n_units == 0) continue; // the loss has no parameter
                units = units && elements_unit(&z, k) == l->units[l->number == 0]->size;
            }
            check_true(run, name, "elements of every unit of a stage", units);
            model_free(m);
        }
}

static void one_block(Run *run, const char *name, const ModelConfig *c, Batch b) {
    Comm *tp = run->world;
    CutSizes z = cut_sizes(c, tp->size, tp->rank);
    Model *m = allocated(c, model_layers(c), tp);
    Layer *l = &m->layers[1];
    size_t M = b.B * b.T, tensor[TENSORS_OF_BLOCK];
    bool tensors = l->units[0]->n_params == TENSORS_OF_BLOCK;
    elements_tensors(&z, tensor);
    for (size_t i = 0; i < TENSORS_OF_BLOCK && tensors; i++) {
        const Param *p = &l->units[0]->params[i];
        tensors = tensor[i] == param_local_rows(p) * param_local_cols(p);
    }
    check_true(run, name, "elements of every tensor of a block", tensors);

    Arena a = arena(MEM_WORKSPACE);
    Tensor x = tensor_new(&a, M, c->width), y = tensor_new(&a, M, c->width),
           dx = tensor_new(&a, M, c->width);
    tensor_fill(x, 1);
    tensor_fill(dx, 0);
    Saved s = saved_new();
    double flops = clock_flops();
    comm_ledger_reset(tp);
    layer_forward(l, &b, x, y, &s);
    line(run, name, "a block's forward", "FLOPs", work_block(&z, b.B).flops, clock_flops() - flops);
    line(run, name, "kept by a block", "bytes", (double)(M * kept_block(&z) * sizeof(real)),
         (double)memory_now(MEM_ACTIVATIONS));
    flops = clock_flops();
    layer_backward(l, &b, x, y, dx, &s);
    line(run, name, "a block's backward", "FLOPs", 2 * work_block(&z, b.B).flops,
         clock_flops() - flops);
    z.blocks = 1;
    z.first = z.last = false;
    Traffic traffic = traffic_tensor_parallel(&z, tp->size, b.B, false);
    line(run, name, "all-reduces of a block", "calls", traffic.calls,
         (double)tp->ledger[COMM_ALL_REDUCE].calls);
    line(run, name, "all-reduces of a block", "bytes", traffic.bytes, (double)comm_bytes_sent(tp));
    flops = clock_flops();
    l->kind->shed(&s);
    line(run, name, "kept without scores", "bytes",
         (double)(M * (kept_block(&z) - kept_scores(&z)) * sizeof(real)),
         (double)memory_now(MEM_ACTIVATIONS));
    l->kind->rebuild(l, &b, &s);
    line(run, name, "scores again", "FLOPs", work_scores(&z, b.B).flops, clock_flops() - flops);
    saved_free(&s);
    arena_free(&a);
    model_free(m);
}

static void whole_model(Run *run, const char *name, const ModelConfig *c, Batch b) {
    Comm *tp = run->world;
    CutSizes z = cut_sizes(c, tp->size, tp->rank);
    Model *m = allocated(c, model_layers(c), tp);
    memory_reset_peaks();
    comm_ledger_reset(tp);
    double flops = clock_flops();
    model_forward_backward(m, &b);
    Traffic traffic = traffic_tensor_parallel(&z, tp->size, b.B, false);
    line(run, name, "forward and backward", "FLOPs", 3 * work_stage(&z, b.B).flops,
         clock_flops() - flops);
    line(run, name, "kept at most", "bytes", (double)(b.B * b.T * kept_stage(&z) * sizeof(real)),
         (double)memory_peak(MEM_ACTIVATIONS));
    line(run, name, "all-reduces", "calls", traffic.calls,
         (double)tp->ledger[COMM_ALL_REDUCE].calls);
    line(run, name, "all-reduces", "bytes", traffic.bytes, (double)comm_bytes_sent(tp));
    model_free(m);
}

// Checks the costs of a block of `even` on M = b s tokens and t ranks. t divides the width and the
// heads.
static void closed_forms(Run *run) {
    const double t = (double)run->world->size, h = (double)even.width, s = (double)even.context;
    const double a = (double)even.heads, M = SEQUENCES * s;
    CutSizes z = cut_sizes(&even, run->world->size, run->world->rank),
             whole = cut_sizes(&even, 1, 0);
    cost(run, "12 h^2 + 13 h", "elements", 12 * h * h + 13 * h, (double)elements_block(&whole));
    cost(run, "12 h^2/t + 7 h/t + 6 h", "elements", (12 * h * h + 7 * h) / t + 6 * h,
         (double)elements_block(&z));
    cost(run, "24 M h^2 + 4 M s h", "FLOPs", 24 * M * h * h + 4 * M * s * h,
         work_block(&whole, SEQUENCES).flops);
    // In table 2 of Korthikanti et al. 2022 a block with tensor parallelism keeps
    // h (10 + 24/t + 5 a s/(h t)) bytes per token. An element has 2 bytes, and a mask element 1. In
    // fp32 the three numbers are 18, 48 and 9. The formula 3 h + 12 h/t + 2 a s/t + 4 counts
    // elements per token: 4 statistics of the norms are included, masks and the block's input are
    // not.
    for (size_t element = 2; element <= 4; element += 2) {
        KeptItem item[KEPT_ITEMS];
        size_t bytes = 0;
        z.dropout = true;
        kept_items(&z, item);
        for (size_t i = 0; i < KEPT_ITEMS; i++)
            bytes +=
                item[i].kind == KEPT_STATISTICS ? 0 : item[i].elements * element + item[i].masks;
        if (element == 2)
            cost(run, "h (10 + 24/t + 5 a s/(h t))", "bytes", h * (10 + 24 / t) + 5 * a * s / t,
                 bytes);
        else
            cost(run, "h (18 + 48/t + 9 a s/(h t))", "bytes", h * (18 + 48 / t) + 9 * a * s / t,
                 bytes);
    }
    cost(run, "3 h + 12 h/t + 2 a s/t + 4", "elements", 3 * h + 12 * h / t + 2 * a * s / t + 4,
         (double)kept_block(&z));
    Traffic traffic = traffic_tensor_parallel(&z, run->world->size, SEQUENCES, false);
    double head = 2 * (t - 1) / t * (2 * M * h + 3 * M),
           blocks = (double)even.layers * 8 * M * h * (t - 1) / t;
    cost(run, "8 b s h (t-1)/t a block", "elements", blocks, traffic.bytes / sizeof(real) - head);
}

// Checks a block of `even` with sequence parallelism on M tokens. A rank keeps 1/t of the block's
// items and of its output; with `whole` the two gathered inputs are kept whole. A rank sends 10 M h
// (t-1)/t elements if backward gathers inputs again, and 8 M h (t-1)/t if inputs are kept whole.
static void sequence_closed_forms(Run *run) {
    const double t = (double)run->world->size, h = (double)even.width, s = (double)even.context;
    const double a = (double)even.heads, M = SEQUENCES * s;
    for (int whole = 0; whole < 2; whole++) {
        CutSizes z = cut_sequence(cut_sizes(&even, run->world->size, run->world->rank), whole);
        z.blocks = 1;
        z.first = z.last = false;
        const double rows = whole ? M * h * (14 / t + 2) : M * h * 16 / t;
        cost(run, whole ? "sequence, whole: kept" : "sequence: kept", "elements",
             rows + M * (a * s + 4) / t,
             (double)(activations_block(&z, SEQUENCES) + message_elements(&z, SEQUENCES)));
        cost(run, whole ? "sequence, whole: sent" : "sequence: sent", "elements",
             (whole ? 8 : 10) * M * h * (t - 1) / t,
             traffic_sequence_parallel(&z, SEQUENCES, false).bytes / sizeof(real));
    }
}

// Checks a block of `even` with 3D tensor parallelism on 2 x 2 x 2 ranks. X is M h elements, and W
// is h^2 elements. Inputs with 7 X elements and weights with 12 W elements are gathered. The
// gathered tensors are kept, or, with `again`, gathered again in backward.
static void cube_closed_forms(Run *run) {
    enum { SIDE = 2, RANKS = 8, CUBE_SEQUENCES = 4 };
    const double q = SIDE, n = RANKS, h = (double)even.width, s = (double)even.context;
    const double M = CUBE_SEQUENCES * s, X = M * h, W = h * h, scores = M * (double)even.heads * s;
    const CutSizes block = { .blocks = 1 };
    for (int again = 0; again < 2; again++) {
        const CubePlace at = cube_place_of(&even, SIDE, 5, again);
        const CubeTraffic sent = cube_stage(&at, &block, CUBE_SEQUENCES, false);
        const double operands = again ? 39 * X + 36 * W : 32 * X + 24 * W;
        const double gathered = again ? 0 : (7 * X + 12 * W) / (q * q);
        cost(run, again ? "cube, gathered again: sent" : "cube: sent", "elements",
             (q - 1) / n * (operands + 16 * M), cube_bytes(&sent) / sizeof(real));
        cost(run, again ? "cube, gathered again: kept" : "cube: kept", "elements",
             ((again ? 16 : 9) * X + scores) / n + 4 * M / (q * q) + gathered,
             (double)cube_kept_stage(&at, &block, CUBE_SEQUENCES));
        cost(run, again ? "cube, gathered again: parameters" : "cube: parameters", "elements",
             12 * W / n + 13 * h / q, (double)cube_elements_unit(&at, &block, 0));
    }
}

// Checks each kind of context parallelism, with attention alone, on N = 4 ranks with chunks of c
// positions. The unit of sent elements is c HEADS COLUMNS. Without exposed messages, the ranks of
// the ring with contiguous chunks compute for N/(2N-1) of the time on average. The exact fraction
// is a little larger, because a query also attends to its own position. With zigzag all ranks
// compute all the time.
static void context_closed_forms(Run *run) {
    enum { N = 4, CHUNK = 192, HEADS = 8, COLUMNS = 4 };
    static const char *const name[] = { "ring: sent", "zigzag: sent", "RSA: sent",
                                        "Ulysses: sent" };
    static const double units[] = { 6 * N - 4, 6 * N - 4, 8 * (N - 1), 8.0 * (N - 1) / N };
    const ContextSizes z = { 1, N * CHUNK, HEADS, HEADS, COLUMNS, REALS, 1, 0, 0 };
    for (int kind = 0; kind < CONTEXT_KINDS; kind++)
        cost(run, name[kind], "elements", units[kind] * CHUNK * HEADS * COLUMNS,
             context_bytes_sent(kind, z, N) / sizeof(real));
    if (!clock_config()->simulated) return;
    for (int kind = CONTEXT_RING; kind <= CONTEXT_ZIGZAG; kind++) {
        const RingTime ring = context_ring_time(kind, z, N, false);
        const double part = (N * CHUNK + 1.0) / ((2 * N - 1) * CHUNK + 1.0);
        const double busy = ring.busy / (N * ring.step), want = kind == CONTEXT_RING ? part : 1;
        check_true(run, name[kind], "busy in forward", fabs(busy - want) < 1e-9);
    }
}

// Checks the number of tokens, in units of the width, from which SUMMA on q x q ranks receives less
// than 1D.
static void crossovers(Run *run) {
    bool exact = true;
    for (size_t q = 2; q <= 8; q++) {
        const double tokens = tensor_way_crossover(WAY_2D, WAY_1D, q * q);
        exact = exact && fabs(tokens * (8 * (double)q - 13) / 36 - 1) < 1e-9;
    }
    check_true(run, "crossover of 2D and 1D", "36 C/(8q-13)", exact);
}

// Checks the bytes that a block sends in forward for each FLOP, without attention's own products.
static void sent_by_computed(Run *run) {
    const size_t t = run->world->size, MC = SEQUENCES * even.context * even.width;
    const CutSizes z = cut_sizes(&even, t, 0);
    const double flops = work_block(&z, SEQUENCES).flops - 2 * work_scores(&z, SEQUENCES).flops;
    const double ratio = 2 * ring_bytes(ALL_REDUCE_PASSES, t, MC, sizeof(real)) / flops;
    const double want = (double)((t - 1) * sizeof(real)) / (double)(6 * even.width);
    check_true(run, "all-reduces by products", "(t-1) e/(6 C)",
               fabs(ratio - want) < 1e-9 * (want + 1));
}

// ------------------------------------------------ the scale of the default device and links

// BlockTimes has the seconds of a block's forward over t ranks: of its products, of the bytes of
// its two all-reduces, and of their latencies.
typedef struct {
    double products, volume, latency;
} BlockTimes;
static BlockTimes block_times(const ModelConfig *c, size_t t, size_t B, size_t element, double rate,
                              ClockLink link) {
    CutSizes z = cut_sizes(c, t, 0);
    double bytes = 2 * ring_bytes(ALL_REDUCE_PASSES, t, B * z.T * z.C, element),
           messages = 2.0 * 2 * ((double)t - 1);
    return (BlockTimes){ work_block(&z, B).flops / rate, bytes / link.beta, messages * link.alpha };
}

// In a block of the lessons the ratio of the all-reduces' time (without latencies) to the products'
// time must be within 10 % of GPT-3's (Brown et al. 2020, table 2.1). GPT-3 runs on 8 NVIDIA A100s
// with NVLink (300 GB/s each way) and with InfiniBand (HDR, 200 Gbit/s per GPU).
// common/reference.md derives both ratios.
static void scale(Run *run) {
    static const ModelConfig gpt3 = {
        .layers = 96, .width = 12288, .heads = 96, .context = 2048, .vocab = 50257
    };
    static const ModelConfig lesson = {
        .layers = 1, .width = 24, .heads = 4, .context = 12, .vocab = 61
    };
    static const double real_beta[] = { 300e9, 25e9 }, stated[] = { 0.19, 2.3 };
    static const char *const name[] = { "fast", "slow" };
    enum { A100_RANKS = 8, LESSON_RANKS = 4, LESSON_SEQUENCES = 4 };
    const ClockDevice *a100 = clock_devices, *device = clock_devices;
    while (strcmp(a100->name, "a100")) a100++;
    while (strcmp(device->name, "lesson")) device++;
    for (size_t i = 0; i < 2; i++) {
        const ClockLink *link = clock_links;
        while (strcmp(link->name, name[i])) link++;
        BlockTimes real_one =
            block_times(&gpt3, A100_RANKS, 1, 2, a100->flops, (ClockLink){ .beta = real_beta[i] });
        BlockTimes ours =
            block_times(&lesson, LESSON_RANKS, LESSON_SEQUENCES, 4, device->flops, *link);
        double wanted = real_one.volume / real_one.products, got = ours.volume / ours.products;
        say(run,
            "GPT-3's block: products %.3f ms, all-reduces %.3f ms, 1 : %.3f; the lessons' on %s: "
            "1 : %.3f, latency %.2f %% of it\n",
            1e3 * real_one.products, 1e3 * real_one.volume, wanted, name[i], got,
            100 * ours.latency / ours.volume);
        check_true(run, name[i], "GPT-3's ratio is the stated ratio",
                   fabs(wanted / stated[i] - 1) < 0.02);
        check_true(run, name[i], "all-reduces beside products as on A100s",
                   fabs(got / wanted - 1) < 0.1);
        check_true(run, name[i], "latency is a few per cent", ours.latency < 0.03 * ours.volume);
        check_true(run, name[i], "memory beside the fast link as on A100s",
                   i > 0 ||
                       fabs(device->memory / link->beta * real_beta[i] / a100->memory - 1) < 1e-9);
    }
}

static void costs_test(Run *run) {
    static const char *const names[] = { "uneven", "even", "llama" };
    const ModelConfig models[] = { uneven, even, llama };
    for (size_t i = 0; i < 3; i++) {
        const char *name = names[i];
        ModelConfig c = models[i];
        Arena tokens = arena(MEM_WORKSPACE);
        Data d = data_synthetic(c.vocab, c.context, run->seed);
        Batch b = data_batch(&d, &tokens, 0, 0, SEQUENCES, SEQUENCES);
        parameters(run, name, &c);
        one_block(run, name, &c, b);
        whole_model(run, name, &c, b);
        arena_free(&tokens);
        data_free(&d);
    }
    closed_forms(run);
    sequence_closed_forms(run);
    cube_closed_forms(run);
    context_closed_forms(run);
    crossovers(run);
    sent_by_computed(run);
    scale(run);
}
EXPERIMENT(costs_test, NULL);
