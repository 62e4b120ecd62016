// weights.c: opens a model's weights from any of their sources, and fills a rank's part of them.
#include "08_3d/weights.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "08_3d/model_config.h"

// ---------------------------------------------------------------- a safetensors file

// Finds a tensor by GPT2Model's name, or by GPT2LMHeadModel's, which begins with "transformer.".
static const FileTensor *find(const TensorFile *f, const char *name) {
    char with[80];
    snprintf(with, sizeof with, "transformer.%s", name);
    const FileTensor *t = tensor_file_find(f, name);
    return t ? t : tensor_file_find(f, with);
}

// A tensor that must have two sides: wte or wpe.
static const FileTensor *table(const Weights *w, const char *name) {
    const FileTensor *t = find(&w->file, name);
    REQUIRE(t, "--from %s: it has no tensor %s: expected the names of Hugging Face's GPT-2",
            w->from, name);
    REQUIRE(t->dims == 2, "--from %s: %s has %zu sides: expected two", w->from, name, t->dims);
    return t;
}

static size_t heads_of(const Weights *w, const size_t *chosen) {
    const char *note = tensor_file_note(&w->file, "n_head");
    if (chosen) return *chosen;
    size_t heads = note ? strtoul(note, NULL, 10) : model_config_heads(w->from);
    REQUIRE(heads,
            "--from %s: neither its header nor a config.json beside it says n_head: give --heads "
            "(GPT-2: 12)", w->from);
    return heads;
}

static void sizes_of(Weights *w, const size_t *heads, uint64_t seed) {
    const FileTensor *wte = table(w, "wte.weight"), *wpe = table(w, "wpe.weight");
    size_t layers = 0;
    for (char name[40];
         snprintf(name, sizeof name, "h.%zu.ln_1.weight", layers), find(&w->file, name);)
        layers++;
    w->model = (ModelConfig){ .layers = layers, .width = wte->shape[1], .heads = heads_of(w, heads),
                              .context = wpe->shape[0], .vocab = wte->shape[0], .seed = seed };
}

// The tensor that was found last, because elements are asked for one after another.
typedef struct { const Weights *weights; const Param *param; const FileTensor *tensor; } Filling;
static real value(void *filling, const Param *p, size_t i) {
    Filling *f = filling;
    if (f->param != p) {
        const char *from = f->weights->from;
        const FileTensor *t = find(&f->weights->file, p->name);
        REQUIRE(t, "--from %s: it has no tensor %s", from, p->name);
        bool fits = p->vector ? t->dims == 1 && t->shape[0] == p->cols
                              : t->dims == 2 && t->shape[0] == p->rows && t->shape[1] == p->cols;
        REQUIRE(fits, "--from %s: %s does not have the shape [%zu, %zu]", from, p->name, p->rows,
                p->cols);
        f->param = p;
        f->tensor = t;
    }
    return tensor_file_finite(f->tensor, i, f->weights->from);
}

// ---------------------------------------------------------------- either

static size_t option_of(const Weights *w, const char *name) {
    const char *text = checkpoint_option(w->checkpoint, name);
    REQUIRE(text, "--from %s: it does not say its --%s", w->from, name);
    return strtoul(text, NULL, 10);
}

Weights weights_open(Comm *world, const char *from, const size_t *heads, uint64_t seed) {
    Weights w = { .from = from };
    struct stat is;
    bool folder = stat(from, &is) == 0 && S_ISDIR(is.st_mode);
    if (folder) w.found = model_folder_weights(from);
    if (w.found) w.from = w.found;
    if (folder && !w.found) {
        char why[CHECKPOINT_WHY] = "";
        w.checkpoint = checkpoint_open(world, from, false, why, NULL, 0);
        REQUIRE(w.checkpoint, "--from %s: %s", from, why);
        bool vocab = checkpoint_option(w.checkpoint, "vocab") != NULL;
        w.model = (ModelConfig){ .layers = option_of(&w, "layers"),
                                 .width = option_of(&w, "width"),
                                 .vocab = vocab ? option_of(&w, "vocab") : 256,
                                 .heads = option_of(&w, "heads"),
                                 .context = option_of(&w, "context"),
                                 .seed = seed };
    } else {
        char why[TENSOR_FILE_WHY] = "";
        REQUIRE(tensor_file_open(&w.file, w.from, why), "--from: %s", why);
        sizes_of(&w, heads, seed);
    }
    config_require(&w.model);
    return w;
}

static real element(void *values, const Param *p, size_t i) {
    return ((real **)values)[p->number][i];
}

void weights_load(const Weights *w, Model *m) {
    if (!w->from && !w->values) {
        model_allocate_weights(m);
        return;
    }
    model_measure(m);
    m->w = tensor_new(&m->parameters, 1, m->size);
    model_attach_weights(m, m->w);
    if (w->checkpoint) {
        checkpoint_load(w->checkpoint, m, NULL);
        return;
    }
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        Filling f = { .weights = w };
        const Range whole = { 0, u->size };
        if (u->tied_to) continue;
        if (w->values) unit_fill(u, u->w, whole, element, w->values);
        else unit_fill(u, u->w, whole, value, &f);
    }
}

void weights_close(Weights *w) {
    if (w->checkpoint) checkpoint_free(w->checkpoint);
    tensor_file_close(&w->file);
    free(w->found);
    if (w->values) free(w->values[0]);
    free(w->values);
}
