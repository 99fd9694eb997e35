"""Shared parts of the transformer inference kernels' specifications: formulas, KV cache, shapes, error bounds."""
