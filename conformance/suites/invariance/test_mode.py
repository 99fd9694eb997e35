"""Case of the declared mode of invariance: it has an effect, and ends with its context."""

from __future__ import annotations

from conformance.accelerators import capabilities as can
from conformance.judging.finding import Refused
from conformance.plan.case import Case, cases

from .mode import bits_of, invariant_mode, settings_of, without_effect


def mode_cases():
    """Return the one case, ``invariance.mode[float32]``."""
    return [
        Case(
            id="invariance.mode[float32]", area="invariance", axes=(("dtype", "float32"),),
            requires=(can.INVARIANT_MODE.on("float32"),), adaptive=True,
        )
    ]  # fmt: skip


@cases(mode_cases)
def test_mode(accelerator, device, case, check):
    """The declared mode changes the bits of an operator, and afterwards all settings and bits are as before."""
    import torch

    dtype, settings = getattr(torch, case.dtype), settings_of(accelerator)
    if not settings:
        raise Refused("the accelerator declares no mode")
    before = bits_of(device, dtype)
    with invariant_mode(accelerator) as ignored:
        inside = bits_of(device, dtype)
    after = bits_of(device, dtype)
    check.that(not ignored, f"the declared mode is not on: {', '.join(ignored)} did not take the value")
    left = [path for path, value in settings_of(accelerator).items() if value != settings[path]]
    check.that(not left, f"the mode does not end: {', '.join(left)} has another value than before")
    check.that(
        not without_effect(before, inside),
        f"the declared mode has no effect: {len(before)} operators have the same bits without it",
    )
    lasting = [name for name in before if before[name].steady and before[name].first != after[name].first]
    check.that(not lasting, f"the mode does not end: {', '.join(lasting)} has other bits afterwards than before")
