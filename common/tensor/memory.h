// memory.h: every buffer of tensor data, counted. Each has a category; the ledger keeps, per rank,
// the bytes live now and the peak, of each category and of the total. Device memory under a GPU
// backend.
//
// New memory is poisoned with NaN (unless memory_poison is off), so reading what nobody wrote fails
// loudly. Freed memory goes back to the device's allocator, which keeps it for the next request:
// after the first step, a training step takes nothing from the operating system.
#ifndef MEMORY_H
#define MEMORY_H
#include <stdbool.h>
#include <stddef.h>

typedef enum {
    MEM_PARAMETERS,
    MEM_GRADIENTS,
    MEM_OPTIMIZER,
    // what forward keeps for backward, layer outputs, and their gradients' owners: see layer.h
    MEM_ACTIVATIONS,
    // gathered units, whole gradients on their way to a reduction, receive buffers
    MEM_COMMUNICATION,
    MEM_WORKSPACE, // lives within one op or one layer call; tokens and targets
    MEM_REFERENCE, // the unsplit twin and everything allocated while the ledger is paused
    MEM_CATEGORIES
} MemoryCategory;
extern const char *const memory_category_name[MEM_CATEGORIES]; // "parameters", "gradients", ...

// An arena owns buffers that live and die together.
typedef struct {
    MemoryCategory category;
    struct Block *blocks;
} Arena;
Arena arena(MemoryCategory category);
void *arena_alloc(Arena *a, size_t bytes);
void arena_free(Arena *a); // frees every buffer; the arena may be used again
// its buffers are of this category from now on
void arena_rebook(Arena *a, MemoryCategory category);
size_t arena_bytes(const Arena *a);
bool arena_holds(const Arena *a, const void *p); // p lies in one of its buffers

size_t memory_now(MemoryCategory c); // bytes of this rank
size_t memory_peak(MemoryCategory c);
size_t memory_most(void);         // the total's peak since the rank began, whatever was reset
size_t memory_process_most(void); // of all ranks of this process together, with MEM_REFERENCE
void memory_reset_peaks(void);    // peaks start again from what is live now
void memory_set_poison(bool on);  // per rank; default on; off where speed counts
bool memory_poison(void);

// While paused (calls nest), communication is not counted and new memory is MEM_REFERENCE: for
// checks, digests, logs and the unsplit twin.
void ledger_pause(void);
void ledger_resume(void);
bool ledger_paused(void);

void memory_rank_begin(void); // called by the frame around each rank
// fault() when something is still live: a leak; releases the kept blocks
void memory_rank_end(void);
#endif
