"""Shipped data: the calls of transformers' default models, and the sample of them that the cases make.

``traced.json.xz`` has every call of each architecture. ``sample.json`` has the calls of the cases: for each kernel,
dtype, class of sizes and class of strides the one that most architectures make; and such calls with one size stretched
beyond the limits of kernels, which no architecture makes (their ``count`` is 0). ``python -m tests.calls.run`` writes
both. A call is in the sample only if its check found every mutant of its result then.
"""

from __future__ import annotations

import functools
import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .spec import Spec

VERSION: Final = 1
_FOLDER: Final = Path(__file__).parent
TRACED, SAMPLE = _FOLDER / "traced.json.xz", _FOLDER / "sample.json"


@dataclass(frozen=True)
class Group:
    """Calls of one case: of one kernel, whose tensors have this dtype.

    ``requires`` is the cell of its operator, if it has one. ``is_deep``: they take longer than an ordinary run has.
    """

    kernel: str
    dtype: str
    requires: tuple[str, ...]
    is_deep: bool
    calls: tuple[Spec, ...]


@functools.cache
def sample() -> tuple[Group, ...]:
    """Return the calls of the cases."""
    document = json.loads(SAMPLE.read_text(encoding="utf-8"))
    return tuple(
        Group(
            row["kernel"],
            row["dtype"],
            tuple(row["requires"]),
            row["deep"],
            tuple(Spec(*call) for call in row["calls"]),
        )
        for row in document["groups"]
    )


@functools.cache
def _traced() -> Any:
    return json.loads(lzma.decompress(TRACED.read_bytes()))


def architectures() -> tuple[str, ...]:
    """Return the names of the architectures whose calls are known, as transformers names them."""
    return tuple(_traced()["architectures"])


def calls_of(architecture: str) -> list[Spec]:
    """Return the calls of one architecture; KeyError if it is not known."""
    document, found, number = _traced(), [], 0
    for step in document["architectures"][architecture]:
        number += step
        found.append(Spec(*document["calls"][number]))
    return found
