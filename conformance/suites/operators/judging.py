"""Comparison of one result of the device with the host's: structure, metadata, aliasing, values, inputs."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

import torch

from conformance.finding import Reason, report
from conformance.numerics import layout
from conformance.numerics.budgets import OpClass
from conformance.numerics.compare import Comparison, Exact, compare, host_ratio, plain, same_bits, zero_signs
from conformance.numerics.transfer import copied
from conformance.numerics.trees import leaves, tensors

from . import choices, promises
from .classes import is_fourier_transform
from .execution import OperatorSample, processed
from .oracle import Oracle
from .watching import Watches


@dataclass
class Judge:
    """Comparison of all results of one cell.

    It counts the samples and keeps the worst error (``worst``, absolute; ``ratio``, in budgets). Without ``values``
    only metadata is compared. ``watched`` is the number of calls that are recorded to see where they compute.
    """

    check: object
    device: torch.device
    op_class: OpClass
    watched: int
    values: bool = True
    info: object = None  # the operator; without it no strides are compared
    samples: int = 0
    worst: float = 0.0
    ratio: float = 0.0
    host_ratio: float = 0.0
    drawn: set[int] = field(default_factory=set)  # numbers of the samples for which the operator drew random numbers
    drew_on_host: int = 0  # elements other than zero among the drawn results that cannot be compared one by one
    drew_on_device: int = 0
    watches: Watches = field(init=False)
    _place: torch.device = field(init=False)  # the device with the index that tensors get

    def __post_init__(self) -> None:
        self.watches = Watches.on(self.device, self.watched)
        self._place = copied(torch.zeros(1), self.device).device

    def of_class(self, op_class: OpClass) -> Judge:
        """Return a judge with the budgets of another class, which counts in the same check."""
        other = copy.copy(self)
        other.op_class = op_class
        return other

    def result(
        self,
        label: str,
        sample: OperatorSample,
        actual,
        expected,
        oracle: Oracle,
        n: float,
        *,
        strides_of: OperatorSample | None = None,
    ) -> bool:
        """Compare a result: the metadata of its raw leaves, and the values of its processed leaves.

        Return whether its elements have the host's order, so that gradients can be compared too.

        ``n`` is the reduction length that scales the error budget. Strides are compared if the call's host arguments
        are given as ``strides_of``.
        """
        self.metadata(label, actual, expected, strides_of, sample)
        if not self.values:
            return True
        actual_leaves, expected_leaves = processed(sample, actual), processed(sample, expected)
        self._same_number(label, actual_leaves, expected_leaves)
        expected_leaves = choices.settled(self.info, sample, actual_leaves, expected_leaves)
        actual_leaves, ordered = choices.in_order_of(self.info, actual_leaves, expected_leaves)
        for i, (actual_leaf, expected_leaf) in enumerate(zip(actual_leaves, expected_leaves, strict=True)):
            self.leaf(
                f"{label}, output {i}" if len(expected_leaves) > 1 else label, actual_leaf, expected_leaf, oracle, i, n
            )
        return ordered

    def outcome(
        self,
        sample: OperatorSample,
        device_call,
        host_call,
        oracle: Oracle,
        *,
        with_oracle: bool = False,
        variant: str = "",
    ):
        """Compare an out-of-place call: its result, aliasing and inputs.

        ``device_call`` and ``host_call`` are pairs of a result and the sample that was passed.
        """
        (actual, device), (expected, host) = device_call, host_call
        label, n = f"{sample}{', ' + variant if variant else ''}", self.length(host, expected)
        self.result(label, sample, actual, expected, oracle, n, strides_of=with_equal_strides(device, host))
        self.aliasing(label, actual, device, expected, host)
        if self.values:
            self.inputs(label, device, host, sample, n)
            if with_oracle:
                self.against_oracle(sample, expected, oracle, n)
        self.samples += 1

    def length(self, sample: OperatorSample, result) -> float:
        """Return the reduction length of the operator's results, which scales their error budget."""
        length = reduction_length(sample, result)
        if not is_fourier_transform(self.info):
            return length
        # The error of an FFT grows with the logarithm of its length (Higham, 24.1); budgets take the root.
        elements = max((tensor.numel() for tensor in [*sample.tensors, *tensors(result)]), default=1)
        return max(length, math.log2(max(elements, 2)) ** 2)

    def metadata(
        self,
        label: str,
        actual,
        expected,
        strides_of: OperatorSample | None = None,
        sample: OperatorSample | None = None,
    ) -> None:
        """Compare number, type, dtype, shape and device of the results; the strides that the operator promises too.

        ``strides_of`` holds the host arguments of the call whose results these are; None compares no strides. For the
        ``sample`` of an operator, dtype and shape may be those of the meta function instead of the host's.
        """
        sample = strides_of or sample
        device_leaves, host_leaves = leaves(actual), leaves(expected)
        # None for every output is a stub, which says more than a wrong number of results.
        if all(leaf is None for leaf in device_leaves) and any(leaf is not None for leaf in host_leaves):
            report(Reason.STUB, f"{label}: nothing was returned")
        self._same_number(label, device_leaves, host_leaves)
        # Factorisation libraries choose their own layouts.
        compared = strides_of is not None and self.op_class is not OpClass.ITERATIVE
        for position, (actual_leaf, expected_leaf) in enumerate(zip(device_leaves, host_leaves, strict=True)):
            if isinstance(expected_leaf, torch.Tensor):
                self.check.that(
                    isinstance(actual_leaf, torch.Tensor), f"{label}: {type(actual_leaf).__name__} instead of a tensor"
                )
                difference = layout.difference(actual_leaf, expected_leaf, self._place)
                described = difference and self._is_described(sample, position, actual_leaf, expected_leaf)
                self.check.that(not difference or described, f"{label}: {difference}")
                if compared and (difference := layout.stride_difference(actual_leaf, expected_leaf)):
                    promised = promises.promises_strides(self.info, strides_of, position, expected_leaf)
                    self.check.that(not promised, f"{label}: {difference}")

    def _is_described(self, sample: OperatorSample | None, position: int, actual, expected) -> bool:
        """Return whether an output differs from the host's only in a dtype or shape that the meta function gives it."""
        if self.info is None or sample is None:
            return False
        due = (expected.layout, expected.requires_grad)
        if (actual.layout, actual.requires_grad) != due or not layout.is_on(actual, self._place):
            return False
        return promises.describes(self.info, sample, position, actual, expected)

    def _same_number(self, label: str, device_leaves: list, host_leaves: list) -> None:
        self.check.that(
            len(device_leaves) == len(host_leaves),
            f"{label}: {len(device_leaves)} results, expected {len(host_leaves)}",
        )

    def leaf(self, label: str, actual, expected, oracle: Oracle, position: int, n: float) -> None:
        """Compare the value of one output."""
        if not isinstance(expected, torch.Tensor):
            self.scalar(label, actual, expected, oracle, position, n)
            return
        if actual.shape != expected.shape:
            return  # the meta function describes this output as the device has it, and the host has nothing like it
        value, answers = plain(actual).to(expected.dtype), self.check.answers
        if answers is not None:
            # The name of an answer is a hash of ``label``: changing these words breaks answers of earlier versions.
            value = answers.of(label, value)
        self.tensor(label, value, plain(expected), lambda: oracle.leaf(position), n)

    def scalar(self, label: str, actual, expected, oracle: Oracle, position: int, n: float) -> None:
        """Compare an output that is not a tensor: floats relatively (1e-6), anything else by type and equality."""
        if isinstance(expected, (float, complex)) and isinstance(actual, (float, complex)):
            both_nan = actual != actual and expected != expected
            close = both_nan or actual == expected or abs(actual - expected) <= 1e-6 * abs(expected)
            self.check.that(close, f"{label}: {actual!r}, expected {expected!r}")
        elif isinstance(expected, (torch.device, torch.Generator)):
            return  # these differ between devices by design
        else:
            same = type(actual) is type(expected) and actual == expected
            self.check.that(same, f"{label}: {actual!r}, expected {expected!r}")

    def tensor(self, label: str, actual: torch.Tensor, expected: torch.Tensor, oracle, n: float) -> Comparison:
        """Compare one tensor with the host's, and with the oracle where bits differ; return the comparison."""
        found = compare(actual, expected, oracle, self.op_class, n)
        self.worst, self.ratio = max(self.worst, found.worst), max(self.ratio, found.ratio)
        self.check.that(found.right, f"{label}: {found}")
        return found

    def against_oracle(self, sample: OperatorSample, expected, oracle: Oracle, n: float) -> None:
        """Measure how far PyTorch's CPU, the reference, is from the oracle, in budgets."""
        for position, leaf in enumerate(processed(sample, expected)):
            exact = oracle.leaf(position) if isinstance(leaf, torch.Tensor) else None
            if exact is None or not exact.value.is_floating_point() or exact.value.shape != leaf.shape:
                continue
            # Without the response to input changes: it would take further evaluations of the oracle.
            quick = Exact(exact.value, lambda: None)
            ratio = host_ratio(plain(leaf), quick, self.op_class, n)
            self.host_ratio = max(self.host_ratio, ratio if math.isfinite(ratio) else 0.0)

    def signs(self, label: str, actual, expected, oracle: Oracle) -> None:
        """Compare the signs of zeros with the host's or the oracle's."""
        for i, (actual_leaf, expected_leaf) in enumerate(zip(leaves(actual), leaves(expected), strict=True)):
            if isinstance(expected_leaf, torch.Tensor):
                found = zero_signs(plain(actual_leaf), plain(expected_leaf))
                # Where the host's zero itself has the wrong sign, the oracle's sign is right too.
                if not found.right and (exact := oracle.leaf(i)) is not None:
                    found = zero_signs(plain(actual_leaf), plain(expected_leaf), exact.value)
                self.check.that(found.right, f"{label}: {found}")

    def aliasing(self, label: str, actual, device: OperatorSample, expected, host: OperatorSample) -> None:
        """Check that each output shares memory with the same inputs as on the host, and with no other."""
        for actual_leaf, expected_leaf in zip(leaves(actual), leaves(expected), strict=True):
            if not isinstance(expected_leaf, torch.Tensor) or expected_leaf.numel() == 0:
                continue  # an empty tensor has no memory to share
            shared, expected_shared = (
                layout.shared_with(actual_leaf, device.tensors),
                layout.shared_with(expected_leaf, host.tensors),
            )
            # Where it cannot be seen whether memory is shared, nobody is accused.
            seen = [i for i, shares in enumerate(shared) if shares is not None]
            found, due = ([i for i in seen if shares[i]] for shares in (shared, expected_shared))
            self.check.that(found == due, f"{label}: output shares memory with inputs {found}, expected {due}")

    def inputs(
        self, label: str, device: OperatorSample, host: OperatorSample, before: OperatorSample, n: float
    ) -> None:
        """Check that inputs are as the host left them: unchanged, or changed to the same values."""
        for i, (device_input, host_input, old) in enumerate(
            zip(device.tensors, host.tensors, before.tensors, strict=True)
        ):
            actual, expected = plain(device_input), plain(host_input)
            self.check.count += 1
            if same_bits(actual, expected):
                continue
            host_wrote = not same_bits(expected, plain(old))
            self.check.that(host_wrote, f"{label}: input {i} was changed by an out-of-place operation")
            # There is no oracle for a changed input: the host's change is the reference.
            self.tensor(f"{label}, input {i} after the call", actual, expected, lambda: None, n)

    def effect(self, label: str, before, device_value, host_value) -> None:
        """Check that the device changed the written arguments if the host changed them."""
        self.check.count += 1
        if _untouched(before, device_value) and not _untouched(before, host_value):
            report(Reason.STUB, f"{label}: the call wrote nothing")

    def random_result(self, actual, expected) -> None:
        """Count the elements other than zero in two results that consist of different random numbers."""
        self.drew_on_device += _not_zero(actual)
        self.drew_on_host += _not_zero(expected)

    def report(self) -> None:
        """Report the numbers of the cell; raise if the device computed on the host, or drew zeros alone."""
        check = self.check
        zeros = self.drew_on_host >= _ENOUGH_DRAWN and not self.drew_on_device
        check.that(not zeros, f"the device drew zeros alone; the host's numbers have {self.drew_on_host} other ones")
        check.metric("samples", self.samples)
        check.metric("comparisons", check.count)
        check.metric("max_abs", float(f"{self.worst:.3g}"))
        check.metric("max_budget_ratio", float(f"{self.ratio:.3g}"))
        check.metric("host_budget_ratio", float(f"{self.host_ratio:.3g}"))
        self._answer()
        self.watches.report(check)  # last: a wrong result is worse than a right one computed on the host

    def drew(self) -> None:
        """Close the answers of a challenged run: drawn numbers differ from device to device."""
        if self.check.answers is not None:
            self.check.answers.close()

    def _answer(self) -> None:
        """Keep the answer of a challenged run; fail if a claimed answer does not have the requested values."""
        self.check.answer()


def with_equal_strides(device: OperatorSample, host: OperatorSample) -> OperatorSample | None:
    """Return the host's arguments if the device's have the same strides, else None.

    A device without strides, or with its own, gets other arguments, and its results follow those.
    """
    pairs = zip(device.tensors, host.tensors, strict=True)
    return host if not any(layout.stride_difference(actual, expected) for actual, expected in pairs) else None


#: Random elements other than zero on the host after which a device with zeros alone is no accident: each has at least
#: an even chance.
_ENOUGH_DRAWN = 24


def _not_zero(result) -> int:
    return sum(int((plain(leaf) != 0).sum()) for leaf in leaves(result) if isinstance(leaf, torch.Tensor))


def _untouched(before, after) -> bool:
    return all(same_bits(plain(old), plain(new)) for old, new in zip(leaves(before), leaves(after), strict=True))


def reduction_length(sample: OperatorSample, result) -> float:
    """Return how many products or sums end in one output element, estimated from sizes alone.

    It is k for (m×k)·(k×n), and n for a sum over n elements.
    """
    sizes = sorted((t.numel() for t in sample.tensors if t.is_floating_point() or t.is_complex()), reverse=True)
    out = max((leaf.numel() for leaf in leaves(result) if isinstance(leaf, torch.Tensor)), default=1) or 1
    if not sizes:
        return 1.0
    # (m·k)·(k·n) / (m·n) = k²
    pair = math.sqrt(sizes[0] * sizes[1] / out) if len(sizes) > 1 else 1.0
    return max(1.0, sizes[0] / out, pair)
