// What torch.profiler sees of the device.
#pragma once

#include <cstdint>

#include "config.h"

namespace sim {

// Whether a profile is being recorded.
bool profiling();
// One kernel: its operator's name, where it ran, and how long in device nanoseconds.
void profile_kernel(const char* name, int device, int stream, int64_t duration);
void register_profiler();

}  // namespace sim
