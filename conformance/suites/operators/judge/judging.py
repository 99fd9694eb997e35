"""Comparison of one result of the device with the host's: structure, metadata, aliasing, values, inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from conformance.judging.finding import Reason, report
from conformance.numerics import layout
from conformance.numerics.budgets import OpClass
from conformance.numerics.compare import Exact, compare, host_ratio, plain, same_bits, zero_signs
from conformance.numerics.transfer import copied
from conformance.numerics.trees import leaves, tensors
from conformance.suites.operators.calls.calls import Call
from conformance.suites.operators.calls.classes import is_fourier_transform
from conformance.suites.operators.calls.execution import processed
from conformance.suites.operators.calls.facts import facts

from . import choices, promises
from .aspects import Aspect
from .oracle import Oracle

if TYPE_CHECKING:
    from .cells import Cell


class Judge:
    """Comparison of the results of one cell with the host's.

    A comparison names the call that it is about; ``part`` says what of its outcome is compared, such as one of several
    outputs. A call that is not selected is not compared.
    """

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def claim(
        self,
        call: Call,
        condition: object,
        said: str,
        part: str = "",
        aspect: Aspect = Aspect.OTHER,
        allowed: float = 0.0,
    ) -> None:
        """Count one comparison of a call's outcome; raise AssertionError with what is ``said`` if it is false."""
        cell = self._cell
        if cell.selects(call):
            cell.note(call, aspect, allowed)
            # The label of a call is only made for a failure.
            cell.check.that(condition, "" if condition else f"{_about(call, part)}: {said}")

    def equal(self, call: Call, actual: Any, expected: Any, part: str = "") -> None:
        """Compare two values with ``==``, and tensors bit for bit; the device's one may answer a challenge."""
        cell = self._cell
        if cell.selects(call):
            cell.note(call, Aspect.BITS)
            cell.check.equal(actual, expected, _about(call, part))

    def counts(self, call: Call) -> bool:
        """Count one comparison that has just been made, and return True, if the call is selected."""
        selected = self._cell.selects(call)
        self._cell.check.count += selected
        return selected

    def result(
        self,
        call: Call,
        actual: Any,
        expected: Any,
        oracle: Oracle,
        n: float,
        *,
        part: str = "",
        strides_of: Call | None = None,
    ) -> bool:
        """Compare a device's result with the host's: the metadata of its leaves, and their values after processing.

        Return whether its elements have the host's order, so that gradients can be compared too. Raises AssertionError
        for a difference beyond the budget.

        ``n`` is the reduction length that scales the error budget. Strides are compared if the call's host arguments
        are given as ``strides_of``.
        """
        cell = self._cell
        if not cell.selects(call):
            return True
        self.metadata(call, actual, expected, strides_of, part=part)
        if not cell.values:
            return True
        actual_leaves, expected_leaves = processed(call, actual), processed(call, expected)
        self._same_number(call, actual_leaves, expected_leaves, part)
        expected_leaves = choices.settled(cell.info, call, actual_leaves, expected_leaves)
        actual_leaves, ordered = choices.in_order_of(cell.info, actual_leaves, expected_leaves)
        for i, (actual_leaf, expected_leaf) in enumerate(zip(actual_leaves, expected_leaves, strict=True)):
            named = _joined(part, f"output {i}") if len(expected_leaves) > 1 else part
            self.leaf(call, actual_leaf, expected_leaf, oracle, i, n, part=named)
        return ordered

    def outcome(
        self,
        call: Call,
        device_run: tuple[Any, Call],
        host_run: tuple[Any, Call],
        oracle: Oracle,
        *,
        with_oracle: bool = False,
    ) -> None:
        """Compare an out-of-place call: its result, aliasing and inputs.

        ``device_run`` and ``host_run`` are pairs of a result and the arguments that were passed.
        """
        cell = self._cell
        if not cell.selects(call):
            return
        (actual, device), (expected, host) = device_run, host_run
        n = self.length(host, expected)
        strides_of = None if call.is_mixed else with_equal_strides(device, host)
        self.result(call, actual, expected, oracle, n, strides_of=strides_of)
        self.aliasing(call, actual, device, expected, host)
        if cell.values:
            self.inputs(call, device, host, n)
            if with_oracle:
                self.against_oracle(call, expected, oracle, n)
        cell.tally.compared += 1

    def length(self, call: Call, result: Any) -> float:
        """Return the reduction length of the operator's results, which scales their error budget."""
        length = reduction_length(call, result)
        if not is_fourier_transform(self._cell.info):
            return length
        # The error of an FFT grows with the logarithm of its length (Higham, 24.1); budgets take the root.
        elements = max((tensor.numel() for tensor in [*call.tensors, *tensors(result)]), default=1)
        return max(length, math.log2(max(elements, 2)) ** 2)

    def metadata(
        self,
        call: Call,
        actual: Any,
        expected: Any,
        strides_of: Call | None = None,
        *,
        part: str = "",
        own: bool = True,
    ) -> None:
        """Compare number, type, dtype, shape and device of the results; the strides that the operator promises too.

        ``strides_of`` holds the host arguments of the call whose results these are; None compares no strides. With
        ``own``, the results are the operator's own: dtype and shape may be those of the meta function instead of the
        host's.
        """
        cell = self._cell
        if not cell.selects(call):
            return
        described_by = strides_of or (call if own else None)
        device_leaves, host_leaves = leaves(actual), leaves(expected)
        # None for every output is a stub, which says more than a wrong number of results.
        if all(leaf is None for leaf in device_leaves) and any(leaf is not None for leaf in host_leaves):
            cell.note(call)
            report(Reason.STUB, f"{_about(call, part)}: nothing was returned")
        self._same_number(call, device_leaves, host_leaves, part)
        # Factorisation libraries choose their own layouts.
        compared = None if cell.op_class is OpClass.ITERATIVE else strides_of
        for position, (actual_leaf, expected_leaf) in enumerate(zip(device_leaves, host_leaves, strict=True)):
            if isinstance(expected_leaf, torch.Tensor):
                is_tensor = isinstance(actual_leaf, torch.Tensor)
                self.claim(call, is_tensor, f"{type(actual_leaf).__name__} instead of a tensor", part)
                difference = layout.difference(actual_leaf, expected_leaf, cell.place)
                described = difference and self._is_described(described_by, position, actual_leaf, expected_leaf)
                self.claim(call, not difference or described, str(difference), part)
                if compared is not None and (difference := layout.stride_difference(actual_leaf, expected_leaf)):
                    promised = promises.promises_strides(cell.info, compared, position, expected_leaf)
                    self.claim(call, not promised, difference, part, Aspect.STRIDES)

    def _is_described(self, call: Call | None, position: int, actual: torch.Tensor, expected: torch.Tensor) -> bool:
        """Return whether an output differs from the host's only in a dtype or shape that the meta function gives it."""
        if call is None:
            return False
        due = (expected.layout, expected.requires_grad)
        if (actual.layout, actual.requires_grad) != due or not layout.is_on(actual, self._cell.place):
            return False
        return promises.describes(self._cell.info, call, position, actual, expected)

    def _same_number(self, call: Call, device_leaves: list[Any], host_leaves: list[Any], part: str) -> None:
        """Claim that the device returns as many results as the host."""
        found, due = len(device_leaves), len(host_leaves)
        self.claim(call, found == due, f"{found} results, expected {due}", part)

    def leaf(
        self, call: Call, actual: Any, expected: Any, oracle: Oracle, position: int, n: float, *, part: str = ""
    ) -> None:
        """Compare the value of one output."""
        if not isinstance(expected, torch.Tensor):
            self.scalar(call, actual, expected, part)
            return
        if actual.shape != expected.shape or not self._cell.selects(call):
            return  # the meta function describes this output as the device has it, and the host has nothing like it
        value, answers = plain(actual).to(expected.dtype), self._cell.check.answers
        if answers is not None:
            # The name of an answer is a hash of the label: changing its words breaks answers of earlier versions.
            value = answers.of(_about(call, part), value)
        due = plain(expected)
        if facts(self._cell.info.name).casts_last and call.input.is_floating_point():
            value, due = value.to(call.input.dtype), due.to(call.input.dtype)
        self.tensor(call, value, due, lambda: oracle.leaf(position), n, part=part)

    def scalar(self, call: Call, actual: Any, expected: Any, part: str = "") -> None:
        """Compare an output that is not a tensor: floats relatively (1e-6), anything else by type and equality.

        Devices and generators are not compared. Raises AssertionError for a difference.
        """
        if isinstance(expected, (float, complex)) and isinstance(actual, (float, complex)):
            both_nan = actual != actual and expected != expected
            close = both_nan or actual == expected or abs(actual - expected) <= 1e-6 * abs(expected)
            self.claim(call, close, f"{actual!r}, expected {expected!r}", part)
        elif isinstance(expected, (torch.device, torch.Generator)):
            return  # these differ between devices by design
        else:
            same = type(actual) is type(expected) and actual == expected
            self.claim(call, same, f"{actual!r}, expected {expected!r}", part)

    def tensor(
        self,
        call: Call,
        actual: torch.Tensor,
        expected: torch.Tensor,
        oracle: Callable[[], Exact | None],
        n: float,
        *,
        part: str = "",
    ) -> None:
        """Compare one tensor with the host's, and with the oracle where bits differ."""
        cell = self._cell
        if not cell.selects(call):
            return
        found, tally = compare(actual, expected, oracle, cell.op_class, n), cell.tally
        tally.worst, tally.ratio = max(tally.worst, found.worst), max(tally.ratio, found.ratio)
        # The element that is wrong differs by more than any that is right.
        self.claim(call, found.right, str(found), part, Aspect.NUMBERS, 0.9 * found.worst)

    def against_oracle(self, call: Call, expected: Any, oracle: Oracle, n: float, *, raw: bool = False) -> None:
        """Measure how far PyTorch's CPU, the reference, is from the oracle, in budgets.

        With ``raw``, the results are gradients, which no post-processing is for.
        """
        for position, leaf in enumerate(leaves(expected) if raw else processed(call, expected)):
            exact = oracle.leaf(position) if isinstance(leaf, torch.Tensor) else None
            if exact is None or not exact.value.is_floating_point() or exact.value.shape != leaf.shape:
                continue
            # Without the response to input changes: it would take further evaluations of the oracle.
            quick = Exact(exact.value, lambda: None)
            ratio = host_ratio(plain(leaf), quick, self._cell.op_class, n)
            tally = self._cell.tally
            tally.host_ratio = max(tally.host_ratio, ratio if math.isfinite(ratio) else 0.0)

    def signs(self, call: Call, actual: Any, expected: Any, oracle: Oracle) -> None:
        """Compare the signs of zeros with the host's or the oracle's."""
        for i, (actual_leaf, expected_leaf) in enumerate(zip(leaves(actual), leaves(expected), strict=True)):
            if isinstance(expected_leaf, torch.Tensor):
                found = zero_signs(plain(actual_leaf), plain(expected_leaf))
                # Where the host's zero itself has the wrong sign, the oracle's sign is right too.
                if not found.right and (exact := oracle.leaf(i)) is not None:
                    found = zero_signs(plain(actual_leaf), plain(expected_leaf), exact.value)
                self.claim(call, found.right, str(found), aspect=Aspect.BITS)

    def aliasing(self, call: Call, actual: Any, device: Call, expected: Any, host: Call) -> None:
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
            self.claim(call, found == due, f"output shares memory with inputs {found}, expected {due}")

    def inputs(self, call: Call, device: Call, host: Call, n: float) -> None:
        """Check that inputs are as the host left them: unchanged, or changed to the same values."""
        for i, (device_input, host_input, old) in enumerate(
            zip(device.tensors, host.tensors, call.tensors, strict=True)
        ):
            if not self.counts(call):
                return
            actual, expected = plain(device_input), plain(host_input)
            if same_bits(actual, expected):
                continue
            host_wrote = not same_bits(expected, plain(old))
            if not host_wrote and old.layout is torch.strided and not old.is_quantized:
                read = same_bits(plain(copied(old, device_input.device)), plain(old))
                self.claim(call, read, f"input {i} comes back as other numbers than it was given, also without a call")
            self.claim(call, host_wrote, f"input {i} was changed by an out-of-place operation")
            # There is no oracle for a changed input: the host's change is the reference.
            self.tensor(call, actual, expected, lambda: None, n, part=f"input {i} after the call")

    def effect(self, call: Call, before: Any, device_value: Any, host_value: Any) -> None:
        """Check that the device changed the written arguments if the host changed them."""
        if self.counts(call) and _untouched(before, device_value) and not _untouched(before, host_value):
            self._cell.note(call)
            report(Reason.STUB, f"{call}: the call wrote nothing")

    def random_result(self, actual: Any, expected: Any) -> None:
        """Count the elements other than zero in two results that consist of different random numbers."""
        self._cell.tally.drew_on_device += _not_zero(actual)
        self._cell.tally.drew_on_host += _not_zero(expected)

    def report(self) -> None:
        """Report the numbers of the cell; raise if the device computed on the host, or drew zeros alone."""
        check, tally = self._cell.check, self._cell.tally
        tally.current = None  # what follows is about no single call
        zeros = tally.drew_on_host >= _ENOUGH_DRAWN and not tally.drew_on_device
        check.that(not zeros, f"the device drew zeros alone; the host's numbers have {tally.drew_on_host} other ones")
        check.metric("samples", tally.compared)
        check.metric("comparisons", check.count)
        check.metric("max_abs", float(f"{tally.worst:.3g}"))
        check.metric("max_budget_ratio", float(f"{tally.ratio:.3g}"))
        check.metric("host_budget_ratio", float(f"{tally.host_ratio:.3g}"))
        # Keep the answer of a challenged run; fail if a claimed answer does not have the requested values.
        check.answer()
        self._cell.watches.report(check)  # last: a wrong result is worse than a right one computed on the host

    def drew(self) -> None:
        """Close the answers of a challenged run: drawn numbers differ from device to device."""
        if self._cell.check.answers is not None:
            self._cell.check.answers.close()


def _about(call: Call, part: str) -> str:
    """Return what a comparison is about: the label of the call, and the part of its outcome."""
    return f"{call.label}, {part}" if part else call.label


def _joined(*parts: str) -> str:
    """Return the parts of a description that are not empty, with commas."""
    return ", ".join(filter(None, parts))


def with_equal_strides(device: Call, host: Call) -> Call | None:
    """Return the host's arguments if the device's have the same strides, else None.

    A device without strides, or with its own, gets other arguments, and its results follow those.
    """
    if any(layout.appears_contiguous(each.device) for each in device.tensors if each.device.type != "cpu"):
        return None
    pairs = zip(device.tensors, host.tensors, strict=True)
    return host if not any(layout.stride_difference(actual, expected) for actual, expected in pairs) else None


#: Random elements other than zero on the host after which a device with zeros alone is no accident: each has at least
#: an even chance.
_ENOUGH_DRAWN = 24


def _not_zero(result: Any) -> int:
    """Return how many elements of a result are not 0."""
    return sum(int((plain(leaf) != 0).sum()) for leaf in leaves(result) if isinstance(leaf, torch.Tensor))


def _untouched(before: Any, after: Any) -> bool:
    """Return whether all leaves have the bits that they had before."""
    return all(same_bits(plain(old), plain(new)) for old, new in zip(leaves(before), leaves(after), strict=True))


def reduction_length(sample: Call, result: Any) -> float:
    """Return how many products or sums end in one output element, estimated from sizes alone.

    It is k for (m×k)·(k×n), and n for a sum over n elements.
    """
    read = [t.numel() for t in sample.tensors if t.is_floating_point() or t.is_complex()]
    return length_of_sizes(read, [leaf.numel() for leaf in leaves(result) if isinstance(leaf, torch.Tensor)])


def length_of_sizes(read: Iterable[int], made: Iterable[int]) -> float:
    """Return how many terms end in one output element, from the sizes of the inputs and of the outputs."""
    sizes, out = sorted(read, reverse=True), max(made, default=1) or 1
    if not sizes:
        return 1.0
    # (m·k)·(k·n) / (m·n) = k²
    pair = math.sqrt(sizes[0] * sizes[1] / out) if len(sizes) > 1 else 1.0
    return max(1.0, sizes[0] / out, pair)
