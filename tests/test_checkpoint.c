// test_checkpoint DIR RUNS SEED: reads mutated checkpoints. DIR is a folder with one checkpoint,
// step-000002, of two or more ranks. Each run changes bytes of one file, cuts the file or lengthens
// it, and reads the checkpoint. The checkpoint must be refused, or give the same weights, moments
// and step. Before some runs read, they also write the right size and checksum of the changed file
// into the index. Such a checkpoint may be accepted, but nothing may crash.
//
// ranks: 1
// level: core
// question: Is every changed byte of a checkpoint seen?
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <setjmp.h>
#include "08_3d/checkpoint.h"
#include "08_3d/checkpoint_folder.h"
#include "common/device/device.h"
#include "common/tensor/random.h"
#include "tap.h"

enum { MOST_FILES = 8, ROOM = 1 << 20 };
typedef struct {
    char name[CHECKPOINT_FILE_NAME];
    unsigned char *bytes;
    size_t n;
} File;
typedef struct {
    char path[2000];
    File file[MOST_FILES];
    size_t files;
} Folder;

static uint64_t drawn;
static size_t below(size_t n) {
    drawn = random_key(drawn, 1);
    return n ? drawn % n : 0;
}

// ---------------------------------------------------------------- files

static bool read_file(const char *path, File *f) {
    FILE *in = fopen(path, "rb");
    if (!in) return false;
    f->bytes = host_alloc(ROOM);
    f->n = fread(f->bytes, 1, ROOM, in);
    fclose(in);
    return f->n < ROOM;
}

static void write_file(const Folder *d, const File *f, const unsigned char *bytes, size_t n) {
    char path[2100];
    snprintf(path, sizeof path, "%s/%s", d->path, f->name);
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(bytes, 1, n, out) != n || fclose(out) != 0) fault("cannot write %s", path);
}

static void add_file(Folder *d, const char *name) {
    File *f = &d->file[d->files];
    char path[2100];
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(path, sizeof path, "%s/%s", d->path, name);
    if (read_file(path, f)) d->files++;
}

// ---------------------------------------------------------------- changes

// Makes one change in the n bytes of a buffer of ROOM bytes. Returns the new number of bytes.
static size_t change(unsigned char *bytes, size_t n, const File *other) {
    size_t place = below(n), count = 1 + below(n - place < 64 ? n - place : 64),
           from = below(other->n);
    switch (below(7)) {
    case 0: bytes[place] ^= (unsigned char)(1 << below(8)); return n;
    case 1: bytes[place] = (unsigned char)below(256); return n;
    case 2: bytes[place] = (unsigned char)('0' + below(10)); return n;
    case 3:
        memmove(bytes + place, bytes + place + count, n - place - count);
        return n - count; // cut out
    case 4: return place; // cut short
    case 5:               // twice
        if (n + count > ROOM) return n;
        memmove(bytes + place + count, bytes + place, n - place);
        return n + count;
    default: // bytes of another file
        count = other->n - from < count ? other->n - from : count;
        memcpy(bytes + place, other->bytes + from, count < n - place ? count : n - place);
        return n;
    }
}

// Writes an index that has the size and the checksum of these bytes for file i.
static void put_right_sums(const Folder *d, size_t i, const unsigned char *bytes, size_t n) {
    cJSON *index = cJSON_ParseWithLength((const char *)d->file[0].bytes, d->file[0].n);
    cJSON *files = cJSON_GetObjectItemCaseSensitive(index, "files"),
          *file = cJSON_GetArrayItem(files, (int)i - 1);
    char sum[RUN_ID];
    snprintf(sum, sizeof sum, "%016" PRIx64, file_sum_of(bytes, n).sum);
    cJSON_ReplaceItemInObjectCaseSensitive(file, "bytes", cJSON_CreateNumber((double)n));
    cJSON_ReplaceItemInObjectCaseSensitive(file, "fnv1a", cJSON_CreateString(sum));
    cJSON_DeleteItemFromObjectCaseSensitive(index, "sum");
    char *text = checkpoint_index_print(index);
    write_file(d, &d->file[0], (const unsigned char *)text, strlen(text));
    free(text);
    cJSON_Delete(index);
}

// ---------------------------------------------------------------- reading

static Model *model;
static Optimizer optimizer;
static jmp_buf refused;
static void refuse(int status) { longjmp(refused, status); }

static uint64_t hash(uint64_t key, Tensor t) {
    size_t n = tensor_count(t);
    real *values = host_alloc(n * sizeof *values);
    tensor_download(values, t);
    FileSum sum = file_sum_of(values, n * sizeof *values);
    free(values);
    return random_key(key, sum.sum);
}

// Returns 0 if the checkpoint is refused. Returns 1 after a fault, or if checkpoint_read() refuses
// without a reason. Otherwise returns a hash of the weights, the moments and the step that were
// read.
static uint64_t result(const Folder *d) {
    char why[CHECKPOINT_WHY] = "";
    Checkpoint *c = checkpoint_read(d->path, why);
    if (!c) return why[0] ? 0 : 1;
    bool good = true;
    for (size_t i = 0; good && i < checkpoint_index(c)->n; i++) good = checkpoint_verify(c, i, why);
    volatile uint64_t key = 0;
    int status = setjmp(refused);
    if (good && status == 0) {
        checkpoint_load(c, model, &optimizer);
        uint64_t all = random_key(checkpoint_step(c), optimizer.step);
        for (size_t i = 0; i < model->n_units; i++) {
            if (model->units[i].tied_to) continue;
            all = hash(hash(hash(all, model->units[i].w), model->units[i].m), model->units[i].v);
        }
        key = all | 2;
    }
    checkpoint_free(c);
    return status == STATUS_FAULT ? 1 : key;
}

static size_t option(const Checkpoint *c, const char *name) {
    return strtoul(checkpoint_option(c, name), NULL, 10);
}

int main(int argc, char **argv) {
    device_init();
    memory_rank_begin();
    if (argc != 4) fault("usage: test_checkpoint DIR RUNS SEED");
    static Folder d;
    snprintf(d.path, sizeof d.path, "%s/step-000002", argv[1]);
    const size_t runs = strtoul(argv[2], NULL, 10);
    drawn = strtoull(argv[3], NULL, 10);
    add_file(&d, CHECKPOINT_INDEX_NAME);
    for (size_t rank = 0; rank + 1 < MOST_FILES; rank++) {
        char name[CHECKPOINT_FILE_NAME];
        checkpoint_file_name(name, rank);
        add_file(&d, name);
    }
    char why[CHECKPOINT_WHY] = "";
    Checkpoint *c = checkpoint_read(d.path, why);
    if (!c || d.files < 3) fault("%s: %s", d.path, why);
    ModelConfig config = { .layers = option(c, "layers"),
                           .width = option(c, "width"),
                           .heads = option(c, "heads"),
                           .context = option(c, "context"),
                           .vocab = option(c, "vocab") };
    checkpoint_free(c);
    model = model_describe(&config, model_layers(&config));
    model_allocate(model);
    optimizer = adamw(0);
    optimizer_allocate(&optimizer, model);
    end_all_ranks = refuse;

    const uint64_t want = result(&d);
    ok(want > 1, "the checkpoint is read");
    size_t was_refused = 0, equal = 0, other = 0, right_sums = 0, crashed = 0;
    unsigned char *bytes = host_alloc(ROOM);
    for (size_t run = 0; run < runs; run++) {
        const size_t i = below(d.files);
        const File *f = &d.file[i], *source = &d.file[below(d.files)];
        size_t n = f->n;
        memcpy(bytes, f->bytes, n);
        for (size_t changes = 1 + below(3); changes && n; changes--) n = change(bytes, n, source);
        write_file(&d, f, bytes, n);
        const bool sums = i > 0 && below(4) == 0;
        if (sums) put_right_sums(&d, i, bytes, n);
        const uint64_t got = result(&d);
        right_sums += sums;
        crashed += got == 1;
        was_refused += !sums && got == 0;
        equal += !sums && got == want;
        other += !sums && got > 1 && got != want;
        write_file(&d, f, f->bytes, f->n);
        if (sums) write_file(&d, &d.file[0], d.file[0].bytes, d.file[0].n);
    }
    ok(other == 0 && crashed == 0 && was_refused > runs / 2,
       "of %zu changed checkpoints %zu are refused, %zu give equal results, %zu give other "
       "results; %zu more have right checksums and do no harm",
       runs - right_sums, was_refused, equal, other, right_sums);
    ok(result(&d) == want, "the checkpoint is read again");
    for (size_t i = 0; i < d.files; i++) free(d.file[i].bytes);
    free(bytes);
    model_free(model);
    return tap_end();
}
