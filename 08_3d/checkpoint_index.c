// checkpoint_index.c: see checkpoint_index.h.
#include "08_3d/checkpoint_index.h"
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/real.h"

static bool number(const cJSON *j, const char *name, size_t most, size_t *value) {
    const cJSON *n = cJSON_GetObjectItemCaseSensitive(j, name);
    if (!cJSON_IsNumber(n) || !(n->valuedouble >= 0 && n->valuedouble <= (double)most)) return false;
    *value = (size_t)n->valuedouble;
    return (double)*value == n->valuedouble;
}

const char *checkpoint_index_parse(CheckpointIndex *x, const char *text, size_t bytes) {
    *x = (CheckpointIndex){ .json = cJSON_ParseWithLength(text, bytes) };
    if (!cJSON_IsObject(x->json)) return "is no JSON: it is torn";
    size_t version;
    const char *format = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(x->json, "format"));
    const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(x->json, "dtype"));
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(x->json, "files"), *file;
    if (!format || strcmp(format, "unsplit checkpoint") != 0) return "is no checkpoint of this program";
    if (!number(x->json, "version", SIZE_MAX / 2, &version) || version == 0) return "has no version";
    if (version > CHECKPOINT_VERSION) return "is of a later version of this program: take that one";
    if (!dtype || strcmp(dtype, sizeof(real) == 8 ? "F64" : "F32") != 0)
        return sizeof(real) == 8 ? "has F32 weights: leave PRECISION=fp64 out" : "has F64 weights: use PRECISION=fp64";
    if (!number(x->json, "step", 1000000000, &x->step) ||
        !number(x->json, "optimizer_step", 1000000000, &x->optimizer_step)) return "does not say its step";
    int n = cJSON_IsArray(files) ? cJSON_GetArraySize(files) : 0;
    if (n == 0 || n > CHECKPOINT_MOST_FILES) return "does not name its files";
    x->sum = host_alloc((size_t)n * sizeof *x->sum);
    cJSON_ArrayForEach(file, files) {
        const char *sum = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(file, "fnv1a"));
        if (!sum || sscanf(sum, "%16" SCNx64, &x->sum[x->n].sum) != 1 ||
            !number(file, "bytes", SIZE_MAX / 2, &x->sum[x->n].bytes)) return "does not say how its files must be";
        x->n++;
    }
    return NULL;
}

void checkpoint_index_free(CheckpointIndex *x) {
    cJSON_Delete(x->json);
    free(x->sum);
    *x = (CheckpointIndex){0};
}

const char *checkpoint_index_option(const CheckpointIndex *x, const char *name) {
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(x->json, "options");
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(options, name));
}

const char *checkpoint_piece_parse(CheckpointPiece *p, const char *note, size_t count) {
    int end = 0;
    if (sscanf(note, "%zu %zu %zu %zu %zu %zu %zu %zu %zu%n", &p->rows, &p->cols, &p->my_rows.lo, &p->my_rows.hi,
               &p->my_cols.lo, &p->my_cols.hi, &p->blocks, &p->first, &p->count, &end) != 9 || note[end])
        return "a note";
    size_t limit = (size_t)1 << 31;                // no product below passes 2^63
    if (p->rows > limit || p->cols > limit || p->blocks == 0 || p->blocks > p->cols || p->my_rows.lo > p->my_rows.hi ||
        p->my_rows.hi > p->rows || p->my_cols.lo > p->my_cols.hi || p->my_cols.hi > p->cols / p->blocks)
        return "a place";
    size_t all = range_size(p->my_rows) * p->blocks * range_size(p->my_cols);
    if (p->first > all || p->count > all - p->first || p->count != count) return "a size";
    return NULL;
}
