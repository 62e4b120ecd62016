// memory.h: every buffer of tensor data, counted. Each has a category; the ledger keeps, per rank, the bytes live now
// and the peak, of each category and of the total. Device memory under a GPU backend.
//
// New memory is poisoned with NaN (unless memory_poison is off), so reading what nobody wrote fails loudly. Freed
// blocks are kept for the next request of the same size: a training step allocates nothing after the first. They are
// given back when there is no memory left for another size.
#ifndef MEMORY_H
#define MEMORY_H
#include <stdbool.h>
#include <stddef.h>

typedef enum {
    MEM_PARAMETERS, MEM_GRADIENTS, MEM_OPTIMIZER,
    MEM_ACTIVATIONS,        // what forward keeps for backward, layer outputs, and their gradients' owners: see layer.h
    MEM_COMMUNICATION,      // gathered units, whole gradients on their way to a reduction, receive buffers
    MEM_WORKSPACE,          // lives within one op or one layer call; tokens and targets
    MEM_REFERENCE,          // the unsplit twin and everything allocated while the ledger is paused
    MEM_CATEGORIES
} MemoryCategory;
extern const char *const memory_category_name[MEM_CATEGORIES];   // "parameters", "gradients", ...

// An arena owns buffers that live and die together.
typedef struct { MemoryCategory category; struct Block *blocks; } Arena;
Arena arena(MemoryCategory category);
void *arena_alloc(Arena *a, size_t bytes);
void arena_free(Arena *a);                     // frees every buffer; the arena may be used again
size_t arena_bytes(const Arena *a);
void *memory_raw(size_t bytes);                // device memory in no arena and no ledger; NULL: there is none left

size_t memory_now(MemoryCategory c);           // bytes of this rank
size_t memory_peak(MemoryCategory c);
size_t memory_peak_total(void);                // without MEM_REFERENCE
void memory_reset_peaks(void);                 // peaks start again from what is live now
void memory_set_poison(bool on);               // per rank; default on; off where speed counts
bool memory_poison(void);

// While paused (calls nest), communication is not counted and new memory is MEM_REFERENCE: for checks, digests, logs
// and the unsplit twin.
void ledger_pause(void);
void ledger_resume(void);
bool ledger_paused(void);

void memory_rank_begin(void);                  // called by the frame around each rank
void memory_rank_end(void);                    // fault() when something is still live: a leak; releases the kept blocks
#endif
