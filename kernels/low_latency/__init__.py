"""All-reduce between the ranks of one host, over shared memory."""

from conformance.kernels.low_latency.all_reduce import LowLatencyAllReduce, Transport

__all__ = ["LowLatencyAllReduce", "Transport"]
