// One unit of device work: orders its accesses, hands out host views of device memory, accounts time.
#pragma once

#include <ATen/ATen.h>

#include "memory.h"
#include "timeline.h"

namespace sim {

// A host tensor over the same bytes, without any ordering. `resizable`: the host kernel may replace the storage.
at::Tensor raw_alias(const at::Tensor& device_tensor, bool resizable = false);
// The host storage under such views; views that share it are seen to overlap, as their device tensors do.
c10::Storage host_storage(const c10::Storage& device_storage, bool resizable);
at::Tensor alias_on(const at::Tensor& device_tensor, c10::Storage host);
// Poison in the shape of a tensor.
at::Tensor poison_like(const at::Tensor& tensor);

class Launch {
 public:
  explicit Launch(c10::DeviceIndex device);
  Launch(c10::DeviceIndex device, StreamState& stream);

  // A host view for reading: the true bytes when ordered, otherwise poison of the same shape.
  at::Tensor read(const at::Tensor& tensor);
  // A host view for writing (and reading). An unordered write is poisoned when the launch ends.
  at::Tensor write(const at::Tensor& tensor);
  // Ordering alone, for memory that is read or written by other means.
  bool reads(const Range& range);
  bool writes(const Range& range);
  // Moves a fresh host result into device memory: same sizes, strides and offset.
  at::Tensor adopt(const at::Tensor& result);
  void wrote(const Range& range) { spoiled_.push_back(range); }
  void end(double flops = 0);
  void named(const char* name) { name_ = name; }

  StreamState& stream() { return *stream_; }
  c10::DeviceIndex device() const { return device_; }
  bool all_reads_ordered() const { return ordered_; }

 private:
  c10::DeviceIndex device_;
  StreamState* stream_;
  bool capturing_;
  bool ordered_ = true;
  double bytes_ = 0;
  const char* name_ = "memcpy";     // what a profile shows
  std::vector<Range> spoiled_;
};

// --- graphs -----------------------------------------------------------------------------------------------------
// During capture kernels do run, to learn shapes, and everything they did is undone when the capture ends: old
// memory gets its bytes back, the graph's own memory is poisoned, generators are rewound.
class Graph {
 public:
  explicit Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void begin(uint64_t pool);
  void end();
  void replay();
  void reset();
  uint64_t pool() const { return pool_; }

  void add(std::function<void()> step) { steps_.push_back(std::move(step)); }
  void hold(Block* block);             // replays use this address
  void will_write(const Range& range); // keep the bytes, to undo the capture
  static uint64_t new_pool();

 private:
  void keep_replay_inputs();

  bool capturing_ = false, captured_ = false;
  c10::DeviceIndex device_ = 0;
  c10::Stream stream_{c10::Stream::DEFAULT, c10::Device(c10::DeviceType::CPU)};
  uint64_t pool_ = 0;
  int replays_ = 0;
  std::vector<std::function<void()>> steps_;
  std::vector<Block*> held_;
  std::unordered_map<Block*, std::vector<char>> undo_;
  std::unordered_map<Block*, std::vector<char>> stale_;   // only for the stale-input fault
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> generators_;
};

Graph* capturing(c10::DeviceIndex device);

}  // namespace sim
