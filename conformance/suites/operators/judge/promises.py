"""Promises of an operator beyond its values: strides, refusals, and signs of zeros.

PyTorch's CPU is one implementation. Its strides, refusals and zero signs are demanded of a device only where the
operator's meta function, which describes every device, agrees with it, or where a standard defines them.
"""

from __future__ import annotations

import functools
import unittest
from typing import Any

import torch

from conformance.numerics import layout
from conformance.numerics.trees import leaves
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.classes import is_fourier_transform
from conformance.suites.operators.calls.execution import call
from conformance.suites.operators.calls.facts import facts

META = torch.device("meta")
#: Dispatch key of implementations that consist of other operators. A device is free to have its own kernel instead.
_COMPOSITE = "CompositeImplicitAutograd"


def promises_strides(info: Any, sample: Call, position: int, expected: torch.Tensor) -> bool:
    """Return whether every device has to give output ``position`` of this call the strides that the host gave it.

    A view has the strides that its meaning gives it. Otherwise the meta function has to agree with the host. FFT
    libraries choose their own layouts, and so do kernels that replace a composite implementation.
    """
    if any(layout.shares_memory(expected, tensor) for tensor in sample.tensors):
        return True
    if is_fourier_transform(info) or is_composite(info):
        return False
    described = _on_meta(info.op, sample)
    if described is None or position >= len(described) or not isinstance(described[position], torch.Tensor):
        return False
    found = described[position]
    return found.shape == expected.shape and layout.significant_strides(found) == layout.significant_strides(expected)


def describes(info: Any, sample: Call, position: int, actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether the meta function or the host gives output ``position`` of this call the metadata of ``actual``.

    The dtype and the shape may each be that of either. Some outputs differ between the CPU and all other devices, as
    the statistics of normalisations do.
    """
    described = _on_meta(info.op, sample)
    if described is None or position >= len(described) or not isinstance(described[position], torch.Tensor):
        return False
    either = described[position], expected
    return actual.dtype in {each.dtype for each in either} and actual.shape in {each.shape for each in either}


def is_excused(info: Any, test: str) -> bool:
    """Return whether PyTorch's own tests expect a failure of ``test`` (of its ``TestCommon``) on some device."""
    from torch.testing._internal.opinfo.core import DecorateInfo

    entries = (entry for entry in info.decorators if isinstance(entry, DecorateInfo))
    return any(
        (entry.cls_name, entry.test_name) == ("TestCommon", test) and unittest.expectedFailure in entry.decorators
        for entry in entries
        if _is_active(entry)
    )


def _is_active(entry: Any) -> bool:
    """Return whether the entry holds on this machine.

    Some conditions make a CUDA tensor where ``torch.cuda`` is available. Some vendors' packages answer for
    ``torch.cuda`` and cannot make one; such an entry is about CUDA.
    """
    try:
        return bool(entry.active_if)
    except Exception:  # each such package refuses in its own way
        return False


def is_composite(info: Any) -> bool:
    """Return whether PyTorch implements the operator by other operators, in Python or in its dispatcher."""
    name = f"aten::{info.aten_name or info.name}"
    overloads = torch._C._jit_get_schemas_for_operator(name)
    if not overloads:
        return True
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    qualified = [f"{name}.{schema.overload_name}" if schema.overload_name else name for schema in overloads]
    return any(torch._C._dispatch_has_kernel(each) and has(each, _COMPOSITE) for each in qualified)


def promises_refusal(info: Any, given: Call) -> bool:
    """Return whether the meta function refuses the call in its form, so that it has no meaning on any device.

    A meta function that does not exist, or that refuses the call without its outputs too, describes nothing.
    """
    function = given.function or info.op
    refusal = (_ask_meta(function, given) if given.extra else _meta_outcome(function, given))[1]
    if refusal is None or issubclass(refusal, NotImplementedError):
        return False
    return not given.extra or _on_meta(function, given) is not None


def described_elements(function: Any, given: Call) -> int:
    """Return the elements of all outputs that the meta function describes; 0 if it refuses the call."""
    return sum(leaf.numel() for leaf in _on_meta(function, given) or [] if isinstance(leaf, torch.Tensor))


def _on_meta(function: Any, given: Call) -> list[Any] | None:
    """Return the outputs that the meta function describes for the arguments, or None if it refuses them."""
    return _meta_outcome(function, given)[0]


def _meta_outcome(function: Any, given: Call) -> tuple[list[Any] | None, type[Exception] | None]:
    """Return the described outputs, or the type of the refusal; they are kept with the arguments."""
    return given.found_out(("meta", function), lambda: _ask_meta(function, given.into("", None)))


def _ask_meta(function: Any, given: Call) -> tuple[list[Any] | None, type[Exception] | None]:
    """Return the results of a call on the meta device, or the type of its refusal."""
    on_meta = given.on(META)
    try:
        return leaves(call(function, on_meta, **on_meta.extra)), None
    except Exception as refusal:  # each operator refuses in its own way
        return None, type(refusal)


def reference_refuses(info: Any, sample: Call) -> bool:
    """Return whether PyTorch's own reference of the operator in Python refuses the call.

    The references (``torch._refs``) are what a backend without a kernel of its own runs. What they refuse, such as
    ``view_copy`` of a tensor that has no such view, PyTorch promises on no device.
    """
    reference = _references().get(info.full_name)
    return reference is not None and sample.found_out(("reference", reference.op), lambda: _refuses(reference, sample))


def _refuses(reference: Any, sample: Call) -> bool:
    """Return whether the host refuses the call of the reference."""
    try:
        call(reference.op, sample.on(HOST))
    except Exception:  # each operator refuses in its own way
        return True
    return False


@functools.cache
def _references() -> dict[str, Any]:
    """Return the database's entries of references, by the full name of the operator that each describes."""
    from torch.testing._internal.common_methods_invocations import python_ref_db

    found = {}
    for entry in python_ref_db:
        named = (getattr(entry, "torch_opinfo_name", ""), getattr(entry, "torch_opinfo_variant_name", ""))
        found[".".join(filter(None, named))] = entry
    return found


def promises_zero_signs(info: Any) -> bool:
    """Return whether a standard defines the signs of the operator's zeros; see ``facts.toml``."""
    return bool(facts(info.name).signed_zeros)
