"""Kernels in Triton, for every device whose accelerator declares it. ``offering`` alone is imported without Triton."""
