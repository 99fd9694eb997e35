"""Kernel suite: kernels beyond PyTorch's operators, compared with conformance.kernels.specifications."""
