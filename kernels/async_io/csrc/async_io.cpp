// Asynchronous I/O engine: moves bytes between a file and memory with many requests in flight.
//
// Requests use Linux's asynchronous I/O (man 2 io_submit) and bypass the page cache. Containers that forbid io_uring
// often allow these calls. Where they are forbidden too, requests are made one by one. The ends of a range that do not
// fill whole aligned blocks go through the page cache, and so does every request that the file system refuses. Direct
// I/O touches whole blocks only, so the two never access the same block.

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#ifdef __linux__
#include <linux/aio_abi.h>
#include <linux/stat.h>
#include <sys/syscall.h>
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int64_t kBlock = 4096;           // alignment of offsets and lengths that is enough for nearly all storage
constexpr int64_t kMemory = 512;           // alignment of addresses, where the operating system does not report one
constexpr int64_t kStagedBytes = 1 << 20;  // longest request through a staging buffer
constexpr int64_t kStagedRequests = 16;    // most requests of that kind; both bound a worker's memory

int64_t up(int64_t number, int64_t unit) { return (number + unit - 1) / unit * unit; }
int64_t down(int64_t number, int64_t unit) { return number / unit * unit; }

struct Range {
    bool writes;
    int file;  // through the page cache
    char* memory;
    int64_t bytes;
    int64_t offset;
};

// Moves the range by ordinary calls. Returns the bytes moved (fewer at the end of the file), or a negative errno.
int64_t move_plainly(const Range& range, int64_t block) {
    int64_t done = 0;
    while (done < range.bytes) {
        const size_t length = std::min(block, range.bytes - done);
        const ssize_t now = range.writes ? pwrite(range.file, range.memory + done, length, range.offset + done)
                                         : pread(range.file, range.memory + done, length, range.offset + done);
        if (now < 0 && errno == EINTR) continue;
        if (now < 0) return -errno;
        if (now == 0) break;
        done += now;
    }
    return done;
}

struct Alignment {
    int64_t block = kBlock;
    int64_t memory = kMemory;
};

Alignment alignment_of(int file) {
    Alignment found;
#if defined(__linux__) && defined(STATX_DIOALIGN)
    struct statx about;
    std::memset(&about, 0, sizeof about);
    if (syscall(SYS_statx, file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &about) == 0 && (about.stx_mask & STATX_DIOALIGN) &&
        about.stx_dio_mem_align != 0) {
        found.block = std::max<int64_t>(kBlock, about.stx_dio_offset_align);
        found.memory = about.stx_dio_mem_align;
    }
#endif
    return found;
}

#ifdef __linux__
using Context = aio_context_t;
using Control = struct iocb;
#else
using Context = unsigned long;
struct Control {};
struct io_event {};
#endif

struct Request {
    Control control;
    Range range;
    char* staged;  // the staging buffer, or null if the device reads and writes the caller's memory
};

struct Engine {
    int64_t block;
    int64_t depth;
    bool one_by_one;  // each request has a system call of its own
    bool overlaps;    // the queue is refilled as requests end; otherwise when all have ended
    Context context = 0;
    int why_not = 0;  // the errno of io_setup; 0 if asynchronous I/O is available
    std::vector<Request> requests;
    char* staging = nullptr;

    Engine(int64_t block_, int64_t depth_, bool one_by_one_, bool overlaps_, bool queues)
        : block(up(block_, kBlock)), depth(depth_), one_by_one(one_by_one_), overlaps(overlaps_) {
        requests.resize(depth);
        events_.resize(depth);
        controls_.reserve(depth);
        idle_.reserve(depth);
#ifdef __linux__
        if (!queues) why_not = ECANCELED;
        else if (syscall(SYS_io_setup, depth, &context) != 0) why_not = errno;
#else
        why_not = ENOSYS;
#endif
        if (why_not != 0) depth = 1;
    }

    ~Engine() {
#ifdef __linux__
        if (why_not == 0) syscall(SYS_io_destroy, context);
#endif
        std::free(staging);
    }

    int64_t move(const Range& whole, int direct);

  private:
    int64_t move_directly(const Range& middle, const Alignment& alignment);
    bool stage(const Range& middle, const Alignment& alignment);
    void prepare(Request& request, const Range& range);
    void end(Request& request, int64_t result);
    void submit(std::vector<Request*>& ready);
    int64_t queue(const std::vector<Request*>& ready);
    int64_t move_now(const Request& request);
    void reap(int64_t at_least);

    // These have their full size from the start: running out of memory with requests in flight would be fatal.
    std::vector<struct io_event> events_;
    std::vector<Control*> controls_;
    std::vector<Request*> idle_;
    int64_t staged_length_ = 0;
    int direct_ = -1;  // the file, opened to bypass the page cache
    int64_t in_flight_ = 0;
    int64_t moved_ = 0;
    int64_t error_ = 0;
};

int64_t Engine::move(const Range& whole, int direct) {
    if (direct < 0) return move_plainly(whole, block);
    direct_ = direct;
    const Alignment alignment = alignment_of(direct);
    const int64_t head = std::min(whole.bytes, up(whole.offset, alignment.block) - whole.offset);
    const int64_t middle = down(whole.bytes - head, alignment.block);
    const int64_t lengths[] = {head, middle, whole.bytes - head - middle};
    int64_t done = 0;
    for (int i = 0; i < 3; i++) {
        const Range part{whole.writes, whole.file, whole.memory + done, lengths[i], whole.offset + done};
        const int64_t now = i == 1 ? move_directly(part, alignment) : move_plainly(part, block);
        if (now < 0) return now;
        done += now;
        if (now < lengths[i]) break;
    }
    return done;
}

// Returns whether the bytes need staging buffers, because their address is not aligned for direct I/O.
bool Engine::stage(const Range& middle, const Alignment& alignment) {
    if (reinterpret_cast<uintptr_t>(middle.memory) % alignment.memory == 0) return false;
    if (staging == nullptr) {
        staged_length_ = std::min(block, kStagedBytes);
        void* memory = nullptr;
        const int64_t bytes = staged_length_ * std::min(depth, kStagedRequests);
        if (posix_memalign(&memory, kBlock, bytes) != 0) throw std::bad_alloc();
        staging = static_cast<char*>(memory);
    }
    return true;
}

int64_t Engine::move_directly(const Range& middle, const Alignment& alignment) {
    if (middle.bytes == 0) return 0;
    const bool staged = stage(middle, alignment);
    const int64_t length = up(staged ? staged_length_ : block, alignment.block);
    const int64_t many = staged ? std::min(depth, kStagedRequests) : depth;
    if (staged && length > staged_length_) return move_plainly(middle, block);
    idle_.clear();
    for (int64_t i = 0; i < many; i++) {
        requests[i].staged = staged ? staging + i * staged_length_ : nullptr;
        idle_.push_back(&requests[i]);
    }
    moved_ = error_ = 0;
    int64_t next = 0;
    std::vector<Request*> ready;
    ready.reserve(many);
    while ((next < middle.bytes && error_ == 0) || in_flight_ > 0) {
        while (next < middle.bytes && error_ == 0 && !idle_.empty()) {
            Request& request = *idle_.back();
            idle_.pop_back();
            const int64_t now = std::min(length, middle.bytes - next);
            prepare(request, {middle.writes, middle.file, middle.memory + next, now, middle.offset + next});
            next += now;
            ready.push_back(&request);
            if (one_by_one) submit(ready);
        }
        submit(ready);
        reap(overlaps ? 1 : in_flight_);
    }
    return error_ != 0 ? error_ : moved_;
}

void Engine::prepare(Request& request, const Range& range) {
    request.range = range;
    if (request.staged != nullptr && range.writes) std::memcpy(request.staged, range.memory, range.bytes);
#ifdef __linux__
    std::memset(&request.control, 0, sizeof request.control);
    request.control.aio_data = reinterpret_cast<uintptr_t>(&request);
    request.control.aio_lio_opcode = range.writes ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
    request.control.aio_fildes = direct_;
    request.control.aio_buf = reinterpret_cast<uintptr_t>(request.staged != nullptr ? request.staged : range.memory);
    request.control.aio_nbytes = range.bytes;
    request.control.aio_offset = range.offset;
#endif
}

// Takes a request's result. Bytes that it did not move are moved through the page cache, which also gives the error.
void Engine::end(Request& request, int64_t result) {
    const int64_t done = std::max<int64_t>(result, 0);
    Range rest = request.range;
    if (request.staged != nullptr && !rest.writes) std::memcpy(rest.memory, request.staged, done);
    rest.memory += done, rest.offset += done, rest.bytes -= done;
    const int64_t more = result < 0 && result != -EINVAL && result != -EAGAIN && result != -EOPNOTSUPP
                             ? result
                             : move_plainly(rest, block);
    if (more < 0 && error_ == 0) error_ = more;
    if (more >= 0) moved_ += done + more;
    idle_.push_back(&request);
}

void Engine::submit(std::vector<Request*>& ready) {
    while (!ready.empty()) {
        const int64_t taken = why_not == 0 ? queue(ready) : -ECANCELED;
        if (taken > 0) {
            in_flight_ += taken;
            ready.erase(ready.begin(), ready.begin() + taken);
        } else if (taken == -EAGAIN && in_flight_ > 0) {
            reap(1);
        } else {
            Request& refused = *ready.front();
            ready.erase(ready.begin());
            end(refused, move_now(refused));
        }
    }
}

// Returns how many requests the kernel has accepted, at least one, or a negative errno.
int64_t Engine::queue(const std::vector<Request*>& ready) {
#ifdef __linux__
    controls_.clear();
    for (Request* request : ready) controls_.push_back(&request->control);
    const long taken = syscall(SYS_io_submit, context, static_cast<long>(controls_.size()), controls_.data());
    return taken < 0 ? -errno : taken == 0 ? -EAGAIN : taken;
#else
    return ready.empty() ? 0 : -ENOSYS;
#endif
}

// Makes the request by one ordinary call that bypasses the page cache. Returns its result, or a negative errno.
int64_t Engine::move_now(const Request& request) {
    const Range& range = request.range;
    char* memory = request.staged != nullptr ? request.staged : range.memory;
    ssize_t result;
    do {
        result = range.writes ? pwrite(direct_, memory, range.bytes, range.offset)
                              : pread(direct_, memory, range.bytes, range.offset);
    } while (result < 0 && errno == EINTR);
    return result < 0 ? -errno : result;
}

void Engine::reap(int64_t at_least) {
#ifdef __linux__
    while (at_least > 0 && in_flight_ > 0) {
        const long least = std::min(at_least, in_flight_);
        const long got = syscall(SYS_io_getevents, context, least, in_flight_, events_.data(), nullptr);
        if (got < 0) continue;  // EINTR; no other error is possible with these arguments
        for (long i = 0; i < got; i++) {
            in_flight_--;
            end(*reinterpret_cast<Request*>(static_cast<uintptr_t>(events_[i].data)), events_[i].res);
        }
        at_least -= got;
    }
#endif
}

}  // namespace

// Returns a new engine for one worker, or null without memory. If `queues` is 0, requests are made one by one.
EXPORT void* engine_new(int64_t block, int64_t depth, int one_by_one, int overlaps, int queues) {
    try {
        return new Engine(block, depth, one_by_one != 0, overlaps != 0, queues != 0);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

// Returns 0 if the kernel queues the requests, otherwise the errno of its refusal.
EXPORT int engine_why_not(void* engine) { return static_cast<Engine*>(engine)->why_not; }

// Moves bytes. Returns how many (fewer at the end of the file), or a negative errno. `direct` is the same file, opened
// to bypass the page cache, or -1.
EXPORT int64_t engine_move(void* engine, int writes, int direct, int file, char* memory, int64_t bytes,
                           int64_t offset) {
    try {
        return static_cast<Engine*>(engine)->move({writes != 0, file, memory, bytes, offset}, direct);
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}

EXPORT void engine_delete(void* engine) { delete static_cast<Engine*>(engine); }
