// util.h: faults, ranges, hashing, time: small things that every file needs.
#ifndef UTIL_H
#define UTIL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Exit statuses of every program; 0: all checks hold. STATUS_STOPPED: the trainer was told to stop
// and has saved a checkpoint, so it can be resumed.
enum { STATUS_CHECK_FAILED = 1, STATUS_USAGE = 2, STATUS_FAULT = 3, STATUS_STOPPED = 4 };

// For a mistake of the user (a bad option, an impossible rank count). All ranks end with status 2
// and one message, which must name a fix. Usually every rank finds the same mistake; a rank that
// finds one alone ends the others too.
_Noreturn void usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define REQUIRE(condition, ...) \
    do { \
        if (!(condition)) usage_error(__VA_ARGS__); \
    } while (0)

// For a fault while running (lost rank, full disk, wrong shapes, deadlock). All ranks end with
// status 3.
_Noreturn void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

// An open exercise, in the place of its solution (tools/student puts it there). The program goes
// on; at its end it lists the open exercises and fails. id is that of the marker above it,
// "01.02a".
#define TODO(id) exercise_open(id, __FILE__, __LINE__)
void exercise_open(const char *id, const char *file, int line);

// Ends all ranks; installed by the transport. Default: exit(status).
extern void (*end_all_ranks)(int status);
extern bool ranks_are_processes; // set together with end_all_ranks
// Seconds that a process waits for rank 0 to report a usage error. Once --timeout is known it is
// half of that. So if one rank is alone with its mistake, it reports it while the others still
// wait.
extern long usage_wait;

// The rank that messages name. Thread-local, because virtual ranks are threads. It is 0 of 1 until
// a transport sets it.
extern _Thread_local size_t this_rank, this_world_size;

static inline size_t ceil_div(size_t a, size_t b) { return a / b + (a % b != 0); }

// The one rule by which anything is cut: n things in `parts` contiguous parts. The first n % parts
// parts have one more, so all sizes work. Parts may be empty when n < parts.
typedef struct {
    size_t lo, hi;
} Range; // lo <= i < hi
Range shard_range(size_t n, size_t parts, size_t i);
static inline size_t range_size(Range r) { return r.hi - r.lo; }

// zeroed host memory outside the ledger (control data, checks); free() it
void *host_alloc(size_t bytes);
double now(void); // wall clock, seconds
// After this call SIGTERM, SIGINT and SIGUSR1 do not end the process. Launchers and batch systems
// send them as a warning. Only a second SIGINT ends it. stop_asked() returns the seconds since the
// first of these signals, and -1 before it.
void stop_catch(void);
double stop_asked(void);
size_t resident_most(void); // peak resident bytes of this process; 0: not known
#endif
