// memory.c: arenas, the ledger of bytes, and the blocks kept for the next request.
//
// Everything here belongs to one rank. Ranks may be threads of one process, so the state is thread-local, and a block
// remembers whose it is. The ledger counts what was asked for; kept blocks are real memory of the process, but nobody's
// bytes, so they are not in the ledger.
//
// Behind every block lie a few guard bytes, looked at when the block is freed: blocks are reused, so an address
// sanitizer would not see a write past the end.
#include "memory.h"
#include "record.h"
#include <stdlib.h>
#include <string.h>
#include "device.h"
#include "util.h"

enum { GRAIN = 64, GUARD = 16, GUARD_BYTE = 0xa5, POISON_BYTE = 0xff /* NaN as float and as double */, LISTS = 256 };

const char *const memory_category_name[MEM_CATEGORIES] = {
    "parameters", "gradients", "optimizer", "activations", "communication", "workspace", "reference"
};

// The description of a block is host memory, its data is the device's.
typedef struct Block Block;
struct Block {
    Block *next;                        // in its arena, or in a list of kept blocks
    char *data;
    size_t bytes, size_class;           // asked for; rounded up to a multiple of GRAIN
    size_t rank;
    MemoryCategory category;            // as booked, which is not the arena's while the ledger is paused
    bool guarded;
};

static _Thread_local struct {
    size_t now[MEM_CATEGORIES], peak[MEM_CATEGORIES];
    size_t total, total_peak;           // without MEM_REFERENCE
    size_t pauses;
    bool poison_off;
    Block *kept[LISTS];                 // by size class
} mine;

// ---- the ledger ----

static void raise_peak(size_t *peak, size_t now) {
    if (*peak < now) *peak = now;
}

static void book(MemoryCategory c, size_t bytes) {
    mine.now[c] += bytes;
    raise_peak(&mine.peak[c], mine.now[c]);
    record_bytes(c, mine.now[c]);
    if (c == MEM_REFERENCE) return;
    mine.total += bytes;
    raise_peak(&mine.total_peak, mine.total);
}

static void unbook(MemoryCategory c, size_t bytes) {
    mine.now[c] -= bytes;
    record_bytes(c, mine.now[c]);
    if (c != MEM_REFERENCE) mine.total -= bytes;
}

size_t memory_now(MemoryCategory c) { return mine.now[c]; }
size_t memory_peak(MemoryCategory c) { return mine.peak[c]; }
size_t memory_peak_total(void) { return mine.total_peak; }

void memory_reset_peaks(void) {
    memcpy(mine.peak, mine.now, sizeof mine.peak);
    mine.total_peak = mine.total;
}

void memory_set_poison(bool on) { mine.poison_off = !on; }
bool memory_poison(void) { return !mine.poison_off; }

void ledger_pause(void) { mine.pauses++; }
bool ledger_paused(void) { return mine.pauses > 0; }
void ledger_resume(void) {
    if (mine.pauses == 0) fault("ledger_resume without a ledger_pause");
    mine.pauses--;
}

// ---- blocks ----

static Block **kept_list(size_t size_class) {
    return &mine.kept[(size_class / GRAIN) % LISTS];
}

static Block *take_kept(size_t size_class) {
    for (Block **b = kept_list(size_class); *b; b = &(*b)->next)
        if ((*b)->size_class == size_class) {
            Block *found = *b;
            *b = found->next;
            return found;
        }
    return NULL;
}

static void release_kept(void) {
    for (size_t i = 0; i < LISTS; i++)
        while (mine.kept[i]) {
            Block *b = mine.kept[i];
            mine.kept[i] = b->next;
            device_free(b->data);
            free(b);
        }
}

// Kept blocks fit only their own size. They must not be what stands in another's way. A GPU gives memory back when it
// has done what was queued before.
void *memory_raw(size_t bytes) {
    void *p = device_alloc(bytes);
    if (p) return p;
    release_kept();
    device_synchronize();
    return device_alloc(bytes);
}

static Block *new_block(size_t size_class, MemoryCategory category) {
    Block *b = malloc(sizeof *b);
    if (!b) fault("out of host memory: the description of a buffer of %zu bytes", size_class);
    size_t bytes = size_class + GRAIN;              // GRAIN >= GUARD: room for the guard
    b->data = memory_raw(bytes);
    if (!b->data)
        fault("out of memory: %zu bytes (%.1f MiB) for one buffer of %s, beside the %.1f MiB that this rank holds; "
              "fewer ranks on one machine or GPU, a smaller batch or model, or recomputation take less",
              size_class, (double)size_class / (1 << 20), memory_category_name[category],
              (double)(mine.total + mine.now[MEM_REFERENCE]) / (1 << 20));
    b->size_class = size_class;
    b->rank = this_rank;
    return b;
}

static void check_owner(const Block *b, const char *what) {
    if (b->rank != this_rank)
        fault("%s: a buffer of rank %zu (%zu bytes of %s) was given to rank %zu; an arena belongs to one rank",
              what, b->rank, b->bytes, memory_category_name[b->category], this_rank);
}

static void write_guard(Block *b) { device_fill(b->data + b->bytes, GUARD_BYTE, GUARD); }

static void check_guard(const Block *b) {
    unsigned char guard[GUARD];
    device_download(guard, b->data + b->bytes, GUARD);
    for (size_t i = 0; i < GUARD; i++)
        if (guard[i] != GUARD_BYTE)
            fault("somebody wrote past the end of a buffer of %zu bytes of %s (byte %zu behind it)",
                  b->bytes, memory_category_name[b->category], i);
}

// ---- arenas ----

Arena arena(MemoryCategory category) {
    return (Arena){ .category = category, .blocks = NULL };
}

// Zero bytes are a request like any other: the address is valid, nothing may be stored there.
void *arena_alloc(Arena *a, size_t bytes) {
    if (a->blocks) check_owner(a->blocks, "arena_alloc");
    if (bytes > SIZE_MAX - 2 * GRAIN) fault("arena_alloc: %zu bytes of %s", bytes, memory_category_name[a->category]);
    size_t size_class = bytes ? ceil_div(bytes, GRAIN) * GRAIN : GRAIN;
    Block *b = take_kept(size_class);
    if (!b) b = new_block(size_class, a->category);
    b->bytes = bytes;
    b->category = ledger_paused() ? MEM_REFERENCE : a->category;
    b->guarded = !mine.poison_off;
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
        Block **list = kept_list(b->size_class);
        b->next = *list;
        *list = b;
    }
}

size_t arena_bytes(const Arena *a) {
    size_t sum = 0;
    for (const Block *b = a->blocks; b; b = b->next) sum += b->bytes;
    return sum;
}

// ---- a rank's beginning and end ----

void memory_rank_begin(void) {
    memset(&mine, 0, sizeof mine);
}

void memory_rank_end(void) {
    for (int c = 0; c < MEM_CATEGORIES; c++)
        if (mine.now[c])
            fault("leak: %zu bytes of %s are still live at the end of the rank", mine.now[c], memory_category_name[c]);
    if (mine.pauses) fault("ledger_pause without ledger_resume: the ledger is still paused at the end of the rank");
    release_kept();
}
