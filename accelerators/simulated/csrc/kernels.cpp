// Operators that the simulator implements itself: memory, views, copies, scalars, and recurrent cells, which PyTorch
// dispatches to devices only.
#include <cstring>

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "fallback.h"
#include "launch.h"

namespace sim {

namespace {

using at::Tensor;
using OptDtype = std::optional<at::ScalarType>;
using OptLayout = std::optional<at::Layout>;
using OptDevice = std::optional<at::Device>;
using OptBool = std::optional<bool>;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// Guards for copies on host views: no autograd, no Python dispatch, no profiler entry.
struct BelowEverything {
  at::AutoDispatchBelowADInplaceOrView below;
  at::DisableRecordFunctionGuard unrecorded;
};

void check_dtype(at::ScalarType dtype) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      config().dtypes.empty() || config().dtypes.count(dtype), config().device, " does not support ", dtype);
}

at::ScalarType checked_dtype(OptDtype dtype) {
  auto chosen = dtype.value_or(at::get_default_dtype_as_scalartype());
  check_dtype(chosen);
  return chosen;
}

// torch.empty(device="sim") means the current device. The guard decides where the allocation happens.
c10::DeviceGuard guard_for(OptDevice device) {
  auto index = device && device->index() >= 0 ? device->index() : current_device();
  return c10::DeviceGuard(c10::Device(c10::DeviceType::PrivateUse1, index));
}

void count(const char* name) {
  Guard lock(simulator_mutex());
  ++counters().ops[name];
}

Tensor empty(
    at::IntArrayRef size, OptDtype dtype, OptLayout layout, OptDevice device, OptBool pin, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      at::layout_or_default(layout) == at::kStrided, config().device, " has no ", at::layout_or_default(layout), " tensors");
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  auto guard = guard_for(device);
  count("aten::empty");
  return at::detail::empty_generic(size, &memory(), kKeys, checked_dtype(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, OptDtype dtype, OptLayout, OptDevice device, OptBool pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  auto guard = guard_for(device);
  count("aten::empty_strided");
  return at::detail::empty_strided_generic(size, stride, &memory(), kKeys, checked_dtype(dtype));
}

// A tensor of zeros without memory. PyTorch materializes it on first use.
struct NoMemory final : at::Allocator {
  at::DataPtr allocate(size_t) override { return {nullptr, c10::Device(c10::DeviceType::PrivateUse1, current_device())}; }
  at::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}
};

Tensor efficient_zero(at::IntArrayRef size, OptDtype dtype, OptLayout, OptDevice device, OptBool) {
  static auto* nothing = new NoMemory();
  auto guard = guard_for(device);
  return at::detail::empty_generic(
      size, nothing, kKeys.add(c10::DispatchKey::ZeroTensor), checked_dtype(dtype), std::nullopt);
}

// --- views and storages -----------------------------------------------------------------------------------------

Tensor as_strided(const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
Tensor view(const Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }
Tensor reshape_alias(const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

void grow_storage(const Tensor& self, int64_t offset) {
  auto needed = self.numel() == 0
      ? size_t{0}
      : at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(), static_cast<size_t>(offset));
  if (needed > self.storage().nbytes()) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), needed);
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (!self.sizes().equals(size)) impl->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  grow_storage(self, self.storage_offset());
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  at::native::checkSetStorage(self, storage, offset, size, stride);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (stride.data()) {
    impl->set_sizes_and_strides(size, stride);
  } else {
    impl->set_sizes_contiguous(size);
  }
  grow_storage(self, offset);
  return self;
}
Tensor& set_whole_storage(Tensor& self, at::Storage storage) {
  auto count = static_cast<int64_t>(storage.nbytes() / self.itemsize());
  return set_storage(self, std::move(storage), 0, {count}, {});
}
Tensor& set_tensor(Tensor& self, const Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}
Tensor& set_empty(Tensor& self) {
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, memory().allocate_on(self.device().index(), 0, false), &memory(), true));
  return set_storage(self, std::move(storage), 0, {0}, {});
}

// Lets `module.to(device)` move parameters in place, so that modules still share a parameter afterwards.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  auto plain = [](const Tensor& t) { return t.layout() == at::kStrided && (t.is_cpu() || t.is_privateuseone()); };
  return plain(self) && plain(from);
}

void record_stream(Tensor& self, at::Stream stream) { memory().recordStream(self.storage().data_ptr(), stream); }

// --- copies -----------------------------------------------------------------------------------------------------

const void* first_byte(const Tensor& host) { return host.numel() ? host.const_data_ptr() : nullptr; }

// The source of a copy, with a wrong layout if a fault asks for it.
Tensor laid_out(const Tensor& source) {
  if (broken(Switch::kernels_give_zeros)) return at::zeros_like(source);
  if (broken(Switch::copy_ignores_strides) && !source.is_contiguous() && source.numel())
    return source.as_strided(source.sizes(), c10::contiguous_strides(source.sizes()), source.storage_offset());
  if (broken(Switch::copy_ignores_offset) && source.storage_offset() && source.numel())
    return source.as_strided(source.sizes(), source.strides(), 0);
  return source;
}

void copy_on_device(const Tensor& self, const Tensor& dst) {
  // A copy between devices is ordered with the current streams of both devices.
  Launch launch(self.device().index());
  bool peers = self.device() != dst.device();
  auto& other = timeline().state(timeline().current(dst.device().index()));
  if (peers) timeline().order(launch.stream(), other);
  auto from = launch.read(self);
  auto to = launch.write(dst);
  to.copy_(laid_out(from));
  launch.end();
  if (peers) timeline().order(other, launch.stream());
  ++counters().device_to_device;
  if (auto* graph = capturing(self.device().index())) {
    auto read = range_of(self), written = range_of(dst);
    auto from_raw = raw_alias(self), to_raw = raw_alias(dst);
    graph->add([=, device = self.device().index()]() mutable {
      Launch step(device);
      step.reads(read);
      step.writes(written);
      BelowEverything guard;
      to_raw.copy_(from_raw);
      if (!step.all_reads_ordered()) step.wrote(written);
      step.end();
    });
  }
}

// The program must not change the source of an asynchronous copy from pinned memory before the copy is complete.
void watch_source(const Tensor& host, const Tensor& dst, StreamState& stream) {
  auto source = host.detach();
  auto snapshot = source.contiguous().clone();
  auto range = range_of(dst);
  auto check = [source, snapshot, range, key = stream.key, seq = stream.seq, generation = range.block->generation] {
    BelowEverything guard;
    auto now = source.contiguous();
    if (std::memcmp(now.const_data_ptr(), snapshot.const_data_ptr(), snapshot.nbytes()) == 0) return;
    if (range.block->generation == generation && range.block->data)
      std::memset(range.block->data + range.lo, kPoison, range.hi - range.lo);
    spoil_results(key, seq);
  };
  timeline().defer({stream.key, stream.seq, const_cast<void*>(first_byte(source)), host.nbytes(), check, [] {}});
}

void copy_to_device(const Tensor& host, const Tensor& dst, bool non_blocking) {
  auto device = dst.device().index();
  auto* graph = capturing(device);
  if (!non_blocking) refuse_in_capture(device, "a blocking copy from the host");
  Launch launch(device);
  {
    Guard lock(simulator_mutex());
    if (host.numel()) timeline().settle_host_range(first_byte(host), host.nbytes());
  }
  auto to = launch.write(dst);
  to.copy_(laid_out(host));
  if (non_blocking && to.numel() && broken(Switch::copy_h2d_poison, launch.device(), launch.stream().id)) launch.wrote(range_of(dst));
  launch.end();
  ++counters().host_to_device;
  Guard lock(simulator_mutex());
  if (graph) {
    auto written = range_of(dst);
    graph->add([=, to_raw = raw_alias(dst)]() mutable {
      Launch step(device);
      step.writes(written);
      BelowEverything guard;
      to_raw.copy_(host);
      step.end();
    });
  } else if (!non_blocking) {
    timeline().host_sync(launch.stream());
  } else if (host.numel() && pinned().contains(host.storage().data())) {
    watch_source(host, dst, launch.stream());
  }
}

void copy_to_host(const Tensor& self, const Tensor& host, bool non_blocking) {
  auto device = self.device().index();
  refuse_in_capture(device, "a copy to the host");
  Launch launch(device);
  auto from = laid_out(launch.read(self));
  launch.end();
  Guard lock(simulator_mutex());
  ++counters().device_to_host;
  if (host.numel()) timeline().settle_host_range(first_byte(host), host.nbytes());
  if (!non_blocking || host.numel() == 0) {
    host.copy_(from);
    timeline().host_sync(launch.stream());
    return;
  }
  // The host's buffer holds poison until the host is ordered after the copy, pinned or not.
  auto snapshot = at::empty_like(host, host.options(), at::MemoryFormat::Contiguous);
  snapshot.copy_(from.expand(host.sizes()));
  auto junk = at::empty_like(snapshot);
  std::memset(junk.mutable_data_ptr(), kPoison, junk.nbytes());
  auto target = host.detach();
  target.copy_(junk);
  auto finish = [target, snapshot] {
    BelowEverything guard;
    target.copy_(snapshot);
  };
  auto spoil = [snapshot] { std::memset(snapshot.mutable_data_ptr(), kPoison, snapshot.nbytes()); };
  timeline().defer({launch.stream().key, launch.stream().seq, target.mutable_data_ptr(), host.nbytes(), finish, spoil});
}

Tensor copy_from(const Tensor& self, const Tensor& dst, bool non_blocking) {
  BelowEverything guard;
  count("aten::_copy_from");
  if (self.numel() == 0 && dst.numel() == 0) return dst;
  if (self.is_privateuseone() && dst.is_privateuseone()) {
    copy_on_device(self, dst);
  } else if (self.is_privateuseone()) {
    copy_to_host(self, dst, non_blocking);
  } else {
    copy_to_device(self, dst, non_blocking);
  }
  return dst;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  BelowEverything guard;
  auto device = self.device().index();
  refuse_in_capture(device, "reading a value on the host");
  count("aten::_local_scalar_dense");
  Launch launch(device);
  auto value = at::native::_local_scalar_dense_cpu(launch.read(self));
  launch.end();
  Guard lock(simulator_mutex());
  ++counters().device_to_host;
  timeline().host_sync(launch.stream());
  if (broken(Switch::kernels_give_zeros)) return at::zeros({}, self.options().device(at::kCPU)).item();
  if (broken(Switch::item_truncates) && value.isFloatingPoint()) return at::Scalar(std::trunc(value.toDouble()));
  return value;
}

// --- recurrent cells: PyTorch dispatches them to devices only, so the host has no kernel for them ---------------

Tensor with_bias(const Tensor& gates, const std::optional<Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(
    const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx, const std::optional<Tensor>& input_bias,
    const std::optional<Tensor>& hidden_bias) {
  auto g = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  auto i = g[0].sigmoid(), f = g[1].sigmoid(), c = g[2].tanh(), o = g[3].sigmoid();
  auto cy = f * cx + i * c;
  return {o * cy.tanh(), cy, at::cat({i, f, c, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(
    const std::optional<Tensor>& grad_hy, const std::optional<Tensor>& grad_cy, const Tensor& cx, const Tensor& cy,
    const Tensor& workspace, bool has_bias) {
  auto g = workspace.chunk(4, 1);
  auto &i = g[0], &f = g[1], &c = g[2], &o = g[3];
  auto t = cy.tanh();
  auto gh = grad_hy && grad_hy->defined() ? *grad_hy : at::zeros_like(cy);
  auto gc = gh * o * (1 - t * t);
  if (grad_cy && grad_cy->defined()) gc = gc + *grad_cy;
  auto gates = at::cat(
      {gc * c * i * (1 - i), gc * cx * f * (1 - f), gc * i * (1 - c * c), gh * t * o * (1 - o)}, 1);
  return {gates, gc * f, has_bias ? gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(
    const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx, const std::optional<Tensor>& input_bias,
    const std::optional<Tensor>& hidden_bias) {
  auto x = with_bias(input_gates, input_bias).chunk(3, 1);
  auto h = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  auto r = (x[0] + h[0]).sigmoid(), z = (x[1] + h[1]).sigmoid();
  auto n = (x[2] + r * h[2]).tanh();
  return {(hx - n) * z + n, at::cat({r, z, n, hx, h[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(
    const Tensor& grad, const Tensor& workspace, bool has_bias) {
  auto w = workspace.chunk(5, 1);
  auto &r = w[0], &z = w[1], &n = w[2], &hx = w[3], &hn = w[4];
  auto gn = grad * (1 - z) * (1 - n * n);
  auto gr = gn * hn * r * (1 - r);
  auto gz = grad * (hx - n) * z * (1 - z);
  auto input = at::cat({gr, gz, gn}, 1);
  auto hidden = at::cat({gr, gz, gn * r}, 1);
  return {input, hidden, grad * z, has_bias ? input.sum(0) : Tensor(), has_bias ? hidden.sum(0) : Tensor()};
}

}  // namespace

void boxed_fallback(const c10::OperatorHandle& op, Stack* stack) { fallback(op, stack); }

}  // namespace sim

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&sim::boxed_fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", sim::empty);
  m.impl("empty_strided", sim::empty_strided);
  m.impl("_efficientzerotensor", sim::efficient_zero);
  m.impl("as_strided", sim::as_strided);
  m.impl("view", sim::view);
  m.impl("_reshape_alias", sim::reshape_alias);
  m.impl("resize_", sim::resize_);
  m.impl("set_.source_Storage_storage_offset", sim::set_storage);
  m.impl("set_.source_Storage", sim::set_whole_storage);
  m.impl("set_.source_Tensor", sim::set_tensor);
  m.impl("set_", sim::set_empty);
  m.impl("record_stream", sim::record_stream);
  m.impl("_has_compatible_shallow_copy_type", sim::has_compatible_shallow_copy_type);
  m.impl("_copy_from", sim::copy_from);
  m.impl("_copy_from_and_resize", sim::copy_from_and_resize);
  m.impl("_local_scalar_dense", sim::local_scalar_dense);
  m.impl("_thnn_fused_lstm_cell", sim::lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", sim::lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", sim::gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", sim::gru_cell_backward);
  // Their composite kernels look for a device library or decompose. The host's own choice of algorithm is needed.
  for (auto* name :
       {"convolution", "convolution_backward", "native_layer_norm", "native_group_norm", "addr", "addr.out", "mode.values",
        "silu_backward", "mish_backward", "_conj_physical", "conj_physical_", "conj_physical.out"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&sim::boxed_fallback>());
  }
}

// Copies resolve conjugation and negation themselves. PyTorch's fallback would materialize first, which calls the copy
// again without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
