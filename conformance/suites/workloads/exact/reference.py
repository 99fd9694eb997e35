"""Exact training of a family on the host, with the proof that it is exact; and the comparison with it, bit for bit."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .families import MOMENTUM, Family
from .proof import PRECISION, Proof


@dataclass(frozen=True)
class Step:
    """Loss, gradients and weights of a step, the weights after it; float64 on the host."""

    loss: float
    gradients: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Reference:
    """Exact training. ``bits`` says how many bits the largest partial sum has, and ``where`` the operator."""

    steps: tuple[Step, ...]
    bits: float
    where: str
    initial: Mapping[str, torch.Tensor] = field(default_factory=dict)


@functools.cache
def reference(family: Family, steps: int, *, proven: bool = True) -> Reference:
    """Return the training of a family in float64 on the host. A process computes it once.

    The proof takes most of the time. Of several ranks with the same training, one has it ``proven``.
    """
    model = family.initial().double()
    optimizer, done, proof = family.optimizer(model), [], Proof()
    initial = {name: value.detach().clone() for name, value in model.named_parameters()}
    batches = family.batches()[:steps]
    # Attention is taken apart, so that the proof sees its sums.
    with sdpa_kernel(SDPBackend.MATH), proof if proven else contextlib.nullcontext():
        for inputs, targets in batches:
            inputs, targets = (part.double() if part.is_floating_point() else part for part in (inputs, targets))
            optimizer.zero_grad()
            loss = family.loss(model(inputs), targets)
            loss.backward()
            named = [(name, value) for name, value in model.named_parameters()]
            gradients = {name: value.grad.detach().clone() for name, value in named if value.grad is not None}
            optimizer.step()
            done.append(Step(float(loss.detach()), gradients, {name: value.detach().clone() for name, value in named}))
    return Reference(tuple(done), proof.bits, proof.where, initial)


class Placed(NamedTuple):
    """Part of a tensor, with the place of each of its elements in the whole one, flattened."""

    value: torch.Tensor
    places: torch.Tensor


class Comparison:
    """Differences of a training from the exact one, in the order in which they arose.

    They are kept and told at the end: a rank that stopped at the first one would leave the others in a collective.
    """

    def __init__(
        self,
        family: Family | str,
        dtype: str = "float32",
        rank: int | None = None,
        kind: str = "",
        exact: Reference | None = None,
    ) -> None:
        """``exact`` is the reference of a training that is no family's, whose name stands for ``family`` then."""
        name = family if isinstance(family, str) else family.name
        if exact is None:
            assert not isinstance(family, str)
            exact = reference(family, family.steps, proven=False) if rank else reference(family, family.steps)
        self._exact = exact
        self._where = f"{kind}{name}" + ("" if rank is None else f", rank {rank}")
        self._dtype = dtype
        self.differences: list[str] = []
        self.compared = 0

    def loss(self, step: int, value: float) -> None:
        """Compare the loss of a step, which counts from 0."""
        self.compared += 1
        if value != self._exact.steps[step].loss:
            self._keep(step, f"the loss is {value!r}, exact {self._exact.steps[step].loss!r}")

    def holders(self, step: int, found: int, parts: int) -> None:
        """Note a step whose losses do not cover all parts of the batch."""
        if found < parts:
            self._keep(step, f"{found} ranks have a loss, for {parts} parts of the batch")

    def gradients(self, step: int, found: Mapping[str, torch.Tensor | Placed]) -> None:
        """Compare gradients by the parameters' names; a sharded one is compared with its own part."""
        exact = self._exact.steps[step].gradients
        if not found:
            self._keep(step, "no parameter has a gradient")
        for name, value in found.items():
            self._tensor(step, f"the gradient of {name}", value, exact[name])

    def weights(self, step: int, found: Mapping[str, torch.Tensor | Placed]) -> None:
        """Compare weights after a step."""
        for name, value in found.items():
            self._tensor(step, f"the weight {name} after the step", value, self._exact.steps[step].weights[name])

    def used(self, step: int, found: Mapping[str, torch.Tensor]) -> None:
        """Compare the weights with which a forward pass computes, such as those that an engine has gathered.

        A model rounds its weights, so its results do not show every wrong one.
        """
        for name, value in found.items():
            self._tensor(step, f"the weight {name} in the forward pass", value, self._before(step)[name])

    def momenta(self, step: int, found: Mapping[str, torch.Tensor]) -> None:
        """Compare the momenta after a step, by the parameters' names."""
        for name, value in found.items():
            exact = functools.reduce(
                lambda sum_, each: sum_ * MOMENTUM + each,
                (self._exact.steps[number].gradients[name] for number in range(step + 1)),
            )
            self._tensor(step, f"the momentum of {name}", value, exact)

    def _before(self, step: int) -> Mapping[str, torch.Tensor]:
        return self._exact.steps[step - 1].weights if step else self._exact.initial

    def _tensor(self, step: int, what: str, value: torch.Tensor | Placed, exact: torch.Tensor) -> None:
        value, places = value if isinstance(value, Placed) else local(value, exact)
        wanted, found = exact.flatten()[places], value.detach().cpu().double()
        self.compared += 1
        if found.shape != wanted.shape:
            self._keep(step, f"{what} has shape {tuple(found.shape)}, exact {tuple(wanted.shape)}")
            return
        wrong = (found != wanted).flatten().nonzero().flatten()
        if len(wrong):
            first = int(wrong[0])
            place = _index(int(places.flatten()[first]), exact.shape)
            self._keep(
                step,
                f"{what}[{place}] is {float(found.flatten()[first])!r}, exact {float(wanted.flatten()[first])!r} "
                f"({len(wrong)} of {found.numel()} elements differ)",
            )

    def _keep(self, step: int, text: str) -> None:
        self.differences.append(f"{self._where}, step {step + 1}: {text}")

    def tell(self, check: Any) -> None:
        """Fail at the first difference. A comparison that compared nothing fails too."""
        bits, limit = self._exact.bits, PRECISION[self._dtype]
        check.that(bits <= limit, f"{self._where}: a partial sum has {bits:.1f} bits, {self._dtype} has {limit}")
        check.that(self.compared > 0, f"{self._where}: nothing was compared")
        check.that(not self.differences, "; then ".join(self.differences[:2]))
        check.metric("compared", int(check.metrics.get("compared", 0)) + self.compared)
        if bits > float(check.metrics.get("largest_sum_bits", 0.0)):
            check.metric("largest_sum_bits", round(bits, 1))
            check.metric("exact_bits", limit)
            check.metric("largest_sum", f"{self._where}: {self._exact.where}")


def local(value: torch.Tensor, exact: torch.Tensor) -> Placed:
    """Return this rank's part of a tensor with its places."""
    places = torch.arange(exact.numel()).view(exact.shape)
    if not hasattr(value, "full_tensor"):
        return Placed(value, places)
    from torch.distributed.tensor import Partial, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard

    if any(isinstance(each, Partial | _StridedShard) for each in value.placements):
        return Placed(value.full_tensor(), places)
    # Every rank has all places, so that none is sent.
    laid = distribute_tensor(places.to(value.device), value.device_mesh, value.placements, src_data_rank=None)
    return Placed(value.to_local(), laid.to_local().cpu())


def _index(flat: int, shape: tuple[int, ...]) -> str:
    """Return the index of an element as text, such as ``3, 5``."""
    found = []
    for size in reversed(shape):
        flat, here = divmod(flat, size)
        found.append(here)
    return ", ".join(map(str, reversed(found)))
