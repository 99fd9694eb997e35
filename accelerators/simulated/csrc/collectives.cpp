// Collectives. PyTorch's host backend (gloo) works on host views of device memory, in its own threads. On the device,
// collectives run on a separate stream: a program that uses a result without wait() reads poison.
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <optional>

#include "fallback.h"

namespace sim {

namespace {

// An output in another layout, and the contiguous copy that gloo writes to.
struct CopyBack {
  at::Tensor output;
  at::Tensor copy;
};

// gloo's point-to-point work accepts one wait() only: a second one waits for a second message.
class WaitedOnce {
 public:
  WaitedOnce(c10::intrusive_ptr<c10d::Work> inner, std::vector<CopyBack> copies)
      : inner_(std::move(inner)), copies_(std::move(copies)) {}

  // PyTorch calls get_future() with Python's lock held, and gloo's threads take that lock to free Python's objects.
  void wait(std::chrono::milliseconds timeout = kNoTimeout) {
    std::optional<pybind11::gil_scoped_release> unlocked;
    if (Py_IsInitialized() && PyGILState_Check()) unlocked.emplace();
    std::lock_guard<std::mutex> turn(mutex_);
    if (done_) return;
    inner_->wait(timeout);
    end();
  }
  // Never blocks. While another thread waits, the work is not finished.
  bool finished() {
    std::unique_lock<std::mutex> turn(mutex_, std::try_to_lock);
    if (!turn.owns_lock()) return false;
    if (!done_ && inner_->isCompleted() && !copies_.empty() && inner_->isSuccess()) end();
    return done_ || inner_->isCompleted();
  }
  c10d::Work& inner() { return *inner_; }

 private:
  void end() {
    // A mode of the thread that waits must not see these copies.
    c10::impl::ExcludeDispatchKeyGuard no_python(
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
    at::AutoDispatchBelowADInplaceOrView below;
    for (auto& each : copies_) each.output.copy_(each.copy);
    copies_.clear();
    done_ = true;
  }

  c10::intrusive_ptr<c10d::Work> inner_;
  std::vector<CopyBack> copies_;
  std::mutex mutex_;
  bool done_ = false;
};

class CollectiveWork final : public c10d::Work {
 public:
  CollectiveWork(std::shared_ptr<WaitedOnce> inner, c10::DeviceIndex device, std::vector<at::Tensor> outputs)
      : inner_(std::move(inner)), device_(device), outputs_(std::move(outputs)) {
    auto& comm = timeline().state(device, kCommStream);
    done_.stream = comm.key;
    done_.seq = comm.seq;
    done_.clock = comm.clock;
    done_.time = comm.busy_until;
    done_.device = device;
  }

  bool isCompleted() override { return inner_->inner().isCompleted(); }
  bool isSuccess() const override { return inner_->inner().isSuccess(); }
  std::exception_ptr exception() const override { return inner_->inner().exception(); }
  int sourceRank() const override { return inner_->inner().sourceRank(); }
  std::vector<at::Tensor> result() override { return outputs_; }
  void synchronize() override { order_current_stream(); }
  bool wait(std::chrono::milliseconds timeout) override {
    inner_->wait(timeout);
    order_current_stream();
    return true;
  }
  void blockCurrentStream() override { wait(kNoTimeout); }
  void abort() override { inner_->inner().abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    // A future's callbacks run on any thread. The wait is therefore here, on the caller's stream.
    wait(kNoTimeout);
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(outputs_));
    return future;
  }

 private:
  void order_current_stream() {
    if (broken(Switch::comm_wait_ignored, device_)) return;
    Guard lock(simulator_mutex());
    timeline().wait(timeline().state(timeline().current(device_)), done_);
  }

  std::shared_ptr<WaitedOnce> inner_;
  c10::DeviceIndex device_;
  std::vector<at::Tensor> outputs_;
  EventState done_;
};

// gloo may keep the view after the device tensor was freed.
at::Tensor owning_alias(const at::Tensor& tensor) {
  auto* keep = new c10::Storage(tensor.storage());
  c10::DataPtr data(
      const_cast<void*>(tensor.storage().data()), keep, [](void* s) { delete static_cast<c10::Storage*>(s); },
      c10::Device(c10::DeviceType::CPU));
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(), std::move(data), nullptr, false));
  return raw_alias(tensor).set_(std::move(storage), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

// gloo takes some tensors with gaps, or in another order, for contiguous ones (pytorch #192920). It gets copies of them.
at::Tensor for_gloo(const at::Tensor& tensor, bool write, std::vector<CopyBack>& copies) {
  if (!tensor.is_privateuseone()) return tensor;
  auto alias = owning_alias(tensor);
  if (alias.is_contiguous()) return alias;
  at::AutoDispatchBelowADInplaceOrView below;
  auto copy = alias.contiguous();
  if (write) copies.push_back({alias, copy});
  return copy;
}

// c10d's schemas do not mark written arguments. All operators write their first one, except send and barriers.
bool writes_first(const std::string& name) {
  return name != "c10d::send" && name != "c10d::barrier" && name != "c10d::monitored_barrier_" && name != "c10d::check_for_nan";
}

struct Collective {
  std::vector<std::pair<Range, bool>> ranges;
  std::vector<at::Tensor> outputs;
  std::optional<c10::DeviceIndex> device;
};

Collective look_at(const OpProfile& profile, at::ArrayRef<c10::IValue> arguments) {
  Collective seen;
  for (size_t i = 0; i < arguments.size(); ++i) {
    bool write = i == 0 && writes_first(profile.name);
    for_each_tensor(arguments[i], [&](const at::Tensor& t) {
      if (!t.defined() || !t.is_privateuseone()) return;
      seen.device = t.device().index();
      seen.ranges.emplace_back(range_of(t), write);
      if (write) seen.outputs.push_back(t);
    });
  }
  return seen;
}

c10::intrusive_ptr<c10d::Work> work_of(const c10::IValue& value) { return value.toCustomClass<c10d::Work>(); }

bool is_work(const c10::IValue& value) {
  return value.isObject() || value.isCapsule() ? value.isCustomClass() : false;
}

void run_collective(const c10::OperatorHandle& op, const OpProfile& profile, Stack& stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  auto kernel = [&op](Stack& s) { op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &s); };
  const auto* around = around_of(profile);
  if (!around) return kernel(stack);
  // A fault gets the finished result and may change it.
  (*around)(profile, stack, [&](Stack& s) {
    kernel(s);
    for (auto& value : s) {
      if (is_work(value)) work_of(value)->wait();
    }
  });
}

}  // namespace

void collective(const c10::OperatorHandle& op, Stack* stack) {
  memory().release_finished();
  const auto& profile = profile_of(op);
  auto count = op.schema().arguments().size();
  auto arguments = torch::jit::last(*stack, count);
  std::vector<c10::IValue> originals(arguments.begin(), arguments.end());
  auto seen = look_at(profile, arguments);
  auto device = seen.device.value_or(current_device());
  refuse_in_capture(device, "a collective");
  auto& comm = timeline().state(device, kCommStream);
  {
    Guard lock(simulator_mutex());
    ++*profile.calls;
    timeline().order(comm, timeline().state(timeline().current(device)));
  }
  Launch launch(device, comm);
  launch.named(profile.name.c_str());
  for (auto& [range, write] : seen.ranges) {
    // An unordered input makes the results of all ranks wrong. There is only one buffer, so it is poisoned in place.
    if (!(write ? launch.writes(range) : launch.reads(range))) std::memset(range.block->data + range.lo, kPoison, range.hi - range.lo);
  }
  launch.end();
  std::vector<CopyBack> copies;
  for (size_t i = 0; i < count; ++i) {
    auto& value = (*stack)[stack->size() - count + i];
    bool write = i == 0 && writes_first(profile.name);
    value = map_tensors(value, [&](const at::Tensor& t) { return for_gloo(t, write, copies); });
  }

  try {
    run_collective(op, profile, *stack);
  } catch (...) {
    // gloo refused the collective, so nothing will write the announced ranges. Later users of the memory need no wait.
    Guard lock(simulator_mutex());
    timeline().order(timeline().state(timeline().current(device)), comm);
    throw;
  }

  auto returns = op.schema().returns().size();
  for (size_t i = stack->size() - returns; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (!is_work(value)) {
      value = originals[0];
      continue;
    }
    auto inner = std::make_shared<WaitedOnce>(work_of(value), copies);
    Guard lock(simulator_mutex());
    for (auto& [range, write] : seen.ranges) {
      if (!range.block) continue;
      memory().hold(range.block, {range.lo, range.hi, write, [inner] { inner->wait(); }, [inner] { return inner->finished(); }});
    }
    value = c10::IValue(c10::static_intrusive_pointer_cast<c10d::Work>(
        c10::make_intrusive<CollectiveWork>(inner, device, seen.outputs)));
  }
}

struct SilentWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// PyTorch's own kernels for these operators pass device tensors to the backend. Ours replace them. PyTorch warns about
// each replacement; the warnings are suppressed, because no user can act on them.
void register_collectives() {
  static auto* library = new torch::Library(
      torch::Library::IMPL, "c10d", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  SilentWarnings silent;
  c10::WarningUtils::WarningHandlerGuard quiet(&silent);
  static const char* names[] = {
      "broadcast_", "allreduce_", "allreduce_coalesced_", "allgather_", "_allgather_base_", "allgather_coalesced_",
      "allgather_into_tensor_coalesced_", "reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_",
      "reduce_", "gather_", "scatter_", "alltoall_", "alltoall_base_", "send", "recv_", "recv_any_source_", "barrier"};
  for (auto* name : names) library->impl(name, torch::CppFunction::makeFromBoxedFunction<&collective>());
}

}  // namespace sim
