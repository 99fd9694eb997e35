// Activities of the device for torch.profiler.
#pragma once

#include <cstdint>

#include "config.h"

namespace sim {

// Returns whether a profile is being recorded.
bool profiling();
// Records one kernel: its operator's name, device and stream, and its duration in device nanoseconds.
void profile_kernel(const char* name, int device, int stream, int64_t duration);
void register_profiler();

}  // namespace sim
