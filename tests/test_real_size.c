// test_real_size.c: the figures of the READMEs' real-size examples ("Use it when, until"), computed by the cost model
// (common/model/costs.h) and the chapters' formulas from sizes alone. Prints each as it must stand on its page;
// tests/real-size.t looks for it there.
//
// ranks: 1
// level: core
// question: Do the real-size examples of the pages follow from the formulas?
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "01_data_parallel/experiments/experiments.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "judge/frame/lesson.h"
#include "common/model/costs.h"

// The models. 7B: the round 7 billion of the pages is not this one's number of parameters where only Psi counts.
static const ModelConfig xl = { .layers = 48, .width = 1600, .heads = 25, .context = 1024, .vocab = 50257 };
static const ModelConfig seven = { .layers = 32, .width = 4096, .heads = 32, .context = 2048, .vocab = 32000,
                                   .dropout = 0.1 };
static const ModelConfig gpt3 = { .layers = 96, .width = 12288, .heads = 96, .context = 2048, .vocab = 50257,
                                  .dropout = 0.1 };
static const double A100 = 312e12, NVLINK = 300e9, IB = 25e9, G = 1e9;     // FLOP/s, bytes/s
enum { BF16 = 2,
    MIXED = 16 };                 // bytes of an element; of a parameter with its gradient and AdamW's state

static Run *here;
static const char *page;
static bool finite_all = true;
static size_t figures;
// One figure, in the words around it on the page.
__attribute__((format(printf, 1, 2))) static void on_page(const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    finite_all = finite_all && !strstr(text, "nan") && !strstr(text, "inf");
    figures++;
    say(here, "%s: %s\n", page, text);
}

static CutSizes cut(const ModelConfig *c, size_t t) { return cut_sizes(c, t, 0); }
// Elements per token of a block, its input too: all; the scores alone.
static double kept(const CutSizes *z) { return (double)(z->C + kept_block(z)); }
static double scores(const CutSizes *z) { return (double)kept_scores(z); }
// Korthikanti's list: bytes per token of a block in 16 bits, masks a byte each, without the norms' statistics.
static double kept_paper(const CutSizes *z, bool with_scores) {
    KeptItem item[KEPT_ITEMS];
    double bytes = 0;
    kept_items(z, item);
    for (size_t i = 0; i < KEPT_ITEMS; i++)
        if (item[i].kind != KEPT_STATISTICS && (with_scores || item[i].kind != KEPT_SCORES))
            bytes += (double)(BF16 * item[i].elements + item[i].masks);
    return bytes;
}
static double all_reduce(size_t n, double elements) { return ring_bytes(ALL_REDUCE_PASSES, n, (size_t)elements, BF16); }
static double pass(size_t n, double elements) { return ring_bytes(ONE_PASS, n, (size_t)elements, BF16); }
static double bubble(size_t p, size_t m) { // of the makespan, equal stages, a backward of two forwards
    return 1 - (double)(3 * m) / (double)makespan(schedule_1f1b, p, m, 1, 2);
}
static double state_of_zero(size_t stage, double n) {      // bytes per parameter, mixed precision
    return stage == 0 ? MIXED : stage == 1 ? 4 + 12 / n : stage == 2 ? 2 + 14 / n : 16 / n;
}

static void data_parallel(void) {
    CutSizes z = cut(&xl, 1);
    double psi = (double)elements_stage(&z), F = work_stage(&z, 8).flops, sent = all_reduce(8, psi);
    page = "01_data_parallel/README.md";
    on_page("7B parameters on 8 GPUs: 16 · 7 GB = %.0f GB on each of the eight", state_of_zero(0, 8) * 7);
    on_page("Ψ = VC + TC + L(12C² + 13C) + 2C = %.2f · 10⁹", psi / G);
    on_page("16Ψ = %.1f GB: fits", MIXED * psi / G);
    on_page("F(8) = 8192 · %.2f GFLOP / P = %.0f ms, so 3F = %.0f ms", F / 8192 / G, 1e3 * F / A100,
            3 * round(1e3 * F / A100));
    on_page("2 · 7/8 · %.2f GB = %.2f GB, the gradient in bf16", BF16 * psi / G, sent / G);
    on_page("NVLink (300 GB/s): %.0f ms, %.0f %% of computing", 1e3 * sent / NVLINK,
            100 * sent / NVLINK / (3 * F / A100));
    on_page("InfiniBand (25 GB/s per GPU): %.0f ms, %.0f %%", 1e3 * sent / IB, 100 * sent / IB / (3 * F / A100));
    on_page("at most the backward's %.0f ms, so on InfiniBand at least %.0f ms remain", 2 * round(1e3 * F / A100),
            1e3 * (sent / IB - 2 * F / A100));
}

static const ClockLink *link_named(const char *name) {
    const ClockLink *l = clock_links;
    while (l->name && strcmp(l->name, name)) l++;
    return l;
}
static double seconds(Way way, double bytes) {     // an all-reduce over 8 ranks on NVLink
    return 1e-12 * way_time_on(link_named("nvlink"), way, 8, (size_t)(bytes / sizeof(real)));
}
static void all_reduces(void) {
    const ClockLink *l = link_named("nvlink");
    double S = 14e9, unit = l->alpha * l->beta, factor = (7 - 3) / (3 - 7.0 / 8), small = 100e3;
    page = "01_data_parallel/03_ring.md";
    on_page("14α + 14/8 · S/β = %.0f µs + %.1f ms = %.1f ms", 14e6 * l->alpha, 1e3 * 14 / 8 * S / l->beta,
            1e3 * seconds(RING, S));
    on_page("6α + 6 S/β = %.0f µs + %.1f ms: %.1f times as long", 6e6 * l->alpha, 6e3 * S / l->beta,
            seconds(TREE, S) / seconds(RING, S));
    on_page("%.0f kB · %.2f = %.2f MB. An all-reduce of 100 kB is faster by the tree: %.1f µs against %.1f µs",
            unit / 1e3, factor, unit * factor / 1e6, 1e6 * seconds(TREE, small), 1e6 * seconds(RING, small));
}

static void overlapped(void) {
    CutSizes z = cut(&xl, 1);
    double F = work_stage(&z, 8).flops / A100, ring = all_reduce(8, (double)elements_stage(&z)) / IB;
    double at_end = 3 * F + ring;
    double bytes = BF16 * (double)elements_stage(&z), size = 25 * 1048576.0, alpha = 5e-6, n = ceil(bytes / size);
    double wire = 14.0 / 8 * size / IB, first = 2 * (work_head(&z, 8).flops + work_block(&z, 8).flops) / A100;
    double busy = n * 14 * alpha + ring;
    page = "01_data_parallel/04_overlap.md";
    on_page("Forward %.0f ms, backward %.0f ms, the gradient's ring %.0f ms. At the end: %.0f + %.0f + %.0f = %.0f "
            "ms", 1e3 * F, 2e3 * F, 1e3 * ring, 1e3 * F, 2e3 * F, 1e3 * ring, 1e3 * at_end);
    on_page("%.2f GB / %.1f MB = %.0f buckets, each 14 · 5 µs + 1.75 · %.1f MB / β = %.2f + %.2f = %.2f ms; all "
            "%.0f take %.0f ms",
            bytes / G, size / 1e6, n, size / 1e6, 14e3 * alpha, 1e3 * wire, 1e3 * (14 * alpha + wire), n, 1e3 * busy);
    on_page("%.0f + %.0f = %.0f ms. From then on the link is busy: %.0f + %.0f = %.0f ms",
            2e3 * work_head(&z, 8).flops / A100, 2e3 * work_block(&z, 8).flops / A100, 1e3 * first,
            1e3 * (F + first), 1e3 * busy, 1e3 * (F + first + busy));
    on_page("lower bound is %.0f ms", 3 * round(1e3 * F));
}

static void server(void) {
    double S = 14, link = IB / G;
    page = "01_data_parallel/05_parameter_server.md";
    on_page("8 · 14 = %.0f GB: 112 ÷ 25 = %.2f s in", 8 * S, 8 * S / link);
    on_page("2 · 7/8 · 14 = %.1f GB per rank: %.2f s", all_reduce(8, 7e9) / G, all_reduce(8, 7e9) / IB);
    on_page("carries 14 GB: %.2f s each way", S / link);
    on_page("one pull alone takes %.0f s", 350 / link);
}

static void compressed(void) {
    double C = 4096, small = 32 * 4 * 16 * C, whole = 12 * C * C * 32, sent = 2 * 7.0 / 8 * 4 * small;
    double places = 7e9 / 32, top_k = 7 * places * (4 + 2);
    page = "01_data_parallel/06_compression.md";
    on_page("2 · 7/8 · 14 GB = %.1f GB, %.2f s", all_reduce(8, 7e9) / G, all_reduce(8, 7e9) / IB);
    page = "01_data_parallel/08_power_sgd.md";
    on_page("32 · 4 · 16C = %.1f·10⁶ elements of 12C² · 32 = %.1f·10⁹", small / 1e6, whole / G);
    on_page("2 · 7/8 · %.1f MB = %.0f MB: %.2f ms", 4 * small / 1e6, sent / 1e6, 1e3 * sent / IB);
    page = "01_data_parallel/06_compression.md";
    on_page("7 · %.1f·10⁸ · (4 + 2) = %.1f GB, %.2f s", places / 1e8, top_k / G, top_k / IB);
}

static void balance(void) {
    double one = 6 * 7e9 * 2048, t = one / A100, S = 7.5;
    page = "01_data_parallel/07_balance.md";
    on_page("6 · 7·10⁹ · 2048 = %.1f·10¹³ FLOPs, %.3f s. Equal shares: 8 · 2 · %.3f = %.2f s", one / 1e13, t, t,
            16 * t);
    on_page("64 ÷ 7.5 = %.2f sequences per unit of speed", 64 / S);
    on_page("9 · %.3f = %.2f s, %.0f %% less; the ideal is 64 · %.3f ÷ 7.5 = %.2f s", t, 9 * t, 100 * (1 - 9 / 16.0), t,
            64 * t / S);
}

static void accumulation(void) {
    CutSizes z = cut(&seven, 1);
    double L = (double)z.blocks, T = (double)z.T, all = L * kept(&z), some = L * scores(&z), dense = all - some;
    double one = T * dense * BF16, state = state_of_zero(1, 8) * 7e9, sent = all_reduce(8, 7e9), tokens = 256 * T;
    double flops = 6 * 7e9 * tokens, computing = flops / (A100 / 2);
    page = "02_grad_accumulation/README.md";
    on_page("K ≈ 16LC + 2LHT = %.1fM + %.1fM = %.1fM elements; one sequence keeps 2048 · %.1fM · 2 B = %.1f GB",
            dense / 1e6,
            some / 1e6, all / 1e6, all / 1e6, T * all * BF16 / G);
    on_page("K ≈ 16LC: %.1f GB", one / G);
    on_page("256 · %.1f GB = %.1f TB per GPU. In m = 128 micro-batches of 2 sequences: %.0f GB", one / G,
            256 * one / 1e12,
            2 * one / G);
    on_page("(4 + 12/8) · 7B = %.1f GB", state / G);
    on_page("Together %.0f GB of an 80 GB GPU", (state + 2 * one) / G);
    on_page("2 · 7/8 · 7B · 2 B = %.1f GB per GPU and step", sent / G);
    on_page("that is %.1f s", sent / IB);
    on_page("6 · 7B · %.2fM tokens", tokens / 1e6);
    on_page("= %.1f · 10¹⁶ FLOP, or %.0f s at half of an A100's 312 TFLOP/s", flops / 1e16, computing);
    on_page("`no_sync` loses %.1f %%; forgetful, 128 times that, would take %.0f s more", 100 * sent / IB / computing,
            127 * sent / IB);
}

static void tensor_parallel_sizes(void) {
    CutSizes z = cut(&seven, 8), whole = cut(&seven, 1), g = cut(&gpt3, 8);
    double sh = (double)(z.T * z.C), h = (double)z.C, sent = 4 * all_reduce(8, sh), F = 3 * work_block(&z, 1).flops;
    double GH = (double)(g.T * g.C), two = 2 * all_reduce(8, GH), f = work_block(&g, 1).flops, blocks = 0;
    page = "03_tensor_parallel/README.md";
    on_page("12\\cdot4096^2/8 + 7\\cdot4096/8 + 6\\cdot4096 = %.1f$ million parameters per GPU",
            (double)elements_block(&z) / 1e6);
    on_page("make %.2f billion", (double)elements_stage(&z) / G);
    on_page("**%.1f GB**, instead of %.0f GB", MIXED * (double)elements_stage(&z) / G,
            MIXED * (double)elements_stage(&whole) / G);
    on_page("= %.1f$ million elements per block, $\\times\\,2$ bytes $\\times\\,32$ = **%.1f GB**, instead of %.1f GB",
            (double)z.T * kept(&z) / 1e6, 32 * BF16 * (double)z.T * kept(&z) / G,
            32 * BF16 * (double)z.T * kept(&whole) / G);
    on_page("= %.1f$ million elements = %.0f MB per block: %.2f ms at 300 GB/s (NVLink), %.1f ms at 25 GB/s "
            "(InfiniBand)",
            sent / BF16 / 1e6, sent / 1e6, 1e3 * sent / NVLINK, 1e3 * sent / IB);
    on_page("= %.2f\\cdot10^{11}$ FLOP, take %.2f ms", F / 1e11, 1e3 * F / A100);
    on_page("Over NVLink the ranks compute %.0f %% of the time, over InfiniBand %.0f %%",
            100 * (F / A100) / (F / A100 + sent / NVLINK), 100 * (F / A100) / (F / A100 + sent / IB));
    on_page("=%.2f$, with the scores %.2f", 7 * BF16 * A100 / (9 * h * NVLINK), sent / NVLINK / (F / A100));
    blocks = (double)elements_block(&g);
    on_page("a block has %.1f million parameters per GPU; 96 blocks with 16 bytes per parameter are %.0f GB",
            blocks / 1e6,
            96 * MIXED * blocks / G);
    on_page("it is **%.1f GB** for the blocks", 12 * MIXED * blocks / G);
    on_page("= %.2f\\cdot10^{11}$ FLOP, %.2f ms; two all-reduces, %.0f MB, %.2f ms over NVLink and %.2f ms over "
            "InfiniBand",
            f / 1e11, 1e3 * f / A100, two / 1e6, 1e3 * two / NVLINK, 1e3 * two / IB);
    on_page("InfiniBand: 1 : %.2f : %.1f", two / NVLINK / (f / A100), two / IB / (f / A100));
}

static void pipeline(void) {
    CutSizes z = cut(&seven, 1), stage = cut_stage(z, 8, 1), t8 = cut(&seven, 8), g = cut(&gpt3, 8);
    double message = (double)(z.T * z.C * BF16), tp = 4 * all_reduce(8, message / BF16);
    double state = (double)elements_stage(&stage), f = work_stage(&stage, 1).flops;
    double one = 4 * kept(&z) * (double)z.T * BF16, large = 12 * kept(&g) * (double)g.T * BF16;
    (void)t8;
    page = "04_pipeline_naive/README.md";
    on_page("at most %.1f MB per micro-batch, both ways", 2 * message / 1e6);
    on_page("sends %.0f MB per block (chapter 03), for 32 blocks %.1f GB", tp / 1e6, 32 * tp / G);
    on_page("= %.2f billion parameters, %.1f GB per stage; one device would hold 8 times that and the embedding, "
            "%.0f GB",
            state / G, MIXED * state / G, MIXED * (double)elements_stage(&z) / G);
    on_page("= %.1f TFLOP, so $f$ = %.1f ms. Message: $TCe$ = %.1f MB, so $d$ = %.2f ms", f / 1e12, 1e3 * f / A100,
            message / 1e6, 1e3 * message / IB);
    on_page("Bubble: 7/15 = %.0f %% at $m = 8$, 7/39 = %.0f %% at $m = 32$", 100 * bubble(8, 8), 100 * bubble(8, 32));
    on_page("= %.1f GB per micro-batch, %.0f GB at $m = 32$", one / G, 32 * one / G);
    on_page("at most $p$ micro-batches, %.0f GB", 8 * one / G);
    on_page("keep stage inputs, %.2f GB, and %.1f GB of one", 32 * message / G, one / G);
    on_page("175 \\cdot 10^9 \\cdot 16$ bytes = %.1f TB", MIXED * 175 * G / 1e12);
    on_page("a GPU holds 1/64: %.0f GB", MIXED * 175.0 / 64);
    on_page("each gets $m = %d$ micro-batches of one: bubble 7/103 = %.1f %%", 1536 / 16, 100 * bubble(8, 96));
    on_page("a GPU keeps %.1f GB of each, %.0f GB", large / G, 96 * large / G);
}

static void one_f_one_b(void) {
    CutSizes z = cut(&gpt3, 1);
    double parameters = 175e9 / 64, state = MIXED * parameters, input = (double)(z.T * z.C * BF16),
        kept_one = 12 * input;
    double message = input, forward = 2 * parameters * 2048, f = forward / (A100 / 2);
    double extra = 14.0 / 8 * message / IB;
    page = "05_pipeline_1f1b/README.md";
    on_page("175·10⁹ / (8·8) = %.2f·10⁹ parameters; with AdamW in mixed precision 16 bytes each: %.1f GB",
            parameters / G,
            state / G);
    on_page("12 blocks · 2048 · 12288 · 2 bytes = %.0f MB per GPU", kept_one / 1e6);
    on_page("96 · %.0f MB = %.1f GB. With the state %.1f GB: it does not fit", kept_one / 1e6, 96 * kept_one / G,
            (96 * kept_one + state) / G);
    on_page("two of $m = 48$ (%.1f GB, together %.1f GB)", 48 * kept_one / G, (48 * kept_one + state) / G);
    on_page("= 8 micro-batches: %.1f GB, together %.1f GB", 8 * kept_one / G, (8 * kept_one + state) / G);
    on_page("1F1B 7/103 = %.1f %%; GPipe in two parts 7/55 = %.1f %%", 100 * bubble(8, 96), 100 * bubble(8, 48));
    on_page("The step takes %zu units $t_f+t_b$ against %zu", makespan(schedule_1f1b, 8, 96, 1, 2) / 3,
            2 * makespan(schedule_gpipe, 8, 48, 1, 2) / 3);
    on_page("2048 · 12288 · 2 bytes = %.1f MB per GPU, %.1f ms at 25 GB/s each", message / 1e6, 1e3 * message / IB);
    on_page("2 · 2.73·10⁹ · 2048 = %.2f·10¹³ FLOPs, %.0f ms at half of an", forward / 1e13, 1e3 * f);
    on_page("14/8 · %.1f ms = %.1f ms per micro-batch of %.0f ms: %.1f %%", 1e3 * message / IB, 1e3 * extra, 4e3 * f,
            100 * extra / (4 * f));
}

static void zero(void) {
    CutSizes z = cut(&gpt3, 1);
    double one = pass(8, 7e9), step = 6 * 7e9 * 8192, computing = step / (A100 / 2);
    double wte = (double)elements_wte(&z) * BF16, block = 12.0 * 12288 * 12288 * BF16, tokens = 1536 * 2048.0 / 1024;
    // Stage 3 hides where three passes take no longer than computing M tokens.
    double hides = 3 * 7.0 / 8 * BF16 * (A100 / 2) / 6;
    page = "06_zero/README.md";
    on_page("| data parallel | $16\\cdot7$ | %.0f, too much |", 7 * state_of_zero(0, 8));
    on_page("| ZeRO-1 | $(4+12/8)\\cdot7$ | %.1f |", 7 * state_of_zero(1, 8));
    on_page("| ZeRO-2 | $(2+14/8)\\cdot7$ | %.1f |", floor(70 * state_of_zero(2, 8) + 0.5) / 10);
    on_page("| ZeRO-3 | $16/8\\cdot7$ | %.0f |", 7 * state_of_zero(3, 8));
    on_page("$\\frac{7}{8}\\cdot14=%.2f$ GB", one / G);
    page = "06_zero/reference.md";
    on_page("$\\frac{7}{8}\\cdot14$ GB | %.2f GB |", one / G);
    on_page("$12.25/300$ | %.0f ms |", 1e3 * one / NVLINK);
    on_page("$12.25/25$ | %.2f s |", one / IB);
    on_page("$6\\Psi M$ | $%.1f\\cdot10^{14}$ |", step / 1e14);
    on_page("half of 312 TFLOP/s | | %.1f s |", computing);
    on_page("stage 3, $m=1$, NVLink | 3 passes | %.2f s, hidden |", 3 * one / NVLINK);
    on_page("\\cdot10^9}$ | %.0f |", hides / NVLINK);
    on_page("stage 3, $m=1$, InfiniBand | 3 passes | %.2f s, hidden |", 3 * one / IB);
    on_page("tokens that hide it | | 5,%03.0f |", hides / IB - 5000);
    on_page("stage 3, $m=3$, InfiniBand | 9 passes | %.1f s |", 9 * one / IB);
    on_page("$2.2+2\\cdot%.2f$ | %.1f s |", one / IB, computing + 2 * one / IB);
    on_page("$(4+12/1024)\\cdot175$ GB | %.0f GB |", 175 * state_of_zero(1, 1024));
    on_page("$(2+14/1024)\\cdot175$ GB | %.0f GB |", 175 * state_of_zero(2, 1024));
    on_page("$16/1024\\cdot175$ GB | %.1f GB |", 175 * state_of_zero(3, 1024));
    on_page("$50{,}257\\cdot12{,}288\\cdot2$ bytes | %.1f GB |", wte / G);
    on_page("$12\\cdot12{,}288^2\\cdot2$ bytes | %.1f GB |", block / G);
    on_page("$3\\cdot%.1f+2\\cdot%.1f$ | %.0f GB |", wte / G, block / G, (3 * wte + 2 * block) / G);
    on_page("computation of 3,%03.0f tokens per GPU | | %.0f s |", tokens - 3000, 6 * 175e9 * tokens / (A100 / 2));
    on_page("three passes of %.0f GB | $3\\cdot350/25$ | %.0f s |", pass(1024, 175e9) / G,
            3 * pass(1024, 175e9) / IB);
    on_page("$(4+12/8)\\cdot175/128$ | %.1f GB, not %.1f |", state_of_zero(1, 8) * 175 / 128, 16 * 175 / 128.0);
}

static void recomputation(void) {
    CutSizes z = cut(&gpt3, 8);
    double sbh = (double)(z.T * z.C), all = kept_paper(&z, true) * (double)z.T, dense = kept_paper(&z,
        false) * (double)z.T;
    double state = 16 * 175 / 128.0, h = (double)z.C, s = (double)z.T, full = BF16 * sbh, n = all / full;
    double k = sqrt(16 * 6 / n);
    CutSizes whole = cut(&gpt3, 1);
    double work = 100 * 4 * s * s * h / (3 * work_block(&whole, 1).flops);
    page = "07_recompute/README.md";
    on_page("| none | %.1f GB | %.0f GB | |", 96 * all / G, state + 96 * all / G);
    on_page("| selective | %.1f GB | %.0f GB | %.1f %% |", 96 * dense / G,
            state + (96 * dense + all - dense) / G, work);
    on_page("| full | %.1f GB | %.0f GB |", 96 * full / G, state + (96 * full + all) / G);
    page = "07_recompute/reference.md";
    on_page("$sbh = 2048 \\cdot 12288$ | %.1fM |", sbh / 1e6);
    on_page("= %.0f\\,sbh$ | %.0f MB, all %.1f GB |", all / sbh, all / 1e6, 96 * all / G);
    on_page("$16 \\cdot 175 \\cdot 10^9/128$ | %.1f GB |", state);
    on_page("$%.0f\\,sbh$ | %.0f MB, all %.1f GB, and one block's", dense / sbh, dense / 1e6, 96 * dense / G);
    on_page("| %.1f %%; ours half |", work);
    on_page("$2\\,sbh$ | %.0f MB, all %.1f GB, and %.1f GB for the block at work |", full / 1e6,
            96 * full / G, all / G);
    on_page("$k = \\sqrt{16 \\cdot 6/%.1f} \\approx %.0f$ | %.1f GB instead of %.1f |", n, k,
            ((96 / round(k)) * full + round(k) * all) / G, (96 * full + all) / G);
}

static void three_d(void) {
    CutSizes z = cut(&gpt3, 8), whole = cut(&gpt3, 1);
    double slice = 12 * 12.0 * 12288 * 12288 / 8, all = kept_paper(&z, true) * (double)z.T;
    double dense = kept_paper(&z, false) * (double)z.T, zero1 = state_of_zero(1, 16) * slice;
    double forward = work_block(&whole, 1).flops / 8 / A100, step = 3 * forward * 12 * 96;
    double tp = all_reduce(8, (double)(z.T * z.C)), dp = all_reduce(16, slice), message = (double)(z.T * z.C * BF16);
    page = "08_3d/README.md";
    on_page("12 blocks per stage of 12C²/8 each: %.2f·10⁹ parameters on a rank", slice / G);
    on_page("are %.1f GB; with ZeRO-1, 4 + 12/16 bytes: %.1f GB", MIXED * slice / G, zero1 / G);
    on_page("= %.0f MB per sequence", all / 1e6);
    on_page("12 × 8 × %.0f MB = %.1f GB. Without the scores (selective recomputation) %.0f MB: %.1f GB. So %.1f + "
            "%.1f = %.1f GB fit",
            all / 1e6, 96 * all / G, dense / 1e6, 96 * dense / G, zero1 / G, 96 * dense / G, (zero1 + 96 * dense) / G);
    on_page("A block's forward takes %.2f ms on 8 devices", 1e3 * forward);
    on_page("forward and backward %.1f ms; 12 blocks × m = 1536/16 = 96 micro-batches: %.1f s", 3e3 * forward, step);
    on_page("4 × %.1f MB × 12 × 96 = %.0f GB, at 300 GB/s %.2f s: %.0f %% on top. At 25 GB/s it would be %.1f s",
            tp / 1e6,
            4 * tp * 12 * 96 / G, 4 * tp * 12 * 96 / NVLINK, 100 * (4 * tp * 12 * 96 / NVLINK) / step,
                4 * tp * 12 * 96 / IB);
    on_page("2 × %.1f MB × 96 = %.1f GB, at 25 GB/s %.2f s", message / 1e6, 2 * message * 96 / G,
            2 * message * 96 / IB);
    on_page("(pp−1)/m = 7/96 = %.1f %% on top", 100 * (1 / (1 - bubble(8, 96)) - 1));
    on_page("2·15/16 · %.2f·10⁹ · 2 bytes = %.1f GB, at 25 GB/s %.2f s: %.0f %% on top", slice / G, dp / G, dp / IB,
            100 * dp / IB / step);
}

static void real_size(Run *run) {
    here = run;
    data_parallel();
    all_reduces();
    overlapped();
    server();
    compressed();
    balance();
    accumulation();
    tensor_parallel_sizes();
    pipeline();
    one_f_one_b();
    zero();
    recomputation();
    three_d();
    check_true(run, "real sizes", "all figures are numbers", finite_all && figures > 0);
}
EXPERIMENT(real_size, NULL);
