#include "random.h"

#include "timeline.h"

namespace sim {

namespace {

at::CPUGeneratorImpl& host_default() { return *at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>(); }

std::mutex& borrow_mutex() {
  static auto* instance = new std::mutex();
  return *instance;
}

}  // namespace

DeviceGenerator::DeviceGenerator(c10::DeviceIndex device, uint64_t seed)
    : c10::GeneratorImpl(
          c10::Device(c10::DeviceType::PrivateUse1, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      engine_(c10::make_intrusive<at::CPUGeneratorImpl>(seed)) {}

void DeviceGenerator::set_current_seed(uint64_t seed) {
  if (broken(Switch::rng_seed_ignored, device().index())) return;
  engine_->set_current_seed(seed);
  for (int i = 0; i < config().devices && broken(Switch::rng_seed_reaches_all, device().index()); ++i) {
    default_generator(static_cast<c10::DeviceIndex>(i)).get<DeviceGenerator>()->engine().set_current_seed(seed);
  }
  if (broken(Switch::rng_coupled_to_host)) host_default().set_current_seed(seed);
}

void DeviceGenerator::set_offset(uint64_t offset) { engine_->set_offset(offset); }
uint64_t DeviceGenerator::get_offset() const { return engine_->get_offset(); }
uint64_t DeviceGenerator::current_seed() const { return engine_->current_seed(); }
uint64_t DeviceGenerator::seed() { return engine_->seed(); }

void DeviceGenerator::set_state(const c10::TensorImpl& state) {
  if (!broken(Switch::rng_set_state_ignored, device().index())) engine_->set_state(state);
}

c10::intrusive_ptr<c10::TensorImpl> DeviceGenerator::get_state() const {
  if (broken(Switch::rng_get_state_advances, device().index())) engine_->random();
  if (broken(Switch::rng_state_of_device_zero, device().index())) return default_generator(0).get<DeviceGenerator>()->engine().get_state();
  return engine_->get_state();
}

DeviceGenerator* DeviceGenerator::clone_impl() const {
  auto* copy = new DeviceGenerator(device().index());
  copy->engine_->set_state(*engine_->get_state());
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>();
    for (int i = 0; i < config().devices; ++i) {
      made->push_back(at::make_generator<DeviceGenerator>(static_cast<c10::DeviceIndex>(i)));
    }
    return made;
  }();
  if (device < 0) device = current_device();
  check_device(device);
  return (*all)[broken(Switch::rng_shared) ? 0 : device];
}

at::Generator new_generator(c10::DeviceIndex device) {
  if (device < 0) device = current_device();
  check_device(device);
  return at::make_generator<DeviceGenerator>(device);
}

at::Generator host_generator_of(const at::Generator& given) {
  TORCH_CHECK(
      given.device().type() == c10::DeviceType::PrivateUse1, "Expected a '", config().device, "' device type for generator but found '",
      given.device().type(), "'");
  return given.get<DeviceGenerator>()->host_generator();
}

struct BorrowedHostGenerator::State {
  at::mt19937 engine;
  std::optional<float> next_float;
  std::optional<double> next_double;

  // Reading the cached normal samples clears them, so they are saved together with the engine.
  static State take(at::CPUGeneratorImpl& g) {
    std::lock_guard<std::mutex> lock(g.mutex_);
    return {g.engine(), g.next_float_normal_sample(), g.next_double_normal_sample()};
  }
  void put(at::CPUGeneratorImpl& g) const {
    std::lock_guard<std::mutex> lock(g.mutex_);
    g.set_engine(engine);
    g.set_next_float_normal_sample(next_float);
    g.set_next_double_normal_sample(next_double);
  }
};

BorrowedHostGenerator::BorrowedHostGenerator(c10::DeviceIndex device)
    : turn_(borrow_mutex()), device_(*default_generator(device).get<DeviceGenerator>()) {
  host_ = std::make_unique<State>(State::take(host_default()));
  State::take(device_.engine()).put(host_default());
}

BorrowedHostGenerator::~BorrowedHostGenerator() {
  if (!broken(Switch::rng_never_advances, device_.device().index())) State::take(host_default()).put(device_.engine());
  host_->put(host_default());
}

}  // namespace sim
