// tensor_file.c parses the header of a safetensors file and finds its tensors. tensor_file.c also
// makes the beginning of a safetensors file, and converts elements.
#include "08_3d/tensor_file.h"
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "01_data_parallel/compression_items.h"
#include "common/base/input.h"
#include "common/base/util.h"
#include "common/tensor/storage.h"

// Reads a whole number from 0 to 2^53. A double, as in cJSON, holds these numbers exactly.
// Returns false for any other value.
static bool whole(const cJSON *j, size_t *value) {
    if (!cJSON_IsNumber(j) || !(j->valuedouble >= 0 && j->valuedouble <= 9007199254740992.0))
        return false;
    *value = (size_t)j->valuedouble;
    return (double)*value == j->valuedouble;
}

// GPT-2's files may have causal masks of any type: "h.0.attn.bias", "h.0.attn.masked_bias". Older
// files of Llama may have the angles of rotary positions,
// "model.layers.0.self_attn.rotary_emb.inv_freq".
bool tensor_file_leaves_out(const char *name) {
    const char *attention = strstr(name, ".attn."), *angles = strstr(name, ".rotary_emb.");
    if (angles) return strcmp(angles, ".rotary_emb.inv_freq") == 0;
    return attention &&
           (strcmp(attention, ".attn.bias") == 0 || strcmp(attention, ".attn.masked_bias") == 0);
}

static const struct {
    const char *name;
    size_t bytes;
} types[] = {
    [FILE_F64] = { "F64", 8 },
    [FILE_F32] = { "F32", 4 },
    [FILE_F16] = { "F16", 2 },
    [FILE_BF16] = { "BF16", 2 },
};
enum { FILE_TYPES = sizeof types / sizeof *types };
const char *file_type_name(FileType type) { return types[type].name; }
size_t file_type_bytes(FileType type) { return types[type].bytes; }
void file_type_put(FileType type, void *out, const real *values, size_t n) {
    for (size_t i = 0; i < n; i++) switch (type) {
        case FILE_F64: ((double *)out)[i] = (double)values[i]; break;
        case FILE_F32: ((float *)out)[i] = (float)values[i]; break;
        case FILE_F16: ((uint16_t *)out)[i] = stored_round(FP16S, values[i]); break;
        case FILE_BF16: ((uint16_t *)out)[i] = stored_round(BF16S, values[i]); break;
        }
}

// Reads the description of a tensor in the header. Returns NULL, or the error.
static const char *tensor_of(FileTensor *t, const cJSON *j, const unsigned char *data,
                             size_t bytes) {
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(j, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(j, "shape");
    const cJSON *place = cJSON_GetObjectItemCaseSensitive(j, "data_offsets");
    size_t lo, hi;
    if (!cJSON_IsString(dtype) || !cJSON_IsArray(shape) || cJSON_GetArraySize(shape) > 4)
        return "has no dtype, or no shape of at most 4 sides";
    size_t type = 0;
    while (type < FILE_TYPES && strcmp(dtype->valuestring, types[type].name) != 0) type++;
    if (type == FILE_TYPES) return "is not of the type F64, F32, F16 or BF16: convert it";
    t->type = (FileType)type;
    if (!cJSON_IsArray(place) || cJSON_GetArraySize(place) != 2 ||
        !whole(cJSON_GetArrayItem(place, 0), &lo) || !whole(cJSON_GetArrayItem(place, 1), &hi))
        return "has no place";
    size_t size = types[type].bytes, room = bytes / size;
    t->count = 1;
    const cJSON *side;
    cJSON_ArrayForEach(side, shape) {
        if (!whole(side, &t->shape[t->dims])) return "has a side that is no whole number";
        if (t->shape[t->dims] && t->count > room / t->shape[t->dims])
            return "is larger than the file";
        t->count *= t->shape[t->dims++];
    }
    if (lo > hi || hi > bytes || hi - lo != t->count * size)
        return "does not lie in the file, or the file is cut short";
    t->data = data + lo;
    return (uintptr_t)t->data % size ? "is not aligned" : NULL;
}

bool tensor_file_parse(TensorFile *f, const unsigned char *map, size_t bytes, const char *name,
                       char why[TENSOR_FILE_WHY]) {
    *f = (TensorFile){ .map = map, .bytes = bytes };
    uint64_t length = 0;
    for (size_t i = 0; bytes >= 8 && i < 8; i++) length |= (uint64_t)map[i] << (8 * i);
    if (bytes < 8 || length > bytes - 8) {
        snprintf(why, TENSOR_FILE_WHY, "%s is no safetensors file, or cut short: %zu bytes", name,
                 bytes);
        return false;
    }
    f->header = cJSON_ParseWithLength((const char *)map + 8, (size_t)length);
    if (!cJSON_IsObject(f->header)) {
        snprintf(why, TENSOR_FILE_WHY, "%s is no safetensors file: its header is not JSON", name);
        tensor_file_close(f);
        return false;
    }
    f->tensor = host_alloc((size_t)(cJSON_GetArraySize(f->header) + 1) * sizeof *f->tensor);
    const cJSON *j;
    cJSON_ArrayForEach(j, f->header) {
        if (strcmp(j->string, "__metadata__") == 0 || tensor_file_leaves_out(j->string)) continue;
        FileTensor *t = &f->tensor[f->n++];
        t->name = j->string;
        const char *wrong = tensor_of(t, j, map + 8 + length, bytes - 8 - (size_t)length);
        if (tensor_file_find(f, t->name) != t) wrong = "is in the header twice";
        if (wrong) {
            snprintf(why, TENSOR_FILE_WHY, "%s: the tensor %.80s %s", name, t->name, wrong);
            tensor_file_close(f);
            return false;
        }
    }
    return true;
}

bool tensor_file_open(TensorFile *f, const char *path, char why[TENSOR_FILE_WHY]) {
    *f = (TensorFile){ 0 };
    size_t bytes;
    char reason[INPUT_WHY];
    int file = input_open(path, &bytes, reason);
    if (file < 0) {
        snprintf(why, TENSOR_FILE_WHY, "cannot read %s: %s", path, reason);
        return false;
    }
    void *map = bytes ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (map == MAP_FAILED) {
        snprintf(why, TENSOR_FILE_WHY, "cannot read %s: %s", path,
                 bytes ? strerror(errno) : "it is empty");
        return false;
    }
    if (tensor_file_parse(f, map, bytes, path, why)) return f->mapped = true;
    munmap(map, bytes);
    return false;
}

void tensor_file_close(TensorFile *f) {
    cJSON_Delete(f->header);
    free(f->tensor);
    if (f->mapped) munmap((void *)f->map, f->bytes);
    *f = (TensorFile){ 0 };
}

const FileTensor *tensor_file_find(const TensorFile *f, const char *name) {
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->tensor[i].name, name) == 0) return &f->tensor[i];
    return NULL;
}

const char *tensor_file_note(const TensorFile *f, const char *key) {
    const cJSON *notes = cJSON_GetObjectItemCaseSensitive(f->header, "__metadata__");
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(notes, key));
}

// Returns the value of a bfloat, whose bits are the upper half of a float.
static double value_of_bfloat(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return (double)value;
}
double tensor_file_value(const FileTensor *t, size_t i) {
    switch (t->type) {
    case FILE_F64: return ((const double *)t->data)[i];
    case FILE_F16: return half_value(((const uint16_t *)t->data)[i]);
    case FILE_BF16: return value_of_bfloat(((const uint16_t *)t->data)[i]);
    default: return (double)((const float *)t->data)[i];
    }
}

real tensor_file_finite(const FileTensor *t, size_t i, const char *from) {
    real value = (real)tensor_file_value(t, i);
    REQUIRE(isfinite(value),
            "%s: element %zu of %s is not a finite number, so the training that wrote it was lost: "
            "take older weights",
            from, i, t->name);
    return value;
}

char *tensor_file_header(const char *json, size_t n, size_t *bytes) {
    size_t padded = ceil_div(n, 8) * 8;
    char *h = host_alloc(*bytes = 8 + padded);
    for (size_t i = 0; i < 8; i++) h[i] = (char)(padded >> (8 * i));
    memcpy(h + 8, json, n);
    memset(h + 8 + n, ' ', padded - n);
    return h;
}
