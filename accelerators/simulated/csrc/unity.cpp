// Everything in one translation unit: PyTorch's headers cost far more to read than all of this to compile.
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
