"""Dtypes that the backend itself claims in ``torch.accelerator.get_device_capability()``."""

from __future__ import annotations

import warnings

import torch

from conformance.accelerators.capabilities import DTYPE, DTYPES, TORCH_ACCELERATOR_DTYPES
from conformance.accelerators.declaration import State
from conformance.judging.finding import Reason, report
from conformance.plan.case import case

from .members import check_names, check_refuses_others, member


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
    """Return how the device refuses to allocate this dtype, or to convert it as the host does; None if it does both."""
    kind = getattr(torch, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # complex32 is experimental
            _allocate(kind, device)
    except Exception as error:  # backends raise their own classes
        return f"{type(error).__name__}: {str(error)[:200].partition(chr(10))[0]}"
    # PyTorch itself converts neither bits nor numbers of less than a byte.
    return _conversion(kind, device) if _conversion(kind, torch.device("cpu")) is None else None


def _allocate(kind: torch.dtype, device: torch.device) -> None:
    if str(kind).startswith(("torch.q", "torch.quint")):
        torch._empty_affine_quantized((4,), scale=1.0, zero_point=0, dtype=kind, device=device)
    else:
        torch.empty(4, dtype=kind, device=device)


def _conversion(kind: torch.dtype, device: torch.device) -> str | None:
    """Return what is wrong with small numbers that are converted on the device and copied there; None if nothing is."""
    # Every dtype has these values exactly. One of the dtypes has no zero, and bool has no two.
    values = [1.0, 0.0, 1.0, 0.0] if kind is torch.bool else [1.0, 2.0, 2.0, 4.0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # complex32 is experimental
            there = torch.tensor(values, device=device).to(kind)
            arrived = torch.tensor(values).to(kind).to(device).cpu()
            found = [(each.real if each.is_complex() else each).to(torch.float32) for each in (there, arrived)]
            back = [each.cpu().tolist() for each in found]
    except Exception as error:  # backends raise their own classes
        return f"{type(error).__name__}: {str(error)[:200].partition(chr(10))[0]}"
    if there.dtype is not kind:
        return f"the conversion gives {there.dtype}"
    wrong = next((each for each in back if each != values), None)
    return None if wrong is None else f"{values} comes back as {wrong}"


def _other_dtypes() -> list[str]:
    """Return the names of PyTorch's dtypes that no declaration names."""
    kinds = {kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
    return sorted({str(kind).removeprefix("torch.") for kind in kinds} - set(DTYPES))


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
    """The backend claims a dtype that no declaration names if and only if the device stores and converts it."""
    claims = claimed(device)

    for name in _other_dtypes():
        refused = refusal(device, name)
        if name in claims:
            check.that(refused is None, f"get_device_capability() claims {name}, and the device refuses it: {refused}")
        elif _conversion(getattr(torch, name), torch.device("cpu")) is None:
            check.that(refused is not None, f"get_device_capability() claims {name} not, and the device stores it")


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
