// standin.h: declarations shared by the parts of the stand-in, which replaces CUDA and NCCL without
// a GPU. A caller of a function that uses streams or the list of memory blocks holds the lock of an
// Entry.
#ifndef STANDIN_H
#define STANDIN_H
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>
#include "include/cuda_runtime.h"

namespace standin {

// Prints on stderr a mistake that a GPU would not always report, and ends the process with
// status 3.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fault(const char *format, ...);

// Returns an environment variable's value, or `otherwise` if the variable is unset or empty.
size_t number(const char *variable, size_t otherwise);

// ---- memory ----
// A Range has rows of `width` bytes, `pitch` bytes apart.
struct Range {
    uintptr_t lo;
    size_t width, pitch, rows;
};
struct Access {
    Range range;
    bool write;
};
bool on_device(const void *p);
// Returns the address that an operation uses for p. For device memory this is an address in a
// second mapping of the memory (runtime.cpp), and otherwise it is p itself.
char *reach(const void *p);
// The ranks of other processes need the results of the next two functions. bus_id() returns the
// name of a GPU. device_file() returns the descriptor of the file with the device memory, and the
// offset of p in this file.
std::string bus_id(int device);
void device_file(const void *p, int *file, off_t *offset);
// Calls fault() unless the range lies in one live block of the device.
Access use(const char *what, const void *p, size_t width, size_t pitch, size_t rows, bool write,
           int device);
inline Access use(const char *what, const void *p, size_t bytes, bool write, int device) {
    return use(what, p, bytes, bytes, 1, write, device);
}

bool overlap(const Range &a, const Range &b);

// ---- numbers of 16 bits ----
// fraction: the number of bits of the fraction. least: the exponent of the least normal number. The
// conversions follow the definition of IEEE 754. They share no code with common/tensor/storage.h,
// because the tests compare the two.
struct Format {
    int fraction, least;
};
const Format BF16 = { 7, -126 }, FP16 = { 10, -14 };
float widened(Format f, uint16_t h);
uint16_t rounded(Format f, float x); // to the nearest value, ties to even

// ---- streams ----
// clock[i] is the number of operations of stream i that must run first. Operations have no other
// order.
using Clock = std::vector<uint64_t>;
struct Op {
    const char *name;
    std::vector<Access> uses;  // empty for a kernel, whose accesses are unknown
    std::function<bool()> run; // returns false while the operation waits for another rank
    // Returns why the operation waits. Sets *for_ever if the wait cannot end.
    std::function<std::string(bool *for_ever)> why = {};
    void *work = nullptr; // the struct Work of an NCCL operation, else null
    Clock after = {};
};
} // namespace standin

struct CUstream_st {
    size_t index;
    int device;
    bool blocking; // waits for the default stream, which waits for this stream
    uint64_t issued, done;
    standin::Clock after;            // the operations before the stream's next operation
    std::deque<standin::Op> pending; // operations done + 1 ... issued
};

namespace standin {
using Stream = CUstream_st;
extern std::vector<Stream *> &streams; // by index; null once destroyed

Stream *find_stream(cudaStream_t s); // null: there is no such stream
void issue(Stream *s, Op op);
void set(Clock &c, size_t stream, uint64_t count);
void join(Clock &c, const Clock &with);
bool run_until(size_t stream, uint64_t count); // false: an operation waits for another rank
cudaError_t wait_for(std::unique_lock<std::mutex> &lock, size_t stream, uint64_t count);

// Entry begins most calls. Entry takes the lock and finds the errors that any call may return.
struct Entry {
    std::unique_lock<std::mutex> lock;
    cudaError_t error;
    Entry();
};
struct StreamEntry : Entry {
    Stream *s;
    explicit StreamEntry(cudaStream_t stream);
};
void pause(std::unique_lock<std::mutex> &lock,
           int turn); // lets other threads run while this thread waits
int current_device();
} // namespace standin
#endif
