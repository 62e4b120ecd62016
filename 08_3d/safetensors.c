// safetensors.c: see safetensors.h.
#include "08_3d/safetensors.h"
#include <stdio.h>
#include <stdlib.h>
#include "08_3d/model_config.h"
#include "08_3d/tensor_file.h"
#include "judge/frame/lesson.h"
#include "common/base/output.h"
#include "judge/frame/training.h"

// The whole model's tensors in model order, whatever part of it this rank holds: described once more, never allocated.
static char *header(const Model *whole, size_t *length) {
    size_t room = 256 + 192 * config_tensors(&whole->config), n = 0, offset = 0;
    char *json = host_alloc(room);
    const ModelConfig *c = &whole->config;
    n += (size_t)snprintf(json + n, room - n,
                          "{\"__metadata__\":{\"format\":\"pt\",\"n_layer\":\"%zu\",\"n_embd\":\"%zu\","
                          "\"n_head\":\"%zu\",\"n_positions\":\"%zu\",\"vocab_size\":\"%zu\"}",
                          c->layers, c->width, c->heads, c->context, c->vocab);
    for (size_t i = 0; i < whole->n_units; i++) {
        const Unit *u = &whole->units[i];
        for (size_t k = 0; k < u->n_params && !u->tied_to; k++) {
            const Param *p = &u->params[k];
            size_t bytes = p->rows * p->cols * sizeof(real);
            n += (size_t)snprintf(json + n, room - n, ",\"%s\":{\"dtype\":\"%s\",\"shape\":", p->name,
                                  sizeof(real) == 8 ? "F64" : "F32");
            n += p->vector ? (size_t)snprintf(json + n, room - n, "[%zu]", p->cols)
                           : (size_t)snprintf(json + n, room - n, "[%zu,%zu]", p->rows, p->cols);
            n += (size_t)snprintf(json + n, room - n, ",\"data_offsets\":[%zu,%zu]}", offset, offset + bytes);
            offset += bytes;
        }
    }
    json[n++] = '}';
    char *h = tensor_file_header(json, n, length);
    free(json);
    return h;
}

void safetensors_require(Run *run, const char *file) {
    if (run->world->rank > 0) return;
    output_require("export", file);
    model_config_require(file);
}

static void write_file(const Model *whole, Snapshot *weights, const char *file) {
    Output o = output_open("export", file);
    size_t length;
    char *h = header(whole, &length);
    fwrite(h, 1, length, o.f);                     // errors stay with the file: output_close() asks for them
    for (size_t i = 0; i < whole->n_units; i++)
        for (size_t k = 0; k < whole->units[i].n_params && !whole->units[i].tied_to; k++) {
            const Param *p = &whole->units[i].params[k];
            fwrite(snapshot_values(weights, p->name), sizeof(real), p->rows * p->cols, o.f);
        }
    output_close(&o);
    free(h);
}

void safetensors_export(Run *run, const Model *m, const char *file) {
    ledger_pause();
    Snapshot *weights = snapshot_new(run);
    model_snapshot(m, weights, UNIT_WEIGHTS, NULL);
    snapshot_join(weights);
    if (run->world->rank == 0) {
        Model *whole = model_describe(&m->config, model_layers(&m->config));
        write_file(whole, weights, file);
        model_config_write(&m->config, file);
        model_free(whole);
    }
    snapshot_free(weights);
    ledger_resume();
}
