// presets.c: lists the devices and links that --device and --link name.
#include "judge/frame/presets.h"

// "lesson", "fast" and "slow" are an A100, its NVLink and its InfiniBand. Their rates are scaled
// down to the size of the lessons' models. So a lesson's block spends the same share of its time on
// communication as GPT-3's block on A100s. common/reference.md derives the rates in a table, and
// tests/cost-model.t checks the ratios within 10 %. In a block's all-reduces latency adds 1.7 % to
// the time on "fast", and 0.7 % on "slow". The ratio of memory bandwidth to the link "fast" is that
// of an A100, 2039/300.
const ClockDevice clock_devices[] = {
    { "lesson", 1e9, 400e6 * 2039 / 300, "one FLOP per nanosecond, scaled to the lessons' models" },
    { "h100", 989.4e12, 3352e9, "NVIDIA H100 SXM data sheet: dense bf16, 80 GB of HBM3" },
    { "a100", 312e12, 2039e9, "NVIDIA A100 data sheet: dense bf16, 80 GB of HBM2e" },
    { "core", 105e9, 25e9,
      "one core of an AVX-512 server, measured: sgemm 1024^3 by OpenBLAS 0.3.21; memcpy of 256 "
      "MB" },
    { 0 },
};
const ClockLink clock_links[] = {
    { "free", 0, 0, "takes no time: shows the cost of the order of work alone" },
    { "nvlink", 2e-6, 450e9,
      "NVIDIA H100 data sheet: NVLink 900 GB/s, both directions; 2 us per message assumed" },
    { "ib", 5e-6, 50e9,
      "NVIDIA ConnectX-7 data sheet: NDR InfiniBand 400 Gbit/s; 5 us per message assumed" },
    { "ethernet", 30e-6, 1.25e9, "10 Gbit/s Ethernet; 30 us per message assumed" },
    { "fast", 50e-9, 400e6,
      "NVLink of an A100, 300 GB/s in each direction, scaled to the lessons' models" },
    { "slow", 250e-9, 400e6 / 12,
      "InfiniBand, 200 Gbit/s per GPU, in the same scale: a twelfth of the fast link" },
    { 0 },
};
