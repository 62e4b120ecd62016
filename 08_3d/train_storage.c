// train_storage.c reads the options --storage, --gradients and --loss-scale, prints the page's
// lines about them, and copies the loss scale to and from a checkpoint.
#include "08_3d/train_program.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- options

// Reads --loss-scale N, or dynamic[,FIRST[,PATIENCE]]. A power of two changes no bit of a
// gradient's fraction. Reals and bf16 need no factor, because bf16 has the range of fp32.
static LossScale loss_scale(Run *run) {
    static const double highest = 0x1p40;
    LossScale s = { .factor = 0x1p16, .patience = 1000 }; // PyTorch's factor, DeepSpeed's patience
    const char *text = option_text(run, "loss-scale"), *word = "dynamic";
    const bool fp16 = option_storage(run) == FP16S;
    REQUIRE(fp16 || !option_given(run, "loss-scale"),
            "--loss-scale %s: --storage %s has the range of reals: leave --loss-scale out, or "
            "choose --storage fp16",
            text, option_text(run, "storage"));
    if (!fp16) return (LossScale){ .factor = 1 };
    if (!text) return s;
    const bool dynamic = strncmp(text, word, strlen(word)) == 0;
    const char *at = dynamic ? text + strlen(word) : text;
    bool good = !dynamic || !*at || *at == ',';
    char *end;
    if (!dynamic) s.patience = 0;
    if (!dynamic || *at) {
        at += dynamic;
        s.factor = strtod(at, &end);
        good = good && end != at;
        at = end;
    }
    if (dynamic && *at == ',') {
        unsigned long patience = strtoul(at + 1, &end, 10);
        good = good && at[1] >= '0' && at[1] <= '9' && patience > 0 && patience <= 1000000000;
        s.patience = patience;
        at = end;
    }
    int exponent;
    good = good && !*at && s.factor >= 1 && s.factor <= highest;
    REQUIRE(good && frexp(s.factor, &exponent) == 0.5,
            "--loss-scale %s: expected a power of two such as 1024, or dynamic, or "
            "dynamic,FIRST,PATIENCE: the first factor, and the steps until it is doubled",
            text);
    return s;
}

void train_take_storage(Run *run, TrainerConfig *c) {
    c->model.storage = option_storage(run);
    c->model.main_gradients = !strcmp(option_text(run, "gradients"), "main");
    REQUIRE(c->model.storage != REALS || c->model.main_gradients || !option_given(run, "gradients"),
            "--gradients stored: with --storage real gradients are reals in any case: leave it "
            "out, or choose --storage bf16 or fp16");
    c->loss_scale = loss_scale(run);
}

void train_say_storage(Run *run, const Trainer *t) {
    const ModelConfig *m = &t->config.model;
    const LossScale *s = &t->loss_scale;
    if (m->storage == REALS) return;
    say(run,
        "weights and activations are stored in %s, gradients of weights in %s; masters and moments "
        "are %s",
        element_name(m->storage), element_name(config_gradient_element(m)), element_name(REALS));
    if (!train_scaled(t)) return;
    if (s->patience > 0)
        say(run,
            "loss scale %.0f; an overflow halves it, and %zu steps in a row without one double "
            "it\n",
            s->factor, s->patience);
    else say(run, "loss scale %.0f, fixed\n", s->factor);
}

// ---------------------------------------------------------------- the loss scale

bool train_scaled(const Trainer *t) { return t->config.model.storage == FP16S; }
StepResult train_overflow_is_0(StepResult r) {
    if (isfinite(r.loss) && !isfinite(r.norm)) r.norm = 0;
    return r;
}

void train_say_skipped(Run *run, const Trainer *t, size_t steps) {
    const LossScale *s = &t->loss_scale;
    if (!train_scaled(t)) return;
    say(run, "loss scale %.0f at the end; %zu of %zu steps were skipped after an overflow\n",
        s->factor, s->skipped, steps);
    report_config_number(run, "overflows", (double)s->skipped);
}

void train_scale_save(const Trainer *t, SavedRun *saved) {
    const LossScale *s = &t->loss_scale;
    saved->scale_factor = s->patience > 0 ? s->factor : 0;
    saved->scale_good = s->good;
}
void train_scale_resume(Run *run, Trainer *t, const SavedRun *saved) {
    LossScale *s = &t->loss_scale;
    if (s->patience == 0 || saved->scale_factor == 0 || option_given(run, "loss-scale")) return;
    s->factor = saved->scale_factor;
    s->good = saved->scale_good;
}
