// memory.h: declares the allocation of tensors' memory, and the ledger, which counts the bytes.
// Each buffer has a category. The live bytes are the bytes of all buffers that are not freed. The
// ledger keeps, per rank, the live bytes and their peak, for each category and for the total. Under
// a GPU backend the buffers are device memory.
//
// New memory is filled with NaN (unless memory_poison() is false), so a read of memory that was
// never written shows in the results. Freed memory goes back to the device's allocator, which
// reserves the memory for later buffers. So after the first step the training takes no further
// memory from the operating system.
#ifndef MEMORY_H
#define MEMORY_H
#include <stdbool.h>
#include <stddef.h>

typedef enum {
    MEM_PARAMETERS,
    MEM_GRADIENTS,
    MEM_OPTIMIZER,
    // values that forward keeps for backward, and layer outputs (layer.h)
    MEM_ACTIVATIONS,
    // gathered weights, whole gradients before a reduction, receive buffers
    MEM_COMMUNICATION,
    MEM_WORKSPACE, // temporaries of one op or layer call; tokens, targets, positions
    // the unsplit model of a comparison, memory of checks, and all memory allocated while the
    // ledger is paused
    MEM_REFERENCE,
    MEM_CATEGORIES
} MemoryCategory;
extern const char *const memory_category_name[MEM_CATEGORIES]; // "parameters", "gradients", ...

// An arena owns buffers that are freed together.
typedef struct {
    MemoryCategory category;
    struct Block *blocks;
} Arena;
Arena arena(MemoryCategory category);
void *arena_alloc(Arena *a, size_t bytes);
void arena_free(Arena *a); // frees every buffer; the arena may be used again
// Moves the arena's buffers, and its later buffers, to this category of the ledger. Buffers in
// MEM_REFERENCE stay there, such as those that were allocated while the ledger was paused.
void arena_set_category(Arena *a, MemoryCategory category);
size_t arena_bytes(const Arena *a);
bool arena_holds(const Arena *a, const void *p); // returns whether p is an address in a buffer of a
// Returns this rank's scratch, which holds the copies in reals of an op's 16-bit operands. The
// copies are valid until memory_scratch is called again. The scratch is freed at the rank's end.
// The ledger does not count the scratch, because a GPU, which computes with 16-bit operands, needs
// almost none. memory_scratch_bytes returns the present size of the scratch.
void *memory_scratch(size_t bytes);
size_t memory_scratch_bytes(void);

size_t memory_now(MemoryCategory c); // returns this rank's live bytes of the category
// Returns the peak of the category since memory_reset_peaks().
size_t memory_peak(MemoryCategory c);
// Returns the peak of the total since the rank began, without MEM_REFERENCE. memory_reset_peaks
// does not change this peak.
size_t memory_most(void);
// Returns the peak of the live bytes of all ranks of this process together, with MEM_REFERENCE.
size_t memory_process_most(void);
void memory_reset_peaks(void); // sets each category's peak to its live bytes
// Switches poison (new memory holds NaN) on or off for this rank. Poison is on at the start, and
// costs time.
void memory_set_poison(bool on);
bool memory_poison(void);

// While the ledger is paused, communication is not counted and new memory counts as MEM_REFERENCE.
// Each ledger_pause() needs a ledger_resume(). Such pairs may be nested. Checks, digests, logs and
// the unsplit training of a comparison pause the ledger.
void ledger_pause(void);
void ledger_resume(void);
bool ledger_paused(void);

void memory_rank_begin(void); // clears the ledger, at the start of each rank
// Frees this rank's scratch. Calls fault() if a buffer is still live (a leak), or if the ledger is
// still paused.
void memory_rank_end(void);
#endif
