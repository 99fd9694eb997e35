// Python bindings of the simulator.
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/jit/python/pybind_utils.h>

#include "fallback.h"
#include "random.h"

namespace py = pybind11;

namespace sim {

void register_device();
void register_graphs();
void register_profiler();
void register_collectives();

namespace {

void configure(const py::dict& options) {
  auto& c = config();
  c.device = options["device"].cast<std::string>();
  c.devices = options["devices"].cast<int>();
  c.memory = options["memory"].cast<size_t>();
  c.streams = options["streams"].cast<bool>();
  for (auto name : options["missing"]) c.missing.insert(name.cast<std::string>());
  for (auto dtype : options["dtypes"]) c.dtypes.insert(dtype.cast<at::ScalarType>());
  register_device();
  register_profiler();
}

// In-place and out= results are arguments, so the values that a fault returns are written into them.
void keep_outputs(const OpProfile& profile, const Stack& arguments, Stack& results) {
  for (size_t i = 0; i < results.size() && i < profile.returns.size(); ++i) {
    if (profile.returns[i] < 0 || !results[i].isTensor()) continue;
    const auto& argument = arguments[profile.returns[i]];
    if (!argument.isTensor() || !argument.toTensor().defined() || !results[i].toTensor().defined()) continue;
    if (!results[i].toTensor().is_same(argument.toTensor())) argument.toTensor().copy_(results[i].toTensor());
    results[i] = argument;
  }
}

// A fault's value as the schema wants it. None stands for an undefined tensor where the schema says Tensor.
c10::IValue from_python(const py::handle& object, const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType && object.is_none()) return at::Tensor();
  return torch::jit::toIValue(object, type);
}

// Values as Python sees them, and back. What a fault did not replace keeps its own value: a number that stands for a
// tensor and an undefined tensor do not survive the way to Python and back.
struct Values {
  Stack stack;
  py::list objects;

  explicit Values(Stack given) : stack(std::move(given)) {
    for (const auto& value : stack) objects.append(torch::jit::toPyObject(value));
  }

  Stack with(const py::list& changed, const std::vector<c10::TypePtr>& types) const {
    Stack out;
    for (size_t i = 0; i < changed.size(); ++i) {
      bool kept = i < stack.size() && py::object(changed[i]).is(py::object(objects[i]));
      auto type = i < types.size() ? types[i] : c10::TypePtr(c10::TensorType::get());
      out.push_back(kept ? stack[i] : from_python(changed[i], type));
    }
    return out;
  }
};

// fault(call, args) -> results. `call(args)` runs the operator's host kernel. Tensors are host views of device memory.
// The name is an operator's ("aten::add"), for all of its overloads, or an overload's ("aten::add.out", "aten::mm.default").
void set_around(const std::string& name, py::object fault) {
  if (fault.is_none()) {
    arounds().erase(name);
    return;
  }
  auto held = std::make_shared<py::object>(std::move(fault));
  arounds()[name] = [held](const OpProfile& profile, Stack& stack, const Kernel& kernel) {
    py::gil_scoped_acquire gil;
    Values before(stack);
    py::list arguments(before.objects.attr("copy")());   // the fault may change its list
    auto results = std::make_shared<Values>(Stack());
    auto call = py::cpp_function([&, results](const py::list& given) {
      Stack inner = before.with(given, profile.argument_types);
      {
        py::gil_scoped_release release;
        kernel(inner);
      }
      stack = inner;
      *results = Values(std::move(inner));
      return py::list(results->objects.attr("copy")());
    });
    auto given = (*held)(call, arguments);
    if (given.is_none()) return;
    auto out = results->with(given.cast<py::list>(), profile.return_types);
    keep_outputs(profile, before.stack, out);
    stack = std::move(out);
  };
}

py::dict read_counters() {
  Guard lock(simulator_mutex());
  auto& c = counters();
  py::dict all;
  all["ops"] = py::cast(c.ops);
  all["launches"] = c.launches;
  all["host_to_device"] = c.host_to_device;
  all["device_to_host"] = c.device_to_host;
  all["device_to_device"] = c.device_to_device;
  all["host_syncs"] = c.host_syncs;
  all["poisoned_reads"] = c.poisoned_reads;
  all["poisoned_writes"] = c.poisoned_writes;
  return all;
}

// Profiles point to their counters. Counters are therefore set to zero and never removed.
void reset_counters() {
  Guard lock(simulator_mutex());
  auto ops = std::move(counters().ops);
  for (auto& [name, calls] : ops) calls = 0;
  counters() = Counters();
  counters().ops = std::move(ops);
}

}  // namespace
}  // namespace sim

PYBIND11_MODULE(sim_core, m) {
  using namespace sim;
  m.def("configure", &configure);
  m.def("register_collectives", &register_collectives);
  m.def("register_graphs", &register_graphs);
  m.def("switch_names", &Switches::names);
  m.def("set_switch", [](const std::string& name, double value) { return switches().set(name, value); });
  m.def("switch_hits", [] { return switches().hits(); });
  m.def("clear_switches", [] { switches().clear(); });
  m.def("set_around", &set_around);
  m.def("clear_arounds", [] { arounds().clear(); });
  m.def("counters", &read_counters);
  m.def("reset_counters", &reset_counters);
  m.def("raw_alias", [](const at::Tensor& tensor) { return raw_alias(tensor); });
  m.def("default_generator", [](int device) { return default_generator(static_cast<c10::DeviceIndex>(device)); });
  m.def("device_count", [] { return int(device_count()); });
  m.def("new_pool", &Graph::new_pool);
  m.def("host_memory", [] { return pinned().held(); });
  m.def("is_capturing", [] { return capturing(current_device()) != nullptr; });
  m.def("drop_python", [] { arounds().clear(); });
  auto nogil = py::call_guard<py::gil_scoped_release>();
  py::class_<Graph, std::shared_ptr<Graph>>(m, "Graph")
      .def(py::init<>())
      .def("begin", &Graph::begin, nogil)
      .def("end", &Graph::end, nogil)
      .def("replay", &Graph::replay, nogil)
      .def("reset", &Graph::reset, nogil)
      .def("pool", &Graph::pool);
}
