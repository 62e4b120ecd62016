// data.c: makes synthetic tokens, and reads tokens from files.
#include "common/model/data.h"
#include <errno.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/input.h"
#include "common/tensor/random.h"

// The first coordinate of a random number is its purpose. unit.c and layer.c have 1 and 2.
enum { KEY_DATA = 3, KEY_LENGTH = 4 };

#ifndef DEFAULT_TEXT
#define DEFAULT_TEXT "build/text.txt" // Markdown and sources of this tree, gathered by make
#endif

Data data_synthetic(size_t vocab, size_t context, uint64_t seed) {
    return (Data){ .vocab = vocab, .context = context, .seed = seed, .ragged = true };
}

// Maps the file, so all ranks of a node share its pages. Returns NULL if the file is empty or
// cannot be read. If the file cannot be read, writes the reason to why[].
static const unsigned char *map(const char *path, size_t *bytes, char why[DATA_WHY]) {
    char reason[INPUT_WHY];
    int file = input_open(path, bytes, reason);
    if (file < 0) {
        snprintf(why, DATA_WHY,
                 "cannot read the text %s: %s; give --data FILE a readable text file", path,
                 reason);
        return NULL;
    }
    void *text = *bytes ? mmap(NULL, *bytes, PROT_READ, MAP_SHARED, file, 0) : NULL;
    int error = errno;
    close(file);
    if (text != MAP_FAILED) return text;
    snprintf(why, DATA_WHY, "cannot read the text %s: %s; give --data FILE a readable text file",
             path, strerror(error));
    *bytes = 0;
    return NULL;
}

// Returns a hash of the text's length and of some pieces of the text. So two texts can be compared
// without reading the whole texts.
static uint64_t fingerprint(const unsigned char *text, size_t bytes) {
    enum { PLACES = 64, EACH = 512 };
    uint64_t key = random_key(0, bytes);
    for (size_t i = 0; i < PLACES; i++)
        for (size_t at = bytes / PLACES * i, end = at + EACH; at < end && at < bytes; at++)
            key = random_key(key, text[at]);
    return key;
}

// Sends rank 0's text to the ranks that lack the file or see another file (`missing` is true). The
// other ranks take part in the broadcasts and drop the text.
static void send_text(DataFile *f, bool missing) {
    enum { PIECE = 1 << 20 };
    unsigned char *scratch = host_alloc(PIECE), *whole = missing ? host_alloc(f->bytes) : NULL;
    for (size_t at = 0, n; at < f->bytes; at += n) {
        n = f->bytes - at < PIECE ? f->bytes - at : PIECE;
        if (this_rank == 0) memcpy(scratch, f->text + at, n);
        side_broadcast(scratch, n);
        if (missing) memcpy(whole + at, scratch, n);
    }
    if (missing) f->text = whole;
    free(scratch);
}

static void file_free(DataFile *f) {
    if (f->mapped) munmap((void *)f->text, f->bytes);
    else free((void *)f->text);
    f->text = NULL;
    f->mapped = false;
}

static void share_text(DataFile *f) {
    struct {
        uint64_t print;
        size_t bytes;
    } first = { f->text ? fingerprint(f->text, f->bytes) : 0, f->bytes };
    uint64_t local = first.print;
    side_broadcast(&first, sizeof first);
    bool missing = this_rank > 0 && local != first.print;
    if (missing) file_free(f);
    f->bytes = first.bytes;
    if (side_any(missing)) send_text(f, missing);
}

// ---- token files ----

enum {
    LLMC_MAGIC = 20240520,
    LLMC_INTS = 256
}; // ints of llm.c's header: magic, version, number of tokens; the other ints are unused

static uint32_t header_int(const DataFile *f, size_t i) {
    uint32_t value;
    memcpy(&value, f->text + i * sizeof value, sizeof value);
    return value;
}
// Returns the file that has token i of all tokens.
static size_t file_of(const Data *d, size_t i) {
    size_t lo = 0, hi = d->n_files;
    while (hi - lo > 1) {
        size_t middle = lo + (hi - lo) / 2;
        if (d->files[middle].first <= i) lo = middle;
        else hi = middle;
    }
    return lo;
}
static size_t token_at(const Data *d, size_t i) {
    const DataFile *f = &d->files[file_of(d, i)];
    const unsigned char *at = f->text + f->begin + (i - f->first) * d->token_bytes;
    return d->token_bytes == 1 ? at[0] : at[0] | (size_t)at[1] << 8; // ids are little-endian
}
static bool ends_in_bin(const char *path) {
    size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".bin") == 0;
}

// Returns whether the file begins like text. A token file almost always has control characters
// among its first bytes.
static bool looks_like_text(const DataFile *f) {
    enum { LOOK = 4096 };
    size_t n = f->bytes < LOOK ? f->bytes : LOOK, i = 0;
    while (i < n &&
           ((f->text[i] >= ' ' && f->text[i] != 127) || (f->text[i] >= '\t' && f->text[i] <= '\r')))
        i++;
    return i == n;
}

// Determines the kind of the file and its number of tokens. On failure why[] holds the reason.
// `named` means that --data or --data-eval names the file.
static void recognise(Data *d, DataFile *f, bool named, char why[DATA_WHY]) {
    bool header = f->bytes >= 4 && header_int(f, 0) == LLMC_MAGIC;
    size_t token_bytes = header || ends_in_bin(f->path) ? 2 : 1;
    if (!d->token_bytes) d->token_bytes = token_bytes;
    f->begin = header ? LLMC_INTS * sizeof(uint32_t) : 0;
    if (f->bytes < f->begin) {
        snprintf(why, DATA_WHY,
                 "%s is cut short: llm.c's header has %zu bytes, but the file %zu; copy it again",
                 f->path, f->begin, f->bytes);
        return;
    }
    size_t rest = f->bytes - f->begin;
    f->tokens = rest / token_bytes;
    if (header && header_int(f, 1) != 1)
        snprintf(why, DATA_WHY,
                 "%s has version %u of llm.c's token files: give a file of version 1, which has "
                 "uint16 tokens (GPT-2)",
                 f->path, header_int(f, 1));
    else if (header && (rest % 2 || header_int(f, 2) != f->tokens))
        snprintf(why, DATA_WHY,
                 "%s is corrupt or cut short: its header says %u tokens, but it has %zu bytes of "
                 "them; copy it again",
                 f->path, header_int(f, 2), rest);
    else if (token_bytes == 2 && !header && f->bytes > 0 && looks_like_text(f))
        snprintf(why, DATA_WHY,
                 "%s is text: a file whose name ends in .bin must have uint16 tokens. To learn its "
                 "bytes, give it another name, such as text.txt",
                 f->path);
    else if (rest % token_bytes)
        snprintf(why, DATA_WHY,
                 "%s is no file of uint16 tokens, or cut short: it has an odd number of bytes, "
                 "%zu; copy it again",
                 f->path, rest);
    else if (token_bytes != d->token_bytes)
        snprintf(why, DATA_WHY,
                 "%s has %s, but %s has %s: --data and --data-eval must name the same kind of file",
                 f->path, token_bytes == 1 ? "text" : "tokens", d->files[0].path,
                 d->token_bytes == 1 ? "text" : "tokens");
    else if (token_bytes == 2 && d->vocab == 0)
        snprintf(why, DATA_WHY,
                 "%s has token ids: give --vocab, the entries of their vocabulary (GPT-2: 50257)",
                 f->path);
    else if (token_bytes == 1 && d->vocab && d->vocab < 256)
        snprintf(why, DATA_WHY,
                 "%s is text, whose tokens are bytes, but --vocab %zu is less than 256: leave "
                 "--vocab out",
                 f->path, d->vocab);
    else if (token_bytes == 1 && d->vocab > 256 && named)
        snprintf(why, DATA_WHY,
                 "%s is text, whose tokens are bytes, but --vocab %zu is for token files: leave "
                 "--vocab out, or give a .bin of llm.c or nanoGPT",
                 f->path, d->vocab);
}

// Largest has the largest token id, and the number of the file with this id. In require_ids() each
// rank reads its part of the tokens, and rank 0 finds the largest id of all ranks.
typedef struct {
    size_t token, file;
} Largest;
static void largest(void *context, size_t rank, const void *data, size_t bytes) {
    Largest *most = context, theirs;
    (void)rank;
    memcpy(&theirs, data, bytes);
    if (theirs.token > most->token) *most = theirs;
}
static void require_ids(const Data *d, char why[DATA_WHY]) {
    Range part = shard_range(d->tokens, this_world_size ? this_world_size : 1, this_rank);
    Largest local = { 0 }, most = { 0 };
    for (size_t i = part.lo; i < part.hi; i++) {
        size_t token = token_at(d, i);
        if (token > local.token) local = (Largest){ token, file_of(d, i) };
    }
    if (this_world_size > 1) {
        side_gather_each(&local, sizeof local, largest, &most);
        side_broadcast(&most, sizeof most);
    } else {
        most = local;
    }
    if (most.token >= d->vocab)
        snprintf(why, DATA_WHY,
                 "%s has token id %zu, but a vocabulary of --vocab %zu ends at %zu: choose a "
                 "larger --vocab, or give a file of uint16 tokens of the same tokenizer",
                 d->files[most.file].path, most.token, d->vocab, d->vocab - 1);
}

// ---- one or several files ----

// Rank 0 adds the files of a pattern to d->names, sorted. If a file has the pattern itself as its
// name, only this file is added. If no file matches, the pattern is added, and open_file() reports
// the error.
static void add_names(Data *d, const char *pattern, size_t *room) {
    glob_t found = { 0 };
    struct stat info;
    bool several = stat(pattern, &info) != 0 && glob(pattern, 0, NULL, &found) == 0;
    size_t n = several ? found.gl_pathc : 1;
    for (size_t i = 0; i < n; i++) {
        const char *name = several ? found.gl_pathv[i] : pattern;
        d->names = realloc(d->names, *room + strlen(name) + 1);
        if (!d->names) fault("out of memory for the names of --data");
        strcpy(d->names + *room, name);
        *room += strlen(name) + 1;
    }
    d->n_files += n;
    globfree(&found);
}

// Lists the files of --data, then those of --data-eval, as rank 0 finds them. Returns the number of
// files of --data.
static size_t list_files(Data *d, const char *path, const char *eval) {
    struct {
        size_t n, train, room;
    } all = { 0 };
    if (this_rank == 0) {
        add_names(d, path, &all.room);
        all.train = d->n_files;
        if (eval) add_names(d, eval, &all.room);
        all.n = d->n_files;
    }
    if (this_world_size > 1) {
        side_broadcast(&all, sizeof all);
        if (this_rank > 0) d->names = host_alloc(all.room);
        side_broadcast(d->names, all.room);
    }
    d->n_files = all.n;
    d->files = host_alloc(all.n * sizeof *d->files);
    const char *name = d->names;
    for (size_t i = 0; i < all.n; i++) {
        d->files[i].path = name;
        name += strlen(name) + 1;
    }
    return all.train;
}

static void open_file(Data *d, DataFile *f, bool named, char why[DATA_WHY]) {
    f->text = map(f->path, &f->bytes, why);
    f->mapped = f->text != NULL;
    // An error on rank 0 is an error for all ranks. Another rank's error does not count, because
    // that rank gets rank 0's text.
    if (this_world_size > 1) side_broadcast(why, DATA_WHY);
    if (!why[0] && this_world_size > 1) share_text(f);
    if (!why[0]) recognise(d, f, named, why);
}

// Sets why[] if the training text or the held-out text is too short for a window and the next
// token.
static void require_length(const Data *d, const char *path, const char *eval, char why[DATA_WHY]) {
    size_t held_out = d->tokens - d->train_tokens, least = d->context + 1;
    const char *unit = d->token_bytes == 1 ? "bytes" : "tokens";
    if (held_out >= least && d->train_tokens >= least) return;
    if (!eval)
        snprintf(why, DATA_WHY,
                 "the text %s has %zu %s, too few for --context %zu: at least %zu are needed (a "
                 "tenth is held out)",
                 path, d->tokens, unit, d->context, 10 * least);
    else
        snprintf(why, DATA_WHY,
                 "the text %s has %zu %s, too few for --context %zu: at least %zu are needed",
                 held_out < least ? eval : path, held_out < least ? held_out : d->train_tokens,
                 unit, d->context, least);
}

bool data_open(Data *d, const char *path, const char *eval, size_t vocab, size_t context,
               uint64_t seed, char why[DATA_WHY]) {
    *d = (Data){ .vocab = vocab, .context = context, .seed = seed };
    memset(why, 0, DATA_WHY);
    size_t train = list_files(d, path ? path : DEFAULT_TEXT, eval);
    for (size_t i = 0; i < d->n_files && !why[0]; i++) {
        DataFile *f = &d->files[i];
        open_file(d, f, path || i >= train, why);
        f->first = d->tokens;
        d->tokens += f->tokens;
        if (i < train) d->train_tokens = d->tokens;
    }
    if (!d->vocab) d->vocab = 256;
    if (!eval) d->train_tokens = d->tokens - d->tokens / 10;
    if (!why[0]) require_length(d, path ? path : DEFAULT_TEXT, eval, why);
    if (!why[0] && d->token_bytes > 1) require_ids(d, why);
    if (why[0]) data_free(d);
    return !why[0];
}

void data_free(Data *d) {
    for (size_t i = 0; i < d->n_files; i++) file_free(&d->files[i]);
    free(d->files);
    free(d->names);
    d->files = NULL;
    d->names = NULL;
    d->n_files = 0;
}

uint64_t data_fingerprint(const Data *d, bool held_out, size_t *bytes) {
    uint64_t key = 0;
    *bytes = 0;
    for (size_t k = 0; k < d->n_files; k++) {
        const DataFile *f = &d->files[k];
        if ((f->first >= d->train_tokens) != held_out) continue;
        key = random_key(key, f->bytes);
        for (size_t i = 0; i < f->bytes; i += sizeof key) {
            uint64_t word = 0;
            memcpy(&word, f->text + i, f->bytes - i < sizeof word ? f->bytes - i : sizeof word);
            key = random_key(key, word);
        }
        *bytes += f->bytes;
    }
    return key;
}

static uint64_t sequence_key(const Data *d, int what, uint64_t step, size_t n) {
    return random_key(random_key(random_key(d->seed, (uint64_t)what), step), n);
}
// Returns the number of counted targets of sequence n. Without d->ragged all targets count. With
// d->ragged only the first targets count, between half and all of them.
static size_t counted(const Data *d, uint64_t step, size_t n) {
    return d->ragged ? d->context - sequence_key(d, KEY_LENGTH, step, n) % (d->context / 2 + 1)
                     : d->context;
}
size_t data_count(const Data *d, uint64_t step, size_t first, size_t B) {
    size_t tokens = 0;
    for (size_t n = first; n < first + B; n++) tokens += counted(d, step, n);
    return tokens;
}

// A sequence has `context` tokens, but only its local positions are uploaded.
static Batch upload(const Data *d, Arena *a, const int *tokens, const int *targets, size_t B) {
    Positions local = d->positions.n ? d->positions : (Positions){ 1, { { 0, d->context } } };
    size_t T = positions_count(&local), M = B * T, row = 0;
    int *device[3], *host[3]; // tokens, targets, positions
    for (int i = 0; i < 3; i++) {
        device[i] = ints_new(a, M);
        host[i] = host_alloc((M + 1) * sizeof(int));
    }
    for (size_t s = 0; s < B; s++)
        for (size_t i = 0; i < local.n; i++)
            for (size_t t = local.chunk[i].lo; t < local.chunk[i].hi; t++, row++) {
                host[0][row] = tokens[s * d->context + t];
                host[1][row] = targets[s * d->context + t];
                host[2][row] = (int)t;
            }
    for (int i = 0; i < 3; i++) {
        ints_upload(device[i], host[i], M);
        free(host[i]);
    }
    return (
        Batch){ .B = B, .T = T, .tokens = device[0], .targets = device[1], .position = device[2] };
}

// Training tokens after the last target of the last window are not used.
size_t data_windows(const Data *d) { return (d->train_tokens - 1) / d->context; }
size_t data_window(const Data *d, uint64_t step, size_t n) {
    size_t windows = data_windows(d), which = 0;
    if (!d->batch) fault("the order of a file's windows needs Data.batch, the sequences of a step");
    // EXERCISE 08.train-b (3 points): epochs without replacement. which: the window of sequence n
    // of this step. step * d->batch + n sequences come before it and filled earlier epochs of
    // `windows` each. random_permute(key, i, windows) visits each window once for i from 0 on.
    // Every epoch has a key of its own: the random_key of the key of (d->seed, KEY_DATA) and the
    // epoch.
    uint64_t number = step * d->batch + n;
    uint64_t key = random_key(random_key(d->seed, KEY_DATA), number / windows);
    which = (size_t)random_permute(key, number % windows, windows);
    // END
    return which;
}

Batch data_micro_batch(const Data *d, Arena *a, uint64_t step, size_t first, size_t B,
                       double token_weight) {
    size_t T = d->context;
    int *tokens = host_alloc((B * T + 1) * sizeof(int)),
        *targets = host_alloc((B * T + 1) * sizeof(int));
    for (size_t s = 0; s < B; s++) {
        uint64_t key = sequence_key(d, KEY_DATA, step, first + s);
        size_t start = d->files ? data_window(d, step, first + s) * T : 0,
               end = counted(d, step, first + s);
        for (size_t t = 0; t <= T; t++) {
            int token = (int)(d->files ? token_at(d, start + t) : random_key(key, t) % d->vocab);
            if (t < T) tokens[s * T + t] = token;
            if (t > 0) targets[s * T + t - 1] = t <= end ? token : -1;
        }
    }
    Batch b = upload(d, a, tokens, targets, B);
    b.first_sequence = first;
    b.step = step;
    b.token_weight = token_weight;
    b.training = true;
    free(tokens);
    free(targets);
    return b;
}

Batch data_batch(const Data *d, Arena *a, uint64_t step, size_t first, size_t B, size_t global) {
    return data_micro_batch(d, a, step, first, B, 1 / (double)data_count(d, step, 0, global));
}

size_t data_eval_windows(const Data *d) {
    if (!d->files) fault("synthetic tokens have no held-out text");
    return (d->tokens - d->train_tokens - 1) / d->context;
}

Batch data_eval_batch(const Data *d, Arena *a, size_t first, size_t B, size_t some) {
    size_t T = d->context, all = data_eval_windows(d);
    int *tokens = host_alloc((B * T + 1) * sizeof(int)),
        *targets = host_alloc((B * T + 1) * sizeof(int));
    if (first + B > some || some > all)
        fault("%zu windows from %zu on, of %zu out of %zu", B, first, some, all);
    for (size_t i = 0; i < B * T; i++) {
        size_t at = d->train_tokens + (first + i / T) * all / some * T + i % T;
        tokens[i] = (int)token_at(d, at);
        targets[i] = (int)token_at(d, at + 1);
    }
    Batch b = upload(d, a, tokens, targets, B);
    b.token_weight = 1 / (double)(B * T);
    free(tokens);
    free(targets);
    return b;
}

double data_entropy(const Data *d) {
    size_t *count = host_alloc(d->vocab * sizeof *count), n = d->tokens - d->train_tokens;
    for (size_t i = d->train_tokens; i < d->tokens; i++) count[token_at(d, i)]++;
    double entropy = 0;
    for (size_t c = 0; c < d->vocab; c++)
        if (count[c]) entropy -= (double)count[c] / (double)n * log((double)count[c] / (double)n);
    free(count);
    return entropy;
}
