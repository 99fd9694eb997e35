"""One-bit communication: packed signs, an all-reduce with error feedback, and optimizers that use it."""

from conformance.kernels.compression.all_reduce import CompressedAllReduce, Feedback
from conformance.kernels.compression.one_bit_adam import OneBitAdam
from conformance.kernels.compression.one_bit_lamb import OneBitLamb
from conformance.kernels.compression.zero_one_adam import ZeroOneAdam

__all__ = ["CompressedAllReduce", "Feedback", "OneBitAdam", "OneBitLamb", "ZeroOneAdam"]
