"""Argument checks of kernels, made before a kernel changes anything.

Each error names the argument, the expected value and the value that came.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.base.errors import UsageError

_NEXT = "nothing was changed; fix the argument and call again"


def wrong(argument: str, expected: str, got: object, hint: str = _NEXT) -> UsageError:
    """Return the error to raise. ``argument`` is a path such as ``tensor_lists[1][0]``."""
    return UsageError(f"argument {argument}: expected {expected}, got {got}.\n  {hint}")


def check_tensor(
    argument: str,
    value: object,
    *,
    dtypes: Sequence[torch.dtype] = (),
    like: Tensor | None = None,
    device: torch.device | str | None = None,
    contiguous: bool = True,
) -> Tensor:
    """Return ``value`` if it is a tensor that fits; raise UsageError otherwise.

    It fits if its dtype is one of ``dtypes`` (none: any dtype), its shape that of ``like``, and its device ``device``.
    """
    if not isinstance(value, Tensor):
        raise wrong(argument, "a tensor", type(value).__name__)
    if dtypes and value.dtype not in dtypes:
        raise wrong(argument, _either(dtypes), _name(value.dtype))
    if device is not None and value.device != torch.device(device):
        raise wrong(argument, f"a tensor on {device}", f"one on {value.device}")
    if like is not None and value.shape != like.shape:
        raise wrong(argument, f"shape {tuple(like.shape)}", tuple(value.shape))
    if contiguous and not value.is_contiguous():
        raise wrong(argument, "a contiguous tensor", f"strides {value.stride()} for shape {tuple(value.shape)}")
    return value


def check_tensor_lists(argument: str, lists: object, names: Sequence[str], dtypes: Sequence[torch.dtype]) -> None:
    """Raise UsageError unless ``lists`` holds one list of tensors for each of ``names``, all of one length.

    Tensors with the same index share shape and device. All tensors share one dtype.
    """
    if not isinstance(lists, list | tuple) or len(lists) != len(names):
        got = len(lists) if isinstance(lists, list | tuple) else type(lists).__name__
        raise wrong(argument, f"{len(names)} lists ({', '.join(names)})", got)
    for position, tensors in enumerate(lists):
        if len(tensors) != len(lists[0]):
            path = f"{argument}[{position}] ({names[position]})"
            raise wrong(path, f"{len(lists[0])} tensors, as {names[0]}", len(tensors))
    first = next((tensor for tensors in lists for tensor in tensors), None)
    # The first tensor decides the dtype. If it is wrong itself, the loop reports it with all dtypes that are allowed.
    allowed = dtypes if not isinstance(first, Tensor) or first.dtype not in dtypes else (first.dtype,)
    for index, tensors in enumerate(zip(*lists, strict=True)):
        leading = check_tensor(f"{argument}[0][{index}]", tensors[0], dtypes=allowed)
        for position, tensor in enumerate(tensors[1:], start=1):
            path = f"{argument}[{position}][{index}]"
            check_tensor(path, tensor, dtypes=allowed, like=leading, device=leading.device)


def check_choice(argument: str, value: object, allowed: Sequence[object]) -> None:
    """Raise UsageError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise wrong(argument, " or ".join(map(str, allowed)), value)


def check_number(argument: str, value: Any, *, at_least: float | None = None) -> None:
    """Raise UsageError unless ``value`` is an int or float, and not below ``at_least``; a bool does not count."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(argument, "a number", repr(value))
    # "not >=" instead of "<", so that NaN is refused too.
    if at_least is not None and not value >= at_least:
        raise wrong(argument, f"at least {at_least}", value)


def tensors_in(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor in nested lists, tuples and dicts, with its path: ``tensor_lists[1][0]``."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from tensors_in(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from tensors_in(item, f"{path}[{index}]")


def every_tensor(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield every tensor in nested lists, tuples and dicts, without its path.

    Kernels use it in every call, where building the paths would cost time.
    """
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            yield from every_tensor(value.values())
        elif isinstance(value, list | tuple):
            yield from every_tensor(value)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _either(dtypes: Sequence[torch.dtype]) -> str:
    return " or ".join(_name(dtype) for dtype in dtypes)
