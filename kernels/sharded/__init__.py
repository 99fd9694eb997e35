"""Parameters and gradients sharded over ranks, as in DeepCompile's runtime, for any device of torch.distributed."""

from conformance.kernels.sharded.buckets import GradientBuckets
from conformance.kernels.sharded.host_copies import HostCopies
from conformance.kernels.sharded.layout import Layout
from conformance.kernels.sharded.parameters import ShardedParameters
from conformance.kernels.sharded.zero import ZeroGradients

__all__ = ["GradientBuckets", "HostCopies", "Layout", "ShardedParameters", "ZeroGradients"]
