#include "timeline.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <c10/util/Exception.h>

namespace sim {

namespace {

thread_local c10::DeviceIndex g_device = 0;
thread_local std::vector<c10::StreamId> g_streams;
// Only for the faults in which threads share what each of them should have for itself.
c10::DeviceIndex g_shared_device = 0;
std::vector<c10::StreamId> g_shared_streams;

c10::DeviceIndex& device_of_thread() { return broken(Switch::device_global) ? g_shared_device : g_device; }
std::vector<c10::StreamId>& streams_of_thread() {
  auto& streams = broken(Switch::stream_global) ? g_shared_streams : g_streams;
  if (streams.empty()) streams.assign(config().devices, 0);
  return streams;
}

constexpr int64_t kFirstTick = 20'000;             // a poll costs 20 us of host time, and each further poll twice as much
constexpr int64_t kLastTick = 1'000'000'000;
constexpr int64_t kLongestNap = 200'000'000;
constexpr int64_t kShortestNap = 200'000;          // the system wakes a sleeper 60 us late and more
constexpr size_t kWritesKept = 2048;

int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

bool overlaps(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

}  // namespace

void Clock::raise(int stream, uint64_t seq) {
  if (static_cast<size_t>(stream) >= seen.size()) seen.resize(stream + 1, 0);
  seen[stream] = std::max(seen[stream], seq);
}

void Clock::join(const Clock& other) {
  if (other.seen.size() > seen.size()) seen.resize(other.seen.size(), 0);
  for (size_t i = 0; i < other.seen.size(); ++i) seen[i] = std::max(seen[i], other.seen[i]);
}

Timeline& timeline() {
  static auto* instance = new Timeline();
  return *instance;
}

c10::DeviceIndex device_count() {
  if (broken(Switch::device_count)) return static_cast<c10::DeviceIndex>(switches().value(Switch::device_count));
  return static_cast<c10::DeviceIndex>(config().devices);
}

void check_device(c10::DeviceIndex device) {
  TORCH_CHECK(
      device >= 0 && device < config().devices, config().device, ": invalid device ordinal ", int(device), "; there are ",
      config().devices, " devices");
}

c10::DeviceIndex current_device() { return device_of_thread(); }

void set_current_device(c10::DeviceIndex device) {
  check_device(device);
  if (!broken(Switch::device_set_ignored, device)) device_of_thread() = device;
}

void Timeline::ensure() {
  if (!streams_.empty()) return;
  streams_.resize(static_cast<size_t>(config().devices) * kStreamsPerDevice);
  next_.assign(config().devices, 0);
  for (size_t key = 0; key < streams_.size(); ++key) {
    streams_[key].key = static_cast<int>(key);
    streams_[key].device = static_cast<c10::DeviceIndex>(key / kStreamsPerDevice);
    streams_[key].id = static_cast<c10::StreamId>(key % kStreamsPerDevice);
  }
}

c10::Stream Timeline::handle(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::PrivateUse1, device), id);
}

StreamState& Timeline::state(c10::DeviceIndex device, c10::StreamId id) {
  check_device(device);
  TORCH_CHECK(id >= 0 && id < kStreamsPerDevice, config().device, ": unknown stream ", id);
  ensure();
  return streams_[static_cast<size_t>(device) * kStreamsPerDevice + (config().streams ? id : 0)];
}

StreamState& Timeline::state(const c10::Stream& stream) { return state(stream.device_index(), stream.id()); }

c10::Stream Timeline::current(c10::DeviceIndex device) {
  if (device < 0) device = current_device();
  check_device(device);
  return handle(device, streams_of_thread()[device]);
}

c10::Stream Timeline::exchange(const c10::Stream& stream) {
  auto old = current(stream.device_index());
  streams_of_thread()[stream.device_index()] = stream.id();
  return old;
}

c10::Stream Timeline::fresh(c10::DeviceIndex device) {
  Guard lock(simulator_mutex());
  ensure();
  if (device < 0) device = current_device();
  check_device(device);
  auto id = config().streams ? 1 + next_[device]++ % kPoolStreams : 0;
  return handle(device, id);
}

uint64_t Timeline::launch(StreamState& stream) {
  if (stream.host_version != host_version_) {
    stream.clock.join(host_);
    stream.host_version = host_version_;
  }
  pass_idle_time();
  host_time_ += static_cast<int64_t>(config().launch_ns);
  stream.busy_until = std::max(stream.busy_until, host_time_);
  tick_ = kFirstTick;
  stream.clock.raise(stream.key, ++stream.seq);
  while (!stream.writes.empty() &&
         (stream.writes.size() > kWritesKept || host_.covers(stream.key, stream.writes.front().seq))) {
    stream.writes.pop_front();
  }
  ++counters().launches;
  return stream.seq;
}

void Timeline::finish(StreamState& stream, double bytes, double flops) {
  if (broken(Switch::event_time_without_work)) return;
  auto& c = config();
  stream.busy_until += static_cast<int64_t>(c.kernel_ns + bytes / c.bytes_per_ns + flops / c.flops_per_ns);
}

void Timeline::order(StreamState& later, const StreamState& earlier) {
  if (&later == &earlier) return;
  later.clock.join(earlier.clock);
  later.busy_until = std::max(later.busy_until, earlier.busy_until);
}

void Timeline::wait(StreamState& later, const EventState& event) {
  if (event.stream < 0) return;
  int crossing = event.device != later.device;
  if (broken(Switch::event_wait_ignored, later.device, later.id, crossing)) return;
  if (broken(Switch::stream_wait_ignored, later.device, later.id, crossing)) return;
  later.clock.join(event.clock);
  later.busy_until = std::max(later.busy_until, event.time);
}

void Timeline::record(EventState& event, StreamState& stream) {
  // Recording is a launch of its own on the stream. It is not complete until the host queries or waits.
  event.seq = launch(stream);
  finish(stream, 0, 0);
  event.stream = stream.key;
  event.device = stream.device;
  event.clock = stream.clock;
  event.time = stream.busy_until;
  // The event misses itself and the last work before it.
  if (event.seq > 1 && broken(Switch::event_records_early, stream.device, stream.id)) event.clock.seen[stream.key] = event.seq -= 2;
}

// Waits until this time. Most waits are a few microseconds, which a sleep would turn into a hundred.
static void wait_until(int64_t due) {
  auto left = due - now();
  if (left > kShortestNap) std::this_thread::sleep_for(std::chrono::nanoseconds(left - kShortestNap / 2));
  while (now() < due) {
  }
}

// The device's clock never runs ahead of the wall clock: a host that waits for the device really waits. Kernels usually
// take longer to compute here than their device time, so the wait is usually zero.
void Timeline::keep_pace() {
  auto due = paced_real_ + (host_time_ - paced_virtual_);
  if (paced_real_ != 0) wait_until(std::min(due, now() + kLongestNap));
  paced_virtual_ = host_time_;
  paced_real_ = now();
  idle_ = true;
}

// While the device has nothing to do, its clock is the wall clock. Time in which kernels are computed here is no idle
// time: it counts only between a synchronization and the next launch.
void Timeline::pass_idle_time() {
  if (!idle_) return;
  idle_ = false;
  auto passed = broken(Switch::event_leaves_out_idle) ? 0 : now() - paced_real_;
  host_time_ += passed;
  paced_virtual_ += passed;
  paced_real_ += passed;
}

void Timeline::join_host(const Clock& clock, int64_t time) {
  host_.join(clock);
  host_time_ = std::max(host_time_, time);
  ++host_version_;
  ++counters().host_syncs;
  keep_pace();
  finish_visible_copies();
}

void Timeline::host_sync(StreamState& stream) {
  if (broken(Switch::stream_sync_ignored, stream.device, stream.id)) return;
  join_host(stream.clock, stream.busy_until);
}

void Timeline::host_sync(const EventState& event) {
  if (event.stream < 0 || broken(Switch::event_sync_ignored, event.device, event.stream % kStreamsPerDevice)) return;
  join_host(event.clock, event.time);
}

void Timeline::host_sync_device(c10::DeviceIndex device) {
  if (broken(Switch::device_sync_ignored, device)) return;
  check_device(device);
  ensure();
  auto streams = broken(Switch::device_sync_default_stream, device) ? 1 : kStreamsPerDevice;
  for (int i = 0; i < streams; ++i) {
    auto& stream = streams_[static_cast<size_t>(device) * kStreamsPerDevice + i];
    if (stream.seq) join_host(stream.clock, stream.busy_until);
  }
}

bool Timeline::poll(const Clock& clock, int stream, uint64_t seq, int64_t due) {
  if (host_.covers(stream, seq)) return true;
  if (host_time_ >= due) {
    join_host(clock, due);
    return true;
  }
  host_time_ += tick_;
  paced_virtual_ += tick_;   // a query costs no wall time
  tick_ = std::min(tick_ * 2, kLastTick);
  return false;
}

void Timeline::defer(PendingCopy copy) { pending_.push_back(std::move(copy)); }

void Timeline::finish_visible_copies() {
  if (pending_.empty()) return;
  // In launch order: after two copies into one buffer, the buffer has the bytes of the later copy.
  std::vector<PendingCopy> left;
  for (auto& copy : pending_) {
    auto device = copy.stream / kStreamsPerDevice, id = copy.stream % kStreamsPerDevice;
    if (host_.covers(copy.stream, copy.seq) && !broken(Switch::copy_d2h_never, device, id)) {
      copy.finish();
    } else {
      left.push_back(std::move(copy));
    }
  }
  pending_ = std::move(left);
}

void Timeline::settle_host_range(const void* lo, size_t bytes) {
  std::vector<PendingCopy> left;
  for (auto& copy : pending_) {
    if (overlaps(copy.host, copy.bytes, lo, bytes)) {
      copy.finish();
    } else {
      left.push_back(std::move(copy));
    }
  }
  pending_ = std::move(left);
}

void Timeline::spoil_copies(int stream, uint64_t from_seq) {
  for (auto& copy : pending_) {
    if (copy.stream == stream && copy.seq >= from_seq) copy.spoil();
  }
}

}  // namespace sim
