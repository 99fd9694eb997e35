// All-reduce over memory that the ranks of one host share.
//
// A call is divided into chunks. Every rank copies a chunk into its slot and publishes that (arrived). If the call is
// small, every rank then reduces the whole chunk. If it is large, a chunk is divided into slices: each rank reduces one
// of them, publishes that (reduced), and copies the other slices from the other ranks' results. The next chunks are
// copied in meanwhile. Sources are always combined in the order of ranks. Every element is computed either by one rank,
// or by all ranks with the same instructions. So all ranks have the same bits in the result.
//
// There are four slots, and chunks c - 2 and c + 2 share one. A rank copies in chunk c + 2 after it has reduced chunk c.
// For that, all ranks have arrived at c, which they do after they have reduced c - 2. So no rank still reads the slot.

#include "numbers.h"
#include "waiting.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kMaxRanks = 64;
constexpr uint32_t kSlots = 4;
constexpr size_t kLine = 64;

struct Call {
  uint64_t count;
  uint32_t dtype;
  uint32_t operation;
};

// State that a rank publishes to the others, in cache lines that no other rank writes (except `sleepers` in a Word).
struct alignas(kLine) Rank {
  Word arrived;
  std::atomic<uint32_t> gone;
  std::atomic<uint32_t> failed_at;  // the number of the call that failed, from 1
  Call calls[2];  // indexed by the parity of the call's number: a rank can be one call ahead of a reader
  alignas(kLine) Word reduced;
};

struct Progress {
  char* data;
  Call call;
  uint32_t chunk, chunks;
  bool whole;     // every rank reduces the whole call
  bool computed;  // this rank's part of the chunk is reduced
};

struct Communicator {
  char* base;
  int rank, ranks;
  size_t chunk_bytes, slice_bytes, whole_limit;
  uint32_t finished = 0;  // chunks of all calls so far
  uint32_t calls = 0;
  int culprit = -1;
  Patience patience{};
  Progress progress{};
  int processes[kMaxRanks]{};

  Rank& of(int rank) { return reinterpret_cast<Rank*>(base)[rank]; }
  char* slot(int rank, uint32_t chunk) {
    return base + sizeof(Rank) * ranks + stride() * rank + chunk_bytes * (chunk % kSlots);
  }
  char* result(int rank, uint32_t chunk) { return slot(rank, 0) + chunk_bytes * kSlots + slice_bytes * (chunk % kSlots); }
  size_t stride() const { return kSlots * (chunk_bytes + slice_bytes); }
};

size_t slice_of(size_t chunk_bytes, int ranks) {
  const size_t lines = (chunk_bytes / kLine + ranks - 1) / ranks;
  return lines * kLine;
}

Status wait_for_all(Communicator& c, Word Rank::* word, uint32_t target) {
  for (int step = 1; step < c.ranks; ++step) {
    const int peer = (c.rank + step) % c.ranks;
    Rank& other = c.of(peer);
    const Status status = wait_for(other.*word, target, c.patience, c.processes[peer], other.gone);
    if (status != Status::done) {
      c.culprit = peer;
      return status;
    }
  }
  return Status::done;
}

Status compare_calls(Communicator& c) {
  const Call& mine = c.progress.call;
  for (int rank = 0; rank < c.ranks; ++rank) {
    const Call& theirs = c.of(rank).calls[c.calls % 2];
    if (theirs.count != mine.count || theirs.dtype != mine.dtype || theirs.operation != mine.operation) {
      c.culprit = rank;
      return Status::mismatch;
    }
    if (c.of(rank).failed_at.load() == c.calls + 1) {  // its data is here, but the call must fail on all ranks
      c.culprit = rank;
      return Status::left;
    }
  }
  return Status::done;
}

// The part of a call that depends on the element type.
template <class T>
struct Typed {
  Communicator& c;
  Progress& p = c.progress;
  const size_t per_chunk = c.chunk_bytes / sizeof(T);

  T* data(uint32_t chunk) const { return reinterpret_cast<T*>(p.data) + chunk * per_chunk; }
  T* slot(int rank, uint32_t chunk) const { return reinterpret_cast<T*>(c.slot(rank, c.finished + chunk)); }
  T* result(int rank, uint32_t chunk) const { return reinterpret_cast<T*>(c.result(rank, c.finished + chunk)); }

  size_t length(uint32_t chunk) const {
    const size_t rest = p.call.count - chunk * per_chunk;
    return rest < per_chunk ? rest : per_chunk;
  }

  // Returns where the rank's slice of a chunk begins; slices are cut at cache lines, so no two ranks write one line.
  size_t begin(uint32_t chunk, int rank) const {
    constexpr size_t in_line = kLine / sizeof(T);
    const size_t all = length(chunk), lines = (all + in_line - 1) / in_line;
    const size_t start = lines * rank / c.ranks * in_line;
    return start < all ? start : all;
  }

  void copy_in(uint32_t chunk) const {
    if (chunk >= p.chunks) return;
    T* const to = slot(c.rank, chunk);
    const T* const from = data(chunk);
    if (p.whole) {
      std::memcpy(to, from, length(chunk) * sizeof(T));
    } else {  // no other rank reads this rank's own slice, so it is left out
      const size_t first = begin(chunk, c.rank), last = begin(chunk, c.rank + 1);
      std::memcpy(to, from, first * sizeof(T));
      std::memcpy(to + last, from + last, (length(chunk) - last) * sizeof(T));
    }
    publish(c.of(c.rank).arrived, c.finished + chunk + 1);
  }

  void reduce_own(uint32_t chunk) const {
    const size_t first = p.whole ? 0 : begin(chunk, c.rank);
    const size_t last = p.whole ? length(chunk) : begin(chunk, c.rank + 1);
    const T* sources[kMaxRanks];
    for (int rank = 0; rank < c.ranks; ++rank)
      sources[rank] = (rank == c.rank ? data(chunk) : slot(rank, chunk)) + first;
    T* const shared = p.whole ? nullptr : result(c.rank, chunk);
    reduce(Operation(p.call.operation), sources, c.ranks, last - first, data(chunk) + first, shared);
    publish(c.of(c.rank).reduced, c.finished + chunk + 1);
  }

  void copy_out(uint32_t chunk) const {
    for (int rank = 0; rank < c.ranks; ++rank) {
      if (rank == c.rank) continue;
      const size_t first = begin(chunk, rank), last = begin(chunk, rank + 1);
      std::memcpy(data(chunk) + first, result(rank, chunk), (last - first) * sizeof(T));
    }
  }

  void start() const {
    p.chunks = p.call.count ? uint32_t((p.call.count + per_chunk - 1) / per_chunk) : 1;
    p.whole = p.call.count * sizeof(T) <= c.whole_limit;
    copy_in(0);
    copy_in(1);
  }

  // Runs the call from its current progress.
  Status advance() const {
    for (; p.chunk < p.chunks; ++p.chunk, p.computed = false) {
      if (!p.computed) {
        Status status = wait_for_all(c, &Rank::arrived, c.finished + p.chunk + 1);
        if (status == Status::done && p.chunk == 0) status = compare_calls(c);
        if (status != Status::done) return status;
        reduce_own(p.chunk);
        copy_in(p.chunk + 2);
        p.computed = true;
      }
      if (p.whole) continue;
      const Status status = wait_for_all(c, &Rank::reduced, c.finished + p.chunk + 1);
      if (status != Status::done) return status;
      copy_out(p.chunk);
    }
    c.finished += p.chunks;
    ++c.calls;
    return Status::done;
  }
};

template <class T>
Status run(Communicator& c, bool starts) {
  const Typed<T> typed{c};
  if (starts) typed.start();
  return typed.advance();
}

Status dispatch(Communicator& c, bool starts) {
  switch (c.progress.call.dtype) {
    case 0: return run<float>(c, starts);
    case 1: return run<double>(c, starts);
    case 2: return run<Half>(c, starts);
    case 3: return run<BFloat16>(c, starts);
    case 4: return run<int8_t>(c, starts);
    case 5: return run<uint8_t>(c, starts);
    case 6: return run<int16_t>(c, starts);
    case 7: return run<int32_t>(c, starts);
    default: return run<int64_t>(c, starts);
  }
}

void give_up(Communicator& c) {
  c.of(c.rank).failed_at.store(c.calls + 1);
  c.of(c.rank).gone.store(1);
}

int settled(Communicator& c, Status status) {
  if (status != Status::done && status != Status::interrupted) give_up(c);
  return int(status);
}

}  // namespace

EXPORT uint64_t low_latency_bytes(int ranks, uint64_t chunk_bytes) {
  return sizeof(Rank) * ranks + uint64_t(ranks) * kSlots * (chunk_bytes + slice_of(chunk_bytes, ranks));
}

// base: zeroed memory of low_latency_bytes, shared by all ranks. processes: the ranks' process ids, to check them.
EXPORT Communicator* low_latency_open(void* base, int rank, int ranks, uint64_t chunk_bytes, uint64_t whole_limit,
                                      uint32_t spins, uint32_t yields, const int* processes) {
  auto* c = new Communicator{static_cast<char*>(base), rank, ranks, chunk_bytes, slice_of(chunk_bytes, ranks), whole_limit};
  c->patience = {spins, yields, 0};
  for (int peer = 0; peer < ranks; ++peer) {
#if defined(SYS_pidfd_open)
    c->processes[peer] = peer == rank ? -1 : int(syscall(SYS_pidfd_open, processes[peer], 0));
#else
    c->processes[peer] = -1;
#endif
  }
  return c;
}

// Reduces count elements at data in place, and returns a Status. While it waits, it is interrupted at intervals, so that
// the caller can run handlers of signals; low_latency_resume continues the call. After any other failure the
// communicator cannot be used again, and the other ranks fail in this call too.
EXPORT int low_latency_resume(Communicator* c) { return settled(*c, dispatch(*c, false)); }

EXPORT int low_latency_all_reduce(Communicator* c, void* data, uint64_t count, uint32_t dtype, uint32_t operation,
                                  int64_t timeout) {
  c->patience.deadline = now() + timeout;
  c->progress = {static_cast<char*>(data), {count, dtype, operation}, 0, 0, false, false};
  c->of(c->rank).calls[c->calls % 2] = c->progress.call;
  return settled(*c, dispatch(*c, true));
}

// Return the rank that caused the last failure, and the call that it made.
EXPORT int low_latency_culprit(const Communicator* c) { return c->culprit; }

EXPORT void low_latency_call_of(Communicator* c, int rank, uint64_t* count, uint32_t* dtype, uint32_t* operation) {
  const Call& call = c->of(rank).calls[c->calls % 2];
  *count = call.count, *dtype = call.dtype, *operation = call.operation;
}

// Ends an interrupted call instead of resuming it: the other ranks fail in this call.
EXPORT void low_latency_give_up(Communicator* c) { give_up(*c); }

EXPORT void low_latency_close(Communicator* c) {
  c->of(c->rank).gone.store(1);
  for (int peer = 0; peer < c->ranks; ++peer)
    if (c->processes[peer] >= 0) close(c->processes[peer]);
  delete c;
}
