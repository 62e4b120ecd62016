// safetensors.c writes the header of an exported file, gathers the tensors on rank 0, and writes
// the tensors.
#include "08_3d/safetensors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/checkpoint.h"
#include "08_3d/model_config.h"
#include "08_3d/model_names.h"
#include "08_3d/tensor_file.h"
#include "common/base/output.h"

// A reader finds a model's sizes in config.json. The header of a file of GPT-2 also has the sizes,
// because the file may be used alone.
static size_t metadata(char *json, size_t room, const ModelConfig *c) {
    if (hub_family(c) != HUB_GPT2)
        return (size_t)snprintf(json, room, "{\"__metadata__\":{\"format\":\"pt\"}");
    return (size_t)snprintf(json, room,
                            "{\"__metadata__\":{\"format\":\"pt\",\"n_layer\":\"%zu\","
                            "\"n_embd\":\"%zu\",\"n_head\":\"%zu\",\"n_positions\":\"%zu\","
                            "\"vocab_size\":\"%zu\"}",
                            c->layers, c->width, c->heads, c->context, c->vocab);
}

static size_t shape(char *json, size_t room, const NamedPart *part) {
    size_t columns = range_size(part->columns);
    if (part->vector) return (size_t)snprintf(json, room, "[%zu]", columns);
    return (size_t)snprintf(json, room, "[%zu,%zu]", part->transposed ? columns : part->rows,
                            part->transposed ? part->rows : columns);
}

// If the head has a table of its own, GPT2LMHeadModel expects all other names to begin with
// "transformer.". A file without such a table has the plain names of GPT-2.
static const char *prefix(const ModelConfig *c, const char *name) {
    bool apart = hub_family(c) == HUB_GPT2 && c->untied;
    return apart && strcmp(name, "lm_head.weight") != 0 ? "transformer." : "";
}

// Returns the header, which describes the whole model's tensors in model order, also the tensors
// that this rank does not hold. `whole` is a described model without memory.
static char *header(const Model *whole, FileType type, size_t *length) {
    size_t room = 256 + MOST_PARTS * 224 * config_tensors(&whole->config), n = 0, offset = 0;
    char *json = host_alloc(room);
    n += metadata(json, room, &whole->config);
    for (size_t i = 0; i < whole->n_units; i++) {
        const Unit *u = &whole->units[i];
        for (size_t k = 0; k < u->n_params && !u->tied_to; k++) {
            NamedPart part[MOST_PARTS];
            size_t parts = model_parts(&whole->config, &u->params[k], part);
            for (size_t a = 0; a < parts; a++) {
                size_t bytes = part[a].rows * range_size(part[a].columns) * file_type_bytes(type);
                n += (size_t)snprintf(json + n, room - n, ",\"%s%s\":{\"dtype\":\"%s\",\"shape\":",
                                      prefix(&whole->config, part[a].name), part[a].name,
                                      file_type_name(type));
                n += shape(json + n, room - n, &part[a]);
                n += (size_t)snprintf(json + n, room - n, ",\"data_offsets\":[%zu,%zu]}", offset,
                                      offset + bytes);
                offset += bytes;
            }
        }
    }
    json[n++] = '}';
    char *h = tensor_file_header(json, n, length);
    free(json);
    return h;
}

void safetensors_require(const ModelConfig *c, const char *file) {
    REQUIRE(hub_family(c) != NO_HUB_FAMILY,
            "--export: no class of Hugging Face's has GPT-2's block with grouped heads: leave "
            "--kv-heads out, or choose --family llama");
    output_require("export", file);
    model_config_require(file);
}

// ---------------------------------------------------------------- gathering

// An element that is sent to rank 0, and its place in the flattened whole tensor.
typedef struct {
    size_t place;
    real value;
} PlacedValue;
// Returns the elements of the tensor `name` that this rank sends. As in a checkpoint, exactly one
// rank sends each element.
static PlacedValue *own_elements(const Model *m, const char *name, size_t *n) {
    *n = 0;
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params; k++) {
            const Unit *u = &m->units[i];
            const Param *p = &u->params[k];
            Range r = checkpoint_written(u, p);
            if (!range_size(r) || strcmp(p->name, name) != 0) continue;
            *n = range_size(r);
            real *values = host_alloc(*n * sizeof *values);
            PlacedValue *list = host_alloc(*n * sizeof *list);
            tensor_download(values, param_owned_part(u, checkpoint_weights(u), r));
            for (size_t e = 0; e < *n; e++)
                list[e] = (PlacedValue){ .place = param_global_index(p, r.lo - p->offset + e),
                                         .value = values[e] };
            free(values);
            return list;
        }
    return NULL;
}

typedef struct {
    real *values;
    size_t room, filled;
} Whole;
static void take_elements(void *whole, size_t rank, const void *data, size_t bytes) {
    Whole *w = whole;
    const PlacedValue *list = data;
    (void)rank;
    for (size_t i = 0; i < bytes / sizeof *list; i++)
        if (list[i].place < w->room) w->values[list[i].place] = list[i].value;
    w->filled += bytes / sizeof *list;
}

static void write_part(const Param *p, const NamedPart *part, const real *values, FileType type,
                       Output *o) {
    size_t n = p->rows * range_size(part->columns);
    real *list = host_alloc(n * sizeof *list);
    for (size_t row = 0; row < p->rows; row++)
        for (size_t column = part->columns.lo; column < part->columns.hi; column++)
            list[part_place(part, row, column)] = values[row * p->cols + column];
    // If fwrite() fails, it marks the FILE, and output_close() calls fault().
    char *bytes = host_alloc(n * file_type_bytes(type));
    file_type_put(type, bytes, list, n);
    fwrite(bytes, file_type_bytes(type), n, o->f);
    free(bytes);
    free(list);
}

// Appends the tensor of p to the file, which rank 0 has open. Collective.
static void write_tensor(const Model *m, const Param *p, FileType type, Output *o) {
    size_t n;
    if (p->cols == 0) return; // the family has no such tensor
    PlacedValue *own = own_elements(m, p->name, &n);
    Whole whole = { .room = p->rows * p->cols };
    if (this_rank == 0) whole.values = host_alloc(whole.room * sizeof(real));
    side_gather_each(own, n * sizeof *own, take_elements, &whole);
    if (this_rank == 0) {
        NamedPart part[MOST_PARTS];
        size_t parts = model_parts(&m->config, p, part);
        if (whole.filled < whole.room) fault("--export: no rank has all elements of %s", p->name);
        for (size_t k = 0; k < parts; k++) write_part(p, &part[k], whole.values, type, o);
    }
    free(whole.values);
    free(own);
}

void safetensors_export(const Model *m, const char *file, FileType type) {
    ledger_pause();
    Model *whole = model_describe(&m->config, model_layers(&m->config));
    Output o = { 0 };
    if (this_rank == 0) {
        size_t length;
        char *h = header(whole, type, &length);
        o = output_open("export", file);
        fwrite(h, 1, length, o.f);
        free(h);
    }
    for (size_t i = 0; i < whole->n_units; i++)
        for (size_t k = 0; k < whole->units[i].n_params && !whole->units[i].tied_to; k++)
            write_tensor(m, &whole->units[i].params[k], type, &o);
    if (this_rank == 0) {
        output_close(&o);
        model_config_write(&m->config, file, type);
    }
    model_free(whole);
    ledger_resume();
}
