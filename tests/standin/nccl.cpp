// nccl.cpp: NCCL without a GPU, between the processes and threads of one machine.
//
// The members of a communicator share a board. A board is a file without a name, which the other
// members open through /proc. A sending rank posts on the board the place of its message in its
// device memory. The receiver copies the message from that place. Nothing is sent before the
// receiver arrives, so a buffer changed too early is noticed. Sums run in falling order of the
// ranks, so that a test notices a program that depends on rising order.
#include "include/nccl.h"
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include "standin.h"

using namespace standin;

// ---- boards ----

enum Kind { MESSAGE, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE };
struct Message {
    int kind, type, op, root;
    uint64_t count;
    off_t offset; // offset in the sender's device memory
};
struct Channel { // messages from one rank to another, one at a time
    std::atomic<uint64_t> posted, taken;
    std::atomic<bool> wanted; // the receiver waits for a message that is not posted
    Message message;
};
struct Member {
    std::atomic<bool> here, gone; // here: the member has joined. gone: the member has left
    pid_t process;
    int memory; // the descriptor of the file with the member's device memory
    char gpu[64];
    // splits: the number of the rank's calls of ncclCommSplit. boards: the number of the last of
    // these calls for which the rank made a board.
    std::atomic<uint64_t> splits, boards;
    struct {
        int color, key, board;
    } split[2]; // arguments and boards of the rank's last two calls of ncclCommSplit
};
struct Board {
    std::atomic<int> size, here, ready;
    std::atomic<int> error; // the first error, an ncclResult_t; all members read this field
    std::atomic<bool> said;
    char text[400];
    // The channels follow the members: first those of messages, then those of collectives.
    Member member[];
};

struct ncclComm {
    Board *board;
    int file, rank, size, device;
    bool blocking;
    std::string name;
    std::vector<int> memory, process; // file descriptors of each member's memory and process
    enum { SPLITTING, JOINING, OPENING, READY } state;
    ncclComm *parent; // while splitting
    ncclComm **sub;
    uint64_t split;
    std::vector<std::shared_ptr<std::function<void()>>>
        launches; // each starts operations once ncclCommGetAsyncError is called
    Clock last;   // the communicator's last operation
    std::string text;

    Channel &channel(int kind, int from, int to) const {
        Channel *first = reinterpret_cast<Channel *>(board->member + size);
        return first[(size_t(kind != MESSAGE) * size_t(size) + size_t(from)) * size_t(size) +
                     size_t(to)];
    }
};

static std::vector<ncclComm *> &comms = *new std::vector<ncclComm *>;
static thread_local std::string last_text;

__attribute__((format(printf, 3, 4))) static ncclResult_t
refuse(ncclComm *comm, ncclResult_t result, const char *format, ...) {
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    last_text = text;
    if (comm) comm->text = text;
    return result;
}

// Reports the communicator's first error to all members.
static void fail(ncclComm *comm, ncclResult_t result, const std::string &text) {
    Board *b = comm->board;
    if (b->said.exchange(true)) return;
    snprintf(b->text, sizeof b->text, "%s", text.c_str());
    b->error = result;
}

static ncclResult_t error_of(ncclComm *comm) {
    const ncclResult_t error = comm->board ? ncclResult_t(comm->board->error.load()) : ncclSuccess;
    return error ? refuse(comm, error, "%s", comm->board->text) : ncclSuccess;
}

// BOARD_BYTES is enough for 3,000 ranks. A page of the board takes memory only once the page is
// used.
static const off_t BOARD_BYTES = off_t(1) << 30;
static int new_board() {
    const int file = memfd_create("communicator", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, BOARD_BYTES) != 0)
        fault("no memory for a communicator: %s", strerror(errno));
    return file;
}

static ncclResult_t open_board(ncclComm *comm, pid_t process, int file) {
    char path[64];
    const size_t n = size_t(comm->size),
                 bytes = sizeof(Board) + n * sizeof(Member) + 2 * n * n * sizeof(Channel);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", int(process), file);
    comm->file = open(path, O_RDWR | O_CLOEXEC);
    if (comm->file < 0 || off_t(bytes) > BOARD_BYTES)
        return refuse(comm, ncclSystemError, "%s: %s; check that the rank with the unique id runs",
                      path, strerror(errno));
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, comm->file, 0);
    if (p == MAP_FAILED) return refuse(comm, ncclSystemError, "%s: %s", path, strerror(errno));
    comm->board = static_cast<Board *>(p);
    int none = 0;
    if (!comm->board->size.compare_exchange_strong(none, comm->size) && none != comm->size) {
        comm->board = nullptr; // the board has another number of ranks: end() must not use it
        return refuse(comm, ncclInvalidArgument, "%d ranks here, %d ranks elsewhere", comm->size,
                      none);
    }
    Member &me = comm->board->member[comm->rank];
    if (me.here.exchange(true))
        return refuse(comm, ncclInvalidUsage, "there are two ranks %d", comm->rank);
    off_t offset;
    const char *host = getenv("NCCL_HOSTID"); // NCCL treats another NCCL_HOSTID as another machine
    snprintf(me.gpu, sizeof me.gpu, "%s %.40s", bus_id(comm->device).c_str(), host ? host : "");
    me.process = getpid();
    device_file(&offset, &me.memory, &offset);
    comm->board->here++;
    comm->state = ncclComm::JOINING;
    return ncclSuccess;
}

// Opens the memory of all members, after a check that no two members have the same GPU. The board
// lists the GPUs, so every rank reads the same error, even after other rejected ranks are gone.
static ncclResult_t open_members(ncclComm *comm) {
    char path[64];
    for (int r = 0; r < comm->size; r++)
        for (int q = 0; q < r; q++)
            if (!strcmp(comm->board->member[r].gpu, comm->board->member[q].gpu))
                return refuse(comm, ncclInvalidUsage,
                              "Duplicate GPU detected : rank %d and rank %d both on CUDA "
                              "device %s",
                              r, q, comm->board->member[r].gpu);
    for (int r = 0; r < comm->size; r++) {
        const Member &m = comm->board->member[r];
        snprintf(path, sizeof path, "/proc/%d/fd/%d", int(m.process), m.memory);
        comm->memory.push_back(open(path, O_RDONLY | O_CLOEXEC));
        comm->process.push_back(int(syscall(SYS_pidfd_open, m.process, 0)));
        if (comm->memory.back() < 0 || comm->process.back() < 0)
            return refuse(comm, ncclRemoteError, "rank %d (process %d) is gone", r, int(m.process));
    }
    comm->board->ready++;
    comm->state = ncclComm::OPENING;
    return ncclSuccess;
}

// Makes a new communicator from the arguments of all members of the old communicator. The members
// of the new communicator have the same color, and are in the order of their keys.
static ncclResult_t split_board(ncclComm *comm) {
    Member *members = comm->parent->board->member;
    const size_t turn = comm->split % 2;
    const int color = members[comm->parent->rank].split[turn].color;
    std::vector<std::pair<int, int>> order; // key, rank
    for (int r = 0; r < comm->parent->size; r++) {
        if (members[r].splits < comm->split) return ncclInProgress;
        if (members[r].split[turn].color == color)
            order.push_back({ members[r].split[turn].key, r });
    }
    std::sort(order.begin(), order.end());
    for (size_t i = 0; i < order.size(); i++)
        if (order[i].second == comm->parent->rank) comm->rank = int(i);
    comm->size = int(order.size());
    Member &leader = members[order[0].second];
    if (comm->rank == 0 && leader.boards < comm->split) {
        leader.split[turn].board = new_board();
        leader.boards = comm->split;
    }
    if (leader.boards < comm->split) return ncclInProgress;
    return open_board(comm, leader.process, leader.split[turn].board);
}

static ncclResult_t step(ncclComm *comm) {
    ncclResult_t result = ncclSuccess;
    if (comm->state == ncclComm::SPLITTING) result = split_board(comm);
    if (!result && comm->state == ncclComm::JOINING)
        result = comm->board->here < comm->size ? ncclInProgress : open_members(comm);
    if (!result && comm->state == ncclComm::OPENING) {
        if (comm->board->ready < comm->size)
            return ncclInProgress; // other members still open this member's memory
        comm->state = ncclComm::READY;
    }
    return result ? result : error_of(comm);
}

static void forget(ncclComm *comm) {
    comms.erase(std::remove(comms.begin(), comms.end(), comm), comms.end());
    for (int file : comm->memory) close(file);
    for (int file : comm->process) close(file);
    if (comm->file >= 0) close(comm->file);
    delete comm; // the board's few pages stay mapped
}

// ---- operations ----

struct Task {
    Kind kind;
    bool send; // true for ncclSend; false for ncclRecv and for collectives
    const char *name;
    const void *in;
    void *out;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root; // the root, or the other rank of a message
    ncclComm *comm;
    cudaStream_t stream;
};
struct Transfer {
    size_t task;
    bool send, posted, done;
    // lost: the peer has left. failed: the communicator has failed. Both are set before the channel
    // is read.
    bool lost, failed;
    int peer;
    const char *from;
    size_t bytes;
    uint64_t number;
    std::vector<char> got;
};

static size_t size_of(ncclDataType_t type) {
    static const size_t sizes[ncclNumTypes] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };
    return sizes[type];
}

static std::string describe(const Message &m) {
    static const char *const types[ncclNumTypes] = { "int8",     "uint8",      "int32",
                                                     "uint32",   "int64",      "uint64",
                                                     "float16",  "float32",    "float64",
                                                     "bfloat16", "float8e4m3", "float8e5m2" };
    static const char *const kinds[] = { "message",    "all-reduce", "reduce-scatter",
                                         "all-gather", "broadcast",  "reduce" };
    static const char *const ops[] = { "sum", "product", "maximum", "minimum", "average" };
    char text[160];
    int n =
        snprintf(text, sizeof text, "%s of %zu %s", kinds[m.kind], size_t(m.count), types[m.type]);
    if (m.op >= 0) n += snprintf(text + n, sizeof text - size_t(n), ", %s", ops[m.op]);
    if (m.root >= 0) snprintf(text + n, sizeof text - size_t(n), ", root %d", m.root);
    return text;
}

static Message message_of(const Task &t) {
    const bool reduces = t.kind == ALL_REDUCE || t.kind == REDUCE_SCATTER || t.kind == REDUCE;
    return {
        t.kind,  t.type, reduces ? t.op : -1, t.kind == BROADCAST || t.kind == REDUCE ? t.root : -1,
        t.count, 0
    };
}

template <class T>
static void reduce_as(char *out, const std::vector<const char *> &parts, size_t count,
                      ncclRedOp_t op) {
    for (size_t i = 0; i < count; i++) {
        T sum = reinterpret_cast<const T *>(parts.back())[i];
        for (size_t r = parts.size() - 1; r-- > 0;) {
            const T x = reinterpret_cast<const T *>(parts[r])[i];
            sum = op == ncclProd  ? T(sum * x)
                  : op == ncclMax ? std::max(sum, x)
                  : op == ncclMin ? std::min(sum, x)
                                  : T(sum + x);
        }
        reinterpret_cast<T *>(out)[i] = op == ncclAvg ? T(sum / T(parts.size())) : sum;
    }
}
// NCCL's ring and tree kernels round a sum of 16-bit numbers after each addition.
static void reduce_halves(Format f, char *out, const std::vector<const char *> &parts, size_t count,
                          ncclRedOp_t op) {
    const auto element = [&](size_t r, size_t i) {
        return reinterpret_cast<const uint16_t *>(parts[r])[i];
    };
    if (op != ncclSum && op != ncclMax) fault("no such operation on 16-bit numbers here");
    for (size_t i = 0; i < count; i++) {
        uint16_t sum = element(parts.size() - 1, i);
        for (size_t r = parts.size() - 1; r-- > 0;) {
            const float x = widened(f, element(r, i)), y = widened(f, sum);
            sum = rounded(f, op == ncclSum ? y + x : std::max(y, x));
        }
        reinterpret_cast<uint16_t *>(out)[i] = sum;
    }
}
static void reduce(char *out, const std::vector<const char *> &parts, size_t count,
                   ncclDataType_t type, ncclRedOp_t op) {
    switch (type) {
    case ncclInt8: return reduce_as<int8_t>(out, parts, count, op);
    case ncclUint8: return reduce_as<uint8_t>(out, parts, count, op);
    case ncclInt32: return reduce_as<int32_t>(out, parts, count, op);
    case ncclUint32: return reduce_as<uint32_t>(out, parts, count, op);
    case ncclInt64: return reduce_as<int64_t>(out, parts, count, op);
    case ncclUint64: return reduce_as<uint64_t>(out, parts, count, op);
    case ncclFloat32: return reduce_as<float>(out, parts, count, op);
    case ncclFloat64: return reduce_as<double>(out, parts, count, op);
    case ncclFloat16: return reduce_halves(FP16, out, parts, count, op);
    case ncclBfloat16: return reduce_halves(BF16, out, parts, count, op);
    default: fault("no sums of 8-bit numbers here");
    }
}

// Work holds the operations of one group on one stream. All operations progress at the same time,
// except those on the same channel.
struct Work {
    std::vector<Task> tasks;
    std::vector<Transfer> transfers;
    bool counted = false, dropped = false;
    unsigned turns = 0;

    bool has(const ncclComm *comm) const {
        return std::any_of(tasks.begin(), tasks.end(),
                           [=](const Task &t) { return t.comm == comm; });
    }
    void add(const Task &t);
    bool run();
    void look_for_lost();
    void move(Transfer &x);
    void finish(size_t task);
    std::string why(bool *for_ever) const;
};

// Adds the messages of one task. A collective exchanges a message with every other rank, at least
// to check that all ranks make the same call. A point-to-point message has one other rank.
void Work::add(const Task &t) {
    const bool one_to_all = t.kind == BROADCAST, all_to_one = t.kind == REDUCE,
               root = t.comm->rank == t.root;
    tasks.push_back(t);
    const size_t part = t.count * size_of(t.type);
    const char *in = static_cast<const char *>(t.in);
    for (int r = 0; r < t.comm->size; r++) {
        if (t.kind == MESSAGE ? r != t.root : r == t.comm->rank) continue;
        const bool sends = (!one_to_all || root) && (!all_to_one || r == t.root);
        const bool gets = (!one_to_all || r == t.root) && (!all_to_one || root);
        const char *from = t.kind == REDUCE_SCATTER ? in + size_t(r) * part : in;
        if (t.kind != MESSAGE || t.send)
            transfers.push_back({ tasks.size() - 1,
                                  true,
                                  false,
                                  false,
                                  false,
                                  false,
                                  r,
                                  sends ? from : nullptr,
                                  part,
                                  0,
                                  {} });
        if (t.kind != MESSAGE || !t.send)
            transfers.push_back({ tasks.size() - 1,
                                  false,
                                  false,
                                  false,
                                  false,
                                  false,
                                  r,
                                  nullptr,
                                  gets ? part : 0,
                                  0,
                                  {} });
    }
}

void Work::move(Transfer &x) {
    const Task &t = tasks[x.task];
    ncclComm *comm = t.comm;
    Channel &c = x.send ? comm->channel(t.kind, comm->rank, x.peer)
                        : comm->channel(t.kind, x.peer, comm->rank);
    if (x.send && !x.posted && c.posted == c.taken) {
        int file;
        c.message = message_of(t);
        if (x.from) device_file(x.from, &file, &c.message.offset);
        x.posted = true;
        x.number = c.posted + 1;
        c.posted = x.number;
    }
    if (x.send) {
        x.done = x.posted && c.taken >= x.number;
    } else if (c.posted == c.taken) {
        c.wanted = true;
    } else {
        const std::string want = describe(message_of(t)), got = describe(c.message);
        if (want != got)
            return fail(comm, ncclInvalidUsage,
                        "ranks " + std::to_string(comm->rank) + " and " + std::to_string(x.peer) +
                            " of " + comm->name + ": " + want + " meets " + got);
        x.got.resize(x.bytes);
        for (size_t at = 0; at < x.bytes;) {
            const ssize_t n = pread(comm->memory[size_t(x.peer)], &x.got[at], x.bytes - at,
                                    c.message.offset + off_t(at));
            if (n <= 0)
                return fail(comm, ncclRemoteError, "the memory of another rank cannot be read");
            at += size_t(n);
        }
        c.wanted = false;
        c.taken++;
        x.done = true;
    }
}

// Finds ranks that have left. A rank may leave, or its communicator may fail, after the rank has
// posted all its messages. So Work looks for lost ranks before Work reads the channels. A lost
// rank's message that this read does not find never arrives.
void Work::look_for_lost() {
    for (Transfer &x : transfers) {
        const ncclComm *comm = tasks[x.task].comm;
        pollfd process = { comm->process[size_t(x.peer)], POLLIN, 0 };
        x.lost = comm->board->member[x.peer].gone || poll(&process, 1, 0) > 0;
        x.failed = comm->board->error != ncclSuccess;
    }
}

bool Work::run() {
    static size_t works, failing = number("STANDIN_NCCL_ERROR", 0),
                         dying = number("STANDIN_NCCL_DIE", 0);
    if (dropped) return true;
    if (!counted) {
        counted = true;
        if (++works == dying) raise(SIGKILL);
        if (works == failing) fail(tasks[0].comm, ncclSystemError, "an operation was made to fail");
    }
    bool done = true;
    if (++turns % 16 == 0) look_for_lost();
    for (size_t i = 0; i < transfers.size(); i++) {
        Transfer &x = transfers[i];
        bool first = !x.done; // whether x is the first unfinished transfer of its channel
        for (size_t j = 0; j < i && tasks.size() > 1 && first; j++) {
            const Transfer &y = transfers[j];
            const Task &ours = tasks[x.task], &theirs = tasks[y.task];
            first = y.done || y.send != x.send || y.peer != x.peer || theirs.comm != ours.comm ||
                    (theirs.kind == MESSAGE) != (ours.kind == MESSAGE);
        }
        if (first) move(x);
        done = done && x.done;
    }
    for (const Transfer &x : transfers) {
        ncclComm *comm = tasks[x.task].comm;
        if (x.lost && !x.done)
            fail(comm, ncclRemoteError,
                 "rank " + std::to_string(x.peer) + " of " + comm->name + " (process " +
                     std::to_string(comm->board->member[x.peer].process) + ") is gone");
    }
    for (size_t i = 0; done && i < tasks.size(); i++) finish(i);
    return done;
}

std::string Work::why(bool *for_ever) const {
    for (const Transfer &x : transfers)
        if (x.failed && !x.done) return *for_ever = true, tasks[x.task].comm->board->text;
    for (const Transfer &x : transfers)
        if (!x.done) {
            const Task &t = tasks[x.task];
            return describe(message_of(t)) + ", rank " + std::to_string(t.comm->rank) + " of " +
                   t.comm->name + ": rank " + std::to_string(x.peer) + " does not come";
        }
    return "";
}

void Work::finish(size_t task) {
    const Task &t = tasks[task];
    const size_t bytes = t.count * size_of(t.type), me = size_t(t.comm->rank);
    char *out = reach(t.out);
    std::vector<const char *> parts(size_t(t.comm->size), nullptr);
    if (t.in) parts[me] = reach(t.in) + (t.kind == REDUCE_SCATTER ? me * bytes : 0);
    for (const Transfer &x : transfers)
        if (x.task == task && !x.send && x.bytes) parts[size_t(x.peer)] = x.got.data();
    if (t.kind == ALL_REDUCE || t.kind == REDUCE_SCATTER ||
        (t.kind == REDUCE && t.root == t.comm->rank))
        reduce(out, parts, t.count, t.type, t.op);
    if (t.kind == ALL_GATHER)
        for (size_t r = 0; r < parts.size(); r++) memmove(out + r * bytes, parts[r], bytes);
    if ((t.kind == BROADCAST || (t.kind == MESSAGE && !t.send)) && bytes)
        memmove(out, parts[size_t(t.root)], bytes);
}

static std::vector<Access> uses_of(const Task &t) {
    const size_t bytes = t.count * size_of(t.type), all = bytes * size_t(t.comm->size);
    const size_t me = size_t(t.comm->rank) * bytes;
    const bool root = t.comm->rank == t.root;
    const bool reads = t.kind == MESSAGE ? t.send : t.kind != BROADCAST || root;
    const bool writes = t.kind == MESSAGE ? !t.send : t.kind != REDUCE || root;
    std::vector<Access> uses;
    if (reads)
        uses.push_back(
            use(t.name, t.in, t.kind == REDUCE_SCATTER ? all : bytes, false, t.comm->device));
    if (writes)
        uses.push_back(
            use(t.name, t.out, t.kind == ALL_GATHER ? all : bytes, true, t.comm->device));
    const char *in = static_cast<const char *>(t.in), *out = static_cast<const char *>(t.out);
    if (uses.size() == 2 && overlap(uses[0].range, uses[1].range) &&
        in != (t.kind == ALL_GATHER       ? out + me
               : t.kind == REDUCE_SCATTER ? out - me
                                          : out))
        fault("%s: input and output overlap, and not as they do in place", t.name);
    return uses;
}

static void start(const std::vector<Task> &tasks) {
    std::vector<Stream *> on;
    for (const Task &t : tasks) {
        Stream *s = find_stream(t.stream);
        if (std::find(on.begin(), on.end(), s) == on.end()) on.push_back(s);
        join(s->after, t.comm->last);
    }
    for (Stream *s : on) {
        auto work = std::make_shared<Work>();
        std::vector<Access> uses;
        // A message is compared with uses[0] to uses[apart - 1], because two messages of a group
        // must not use the same memory.
        size_t apart = 0;
        for (const Task &t : tasks)
            if (find_stream(t.stream) == s) {
                work->add(t);
                for (const Access &a : uses_of(t)) {
                    for (size_t i = 0; i < apart && t.kind == MESSAGE; i++)
                        if ((a.write || uses[i].write) && overlap(a.range, uses[i].range))
                            fault("%s: two messages of a group use the same memory", t.name);
                    uses.push_back(a);
                }
                if (t.kind == MESSAGE) apart = uses.size();
            }
        const char *name = work->tasks.size() == 1 ? work->tasks[0].name : "a group of NCCL";
        issue(s, { name, uses, [work] { return work->run(); },
                   [work](bool *e) { return work->why(e); }, work.get() });
        for (const Task &t : work->tasks) set(t.comm->last, s->index, s->issued);
    }
}

// ---- progress ----

// Returns whether another rank waits for this rank. A GPU runs without the host, but the thread of
// keep_going() runs operations only if another rank needs them.
static bool is_needed(const ncclComm *comm) {
    for (int kind = MESSAGE; kind <= ALL_REDUCE && comm->state == ncclComm::READY; kind++)
        for (int r = 0; r < comm->size; r++) {
            const Channel &in = comm->channel(kind, r, comm->rank),
                          &out = comm->channel(kind, comm->rank, r);
            if (in.posted != in.taken || (out.wanted && out.posted == out.taken)) return true;
        }
    return false;
}

static void go_on(const ncclComm *comm) {
    for (size_t i = 0; i < streams.size(); i++)
        for (size_t k = 0; streams[i] && k < streams[i]->pending.size(); k++) {
            const Work *work = static_cast<Work *>(streams[i]->pending[k].work);
            if (!work || !work->has(comm)) continue;
            run_until(i, streams[i]->done + k + 1);
            break;
        }
}

static void keep_going() {
    static bool running;
    if (running) return;
    running = true;
    std::thread([] {
        for (;;) {
            usleep(500);
            Entry entry;
            for (size_t i = 0; i < comms.size(); i++)
                if (is_needed(comms[i])) go_on(comms[i]);
            if (!comms.empty()) continue;
            running = false;
            return;
        }
    }).detach();
}

// ---- the calls ----

static thread_local struct {
    int depth;
    ncclResult_t error;
    std::vector<Task> tasks;
    std::vector<ncclComm *> begun;
} group;

static ncclResult_t cuda_error(const Entry &entry) {
    return refuse(nullptr, ncclUnhandledCudaError, "CUDA: %s", cudaGetErrorString(entry.error));
}
static bool in_progress(const ncclComm *comm) {
    return comm->state != ncclComm::READY || !comm->launches.empty();
}

static ncclResult_t check_comm(ncclComm *comm) {
    if (std::find(comms.begin(), comms.end(), comm) == comms.end())
        return refuse(nullptr, ncclInvalidArgument, "there is no such communicator");
    if (in_progress(comm))
        return refuse(comm, ncclInvalidArgument,
                      "the communicator is used before its last call is through; "
                      "ncclCommGetAsyncError says when that is");
    return comm->board ? error_of(comm) : ncclSuccess;
}

// A nonblocking communicator starts no operation before ncclCommGetAsyncError is called.
static ncclResult_t launch(const std::vector<Task> &tasks) {
    const bool later =
        std::any_of(tasks.begin(), tasks.end(), [](const Task &t) { return !t.comm->blocking; });
    if (!later) return start(tasks), ncclSuccess;
    auto once = std::make_shared<std::function<void()>>([=] { start(tasks); });
    for (const Task &t : tasks)
        if (t.comm->launches.empty() || t.comm->launches.back() != once)
            t.comm->launches.push_back(once);
    return ncclInProgress;
}

static ncclResult_t call(const Task &t) {
    Entry entry;
    if (entry.error) return cuda_error(entry);
    ncclResult_t error = check_comm(t.comm);
    const Stream *s = find_stream(t.stream);
    if (!error && (t.type < 0 || t.type >= ncclNumTypes || t.op < 0 || t.op >= ncclNumOps))
        error = refuse(t.comm, ncclInvalidArgument, "%s: no such type or operation", t.name);
    if (!error && (t.root < 0 || t.root >= t.comm->size))
        error =
            refuse(t.comm, ncclInvalidArgument, "%s: rank %d of %d", t.name, t.root, t.comm->size);
    if (!error && (!s || s->device != t.comm->device))
        error = refuse(t.comm, ncclInvalidArgument, "%s: the stream is of another GPU, or gone",
                       t.name);
    if (!error && t.kind == MESSAGE && t.root == t.comm->rank && group.depth == 0)
        error = refuse(t.comm, ncclInvalidUsage, "%s to or from the rank itself outside of a group",
                       t.name);
    if (error) group.error = error;
    if (error || (t.count == 0 && t.kind != MESSAGE)) return error;
    if (group.depth == 0) return launch({ t });
    group.tasks.push_back(t);
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return call({ ALL_REDUCE, false, "ncclAllReduce", in, out, count, type, op, 0, comm, stream });
}
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return call(
        { REDUCE_SCATTER, false, "ncclReduceScatter", in, out, count, type, op, 0, comm, stream });
}
ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    return call(
        { ALL_GATHER, false, "ncclAllGather", in, out, count, type, ncclSum, 0, comm, stream });
}
ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    return call(
        { BROADCAST, false, "ncclBroadcast", in, out, count, type, ncclSum, root, comm, stream });
}
ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
    return call({ REDUCE, false, "ncclReduce", in, out, count, type, op, root, comm, stream });
}
ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int to, ncclComm_t comm,
                      cudaStream_t stream) {
    return call({ MESSAGE, true, "ncclSend", in, nullptr, count, type, ncclSum, to, comm, stream });
}
ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int from, ncclComm_t comm,
                      cudaStream_t stream) {
    return call(
        { MESSAGE, false, "ncclRecv", nullptr, out, count, type, ncclSum, from, comm, stream });
}

// Starts the communicators, and waits for the blocking communicators.
static ncclResult_t begin_together(Entry &entry, const std::vector<ncclComm *> &begun) {
    ncclResult_t result = ncclSuccess;
    for (int turn = 0;; turn++) {
        bool wait = false;
        for (ncclComm *c : begun) {
            const ncclResult_t now = step(c);
            wait = wait || (now == ncclInProgress && c->blocking);
            if (now && result != now && (result == ncclSuccess || result == ncclInProgress))
                result = now;
        }
        if (!wait) break;
        result = ncclSuccess;
        pause(entry.lock, turn);
    }
    return result;
}

ncclResult_t ncclGroupStart(void) { return group.depth++, ncclSuccess; }
ncclResult_t ncclGroupEnd(void) {
    Entry entry;
    if (entry.error) return cuda_error(entry);
    if (group.depth == 0)
        return refuse(nullptr, ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--group.depth > 0) return ncclSuccess;
    std::vector<Task> tasks;
    std::vector<ncclComm *> begun;
    tasks.swap(group.tasks);
    begun.swap(group.begun);
    ncclResult_t error = group.error;
    group.error = ncclSuccess;
    if (!begun.empty() && !error) error = begin_together(entry, begun);
    int to_self = 0;
    for (const Task &t : tasks)
        if (t.kind == MESSAGE && t.root == t.comm->rank) to_self += t.send ? 1 : -1;
    if (!error && to_self)
        return refuse(nullptr, ncclInvalidUsage,
                      "a message of a rank to itself has no partner in the group");
    return error || tasks.empty() ? error : launch(tasks);
}

ncclResult_t ncclGetVersion(int *version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    Entry entry;
    if (entry.error) return cuda_error(entry);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "stand-in %d %d", int(getpid()), new_board());
    return ncclSuccess;
}

static ncclComm *new_comm(int size, int rank, const ncclConfig_t *config, const char *name) {
    ncclComm *c = new ncclComm();
    c->file = -1;
    c->size = size;
    c->rank = rank;
    c->device = current_device();
    c->blocking = !config || config->blocking != 0;
    c->name = config && config->commName ? config->commName : name;
    comms.push_back(c);
    keep_going();
    return c;
}

// *out receives the handle at once. Outside a group a blocking call also waits until the
// communicator is ready.
static ncclResult_t begin(Entry &entry, ncclComm *c, ncclComm_t *out) {
    *out = c;
    if (group.depth > 0) return group.begun.push_back(c), ncclSuccess;
    const ncclResult_t result = begin_together(entry, { c });
    if (result && result != ncclInProgress) forget(c), *out = nullptr;
    return result;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    Entry entry;
    if (entry.error) return cuda_error(entry);
    int process, file;
    if (sscanf(id.internal, "stand-in %d %d", &process, &file) != 2 || size < 1 || rank < 0 ||
        rank >= size || (config && config->magic != 0xcafebeef))
        return refuse(nullptr, ncclInvalidArgument,
                      "rank %d of %d, the id, or a configuration without "
                      "NCCL_CONFIG_INITIALIZER",
                      rank, size);
    ncclComm *c = new_comm(size, rank, config, "world");
    const ncclResult_t error = open_board(c, process, file);
    if (error) return forget(c), error;
    return begin(entry, c, comm);
}
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

static bool has_work(const ncclComm *comm) {
    for (const Stream *s : streams)
        for (size_t k = 0; s && k < s->pending.size(); k++)
            if (s->pending[k].work && static_cast<Work *>(s->pending[k].work)->has(comm))
                return true;
    return false;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *sub,
                           ncclConfig_t *config) {
    Entry entry;
    if (entry.error) return cuda_error(entry);
    const ncclResult_t error = check_comm(parent);
    *sub = nullptr;
    if (error) return error;
    if (color < NCCL_SPLIT_NOCOLOR)
        return refuse(parent, ncclInvalidArgument, "ncclCommSplit: color %d", color);
    if (has_work(parent))
        return refuse(parent, ncclInvalidUsage,
                      "ncclCommSplit while operations of the communicator are not done");
    Member &me = parent->board->member[parent->rank];
    const uint64_t split = me.splits + 1;
    me.split[split % 2] = { color, key, -1 };
    me.splits = split;
    if (color == NCCL_SPLIT_NOCOLOR) {
        for (int r = 0, turn = 0; r < parent->size; turn++)
            if (parent->board->member[r].splits >= split) r++;
            else pause(entry.lock, turn);
        return ncclSuccess;
    }
    ncclComm *c = new_comm(0, 0, config, "a part");
    if (!config) c->blocking = parent->blocking;
    c->device = parent->device;
    c->parent = parent;
    c->split = split;
    return begin(entry, c, sub);
}

static void launch_now(ncclComm *comm) {
    for (const auto &once : comm->launches)
        if (*once) {
            (*once)();
            *once = nullptr;
        }
    comm->launches.clear();
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    Entry entry;
    if (entry.error) return cuda_error(entry);
    if (std::find(comms.begin(), comms.end(), comm) == comms.end())
        return refuse(nullptr, ncclInvalidArgument, "there is no such communicator");
    *error = step(comm);
    if (comm->state == ncclComm::READY) launch_now(comm);
    for (ncclComm *c : comms) // a split in progress counts for its parent, too
        if (c->parent == comm && c->state != ncclComm::READY && step(c) == ncclInProgress)
            *error = ncclInProgress;
    return ncclSuccess;
}

static ncclResult_t finish_all(Entry &entry, ncclComm *comm) {
    ncclResult_t error = check_comm(comm);
    if (error) return error;
    for (size_t i = 0; i < streams.size(); i++)
        while (streams[i] && has_work(comm) && !streams[i]->pending.empty())
            wait_for(entry.lock, i, streams[i]->issued);
    return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    Entry entry;
    return entry.error ? cuda_error(entry) : finish_all(entry, comm);
}

static ncclResult_t end(ncclComm *comm) {
    for (const Stream *s : streams)
        for (size_t k = 0; s && k < s->pending.size(); k++) {
            Work *work = static_cast<Work *>(s->pending[k].work);
            if (work && work->has(comm)) work->dropped = true;
        }
    if (comm->board) comm->board->member[comm->rank].gone = true;
    forget(comm);
    return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    Entry entry;
    if (entry.error) return cuda_error(entry);
    const ncclResult_t error = finish_all(entry, comm);
    if (error == ncclInvalidArgument) return error;
    return end(comm), error;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    Entry entry; // aborts even after a CUDA error
    if (std::find(comms.begin(), comms.end(), comm) == comms.end())
        return refuse(nullptr, ncclInvalidArgument, "there is no such communicator");
    return end(comm);
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *size) {
    return *size = comm->size, ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
    return *rank = comm->rank, ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
    return *device = comm->device, ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const texts[ncclNumResults] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "NCCL operation in progress"
    };
    return result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}
const char *ncclGetLastError(ncclComm_t comm) {
    return comm ? comm->text.c_str() : last_text.c_str();
}
