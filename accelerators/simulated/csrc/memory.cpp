#include "memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

namespace sim {

namespace {

constexpr size_t kGranularity = 512;
constexpr size_t kPoisonedWhole = 1 << 20;         // larger blocks are poisoned sparsely: filling them would double the cost
constexpr size_t kPoisonStride = 4096;
constexpr size_t kPoisonedPlaces = 1 << 14;        // each place is a page fault: filling the device would take seconds
constexpr size_t kManyRecords = 48;
constexpr size_t kMostPinnedCached = 32 << 20;     // bytes of freed pinned memory
constexpr int64_t kMostCached = 320 << 20;         // bytes of a device; they are memory of the host, which workers share

size_t round_up(size_t bytes) { return std::max<size_t>(1, (bytes + kGranularity - 1) / kGranularity) * kGranularity; }

// Large blocks are mapped by the system, so untouched pages cost nothing. Small blocks would use up its map table.
void* take_pages(size_t bytes) {
  if (bytes < kPoisonedWhole) return std::aligned_alloc(kGranularity, bytes);
  auto* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

void release_pages(void* data, size_t bytes) {
  if (bytes < kPoisonedWhole) {
    std::free(data);
  } else {
    munmap(data, bytes);
  }
}

void delete_block(void* context) { memory().free(static_cast<Block*>(context)); }
void delete_pinned(void* address) { pinned().free(address); }

bool touches(const Record& record, const Range& range) { return record.lo < range.hi && range.lo < record.hi; }

bool seen(const StreamState& stream, const Record& record) {
  return record.stream == stream.key || stream.clock.covers(record.stream, record.seq);
}

// Accesses that the host has synchronized with are ordered before every later launch. Their records are not needed.
void forget_seen(Block& block) {
  if (block.records.size() < kManyRecords) return;
  std::erase_if(block.records, [](const Record& r) { return timeline().host_sees(r.stream, r.seq); });
}

}  // namespace

void spoil_results(int key, uint64_t seq) {
  auto& stream = timeline().by_key(key);
  for (auto& written : stream.writes) {
    if (written.seq >= seq && written.block->generation == written.generation && written.block->data) {
      std::memset(written.block->data + written.lo, kPoison, written.hi - written.lo);
      ++counters().poisoned_writes;
    }
  }
  timeline().spoil_copies(key, seq);
}

void poison(void* data, size_t bytes) {
  auto* p = static_cast<char*>(data);
  if (bytes <= kPoisonedWhole) {
    std::memset(p, kPoison, bytes);
    return;
  }
  std::memset(p, kPoison, 4096);
  std::memset(p + bytes - 4096, kPoison, 4096);
  const size_t stride = std::max(kPoisonStride, bytes / kPoisonedPlaces / kPoisonStride * kPoisonStride);
  for (size_t i = 4096; i + 64 < bytes; i += stride) std::memset(p + i, kPoison, 64);
}

bool record_read(const Range& range, StreamState& stream) {
  if (!range.block || range.lo >= range.hi) return true;
  bool ordered = true, remembered = false;
  for (auto& r : range.block->records) {
    if (r.write) {
      if (touches(r, range) && !seen(stream, r)) ordered = false;
    } else if (r.stream == stream.key && range.lo <= r.lo && r.hi <= range.hi) {
      r = {range.lo, range.hi, stream.key, stream.seq, false};
      remembered = true;
    }
  }
  if (!remembered) {
    forget_seen(*range.block);
    range.block->records.push_back({range.lo, range.hi, stream.key, stream.seq, false});
  }
  if (!ordered && broken(Switch::stream_order_ignored)) return true;
  if (!ordered) ++counters().poisoned_reads;
  return ordered;
}

bool record_write(const Range& range, StreamState& stream) {
  if (!range.block || range.lo >= range.hi) return true;
  auto& block = *range.block;
  bool ordered = true;
  for (const auto& r : block.records) {
    if (!touches(r, range) || seen(stream, r)) continue;
    if (r.write) {
      ordered = false;
    } else {
      spoil_results(r.stream, r.seq);
    }
  }
  std::erase_if(block.records, [&](const Record& r) {
    return range.lo <= r.lo && r.hi <= range.hi && (r.stream == stream.key || seen(stream, r) || !r.write || ordered);
  });
  forget_seen(block);
  block.records.push_back({range.lo, range.hi, stream.key, stream.seq, true});
  stream.writes.push_back({stream.seq, &block, block.generation, range.lo, range.hi});
  if (!ordered) ++counters().poisoned_writes;
  return ordered;
}

Range range_of(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.numel() == 0) return {};
  auto* block = memory().find(tensor.storage().data_ptr());
  if (!block) return {};
  int64_t span = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) span += (tensor.size(d) - 1) * tensor.stride(d);
  size_t base = static_cast<char*>(tensor.storage().mutable_data()) - block->data;
  size_t lo = base + tensor.storage_offset() * tensor.itemsize();
  return {block, lo, std::min(block->size, lo + span * tensor.itemsize())};
}

// --- device memory ----------------------------------------------------------------------------------------------

DeviceMemory& memory() {
  static auto* instance = new DeviceMemory();
  return *instance;
}

DeviceMemory::Device& DeviceMemory::device(c10::DeviceIndex index) {
  if (devices_.empty()) devices_.resize(config().devices);
  check_device(index);
  return devices_[index];
}

bool DeviceMemory::reusable(const Block& block) {
  for (auto [stream, seq] : block.used_by) {
    if (!timeline().host_sees(stream, seq)) return false;
  }
  return block.graph_holds == 0 || block.pool != 0;
}

bool DeviceMemory::BySize::operator()(const Block* a, const Block* b) const {
  // A graph's pool is for captures only. All streams inside one capture share it.
  auto key = [](const Block* x) { return std::make_tuple(x->pool, x->pool ? 0 : x->stream, x->size, x->data); };
  return key(a) < key(b);
}

Block* DeviceMemory::take_cached(Device& device, size_t bytes, int stream) {
  Block wanted;
  wanted.pool = device.pool;
  wanted.stream = stream;
  wanted.size = bytes;
  auto matches = [&](const Block& b) {
    return b.pool == device.pool && (b.stream == stream || device.pool) && b.size <= bytes + bytes / 4 + kGranularity;
  };
  if (broken(Switch::alloc_reuse_ignores_stream, timeline().by_key(stream).device)) {
    for (auto* block : device.cached) {
      if (block->pool != device.pool || block->size < bytes || block->size > bytes + bytes / 4 + kGranularity) continue;
      device.cached.erase(block);
      return block;
    }
  }
  for (auto it = device.cached.lower_bound(&wanted); it != device.cached.end() && matches(**it); ++it) {
    if (!reusable(**it)) continue;
    auto* block = *it;
    device.cached.erase(it);
    return block;
  }
  return nullptr;
}

Block* DeviceMemory::take_live(c10::DeviceIndex index, size_t bytes) {
  for (auto& [address, block] : by_address_) {
    if (block->live && block->device == index && block->size == bytes) return block;
  }
  return nullptr;
}

void DeviceMemory::release_cached(Device& device, uint64_t pool) {
  auto& stats = device.stats;
  std::erase_if(device.cached, [&](Block* block) {
    if (block->pool != pool || block->graph_holds > 0 || !reusable(*block)) return false;
    by_address_.erase(reinterpret_cast<uintptr_t>(block->data));
    release_pages(block->data, block->size);
    block->data = nullptr;
    ++block->generation;
    block->records.clear();
    stats.reserved_bytes[0].decrease(block->size);
    stats.segment[0].decrease(1);
    ++stats.num_device_free;
    return true;
  });
}

void DeviceMemory::out_of_memory(c10::DeviceIndex index, size_t bytes) {
  auto& stats = device(index).stats;
  ++stats.num_ooms;
  auto text = c10::str(
      config().device, " out of memory. Tried to allocate ", c10::CachingAllocator::format_size(bytes), ". Device ", int(index),
      " has a total capacity of ", c10::CachingAllocator::format_size(config().memory), " of which ",
      c10::CachingAllocator::format_size(config().memory - stats.reserved_bytes[0].current), " is free.");
  if (broken(Switch::alloc_oom_runtime_error)) TORCH_CHECK(false, text);
  TORCH_CHECK_WITH(OutOfMemoryError, false, text);
}

Block* DeviceMemory::reserve(c10::DeviceIndex index, size_t bytes, int stream) {
  auto& d = device(index);
  auto fits = [&] { return d.stats.reserved_bytes[0].current + bytes <= config().memory; };
  if (!fits() && !broken(Switch::alloc_no_limit)) {
    // Like real caching allocators: wait for the device, release the cache, and try once more.
    if (d.pool == 0) timeline().host_sync_device(index);
    ++d.stats.num_alloc_retries;
    release_cached(d, 0);
    if (!fits()) out_of_memory(index, bytes);
  }
  auto* data = take_pages(bytes);
  if (!data) out_of_memory(index, bytes);
  auto* block = new Block();   // never deleted: records of streams may still point to it
  block->data = static_cast<char*>(data);
  block->size = bytes;
  by_address_[reinterpret_cast<uintptr_t>(data)] = block;
  d.stats.reserved_bytes[0].increase(bytes);
  d.stats.segment[0].increase(1);
  ++d.stats.num_device_alloc;
  return block;
}

c10::DataPtr DeviceMemory::allocate(size_t bytes) { return allocate_on(current_device(), bytes, true); }

c10::DataPtr DeviceMemory::allocate_on(c10::DeviceIndex index, size_t bytes, bool fill) {
  Guard lock(simulator_mutex());
  if (broken(Switch::alloc_on_device_zero)) index = 0;
  c10::Device where(c10::DeviceType::PrivateUse1, index);
  if (bytes == 0) return {nullptr, nullptr, &delete_block, where};
  auto& d = device(index);
  auto& counted = broken(Switch::alloc_counts_on_device_zero, index) ? device(0) : d;
  auto& stream = timeline().state(timeline().current(index));
  auto rounded = round_up(bytes);
  Block* block = broken(Switch::alloc_hands_out_live, index) ? take_live(index, rounded) : nullptr;
  if (block) return {block->data, nullptr, [](void*) {}, where};
  block = take_cached(d, rounded, stream.key);
  if (!block) block = reserve(index, rounded, stream.key);
  block->requested = rounded;
  block->device = index;
  block->stream = stream.key;
  block->pool = d.pool;
  block->live = true;
  block->used_by.clear();
  block->stream_uses.clear();
  ++block->generation;
  d.stats.allocation[0].increase(1);
  counted.stats.allocated_bytes[0].increase(rounded);
  d.stats.active_bytes[0].increase(rounded);
  d.stats.requested_bytes[0].increase(bytes);
  if (fill && !broken(Switch::alloc_no_poison, index)) poison(block->data, rounded);
  return {block->data, block, &delete_block, where};
}

void DeviceMemory::free(Block* block) {
  if (!block) return;
  Guard lock(simulator_mutex());
  auto& d = device(block->device);
  block->live = false;
  block->externals.clear();
  held_.erase(block);
  if (broken(Switch::alloc_leaks, block->device)) return;
  for (int key : block->stream_uses) block->used_by.emplace_back(key, timeline().by_key(key).seq);
  if (!broken(Switch::alloc_free_uncounted, block->device)) {
    auto& counted = broken(Switch::alloc_counts_on_device_zero, block->device) ? device(0) : d;
    d.stats.allocation[0].decrease(1);
    counted.stats.allocated_bytes[0].decrease(block->requested);
    d.stats.active_bytes[0].decrease(block->requested);
  }
  d.cached.insert(block);
  // Blocks of a size that no later tensor has would pile up: in a run of all operators to gigabytes.
  if (d.stats.reserved_bytes[0].current - d.stats.active_bytes[0].current > kMostCached) release_cached(d, 0);
}

void DeviceMemory::hold(Block* block, External work) {
  Guard lock(simulator_mutex());
  block->externals.push_back(std::move(work));
  held_.insert(block);
}

void DeviceMemory::release_finished() {
  std::vector<External> finished;   // destroyed without the lock, because this frees tensors and joins threads of groups
  Guard lock(simulator_mutex());
  for (auto block = held_.begin(); block != held_.end();) {
    auto& works = (*block)->externals;
    auto first = std::partition(works.begin(), works.end(), [](External& work) { return !work.finished(); });
    std::move(first, works.end(), std::back_inserter(finished));
    works.erase(first, works.end());
    block = works.empty() ? held_.erase(block) : std::next(block);
  }
}

c10::DeleterFnPtr DeviceMemory::raw_deleter() const {
  return nullptr;   // not the address: the context is a Block
}

void DeviceMemory::copy_data(void* dest, const void* src, std::size_t count) const { std::memcpy(dest, src, count); }

Block* DeviceMemory::find(const c10::DataPtr& ptr) {
  if (ptr.get_deleter() == &delete_block) return static_cast<Block*>(ptr.get_context());
  return ptr.get() ? find(ptr.get()) : nullptr;
}

Block* DeviceMemory::find(const void* address) {
  Guard lock(simulator_mutex());   // threads of collectives free blocks
  auto at = reinterpret_cast<uintptr_t>(address);
  auto it = by_address_.upper_bound(at);
  if (it == by_address_.begin()) return nullptr;
  auto* block = std::prev(it)->second;
  return at < std::prev(it)->first + block->size ? block : nullptr;
}

void DeviceMemory::emptyCache(c10::MempoolId_t) {
  Guard lock(simulator_mutex());
  for (int i = 0; i < config().devices; ++i) {
    if (i && broken(Switch::alloc_empty_cache_first_device)) continue;
    timeline().host_sync_device(static_cast<c10::DeviceIndex>(i));
    release_cached(device(static_cast<c10::DeviceIndex>(i)), 0);
  }
  if (!broken(Switch::alloc_empty_cache_poisons_live)) return;
  for (auto& [address, block] : by_address_) {
    if (block->live) poison(block->data, block->size);
  }
}

void DeviceMemory::recordStream(const c10::DataPtr& ptr, c10::Stream stream) {
  Guard lock(simulator_mutex());
  auto* block = find(ptr);
  if (!block || broken(Switch::record_stream_ignored, stream.device_index(), stream.id())) return;
  auto key = timeline().state(stream).key;
  if (key != block->stream) block->stream_uses.push_back(key);
}

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::getDeviceStats(c10::DeviceIndex index) {
  Guard lock(simulator_mutex());
  auto stats = device(broken(Switch::alloc_stats_of_device_zero, index) ? 0 : index).stats;
  auto& allocated = stats.allocated_bytes[0];
  auto& reserved = stats.reserved_bytes[0];
  if (broken(Switch::alloc_current_constant, index)) allocated.current = int64_t(switches().value(Switch::alloc_current_constant));
  if (broken(Switch::alloc_peak_constant, index)) allocated.peak = int64_t(switches().value(Switch::alloc_peak_constant));
  if (broken(Switch::alloc_reserved_constant, index)) reserved.current = int64_t(switches().value(Switch::alloc_reserved_constant));
  return stats;
}

void DeviceMemory::resetAccumulatedStats(c10::DeviceIndex index) {
  Guard lock(simulator_mutex());
  auto& s = device(index).stats;
  for (auto* stat : {&s.allocation, &s.segment, &s.allocated_bytes, &s.reserved_bytes, &s.active_bytes, &s.requested_bytes})
    (*stat)[0].reset_accumulated();
  s.num_alloc_retries = s.num_ooms = 0;
}

void DeviceMemory::resetPeakStats(c10::DeviceIndex index) {
  Guard lock(simulator_mutex());
  if (broken(Switch::alloc_peak_reset_ignored, index)) return;
  auto& s = device(index).stats;
  for (auto* stat : {&s.allocation, &s.segment, &s.allocated_bytes, &s.reserved_bytes, &s.active_bytes, &s.requested_bytes})
    (*stat)[0].reset_peak();
}

std::pair<size_t, size_t> DeviceMemory::getMemoryInfo(c10::DeviceIndex index) {
  Guard lock(simulator_mutex());
  return {config().memory - device(index).stats.reserved_bytes[0].current, config().memory};
}

void DeviceMemory::set_pool(c10::DeviceIndex index, uint64_t pool) { device(index).pool = pool; }
uint64_t DeviceMemory::pool(c10::DeviceIndex index) { return device(index).pool; }

std::vector<Block*> DeviceMemory::blocks_of_pool(uint64_t pool) {
  std::vector<Block*> found;
  for (auto& [address, block] : by_address_) {
    if (block->pool == pool) found.push_back(block);
  }
  return found;
}

void DeviceMemory::release_pool(uint64_t pool) {
  // Blocks still in use join the general pool when they are freed.
  for (auto* block : blocks_of_pool(pool)) {
    auto& cached = device(block->device).cached;
    bool waiting = cached.erase(block) > 0;
    block->pool = 0;
    if (waiting) cached.insert(block);
  }
}

// --- pinned host memory -----------------------------------------------------------------------------------------

PinnedMemory& pinned() {
  static auto* instance = new PinnedMemory();
  return *instance;
}

c10::DataPtr PinnedMemory::allocate(size_t bytes) {
  Guard lock(simulator_mutex());
  if (bytes == 0) return {nullptr, nullptr, &delete_pinned, c10::Device(c10::DeviceType::CPU)};
  void* data = nullptr;
  if (auto kept = cached_.find(bytes); kept != cached_.end()) {
    data = kept->second;
    cached_.erase(kept);
  } else {
    TORCH_CHECK(posix_memalign(&data, 4096, bytes) == 0, config().device, ": no memory left for ", bytes, " pinned bytes");
    held_ += bytes;
    sizes_[reinterpret_cast<uintptr_t>(data)] = bytes;
  }
  used_ += bytes;
  if (!broken(Switch::pin_pageable)) ranges_[reinterpret_cast<uintptr_t>(data)] = bytes;
  stats_.allocated_bytes.increase(bytes);
  stats_.allocations.increase(1);
  return {data, data, &delete_pinned, c10::Device(c10::DeviceType::CPU)};
}

void PinnedMemory::free(void* address) {
  if (!address) return;
  Guard lock(simulator_mutex());
  auto bytes = sizes_.at(reinterpret_cast<uintptr_t>(address));
  if (ranges_.erase(reinterpret_cast<uintptr_t>(address))) {
    stats_.allocated_bytes.decrease(bytes);
    stats_.allocations.decrease(1);
  }
  used_ -= bytes;
  cached_.emplace(bytes, address);
  if (held_ - used_ > kMostPinnedCached) release_cached();
}

void PinnedMemory::release_cached() {
  for (auto [bytes, address] : cached_) {
    held_ -= bytes;
    sizes_.erase(reinterpret_cast<uintptr_t>(address));
    std::free(address);
  }
  cached_.clear();
}

void PinnedMemory::empty_cache() {
  Guard lock(simulator_mutex());
  release_cached();
}

std::pair<size_t, size_t> PinnedMemory::held() const {
  Guard lock(simulator_mutex());
  return {used_, held_};
}

bool PinnedMemory::contains(const void* address) const {
  Guard lock(simulator_mutex());
  if (broken(Switch::pin_flag)) return switches().value(Switch::pin_flag) != 0;
  auto at = reinterpret_cast<uintptr_t>(address);
  auto it = ranges_.upper_bound(at);
  return it != ranges_.begin() && at < std::prev(it)->first + std::prev(it)->second;
}

c10::DeleterFnPtr PinnedMemory::raw_deleter() const { return &delete_pinned; }
void PinnedMemory::copy_data(void* dest, const void* src, std::size_t count) const { std::memcpy(dest, src, count); }

}  // namespace sim
