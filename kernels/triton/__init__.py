"""Triton kernels, for every device whose accelerator declares Triton. Only ``offering`` is imported without Triton."""
