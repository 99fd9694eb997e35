#include "profiler.h"

#include <chrono>
#include <set>

#define FMT_HEADER_ONLY
#define USE_KINETO
#include <kineto/libkineto.h>
#include <kineto/GenericTraceActivity.h>
#include <kineto/IActivityProfiler.h>
#include <kineto/output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#include <torch/csrc/profiler/stubs/base.h>
#include <c10/util/ApproximateClock.h>

#include "timeline.h"

namespace sim {

namespace {

struct Kernel_ {
  std::string name;
  int device, stream;
  int64_t start, duration;
  uint64_t operator_id;   // the profiler's id of the operator that launched it
};

std::atomic<bool> g_profiling{false};
std::vector<Kernel_> g_kernels;
thread_local std::vector<uint64_t> g_operators;

// --- traces: one activity per kernel ----------------------------------------------------------------------------

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    Guard lock(simulator_mutex());
    g_kernels.clear();
    begin_ = c10::getTime();
    g_profiling = true;
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    g_profiling = false;
    end_ = c10::getTime();
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, begin_, end_);
  }
  void processTrace(
      libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback operator_of, int64_t, int64_t) override {
    Guard lock(simulator_mutex());
    buffer_->span = libkineto::TraceSpan(begin_ / 1000, end_ / 1000, config().device);
    buffer_->gpuOpCount = static_cast<int>(g_kernels.size());
    int32_t id = 1;
    for (const auto& kernel : g_kernels) {
      buffer_->emplace_activity(buffer_->span, libkineto::ActivityType::CONCURRENT_KERNEL, kernel.name);
      auto& activity = *buffer_->activities.back();
      activity.startTime = kernel.start;
      activity.endTime = kernel.start + kernel.duration;
      activity.device = kernel.device;
      activity.resource = kernel.stream;
      activity.id = static_cast<int32_t>(kernel.operator_id ? kernel.operator_id : id);
      activity.linked = operator_of(static_cast<int32_t>(kernel.operator_id));
      activity.log(logger);
      ++id;
    }
    g_kernels.clear();
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(libkineto::DeviceInfo{0, 0, config().device, config().device + " 0"});
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }
  void pushCorrelationId(uint64_t id) override { g_operators.push_back(id); }
  void popCorrelationId() override {
    if (!g_operators.empty()) g_operators.pop_back();
  }

 private:
  int64_t begin_ = 0, end_ = 0;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
};

class ActivityProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<libkineto::ActivityType>& availableActivities() const override { return types_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<libkineto::ActivityType>&, const libkineto::Config&) override {
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<libkineto::ActivityType>& types, const libkineto::Config& c) override {
    return configure(types, c);
  }

 private:
  std::string name_ = config().device;
  std::set<libkineto::ActivityType> types_{
      libkineto::ActivityType::CONCURRENT_KERNEL, libkineto::ActivityType::PRIVATEUSE1_RUNTIME};
};

// --- markers: an event before and after every operator, for profiles without traces -----------------------------

struct Markers final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, torch::profiler::impl::ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    Guard lock(simulator_mutex());
    auto made = std::make_shared<EventState>();
    auto index = current_device();
    if (device) *device = index;
    // Unlike an event of the program, a marker of the profiler adds no work to the stream.
    made->time = timeline().state(timeline().current(index)).busy_until;
    *event = made;
    if (cpu_ns) *cpu_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  }
  float elapsed(
      const torch::profiler::impl::ProfilerVoidEventStub* first,
      const torch::profiler::impl::ProfilerVoidEventStub* second) const override {
    auto* a = static_cast<EventState*>(first->get());
    auto* b = static_cast<EventState*>(second->get());
    return static_cast<float>(b->time - a->time) / 1e3F;
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override { op(current_device()); }
  void synchronize() const override {}
};

}  // namespace

bool profiling() { return g_profiling; }

void profile_kernel(const char* name, int device, int stream, int64_t duration) {
  g_kernels.push_back({name, device, stream, c10::getTime(), duration, g_operators.empty() ? 0 : g_operators.back()});
}

void register_profiler() {
  torch::profiler::impl::registerPrivateUse1Methods(new Markers());
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(
      [] { return std::make_unique<ActivityProfiler>(); });
}

}  // namespace sim
