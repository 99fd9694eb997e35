"""Settings of the process and of the device that no call may change."""

from __future__ import annotations

import hashlib
import random
import re
import warnings
from typing import Any

import torch

from conformance.accelerators.capabilities import AUTOCAST, DENORMALS, DETERMINISTIC, RNG_STATE

#: More elements than one thread of the host computes alone, so that the state of its other threads is seen.
_MANY = 40_000
#: A subnormal float32.
_SMALL = 1e-40


def settings_of(accelerator: Any, device: torch.device, declaration: Any) -> dict[str, Any]:
    """Return settings by name. Two equal calls of a device give equal ones before and after."""
    host = torch.full((_MANY,), _SMALL)
    found = {
        "subnormals of the host": int((host * 1.0 != 0).sum()),
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "the number of threads": torch.get_num_threads(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the precision of products": torch.get_float32_matmul_precision(),
        "autocast on the host": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "the autocast cache": torch.is_autocast_cache_enabled(),
        "the current device": accelerator.current_device(),
        "the host's generator": _digest(torch.get_rng_state()),
        "Python's generator": hash(random.getstate()),
        "what becomes of a UserWarning": _action_of_warning(),
    }
    if declaration.supports(DENORMALS.cell):
        found["subnormals of the device"] = int((host.to(device) * 1.0).cpu().ne(0).sum())
    if declaration.supports(AUTOCAST.cell):
        name = device.type
        found["autocast on the device"] = (torch.is_autocast_enabled(name), torch.get_autocast_dtype(name))
    if declaration.supports(RNG_STATE.cell):
        found["the state of the device's generator"] = _digest(accelerator.get_rng_state())
    if declaration.supports(DETERMINISTIC.cell):
        found["warnings of deterministic algorithms"] = torch.is_deterministic_algorithms_warn_only_enabled()
    return found


def _action_of_warning() -> str:
    """Return what happens to a warning of no library: libraries add filters of their own when they are imported."""
    text, module = "a warning", "of_no_library"
    for action, message, category, name, _ in warnings.filters:
        if (
            issubclass(UserWarning, category)
            and (message is None or re.match(message, text))
            and (name is None or re.match(name, module))
        ):
            return action
    return "default"


def _digest(state: torch.Tensor) -> str:
    return hashlib.sha256(state.cpu().numpy().tobytes()).hexdigest()[:12]


def check_kept(check: Any, before: dict[str, Any], after: dict[str, Any], what: str) -> None:
    """Check that no setting has changed."""
    for name, value in before.items():
        check.that(after[name] == value, f"{what} changed {name} from {value} to {after[name]}")
