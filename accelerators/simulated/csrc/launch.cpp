#include "launch.h"

#include <ATen/Context.h>

#include <cstring>

#include "profiler.h"

namespace sim {

namespace {

c10::DispatchKeySet host_keys() {
  return c10::DispatchKeySet({c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutogradCPU});
}

at::Tensor view_over(const at::Tensor& like, c10::Storage storage, int64_t offset) {
  auto keys = like.is_conj() ? host_keys().add(c10::DispatchKey::Conjugate) : host_keys();
  if (like.is_neg()) keys = keys.add(c10::DispatchKey::Negative);
  auto alias = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  auto* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), offset);
  // TensorIterator's type promotion has different rules for wrapped Python numbers.
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return alias;
}

// A collective in another thread may still work on this memory. This waits for its bytes even if the program did not
// order the access: only the clocks decide whether an unordered reader sees poison.
void wait_for_externals(const Range& range, bool write) {
  if (range.block->externals.empty()) return;
  std::vector<External> due;
  {
    Guard lock(simulator_mutex());
    std::erase_if(range.block->externals, [&](External& e) {
      bool conflict = (write || e.write) && e.lo < range.hi && range.lo < e.hi;
      if (conflict) due.push_back(e);
      return conflict;
    });
  }
  for (auto& external : due) external.wait();
}

}  // namespace

c10::Storage host_storage(const c10::Storage& storage, bool resizable) {
  c10::DataPtr data(const_cast<void*>(storage.data()), c10::Device(c10::DeviceType::CPU));
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(data), resizable ? at::getCPUAllocator() : nullptr,
      resizable));
}

at::Tensor alias_on(const at::Tensor& tensor, c10::Storage host) {
  return view_over(tensor, std::move(host), tensor.storage_offset());
}

at::Tensor raw_alias(const at::Tensor& tensor, bool resizable) {
  return alias_on(tensor, host_storage(tensor.storage(), resizable));
}

at::Tensor poison_like(const at::Tensor& tensor) {
  auto range = range_of(tensor);
  auto bytes = range.hi - range.lo;
  auto data = at::getCPUAllocator()->allocate(bytes);
  std::memset(data.get(), kPoison, bytes);
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), nullptr, false));
  return view_over(tensor, std::move(storage), 0);
}

namespace {
StreamState& stream_for(c10::DeviceIndex device) {
  auto current = timeline().current(device);
  bool astray = current.id() && broken(Switch::launch_on_default_stream, current.device_index(), current.id());
  return timeline().state(current.device_index(), astray ? 0 : current.id());
}
}  // namespace

Launch::Launch(c10::DeviceIndex device) : Launch(device, stream_for(device)) {}

Launch::Launch(c10::DeviceIndex device, StreamState& stream)
    : device_(device), stream_(&stream), capturing_(capturing(device) != nullptr) {
  require_context();
  Guard lock(simulator_mutex());
  timeline().launch(stream);
}

bool Launch::reads(const Range& range) {
  if (!range.block) return true;
  wait_for_externals(range, false);
  Guard lock(simulator_mutex());
  bytes_ += static_cast<double>(range.hi - range.lo);
  if (capturing_) {
    capturing(device_)->hold(range.block);
    return true;
  }
  bool ordered = record_read(range, *stream_);
  ordered_ = ordered_ && ordered;
  return ordered;
}

bool Launch::writes(const Range& range) {
  if (!range.block) return true;
  wait_for_externals(range, true);
  Guard lock(simulator_mutex());
  bytes_ += static_cast<double>(range.hi - range.lo);
  if (capturing_) {
    capturing(device_)->hold(range.block);
    capturing(device_)->will_write(range);
    return true;
  }
  bool ordered = record_write(range, *stream_);
  if (!ordered) spoiled_.push_back(range);
  return ordered;
}

at::Tensor Launch::read(const at::Tensor& tensor) {
  return reads(range_of(tensor)) ? raw_alias(tensor) : poison_like(tensor);
}

at::Tensor Launch::write(const at::Tensor& tensor) {
  writes(range_of(tensor));
  return raw_alias(tensor, true);
}

at::Tensor Launch::adopt(const at::Tensor& result) {
  const auto& from = result.storage();
  auto data = memory().allocate_on(device_, from.nbytes(), false);
  if (from.nbytes()) std::memcpy(data.get(), from.data(), from.nbytes());
  if (auto* block = memory().find(data)) writes({block, 0, from.nbytes()});
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), from.nbytes(), std::move(data), &memory(), true));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), result.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
  if (result.is_conj()) impl->_set_conj(true);
  if (result.is_neg()) impl->_set_neg(true);
  return tensor;
}

void Launch::end(double flops) {
  Guard lock(simulator_mutex());
  for (const auto& range : spoiled_) std::memset(range.block->data + range.lo, kPoison, range.hi - range.lo);
  auto before = stream_->busy_until;
  timeline().finish(*stream_, bytes_, flops);
  if (profiling()) profile_kernel(name_, device_, static_cast<int>(stream_->id), stream_->busy_until - before);
}

}  // namespace sim
