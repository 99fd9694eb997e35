"""Limits of the checkpoint area, read from limits.toml."""

from __future__ import annotations

from conformance.numerics.beside import table_beside


def largest_file(tensors):
    """Return the largest allowed size, in bytes, of a file that holds these tensors."""
    limits = table_beside(__file__, "limits.toml")
    return limits["file"] + sum(tensor.nbytes + limits["tensor"] for tensor in tensors)
