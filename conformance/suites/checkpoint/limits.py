"""The limits of this area, from limits.toml."""

from __future__ import annotations

from conformance.numerics.beside import table_beside


def largest_file(tensors):
    """How large a file with these tensors may be, in bytes."""
    limits = table_beside(__file__, "limits.toml")
    return limits["file"] + sum(tensor.nbytes + limits["tensor"] for tensor in tensors)
