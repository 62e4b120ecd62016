// checkpoint.c opens a checkpoint, verifies its bytes, and fills a model from the checkpoint. The
// checkpoint and the model may have different layouts.
#include "08_3d/checkpoint.h"
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "08_3d/checkpoint_folder.h"

const char *const checkpoint_suffix[] = { [UNIT_WEIGHTS] = "", [UNIT_M] = ".m", [UNIT_V] = ".v" };
const char checkpoint_rank_state[] = "rank state";

// ---------------------------------------------------------------- reading

struct Checkpoint {
    char *dir; // the folder of this checkpoint, such as DIR/step-000400
    CheckpointIndex index;
    TensorFile *file; // [index.n]
    bool moments;
    struct {
        const char *name;
        CheckpointPiece *piece;
        size_t n;
    } * param; // [params]: each tensor with its pieces
    size_t params;
};

// A checkpoint's elements have this type, because a training continues in the precision in which it
// began.
static const FileType own_type = sizeof(real) == 8 ? FILE_F64 : FILE_F32;

void checkpoint_free(Checkpoint *c) {
    for (size_t i = 0; i < c->params; i++) free(c->param[i].piece);
    for (size_t i = 0; c->file && i < c->index.n; i++) tensor_file_close(&c->file[i]);
    checkpoint_index_free(&c->index);
    free(c->param);
    free(c->file);
    free(c->dir);
    free(c);
}

static const UnitTensor kinds[] = { UNIT_WEIGHTS, UNIT_M, UNIT_V };

// Adds the pieces of one file. Returns NULL, or the error.
static const char *add_pieces(Checkpoint *c, const TensorFile *f) {
    for (size_t i = 0; i < f->n; i++) {
        const char *name = f->tensor[i].name, *note = tensor_file_note(f, name);
        // A tensor without a note is a rank state, or a moment. The loop below finds a moment by
        // the name of its weight.
        if (!note) continue;
        CheckpointPiece p = { 0 };
        const char *wrong = checkpoint_piece_parse(&p, note, f->tensor[i].count);
        if (wrong) return wrong;
        char moment[128];
        for (size_t k = 0; k < (c->moments ? 3 : 1); k++) {
            snprintf(moment, sizeof moment, "%.100s%s", name, checkpoint_suffix[kinds[k]]);
            p.t[k] = tensor_file_find(f, moment);
            if (!p.t[k] || p.t[k]->count != p.count || p.t[k]->type != own_type) return "a moment";
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
        char name[CHECKPOINT_FILE_NAME], reason[TENSOR_FILE_WHY];
        checkpoint_file_name(name, i);
        char *path = folder_path(c->dir, name);
        bool good = tensor_file_open(&c->file[i], path, reason);
        if (!good) snprintf(why, CHECKPOINT_WHY, "%.*s", CHECKPOINT_WHY - 1, reason);
        else if (c->file[i].bytes != c->index.sum[i].bytes) {
            snprintf(why, CHECKPOINT_WHY, "%s has %zu bytes, and %zu were written: it is torn",
                     path, c->file[i].bytes, c->index.sum[i].bytes);
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
        snprintf(why, CHECKPOINT_WHY,
                 "%s/rank-%04zu.safetensors: %s in it is not what this program writes", c->dir, i,
                 wrong);
        return false;
    }
    return true;
}

Checkpoint *checkpoint_read(const char *dir, char why[CHECKPOINT_WHY]) {
    Checkpoint *c = host_alloc(sizeof *c);
    c->dir = text_copy(dir);
    if (folder_index(&c->index, dir, why) && read_files(c, why)) return c;
    checkpoint_free(c);
    return NULL;
}

bool checkpoint_verify(const Checkpoint *c, size_t i, char why[CHECKPOINT_WHY]) {
    if (file_sum_of(c->file[i].map, c->file[i].bytes).sum == c->index.sum[i].sum) return true;
    snprintf(why, CHECKPOINT_WHY,
             "%.600s/rank-%04zu.safetensors is not what was written: the sum over its bytes has "
             "changed",
             c->dir, i);
    return false;
}

// ---------------------------------------------------------------- choosing, on all ranks alike

// Gives all ranks the error of the first rank that has an error. Returns true if no rank has an
// error. Collective.
static bool all_good(const char local_why[CHECKPOINT_WHY], char why[CHECKPOINT_WHY]) {
    size_t *sizes;
    char *all = side_gather(local_why, CHECKPOINT_WHY, &sizes);
    memset(why, 0, CHECKPOINT_WHY);
    for (size_t r = 0; all && !why[0] && r < this_world_size; r++)
        memcpy(why, all + r * CHECKPOINT_WHY, CHECKPOINT_WHY);
    if (all) free(sizes);
    free(all);
    side_broadcast(why, CHECKPOINT_WHY);
    return !why[0];
}

// Every rank reads the index and the headers. The ranks share the files to verify, because all
// bytes of a file are read to verify the file.
static Checkpoint *read_and_verify(Comm *world, const char *path, char why[CHECKPOINT_WHY]) {
    char local_why[CHECKPOINT_WHY] = "";
    Checkpoint *c = checkpoint_read(path, local_why);
    for (size_t i = world->rank; c && i < c->index.n && !local_why[0]; i += world->size)
        checkpoint_verify(c, i, local_why);
    if (all_good(local_why, why)) return c;
    if (c) checkpoint_free(c);
    return NULL;
}

// Writes the name of the k-th newest checkpoint in dir, counted from 0. Writes "." if dir itself is
// a checkpoint and k is 0. Rank 0 chooses, so that all ranks take the same checkpoint. Returns
// false if dir has no such checkpoint.
static bool find(const char *dir, size_t k, char name[FOLDER_NAME]) {
    memset(name, 0, FOLDER_NAME);
    if (this_rank == 0) {
        char *index = folder_path(dir, CHECKPOINT_INDEX_NAME);
        size_t n, *steps = folder_steps(dir, &n);
        bool itself = access(index, F_OK) == 0;
        if (itself && k == 0) strcpy(name, ".");
        if (!itself && k < n) folder_name(name, steps[k], false);
        free(index);
        free(steps);
    }
    side_broadcast(name, FOLDER_NAME);
    return name[0];
}

Checkpoint *checkpoint_open(Comm *world, const char *dir, bool newest_good,
                            char why[CHECKPOINT_WHY], char *note, size_t room) {
    char name[FOLDER_NAME], torn[CHECKPOINT_WHY];
    Checkpoint *c = NULL;
    snprintf(why, CHECKPOINT_WHY, "there is no checkpoint in %.900s", dir);
    for (size_t k = 0; !c && find(dir, k, name); k++) {
        char *path = strcmp(name, ".") == 0 ? text_copy(dir) : folder_path(dir, name);
        c = read_and_verify(world, path, k == 0 ? why : torn);
        free(path);
        if (!c || k == 0) continue;
        if (newest_good) {
            snprintf(note, room, "%s; %s is taken\n", why, name);
            return c;
        }
        snprintf(torn, sizeof torn, "%.700s; the newest good one is %.200s/%s", why, dir, name);
        memcpy(why, torn, sizeof torn);
        checkpoint_free(c);
        return NULL;
    }
    return c;
}

size_t checkpoint_step(const Checkpoint *c) { return c->index.step; }
const char *checkpoint_folder(const Checkpoint *c) { return c->dir; }
const CheckpointIndex *checkpoint_index(const Checkpoint *c) { return &c->index; }
const char *checkpoint_option(const Checkpoint *c, const char *name) {
    return checkpoint_index_option(&c->index, name);
}

// ---------------------------------------------------------------- filling a model

typedef struct {
    const Checkpoint *c;
    int kind;            // a tensor of each piece: 0 weights, 1 m, 2 v
    size_t param, piece; // numbers of the parameter and the piece that were found last
} Filling;
// Returns whether the piece holds this element of the whole tensor.
// row, column: the element's place in the whole tensor.
// *at: the element's place in the piece.
static bool holds(const CheckpointPiece *p, size_t row, size_t column, size_t *at) {
    size_t each = p->cols / p->blocks, block = column / each, col = column % each;
    // With grouped heads the first p->ratio blocks of the whole tensor are q. The piece's columns
    // of q are adjacent.
    if (block < p->ratio && p->ratio > 1) {
        size_t wide = range_size(p->own_cols), first = p->ratio * p->own_cols.lo;
        if (column < first || column >= first + p->ratio * wide) return false;
        block = (column - first) / wide;
        col = p->own_cols.lo + (column - first) % wide;
    }
    if (row < p->own_rows.lo || row >= p->own_rows.hi || col < p->own_cols.lo ||
        col >= p->own_cols.hi)
        return false;
    size_t width = range_size(p->own_cols), place = p->first;
    // EXERCISE 08.train-a (3 points): find an element of the whole tensor in a saved piece. The
    // piece is part of a rectangle. Each of its rows p->own_rows has p->blocks blocks (3 for q, k,
    // v), each with the `width` columns p->own_cols. Set place to the element's position in the
    // flattened rectangle. The element's row, its block, and its column in the block are given;
    // both ranges contain the element.
    place = ((row - p->own_rows.lo) * p->blocks + block) * width + col - p->own_cols.lo;
    // END
    if (place < p->first || place >= p->first + p->count) return false;
    *at = place - p->first;
    return true;
}
static bool named(const Checkpoint *c, size_t i, const char *name) {
    return strcmp(c->param[i].name, name) == 0;
}
static real value(void *filling, const Param *p, size_t i) {
    Filling *f = filling;
    const Checkpoint *c = f->c;
    if (f->param == c->params || !named(c, f->param, p->name))
        for (f->param = 0, f->piece = 0; f->param < c->params && !named(c, f->param, p->name);)
            f->param++;
    REQUIRE(f->param < c->params, "%s has no tensor %s: it is of another model", c->dir, p->name);
    const CheckpointPiece *list = c->param[f->param].piece;
    size_t n = c->param[f->param].n, row = i / p->cols, at;
    REQUIRE(list->rows == p->rows && list->cols == p->cols &&
                list->blocks == param_narrow_blocks(p) && list->ratio == p->ratio,
            "%s has %s of %zu x %zu, and this model's is %zu x %zu: leave the model's sizes out, "
            "they are taken from the checkpoint",
            c->dir, p->name, list->rows, list->cols, p->rows, p->cols);
    for (size_t k = 0; k < n; k++, f->piece = (f->piece + 1) % n)
        if (holds(&list[f->piece], row, i % p->cols, &at))
            return tensor_file_finite(list[f->piece].t[f->kind], at, c->dir);
    usage_error("%s lacks element %zu of %s: files of it are missing", c->dir, i, p->name);
}

void checkpoint_load(const Checkpoint *c, Model *m, Optimizer *o) {
    bool moments =
        o && o->kind == ADAMW && c->moments; // if SGD wrote c, AdamW begins without moments
    if (o) o->step = c->index.optimizer_step;
    if (o && o->kind == ADAMW && !c->moments) o->step = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue; // the embedding's unit has this table
        Filling w = { c, 0, c->params, 0 }, first = { c, 1, c->params, 0 },
                second = { c, 2, c->params, 0 };
        if (u->w.data)
            unit_fill(u, u->w, (Range){ 0, u->size }, value,
                      &w); // without ZeRO-3 a rank has the whole unit
        else unit_fill(u, u->own_w, u->own, value, &w);
        if (u->master.data) { // the 16-bit weights are a rounded copy of the master
            unit_fill(u, u->master, u->own, value, &w);
            u->master_made = true;
        }
        if (moments) unit_fill(u, u->m, u->own, value, &first);
        if (moments) unit_fill(u, u->v, u->own, value, &second);
    }
}

real *checkpoint_load_state(const Checkpoint *c, size_t rank, const RankState *want) {
    const char *layout = cJSON_GetStringValue(
        cJSON_GetObjectItemCaseSensitive(c->index.json, checkpoint_rank_state));
    if (!layout) return NULL;
    REQUIRE(strcmp(layout, want->layout) == 0,
            "--resume: %s has the residuals of each rank for the layout %s, and this run has the "
            "layout %s: choose the former layout, or drop the residuals with --compress none "
            "--override compress",
            c->dir, layout, want->layout);
    const FileTensor *t =
        rank < c->index.n ? tensor_file_find(&c->file[rank], checkpoint_rank_state) : NULL;
    REQUIRE(t && t->count == want->n && t->type == own_type,
            "%s lacks the residuals of rank %zu: this program has not written it", c->dir, rank);
    real *values = host_alloc(want->n * sizeof *values);
    for (size_t i = 0; i < want->n; i++) values[i] = tensor_file_finite(t, i, c->dir);
    return values;
}
