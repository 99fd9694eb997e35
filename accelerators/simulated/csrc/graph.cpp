#include <cstring>

#include "launch.h"
#include "random.h"

namespace sim {

namespace {
std::vector<Graph*>& captures() {
  static auto* instance = new std::vector<Graph*>(config().devices, nullptr);
  return *instance;
}
}  // namespace

Graph* capturing(c10::DeviceIndex device) { return captures()[device < 0 ? current_device() : device]; }

void refuse_in_capture(c10::DeviceIndex device, const char* what) {
  TORCH_CHECK(!capturing(device), config().device, ": operation not permitted when stream is capturing (", what, ")");
}

uint64_t Graph::new_pool() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

Graph::~Graph() { reset(); }

void Graph::begin(uint64_t pool) {
  Guard lock(simulator_mutex());
  TORCH_CHECK(!capturing_ && !captured_, config().device, ": this graph was captured already; reset() it first");
  device_ = current_device();
  TORCH_CHECK(!capturing(device_), config().device, ": device ", int(device_), " is already capturing a graph");
  stream_ = timeline().current(device_);
  TORCH_CHECK(
      stream_.id() != 0 || !config().streams, config().device,
      ": graphs are captured on a side stream, and the current stream is the default stream");
  pool_ = pool ? pool : new_pool();
  capturing_ = true;
  for (int i = 0; i < config().devices; ++i) generators_.push_back(default_generator(i).unsafeGetGeneratorImpl()->get_state());
  captures()[device_] = this;
  memory().set_pool(device_, pool_);
}

void Graph::hold(Block* block) {
  ++block->graph_holds;
  held_.push_back(block);
}

void Graph::will_write(const Range& range) {
  if (range.block->pool == pool_ || undo_.count(range.block)) return;
  undo_[range.block].assign(range.block->data, range.block->data + range.block->size);
}

void Graph::end() {
  Guard lock(simulator_mutex());
  TORCH_CHECK(capturing_, config().device, ": no capture is under way on this graph");
  capturing_ = false;
  captured_ = true;
  captures()[device_] = nullptr;
  memory().set_pool(device_, 0);
  for (auto* block : memory().blocks_of_pool(pool_)) hold(block);
  if (broken(Switch::graph_replay_stale, device_)) keep_replay_inputs();
  if (!broken(Switch::graph_capture_executes, device_)) {
    for (auto& [block, bytes] : undo_) std::memcpy(block->data, bytes.data(), bytes.size());
    for (auto* block : memory().blocks_of_pool(pool_)) poison(block->data, block->size);
    for (int i = 0; i < config().devices; ++i) default_generator(i).unsafeGetGeneratorImpl()->set_state(*generators_[i]);
  }
  undo_.clear();
  generators_.clear();
}

void Graph::keep_replay_inputs() {
  for (auto* block : held_) {
    if (block->pool != pool_) stale_[block].assign(block->data, block->data + block->size);
  }
}

void Graph::replay() {
  TORCH_CHECK(captured_, config().device, ": replay of a graph that was not captured");
  refuse_in_capture(device_, "replaying a graph");
  if (broken(Switch::graph_replay_nothing, device_) || (broken(Switch::graph_replay_once, device_) && replays_++ > 0)) return;
  for (auto& [block, bytes] : stale_) std::memcpy(block->data, bytes.data(), bytes.size());
  for (const auto& step : steps_) step();
}

void Graph::reset() {
  Guard lock(simulator_mutex());
  if (capturing_) {
    captures()[device_] = nullptr;
    memory().set_pool(device_, 0);
    capturing_ = false;
  }
  steps_.clear();
  for (auto* block : held_) --block->graph_holds;
  held_.clear();
  // The last graph of a pool returns the pool's memory to the general pool.
  bool shared = false;
  for (auto* block : memory().blocks_of_pool(pool_)) shared = shared || block->graph_holds > 0;
  if (pool_ && !shared) memory().release_pool(pool_);
  captured_ = false;
}

}  // namespace sim
