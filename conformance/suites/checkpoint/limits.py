"""Limits of the checkpoint area, read from limits.toml."""

from __future__ import annotations

from conformance.numerics.budgets import load_table


def largest_file(tensors):
    """Return the largest allowed size, in bytes, of a file that holds these tensors."""
    limits = load_table(__file__, "limits.toml")
    return limits["file"] + sum(tensor.nbytes + limits["tensor"] for tensor in tensors)
