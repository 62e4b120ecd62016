// snapshot.c: assembles whole tensors on rank 0 from the parts of the ranks. Each rank writes its
// parts into one buffer of records (a head, the name, the indices if any, the values). The join
// reads the buffer of one rank after the other and places the values. A snapshot of fingerprints
// holds a summary per part instead of values.
#include "judge/frame/frame.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { BLOCK, FLAT, INDEXED } PutKind;
typedef struct {
    size_t kind, name_bytes, rows, cols, part_rows, part_cols;
    size_t at, at_col; // where the part begins: row and column of a block, or index of a flat part
} PutHead;

// Rounds up to a multiple of 8 bytes, so that every record is aligned.
static size_t padded(size_t bytes) { return ceil_div(bytes, 8) * 8; }

uint64_t text_hash(const char *text) {
    uint64_t key = 0;
    for (; *text != 0; text++) key = random_key(key, (unsigned char)*text);
    return key;
}

uint64_t real_bits(real x) {
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    return bits;
}

Snapshot *snapshot_new(Run *run) {
    Snapshot *s = host_alloc(sizeof *s);
    s->run = run;
    return s;
}

Snapshot *snapshot_new_prints(Run *run) {
    Snapshot *s = snapshot_new(run);
    s->prints = true;
    return s;
}

void snapshot_label(Snapshot *s, const char *label) {
    snprintf(s->label, sizeof s->label, "%s", label);
}

static void *room_for(Snapshot *s, size_t bytes) {
    size_t old = s->size;
    s->size += padded(bytes);
    if (s->size > s->capacity) {
        s->capacity = 2 * s->size;
        s->bytes = realloc(s->bytes, s->capacity);
        if (s->bytes == NULL) fault("out of memory: a snapshot of %zu bytes", s->capacity);
    }
    memset(s->bytes + old, 0, s->size - old);
    return s->bytes + old;
}

static size_t place_of(const PutHead *head, const size_t *index, size_t i) {
    if (head->kind == INDEXED) return index[i];
    if (head->kind == FLAT) return head->at + i;
    return (head->at + i / head->part_cols) * head->cols + head->at_col + i % head->part_cols;
}

uint64_t element_digest(uint64_t name, size_t i, real value) {
    return random_key(random_key(name, i), real_bits(value));
}

// Computes the summary of a part, for a snapshot of fingerprints.
static void fingerprint(PartPrint *p, const PutHead *head, uint64_t name, Tensor part,
                        const size_t *index) {
    enum { PIECE = 1 << 14 };
    real *values = host_alloc(PIECE * sizeof *values);
    Tensor flat = tensor_reshape(part, 1, tensor_count(part));
    *p = (PartPrint){ .count = flat.cols };
    for (size_t lo = 0; lo < flat.cols; lo += PIECE) {
        size_t n = flat.cols - lo < PIECE ? flat.cols - lo : PIECE;
        tensor_download(values, tensor_flat_range(flat, lo, lo + n));
        for (size_t i = 0; i < n; i++) {
            size_t place = place_of(head, index, lo + i);
            p->places += random_key(name, place);
            p->digest += element_digest(name, place, values[i]);
            p->nans += values[i] != values[i];
        }
    }
    free(values);
}

static void put(Snapshot *s, PutHead head, const char *name, Tensor part, const size_t *index) {
    size_t count = tensor_count(part);
    if (s->joined)
        fault("snapshot: %s is put after the join: put all parts before the first check", name);
    char full[128];
    snprintf(full, sizeof full, "%s%s", name, s->label);
    head.name_bytes = strlen(full) + 1;
    head.part_rows = part.rows;
    head.part_cols = part.cols;
    memcpy(room_for(s, sizeof head), &head, sizeof head);
    memcpy(room_for(s, head.name_bytes), full, head.name_bytes);
    if (s->prints) {
        PartPrint print;
        ledger_pause();
        fingerprint(&print, &head, text_hash(full), part, index);
        ledger_resume();
        memcpy(room_for(s, sizeof print), &print, sizeof print);
        return;
    }
    if (index != NULL) memcpy(room_for(s, count * sizeof *index), index, count * sizeof *index);
    if (count == 0) return;
    real *values = room_for(s, count * sizeof(real));
    ledger_pause();
    tensor_download(values, part);
    ledger_resume();
}

void snapshot_put(Snapshot *s, const char *name, size_t rows, size_t cols, Tensor part, size_t row0,
                  size_t col0) {
    if (row0 + part.rows > rows || col0 + part.cols > cols)
        fault("snapshot: a block [%zu, %zu] at (%zu, %zu) does not lie in %s [%zu, %zu]", part.rows,
              part.cols, row0, col0, name, rows, cols);
    put(s, (PutHead){ .kind = BLOCK, .rows = rows, .cols = cols, .at = row0, .at_col = col0 }, name,
        part, NULL);
}

void snapshot_put_flat(Snapshot *s, const char *name, size_t rows, size_t cols, Tensor part,
                       size_t first) {
    if (first + tensor_count(part) > rows * cols)
        fault("snapshot: %zu elements from %zu on do not lie in %s [%zu, %zu]", tensor_count(part),
              first, name, rows, cols);
    put(s, (PutHead){ .kind = FLAT, .rows = rows, .cols = cols, .at = first }, name, part, NULL);
}

void snapshot_put_indexed(Snapshot *s, const char *name, size_t rows, size_t cols, Tensor part,
                          const size_t *index) {
    for (size_t i = 0; i < tensor_count(part); i++)
        if (index[i] >= rows * cols)
            fault("snapshot: element %zu does not lie in %s [%zu, %zu]", index[i], name, rows,
                  cols);
    put(s, (PutHead){ .kind = INDEXED, .rows = rows, .cols = cols }, name, part, index);
}

// ---- the join ----

Whole *snapshot_find(Snapshot *s, const char *name) {
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->wholes[i].name, name) == 0) return &s->wholes[i];
    return NULL;
}

double whole_largest(const Whole *w) {
    double largest = 0;
    for (size_t i = 0; i < w->rows * w->cols; i++)
        largest = fmax(largest, fabs((double)w->values[i]));
    return largest;
}

static Whole *whole_of(Snapshot *s, const char *name, size_t rows, size_t cols, size_t rank) {
    Whole *w = snapshot_find(s, name);
    if (w == NULL) {
        s->wholes = realloc(s->wholes, (s->count + 1) * sizeof *s->wholes);
        if (s->wholes == NULL) fault("out of memory: a snapshot of %zu tensors", s->count + 1);
        w = &s->wholes[s->count++];
        *w = (Whole){ .name = text_copy(name), .rows = rows, .cols = cols };
        if (s->prints) return w;
        w->values = host_alloc(rows * cols * sizeof *w->values);
        w->owner = host_alloc(rows * cols * sizeof *w->owner);
    }
    if (w->rows != rows || w->cols != cols)
        fault("snapshot: %s is [%zu, %zu] for rank %zu and was [%zu, %zu] before", name, rows, cols,
              rank, w->rows, w->cols);
    return w;
}

static void lay_element(Whole *w, size_t i, real value, size_t rank) {
    if (w->owner[i] == 0) {
        w->owner[i] = (unsigned)rank + 1;
        w->values[i] = value;
    } else if (!w->clash && real_bits(w->values[i]) != real_bits(value)) {
        w->clash = true;
        w->clash_at = i;
        w->clash_rank[0] = w->owner[i] - 1;
        w->clash_rank[1] = rank;
        w->clash_value[0] = w->values[i];
        w->clash_value[1] = value;
    }
}

static void lay_print(Whole *w, PartPrint print) {
    w->prints = realloc(w->prints, (w->print_count + 1) * sizeof print);
    if (w->prints == NULL) fault("out of memory: fingerprints of %s", w->name);
    w->prints[w->print_count++] = print;
}

// Places one record of a rank. Returns the number of bytes of the record.
static size_t lay_record(Snapshot *s, const char *record, size_t rank) {
    PutHead head;
    memcpy(&head, record, sizeof head);
    const char *name = record + padded(sizeof head), *at = name + padded(head.name_bytes);
    size_t count = head.part_rows * head.part_cols;
    if (s->prints) {
        PartPrint print;
        memcpy(&print, at, sizeof print);
        print.rank = rank;
        if (print.count > 0) lay_print(whole_of(s, name, head.rows, head.cols, rank), print);
        return (size_t)(at - record) + padded(sizeof print);
    }
    const size_t *index = (const void *)at;
    if (head.kind == INDEXED) at += padded(count * sizeof *index);
    const real *values = (const void *)at;
    Whole *w = whole_of(s, name, head.rows, head.cols, rank);
    for (size_t i = 0; i < count; i++) {
        lay_element(w, place_of(&head, index, i), values[i], rank);
    }
    return (size_t)(at - record) + padded(count * sizeof(real));
}

static void lay_rank(void *snapshot, size_t rank, const void *data, size_t bytes) {
    Snapshot *s = snapshot;
    for (const char *record = data, *end = record + bytes; record < end;)
        record += lay_record(s, record, rank);
    if (rank > 0) return;
    free(s->bytes); // rank 0's own values are in place now, so rank 0 needs no second copy
    s->bytes = NULL;
}

void snapshot_join(Snapshot *s) {
    if (s->joined) return;
    ledger_pause();
    side_gather_each(s->bytes, s->size, lay_rank, s);
    ledger_resume();
    s->joined = true;
    free(s->bytes);
    s->bytes = NULL;
}

const real *snapshot_values(Snapshot *s, const char *name) {
    if (!s->joined || s->run->world->rank != 0)
        fault("snapshot: read values on rank 0 only, after snapshot_join");
    Whole *w = snapshot_find(s, name);
    if (w == NULL) fault("snapshot: no rank put %s", name);
    for (size_t i = 0; i < w->rows * w->cols; i++)
        if (w->owner[i] == 0)
            fault("snapshot: element (%zu, %zu) of %s was put by no rank", i / w->cols, i % w->cols,
                  name);
    return w->values;
}

void snapshot_free(Snapshot *s) {
    if (s == NULL) return;
    for (size_t i = 0; i < s->count; i++) {
        free(s->wholes[i].name);
        free(s->wholes[i].values);
        free(s->wholes[i].owner);
        free(s->wholes[i].prints);
    }
    free(s->wholes);
    free(s->bytes);
    free(s);
}
