#include "fallback.h"

#include <ATen/core/List.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "random.h"

namespace sim {

namespace {

// Operators whose host kernels (and CUDA's) accept host tensors of any shape together with device tensors.
const std::unordered_set<std::string> kTakesHostTensors = {
    "aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put", "aten::_unsafe_index",
    "aten::_unsafe_index_put", "aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_foreach_add_",
    "aten::_fused_adagrad_", "aten::repeat_interleave", "aten::_pack_padded_sequence", "aten::bincount"};

bool is_device(const at::Tensor& t) { return t.defined() && t.is_privateuseone(); }

std::unordered_map<const void*, std::unique_ptr<OpProfile>>& profiles() {
  static auto* instance = new std::unordered_map<const void*, std::unique_ptr<OpProfile>>();
  return *instance;
}

std::unique_ptr<OpProfile> make_profile(const c10::OperatorHandle& op) {
  auto profile = std::make_unique<OpProfile>();
  const auto& schema = op.schema();
  profile->name = schema.name();
  profile->overload_name = schema.overload_name();
  profile->overload = schema.name() + "." + (schema.overload_name().empty() ? "default" : schema.overload_name());
  profile->draws = op.hasTag(at::Tag::nondeterministic_seeded);
  profile->takes_host_tensors = kTakesHostTensors.count(schema.name()) > 0;
  profile->missing = config().missing.count(schema.name()) > 0;
  profile->calls = &counters().ops[schema.name()];
  for (const auto& argument : schema.arguments()) {
    profile->argument_types.push_back(argument.type());
    profile->writes.push_back(argument.alias_info() && argument.alias_info()->isWrite());
    if (argument.type()->str().find("Generator") != std::string::npos) {
      profile->generator = static_cast<int>(profile->writes.size()) - 1;
    }
  }
  for (const auto& ret : schema.returns()) {
    profile->return_types.push_back(ret.type());
    int index = -1;
    if (ret.alias_info() && ret.alias_info()->isWrite()) {
      for (size_t i = 0; i < schema.arguments().size() && index < 0; ++i) {
        const auto* info = schema.arguments()[i].alias_info();
        if (info && info->isWrite() && info->beforeSets() == ret.alias_info()->beforeSets()) index = static_cast<int>(i);
      }
    } else if (ret.alias_info()) {
      profile->is_view = true;
    }
    profile->returns.push_back(index);
  }
  return profile;
}

struct Devices {
  std::optional<c10::DeviceIndex> index;
  bool host_tensor = false;

  void see(const at::Tensor& t) {
    if (!t.defined()) return;
    if (is_device(t)) {
      TORCH_CHECK(
          !index || *index == t.device().index(), "Expected all tensors to be on the same device, but found at least two devices, ",
          config().device, ":", int(index.value_or(0)), " and ", config().device, ":", int(t.device().index()), "!");
      index = t.device().index();
    } else if (t.is_cpu() && t.dim() > 0) {
      host_tensor = true;
    }
  }
};

c10::DeviceIndex device_of(const OpProfile& profile, at::ArrayRef<c10::IValue> arguments) {
  Devices devices;
  std::optional<c10::DeviceIndex> asked;
  for (size_t i = 0; i < arguments.size(); ++i) {
    for_each_tensor(arguments[i], [&](const at::Tensor& t) {
      devices.see(t);
      TORCH_CHECK(
          !profile.writes[i] || !t.defined() || is_device(t) || profile.takes_host_tensors,
          "Expected all tensors to be on the same device, but found at least two devices, ", config().device, " and ", t.device(),
          "!");
    });
    if (arguments[i].isDevice() && arguments[i].toDevice().is_privateuseone()) asked = arguments[i].toDevice().index();
  }
  TORCH_CHECK(
      !devices.host_tensor || !devices.index || profile.takes_host_tensors,
      "Expected all tensors to be on the same device, but found at least two devices, ", config().device, ":",
      int(devices.index.value_or(0)), " and cpu! (", profile.name, ")");
  auto chosen = devices.index ? devices.index : asked;
  return chosen && *chosen >= 0 ? *chosen : current_device();
}

// Only for matrix products the time is not proportional to the number of bytes.
double flops_of(const OpProfile& profile, at::ArrayRef<c10::IValue> inputs, const Stack& outputs) {
  bool conv = profile.name == "aten::convolution_overrideable" || profile.name == "aten::_slow_conv2d_forward";
  if (!conv && profile.name.find("mm") == std::string::npos) return 0;
  if (outputs.empty() || !outputs[0].isTensor() || inputs.size() < 2 || !inputs[1].isTensor()) return 0;
  const auto& right = inputs[1].toTensor();
  if (!right.defined() || right.dim() < 2) return 0;
  auto inner = conv ? right.numel() / std::max<int64_t>(1, right.size(0)) : right.size(-2);
  return 2.0 * static_cast<double>(outputs[0].toTensor().numel()) * static_cast<double>(inner);
}

// A host kernel may resize an out= argument. Gives the device tensor the same shape and, if needed, more memory.
void follow_resize(Launch& launch, const at::Tensor& tensor, const at::Tensor& alias) {
  const auto& host = alias.storage();
  auto* impl = tensor.unsafeGetTensorImpl();
  if (host.data() != tensor.storage().data()) {
    auto data = memory().allocate_on(launch.device(), host.nbytes(), false);
    if (host.nbytes()) std::memcpy(data.get(), host.data(), host.nbytes());
    if (auto* block = memory().find(data)) launch.writes({block, 0, host.nbytes()});
    tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    tensor.storage().unsafeGetStorageImpl()->set_nbytes(host.nbytes());
  }
  if (alias.is_conj() != tensor.is_conj()) impl->_set_conj(alias.is_conj());
  if (alias.is_neg() != tensor.is_neg()) impl->_set_neg(alias.is_neg());
  if (!alias.sizes().equals(tensor.sizes()) || !alias.strides().equals(tensor.strides())) {
    impl->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
  }
}

struct Call {
  const OpProfile& profile;
  Launch launch;
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;          // device tensor, its host view
  std::vector<std::pair<at::Tensor, at::Tensor>> written;
  std::vector<std::pair<Range, bool>> accesses;                   // for replay: the range, and whether it is written
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages;
  std::unordered_set<const c10::TensorImpl*> also_written;         // tensors that some argument writes

  at::Tensor host_view(const at::Tensor& t, bool write) {
    if (!is_device(t)) return t;
    // x.add_(y) passes x twice, as input and as output. Host kernels check whether both are the same tensor.
    write = write || also_written.count(t.unsafeGetTensorImpl()) > 0;
    for (const auto& [tensor, alias] : pairs) {
      if (tensor.is_same(t)) return alias;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        t.layout() == c10::kStrided, profile.name, " is not implemented for ", t.layout(), " tensors on ", config().device);
    // A tangent that autograd lacks has no memory. PyTorch hands it to the kernels of dot and vdot as it is.
    if (t._is_zerotensor() && !profile.is_view) return at::zeros(t.sizes(), t.options().device(at::kCPU));
    if (capturing(launch.device())) accesses.emplace_back(range_of(t), write);
    bool ordered = profile.is_view || (write ? launch.writes(range_of(t)) : launch.reads(range_of(t)));
    auto alias = ordered || write ? alias_on(t, storage_under(t)) : poison_like(t);
    pairs.emplace_back(t, alias);
    if (write) written.emplace_back(t, alias);
    return alias;
  }

  c10::Storage storage_under(const at::Tensor& t) {
    auto* storage = t.storage().unsafeGetStorageImpl();
    for (const auto& [device, host] : storages) {
      if (device == storage) return host;
    }
    // The storage of a written tensor may have to grow.
    storages.emplace_back(storage, host_storage(t.storage(), !also_written.empty()));
    return storages.back().second;
  }

  // A tensor that grew during the capture has other memory than its host view. Replays have to write into that memory.
  void replay_into(const at::Tensor& tensor, const at::Tensor& old, Stack& replay) {
    auto grown = raw_alias(tensor);
    for (auto& value : replay) {
      value = map_tensors(value, [&](const at::Tensor& t) { return t.is_same(old) ? grown : t; });
    }
    accesses.emplace_back(range_of(tensor), true);
  }

  at::Tensor device_view(const at::Tensor& result) {
    if (!result.defined() || !result.is_cpu()) return result;
    TORCH_CHECK_NOT_IMPLEMENTED(
        result.layout() == c10::kStrided, profile.name, " would give a ", result.layout(), " tensor, which ", config().device,
        " does not implement");
    for (const auto& [tensor, alias] : pairs) {
      if (alias.storage().unsafeGetStorageImpl() != result.storage().unsafeGetStorageImpl()) continue;
      auto view = at::detail::make_tensor<c10::TensorImpl>(
          c10::TensorImpl::VIEW, c10::Storage(tensor.storage()), tensor.key_set(), result.dtype());
      view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
      return view;
    }
    auto fresh = launch.adopt(result);
    pairs.emplace_back(fresh, result);   // several results may share one storage
    return fresh;
  }
};

void host_arguments(Call& call, Stack& stack, size_t count) {
  const auto& profile = call.profile;
  auto first = stack.size() - count;
  for (size_t i = 0; i < count; ++i) {
    if (!profile.writes[i]) continue;
    for_each_tensor(stack[first + i], [&](const at::Tensor& t) { call.also_written.insert(t.unsafeGetTensorImpl()); });
  }
  for (size_t i = 0; i < count; ++i) {
    auto& value = stack[first + i];
    if (static_cast<int>(i) == profile.generator) {
      auto given = value.isNone() ? default_generator(call.launch.device()) : value.toGenerator();
      value = host_generator_of(given);
    } else if (value.isDevice()) {
      value = c10::Device(c10::DeviceType::CPU);
    } else {
      value = map_tensors(value, [&](const at::Tensor& t) { return call.host_view(t, profile.writes[i]); });
    }
  }
}

// A captured operator that runs again on the addresses of the capture.
struct ReplayStep {
  c10::OperatorHandle op;
  const OpProfile* profile;
  Stack stack;
  std::vector<std::pair<Range, bool>> accesses;
  std::vector<at::Tensor> results;
  c10::DeviceIndex device;

  void operator()() const {
    Launch launch(device);
    launch.named(profile->name.c_str());
    for (const auto& [range, write] : accesses) write ? launch.writes(range) : launch.reads(range);
    Stack copy = stack;
    run_on_host(op, *profile, copy, device);
    std::vector<at::Tensor> fresh;
    for (const auto& value : copy) for_each_tensor(value, [&](const at::Tensor& t) { if (t.defined()) fresh.push_back(t); });
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i].defined() || i >= fresh.size()) continue;
      auto* block = memory().find(results[i].storage().data());
      auto bytes = results[i].storage().nbytes();
      launch.writes({block, 0, bytes});
      at::NoGradGuard no_grad;
      std::memcpy(const_cast<void*>(results[i].storage().data()), fresh[i].storage().data(), std::min(bytes, fresh[i].storage().nbytes()));
      if (!launch.all_reads_ordered()) launch.wrote({block, 0, bytes});
    }
    launch.end();
  }
};

void refuse(const OpProfile& profile) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "Could not run '", profile.name, "' with arguments from the '", config().device, "' backend: it is not implemented.");
}

}  // namespace

// An operator of a library that is gone leaves its address to the next one.
bool describes(const OpProfile& profile, const c10::FunctionSchema& schema) {
  return profile.name == schema.name() && profile.overload_name == schema.overload_name() &&
         profile.argument_types.size() == schema.arguments().size() && profile.returns.size() == schema.returns().size();
}

const OpProfile& profile_of(const c10::OperatorHandle& op) {
  static auto* outdated = new std::vector<std::unique_ptr<OpProfile>>();   // graphs still point to them
  Guard lock(simulator_mutex());
  auto& profile = profiles()[&op.schema()];
  if (profile && !describes(*profile, op.schema())) outdated->push_back(std::move(profile));
  if (!profile) profile = make_profile(op);
  return *profile;
}

void forget_profiles() {
  Guard lock(simulator_mutex());
  for (auto& [key, profile] : profiles()) profile->missing = config().missing.count(profile->name) > 0;
}

std::unordered_map<std::string, Around>& arounds() {
  static auto* instance = new std::unordered_map<std::string, Around>();
  return *instance;
}

const Around* around_of(const OpProfile& profile) {
  if (arounds().empty()) return nullptr;
  for (const auto* name : {&profile.overload, &profile.name}) {
    auto found = arounds().find(*name);
    if (found != arounds().end()) return &found->second;
  }
  return nullptr;
}

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (!value.isList() || value.isIntList() || value.isDoubleList() || value.isBoolList()) {
    return;
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorList()) visit(t);
  } else if (value.isList()) {
    for (const auto& item : value.toListRef()) for_each_tensor(item, visit);
  }
}

c10::IValue map_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& change) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(change(value.toTensor())) : value;
  if (!value.isList() || value.isIntList() || value.isDoubleList() || value.isBoolList()) return value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorList()) list.push_back(t.defined() ? change(t) : t);
    return list;
  }
  if (value.isList()) {
    auto old = value.toList();
    auto kind = old.elementType()->kind();
    if (kind != c10::TypeKind::OptionalType && kind != c10::TypeKind::ListType) return value;
    c10::impl::GenericList list(old.elementType());
    for (const c10::IValue& item : value.toListRef()) list.push_back(map_tensors(item, change));
    return list;
  }
  return value;
}

namespace {

// The results of a kernel that did nothing: zeros of the right shape, also in the tensors that it was to write.
void give_zeros(const OpProfile& profile, const std::vector<at::Tensor>& written, Stack& stack) {
  if (profile.is_view) return;  // the result is the argument's memory
  for (const auto& tensor : written) tensor.zero_();
  for (size_t i = stack.size() - profile.returns.size(); i < stack.size(); ++i) {
    auto& value = stack[i];
    if (value.isBool()) value = false;
    else if (value.isInt()) value = int64_t{0};
    else if (value.isDouble()) value = 0.0;
    else for_each_tensor(value, [](const at::Tensor& t) { if (t.defined()) t.zero_(); });
  }
}

std::vector<at::Tensor> written_tensors(const OpProfile& profile, const Stack& stack) {
  std::vector<at::Tensor> written;
  auto first = stack.size() - profile.writes.size();
  for (size_t i = 0; i < profile.writes.size(); ++i) {
    if (!profile.writes[i]) continue;
    for_each_tensor(stack[first + i], [&](const at::Tensor& t) { if (t.defined()) written.push_back(t); });
  }
  return written;
}

// Whether the lists of an optimizer, its first arguments, hold numbers of one dtype with 16 bits.
bool all_half(const OpProfile& profile, const Stack& stack) {
  std::unordered_set<c10::ScalarType> found;
  auto first = stack.size() - profile.argument_types.size();
  for (size_t i = 0; i < 3; ++i) for_each_tensor(stack[first + i], [&](const at::Tensor& t) { found.insert(t.scalar_type()); });
  return found.size() == 1 && c10::isReducedFloatingType(*found.begin());
}

// Runs a kernel on copies in float32, and rounds what it wrote.
void in_float32(const OpProfile& profile, Stack& stack, const Kernel& kernel) {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  auto first = stack.size() - profile.argument_types.size();
  for (size_t i = 0; i < 3; ++i) {
    stack[first + i] = map_tensors(stack[first + i], [&](const at::Tensor& t) {
      return copies.emplace_back(t, t.to(at::kFloat)).second;
    });
  }
  kernel(stack);
  for (const auto& [narrow, wide] : copies) narrow.copy_(wide);
}

}  // namespace

void run_on_host(const c10::OperatorHandle& op, const OpProfile& profile, Stack& stack, c10::DeviceIndex device) {
  // Python dispatch modes, the profiler and autocast do not see device kernels. They must not see these either.
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard hidden(c10::DispatchKeySet(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::AutocastCPU,
       c10::DispatchKey::AutocastPrivateUse1}));
  at::DisableRecordFunctionGuard unrecorded;
  std::optional<BorrowedHostGenerator> borrowed;
  if (profile.draws && profile.generator < 0) borrowed.emplace(device);
  auto redispatched = [&](Stack& s) {
    try {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &s);
    } catch (const c10::NotImplementedError&) {
      refuse(profile);
    }
  };
  auto kernel = [&](Stack& s) {
    // The host's kernel in torch 2.13 leaves whole blocks of numbers with 16 bits as they are (pytorch #191763).
    bool lossy = profile.name == "aten::_fused_sgd_" && all_half(profile, s);
    lossy ? in_float32(profile, s, redispatched) : redispatched(s);
  };
  if (broken(Switch::kernels_give_zeros)) {
    auto written = written_tensors(profile, stack);
    kernel(stack);
    return give_zeros(profile, written, stack);
  }
  const auto* around = around_of(profile);
  if (!around) return kernel(stack);
  (*around)(profile, stack, kernel);
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const auto& profile = profile_of(op);
  if (profile.missing) refuse(profile);
  auto count = op.schema().arguments().size();
  auto arguments = torch::jit::last(*stack, count);
  auto device = device_of(profile, arguments);
  ++*profile.calls;
  Call call{profile, Launch(device), {}, {}, {}, {}, {}};
  call.launch.named(profile.name.c_str());
  std::vector<c10::IValue> originals(arguments.begin(), arguments.end());
  host_arguments(call, *stack, count);
  auto* graph = profile.is_view ? nullptr : capturing(device);
  Stack replay = graph ? Stack(stack->end() - static_cast<int64_t>(count), stack->end()) : Stack();

  run_on_host(op, profile, *stack, device);

  auto first = stack->size() - profile.returns.size();
  auto flops = flops_of(profile, originals, Stack(stack->begin() + static_cast<int64_t>(first), stack->end()));
  std::vector<at::Tensor> fresh;
  for (size_t i = 0; i < profile.returns.size(); ++i) {
    auto& value = (*stack)[first + i];
    if (profile.returns[i] >= 0) {
      for_each_tensor(value, [&](const at::Tensor&) { fresh.emplace_back(); });
      value = originals[profile.returns[i]];
    } else {
      value = map_tensors(value, [&](const at::Tensor& t) {
        auto result = call.device_view(t);
        fresh.push_back(graph && is_device(result) ? raw_alias(result) : at::Tensor());
        return result;
      });
    }
  }
  for (const auto& [tensor, alias] : call.written) {
    follow_resize(call.launch, tensor, alias);
    if (graph && alias.storage().data() != tensor.storage().data()) call.replay_into(tensor, alias, replay);
  }
  call.launch.end(flops);
  if (graph) graph->add(ReplayStep{op, &profile, std::move(replay), std::move(call.accesses), std::move(fresh), device});
}

}  // namespace sim
