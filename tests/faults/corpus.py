"""Calls of overloads that PyTorch's own databases make on the CPU: what the public API reaches, with arguments.

The databases are ``op_db`` with backward, ``module_db``, ``optim_db`` and those of foreach. The calls are found under a
dispatch mode, and kept in a file in the user's cache folder: they depend on torch alone, not on the suite.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from conformance.coverage import databases
from conformance.coverage.databases import Sample, Watch, rules_of

from . import encoding
from .overloads import bound

#: Changes when this file finds or keeps other calls.
_VERSION = 4
#: Kinds of calls of one overload that are kept, and elements of their tensors.
_KEPT, _ELEMENTS = 8, 1 << 13
#: Elements from which a call says as much as a larger one.
_ENOUGH = 1 << 10


@dataclass
class Corpus:
    """``calls``: by overload, the encoded values of some calls. ``nodes``: by derivative rule, samples and inputs."""

    calls: dict[str, list[list[Any]]] = field(default_factory=dict)
    nodes: dict[str, list[Sample]] = field(default_factory=dict)
    inputs: dict[str, int] = field(default_factory=dict)


def path() -> Path:
    """Return the file of the corpus for this torch."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "accelerator-conformance" / f"fault-corpus-{torch.__version__}-{_VERSION}.pickle"


def read() -> Corpus | None:
    """Return the kept corpus, or None."""
    try:
        return pickle.loads(path().read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError, AttributeError):
        return None


def find() -> None:
    """Find all calls and keep them. This runs backward passes: do it in a process that forks no others."""
    capture = _Capture()
    databases.run(capture)
    path().parent.mkdir(parents=True, exist_ok=True)
    temporary = path().with_suffix(f".{os.getpid()}")
    temporary.write_bytes(pickle.dumps(capture.corpus))
    temporary.replace(path())


class _Capture(Watch):
    def __init__(self) -> None:
        super().__init__()
        self.corpus = Corpus()
        #: By overload and kind, the first and the largest call, with their sizes.
        self._kinds: dict[str, dict[Any, list[tuple[int, list[Any]]]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name()
        if name.startswith("aten::"):
            self._keep(name, bound(list(func._schema.arguments), args, kwargs))
        return func(*args, **kwargs)

    def _keep(self, name: str, values: list[Any]) -> None:
        """Keep the first call of each kind, and the largest: generators begin with calls in which little shows."""
        known = self._kinds.setdefault(name, {})
        kind = tuple(_signature(value) for value in values)
        if kind not in known and len(known) >= _KEPT:
            return
        size, kept = _size(values), known.get(kind, [])
        largest = kept[-1][0] if kept else -1
        if size <= largest or largest >= _ENOUGH:
            return
        try:
            encoded = encoding.encode(values)
            pickle.dumps(encoded)
        except Exception:  # a generator, a storage, or a tensor that is too large or of another layout
            return
        if encoding.elements(encoded) <= _ELEMENTS:
            known[kind] = [*kept[:1], (size, encoded)]
            self.corpus.calls[name] = [call for calls in known.values() for _, call in calls]

    def graph_of(self, outputs: Any, sample: Sample) -> None:
        """Keep the derivative rules behind the outputs."""
        for name, inputs in rules_of(databases.tensors_of(outputs)):
            kept = self.corpus.nodes.setdefault(name, [])
            if inputs > self.corpus.inputs.get(name, 0):
                kept.clear()
                self.corpus.inputs[name] = inputs
            if inputs == self.corpus.inputs[name] and len(kept) < 4 and sample not in kept:
                kept.append(sample)


def _size(values: list[Any]) -> int:
    """Return the elements of a call's tensors, and the sizes that it asks for."""
    total = 0
    for value in values:
        if isinstance(value, (list, tuple)):
            total += _size(list(value))
        elif isinstance(value, torch.Tensor):
            total += value.numel()
        elif type(value) is int:
            total += min(abs(value), 100)
    return total


def _signature(value: Any) -> Any:
    """Return what makes two arguments alike: a tensor's dtype, rank and layout; a number's value."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), min(value.dim(), 2), value.is_contiguous()
    if isinstance(value, (list, tuple)):
        return tuple(_signature(item) for item in value[:2]) if any(map(torch.is_tensor, value)) else "list"
    return repr(value) if isinstance(value, (bool, str, type(None))) else type(value).__name__
