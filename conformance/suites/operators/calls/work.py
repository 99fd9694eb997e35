"""Amount of work per cell: the numbers of work.toml, checked when they are read."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import get_type_hints

from conformance.numerics.budgets import load_table

from .facts import read


@dataclass(frozen=True)
class Extent:
    """How many samples a cell compares, and how many are made to choose them from."""

    samples: int  # compared per cell, spread evenly over the prefix
    prefix: int  # samples generated at most; some generators hold thousands
    scanned: int  # elements of all generated samples; then generation stops
    longest: int  # samples generated to find one without an empty tensor
    elements: int  # per sample; larger samples are left out (the smallest is kept if all are larger)
    cell_elements: int  # elements of all samples of a cell together
    indexed: int  # samples generated once more on meta, to find tensors that stay on the host
    measured: int = 0  # samples always compared with the oracle; others only where bits differ from the host
    watched: int = 0  # calls in each direction recorded to find computation on the host


@dataclass(frozen=True)
class EdgeWork:
    """Sizes of functions of single elements."""

    sizes: tuple[int, ...]  # around tile edges


@dataclass(frozen=True)
class RandomWork:
    """Draws of random numbers."""

    samples: int  # per cell, for which distributions are compared
    calls: int  # on each side
    seeds: int  # of which one has to give other numbers: a pooling over random windows may have few results


@dataclass(frozen=True)
class SpecialWork:
    """Inputs with special values."""

    samples: int  # of a cell that get special values, each with other kinds of arguments
    tensors: int  # of a sample that get special values in turn; lists of tensors have more


@dataclass(frozen=True)
class LargeWork:
    """Samples with more elements than one block or launch works on."""

    elements: int
    repeated: int  # with a backward, and with out= and in place: the plain call has seen more of the same kernel
    blocks: int  # in the dtypes that have no sample of so many elements
    counted: int  # of the deep tier, in float32: a counter in float32 stays at 2^24
    iterative: int  # factorisations and solvers, whose time grows faster than their elements
    squares: int  # operators in training whose derivative has a row and a column for each row of the sample
    leading: int  # matrices of a batch, or channels: more than 65,535, the most that some launches take in y and z
    tried: int  # samples that are tried, the largest first
    reduced: int  # the same, to find one that reduces another dimension than the last


@dataclass(frozen=True)
class Work:
    """All amounts of one depth."""

    inference: Extent
    training: Extent
    probe: Extent  # of cells that PyTorch's CPU does not support
    edges: EdgeWork
    random: RandomWork
    special_inputs: SpecialWork
    large: LargeWork


@functools.cache
def work(deep: bool = False) -> Work:
    """Return the amount of work of a cell of the deep tier, or of a usual one."""
    tables = dict(load_table(__file__, "work.toml"))
    of_deep = tables.pop("deep")
    changes = of_deep if deep else {}
    rows = {name: {**tables.get(name, {}), **changes.get(name, {})} for name in (*tables, *changes)}
    common, kinds = rows.pop("generation"), get_type_hints(Work)
    found = {}
    for name, row in rows.items():
        kind = kinds.get(name)
        of_kind = {**common, **row} if kind is Extent else row
        found[name] = of_kind if kind is None else read(kind, of_kind, f"work.toml, {name}")
    return read(Work, found, "work.toml")
