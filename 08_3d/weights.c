// weights.c opens a model's weights from a checkpoint or from files, and fills a rank's part of the
// weights.
#include "08_3d/weights.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "08_3d/model_config.h"
#include "08_3d/model_names.h"

// ---------------------------------------------------------------- sizes

// Finds a tensor by its name, or by its name behind "transformer.", as in files of GPT2LMHeadModel.
static const FileTensor *find(const Weights *w, const char *name) {
    char with[PART_NAME + 16];
    snprintf(with, sizeof with, "transformer.%s", name);
    const FileTensor *t = weight_files_find(&w->files, name);
    return t ? t : weight_files_find(&w->files, with);
}

static const FileTensor *table(const Weights *w, const char *name) {
    const FileTensor *t = find(w, name);
    REQUIRE(t,
            "--%s %s: it has no tensor %s: expected the names of Hugging Face's GPT-2, Llama or "
            "Qwen2",
            w->option, w->from, name);
    REQUIRE(t->dims == 2, "--%s %s: %s has %zu sides: expected two", w->option, w->from, name,
            t->dims);
    return t;
}

static bool same_values(const FileTensor *a, const FileTensor *b) {
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++)
        if (tensor_file_value(a, i) != tensor_file_value(b, i)) return false;
    return true;
}

// Returns 0 if neither --heads nor config.json gives the number.
static size_t heads_of(const Weights *w, const size_t *chosen) {
    size_t configured = w->model.heads;
    REQUIRE(!chosen || !configured || *chosen == configured,
            "--heads %zu: the config.json beside %s says %zu: leave --heads out",
            chosen ? *chosen : 0, w->from, configured);
    return chosen ? *chosen : configured;
}

// Returns the number of heads of a GPT-2, if --from or --init names the file and not the folder. A
// config.json beside the file may belong to another model. So --heads and the file's header come
// before the config.json. All other sizes follow from the tensors.
static size_t heads_of_file(const Weights *w, const size_t *chosen) {
    const char *note = tensor_file_note(&w->files.file[0], "n_head");
    ModelConfig beside = { 0 };
    if (chosen) return *chosen;
    if (note) return strtoul(note, NULL, 10);
    model_config_read(w->option, w->from, &beside);
    REQUIRE(beside.heads,
            "--%s %s: neither its header nor a config.json beside it says n_head: give --heads "
            "(GPT-2: 12)",
            w->option, w->from);
    return beside.heads;
}

// Takes the sizes that *c lacks from the shapes and the number of a GPT-2's tensors.
// check_tensors() compares the sizes that *c has with the tensors.
static void sizes_of_tensors(const Weights *w, ModelConfig *c) {
    const FileTensor *wte = table(w, "wte.weight"), *wpe = table(w, "wpe.weight"),
                     *mlp = find(w, "h.0.mlp.c_fc.weight");
    size_t layers = 0;
    for (char name[40]; snprintf(name, sizeof name, "h.%zu.ln_1.weight", layers), find(w, name);)
        layers++;
    if (!c->layers) c->layers = layers;
    if (!c->width) c->width = wte->shape[1];
    if (!c->vocab) c->vocab = wte->shape[0];
    if (!c->context) c->context = wpe->shape[0];
    if (!c->ffn && mlp && mlp->dims == 2 && mlp->shape[1] != 4 * c->width) c->ffn = mlp->shape[1];
}

static void sizes_of(Weights *w, const size_t *heads, uint64_t seed) {
    ModelConfig *c = &w->model;
    const bool llama = weight_files_find(&w->files, "model.embed_tokens.weight") != NULL;
    if (llama || w->found) {
        HubFamily family = model_config_read(w->option, w->from, c);
        REQUIRE(!llama || family == HUB_LLAMA || family == HUB_QWEN2,
                "--%s %s: it has the names of Llama, and no config.json beside it says so: put the "
                "model's config.json there, which has its heads, its rope_theta and its "
                "rms_norm_eps",
                w->option, w->from);
        c->heads = heads_of(w, heads);
        REQUIRE(c->heads, "--%s %s: the config.json beside it does not say n_head: give --heads",
                w->option, w->from);
    } else {
        const FileTensor *head = find(w, "lm_head.weight");
        c->heads = heads_of_file(w, heads);
        c->untied = head && !same_values(head, table(w, "wte.weight"));
    }
    if (c->positions == POSITIONS_LEARNED) sizes_of_tensors(w, c);
    c->seed = seed;
    config_require(c);
}

// ---------------------------------------------------------------- every tensor, once

// Returns the parts of all tensors, in model order. The caller frees the list.
static NamedPart *parts_of(const ModelConfig *c, size_t *n) {
    Model *whole = model_describe(c, model_layers(c));
    NamedPart *list = host_alloc(MOST_PARTS * config_tensors(c) * sizeof *list);
    *n = 0;
    for (size_t i = 0; i < whole->n_units; i++)
        for (size_t k = 0; k < whole->units[i].n_params && !whole->units[i].tied_to; k++)
            *n += model_parts(c, &whole->units[i].params[k], list + *n);
    model_free(whole);
    return list;
}

static bool has_shape(const FileTensor *t, const NamedPart *part) {
    size_t columns = range_size(part->columns);
    if (part->vector) return t->dims == 1 && t->shape[0] == columns;
    return t->dims == 2 && t->shape[0] == (part->transposed ? columns : part->rows) &&
           t->shape[1] == (part->transposed ? part->rows : columns);
}

static void require_part(const Weights *w, const NamedPart *part) {
    const FileTensor *t = find(w, part->name);
    size_t columns = range_size(part->columns);
    REQUIRE(t, "--%s %s: it has no tensor %s", w->option, w->from, part->name);
    if (has_shape(t, part)) return;
    if (part->vector)
        usage_error("--%s %s: %s does not have the shape [%zu]", w->option, w->from, part->name,
                    columns);
    usage_error("--%s %s: %s does not have the shape [%zu, %zu]", w->option, w->from, part->name,
                part->transposed ? columns : part->rows, part->transposed ? part->rows : columns);
}

// Returns whether t is a copy of a tied table. Some writers store a tied table twice. Calls
// usage_error() if lm_head.weight should be such a copy but has other values.
static bool is_copy_of_table(const Weights *w, const FileTensor *t) {
    const FileTensor *first = find(w, "wte.weight");
    if (!first) first = find(w, "model.embed_tokens.weight");
    if (strcmp(t->name, "lm_head.weight") != 0 || w->model.untied || !first) return false;
    REQUIRE(same_values(t, first),
            "--%s %s: lm_head.weight differs from %s, but config.json ties them: set "
            "tie_word_embeddings to false",
            w->option, w->from, first->name);
    return true;
}

static void require_known(const Weights *w, const FileTensor *t, const NamedPart *part, size_t n) {
    static const char prefix[] = "transformer.";
    size_t skip = strncmp(t->name, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;
    for (size_t i = 0; i < n; i++)
        if (strcmp(part[i].name, t->name + skip) == 0) {
            REQUIRE(find(w, part[i].name) == t,
                    "--%s %s: %s is there twice, with and without "
                    "\"transformer.\"",
                    w->option, w->from, part[i].name);
            return;
        }
    REQUIRE(is_copy_of_table(w, t),
            "--%s %s: the tensor %.80s has no place in a model of %zu layers of this kind: is "
            "config.json of another model?",
            w->option, w->from, t->name, w->model.layers);
}

static void check_tensors(const Weights *w) {
    size_t n;
    NamedPart *part = parts_of(&w->model, &n);
    for (size_t i = 0; i < n; i++) require_part(w, &part[i]);
    for (size_t i = 0; i < w->files.n; i++)
        for (size_t k = 0; k < w->files.file[i].n; k++)
            require_known(w, &w->files.file[i].tensor[k], part, n);
    free(part);
}

// ---------------------------------------------------------------- values

// The parts that value() has found last. value() needs these parts again for the next element.
typedef struct {
    const Weights *weights;
    const Param *param;
    NamedPart part[MOST_PARTS];
    const FileTensor *tensor[MOST_PARTS];
} Filling;
static real value(void *filling, const Param *p, size_t i) {
    Filling *f = filling;
    const Weights *w = f->weights;
    if (f->param != p) {
        size_t n = model_parts(&w->model, p, f->part);
        for (size_t k = 0; k < n; k++) f->tensor[k] = find(w, f->part[k].name);
        f->param = p;
    }
    size_t row = i / p->cols, column = i % p->cols, k = 0;
    while (column >= f->part[k].columns.hi) k++;
    return tensor_file_finite(f->tensor[k], part_place(&f->part[k], row, column), w->from);
}

// ---------------------------------------------------------------- a checkpoint, or files

static size_t option_of(const Weights *w, const char *name, const char *fallback) {
    const char *text = checkpoint_option(w->checkpoint, name);
    if (!text) text = fallback;
    REQUIRE(text, "--%s %s: it does not say its --%s", w->option, w->from, name);
    return strtoul(text, NULL, 10);
}
static double real_of(const Weights *w, const char *name) {
    const char *text = checkpoint_option(w->checkpoint, name);
    return text ? strtod(text, NULL) : 0;
}
static ModelConfig config_of_checkpoint(const Weights *w, uint64_t seed) {
    const char *family = checkpoint_option(w->checkpoint, "family");
    ModelConfig c = { .layers = option_of(w, "layers", NULL),
                      .width = option_of(w, "width", NULL),
                      .vocab = option_of(w, "vocab", "256"),
                      .heads = option_of(w, "heads", NULL),
                      .context = option_of(w, "context", NULL),
                      .kv_heads = option_of(w, "kv-heads", "0"),
                      .ffn = option_of(w, "ffn", "0"),
                      .untied = checkpoint_option(w->checkpoint, "untied") != NULL,
                      .rope_theta = real_of(w, "rope-theta"),
                      .norm_eps = real_of(w, "norm-eps"),
                      .seed = seed };
    config_family(&c, family && !strcmp(family, "llama") ? FAMILY_LLAMA : FAMILY_GPT2);
    if (checkpoint_option(w->checkpoint, "attention-bias")) c.biases = BIASES_QKV;
    return c;
}

Weights weights_open(Comm *world, const char *option, const char *from, const size_t *heads,
                     uint64_t seed) {
    Weights w = { .option = option, .from = from };
    struct stat is;
    bool folder = stat(from, &is) == 0 && S_ISDIR(is.st_mode);
    if (folder) w.found = model_folder_weights(option, from);
    if (w.found) w.from = w.found;
    if (folder && !w.found) {
        char why[CHECKPOINT_WHY] = "";
        w.checkpoint = checkpoint_open(world, from, false, why, NULL, 0);
        REQUIRE(w.checkpoint, "--%s %s: %s", option, from, why);
        w.model = config_of_checkpoint(&w, seed);
        REQUIRE(!heads || *heads == w.model.heads,
                "--heads %zu: the model of the checkpoint %s has %zu: leave --heads out",
                heads ? *heads : 0, from, w.model.heads);
        config_require(&w.model);
    } else {
        char why[WEIGHT_FILES_WHY] = "";
        REQUIRE(weight_files_open(&w.files, w.from, why), "--%s: %s", option, why);
        sizes_of(&w, heads, seed);
        check_tensors(&w);
    }
    return w;
}

static real element(void *values, const Param *p, size_t i) {
    return ((real **)values)[p->number][i];
}

void weights_fill(const Weights *w, Model *m) {
    if (w->checkpoint) {
        checkpoint_load(w->checkpoint, m, NULL);
        return;
    }
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        Filling f = { .weights = w };
        if (u->tied_to) continue;
        // Under ZeRO-3 a rank has only the elements that it owns. Otherwise a rank has all elements
        // of the unit.
        const Range range = u->w.data ? (Range){ 0, u->size } : u->own;
        const Tensor t = u->w.data ? u->w : u->own_w;
        UnitElement *from = w->values ? element : value;
        void *context = w->values ? (void *)w->values : &f;
        unit_fill(u, t, range, from, context);
        if (u->master.data) { // the 16-bit weights are a rounded copy of the master
            unit_fill(u, u->master, u->own, from, context);
            u->master_made = true;
        }
    }
}

void weights_load(const Weights *w, Model *m) {
    if (!w->from && !w->values) {
        model_allocate_weights(m);
        return;
    }
    model_measure(m);
    m->w = tensor_shaped(&m->parameters, tensor_shape(1, m->size, m->config.storage));
    model_attach_weights(m, m->w);
    weights_fill(w, m);
}

void weights_close(Weights *w) {
    if (w->checkpoint) checkpoint_free(w->checkpoint);
    weight_files_close(&w->files);
    free(w->found);
    if (w->values) free(w->values[0]);
    free(w->values);
}
