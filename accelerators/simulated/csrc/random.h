// One generator per device, and the adapter through which the host's kernels draw from it.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include "config.h"

namespace sim {

class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(c10::DeviceIndex device, uint64_t seed = c10::default_rng_seed_val);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  at::CPUGeneratorImpl& engine() const { return *engine_; }
  at::Generator host_generator() const { return at::Generator(engine_); }

 private:
  DeviceGenerator* clone_impl() const override;
  c10::intrusive_ptr<at::CPUGeneratorImpl> engine_;
};

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

// Returns the host generator from which a kernel draws, for a generator argument that was given or left out.
at::Generator host_generator_of(const at::Generator& given);

// Some kernels always draw from the host's default generator. While this object exists, that generator has the device's
// state. Its destructor stores the advanced state in the device's generator and restores the host's own state.
class BorrowedHostGenerator {
 public:
  explicit BorrowedHostGenerator(c10::DeviceIndex device);
  ~BorrowedHostGenerator();

 private:
  struct State;
  std::unique_lock<std::mutex> turn_;
  DeviceGenerator& device_;
  std::unique_ptr<State> host_;
};

}  // namespace sim
