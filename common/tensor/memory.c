// memory.c: implements arenas and the ledger of bytes. The live bytes are the bytes of all
// buffers that are not freed.
//
// The ledger and the blocks belong to one rank. Ranks may be threads of one process, so the ledger
// is thread-local, and a block stores its rank.
//
// A few guard bytes follow each buffer. If poison is on when a buffer is allocated, arena_free()
// checks the buffer's guard bytes, because AddressSanitizer does not see a GPU's write past the
// end.
#include "common/tensor/memory.h"
#include "common/base/meter.h"
#include <stdlib.h>
#include <string.h>
#include "common/device/device.h"
#include "common/base/util.h"

enum { GUARD = 16, GUARD_BYTE = 0xa5, POISON_BYTE = 0xff /* NaN as float and as double */ };

const char *const memory_category_name[MEM_CATEGORIES] = {
    "parameters", "gradients", "optimizer", "activations", "communication", "workspace", "reference"
};

// A Block describes a buffer. The Block is in host memory, the buffer's data in device memory.
typedef struct Block Block;
struct Block {
    Block *next; // next block of the same arena
    char *data;
    size_t bytes, rank;
    MemoryCategory category; // the buffer's category in the ledger
    bool guarded;
};

static _Thread_local struct {
    size_t now[MEM_CATEGORIES], peak[MEM_CATEGORIES];
    size_t total;      // live bytes of all categories but MEM_REFERENCE
    size_t total_most; // the peak of total, which memory_reset_peaks() does not reset
    size_t pauses;
    bool poison_off;
} ledger;

// `process` counts the live bytes of all ranks of this process, with MEM_REFERENCE. No lock is
// needed, because only one rank of a process runs at a time.
static size_t process, process_most;

// ---- the ledger ----

static void raise_peak(size_t *peak, size_t now) {
    if (*peak < now) *peak = now;
}

static void book(MemoryCategory c, size_t bytes) {
    ledger.now[c] += bytes;
    raise_peak(&ledger.peak[c], ledger.now[c]);
    raise_peak(&process_most, process += bytes);
    if (meter_bytes) meter_bytes(c, ledger.now[c]);
    if (c == MEM_REFERENCE) return;
    ledger.total += bytes;
    raise_peak(&ledger.total_most, ledger.total);
}

static void unbook(MemoryCategory c, size_t bytes) {
    ledger.now[c] -= bytes;
    process -= bytes;
    if (meter_bytes) meter_bytes(c, ledger.now[c]);
    if (c != MEM_REFERENCE) ledger.total -= bytes;
}

size_t memory_now(MemoryCategory c) { return ledger.now[c]; }
size_t memory_peak(MemoryCategory c) { return ledger.peak[c]; }
size_t memory_most(void) { return ledger.total_most; }
size_t memory_process_most(void) { return process_most; }

void memory_reset_peaks(void) { memcpy(ledger.peak, ledger.now, sizeof ledger.peak); }

void memory_set_poison(bool on) { ledger.poison_off = !on; }
bool memory_poison(void) { return !ledger.poison_off; }

void ledger_pause(void) { ledger.pauses++; }
bool ledger_paused(void) { return ledger.pauses > 0; }
void ledger_resume(void) {
    if (ledger.pauses == 0) fault("ledger_resume without a ledger_pause");
    ledger.pauses--;
}

// ---- blocks ----

static Block *new_block(size_t bytes, MemoryCategory category) {
    Block *b = malloc(sizeof *b);
    if (!b)
        fault("out of host memory for the description of a buffer of %zu bytes; choose fewer ranks "
              "on this machine",
              bytes);
    b->data = device_alloc(bytes + GUARD);
    if (!b->data)
        fault("out of memory: %zu bytes (%.1f MiB) for one buffer of %s, beside the %.1f MiB that "
              "this rank holds; choose fewer ranks per machine or GPU, a smaller batch or model, "
              "or recomputation",
              bytes, (double)bytes / (1 << 20), memory_category_name[category],
              (double)(ledger.total + ledger.now[MEM_REFERENCE]) / (1 << 20));
    b->bytes = bytes;
    b->rank = this_rank;
    return b;
}

static void check_owner(const Block *b, const char *what) {
    if (b->rank != this_rank)
        fault("%s: a buffer of rank %zu (%zu bytes of %s) was given to rank %zu; an arena belongs "
              "to one rank",
              what, b->rank, b->bytes, memory_category_name[b->category], this_rank);
}

static void write_guard(Block *b) { device_fill(b->data + b->bytes, GUARD_BYTE, GUARD); }

static void check_guard(const Block *b) {
    unsigned char guard[GUARD];
    device_download(guard, b->data + b->bytes, GUARD);
    for (size_t i = 0; i < GUARD; i++)
        if (guard[i] != GUARD_BYTE)
            fault("an op wrote past the end of a buffer of %zu bytes of %s (byte %zu behind it)",
                  b->bytes, memory_category_name[b->category], i);
}

// ---- arenas ----

Arena arena(MemoryCategory category) { return (Arena){ .category = category, .blocks = NULL }; }

// A request of zero bytes returns a valid address, where nothing may be stored.
void *arena_alloc(Arena *a, size_t bytes) {
    if (a->blocks) check_owner(a->blocks, "arena_alloc");
    if (bytes > SIZE_MAX / 2)
        fault("arena_alloc: %zu bytes of %s", bytes, memory_category_name[a->category]);
    Block *b = new_block(bytes, a->category);
    b->category = ledger_paused() ? MEM_REFERENCE : a->category;
    b->guarded = !ledger.poison_off;
    if (b->guarded) {
        device_fill(b->data, POISON_BYTE, bytes);
        write_guard(b);
    }
    book(b->category, bytes);
    b->next = a->blocks;
    a->blocks = b;
    return b->data;
}

void arena_free(Arena *a) {
    while (a->blocks) {
        Block *b = a->blocks;
        check_owner(b, "arena_free");
        if (b->guarded) check_guard(b);
        unbook(b->category, b->bytes);
        a->blocks = b->next;
        device_free(b->data);
        free(b);
    }
}

void arena_set_category(Arena *a, MemoryCategory category) {
    a->category = category;
    for (Block *b = a->blocks; b; b = b->next) {
        check_owner(b, "arena_set_category");
        if (b->category == MEM_REFERENCE) continue;
        unbook(b->category, b->bytes);
        b->category = category;
        book(category, b->bytes);
    }
}

size_t arena_bytes(const Arena *a) {
    size_t sum = 0;
    for (const Block *b = a->blocks; b; b = b->next) sum += b->bytes;
    return sum;
}

bool arena_holds(const Arena *a, const void *p) {
    for (const Block *b = a->blocks; b; b = b->next)
        if ((const char *)p >= b->data && (const char *)p < b->data + b->bytes) return true;
    return false;
}

// ---- scratch ----

static _Thread_local struct {
    void *data;
    size_t capacity;
} scratch;

static void free_scratch(void) {
    device_free(scratch.data);
    scratch.data = NULL;
    scratch.capacity = 0;
}

void *memory_scratch(size_t bytes) {
    if (bytes <= scratch.capacity) return scratch.data;
    if (scratch.data) free_scratch();
    scratch.data = device_alloc(bytes);
    if (!scratch.data)
        fault("out of memory: %zu bytes for copies of 16-bit tensors; choose a smaller batch or "
              "model",
              bytes);
    scratch.capacity = bytes;
    return scratch.data;
}

size_t memory_scratch_bytes(void) { return scratch.capacity; }

// ---- a rank's beginning and end ----

void memory_rank_begin(void) { memset(&ledger, 0, sizeof ledger); }

void memory_rank_end(void) {
    if (scratch.data) free_scratch();
    for (int c = 0; c < MEM_CATEGORIES; c++)
        if (ledger.now[c])
            fault("leak: %zu bytes of %s are still live at the end of the rank", ledger.now[c],
                  memory_category_name[c]);
    if (ledger.pauses)
        fault("ledger_pause without ledger_resume: the ledger is still paused at the end of the "
              "rank");
}
