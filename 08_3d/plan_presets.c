// plan_presets.c holds the models, clusters and number formats by name, with their sources.
#include "08_3d/plan.h"
#include <string.h>

// A model of Llama's blocks (common/model/model.h), with a head that has its own table, without
// dropout. kv 0: there are as many key and value heads as query heads.
#define LLAMA(L, h, a, kv, F, T, V, theta, eps, bias) \
    { \
        .layers = L, .width = h, .heads = a, .context = T, .vocab = V, .norm = NORM_RMS, \
        .positions = POSITIONS_ROTARY, .activation = ACTIVATION_SWIGLU, .biases = bias, \
        .kv_heads = kv, .ffn = F, .untied = true, .rope_theta = theta, .norm_eps = eps \
    }
#define GPT(L, h, a) \
    { .layers = L, .width = h, .heads = a, .context = 2048, .vocab = 51200, .dropout = 0.1 }
// The vision tower of all sizes of Qwen2-VL. The tower has blocks of GPT-2's kind without wpe. An
// image has 896 x 896 pixels in patches of 14 x 14. A patch has 3 colours in 2 frames. Images take
// half of the 4,096 positions of a sequence. The image size and this half are assumed, because the
// paper gives neither.
#define QWEN2_VL \
    { \
        .model = { .layers = 32, \
                   .width = 1280, \
                   .heads = 16, \
                   .context = 64 * 64, \
                   .positions = POSITIONS_ROTARY, \
                   .norm_eps = 1e-6 }, \
        .images = 2, .patch = 3 * 2 * 14 * 14, .merge = 4 \
    }
const PlanModel plan_models[] = {
    { "gpt3-175b",
      { .layers = 96,
        .width = 12288,
        .heads = 96,
        .context = 2048,
        .vocab = 50257,
        .dropout = 0.1 },
      1536,
      .source = "Brown et al. 2020, table 2.1; 3.2M tokens a step" },
    { "ptdp-1.7b", GPT(24, 2304, 24), 512, .source = "PTD-P (Narayanan et al. 2021), table 1" },
    { "ptdp-3.6b", GPT(30, 3072, 32), 512, .source = "PTD-P, table 1" },
    { "ptdp-7.5b", GPT(36, 4096, 32), 512, .source = "PTD-P, table 1" },
    { "ptdp-18b", GPT(40, 6144, 48), 1024, .source = "PTD-P, table 1" },
    { "ptdp-39b", GPT(48, 8192, 64), 1536, .source = "PTD-P, table 1" },
    { "ptdp-76b", GPT(60, 10240, 80), 1792, .source = "PTD-P, table 1" },
    { "ptdp-145b", GPT(80, 12288, 96), 2304, .source = "PTD-P, table 1" },
    { "ptdp-310b", GPT(96, 16384, 128), 2160, .source = "PTD-P, table 1" },
    { "ptdp-530b", GPT(105, 20480, 128), 2520, .source = "PTD-P, table 1" },
    { "ptdp-1t", GPT(128, 25600, 160), 3072, .source = "PTD-P, table 1" },
    // Layers and width are from ZeRO's table 4, heads and batch from its appendix. The paper gives
    // neither context nor vocabulary, so this row assumes those of GPT-2.
    { "zero-100b",
      { .layers = 125,
        .width = 8192,
        .heads = 64,
        .context = 1024,
        .vocab = 50257,
        .dropout = 0.1 },
      800,
      .source = "ZeRO (Rajbhandari et al. 2020), table 4: 100 billion parameters on 400 GPUs" },
    // Llama 2: table 1 of the paper has 4K positions and batches of 4M tokens. The other sizes are
    // those of config.json beside the weights.
    { "llama2-7b", LLAMA(32, 4096, 32, 0, 11008, 4096, 32000, 1e4, 1e-5, BIASES_NONE), 1024,
      .source = "Touvron et al. 2023 (Llama 2), table 1; config.json of Llama-2-7b-hf" },
    { "llama2-13b", LLAMA(40, 5120, 40, 0, 13824, 4096, 32000, 1e4, 1e-5, BIASES_NONE), 1024,
      .source = "Touvron et al. 2023 (Llama 2), table 1; config.json of Llama-2-13b-hf" },
    { "llama2-70b", LLAMA(80, 8192, 64, 8, 28672, 4096, 32000, 1e4, 1e-5, BIASES_NONE), 1024,
      .source = "Touvron et al. 2023 (Llama 2), table 1; config.json of Llama-2-70b-hf" },
    // Llama 3: table 3 of the paper. The context is that of most of the training. 405B has the
    // batch of table 4, 16M tokens. For 8B and 70B a batch of 4M tokens is assumed.
    { "llama3-8b", LLAMA(32, 4096, 32, 8, 14336, 8192, 128256, 5e5, 1e-5, BIASES_NONE), 512,
      .source = "Grattafiori et al. 2024 (Llama 3), table 3; config.json of Meta-Llama-3-8B" },
    { "llama3-70b", LLAMA(80, 8192, 64, 8, 28672, 8192, 128256, 5e5, 1e-5, BIASES_NONE), 512,
      .source = "Grattafiori et al. 2024 (Llama 3), table 3; config.json of Meta-Llama-3-70B" },
    { "llama3-405b", LLAMA(126, 16384, 128, 8, 53248, 8192, 128256, 5e5, 1e-5, BIASES_NONE), 2048,
      .source =
          "Grattafiori et al. 2024 (Llama 3), tables 3 and 4; config.json of Llama-3.1-405B" },
    // Qwen2: table 1 of the paper. Most of the training has 4,096 positions. The batch of 4M tokens
    // is assumed.
    { "qwen2-7b", LLAMA(28, 3584, 28, 4, 18944, 4096, 152064, 1e6, 1e-6, BIASES_QKV), 1024,
      .source = "Yang et al. 2024 (Qwen2), table 1; config.json of Qwen2-7B-Instruct" },
    { "qwen2-72b", LLAMA(80, 8192, 64, 8, 29568, 4096, 152064, 1e6, 1e-6, BIASES_QKV), 1024,
      .source = "Yang et al. 2024 (Qwen2), table 1; config.json of Qwen2-72B-Instruct" },
    { "qwen2vl-7b", LLAMA(28, 3584, 28, 4, 18944, 4096, 152064, 1e6, 1e-6, BIASES_QKV), 1024,
      .source = "Wang et al. 2024 (Qwen2-VL), section 2; config.json of Qwen2-VL-7B-Instruct",
      .vision = QWEN2_VL },
    { "qwen2vl-72b", LLAMA(80, 8192, 64, 8, 29568, 4096, 152064, 1e6, 1e-6, BIASES_QKV), 1024,
      .source = "Wang et al. 2024 (Qwen2-VL), section 2; config.json of Qwen2-VL-72B-Instruct",
      .vision = QWEN2_VL },
    { 0 },
};
const PlanOldName plan_old_names[] = {
    { "llama-7b", "llama2-7b" },
    { "llama-70b", "llama2-70b" },
    { 0 },
};

// The bytes of a GPU that the tensors of the plan must not use. CUDA's context and the libraries'
// workspaces take about 1 GB, and NCCL's buffers about 1 GB. An NCCL buffer has 4 MiB per channel
// and neighbour (NCCL_BUFFSIZE). The allocator leaves a part of its blocks unused. The total of 4
// GB is an assumption, because no paper cited in this file gives a total. --margin replaces this
// value.
#define RESERVE .reserve = 4e9

// For each GPU two constants are fitted: efficiency (the share of the peak that large products
// reach) and the share of the data sheet's bandwidth. The fit is least squares over rows 1, 3, 5,
// ... of Megatron-LM and Llama 3 on this GPU (experiments/published.c). The efficiencies that the
// fit tries are 0.02 apart, and the shares of the bandwidth 0.1 apart. launch is assumed, because
// the rows hardly depend on launch. Between 0 and 3 us the sum of squares of the A100 changes by 4
// %. Power limits the H100 at full load, so the H100 reaches a smaller share of its peak. The
// cluster "lesson" has the book's simulated device and links, at the scale of the book's small
// models.
#define A100 .efficiency = 0.82, .launch = 2e-6
#define H100 .efficiency = 0.58, .launch = 2e-6
const PlanCluster plan_clusters[] = {
    { "dgx-a100", 312e12, A100, .bandwidth = 0.8 * 2039e9, .multiprocessors = 108, .memory = 80e9,
      RESERVE, .node = 8, .inside = { 2e-6, 300e9 }, .between = { 5e-6, 25e9 },
      "NVIDIA DGX A100 data sheet: 80 GB, NVLink 600 GB/s both ways, 8 x 200 Gbit/s InfiniBand" },
    { "dgx-a100-40", 312e12, A100, .bandwidth = 0.8 * 1555e9, .multiprocessors = 108,
      .memory = 40e9, RESERVE, .node = 8, .inside = { 2e-6, 300e9 }, .between = { 5e-6, 25e9 },
      "the same with 40 GB" },
    { "dgx-h100", 989.4e12, H100, .bandwidth = 0.9 * 3352e9, .multiprocessors = 132, .memory = 80e9,
      RESERVE, .node = 8, .inside = { 2e-6, 450e9 }, .between = { 5e-6, 50e9 },
      "NVIDIA DGX H100 data sheet: 80 GB, NVLink 900 GB/s both ways, 8 x 400 Gbit/s InfiniBand" },
    // A machine without accelerators: each rank is a process on one core. tools/bench passes a
    // machine's measured peak, bandwidth and link as options.
    { "core", 105e9, .efficiency = 0.8, .bandwidth = 8e9, .memory = 8e9, .inside = { 2e-6, 4e9 },
      .between = { 30e-6, 1.25e9 },
      "one core of an AVX-512 server: sgemm 1024^3 by OpenBLAS 0.3.21, measured; links assumed" },
    { "lesson", 1e9, .efficiency = 1, .memory = 1e9, .node = 4, .inside = { 50e-9, 400e6 },
      .between = { 250e-9, 400e6 / 12 }, "the book's simulated device and links" },
    { 0 },
};

// The bytes of activations in 16-bit formats follow Korthikanti section 4.1, which leaves out the
// statistics of norms and softmax. Logits are in fp32.
#define KEPT_16 .element = 2, .mask = 1, .statistic = 0, .logit = 4
const PlanFormat plan_formats[] = {
    // 18 bytes per parameter: gradients are added and reduced in fp32. With --zero 1, Megatron's
    // distributed optimizer, a parameter has 6 + 12/N bytes on N replicas.
    { "bf16", .weight = 2, .gradient = 4, .state = 12, KEPT_16,
      "Megatron-LM, docs/source/api-guide/dist_optimizer.md" },
    // The book's trainer stores no masks, because a mask is a function of a counter.
    { "fp32", .weight = 4, .gradient = 4, .state = 8, .element = 4, .mask = 0, .statistic = 4,
      .logit = 4, "AdamW: two moments" },
    // 16 bytes per parameter. Gradients are reduced in 16 bits.
    { "mixed", .weight = 2, .gradient = 2, .state = 12, KEPT_16, "ZeRO, section 3.1" },
    { 0 },
};

// The book's trainer sends messages between stages beside computation, and reduces in rings.
PlanHow plan_how(const PlanCluster *c) {
    bool real = strcmp(c->name, "lesson") != 0 && strcmp(c->name, "core") != 0;
    return (PlanHow){ .overlap = { .dp = real, .tp = real, .pp = true }, .trees = real };
}

const PlanFormat *plan_format(const char *name) {
    const PlanFormat *f = plan_formats;
    while (strcmp(f->name, name)) f++;
    return f;
}

const char *const plan_memory_name[PLAN_MEMORY] = { "weights",     "gradients", "optimizer",
                                                    "activations", "gathered",  "ring" };
