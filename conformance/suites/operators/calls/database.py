"""PyTorch's operator database (OpInfo), imported once and only when an operator case runs."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import os
import random
import warnings
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

#: Field of an OpInfo with its dtypes by device type. ``dtypesIfCUDA`` and the like are read and written through it.
_OF_DEVICES: Final = "dtypesIf"


@functools.cache
def database() -> dict[str, Any]:
    """Return the OpInfos by full name: those of the database in its order, then those that it lacks.

    The first call in a process takes seconds.
    """
    # The database's import reads these; a value meant for PyTorch's own tests would change the list.
    for name in ("PYTORCH_TEST_CUDA_MEM_LEAK_CHECK", "PYTORCH_TEST_WITH_SLOW"):
        os.environ.pop(name, None)
    import torch

    # The import makes half a million objects that live as long as the process; collecting them takes seconds.
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about test tools that are not installed and not needed here
        from torch.testing._internal import common_utils

        with _without_scipy(common_utils):
            from torch.testing._internal.opinfo import core

            _read_fields_at_once(core)
            with _shallow(core):
                from torch.testing._internal import common_methods_invocations

    # For every sample the database looks for the calling test on the stack, which takes longer than most cells.
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None  # type: ignore[attr-defined]  # exported by nobody
    common_utils.set_rng_seed = _seed_generation
    # The database seeds its random operators inside the call, so they would not look random here.
    common_methods_invocations.wrapper_set_seed = _unwrapped  # type: ignore[attr-defined]  # the same
    # The import forbids assignments like torch.backends.cudnn.enabled = False in the whole process; allow them again.
    setattr(torch.backends, "__allow_nonbracketed_mutation_flag", True)
    gc.freeze()  # the collector never looks at these objects again
    gc.enable()
    from .unlisted import unlisted

    listed = {info.full_name: info for info in common_methods_invocations.op_db}
    return listed | {info.full_name: info for info in unlisted() if info.full_name not in listed}


def _seed_generation(seed: int | None = None) -> None:
    """Seed the generators that the database uses; it calls this before each sample, which is made on the host."""
    import numpy
    import torch

    seed = 1234 if seed is None else seed  # the default of PyTorch's own set_rng_seed
    # Not torch.manual_seed, which takes longer; see execution.reseed.
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


@contextlib.contextmanager
def _without_scipy(common_utils: Any) -> Iterator[None]:
    """Import as if SciPy were not installed, so that the list does not depend on it.

    The database uses SciPy for references of PyTorch's own tests, which are not needed here; importing it would take a
    third of the time.
    """
    installed, common_utils.TEST_SCIPY = common_utils.TEST_SCIPY, False
    try:
        yield
    finally:
        common_utils.TEST_SCIPY = installed


def _read_fields_at_once(core: Any) -> None:
    """Make ``dtypesIfCUDA`` and the like properties: OpInfo looks for them in Python whenever any field is read."""
    if "__getattribute__" not in vars(core.OpInfo):
        return  # older versions of torch have these fields
    for name in dir(core.OpInfo):
        if name.startswith(_OF_DEVICES) and name != _OF_DEVICES:
            device = name.removeprefix(_OF_DEVICES).lower()
            setattr(core.OpInfo, name, property(functools.partial(_dtypes_on, device)))
    del core.OpInfo.__getattribute__


def _dtypes_on(device: str, info: Any) -> Any:
    """Return the dtypes that an entry names for this type of device, or None if it names none."""
    return info.dtypesIf.get(device)


@contextlib.contextmanager
def _shallow(core: Any) -> Iterator[None]:
    """Import with each OpInfo's arguments kept as they are: deep copies would take half of the time."""
    before, core.asdict = core.asdict, _fields_of
    try:
        yield
    finally:
        core.asdict = before


def _fields_of(info: Any) -> dict[str, Any]:
    """Return the fields of an entry by name; its lists and dictionaries are copies."""
    # The lists and the tables of an OpInfo are changed after this.
    found = {each.name: getattr(info, each.name) for each in fields(info)}
    return {name: copy.copy(value) if isinstance(value, (dict, list)) else value for name, value in found.items()}


def _unwrapped(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the operator without seeding generators first."""
    return op(*args, **kwargs)


def runs_on_cuda_only(info: Any) -> bool:
    """Return whether the operator needs NVIDIA's compiler (the jiterator), although the database claims CPU dtypes."""
    from torch.testing._internal.common_device_type import onlyCUDA

    return onlyCUDA in info.decorators


def find(full_name: str) -> Any:
    """Return the OpInfo of that full name; raise KeyError if the installed torch has none."""
    return database()[full_name]
