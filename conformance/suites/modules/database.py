"""Calls of each module: those of PyTorch's module database, and ``additions``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

import torch

from conformance.suites.operators.calls.database import database as operator_database
from conformance.suites.operators.calls.sampling import host_only

from .additions import additions
from .call import HOST, ModuleCall

Made = TypeVar("Made")
#: Seed of the numbers; the same in every process.
_SEED = 20261122


@functools.cache
def _entries() -> dict[str, Any]:
    operator_database()  # its import switches off what PyTorch's own tests do to a process
    from torch.testing._internal import common_cuda

    # A vendor's package may answer for CUDA, and the import would then make a CUDA tensor.
    with mock.patch.object(common_cuda, "TEST_CUDA", False):
        from torch.testing._internal.common_modules import module_db

    return {info.name.removeprefix("nn."): info for info in module_db}


@functools.cache
def _added() -> dict[str, list[ModuleCall]]:
    return _seeded(additions)


def names() -> list[str]:
    """Return the names of all modules with calls, sorted."""
    return sorted({*_entries(), *_added()})


def layout_is_kept(name: str) -> bool:
    """Return whether the module's result has the channels-last format of its input and weights."""
    return bool(getattr(_entries().get(name), "module_memformat_affects_out", False))


def modes_differ(name: str) -> bool:
    """Return whether the module may compute otherwise in train() than in eval()."""
    return name not in _entries() or bool(_entries()[name].train_and_eval_differ)


@functools.lru_cache(maxsize=16)
def calls(name: str, *, training: bool, most: int | None = None) -> tuple[ModuleCall, ...]:
    """Return the calls of a module: all additions, and of the database's at most ``most``, spread evenly.

    Raises KeyError if the installed torch has no such module.
    """
    added = _added().get(name, [])
    if name not in _entries() and added:
        return tuple(added)
    info = _entries()[name]
    generate = functools.partial(
        info.module_inputs_func, info, device=HOST, dtype=torch.float64, requires_grad=True, training=training
    )
    with host_only():
        return (*_spread([_of(info.module_cls, given) for given in _seeded(generate)], most), *added)


def _spread(calls: list[ModuleCall], most: int | None) -> list[ModuleCall]:
    if most is None or len(calls) <= most:
        return calls
    step = (len(calls) - 1) / (most - 1)
    return [calls[round(i * step)] for i in range(most)]


def _of(kind: Any, given: Any) -> ModuleCall:
    made, fed = given.constructor_input, given.forward_input
    call = ModuleCall(kind, tuple(made.args), dict(made.kwargs), tuple(fed.args), dict(fed.kwargs), given.desc)
    # The database takes logarithms of negative numbers. A loss of NaN says nothing about the other elements.
    return call.arranged(lambda tensor: tensor.nan_to_num(nan=-0.5))


def _seeded(generate: Callable[[], Made]) -> Made:
    """Return ``generate()`` with a seed of its own; later draws of the process are not changed."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(_SEED)
        return generate()
