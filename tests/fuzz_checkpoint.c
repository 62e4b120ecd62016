// fuzz_checkpoint.c: reads random bytes as the index of a checkpoint, with and without a right
// checksum. Also reads the bytes as the note that a checkpoint's file has for a tensor.
// with: 08_3d/checkpoint_index.c
#include <cjson/cJSON.h>
#include "08_3d/checkpoint_index.h"
#include "tests/fuzz.h"

static void as_index(const uint8_t *text, size_t size) {
    CheckpointIndex x;
    const char *wrong = checkpoint_index_parse(&x, (const char *)text, size);
    volatile uint64_t sum = 0;
    if (!wrong && (x.n == 0 || x.n > CHECKPOINT_MOST_FILES)) abort();
    for (size_t i = 0; !wrong && i < x.n; i++) sum += x.sum[i].sum + x.sum[i].bytes;
    const char *optimizer = checkpoint_index_option(&x, "optimizer");
    if (optimizer && strlen(optimizer) > size) abort();
    checkpoint_index_free(&x);
}

// Adds the right checksum, so that the reader continues after the test of the checksum.
static void as_sealed_index(const uint8_t *text, size_t size) {
    cJSON *index = cJSON_ParseWithLength((const char *)text, size);
    if (cJSON_IsObject(index) && index->child) {
        char *sealed = checkpoint_index_print(index);
        as_index((const uint8_t *)sealed, strlen(sealed));
        free(sealed);
    }
    cJSON_Delete(index);
}

static void as_note(const uint8_t *text, size_t size) {
    char *note = malloc(size + 1);
    if (size) memcpy(note, text, size);
    note[size] = 0;
    CheckpointPiece p = { 0 };
    size_t count = 12; // elements of each tensor that a note of tests/corpus/checkpoint describes
    if (!checkpoint_piece_parse(&p, note, count)) {
        size_t each = range_size(p.own_cols) * p.blocks;
        if (p.count != count || p.own_rows.hi > p.rows || p.own_cols.hi * p.blocks > p.cols ||
            p.first + p.count > range_size(p.own_rows) * each)
            abort();
    }
    free(note);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *text = fuzz_copy(data, size);
    as_index(text, size);
    as_sealed_index(text, size);
    as_note(text, size);
    free(text);
    return 0;
}
