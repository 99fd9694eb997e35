"""Float64 oracle of one sample, computed on first use."""

from __future__ import annotations

import contextlib
import warnings

import torch

from conformance.numerics.compare import Exact, widen

from .execution import OperatorSample, call, processed
from .sampling import limits

#: Relative input change that measures conditioning: far above float64's roundoff, small enough to be linear.
STEP = 2.0**-24


class Oracle:
    """Float64 values of all outputs of ``compute(sample)``, and their response to changes of the inputs.

    ``compute`` takes a wide sample (float64 or complex128) and returns leaves. An operator without a float64 version
    has no oracle; then the host's own result is the reference.
    """

    def __init__(self, compute, sample: OperatorSample) -> None:
        self._compute, self._sample = compute, sample
        self._values: list | None = None
        self._responses: list | None = None

    def leaf(self, position: int) -> Exact | None:
        """Return the exact value of one output, or None if there is no oracle for it."""
        values = self.values
        if position >= len(values) or not isinstance(values[position], torch.Tensor):
            return None
        return Exact(values[position], lambda: self._response(position))

    @property
    def values(self) -> list:
        """Return the exact outputs; the list is empty if the operator has no float64 version."""
        if self._values is None:
            self._values = self._evaluate(lambda tensor: tensor)
        return self._values

    def _response(self, position: int) -> torch.Tensor | None:
        """Return the largest change of each element per relative input change, or None if nothing is comparable."""
        if self._responses is None:
            generator = torch.Generator().manual_seed(0)  # the nudges must not move the case's own generator
            self._responses = [
                self._evaluate(lambda tensor: _nudged(tensor, generator)) for _ in range(limits().oracle.probes)
            ]
        exact = self.values[position]
        nudged = [values[position] for values in self._responses if position < len(values)]
        changes = [(changed - exact).abs() / STEP for changed in nudged if _comparable(changed, exact)]
        if not changes:
            return None
        return torch.nan_to_num(torch.stack(changes).amax(0), nan=0.0, posinf=0.0)

    def _evaluate(self, change) -> list:
        try:
            with wide_defaults():
                return [_wide_leaf(leaf) for leaf in self._compute(self._sample.wide(change))]
        except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
            return []  # the operator refuses float64: it has no oracle


def of_forward(info, sample: OperatorSample) -> Oracle:
    """Return the oracle of the operator's plain result."""
    return Oracle(lambda wide: processed(wide, call(info.op, wide)), sample)


@contextlib.contextmanager
def wide_defaults():
    """Make float64 the default dtype: integers then promote to it, as all floating inputs are float64 already."""
    before = torch.get_default_dtype()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def _wide_leaf(leaf):
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.detach()
    leaf = leaf if leaf.layout is torch.strided else leaf.to_dense()
    leaf = leaf.resolve_conj().resolve_neg()
    return widen(leaf) if leaf.dtype.is_floating_point or leaf.dtype.is_complex else leaf


def _nudged(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        return tensor
    signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
    return tensor * (1 + STEP * signs)


def _comparable(changed, exact) -> bool:
    if not isinstance(changed, torch.Tensor) or (changed.shape, changed.dtype) != (exact.shape, exact.dtype):
        return False
    return changed.is_floating_point() or changed.is_complex()
