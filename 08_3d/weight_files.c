// weight_files.c opens one safetensors file, or the files of an index, and compares the files with
// the index.
#include "08_3d/weight_files.h"
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/input.h"
#include "common/base/util.h"

// The index of a model with 100,000 tensors has some 10 MB.
enum { MOST_INDEX_BYTES = 1 << 26 };

static bool is_index(const char *path) {
    static const char end[] = ".index.json";
    size_t n = strlen(path), m = sizeof end - 1;
    return n > m && strcmp(path + n - m, end) == 0;
}

static char *beside(const char *index, const char *name) {
    const char *slash = strrchr(index, '/');
    int folder = slash ? (int)(slash + 1 - index) : 0;
    size_t room = (size_t)folder + strlen(name) + 1;
    char *path = host_alloc(room);
    snprintf(path, room, "%.*s%s", folder, index, name);
    return path;
}

// Returns the map of an index, or NULL if the map is not an object of texts. Each text must be the
// name of a file in the same folder.
static const cJSON *weight_map(const cJSON *index) {
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(index, "weight_map"), *entry;
    if (!cJSON_IsObject(map) || !map->child) return NULL;
    cJSON_ArrayForEach(entry, map) {
        const char *name = cJSON_GetStringValue(entry);
        if (!name || !*name || *name == '.' || strchr(name, '/')) return NULL;
    }
    return map;
}

// A file of the index, and the number of tensors that the file must have.
typedef struct {
    const char *name;
    size_t tensors;
} Shard;
static size_t shard_of(const Shard *shard, size_t n, const char *name) {
    size_t i = 0;
    while (i < n && strcmp(shard[i].name, name) != 0) i++;
    return i;
}

// The file must have each tensor that the map places in the file, and no other tensor.
static bool agrees(const TensorFile *f, const cJSON *map, const Shard *shard, const char *index,
                   char why[WEIGHT_FILES_WHY]) {
    for (size_t i = 0; i < f->n; i++) {
        const char *name = f->tensor[i].name;
        const char *place = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(map, name));
        if (place && strcmp(place, shard->name) == 0) continue;
        snprintf(why, WEIGHT_FILES_WHY,
                 "%.300s: the tensor %.80s is in %.80s, but the index %s%.80s", index, name,
                 shard->name, place ? "places it in " : "omits it", place ? place : "");
        return false;
    }
    if (f->n == shard->tensors) return true;
    const cJSON *entry;
    cJSON_ArrayForEach(entry, map) {
        if (strcmp(cJSON_GetStringValue(entry), shard->name) != 0) continue;
        if (tensor_file_find(f, entry->string)) continue;
        snprintf(why, WEIGHT_FILES_WHY, "%.300s: the tensor %.80s is missing in %.80s", index,
                 entry->string, shard->name);
        return false;
    }
    snprintf(why, WEIGHT_FILES_WHY, "%.300s: the index names a tensor of %.80s twice", index,
             shard->name);
    return false;
}

static bool open_shards(WeightFiles *w, const cJSON *map, const char *path,
                        char why[WEIGHT_FILES_WHY]) {
    size_t entries = (size_t)cJSON_GetArraySize(map), n = 0;
    Shard *shard = host_alloc(entries * sizeof *shard);
    const cJSON *entry;
    cJSON_ArrayForEach(entry, map) {
        // The comparison ignores causal masks and tables of angles, both in the file and in the
        // map.
        if (tensor_file_leaves_out(entry->string)) continue;
        const char *name = cJSON_GetStringValue(entry);
        size_t i = shard_of(shard, n, name);
        if (i == n) shard[n++] = (Shard){ .name = name };
        shard[i].tensors++;
    }
    w->file = host_alloc((n + 1) * sizeof *w->file);
    bool good = true;
    while (good && w->n < n) {
        char *file = beside(path, shard[w->n].name);
        good = tensor_file_open(&w->file[w->n], file, why);
        free(file);
        if (good) w->n++;
    }
    for (size_t i = 0; good && i < n; i++) good = agrees(&w->file[i], map, &shard[i], path, why);
    free(shard);
    return good;
}

bool weight_files_open(WeightFiles *w, const char *path, char why[WEIGHT_FILES_WHY]) {
    *w = (WeightFiles){ 0 };
    if (!is_index(path)) {
        w->file = host_alloc(sizeof *w->file);
        w->n = tensor_file_open(w->file, path, why);
        if (!w->n) weight_files_close(w);
        return w->n == 1;
    }
    size_t bytes;
    char reason[INPUT_WHY];
    char *text = input_text(path, MOST_INDEX_BYTES, &bytes, reason);
    if (!text) {
        snprintf(why, WEIGHT_FILES_WHY, "cannot read %.600s: %s", path, reason);
        return false;
    }
    cJSON *index = cJSON_ParseWithLength(text, bytes);
    const cJSON *map = weight_map(index);
    bool good = map && open_shards(w, map, path, why);
    if (!map)
        snprintf(why, WEIGHT_FILES_WHY,
                 "%.600s is no index: expected an object weight_map of names of tensors and of "
                 "files in the same folder",
                 path);
    cJSON_Delete(index);
    free(text);
    if (!good) weight_files_close(w);
    return good;
}

void weight_files_close(WeightFiles *w) {
    for (size_t i = 0; i < w->n; i++) tensor_file_close(&w->file[i]);
    free(w->file);
    *w = (WeightFiles){ 0 };
}

const FileTensor *weight_files_find(const WeightFiles *w, const char *name) {
    for (size_t i = 0; i < w->n; i++) {
        const FileTensor *t = tensor_file_find(&w->file[i], name);
        if (t) return t;
    }
    return NULL;
}
