"""What the specifications of the transformer inference kernels share: formulas, the KV cache, shapes, error bounds."""
