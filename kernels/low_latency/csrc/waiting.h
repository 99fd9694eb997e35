// Waiting for another process on a word in shared memory: spin, then yield the core, then sleep in the kernel (futex).
#pragma once

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

enum class Status : int { done = 0, timed_out = 1, died = 2, left = 3, mismatch = 4, interrupted = 5 };

struct Word {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
};

struct Patience {
  uint32_t spins;
  uint32_t yields;
  int64_t deadline;  // nanoseconds of the monotonic clock
};

inline int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Counters wrap around, so they are compared by the sign of their difference.
inline bool reached(const Word& word, uint32_t target) {
  return int32_t(word.value.load(std::memory_order_acquire) - target) >= 0;
}

inline void publish(Word& word, uint32_t value) {
  word.value.store(value, std::memory_order_seq_cst);
  if (word.sleepers.load(std::memory_order_seq_cst) != 0)
    syscall(SYS_futex, &word.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

inline bool has_ended(int process) {
  if (process < 0) return false;
  pollfd ended{process, POLLIN, 0};  // a pidfd becomes readable when its process ends
  return poll(&ended, 1, 0) == 1;
}

inline Status sleep_once(Word& word, uint32_t target, int64_t deadline, int process,
                                  const std::atomic<uint32_t>& gone) {
  constexpr int64_t slice = 20000000;  // 20 ms: interval of the checks whether the peer lives
  const uint32_t seen = word.value.load(std::memory_order_seq_cst);
  if (reached(word, target)) return Status::done;
  const int64_t left = deadline - now();
  const Status bad = gone.load() ? Status::left : has_ended(process) ? Status::died : Status::timed_out;
  // The word is read once more: the peer may have published and then ended.
  if (bad != Status::timed_out || left <= 0) return reached(word, target) ? Status::done : bad;
  const timespec time{0, long(left < slice ? left : slice)};
  syscall(SYS_futex, &word.value, FUTEX_WAIT, seen, &time, nullptr, 0);
  // After each interval, not for EINTR alone: a signal may have come to another thread, or just before the wait.
  return reached(word, target) ? Status::done : Status::interrupted;
}

inline Status wait_for(Word& word, uint32_t target, const Patience& patience, int process,
                       const std::atomic<uint32_t>& gone) {
  for (uint32_t i = 0; i < patience.spins; ++i) {
    if (reached(word, target)) return Status::done;
    pause_core();
  }
  for (uint32_t i = 0; i < patience.yields; ++i) {
    if (reached(word, target)) return Status::done;
    sched_yield();
  }
  word.sleepers.fetch_add(1);
  const Status status = sleep_once(word, target, patience.deadline, process, gone);
  word.sleepers.fetch_sub(1);
  return status;
}
