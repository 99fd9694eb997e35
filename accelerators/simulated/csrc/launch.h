// One unit of device work. It orders its accesses, returns host views of device memory, and accounts time.
#pragma once

#include <ATen/ATen.h>

#include "memory.h"
#include "timeline.h"

namespace sim {

// A host tensor over the same bytes, without any ordering. With `resizable` the host kernel may replace the storage.
at::Tensor raw_alias(const at::Tensor& device_tensor, bool resizable = false);
// The host storage of such views. Host kernels detect the overlap of views that share it.
c10::Storage host_storage(const c10::Storage& device_storage, bool resizable);
at::Tensor alias_on(const at::Tensor& device_tensor, c10::Storage host);
// A tensor of the same shape, filled with poison.
at::Tensor poison_like(const at::Tensor& tensor);

class Launch {
 public:
  explicit Launch(c10::DeviceIndex device);
  Launch(c10::DeviceIndex device, StreamState& stream);

  // A host view for reading: the true bytes when ordered, otherwise poison of the same shape.
  at::Tensor read(const at::Tensor& tensor);
  // A host view for writing (and reading). An unordered write is poisoned when the launch ends.
  at::Tensor write(const at::Tensor& tensor);
  // Ordering only, for memory that is read or written without a view.
  bool reads(const Range& range);
  bool writes(const Range& range);
  // Moves a new host result into device memory, with the same sizes, strides and offset.
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
  const char* name_ = "memcpy";     // name in a profile
  std::vector<Range> spoiled_;
};

// --- graphs -----------------------------------------------------------------------------------------------------
// Kernels run during capture, because their results have shapes that are needed. When the capture ends, all effects
// are undone: old memory gets its bytes back, the graph's own memory is poisoned, and generators are rewound.
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
  void hold(Block* block);             // replays use its address
  void will_write(const Range& range); // saves the bytes, to undo the capture
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
