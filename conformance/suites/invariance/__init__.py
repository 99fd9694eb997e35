"""Invariance: the bits of a row do not depend on its batch, chunk, padding, strides, stream, graph or run."""
