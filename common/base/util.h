// util.h: small things every file needs: faults, ranges, hashing, time.
#ifndef UTIL_H
#define UTIL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Exit statuses of every program: see README. 0 is "all checks hold". STATUS_STOPPED: the trainer
// was told to stop, has saved a checkpoint, and can be resumed.
enum { STATUS_CHECK_FAILED = 1, STATUS_USAGE = 2, STATUS_FAULT = 3, STATUS_STOPPED = 4 };

// The user's mistake (a bad option, a rank count that cannot work). All ranks end with status 2 and
// one message, which must name the fix. Every rank is expected to find the same mistake; one that
// finds it alone ends the others too.
_Noreturn void usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define REQUIRE(condition, ...) \
    do { \
        if (!(condition)) usage_error(__VA_ARGS__); \
    } while (0)

// A fault while running (lost rank, full disk, wrong shapes, deadlock). All ranks end with
// status 3.
_Noreturn void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

// An exercise that nobody has done yet, in the place of its solution (tools/student puts it there).
// The program goes on; at its end it says which exercises are open, and never passes. id: as in the
// marker above it, "01.02a".
#define TODO(id) exercise_open(id, __FILE__, __LINE__)
void exercise_open(const char *id, const char *file, int line);

// How this process ends all its fellow ranks; installed by the transport. Default: exit(status).
extern void (*end_all_ranks)(int status);
extern bool ranks_are_processes; // set with it
// Seconds for which a process leaves it to rank 0 to tell a usage error. Once --timeout is known it
// is half of that: if a rank is alone with its mistake, the others still wait for it then.
extern long usage_wait;

// Who is speaking in messages. Thread-local, because virtual ranks are threads; 0 of 1 until a
// transport says otherwise.
extern _Thread_local size_t this_rank, this_world_size;

static inline size_t ceil_div(size_t a, size_t b) { return a / b + (a % b != 0); }

// The one rule by which anything is cut: part i of n things in `parts` contiguous parts. The first
// n % parts parts have one more, so sizes that do not divide work everywhere. Parts may be empty
// when n < parts.
typedef struct {
    size_t lo, hi;
} Range; // lo <= i < hi
Range shard_range(size_t n, size_t parts, size_t i);
static inline size_t range_size(Range r) { return r.hi - r.lo; }

// zeroed host memory outside the ledger (control data, checks); free() it
void *host_alloc(size_t bytes);
double now(void); // wall clock, seconds
// From now on SIGTERM, SIGINT and SIGUSR1, by which launchers and batch systems warn, do not end
// this process. Only a second SIGINT does. stop_asked() returns the seconds since the first of
// these signals, and -1 before it.
void stop_catch(void);
double stop_asked(void);
size_t resident_most(void); // bytes of this process that were in memory at most; 0: not known
#endif
