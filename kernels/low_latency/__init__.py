"""All-reduce between the ranks of one host, over shared memory."""

from conformance.kernels.low_latency.all_reduce import Implementation, LowLatencyAllReduce

__all__ = ["Implementation", "LowLatencyAllReduce"]
