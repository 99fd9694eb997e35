"""Linear layer cases: layers with LoRA matrices and frozen weights, which may be quantized or sharded."""
