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
      armed_by_ = std::this_thread::get_id();
      return true;
    }
  }
  return false;
}

void Switches::clear() {
  values_.fill(std::nan(""));
  armed_ = false;
  for (auto& calls : calls_) calls = 0;
  hits_ = 0;
}

bool Switches::applies(Switch s, int device, int64_t stream, int crossing) {
  auto elsewhere = [this](Switch where, int64_t here) { return here >= 0 && on(where) && static_cast<int64_t>(value(where)) != here; };
  if (elsewhere(Switch::where_device, device)) return false;
  if (elsewhere(Switch::where_stream, stream < 0 ? -1 : stream != 0)) return false;
  if (elsewhere(Switch::where_crossing, crossing)) return false;
  if (elsewhere(Switch::where_thread, std::this_thread::get_id() != armed_by_)) return false;
  if (!on(Switch::where_every) && !on(Switch::where_after)) return ++hits_ > 0;
  auto call = ++calls_[static_cast<size_t>(s)];
  if (on(Switch::where_every) && call % static_cast<uint64_t>(value(Switch::where_every)) != 0) return false;
  if (on(Switch::where_after) && call <= static_cast<uint64_t>(value(Switch::where_after))) return false;
  return ++hits_ > 0;
}

}  // namespace sim
