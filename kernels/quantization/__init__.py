"""Group-wise quantization to few bits: portable arithmetic, compiled arithmetic, and exact arithmetic for oracles."""
