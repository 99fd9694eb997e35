// The interfaces that PyTorch calls: device guard (streams, events), hooks, allocators.
#include <Python.h>
#include <unistd.h>

#include <exception>

#include <ATen/core/GraphImplInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "launch.h"
#include "memory.h"
#include "random.h"
#include "timeline.h"

namespace sim {

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

// The dtypes that PyTorch converts on the host. Quantized ones, and those of less than a byte, are none.
bool converts(c10::ScalarType dtype) {
  using enum c10::ScalarType;
  switch (dtype) {
    case Byte: case Char: case Short: case Int: case Long: case UInt16: case UInt32: case UInt64: case Bool:
    case Half: case BFloat16: case Float: case Double: case ComplexHalf: case ComplexFloat: case ComplexDouble:
    case Float8_e5m2: case Float8_e4m3fn: case Float8_e5m2fnuz: case Float8_e4m3fnuz: case Float8_e8m0fnu:
      return true;
    default:
      return false;
  }
}

bool stores(c10::ScalarType dtype) {
  return converts(dtype) && (config().dtypes.empty() || config().dtypes.count(dtype) > 0);
}

struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }

  c10::Device exchangeDevice(c10::Device device) const override {
    auto old = getDevice();
    set_current_device(device.index());
    return old;
  }
  c10::Device getDevice() const override { return {kType, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < config().devices) set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(config().devices); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override;

  c10::Stream getStream(c10::Device device) const override { return timeline().current(device.index()); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return Timeline::handle(device.index() < 0 ? current_device() : device.index(), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return timeline().fresh(device.index()); }
  c10::Stream getNewStream(c10::Device device, int) const override { return timeline().fresh(device.index()); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return timeline().exchange(stream); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &timeline().state(stream); }
  bool isStreamCapturing(const c10::Stream& stream) const override { return capturing(stream.device_index()) != nullptr; }

  bool queryStream(const c10::Stream& stream) const override {
    Guard lock(simulator_mutex());
    refuse_in_capture(stream.device_index(), "querying a stream");
    auto& state = timeline().state(stream);
    if (state.seq == 0 || broken(Switch::stream_query_true, state.device, state.id)) return true;
    return timeline().poll(state.clock, state.key, state.seq, state.busy_until);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    require_context();
    {
      Guard lock(simulator_mutex());
      refuse_in_capture(stream.device_index(), "synchronizing a stream");
      timeline().host_sync(timeline().state(stream));
    }
    memory().release_finished();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    require_context();
    {
      Guard lock(simulator_mutex());
      refuse_in_capture(device, "synchronizing the device");
      timeline().host_sync_device(device < 0 ? current_device() : device);
    }
    memory().release_finished();
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    Guard lock(simulator_mutex());
    if (!*event) *event = new EventState();
    timeline().record(*static_cast<EventState*>(*event), timeline().state(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (!event) return;
    Guard lock(simulator_mutex());
    timeline().wait(timeline().state(stream), *static_cast<EventState*>(event));
  }
  bool queryEvent(void* event) const override {
    if (!event) return true;
    Guard lock(simulator_mutex());
    auto& state = *static_cast<EventState*>(event);
    if (broken(Switch::event_query_true, state.device, state.stream % kStreamsPerDevice)) return true;
    refuse_in_capture(state.device, "querying an event");
    return timeline().poll(state.clock, state.stream, state.seq, state.time);
  }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    require_context();
    Guard lock(simulator_mutex());
    refuse_in_capture(static_cast<EventState*>(event)->device, "synchronizing an event");
    timeline().host_sync(*static_cast<EventState*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<EventState*>(event); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    auto ms = static_cast<double>(static_cast<EventState*>(second)->time - static_cast<EventState*>(first)->time) / 1e6;
    auto device = static_cast<EventState*>(first)->device;
    if (broken(Switch::event_elapsed_constant, device)) return switches().value(Switch::event_elapsed_constant);
    return broken(Switch::event_elapsed_scale, device) ? ms * switches().value(Switch::event_elapsed_scale) : ms;
  }
  void recordDataPtrOnStream(const c10::DataPtr& ptr, const c10::Stream& stream) const override {
    memory().recordStream(ptr, stream);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return config().devices > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    auto old = current_device();
    set_current_device(device);
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device() : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }
  c10::Device getDeviceFromPtr(void* data) const override {
    Guard lock(simulator_mutex());
    auto* block = memory().find(data);
    TORCH_CHECK(block, "the pointer does not belong to ", config().device);
    return {kType, block->device};
  }
  bool isPinnedPtr(const void* data) const override { return pinned().contains(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override;
};

// The claim of torch.accelerator.get_device_capability(): what the device stores and converts.
c10::DeviceCapability DeviceGuard::getDeviceCapability(c10::Device) const {
  c10::DeviceCapability capability;
  auto& bits = capability.capability_data.capability_bits;
  bits = 0;
#define SIM_STORES(_, name) \
  if (stores(c10::ScalarType::name)) bits |= 1ULL << c10::kIndex_##name;
  AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(SIM_STORES)
#undef SIM_STORES
  return capability;
}

// torch.accelerator.Graph: the device's own graphs behind PyTorch's interface.
struct GraphOfPyTorch final : at::GraphImplInterface {
  explicit GraphOfPyTorch(const at::GraphImplArgs&) {}
  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode) override { graph_.begin(pool.second); }
  void capture_end() override { graph_.end(); }
  void instantiate() override {}
  void replay() override { graph_.replay(); }
  void reset() override { graph_.reset(); }
  c10::MempoolId_t pool() const override { return {0, graph_.pool()}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, config().device, ": graphs have no debug output");
  }

 private:
  Graph graph_;
};

}  // namespace

// The registry's key is the device's name, which exists once the device is renamed.
void register_graphs() {
  auto key = c10::DeviceTypeName(kType, false);
  if (at::GraphImplRegistry()->Has(key)) return;
  at::GraphImplRegistry()->Register(
      key, [](const at::GraphImplArgs& args) -> std::unique_ptr<at::GraphImplInterface> { return std::make_unique<GraphOfPyTorch>(args); });
}

void Hooks::resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const {
  auto fresh = memory().allocate_on(storage.device().index(), bytes, true);
  auto kept = std::min(bytes, storage.nbytes());
  Guard lock(simulator_mutex());
  if (kept && !broken(Switch::storage_resize_loses_data)) {
    auto& stream = timeline().state(timeline().current(storage.device().index()));
    timeline().launch(stream);
    bool ordered = record_read({memory().find(storage.data_ptr()), 0, kept}, stream);
    record_write({memory().find(fresh), 0, kept}, stream);
    timeline().finish(stream, static_cast<double>(2 * kept), 0);
    if (ordered) std::memcpy(fresh.get(), storage.data(), kept);
  }
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

// Autograd's device threads take Python's lock once more when they end. If the interpreter is already finalized, Python
// unwinds the thread inside a noexcept function, and the process aborts at exit. Every PrivateUse1 device has this race
// with Python < 3.12. The handler below puts such a thread to sleep instead.
void survive_exit() {
  static std::terminate_handler before = std::set_terminate([] {
    while (!std::current_exception() && !Py_IsInitialized()) ::pause();
    while (!std::current_exception() && _Py_IsFinalizing()) ::pause();
    before();
    std::abort();
  });
}

void register_device() {
  static bool done = false;
  if (done) return;
  done = true;
  c10::impl::registerDeviceGuard(kType, new DeviceGuard());
  c10::SetAllocator(kType, &memory());
  at::setHostAllocator(kType, &pinned());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  survive_exit();
}

}  // namespace sim
