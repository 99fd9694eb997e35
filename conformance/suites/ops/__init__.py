"""Kernels beyond PyTorch's operators, each held against its specification in conformance.kernels.specifications."""
