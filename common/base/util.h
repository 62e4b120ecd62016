// util.h: declares small functions for faults, ranges, host memory, time and signals.
#ifndef UTIL_H
#define UTIL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The exit statuses of every program. 0 means that all checks hold. STATUS_STOPPED means that the
// trainer was told to stop and has saved a checkpoint, so --resume can continue.
enum { STATUS_CHECK_FAILED = 1, STATUS_USAGE = 2, STATUS_FAULT = 3, STATUS_STOPPED = 4 };

// Reports a mistake of the user (a bad option, an impossible rank count). All ranks end with status
// 2 and one message, which must name a fix. Usually every rank finds the same mistake, and rank 0
// reports the mistake. A rank that finds a mistake alone also ends the other ranks.
_Noreturn void usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define REQUIRE(condition, ...) \
    do { \
        if (!(condition)) usage_error(__VA_ARGS__); \
    } while (0)

// Reports a fault while running (lost rank, full disk, wrong shapes). All ranks end with status 3.
_Noreturn void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

// TODO marks an open exercise. tools/student puts TODO in place of the solution. A program that
// reaches a TODO continues, lists the open exercises at its end, and fails. id is the exercise's
// id, such as "01.02a".
#define TODO(id) exercise_open(id, __FILE__, __LINE__)
void exercise_open(const char *id, const char *file, int line);

// end_all_ranks(status) ends all ranks of the program. comm_emu.c and judge/frame/process.c set
// this pointer. The default is exit().
extern void (*end_all_ranks)(int status);
extern bool ranks_are_processes; // false: ranks are threads of one process
// The number of seconds that a process waits for rank 0 to report a usage error. When --timeout is
// known, usage_wait becomes --timeout / 2 + 1. So if only one rank sees a mistake, that rank
// reports the mistake before the other ranks reach --timeout.
extern long usage_wait;

// This rank's number in the world, and the number of ranks. The variables are thread-local, because
// virtual ranks are threads. Before the ranks start, this_rank is 0 and this_world_size is 1.
extern _Thread_local size_t this_rank, this_world_size;

static inline size_t ceil_div(size_t a, size_t b) { return a / b + (a % b != 0); }

// shard_range() is the book's rule for equal parts. The function cuts n items into `parts`
// contiguous parts and returns part i. The first n % parts parts have one item more than the other
// parts, so n may be any number. If n < parts, the last parts are empty.
typedef struct {
    size_t lo, hi;
} Range; // lo <= i < hi
Range shard_range(size_t n, size_t parts, size_t i);
static inline size_t range_size(Range r) { return r.hi - r.lo; }

// Returns zeroed host memory, which the ledger does not count, for control data and checks. free()
// the result.
void *host_alloc(size_t bytes);
// Returns a copy of text, in memory of host_alloc(). free() the result.
char *text_copy(const char *text);
double now(void); // returns the seconds of real time since an arbitrary start
// After this call SIGTERM, SIGINT and SIGUSR1 do not end the process. Launchers and batch systems
// send these signals as a warning. Only another SIGINT, a second or more after the first SIGINT,
// ends the process. stop_asked() returns the seconds since the first of these signals, or -1 if no
// signal has come.
void stop_catch(void);
double stop_asked(void);
// Returns the peak resident bytes of this process, or 0 if the peak is not known.
size_t resident_most(void);
#endif
