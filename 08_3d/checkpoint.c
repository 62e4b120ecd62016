// checkpoint.c: see checkpoint.h.
#include "08_3d/checkpoint.h"
#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "08_3d/checkpoint_index.h"
#include "common/base/output.h"

// The options that say which training this is. All others (layout, files, clock) may change from run to run.
static const char *const training_options[] = {
    "layers", "width", "heads", "context", "dropout", "seed", "batch", "steps", "lr", "warmup", "weight-decay", "clip",
    "beta1", "beta2", "eps",
    "optimizer", "data", "vocab", "compress", "keep-one-of", "power-rank", NULL,
};
// Of these, those without which the weights would mean something else.
static const char *const model_options[] = { "layers", "width", "heads", "context", "optimizer", NULL };

// ---------------------------------------------------------------- what a rank writes

// My elements of p that nobody else writes: [lo, hi) of the unit. Copies are left out (not in the norm; on the last
// stage), and of equal replicas the first one writes.
static Range written(const Unit *u, const Param *p) {
    bool whole = range_size(u->own) == u->size, first = !u->replicas || u->replicas->rank == 0;
    if (u->tied_to || u->tied_copy || !p->in_norm || (whole && !first)) return (Range){0, 0};
    return param_owned(u, p);
}

typedef struct { char *text; size_t n, room; } Text;
static void add(Text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(Text *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (t->room - t->n < 512) {
        char *more = host_alloc(t->room = 2 * t->room + 4096);
        if (t->n) memcpy(more, t->text, t->n);
        free(t->text);
        t->text = more;
    }
    t->n += (size_t)vsnprintf(t->text + t->n, t->room - t->n, format, arguments);
    va_end(arguments);
}

static const char *const suffix[] = { [UNIT_WEIGHTS] = "", [UNIT_M] = ".m", [UNIT_V] = ".v" };
static const UnitTensor kinds[] = { UNIT_WEIGHTS, UNIT_M, UNIT_V };

// Calls what() for every tensor of this rank's file, in order.
typedef void EachTensor(void *context, const Unit *u, const Param *p, Range r, UnitTensor kind);
static void each_tensor(const Model *m, bool moments, EachTensor *what, void *context) {
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params; k++) {
            const Unit *u = &m->units[i];
            Range r = written(u, &u->params[k]);
            for (size_t n = 0; range_size(r) && n < (moments ? 3 : 1); n++)
                what(context, u, &u->params[k], r, kinds[n]);
        }
}

typedef struct { Text json; size_t offset; } Header;
// Of the whole tensor: rows, columns, my rows, my columns of each block, blocks; which elements of that rectangle.
static void add_note(void *context, const Unit *u, const Param *p, Range r, UnitTensor kind) {
    Header *h = context;
    (void)u;
    if (kind == UNIT_WEIGHTS)
        add(&h->json, ",\"%s\":\"%zu %zu %zu %zu %zu %zu %zu %zu %zu\"", p->name, p->rows, p->cols, p->my_rows.lo,
            p->my_rows.hi, p->my_cols.lo, p->my_cols.hi, p->blocks, r.lo - p->offset, range_size(r));
}
static void add_tensor(void *context, const Unit *u, const Param *p, Range r, UnitTensor kind) {
    Header *h = context;
    (void)u;
    size_t rows = param_local_rows(p), cols = param_local_cols(p), n = range_size(r), bytes = n * sizeof(real);
    add(&h->json, ",\"%s%s\":{\"dtype\":\"%s\",\"shape\":", p->name, suffix[kind], sizeof(real) == 8 ? "F64" : "F32");
    if (n == rows * cols && !p->vector) add(&h->json, "[%zu,%zu]", rows, cols);
    else add(&h->json, "[%zu]", n);
    add(&h->json, ",\"data_offsets\":[%zu,%zu]}", h->offset, h->offset + bytes);
    h->offset += bytes;
}

// FNV-1a (Fowler, Noll, Vo): a torn page or a flipped bit changes it.
static const FileSum no_bytes = { UINT64_C(0xcbf29ce484222325), 0 };
static void sum_over(FileSum *s, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) s->sum = (s->sum ^ at[i]) * UINT64_C(0x100000001b3);
    s->bytes += bytes;
}

typedef struct { Output o; FileSum sum; } Writing;
static void put(Writing *w, const void *data, size_t bytes) {
    fwrite(data, 1, bytes, w->o.f);                // errors stay with the file: output_close() asks for them
    sum_over(&w->sum, data, bytes);
}
static void put_tensor(void *context, const Unit *u, const Param *p, Range r, UnitTensor kind) {
    real *values = host_alloc(range_size(r) * sizeof(real));
    (void)p;
    tensor_download(values, param_owned_part(u, unit_own(u, kind), r));
    put(context, values, range_size(r) * sizeof(real));
    free(values);
}

// All of it is on the disk before the folder gets its name.
static void close_on_disk(Output *o) {
    if (fflush(o->f) == 0 && fsync(fileno(o->f)) != 0)
        fault("--%s %s: cannot write it: %s", o->option, o->file, strerror(errno));
    output_close(o);
}

static const char rank_state[] = "rank state";       // a tensor without a note: no other layout reads it
static FileSum write_rank(const Model *m, bool moments, const RankState *state, const char *path) {
    Header h = {0};
    add(&h.json, "{\"__metadata__\":{\"format\":\"unsplit\"");
    each_tensor(m, moments, add_note, &h);
    add(&h.json, "}");
    each_tensor(m, moments, add_tensor, &h);
    if (state->n)
        add(&h.json, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%zu],\"data_offsets\":[%zu,%zu]}", rank_state,
            sizeof(real) == 8 ? "F64" : "F32", state->n, h.offset, h.offset + state->n * sizeof(real));
    add(&h.json, "}");
    size_t bytes;
    char *header = tensor_file_header(h.json.text, h.json.n, &bytes);
    Writing w = { .o = output_open("save", path), .sum = no_bytes };
    put(&w, header, bytes);
    each_tensor(m, moments, put_tensor, &w);
    if (state->n) put(&w, state->values, state->n * sizeof(real));
    close_on_disk(&w.o);
    free(header);
    free(h.json.text);
    return w.sum;
}

// ---------------------------------------------------------------- the folder

static char *path_of(const char *dir, const char *file) {
    char *path = host_alloc(strlen(dir) + strlen(file) + 2);
    sprintf(path, "%s/%s", dir, file);
    return path;
}
// step-000400 -> true, 400
static bool step_name(const char *name, size_t *step) {
    int end = 0;
    return sscanf(name, "step-%zu%n", step, &end) == 1 && name[end] == 0 &&
           strspn(name + 5, "0123456789") == strlen(name + 5);
}
static bool make(const char *dir) { return mkdir(dir, 0777) == 0 || errno == EEXIST; }

// Removes a folder of ours: plain files only, then itself.
static void remove_folder(const char *path) {
    DIR *d = opendir(path);
    if (!d) return;
    for (const struct dirent *e; (e = readdir(d));) {
        char *file = path_of(path, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) remove(file);
        free(file);
    }
    closedir(d);
    rmdir(path);
}
// What a killed run left.
static void remove_parts(const char *dir) {
    DIR *d = opendir(dir);
    if (!d) return;
    for (const struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (strncmp(e->d_name, "step-", 5) != 0 || n < 5 || strcmp(e->d_name + n - 5, ".part") != 0) continue;
        char *part = path_of(dir, e->d_name);
        remove_folder(part);
        free(part);
    }
    closedir(d);
}

void checkpoint_require(Run *run, const char *dir) {
    if (run->world->rank > 0) return;
    REQUIRE(make(dir), "--save %s: cannot make this folder: %s", dir, strerror(errno));
    char *probe = path_of(dir, ".writable");
    output_require("save", probe);
    free(probe);
}

static cJSON *index_of(Run *run, const Optimizer *o, const RankState *state, size_t step, const FileSum *files) {
    cJSON *index = cJSON_CreateObject(), *options = cJSON_AddObjectToObject(index, "options");
    cJSON_AddStringToObject(index, "format", "unsplit checkpoint");
    cJSON_AddNumberToObject(index, "version", CHECKPOINT_VERSION);
    cJSON_AddNumberToObject(index, "step", (double)step);
    cJSON_AddNumberToObject(index, "optimizer_step", (double)o->step);
    cJSON_AddBoolToObject(index, "check", option_flag(run, "check"));      // it changes the token counts
    if (state->n) cJSON_AddStringToObject(index, rank_state, state->layout);
    cJSON_AddStringToObject(index, "dtype", sizeof(real) == 8 ? "F64" : "F32");
    for (const char *const *name = training_options; *name; name++)
        if (option_text(run, *name)) cJSON_AddStringToObject(options, *name, option_text(run, *name));
    cJSON *list = cJSON_AddArrayToObject(index, "files");
    for (size_t r = 0; r < run->world->size; r++) {
        char sum[32];
        cJSON *file = cJSON_CreateObject();
        snprintf(sum, sizeof sum, "%016" PRIx64, files[r].sum);
        cJSON_AddNumberToObject(file, "bytes", (double)files[r].bytes);
        cJSON_AddStringToObject(file, "fnv1a", sum);
        cJSON_AddItemToArray(list, file);
    }
    return index;
}

static void write_index(Run *run, const Optimizer *o, const RankState *state, size_t step, const FileSum *files,
                        const char *part) {
    cJSON *index = index_of(run, o, state, step, files);
    char *text = cJSON_Print(index), *path = path_of(part, "index.json");
    if (!text) fault("out of memory for %s", path);
    Output out = output_open("save", path);
    fprintf(out.f, "%s\n", text);
    close_on_disk(&out);
    cJSON_free(text);
    cJSON_Delete(index);
    free(path);
}

// step-N.part becomes step-N; one of that name, of a run that was taken up earlier, makes room.
static void put_in_place(const char *dir, const char *part, const char *name) {
    char *there = path_of(dir, name), *old = path_of(dir, "step-replaced.part");
    rename(there, old);
    if (rename(part, there) != 0) fault("--save %s: cannot rename %s: %s", dir, part, strerror(errno));
    remove_folder(old);
    free(there);
    free(old);
}

void checkpoint_save(Run *run, const Model *m, const Optimizer *o, const RankState *state, const char *dir,
                     size_t step) {
    char name[32], part_name[40], file[32];
    snprintf(name, sizeof name, "step-%06zu", step);
    snprintf(part_name, sizeof part_name, "%s.part", name);
    snprintf(file, sizeof file, "rank-%04zu.safetensors", run->world->rank);
    char *part = path_of(dir, part_name), *path = path_of(part, file);
    ledger_pause();
    if (run->is_root) {
        remove_parts(dir);
        if (!make(part)) fault("--save %s: cannot make a folder in it: %s", dir, strerror(errno));
    }
    comm_barrier(run->world);                      // the folder is there
    FileSum mine = write_rank(m, o->kind == ADAMW, state, path), *all;
    size_t *sizes;
    all = side_gather(&mine, sizeof mine, &sizes);       // all files are there
    if (run->is_root) {
        write_index(run, o, state, step, all, part);
        put_in_place(dir, part, name);
        free(all);
        free(sizes);
    }
    comm_barrier(run->world);
    ledger_resume();
    free(part);
    free(path);
}

// ---------------------------------------------------------------- reading

struct Checkpoint {
    char *dir;                                     // the checkpoint itself
    CheckpointIndex index;
    TensorFile *file;                              // [index.n]
    bool moments;
    struct { const char *name; CheckpointPiece *piece; size_t n; } *param;         // [params] every tensor, its pieces
    size_t params;
};

void checkpoint_free(Checkpoint *c) {
    for (size_t i = 0; i < c->params; i++) free(c->param[i].piece);
    for (size_t i = 0; c->file && i < c->index.n; i++) tensor_file_close(&c->file[i]);
    checkpoint_index_free(&c->index);
    free(c->param);
    free(c->file);
    free(c->dir);
    free(c);
}

static char *read_text(const char *path, size_t *n) {
    struct stat is;
    FILE *f = fopen(path, "rb");
    char *text = f && fstat(fileno(f), &is) == 0 ? host_alloc((size_t)is.st_size) : NULL;
    *n = text ? fread(text, 1, (size_t)is.st_size, f) : 0;
    if (f) fclose(f);
    return text;
}

// Adds the pieces of one file. NULL, or what is wrong.
static const char *add_pieces(Checkpoint *c, const TensorFile *f) {
    for (size_t i = 0; i < f->n; i++) {
        const char *name = f->tensor[i].name, *note = tensor_file_note(f, name);
        if (!note) continue;                       // a moment: found by its weights' name
        CheckpointPiece p = {0};
        const char *wrong = checkpoint_piece_parse(&p, note, f->tensor[i].count);
        if (wrong) return wrong;
        char moment[128];
        for (size_t k = 0; k < (c->moments ? 3 : 1); k++) {
            snprintf(moment, sizeof moment, "%.100s%s", name, suffix[kinds[k]]);
            p.t[k] = tensor_file_find(f, moment);
            if (!p.t[k] || p.t[k]->count != p.count || p.t[k]->is_double != (sizeof(real) == 8)) return "a moment";
        }
        size_t at = 0;
        while (at < c->params && strcmp(c->param[at].name, name) != 0) at++;
        if (at == c->params) c->param[c->params++].name = name;
        CheckpointPiece **list = &c->param[at].piece;
        CheckpointPiece *more = host_alloc((c->param[at].n + 1) * sizeof *more);
        if (c->param[at].n) memcpy(more, *list, c->param[at].n * sizeof *more);
        free(*list);
        *list = more;
        more[c->param[at].n++] = p;
    }
    return NULL;
}

static bool read_files(Checkpoint *c, char why[CHECKPOINT_WHY]) {
    const char *optimizer = checkpoint_option(c, "optimizer");
    c->moments = optimizer && strcmp(optimizer, "adamw") == 0;
    c->file = host_alloc(c->index.n * sizeof *c->file);
    size_t tensors = 0;
    for (size_t i = 0; i < c->index.n; i++) {
        char name[64], reason[TENSOR_FILE_WHY];
        snprintf(name, sizeof name, "rank-%04zu.safetensors", i);
        char *path = path_of(c->dir, name);
        bool good = tensor_file_open(&c->file[i], path, reason);
        if (!good) snprintf(why, CHECKPOINT_WHY, "%.*s", CHECKPOINT_WHY - 1, reason);
        else if (c->file[i].bytes != c->index.sum[i].bytes) {
            snprintf(why, CHECKPOINT_WHY, "%s has %zu bytes, and %zu were written: it is torn", path, c->file[i].bytes,
                     c->index.sum[i].bytes);
            good = false;
        }
        free(path);
        if (!good) return false;
        tensors += c->file[i].n;
    }
    c->param = host_alloc((tensors + 1) * sizeof *c->param);
    for (size_t i = 0; i < c->index.n; i++) {
        const char *wrong = add_pieces(c, &c->file[i]);
        if (!wrong) continue;
        snprintf(why, CHECKPOINT_WHY, "%s/rank-%04zu.safetensors: %s in it is not what this program writes", c->dir, i,
                 wrong);
        return false;
    }
    return true;
}

// DIR itself, or the newest in it; NULL: there is none.
static char *newest(const char *dir) {
    char *index = path_of(dir, "index.json"), *best = access(index, F_OK) == 0 ? path_of(dir, ".") : NULL;
    free(index);
    DIR *d = best ? NULL : opendir(dir);
    size_t step, most = 0;
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (!step_name(e->d_name, &step) || (best && step <= most)) continue;
        free(best);
        best = path_of(dir, e->d_name);
        most = step;
    }
    if (d) closedir(d);
    return best;
}

Checkpoint *checkpoint_read(const char *dir, char why[CHECKPOINT_WHY]) {
    Checkpoint *c = host_alloc(sizeof *c);
    c->dir = newest(dir);
    if (!c->dir) {
        snprintf(why, CHECKPOINT_WHY, "there is no checkpoint in %s", dir);
        checkpoint_free(c);
        return NULL;
    }
    size_t n;
    char *path = path_of(c->dir, "index.json"), *text = read_text(path, &n);
    const char *wrong = text ? checkpoint_index_parse(&c->index, text, n) : "cannot be read";
    if (wrong) snprintf(why, CHECKPOINT_WHY, "%s %s", path, wrong);
    bool good = !wrong && read_files(c, why);
    free(path);
    free(text);
    if (good) return c;
    checkpoint_free(c);
    return NULL;
}

size_t checkpoint_step(const Checkpoint *c) { return c->index.step; }
const char *checkpoint_option(const Checkpoint *c, const char *name) {
    return checkpoint_index_option(&c->index, name);
}

void checkpoint_verify(Run *run, const Checkpoint *c) {
    for (size_t i = run->world->rank; i < c->index.n; i += run->world->size) {
        FileSum sum = no_bytes;
        sum_over(&sum, c->file[i].map, c->file[i].bytes);
        REQUIRE(sum.sum == c->index.sum[i].sum, "%s/rank-%04zu.safetensors is not what was written: the sum over "
                "its bytes is another one; take an older checkpoint", c->dir, i);
    }
    comm_barrier(run->world);
}

// ---------------------------------------------------------------- filling a model

typedef struct { const Checkpoint *c; int kind; size_t param, piece; } Filling;        // the place found last
static bool holds(const CheckpointPiece *p, size_t row, size_t block, size_t col, size_t *at) {
    if (row < p->my_rows.lo || row >= p->my_rows.hi || col < p->my_cols.lo || col >= p->my_cols.hi) return false;
    size_t width = range_size(p->my_cols), place = p->first;
    // EXERCISE 08.train-a (3 points): find an element of the whole tensor in a saved piece. The piece is of a rectangle
    // whose rows p->my_rows have p->blocks blocks (3 for q, k, v) of the columns p->my_cols, `width` in each. place: of
    // this element (its row, its block, its column in that block; both ranges have it) in the flattened rectangle.
    place = ((row - p->my_rows.lo) * p->blocks + block) * width + col - p->my_cols.lo;
    // END
    if (place < p->first || place >= p->first + p->count) return false;
    *at = place - p->first;
    return true;
}
static bool named(const Checkpoint *c, size_t i, const char *name) { return strcmp(c->param[i].name, name) == 0; }
static real value(void *filling, const Param *p, size_t i) {
    Filling *f = filling;
    const Checkpoint *c = f->c;
    if (f->param == c->params || !named(c, f->param, p->name))
        for (f->param = 0, f->piece = 0; f->param < c->params && !named(c, f->param, p->name);) f->param++;
    REQUIRE(f->param < c->params, "%s has no tensor %s: it is of another model", c->dir, p->name);
    const CheckpointPiece *list = c->param[f->param].piece;
    size_t n = c->param[f->param].n, row = i / p->cols, each = p->cols / p->blocks, block = i % p->cols / each, at;
    REQUIRE(list->rows == p->rows && list->cols == p->cols && list->blocks == p->blocks,
            "%s has %s of %zu x %zu, and this model's is %zu x %zu: leave the model's sizes out, they are taken "
            "from the checkpoint", c->dir, p->name, list->rows, list->cols, p->rows, p->cols);
    for (size_t k = 0; k < n; k++, f->piece = (f->piece + 1) % n)
        if (holds(&list[f->piece], row, block, i % each, &at))
            return (real)tensor_file_value(list[f->piece].t[f->kind], at);
    usage_error("%s lacks element %zu of %s: files of it are missing", c->dir, i, p->name);
}

void checkpoint_load(const Checkpoint *c, Model *m, Optimizer *o) {
    bool moments = o && o->kind == ADAMW;
    REQUIRE(!o || moments == c->moments, "--resume: %s has %s moments, and --optimizer %s %s them: leave it out, it is "
            "taken from the checkpoint", c->dir, c->moments ? "AdamW's" : "no", moments ? "adamw" : "sgd",
            moments ? "needs" : "has none of");
    if (o) o->step = c->index.optimizer_step;
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;                  // the embedding's
        Filling w = { c, 0, c->params, 0 }, first = { c, 1, c->params, 0 }, second = { c, 2, c->params, 0 };
        if (u->w.data) unit_fill(u, u->w, (Range){ 0, u->size }, value, &w);   // more than I own, under ZeRO-1 and 2
        else unit_fill(u, u->own_w, u->own, value, &w);
        if (moments) unit_fill(u, u->m, u->own, value, &first);
        if (moments) unit_fill(u, u->v, u->own, value, &second);
    }
}

real *checkpoint_load_state(const Checkpoint *c, size_t rank, const RankState *want) {
    const char *layout = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(c->index.json, rank_state));
    if (!layout) return NULL;
    REQUIRE(strcmp(layout, want->layout) == 0, "--resume: %s has what each rank had not sent, of %s, and this is %s: "
            "choose that one, or --compress none, which drops it", c->dir, layout, want->layout);
    const FileTensor *t = rank < c->index.n ? tensor_file_find(&c->file[rank], rank_state) : NULL;
    REQUIRE(t && t->count == want->n && t->is_double == (sizeof(real) == 8), "%s lacks what rank %zu had not sent: it "
            "is not what this program writes", c->dir, rank);
    real *values = host_alloc(want->n * sizeof *values);
    for (size_t i = 0; i < want->n; i++) values[i] = (real)tensor_file_value(t, i);
    return values;
}

// ---------------------------------------------------------------- a run that resumes

Checkpoint *checkpoint_resume(Run *run, const char *dir) {
    char why[CHECKPOINT_WHY] = "";
    Checkpoint *c = checkpoint_read(dir, why);
    REQUIRE(c, "--resume %s: %s", dir, why);
    checkpoint_verify(run, c);
    for (const char *const *name = training_options; *name; name++) {
        const char *is = checkpoint_option(c, *name);
        if (is && !option_given(run, *name)) option_default(run, *name, is);
    }
    bool check = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(c->index.json, "check"));
    REQUIRE(check == option_flag(run, "check"),
            "--resume %s: it was trained with%s --check, which has other token counts: %s", dir, check ? "" : "out",
            check ? "give --check" : "leave --check out");
    run->seed = (uint64_t)option_size(run, "seed");
    for (const char *const *name = model_options; *name; name++) {
        const char *was = checkpoint_option(c, *name), *is = option_text(run, *name);
        REQUIRE(was && strcmp(was, is) == 0, "--resume %s: it was trained with --%s %s, not %s: leave --%s out", dir,
                *name, was ? was : "?", is, *name);
    }
    return c;
}
