// runtime.cpp: the CUDA runtime without a GPU. The parts of this file are memory, streams, copies,
// kernels and the calls. README.md lists the rules that the runtime enforces.
#include "standin.h"
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <map>
#include <memory>
#include <sched.h>
#include <set>
#include <sys/mman.h>
#include <unistd.h>

namespace standin {

// The memory of all devices is one file without a name, mapped twice. The program gets addresses at
// `base`, where it can neither read nor write. Operations use the same bytes at `shadow`.
static const size_t ROOM = size_t(1) << 40; // bytes of addresses; no address is given out twice
static const size_t FREED = size_t(256)
                            << 20; // bytes of freed blocks that stay NaN; older blocks read as zero
static const size_t ZONE = 256;    // least number of bytes before, between and after blocks
static const int POISON = 0xff;    // each byte of new and freed memory; a real of such bytes is NaN
static const size_t QUEUE = 1024;  // operations that a stream holds back at most

struct Block {
    size_t bytes;
    int device;
    bool live;
};
struct Record {
    size_t stream;
    uint64_t count;
    Clock after;
    std::chrono::steady_clock::time_point time;
};
struct State {
    std::mutex mutex;
    bool begun = false, forked = false;
    int devices = 1, file = -1;
    char *base = nullptr, *shadow = nullptr;
    size_t end = ZONE, capacity = size_t(4) << 30;
    size_t kernels = 0, failing_kernel = 0;
    bool eager = false, check_all = false;
    bool lazy = true;               // CUDA_MODULE_LOADING was not EAGER at the first call
    std::set<std::string> loaded;   // kernels
    long patience = 300;            // seconds
    std::vector<size_t> used, most; // live bytes and their peak, by device
    std::deque<uintptr_t> freed;    // freed blocks that hold NaN, oldest first
    size_t freed_bytes = 0;
    std::map<uintptr_t, Block> blocks; // blocks of the device, also freed blocks
    std::map<uintptr_t, size_t> pinned;
    std::vector<Stream *> defaults;   // by device
    cudaError_t sticky = cudaSuccess; // the error that calls return after a kernel has failed
    struct sigaction other_handler;
};
static State &all = *new State; // never destroyed, because a thread may outlive main
std::vector<Stream *> &streams = *new std::vector<Stream *>;
static thread_local int device_now;
static thread_local cudaError_t last_error;
static thread_local const char *running_kernel;
static thread_local bool in_host_function;
static thread_local const Op *waiting; // the operation at which the last failed run_until() stopped

void fault(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    flockfile(stderr);
    fputs("stand-in: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    _exit(3);
}

// ---- memory ----

bool on_device(const void *p) {
    return all.base && static_cast<const char *>(p) >= all.base &&
           static_cast<const char *>(p) < all.base + ROOM;
}

char *reach(const void *p) {
    char *q = static_cast<char *>(const_cast<void *>(p));
    return on_device(p) ? all.shadow + (q - all.base) : q;
}

void device_file(const void *p, int *file, off_t *offset) {
    *file = all.file;
    *offset = static_cast<const char *>(p) - all.base;
}

std::string bus_id(int device) {
    char id[16];
    snprintf(id, sizeof id, "0000:%02X:00.0", unsigned(device + 1) & 0xff);
    return id;
}

// Returns the last block that begins at p or before p, or end() if no block does.
static std::map<uintptr_t, Block>::iterator find_block(const void *p) {
    auto b = all.blocks.upper_bound(uintptr_t(p));
    return b == all.blocks.begin() ? all.blocks.end() : --b;
}

// Returns a text for messages, such as "byte 40 of a block of 32 bytes".
static std::string where(const void *p) {
    auto b = find_block(p);
    if (b == all.blocks.end()) return "an address before all blocks";
    char text[100];
    snprintf(text, sizeof text, "byte %zu of a %sblock of %zu bytes",
             size_t(uintptr_t(p) - b->first), b->second.live ? "" : "freed ", b->second.bytes);
    return text;
}

Access use(const char *what, const void *p, size_t width, size_t pitch, size_t rows, bool write,
           int device) {
    if (rows == 0 || width == 0) return { { 0, 0, 0, 0 }, write };
    auto b = find_block(p);
    const size_t span = (rows - 1) * pitch + width;
    if (!on_device(p)) fault("%s: %p is not the address of device memory", what, p);
    if (b == all.blocks.end() || !b->second.live ||
        uintptr_t(p) + span > b->first + b->second.bytes)
        fault("%s: %zu bytes from %s", what, span, where(p).c_str());
    if (b->second.device != device)
        fault("%s: memory of device %d used on device %d", what, b->second.device, device);
    return { { uintptr_t(p), width, pitch, rows }, write };
}

bool overlap(const Range &a, const Range &b) {
    if (a.rows == 0 || b.rows == 0) return false;
    const uintptr_t a_end = a.lo + (a.rows - 1) * a.pitch + a.width,
                    b_end = b.lo + (b.rows - 1) * b.pitch + b.width;
    if (a.lo >= b_end || b.lo >= a_end) return false;
    if (a.pitch != b.pitch || a.rows == 1 || b.rows == 1) return true;
    const size_t apart = (b.lo > a.lo ? b.lo - a.lo : a.pitch - (a.lo - b.lo) % a.pitch) % a.pitch;
    // Both ranges are columns of one matrix.
    return apart < a.width || apart + b.width > a.pitch;
}

// Every 8 bytes between blocks are a signalling NaN of double. The first 4 of these bytes are a
// signalling NaN of float, and the last 4 are a quiet NaN. An operation that reads such bytes gets
// NaN. An operation that adds to a signalling NaN leaves a quiet NaN, which check_zone() finds.
static const struct Zone {
    uint64_t word[2 * ZONE / sizeof(uint64_t)];
    Zone() { std::fill(std::begin(word), std::end(word), 0x7ff4dead7fa0dead); }
} zone;
static void fill_zone(uintptr_t from, uintptr_t to) {
    memcpy(reach(reinterpret_cast<void *>(from)), &zone, to - from);
}
static void check_zone(uintptr_t from, uintptr_t to, const Block &b, ptrdiff_t offset,
                       const char *after) {
    const char *p = reach(reinterpret_cast<void *>(from)),
               *zone_bytes = reinterpret_cast<const char *>(&zone);
    if (memcmp(p, zone_bytes, to - from) == 0) return;
    const size_t i = size_t(std::mismatch(p, p + (to - from), zone_bytes).first - p);
    fault("%s: somebody wrote outside of a block of %zu bytes, at byte %td", after, b.bytes,
          ptrdiff_t(i & ~size_t(3)) + offset);
}
static void check_zones(std::map<uintptr_t, Block>::iterator b, const char *after) {
    const uintptr_t end = b->first + b->second.bytes;
    uintptr_t before = uintptr_t(all.base);
    auto other = b;
    if (b != all.blocks.begin()) --other, before = other->first + other->second.bytes;
    other = std::next(b);
    check_zone(before, b->first, b->second, ptrdiff_t(before - b->first), after);
    check_zone(end, other == all.blocks.end() ? uintptr_t(all.base) + all.end : other->first,
               b->second, ptrdiff_t(b->second.bytes), after);
}

static void check_all_zones(const char *after) {
    for (auto b = all.blocks.begin(); b != all.blocks.end(); ++b)
        if (b->second.live) check_zones(b, after);
}

static void on_segv(int, siginfo_t *info, void *) {
    if (on_device(info->si_addr) && running_kernel)
        fault("%s: a kernel reached into device memory by an address that was not among its "
              "arguments",
              running_kernel);
    if (on_device(info->si_addr))
        fault("the host reached into device memory, %s", where(info->si_addr).c_str());
    sigaction(SIGSEGV, &all.other_handler, nullptr);
}

size_t number(const char *variable, size_t otherwise) {
    const char *text = getenv(variable);
    return text && *text ? strtoull(text, nullptr, 0) : otherwise;
}

// Appends a line for each device that this process used to the file STANDIN_MEMORY_LOG. The line
// has the largest number of bytes of device memory that were live at one time.
static void write_most() {
    FILE *f = fopen(getenv("STANDIN_MEMORY_LOG"), "a");
    for (size_t i = 0; f && i < all.most.size(); i++)
        if (all.most[i]) fprintf(f, "device %zu: %zu bytes\n", i, all.most[i]);
    if (f) fclose(f);
}

static void begin() {
    all.begun = true;
    pthread_atfork(nullptr, nullptr, [] { all.forked = true; });
    all.devices = int(number("STANDIN_GPUS", 1));
    all.capacity = number("STANDIN_MEMORY", all.capacity);
    all.failing_kernel = number("STANDIN_KERNEL_ERROR", 0);
    all.eager = number("STANDIN_EAGER", 0);
    all.patience = long(number("STANDIN_PATIENCE", 300));
    all.check_all = number("STANDIN_CHECK", 0);
    const char *loading = getenv("CUDA_MODULE_LOADING");
    all.lazy = !loading || strcmp(loading, "EAGER") != 0;
    all.used.resize(size_t(all.devices));
    all.most.resize(size_t(all.devices));
    if (getenv("STANDIN_MEMORY_LOG")) atexit(write_most);
    all.defaults.resize(size_t(all.devices));
    all.file = memfd_create("device memory", MFD_CLOEXEC);
    void *base = MAP_FAILED, *shadow = MAP_FAILED;
    if (all.file >= 0 && ftruncate(all.file, off_t(ROOM)) == 0) {
        base = mmap(nullptr, ROOM, PROT_NONE, MAP_SHARED | MAP_NORESERVE, all.file, 0);
        shadow =
            mmap(nullptr, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, all.file, 0);
    }
    if (base == MAP_FAILED || shadow == MAP_FAILED)
        fault("no addresses for device memory: %s", strerror(errno));
    all.base = static_cast<char *>(base);
    all.shadow = static_cast<char *>(shadow);
    fill_zone(uintptr_t(base), uintptr_t(base) + all.end);
    struct sigaction ours = {};
    ours.sa_sigaction = on_segv;
    ours.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &ours, &all.other_handler);
}

// ---- streams ----

static Stream *new_stream(int device, bool blocking) {
    streams.push_back(new Stream{ streams.size(), device, blocking, 0, 0, {}, {} });
    return streams.back();
}

static Stream *default_stream(int device) {
    Stream *&s = all.defaults[size_t(device)];
    if (!s) s = new_stream(device, true);
    return s;
}

Stream *find_stream(cudaStream_t s) {
    if (!s) return default_stream(device_now);
    return std::find(streams.begin(), streams.end(), s) == streams.end() ? nullptr : s;
}

static uint64_t at(const Clock &c, size_t i) { return i < c.size() ? c[i] : 0; }
void set(Clock &c, size_t i, uint64_t count) {
    if (c.size() <= i) c.resize(i + 1);
    c[i] = std::max(c[i], count);
}
void join(Clock &c, const Clock &with) {
    for (size_t i = 0; i < with.size(); i++) set(c, i, with[i]);
}

// Calls fault() if op races with a pending operation. Two operations without an order between them
// race if one writes memory that the other reads or writes.
static void check_races(const Stream *s, const Op &op) {
    for (const Stream *t : streams) {
        if (!t || t == s) continue;
        for (size_t i = 0; i < t->pending.size(); i++)
            if (t->done + 1 + i > at(op.after, t->index))
                for (const Access &theirs : t->pending[i].uses)
                    for (const Access &ours : op.uses)
                        if ((ours.write || theirs.write) && overlap(ours.range, theirs.range))
                            fault("race: %s on one stream and %s on another use the same memory, "
                                  "and no event "
                                  "orders them",
                                  t->pending[i].name, op.name);
    }
}

void issue(Stream *s, Op op) {
    for (Stream *t : streams) // the default stream and blocking streams wait for each other
        if (t && t != s && t->device == s->device && t->blocking && s->blocking &&
            (t == all.defaults[size_t(s->device)] || s == all.defaults[size_t(s->device)]))
            join(s->after, t->after);
    op.after = s->after;
    check_races(s, op);
    s->pending.push_back(std::move(op));
    s->issued++;
    set(s->after, s->index, s->issued);
    if (all.eager) run_until(s->index, s->issued);
    else if (s->pending.size() > QUEUE) run_until(s->index, s->done + 1);
}

// Runs the operations of the stream up to number `count`, and the operations that they must follow.
// No other operation runs, so each operation runs as late as possible. Returns false while an
// operation waits for another rank.
bool run_until(size_t stream, uint64_t count) {
    Stream *s = streams[stream];
    while (s && s->done < count) {
        Op &op = s->pending.front();
        for (size_t t = 0; t < op.after.size(); t++)
            if (t != stream && !run_until(t, op.after[t])) return false;
        if (!op.run()) {
            waiting = &op;
            return false;
        }
        s->pending.pop_front();
        s->done++;
    }
    return true;
}

void pause(std::unique_lock<std::mutex> &lock, int turn) {
    lock.unlock();
    if (turn < 50) sched_yield();
    else usleep(50);
    lock.lock();
}

// Waits until operation `count` of the stream is done. If a GPU would wait for ever, or the wait
// takes longer than all.patience, this function ends the process with the reason.
cudaError_t wait_for(std::unique_lock<std::mutex> &lock, size_t stream, uint64_t count) {
    const auto begin = std::chrono::steady_clock::now();
    for (int turn = 0; !run_until(stream, count); turn++) {
        bool for_ever =
            std::chrono::steady_clock::now() - begin > std::chrono::seconds(all.patience);
        const std::string why = turn % 64 == 63 && waiting->why ? waiting->why(&for_ever) : "";
        if (!why.empty() && for_ever)
            fault("the host waits for ever for %s: %s", waiting->name, why.c_str());
        pause(lock, turn);
    }
    return all.sticky;
}

static cudaError_t wait_for_device(std::unique_lock<std::mutex> &lock, int device) {
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] && streams[i]->device == device) wait_for(lock, i, streams[i]->issued);
    return all.sticky;
}

// Returns whether operation `count` of the stream is done. If the operation is not done, query()
// runs the operation and still returns cudaErrorNotReady. So a program that relies on the operation
// having ended before its first query fails.
static cudaError_t query(size_t stream, uint64_t count) {
    if (all.sticky) return all.sticky;
    if (!streams[stream] || streams[stream]->done >= count) return cudaSuccess;
    run_until(stream, count);
    return cudaErrorNotReady;
}

Entry::Entry() : error(cudaErrorNotPermitted) {
    if (in_host_function) return;
    lock = std::unique_lock<std::mutex>(all.mutex);
    if (!all.begun) begin();
    error = all.forked         ? cudaErrorInitializationError // CUDA does not survive a fork
            : all.devices == 0 ? cudaErrorNoDevice
                               : all.sticky;
}
StreamEntry::StreamEntry(cudaStream_t stream) : s(error ? nullptr : find_stream(stream)) {
    if (!error && !s) error = cudaErrorInvalidResourceHandle;
}
int current_device() { return device_now; }

// ---- copies ----

// Place is the kind of memory on one side of a copy.
enum class Place { DEVICE, PINNED, PAGEABLE };
static Place place(const void *p) {
    if (on_device(p)) return Place::DEVICE;
    auto b = all.pinned.upper_bound(uintptr_t(p));
    return b != all.pinned.begin() && (--b, uintptr_t(p) < b->first + b->second) ? Place::PINNED
                                                                                 : Place::PAGEABLE;
}

static bool fits(cudaMemcpyKind kind, Place from, Place to) {
    return kind == cudaMemcpyDefault ||
           ((from == Place::DEVICE) == bool(kind & 2) && (to == Place::DEVICE) == bool(kind & 1));
}

static Access use_of(Place place, const char *name, const void *p, size_t width, size_t pitch,
                     size_t rows, bool write, int device) {
    if (place == Place::DEVICE) return use(name, p, width, pitch, rows, write, device);
    return { { uintptr_t(p), width, pitch, place == Place::PINNED ? rows : 0 }, write };
}

static bool in_use(const Range &range) {
    for (const Stream *s : streams)
        if (s)
            for (const Op &op : s->pending)
                for (const Access &a : op.uses)
                    if (overlap(a.range, range)) return true;
    return false;
}

// Copies memory. A copy from pageable memory to the device reads during the call. A copy to
// pageable memory ends before the call returns. Other memory is used when the copy runs on the
// stream. Until then a pinned target that no other operation uses holds poison.
static cudaError_t copy(const char *name, void *to, size_t to_pitch, const void *from,
                        size_t from_pitch, size_t width, size_t rows, cudaMemcpyKind kind,
                        cudaStream_t stream, bool wait) {
    StreamEntry on(stream);
    Stream *s = on.s;
    if (on.error) return on.error;
    if (rows > 1 && (width > to_pitch || width > from_pitch)) return cudaErrorInvalidPitchValue;
    const bool empty = width == 0 || rows == 0;
    const Place source = empty ? Place::PAGEABLE : place(from),
                target = empty ? Place::PAGEABLE : place(to);
    if (!empty && !fits(kind, source, target)) return cudaErrorInvalidValue;
    Op op = { name, {}, {} };
    op.uses.push_back(use_of(source, name, from, width, from_pitch, rows, false, s->device));
    op.uses.push_back(use_of(target, name, to, width, to_pitch, rows, true, s->device));
    if (to != from && overlap(op.uses[0].range, op.uses[1].range))
        fault("%s: source and target overlap", name);
    auto move = [=](char *out, size_t out_pitch, const char *in, size_t in_pitch) {
        for (size_t r = 0; r < rows && width; r++)
            memmove(out + r * out_pitch, in + r * in_pitch, width);
        return true;
    };
    char *out = reach(to);
    if (source == Place::PAGEABLE && target == Place::DEVICE) {
        auto staged = std::make_shared<std::vector<char>>(rows * width);
        move(staged->data(), width, static_cast<const char *>(from), from_pitch);
        op.run = [=] { return move(out, to_pitch, staged->data(), width); };
    } else {
        if (target == Place::PINNED && !in_use(op.uses[1].range))
            for (size_t r = 0; r < rows; r++) memset(out + r * to_pitch, POISON, width);
        op.run = [=] { return move(out, to_pitch, reach(from), from_pitch); };
    }
    issue(s, std::move(op));
    return wait || target == Place::PAGEABLE ? wait_for(on.lock, s->index, s->issued) : cudaSuccess;
}

static cudaError_t fill(void *p, int value, size_t bytes, cudaStream_t stream) {
    StreamEntry on(stream);
    if (on.error) return on.error;
    char *at = reach(p);
    issue(on.s, { "cudaMemset", { use("cudaMemset", p, bytes, true, on.s->device) }, [=] {
                     memset(at, value, bytes);
                     return true;
                 } });
    return cudaSuccess;
}

// ---- kernels ----

// Checks the arguments of a kernel, word by word. Calls fault() if a word is an address of host
// memory, or of device memory in no live block, because a GPU could crash. Addresses of live device
// memory are replaced by addresses at `shadow`.
static void check_words(const char *name, char *closure, size_t size) {
    const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
    for (size_t i = 0; i + sizeof(uintptr_t) <= size; i += sizeof(uintptr_t)) {
        uintptr_t word;
        memcpy(&word, closure + i, sizeof word);
        void *p = reinterpret_cast<void *>(word);
        if (on_device(p)) {
            auto b = find_block(p);
            if (b == all.blocks.end() || !b->second.live || word > b->first + b->second.bytes)
                fault("%s: a kernel was given %s", name, where(p).c_str());
            word = uintptr_t(reach(p));
            memcpy(closure + i, &word, sizeof word);
        } else if (word >= 0x10000 && word < uintptr_t(1) << 47 &&
                   msync(reinterpret_cast<void *>(word / page * page), 1, MS_ASYNC) == 0) {
            fault("%s: a kernel was given %p, an address of the host", name, p);
        }
    }
}

// Calls fault() if this launch loads the kernel while an operation of NCCL is pending. CUDA loads a
// kernel at its first launch, unless CUDA_MODULE_LOADING was EAGER at the first call. Loading may
// wait for all work on the GPU, and so for another rank.
static void load(const char *name) {
    if (!all.lazy || !all.loaded.insert(name).second) return;
    for (const Stream *s : streams)
        for (size_t i = 0; s && i < s->pending.size(); i++)
            if (s->pending[i].work)
                fault("%s: a kernel's first launch may wait for the GPU, and here for another "
                      "rank, by %s; "
                      "CUDA_MODULE_LOADING=EAGER",
                      name, s->pending[i].name);
}

static cudaError_t launch(cudaStream_t stream, const char *name, void (*run)(void *),
                          std::shared_ptr<void> closure, size_t size) {
    StreamEntry on(stream);
    if (on.error) return on.error;
    if (on.s->device != device_now) return cudaErrorInvalidResourceHandle;
    check_words(name, static_cast<char *>(closure.get()), size);
    load(name);
    const bool fails = ++all.kernels == all.failing_kernel;
    issue(on.s, { name, {}, [=] {
                     if (fails) all.sticky = cudaErrorLaunchFailure;
                     if (all.sticky) return true;
                     running_kernel = name;
                     run(closure.get());
                     running_kernel = nullptr;
                     if (all.check_all) check_all_zones(name);
                     return true;
                 } });
    return cudaSuccess;
}

static cudaError_t result(cudaError_t e) {
    if (e) last_error = e; // also cudaErrorNotReady, as on a GPU
    return e;
}
} // namespace standin

// ---- the calls ----

using namespace standin;
struct CUevent_st {
    bool timed;
    std::shared_ptr<Record> record;
};

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
    { cudaSuccess, "cudaSuccess", "no error" },
    { cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument" },
    { cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory" },
    { cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error" },
    { cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument" },
    { cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer", "invalid device pointer" },
    { cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected" },
    { cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal" },
    { cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle" },
    { cudaErrorNotReady, "cudaErrorNotReady", "device not ready" },
    { cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure" },
    { cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted" },
};
const char *cudaGetErrorName(cudaError_t error) {
    for (const auto &e : errors)
        if (e.error == error) return e.name;
    return "unrecognized error code";
}
const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &e : errors)
        if (e.error == error) return e.text;
    return "unrecognized error code";
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t e = last_error;
    last_error = all.sticky;
    return e;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }

cudaError_t cudaGetDeviceCount(int *count) {
    Entry entry;
    *count = entry.error == cudaErrorNoDevice ? 0 : all.devices;
    return result(entry.error);
}
static cudaError_t device_error(const Entry &entry, int device) {
    return entry.error                           ? entry.error
           : device < 0 || device >= all.devices ? cudaErrorInvalidDevice
                                                 : cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    Entry entry;
    const cudaError_t e = device_error(entry, device);
    if (!e) device_now = device;
    return result(e);
}
cudaError_t cudaGetDevice(int *device) {
    Entry entry;
    *device = device_now;
    return result(entry.error);
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    Entry entry;
    const cudaError_t e = device_error(entry, device);
    if (!e) {
        *p = { "Stand-in", all.capacity, 9, 0, 1 };
        snprintf(p->name, sizeof p->name, "Stand-in GPU %d", device);
    }
    return result(e);
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    Entry entry;
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9
             : attribute == cudaDevAttrMultiProcessorCount  ? 1
             : attribute == cudaDevAttrClockRate            ? 1000000
                                                            : 0;
    return result(device_error(entry, device));
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
    Entry entry;
    const cudaError_t e = device_error(entry, device);
    if (!e && length < 13) return result(cudaErrorInvalidValue);
    if (!e) snprintf(id, size_t(length), "%s", bus_id(device).c_str());
    return result(e);
}
cudaError_t cudaDeviceSynchronize(void) {
    Entry entry;
    if (entry.error) return result(entry.error);
    const cudaError_t e = wait_for_device(entry.lock, device_now);
    check_all_zones("cudaDeviceSynchronize");
    return result(e);
}

// Fills a freed block with NaN. While more than FREED bytes of freed blocks hold NaN, the oldest
// freed block gives its pages back.
static void bury(uintptr_t first, size_t bytes) {
    memset(reach(reinterpret_cast<void *>(first)), POISON, bytes);
    all.freed.push_back(first);
    all.freed_bytes += bytes;
    while (all.freed_bytes > FREED && all.freed.size() > 1) {
        const uintptr_t old = all.freed.front();
        const size_t size = all.blocks[old].bytes;
        const off_t lo = off_t((old - uintptr_t(all.base) + 4095) / 4096 * 4096);
        const off_t hi = off_t((old - uintptr_t(all.base) + size) / 4096 * 4096);
        if (hi > lo) fallocate(all.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, lo, hi - lo);
        all.freed.pop_front();
        all.freed_bytes -= size;
    }
}

cudaError_t cudaMalloc(void **p, size_t bytes) {
    Entry entry;
    if (entry.error) return result(entry.error);
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    size_t &used = all.used[size_t(device_now)];
    const size_t room = (bytes / ZONE + 2) * ZONE;
    if (bytes > all.capacity - used || room > ROOM - all.end)
        return result(cudaErrorMemoryAllocation);
    *p = all.base + all.end;
    memset(reach(*p), POISON, bytes);
    fill_zone(uintptr_t(*p) + bytes, uintptr_t(*p) + room);
    all.blocks[uintptr_t(*p)] = { bytes, device_now, true };
    used += bytes;
    all.most[size_t(device_now)] = std::max(all.most[size_t(device_now)], used);
    all.end += room;
    return cudaSuccess;
}
cudaError_t cudaFree(void *p) {
    Entry entry;
    if (entry.error || !p) return result(entry.error);
    auto b = all.blocks.find(uintptr_t(p));
    if (b == all.blocks.end()) return result(cudaErrorInvalidValue);
    if (!b->second.live)
        fault("cudaFree: %p, a block of %zu bytes, is free already", p, b->second.bytes);
    const cudaError_t e = wait_for_device(entry.lock, b->second.device);
    check_zones(b, "cudaFree");
    bury(b->first, b->second.bytes);
    b->second.live = false;
    all.used[size_t(b->second.device)] -= b->second.bytes;
    return result(e);
}
// Allocates at once, which CUDA permits.
cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t stream) {
    {
        StreamEntry on(stream);
        if (on.error) return result(on.error);
    }
    return cudaMalloc(p, bytes);
}
// From this call on the program may not use the block. Earlier operations of the stream still use
// the block.
cudaError_t cudaFreeAsync(void *p, cudaStream_t stream) {
    StreamEntry on(stream);
    if (on.error || !p) return result(on.error);
    auto b = all.blocks.find(uintptr_t(p));
    if (b == all.blocks.end()) return result(cudaErrorInvalidValue);
    if (!b->second.live)
        fault("cudaFreeAsync: %p, a block of %zu bytes, is free already", p, b->second.bytes);
    const Access whole = use("cudaFreeAsync", p, b->second.bytes, true, b->second.device);
    b->second.live = false;
    all.used[size_t(b->second.device)] -= b->second.bytes;
    issue(on.s, { "cudaFreeAsync", { whole }, [=] {
                     check_zones(b, "cudaFreeAsync");
                     bury(b->first, b->second.bytes);
                     return true;
                 } });
    return cudaSuccess;
}
// Each device has one pool, which keeps no memory.
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    Entry entry;
    if (entry.error) return result(entry.error);
    if (device < 0 || device >= all.devices) return result(cudaErrorInvalidDevice);
    *pool = reinterpret_cast<cudaMemPool_t>(uintptr_t(device) + 1);
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *) {
    Entry entry;
    if (entry.error) return result(entry.error);
    return result(pool && attribute == cudaMemPoolAttrReleaseThreshold ? cudaSuccess
                                                                       : cudaErrorInvalidValue);
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) {
    Entry entry;
    if (entry.error) return result(entry.error);
    return result(pool ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    Entry entry;
    if (entry.error) return result(entry.error);
    *total_bytes = all.capacity;
    *free_bytes = all.capacity - all.used[size_t(device_now)];
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t bytes) {
    Entry entry;
    if (entry.error) return result(entry.error);
    *p = bytes ? aligned_alloc(4096, (bytes + 4095) / 4096 * 4096) : nullptr;
    if (!bytes) return cudaSuccess;
    if (!*p) return result(cudaErrorMemoryAllocation);
    memset(*p, POISON, bytes);
    all.pinned[uintptr_t(*p)] = bytes;
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned int) { return cudaMallocHost(p, bytes); }
cudaError_t cudaFreeHost(void *p) {
    Entry entry;
    if (entry.error || !p) return result(entry.error);
    auto b = all.pinned.find(uintptr_t(p));
    if (b == all.pinned.end()) return result(cudaErrorInvalidValue);
    if (in_use({ b->first, b->second, b->second, 1 }))
        fault("cudaFreeHost: a copy from or to these %zu bytes is still to be made", b->second);
    all.pinned.erase(b);
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    return result(copy("cudaMemcpy", to, bytes, from, bytes, bytes, 1, kind, nullptr, true));
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return result(copy("cudaMemcpyAsync", to, bytes, from, bytes, bytes, 1, kind, stream, false));
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t rows, enum cudaMemcpyKind kind,
                              cudaStream_t stream) {
    return result(copy("cudaMemcpy2DAsync", to, to_pitch, from, from_pitch, width, rows, kind,
                       stream, false));
}
cudaError_t cudaMemset(void *p, int value, size_t bytes) {
    return result(fill(p, value, bytes, nullptr));
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream) {
    return result(fill(p, value, bytes, stream));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
    Entry entry;
    if (!entry.error) *stream = new_stream(device_now, !(flags & cudaStreamNonBlocking));
    return result(entry.error);
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    StreamEntry on(stream);
    if (on.error || !stream) return result(on.error ? on.error : cudaErrorInvalidResourceHandle);
    const cudaError_t e = wait_for(on.lock, stream->index, stream->issued);
    streams[stream->index] = nullptr;
    delete stream;
    return result(e);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    StreamEntry on(stream);
    return result(on.error ? on.error : wait_for(on.lock, on.s->index, on.s->issued));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    StreamEntry on(stream);
    return result(on.error ? on.error : query(on.s->index, on.s->issued));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
    StreamEntry on(stream);
    if (on.error || !event) return result(on.error ? on.error : cudaErrorInvalidResourceHandle);
    if (event->record) join(on.s->after, event->record->after);
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t f, void *data) {
    StreamEntry on(stream);
    if (on.error) return result(on.error);
    issue(on.s, { "cudaLaunchHostFunc", {}, [=] {
                     in_host_function = true;
                     f(data);
                     in_host_function = false;
                     return true;
                 } });
    return cudaSuccess;
}
void standin_launch(cudaStream_t stream, const char *name, void (*run)(void *),
                    void (*destroy)(void *), void *closure, size_t size) {
    result(launch(stream, name, run, std::shared_ptr<void>(closure, destroy), size));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    Entry entry;
    if (!entry.error) *event = new CUevent_st{ !(flags & cudaEventDisableTiming), nullptr };
    return result(entry.error);
}
cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    Entry entry;
    if (!event) return result(cudaErrorInvalidResourceHandle);
    delete event;
    return result(entry.error);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    StreamEntry on(stream);
    if (on.error || !event) return result(on.error ? on.error : cudaErrorInvalidResourceHandle);
    auto record = std::make_shared<Record>();
    issue(on.s, { "cudaEventRecord", {}, [=] {
                     record->time = std::chrono::steady_clock::now();
                     return true;
                 } });
    record->stream = on.s->index;
    record->count = on.s->issued;
    record->after = on.s->after;
    event->record = record;
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    Entry entry;
    if (entry.error || !event) return result(event ? entry.error : cudaErrorInvalidResourceHandle);
    return result(event->record ? query(event->record->stream, event->record->count) : cudaSuccess);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    Entry entry;
    if (entry.error || !event) return result(event ? entry.error : cudaErrorInvalidResourceHandle);
    return result(event->record ? wait_for(entry.lock, event->record->stream, event->record->count)
                                : cudaSuccess);
}
static bool finished(const Record &r) {
    return !streams[r.stream] || streams[r.stream]->done >= r.count;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    Entry entry;
    if (entry.error) return result(entry.error);
    if (!start || !end || !start->timed || !end->timed || !start->record || !end->record)
        return result(cudaErrorInvalidResourceHandle);
    if (!finished(*start->record) || !finished(*end->record)) return result(cudaErrorNotReady);
    *milliseconds =
        std::chrono::duration<float, std::milli>(end->record->time - start->record->time).count();
    return cudaSuccess;
}
