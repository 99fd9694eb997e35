"""Kernels: specifications with float64 references, and portable, compiled, Triton and vendor implementations."""
