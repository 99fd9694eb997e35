// Device memory: blocks with access records, a caching allocator with a limit, and pinned host memory.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "timeline.h"

namespace sim {

// One recorded access of a byte range. A later access by another stream must be ordered after it.
struct Record {
  size_t lo, hi;
  int stream;
  uint64_t seq;
  bool write;
};

// Work outside the simulator that accesses a range at an unknown time, such as a collective in another thread.
struct External {
  size_t lo, hi;
  bool write;
  std::function<void()> wait;
  std::function<bool()> finished;
};

struct Block {
  char* data = nullptr;
  size_t size = 0;         // bytes held
  size_t requested = 0;    // requested bytes, rounded to the granularity; they count as allocated
  c10::DeviceIndex device = 0;
  int stream = 0;          // key of the stream that allocated it; only that stream reuses it
  uint64_t pool = 0;       // 0: the general pool; otherwise the pool of a graph
  uint64_t generation = 0; // changes when the block is reused
  bool live = false;
  int graph_holds = 0;     // graphs that replay on this address; the block is not released while there are any
  std::vector<Record> records;
  std::vector<std::pair<int, uint64_t>> used_by;   // record_stream: reuse only after these
  std::vector<int> stream_uses;
  std::vector<External> externals;
};

// A byte range of a block: the unit of ordering.
struct Range {
  Block* block = nullptr;
  size_t lo = 0, hi = 0;
};

// Returns whether the read is ordered. The caller poisons the result of an unordered read.
bool record_read(const Range& range, StreamState& stream);
// Returns whether the write is ordered. The caller poisons the result of an unordered write. This function poisons
// results of other streams that read the range and are not ordered before this write.
bool record_write(const Range& range, StreamState& stream);

// Poisons everything that a stream wrote since `seq`: its inputs were overwritten before it had read them.
void spoil_results(int stream_key, uint64_t seq);

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override;
  c10::DataPtr allocate_on(c10::DeviceIndex device, size_t bytes, bool poison);
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* dest, const void* src, std::size_t count) const override;
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
  void recordStream(const c10::DataPtr& ptr, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

  Block* find(const c10::DataPtr& ptr);
  Block* find(const void* address);
  void free(Block* block);

  // Outside work holds its memory until it has finished. Finished work is released, or it would keep itself alive.
  void hold(Block* block, External work);
  void release_finished();

  void set_pool(c10::DeviceIndex device, uint64_t pool);
  uint64_t pool(c10::DeviceIndex device);
  void release_pool(uint64_t pool);
  std::vector<Block*> blocks_of_pool(uint64_t pool);

 private:
  struct BySize {
    bool operator()(const Block* a, const Block* b) const;
  };
  struct Device {
    c10::CachingDeviceAllocator::DeviceStats stats;
    std::set<Block*, BySize> cached;
    uint64_t pool = 0;
  };

  Device& device(c10::DeviceIndex index);
  Block* take_cached(Device& device, size_t bytes, int stream);
  Block* take_live(c10::DeviceIndex device, size_t bytes);
  Block* reserve(c10::DeviceIndex index, size_t bytes, int stream);
  void release_cached(Device& device, uint64_t pool);
  [[noreturn]] void out_of_memory(c10::DeviceIndex index, size_t bytes);
  static bool reusable(const Block& block);

  std::vector<Device> devices_;
  std::map<uintptr_t, Block*> by_address_;
  std::set<Block*> held_;
};

DeviceMemory& memory();

class PinnedMemory final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* dest, const void* src, std::size_t count) const override;
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override;
  at::HostStats get_stats() override { return stats_; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
  bool contains(const void* address) const;
  void free(void* address);
  std::pair<size_t, size_t> held() const;   // bytes in use, and bytes that include cached ones

 private:
  std::map<uintptr_t, size_t> ranges_;
  std::unordered_map<uintptr_t, size_t> sizes_;   // of all memory that was handed out and not returned to the system
  std::multimap<size_t, void*> cached_;
  size_t used_ = 0, held_ = 0;

  void release_cached();
  at::HostStats stats_;
};

PinnedMemory& pinned();

// The byte range of a tensor inside its block, with the gaps between strided elements. Two streams must therefore not
// write interleaved columns without ordering.
Range range_of(const at::Tensor& tensor);
void poison(void* data, size_t bytes);

}  // namespace sim
