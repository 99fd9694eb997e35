"""Inference cases: a cache, tensor parallelism, quantized weights and padding do not change the logits."""
