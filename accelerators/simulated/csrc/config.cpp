#include "config.h"

#include <c10/util/Exception.h>

namespace sim {

// Singletons are never destroyed, because tensors and autograd threads outlive static destructors.
Config& config() {
  static auto* instance = new Config();
  return *instance;
}

std::recursive_mutex& simulator_mutex() {
  static auto* instance = new std::recursive_mutex();
  return *instance;
}

Switches& switches() {
  static auto* instance = new Switches();
  return *instance;
}

void require_context() {
  TORCH_CHECK(!broken(Switch::context_ended), config().device, " error: device-side assert triggered");
}

Counters& counters() {
  static auto* instance = new Counters();
  return *instance;
}

std::vector<std::string> Switches::names() {
  return {
#define SIM_NAME(name) #name,
      SIM_SWITCHES(SIM_NAME)
#undef SIM_NAME
  };
}

bool Switches::set(const std::string& name, double value) {
  auto all = names();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == name) {
      values_[i] = value;
      armed_ = armed_ || !std::isnan(value);
      return true;
    }
  }
  return false;
}

void Switches::clear() {
  values_.fill(std::nan(""));
  armed_ = false;
}

}  // namespace sim
