"""Linear layer cases: frozen weights, quantized or sharded, and trainable LoRA matrices."""
