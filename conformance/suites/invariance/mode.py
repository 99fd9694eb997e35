"""The declared mode in which bits do not depend on the surrounding: made, read back, seen by its effect, restored."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .operators import operators
from .surroundings import Subject

#: Families of operators in which a mode chooses other kernels, and numbers of rows of which kernels differ.
_FAMILIES, _ROWS = frozenset({"product", "reduction", "norm", "attention", "routing"}), (1, 33, 257)


@contextlib.contextmanager
def invariant_mode(accelerator: Any) -> Iterator[list[str]]:
    """Make the settings that the accelerator declares, and yield those that did not take their value."""
    unlocked = getattr(torch.backends, "__allow_nonbracketed_mutation", contextlib.nullcontext)
    wanted = _wanted(accelerator)
    owners, before = {path: _owner(path) for path in wanted}, settings_of(accelerator)
    try:
        with unlocked():
            for path, value in wanted.items():
                setattr(owners[path], path.rpartition(".")[2], value)
        yield [path for path, value in wanted.items() if getattr(owners[path], path.rpartition(".")[2], None) != value]
    finally:
        with unlocked():
            for path, value in before.items():
                setattr(owners[path], path.rpartition(".")[2], value)


def settings_of(accelerator: Any) -> dict[str, Any]:
    """Return the present values of the mode's settings."""
    return {path: getattr(_owner(path), path.rpartition(".")[2], None) for path in _wanted(accelerator)}


def _wanted(accelerator: Any) -> dict[str, Any]:
    return dict(getattr(accelerator, "invariant_mode", None) or {})


@dataclass(frozen=True)
class Bits:
    """Bits of an operator in two runs."""

    first: bytes
    second: bytes

    @property
    def steady(self) -> bool:
        """Tell whether both runs have the same bits."""
        return self.first == self.second


def bits_of(device: torch.device, dtype: torch.dtype) -> dict[str, Bits]:
    """Return the bits of the operators for which a mode chooses other kernels, forward and backward."""
    found = {}
    for name, operator in operators().items():
        if operator.family in _FAMILIES:
            subject = Subject(operator, device, dtype)
            found[name] = Bits(_bits(subject), _bits(subject))
    return found


def _bits(subject: Subject) -> bytes:
    digest = hashlib.sha256()
    for count in _ROWS:
        for tensor in subject.both(subject.rows(count)):
            if tensor is not None:
                digest.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.digest()


def without_effect(before: Mapping[str, Bits], inside: Mapping[str, Bits]) -> bool:
    """Tell whether a mode changed no operator: no steady one got other bits, and no unsteady one became steady."""
    return not any(
        inside[name].first != bits.first if bits.steady else inside[name].steady for name, bits in before.items()
    )


def _owner(path: str) -> Any:
    """Return the module, or the object in a module, that has a setting."""
    first, *rest = path.split(".")[:-1]
    owner: Any = importlib.import_module(first)
    for index, name in enumerate(rest):
        if not hasattr(owner, name):
            importlib.import_module(".".join([first, *rest[: index + 1]]))
        owner = getattr(owner, name)
    return owner
