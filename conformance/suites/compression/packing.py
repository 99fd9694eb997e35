"""Packing kernels of the accelerator under test, as DeepSpeed's compressed backend finds them."""

from __future__ import annotations

from conformance.judging.finding import Refused
from conformance.kernels.implementation import choice_behind
from conformance.suites.ops.loading import functions


class Packing:
    """``packbits`` and ``unpackbits`` of the accelerator's ``PackbitsBuilder``.

    ``functions`` is None if the accelerator has no compatible builder; then this project's kernels pack.
    """

    def __init__(self, accelerator):
        try:
            loaded = functions(accelerator, "PackbitsBuilder")
        except Refused as refusal:
            self.functions, self._refusal = None, str(refusal)
        else:
            self.functions, self._refusal = (loaded.packbits, loaded.unpackbits), ""

    def report(self, check):
        """Keep as metrics which implementation packed and unpacked, and why. Call it after the calls."""
        if self.functions is None:
            check.metric("implementation", "reference")
            check.metric("implementation_reason", self._refusal)
            return
        choices = [choice_behind(function) for function in self.functions]
        check.metric("implementation", "/".join(dict.fromkeys(choice.implementation.value for choice in choices)))
        check.metric("implementation_reason", "; ".join(dict.fromkeys(choice.reason for choice in choices)))
