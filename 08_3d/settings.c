// settings.c turns the names that the trainer's options take into values, reads a list of stages,
// and computes the learning rate.
#include "08_3d/settings.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "05_pipeline_1f1b/pipeline_1f1b.h"

// ---------------------------------------------------------------- names

static const struct {
    const char *name;
    ScheduleRule rule;
    bool interleaved;
} schedules[] = {
    { "naive", schedule_naive, false },
    { "gpipe", schedule_gpipe, false },
    { "1f1b", schedule_1f1b, false },
    { "interleaved", schedule_1f1b, true }, // if there is one chunk per stage
    { "zero-bubble", schedule_zb_h1, false },
};
static size_t schedule_number(const char *name) {
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++)
        if (!strcmp(name, schedules[i].name)) return i;
    fault("no schedule is called %s", name);
}
ScheduleRule settings_schedule(const char *name) { return schedules[schedule_number(name)].rule; }
bool settings_interleaved(const char *name) { return schedules[schedule_number(name)].interleaved; }

TensorKind settings_tensor(const char *name) {
    return !strcmp(name, "2d")     ? TENSOR_2D
           : !strcmp(name, "2.5d") ? TENSOR_25D
           : !strcmp(name, "3d")   ? TENSOR_3D
                                   : TENSOR_1D;
}
Recompute settings_recompute(const char *name) {
    return !strcmp(name, "full")        ? RECOMPUTE_FULL
           : !strcmp(name, "selective") ? RECOMPUTE_SELECTIVE
                                        : RECOMPUTE_NONE;
}

// ---------------------------------------------------------------- numbers

size_t *settings_stage_blocks(const char *text, size_t pp, size_t chunks, size_t layers) {
    if (!text) return NULL;
    size_t stages = pp * chunks, *blocks = host_alloc(stages * sizeof *blocks), n = 0;
    const char *each = chunks > 1 ? "chunk of each stage" : "stage";
    for (const char *s = text;; s++) {
        char *end;
        REQUIRE(*s >= '0' && *s <= '9',
                "--stage-layers %s: expected whole numbers with commas between them, such as 3,4,3",
                text);
        unsigned long value = strtoul(s, &end, 10);
        REQUIRE(n < stages && value > 0 && value <= layers,
                "--stage-layers %s: expected %zu numbers, one for each %s of --pp %zu, each from 1 "
                "to --layers %zu",
                text, stages, each, pp, layers);
        blocks[n++] = value;
        s = end;
        if (*s != ',') break;
    }
    REQUIRE(n == stages && text[strspn(text, "0123456789,")] == 0,
            "--stage-layers %s: expected %zu numbers, one for each %s of --pp %zu", text, stages,
            each, pp);
    return blocks;
}

double settings_rate(const RateRule *r, size_t step) {
    if (step < r->warmup) return r->highest * (double)(step + 1) / (double)r->warmup;
    double progress =
        (double)(step - r->warmup) / (double)(r->decay > r->warmup ? r->decay - r->warmup : 1);
    if (progress > 1) progress = 1; // after the decay the rate stays at its lowest value
    return r->highest *
           (r->lowest + (1 - r->lowest) * 0.5 * (1 + cos(3.141592653589793 * progress)));
}
