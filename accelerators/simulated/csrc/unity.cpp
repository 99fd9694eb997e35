// One translation unit for everything: parsing PyTorch's headers takes far longer than compiling this code.
#include "config.cpp"  // NOLINT: see above
#include "timeline.cpp"
#include "memory.cpp"
#include "random.cpp"
#include "launch.cpp"
#include "graph.cpp"
#include "fallback.cpp"
#include "kernels.cpp"
#include "device.cpp"
#include "autocast.cpp"
#include "profiler.cpp"
#include "collectives.cpp"
#include "module.cpp"
