// checkpoint_index.c prints and parses the index of a checkpoint, and checks the sum over the
// index, which is the index's last member. The file also parses the note of each tensor: the text
// that gives the tensor's place in the whole tensor.
#include "08_3d/checkpoint_index.h"
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/real.h"

static bool number(const cJSON *j, const char *name, size_t most, size_t *value) {
    const cJSON *n = cJSON_GetObjectItemCaseSensitive(j, name);
    if (!cJSON_IsNumber(n) || !(n->valuedouble >= 0 && n->valuedouble <= (double)most))
        return false;
    *value = (size_t)n->valuedouble;
    return (double)*value == n->valuedouble;
}

void checkpoint_file_name(char name[CHECKPOINT_FILE_NAME], size_t rank) {
    snprintf(name, CHECKPOINT_FILE_NAME, "rank-%04zu.safetensors", rank);
}

// ---------------------------------------------------------------- sums

void file_sum_add(FileSum *s, const void *data, size_t bytes) {
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++) s->sum = (s->sum ^ byte[i]) * UINT64_C(0x100000001b3);
    s->bytes += bytes;
}
FileSum file_sum_of(const void *data, size_t bytes) {
    FileSum s = { UINT64_C(0xcbf29ce484222325), 0 };
    file_sum_add(&s, data, bytes);
    return s;
}

// Writes the end of an index. The end has the sum over all bytes before the end. Returns the length
// of the end, which is the same for every sum.
enum { SEAL_ROOM = 64 };
static size_t seal(char end[SEAL_ROOM], const char *text, size_t bytes) {
    return (size_t)snprintf(end, SEAL_ROOM, ",\n\t\"sum\":\t\"%016" PRIx64 "\"\n}\n",
                            file_sum_of(text, bytes).sum);
}
static bool is_sealed(const char *text, size_t bytes) {
    char end[SEAL_ROOM];
    size_t n = seal(end, NULL, 0);
    if (bytes < n) return false;
    seal(end, text, bytes - n);
    return memcmp(text + bytes - n, end, n) == 0;
}

char *checkpoint_index_print(const cJSON *index) {
    char *text = cJSON_Print(index), end[SEAL_ROOM];
    if (!text) fault("out of memory for the index of a checkpoint");
    size_t n = strlen(text) - 2, more = seal(end, text, n); // without the last "\n}"
    char *sealed = host_alloc(n + more + 1);
    memcpy(sealed, text, n);
    memcpy(sealed + n, end, more);
    cJSON_free(text);
    return sealed;
}

// ---------------------------------------------------------------- the index

static bool hexadecimal(const cJSON *j, const char *name, uint64_t *value) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(j, name));
    return text && strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16 &&
           sscanf(text, "%16" SCNx64, value) == 1;
}

static bool parse_run(SavedRun *r, const cJSON *j) {
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(j, "data");
    const cJSON *best = cJSON_GetObjectItemCaseSensitive(j, "best");
    const cJSON *loss = cJSON_GetObjectItemCaseSensitive(best, "eval_loss");
    const cJSON *held_out = cJSON_GetObjectItemCaseSensitive(j, "held_out");
    uint64_t id;
    if (!hexadecimal(j, "run", &id) || !hexadecimal(data, "fnv1a", &r->data.sum) ||
        !number(data, "bytes", SIZE_MAX / 2, &r->data.bytes))
        return false;
    if (held_out && (!hexadecimal(held_out, "fnv1a", &r->held_out.sum) ||
                     !number(held_out, "bytes", SIZE_MAX / 2, &r->held_out.bytes)))
        return false;
    strcpy(r->id, cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(j, "run")));
    if (!best) return true;
    if (!cJSON_IsNumber(loss) || !number(best, "step", 1000000000, &r->best_step)) return false;
    r->best_loss = loss->valuedouble;
    return true;
}
static bool parse_scale(SavedRun *r, const cJSON *j) {
    const cJSON *scale = cJSON_GetObjectItemCaseSensitive(j, "loss_scale");
    const cJSON *factor = cJSON_GetObjectItemCaseSensitive(scale, "factor");
    if (!scale) return true;
    if (!cJSON_IsNumber(factor) || !number(scale, "good", 1000000000, &r->scale_good)) return false;
    r->scale_factor = factor->valuedouble;
    return r->scale_factor >= 1 && r->scale_factor <= 0x1p1000;
}

static const char *parse_files(CheckpointIndex *x) {
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(x->json, "files"), *file;
    int n = cJSON_IsArray(files) ? cJSON_GetArraySize(files) : 0;
    if (n == 0 || n > CHECKPOINT_MOST_FILES) return "does not name its files";
    x->sum = host_alloc((size_t)n * sizeof *x->sum);
    cJSON_ArrayForEach(file, files) {
        FileSum *sum = &x->sum[x->n];
        if (!hexadecimal(file, "fnv1a", &sum->sum) ||
            !number(file, "bytes", SIZE_MAX / 2, &sum->bytes))
            return "lacks the size or the sum of a file";
        x->n++;
    }
    return NULL;
}

const char *checkpoint_index_parse(CheckpointIndex *x, const char *text, size_t bytes) {
    *x = (CheckpointIndex){ .json = cJSON_ParseWithLength(text, bytes) };
    if (!cJSON_IsObject(x->json)) return "is no JSON: it is torn";
    size_t version;
    const char *format = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(x->json, "format"));
    const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(x->json, "dtype"));
    if (!format || strcmp(format, "unsplit checkpoint") != 0)
        return "is no checkpoint of this program";
    if (!number(x->json, "version", SIZE_MAX / 2, &version) || version == 0)
        return "has no version";
    if (version > CHECKPOINT_VERSION)
        return "is of a later version of this program: use that version";
    if (version < CHECKPOINT_VERSION)
        return "is of an earlier version of this program, which wrote no sum over the index: use "
               "that version";
    if (!is_sealed(text, bytes))
        return "is not what was written: the sum over its bytes has changed";
    if (!dtype || strcmp(dtype, sizeof(real) == 8 ? "F64" : "F32") != 0)
        return sizeof(real) == 8 ? "has F32 weights: leave PRECISION=fp64 out"
                                 : "has F64 weights: use PRECISION=fp64";
    if (!number(x->json, "step", 1000000000, &x->step) ||
        !number(x->json, "optimizer_step", 1000000000, &x->optimizer_step))
        return "lacks its step";
    if (!parse_run(&x->run, x->json)) return "lacks the id of its run, or the sum of its data";
    if (!parse_scale(&x->run, x->json)) return "has a loss scale that no training can have";
    return parse_files(x);
}

void checkpoint_index_free(CheckpointIndex *x) {
    cJSON_Delete(x->json);
    free(x->sum);
    *x = (CheckpointIndex){ 0 };
}

const char *checkpoint_index_option(const CheckpointIndex *x, const char *name) {
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(x->json, "options");
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(options, name));
}
const char *checkpoint_index_layout(const CheckpointIndex *x, const char *name) {
    const cJSON *layout = cJSON_GetObjectItemCaseSensitive(x->json, "layout");
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(layout, name));
}

// ---------------------------------------------------------------- a note

const char *checkpoint_piece_parse(CheckpointPiece *p, const char *note, size_t count) {
    int end = 0, more = 0;
    p->ratio = 1;
    if (sscanf(note, "%zu %zu %zu %zu %zu %zu %zu %zu %zu%n", &p->rows, &p->cols, &p->own_rows.lo,
               &p->own_rows.hi, &p->own_cols.lo, &p->own_cols.hi, &p->blocks, &p->first, &p->count,
               &end) != 9)
        return "a note";
    if (note[end] && sscanf(note + end, " %zu%n", &p->ratio, &more) != 1) return "a note";
    if (note[end + more]) return "a note";
    size_t limit = (size_t)1 << 31; // no product below passes 2^63
    if (p->rows > limit || p->cols > limit || p->blocks == 0 || p->blocks > p->cols ||
        p->ratio == 0 || p->ratio > p->blocks || p->own_rows.lo > p->own_rows.hi ||
        p->own_rows.hi > p->rows || p->own_cols.lo > p->own_cols.hi ||
        p->own_cols.hi > p->cols / p->blocks)
        return "a place";
    size_t all = range_size(p->own_rows) * p->blocks * range_size(p->own_cols);
    if (p->first > all || p->count > all - p->first || p->count != count) return "a size";
    return NULL;
}
