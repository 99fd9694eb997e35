"""Dtypes that the backend itself claims in ``torch.accelerator.get_device_capability()``."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import DTYPE, DTYPES, TORCH_ACCELERATOR_DTYPES
from conformance.accelerators.declaration import State
from conformance.judging.finding import Reason, report
from conformance.plan.case import case

from .members import check_names, check_refuses_others, member

#: Dtypes without plain factories and conversions: quantized ones, those of bits, and those of less than a byte.
_WITHOUT_CONVERSION = ("q", "bits", "uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "float4")
_SMALL_INTEGERS = tuple(f"int{bits}" for bits in range(1, 8))


def claimed(device: torch.device) -> set[str]:
    """Return the names of the dtypes that the backend claims for the current device."""
    answer = member("get_device_capability")()
    assert isinstance(answer, dict), f"get_device_capability() returned {answer!r}; it must return a dict"
    dtypes = answer.get("supported_dtypes")
    assert isinstance(dtypes, set | frozenset), f"supported_dtypes is {dtypes!r}; it must be a set of dtypes"
    strange = [entry for entry in dtypes if not isinstance(entry, torch.dtype)]
    assert not strange, f"supported_dtypes contains {strange}, which are no dtypes"
    return {str(dtype).removeprefix("torch.") for dtype in dtypes}


def refusal(device: torch.device, name: str) -> str | None:
    """Return how the device refuses to allocate this dtype or to convert from and to it; None if it does both right."""
    kind = getattr(torch, name)
    # Every dtype has these values exactly. One of the dtypes has no zero, and bool has no two.
    values = [1.0, 0.0, 1.0, 0.0] if kind is torch.bool else [1.0, 2.0, 2.0, 4.0]
    try:
        torch.empty(5, dtype=kind, device=device)
        there = torch.tensor(values, device=device).to(kind)
        found = (there.real if there.is_complex() else there).to(torch.float32).cpu().tolist()
        arrived = torch.tensor(values).to(kind).to(device).cpu()
        from_host = (arrived.real if arrived.is_complex() else arrived).to(torch.float32).tolist()
    except Exception as error:  # backends raise their own classes
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    if there.dtype is not kind:
        return f"the conversion gives {there.dtype}"
    wrong = next((each for each in (found, from_host) if each != values), None)
    return None if wrong is None else f"{values} comes back as {wrong}"


@case("torch_accelerator.get_device_capability", requires=[TORCH_ACCELERATOR_DTYPES], axes={"dtype": DTYPES})
def test_dtype(device, declaration, dtype):
    """The backend claims the dtype if and only if the device stores and converts it, and so does the declaration."""
    claims, refused = dtype in claimed(device), refusal(device, dtype)
    what = f"torch.accelerator.get_device_capability() claims {dtype}"

    assert not (claims and refused), f"{what}, and the device refuses it: {refused}"
    assert claims or refused, f"{what} not, and the device stores and converts it"
    declared = declaration.supports(DTYPE.on(dtype))
    assert claims or not declared, f"{what} not, and the declaration does: {refused}"
    if claims and declaration.claim(DTYPE.on(dtype)).state is State.UNSUPPORTED:
        report(Reason.UNDER_DECLARED, f"{what}, the device stores it, and the declaration says that it is unsupported")


@case("torch_accelerator.get_device_capability_of_others", requires=[TORCH_ACCELERATOR_DTYPES])
def test_other_dtypes(device, check):
    """The device stores and converts every dtype that the backend claims, also those that no declaration names."""
    others = sorted(name for name in claimed(device) if name not in DTYPES)

    for name in others:
        if name.startswith(_WITHOUT_CONVERSION) or name in _SMALL_INTEGERS:
            continue
        refused = refusal(device, name)
        check.that(refused is None, f"get_device_capability() claims {name}, and the device refuses it: {refused}")
    unclaimed = [name for name in ("uint16", "uint32", "uint64", "complex32") if name not in others]
    for name in unclaimed:
        check.that(
            refusal(device, name) is not None, f"get_device_capability() claims {name} not, and the device stores it"
        )


@case("torch_accelerator.get_device_capability_again", requires=[TORCH_ACCELERATOR_DTYPES])
def test_again(accelerator, device):
    """get_device_capability() gives one answer for each way to name a device, and what it keeps is still true."""
    capability = member("get_device_capability")
    check_names("get_device_capability", capability, accelerator, device)
    # PyTorch keeps the first answer of a process. Below the cache, the backend answers anew.
    asked_again = getattr(capability, "__wrapped__", capability)()

    kept = capability()

    assert asked_again == kept, f"the backend now claims {asked_again}, and get_device_capability() still says {kept}"
    check_refuses_others("get_device_capability", capability)
