// checkpoint_write.c writes each rank's file and the index of a checkpoint, and removes old
// checkpoints for --keep.
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "08_3d/checkpoint.h"
#include "08_3d/checkpoint_folder.h"
#include "08_3d/resume.h"
#include "common/base/output.h"

// ---------------------------------------------------------------- the file of a rank

// Two kinds of tensors are copies and are not written: tensors that the norm does not count, and
// the wte of a tied head. If every replica owns the whole unit, only replica 0 writes.
Range checkpoint_written(const Unit *u, const Param *p) {
    bool whole = range_size(u->own) == u->size, first = !u->replicas || u->replicas->rank == 0;
    if (u->tied_to || u->tied_copy || !p->in_norm || (whole && !first)) return (Range){ 0, 0 };
    return param_owned(u, p);
}

Tensor checkpoint_weights(const Unit *u) {
    return u->master.data && u->master_made ? u->master : unit_own(u, UNIT_WEIGHTS);
}

typedef struct {
    char *text;
    size_t n, room;
} Text;
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

static const UnitTensor kinds[] = { UNIT_WEIGHTS, UNIT_M, UNIT_V };

// Calls what() for every weight and moment that this rank writes, in the order of its file.
typedef void EachTensor(void *context, const Unit *u, const Param *p, Range r, UnitTensor kind);
static void each_tensor(const Model *m, bool moments, EachTensor *what, void *context) {
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params; k++) {
            const Unit *u = &m->units[i];
            Range r = checkpoint_written(u, &u->params[k]);
            for (size_t n = 0; range_size(r) && n < (moments ? 3 : 1); n++)
                what(context, u, &u->params[k], r, kinds[n]);
        }
}

typedef struct {
    Text json;
    size_t offset;
} Header;
// Adds the note of a weight to "__metadata__". The note gives the place of the weight's elements in
// the whole tensor, by nine numbers:
//     2  rows and columns of the whole tensor
//     2  this rank's rows: the first row, and the row behind the last one
//     2  this rank's columns of each block: the first column, and the column behind the last one
//     1  the number of blocks
//     2  the first element in the rectangle of these rows and columns, and the number of elements
// With grouped heads the queries take several of these blocks. A tenth number then gives the number
// of blocks of the queries.
static void add_note(void *context, const Unit *u, const Param *p, Range r, UnitTensor kind) {
    Header *h = context;
    (void)u;
    if (kind != UNIT_WEIGHTS) return;
    add(&h->json, ",\"%s\":\"%zu %zu %zu %zu %zu %zu %zu %zu %zu", p->name, p->rows, p->cols,
        p->own_rows.lo, p->own_rows.hi, p->own_cols.lo, p->own_cols.hi, param_narrow_blocks(p),
        r.lo - p->offset, range_size(r));
    if (p->ratio > 1) add(&h->json, " %zu", p->ratio);
    add(&h->json, "\"");
}
static void add_tensor(void *context, const Unit *u, const Param *p, Range r, UnitTensor kind) {
    Header *h = context;
    (void)u;
    size_t rows = param_local_rows(p), cols = param_local_cols(p), n = range_size(r),
           bytes = n * sizeof(real);
    add(&h->json, ",\"%s%s\":{\"dtype\":\"%s\",\"shape\":", p->name, checkpoint_suffix[kind],
        sizeof(real) == 8 ? "F64" : "F32");
    if (n == rows * cols && !p->vector) add(&h->json, "[%zu,%zu]", rows, cols);
    else add(&h->json, "[%zu]", n);
    add(&h->json, ",\"data_offsets\":[%zu,%zu]}", h->offset, h->offset + bytes);
    h->offset += bytes;
}

typedef struct {
    Output o;
    FileSum sum;
} Writing;
static void put(Writing *w, const void *data, size_t bytes) {
    // If fwrite() fails, it marks the FILE, and output_close() calls fault().
    fwrite(data, 1, bytes, w->o.f);
    file_sum_add(&w->sum, data, bytes);
}
static void put_tensor(void *context, const Unit *u, const Param *p, Range r, UnitTensor kind) {
    real *values = host_alloc(range_size(r) * sizeof(real));
    (void)p;
    Tensor own = kind == UNIT_WEIGHTS ? checkpoint_weights(u) : unit_own(u, kind);
    tensor_download(values, param_owned_part(u, own, r));
    put(context, values, range_size(r) * sizeof(real));
    free(values);
}

// Opens a file in the folder dir/part. Output.part and Output.file are the same path, because only
// the folder is renamed.
static Output create(const char *dir, const char *part, const char *file) {
    char *folder = folder_path(dir, part), *path = folder_path(folder, file);
    Output o = {
        .f = folder_create(dir, part, file), .part = path, .option = "save", .file = path
    };
    if (!o.f) fault("--save %s: cannot write %s: %s", dir, path, strerror(errno));
    free(folder);
    return o;
}
static void close_on_disk(Output *o) {
    if (fflush(o->f) == 0 && fsync(fileno(o->f)) != 0)
        fault("--%s %s: cannot write it: %s", o->option, o->file, strerror(errno));
    output_close(o);
}

static FileSum write_rank(const Model *m, bool moments, const RankState *state, const char *dir,
                          const char *part, const char *file) {
    Header h = { 0 };
    add(&h.json, "%s", CHECKPOINT_FILE_BEGIN);
    each_tensor(m, moments, add_note, &h);
    add(&h.json, "}");
    each_tensor(m, moments, add_tensor, &h);
    if (state->n)
        add(&h.json, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%zu],\"data_offsets\":[%zu,%zu]}",
            checkpoint_rank_state, sizeof(real) == 8 ? "F64" : "F32", state->n, h.offset,
            h.offset + state->n * sizeof(real));
    add(&h.json, "}");
    size_t bytes;
    char *header = tensor_file_header(h.json.text, h.json.n, &bytes);
    Writing w = { .o = create(dir, part, file), .sum = file_sum_of(NULL, 0) };
    put(&w, header, bytes);
    each_tensor(m, moments, put_tensor, &w);
    if (state->n) put(&w, state->values, state->n * sizeof(real));
    close_on_disk(&w.o);
    free(header);
    free(h.json.text);
    return w.sum;
}

// ---------------------------------------------------------------- the index

static cJSON *sum_of(FileSum s) {
    char sum[RUN_ID];
    cJSON *j = cJSON_CreateObject();
    snprintf(sum, sizeof sum, "%016" PRIx64, s.sum);
    cJSON_AddNumberToObject(j, "bytes", (double)s.bytes);
    cJSON_AddStringToObject(j, "fnv1a", sum);
    return j;
}

// "format" is the first member, because an index begins with CHECKPOINT_INDEX_BEGIN.
static cJSON *index_of(const RunOptions *options, const Optimizer *o, const RankState *state,
                       const SavedRun *saved, size_t step, const FileSum *files, size_t ranks) {
    cJSON *index = cJSON_CreateObject();
    cJSON_AddStringToObject(index, "format", "unsplit checkpoint");
    cJSON_AddNumberToObject(index, "version", CHECKPOINT_VERSION);
    cJSON_AddStringToObject(index, "run", saved->id);
    cJSON_AddNumberToObject(index, "step", (double)step);
    cJSON_AddNumberToObject(index, "optimizer_step", (double)o->step);
    // Some sequences end early under --check, so the token counts differ. So a resumed run must
    // have --check if the saved run had --check, and must not have it otherwise.
    cJSON_AddBoolToObject(index, "check", run_option(options, "check") != NULL);
    if (state->n) cJSON_AddStringToObject(index, checkpoint_rank_state, state->layout);
    cJSON_AddStringToObject(index, "dtype", sizeof(real) == 8 ? "F64" : "F32");
    cJSON_AddItemToObject(index, "data", sum_of(saved->data));
    if (saved->held_out.bytes) cJSON_AddItemToObject(index, "held_out", sum_of(saved->held_out));
    if (saved->best_step) {
        cJSON *best = cJSON_AddObjectToObject(index, "best");
        cJSON_AddNumberToObject(best, "step", (double)saved->best_step);
        cJSON_AddNumberToObject(best, "eval_loss", saved->best_loss);
    }
    if (saved->scale_factor > 0) {
        cJSON *scale = cJSON_AddObjectToObject(index, "loss_scale");
        cJSON_AddNumberToObject(scale, "factor", saved->scale_factor);
        cJSON_AddNumberToObject(scale, "good", (double)saved->scale_good);
    }
    resume_record(options, index);
    cJSON *list = cJSON_AddArrayToObject(index, "files");
    for (size_t r = 0; r < ranks; r++) cJSON_AddItemToArray(list, sum_of(files[r]));
    return index;
}

static void write_text(const char *dir, const char *part, char *text) {
    Output out = create(dir, part, CHECKPOINT_INDEX_NAME);
    fputs(text, out.f);
    close_on_disk(&out);
    free(text);
}

// ---------------------------------------------------------------- the folder

// Removes a former checkpoint of this name, such as a torn one that --newest-good has skipped.
// Calls fault() if that checkpoint belongs to another run.
static void make_room(const char *dir, const char *name, const SavedRun *saved) {
    char why[FOLDER_WHY] = "", *path = folder_path(dir, name);
    CheckpointIndex x;
    if (access(path, F_OK) == 0) {
        bool foreign = folder_index(&x, path, why) && strcmp(x.run.id, saved->id) != 0;
        if (foreign) fault("--save %s: %s is a checkpoint of another run, %s", dir, path, x.run.id);
        checkpoint_index_free(&x);
        if (!folder_remove(dir, name, why)) fault("--save %s: %s", dir, why);
    }
    free(path);
}

// Removes this run's checkpoints, except the newest `keep` checkpoints and the one with the lowest
// held-out loss.
static void keep_newest(const char *dir, const SavedRun *saved, size_t keep,
                        char note[CHECKPOINT_NOTE]) {
    size_t n, own = 0, *steps = folder_steps(dir, &n);
    for (size_t i = 0; i < n; i++) {
        char name[FOLDER_NAME], why[FOLDER_WHY] = "";
        folder_name(name, steps[i], false);
        char *path = folder_path(dir, name);
        CheckpointIndex x;
        bool good = folder_index(&x, path, why) && strcmp(x.run.id, saved->id) == 0;
        own += good;
        bool old = good && own > keep && steps[i] != saved->best_step;
        if (old && !folder_remove(dir, name, why))
            snprintf(note + strlen(note), CHECKPOINT_NOTE - strlen(note),
                     "             --keep %zu: %s stays: %s\n", keep, name, why);
        checkpoint_index_free(&x);
        free(path);
    }
    free(steps);
}

void checkpoint_save(Comm *world, const RunOptions *options, const Model *m, const Optimizer *o,
                     const RankState *state, SavedRun *saved, const char *dir, size_t step,
                     double eval_loss, size_t keep, char note[CHECKPOINT_NOTE]) {
    char name[FOLDER_NAME], part[FOLDER_NAME], file[CHECKPOINT_FILE_NAME];
    const bool is_root = world->rank == 0;
    *note = 0;
    folder_name(name, step, false);
    folder_name(part, step, true);
    checkpoint_file_name(file, world->rank);
    if (isfinite(eval_loss) && (!saved->best_step || eval_loss < saved->best_loss)) {
        saved->best_step = step;
        saved->best_loss = eval_loss;
    }
    ledger_pause();
    if (is_root) make_room(dir, name, saved);
    if (is_root && !folder_make(dir, part))
        fault("--save %s: cannot make the folder %s in it: %s", dir, part, strerror(errno));
    comm_barrier(world); // every rank waits until the folder exists
    FileSum local_sum = write_rank(m, o->kind == ADAMW, state, dir, part, file), *all;
    size_t *sizes;
    all = side_gather(&local_sum, sizeof local_sum, &sizes); // rank 0 waits for all files
    if (is_root) {
        cJSON *index = index_of(options, o, state, saved, step, all, world->size);
        write_text(dir, part, checkpoint_index_print(index));
        cJSON_Delete(index);
        if (!folder_publish(dir, part, name))
            fault("--save %s: cannot rename %s: %s", dir, part, strerror(errno));
        if (keep) keep_newest(dir, saved, keep, note);
        free(all);
        free(sizes);
    }
    comm_barrier(world);
    ledger_resume();
}
