// safetensors.c: the header of an exported file, and the gathering of its tensors on rank 0.
#include "08_3d/safetensors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/checkpoint.h"
#include "08_3d/model_config.h"
#include "08_3d/tensor_file.h"
#include "common/base/output.h"

// Describes the whole model's tensors in model order, also those that this rank does not hold. The
// model is only described, never allocated.
static char *header(const Model *whole, size_t *length) {
    size_t room = 256 + 192 * config_tensors(&whole->config), n = 0, offset = 0;
    char *json = host_alloc(room);
    const ModelConfig *c = &whole->config;
    n += (size_t)snprintf(
            json + n, room - n,
            ""
            "{\"__metadata__\":{\"format\":\"pt\",\"n_layer\":\"%zu\",\"n_embd\":\"%zu\","
            "\"n_head\":\"%zu\",\"n_positions\":\"%zu\",\"vocab_size\":\"%zu\"}",
            
            c->layers, c->width, c->heads, c->context, c->vocab);
    for (size_t i = 0; i < whole->n_units; i++) {
        const Unit *u = &whole->units[i];
        for (size_t k = 0; k < u->n_params && !u->tied_to; k++) {
            const Param *p = &u->params[k];
            size_t bytes = p->rows * p->cols * sizeof(real);
            n += (size_t)snprintf(json + n, room - n,
                                  ",\"%s\":{\"dtype\":\"%s\",\"shape\":", p->name,
                                  sizeof(real) == 8 ? "F64" : "F32");
            n += p->vector ? (size_t)snprintf(json + n, room - n, "[%zu]", p->cols)
                           : (size_t)snprintf(json + n, room - n, "[%zu,%zu]", p->rows, p->cols);
            n += (size_t)snprintf(json + n, room - n, ",\"data_offsets\":[%zu,%zu]}", offset,
                                  offset + bytes);
            offset += bytes;
        }
    }
    json[n++] = '}';
    char *h = tensor_file_header(json, n, length);
    free(json);
    return h;
}

void safetensors_require(const char *file) {
    output_require("export", file);
    model_config_require(file);
}

// ---------------------------------------------------------------- gathering

// One element on its way to rank 0, and its place in the flattened whole tensor.
typedef struct { size_t place; real value; } Element;
// The elements of this tensor that this rank writes, as in a checkpoint: of equal replicas one
// rank sends them.
static Element *own_elements(const Model *m, const char *name, size_t *n) {
    *n = 0;
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params; k++) {
            const Unit *u = &m->units[i];
            const Param *p = &u->params[k];
            Range r = checkpoint_written(u, p);
            if (!range_size(r) || strcmp(p->name, name) != 0) continue;
            *n = range_size(r);
            real *values = host_alloc(*n * sizeof *values);
            Element *list = host_alloc(*n * sizeof *list);
            tensor_download(values, param_owned_part(u, unit_own(u, UNIT_WEIGHTS), r));
            for (size_t e = 0; e < *n; e++)
                list[e] = (Element){ .place = param_global_index(p, r.lo - p->offset + e),
                                     .value = values[e] };
            free(values);
            return list;
        }
    return NULL;
}

typedef struct { real *values; size_t room, filled; } Whole;
static void take_elements(void *whole, size_t rank, const void *data, size_t bytes) {
    Whole *w = whole;
    const Element *list = data;
    (void)rank;
    for (size_t i = 0; i < bytes / sizeof *list; i++)
        if (list[i].place < w->room) w->values[list[i].place] = list[i].value;
    w->filled += bytes / sizeof *list;
}

// Collective: appends this tensor to the file, which rank 0 has open.
static void write_tensor(const Model *m, const Param *p, Output *o) {
    size_t n;
    Element *own = own_elements(m, p->name, &n);
    Whole whole = { .room = p->rows * p->cols };
    if (this_rank == 0) whole.values = host_alloc(whole.room * sizeof(real));
    side_gather_each(own, n * sizeof *own, take_elements, &whole);
    if (this_rank == 0) {
        if (whole.filled < whole.room) fault("--export: no rank has all elements of %s", p->name);
        // A write error is stored in the file; output_close() reports it.
        fwrite(whole.values, sizeof(real), whole.room, o->f);
    }
    free(whole.values);
    free(own);
}

void safetensors_export(const Model *m, const char *file) {
    ledger_pause();
    Model *whole = model_describe(&m->config, model_layers(&m->config));
    Output o = {0};
    if (this_rank == 0) {
        size_t length;
        char *h = header(whole, &length);
        o = output_open("export", file);
        fwrite(h, 1, length, o.f);
        free(h);
    }
    for (size_t i = 0; i < whole->n_units; i++)
        for (size_t k = 0; k < whole->units[i].n_params && !whole->units[i].tied_to; k++)
            write_tensor(m, &whole->units[i].params[k], &o);
    if (this_rank == 0) {
        output_close(&o);
        model_config_write(&m->config, file);
    }
    model_free(whole);
    ledger_resume();
}
