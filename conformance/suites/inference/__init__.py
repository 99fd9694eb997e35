"""Inference cases: caches, pages, tensor parallelism, quantized weights, and the choice of tokens."""
