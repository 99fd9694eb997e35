"""The recipe for CI, on the accelerators that need no device."""
