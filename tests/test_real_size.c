// test_real_size.c: computes the numbers of the real-size examples ("Use it when, until") of the
// READMEs, references and lesson pages. The program uses only sizes, the cost model
// (common/model/costs.h) and the chapters' formulas. The program prints each number with a few
// words that stand beside the number on the page. tests/real-size.t looks for the number and the
// words on the page. " … " stands for 1 to 120 characters of other words.
//
// ranks: 1
// level: core
// question: Do the real-size examples of the pages follow from the formulas?
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "01_data_parallel/experiments/experiments.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "judge/frame/lesson.h"
#include "judge/frame/presets.h"
#include "common/model/costs.h"
#include "tests/makespan.h"

// These are the models of the examples. An example that needs only the number of parameters takes 7
// billion for the 7B model.
static const ModelConfig xl = {
    .layers = 48, .width = 1600, .heads = 25, .context = 1024, .vocab = 50257
};
static const ModelConfig seven = {
    .layers = 32, .width = 4096, .heads = 32, .context = 2048, .vocab = 32000, .dropout = 0.1
};
static const ModelConfig gpt3 = {
    .layers = 96, .width = 12288, .heads = 96, .context = 2048, .vocab = 50257, .dropout = 0.1
};
// A100 is in FLOP/s. NVLINK and IB are in bytes/s. G converts bytes to GB.
static const double A100 = 312e12, NVLINK = 300e9, IB = 25e9, G = 1e9;
// BF16 is the bytes of an element. MIXED is the bytes of a parameter with its gradient and AdamW's
// state.
enum { BF16 = 2, MIXED = 16 };

static Run *current_run;
static const char *page;
static bool finite_all = true;
static size_t figures;
// Prints one or more numbers with a few words that stand beside them on the page.
__attribute__((format(printf, 1, 2))) static void on_page(const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    finite_all = finite_all && !strstr(text, "nan") && !strstr(text, "inf");
    figures++;
    say(current_run, "%s: %s\n", page, text);
}

static CutSizes cut(const ModelConfig *c, size_t t) { return cut_sizes(c, t, 0); }
// The number of elements that a block keeps per token: kept() counts all elements and the block's
// input, scores() counts the scores alone.
static double kept(const CutSizes *z) { return (double)(z->C + kept_block(z)); }
static double scores(const CutSizes *z) { return (double)kept_scores(z); }
// Returns the bytes that a block keeps for one sequence by Korthikanti's list. An element has 16
// bits, and a mask element has a byte.
static double kept_paper(const CutSizes *z, bool with_scores) {
    return kept_bytes(z, 1, BF16, 1, with_scores);
}
static double all_reduce(size_t n, double elements) {
    return ring_bytes(ALL_REDUCE_PASSES, n, (size_t)elements, BF16);
}
static double pass(size_t n, double elements) {
    return ring_bytes(ONE_PASS, n, (size_t)elements, BF16);
}
// Returns the bubble's share of the makespan, for equal stages and a backward that takes as long as
// two forwards.
static double bubble(size_t p, size_t m) {
    return 1 - (double)(3 * m) / (double)makespan(schedule_1f1b, p, m, 1, 2);
}
// Returns the bytes of state per parameter, in mixed precision.
static double state_of_zero(size_t stage, double n) {
    return stage == 0 ? MIXED : stage == 1 ? 4 + 12 / n : stage == 2 ? 2 + 14 / n : 16 / n;
}

// ---- 01_data_parallel ----

static void data_parallel(void) {
    CutSizes z = cut(&xl, 1);
    double psi = (double)elements_stage(&z), F = work_stage(&z, 8).flops;
    double sent = all_reduce(8, psi), ms = round(1e3 * F / A100);
    page = "01_data_parallel/README.md";
    on_page("7B parameters takes %.0f GB on each device", state_of_zero(0, 8) * 7);
    on_page("2C = %.2f · 10⁹", psi / G);
    on_page("16Ψ = %.1f GB", MIXED * psi / G);
    on_page("%.2f GFLOP / P = %.0f ms", F / 8192 / G, 1e3 * F / A100);
    on_page("3F = %.0f ms", 3 * ms);
    on_page("2 · 7/8 · %.3f GB = %.2f GB", BF16 * psi / G, sent / G);
    on_page("NVLink (300 GB/s): %.0f ms", 1e3 * sent / NVLINK);
    on_page("InfiniBand (25 GB/s per GPU): %.0f ms, %.0f %%", 1e3 * sent / IB,
            100 * sent / IB / (3 * F / A100));
    on_page("backward's %.0f ms. So at least %.0f ms remain", 2 * ms,
            1e3 * (sent / IB - 2 * F / A100));
}

static const ClockLink *link_named(const char *name) {
    const ClockLink *l = clock_links;
    while (l->name && strcmp(l->name, name)) l++;
    return l;
}
// Returns the seconds of an all-reduce over 8 ranks on NVLink.
static double seconds(Way way, double bytes) {
    size_t count = (size_t)(bytes / sizeof(real));
    return 1e-12 * way_time_on(link_named("nvlink"), way, 8, count, sizeof(real));
}
static void all_reduces(void) {
    const ClockLink *l = link_named("nvlink"), *slow = link_named("ethernet");
    double S = 14e9, unit = l->alpha * l->beta, factor = (7 - 3) / (3 - 7.0 / 8), small = 100e3;
    page = "01_data_parallel/03_ring.md";
    on_page("%.1f kB … for this Ethernet and %.0f kB for NVLink", slow->alpha * slow->beta / 1e3,
            unit / 1e3);
    on_page("%.0f µs + %.1f ms = %.1f ms", 14e6 * l->alpha, 1e3 * 14 / 8 * S / l->beta,
            1e3 * seconds(RING, S));
    on_page("%.0f µs + %.1f ms = %.1f ms", 6e6 * l->alpha, 6e3 * S / l->beta,
            1e3 * seconds(TREE, S));
    on_page("%.0f kB · %.2f = %.2f MB", unit / 1e3, factor, unit * factor / 1e6);
    on_page("%.0f µs + %.1f ms = %.1f ms, if the far links", 6e6 * l->alpha,
            1e3 * 14 / 8 * S / l->beta, 1e3 * seconds(HALVING, S));
    on_page("100 kB the tree takes %.1f µs, the ring %.1f µs, and halving-doubling %.1f µs",
            1e6 * seconds(TREE, small), 1e6 * seconds(RING, small), 1e6 * seconds(HALVING, small));
    on_page("370 GB/s, so it takes %.0f ms", 1e3 * 14 / 8 * S / 370e9);
    on_page("275 GB of a tensor per second: %.0f ms", 1e3 * S / 275e9);
}

static void overlapped(void) {
    CutSizes z = cut(&xl, 1);
    double bytes = BF16 * (double)elements_stage(&z), size = 25 * 1048576.0, alpha = 5e-6;
    double F = work_stage(&z, 8).flops / A100, ring = all_reduce(8, bytes / BF16) / IB;
    double at_end = 3 * F + ring;
    double first = 2 * (work_head(&z, 8).flops + work_block(&z, 8).flops) / A100;
    TensorElements of = { .wte = elements_wte(&z), .wpe = elements_unit(&z, 0), .norm = z.C };
    BucketPiece *piece;
    of.norm_bias = z.C;
    elements_tensors(&z, of.block);
    // z has reals and the example has bf16, so equal buckets have different bytes. A bucket gets
    // the same number of elements in z and in the example.
    const size_t capacity = (size_t)size / BF16 * element_size(z.gradient);
    const size_t buckets = bucket_pieces(&z, &of, capacity, &piece);
    const double n = (double)buckets, last = BF16 * (double)piece[buckets - 1].elements;
    free(piece);
    double busy = n * 14 * alpha + ring, end = F + first + busy;
    page = "01_data_parallel/04_overlap.md";
    on_page("Forward %.0f ms, backward %.0f ms … ring %.0f ms", 1e3 * F, 2e3 * F, 1e3 * ring);
    on_page("%.0f + %.0f + %.0f = %.0f ms", 1e3 * F, 2e3 * F, 1e3 * ring, 1e3 * at_end);
    on_page("a tensor: %.0f buckets", n);
    on_page("%.0f · 14 · 5 µs + %.0f ms = %.0f ms", n, 1e3 * ring, 1e3 * busy);
    on_page("%.0f + %.0f = %.0f ms", 1e3 * F, 1e3 * first, 1e3 * (F + first));
    on_page("%.0f + %.0f = %.0f ms", 1e3 * (F + first), 1e3 * busy, 1e3 * end);
    on_page("`wte`: %.0f MB … 1.75 · %.0f MB / β + 14 · 5 µs = %.0f ms",
            BF16 * (double)of.wte / 1e6, last / 1e6, 1e3 * (14.0 / 8 * last / IB + 14 * alpha));
    page = "01_data_parallel/README.md";
    on_page("%.0f − %.0f = %.0f ms are exposed", 1e3 * end, 3e3 * F, 1e3 * end - 3e3 * F);
}

static void server(void) {
    double S = 14, link = IB / G;
    page = "01_data_parallel/05_parameter_server.md";
    on_page("8 · 14 = %.0f GB", 8 * S);
    on_page("%.0f ÷ 25 = %.2f s … then pulls: %.2f s", 8 * S, 8 * S / link, 16 * S / link);
    on_page("2 · 7/8 · 14 = %.1f GB … %.2f s", all_reduce(8, 7e9) / G, all_reduce(8, 7e9) / IB);
    on_page("carries 14 GB: %.2f s to push … overlap pushes: about %.2f s", S / link, S / link);
}

static void compressed(void) {
    double C = 4096, small = 32 * 4 * 16 * C, whole = 12 * C * C * 32;
    double sent = 2 * 7.0 / 8 * 4 * small;
    double exact = all_reduce(8, 7e9), places = 7e9 / 32, top_k = 7 * places * (4 + 2);
    page = "01_data_parallel/06_compression.md";
    on_page("2 · 7/8 · 14 GB = %.1f GB, %.2f s", exact / G, exact / IB);
    on_page("7 · %.1f·10⁸ · (4 + 2) = %.1f GB, %.2f s", places / 1e8, top_k / G, top_k / IB);
    on_page("7·10⁹ elements per GPU, %.0f GB in bf16", 7e9 * BF16 / G);
    page = "01_data_parallel/08_power_sgd.md";
    on_page("32 · 4 · 16C = %.1f·10⁶", small / 1e6);
    on_page("32 · 12C² = %.1f·10⁹", whole / G);
    on_page("2 · 7/8 · %.1f MB = %.0f MB, %.2f ms", 4 * small / 1e6, sent / 1e6, 1e3 * sent / IB);
    on_page("%.1f GB, %.2f s, about %.0f times", exact / G, exact / IB,
            100 * round(exact / sent / 100));
}

static void balance(void) {
    double single = 6 * 7e9 * 2048, t = single / A100, S = 7.5, share = 64 / S, most = ceil(share);
    page = "01_data_parallel/07_balance.md";
    on_page("6 · 7·10⁹ · 2048 = %.1f·10¹³ FLOPs, %.4f s", single / 1e13, t);
    on_page("8 · 2 · %.4f = %.2f s", t, 16 * t);
    on_page("64 ÷ 7.5 = %.2f sequences", share);
    on_page("%.0f for the slow GPU, at most %.0f for each other GPU", floor(share / 2), most);
    on_page("%.0f · %.4f = %.2f s, %.0f %% less", most, t, most * t, 100 * (1 - most / 16));
    on_page("%.2f · %.4f = %.2f s", share, t, share * t);
}

// ---- 02_grad_accumulation ----

static void accumulation(void) {
    CutSizes z = cut(&seven, 1);
    double L = (double)z.blocks, T = (double)z.T, dense = L * (kept(&z) - scores(&z));
    double single = T * dense * BF16, state = state_of_zero(1, 8) * 7e9, sent = all_reduce(8, 7e9);
    double tokens = 256 * T, flops = 6 * 7e9 * tokens, computing = flops / (A100 / 2);
    page = "02_grad_accumulation/README.md";
    on_page("%.0fM tokens has %.0f sequences", 8 * tokens / 1e6, 8 * tokens / T);
    on_page("16LC = %.1fM", dense / 1e6);
    on_page("2048 · %.1fM · 2 B = %.1f GB", dense / 1e6, single / G);
    on_page("256 · %.1f GB = %.1f TB", single / G, 256 * single / 1e12);
    on_page("2 · %.1f GB = %.0f GB", single / G, 2 * single / G);
    on_page("(4 + 12/8) · 7B = %.1f GB", state / G);
    on_page("Sum: %.0f GB", (state + 2 * single) / G);
    on_page("2 · 7/8 · 7B · 2 B = %.1f GB per GPU", sent / G);
    on_page("On InfiniBand (25 GB/s, one GPU per node) the all-reduce takes %.1f s", sent / IB);
    on_page("6 · 7B · %.2fM tokens = %.1f · 10¹⁶ FLOP", tokens / 1e6, flops / 1e16);
    on_page("At half of an A100's 312 TFLOP/s the computation takes %.0f s", computing);
    on_page("`no_sync` takes %.1f %%", 100 * sent / IB / computing);
    on_page("takes %.0f s more", 127 * sent / IB);
}

// ---- 03_tensor_parallel ----

static double ratio(double C, double link) { return 7 * BF16 * A100 / (6 * C * link); }
static void tensor_parallel_sizes(void) {
    CutSizes z = cut(&seven, 8), whole = cut(&seven, 1), g = cut(&gpt3, 8);
    double T = (double)z.T, sent = 4 * all_reduce(8, T * (double)z.C);
    double F = 3 * work_block(&z, 1).flops / A100, all = 32 * BF16 * T / G;
    double psi = (double)elements_stage(&z) / G, psi_whole = (double)elements_stage(&whole) / G;
    double two = 2 * all_reduce(8, (double)(g.T * g.C)), f = work_block(&g, 1).flops;
    double blocks = (double)elements_block(&g), C = (double)g.C;
    double fast = 100 * F / (F + sent / NVLINK), slow = 100 * F / (F + sent / IB);
    page = "03_tensor_parallel/README.md";
    on_page("AdamW | %.0f GB | %.1f GB |", MIXED * psi_whole, MIXED * psi);
    const double flash = all * (kept(&z) - scores(&z));
    const double flash_whole = all * (kept(&whole) - scores(&whole));
    on_page("with stored probabilities | %.1f GB | %.1f GB |", all * kept(&whole), all * kept(&z));
    on_page("with FlashAttention | %.1f GB | %.1f GB |", flash_whole, flash);
    on_page("over NVLink | 100 %% | %.0f %% |", fast);
    on_page("over InfiniBand | 100 %% | %.0f %% |", slow);
    page = "03_tensor_parallel/reference.md";
    on_page("6\\cdot4096$ = %.1f million parameters", (double)elements_block(&z) / 1e6);
    on_page("%.2f billion … %.1f GB, instead of %.0f GB", psi, MIXED * psi, MIXED * psi_whole);
    on_page("%.1f million elements … %.1f GB, instead of %.1f GB", T * kept(&z) / 1e6,
            all * kept(&z), all * kept(&whole));
    on_page("Without the scores … %.1f GB, instead of %.1f GB", flash, flash_whole);
    on_page("%.1f million elements = %.0f MB. These take %.2f ms over NVLink, and %.1f ms over "
            "InfiniBand",
            sent / BF16 / 1e6, sent / 1e6, 1e3 * sent / NVLINK, 1e3 * sent / IB);
    on_page("= %.2f\\cdot10^{11}$ FLOP, which take %.2f ms", F * A100 / 1e11, 1e3 * F);
    on_page("%.0f %% of a step over NVLink, and for %.0f %% over InfiniBand", fast, slow);
    on_page("%.1f million parameters. 96 blocks", blocks / 1e6);
    on_page("96 blocks times 16 bytes: %.0f GB", 96 * MIXED * blocks / G);
    on_page("16 replicas … %.1f GB", 12 * MIXED * blocks / G);
    on_page("= %.2f\\cdot10^{11}$ FLOP, %.2f ms", f / 1e11, 1e3 * f / A100);
    on_page("%.0f MB: %.2f ms over NVLink, %.2f ms over InfiniBand", two / 1e6, 1e3 * two / NVLINK,
            1e3 * two / IB);
    on_page("| GPT-3, NVLink | 12288, 8, 2 | %.2f | %.2f |", ratio(C, NVLINK),
            two / NVLINK / (f / A100));
    on_page("| GPT-3, InfiniBand | 12288, 8, 2 | %.1f | %.1f |", ratio(C, IB),
            two / IB / (f / A100));
}

static void sequences(void) {
    CutSizes z = cut(&gpt3, 8), rows = cut_sequence(z, false), inputs = cut_sequence(z, true);
    double all = kept_paper(&z, true), cut_all = kept_paper(&rows, true);
    double dense = kept_paper(&rows, false), MC = (double)(z.T * z.C), once = pass(8, MC);
    page = "03_tensor_parallel/07_sequence_parallel.md";
    on_page("tensor parallelism | %.1f GB", 96 * all / G);
    on_page("gathered again | %.1f GB", 96 * cut_all / G);
    on_page("selective recomputation | %.1f GB", 96 * dense / G);
    page = "03_tensor_parallel/reference.md";
    on_page("$MC$ = %.1f million", MC / 1e6);
    on_page("MC\\cdot%.0f$ bytes = %.0f MB … %.1f GB", all / MC, all / 1e6, 96 * all / G);
    on_page("MC\\cdot%.2f$ = %.0f MB per block, %.1f GB", cut_all / MC, cut_all / 1e6,
            96 * cut_all / G);
    on_page("MC\\cdot34/8$ = %.0f MB per block", dense / 1e6);
    on_page("%.1f GB in flight. Two inputs", 96 * dense / G);
    on_page("kept whole add %.0f MB", (kept_paper(&inputs, true) - cut_all) / 1e6);
    on_page("Sent per block: %.0f MB, %.2f ms over NVLink", 8 * once / 1e6, 8e3 * once / NVLINK);
    on_page("gathered again %.0f MB, %.2f ms", 10 * once / 1e6, 10e3 * once / NVLINK);
    on_page("products of the block take %.1f ms", 3e3 * work_block(&z, 1).flops / A100);
    on_page("from %.1f MB to %.1f MB", (double)(BF16 * message_elements(&z, 1)) / 1e6,
            (double)(BF16 * message_elements(&rows, 1)) / 1e6);
}

static void one_long_sequence(void) {
    double n = 131072, of_scores = 32 * n * n * BF16, block = n * 16 * 4096 * BF16;
    double tensor = 5.5 / 16 * 32 * block;
    page = "03_tensor_parallel/08_ring_attention.md";
    on_page("scores of one block | %.1f TB", of_scores / 1e12);
    on_page("without scores | %.0f GB", 32 * block / G);
    on_page("over 8 GPUs | %.0f GB", tensor / G);
    on_page("over 4 nodes | %.0f GB", tensor / 4 / G);
    page = "03_tensor_parallel/reference.md";
    on_page("$32 \\cdot 131072^2$ … %.1f TB", of_scores / 1e12);
    on_page("16 \\cdot 4096$ times 2 bytes = %.1f GB", block / G);
    on_page("32 blocks keep %.0f GB", 32 * block / G);
    on_page("4 + 12/8 = %.1f$", 4 + 12.0 / 8);
    on_page("of these 16: %.0f GB … 4 such nodes: %.0f GB", tensor / G, tensor / 4 / G);
    on_page("$c = %.0f$ positions", n / 4);
    on_page("messages hide from … = %.0f$ positions on", BF16 * A100 / IB);
    on_page("NVLink %.0f would be enough", BF16 * A100 / NVLINK);
}

static void grids(void) {
    double C = 12288, BT = 16 * 2048, w = 12 * C / BT; // the weights, in units of BTC
    page = "03_tensor_parallel/grids.md";
    on_page("$BT = %.2fC$ … $12C^2 = %.1f\\,BTC$", BT / C, w);
    on_page("\\frac{63}{64} = %.2f$", 8 * 63.0 / 64);
    on_page("\\frac{21}{64}(7 + %.1f) = %.2f$", w, 21.0 / 64 * (7 + w));
    on_page("\\frac{%.1f}{16} = %.2f$", w, 9.0 / 16 * (7.0 / 4 + w) + 1.5 * w / 16);
    on_page("\\frac{3}{64}(39 + %.1f) = %.2f$", 3 * w, 3.0 / 64 * (39 + 3 * w));
}

// ---- 04_pipeline_naive ----

static void pipeline(void) {
    CutSizes z = cut(&seven, 1), stage = cut_stage(z, 8, 1), g = cut(&gpt3, 8);
    double message = (double)(z.T * z.C * BF16), tp = 4 * all_reduce(8, message / BF16);
    double state = (double)elements_stage(&stage), f = work_stage(&stage, 1).flops;
    double single = 4 * kept(&z) * (double)z.T * BF16, large = 12 * kept(&g) * (double)g.T * BF16;
    page = "04_pipeline_naive/README.md";
    on_page("at most %.1f MB per micro-batch", 2 * message / 1e6);
    on_page("sends %.0f MB per block", tp / 1e6);
    on_page("= %.2f billion", state / G);
    on_page("%.2f billion · 16 bytes = %.1f GB", state / G, MIXED * state / G);
    on_page("would need %.0f GB", MIXED * (double)elements_stage(&z) / G);
    on_page("= %.1f TFLOP, so $f$ = %.1f ms", f / 1e12, 1e3 * f / A100);
    on_page("$TCe$ = %.1f MB, so $d$ = %.2f ms", message / 1e6, 1e3 * message / IB);
    on_page("$m = 8$: 7/15 = %.0f %%", 100 * bubble(8, 8));
    on_page("$m = 32$: 7/39 = %.0f %%", 100 * bubble(8, 32));
    on_page("Te$ = %.1f GB", single / G);
    on_page("32 · %.1f GB = %.0f GB", single / G, 32 * single / G);
    on_page("at most $p$ micro-batches, %.0f GB", 8 * single / G);
    on_page("keeps %.1f GB: 32 stage inputs and one micro-batch", (32 * message + single) / G);
    page = "04_pipeline_naive/reference.md";
    on_page("$m = %d$ micro-batches", 1536 / 16);
    on_page("7/103 = %.1f %%", 100 * bubble(8, 96));
    on_page("%.1f GB per micro-batch, %.0f GB", large / G, 96 * large / G);
}

static void partition(void) {
    CutSizes z = cut(&xl, 1), g = cut(&gpt3, 1);
    double T = (double)z.T, block = work_block(&z, 1).flops / T, head = work_head(&z, 1).flops / T;
    double blocks = head / block, last = 6 + blocks, mean = (48 + blocks) / 8;
    double moved = (double)elements_block(&g);
    page = "04_pipeline_naive/04_partition.md";
    on_page("= %.1f$ MFLOP per token", block / 1e6);
    on_page("= %.1f$ MFLOP per token … %.1f blocks", head / 1e6, blocks);
    on_page("%.1f blocks, %.2f times the mean of %.1f", last, last / mean, mean);
    on_page("largest stage of 7: %.0f %% less than %.1f", 100 * (1 - 7 / last), last);
    on_page("block has %.1f billion parameters", moved / G);
    on_page("%.1f s at 25 GB/s", 12 * moved / IB);
    page = "04_pipeline_naive/reference.md"; // PipeDream's planner
    on_page("(28, 3 \\cdot 13.8) = %.2f$ ms", fmax(8 + 8 + 6 + 4 + 1 + 1, 3 * 13.8) / 4);
    on_page("\\frac83 \\cdot 0.8) = %.2f$ ms", fmax(8 + 8 + 6, 8.0 / 3 * 0.8) / 3);
}

// ---- 05_pipeline_1f1b: GPT-3, p = 8, t = 8, m = 96 ----

static void one_f_one_b(void) {
    CutSizes z = cut(&gpt3, 1);
    double psi = 175e9 / 64, state = MIXED * psi, message = (double)(z.T * z.C * BF16);
    double kept_one = 12 * message, forward = 2 * psi * 2048, f = forward / (A100 / 2);
    double extra = 14.0 / 8 * message / IB, version = BF16 * psi;
    double gpipe = 96 * kept_one + state, ours = 8 * kept_one + state, dream = ours + 7 * version;
    page = "05_pipeline_1f1b/README.md";
    on_page("10^9 / 64 = %.2f \\cdot 10^9$ parameters of 16 bytes: %.2f GB", psi / G, state / G);
    on_page("12288 \\cdot 2$ bytes = %.0f MB", kept_one / 1e6);
    on_page("$96 \\cdot %.0f$ MB = %.2f GB", kept_one / 1e6, 96 * kept_one / G);
    on_page("With the state:* %.1f GB, which does not fit", gpipe / G);
    on_page("$8 \\cdot %.0f$ MB = %.2f GB", kept_one / 1e6, 8 * kept_one / G);
    on_page("With the state:* %.1f GB, which fits", ours / G);
    on_page("$7/103$ = %.1f %%", 100 * bubble(8, 96));
    on_page("*Messages* add [%.1f %%]", 100 * extra / (4 * f));
    page = "05_pipeline_1f1b/reference.md";
    on_page(
        "$m = 48$, with recomputation, keeps %.1f GB of activations, and with the state %.1f GB",
        48 * kept_one / G, (48 * kept_one + state) / G);
    on_page("$7/55$ = %.1f %%", 100 * bubble(8, 48));
    on_page("takes %zu units … with 1F1B %zu", 2 * makespan(schedule_gpipe, 8, 48, 1, 2) / 3,
            makespan(schedule_1f1b, 8, 96, 1, 2) / 3);
    on_page("= %.1f MB per GPU, %.1f ms at 25 GB/s", message / 1e6, 1e3 * message / IB);
    on_page("%.2f \\cdot 10^9 \\cdot 2048 = %.2f \\cdot 10^{13}$ FLOPs, %.0f ms at half", psi / G,
            forward / 1e13, 1e3 * f);
    on_page("Together %.0f ms", 4e3 * f);
    on_page("$14/8 \\cdot %.1f$ ms = %.1f ms per micro-batch, %.1f %% of %.0f ms",
            1e3 * message / IB, 1e3 * extra, 100 * extra / (4 * f), 4e3 * f);
    page = "05_pipeline_1f1b/03_interleaved.md";
    on_page("$f$ = %.0f ms, $b$ = %.0f ms", 1e3 * f, 3e3 * f);
    on_page("$96 + 7/4 = %.2f$ units … %zu. The step is %.1f %% shorter", 96 + 7.0 / 4,
            makespan(schedule_1f1b, 8, 96, 1, 2) / 3, 100 * (1 - (96 + 7.0 / 4) / 103));
    on_page("%.2f units, with 1F1B %zu. The step is %.0f %% shorter", 24 + 7.0 / 4,
            makespan(schedule_1f1b, 8, 24, 1, 2) / 3, 100 * (1 - (24 + 7.0 / 4) / 31));
    on_page("= %d$ chunks … of %.1f MB: %.1f GB. 1F1B: %.1f GB", 2 * 7 + 3 * 8 + 1, message / 1e6,
            39 * 3 * message / G, 8 * kept_one / G);
    on_page("8 of %.1f MB … %.1f ms each at 25 GB/s", message / 1e6, 1e3 * message / IB);
    on_page("chunk's forward takes %.0f ms", 1e3 * f / 4);
    on_page("scatter/gather a message takes %.2f ms", 1e3 * message / IB / 8);
    on_page("all-gather inside the node %.2f ms", 1e3 * message / NVLINK * 7 / 8);
    page = "05_pipeline_1f1b/04_pipedream.md";
    on_page("$%.2f \\cdot 10^9$ parameters per GPU", psi / G);
    on_page("16 bits takes %.2f GB … 7 more than 1F1B: %.1f GB", version / G, 7 * version / G);
    on_page("1F1B's %.1f GB that is %.1f GB", ours / G, dream / G);
    on_page("$7/103$ = %.1f %%", 100 * bubble(8, 96));
    on_page("%.1f GB more", version / G);
    page = "05_pipeline_1f1b/05_pipedream_2bw.md";
    on_page("1F1B needs %.1f GB", ours / G);
    on_page("adds %.1f GB: %.1f GB of 80", version / G, (ours + version) / G);
    on_page("PipeDream would need %.1f GB", dream / G);
    on_page("96 turns instead of %zu: %.1f %% less", makespan(schedule_1f1b, 8, 96, 1, 2) / 3,
            100 * bubble(8, 96));
    on_page("16 turns instead of %zu, %.0f %% less", makespan(schedule_1f1b, 8, 16, 1, 2) / 3,
            100 * bubble(8, 16));
}

static void seven_ways(void) {
    CutSizes z = cut(&gpt3, 1);
    double psi = 175e9 / 64, state = MIXED * psi, message = (double)(z.T * z.C * BF16);
    double single = 12 * message, ours = state + 8 * single, version = BF16 * psi;
    double sent = 2 * 96 * message / G, idle = 100 * bubble(8, 96);
    page = "05_pipeline_1f1b/07_compare.md";
    on_page("state takes %.1f GB, a micro-batch %.0f MB, a message %.1f MB", state / G,
            single / 1e6, message / 1e6);
    on_page("further version %.2f GB", version / G);
    on_page("| naive | %.1f %% | %.1f GB | %.1f GB |", 100 * (1 - 1.0 / 8), (state + single) / G,
            sent);
    on_page("| GPipe | %.1f %% | %.1f GB: too much | %.1f GB |", idle, (state + 96 * single) / G,
            sent);
    on_page("| 1F1B | %.1f %% | %.1f GB | %.1f GB |", idle, ours / G, sent);
    on_page("| interleaved, $v = 2$ | %.1f %% | %.1f + 23 · %.3f = %.1f GB | %.1f GB |",
            100 * 7.0 / (2 * 96 + 7), state / G, single / 2 / G, (state + 23 * single / 2) / G,
            2 * sent);
    on_page("| PipeDream | 0 | %.1f GB: too much | %.1f GB |", (ours + 7 * version) / G, sent);
    on_page("| 2BW | 0 | %.1f GB | %.1f GB |", (ours + version) / G, sent);
}

static void zero_bubble(void) {
    double linear = round(1e3 * 2 * 175e9 / 64 * 2048 / (A100 / 2)), part = 2048 / (6.0 * 12288);
    double a = round(linear * part), F = linear + a, B = linear + 2 * a, W = linear;
    double rest = 7 * (F + B - W), turn = F + B + W, long_1 = 103 * turn, short_1 = 31 * turn;
    page = "05_pipeline_1f1b/06_zero_bubble.md";
    on_page("$\\ell = %.0f$ ms", linear);
    on_page("T/6C = %.1f$ %%", 100 * part);
    on_page("$a = %.0f$ ms, and therefore $F = \\ell + a = %.0f$ ms", a, F);
    on_page("$W = \\ell = %.0f$ ms and $B = \\ell + 2a = %.0f$ ms", W, B);
    on_page("96 \\cdot %.0f$ ms = %.1f s", turn, 96 * turn / 1e3);
    on_page("7 \\cdot %.0f$ ms = %.2f s: %.1f %%", turn, 7 * turn / 1e3, 700 / 103.0);
    on_page("(%.0f + %.0f - %.0f)$ ms = %.2f s: %.1f %%", F, B, W, rest / 1e3,
            100 * rest / (96 * turn + rest));
    on_page("takes %.1f %% less", 100 * (1 - (96 * turn + rest) / long_1));
    on_page("of 1F1B is %.1f %%, the bubble of ZB-H1 %.1f %%. The step is %.1f %% shorter",
            700 / 31.0, 100 * rest / (24 * turn + rest), 100 * (1 - (24 * turn + rest) / short_1));
    // A block keeps T C (10 + 24/t + 5 H T/(C t)) bytes per micro-batch (Korthikanti et al. 2022).
    double token = 2048 * 12288.0, flash = token * (10 + 24 / 8.0), block = flash + token * 10;
    double psi = 175e9 / 64, shard = (4 + 12 / 16.0) * psi;
    on_page("$12 \\cdot 8 \\cdot %.0f$ MB = %.1f GB", block / 1e6, 96 * block / G);
    on_page("state of %.1f GB that does not fit", MIXED * psi / G);
    on_page("a block keeps %.0f MB: %.1f GB. … %.1f GB. Together %.1f GB", flash / 1e6,
            96 * flash / G, shard / G, (96 * flash + shard) / G);
    page = "05_pipeline_1f1b/07_compare.md";
    on_page("FlashAttention, ZeRO-1 | %.1f %% | %.1f GB, on every stage",
            100 * rest / (96 * turn + rest), (96 * flash + shard) / G);
}

// ---- 06_zero ----

static void zero(void) {
    CutSizes z = cut(&gpt3, 1);
    double single = pass(8, 7e9), step = 6 * 7e9 * 8192, computing = step / (A100 / 2);
    double wte = (double)elements_wte(&z) * BF16, block = 12.0 * 12288 * 12288 * BF16;
    double tokens = 1536 * 2048.0 / 1024;
    // hides / (bytes/s of a link) is the number of tokens whose computation takes as long as the
    // three passes of stage 3. With more tokens stage 3 can hide its communication.
    double hides = 3 * 7.0 / 8 * BF16 * (A100 / 2) / 6;
    page = "06_zero/README.md";
    on_page("$16\\cdot7$ | %.0f", 7 * state_of_zero(0, 8));
    on_page("$(4+12/8)\\cdot7$ | %.1f |", 7 * state_of_zero(1, 8));
    on_page("$(2+14/8)\\cdot7$ | %.1f |", floor(70 * state_of_zero(2, 8) + 0.5) / 10);
    on_page("$16/8\\cdot7$ | %.0f |", 7 * state_of_zero(3, 8));
    on_page("\\frac{7}{8}\\cdot14=%.2f$ GB", single / G);
    on_page("then has %.0f GB of state per GPU, not %.0f", 7 * state_of_zero(3, 8),
            7 * state_of_zero(3, 16));
    on_page("\\frac12\\cdot\\frac{14}{8}=%.2f$ GB", 2 * 0.5 * 14 / 8);
    on_page("\\frac{15}{16}\\cdot\\frac{14}{8}=%.1f$ GB", 3 * 15 / 16.0 * 14 / 8);
    page = "06_zero/reference.md";
    on_page("| GB per rank | %.0f | %.1f | %.1f | %.2f |", 7.5 * state_of_zero(0, 64),
            7.5 * state_of_zero(1, 64), 7.5 * state_of_zero(2, 64), 7.5 * state_of_zero(3, 64));
    on_page("$\\frac{7}{8}\\cdot14$ GB | %.2f GB |", single / G);
    on_page("$%.2f/300$ | %.0f ms |", single / G, 1e3 * single / NVLINK);
    on_page("$%.2f/25$ | %.2f s |", single / G, single / IB);
    on_page("$6\\Psi M$ | $%.1f\\cdot10^{14}$ |", step / 1e14);
    on_page("half of 312 TFLOP/s | | %.1f s |", computing);
    on_page("$m=1$, NVLink | 3 passes | %.2f s", 3 * single / NVLINK);
    on_page("\\cdot10^9}$ | %.0f |", hides / NVLINK);
    on_page("$m=1$, InfiniBand | 3 passes | %.2f s", 3 * single / IB);
    on_page("tokens that hide it | | 5,%03.0f |", hides / IB - 5000);
    on_page("$m=3$, InfiniBand | 9 passes | %.1f s |", 9 * single / IB);
    on_page("$%.1f+2\\cdot%.2f$ | %.1f s |", computing, single / IB, computing + 2 * single / IB);
    on_page("$(4+12/1024)\\cdot175$ GB | %.0f GB |", 175 * state_of_zero(1, 1024));
    on_page("$(2+14/1024)\\cdot175$ GB | %.0f GB |", 175 * state_of_zero(2, 1024));
    on_page("$16/1024\\cdot175$ GB | %.1f GB |", 175 * state_of_zero(3, 1024));
    on_page("$50{,}257\\cdot12{,}288\\cdot2$ bytes | %.1f GB |", wte / G);
    on_page("$12\\cdot12{,}288^2\\cdot2$ bytes | %.1f GB |", block / G);
    on_page("$3\\cdot%.1f+2\\cdot%.1f$ | %.0f GB |", wte / G, block / G, (3 * wte + 2 * block) / G);
    on_page("3,%03.0f tokens per GPU | | %.0f s |", tokens - 3000, 6 * 175e9 * tokens / (A100 / 2));
    on_page("the same with one card per node | $3\\cdot%.0f/25$ | %.0f s |", pass(1024, 175e9) / G,
            3 * pass(1024, 175e9) / IB);
    on_page("$(4+12/8)\\cdot175/128$ | %.1f GB, not %.1f |", state_of_zero(1, 8) * 175 / 128,
            16 * 175 / 128.0);
}

// ---- 07_recompute ----

// Prints Korthikanti's sum of a block's items, divided by sbh: a number plus a number times as/h.
// `mask` is the number of bytes of an element's dropout mask.
static void items(size_t element, size_t mask) {
    CutSizes z = cut(&gpt3, 1);
    double sh = (double)(z.T * z.C), as = (double)(z.heads * z.T);
    double all = kept_bytes(&z, 1, element, mask, true);
    double dense = kept_bytes(&z, 1, element, mask, false);
    on_page("%.0f + %.0f \\frac{as}{h}", dense / sh, (all - dense) / ((double)z.T * as));
}

// Prints figure 7 of Korthikanti: activations in percent of those with tensor parallelism alone, t
// = 8.
static void figure7(const char *name, size_t heads, size_t width) {
    ModelConfig c = gpt3;
    c.heads = heads;
    c.width = width;
    CutSizes z = cut(&c, 8), rows = cut_sequence(z, false);
    double base = kept_paper(&z, true) / 100, full = (double)(BF16 * z.T * z.C);
    on_page("| %s | %.1f | %.1f | %.1f | %.1f |", name, kept_paper(&rows, true) / base,
            kept_paper(&z, false) / base, kept_paper(&rows, false) / base, full / base);
}

static void recomputation(void) {
    CutSizes z = cut(&gpt3, 8), whole = cut(&gpt3, 1);
    double sbh = (double)(z.T * z.C), all = kept_paper(&z, true), dense = kept_paper(&z, false);
    double state = 16 * 175 / 128.0, h = (double)z.C, s = (double)z.T, full = BF16 * sbh;
    double n = all / full, k = round(sqrt(16 * 6 / n)), F = work_block(&whole, 1).flops;
    double work = 100 * 4 * s * s * h / (3 * F);
    double more = 100 * s / (6 * h + s), more_530 = 100 * s / (6 * 20480 + s);
    double left = (all - dense) / G, room = (54 - 96 * dense / G) / (16 * left);
    page = "07_recompute/README.md";
    on_page("%.1f GB of state", state);
    on_page("| none | %.1f GB | %.0f GB | none |", 96 * all / G, state + 96 * all / G);
    // Unsplit repeats the product q k^T, but not p v.
    on_page("| selective | %.1f GB | %.0f GB | %.2f %% (%.1f %% if the product", 96 * dense / G,
            state + (96 * dense + all - dense) / G, work / 2, work);
    on_page("| full | %.1f GB | %.0f GB | %.0f %% |", 96 * full / G, state + (96 * full + all) / G,
            100 * F / (3 * F));
    page = "07_recompute/reference.md";
    on_page("%.1f %% of the forward for 175B and %.1f %% for 530B", more, more_530);
    on_page("they are %.2f %% and %.2f %%", more / 3, more_530 / 3);
    items(2, 1);
    items(4, 1);
    items(4, 0);
    figure7("22B", 64, 6144);
    figure7("175B", 96, 12288);
    figure7("530B, 1T", 128, 20480);
    figure7("530B, 1T", 160, 25600);
    on_page("$16 \\cdot 6$ | %d |", 16 * 6);
    on_page("2048 \\cdot 12288$ | %.1fM |", sbh / 1e6);
    on_page("2048 / 12288$ | %.0f |", 96 * s / h);
    on_page("= %.0f\\,sbh$ | %.0f MB, all %.1f GB |", all / sbh, all / 1e6, 96 * all / G);
    on_page("10^9/128$ | %.1f GB |", state);
    on_page("$%.0f\\,sbh$ | %.0f MB, all %.1f GB", dense / sbh, dense / 1e6, 96 * dense / G);
    on_page("| %.1f %%; ours half |", work);
    on_page("$2\\,sbh$ | %.0f MB, all %.1f GB, and %.1f GB", full / 1e6, 96 * full / G, all / G);
    on_page("6/%.1f} \\approx %.0f$ | %.1f GB instead of %.1f |", n, k,
            ((96 / k) * full + k * all) / G, (96 * full + all) / G);
    page = "07_recompute/04_budget.md";
    on_page("block takes %.0f MB, or %.0f MB", all / 1e6, dense / 1e6);
    on_page("$96 \\cdot %.3f = %.1f$ GB", dense / G, 96 * dense / G);
    on_page("So %.0f GB are left", 80 - state - 4);
    on_page("$16 \\cdot (%.3f - %.3f) = %.2f$ GB", all / G, dense / G, 16 * left);
    on_page("$(54 - %.1f)/%.2f = %.1f$. So five of the six", 96 * dense / G, 16 * left, room);
    on_page("the items take %.1f GB", 96 * dense / G);
}

// ---- 08_3d ----

static void three_d(void) {
    CutSizes z = cut(&gpt3, 8), whole = cut(&gpt3, 1);
    double slice = 12 * 12.0 * 12288 * 12288 / 8, zero1 = state_of_zero(1, 16) * slice;
    double all = kept_paper(&z, true), dense = kept_paper(&z, false);
    double forward = work_block(&whole, 1).flops / 8 / A100, step = 3 * forward * 12 * 96;
    double message = (double)(z.T * z.C * BF16), sent = 2 * message * 96;
    double single = all_reduce(8, message / BF16), tp = 4 * single * 12 * 96,
           dp = all_reduce(16, slice);
    double idle = 1 / (1 - bubble(8, 96)) - 1, cache = 96 * 2 * message;
    page = "08_3d/README.md";
    on_page("with ZeRO-1 and gradients in 16 bits | %.1f GB |", zero1 / G);
    on_page("selective recomputation | %.1f GB |", 96 * dense / G);
    on_page("at the peak rate | | %.1f s |", step);
    on_page("bubble | | %.2f s |", idle * step);
    on_page("tensor parallel, inside the node | %.0f GB | %.2f s |", tp / G, tp / NVLINK);
    on_page("pipeline, between nodes | %.1f GB | %.2f s", sent / G, sent / IB);
    on_page("data parallel, between nodes | %.1f GB | %.2f s |", dp / G, dp / IB);
    page = "08_3d/reference.md";
    on_page("%.2f·10⁹ parameters per rank", slice / G);
    on_page("16 bytes each … %.1f GB", MIXED * slice / G);
    on_page("4 + 12/16 bytes each: %.1f GB", zero1 / G);
    on_page("= %.0f MB per sequence", all / 1e6);
    on_page("12 × 8 × %.0f MB = %.1f GB", all / 1e6, 96 * all / G);
    on_page("selective recomputation) %.0f MB per block: %.1f GB", dense / 1e6, 96 * dense / G);
    on_page("forward takes %.2f ms on 8 devices", 1e3 * forward);
    on_page("forward and backward %.1f ms", 3e3 * forward);
    on_page("m = 1536/16 = %d micro-batches × 12 blocks: %.1f s", 1536 / 16, step);
    on_page("4 × %.1f MB × 12 × 96 = %.0f GB", single / 1e6, tp / G);
    on_page("300 GB/s: %.2f s. Over one network card, at 25 GB/s, the time would be %.1f s",
            tp / NVLINK, tp / IB);
    on_page("2 × %.1f MB × 96 = %.1f GB. - At 25 GB/s: %.2f s", message / 1e6, sent / G, sent / IB);
    on_page("(pp−1)/m = 7/96 = %.1f %%", 100 * idle);
    on_page("2·15/16 · %.2f·10⁹ · 2 bytes = %.1f GB. - At 25 GB/s: %.2f s", slice / G, dp / G,
            dp / IB);
    page = "08_3d/sample.md";
    on_page("12288 · 2 bytes = %.1f GB", cache / G);
    on_page("at tp 8: %.1f GB", cache / 8 / G);
    const double weights = (double)config_parameters(&gpt3) * BF16 / 8, hbm = 2039 * G;
    on_page("At tp 8 the weights are %.1f GB, which take an A100 (2039 GB/s) %.0f ms", weights / G,
            1e3 * weights / hbm);
    on_page("The %d all-reduces of about 10 µs take %.0f ms", 2 * 96, 2 * 96 * 1e-2);
}

static void real_size(Run *run) {
    current_run = run;
    data_parallel();
    all_reduces();
    overlapped();
    server();
    compressed();
    balance();
    accumulation();
    tensor_parallel_sizes();
    sequences();
    one_long_sequence();
    grids();
    pipeline();
    partition();
    one_f_one_b();
    seven_ways();
    zero_bubble();
    zero();
    recomputation();
    three_d();
    check_true(run, "real sizes", "all figures are finite", finite_all && figures > 0);
}
EXPERIMENT(real_size, NULL);
