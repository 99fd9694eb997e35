"""A conformance suite for AI accelerators. This package imports nothing on its own."""
