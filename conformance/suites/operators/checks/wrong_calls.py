"""Wrong calls of an operator, made of a right one: shapes, numbers and outputs that do not fit.

PyTorch's database has error inputs for a third of the operators. These calls are for all of them. A call is wrong if
the meta function, which describes every device, and the host refuse it. A device may refuse when results are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from conformance.accelerators.capabilities import Mode
from conformance.numerics.compare import plain, same_bits
from conformance.numerics.trees import leaves, mapped
from conformance.suites.operators.calls import execution
from conformance.suites.operators.calls.calls import HOST, Call
from conformance.suites.operators.calls.execution import Attempt, attempt, call, host_call, settled
from conformance.suites.operators.calls.facts import facts
from conformance.suites.operators.inputs.arrangements import poisoned
from conformance.suites.operators.inputs.families import Stage, check
from conformance.suites.operators.inputs.kinds import representative, unlike
from conformance.suites.operators.judge.cells import Cell
from conformance.suites.operators.judge.promises import described_elements, promises_refusal

#: Numbers that fit hardly any argument. The large one may be a size or a scale.
_LARGE = 99
_NUMBERS = (-7, _LARGE, 0)
#: What is appended to a list of sizes or dimensions.
_TAIL = (1, 1, 1)
#: Dtypes of outputs that do not fit most results.
_OUT_DTYPES = (torch.int64, torch.bool, torch.float32)
#: Spreads real numbers before they are rounded to integers.
_SPREAD = 8
#: Errors that a refused call may still have in the device's queue.
_LATE_ERRORS = 8
#: Elements of the described results above which a call is not tried: 99 in the place of a scale makes up to 372
#: million, in seconds and gigabytes. All that the host refuses have fewer than 4 million (torch 2.13, all operators).
_MOST_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class Wrong:
    """A wrong call, with its function.

    With ``in_place``, the function writes its input. ``grows`` says that a number became so large that the result may
    be huge.
    """

    call: Call
    in_place: bool = False
    grows: bool = False

    @classmethod
    def of(
        cls,
        changed: Call,
        function: Any,
        *,
        out: torch.Tensor | None = None,
        in_place: bool = False,
        grows: bool = False,
    ) -> Wrong:
        """Return the call of a function with changed arguments, into an output made on the host if one is given."""
        form = "in place" if in_place else "" if out is None else "out="
        return cls(changed.into(form, function, **({} if out is None else {"out": out})), in_place, grows)


@check(Mode.INFERENCE, stage=Stage.REFUSALS, once=True, values=False)
def wrong_calls(cell: Cell) -> None:
    """Check that the device refuses wrong calls, in one dtype of each operator."""
    samples = cell.samples
    if not samples or facts(cell.info.name).unchecked:
        return
    of_kinds = unlike(cell, samples, draws=True)
    chosen = {id(sample): sample for sample in (representative(samples), *of_kinds)}
    for sample in chosen.values():
        for wrong in (*_wrong_calls(cell, sample), *_without_columns(cell, sample)):
            _check_wrong(cell, wrong)
    for sample in of_kinds if cell.values else ():
        if sample.number in cell.tally.drawn:
            _check_drawn(cell, sample)
            continue
        into = cell.info.op if cell.info.supports_out else None
        # The result of a broadcast does not fit into a smaller input.
        in_place = None if sample.broadcasts_input else cell.info.inplace_variant
        check_more(cell, cell.info.op, sample, into=into, in_place=in_place)


def _check_wrong(cell: Cell, wrong: Wrong) -> None:
    """Check a call that the host refuses: every device has to refuse it, or has to do something."""
    given = wrong.call
    if _has_index(given) or (wrong.grows and described_elements(given.function, given) > _MOST_ELEMENTS):
        # The meta function comes first: it has no memory that a wrong call could read, or fill.
        if _is_wrong_everywhere(wrong):
            check_one(cell, wrong)
    elif _host_refuses(wrong):
        _check_refused(cell, wrong)


def _check_refused(cell: Cell, wrong: Wrong) -> None:
    """Check what the device makes of a call that the host refuses.

    The meta function is asked about what the device accepts alone: it takes longer than both.
    """
    given = cell.on(wrong.call)
    if _may_be_in_memory(given) and _is_wrong_everywhere(wrong):
        return
    written = _written(wrong, given)
    before = [plain(tensor).clone() for tensor in written]
    found = _answer(given)
    if _is_refusal(found):
        cell.judge.counts(wrong.call)
    elif _is_wrong_everywhere(wrong):
        cell.judge.claim(wrong.call, False, "accepted, although PyTorch refuses it on every device")
    else:
        _check_computed(cell, wrong, found, written, before)


def _is_wrong_everywhere(wrong: Wrong) -> bool:
    """Return whether the meta function refuses the call, or refuses it without its outputs."""
    given = wrong.call
    # Without outputs it was asked before.
    if given.extra and promises_refusal(None, given.into("", given.function)):
        return True
    return promises_refusal(None, given)


def _check_drawn(cell: Cell, sample: Call) -> None:
    """Check that the device draws something where it accepts a dtype that the host refuses."""
    for number, tensor in enumerate(sample.tensors[: cell.work.special_inputs.tensors]):
        if tensor.layout is torch.strided and number not in sample.on_host:
            changed = sample.with_tensor(tensor, _in_another_dtype(tensor.detach(), _SPREAD))
            changed = changed.named(change=f"input {number} in another dtype")
            _check_answer(cell, Wrong.of(changed, cell.info.op))


def _has_index(sample: Call) -> bool:
    """Return whether a tensor may hold indices beside tensors of values: a wrong one may end a device's context."""
    integers = [not tensor.is_floating_point() and not tensor.is_complex() for tensor in sample.tensors]
    return any(integers) and not all(integers)


def _check_answer(cell: Cell, wrong: Wrong) -> None:
    """Check that the device does something where it accepts a call that the host alone refuses."""
    if not _host_refuses(wrong):
        return
    given = cell.on(wrong.call)
    written = _written(wrong, given)
    before = [plain(tensor).clone() for tensor in written]
    found = _answer(given)
    if not _is_refusal(found):
        _check_computed(cell, wrong, found, written, before)


def _is_refusal(found: Attempt) -> bool:
    """Return whether an attempt raised an exception, or returned NotImplemented."""
    return found.error is not None or found.value is NotImplemented


def _check_computed(
    cell: Cell, wrong: Wrong, found: Attempt, written: list[torch.Tensor], before: list[torch.Tensor]
) -> None:
    """Check that an accepted call computed something; ``before`` are the written tensors as they were.

    A device may do more than PyTorch's CPU. But zeros, or an output as it was, come from a kernel that loses an
    exception.
    """
    made = [plain(tensor) for tensor in _tensors(found.value)]
    if written:
        computed = not all(same_bits(plain(tensor), old) for tensor, old in zip(written, before, strict=True))
    else:
        computed = any(tensor.any() for tensor in made)
    is_empty = not any(tensor.numel() for tensor in made)
    said = "accepted, although PyTorch refuses it, and nothing was computed"
    cell.judge.claim(wrong.call, is_empty or computed, said)


def _written(wrong: Wrong, given: Call) -> list[torch.Tensor]:
    """Return the tensors that a call writes: its outputs, or the input of an in-place form."""
    if given.extra:
        return _tensors([given.extra["out"]])
    return given.tensors[:1] if wrong.in_place else []


def _host_refuses(wrong: Wrong) -> bool:
    """Return whether PyTorch's CPU refuses the call."""
    return attempt(call, None, wrong.call.on(HOST)).error is not None


def _answer(given: Call) -> Attempt:
    """Return what a device makes of a wrong call, after all errors that the call has left in its queue."""
    found = settled(attempt(execution.execute, None, given))
    if found.error is not None:
        _take_late_errors(given.device)
    return found


def check_more(
    cell: Cell,
    function: Any,
    sample: Call,
    *,
    into: Any = None,
    in_place: Any = None,
    spread: int = _SPREAD,
    only_wider: bool = False,
) -> None:
    """Check that a device computes what the operator means where it accepts another dtype than the host does.

    ``into`` is the function that takes ``out=``, if there is one, and ``in_place`` the one that writes its input.
    Whether it accepts the call is its choice. But an answer of old memory or of zeros is none, as it comes from a
    kernel that loses an exception. Most elements must be near the results for the same numbers in float64. With
    ``only_wider``, no tensor gets a dtype with smaller elements.
    """
    for number, tensor in enumerate(sample.tensors[: cell.work.special_inputs.tensors]):
        if tensor.layout is not torch.strided or tensor.is_quantized or number in sample.on_host:
            continue
        changed, other, same_numbers = _with_another_dtype(function, sample, tensor, spread)
        if only_wider and changed.element_size() < tensor.element_size():
            continue
        other = other.named(change=f"input {number} in {changed.dtype}")
        _check_meaning(cell, Wrong.of(other, function), function, same_numbers)
        if in_place is not None:
            _check_meaning(cell, Wrong.of(other, in_place, in_place=True), function, same_numbers)
        if into is not None:
            usual = host_call(function, same_numbers).value
            if isinstance(usual, torch.Tensor) and usual.layout is torch.strided:
                out = poisoned(usual.shape, changed.dtype if usual.dtype is tensor.dtype else usual.dtype)
                _check_meaning(cell, Wrong.of(other, into, out=out), function, same_numbers)
    usual = host_call(function, sample).value if into is not None else None
    if isinstance(usual, torch.Tensor) and usual.layout is torch.strided:
        for dtype in (dtype for dtype in _OUT_DTYPES if dtype is not usual.dtype):
            _check_meaning(cell, _of_dtype(sample, into, usual, dtype), function, sample)


def _with_another_dtype(
    function: Any, sample: Call, tensor: torch.Tensor, spread: int
) -> tuple[torch.Tensor, Call, Call]:
    """Return the tensor in another dtype, the sample with it, and the sample with the same numbers in the old dtype.

    Where the operator is not defined for numbers that are spread out, they stay as near to zero as they are.
    """
    for factor in (spread, 1):
        changed = _in_another_dtype(tensor.detach(), factor)
        other, same_numbers = (sample.with_tensor(tensor, new) for new in (changed, changed.to(tensor.dtype)))
        if host_call(function, same_numbers).error is None:
            break
    return changed, other, same_numbers


def _in_another_dtype(tensor: torch.Tensor, spread: int) -> torch.Tensor:
    """Return real parts of complex numbers, rounded real numbers, or integers as real numbers."""
    if tensor.is_complex():
        return tensor.real.clone()
    return (tensor * spread).to(torch.int64) if tensor.is_floating_point() else tensor.to(torch.float32)


def _check_meaning(cell: Cell, wrong: Wrong, function: Any, same_numbers: Call) -> None:
    """Check a call that the host refuses; it computes the function for ``same_numbers``."""
    if not _host_refuses(wrong):
        return
    found = _answer(cell.on(wrong.call))
    if found.error is not None:
        return
    due = attempt(call, None, same_numbers.into("", function).wide())
    ours, theirs = _tensors(found.value), _tensors(due.value)
    is_near = due.error is not None or (
        len(ours) == len(theirs) and all(_is_meant(plain(a), plain(w)) for a, w in zip(ours, theirs, strict=True))
    )
    cell.judge.claim(wrong.call, is_near, "accepted, and most elements are not what the operator means")


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the dense tensors of a result."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided]


def _is_meant(actual: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Return whether at least half of the elements are right but for one unit and a tenth, as integers round."""
    if actual.shape != wanted.shape or not wanted.numel():
        return actual.shape == wanted.shape
    if wanted.dtype is torch.bool:
        wanted = wanted.double()
    difference = (actual.to(wanted.dtype) - wanted).abs()
    near = (difference <= 1 + wanted.abs() / 10) | wanted.isnan()
    return bool(near.double().mean() >= 0.5) and bool(actual.any() or (wanted.abs() < 1).double().mean() > 0.5)


def shapes(cell: Cell, function: Any, sample: Call) -> Iterator[Wrong]:
    """Yield calls of any function with another shape of one tensor."""
    for other in _shapes(cell, sample):
        yield Wrong.of(other, function)


def changed(cell: Cell, function: Any, sample: Call) -> Iterator[Wrong]:
    """Yield calls of any function with one argument that may not fit: a tensor, a number or a list of numbers."""
    for other, grows in _changed(cell, sample):
        yield Wrong.of(other, function, grows=grows)


def check_one(cell: Cell, wrong: Wrong) -> None:
    """Check that the device refuses what the host refuses."""
    if not _host_refuses(wrong):
        return
    given = cell.on(wrong.call)
    if not _may_be_in_memory(given):
        said = "accepted, although PyTorch refuses it on every device"
        cell.judge.claim(wrong.call, _is_refusal(_answer(given)), said)


def _may_be_in_memory(given: Call) -> bool:
    """Return whether a wrong view may be within the memory that the device's allocator has rounded up."""
    return "as_strided" in getattr(given.function, "__name__", "") and _has_more_memory(given)


def _has_more_memory(sample: Call) -> bool:
    """Return whether a tensor's storage on the device has more bytes than its elements need."""
    strided = [tensor for tensor in sample.tensors if tensor.layout is torch.strided]
    return any(tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size() for tensor in strided)


def _take_late_errors(device: torch.device) -> None:
    """Read from the device until it answers: a device that queues its work may refuse each step of a wrong call."""
    for _ in range(_LATE_ERRORS):
        try:
            torch.zeros(1, device=device).cpu()
        except Exception:  # another step of the same call
            continue
        return


def _wrong_calls(cell: Cell, sample: Call) -> Iterator[Wrong]:
    """Yield the changed calls of a sample: as functions, in place, and with outputs."""
    info = cell.info
    changes = list(_changed(cell, sample))
    for other, grows in changes:
        yield Wrong.of(other, info.op, grows=grows)
    if info.inplace_variant is not None and isinstance(sample.input, torch.Tensor):
        for other, grows in changes:
            yield Wrong.of(other, info.inplace_variant, in_place=True, grows=grows)
    if info.supports_out:
        usual = host_call(info.op, sample).value
        if isinstance(usual, torch.Tensor) and usual.layout is torch.strided:
            yield from _wrong_outputs(info, sample, usual, changes)


def _without_columns(cell: Cell, sample: Call) -> Iterator[Wrong]:
    """Yield the sample without columns in its input: of no elements there is no largest one.

    Kernels are not asked for it: the host's divide by the number of columns.
    """
    given = sample.input
    if isinstance(given, torch.Tensor) and given.layout is torch.strided and not given.is_quantized and given.dim():
        empty = sample.with_tensor(given, given.detach()[..., :0].clone())
        yield Wrong.of(empty.named(change="input 0 without columns"), cell.info.op)


def _wrong_outputs(info: Any, sample: Call, usual: torch.Tensor, changes: list[tuple[Call, bool]]) -> Iterator[Wrong]:
    """Yield the changed calls with an output argument, and the valid call with outputs of other dtypes."""
    for other, grows in changes:
        yield Wrong.of(other, info.op, out=poisoned(usual.shape, usual.dtype), grows=grows)
    for dtype in _OUT_DTYPES:
        if dtype is not usual.dtype:
            yield _of_dtype(sample, info.op, usual, dtype)


def _of_dtype(sample: Call, into: Any, usual: torch.Tensor, dtype: torch.dtype) -> Wrong:
    """Return the call into an output of another dtype."""
    return Wrong(sample.into(f"out= of {dtype}", into, out=poisoned(usual.shape, dtype)))


def _shapes(cell: Cell, sample: Call) -> Iterator[Call]:
    """Yield the sample with one tensor of a shape that does not fit the others, for each tensor and shape."""
    for number, tensor in enumerate(sample.tensors[: cell.work.special_inputs.tensors]):
        if tensor.layout is not torch.strided or tensor.is_quantized:
            continue
        for name, other in _others(tensor.detach()):
            yield sample.with_tensor(tensor, other).named(change=f"input {number} {name}")


def _changed(cell: Cell, sample: Call) -> Iterator[tuple[Call, bool]]:
    """Yield the sample with one argument that may not fit, and whether the result may be huge."""
    yield from ((other, False) for other in _shapes(cell, sample))
    numbers = [leaf for leaf in leaves(list(sample.arguments)) if type(leaf) in (int, float)]
    for number, old in enumerate(numbers):
        for value in map(type(old), _NUMBERS):
            if value != old:
                other = _with_number(sample, number, value)
                yield other.named(change=f"number {number} is {value}"), value == _LARGE
    for place, listed in sample.lists:
        other = sample.with_argument(place, (*listed, *_TAIL))
        yield other.named(change=f"list {place} has {len(listed) + len(_TAIL)} numbers"), False


def _others(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensor in shapes that do not fit the other arguments, each with its name."""
    if tensor.dim() and tensor.shape[-1] > 1:
        yield "without its last column", tensor[..., :-1].contiguous()
    if tensor.dim() and tensor.shape[0] > 1:
        yield "without its first row", tensor[1:].clone()
    yield "with one dimension more", tensor.unsqueeze(0).clone()


def _with_number(sample: Call, position: int, value: float) -> Call:
    """Return the call with another value for its number at this position; other numbers stay."""
    seen = iter(range(1000))

    def change(leaf: Any) -> Any:
        return value if type(leaf) in (int, float) and next(seen) == position else leaf

    return sample.with_arguments(mapped(list(sample.arguments), change))
