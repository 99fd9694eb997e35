// Configuration of the simulated device, and the switches that inject faults.
#pragma once

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace sim {

// The configuration is set once, before the first tensor: a process has one PrivateUse1 device type.
struct Config {
  std::string device = "sim";
  int devices = 2;
  size_t memory = size_t{4} << 30;
  std::unordered_set<c10::ScalarType> dtypes;     // empty: every dtype
  std::unordered_set<std::string> missing;        // operators that raise NotImplementedError
  bool streams = true;                            // false: every stream is the default stream
  double launch_ns = 1000;                        // host time per launch
  double kernel_ns = 2000;                        // shortest kernel; longer than a launch, so the device runs behind
  double bytes_per_ns = 20;                       // a little faster than a host core, see Timeline::keep_pace
  double flops_per_ns = 150;
};

Config& config();

// One lock for all bookkeeping. Kernels run outside the lock. It is recursive, because code that holds it can free a
// tensor, and freeing takes the lock again.
std::recursive_mutex& simulator_mutex();
using Guard = std::lock_guard<std::recursive_mutex>;

// The poison byte. Repeated, it is NaN in every IEEE format, -1 in signed integers and the maximum in unsigned ones.
constexpr int kPoison = 0xFF;

// --- faults -----------------------------------------------------------------------------------------------------
// A switch is a name and a number; NaN means off. SWITCHES in tests/defects/faults.py gives the meaning of each number.
#define SIM_SWITCHES(_)                                                                                       \
  _(stream_wait_ignored) _(stream_query_true) _(stream_sync_ignored) _(stream_order_ignored)                  \
  _(event_wait_ignored) _(event_query_true) _(event_sync_ignored) _(event_elapsed_scale)                      \
  _(event_leaves_out_idle)                                                                                    \
  _(event_elapsed_constant) _(event_time_without_work) _(device_sync_ignored) _(device_count)                 \
  _(device_set_ignored) _(record_stream_ignored) _(copy_d2h_never) _(copy_h2d_poison) _(copy_ignores_strides) \
  _(copy_ignores_offset) _(item_truncates) _(pin_flag) _(pin_pageable) _(rng_set_state_ignored)               \
  _(rng_get_state_advances) _(rng_shared) _(rng_seed_ignored) _(rng_coupled_to_host) _(alloc_peak_constant)  \
  _(alloc_current_constant) _(alloc_reserved_constant) _(alloc_free_uncounted) _(alloc_on_device_zero)        \
  _(alloc_empty_cache_poisons_live) _(alloc_no_limit) _(alloc_oom_runtime_error) _(alloc_no_poison)           \
  _(alloc_hands_out_live) _(graph_capture_executes) _(graph_replay_nothing) _(graph_replay_stale)            \
  _(graph_replay_once) _(comm_wait_ignored) _(storage_resize_loses_data) _(context_ended)         \
  _(kernels_give_zeros) _(device_sync_default_stream) _(device_global) _(stream_global)                       \
  _(event_records_early) _(launch_on_default_stream) _(alloc_leaks) _(alloc_counts_on_device_zero)           \
  _(alloc_reuse_ignores_stream) _(alloc_stats_of_device_zero) _(alloc_peak_reset_ignored)                     \
  _(alloc_empty_cache_first_device) _(rng_never_advances) _(rng_state_of_device_zero) _(rng_seed_reaches_all) \
  _(where_device) _(where_stream) _(where_thread) _(where_crossing) _(where_every) _(where_after)

enum class Switch : int {
#define SIM_DECLARE(name) name,
  SIM_SWITCHES(SIM_DECLARE)
#undef SIM_DECLARE
  count_
};

class Switches {
 public:
  Switches() { values_.fill(std::nan("")); }
  bool on(Switch s) const { return armed_ && !std::isnan(values_[static_cast<size_t>(s)]); }
  double value(Switch s) const { return values_[static_cast<size_t>(s)]; }
  // Whether a fault that is on applies in this place. A place that the caller does not know (-1) meets all conditions.
  bool applies(Switch s, int device, int64_t stream, int crossing);
  // How often a fault has acted since the switches were cleared.
  uint64_t hits() const { return hits_; }
  bool set(const std::string& name, double value);
  void clear();
  static std::vector<std::string> names();

 private:
  bool armed_ = false;
  std::array<double, static_cast<size_t>(Switch::count_)> values_;
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Switch::count_)> calls_{};
  std::atomic<uint64_t> hits_{0};
  std::thread::id armed_by_;
};

Switches& switches();
inline bool broken(Switch s, int device = -1, int64_t stream = -1, int crossing = -1) {
  return switches().on(s) && switches().applies(s, device, stream, crossing);
}

// Raises if an assertion in a kernel has ended the device's context: no call works after that, until the process ends.
void require_context();

// --- counters ---------------------------------------------------------------------------------------------------
// Numbers of operations that the simulator performed. Tests compare the harness's own counts with them.
struct Counters {
  std::unordered_map<std::string, uint64_t> ops;
  uint64_t launches = 0, host_to_device = 0, device_to_host = 0, device_to_device = 0, host_syncs = 0;
  uint64_t poisoned_reads = 0, poisoned_writes = 0;
};

Counters& counters();

}  // namespace sim
