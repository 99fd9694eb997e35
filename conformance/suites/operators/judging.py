"""Judging one result of the device against the host's: structure, metadata, aliasing, values, inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from conformance.finding import Reason, report
from conformance.numerics import layout
from conformance.numerics.bits import plain, same_bits
from conformance.numerics.budgets import OpClass
from conformance.numerics.compare import Comparison, Exact, compare, host_ratio, zero_signs
from conformance.numerics.trees import leaves

from .execution import Sample, processed
from .oracle import Oracle
from .watching import Watches


@dataclass
class Judge:
    """Compares the results of one cell, counts what it compared, and keeps the worst numbers."""

    check: object
    device: torch.device
    op_class: OpClass
    watched: int
    values: bool = True
    samples: int = 0
    worst: float = 0.0
    ratio: float = 0.0
    host_ratio: float = 0.0
    drawn: set[int] = field(default_factory=set)  # numbers of the samples for which the operator drew random numbers
    watches: Watches = field(init=False)

    def __post_init__(self) -> None:
        self.watches = Watches.on(self.device, self.watched)

    def result(self, place: str, sample: Sample, actual, expected, oracle: Oracle, n: float) -> None:
        """Everything about an out-of-place result: leaves one by one, raw for metadata, processed for values."""
        self.metadata(place, actual, expected)
        if not self.values:
            return
        actual_leaves, expected_leaves = processed(sample, actual), processed(sample, expected)
        self._same_number(place, actual_leaves, expected_leaves)
        for i, (ours, theirs) in enumerate(zip(actual_leaves, expected_leaves, strict=True)):
            self.leaf(f"{place}, output {i}" if len(expected_leaves) > 1 else place, ours, theirs, oracle, i, n)

    def outcome(self, sample: Sample, ours, theirs, oracle: Oracle, *, with_oracle: bool = False, variant: str = ""):
        """An out-of-place call; ``ours`` and ``theirs`` are pairs of a result and the sample it came from."""
        (actual, device), (expected, host) = ours, theirs
        place, n = f"{sample}{', ' + variant if variant else ''}", reduction_length(host, expected)
        self.result(place, sample, actual, expected, oracle, n)
        self.aliasing(place, actual, device, expected, host)
        if self.values:
            self.inputs(place, device, host, sample, n)
            if with_oracle:
                self.against_oracle(sample, expected, oracle, n)
        self.samples += 1

    def metadata(self, place: str, actual, expected) -> None:
        ours, theirs = leaves(actual), leaves(expected)
        if all(leaf is None for leaf in ours) and any(leaf is not None for leaf in theirs):
            report(Reason.STUB, f"{place}: nothing was returned")
        self._same_number(place, ours, theirs)
        strides = self.op_class is not OpClass.ITERATIVE  # LAPACK and its rivals choose their own layouts
        for left, right in zip(ours, theirs, strict=True):
            if isinstance(right, torch.Tensor):
                self.check.that(isinstance(left, torch.Tensor), f"{place}: {type(left).__name__} instead of a tensor")
                difference = layout.difference(left, right, self.device.type, strides=strides)
                self.check.that(not difference, f"{place}: {difference}")

    def _same_number(self, place: str, ours: list, theirs: list) -> None:
        self.check.that(len(ours) == len(theirs), f"{place}: {len(ours)} results, expected {len(theirs)}")

    def leaf(self, place: str, actual, expected, oracle: Oracle, position: int, n: float) -> None:
        """One output's value."""
        if not isinstance(expected, torch.Tensor):
            self.scalar(place, actual, expected, oracle, position, n)
            return
        ours, answers = plain(actual), self.check.answers
        if answers is not None:
            ours = answers.of(place, ours)
        self.tensor(place, ours, plain(expected), lambda: oracle.leaf(position), n)

    def scalar(self, place: str, actual, expected, oracle: Oracle, position: int, n: float) -> None:
        if isinstance(expected, (float, complex)) and isinstance(actual, (float, complex)):
            both_nan = actual != actual and expected != expected
            close = both_nan or actual == expected or abs(actual - expected) <= 1e-6 * abs(expected)
            self.check.that(close, f"{place}: {actual!r}, expected {expected!r}")
        elif isinstance(expected, (torch.device, torch.Generator)):
            return
        else:
            same = type(actual) is type(expected) and actual == expected
            self.check.that(same, f"{place}: {actual!r}, expected {expected!r}")

    def tensor(self, place: str, actual: torch.Tensor, expected: torch.Tensor, oracle, n: float) -> Comparison:
        found = compare(actual, expected, oracle, self.op_class, n)
        self.worst, self.ratio = max(self.worst, found.worst), max(self.ratio, found.ratio)
        self.check.that(found.right, f"{place}: {found}")
        return found

    def against_oracle(self, sample: Sample, expected, oracle: Oracle, n: float) -> None:
        """Measure the reference itself: how far PyTorch's CPU is from the oracle, in budgets."""
        for position, leaf in enumerate(processed(sample, expected)):
            exact = oracle.leaf(position) if isinstance(leaf, torch.Tensor) else None
            if exact is None or not exact.value.is_floating_point() or exact.value.shape != leaf.shape:
                continue
            quick = Exact(exact.value, lambda: None)
            ratio = host_ratio(plain(leaf), quick, self.op_class, n)
            self.host_ratio = max(self.host_ratio, ratio if math.isfinite(ratio) else 0.0)

    def signs(self, place: str, actual, expected, oracle: Oracle) -> None:
        for i, (ours, theirs) in enumerate(zip(leaves(actual), leaves(expected), strict=True)):
            if isinstance(theirs, torch.Tensor):
                found = zero_signs(plain(ours), plain(theirs))
                if not found.right and (exact := oracle.leaf(i)) is not None:
                    found = zero_signs(plain(ours), plain(theirs), exact.value)
                self.check.that(found.right, f"{place}: {found}")

    def aliasing(self, place: str, actual, device: Sample, expected, host: Sample) -> None:
        """Each output shares memory with the inputs that the host's output shares it with, and with no other."""
        for ours, theirs in zip(leaves(actual), leaves(expected), strict=True):
            if not isinstance(theirs, torch.Tensor) or theirs.numel() == 0:
                continue
            mine, right = layout.shared_with(ours, device.tensors), layout.shared_with(theirs, host.tensors)
            self.check.that(mine == right, f"{place}: output shares memory with inputs {mine}, expected {right}")

    def inputs(self, place: str, device: Sample, host: Sample, before: Sample, n: float) -> None:
        """Inputs are as the host left them: unchanged, or changed to the same values."""
        for i, (ours, theirs, old) in enumerate(zip(device.tensors, host.tensors, before.tensors, strict=True)):
            left, right = plain(ours), plain(theirs)
            self.check.count += 1
            if same_bits(left, right):
                continue
            host_wrote = not same_bits(right, plain(old))
            self.check.that(host_wrote, f"{place}: input {i} was changed by an out-of-place operation")
            self.tensor(f"{place}, input {i} after the call", left, right, lambda: None, n)

    def effect(self, place: str, before, ours, theirs) -> None:
        """A call that has to write its arguments wrote them: where the host changed them, the device did too."""
        self.check.count += 1
        if _untouched(before, ours) and not _untouched(before, theirs):
            report(Reason.STUB, f"{place}: the call wrote nothing")

    def report(self) -> None:
        check = self.check
        check.metric("samples", self.samples)
        check.metric("comparisons", check.count)
        check.metric("max_abs", float(f"{self.worst:.3g}"))
        check.metric("max_budget_ratio", float(f"{self.ratio:.3g}"))
        check.metric("host_budget_ratio", float(f"{self.host_ratio:.3g}"))
        self._answer()
        self.watches.report(check)  # last: a result that is wrong is worse than one from the wrong place

    def drew(self) -> None:
        """The operator draws random numbers: what follows is not the same on another device."""
        if self.check.answers is not None:
            self.check.answers.close()

    def _answer(self) -> None:
        """In a challenged run: keep what was computed, or say that what is claimed is not what was asked for."""
        answers = self.check.answers
        if answers is None:
            return
        self.check.that(not answers.missing(), "the answer to the challenge has not the places that it asks for")
        if text := answers.text():
            self.check.metric("answer", text)


def _untouched(before, after) -> bool:
    return all(same_bits(plain(old), plain(new)) for old, new in zip(leaves(before), leaves(after), strict=True))


def reduction_length(sample: Sample, result) -> float:
    """Products and sums that end in one output element, from sizes alone: k for (m×k)·(k×n), n for a sum over n."""
    sizes = sorted((t.numel() for t in sample.tensors if t.is_floating_point() or t.is_complex()), reverse=True)
    out = max((leaf.numel() for leaf in leaves(result) if isinstance(leaf, torch.Tensor)), default=1) or 1
    if not sizes:
        return 1.0
    pair = math.sqrt(sizes[0] * sizes[1] / out) if len(sizes) > 1 else 1.0
    return max(1.0, sizes[0] / out, pair)
