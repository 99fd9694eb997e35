// Streams, events and the device clock, in virtual time and without threads.
//
// Every kernel is computed immediately, in launch order. Streams matter only for *visibility*: each launch gets a
// sequence number on its stream, and each stream (and the host) keeps a vector clock of the launches it is ordered
// after. memory.h checks every access against these clocks and poisons the data of an unordered one.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include <c10/core/Stream.h>

#include "config.h"

namespace sim {

struct Block;

struct Clock {
  std::vector<uint64_t> seen;

  uint64_t of(int stream) const { return static_cast<size_t>(stream) < seen.size() ? seen[stream] : 0; }
  bool covers(int stream, uint64_t seq) const { return of(stream) >= seq; }
  void raise(int stream, uint64_t seq);
  void join(const Clock& other);
};

// A recent write of a stream. If its inputs are overwritten later without ordering, the written data is poisoned.
struct Written {
  uint64_t seq;
  Block* block;
  uint64_t generation;
  size_t lo, hi;
};

struct StreamState {
  int key = 0;
  c10::DeviceIndex device = 0;
  c10::StreamId id = 0;
  Clock clock;
  uint64_t seq = 0;
  int64_t busy_until = 0;
  uint64_t host_version = 0;   // version of the host clock that is already merged
  std::deque<Written> writes;
};

struct EventState {
  int stream = -1;
  uint64_t seq = 0;
  int64_t time = 0;
  Clock clock;
  c10::DeviceIndex device = 0;
};

// An asynchronous copy to the host. The destination holds poison until the host is ordered after the copy. `finish`
// writes the true bytes.
struct PendingCopy {
  int stream;
  uint64_t seq;
  void* host;
  size_t bytes;
  std::function<void()> finish;
  std::function<void()> spoil;
};

constexpr int kPoolStreams = 32;                   // like CUDA: new streams are taken round-robin from a pool
constexpr int kCommStream = kPoolStreams + 1;      // the collectives of a device run on this stream
constexpr int kStreamsPerDevice = kPoolStreams + 2;

class Timeline {
 public:
  StreamState& state(const c10::Stream& stream);
  StreamState& state(c10::DeviceIndex device, c10::StreamId id);
  StreamState& by_key(int key) { return streams_[key]; }

  c10::Stream current(c10::DeviceIndex device);
  c10::Stream exchange(const c10::Stream& stream);
  c10::Stream fresh(c10::DeviceIndex device);
  static c10::Stream handle(c10::DeviceIndex device, c10::StreamId id);

  // Starts a launch, orders it after everything the host is ordered after, and returns its sequence number.
  uint64_t launch(StreamState& stream);
  // Adds the launch's duration to the device clock.
  void finish(StreamState& stream, double bytes, double flops);

  void order(StreamState& later, const StreamState& earlier);      // wait_stream without an event
  void wait(StreamState& later, const EventState& event);
  void record(EventState& event, StreamState& stream);

  // Orders the host after the work: the host waits.
  void host_sync(StreamState& stream);
  void host_sync(const EventState& event);
  void host_sync_device(c10::DeviceIndex device);
  bool poll(const Clock& clock, int stream, uint64_t seq, int64_t due);

  bool host_sees(int stream, uint64_t seq) const { return host_.covers(stream, seq); }
  void defer(PendingCopy copy);
  // Finishes pending copies into host memory that the device is about to read.
  void settle_host_range(const void* lo, size_t bytes);
  void spoil_copies(int stream, uint64_t from_seq);

 private:
  void join_host(const Clock& clock, int64_t time);
  void finish_visible_copies();
  void ensure();
  void keep_pace();
  void pass_idle_time();

  std::vector<StreamState> streams_;
  std::vector<int> next_;
  Clock host_;
  uint64_t host_version_ = 1;
  int64_t host_time_ = 0;
  int64_t tick_ = 0;
  int64_t paced_virtual_ = 0, paced_real_ = 0;   // both clocks at their last synchronization
  bool idle_ = false;                            // nothing was launched since then
  std::vector<PendingCopy> pending_;
};

Timeline& timeline();

c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
void check_device(c10::DeviceIndex device);
c10::DeviceIndex device_count();

// Raises while a graph is being captured, like real devices: the host cannot wait for work that does not run.
void refuse_in_capture(c10::DeviceIndex device, const char* what);

}  // namespace sim
