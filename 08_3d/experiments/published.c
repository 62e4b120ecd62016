// published.c holds the published times of training steps, with their sources.
#include "08_3d/experiments/published.h"

const PublishedSystem published_systems[] = {
    [MEGATRON_2021] = { .format = "mixed", .how = { .trees = true, .scatter = true } },
    [TORCH_DDP] = { .format = "mixed",
                    .how = { .overlap = { .dp = true }, .trees = true, .scatter = true } },
    [KORTHIKANTI] = { .format = "mixed",
                      .how = { .overlap = { .tp = true }, .trees = true, .scatter = true } },
    [MEGATRON_2024] = { .format = "bf16",
                        .blockwise = true,
                        .how = { .overlap = { true, true, true, true }, .trees = true } },
    [LLAMA3] = { .format = "bf16",
                 .blockwise = true,
                 .how = { .overlap = { .dp = true, .tp = true, .pp = true }, .trees = true } },
    [FSDP] = { .format = "bf16",
               .blockwise = true,
               .how = { .overlap = { .dp = true }, .trees = true } },
    [FLASH] = { .format = "mixed",
                .blockwise = true,
                .how = { .overlap = { .dp = true }, .trees = true } },
    [ZERO3_2021] = { .format = "mixed", .rails = 1 },
};

// Narayanan et al. 2021 (PTD-P, arXiv 2104.04473), table 1. The paper gives neither micro-batches
// nor chunks. b (sequences per micro-batch), v (chunks per stage) and DDP=torch (the first four
// rows) are from examples/sc21/run_table_1.sh in Megatron-LM. TFLOP/s count full recomputation.
#define PTDP(name, L, h, a, gpus, batch, tp, pp, b, v, value, ddp) \
    { \
        "PTD-P table 1", name, PAPER_GPT(L, h, a), gpus, batch, tp, pp, 1, b, v, 0, false, \
            RECOMPUTE_FULL, value, HARDWARE, ddp ? TORCH_DDP : MEGATRON_2021 \
    }
// PTD-P table 2. Model parallelism of 96 is tp 8 x pp 12, and model parallelism of 280 is tp 8 x pp
// 35. The rows assume one chunk per stage.
#define PTDP2(name, L, h, a, gpus, batch, pp, value) \
    { \
        "PTD-P table 2", name, PAPER_GPT(L, h, a), gpus, batch, 8, pp, 1, 1, 1, 0, false, \
            RECOMPUTE_FULL, value, HARDWARE, MEGATRON_2021 \
    }
// Korthikanti table 5, with the sizes and micro-batches of table 3. v, the chunks per stage, is 3
// for 175B and 530B (section 6). The last row has eight replicas (section 6.3).
#define BIG(name, L, h, a, gpus, batch, pp, b, v, present, value) \
    { \
        "Korthikanti table 5", name, PAPER_GPT(L, h, a), gpus, batch, 8, pp, 1, b, v, 0, present, \
            present ? RECOMPUTE_SELECTIVE : RECOMPUTE_FULL, value, STEP, KORTHIKANTI \
    }
// Korthikanti table 4: a block of the 22B model, tp 8, micro-batches of 4.
#define ONE(name, sequence, recompute, value) \
    { \
        "Korthikanti table 4", name, PAPER_GPT(1, 6144, 64), 8, 4, 8, 1, 1, 4, 1, 0, sequence, \
            recompute, value, BLOCK, KORTHIKANTI \
    }
static const PublishedRow a100[] = {
    PTDP("1.7B", 24, 2304, 24, 32, 512, 1, 1, 16, 1, 137, true),
    PTDP("3.6B", 30, 3072, 32, 64, 512, 2, 1, 16, 1, 138, true),
    PTDP("7.5B", 36, 4096, 32, 128, 512, 4, 1, 16, 1, 142, true),
    PTDP("18B", 40, 6144, 48, 256, 1024, 8, 1, 8, 1, 135, true),
    PTDP("39B", 48, 8192, 64, 512, 1536, 8, 2, 4, 1, 138, false),
    PTDP("76B", 60, 10240, 80, 1024, 1792, 8, 4, 2, 3, 140, false),
    PTDP("145B", 80, 12288, 96, 1536, 2304, 8, 8, 2, 2, 148, false),
    PTDP("310B", 96, 16384, 128, 1920, 2160, 8, 16, 1, 2, 155, false),
    PTDP("530B", 105, 20480, 128, 2520, 2520, 8, 35, 1, 3, 163, false),
    PTDP("1T", 128, 25600, 160, 3072, 3072, 8, 64, 1, 1, 163, false),
    PTDP2("175B, 384 GPUs", 96, 12288, 96, 384, 1536, 12, 153),
    PTDP2("175B, 768 GPUs", 96, 12288, 96, 768, 1536, 12, 149),
    PTDP2("175B, 1536 GPUs", 96, 12288, 96, 1536, 1536, 12, 141),
    PTDP2("530B, 560 GPUs", 105, 20480, 128, 560, 2240, 35, 171),
    PTDP2("530B, 1120 GPUs", 105, 20480, 128, 1120, 2240, 35, 167),
    PTDP2("530B, 2240 GPUs", 105, 20480, 128, 2240, 2240, 35, 159),
    BIG("22B, full", 48, 6144, 64, 8, 4, 1, 4, 1, false, 1.42),
    BIG("22B, both", 48, 6144, 64, 8, 4, 1, 4, 1, true, 1.10),
    BIG("175B, full", 96, 12288, 96, 64, 64, 8, 1, 3, false, 18.13),
    BIG("175B, both", 96, 12288, 96, 64, 64, 8, 1, 3, true, 13.75),
    BIG("530B, full", 105, 20480, 128, 280, 280, 35, 1, 3, false, 49.05),
    BIG("530B, both", 105, 20480, 128, 280, 280, 35, 1, 3, true, 37.83),
    BIG("1T, full", 128, 25600, 160, 512, 512, 64, 1, 1, false, 94.42),
    BIG("1T, both", 128, 25600, 160, 512, 512, 64, 1, 1, true, 71.49),
    BIG("530B, both, dp 8", 105, 20480, 128, 2240, 2240, 35, 1, 3, true, 39.15),
    ONE("no recomputation", false, RECOMPUTE_NONE, 7.7 + 11.9),
    ONE("sequence parallelism", true, RECOMPUTE_NONE, 7.2 + 11.8),
    ONE("full", false, RECOMPUTE_FULL, 7.7 + 19.5),
    ONE("selective", false, RECOMPUTE_SELECTIVE, 7.7 + 13.2),
    ONE("both", true, RECOMPUTE_SELECTIVE, 7.2 + 13.1),
};

// Megatron-LM's README, strong scaling: GPT-3 at batch 1152. The README gives no layout; tp 8 x pp
// 12 fills 96 GPUs. If b and v are 0, the plan tries 1, 2 and 4 sequences, and all numbers of
// chunks that divide a stage's blocks. The plan then takes the fastest layout that fits. Llama 3,
// table 4, does not give the chunks. The rows assume one block per chunk, and parts of equal cost,
// because the paper gives the first and the last part one block less.
#define LLAMA_405B(T) \
    { \
        .layers = 126, .width = 16384, .heads = 128, .context = T, .vocab = 128256, \
        .norm = NORM_RMS, .positions = POSITIONS_ROTARY, .activation = ACTIVATION_SWIGLU, \
        .biases = BIASES_NONE, .kv_heads = 8, .ffn = 53248, .untied = true, .rope_theta = 5e5, \
        .norm_eps = 1e-5 \
    }
#define README(name, gpus, value) \
    { \
        "Megatron-LM README", name, PAPER_GPT(96, 12288, 96), gpus, 1152, 8, 12, 1, 0, 0, 1, true, \
            RECOMPUTE_NONE, value, MODEL_SHARE, MEGATRON_2024 \
    }
#define HERD(name, T, gpus, batch, cp, value) \
    { \
        "Llama 3 table 4", name, LLAMA_405B(T), gpus, batch, 8, 16, cp, 1, 8, 1, true, \
            RECOMPUTE_NONE, value, CAUSAL_SHARE, LLAMA3 \
    }
static const PublishedRow h100[] = {
    README("GPT-3, 96 GPUs", 96, 47),
    README("GPT-3, 4608 GPUs", 4608, 42),
    HERD("405B, 8192 GPUs", 8192, 8192, 2048, 1, 43),
    HERD("405B, 16384 GPUs", 8192, 16384, 2048, 1, 41),
    HERD("405B, cp 16", 131072, 16384, 128, 16, 38),
};

// MPT on FSDP: the rows of llm-foundry's README with 2,048 positions and 7 billion parameters or
// more. The rows with 128 GPUs have GPUs of 40 GB, and the other rows have GPUs of 80 GB. full:
// full recomputation.
#define MPT_SIZES(L, h, a) \
    { .layers = L, .width = h, .heads = a, .context = 2048, .vocab = 50368 }
#define MPT_70B MPT_SIZES(80, 8192, 64)
#define MPT_30B MPT_SIZES(48, 7168, 64)
#define MPT_13B MPT_SIZES(40, 5120, 40)
#define MPT_7B MPT_SIZES(32, 4096, 32)
#define MPT(name, model, gpus, batch, b, full, value) \
    { \
        "llm-foundry README", name, model, gpus, batch, 1, 1, 1, b, 1, 3, false, \
            full ? RECOMPUTE_FULL : RECOMPUTE_NONE, value, MODEL_SHARE, FSDP \
    }
// FlashAttention-2, table 1, without recomputation. Sizes and batches are those of the authors'
// training/configs/experiment/pile. TFLOP/s count all scores.
#define GPT3(name, L, h, a, T, batch, b, value) \
    { \
        "FlashAttention-2", name, \
            { .layers = L, .width = h, .heads = a, .context = T, .vocab = 50304 }, 8, batch, 1, 1, \
            1, b, 1, 1, false, RECOMPUTE_NONE, value, HARDWARE, FLASH \
    }
static const PublishedRow other_a100[] = {
    MPT("70B, 64 GPUs", MPT_70B, 64, 2048, 8, true, 53.33),
    MPT("70B, 32 GPUs", MPT_70B, 32, 1024, 2, true, 48.56),
    MPT("30B, 8 GPUs", MPT_30B, 8, 504, 3, true, 55.3),
    MPT("13B, 8 GPUs", MPT_13B, 8, 48, 2, false, 59.57),
    MPT("7B, 8 GPUs", MPT_7B, 8, 96, 6, false, 64.23),
    GPT3("1.3B, 2k", 24, 2048, 16, 2048, 512, 8, 196),
    GPT3("1.3B, 8k", 24, 2048, 16, 8192, 128, 4, 220),
    GPT3("2.7B, 2k", 32, 2560, 20, 2048, 512, 4, 205),
    GPT3("2.7B, 8k", 32, 2560, 20, 8192, 128, 4, 225),
};
static const PublishedRow other_a100_40[] = {
    MPT("70B, 128 of 40 GB", MPT_70B, 128, 512, 4, true, 48.91),
    MPT("30B, 128 of 40 GB", MPT_30B, 128, 768, 6, true, 52.25),
    MPT("13B, 128 of 40 GB", MPT_13B, 128, 2048, 16, true, 51.93),
    MPT("7B, 128 of 40 GB", MPT_7B, 128, 2304, 18, true, 50.14),
};
static const PublishedRow other_h100[] = {
    MPT("70B, 64 GPUs", MPT_70B, 64, 2048, 8, true, 42.57),
    MPT("70B, 32 GPUs", MPT_70B, 32, 1024, 2, true, 36.15),
    MPT("30B, 32 GPUs", MPT_30B, 32, 1344, 14, true, 43.92),
    MPT("30B, 16 GPUs", MPT_30B, 16, 480, 10, true, 43.07),
    MPT("30B, 8 GPUs", MPT_30B, 8, 504, 3, true, 38.11),
    MPT("13B, 64 GPUs", MPT_13B, 64, 128, 2, false, 39.86),
    MPT("13B, 32 GPUs", MPT_13B, 32, 64, 2, false, 39.95),
    MPT("13B, 16 GPUs", MPT_13B, 16, 32, 2, false, 39.58),
    MPT("13B, 8 GPUs", MPT_13B, 8, 16, 2, false, 39.79),
    MPT("7B, 8 GPUs", MPT_7B, 8, 48, 6, false, 46.44),
};

// PTD-P table 2, ZeRO 3 without model parallelism.
#define ZERO3(name, L, h, a, gpus, batch, b, value) \
    { \
        "PTD-P table 2", name, PAPER_GPT(L, h, a), gpus, batch, 1, 1, 1, b, 1, 3, false, \
            RECOMPUTE_FULL, value, HARDWARE, ZERO3_2021 \
    }
static const PublishedRow zero3[] = {
    ZERO3("175B, ZeRO 3, 384", 96, 12288, 96, 384, 1536, 4, 144),
    ZERO3("175B, ZeRO 3, 768", 96, 12288, 96, 768, 1536, 2, 88),
    ZERO3("175B, ZeRO 3, 1536", 96, 12288, 96, 1536, 1536, 1, 44),
    ZERO3("530B, ZeRO 3, 640", 105, 20480, 128, 640, 2560, 4, 138),
    ZERO3("530B, ZeRO 3, 1120", 105, 20480, 128, 1120, 2240, 2, 98),
    ZERO3("530B, ZeRO 3, 2240", 105, 20480, 128, 2240, 2240, 1, 48),
};

#define TABLE(cluster, gpu, rows, use) \
    { cluster, gpu, rows, sizeof(rows) / sizeof *(rows), use }
const PublishedTable published[PUBLISHED_TABLES] = {
    [PUBLISHED_A100] = TABLE("dgx-a100", "A100", a100, FIT),
    [PUBLISHED_H100] = TABLE("dgx-h100", "H100", h100, FIT),
    [PUBLISHED_OTHER_A100] = TABLE("dgx-a100", "A100", other_a100, OTHER),
    [PUBLISHED_OTHER_A100_40] = TABLE("dgx-a100-40", "A100", other_a100_40, OTHER),
    [PUBLISHED_OTHER_H100] = TABLE("dgx-h100", "H100", other_h100, OTHER),
    [PUBLISHED_ZERO3] = TABLE("dgx-a100", "A100", zero3, NOT_COUNTED),
};
