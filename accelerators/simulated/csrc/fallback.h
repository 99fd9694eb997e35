// Computation of every operator: the host's kernel runs on host views of device memory, below the dispatcher.
#pragma once

#include <functional>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "launch.h"

namespace sim {

using torch::jit::Stack;

// Properties of an operator, derived once from its schema.
struct OpProfile {
  std::string name;                 // "aten::add"
  std::string overload;             // "aten::add.out"; "aten::mm.default" where the overload has no name
  std::string overload_name;        // "out", or empty
  std::vector<c10::TypePtr> argument_types;
  std::vector<c10::TypePtr> return_types;
  std::vector<bool> writes;         // per argument
  std::vector<int> returns;         // per return: index of the same argument (in-place, out=), or -1
  bool is_view = false;
  bool draws = false;               // draws random numbers
  int generator = -1;               // index of its generator argument
  bool takes_host_tensors = false;
  bool missing = false;
  uint64_t* calls = nullptr;        // its counter
};

const OpProfile& profile_of(const c10::OperatorHandle& op);
void forget_profiles();

// A fault around an operator. It is called instead of the host kernel, with the stack of host views.
using Kernel = std::function<void(Stack&)>;
using Around = std::function<void(const OpProfile&, Stack&, const Kernel&)>;
std::unordered_map<std::string, Around>& arounds();
const Around* around_of(const OpProfile& profile);   // that of the overload, else that of the operator; null if neither

void run_on_host(const c10::OperatorHandle& op, const OpProfile& profile, Stack& stack, c10::DeviceIndex device);
void fallback(const c10::OperatorHandle& op, Stack* stack);

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);
c10::IValue map_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& change);

}  // namespace sim
